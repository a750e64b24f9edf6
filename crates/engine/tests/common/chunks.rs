//! Files that are cut into chunks.

use hardpack_engine::pool::{Attributes, Kind, Pool, ROOT};
use hardpack_engine::store::format::pointer::{Pointer, data_pointer};
use hardpack_engine::store::tree::walk::{Met, walk_tree};
use hardpack_engine::store::trees::TreeId;
use hardpack_engine::{FileId, Txg};

/// Imports a file whose content is given at once.
pub fn import(pool: &Pool, name: &[u8], bytes: &[u8]) -> FileId {
    let mut import = pool.import(0);
    import.file(ROOT, name, &Attributes::new(Kind::File, ROOT), &[], bytes.to_vec()).unwrap();
    assert_eq!(import.finish().unwrap().refused, []);
    pool.resolve(name).unwrap().file
}

/// Returns the offsets and pointers of a file's records.
pub fn records(pool: &Pool, file: FileId) -> Vec<(u64, Pointer)> {
    let (state, mut found) = (pool.state(), Vec::new());
    let Some(root) = &state.superblock.roots[TreeId::Map] else { return found };
    walk_tree(pool.store(), TreeId::Map, root, Txg(0), &mut |met| {
        if let Met::Entry(_, key, value) = met
            && key[..8] == file.0.to_be_bytes()
        {
            found.push((u64::from_be_bytes(key[8..].try_into().unwrap()), data_pointer(value)?));
        }
        Ok(())
    })
    .unwrap();
    found
}

pub fn is_chunk(pointer: &Pointer) -> bool {
    pointer.span_log2 == 0
}
