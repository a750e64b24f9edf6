//! Block devices, of which SQLite's hosts say that they are empty.

use std::fs;
use std::path::PathBuf;

use crate::common::loop_device::Loop;
use crate::common::{code_of, fill, open, open_plain, run, try_open};
use rusqlite::ErrorCode;

/// What SQLite takes for empty, it would write over.
#[test]
fn what_is_on_a_block_device_is_left_alone() {
    for is_pool in [true, false] {
        let dir = tempfile::tempdir().unwrap();
        let image = dir.path().join("image");
        let db = if is_pool { open(&image) } else { open_plain(&image) };
        run(&db, "create table t(a integer primary key, b)");
        fill(&db, 300);
        drop(db);
        let file = fs::OpenOptions::new().write(true).open(&image).unwrap();
        let len = file.metadata().unwrap().len() + (4 << 20);
        file.set_len(len.next_multiple_of(4096)).unwrap();
        let before = fs::read(&image).unwrap();
        let Some(device) = Loop::of(&image) else { return };
        let snapshot = PathBuf::from(format!("{}@before", device.0.display()));
        for path in [&device.0, &device.0.join("image"), &snapshot] {
            let opened = try_open(path, "").and_then(|db| db.execute_batch("create table u(a)"));
            assert_eq!(code_of(opened), Some(ErrorCode::CannotOpen), "{}", path.display());
        }
        assert!(!snapshot.exists());
        let said = crate::common::logged_about(&device.0);
        assert!(said.iter().any(|(_, text)| text.contains("'hardpack extract'")), "{said:?}");
        drop(device);
        assert!(fs::read(&image).unwrap() == before);
    }
}
