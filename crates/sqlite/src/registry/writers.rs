//! The connections that are about to commit several databases: which of these are in one pool.

use std::sync::Arc;

use hardpack_engine::store::Store;

use super::{Era, registry, registry_of};

/// A connection, and the pool that it is about to change, by their addresses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Writer {
    connection: usize,
    store: usize,
}

/// Marks a database as one that a connection is about to commit, while this value lives.
#[derive(Debug)]
pub struct WriterUse(Vec<u8>, Era);

impl WriterUse {
    /// Registers the connection at this address; `name` is SQLite's name for the database.
    pub fn new(name: &[u8], connection: usize, store: &Arc<Store>) -> WriterUse {
        let writer = Writer { connection, store: Arc::as_ptr(store).addr() };
        let mut registry = registry();
        registry.writers.insert(name.to_vec(), writer);
        WriterUse(name.to_vec(), registry.era)
    }
}

impl Drop for WriterUse {
    fn drop(&mut self) {
        if let Some(mut registry) = registry_of(self.1) {
            registry.writers.remove(&self.0);
        }
    }
}

/// Whether one connection is about to commit all of these databases, and they are in one pool.
pub fn have_one_writer(databases: &[&[u8]]) -> bool {
    let registry = registry();
    let mut writers = databases.iter().map(|name| registry.writers.get(*name));
    let Some(Some(first)) = writers.next() else { return false };
    writers.all(|writer| writer == Some(first))
}
