//! The flags of `get`, `set` and `inherit`, and those that set properties of a new pool.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

use clap::Args as ClapArgs;
use clap::error::ErrorKind;
use hardpack_engine::pool::{Property, Settings};

use super::{address, value_of, wrong_usage};
use crate::address::Address;

const GET_HELP: &str = "\
Without PATH, and for a pool with a single file, the command shows the properties of the whole \
POOL. SOURCE says where a value comes from: 'local' is set on the directory or file itself, \
'inherited from' on one above it, and 'default' nowhere.

Examples:
  hardpack get all words.db.hpk
  hardpack get -r compression,recordsize archive.hpk/photos
  hardpack get -Ho value compression archive.hpk/photos";

/// Properties with values.
pub type Given = Vec<(Property, String)>;

/// Flags for the properties of what a command makes.
#[derive(Debug, ClapArgs)]
pub struct PropertyFlags {
    /// The algorithm and level; 'hardpack codecs' lists them [default: zstd-3]
    #[arg(long, value_name = "NAME", value_parser = value_of(Property::Compression))]
    pub compression: Option<String>,
    /// The longest run of bytes compressed as one, 4K to 16M [default: 128K]
    #[arg(long, value_name = "SIZE", value_parser = value_of(Property::RecordSize))]
    pub recordsize: Option<String>,
    /// The kind of checksum: xxh3, blake3 or sha256 [default: xxh3]
    #[arg(long = "checksum-kind", value_name = "NAME", value_parser = value_of(Property::Checksum))]
    pub checksum: Option<String>,
    /// The share that compression must save; otherwise a record is stored uncompressed [default:
    /// 12.5%]
    #[arg(long, value_name = "PERCENT", value_parser = value_of(Property::MinSavings))]
    pub min_savings: Option<String>,
    /// Rearrange the pages of SQLite databases by column first: auto, sqlite (try every record both
    /// ways) or none [default: auto]
    #[arg(long, value_name = "WHICH", value_parser = value_of(Property::Filter))]
    pub filter: Option<String>,
    #[command(flatten)]
    pub others: Assignments,
}

/// The flag that sets any property of what a command makes.
#[derive(Debug, ClapArgs)]
pub struct Assignments {
    /// Set a property of what is made, as 'hardpack set' does; may be given several times
    #[arg(
        short = 'o',
        long = "property",
        value_name = "PROPERTY=VALUE",
        value_parser = parse_assignment
    )]
    pub given: Vec<(Property, String)>,
}

impl PropertyFlags {
    /// The properties to set, from all flags.
    pub fn given(&self) -> Given {
        let given = [
            (Property::Compression, &self.compression),
            (Property::RecordSize, &self.recordsize),
            (Property::Checksum, &self.checksum),
            (Property::MinSavings, &self.min_savings),
            (Property::Filter, &self.filter),
        ];
        let set = given.into_iter().filter_map(|(p, value)| Some((p, value.clone()?)));
        set.chain(self.others.given.iter().cloned()).collect()
    }
}

fn set_help() -> String {
    let mut help = String::from("Properties:\n");
    for property in Property::ALL {
        help.push_str(&format!("  {property:<14}  {}\n", property.values()));
    }
    help + "\nExamples:\n  hardpack set compression=zstd-9 recordsize=1M words.db.hpk\n  \
            hardpack set compression=lz4 archive.hpk/photos archive.hpk/videos"
}

/// One thing that `get` can show.
#[derive(Clone, Debug)]
pub enum Wanted {
    All,
    Property(Property),
    Statistic(&'static str),
}

/// The read-only values that `get` also shows.
pub const STATISTICS: [&str; 4] = ["compressratio", "used", "logicalused", "guid"];

/// The parsed list of names, which the user separated by commas.
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
    /// Show the properties of everything below, too
    #[arg(short, long)]
    pub recursive: bool,
    /// The columns to show
    #[arg(
        short = 'o',
        long,
        value_name = "FIELD,...",
        value_delimiter = ',',
        default_value = "name,property,value,source"
    )]
    pub fields: Vec<Field>,
    /// Print no header, and separate the columns by tabs, for scripts
    #[arg(short = 'H', long)]
    pub scripted: bool,
    /// Show exact numbers
    #[arg(short = 'p', long = "parsable", alias = "exact")]
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
    /// Assignments such as compression=zstd-9, then the pool, directories or files
    // One list, so that flags may stand anywhere in it.
    #[arg(value_name = "PROPERTY=VALUE", required = true)]
    operands: Vec<OsString>,
}

impl SetArgs {
    /// Splits the operands into assignments and addresses. The assignments end at the first operand
    /// that is not one. Exits the process on a usage error, as the parser does.
    pub fn parse(&self) -> (Given, Vec<Address>) {
        let exit = |text: String| -> ! { wrong_usage("set", ErrorKind::ValueValidation, text) };
        let is_assignment = |text: &&OsString| {
            let bytes = text.as_bytes();
            let name = bytes.split(|byte| *byte == b'=').next().unwrap_or_default();
            name.len() < bytes.len() && !name.contains(&b'/')
        };
        // The last operand is a path even if it looks like an assignment.
        let last = self.operands.len().saturating_sub(1);
        let count = self.operands[..last].iter().take_while(is_assignment).count();
        let (settings, paths) = self.operands.split_at(count);
        if settings.is_empty() {
            exit("expected PROPERTY=VALUE, and then the pool".into());
        }
        let parsed = settings.iter().map(|text| {
            parse_assignment(&text.to_string_lossy()).map_err(|error| {
                format!(
                    "invalid value '{}': {error}",
                    crate::text::escaped(text.as_encoded_bytes())
                )
            })
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
    /// Inherit it in everything below, too
    #[arg(short, long)]
    pub recursive: bool,
}
