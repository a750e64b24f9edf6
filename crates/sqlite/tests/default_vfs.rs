//! Hardpack as the default VFS. These tests have a process of their own, since they change the
//! default for all of it.

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
