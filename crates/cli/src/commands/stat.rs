//! `hardpack stat`, `du` and `cat`: metadata, space and contents of files.

use std::collections::HashSet;
use std::io::Write;
use std::process::ExitCode;

use hardpack_engine::FileId;
use hardpack_engine::pool::{Attributes, Kind, Usage};
use serde_json::json;

use super::ls::json_of;
use crate::address::{Address, Opened, join};
use crate::args::{CatArgs, DuArgs, StatArgs};
use crate::contents::{self, Restart};
use crate::failure::{Cannot, Failure, Reason};
use crate::output::{self, Out, bytes, json_ratio, quotient, ratio};
use crate::users::tell_left_behind;
use crate::{globs, text};

pub fn stat(args: &StatArgs) -> Result<ExitCode, Failure> {
    for address in &globs::expand(&args.paths, "show")? {
        show(args, address).cannot("show", address)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn show(args: &StatArgs, address: &Address) -> Result<(), Reason> {
    let opened = address.open(None)?;
    let entry = if args.dereference { opened.entry()? } else { opened.link_entry()? };
    let pool = &opened.pool;
    let attributes = pool.attributes(entry.file)?;
    let usage = pool.usage(entry.file)?;
    let xattrs = pool.xattrs(entry.file)?;
    let target = match entry.kind {
        Kind::Symlink => Some(pool.link_target(entry.file)?),
        _ => None,
    };
    let shown = opened.shown_at(&opened.path);
    if args.json {
        let mut value = json_of(&shown, &attributes);
        value["number"] = json!(entry.file.0);
        value["accessed_ns"] = json!(attributes.accessed_ns);
        value["changed_ns"] = json!(attributes.changed_ns);
        value["created_ns"] = json!(attributes.created_ns);
        value["records"] = json!(usage.records);
        value["stored_bytes"] = json!(usage.stored);
        value["allocated_bytes"] = json!(usage.allocated);
        value["target"] = json!(target.map(|target| String::from_utf8_lossy(&target).into_owned()));
        let names = xattrs.iter().map(
            |(name, value)| json!({ "name": String::from_utf8_lossy(name), "len": value.len() }),
        );
        value["xattrs"] = names.collect();
        return output::print_json(&value);
    }
    let owner = attributes.owner;
    let unknown = || "unknown".to_string();
    let mut rows = vec![
        ("name", text::escaped(&shown)),
        ("type", entry.kind.to_string()),
        ("length", attributes.len.to_string()),
        (
            "stored",
            format!(
                "{} bytes in {} records ({} in whole sectors)",
                usage.stored, usage.records, usage.allocated
            ),
        ),
        ("mode", format!("{:04o} {}", attributes.mode, text::mode(&attributes))),
        ("owner", owner.map_or_else(unknown, |o| format!("{}:{}", o.uid, o.gid))),
        ("links", attributes.link_count.to_string()),
        ("number", entry.file.0.to_string()),
        ("modified", text::time(attributes.modified_ns, true)),
        ("accessed", text::time(attributes.accessed_ns, true)),
        ("changed", text::time(attributes.changed_ns, true)),
        ("created", text::time(attributes.created_ns, true)),
    ];
    if attributes.kind.is_device() {
        rows.push(("device", attributes.device.to_string()));
    }
    if let Some(target) = target {
        rows.push(("target", text::escaped(&target)));
    }
    for (name, value) in &xattrs {
        rows.push(("attribute", format!("{}, {} bytes", text::escaped(name), value.len())));
    }
    output::print(output::pairs(rows))
}

/// The space of everything below a directory. A file with several names counts once.
#[derive(Clone, Copy, Default)]
pub struct Sum {
    pub logical: u64,
    pub stored: u64,
    pub files: u64,
}

impl Sum {
    fn add(&mut self, other: Sum) {
        self.logical += other.logical;
        self.stored += other.stored;
        self.files += other.files;
    }

    fn of(attributes: &Attributes, usage: &Usage) -> Sum {
        // Data embedded in its pointer takes no sectors of its own.
        let stored = usage.allocated.max(usage.stored);
        Sum { logical: attributes.len, stored, files: 1 }
    }

    pub fn ratio(&self) -> f64 {
        quotient(self.logical, self.stored)
    }
}

/// Sums up a file, or everything below a directory.
pub fn sum_below(opened: &Opened, file: FileId) -> Result<Sum, Reason> {
    let attributes = opened.pool.attributes(file)?;
    if attributes.kind != Kind::Directory {
        return Ok(Sum::of(&attributes, &opened.pool.usage(file)?));
    }
    let mut sum = Sum::default();
    let mut seen = HashSet::new();
    opened.walk(file, &mut |_, entry, attributes| {
        if is_counted(&mut seen, entry.file, attributes) {
            sum.add(Sum::of(attributes, &opened.pool.usage(entry.file)?));
        }
        Ok(true)
    })?;
    Ok(sum)
}

fn is_counted(seen: &mut HashSet<FileId>, file: FileId, attributes: &Attributes) -> bool {
    attributes.kind != Kind::Directory && (attributes.link_count < 2 || seen.insert(file))
}

pub fn du(args: &DuArgs) -> Result<ExitCode, Failure> {
    let mut out = Out::new();
    if !args.json && !args.exact && !args.end.nul {
        out.write(
            format!("{:>12}  {:>12}  {:>7}  NAME\n", "LOGICAL", "STORED", "RATIO").as_bytes(),
        )
        .cannot("write to", "standard output")?;
    }
    for address in &globs::expand(&args.paths, "measure")? {
        sum_up(args, address, &mut out).cannot("measure", address)?;
    }
    out.finish().cannot("write to", "standard output")?;
    Ok(ExitCode::SUCCESS)
}

fn sum_up(args: &DuArgs, address: &Address, out: &mut Out) -> Result<(), Reason> {
    let opened = address.open(None)?;
    let top = opened.entry_or_link()?;
    if args.summarize || top.kind != Kind::Directory {
        let sum = sum_below(&opened, top.file)?;
        return du_line(args, &opened.shown_at(&opened.path), &sum, out);
    }
    // The directories on the way down, each with its path and its sum so far.
    let mut above: Vec<(Vec<u8>, Sum)> = vec![(Vec::new(), Sum::default())];
    let mut seen = HashSet::new();
    let shown = |path: &[u8]| opened.shown_at(&join(&opened.path, path));
    opened.walk(top.file, &mut |path, entry, attributes| {
        let directory =
            path.iter().rposition(|byte| *byte == b'/').map_or(&[][..], |at| &path[..at]);
        while above.len() > 1 && above.last().is_some_and(|(last, _)| last != directory) {
            leave(args, &mut above, &shown, out)?;
        }
        if entry.kind == Kind::Directory {
            above.push((path.to_vec(), Sum::default()));
        } else if is_counted(&mut seen, entry.file, attributes) {
            let sum = Sum::of(attributes, &opened.pool.usage(entry.file)?);
            if let Some((_, into)) = above.last_mut() {
                into.add(sum);
            }
            if args.all {
                du_line(args, &shown(path), &sum, out)?;
            }
        }
        Ok(true)
    })?;
    while !above.is_empty() {
        leave(args, &mut above, &shown, out)?;
    }
    Ok(())
}

/// Prints a completed directory, and adds its sum to its parent's.
fn leave(
    args: &DuArgs,
    above: &mut Vec<(Vec<u8>, Sum)>,
    shown: &dyn Fn(&[u8]) -> Vec<u8>,
    out: &mut Out,
) -> Result<(), Reason> {
    let Some((path, sum)) = above.pop() else { return Ok(()) };
    du_line(args, &shown(&path), &sum, out)?;
    if let Some((_, into)) = above.last_mut() {
        into.add(sum);
    }
    Ok(())
}

fn du_line(args: &DuArgs, shown: &[u8], sum: &Sum, out: &mut Out) -> Result<(), Reason> {
    if args.json {
        let value = json!({
            "name": null,
            "files": sum.files,
            "logical_bytes": sum.logical,
            "stored_bytes": sum.stored,
            "ratio": json_ratio(sum.ratio()),
        });
        let value = output::named(value, "name", shown);
        return out.line(value.to_string().as_bytes(), false);
    }
    let columns = if args.exact {
        format!("{}\t{}\t{:.2}\t", sum.logical, sum.stored, sum.ratio())
    } else if args.human.is_human {
        let (logical, stored) = (text::human(sum.logical), text::human(sum.stored));
        format!("{logical:>12}  {stored:>12}  {:>7}  ", ratio(sum.ratio()))
    } else {
        let (logical, stored) = (bytes(sum.logical, false), bytes(sum.stored, false));
        format!("{logical:>12}  {stored:>12}  {:>7}  ", ratio(sum.ratio()))
    };
    out.write(columns.as_bytes())?;
    out.line(&text::for_stdout(shown, args.end.nul), args.end.nul)
}

pub fn cat(args: &CatArgs) -> Result<ExitCode, Failure> {
    for address in &globs::expand(&args.paths, "read")? {
        write_out(address).cannot("read", address)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn write_out(address: &Address) -> Result<(), Reason> {
    let opened = address.open(None)?;
    let entry = opened.file()?;
    let path = if opened.path.is_empty() { entry.name.clone() } else { opened.path.clone() };
    let mut stdout = std::io::stdout().lock();
    let mut begin = contents::once();
    let mut sink = contents::as_bytes(|bytes| stdout.write_all(bytes).map_err(Reason::stdout));
    contents::read(&opened, entry.file, &path, Restart::Impossible, &mut begin, &mut sink)?;
    drop(sink);
    stdout.flush().map_err(Reason::stdout)?;
    tell_left_behind(&opened.pool, entry.file, &|_| false);
    Ok(())
}
