//! The commands, their arguments, and their effects on the target database.

use super::super::pools::{Tokens, base_tokens};

/// The effect of a successful command on the database.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Effect {
    /// Its content does not change.
    Keeps,
    /// It holds the initial tokens of every ledger, and these.
    Becomes(&'static [&'static str]),
    /// It is removed.
    Removes,
    /// It gets this name.
    Moves(&'static str),
    /// It gets one more row, with this token.
    Adds(&'static str),
    /// The pool is replaced by one without a database of that name.
    ReplacesPool,
}

/// The copy of the database that a successful command makes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Copied {
    Nothing,
    /// A file, with everything committed before.
    File(&'static str),
    /// A database in the pool, with everything committed before.
    InPool(&'static str),
    /// A database in the pool, with the content of the snapshot.
    Old(&'static str),
    /// Standard output, with everything committed before.
    Output,
}

pub struct Case {
    /// The command as the documentation shows it: `DB` is the database, `POOL` the pool.
    pub text: &'static str,
    pub effect: Effect,
    pub copied: Copied,
    /// The file used as standard input.
    pub input: Option<&'static str>,
}

const fn case(text: &'static str) -> Case {
    Case { text, effect: Effect::Keeps, copied: Copied::Nothing, input: None }
}

const fn changes(text: &'static str, effect: Effect) -> Case {
    Case { effect, ..case(text) }
}

const fn copies(text: &'static str, copied: Copied) -> Case {
    Case { copied, ..case(text) }
}

impl Case {
    /// The name of the command.
    pub fn name(&self) -> &'static str {
        self.text.split(' ').next().unwrap()
    }

    /// Returns its arguments for a database of a pool.
    pub fn arguments(&self, pool: &str, target: &str, txg: u64) -> Vec<String> {
        let (db, txg) = (format!("{pool}/{target}"), txg.to_string());
        let mut words: Vec<String> = Vec::new();
        let mut rest = self.text;
        while !rest.is_empty() {
            let (word, after) = match rest.strip_prefix('\'') {
                Some(quoted) => quoted.split_once('\'').unwrap(),
                None => rest.split_once(' ').unwrap_or((rest, "")),
            };
            words.push(word.replace("DB", &db).replace("POOL", pool).replace("TXG", &txg));
            rest = after.trim_start();
        }
        words
    }

    /// Whether the pool must be as received, so that a stream applies.
    pub fn wants_received(&self) -> bool {
        self.text.starts_with("receive DB")
    }

    /// The tokens in the database at the beginning.
    pub fn first_tokens(&self) -> Tokens {
        let mut tokens = base_tokens();
        if !self.wants_received() {
            tokens.insert("worked".into());
        }
        tokens
    }
}

/// Commands that do not use a pool, or go on using it: those have tests of their own in
/// `tests/mount/`.
pub const WITHOUT_POOL: &[&str] =
    &["codecs", "completions", "doctor", "help", "man", "mount", "run", "umount"];

pub const CASES: &[Case] = &[
    case("create POOL"),
    case("estimate -q DB"),
    changes("pack -f plain.db POOL", Effect::ReplacesPool),
    copies("unpack DB out.db", Copied::File("out.db")),
    changes("put other.db DB", Effect::Becomes(&["other"])),
    changes("put --delete empty/ POOL", Effect::Removes),
    case("put other.db POOL/new.db"),
    case("import other.tar POOL/new"),
    copies("extract -T DB out.db", Copied::File("out.db")),
    copies("cat DB", Copied::Output),
    case("ls -l POOL"),
    case("tree POOL"),
    case("find POOL"),
    case("stat DB"),
    case("du POOL"),
    case("list POOL"),
    case("stats POOL"),
    case("info POOL"),
    case("check POOL"),
    case("get all DB"),
    case("set compression=zstd-5 DB"),
    case("inherit compression DB"),
    case("mkdir POOL/new"),
    case("ln DB POOL/new.db"),
    changes("ln -f POOL/d/z.db DB", Effect::Becomes(&["z"])),
    changes("mv DB POOL/d/new.db", Effect::Moves("d/new.db")),
    changes("mv POOL/d/z.db DB", Effect::Becomes(&["z"])),
    changes("rm DB", Effect::Removes),
    copies("cp DB POOL/copy.db", Copied::InPool("POOL/copy.db")),
    changes("cp POOL/d/z.db DB", Effect::Becomes(&["z"])),
    case("touch DB"),
    case("chmod 600 DB"),
    case("chown 1:1 DB"),
    copies("snapshot DB@new", Copied::InPool("DB@new")),
    copies("snapshot POOL@new", Copied::InPool("POOL@new/TARGET")),
    changes("rollback DB@base", Effect::Becomes(&[])),
    changes("rollback POOL@base", Effect::Becomes(&[])),
    case("diff DB@base"),
    case("destroy DB@base"),
    copies("clone DB POOL/copy.db", Copied::InPool("POOL/copy.db")),
    copies("clone DB@base POOL/copy.db", Copied::Old("POOL/copy.db")),
    case("send DB@base"),
    Case { input: Some("full"), ..copies("receive POOL/copy.db", Copied::Old("POOL/copy.db")) },
    Case { input: Some("next"), ..changes("receive DB", Effect::Becomes(&["next"])) },
    Case { input: Some("next"), ..changes("receive -F DB", Effect::Becomes(&["next"])) },
    changes("rewind POOL TXG", Effect::Becomes(&[])),
    copies("salvage POOL out", Copied::Nothing),
    case("fold POOL"),
    case("repack DB"),
    case("repack --clear-unused DB"),
    case("optimize POOL"),
    case("compact POOL"),
    case("sql DB 'select count(*) from a'"),
    changes(
        "sql DB 'begin immediate; insert into a(token) values(\"sql\"); insert into b values(\"sql\"); update n set count = count + 1; commit'",
        Effect::Adds("sql"),
    ),
];
