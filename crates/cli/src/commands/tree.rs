//! `hardpack tree` and `hardpack find`: list everything below a directory.

use std::os::unix::ffi::OsStrExt;
use std::process::ExitCode;

use hardpack_engine::FileId;
use hardpack_engine::pool::{Attributes, DirEntry, Kind};

use super::ls::json_of;
use super::names::now_ns;
use crate::address::{Address, Opened, join};
use crate::args::{FindArgs, TreeArgs};
use crate::failure::{Cannot, Failure, Reason};
use crate::output::Out;
use crate::{contents, globs, text};

/// The number of names read at a time.
const PAGE_LEN: usize = 256;

pub fn tree(args: &TreeArgs) -> Result<ExitCode, Failure> {
    let mut out = Out::new();
    show_tree(args, &mut out).cannot("show", &args.path)?;
    out.finish().cannot("write to", "standard output")?;
    Ok(ExitCode::SUCCESS)
}

/// A directory on the way down, with the names still to show.
struct Level {
    directory: FileId,
    after: Option<Vec<u8>>,
    /// The names read ahead, the next one last.
    page: Vec<DirEntry>,
    is_at_end: bool,
}

impl Level {
    fn new(directory: FileId) -> Level {
        Level { directory, after: None, page: Vec::new(), is_at_end: false }
    }

    fn next(&mut self, args: &TreeArgs, opened: &Opened) -> Result<Option<DirEntry>, Reason> {
        while self.page.is_empty() && !self.is_at_end {
            let after = self.after.take();
            let page = opened.pool.list_some(self.directory, after.as_deref(), PAGE_LEN)?;
            self.is_at_end = page.len() < PAGE_LEN;
            self.after = page.last().map(|entry| entry.name.clone());
            let is_wanted = |entry: &DirEntry| {
                (args.all || !entry.name.starts_with(b"."))
                    && (!args.directories || entry.kind == Kind::Directory)
            };
            self.page = page.into_iter().rev().filter(is_wanted).collect();
        }
        Ok(self.page.pop())
    }
}

fn show_tree(args: &TreeArgs, out: &mut Out) -> Result<(), Reason> {
    let opened = args.path.open(None)?;
    let top = opened.entry()?;
    out.line(text::escaped(&opened.shown_at(&opened.path)).as_bytes(), false)?;
    let mut levels = Vec::new();
    if top.kind == Kind::Directory {
        let mut level = Level::new(top.file);
        let first = level.next(args, &opened)?;
        levels.push((level, first));
    }
    let (mut directories, mut files) = (0_u64, 0_u64);
    // Each level holds its next name, which tells whether the current one is the last of its
    // directory.
    while let Some((level, next)) = levels.last_mut() {
        let Some(entry) = next.take() else {
            levels.pop();
            continue;
        };
        *next = level.next(args, &opened)?;
        let (last, above) =
            levels.split_last().map_or((true, &[][..]), |(top, above)| (top.1.is_none(), above));
        for (_, next) in above {
            out.write(if next.is_some() { "│   ".as_bytes() } else { b"    " })?;
        }
        out.write(if last { "└── " } else { "├── " }.as_bytes())?;
        out.write(text::escaped(&entry.name).as_bytes())?;
        if entry.kind == Kind::Symlink {
            out.write(b" -> ")?;
            if let Some(target) = contents::target_if_there(&opened.pool, entry.file)? {
                out.write(text::escaped(&target).as_bytes())?;
            }
        }
        out.write(b"\n")?;
        if entry.kind != Kind::Directory {
            files += 1;
            continue;
        }
        directories += 1;
        if args.level.is_none_or(|level| levels.len() < level) {
            let mut level = Level::new(entry.file);
            let first = level.next(args, &opened)?;
            levels.push((level, first));
        }
    }
    let plural = |n: u64, one: &str, many: &str| format!("{n} {}", if n == 1 { one } else { many });
    let directories = plural(directories, "directory", "directories");
    let summary = match args.directories {
        true => format!("\n{directories}"),
        false => format!("\n{directories}, {}", plural(files, "file", "files")),
    };
    out.line(summary.as_bytes(), false)
}

pub fn find(args: &FindArgs) -> Result<ExitCode, Failure> {
    let mut out = Out::new();
    for address in &globs::expand(&args.paths, "search")? {
        find_below(args, address, &mut out).cannot("search", address)?;
    }
    out.finish().cannot("write to", "standard output")?;
    Ok(ExitCode::SUCCESS)
}

fn find_below(args: &FindArgs, address: &Address, out: &mut Out) -> Result<(), Reason> {
    let opened = address.open(None)?;
    let top = opened.entry_or_link()?;
    let attributes = opened.pool.attributes(top.file)?;
    let now_ns = now_ns();
    let mut show = |path: &[u8], name: &[u8], attributes: &Attributes| {
        if !is_wanted(args, now_ns, name, attributes) {
            return Ok(());
        }
        let shown = opened.shown_at(path);
        if args.json {
            return out.line(json_of(&shown, attributes).to_string().as_bytes(), false);
        }
        out.line(&text::for_stdout(&shown, args.end.nul), args.end.nul)
    };
    show(&opened.path, &top.name, &attributes)?;
    if top.kind != Kind::Directory || args.maxdepth == Some(0) {
        return Ok(());
    }
    opened.walk(top.file, &mut |path, entry, attributes| {
        show(&join(&opened.path, path), &entry.name, attributes)?;
        let depth = path.iter().filter(|byte| **byte == b'/').count() + 1;
        Ok(args.maxdepth.is_none_or(|deepest| depth < deepest))
    })
}

/// A day, for `--mtime`.
const DAY_NS: i64 = 86_400_000_000_000;

fn is_wanted(args: &FindArgs, now_ns: i64, name: &[u8], attributes: &Attributes) -> bool {
    let has_len = attributes.kind != Kind::Directory;
    let len = attributes.len;
    // A time that is not known, or yet to come, has no age.
    let age_ns = now_ns.checked_sub(attributes.modified_ns);
    let age_ns = age_ns.filter(|age| *age >= 0 && attributes.modified_ns != 0);
    let days = age_ns.and_then(|age| u64::try_from(age / DAY_NS).ok());
    args.kind.is_none_or(|kind| kind == attributes.kind)
        && args.name.as_ref().is_none_or(|glob| text::matches(glob.as_bytes(), name))
        && args.iname.as_ref().is_none_or(|glob| text::matches_any_case(glob.as_bytes(), name))
        // Directories have no length, so no size matches.
        && args.size.is_none_or(|test| has_len && test.holds(len))
        && args.rounded.is_none_or(|test| has_len && test.count.holds(len.div_ceil(test.unit)))
        && args.mtime.is_none_or(|test| days.is_some_and(|days| test.holds(days)))
}
