//! `hardpack snapshot`, `list`, `rollback`, `clone`, `diff` and `destroy`: kept older states of
//! files, directories and pools.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use hardpack_engine::pool::{
    Change, CloneSource, Difference, Edit, Kind, Pool, ROOT, RollbackAsks, SnapshotInfo, UsageBelow,
};
use hardpack_engine::{Error, FileId};
use serde_json::{Value, json};

use super::cp::clone_to;
use super::names::{hold_last_name, now_ns};
use crate::address::{Address, Opened, join};
use crate::args::{CloneArgs, DestroyArgs, DiffArgs, ListArgs, RollbackArgs, SnapshotArgs};
use crate::failure::{Cannot, Code, Failure, Passage, Reason};
use crate::output::{self, Out, bytes, json_ratio, ratio};
use crate::settling::{Settling, settle_databases};
use crate::sidecars::FIRST_FILE;
use crate::users::{LOCK_WAIT, Users, has_log_in_pool, tell_left_behind};
use crate::{near, pool_file, signals, text};

/// How long others may keep a snapshot from being destroyed.
const DESTROY_WAIT: Duration = Duration::from_secs(60);

pub fn snapshot(args: &SnapshotArgs) -> Result<ExitCode, Failure> {
    for address in &Address::in_full(&args.snapshots) {
        make(address).cannot("create the snapshot", address)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn make(address: &Address) -> Result<(), Reason> {
    let (path, name) = address.snapshot_name()?;
    settle_databases(&address.pool, &path, Settling::Copied)?;
    let pool = pool_file::open_writable(&address.pool, Some(1))?;
    let scope = near::resolve(&pool, address.pool.as_os_str().as_bytes(), &path)?.file;
    pool.create_snapshot(scope, &name, now_ns())?;
    Ok(pool.close()?)
}

pub fn list(args: &ListArgs) -> Result<ExitCode, Failure> {
    show(args).cannot("list", &args.path)?;
    Ok(ExitCode::SUCCESS)
}

/// A line of the list.
struct Row {
    name: Vec<u8>,
    /// The space that destroying only this snapshot would free.
    used: Option<u64>,
    usage: UsageBelow,
    created_ns: i64,
}

fn show(args: &ListArgs) -> Result<(), Reason> {
    let opened = args.path.open(None)?;
    let top = opened.entry()?;
    let mut rows = Vec::new();
    let pool = &opened.pool;
    let usage = pool.usage_below(top.file)?;
    rows.push(Row { name: opened.shown_at(&opened.path), used: None, usage, created_ns: 0 });
    if top.kind == Kind::Directory {
        for entry in pool.list_some(top.file, None, usize::MAX)? {
            if entry.kind == Kind::Directory {
                let usage = pool.usage_below(entry.file)?;
                let name = opened.shown_at(&join(&opened.path, &entry.name));
                rows.push(Row { name, used: None, usage, created_ns: 0 });
            }
        }
    }
    for info in pool.snapshots()? {
        let is_inside = pool.is_below(info.scope, top.file).unwrap_or(top.file == ROOT);
        if !is_inside {
            continue;
        }
        let space = match args.quick {
            true => None,
            false => Some(pool.snapshot_space(info.scope, &info.name)?),
        };
        let usage = pool.open_snapshot(info.scope, &info.name)?.usage_below(info.scope)?;
        rows.push(Row {
            name: shown_snapshot(&opened, &info)?,
            used: space.map(|space| space.used),
            usage,
            created_ns: info.created_ns,
        });
    }
    print_rows(args, &rows)
}

/// The address of a snapshot, in the form that every command takes.
fn shown_snapshot(opened: &Opened, info: &SnapshotInfo) -> Result<Vec<u8>, Reason> {
    let address = opened.pool.snapshot_address(info)?;
    Ok(match address.starts_with(b"@") {
        true => [&opened.shown[..], &address].concat(),
        false => opened.shown_at(&address),
    })
}

fn print_rows(args: &ListArgs, rows: &[Row]) -> Result<(), Reason> {
    if args.json {
        let value = |row: &Row| {
            let value = json!({
                "name": null,
                "used_bytes": row.used,
                "logical_bytes": row.usage.logical,
                "stored_bytes": row.usage.stored,
                "compressratio": json_ratio(row.usage.compress_ratio()),
                "dedupratio": json_ratio(row.usage.dedup_ratio()),
                "created_ns": row.created_ns,
            });
            output::named(value, "name", &row.name)
        };
        return output::print_json(&Value::Array(rows.iter().map(value).collect()));
    }
    let cells = |row: &Row| {
        let created = match row.created_ns {
            0 => "-".into(),
            ns => text::time(ns, args.exact),
        };
        let used = row.used.map_or("-".into(), |used| bytes(used, args.exact));
        [
            text::escaped(&row.name),
            used,
            bytes(row.usage.logical, args.exact),
            bytes(row.usage.stored, args.exact),
            ratio(row.usage.compress_ratio()),
            ratio(row.usage.dedup_ratio()),
            created,
        ]
    };
    if args.scripted {
        let mut out = Out::new();
        for row in rows {
            out.line(cells(row).join("\t").as_bytes(), false)?;
        }
        return out.finish();
    }
    let header = ["NAME", "USED", "LOGICAL", "STORED", "COMPRESS", "DEDUP", "CREATED"];
    output::print(output::columns(header, rows.iter().map(cells), 1))
}

pub fn rollback(args: &RollbackArgs) -> Result<ExitCode, Failure> {
    let address = &args.snapshot;
    let change = || {
        let pool = pool_file::open_read_only(&address.pool, Some(1))?;
        let (scope, name) = address.exact_snapshot(&pool)?;
        let path = pool.path_of(scope);
        drop(pool);
        // Otherwise a log newer than the restored content could be applied to it. A removed file
        // has no log.
        if let Ok(path) = path {
            settle_databases(&address.pool, &path, Settling::Emptied)?;
        }
        let pool = pool_file::open_writable(&address.pool, None)?;
        // And a program with the database open would mix cached pages with the restored content.
        // SQLite does not open a database with a log in the pool, not even to lock it.
        let has_log = has_log(&pool, FIRST_FILE)?;
        let takes_first = has_log || !is_first_in(&pool, scope, &name)?;
        let turn = Users::of(&address.pool)?.take_turn(Some(LOCK_WAIT))?;
        let kept_out = turn.keep_out(&pool, scope, takes_first)?;
        let refused = Passage::default();
        let done = pool.rollback_asking(
            scope,
            &name,
            RollbackAsks {
                taking: &mut |there| refused.pass(hold_last_name(&kept_out, &pool, there)),
                changing: &mut |file| refused.pass(kept_out.hold_changing(&pool, file)),
                ending: &mut |edit| refused.pass(clear_logs(&kept_out, &pool, edit, scope)),
            },
        );
        done.map_err(|error| {
            refused.take().unwrap_or_else(|| match error {
                Error::Invalid(_) => {
                    Reason::from(error).hint("'hardpack clone' brings it back under another name")
                }
                Error::NotFound { what: "directory", .. } => {
                    Reason::new(Code::Cannot, "the directory of the snapshot no longer exists")
                        .hint("'hardpack clone' brings it back under another name")
                }
                error => error.into(),
            })
        })?;
        kept_out.finish(&pool)?;
        Ok::<_, Reason>(pool.close()?)
    };
    change().cannot("roll back to", address)?;
    Ok(ExitCode::SUCCESS)
}

/// Whether a program that used a file through a mount has left a log or journal of it.
fn has_log(pool: &Pool, file: FileId) -> Result<bool, Error> {
    let names = match pool.names_of(file) {
        Err(Error::NotFound { .. }) => Vec::new(),
        names => names?,
    };
    for (directory, name) in names {
        if has_log_in_pool(pool, directory, &name)? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Takes away what would be applied to a file with other content. A directory has what it had then.
fn clear_logs(users: &Users, pool: &Pool, edit: &mut Edit<'_>, file: FileId) -> Result<(), Reason> {
    if edit.attributes(file)?.kind != Kind::File {
        return Ok(());
    }
    let names = edit.names_of(file)?;
    names
        .iter()
        .try_for_each(|(directory, name)| users.clear_companions(pool, edit, (*directory, name)))
}

/// Whether a snapshot has the first file: then a rollback only replaces its content.
fn is_first_in(pool: &Pool, scope: FileId, snapshot: &[u8]) -> Result<bool, Error> {
    let then = pool.open_snapshot(scope, snapshot)?;
    match then.path_of(FIRST_FILE).and_then(|_| then.is_below(FIRST_FILE, scope)) {
        Err(Error::NotFound { .. }) => Ok(false),
        found => found,
    }
}

pub fn clone(args: &CloneArgs) -> Result<ExitCode, Failure> {
    make_clone(args).cannot("clone", &args.source)?;
    Ok(ExitCode::SUCCESS)
}

fn make_clone(args: &CloneArgs) -> Result<(), Reason> {
    let (source, target, given) = (&args.source, &args.target, &args.properties.given);
    if fs::canonicalize(&source.pool)? != fs::canonicalize(&target.pool)? {
        return Err(Reason::new(Code::Cannot, "a clone must be in the same pool as its source")
            .hint("'hardpack send' and 'receive' copy from pool to pool"));
    }
    let mut pool = pool_file::open_writable(&source.pool, Some(1))?;
    if source.find_snapshot(&pool)?.is_none() {
        drop(pool);
        settle_databases(&source.pool, &source.path, Settling::Copied)?;
        pool = pool_file::open_writable(&source.pool, Some(1))?;
    }
    let shown = source.pool.as_os_str().as_bytes();
    let place = near::resolve_parent(&pool, shown, &target.path)?;
    let users = Users::of(&target.pool)?;
    let clone = |snapshot, file| {
        let clone = CloneSource { snapshot, properties: given, ..CloneSource::new(file) };
        clone_to(&pool, &users, &clone, place)
    };
    let (file, names) = match source.find_snapshot(&pool)? {
        Some(found) => {
            let then = pool.open_snapshot(found.scope, &found.name)?;
            let shown = [shown, b"@", &found.name].concat();
            let file = near::resolve(&then, &shown, &found.path)?.file;
            clone(Some((found.scope, &found.name[..])), file)?;
            (file, then)
        }
        None => {
            let file = near::resolve(&pool, shown, &source.path)?.file;
            clone(None, file)?;
            (file, pool.clone())
        }
    };
    users.tell_cleared();
    tell_left_behind(&names, file, &|_| false);
    Ok(pool.close()?)
}

pub fn diff(args: &DiffArgs) -> Result<ExitCode, Failure> {
    compare(args).cannot("compare", &args.from)?;
    Ok(ExitCode::SUCCESS)
}

/// Applies the logs of the current databases to the pool before a comparison, if possible.
fn settle_for_diff(args: &DiffArgs) -> Result<(), Reason> {
    let pool = pool_file::open_read_only(&args.from.pool, Some(1))?;
    let (scope, _) = args.from.exact_snapshot(&pool)?;
    // A removed file has no log.
    let Ok(path) = pool.path_of(scope) else { return Ok(()) };
    drop(pool);
    if let Err(reason) = settle_databases(&args.from.pool, &path, Settling::Copied) {
        output::tell(format_args!(
            "note: changes that are not in the pool yet are not compared: {}",
            reason.text
        ));
    }
    Ok(())
}

fn compare(args: &DiffArgs) -> Result<(), Reason> {
    let to = args.to.as_ref().map(|to| args.from.beside(to));
    if to.as_ref().is_none_or(|to| !to.may_name_snapshot()) {
        settle_for_diff(args)?;
    }
    let pool = pool_file::open_read_only(&args.from.pool, None)?;
    let (scope, old) = args.from.exact_snapshot(&pool)?;
    let new = match &to {
        None => None,
        Some(to) => {
            if fs::canonicalize(&to.pool)? != fs::canonicalize(&args.from.pool)? {
                let what = "the two must be snapshots of the same pool";
                return Err(Reason::new(Code::Cannot, what));
            }
            let (other, new) = match to.may_name_snapshot() {
                true => to.exact_snapshot(&pool).map(|(other, new)| (other, Some(new)))?,
                false => (pool.resolve_link(&to.path)?.file, None),
            };
            if other != scope {
                let what = "the two must be snapshots of the same file or directory";
                return Err(Reason::new(Code::Cannot, what));
            }
            new
        }
    };
    let found = pool.diff(scope, &old, new.as_deref())?;
    if args.json {
        let values: Vec<Value> = found.iter().map(difference_json).collect();
        return output::print_json(&Value::Array(values));
    }
    let mut out = Out::new();
    for difference in &found {
        let slash = if difference.kind == Kind::Directory { "/" } else { "" };
        let path = text::escaped(&difference.path);
        let line = match &difference.change {
            Change::Created => format!("+  {path}{slash}"),
            Change::Removed => format!("-  {path}{slash}"),
            Change::Modified => format!("M  {path}{slash}"),
            Change::Renamed { from } => {
                format!("R  {}{slash} -> {path}{slash}", text::escaped(from))
            }
        };
        out.line(line.as_bytes(), false)?;
        for (start, end) in difference.ranges.iter().filter(|_| args.ranges) {
            out.line(format!("     bytes {start} to {end}").as_bytes(), false)?;
        }
    }
    out.finish()
}

fn difference_json(difference: &Difference) -> Value {
    let (change, from) = match &difference.change {
        Change::Created => ("created", None),
        Change::Removed => ("removed", None),
        Change::Modified => ("modified", None),
        Change::Renamed { from } => ("renamed", Some(from)),
    };
    let ranges: Vec<_> = difference.ranges.iter().map(|(start, end)| json!([start, end])).collect();
    let value = json!({ "change": change, "path": null, "from": null, "ranges": ranges });
    let value = output::named(value, "path", &difference.path);
    match from {
        Some(from) => output::named(value, "from", from),
        None => value,
    }
}

pub fn destroy(args: &DestroyArgs) -> Result<ExitCode, Failure> {
    signals::catch(
        "each snapshot is destroyed or untouched; what is left of freeing their space is done by the next destroy",
    );
    for address in &Address::in_full(&args.snapshots) {
        remove(address).cannot("destroy", address)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn remove(address: &Address) -> Result<(), Reason> {
    let pool = pool_file::open_writable(&address.pool, Some(1))?;
    let (scope, name) = address.exact_snapshot(&pool)?;
    let began = Instant::now();
    let mut done = pool.destroy_snapshot(scope, &name);
    // A mount through which much is written leaves few moments for others. The snapshot may be
    // destroyed already, and only its space not released yet.
    while matches!(done, Err(Error::Busy)) && began.elapsed() < DESTROY_WAIT {
        signals::check()?;
        pool.refresh()?;
        done = match pool.open_snapshot(scope, &name) {
            Err(Error::NotFound { .. }) => pool.finish_destroying().map(drop),
            _ => pool.destroy_snapshot(scope, &name),
        };
    }
    done?;
    Ok(pool.close()?)
}
