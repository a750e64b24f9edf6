//! Reports unfinished files that killed commands left in a directory.
//!
//! Each command holds a lock on its unfinished file, which ends with the process in any case. So a
//! file with such a name and no lock is a leftover. It is reported and not removed: killed at the
//! wrong moment, `pack --in-place` leaves the database itself under such a name, and only its owner
//! can decide that the pool is enough.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use crate::{output, text};

/// Files that changed more recently are ignored: opening a database while it is being replaced
/// would abort that. The replacement takes a fiftieth of a second.
const QUIET_FOR: Duration = Duration::from_secs(2);
const BEGINNING: &str = ".hardpack-";
const ENDING: &str = ".tmp";

/// The name of an unfinished file.
pub fn name(number: u64) -> String {
    format!("{BEGINNING}{number:016x}{ENDING}")
}

/// Takes the lock that marks the file as in use. Does without on a file system that has no locks.
pub fn hold(file: &File) {
    let _ = file.try_lock();
}

/// Prints the leftovers in a directory to stderr.
pub fn tell(directory: &Path) {
    let Ok(found) = find(directory) else { return };
    for path in found {
        output::tell(format_args!(
            "note: '{}' was left by a command that was killed: it is an unfinished file, or the one that was being replaced; \
             remove it once you no longer need it",
            text::path(&path)
        ));
    }
}

fn find(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let is_named_so = entry.file_name().to_str().is_some_and(is_name);
        if is_named_so
            && entry.metadata().is_ok_and(|metadata| is_quiet(&metadata))
            && File::open(entry.path()).is_ok_and(|file| file.try_lock().is_ok())
        {
            found.push(entry.path());
        }
    }
    found.sort();
    Ok(found)
}

fn is_quiet(metadata: &fs::Metadata) -> bool {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let changed = Duration::from_secs(u64::try_from(metadata.ctime()).unwrap_or(0));
    metadata.is_file() && now.saturating_sub(changed) > QUIET_FOR
}

fn is_name(text: &str) -> bool {
    let number = text.strip_prefix(BEGINNING).and_then(|rest| rest.strip_suffix(ENDING));
    number.is_some_and(|digits| digits.len() == 16 && digits.bytes().all(|b| b.is_ascii_hexdigit()))
}
