//! `hardpack salvage`: copies everything still readable out of a damaged pool, and lists exactly
//! what is lost.
//!
//! The pool is opened read-only. As with `unpack`, a file gets its name when it is complete and
//! durable; lost ranges become zeros, stored as holes.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use hardpack_engine::device::FileDevice;
use hardpack_engine::pool::{Attributes, Fate, FoundBy, PART_LEN, Salvage, SalvageFile, Stretch};
use hardpack_engine::{FileId, Txg};
use rustix::fs::{CWD, Mode, makedev, mknodat};
use serde_json::{Value, json};

use super::extract::place::file_type;
use super::unpack::Writer;
use crate::args::SalvageArgs;
use crate::failure::{Cannot, Code, Failure, Reason};
use crate::output::{self, bytes, quotient};
use crate::progress::Progress;
use crate::publish::{self, Unfinished};
use crate::sidecars;
use crate::{pool_file, signals, text};

/// Permissions of a file without recorded ones.
const MODE_DEFAULT: u32 = 0o600;

pub fn run(args: &SalvageArgs) -> Result<ExitCode, Failure> {
    signals::catch("the files written so far are complete");
    let began = Instant::now();
    let is_new = std::fs::symlink_metadata(&args.output).is_err();
    let done = salvage(args).map_err(|reason| {
        // What was saved stays; a directory without anything in it says nothing.
        if is_new {
            let _ = std::fs::remove_dir(&args.output);
        }
        reason.cannot("salvage", text::path(&args.pool))
    })?;
    let seconds = began.elapsed().as_secs_f64();
    let reported = if args.json {
        output::print_json(&done.json(args, seconds))
    } else {
        output::print(done.text(args, seconds))
    };
    reported.cannot("report on", text::path(&args.pool))?;
    Ok(ExitCode::from(if done.is_whole() { 0 } else { Code::Data as u8 }))
}

/// A file that was written.
struct Saved {
    name: Vec<u8>,
    output: PathBuf,
    /// Its other names.
    links: Vec<PathBuf>,
    len: u64,
    /// Set if the length is lost: bytes after this one may be missing, or not belong to the file.
    known_len: Option<u64>,
    /// Whether no name of it is lost.
    has_all_names: bool,
    /// The lost and older ranges, in order.
    hurt: Vec<Stretch>,
}

/// The result of a salvage.
struct Done {
    salvage: Salvage,
    files: Vec<Saved>,
    has_sidecar: bool,
}

fn salvage(args: &SalvageArgs) -> Result<Done, Reason> {
    let device = pool_file::open_device(&args.pool, FileDevice::open_read_only)?;
    let input = args.pool.canonicalize()?;
    let mut progress =
        Progress::new("searching".into(), std::fs::metadata(&input)?.len(), args.quiet);
    let wanted = args.rewind.txg.map(Txg);
    let opened = Salvage::open(Arc::new(device), &pool_file::options(None), wanted, &mut |done| {
        progress.at(done);
        if signals::is_interrupted() {
            // The search cannot be stopped midway; there is nothing to clean up.
            signals::end();
        }
    });
    drop(progress);
    let salvage = opened?;
    pool_file::tell_cut_short(&args.pool, salvage.cut_short());
    if salvage.files().is_empty() {
        return Err(Reason::new(Code::Data, "nothing is left of any file"));
    }
    let places = places(args, &input, &salvage)?;
    let mut files = Vec::new();
    let pairs: Vec<_> = salvage.files().iter().zip(places).collect();
    // Symbolic links come last, so that nothing is written through one.
    let (links, plain): (Vec<_>, Vec<_>) =
        pairs.into_iter().partition(|(file, _)| file.target.is_some());
    for (file, Place { name, output, links }) in plain.into_iter().chain(links) {
        let hurt = match &file.target {
            Some(target) => {
                link(args, target, &output).map_err(|reason| reason.about(&output))?;
                Vec::new()
            }
            None if file.attributes.kind.is_special() => {
                if let Err(reason) = make_special(args, file, &output) {
                    let shown = text::path(&output);
                    output::tell(format_args!("note: cannot make '{shown}': {}", reason.text));
                    continue;
                }
                Vec::new()
            }
            None => copy(args, &salvage, file, &name, &output)?,
        };
        for link in &links {
            give_name(args, &output, link).map_err(|reason| reason.about(link))?;
        }
        let (len, known_len) = (file.attributes.len, file.known_len);
        let has_all_names = file.has_all_names;
        files.push(Saved { name, output, links, len, known_len, has_all_names, hurt });
    }
    let has_sidecar = !sidecars::logs_beside_all_names(&args.pool)?.is_empty();
    Ok(Done { salvage, files, has_sidecar })
}

/// The destination of a file.
struct Place {
    name: Vec<u8>,
    output: PathBuf,
    /// The other names of the same file.
    links: Vec<PathBuf>,
}

/// Chooses a place for each file, and makes all directories.
fn places(args: &SalvageArgs, input: &Path, salvage: &Salvage) -> Result<Vec<Place>, Reason> {
    let files = salvage.files();
    let is_single = |file: &SalvageFile| file.path.len() <= 1 && file.other_paths.is_empty();
    let has_directories = salvage.directories().iter().any(|directory| !directory.path.is_empty());
    let is_directory =
        args.output.is_dir() || files.len() != 1 || has_directories || !is_single(&files[0]);
    // Where names above are lost, a directory and a file may get the same path.
    let above = directories_of(salvage);
    let mut taken = HashSet::new();
    let mut place = |path: &[Vec<u8>], file: &SalvageFile| {
        let id = file.id;
        let mut path = path_of(path, id);
        if above.contains(&path) || !taken.insert(path.clone()) {
            let last = path.pop().unwrap_or_default();
            path.push([&last[..], format!("-{}", id.0).as_bytes()].concat());
        }
        let mut output = args.output.clone();
        if is_directory {
            output.extend(path.iter().map(|name| OsStr::from_bytes(name)));
        }
        let refuse = || {
            if output.canonicalize().is_ok_and(|output| output == input) {
                return Err(Reason::new(Code::Cannot, "it is the pool itself")
                    .hint("name another file to create"));
            }
            // A symbolic link may be replaced by another.
            if !(args.force && file.target.is_some() && output.is_symlink()) {
                publish::refuse_existing(&output, args.force)?;
            }
            publish::refuse_in_use(&output)?;
            publish::refuse_sidecars(&output)
        };
        refuse().map_err(|reason| reason.about(&output))?;
        if is_directory {
            make_directories(&args.output, &path)?;
        }
        Ok::<_, Reason>((path.join(&b'/'), output))
    };
    let mut places = Vec::new();
    for file in files {
        let (name, output) = place(&file.path, file)?;
        let mut links = Vec::new();
        for path in &file.other_paths {
            links.push(place(path, file)?.1);
        }
        places.push(Place { name, output, links });
    }
    for directory in salvage.directories().iter().filter(|directory| !directory.path.is_empty()) {
        let mut path = path_of(&directory.path, directory.id);
        path.push(Vec::new());
        make_directories(&args.output, &path)?;
    }
    Ok(places)
}

/// Returns the paths of all directories below the output directory.
fn directories_of(salvage: &Salvage) -> HashSet<Vec<Vec<u8>>> {
    let mut directories = HashSet::new();
    for file in salvage.files() {
        for path in [&file.path].into_iter().chain(&file.other_paths) {
            let path = path_of(path, file.id);
            directories.extend((1..path.len()).map(|len| path[..len].to_vec()));
        }
    }
    for directory in salvage.directories().iter().filter(|directory| !directory.path.is_empty()) {
        let path = path_of(&directory.path, directory.id);
        directories.extend((1..=path.len()).map(|len| path[..len].to_vec()));
    }
    directories
}

/// The path of a file below the output directory. The names come from the pool, which may come from
/// anybody, so unsafe ones are replaced.
fn path_of(path: &[Vec<u8>], id: FileId) -> Vec<Vec<u8>> {
    let is_plain = |name: &Vec<u8>| {
        !name.is_empty()
            && !name.iter().any(|byte| matches!(byte, b'/' | 0))
            && name != b"."
            && name != b".."
    };
    match path.iter().all(is_plain) && !path.is_empty() {
        true => path.to_vec(),
        false => vec![format!("file-{}", id.0).into_bytes()],
    }
}

/// Makes the directories above a file. Refuses symbolic links below the top, since they could lead
/// anywhere.
fn make_directories(top: &Path, path: &[Vec<u8>]) -> Result<(), Reason> {
    let mut at = top.to_path_buf();
    for name in path {
        let done = match std::fs::symlink_metadata(&at) {
            Ok(found) if found.is_dir() || at == top && at.is_dir() => Ok(()),
            Ok(_) => Err(Reason::new(
                Code::Cannot,
                "something else of that name exists, which is not a directory",
            )),
            Err(_) => std::fs::create_dir(&at).map_err(Reason::from),
        };
        done.map_err(|reason| reason.about(&at))?;
        at.push(OsStr::from_bytes(name));
    }
    Ok(())
}

/// Makes a symbolic link.
fn link(args: &SalvageArgs, target: &[u8], output: &Path) -> Result<(), Reason> {
    if args.force && std::fs::symlink_metadata(output).is_ok() {
        publish::refuse_in_use(output)?;
        std::fs::remove_file(output)?;
    }
    Ok(std::os::unix::fs::symlink(OsStr::from_bytes(target), output)?)
}

/// Makes a special file.
fn make_special(args: &SalvageArgs, file: &SalvageFile, output: &Path) -> Result<(), Reason> {
    if args.force && std::fs::symlink_metadata(output).is_ok() {
        publish::refuse_in_use(output)?;
        std::fs::remove_file(output)?;
    }
    let Attributes { kind, device, .. } = file.attributes;
    let mode = file.attributes.known_mode().unwrap_or(MODE_DEFAULT) & 0o777;
    let (mode, device) = (Mode::from_raw_mode(mode), makedev(device.major, device.minor));
    Ok(mknodat(CWD, output, file_type(kind), mode, device).map_err(std::io::Error::from)?)
}

/// Gives a written file another name.
fn give_name(args: &SalvageArgs, output: &Path, link: &Path) -> Result<(), Reason> {
    if args.force && std::fs::symlink_metadata(link).is_ok() {
        publish::refuse_in_use(link)?;
        std::fs::remove_file(link)?;
    }
    Ok(std::fs::hard_link(output, link)?)
}

/// Copies one file, and returns its lost and older ranges.
fn copy(
    args: &SalvageArgs,
    salvage: &Salvage,
    file: &SalvageFile,
    name: &[u8],
    output: &Path,
) -> Result<Vec<Stretch>, Reason> {
    let attributes = &file.attributes;
    let unfinished = Unfinished::create(output).map_err(|reason| reason.about(output))?;
    let mut writer = Writer::create(unfinished.path())?;
    let mut progress =
        Progress::new(format!("salvaging {}", text::escaped(name)), attributes.len, args.quiet);
    let mut hurt: Vec<Stretch> = Vec::new();
    writer.begin(attributes.len)?;
    let parts = salvage.parts(file);
    let mut start = 0;
    while start < attributes.len {
        signals::check()?;
        let mut part = salvage.read_part(file, start)?;
        writer.write(&part.bytes)?;
        let end = start + part.bytes.len() as u64;
        start = end;
        let next = parts.get(parts.partition_point(|part| *part < end)).copied();
        let next = next.unwrap_or(attributes.len);
        if next - end > PART_LEN {
            // Nothing is stored there, so its first part has the fate of the whole gap.
            let fate = salvage.read_part(file, end)?.stretches.first().map(|first| first.fate);
            part.stretches.extend(fate.map(|fate| Stretch { start: end, end: next, fate }));
            writer.leave(next - end)?;
            start = next;
        }
        for stretch in part.stretches.into_iter().filter(|s| s.fate != Fate::Right) {
            match hurt.last_mut() {
                Some(last) if last.end == stretch.start && last.fate == stretch.fate => {
                    last.end = stretch.end;
                }
                _ => hurt.push(stretch),
            }
        }
        progress.at(writer.len());
    }
    writer.finish()?;
    progress.finish();
    let mode = attributes.known_mode().unwrap_or(MODE_DEFAULT);
    let since_1970 = u64::try_from(attributes.modified_ns).ok().filter(|ns| *ns > 0);
    let modified = since_1970.map(|ns| SystemTime::UNIX_EPOCH + Duration::from_nanos(ns));
    unfinished.complete(mode, modified)?;
    unfinished.publish(output, args.force).map_err(|reason| reason.about(output))?;
    Ok(hurt)
}

impl Saved {
    fn bytes(&self, which: impl Fn(Fate) -> bool) -> u64 {
        self.hurt.iter().filter(|s| which(s.fate)).map(|s| s.end - s.start).sum()
    }

    fn lost(&self) -> u64 {
        self.bytes(|fate| fate == Fate::Lost)
    }

    fn older(&self) -> u64 {
        self.bytes(|fate| matches!(fate, Fate::Older(_)))
    }

    fn percent(&self, part: u64) -> f64 {
        if self.len == 0 { 0.0 } else { quotient(part, self.len) * 100.0 }
    }

    fn is_whole(&self) -> bool {
        self.hurt.is_empty() && self.known_len.is_none() && self.has_all_names
    }
}

fn fate_text(fate: Fate) -> String {
    match fate {
        Fate::Right => "intact".into(),
        Fate::Older(txg) => format!("older state, txg {txg}"),
        Fate::Lost => "lost, zeros".into(),
    }
}

impl Done {
    fn is_whole(&self) -> bool {
        self.files.iter().all(Saved::is_whole)
            && self.salvage.directories().iter().all(|directory| directory.has_all_names)
            && !self.salvage.may_lack_files()
    }

    fn source(&self) -> &'static str {
        match self.salvage.found_by() {
            FoundBy::Superblock => "superblock",
            FoundBy::Search => "search",
            FoundBy::Guess => "guess",
        }
    }

    fn text(&self, args: &SalvageArgs, seconds: f64) -> String {
        let mut text = String::new();
        let rows = self.files.iter().flat_map(|saved| {
            saved.hurt.iter().map(|s| {
                let what = fate_text(s.fate);
                let (name, len) = (text::escaped(&saved.name), s.end - s.start);
                [name, what, s.start.to_string(), s.end.to_string(), bytes(len, false)]
            })
        });
        let rows: Vec<_> = rows.collect();
        if !rows.is_empty() {
            text.push_str(&output::columns(["FILE", "WHAT", "FROM", "TO", "LENGTH"], rows, 2));
        }
        if args.quiet {
            return text;
        }
        let txg = self.salvage.state().txg();
        text.push_str(&match self.salvage.found_by() {
            FoundBy::Superblock => format!("{}: state of txg {txg}\n", text::path(&args.pool)),
            FoundBy::Search => {
                format!("{}: state of txg {txg}, found by a search\n", text::path(&args.pool))
            }
            FoundBy::Guess => format!(
                "{}: no state was found; put together from the newest parts, up to txg {txg}\n",
                text::path(&args.pool)
            ),
        });
        if self.salvage.newest_txg() > txg {
            let newest = self.salvage.newest_txg();
            text.push_str(&format!("there was a newer state, txg {newest}, which is damaged\n"));
        }
        for saved in &self.files {
            let right = saved.len - saved.lost() - saved.older();
            text.push_str(&format!(
                "{}: {} of {} intact ({:.2}%), {} older ({:.2}%), {} lost ({:.2}%)\n",
                text::path(&saved.output),
                bytes(right, false),
                bytes(saved.len, false),
                saved.percent(right),
                bytes(saved.older(), false),
                saved.percent(saved.older()),
                bytes(saved.lost(), false),
                saved.percent(saved.lost()),
            ));
            if saved.known_len.is_some() {
                text.push_str("its length is lost: it may be shorter or longer\n");
            }
            if !saved.has_all_names {
                text.push_str("a name of it, or of a directory above it, is lost\n");
            }
            for link in &saved.links {
                text.push_str(&format!("{}: another name of the same file\n", text::path(link)));
            }
        }
        if self.salvage.may_lack_files() {
            text.push_str("some names cannot be read: files may be missing\n");
        }
        if self.has_sidecar {
            text.push_str("a log or journal next to the pool was not read; see --help\n");
        }
        text.push_str(&format!("done in {seconds:.1} s\n"));
        text
    }

    fn json(&self, args: &SalvageArgs, seconds: f64) -> Value {
        let files = self.files.iter().map(|saved| {
            let ranges = saved.hurt.iter().map(|s| {
                let (what, txg) = match s.fate {
                    Fate::Older(txg) => ("older", Some(txg.0)),
                    Fate::Lost => ("lost", None),
                    Fate::Right => ("right", None),
                };
                json!({ "range": [s.start, s.end], "what": what, "txg": txg })
            });
            let value = json!({
                "file": null,
                "output": saved.output.to_string_lossy(),
                "logical_bytes": saved.len,
                "length_known": saved.known_len.is_none(),
                "names_known": saved.has_all_names,
                "links": saved.links.iter().map(|link| link.to_string_lossy()).collect::<Value>(),
                "right_bytes": saved.len - saved.lost() - saved.older(),
                "older_bytes": saved.older(),
                "lost_bytes": saved.lost(),
                "lost_percent": (saved.percent(saved.lost()) * 10_000.0).round() / 10_000.0,
                "ranges": ranges.collect::<Value>(),
            });
            output::named(value, "file", &saved.name)
        });
        json!({
            "pool": args.pool.to_string_lossy(),
            "ok": self.is_whole(),
            "txg": self.salvage.state().txg().0,
            "newest_txg": self.salvage.newest_txg().0,
            "found_by": self.source(),
            "header": self.salvage.has_header(),
            "superblocks": self.salvage.superblock_count(),
            "may_lack_files": self.salvage.may_lack_files(),
            "lost_nodes": self.salvage.lost_node_count(),
            "refused_bytes": self.salvage.refused_bytes(),
            "files": files.collect::<Value>(),
            "seconds": (seconds * 1000.0).round() / 1000.0,
        })
    }
}
