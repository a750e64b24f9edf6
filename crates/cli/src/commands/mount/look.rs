//! Looks at what is mounted on a directory, by asking its server, which may never answer.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use hardpack_mount::SERVER_XATTR;
use rustix::io::Errno;

use super::listed::is_of_helper;
use super::{NO_POOL, is_mounted};
use crate::args::UmountArgs;
use crate::failure::{Code, Reason};
use crate::sys;

/// How many symbolic links a path may lead through, as for the kernel.
const LINK_COUNT_MAX: usize = 40;

/// What there is on a directory.
pub enum Looked {
    /// A mount that has died: it cannot be looked at.
    Dead,
    /// A pool is mounted on it, with this full path.
    At(PathBuf),
    /// Another user has mounted a pool on it, and nobody else may look at it, not even root.
    Private,
    /// None, for this reason.
    Nothing(String),
}

impl Looked {
    /// Asks the server, which may never answer.
    fn ask(directory: &Path) -> Looked {
        match asked(directory) {
            // Whoever has asked already when the server dies gets the second one.
            Err(Errno::NOTCONN | Errno::CONNABORTED) => return Looked::Dead,
            Err(Errno::ACCESS) if is_of_helper(directory) => return Looked::Private,
            _ => {}
        }
        let found = fs::canonicalize(directory).map_err(Reason::from);
        match found.and_then(|found| Ok((is_mounted(&found)?, found))) {
            Ok((true, found)) => Looked::At(found),
            Ok((false, _)) => Looked::Nothing(NO_POOL.into()),
            Err(reason) => Looked::Nothing(reason.text),
        }
    }

    fn to_bytes(&self) -> Vec<u8> {
        let (kind, text) = match self {
            Looked::Dead => (b'D', &b""[..]),
            Looked::At(path) => (b'A', path.as_os_str().as_bytes()),
            Looked::Private => (b'P', &b""[..]),
            Looked::Nothing(reason) => (b'N', reason.as_bytes()),
        };
        [&[kind], text].concat()
    }

    fn from_bytes(bytes: &[u8]) -> Option<Looked> {
        let (kind, text) = bytes.split_first()?;
        Some(match kind {
            b'D' => Looked::Dead,
            b'A' => Looked::At(OsStr::from_bytes(text).into()),
            b'P' => Looked::Private,
            b'N' => Looked::Nothing(String::from_utf8_lossy(text).into_owned()),
            _ => return None,
        })
    }
}

/// Finds out what is mounted on a directory. Returns `None` if its server does not answer in time.
///
/// Another process asks, and may be left behind then: whoever waits for a server that has got the
/// request and does not answer may not even end if it is killed.
pub fn look_at(directory: &Path, time: Duration) -> Result<Option<Looked>, Reason> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["umount", "--look", "--"]).arg(directory);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    sys::keep_descriptors_from_programs();
    let mut child = command.spawn()?;
    let mut said = Vec::new();
    if let Some(mut output) = child.stdout.take() {
        if !sys::is_readable(output.as_fd(), time)? {
            let _ = child.kill();
            return Ok(None);
        }
        output.read_to_end(&mut said)?;
    }
    child.wait()?;
    let looked = Looked::from_bytes(&said);
    looked.map(Some).ok_or_else(|| Reason::new(Code::Cannot, "it cannot be looked at"))
}

/// Asks what is mounted on a directory for something that only its server knows: of the directory
/// itself, the kernel may go on to show what it knows after the server has died.
fn asked(directory: &Path) -> Result<usize, Errno> {
    rustix::fs::getxattr(directory, SERVER_XATTR, &mut [0; 16])
}

/// Looks at a directory for another process, or with `--lazy` lets its server write everything.
pub fn tell_look(args: &UmountArgs) -> Result<ExitCode, Reason> {
    match args.lazy {
        true => File::open(&args.directory)?.sync_all()?,
        false => io::stdout().write_all(&Looked::ask(&args.directory).to_bytes())?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the path of a directory without symbolic links, as the kernel's list of mounts has it,
/// and asks nothing of what is mounted there.
pub fn without_links(directory: &Path) -> PathBuf {
    let mut path = std::path::absolute(directory).unwrap_or_else(|_| directory.into());
    for _ in 0..LINK_COUNT_MAX {
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { break };
        let Ok(parent) = fs::canonicalize(parent) else { break };
        path = parent.join(name);
        match fs::read_link(&path) {
            Ok(target) => path = parent.join(target),
            Err(_) => break,
        }
    }
    path
}
