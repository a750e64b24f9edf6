//! The rows that `hardpack_stats` shows for a pool.
#![expect(unsafe_code, reason = "calls SQLite's C interface")]

use std::ffi::{CString, c_void};

use hardpack_engine::codec::CodecId;
use hardpack_engine::store::stats::{CodecStats, FilterStats};

use crate::api;
use crate::ffi::{SQLITE_FCNTL_FILE_POINTER, SQLITE_OK, sqlite3, sqlite3_file};
use crate::main_file::MainFile;
use crate::stats_table::{StatRow, StatValue};
use crate::vfs;

/// Returns the main file of a database of a connection; `None` if that does not go through this
/// VFS.
///
/// # Safety
///
/// The connection is open and in use by this thread, which does nothing else with the database as
/// long as it has the file.
pub unsafe fn main_of<'a>(
    db: *mut sqlite3,
    schema: &str,
) -> Result<Option<&'a mut MainFile>, String> {
    let schema = CString::new(schema).map_err(|_| "no such database".to_string())?;
    let mut file: *mut sqlite3_file = std::ptr::null_mut();
    let out: *mut c_void = (&raw mut file).cast();
    // SAFETY: the caller vouches for the connection, and the answer goes to a pointer.
    let code =
        unsafe { (api::get().file_control)(db, schema.as_ptr(), SQLITE_FCNTL_FILE_POINTER, out) };
    if code != SQLITE_OK {
        return Err(format!("no such database: {}", schema.to_string_lossy()));
    }
    // SAFETY: the file belongs to the connection.
    Ok(unsafe { vfs::main_file(file) })
}

/// Returns the rows for a database of a connection. A plain database has none.
pub fn rows(db: *mut sqlite3, schema: &str) -> Result<Vec<StatRow>, String> {
    // SAFETY: the connection is the one that runs the query.
    let Some(main) = (unsafe { main_of(db, schema)? }) else { return Ok(Vec::new()) };
    let Some(pool) = main.pool() else { return Ok(Vec::new()) };
    let state = pool.state();
    let stats = state.stats();
    let data = stats.data();
    let ashift = pool.store().ashift();
    let bytes = |n: u64| StatValue::Int(i64::try_from(n).unwrap_or(i64::MAX));
    let mut rows = Vec::new();
    let mut add = |name: &str, value: StatValue, unit: &'static str| {
        rows.push(StatRow { name: name.to_string(), value, unit });
    };
    add("path", StatValue::Text(main.path().display().to_string()), "");
    add("txg", bytes(state.txg().0), "");
    add("durable_txg", bytes(state.durable_txg().0), "");
    add("logical", bytes(stats.file_bytes), "bytes");
    add(
        "holes",
        bytes(stats.file_bytes.saturating_sub(data.logical - stats.patches.logical)),
        "bytes",
    );
    add("stored", bytes(data.stored), "bytes");
    add("allocated", bytes(data.allocated), "bytes");
    add("metadata", bytes(stats.nodes.allocated), "bytes");
    add("free", bytes(state.free_bytes(ashift)), "bytes");
    add("pool_size", bytes(state.superblock.end.0 << ashift), "bytes");
    add("compressratio", StatValue::Real(stats.compress_ratio()), "x");
    let groups = [("embedded", stats.embedded), ("patches", stats.patches)];
    let codecs = CodecId::ALL.into_iter().map(|codec| (codec, stats.codecs[codec as usize]));
    let codecs = codecs.map(|(codec, stats)| (codec.to_string(), stats));
    let groups = groups.into_iter().map(|(name, stats)| (name.to_string(), stats));
    for (name, group) in groups.chain(codecs).filter(|(_, group)| group.records > 0) {
        let CodecStats { records, logical, stored, allocated, .. } = group;
        add(&format!("{name}_records"), bytes(records), "records");
        add(&format!("{name}_logical"), bytes(logical), "bytes");
        add(&format!("{name}_stored"), bytes(stored), "bytes");
        add(&format!("{name}_allocated"), bytes(allocated), "bytes");
    }
    let FilterStats { records, logical, unfiltered, stored, .. } = stats.filtered;
    if records > 0 {
        add("filtered_records", bytes(records), "records");
        add("filtered_logical", bytes(logical), "bytes");
        add("filtered_unfiltered", bytes(unfiltered), "bytes");
        add("filtered_stored", bytes(stored), "bytes");
    }
    if let Some(choice) = main.engine_file().and_then(|file| file.auto_choice()) {
        add("auto_choice", StatValue::Text(choice.compression.to_string()), "");
        add("auto_reason", StatValue::Text(choice.reason), "");
    }
    let caches = pool.store().caches();
    add("cache_used", bytes(caches.used_bytes()), "bytes");
    add("cache_capacity", bytes(caches.capacity_bytes()), "bytes");
    if let Some(shared) = pool.store().shared_cache().map(|shared| shared.stats()) {
        add("shared_cache", StatValue::Text(shared.path.display().to_string()), "");
        add("shared_cache_used", bytes(shared.used_bytes), "bytes");
        add("shared_cache_capacity", bytes(shared.capacity_bytes), "bytes");
        add("shared_cache_hits", bytes(shared.hits), "blocks");
        add("shared_cache_misses", bytes(shared.misses), "blocks");
        add("shared_cache_stored", bytes(shared.stored), "blocks");
    }
    for value in pool.properties(main.property_owner()).map_err(|error| error.to_string())? {
        add(value.property.name(), StatValue::Text(value.value), "");
    }
    Ok(rows)
}
