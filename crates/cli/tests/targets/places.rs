//! Makes the bad targets, and runs commands on them.

use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tempfile::TempDir;

use crate::common::{Session, copy_program, hardpack, make_database, random_bytes, words};

pub const TARGETS: &[&str] = &[
    "missing",
    "directory",
    "empty",
    "plain",
    "database",
    "damaged",
    "wrecked",
    "headless",
    "cut-short",
    "read-only",
    "in-use",
    "forbidden",
    "full-disk",
    "closed-pipe",
    "no-terminal",
];
/// The name of the target in its directory.
const NAME: &str = "target.hpk";
/// Where the superblocks of a pool end.
const EXTENTS_OFFSET: usize = 40 << 10;
const BLOCK_LEN: usize = 4096;
/// A user without rights.
const NOBODY: u32 = 65_534;
/// The most words of a message that the table has.
const WORDS_MAX: usize = 14;

/// What a command did.
#[derive(Debug)]
pub struct Outcome {
    pub code: i32,
    /// The first line on standard error, with `T` for the target.
    pub message: String,
    /// What it must not have done.
    pub broken: Option<String>,
}

impl Outcome {
    /// Places, lengths and checksums differ from run to run, and so do the numbers of processes.
    pub fn first_words(&self) -> String {
        let find = |mark: &str| self.message.find(mark);
        let cut = find(" cut short: ").map(|at| at + " cut short".len());
        let ends = [find(" at byte "), find(" (process "), cut];
        let end = ends.into_iter().flatten().min().unwrap_or(self.message.len());
        let words = self.message[..end].split_inclusive(' ').take(WORDS_MAX);
        words.collect::<String>().trim_end().to_owned()
    }
}

pub struct Fixture {
    directory: TempDir,
    pool: Vec<u8>,
    database: Vec<u8>,
    content: Vec<u8>,
    program: PathBuf,
    can_mount: bool,
}

/// A small file system in memory, as long as this lives.
struct Mount(PathBuf);

impl Mount {
    fn new(at: &Path) -> Option<Mount> {
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", "size=512k,mode=777", "tmpfs"]).arg(at);
        let done = mount.stderr(Stdio::null()).status();
        done.is_ok_and(|status| status.success()).then(|| Mount(at.into()))
    }

    /// Leaves no free block.
    fn fill(&self) {
        let path = self.0.join("filler");
        let mut len = 64 << 10;
        while len > 0 {
            use std::io::Write;
            let mut file = fs::File::options().create(true).append(true).open(&path).unwrap();
            if file.write_all(&vec![1; len]).is_err() {
                len /= 2;
            }
        }
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

/// The files of a directory with their bytes; sockets and directories only with their names.
fn contents(at: &Path) -> BTreeMap<PathBuf, Option<Vec<u8>>> {
    let mut found = BTreeMap::new();
    let mut ahead = vec![at.to_owned()];
    while let Some(directory) = ahead.pop() {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                ahead.push(path.clone());
            }
            found.insert(path.clone(), fs::read(&path).ok());
        }
    }
    found
}

impl Fixture {
    pub fn new() -> Fixture {
        let directory = tempfile::tempdir().unwrap();
        let at = directory.path();
        fs::set_permissions(at, Permissions::from_mode(0o755)).unwrap();
        make_database(&at.join("d.db"), 4096, 50);
        let content = random_bytes(9000, 5);
        fs::write(at.join("a.txt"), &content).unwrap();
        let run = |arguments: &[&str]| {
            let output = hardpack().current_dir(at).args(arguments).assert().success();
            output.get_output().stdout.clone()
        };
        run(&["put", "-q", "d.db", "a.txt", "p.hpk"]);
        run(&["snapshot", "p.hpk@s"]);
        run(&["snapshot", "p.hpk/a.txt@s"]);
        fs::write(at.join("stream"), run(&["send", "-q", "p.hpk/a.txt@s"])).unwrap();
        run(&["set", "compression=lz4", "p.hpk"]);
        let read = |name: &str| fs::read(at.join(name)).unwrap();
        let (pool, database) = (read("p.hpk"), read("d.db"));
        let program = at.join("hardpack");
        copy_program(&program);
        let trial = at.join("trial");
        fs::create_dir(&trial).unwrap();
        let can_mount = Mount::new(&trial).is_some();
        if !can_mount {
            eprintln!("skipped: full-disk, since nothing can be mounted here");
        }
        Fixture { directory, pool, database, content, program, can_mount }
    }

    pub fn can_make(&self, target: &str) -> bool {
        target != "full-disk" || self.can_mount
    }

    /// Runs a command on a target made for it.
    pub fn run(&self, line: &str, target: &str) -> Outcome {
        let directory = tempfile::tempdir_in(self.directory.path()).unwrap();
        let at = directory.path();
        fs::set_permissions(at, Permissions::from_mode(0o777)).unwrap();
        let mount = (target == "full-disk").then(|| Mount::new(at).unwrap());
        let path = at.join(NAME);
        fs::write(at.join("in.txt"), "another file").unwrap();
        // Only where it is used: a full disk depends on every file.
        if line.contains("in.tar") {
            let mut archive = tar::Builder::new(fs::File::create(at.join("in.tar")).unwrap());
            archive.append_path_with_name(at.join("in.txt"), "in.txt").unwrap();
            archive.finish().unwrap();
        }
        match target {
            "missing" => {}
            "directory" => fs::create_dir(&path).unwrap(),
            "empty" => fs::write(&path, "").unwrap(),
            "plain" => fs::write(&path, "no pool\n".repeat(1000)).unwrap(),
            "database" => fs::write(&path, &self.database).unwrap(),
            _ => {
                let mut bytes = self.pool.clone();
                match target {
                    // The content of a.txt, which does not compress, so it is stored as it is.
                    "damaged" => {
                        let start = &self.content[..64];
                        let at = bytes.windows(64).position(|part| part == start).unwrap();
                        bytes[at + 100] ^= 1;
                    }
                    "wrecked" => bytes[EXTENTS_OFFSET..].iter_mut().for_each(|byte| *byte ^= 0x55),
                    "headless" => bytes[..BLOCK_LEN].fill(0),
                    "cut-short" => bytes.truncate(EXTENTS_OFFSET.midpoint(bytes.len())),
                    _ => {}
                }
                fs::write(&path, bytes).unwrap();
            }
        }
        if path.exists() {
            let mode = match target {
                "read-only" => 0o444,
                "forbidden" => 0,
                "directory" => 0o777,
                _ => 0o666,
            };
            fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        }
        if let Some(mount) = &mount {
            mount.fill();
        }
        let held = (target == "in-use").then(|| {
            let mut session = Session::open(&path.join("d.db"));
            session.run("BEGIN EXCLUSIVE; DELETE FROM t");
            session
        });
        let listing = mount.as_ref().map(|_| self.listing(at));
        let before = contents(at);
        let outcome = self.execute(line, target, at);
        let after = contents(at);
        drop(held);
        let mut broken = self.broken(&outcome, (line, target), &before, &after);
        if outcome.code != 0 && listing.is_some_and(|before| before != self.listing(at)) {
            broken = Some("the files in the pool are not what they were".into());
        }
        drop(mount);
        Outcome { broken, ..outcome }
    }

    /// What is in a pool, after a check of all of it.
    fn listing(&self, at: &Path) -> Vec<u8> {
        hardpack().current_dir(at).args(["check", "-q", NAME]).assert().success();
        let output = hardpack().current_dir(at).args(["ls", "-lR", NAME]).assert().success();
        output.get_output().stdout.clone()
    }

    fn execute(&self, line: &str, target: &str, at: &Path) -> Outcome {
        let mut command = Command::new(&self.program);
        command.current_dir(at).stdin(Stdio::null()).env("RUST_BACKTRACE", "0");
        command.args(
            words(&line.replace('T', "\u{1}"))
                .iter()
                .map(|word| word.replace('\u{1}', if is_operand(word) { NAME } else { "T" })),
        );
        if matches!(target, "read-only" | "forbidden") && rustix::process::getuid().is_root() {
            command.uid(NOBODY).gid(NOBODY);
        }
        let stream = || fs::File::open(at.parent().unwrap().join("stream")).unwrap();
        if line.starts_with("receive") {
            command.stdin(stream());
        }
        if target == "no-terminal" {
            // In a session of its own there is no controlling terminal to open either.
            let mut alone = Command::new("setsid");
            alone.arg("-w").arg(command.get_program()).args(command.get_args()).current_dir(at);
            alone.env_remove("TERM").stdin(match line.starts_with("receive") {
                true => Stdio::from(stream()),
                false => Stdio::null(),
            });
            command = alone;
        }
        if target == "closed-pipe" {
            let (reader, writer) = std::io::pipe().unwrap();
            drop(reader);
            command.stdout(writer).stderr(Stdio::piped());
        }
        let child = match target {
            "closed-pipe" => command.spawn().unwrap().wait_with_output(),
            _ => command.output(),
        };
        let output = child.unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr).replace(NAME, "T");
        Outcome {
            code: output.status.code().unwrap_or(-1),
            message: stderr.lines().next().unwrap_or_default().to_owned(),
            broken: stderr.contains("panicked").then(|| stderr.clone()),
        }
    }

    fn broken(
        &self,
        outcome: &Outcome,
        (line, target): (&str, &str),
        before: &BTreeMap<PathBuf, Option<Vec<u8>>>,
        after: &BTreeMap<PathBuf, Option<Vec<u8>>>,
    ) -> Option<String> {
        if outcome.broken.is_some() {
            return outcome.broken.clone();
        }
        if outcome.code < 0 || outcome.code == 70 {
            return Some(format!("it ended with {}: {}", outcome.code, outcome.message));
        }
        if outcome.code == 0 {
            return None;
        }
        // What a check or a salvage finds is a result, and goes to standard output.
        let is_report = line.starts_with("check") || line.starts_with("salvage");
        if outcome.message.is_empty() && !is_report {
            return Some("it failed without a message".into());
        }
        for (path, bytes) in after {
            let name = path.file_name().unwrap().to_string_lossy();
            // What could be saved from a damaged pool is there, although the code is 1.
            let is_salvaged = matches!(line.split(' ').next(), Some("salvage" | "extract"))
                && outcome.code == 1
                && path.iter().any(|part| part == "out");
            match before.get(path) {
                None if !is_salvaged => {
                    return Some(format!("it left '{name}' of {:?}", after.keys()));
                }
                // Space that is not in use may be written before the disk is full. And whoever
                // opens a pool for writing affirms the newest whole state, here an older one.
                Some(_) if matches!(target, "full-disk" | "wrecked") && name == NAME => {}
                // What is not damaged was compressed again.
                Some(_)
                    if (line.starts_with("repack") || line.starts_with("optimize"))
                        && target == "damaged" => {}
                Some(old) if old != bytes => return Some(format!("it changed '{name}'")),
                _ => {}
            }
        }
        let gone = before.keys().find(|path| !after.contains_key(*path));
        gone.map(|path| format!("it removed '{}'", path.display()))
    }
}

/// Whether a word of a command names the target: `T`, `T/PATH` or `T@NAME`.
fn is_operand(word: &str) -> bool {
    let rest = word.strip_prefix('\u{1}');
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['/', '@']))
}
