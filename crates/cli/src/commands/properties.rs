//! `hardpack get`, `set` and `inherit`: properties, shown as `zfs get` shows them.

use std::path::Path;
use std::process::ExitCode;

use hardpack_engine::FileId;
use hardpack_engine::pool::{Pool, Property, PropertySource, ROOT, Settings};
use serde_json::{Value, json};

use crate::args::{GetArgs, InheritArgs, STATISTICS, SetArgs, Wanted};
use crate::failure::{Cannot, Failure, Reason};
use crate::output::{self, bytes, ratio};
use crate::pool_file;

/// One line of `get`.
struct Row {
    property: &'static str,
    value: String,
    source: String,
}

pub fn get(args: &GetArgs) -> Result<ExitCode, Failure> {
    show(args).cannot("get properties of", args.pool.display())?;
    Ok(ExitCode::SUCCESS)
}

fn show(args: &GetArgs) -> Result<(), Reason> {
    let pool = pool_file::open_read_only(&args.pool, None)?;
    let target = target(&pool, args.file.as_deref())?;
    let name = match &args.file {
        Some(file) => format!("{}:{file}", args.pool.display()),
        None => args.pool.display().to_string(),
    };
    let mut rows = Vec::new();
    for wanted in &args.wanted.0 {
        match wanted {
            Wanted::All => {
                for name in STATISTICS {
                    rows.push(statistic(&pool, &args.pool, name, args.exact)?);
                }
                for property in Property::ALL {
                    rows.push(setting(&pool, target, property, args.exact)?);
                }
            }
            Wanted::Property(property) => {
                rows.push(setting(&pool, target, *property, args.exact)?);
            }
            Wanted::Statistic(statistic_name) => {
                rows.push(statistic(&pool, &args.pool, statistic_name, args.exact)?);
            }
        }
    }
    if args.json {
        let rows = rows.iter().map(|row| {
            json!({
                "name": name, "property": row.property, "value": row.value, "source": row.source,
            })
        });
        return output::print_json(&rows.collect::<Value>());
    }
    if args.scripted {
        let line = |row: &Row| format!("{name}\t{}\t{}\t{}\n", row.property, row.value, row.source);
        return output::print(rows.iter().map(line).collect::<String>());
    }
    let rows = rows.into_iter().map(|r| [name.clone(), r.property.into(), r.value, r.source]);
    output::print(output::columns(["NAME", "PROPERTY", "VALUE", "SOURCE"], rows, 4))
}

/// What properties are those of: the pool as a whole, or a file.
fn target(pool: &Pool, file: Option<&str>) -> Result<FileId, Reason> {
    match file {
        Some(name) => Ok(pool_file::find_file(pool, Some(name))?.file),
        None => Ok(ROOT),
    }
}

fn setting(pool: &Pool, target: FileId, property: Property, exact: bool) -> Result<Row, Reason> {
    let properties = pool.properties(target)?;
    // Every property is listed.
    let found = properties.into_iter().find(|known| known.property == property);
    let (mut value, source) =
        found.map_or_else(Default::default, |known| (known.value, known.source.to_string()));
    if exact && property == Property::RecordSize {
        let mut settings = Settings::default();
        settings.set(property, &value)?;
        value = settings.record_len.to_string();
    }
    Ok(Row { property: property.name(), value, source })
}

fn statistic(pool: &Pool, path: &Path, name: &'static str, exact: bool) -> Result<Row, Reason> {
    let state = pool.state();
    let stats = state.stats();
    let value = match name {
        "compressratio" if exact => format!("{:.2}", stats.compress_ratio()),
        "compressratio" => ratio(stats.compress_ratio()),
        "used" => bytes(std::fs::metadata(path)?.len(), exact),
        "logicalused" => bytes(stats.data().logical, exact),
        _ => guid(pool),
    };
    Ok(Row { property: name, value, source: "-".into() })
}

/// What identifies the pool, in hexadecimal digits.
pub fn guid(pool: &Pool) -> String {
    pool.store().guid().iter().map(|byte| format!("{byte:02x}")).collect()
}

pub fn set(args: &SetArgs) -> Result<ExitCode, Failure> {
    let (settings, path) = args.parse();
    let change = || {
        let pool = pool_file::open_writable(&path, None)?;
        let target = target(&pool, args.file.as_deref())?;
        for (property, value) in &settings {
            pool.set_property(target, *property, value)?;
            note_override(&pool, target, *property)?;
        }
        Ok::<_, Reason>(pool.close()?)
    };
    change().cannot("set properties of", path.display())?;
    Ok(ExitCode::SUCCESS)
}

/// What is set on the pool has no effect where its file says otherwise.
fn note_override(pool: &Pool, target: FileId, property: Property) -> Result<(), Reason> {
    if target != ROOT {
        return Ok(());
    }
    for entry in pool.list()? {
        let known = pool.properties(entry.file)?;
        if known.iter().any(|p| p.property == property && p.source == PropertySource::Local) {
            eprintln!(
                "note: '{}' has its own {property}; give it up with: hardpack inherit {property} \
                 --file '{}'",
                entry.display_name(),
                entry.display_name()
            );
        }
    }
    Ok(())
}

pub fn inherit(args: &InheritArgs) -> Result<ExitCode, Failure> {
    let change = || {
        let pool = pool_file::open_writable(&args.pool, None)?;
        let target = target(&pool, args.file.as_deref())?;
        pool.inherit_property(target, args.property)?;
        Ok::<_, Reason>(pool.close()?)
    };
    change().cannot("set properties of", args.pool.display())?;
    Ok(ExitCode::SUCCESS)
}
