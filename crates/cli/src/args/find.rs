//! The flags of `hardpack find`, which also takes the options of findutils, written with one dash.

use std::ffi::OsString;

use clap::Args as ClapArgs;
use hardpack_engine::pool::Kind;

use super::{NulArg, address};
use crate::address::Address;

const FIND_HELP: &str = "\
All conditions must hold. +N means more than N, -N less than N, N exactly. The N of --size may end \
in c, K, M, G or T.

Every option may be written with one dash, as for the find of other systems: -name, -iname, -type, \
-size, -mtime, -maxdepth, -print0. Then -size counts as it does there, in units, rounded up: of \
bytes (c), K, M or G, and of 512 bytes without a letter.

Examples:
  hardpack find archive.hpk -name '*.db' -size +1M
  hardpack find archive.hpk --iname '*.jpg' --mtime -7";

/// The options of findutils, and their names here.
const ONE_DASH: [(&str, &str); 8] = [
    ("-name", "--name"),
    ("-iname", "--iname"),
    ("-type", "--type"),
    ("-size", SIZE_ROUNDED),
    ("-mtime", "--mtime"),
    ("-maxdepth", "--maxdepth"),
    ("-print0", "--null"),
    ("-print", ""),
];
const SIZE_ROUNDED: &str = "--size-rounded-up";
/// The options that no value follows.
const WITHOUT_VALUE: [&str; 3] = ["--null", "--json", ""];

/// A condition on a number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Comparison {
    More(u64),
    Less(u64),
    Exactly(u64),
}

impl Comparison {
    /// Whether a number meets the condition.
    pub fn holds(self, number: u64) -> bool {
        match self {
            Comparison::More(n) => number > n,
            Comparison::Less(n) => number < n,
            Comparison::Exactly(n) => number == n,
        }
    }
}

/// A condition on a length in units, of which the last counts even if it is not full.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rounded {
    pub unit: u64,
    pub count: Comparison,
}

#[derive(Debug, ClapArgs)]
#[command(after_help = FIND_HELP)]
pub struct FindArgs {
    /// Where to look
    #[arg(value_name = "POOL[/PATH]", required = true, value_parser = address())]
    pub paths: Vec<Address>,
    /// The last name matches this shell pattern: *, ?, [a-z]
    #[arg(long, value_name = "GLOB", allow_hyphen_values = true)]
    pub name: Option<OsString>,
    /// Like --name, and upper and lower case are the same
    #[arg(long, value_name = "GLOB", allow_hyphen_values = true)]
    pub iname: Option<OsString>,
    /// f for files, d for directories, l for symbolic links, p for fifos, s for sockets, c and b
    /// for character and block devices
    #[arg(long = "type", value_name = "f|d|l|p|s|c|b", value_parser = parse_kind)]
    pub kind: Option<Kind>,
    /// Length in bytes
    #[arg(long, value_name = "[+-]N", value_parser = parse_size, allow_hyphen_values = true)]
    pub size: Option<Comparison>,
    /// What findutils calls -size
    #[arg(long = &SIZE_ROUNDED[2..], hide = true, value_name = "[+-]N", value_parser = parse_rounded)]
    #[arg(allow_hyphen_values = true)]
    pub rounded: Option<Rounded>,
    /// Last changed this many times 24 hours ago, a fraction not counted
    #[arg(long, value_name = "[+-]N", value_parser = parse_count, allow_hyphen_values = true)]
    pub mtime: Option<Comparison>,
    /// Descend at most this many levels below the paths given
    #[arg(long, value_name = "N")]
    pub maxdepth: Option<usize>,
    #[command(flatten)]
    pub end: NulArg,
    /// Report as JSON, one line per entry
    #[arg(long)]
    pub json: bool,
}

/// Replaces the options of findutils, such as `-name`, by the ones that the parser knows. A value
/// that looks like one of them stays, and so does everything behind `--`.
pub fn from_one_dash(given: Vec<OsString>) -> Vec<OsString> {
    if given.get(1).is_none_or(|command| command != "find") {
        return given;
    }
    let mut changed = Vec::with_capacity(given.len());
    let mut given = given.into_iter();
    while let Some(word) = given.next() {
        if word == "--" {
            changed.push(word);
            changed.extend(given.by_ref());
            break;
        }
        let known = ONE_DASH.iter().find(|(one, _)| word == *one).map(|(_, two)| *two);
        let option = known.or_else(|| {
            let text = word.to_str()?;
            ONE_DASH.iter().map(|(_, two)| *two).find(|two| text == *two)
        });
        match known {
            Some("") => {}
            Some(two) => changed.push(two.into()),
            None => changed.push(word),
        }
        if option.is_some_and(|option| !WITHOUT_VALUE.contains(&option)) {
            changed.extend(given.next());
        }
    }
    changed
}

fn parse_kind(text: &str) -> Result<Kind, String> {
    match text {
        "f" => Ok(Kind::File),
        "d" => Ok(Kind::Directory),
        "l" => Ok(Kind::Symlink),
        "p" => Ok(Kind::Fifo),
        "s" => Ok(Kind::Socket),
        "c" => Ok(Kind::CharDevice),
        "b" => Ok(Kind::BlockDevice),
        _ => Err("use f, d, l, p, s, c or b".into()),
    }
}

/// Splits off the sign.
fn comparison(text: &str) -> (fn(u64) -> Comparison, &str) {
    match text.as_bytes().first() {
        Some(b'+') => (Comparison::More, &text[1..]),
        Some(b'-') => (Comparison::Less, &text[1..]),
        _ => (Comparison::Exactly, text),
    }
}

fn parse_count(text: &str) -> Result<Comparison, String> {
    let (test, number) = comparison(text);
    number.parse().map(test).map_err(|_| "use a number such as 7, +30 or -1".into())
}

/// Splits off a letter that stands for a unit.
fn unit<'t>(number: &'t str, units: &[(char, u64)]) -> Option<(&'t str, u64)> {
    let last = number.chars().next_back()?;
    let found = units.iter().find(|(letter, _)| *letter == last)?;
    Some((&number[..number.len() - 1], found.1))
}

fn parse_size(text: &str) -> Result<Comparison, String> {
    const UNITS: [(char, u64); 9] = [
        ('c', 1),
        ('k', 1 << 10),
        ('K', 1 << 10),
        ('m', 1 << 20),
        ('M', 1 << 20),
        ('g', 1 << 30),
        ('G', 1 << 30),
        ('t', 1 << 40),
        ('T', 1 << 40),
    ];
    let wrong = || "use a number of bytes such as +100, -4K or 1M".to_string();
    let (test, number) = comparison(text);
    let (digits, unit) = unit(number, &UNITS).unwrap_or((number, 1));
    let n: u64 = digits.parse().map_err(|_| wrong())?;
    n.checked_mul(unit).map(test).ok_or_else(wrong)
}

fn parse_rounded(text: &str) -> Result<Rounded, String> {
    const UNITS: [(char, u64); 7] = [
        ('c', 1),
        ('w', 2),
        ('b', 512),
        ('k', 1 << 10),
        ('K', 1 << 10),
        ('M', 1 << 20),
        ('G', 1 << 30),
    ];
    let (test, number) = comparison(text);
    let (digits, unit) = unit(number, &UNITS).unwrap_or((number, 512));
    let count = digits.parse().map(test);
    let count = count.map_err(|_| "use a number such as +100c, -4k, 1M or 2G".to_string())?;
    Ok(Rounded { unit, count })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn changed(words: &[&str]) -> Vec<String> {
        let words = words.iter().map(OsString::from).collect();
        from_one_dash(words).into_iter().map(|word| word.into_string().unwrap()).collect()
    }

    #[test]
    fn words_with_one_dash_become_options() {
        let find = ["hardpack", "find", "p.hpk", "-name", "-type", "-0", "-size", "-1", "-print"];
        let expected = "hardpack find p.hpk --name -type -0 --size-rounded-up -1";
        assert_eq!(changed(&find).join(" "), expected);
        let find = ["hardpack", "find", "--name", "-name", "-print0", "--", "-name"];
        assert_eq!(changed(&find).join(" "), "hardpack find --name -name --null -- -name");
        let other = ["hardpack", "ls", "-name"];
        assert_eq!(changed(&other), other);
    }

    #[test]
    fn sizes_are_in_bytes_or_in_units() {
        assert_eq!(parse_size("+2k"), Ok(Comparison::More(2048)));
        assert_eq!(parse_size("-7c"), Ok(Comparison::Less(7)));
        assert_eq!(parse_size("7"), Ok(Comparison::Exactly(7)));
        let blocks = Rounded { unit: 512, count: Comparison::Exactly(7) };
        assert_eq!(parse_rounded("7"), Ok(blocks));
        let mebibytes = Rounded { unit: 1 << 20, count: Comparison::Less(1) };
        assert_eq!(parse_rounded("-1M"), Ok(mebibytes));
        for wrong in ["", "+", "x", "1x", "--1", "k"] {
            assert!(parse_size(wrong).is_err() && parse_rounded(wrong).is_err(), "{wrong}");
        }
    }
}
