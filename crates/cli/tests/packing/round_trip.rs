//! Packed files are restored byte for byte, and as of one moment.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use crate::common::*;
use rusqlite::Connection;

/// Packs, unpacks and compares.
fn assert_round_trip(input: &Path) {
    let before = fs::read(input).unwrap();
    hardpack().args(["pack", "-qf"]).arg(input).assert().success();
    let pool = with_ending(input, ".hpk");
    let output = with_ending(input, ".back");
    hardpack().args(["unpack", "-qf"]).args([&pool, &output]).assert().success();
    assert_same(input, &output);
    assert!(fs::read(input).unwrap() == before, "packing changed its input");
}

#[test]
fn any_file_comes_back() {
    let text = "the same words over and over\n".repeat(50_000);
    let mut sparse = vec![0; 5 << 20];
    sparse[3 << 20] = 1;
    for (name, content) in [
        ("random", random_bytes(3_000_001, 1)),
        ("empty", Vec::new()),
        ("one", vec![7]),
        ("text", text.into_bytes()),
        ("sparse", sparse),
        ("zeros", vec![0; (1 << 20) + 17]),
        ("with the magic only", b"SQLite format 3\0 and then something else".to_vec()),
    ] {
        let (_directory, path) = directory_with(name, &content);
        assert_round_trip(&path);
        let is_no_database = name.starts_with("with the magic");
        let code = i32::from(is_no_database);
        hardpack().args(["check", "-q"]).arg(with_ending(&path, ".hpk")).assert().code(code);
    }
}

#[test]
fn holes_stay_holes() {
    let (_directory, path) = directory_with("sparse", b"begin");
    File::options().write(true).open(&path).unwrap().set_len(64 << 20).unwrap();
    let pool = pack(&path);
    assert!(fs::metadata(&pool).unwrap().len() < 64 << 10);
    let output = with_ending(&path, ".back");
    hardpack().args(["unpack", "-q"]).args([&pool, &output]).assert().success();
    let metadata = fs::metadata(&output).unwrap();
    assert_eq!(metadata.len(), 64 << 20);
    assert!(metadata.blocks() * 512 < 1 << 20);
    assert_same(&path, &output);
}

#[test]
fn all_settings_work() {
    let text = "the same words over and over, or nearly so\n".repeat(100_000);
    let (_directory, path) = directory_with("text", text.as_bytes());
    let pool = with_ending(&path, ".hpk");
    for (compression, recordsize, checksum, min_savings) in [
        ("off", "4K", "sha256", "0"),
        ("gzip-9", "16M", "blake3", "12.5%"),
        ("zstd-19", "1M", "xxh3", "50%"),
        ("lzjb", "131072", "blake3", "90"),
    ] {
        hardpack()
            .args(["pack", "-qf", "--threads", "3", "--compression", compression])
            .args(["--recordsize", recordsize, "--checksum", checksum])
            .args(["--min-savings", min_savings])
            .arg(&path)
            .assert()
            .success();
        let info = json_of(hardpack().args(["info", "--json"]).arg(&pool));
        assert_eq!(info["properties"][0]["value"], compression);
        assert_eq!(info["logical_bytes"], text.len());
        let output = with_ending(&path, ".back");
        hardpack().args(["unpack", "-qf"]).args([&pool, &output]).assert().success();
        assert_same(&path, &output);
    }
}

#[test]
fn databases_of_every_page_size_come_back() {
    for page_size in [512, 1024, 2048, 4096, 8192, 16384, 32768, 65536] {
        let (_directory, path) = directory_with("data.db", b"");
        make_database(&path, page_size, 5000);
        assert_round_trip(&path);
        hardpack().args(["check", "-q"]).arg(with_ending(&path, ".hpk")).assert().success();
        Connection::open(&path).unwrap().pragma_update(None, "journal_mode", "wal").unwrap();
        assert_round_trip(&path);
        assert_eq!(names_beside(&path), ["data.db", "data.db.back", "data.db.hpk"]);
    }
}

#[test]
fn damaged_databases_are_copied_as_they_are() {
    let (_directory, path) = directory_with("data.db", b"");
    make_database(&path, 1024, 2000);
    let mut bytes = fs::read(&path).unwrap();
    bytes.truncate(bytes.len() - 1500);
    bytes[1024..2000].fill(0xee);
    fs::write(&path, &bytes).unwrap();
    let pool = pack(&path);
    let output = with_ending(&path, ".back");
    hardpack().args(["unpack", "-q"]).args([&pool, &output]).assert().success();
    assert_same(&path, &output);
    hardpack().arg("check").arg(&pool).assert().code(1);
}

#[test]
fn what_is_only_in_the_log_is_packed() {
    let (_directory, path) = directory_with("data.db", b"");
    make_database(&path, 4096, 1000);
    let db = Connection::open(&path).unwrap();
    db.pragma_update(None, "journal_mode", "wal").unwrap();
    db.pragma_update(None, "wal_autocheckpoint", 0).unwrap();
    add_rows(&db, 20_000);
    let before = (fs::read(&path).unwrap(), fs::read(with_ending(&path, "-wal")).unwrap());
    assert!(!before.1.is_empty());
    let pool = pack(&path);
    let after = (fs::read(&path).unwrap(), fs::read(with_ending(&path, "-wal")).unwrap());
    assert!(before == after, "packing changed its input");
    let output = with_ending(&path, ".back");
    hardpack().args(["unpack", "-q"]).args([&pool, &output]).assert().success();
    assert_eq!(count_rows(&output), 21_000);
    // And other connections can continue.
    add_rows(&db, 1);
    drop(db);
    assert_eq!(count_rows(&path), 21_001);
}

#[test]
fn the_log_of_a_crashed_process_is_packed_and_left_alone() {
    let (_directory, path) = directory_with("data.db", b"");
    make_database(&path, 4096, 1000);
    let db = Connection::open(&path).unwrap();
    db.pragma_update(None, "journal_mode", "wal").unwrap();
    add_rows(&db, 500);
    let (_other, crashed) = directory_with("data.db", &fs::read(&path).unwrap());
    let log = with_ending(&crashed, "-wal");
    fs::copy(with_ending(&path, "-wal"), &log).unwrap();
    let before = (fs::read(&crashed).unwrap(), fs::read(&log).unwrap());
    let pool = pack(&crashed);
    assert!(before == (fs::read(&crashed).unwrap(), fs::read(&log).unwrap()));
    let output = with_ending(&crashed, ".back");
    hardpack().args(["unpack", "-q"]).args([&pool, &output]).assert().success();
    assert_eq!(count_rows(&output), 1500);
}

/// Makes a database and its hot journal, as a crash in the middle of a transaction leaves them.
/// Returns the database's path, and its bytes before that transaction.
fn make_hot_journal(directory: &Path) -> (std::path::PathBuf, Vec<u8>) {
    let path = directory.join("source.db");
    make_database(&path, 1024, 5000);
    let committed = fs::read(&path).unwrap();
    let db = Connection::open(&path).unwrap();
    db.execute_batch("PRAGMA cache_size = 5; BEGIN; UPDATE t SET b = 'changed ' || a").unwrap();
    let crashed = directory.join("crashed.db");
    fs::copy(&path, &crashed).unwrap();
    fs::copy(with_ending(&path, "-journal"), with_ending(&crashed, "-journal")).unwrap();
    assert!(fs::read(&crashed).unwrap() != committed, "nothing was spilled");
    (crashed, committed)
}

#[test]
fn a_hot_journal_is_rolled_back() {
    let directory = tempfile::tempdir().unwrap();
    let (path, committed) = make_hot_journal(directory.path());
    let pool = pack(&path);
    let output = with_ending(&path, ".back");
    hardpack().args(["unpack", "-q"]).args([&pool, &output]).assert().success();
    assert!(fs::read(&output).unwrap() == committed);
}

#[test]
fn changes_that_sqlite_cannot_read_are_not_lost() {
    let directory = tempfile::tempdir().unwrap();
    let (path, _) = make_hot_journal(directory.path());
    fs::write(&path, random_bytes(100_000, 3)).unwrap();
    // SQLite accepts the journal as one of this database and rolls it back; it cannot handle an
    // encrypted database with a log.
    let wal_magic = [0x37, 0x7f, 0x06, 0x82];
    fs::remove_file(with_ending(&path, "-journal")).unwrap();
    fs::write(with_ending(&path, "-wal"), wal_magic).unwrap();
    let failed = hardpack().arg("pack").arg(&path).assert().failure();
    let stderr = String::from_utf8_lossy(&failed.get_output().stderr).into_owned();
    assert!(stderr.contains("-wal' holds changes that are not in the database"), "{stderr}");
    assert!(!with_ending(&path, ".hpk").exists());
}

#[test]
fn a_database_that_is_written_meanwhile_is_packed_as_of_one_moment() {
    let (_directory, path) = directory_with("data.db", b"");
    make_database(&path, 1024, 50_000);
    let mut db = Connection::open(&path).unwrap();
    db.pragma_update(None, "journal_mode", "wal").unwrap();
    db.pragma_update(None, "synchronous", "off").unwrap();
    db.execute_batch("CREATE TABLE account(sum); INSERT INTO account VALUES (0), (0)").unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let change = db.transaction().unwrap();
                change.execute("UPDATE account SET sum = sum + 1 WHERE rowid = 1", []).unwrap();
                change.execute("UPDATE t SET b = 'x' || b WHERE a % 997 = 3", []).unwrap();
                change.execute("UPDATE account SET sum = sum - 1 WHERE rowid = 2", []).unwrap();
                change.commit().unwrap();
            }
        });
        for round in 0..4 {
            let pool = with_ending(&path, &format!(".{round}"));
            let output = with_ending(&pool, ".back");
            hardpack().args(["pack", "-q"]).args([&path, &pool]).assert().success();
            hardpack().args(["unpack", "-q"]).args([&pool, &output]).assert().success();
            assert_eq!(count_rows(&output), 50_000);
            let copy = Connection::open(&output).unwrap();
            let sum: i64 =
                copy.query_row("SELECT sum(sum) FROM account", [], |row| row.get(0)).unwrap();
            assert_eq!(sum, 0);
        }
        stop.store(true, Ordering::Relaxed);
    });
}

#[test]
fn a_database_that_is_locked_is_in_use() {
    let (_directory, path) = directory_with("data.db", b"");
    make_database(&path, 1024, 10);
    let db = Connection::open(&path).unwrap();
    db.execute_batch("BEGIN EXCLUSIVE").unwrap();
    hardpack().arg("pack").arg(&path).assert().code(5);
    assert_eq!(names_beside(&path), ["data.db"]);
}

#[test]
fn permissions_and_time_come_back() {
    let (_directory, path) = directory_with("secret", b"content");
    let modified = SystemTime::UNIX_EPOCH + Duration::from_nanos(1_234_567_890_123_456_789);
    let file = File::options().write(true).open(&path).unwrap();
    file.set_permissions(Permissions::from_mode(0o600)).unwrap();
    file.set_modified(modified).unwrap();
    let pool = pack(&path);
    assert_eq!(fs::metadata(&pool).unwrap().mode() & 0o7777, 0o600);
    fs::remove_file(&path).unwrap();
    hardpack().args(["unpack", "-q"]).arg(&pool).assert().success();
    let metadata = fs::metadata(&path).unwrap();
    assert_eq!(metadata.mode() & 0o7777, 0o600);
    assert_eq!(metadata.modified().unwrap(), modified);
}

#[test]
fn nothing_is_overwritten_unasked() {
    let (_directory, path) = directory_with("a", b"content");
    let pool = pack(&path);
    let before = fs::read(&pool).unwrap();
    hardpack().arg("pack").arg(&path).assert().code(3);
    assert!(fs::read(&pool).unwrap() == before);
    hardpack().arg("unpack").arg(&pool).assert().code(3);
    hardpack().args(["unpack", "--force"]).args([&pool, &pool]).assert().code(3);
    hardpack().args(["pack", "--force"]).args([&path, &path]).assert().code(3);
    hardpack().arg("pack").arg(&pool).assert().code(3);
    assert_eq!(fs::read(&path).unwrap(), b"content");
    fs::write(&path, b"other").unwrap();
    hardpack().args(["pack", "-qf"]).arg(&path).assert().success();
    fs::remove_file(&path).unwrap();
    hardpack().args(["unpack", "-q"]).arg(&pool).assert().success();
    assert_eq!(fs::read(&path).unwrap(), b"other");
    assert_eq!(names_beside(&path), ["a", "a.hpk"]);
}

/// SQLite would apply a log left by another database, so creating a pool next to one is refused.
#[test]
fn a_stray_log_is_in_the_way() {
    let (_directory, path) = directory_with("a", b"content");
    fs::write(with_ending(&path, ".hpk-wal"), b"something").unwrap();
    hardpack().arg("pack").arg(&path).assert().code(3);
    assert_eq!(names_beside(&path), ["a", "a.hpk-wal"]);
}

#[test]
fn a_pool_in_use_is_unpacked_with_its_log() {
    let (_directory, path) = directory_with("data.db", b"");
    make_database(&path, 4096, 1000);
    let pool = pack(&path);
    hardpack::register(hardpack::api_from!(rusqlite::ffi).unwrap(), false).unwrap();
    let db = Connection::open(format!("file:{}?vfs=hardpack", pool.display())).unwrap();
    db.pragma_update(None, "journal_mode", "wal").unwrap();
    db.pragma_update(None, "wal_autocheckpoint", 0).unwrap();
    add_rows(&db, 500);
    assert!(fs::metadata(with_ending(&pool, "-wal")).unwrap().len() > 0);
    let output = with_ending(&path, ".back");
    hardpack().args(["unpack", "-q"]).args([&pool, &output]).assert().success();
    assert_eq!(count_rows(&output), 1500);
    hardpack().args(["check", "-q"]).arg(&pool).assert().success();
    add_rows(&db, 1);
    drop(db);
    hardpack().args(["unpack", "-qf"]).args([&pool, &output]).assert().success();
    assert_eq!(count_rows(&output), 1501);
}
