//! The names about which the kernel need not ask again, until another process commits something.
//!
//! The kernel asks again about any other name after [`MountOptions::attribute_ttl`]. As long as
//! others keep committing, that holds for all names, since taking back what it was told costs a
//! message for each of them.
//!
//! [`MountOptions::attribute_ttl`]: crate::MountOptions::attribute_ttl

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use hardpack_engine::FileId;

use crate::tree::Place;

/// How many names are remembered.
const NAME_COUNT_MAX: usize = 1 << 19;
/// How long nobody else must have committed anything.
const QUIET: Duration = Duration::from_secs(30);

/// A name in a directory.
pub type Name = (FileId, Box<[u8]>);

/// See the module.
#[derive(Debug, Default)]
pub struct ToldNames {
    told: Mutex<Told>,
}

#[derive(Debug, Default)]
struct Told {
    names: BTreeSet<Name>,
    disturbed: Option<Instant>,
}

impl Told {
    fn is_quiet(&self) -> bool {
        self.disturbed.is_none_or(|at| at.elapsed() >= QUIET)
    }
}

fn owned((directory, name): Place<'_>) -> Name {
    (directory, name.into())
}

impl ToldNames {
    fn told(&self) -> MutexGuard<'_, Told> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether nobody else has committed anything lately.
    pub fn is_quiet(&self) -> bool {
        self.told().is_quiet()
    }

    /// Whether the kernel may rely on a name, which is remembered then. This must come before the
    /// name is looked up.
    pub fn remember(&self, place: Place<'_>) -> bool {
        let mut told = self.told();
        let name = owned(place);
        if !told.is_quiet() || (told.names.len() >= NAME_COUNT_MAX && !told.names.contains(&name)) {
            return false;
        }
        told.names.insert(name);
        true
    }

    /// Notes that the kernel relies on another name for the same file.
    pub fn note_moved(&self, from: Place<'_>, to: Place<'_>) {
        let mut told = self.told();
        if told.names.contains(&owned(from)) {
            told.names.insert(owned(to));
        }
    }

    /// Forgets all names, as others have committed something, and returns them.
    pub fn take(&self) -> BTreeSet<Name> {
        let mut told = self.told();
        told.disturbed = Some(Instant::now());
        std::mem::take(&mut told.names)
    }
}
