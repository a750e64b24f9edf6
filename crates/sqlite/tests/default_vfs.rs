//! Hardpack as the default VFS. Alone in its process, since the default is the same for all tests of
//! one.

use std::fs;

use rusqlite::Connection;

#[test]
fn registering_again_does_not_end_the_default() {
    for make_default in [true, false] {
        let api = hardpack::api_from!(rusqlite::ffi).unwrap();
        hardpack::register(api, make_default).unwrap();
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.db");
    Connection::open(&path).unwrap().execute_batch("create table t(a)").unwrap();
    assert!(fs::read(&path).unwrap().starts_with(b"Hardpack pool"));
}
