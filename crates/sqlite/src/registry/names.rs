//! The names that SQLite has for open databases: which databases are in pools, and what their
//! companion files are called.

use std::sync::Arc;

use hardpack_engine::device::FileDevice;

use super::{Era, registry, registry_of};
use crate::host_name::{HostName, JOURNAL_SUFFIX, generation_suffix};

#[derive(Debug)]
pub(super) struct NamedDatabase {
    users: usize,
    companions: CompanionNames,
    /// Earlier companion names. A host keeps pointers into them.
    retired: Vec<CompanionNames>,
    /// The descriptor of a pool that could not be created. It must not be closed while SQLite holds
    /// locks on the file, as it does then.
    pub(super) spare: Option<Arc<FileDevice>>,
}

impl NamedDatabase {
    fn exchange(&mut self, companions: CompanionNames) {
        if !self.companions.is_same(&companions) {
            self.retired.push(std::mem::replace(&mut self.companions, companions));
        }
    }
}

/// The names that the host has for the companion files of a database.
#[derive(Clone, Debug)]
pub enum CompanionNames {
    /// The names that SQLite uses.
    Unchanged,
    /// The names derived from this one.
    Translated(Arc<HostName>),
    /// None: there are no companion files, and none may be created.
    Absent,
    /// None yet: the database does not exist, and its number is unknown. Its journal is in memory.
    Unmade,
}

impl CompanionNames {
    fn is_same(&self, other: &CompanionNames) -> bool {
        match (self, other) {
            (CompanionNames::Unchanged, CompanionNames::Unchanged)
            | (CompanionNames::Absent, CompanionNames::Absent)
            | (CompanionNames::Unmade, CompanionNames::Unmade) => true,
            (CompanionNames::Translated(one), CompanionNames::Translated(other)) => {
                (one.path(), one.generation()) == (other.path(), other.generation())
            }
            _ => false,
        }
    }

    /// Returns the path of the journal that a database would have on disk, if it can have one;
    /// `name` is SQLite's name for the database.
    pub fn journal_path(&self, name: &[u8]) -> Option<Vec<u8>> {
        self.companion_path(name, JOURNAL_SUFFIX)
    }

    /// Returns the path of the companion file with a suffix that a database would have on disk.
    pub fn companion_path(&self, name: &[u8], suffix: &[u8]) -> Option<Vec<u8>> {
        match self {
            CompanionNames::Unchanged => Some([name, suffix].concat()),
            CompanionNames::Translated(name) => {
                let ending = generation_suffix(name.generation());
                Some([name.path(), suffix, ending.as_bytes()].concat())
            }
            CompanionNames::Absent | CompanionNames::Unmade => None,
        }
    }

    /// Whether both belong to the same file, of whichever generation; a file that did not exist may
    /// exist by now. `name` is SQLite's name for the database.
    fn is_of_same_file(&self, name: &[u8], other: &CompanionNames) -> bool {
        if matches!(self, CompanionNames::Unmade) {
            return true;
        }
        let path = |companions: &CompanionNames| match companions {
            CompanionNames::Unchanged => Some(name.to_vec()),
            CompanionNames::Translated(name) => Some(name.path().to_vec()),
            CompanionNames::Absent | CompanionNames::Unmade => None,
        };
        path(self) == path(other)
    }
}

/// Marks a name of SQLite's as that of a database in a pool while this value lives.
#[derive(Debug)]
pub struct PoolName(Vec<u8>, Era);

impl PoolName {
    /// Registers the name with its companion names. Returns `None` if the name already belongs to
    /// another database: their companion files could not be told apart.
    pub fn new(name: &[u8], companions: CompanionNames) -> Option<PoolName> {
        let mut registry = registry();
        let era = registry.era;
        let known = registry.names.entry(name.to_vec());
        let known = known.or_insert_with(|| NamedDatabase {
            users: 0,
            companions: companions.clone(),
            retired: Vec::new(),
            spare: None,
        });
        known.companions.is_of_same_file(name, &companions).then(|| {
            known.exchange(companions);
            known.users += 1;
            PoolName(name.to_vec(), era)
        })
    }

    /// Switches the companion names to another generation of the content.
    pub fn exchange_generation(&self, generation: u64) {
        let Some(mut registry) = registry_of(self.1) else { return };
        let Some(known) = registry.names.get_mut(&self.0) else { return };
        let path = match &known.companions {
            CompanionNames::Unchanged => &self.0[..],
            CompanionNames::Translated(name) => name.path(),
            CompanionNames::Absent | CompanionNames::Unmade => return,
        };
        let companions =
            CompanionNames::Translated(Arc::new(HostName::of_generation(path, generation)));
        known.exchange(companions);
    }
}

impl Drop for PoolName {
    fn drop(&mut self) {
        let Some(mut registry) = registry_of(self.1) else { return };
        if let Some(name) = registry.names.get_mut(&self.0) {
            name.users -= 1;
            if name.users == 0 {
                registry.names.remove(&self.0);
            }
        }
    }
}

/// Marks a name of SQLite's as that of a database in no pool while this value lives.
#[derive(Debug)]
pub struct PlainName(Vec<u8>, Era);

impl PlainName {
    /// Registers the name.
    pub fn new(name: &[u8]) -> PlainName {
        let mut registry = registry();
        *registry.plain.entry(name.to_vec()).or_default() += 1;
        PlainName(name.to_vec(), registry.era)
    }
}

impl Drop for PlainName {
    fn drop(&mut self) {
        let Some(mut registry) = registry_of(self.1) else { return };
        if let Some(users) = registry.plain.get_mut(&self.0) {
            *users -= 1;
            if *users == 0 {
                registry.plain.remove(&self.0);
            }
        }
    }
}

/// Whether this process has a database of this name open that is in no pool.
pub fn is_plain(name: &[u8]) -> bool {
    registry().plain.contains_key(name)
}

/// Returns the names of the companion files of a database, if one of this name is open from a pool.
pub fn companion_names(name: &[u8]) -> Option<CompanionNames> {
    registry().names.get(name).map(|name| name.companions.clone())
}

/// Registers a super-journal that this process writes.
pub fn note_super_journal(name: &[u8]) {
    registry().super_journals.insert(name.to_vec());
}

/// Removes a super-journal that this process has finished.
pub fn forget_super_journal(name: &[u8]) {
    registry().super_journals.remove(name);
}

/// Whether this process is writing a super-journal of this name.
pub fn is_super_journal(name: &[u8]) -> bool {
    registry().super_journals.contains(name)
}
