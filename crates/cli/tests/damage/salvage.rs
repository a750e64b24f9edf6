//! `hardpack salvage`: copies readable data out of a damaged pool, and reports exactly what is
//! lost.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::common::{add_rows, assert_same, hardpack, make_database, names_beside, pack};
use hardpack_engine::Txg;
use hardpack_engine::device::MemoryDevice;
use hardpack_engine::pool::{Options, Pool};
use hardpack_engine::store::tree::walk::{Met, walk_tree};
use hardpack_engine::store::trees::TreeId;
use rusqlite::Connection;
use serde_json::Value;

/// The start of a pool's extents, after header and superblocks.
const EXTENTS_OFFSET: usize = 40960;

/// Makes a database of some 100 pages, and its pool.
fn packed() -> (tempfile::TempDir, PathBuf, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let db = directory.path().join("rows.db");
    make_database(&db, 4096, 20_000);
    Connection::open(&db).unwrap().execute_batch("CREATE INDEX i ON t(b)").unwrap();
    let pool = pack(&db);
    (directory, db, pool)
}

fn damage(pool: &Path, change: impl FnOnce(&mut Vec<u8>)) {
    let mut image = fs::read(pool).unwrap();
    change(&mut image);
    fs::write(pool, image).unwrap();
}

fn salvage(pool: &Path, out: &Path, code: i32) -> Value {
    let mut command = hardpack();
    let done = command.args(["salvage", "--json", "-q"]).arg(pool).arg(out).assert().code(code);
    serde_json::from_slice(&done.get_output().stdout).unwrap()
}

#[test]
fn without_header_and_superblocks_all_comes_back() {
    let (directory, db, pool) = packed();
    damage(&pool, |image| image[..EXTENTS_OFFSET].fill(0));
    // No other command can use it.
    hardpack().arg("check").arg(&pool).assert().code(4);
    let before = fs::read(&pool).unwrap();
    let out = directory.path().join("saved.db");
    let report = salvage(&pool, &out, 0);
    assert_eq!((&report["ok"], &report["found_by"]), (&true.into(), &"search".into()));
    assert_eq!((&report["header"], &report["superblocks"]), (&false.into(), &0.into()));
    assert_same(&db, &out);
    assert!(fs::read(&pool).unwrap() == before, "the pool was written to");
    // Into a directory, under its old name; existing files are not replaced.
    let into = directory.path().join("into");
    fs::create_dir(&into).unwrap();
    hardpack().args(["salvage", "-q"]).arg(&pool).arg(&into).assert().code(0).stdout("");
    assert_same(&db, &into.join("rows.db"));
    hardpack().arg("salvage").arg(&pool).arg(&out).assert().code(3);
    hardpack().args(["salvage", "--force", "-q"]).arg(&pool).arg(&pool).assert().code(3);
}

/// Every range is intact or reported, and SQLite's own tools recover the remaining rows.
#[test]
fn what_is_lost_is_reported_and_the_rest_is_recovered() {
    let (directory, db, pool) = packed();
    damage(&pool, |image| {
        let extents = EXTENTS_OFFSET..image.len();
        let middle = extents.start + extents.len() / 2;
        image[middle..middle + 600].fill(0xa5);
    });
    let no = directory.path().join("no.db");
    let refused = hardpack().args(["unpack", "-q"]).arg(&pool).arg(&no).assert().code(1).stdout("");
    let hint = refused.get_output().stderr.clone();
    assert!(String::from_utf8(hint).unwrap().contains("hardpack salvage"));
    assert!(!no.exists());
    let out = directory.path().join("saved.db");
    let report = salvage(&pool, &out, 1);
    let file = &report["files"][0];
    let (truth, saved) = (fs::read(&db).unwrap(), fs::read(&out).unwrap());
    assert_eq!(truth.len(), saved.len());
    let mut at = 0;
    for range in file["ranges"].as_array().unwrap() {
        assert_eq!(range["what"], "lost");
        let [from, to] = [0, 1].map(|n| range["range"][n].as_u64().unwrap() as usize);
        assert!(truth[at..from] == saved[at..from], "bytes {at} to {from} are wrong");
        assert!(saved[from..to].iter().all(|byte| *byte == 0));
        at = to;
    }
    assert!(at > 0 && truth[at..] == saved[at..]);
    let lost = file["lost_bytes"].as_u64().unwrap();
    assert!(lost > 0 && lost < truth.len() as u64 / 2, "{lost} bytes");
    let text = hardpack().args(["salvage", "--force"]).arg(&pool).arg(&out).assert().code(1);
    let text = String::from_utf8(text.get_output().stdout.clone()).unwrap();
    assert!(text.contains("lost, zeros") && text.contains(" lost ("), "{text}");
    // Intact rows can still be read by key.
    let saved = Connection::open(&out).unwrap();
    let readable = (1..=20_000).step_by(50).filter(|key| {
        saved
            .query_row("SELECT b FROM t NOT INDEXED WHERE a = ?1", [key], |row| {
                row.get::<_, String>(0)
            })
            .is_ok_and(|text| text == format!("this is row {key}"))
    });
    assert!(readable.count() > 50);
    assert!(names_beside(&out).iter().all(|name| !name.ends_with(".tmp")));
}

/// A pool written through SQLite, with patches and several states, loses all superblocks.
#[test]
fn a_database_in_use_until_its_front_was_lost() {
    let (directory, _, pool) = packed();
    let sql = "UPDATE t SET b = b || '!' WHERE a % 100 = 0; DELETE FROM t WHERE a > 19000;";
    hardpack().arg("sql").arg(&pool).arg(sql).assert().success();
    let truth = directory.path().join("truth.db");
    hardpack().args(["unpack", "-q"]).arg(&pool).arg(&truth).assert().success();
    damage(&pool, |image| image[..EXTENTS_OFFSET].fill(0));
    let out = directory.path().join("saved.db");
    let report = salvage(&pool, &out, 0);
    assert_eq!(report["files"][0]["lost_bytes"], 0);
    assert_same(&truth, &out);
    let db = Connection::open(&out).unwrap();
    let verdict: String = db.query_row("PRAGMA integrity_check", [], |row| row.get(0)).unwrap();
    assert_eq!(verdict, "ok");
    add_rows(&db, 10);
}

#[test]
fn what_is_no_pool_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("noise");
    fs::write(&path, crate::common::random_bytes(200_000, 1)).unwrap();
    let out = directory.path().join("out");
    hardpack().args(["salvage", "-q"]).arg(&path).arg(&out).assert().code(4).stdout("");
    assert!(!out.exists());
}

/// If a record is damaged, check reports the range, the pages, and their owners.
#[test]
fn check_names_the_pages_and_tables_that_are_hurt() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("two.db");
    make_database(&path, 4096, 10_000);
    let db = Connection::open(&path).unwrap();
    db.execute_batch(
        "CREATE TABLE big(id INTEGER PRIMARY KEY, x);
         INSERT INTO big VALUES (1, randomblob(300000));
         CREATE INDEX i ON t(b);",
    )
    .unwrap();
    // SQLite's own view of every page; the test's SQLite has this table.
    let owner_of: std::collections::HashMap<i64, (String, String)> = db
        .prepare("SELECT pageno, name, pagetype FROM dbstat")
        .unwrap()
        .query_map([], |row| Ok((row.get(0)?, (row.get(1)?, row.get(2)?))))
        .unwrap()
        .collect::<Result<_, _>>()
        .unwrap();
    drop(db);
    hardpack().args(["pack", "-q", "--recordsize", "16K"]).arg(&path).assert().success();
    let pool = crate::common::with_ending(&path, ".hpk");
    let image = fs::read(&pool).unwrap();
    let mut seen = std::collections::BTreeSet::new();
    let mut last_hurt = Vec::new();
    for part in 1..24 {
        let at = EXTENTS_OFFSET + (image.len() - EXTENTS_OFFSET) * part / 25;
        let mut hurt = image.clone();
        // Longer than the padding of an extent's last sector, which no checksum covers.
        hurt[at..at + 512].iter_mut().for_each(|byte| *byte ^= 4);
        fs::write(&pool, &hurt).unwrap();
        let done = hardpack().args(["check", "--json", "-q"]).arg(&pool).assert();
        let report: Value = serde_json::from_slice(&done.get_output().stdout).unwrap();
        if report["ok"] == true {
            // The damage hit free space.
            continue;
        }
        last_hurt.clone_from(&hurt);
        for file in report["hurt_pages"].as_array().unwrap() {
            assert_eq!((&file["file"], &file["page_bytes"]), (&"two.db".into(), &4096.into()));
            for run in file["pages"].as_array().unwrap() {
                let Some(owner) = run["owner"].as_str() else { continue };
                for page in run["first"].as_i64().unwrap()..=run["last"].as_i64().unwrap() {
                    let (name, kind) = &owner_of[&page];
                    let expected = match (name.as_str(), kind.as_str()) {
                        ("sqlite_schema", _) => "the schema".into(),
                        ("i", _) => "index i of table t".into(),
                        (name, "overflow") => format!("table {name} (overflow)"),
                        (name, _) => format!("table {name}"),
                    };
                    assert_eq!(owner, expected, "page {page}");
                    seen.insert(owner.to_string());
                }
            }
        }
        let ranges = report["problems"].as_array().unwrap();
        assert!(ranges.iter().any(|problem| problem["detail"].is_string()));
    }
    fs::write(&pool, &last_hurt).unwrap();
    let text = hardpack().arg("check").arg(&pool).assert().code(1);
    let text = String::from_utf8(text.get_output().stdout.clone()).unwrap();
    assert!(text.contains("problem"), "{text}");
    for owner in ["table t", "table big (overflow)", "index i of table t"] {
        assert!(seen.contains(owner), "{owner} was never hurt: {seen:?}");
    }
}

/// A file is restored under all its names, and empty directories too.
#[test]
fn all_names_and_empty_directories_come_out() {
    use std::os::unix::fs::MetadataExt;
    let directory = tempfile::tempdir().unwrap();
    let tree = directory.path().join("tree");
    fs::create_dir_all(tree.join("sub/empty")).unwrap();
    fs::write(tree.join("one"), "three names").unwrap();
    fs::hard_link(tree.join("one"), tree.join("sub/two")).unwrap();
    fs::hard_link(tree.join("one"), tree.join("three")).unwrap();
    let pool = directory.path().join("pool.hpk");
    hardpack().args(["put", "-q"]).args([&tree, &pool]).assert().success();
    let out = directory.path().join("out");
    let report = salvage(&pool, &out, 0);
    assert_eq!(report["files"][0]["links"].as_array().unwrap().len(), 2);
    let number = |name: &str| fs::metadata(out.join("tree").join(name)).unwrap().ino();
    assert_eq!(fs::read(out.join("tree/sub/two")).unwrap(), b"three names");
    assert!(number("one") == number("sub/two") && number("one") == number("three"));
    assert!(out.join("tree/sub/empty").is_dir());
    // Existing files are replaced only with --force.
    hardpack().args(["salvage", "-q"]).arg(&pool).arg(&out).assert().code(3);
    hardpack().args(["salvage", "-q", "--force"]).arg(&pool).arg(&out).assert().success();
    assert!(number("one") == number("three"));
}

/// Where the names above it are lost, a directory seems to lie where another file does.
#[test]
fn a_file_and_a_directory_with_one_path_both_come_out() {
    let directory = tempfile::tempdir().unwrap();
    let tree = directory.path().join("tree");
    fs::create_dir_all(tree.join("d/x")).unwrap();
    fs::write(tree.join("d/x/y"), "below").unwrap();
    fs::write(tree.join("x"), "above").unwrap();
    // Names that fill several nodes, before and behind that of the directory.
    for number in 0..14u64 {
        let digest = |letter: char| {
            let numbers =
                (1..15).map(|n: u64| (n + 99 * number).wrapping_mul(0x9E37_79B9_7F4A_7C15));
            numbers.fold(letter.to_string(), |name, number| name + &format!("{number:016x}"))
        };
        fs::write(tree.join(digest('a')), "").unwrap();
        fs::write(tree.join(digest('m')), "").unwrap();
    }
    let path = directory.path().join("p.hpk");
    hardpack().arg("create").arg(&path).assert().success();
    let names = fs::read_dir(&tree).unwrap().map(|entry| entry.unwrap().path());
    hardpack().args(["put", "-q"]).args(names).arg(&path).assert().success();
    let image = fs::read(&path).unwrap();
    let mut nodes = Vec::new();
    {
        let device = Arc::new(MemoryDevice::new(image.clone()));
        let pool = Pool::open(device, Options::new(1 << 20)).unwrap();
        let state = pool.state();
        let root = state.superblock.roots[TreeId::Names].as_ref().unwrap();
        walk_tree(pool.store(), TreeId::Names, root, Txg(0), &mut |met| {
            if let Met::Node(_, pointer) = met {
                nodes.push(pool.store().offset_of(pointer) as usize);
            }
            Ok(())
        })
        .unwrap();
    }
    assert!(nodes.len() > 3, "{nodes:?}");
    let mut met = 0;
    for (number, node) in nodes.iter().enumerate() {
        damage(&path, |bytes| {
            bytes.clone_from(&image);
            bytes[*node..node + 512].fill(0);
        });
        let out = directory.path().join(format!("out{number}"));
        fs::create_dir(&out).unwrap();
        let done =
            hardpack().args(["salvage", "--json", "-q"]).arg(&path).arg(&out).output().unwrap();
        assert!(matches!(done.status.code(), Some(0 | 1)), "{done:?}");
        let text = String::from_utf8_lossy(&done.stdout);
        // The file that was moved out of the way has its number behind its name.
        met += usize::from(out.join("x").is_dir() && text.contains("/x-"));
    }
    assert!(met > 0, "no two paths have met");
}
