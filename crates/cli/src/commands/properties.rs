//! `hardpack get`, `set` and `inherit`: properties, shown like `zfs get` does.

use std::path::Path;
use std::process::ExitCode;

use hardpack_engine::FileId;
use hardpack_engine::pool::{Kind, Pool, Property, PropertySource, ROOT, Settings};
use serde_json::{Value, json};

use super::stat::{Sum, sum_below};
use crate::address::{Address, Opened, join};
use crate::args::{Field, GetArgs, InheritArgs, STATISTICS, SetArgs, Wanted};
use crate::failure::{Cannot, Failure, Reason};
use crate::output::{self, bytes, ratio};
use crate::{globs, text};

/// After setting a property on a directory, the most entries to report that override it.
const OVERRIDES_NAMED: usize = 10;
/// The most entries to search for overrides.
const OVERRIDES_SEARCHED: usize = 1000;

/// One line of `get`.
struct Row {
    /// The unchanged name, for programs.
    raw_name: Vec<u8>,
    /// The name as shown to people.
    name: String,
    property: &'static str,
    value: String,
    source: String,
}

impl Row {
    fn field(&self, field: Field) -> &str {
        match field {
            Field::Name => &self.name,
            Field::Property => self.property,
            Field::Value => &self.value,
            Field::Source => &self.source,
        }
    }
}

pub fn get(args: &GetArgs) -> Result<ExitCode, Failure> {
    let mut rows = Vec::new();
    for address in &globs::expand(&args.paths, "get properties of")? {
        collect(args, address, &mut rows).cannot("get properties of", address)?;
    }
    show(args, &rows).cannot("write to", "standard output")?;
    Ok(ExitCode::SUCCESS)
}

fn collect(args: &GetArgs, address: &Address, rows: &mut Vec<Row>) -> Result<(), Reason> {
    let opened = address.open(None)?;
    let top = opened.entry()?;
    rows_of(args, &opened, &address.pool, &opened.path, top.file, rows)?;
    if args.recursive && top.kind == Kind::Directory {
        opened.walk(top.file, &mut |path, entry, _| {
            if entry.kind != Kind::Symlink {
                let path = join(&opened.path, path);
                rows_of(args, &opened, &address.pool, &path, entry.file, rows)?;
            }
            Ok(true)
        })?;
    }
    Ok(())
}

fn rows_of(
    args: &GetArgs,
    opened: &Opened,
    pool: &Path,
    path: &[u8],
    file: FileId,
    rows: &mut Vec<Row>,
) -> Result<(), Reason> {
    let raw_name = opened.shown_at(path);
    let name = text::escaped(&raw_name);
    let mut add = |(property, value, source)| {
        let (raw_name, name) = (raw_name.clone(), name.clone());
        rows.push(Row { raw_name, name, property, value, source });
    };
    for wanted in &args.wanted.0 {
        match wanted {
            Wanted::All => {
                for statistic_name in STATISTICS {
                    let is_of_pool = statistic_name == "guid";
                    if file == ROOT || !is_of_pool && !args.recursive {
                        add(statistic(opened, pool, file, statistic_name, args.exact)?);
                    }
                }
                for property in Property::ALL {
                    add(setting(opened, file, property, args.exact)?);
                }
            }
            Wanted::Property(property) => add(setting(opened, file, *property, args.exact)?),
            Wanted::Statistic(name) => add(statistic(opened, pool, file, name, args.exact)?),
        }
    }
    Ok(())
}

fn show(args: &GetArgs, rows: &[Row]) -> Result<(), Reason> {
    if args.json {
        let rows = rows.iter().map(|row| {
            let value = json!({
                "name": null,
                "property": row.property,
                "value": row.value,
                "source": row.source,
            });
            output::named(value, "name", &row.raw_name)
        });
        return output::print_json(&rows.collect::<Value>());
    }
    let cells = |row: &Row| -> Vec<String> {
        args.fields.iter().map(|field| row.field(*field).to_owned()).collect()
    };
    if args.scripted {
        let line = |row: &Row| cells(row).join("\t") + "\n";
        return output::print(rows.iter().map(line).collect::<String>());
    }
    let header = args.fields.iter().map(|field| match field {
        Field::Name => "NAME",
        Field::Property => "PROPERTY",
        Field::Value => "VALUE",
        Field::Source => "SOURCE",
    });
    output::print(output::table(header, rows.iter().map(cells), args.fields.len()))
}

fn setting(
    opened: &Opened,
    file: FileId,
    property: Property,
    exact: bool,
) -> Result<(&'static str, String, String), Reason> {
    let properties = opened.pool.properties(file)?;
    let Some(found) = properties.into_iter().find(|known| known.property == property) else {
        // Unreachable, since every property is listed.
        return Ok((property.name(), String::new(), String::new()));
    };
    let source = match found.source {
        PropertySource::Inherited(from) => {
            let path = opened.pool.path_of(from)?;
            format!("inherited from {}", text::escaped(&opened.shown_at(&path)))
        }
        source => source.to_string(),
    };
    let value = if exact { exactly(property, &found.value)? } else { found.value };
    Ok((property.name(), value, source))
}

/// Formats a value without units.
fn exactly(property: Property, text: &str) -> Result<String, Reason> {
    let mut settings = Settings::default();
    settings.set(property, text)?;
    Ok(match property {
        Property::RecordSize => settings.record_len.to_string(),
        Property::BackgroundIo => settings.background_io.to_string(),
        _ => text.to_owned(),
    })
}

fn statistic(
    opened: &Opened,
    path: &Path,
    file: FileId,
    name: &'static str,
    exact: bool,
) -> Result<(&'static str, String, String), Reason> {
    let pool = &opened.pool;
    let state = pool.state();
    let stats = state.stats();
    // The pool keeps its own figures up to date; those of a directory are added up here.
    let is_whole = file == ROOT;
    let sum = match name {
        "guid" => Sum::default(),
        _ if is_whole => Sum::default(),
        _ => sum_below(opened, file)?,
    };
    let compress_ratio = if is_whole { stats.compress_ratio() } else { sum.ratio() };
    let value = match name {
        "compressratio" if exact => format!("{compress_ratio:.2}"),
        "compressratio" => ratio(compress_ratio),
        "used" if is_whole => bytes(std::fs::metadata(path)?.len(), exact),
        "used" => bytes(sum.stored, exact),
        "logicalused" if is_whole => bytes(stats.data().logical, exact),
        "logicalused" => bytes(sum.logical, exact),
        _ => guid(pool),
    };
    Ok((name, value, "-".into()))
}

/// The unique identifier of the pool, in hexadecimal digits.
pub fn guid(pool: &Pool) -> String {
    pool.store().guid().iter().map(|byte| format!("{byte:02x}")).collect()
}

pub fn set(args: &SetArgs) -> Result<ExitCode, Failure> {
    let (settings, paths) = args.parse();
    for address in &globs::expand(&paths, "set properties of")? {
        let change = || {
            let opened = address.open_writable(None)?;
            let target = opened.entry()?;
            for (property, value) in &settings {
                opened.pool.set_property(target.file, *property, value)?;
                if target.kind == Kind::Directory {
                    note_overrides(&opened, target.file, *property)?;
                }
            }
            Ok::<_, Reason>(opened.pool.close()?)
        };
        change().cannot("set properties of", address)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Sets properties of a file or directory.
pub fn set_all(pool: &Pool, file: FileId, given: &[(Property, String)]) -> Result<(), Reason> {
    Ok(pool.edit(0, |edit| edit.set_properties(file, given))?)
}

/// Prints a note for each entry whose own value overrides the one set on the directory.
fn note_overrides(opened: &Opened, directory: FileId, property: Property) -> Result<(), Reason> {
    let pool = &opened.pool;
    let mut named = 0;
    for entry in pool.list_some(directory, None, OVERRIDES_SEARCHED)? {
        let local = pool.local_properties(entry.file)?;
        if named < OVERRIDES_NAMED && local.iter().any(|(known, _)| *known == property) {
            named += 1;
            let path = opened.shown_at(&join(&opened.path, &entry.name));
            output::tell(format_args!(
                "note: '{}' has its own {property}; to remove it, run: hardpack inherit {property} \
                 '{}'",
                text::escaped(&entry.name),
                text::escaped(&path),
            ));
        }
    }
    Ok(())
}

pub fn inherit(args: &InheritArgs) -> Result<ExitCode, Failure> {
    for address in &globs::expand(&args.paths, "set properties of")? {
        give_up(args, address).cannot("set properties of", address)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn give_up(args: &InheritArgs, address: &Address) -> Result<(), Reason> {
    let opened = address.open_writable(None)?;
    let pool = &opened.pool;
    let top = opened.entry()?;
    let mut having = vec![top.file];
    if args.recursive && top.kind == Kind::Directory {
        opened.walk(top.file, &mut |_, entry, _| {
            let local = pool.local_properties(entry.file)?;
            if local.iter().any(|(known, _)| *known == args.property) {
                having.push(entry.file);
            }
            Ok(true)
        })?;
    }
    for file in having {
        pool.inherit_property(file, args.property)?;
    }
    Ok(pool.close()?)
}
