//! The parameters of a URI that Hardpack reads. `docs/sql.md` lists them.

use std::ffi::{CStr, CString};

use hardpack_engine::pool::Property;

/// Names the VFS, and so asks for a pool.
pub const VFS: &CStr = c"vfs";
/// Whether a database may be in a pool: 0 keeps it plain, 1 asks for a pool.
pub const HARDPACK: &CStr = c"hardpack";
/// Names the state in which a database is to be read.
pub const AT: &CStr = c"at";
/// SQLite's own: nobody changes the file, so it is not locked.
pub const IMMUTABLE: &CStr = c"immutable";

/// Names the cache that is shared with other processes.
pub const SHARED_CACHE: &CStr = c"hardpack_shared_cache";

/// All of them except for the properties.
pub const ALL: [&CStr; 5] = [VFS, HARDPACK, AT, IMMUTABLE, SHARED_CACHE];

/// Returns the name of a property as a pragma or parameter has it.
pub fn name_of(property: Property) -> String {
    format!("hardpack_{}", property.name().replace('-', "_"))
}

/// Returns the parameter that sets a property.
pub fn of(property: Property) -> Option<CString> {
    CString::new(name_of(property)).ok()
}
