//! `hardpack run`: replaces this process with a program into which the VFS is preloaded.
//!
//! `crates/preload` is what the program gets; here its environment is prepared. Nothing is left of
//! this process, so signals, exit codes and job control are the program's own.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode};

use hardpack_engine::store::superblock::MAGIC;

use crate::args::RunArgs;
use crate::failure::{Code, Failure, Reason};
use crate::{library, output, sys, text};

/// The exit codes of `env`, `nohup` and shells for a program that cannot be started.
const CANNOT_START: u8 = 126;
const NOT_FOUND: u8 = 127;

const PRELOAD_VARIABLE: &str = "LD_PRELOAD";
/// Says to the preloaded object what new databases become.
const MODE_VARIABLE: &str = "HARDPACK_PRELOAD";

pub fn run(args: &RunArgs) -> Result<ExitCode, Failure> {
    let Some((program, arguments)) = args.program.split_first() else {
        return Ok(ExitCode::from(CANNOT_START));
    };
    let (extension, preload) = match objects() {
        Ok(found) => found,
        Err(reason) => {
            reason.cannot("run", shown(program)).report();
            return Ok(ExitCode::from(CANNOT_START));
        }
    };
    note_static(program, arguments);
    let mut command = Command::new(program);
    command.args(arguments).env(library::VARIABLE, extension).env(PRELOAD_VARIABLE, preload);
    command.env(MODE_VARIABLE, if args.new_packed { "packed" } else { "plain" });
    sys::heed_file_size_signal();
    let error = command.exec();
    let code = match error.kind() {
        std::io::ErrorKind::NotFound => NOT_FOUND,
        _ => CANNOT_START,
    };
    Reason::from(error).cannot("run", shown(program)).report();
    Ok(ExitCode::from(code))
}

fn shown(program: &OsStr) -> String {
    text::path(Path::new(program))
}

/// Returns the path of the extension, and the value of `LD_PRELOAD`.
fn objects() -> Result<(OsString, OsString), Reason> {
    let missing = |name: &str| {
        let text = format!("{name} is neither next to this program nor in ../lib");
        Reason::new(Code::Cannot, text)
            .hint("put it there, or name libhardpack.so in HARDPACK_LIBRARY")
    };
    let extension = library::find().ok_or_else(|| missing(library::LIBRARY))?;
    let extension = std::path::absolute(extension)?;
    let preload = library::find_preload(&extension).ok_or_else(|| missing(library::PRELOAD))?;
    let preload = std::path::absolute(preload)?;
    // The dynamic linker separates paths at these, and expands the last one.
    if preload.as_os_str().as_bytes().iter().any(|byte| b" :$".contains(byte)) {
        let text = format!(
            "'{}' cannot be preloaded: its path has a space, a colon or a dollar sign",
            text::path(&preload)
        );
        return Err(Reason::new(Code::Cannot, text)
            .hint("put it and libhardpack.so into a directory with a plain name"));
    }
    let mut value = preload.into_os_string();
    let others = std::env::var_os(PRELOAD_VARIABLE).unwrap_or_default();
    for other in others.as_bytes().split(|byte| b" :".contains(byte)) {
        // In a program that was started like this, it is there already.
        if !other.is_empty() && Some(OsStr::from_bytes(other)) != first_of(&value) {
            value.push(":");
            value.push(OsStr::from_bytes(other));
        }
    }
    Ok((extension.into_os_string(), value))
}

/// The first path of a value of `LD_PRELOAD`.
fn first_of(value: &OsStr) -> Option<&OsStr> {
    value.as_bytes().split(|byte| *byte == b':').next().map(OsStr::from_bytes)
}

/// Says so if the program is linked statically, so that nothing can be preloaded into it, and is
/// given a pool.
fn note_static(program: &OsStr, arguments: &[OsString]) {
    let is_static = library::on_path(program).is_some_and(|path| is_static(&path));
    if !is_static {
        return;
    }
    if let Some(pool) = arguments.iter().find(|argument| is_pool(Path::new(argument))) {
        output::tell(format_args!(
            "hardpack: note: '{}' is linked statically and out of reach of 'hardpack run', so it \
             cannot read the pool '{}'",
            shown(program),
            text::path(Path::new(pool)),
        ));
    }
}

fn is_pool(path: &Path) -> bool {
    let mut front = [0; MAGIC.len()];
    // A pipe or a device would block, or change.
    path.is_file()
        && File::open(path).and_then(|file| file.read_exact_at(&mut front, 0)).is_ok()
        && front == *MAGIC
}

/// Whether a file is an ELF program of 64 bits without an interpreter, which is what the dynamic
/// linker is to it.
fn is_static(path: &Path) -> bool {
    const HEADER_LEN: usize = 64;
    const PROGRAM_HEADER_LEN: usize = 56;
    const INTERPRETER: u32 = 3;
    let mut header = [0; HEADER_LEN];
    let Ok(file) = File::open(path) else { return false };
    let is_elf = file.read_exact_at(&mut header, 0).is_ok()
        && header.starts_with(b"\x7fELF\x02\x01")
        && u16::from_le_bytes([header[54], header[55]]) as usize == PROGRAM_HEADER_LEN;
    if !is_elf {
        return false;
    }
    let start = u64::from_le_bytes(header[32..40].try_into().unwrap_or_default());
    let count = usize::from(u16::from_le_bytes([header[56], header[57]]));
    let mut table = vec![0; count * PROGRAM_HEADER_LEN];
    file.read_exact_at(&mut table, start).is_ok()
        && table.chunks(PROGRAM_HEADER_LEN).all(|entry| {
            u32::from_le_bytes([entry[0], entry[1], entry[2], entry[3]]) != INTERPRETER
        })
}
