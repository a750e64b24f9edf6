//! The connections of SQLite that have databases open through this VFS.

use super::{Era, registry, registry_of};

/// One database that a connection has open.
#[derive(Debug)]
pub struct ConnectionUse(usize, Era);

impl ConnectionUse {
    /// Counts a database of the connection at this address.
    pub fn new(connection: usize) -> ConnectionUse {
        let mut registry = registry();
        *registry.connections.entry(connection).or_default() += 1;
        ConnectionUse(connection, registry.era)
    }
}

impl Drop for ConnectionUse {
    fn drop(&mut self) {
        // In a forked child, the connection belongs to the parent.
        let Some(mut registry) = registry_of(self.1) else { return };
        if let Some(count) = registry.connections.get_mut(&self.0) {
            *count -= 1;
            if *count == 0 {
                registry.connections.remove(&self.0);
            }
        }
    }
}

/// Returns how many databases a connection has open through this VFS.
pub fn connection_files(connection: usize) -> usize {
    registry().connections.get(&connection).copied().unwrap_or(0)
}
