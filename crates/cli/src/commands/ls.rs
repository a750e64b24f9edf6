//! `hardpack ls`: lists the names of a directory in byte order, one batch at a time, or sorted.

use std::process::ExitCode;

use hardpack_engine::pool::{Attributes, DirEntry, Kind};
use serde_json::{Value, json};

use crate::address::{Address, Opened, join};
use crate::args::LsArgs;
use crate::failure::{Cannot, Failure, Reason};
use crate::output::{self, Out};
use crate::{contents, globs, text};

/// The number of names read at a time.
const PAGE_LEN: usize = 256;

/// One line of the list.
struct Row {
    name: Vec<u8>,
    entry: DirEntry,
    attributes: Attributes,
    /// The target of a symbolic link, if it is shown.
    target: Option<Vec<u8>>,
}

impl Row {
    fn new(
        args: &LsArgs,
        opened: &Opened,
        name: Vec<u8>,
        entry: DirEntry,
        attributes: Attributes,
    ) -> Result<Row, Reason> {
        let target = match entry.kind {
            Kind::Symlink if args.long || args.json => {
                contents::target_if_there(&opened.pool, entry.file)?
            }
            _ => None,
        };
        Ok(Row { name, entry, attributes, target })
    }
}

pub fn run(args: &LsArgs) -> Result<ExitCode, Failure> {
    let mut out = Out::new();
    let paths = globs::expand(&args.paths, "list")?;
    // Files come first, and each directory below its heading, as with the system's ls.
    let (mut files, mut directories) = (Vec::new(), Vec::new());
    for address in &paths {
        match file_row(args, address).cannot("list", address)? {
            Some(row) => files.push(row),
            None => directories.push(address),
        }
    }
    sort(args, &mut files);
    let mut follows = !files.is_empty();
    for row in &files {
        line(args, row, &mut out).cannot("write to", "standard output")?;
    }
    for address in directories {
        list(args, address, (paths.len() > 1, follows), &mut out).cannot("list", address)?;
        follows = true;
    }
    out.finish().cannot("write to", "standard output")?;
    Ok(ExitCode::SUCCESS)
}

/// Returns the line of an operand that is not listed as a directory.
fn file_row(args: &LsArgs, address: &Address) -> Result<Option<Row>, Reason> {
    let opened = address.open(None)?;
    let entry = opened.entry_or_link()?;
    if entry.kind == Kind::Directory && !args.directory {
        return Ok(None);
    }
    let entry = if args.long { opened.link_entry()? } else { entry };
    let attributes = opened.pool.attributes(entry.file)?;
    let name = opened.shown_at(&opened.path);
    Row::new(args, &opened, name, entry, attributes).map(Some)
}

fn is_sorted(args: &LsArgs) -> bool {
    args.by_time || args.by_size || args.reverse
}

/// Sorts lines if the arguments say so; lines that are equal otherwise by their names.
fn sort(args: &LsArgs, rows: &mut [Row]) {
    if !is_sorted(args) {
        return;
    }
    let key = |row: &Row| match (args.by_time, args.by_size) {
        (true, _) => i128::from(row.attributes.modified_ns),
        (_, true) => i128::from(row.attributes.len),
        _ => 0,
    };
    rows.sort_by(|a, b| key(b).cmp(&key(a)).then_with(|| a.name.cmp(&b.name)));
    if args.reverse {
        rows.reverse();
    }
}

fn list(
    args: &LsArgs,
    address: &Address,
    (is_one_of_many, follows): (bool, bool),
    out: &mut Out,
) -> Result<(), Reason> {
    let opened = address.open(None)?;
    let entry = opened.entry()?;
    let mut heading = is_one_of_many || args.recursive;
    let mut follows = follows;
    // Directories still to be listed, the next one last.
    let mut ahead = vec![(opened.path.clone(), entry.file)];
    while let Some((path, directory)) = ahead.pop() {
        if heading && !args.json {
            if follows {
                out.write(b"\n")?;
            }
            let shown = text::for_stdout(&opened.shown_at(&path), args.end.nul);
            out.write(&shown)?;
            out.write(b":\n")?;
        }
        (heading, follows) = (true, true);
        let found = ahead.len();
        let mut add = |row: &Row, out: &mut Out| {
            if args.recursive && row.entry.kind == Kind::Directory {
                ahead.push((join(&path, &row.entry.name), row.entry.file));
            }
            line(args, row, out)
        };
        // Only a list that is to be sorted is held in memory.
        let mut rows = Vec::new();
        let mut after: Option<Vec<u8>> = None;
        loop {
            let page = opened.pool.list_with_attributes(directory, after.as_deref(), PAGE_LEN)?;
            let Some((last, _)) = page.last() else { break };
            after = Some(last.name.clone());
            for (entry, attributes) in page {
                if entry.name.starts_with(b".") && !args.all {
                    continue;
                }
                let shown = match args.json {
                    true => opened.shown_at(&join(&path, &entry.name)),
                    false => entry.name.clone(),
                };
                let row = Row::new(args, &opened, shown, entry, attributes)?;
                match is_sorted(args) {
                    true => rows.push(row),
                    false => add(&row, out)?,
                }
            }
        }
        sort(args, &mut rows);
        rows.iter().try_for_each(|row| add(row, out))?;
        ahead[found..].reverse();
    }
    Ok(())
}

fn line(args: &LsArgs, row: &Row, out: &mut Out) -> Result<(), Reason> {
    let Row { name, entry: _, attributes, target } = row;
    if args.json {
        let mut value = json_of(name, attributes);
        if let Some(target) = target {
            value["target"] = json!(String::from_utf8_lossy(target));
        }
        return out.line(value.to_string().as_bytes(), false);
    }
    if args.long {
        let owner = attributes.owner;
        let id = |id: Option<u32>| id.map_or_else(|| "-".into(), |id| id.to_string());
        let len = match args.human.is_human {
            _ if attributes.kind.is_device() => attributes.device.to_string(),
            true => text::human(attributes.len),
            false => attributes.len.to_string(),
        };
        let columns = format!(
            "{} {:>3} {:>5} {:>5} {:>12} {:>16} ",
            text::mode(attributes),
            attributes.link_count,
            id(owner.map(|owner| owner.uid)),
            id(owner.map(|owner| owner.gid)),
            len,
            text::time(attributes.modified_ns, false),
        );
        out.write(columns.as_bytes())?;
    }
    out.write(&text::for_stdout(name, args.end.nul))?;
    if let Some(target) = target.as_ref().filter(|_| args.long) {
        out.write(b" -> ")?;
        out.write(&text::for_stdout(target, args.end.nul))?;
    }
    out.line(b"", args.end.nul)
}

/// The metadata of a file as JSON.
pub fn json_of(shown: &[u8], attributes: &Attributes) -> Value {
    let mut value = json!({
        "name": null,
        "type": attributes.kind.to_string(),
        "len": attributes.len,
        "mode": format!("{:o}", attributes.mode),
        "links": attributes.link_count,
        "uid": attributes.owner.map(|owner| owner.uid),
        "gid": attributes.owner.map(|owner| owner.gid),
        "modified_ns": attributes.modified_ns,
    });
    if attributes.kind.is_device() {
        let device = attributes.device;
        value["device"] = json!({ "major": device.major, "minor": device.minor });
    }
    output::named(value, "name", shown)
}
