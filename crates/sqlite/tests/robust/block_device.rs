//! Pools on block devices, of which SQLite's hosts say that they are empty.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::{
    assert_integrity, assert_pool_is_clean, code_of, fill, open, run, try_open, value,
};
use rusqlite::ErrorCode;

const ROWS: i64 = 300;

/// A loop device, which only root can have.
struct Loop(PathBuf);

impl Loop {
    fn of(image: &Path) -> Option<Loop> {
        let output = Command::new("losetup").args(["--find", "--show"]).arg(image).output();
        let output = output.ok().filter(|output| output.status.success());
        if output.is_none() {
            eprintln!("not tested: loop devices need root");
        }
        Some(Loop(String::from_utf8(output?.stdout).unwrap().trim_end().into()))
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let status = Command::new("losetup").arg("--detach").arg(&self.0).status();
        assert!(std::thread::panicking() || status.unwrap().success());
    }
}

/// Adds free space of 4 MiB, up to a multiple of the sectors of a device.
fn extend(image: &Path) {
    let file = fs::OpenOptions::new().write(true).open(image).unwrap();
    let len = file.metadata().unwrap().len() + (4 << 20);
    file.set_len(len.next_multiple_of(4096)).unwrap();
}

#[test]
fn a_database_on_a_block_device_is_seen_and_kept() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("p.hpk");
    let db = open(&image);
    run(&db, "create table t(a integer primary key, b)");
    fill(&db, ROWS);
    drop(db);
    extend(&image);
    let Some(device) = Loop::of(&image) else { return };
    for round in 0..2 {
        let db = open(&device.0);
        assert_eq!(value::<i64>(&db, "select count(*) from t"), ROWS + round);
        run(&db, "create table if not exists u(a); insert into t select max(a) + 1, 'x' from t");
        assert_integrity(&db);
    }
    // By its path in the pool, too.
    let inner = device.0.join("p.hpk");
    assert_eq!(value::<i64>(&open(&inner), "select count(*) from t"), ROWS + 2);
    run(&open(&device.0.join("more.db")), "create table more(a)");
    assert_pool_is_clean(&device.0);
    drop(device);
    let db = open(&image.join("p.hpk"));
    assert_eq!(value::<i64>(&db, "select count(*) from t"), ROWS + 2);
    assert_integrity(&db);
}

/// SQLite cannot use a block device itself: it would take it for empty.
#[test]
fn what_is_no_pool_on_a_block_device_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("plain.db");
    let db = crate::common::open_plain(&image);
    run(&db, "create table t(a integer primary key, b)");
    fill(&db, ROWS);
    drop(db);
    extend(&image);
    let before = fs::read(&image).unwrap();
    let Some(device) = Loop::of(&image) else { return };
    let opened = try_open(&device.0, "").and_then(|db| db.execute_batch("create table u(a)"));
    assert_eq!(code_of(opened), Some(ErrorCode::CannotOpen));
    let said = crate::common::logged_about(&device.0);
    assert!(said.iter().any(|(_, text)| text.contains("block device holds no pool")), "{said:?}");
    drop(device);
    assert!(fs::read(&image).unwrap() == before);
}
