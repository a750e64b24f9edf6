//! Unfinished files that killed commands left behind, named to whoever works in the same directory.
//!
//! Each command holds a lock on its unfinished file, which ends with the process whatever happens to it. So what
//! has the name of one and no lock is left over. It is named and not removed: killed at the wrong moment,
//! `pack --in-place` leaves the database itself under such a name, and only its owner can say that its pool is enough.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// What changed more recently is not looked at: to open a database in the moment in which it is replaced would
/// stop that. The moment takes a fiftieth of a second.
const QUIET_FOR: Duration = Duration::from_secs(2);
const BEGINNING: &str = ".hardpack-";
const ENDING: &str = ".tmp";

/// The name of an unfinished file.
pub fn name(number: u64) -> String {
    format!("{BEGINNING}{number:016x}{ENDING}")
}

/// Takes the lock that tells others that the file is in use. Where a file system has no locks it does without.
pub fn hold(file: &File) {
    let _ = file.try_lock();
}

/// Names what is left over in a directory, on stderr.
pub fn tell(directory: &Path) {
    let Ok(found) = find(directory) else { return };
    for path in found {
        eprintln!(
            "note: '{}' was left by a command that was killed: a file not finished, or the one it replaced; \
             remove it once you have what you need",
            path.display()
        );
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
