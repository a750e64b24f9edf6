//! The connections of SQLite that have databases open through this VFS.

use super::registry;

/// What this VFS knows about one connection.
#[derive(Debug, Default)]
pub(super) struct Connection {
    /// The number of its databases.
    files: usize,
    /// The number of those that it may be changing.
    writers: usize,
}

/// One database that a connection has open.
#[derive(Debug)]
pub struct ConnectionUse(usize);

impl ConnectionUse {
    /// Counts a database of the connection at this address.
    pub fn new(connection: usize) -> ConnectionUse {
        registry().connections.entry(connection).or_default().files += 1;
        ConnectionUse(connection)
    }
}

impl Drop for ConnectionUse {
    fn drop(&mut self) {
        let mut registry = registry();
        // In a forked child, the connection belongs to the parent.
        if let Some(known) = registry.connections.get_mut(&self.0) {
            known.files -= 1;
            if known.files == 0 {
                registry.connections.remove(&self.0);
            }
        }
    }
}

/// One database that a connection may be changing.
#[derive(Debug)]
pub struct WriterUse(usize);

impl WriterUse {
    /// Counts a database that the connection at this address may be changing.
    pub fn new(connection: usize) -> WriterUse {
        if let Some(known) = registry().connections.get_mut(&connection) {
            known.writers += 1;
        }
        WriterUse(connection)
    }

    /// Whether the connection may be changing other databases as well, as far as is known.
    pub fn has_others(&self) -> bool {
        registry().connections.get(&self.0).is_none_or(|known| known.writers != 1)
    }
}

impl Drop for WriterUse {
    fn drop(&mut self) {
        if let Some(known) = registry().connections.get_mut(&self.0) {
            known.writers = known.writers.saturating_sub(1);
        }
    }
}

/// Returns how many databases a connection has open through this VFS.
pub fn connection_files(connection: usize) -> usize {
    registry().connections.get(&connection).map_or(0, |known| known.files)
}
