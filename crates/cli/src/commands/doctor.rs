//! `hardpack doctor`: whether this machine, its `sqlite3` and its Python can use Hardpack.
//!
//! Everything is tried rather than guessed: locks are taken, the extension is loaded. Nothing is
//! left behind.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use hardpack_engine::SharedCacheSetting;
use hardpack_engine::device::FileDevice;
use serde_json::json;

use crate::args::DoctorArgs;
use crate::failure::{Cannot, Code, Failure, Reason, io_text};
use crate::pool_file::SHARED_CACHE_VARIABLE;
use crate::{leftovers, library, output, sys, text};

/// The oldest kernel that reports a failed sync to everybody (`docs/reliability.md`).
const KERNEL_MIN: (u32, u32) = (4, 13);
/// The oldest SQLite that the extension takes.
const SQLITE_MIN: (u32, u32) = (3, 31);
/// A mark that no pool uses for long, for trying locks on a file that is no pool.
const MARK: u64 = 1;

const RUN_INSTEAD: &str = "start it with 'hardpack run', or use 'hardpack sql'";

/// What was looked at.
struct Check {
    name: String,
    /// Whether it is as it should be; `None` if that could not be found out.
    is_good: Option<bool>,
    found: String,
    advice: &'static str,
    /// Whether pools cannot be used without it.
    is_needed: bool,
}

impl Check {
    fn new(name: impl Into<String>, is_good: bool, found: impl Into<String>) -> Check {
        let (name, found) = (name.into(), found.into());
        Check { name, is_good: Some(is_good), found, advice: "", is_needed: false }
    }

    fn unknown(name: impl Into<String>, found: impl Into<String>) -> Check {
        Check { is_good: None, ..Check::new(name, false, found) }
    }

    fn or(self, advice: &'static str) -> Check {
        Check { advice, ..self }
    }

    fn needed(self) -> Check {
        Check { is_needed: true, ..self }
    }

    fn answer(&self) -> &'static str {
        match self.is_good {
            Some(true) => "yes",
            Some(false) => "no",
            None => "?",
        }
    }
}

pub fn run(args: &DoctorArgs) -> Result<ExitCode, Failure> {
    let found = library::find();
    let mut checks = vec![kernel(), locks(), file_system(), extension(found.as_deref())];
    let is_fit = checks[3].is_good == Some(true);
    let usable = found.filter(|_| is_fit);
    checks.push(runner(usable.as_deref()));
    checks.extend(shell(usable.as_deref()));
    checks.extend(pythons(usable.as_deref()));
    checks.push(fuse());
    checks.push(shared_cache());
    report(args, &checks).cannot("report on", "this machine")?;
    let is_unfit = checks.iter().any(|check| check.is_needed && check.is_good == Some(false));
    Ok(if is_unfit { ExitCode::from(Code::Cannot as u8) } else { ExitCode::SUCCESS })
}

fn report(args: &DoctorArgs, checks: &[Check]) -> Result<(), Reason> {
    if args.json {
        let rows = checks.iter().map(|check| {
            json!({
                "check": check.name,
                "ok": check.is_good,
                "found": check.found,
                "advice": if check.is_good == Some(false) { check.advice } else { "" },
                "needed": check.is_needed,
            })
        });
        return output::print_json(&json!({
            "version": env!("CARGO_PKG_VERSION"),
            "checks": rows.collect::<Vec<_>>(),
        }));
    }
    let rows = checks
        .iter()
        .map(|check| [check.name.clone(), check.answer().into(), text::line(&check.found)]);
    let mut out = output::columns(["CHECK", "OK", "FOUND"], rows, 3);
    let bad = checks.iter().filter(|check| check.is_good == Some(false));
    for (index, check) in bad.filter(|check| !check.advice.is_empty()).enumerate() {
        out.push_str(if index == 0 { "\n" } else { "" });
        out.push_str(&format!("{}: {}\n", check.name, check.advice));
    }
    output::print(out)
}

/// Reads the first two numbers of a version.
fn version(text: &str) -> Option<(u32, u32)> {
    let mut numbers = text.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

fn kernel() -> Check {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let release = release.trim();
    match version(release) {
        Some(found) => Check::new("kernel", found >= KERNEL_MIN, format!("Linux {release}"))
            .or("older kernels than 4.13 do not report a failed sync to every process: update it")
            .needed(),
        None => Check::unknown("kernel", "its version is not in /proc"),
    }
}

/// Takes locks in the current directory, as two processes with one pool would.
fn locks() -> Check {
    const NAME: &str = "locks";
    let mut random = [0; 8];
    if getrandom::fill(&mut random).is_err() {
        return Check::unknown(NAME, "there are no random numbers");
    }
    let path = PathBuf::from(leftovers::name(u64::from_le_bytes(random)));
    let tried = FileDevice::create_new(&path).and_then(|one| {
        let other = FileDevice::open(&path)?;
        let is_exclusive = one.try_claim(MARK)? && !other.try_claim(MARK)?;
        one.release(MARK);
        Ok(is_exclusive && other.try_claim(MARK)?)
    });
    // It may not have been created.
    let _ = fs::remove_file(&path);
    let found = "locks of open file descriptions, in the current directory";
    match tried {
        Ok(works) => Check::new(NAME, works, found)
            .or("keep pools on a local disk: here, two processes could write to one at once")
            .needed(),
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
            Check::unknown(NAME, "the current directory cannot be written; try another one")
        }
        Err(error) if error.kind() == std::io::ErrorKind::ReadOnlyFilesystem => {
            Check::unknown(NAME, "the file system is read-only; try another one")
        }
        Err(error) => Check::new(NAME, false, io_text(&error))
            .or("keep pools on a local disk with a file system that has locks")
            .needed(),
    }
}

/// File systems by the numbers that `statfs` has for them, and whether others may write to the same
/// files from another machine.
const FILE_SYSTEMS: [(u32, &str, bool); 17] = [
    (0xef53, "ext4", false),
    (0x5846_5342, "XFS", false),
    (0x9123_683e, "btrfs", false),
    (0x2fc1_2fc1, "OpenZFS", false),
    (0xf2f5_2010, "F2FS", false),
    (0xca45_1a4e, "bcachefs", false),
    (0x0102_1994, "tmpfs", false),
    (0x794c_7630, "overlay", false),
    (0x4d44, "FAT", false),
    (0x2011_bab0, "exFAT", false),
    (0x7366_746e, "NTFS", false),
    (0x6969, "NFS", true),
    (0xff53_4d42, "SMB", true),
    (0xfe53_4d42, "SMB", true),
    (0x0102_1997, "9P", true),
    (0x00c3_6400, "Ceph", true),
    (0x786f_4256, "a shared folder of VirtualBox", true),
];

fn file_system() -> Check {
    const NAME: &str = "file system";
    let number = match rustix::fs::statfs(".") {
        Ok(found) => found.f_type as u32,
        Err(error) => return Check::unknown(NAME, error.to_string()),
    };
    match FILE_SYSTEMS.iter().find(|(known, ..)| *known == number) {
        Some((_, name, is_shared)) => {
            Check::new(NAME, !is_shared, format!("{name}, in the current directory")).or(
                "other machines may write to the same files, and locks and shared memory need not \
                 reach them: keep pools in use on a local disk",
            )
        }
        None => Check::unknown(NAME, format!("an unknown one ({number:#x})")),
    }
}

fn extension(found: Option<&Path>) -> Check {
    const NAME: &str = "extension";
    let named = std::env::var_os(library::VARIABLE);
    if let (None, Some(named)) = (found, &named) {
        let text = format!("'{}' does not exist", Path::new(named).display());
        return Check::new(NAME, false, text).or("correct HARDPACK_LIBRARY, or unset it");
    }
    // Programs find it where the system has its libraries, too.
    let name = found.unwrap_or(Path::new(library::LIBRARY));
    match sys::library::version_of(name) {
        Ok(version) => {
            let is_same = version == env!("CARGO_PKG_VERSION");
            Check::new(NAME, is_same, format!("{}, version {version}", name.display()))
                .or("it is of another version than this command: install both together")
        }
        Err(reason) if found.is_some() => Check::new(NAME, false, reason)
            .or("install libhardpack.so together with this command"),
        Err(_) => Check::new(NAME, false, "libhardpack.so was not found").or(
            "put libhardpack.so next to this command or into ../lib, or name it in HARDPACK_LIBRARY",
        ),
    }
}

/// Runs a program, and returns what it printed, with stderr if it failed.
fn output_of(command: &mut Command) -> Result<String, String> {
    let done = command.stdin(Stdio::null()).output().map_err(|error| io_text(&error))?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    match done.status.success() {
        true => Ok(text(&done.stdout)),
        false => Err(text(&done.stderr)),
    }
}

fn runner(extension: Option<&Path>) -> Check {
    const NAME: &str = "hardpack run";
    let Some(extension) = extension else {
        return Check::new(NAME, false, "it finds no extension to load")
            .or("put libhardpack.so next to this command or into ../lib");
    };
    let Some(preload) = library::find_preload(extension) else {
        return Check::new(NAME, false, "libhardpack_preload.so was not found")
            .or("put libhardpack_preload.so next to libhardpack.so");
    };
    let found = preload.display().to_string();
    let (Ok(this), Some(shell)) = (std::env::current_exe(), library::on_path(library::SHELL))
    else {
        return Check::unknown(NAME, format!("{found}; not tried without sqlite3"));
    };
    let mut command = Command::new(this);
    command.args(["run", "--"]).arg(shell).args(["-init", "/dev/null", "-batch", ":memory:"]);
    match output_of(command.arg("SELECT count(*) FROM hardpack_stats")) {
        Ok(_) => Check::new(NAME, true, found),
        Err(reason) => Check::new(NAME, false, reason)
            .or("the stock shell may be linked statically; other programs may still work"),
    }
}

fn shell(extension: Option<&Path>) -> Vec<Check> {
    const INSTALL: &str = "install the package sqlite3; 'hardpack sql' works without it";
    let Some(shell) = library::on_path(library::SHELL) else {
        return vec![Check::new("sqlite3", false, "not found").or(INSTALL)];
    };
    let found = output_of(Command::new(&shell).arg("--version")).unwrap_or_default();
    let number = found.split(' ').next().unwrap_or_default();
    let is_new = version(number).is_some_and(|found| found >= SQLITE_MIN);
    let shown = format!("{}, version {number}", shell.display());
    let there = Check::new("sqlite3", is_new, shown)
        .or("Hardpack needs SQLite 3.31.0 or newer: update it, or use 'hardpack sql'");
    vec![there, shell_loads(&shell, extension)]
}

fn shell_loads(shell: &Path, extension: Option<&Path>) -> Check {
    const NAME: &str = "sqlite3 loads it";
    let Some(extension) = extension else {
        return Check::unknown(NAME, "not tried without the extension");
    };
    let load = format!(".load \"{}\"", extension.display());
    let mut command = Command::new(shell);
    command.args(["-init", "/dev/null", "-bail", "-batch", ":memory:"]).arg(load);
    match output_of(command.arg("SELECT count(*) FROM hardpack_stats")) {
        Ok(_) => Check::new(NAME, true, "the extension"),
        Err(reason) => Check::new(NAME, false, reason).or(RUN_INSTEAD),
    }
}

/// Prints the versions, then whether the extension that is named was loaded.
const PYTHON: &str = "import sys
print(sys.version.split()[0])
import sqlite3
print(sqlite3.sqlite_version)
if len(sys.argv) > 1:
    db = sqlite3.connect(':memory:')
    if not hasattr(db, 'enable_load_extension'):
        sys.exit('built without enable_load_extension')
    db.enable_load_extension(True)
    db.load_extension(sys.argv[1])
    print('loaded')";

/// Looks at the Python of `PATH`, and at that of the system if it is another.
fn pythons(extension: Option<&Path>) -> Vec<Check> {
    const SYSTEM: &str = "/usr/bin/python3";
    let first = library::on_path("python3");
    let others = [first.clone(), Some(SYSTEM.into())];
    let mut found: Vec<PathBuf> =
        others.into_iter().flatten().filter(|path| path.exists()).collect();
    found.dedup();
    if found.is_empty() {
        return vec![Check::new("python3", false, "not found").or("needed only for Python")];
    }
    found.iter().flat_map(|path| python(path, extension)).collect()
}

fn python(path: &Path, extension: Option<&Path>) -> Vec<Check> {
    let run = |extension: Option<&Path>| {
        let mut command = Command::new(path);
        command.args(["-c", PYTHON]).args(extension);
        output_of(&mut command)
    };
    let name = format!("{} has sqlite3", path.display());
    let versions = match run(None) {
        Ok(versions) => versions,
        Err(reason) => {
            let reason = reason.lines().last().unwrap_or_default();
            return vec![
                Check::new(name, false, reason).or("use a Python with the module sqlite3"),
            ];
        }
    };
    let (python, sqlite) = versions.split_once('\n').unwrap_or((&versions, ""));
    let is_new = version(sqlite).is_some_and(|found| found >= SQLITE_MIN);
    let there = Check::new(name, is_new, format!("Python {python}, SQLite {sqlite}"))
        .or("Hardpack needs SQLite 3.31.0 or newer: use another Python");
    let name = format!("{} loads it", path.display());
    let loads = match extension.map(|extension| run(Some(extension))) {
        None => Check::unknown(name, "not tried without the extension"),
        Some(Ok(_)) => Check::new(name, true, "the extension"),
        Some(Err(reason)) => {
            Check::new(name, false, reason.lines().last().unwrap_or_default()).or(RUN_INSTEAD)
        }
    };
    vec![there, loads]
}

/// Opens the cache that the environment asks for, as every process would.
fn shared_cache() -> Check {
    const NAME: &str = "shared cache";
    let Some(text) = std::env::var_os(SHARED_CACHE_VARIABLE) else {
        return Check::new(NAME, true, "none, HARDPACK_SHARED_CACHE is not set");
    };
    let text = text.to_string_lossy();
    let setting = match text.parse::<SharedCacheSetting>() {
        Ok(setting) => setting,
        Err(error) => {
            return Check::new(NAME, false, error.to_string()).or("correct HARDPACK_SHARED_CACHE");
        }
    };
    match setting.open() {
        Ok(None) => Check::new(NAME, true, "none, HARDPACK_SHARED_CACHE is off"),
        Ok(Some(shared)) => {
            let stats = shared.stats();
            let (used, capacity) =
                (text::human(stats.used_bytes), text::human(stats.capacity_bytes));
            let shown = format!("{}, {used} of {capacity} taken", stats.path.display());
            Check::new(NAME, true, shown)
        }
        Err(error) => Check::new(NAME, false, io_text(&error)).or(
            "everything works without it; to have it, remove that file or name another one in \
             HARDPACK_SHARED_CACHE",
        ),
    }
}

fn fuse() -> Check {
    const DEVICE: &str = "/dev/fuse";
    let opened = fs::OpenOptions::new().read(true).write(true).open(DEVICE);
    match opened {
        Ok(_) => Check::new("FUSE", true, DEVICE),
        Err(error) => Check::new("FUSE", false, format!("{DEVICE}: {}", io_text(&error))).or(
            "needed only to mount things; load the module fuse, or let the container have /dev/fuse",
        ),
    }
}
