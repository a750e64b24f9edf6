//! `hardpack check --repair` removes leftovers, and does not change a byte of a sound pool.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::common::*;
use hardpack_engine::device::{Device, FileDevice};
use hardpack_engine::pool::{Options, Pool};
use hardpack_engine::store::Durability;
use hardpack_engine::store::checksum::ChecksumKind;
use hardpack_engine::store::pointer::Place;
use hardpack_engine::store::trees::TreeId;
use serde_json::Value;

/// Enough content that its index is stored in the pool, not only in memory.
const NOISE_LEN: usize = 68 << 20;

/// Makes a pool with a database, a file and an index of content.
fn pool_with_content() -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let database = directory.path().join("data.db");
    make_database(&database, 4096, 1000);
    let noise = directory.path().join("noise");
    fs::write(&noise, random_bytes(NOISE_LEN, 5)).unwrap();
    let pool = directory.path().join("p.hpk");
    let properties = ["-o", "dedup=on", "-o", "recordsize=4K"];
    hardpack().arg("create").args(properties).arg(&pool).assert().success();
    for source in [&database, &noise] {
        hardpack().args(["put", "-q"]).args([source, &pool]).assert().success();
    }
    (directory, pool)
}

fn open(pool: &Path) -> (Arc<FileDevice>, Pool) {
    let device = Arc::new(FileDevice::open(pool).unwrap());
    let pool = Pool::open(Arc::clone(&device) as _, Options::new(1 << 20)).unwrap();
    (device, pool)
}

/// Leaves an entry of a nonexistent file, as a version did that did not check under the lock.
fn leave_orphan(pool: &Path) {
    let (_, pool) = open(pool);
    let mut txn = pool.store().begin(ChecksumKind::Xxh3).unwrap();
    let key = [&[3], &77_u64.to_be_bytes()[..], b"compression"].concat();
    txn.insert(TreeId::Names, &key, &[0; 4]).unwrap();
    txn.commit(Durability::Durable).unwrap();
    pool.close().unwrap();
}

/// Damages the root of the index.
fn spoil_index(path: &Path) {
    let (device, pool) = open(path);
    let root = pool.state().superblock.roots[TreeId::Index].clone().expect("an index");
    let Place::Extent { sector, .. } = root.place else { panic!("it is in its pointer") };
    device.write_at(&[0x55, 0xaa, 0x55], (sector.0 << 9) + 20).unwrap();
}

/// The exit code of a check, and what it reports.
fn check(arguments: &[&str], pool: &Path) -> (i32, Value) {
    let done = hardpack().args(["check", "-q", "--json"]).args(arguments).arg(pool).assert();
    let done = done.get_output();
    let report = serde_json::from_slice(&done.stdout).unwrap();
    (done.status.code().unwrap(), report)
}

#[test]
fn an_entry_of_a_file_that_is_gone_is_removed() {
    let (_directory, pool) = pool_with_content();
    leave_orphan(&pool);
    let (code, report) = check(&[], &pool);
    assert_eq!((code, &report["ok"]), (1, &false.into()), "{report}");
    assert_eq!((&report["repairable"], &report["repaired"]), (&1.into(), &Value::Null), "{report}");
    let text = hardpack().args(["check", "-q"]).arg(&pool).assert().code(1);
    let text = String::from_utf8_lossy(&text.get_output().stdout).into_owned();
    assert!(text.contains("'hardpack check --repair' repairs 1 of these"), "{text}");
    let (code, report) = check(&["--repair"], &pool);
    assert_eq!((code, &report["ok"]), (0, &true.into()), "{report}");
    assert_eq!(
        report["repaired"],
        serde_json::json!({ "removed": 1, "index_rebuilt": false, "lengthened": false })
    );
    assert_eq!((&report["repairable"], &report["databases"]), (&0.into(), &1.into()), "{report}");
    let (code, report) = check(&[], &pool);
    assert_eq!((code, &report["ok"]), (0, &true.into()), "{report}");
}

#[test]
fn a_damaged_index_is_built_anew() {
    let (directory, pool) = pool_with_content();
    spoil_index(&pool);
    let (code, report) = check(&[], &pool);
    assert_eq!((code, &report["ok"]), (1, &false.into()), "{report}");
    assert!(report["repairable"].as_u64() > Some(0), "{report}");
    let (code, report) = check(&["--rebuild-index"], &pool);
    assert_eq!((code, &report["ok"]), (0, &true.into()), "{report}");
    assert_eq!(
        report["repaired"],
        serde_json::json!({ "removed": 0, "index_rebuilt": true, "lengthened": false })
    );
    let out = directory.path().join("out");
    hardpack().args(["unpack", "-q"]).args([&pool.join("noise"), &out]).assert().success();
    assert_same(&out, &directory.path().join("noise"));
    // Content that is stored again is found in the index.
    let again = pool.join("again");
    hardpack().args(["put", "-q"]).args([&out, &again]).assert().success();
    let (_, opened) = open(&pool);
    assert!(opened.state().stats().shared.records >= 5000);
}

#[test]
fn a_sound_pool_is_left_as_it_is() {
    let (_directory, pool) = pool_with_content();
    let (_, before) = check(&[], &pool);
    let bytes = fs::read(&pool).unwrap();
    for option in ["--repair", "--rebuild-index"] {
        let (code, report) = check(&[option], &pool);
        assert_eq!((code, &report["txg"]), (0, &before["txg"]), "{option}: {report}");
        assert_eq!(
            report["repaired"],
            serde_json::json!({ "removed": 0, "index_rebuilt": false, "lengthened": false })
        );
        assert!(fs::read(&pool).unwrap() == bytes, "{option} wrote into a sound pool");
    }
}

/// Other damage is left alone and reported.
#[test]
fn what_cannot_be_mended_is_told_as_before() {
    let (_directory, pool) = pool_with_content();
    leave_orphan(&pool);
    let (device, opened) = open(&pool);
    let bytes = fs::read(&pool).unwrap();
    drop(opened);
    let part = &random_bytes(NOISE_LEN, 5)[1 << 20..][..64];
    let at = bytes.windows(part.len()).position(|window| window == part).expect("it is stored raw");
    device.write_at(&[!part[0]], at as u64).unwrap();
    drop(device);
    let (code, report) = check(&["--repair"], &pool);
    assert_eq!((code, &report["repaired"]["removed"]), (1, &1.into()), "{report}");
    assert_eq!((&report["repairable"], &report["ok"]), (&0.into(), &false.into()), "{report}");
    assert_eq!(report["problems"][0]["file"], "noise", "{report}");
}
