//! `hardpack ls`: the names of a directory, in the order of their bytes, page by page.

use std::process::ExitCode;

use hardpack_engine::pool::{Attributes, DirEntry, Kind};
use serde_json::{Value, json};

use crate::address::{Address, Opened, join};
use crate::args::LsArgs;
use crate::failure::{Cannot, Failure, Reason};
use crate::output::Out;
use crate::text;

/// How many names are looked at together.
const PAGE_LEN: usize = 256;

pub fn run(args: &LsArgs) -> Result<ExitCode, Failure> {
    let mut out = Out::new();
    for (index, address) in args.paths.iter().enumerate() {
        list(args, address, index > 0, &mut out).cannot("list", address)?;
    }
    out.finish().cannot("write to", "standard output")?;
    Ok(ExitCode::SUCCESS)
}

fn list(args: &LsArgs, address: &Address, follows: bool, out: &mut Out) -> Result<(), Reason> {
    let opened = address.open(None)?;
    let entry = opened.entry()?;
    if entry.kind != Kind::Directory || args.directory {
        let entry = if args.long { opened.link_entry()? } else { entry };
        let attributes = opened.pool.attributes(entry.file)?;
        let shown = opened.shown_at(&opened.path);
        return line(args, &opened, &shown, &entry, &attributes, out);
    }
    let mut heading = args.paths.len() > 1 || args.recursive;
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
        let mut after: Option<Vec<u8>> = None;
        loop {
            let page = opened.pool.list_with_attributes(directory, after.as_deref(), PAGE_LEN)?;
            let Some((last, _)) = page.last() else { break };
            after = Some(last.name.clone());
            for (entry, attributes) in &page {
                if entry.name.starts_with(b".") && !args.all {
                    continue;
                }
                let inner = join(&path, &entry.name);
                let shown = if args.json { opened.shown_at(&inner) } else { entry.name.clone() };
                line(args, &opened, &shown, entry, attributes, out)?;
                if args.recursive && entry.kind == Kind::Directory {
                    ahead.push((inner, entry.file));
                }
            }
        }
        ahead[found..].reverse();
    }
    Ok(())
}

fn line(
    args: &LsArgs,
    opened: &Opened,
    shown: &[u8],
    entry: &DirEntry,
    attributes: &Attributes,
    out: &mut Out,
) -> Result<(), Reason> {
    if args.json {
        let mut value = json_of(shown, attributes);
        if entry.kind == Kind::Symlink {
            let target = opened.pool.link_target(entry.file)?;
            value["target"] = json!(String::from_utf8_lossy(&target));
        }
        return out.line(value.to_string().as_bytes(), false);
    }
    if args.long {
        let owner = attributes.owner;
        let id = |id: Option<u32>| id.map_or_else(|| "-".into(), |id| id.to_string());
        let columns = format!(
            "{} {:>3} {:>5} {:>5} {:>12} {:>16} ",
            text::mode(attributes),
            attributes.link_count,
            id(owner.map(|owner| owner.uid)),
            id(owner.map(|owner| owner.gid)),
            attributes.len,
            text::time(attributes.modified_ns, false),
        );
        out.write(columns.as_bytes())?;
    }
    out.write(&text::for_stdout(shown, args.end.nul))?;
    if args.long && entry.kind == Kind::Symlink {
        let target = opened.pool.link_target(entry.file)?;
        out.write(b" -> ")?;
        out.write(&text::for_stdout(&target, args.end.nul))?;
    }
    out.line(b"", args.end.nul)
}

/// What is known of a file, for programs. A name that is not UTF-8 is also there in hexadecimal digits.
pub fn json_of(shown: &[u8], attributes: &Attributes) -> Value {
    let mut value = json!({
        "name": String::from_utf8_lossy(shown),
        "type": text::kind_name(attributes.kind),
        "len": attributes.len,
        "mode": format!("{:o}", attributes.mode),
        "links": attributes.link_count,
        "uid": attributes.owner.map(|owner| owner.uid),
        "gid": attributes.owner.map(|owner| owner.gid),
        "modified_ns": attributes.modified_ns,
    });
    if std::str::from_utf8(shown).is_err() {
        let digits: String = shown.iter().map(|byte| format!("{byte:02x}")).collect();
        value["name_hex"] = json!(digits);
    }
    value
}
