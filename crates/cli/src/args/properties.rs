//! The flags of `get`, `set` and `inherit`, and those that set properties of what is created.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

use clap::error::ErrorKind;
use clap::{Args as ClapArgs, CommandFactory};
use hardpack_engine::pool::{Property, Settings};

use super::{Args, address, value_of};
use crate::address::Address;

const GET_HELP: &str = "\
Without PATH, and for a pool that is one file alone, POOL is what it is about. SOURCE says where a value comes
from: 'local' from the directory or file itself, 'inherited from' one above it, or 'default'.

Examples:
  hardpack get all words.db.hpk
  hardpack get -r compression,recordsize archive.hpk/photos
  hardpack get -Ho value compression archive.hpk/photos";

/// Properties with values.
pub type Given = Vec<(Property, String)>;

/// Properties of a pool that is created.
#[derive(Debug, ClapArgs)]
pub struct PropertyFlags {
    /// The algorithm and level; 'hardpack codecs' lists them [default: zstd-3]
    #[arg(long, value_name = "NAME", value_parser = value_of(Property::Compression))]
    pub compression: Option<String>,
    /// The longest run of bytes compressed as one, 4K to 16M [default: 128K]
    #[arg(long, value_name = "SIZE", value_parser = value_of(Property::RecordSize))]
    pub recordsize: Option<String>,
    /// The checksum of a new pool: xxh3, blake3 or sha256 [default: xxh3]
    #[arg(long = "checksum-kind", value_name = "NAME", value_parser = value_of(Property::Checksum))]
    pub checksum: Option<String>,
    /// The share compression must save, or a record is stored as it is [default: 12.5%]
    #[arg(long, value_name = "PERCENT", value_parser = value_of(Property::MinSavings))]
    pub min_savings: Option<String>,
    /// Any other property, as in 'hardpack set'; for a pool that is made
    #[arg(short = 'o', value_name = "PROPERTY=VALUE", value_parser = parse_assignment)]
    pub property: Vec<(Property, String)>,
}

fn set_help() -> String {
    let mut help = String::from("Properties:\n");
    for property in Property::ALL {
        help.push_str(&format!("  {property:<12}  {}\n", property.values()));
    }
    help + "\nExamples:\n  hardpack set compression=zstd-9 recordsize=1M words.db.hpk\n  \
            hardpack set compression=lz4 archive.hpk/photos archive.hpk/videos"
}

/// What `get` is asked for.
#[derive(Clone, Debug)]
pub enum Wanted {
    All,
    Property(Property),
    Statistic(&'static str),
}

/// What `get` also shows, though it cannot be set.
pub const STATISTICS: [&str; 4] = ["compressratio", "used", "logicalused", "guid"];

/// Names separated by commas.
#[derive(Clone, Debug)]
pub struct WantedList(pub Vec<Wanted>);

fn parse_wanted_list(text: &str) -> Result<WantedList, String> {
    text.split(',').map(parse_wanted).collect::<Result<_, _>>().map(WantedList)
}

fn parse_wanted(text: &str) -> Result<Wanted, String> {
    if text == "all" {
        return Ok(Wanted::All);
    }
    if let Some(name) = STATISTICS.into_iter().find(|name| *name == text) {
        return Ok(Wanted::Statistic(name));
    }
    text.parse().map(Wanted::Property).map_err(|error: hardpack_engine::Error| error.to_string())
}

/// A column of `get`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum Field {
    Name,
    Property,
    Value,
    Source,
}

#[derive(Debug, ClapArgs)]
#[command(after_help = GET_HELP)]
pub struct GetArgs {
    /// Properties, separated by commas, or 'all'
    #[arg(value_name = "PROPERTY|all", value_parser = parse_wanted_list)]
    pub wanted: WantedList,
    /// The pool, or directories and files in it
    #[arg(value_name = "POOL[/PATH]", required = true, value_parser = address())]
    pub paths: Vec<Address>,
    /// Of everything below, too
    #[arg(short, long)]
    pub recursive: bool,
    /// Which columns
    #[arg(
        short = 'o',
        value_name = "FIELD,...",
        value_delimiter = ',',
        default_value = "name,property,value,source"
    )]
    pub fields: Vec<Field>,
    /// For scripts: no header, tabs between the columns
    #[arg(short = 'H')]
    pub scripted: bool,
    /// Exact numbers
    #[arg(short = 'p', long = "parsable")]
    pub exact: bool,
    /// Report as JSON
    #[arg(long)]
    pub json: bool,
}

fn parse_assignment(text: &str) -> Result<(Property, String), String> {
    let (name, value) = text.split_once('=').ok_or("expected PROPERTY=VALUE")?;
    let property: Property =
        name.parse().map_err(|error: hardpack_engine::Error| error.to_string())?;
    let mut settings = Settings::default();
    settings.set(property, value).map_err(|error| error.to_string())?;
    Ok((property, settings.get(property)))
}

#[derive(Debug, ClapArgs)]
#[command(override_usage = "hardpack set [OPTIONS] <PROPERTY=VALUE>... <POOL[/PATH]>...")]
#[command(after_help = set_help())]
pub struct SetArgs {
    /// What to set, such as compression=zstd-9, and then where
    // One list, so that flags may stand anywhere between.
    #[arg(value_name = "PROPERTY=VALUE", required = true)]
    operands: Vec<OsString>,
}

impl SetArgs {
    /// What to set, and where: assignments end with the first operand that is none. Ends the process where it
    /// is wrong, as the parser does.
    pub fn parse(&self) -> (Given, Vec<Address>) {
        let exit =
            |text: String| -> ! { Args::command().error(ErrorKind::ValueValidation, text).exit() };
        let is_assignment = |text: &&OsString| {
            let bytes = text.as_bytes();
            let name = bytes.split(|byte| *byte == b'=').next().unwrap_or_default();
            name.len() < bytes.len() && !name.contains(&b'/')
        };
        // The last is a path whatever it looks like.
        let last = self.operands.len().saturating_sub(1);
        let count = self.operands[..last].iter().take_while(is_assignment).count();
        let (settings, paths) = self.operands.split_at(count);
        if settings.is_empty() {
            exit("expected PROPERTY=VALUE, and then the pool".into());
        }
        let parsed = settings.iter().map(|text| {
            parse_assignment(&text.to_string_lossy())
                .map_err(|error| format!("invalid value '{}': {error}", text.display()))
        });
        let parsed = parsed.collect::<Result<_, _>>().unwrap_or_else(|error| exit(error));
        (parsed, paths.iter().cloned().map(Address::from).collect())
    }
}

#[derive(Debug, ClapArgs)]
pub struct InheritArgs {
    /// The property
    #[arg(value_name = "PROPERTY")]
    pub property: Property,
    /// The pool, or directories and files in it
    #[arg(value_name = "POOL[/PATH]", required = true, value_parser = address())]
    pub paths: Vec<Address>,
    /// Everything below, too
    #[arg(short, long)]
    pub recursive: bool,
}
