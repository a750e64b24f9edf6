//! Wrong, truncated, bit-flipped and hostile pools, through SQLite: the error names the place,
//! undamaged data stays readable, and the process never crashes.

use std::path::{Path, PathBuf};

use crate::common::{Random, ledger, open, run, text, try_open};
use rusqlite::{Connection, ErrorCode};

/// The offset at which a pool's extents begin.
const EXTENTS_OFFSET: usize = 40960;
const FLIP_COUNT: usize = 250;

fn new_pool(dir: &Path) -> PathBuf {
    let path = dir.join("pool.hpk");
    let db = open(&path);
    run(&db, "pragma page_size=1024");
    ledger::create(&db);
    let mut random = Random(1);
    for _ in 0..60 {
        ledger::transact(&db, &mut random, 3000).unwrap();
    }
    drop(db);
    path
}

/// Reads everything. Errors are fine if they say what happened.
fn read_everything(path: &Path) -> Result<i64, rusqlite::Error> {
    let db = try_open(path, "")?;
    let mut count = 0;
    for table in ["account", "log"] {
        let mut statement = db.prepare(&format!("select * from {table}"))?;
        let mut rows = statement.query([])?;
        while rows.next()?.is_some() {
            count += 1;
        }
    }
    let mut check = db.prepare("pragma integrity_check")?;
    let verdict: String = check.query_row([], |row| row.get(0))?;
    assert!(verdict == "ok" || !crate::common::logged_about(path).is_empty(), "{verdict}");
    db.query_row("select count(*) from hardpack_stats", [], |row| row.get::<_, i64>(0))?;
    // Writing must not crash either, whether it succeeds or not.
    let _ = db.execute_batch("update account set note = note || 'x'; vacuum");
    Ok(count)
}

fn is_expected(error: &rusqlite::Error) -> bool {
    matches!(
        error.sqlite_error_code(),
        Some(ErrorCode::NotADatabase | ErrorCode::DatabaseCorrupt | ErrorCode::SystemIoFailure)
    )
}

/// Whether a message in SQLite's log says where the damage is.
fn is_logged_with_place(path: &Path) -> bool {
    let log = crate::common::logged_about(path);
    log.iter().any(|(_, text)| text.starts_with("hardpack: ") && text.contains("at byte "))
}

#[test]
fn flipped_bits_are_found_and_named() {
    let dir = tempfile::tempdir().unwrap();
    let image = std::fs::read(new_pool(dir.path())).unwrap();
    let whole = {
        let path = dir.path().join("whole.hpk");
        std::fs::write(&path, &image).unwrap();
        read_everything(&path).unwrap()
    };
    let mut random = Random::new(61);
    let mut errors = 0;
    for flip in 0..FLIP_COUNT {
        let path = dir.path().join(format!("flip-{flip}.hpk"));
        let mut bytes = image.clone();
        let at = match flip % 4 {
            0 => random.below(EXTENTS_OFFSET as u64),
            _ => EXTENTS_OFFSET as u64 + random.below((bytes.len() - EXTENTS_OFFSET) as u64),
        };
        bytes[at as usize] ^= 1 << random.below(8);
        std::fs::write(&path, &bytes).unwrap();
        match read_everything(&path) {
            // The bit was in free space, or in a superblock that is not needed.
            Ok(count) => assert_eq!(count, whole, "bit at {at}"),
            Err(error) => {
                errors += 1;
                assert!(is_expected(&error), "bit at {at}: {error}");
                let named = is_logged_with_place(&path)
                    || error.sqlite_error_code() == Some(ErrorCode::NotADatabase);
                assert!(named, "bit at {at}: {error}, {:?}", crate::common::logged_about(&path));
            }
        }
        std::fs::remove_file(&path).unwrap();
    }
    assert!(errors > FLIP_COUNT / 20, "only {errors} flips of {FLIP_COUNT} were noticed");
    assert_eq!(crate::common::open_descriptors(dir.path()), Vec::<PathBuf>::new());
}

/// The most free space at the end of a pool that was just written: a few nodes.
const FREE_TAIL_MAX: usize = 64 << 10;

#[test]
fn truncated_pools() {
    let dir = tempfile::tempdir().unwrap();
    let image_path = new_pool(dir.path());
    let image = std::fs::read(&image_path).unwrap();
    let whole = read_everything(&image_path).unwrap();
    let mut random = Random::new(62);
    // SQLite treats a file of one byte as empty.
    let edges = [2, 16, 100, 512, 4095, 4096, 8192, 20480, EXTENTS_OFFSET - 1, EXTENTS_OFFSET];
    let lens = edges.into_iter().chain((0..40).map(|_| random.below(image.len() as u64) as usize));
    for len in lens {
        let path = dir.path().join(format!("cut-{len}.hpk"));
        std::fs::write(&path, &image[..len]).unwrap();
        match read_everything(&path) {
            // Space that the last commits freed at the end of a pool is not missed.
            Ok(count) => {
                let missing = image.len() - len;
                assert!(count == whole && missing < FREE_TAIL_MAX, "{missing} bytes are missing");
            }
            Err(error) => assert!(is_expected(&error), "cut to {len}: {error}"),
        }
        std::fs::remove_file(&path).unwrap();
    }
}

/// Whole ranges are overwritten with noise, zeros, or other parts of the pool.
#[test]
fn hostile_ranges() {
    let dir = tempfile::tempdir().unwrap();
    let image = std::fs::read(new_pool(dir.path())).unwrap();
    let mut random = Random::new(63);
    for round in 0..120 {
        let path = dir.path().join(format!("range-{round}.hpk"));
        let mut bytes = image.clone();
        for _ in 0..1 + random.below(3) {
            let len = 1 + random.below(6000) as usize;
            let at = random.below((bytes.len() - len) as u64) as usize;
            let from = random.below((bytes.len() - len) as u64) as usize;
            match random.below(3) {
                0 => bytes[at..at + len].fill(0),
                1 => bytes[at..at + len].fill_with(|| random.next() as u8),
                _ => bytes.copy_within(from..from + len, at),
            }
        }
        std::fs::write(&path, &bytes).unwrap();
        if let Err(error) = read_everything(&path) {
            assert!(is_expected(&error), "round {round}: {error}");
        }
        std::fs::remove_file(&path).unwrap();
    }
}

/// A file that is neither a pool nor a database is refused and stays as it is.
#[test]
fn garbage_is_refused_and_unchanged() {
    let dir = tempfile::tempdir().unwrap();
    let mut random = Random::new(64);
    let noise: Vec<u8> = (0..50_000).map(|_| random.next() as u8).collect();
    let magic = [b"Hardpack pool\x1a\r\n".as_slice(), &noise[..9000]].concat();
    let zeros = vec![0; 100_000];
    let images = [b"hello".to_vec(), noise, magic, zeros, vec![b' '; 4096]];
    for (index, image) in images.iter().enumerate() {
        let path = dir.path().join(format!("garbage-{index}"));
        std::fs::write(&path, image).unwrap();
        let result = try_open(&path, "").and_then(|db| {
            db.execute_batch("create table t(a)")?;
            db.execute_batch("select * from sqlite_schema")
        });
        let error = result.expect_err("garbage");
        assert!(is_expected(&error), "image {index}: {error}");
        assert_eq!(&std::fs::read(&path).unwrap(), image, "image {index}");
    }
}

#[test]
fn an_empty_file_becomes_a_pool() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("empty");
    std::fs::write(&path, b"").unwrap();
    let db = open(&path);
    assert_eq!(text(&db, "select count(*) from sqlite_schema"), "0");
    assert_eq!(std::fs::metadata(&path).unwrap().len(), 0, "reading creates nothing");
    run(&db, "create table t(a); insert into t values(1)");
    drop(db);
    assert!(crate::common::is_pool(&path));
    assert_eq!(text(&open(&path), "select a from t"), "1");
}

/// SQLite without Hardpack says that a pool is not a database, whatever it is told to do, and
/// leaves it alone.
#[test]
fn plain_sqlite_refuses_a_pool_and_leaves_it_alone() {
    let dir = tempfile::tempdir().unwrap();
    let path = new_pool(dir.path());
    let image = std::fs::read(&path).unwrap();
    for sql in ["create table t(a)", "vacuum", "pragma journal_mode=wal", "select * from account"] {
        let db = Connection::open(&path).unwrap();
        let error = db.execute_batch(sql).unwrap_err();
        assert_eq!(error.sqlite_error_code(), Some(ErrorCode::NotADatabase), "{sql}: {error}");
    }
    let (_, errors) =
        crate::common::stock_shell(&[&format!(".open {}", path.display()), "vacuum;"]);
    assert!(errors.contains("file is not a database"), "{errors}");
    assert!(std::fs::read(&path).unwrap() == image, "the pool was changed");
    assert_eq!(ledger::assert_sound(&open(&path)), 60);
}

/// Damage in one place leaves the rest readable.
#[test]
fn the_rest_stays_readable() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pool.hpk");
    let db = open(&path);
    run(&db, "pragma hardpack_recordsize='4K'; create table a(x); create table b(x)");
    run(&db, "insert into a values('kept as it is')");
    run(&db, "insert into b values(randomblob(400000))");
    drop(db);
    let mut bytes = std::fs::read(&path).unwrap();
    // The random bytes are stored uncompressed and make up most of the pool.
    let middle = bytes.len() * 3 / 5;
    bytes[middle] ^= 1;
    std::fs::write(&path, &bytes).unwrap();
    let db = open(&path);
    assert_eq!(text(&db, "select x from a"), "kept as it is");
    let error = db.query_row("select length(hex(x)) from b", [], |row| row.get::<_, i64>(0));
    assert!(is_expected(&error.unwrap_err()));
    assert!(is_logged_with_place(&path), "{:?}", crate::common::logged_about(&path));
    run(&db, "insert into a values('and can be written')");
    assert_eq!(text(&db, "select count(*) from a"), "2");
}

/// A commit that fails last, when SQLite takes it for done, is not read by its own connection
/// either, whatever the reason is.
#[test]
fn a_commit_to_a_pool_that_was_cut_short_is_undone() {
    for pragmas in ["journal_mode=delete", "journal_mode=memory", "journal_mode=off"] {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("pool.hpk");
        let db = crate::common::open(&path);
        let modes =
            format!("pragma locking_mode=exclusive; pragma {pragmas}; pragma synchronous=off");
        run(&db, &modes);
        run(&db, "create table t(a integer primary key, b)");
        run(&db, "insert into t values(1, randomblob(300000))");
        run(&db, "insert into t values(2, randomblob(1000))");
        let file = std::fs::File::options().write(true).open(&path).unwrap();
        file.set_len(file.metadata().unwrap().len() / 2).unwrap();
        for row in 3..5 {
            db.execute_batch(&format!("insert into t values({row}, 1)")).unwrap_err();
            let mut found = db.prepare("select a from t").unwrap();
            let rows = found.query_map([], |row| row.get::<_, i64>(0));
            let rows = rows.and_then(Iterator::collect::<Result<Vec<_>, _>>);
            assert!(rows.is_err() || rows == Ok(vec![1, 2]), "{pragmas}: {rows:?}");
        }
    }
}
