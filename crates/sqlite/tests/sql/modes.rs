//! Does the same random work on a pool and on a plain database, in every combination of modes that
//! matters: both have the same content at the end, and after being opened again.

use crate::common::{Random, is_pool, open, open_plain, run, text};
use rusqlite::{Connection, types::Value};

const STEP_COUNT: usize = 60;

/// Returns every row of every table, in order, and the settings that a database keeps.
fn dump(db: &Connection) -> Vec<String> {
    let mut dump = Vec::new();
    for pragma in ["integrity_check", "page_size", "auto_vacuum", "encoding", "user_version"] {
        dump.push(format!("{pragma} {}", text(db, &format!("pragma {pragma}"))));
    }
    let mut tables =
        db.prepare("select name from sqlite_schema where type = 'table' order by name").unwrap();
    let names: Vec<String> =
        tables.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect();
    for name in names {
        let mut rows =
            db.prepare(&format!("select rowid, * from \"{name}\" order by 1, 2")).unwrap();
        let width = rows.column_count();
        let mut rows = rows.query([]).unwrap();
        while let Some(row) = rows.next().unwrap() {
            let values: Vec<Value> = (0..width).map(|index| row.get(index).unwrap()).collect();
            dump.push(format!("{name} {values:?}"));
        }
    }
    dump
}

fn assert_same(pool: &Connection, plain: &Connection, context: &str) {
    let (ours, theirs) = (dump(pool), dump(plain));
    assert!(ours.contains(&"integrity_check ok".to_string()), "{context}: {ours:?}");
    if let Some(at) = (0..ours.len().max(theirs.len())).find(|at| ours.get(*at) != theirs.get(*at))
    {
        panic!("{context}: row {at} is {:?}, expected {:?}", ours.get(at), theirs.get(at));
    }
}

/// Returns one random statement or a few.
fn step(random: &mut Random) -> String {
    let (key, len) = (random.below(200), random.below(3000) as usize);
    let filler = random.text(len);
    match random.below(14) {
        0..=3 => format!("insert or replace into t values({key}, '{filler}', {len})"),
        4 => format!("insert into u(a, b) select k, v from t where k > {key}"),
        5 => format!("update t set v = v || 'x', n = n + 1 where k % 7 = {}", key % 7),
        6 => format!("delete from t where k % 5 = {}", key % 5),
        7 => format!("delete from u where a < {key}"),
        8 => format!(
            "begin; insert or replace into t values({key}, '{filler}', 1);
             savepoint a; delete from t; rollback to a; update t set n = {len}; release a; commit"
        ),
        9 => format!("begin; update t set v = '{filler}'; delete from u; rollback"),
        10 => format!("insert or replace into t values({key}, zeroblob({}), 0)", len * 30),
        11 => {
            format!("create table if not exists x{0}(a); insert into x{0} values({key})", key % 3)
        }
        12 => format!("drop table if exists x{}", key % 3),
        _ => format!("create index if not exists i{0} on t(n, k); drop index i{0}", key % 2),
    }
}

const TABLES: &str = "create table t(k integer primary key, v, n int); create index tn on t(n);
    create table u(a, b)";

/// Does the same random work on both, and sometimes compares through a new connection.
fn work(pool: &Connection, plain: &Connection, seed: u64, context: &str) {
    let mut random = Random(seed);
    for number in 0..STEP_COUNT {
        let sql = step(&mut random);
        run(plain, &sql);
        pool.execute_batch(&sql).unwrap_or_else(|e| panic!("{context}, step {number}, {sql}: {e}"));
    }
    assert_same(pool, plain, context);
}

struct Pair {
    dir: tempfile::TempDir,
}

impl Pair {
    fn new() -> Pair {
        Pair { dir: tempfile::tempdir().unwrap() }
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.dir.path().join(name)
    }

    fn open(&self) -> (Connection, Connection) {
        (open(&self.path("pool.hpk")), open_plain(&self.path("plain.db")))
    }
}

fn both(pair: &(Connection, Connection), sql: &str) {
    run(&pair.0, sql);
    run(&pair.1, sql);
}

fn combination(mode: &str, page_size: u32, synchronous: &str, locking: &str, seed: u64) {
    let context = format!("{mode}, {page_size}, {synchronous}, {locking}, seed {seed}");
    let files = Pair::new();
    let pragmas = format!(
        "pragma page_size={page_size}; pragma locking_mode={locking}; pragma synchronous={synchronous};
         pragma cache_size={}; pragma journal_mode={mode}",
        if seed.is_multiple_of(2) { 5 } else { 2000 }
    );
    let pair = files.open();
    both(&pair, &pragmas);
    assert_eq!(text(&pair.0, "pragma journal_mode"), mode, "{context}");
    both(&pair, TABLES);
    // Without a journal, ROLLBACK is undefined, so such steps are left out.
    if mode == "off" {
        for number in 0..20 {
            both(&pair, &format!("insert into t values({number}, zeroblob(2000), {number})"));
        }
        both(&pair, "update t set n = n + 1; delete from t where k % 3 = 0");
    } else {
        work(&pair.0, &pair.1, seed, &context);
    }
    drop(pair);
    let pair = files.open();
    assert_same(&pair.0, &pair.1, &context);
    assert_eq!(text(&pair.0, "pragma page_size"), page_size.to_string());
    drop(pair);
    crate::common::assert_pool_is_clean(&files.path("pool.hpk"));
}

#[test]
fn every_mode_with_every_page_size() {
    let mut seed = Random::new(1).next();
    for (index, mode) in
        ["delete", "truncate", "persist", "memory", "off", "wal"].iter().enumerate()
    {
        for (other, page_size) in [512, 1024, 4096, 16384, 65536].into_iter().enumerate() {
            let synchronous = ["off", "normal", "full", "extra"][(index + other) % 4];
            let locking = ["normal", "exclusive"][(index + other / 2) % 2];
            combination(mode, page_size, synchronous, locking, seed);
            seed += 1;
        }
    }
}

#[test]
fn every_mode_with_every_synchronous() {
    let mut seed = Random::new(2).next();
    for mode in ["delete", "persist", "wal"] {
        for synchronous in ["off", "normal", "full", "extra"] {
            for locking in ["normal", "exclusive"] {
                combination(mode, 4096, synchronous, locking, seed);
                seed += 1;
            }
        }
    }
}

#[test]
fn switching_the_journal_mode_back_and_forth() {
    let files = Pair::new();
    let mut pair = files.open();
    both(&pair, TABLES);
    let modes = ["wal", "delete", "wal", "persist", "truncate", "wal", "memory", "wal", "delete"];
    for (index, mode) in modes.iter().enumerate() {
        assert_eq!(text(&pair.0, &format!("pragma journal_mode={mode}")), *mode);
        run(&pair.1, &format!("pragma journal_mode={mode}"));
        work(&pair.0, &pair.1, index as u64, mode);
        if index % 3 == 1 {
            drop(pair);
            pair = files.open();
            assert_same(&pair.0, &pair.1, mode);
        }
    }
    drop(pair);
    assert!(!crate::common::with_suffix(&files.path("pool.hpk"), "-wal").exists());
    crate::common::assert_pool_is_clean(&files.path("pool.hpk"));
}

#[test]
fn auto_vacuum_and_vacuum() {
    for mode in ["none", "full", "incremental"] {
        let files = Pair::new();
        let pair = files.open();
        both(&pair, &format!("pragma auto_vacuum={mode}"));
        both(&pair, TABLES);
        work(&pair.0, &pair.1, 11, mode);
        both(&pair, "delete from t where k % 2 = 0; delete from u");
        run(&pair.0, "pragma incremental_vacuum(3)");
        run(&pair.1, "pragma incremental_vacuum(3)");
        assert_eq!(
            text(&pair.0, "pragma page_count"),
            text(&pair.1, "pragma page_count"),
            "{mode}"
        );
        let before = std::fs::metadata(files.path("pool.hpk")).unwrap().len();
        both(&pair, "delete from t; vacuum");
        assert_eq!(
            text(&pair.0, "pragma page_count"),
            text(&pair.1, "pragma page_count"),
            "{mode}"
        );
        let after = std::fs::metadata(files.path("pool.hpk")).unwrap().len();
        assert!(after <= before + (64 << 10), "{mode}: {before} bytes became {after}");
        work(&pair.0, &pair.1, 12, mode);
    }
}

#[test]
fn vacuum_changes_the_page_size_and_copies() {
    let files = Pair::new();
    let pair = files.open();
    both(&pair, TABLES);
    work(&pair.0, &pair.1, 21, "before");
    for page_size in [512, 65536, 1024, 4096] {
        both(&pair, &format!("pragma page_size={page_size}; vacuum"));
        assert_eq!(text(&pair.0, "pragma page_size"), page_size.to_string());
        assert_same(&pair.0, &pair.1, "after a change of the page size");
        work(&pair.0, &pair.1, page_size, "another page size");
    }
    let (copy, plain) = (files.path("copy.hpk"), files.path("copy.db"));
    run(&pair.0, &format!("vacuum into '{}'", copy.display()));
    run(&pair.0, &format!("vacuum into 'file:{}?vfs=unix'", plain.display()));
    assert!(is_pool(&copy) && !is_pool(&plain));
    assert_same(&open(&copy), &open_plain(&plain), "vacuum into");
    assert_same(&open(&copy), &pair.1, "vacuum into");
}

/// Copies with the backup API, a few pages at a time.
fn backup(from: &Connection, to: &mut Connection) {
    let backup = rusqlite::backup::Backup::new(from, to).unwrap();
    backup.run_to_completion(7, std::time::Duration::ZERO, None).unwrap();
}

#[test]
fn online_backup_in_every_direction() {
    let files = Pair::new();
    let (pool, plain) = files.open();
    for db in [&pool, &plain] {
        run(db, "pragma page_size=1024");
        run(db, TABLES);
    }
    work(&pool, &plain, 31, "the source");
    let mut copy = open(&files.path("copy.hpk"));
    run(&copy, "create table old(a); insert into old values(zeroblob(1000000))");
    backup(&pool, &mut copy);
    assert_same(&copy, &plain, "pool to pool");
    let mut copy = open_plain(&files.path("copy.db"));
    backup(&pool, &mut copy);
    assert_same(&copy, &plain, "pool to plain");
    let mut copy = open(&files.path("third.hpk"));
    run(&copy, "pragma journal_mode=delete; pragma page_size=4096; create table old(a)");
    backup(&plain, &mut copy);
    assert_same(&copy, &plain, "plain to pool");
    let mut memory = Connection::open_in_memory().unwrap();
    backup(&pool, &mut memory);
    backup(&memory, &mut copy);
    assert_same(&copy, &plain, "by way of memory");
    drop(copy);
    for name in ["copy.hpk", "third.hpk"] {
        assert_same(&open(&files.path(name)), &plain, "opened again");
        crate::common::assert_pool_is_clean(&files.path(name));
    }
}

#[test]
fn large_blobs_and_transactions_that_spill() {
    for mode in ["delete", "wal"] {
        let files = Pair::new();
        let pair = files.open();
        both(&pair, &format!("pragma journal_mode={mode}; pragma cache_size=4"));
        // The plain database would sync its journal with every spill.
        run(&pair.1, "pragma synchronous=off");
        both(&pair, TABLES);
        // Ten megabytes of text, more than the engine keeps in memory for one transaction.
        both(&pair, "insert into t values(1, zeroblob(10000000), 0)");
        let series =
            "with recursive n(i) as (select 2 union all select i + 1 from n where i < 1500)";
        both(&pair, &format!("insert into t {series} select i, hex(zeroblob(i)) || i, i from n"));
        let before = dump(&pair.1);
        both(&pair, "begin; update t set v = v || 'changed', n = n * 3; delete from t where k % 2");
        both(&pair, "insert into t values(100001, hex(zeroblob(17000000)), 0)");
        both(&pair, "rollback");
        assert_eq!(dump(&pair.0), before, "{mode}: after ROLLBACK");
        both(
            &pair,
            "begin; update t set v = v || 'changed', n = n * 3; delete from t where k % 3 = 0",
        );
        both(&pair, "savepoint s; delete from t where k > 100; rollback to s; commit");
        assert_same(&pair.0, &pair.1, mode);
        drop(pair);
        let pair = files.open();
        assert_same(&pair.0, &pair.1, mode);
        drop(pair);
        crate::common::assert_pool_is_clean(&files.path("pool.hpk"));
    }
}

/// Without a journal SQLite cannot roll back, but its changes are dropped all the same.
#[test]
fn what_is_not_committed_is_dropped_without_a_journal() {
    let files = Pair::new();
    for end in ["rollback", ""] {
        let pair = files.open();
        both(&pair, TABLES);
        both(&pair, "insert into t values(1, zeroblob(100000), 0)");
        let db = open(&files.path("pool.hpk"));
        run(&db, "pragma journal_mode=off; pragma cache_size=1; begin; update t set v = n, n = 1");
        run(&db, "insert into u values(zeroblob(100000), zeroblob(100000))");
        run(&db, end);
        drop(db);
        // Read through a new connection: the change counter tells nobody about dropped changes.
        assert_same(&open(&files.path("pool.hpk")), &pair.1, end);
        both(&pair, "drop table t; drop table u");
    }
}

#[test]
fn full_text_and_r_tree_indexes() {
    let files = Pair::new();
    let pair = files.open();
    both(
        &pair,
        "create virtual table f using fts5(body); create virtual table r using rtree(id, a, b)",
    );
    let mut random = Random(41);
    for id in 0..300 {
        let (body, low) = (random.text(400), random.below(1000));
        both(
            &pair,
            &format!(
                "insert into f values('{body}'); insert into r values({id}, {low}, {low} + 10)"
            ),
        );
    }
    both(&pair, "delete from f where rowid % 3 = 0; delete from r where id % 3 = 0");
    both(&pair, "insert into f(f) values('optimize'); insert into f(f) values('integrity-check')");
    let search = "select count(*) || ' ' || sum(rowid) from f where f match 'pool AND record'";
    assert_eq!(text(&pair.0, search), text(&pair.1, search));
    let search = "select count(*) || ' ' || sum(id) from r where a < 500 and b > 100";
    assert_eq!(text(&pair.0, search), text(&pair.1, search));
    drop(pair);
    let pair = files.open();
    assert_eq!(text(&pair.0, search), text(&pair.1, search));
    run(&pair.0, "insert into f(f) values('integrity-check')");
    crate::common::assert_integrity(&pair.0);
}

#[test]
fn several_attached_databases_and_temporary_tables() {
    let files = Pair::new();
    let (db, plain) = files.open();
    let attach = |name: &str, uri: String| run(&db, &format!("attach '{uri}' as {name}"));
    attach("second", crate::common::uri(&files.path("second.hpk"), ""));
    attach("third", crate::common::uri(&files.path("third.hpk"), "&hardpack_compression=lz4"));
    attach("plain", format!("file:{}?vfs=unix", files.path("plain.db").display()));
    attach("memory", ":memory:".into());
    run(&db, "create temp table scratch(a)");
    for schema in ["main", "second", "third", "plain", "memory"] {
        run(&db, &format!("create table {schema}.t(a, b); create index {schema}.ta on t(a)"));
    }
    for number in 0..50 {
        run(&db, "begin");
        for schema in ["main", "second", "third", "plain", "memory"] {
            run(&db, &format!("insert into {schema}.t values({number}, hex(randomblob(500)))"));
        }
        run(&db, "insert into scratch select a from second.t order by b");
        run(&db, if number % 3 == 0 { "rollback" } else { "commit" });
    }
    for schema in ["main", "second", "third", "plain", "memory"] {
        assert_eq!(
            text(&db, &format!("select count(*) || ' ' || sum(a) from {schema}.t")),
            "33 817"
        );
    }
    run(&db, "detach second");
    drop(db);
    assert_eq!(text(&plain, "select count(*) from t"), "33");
    for name in ["pool.hpk", "second.hpk", "third.hpk"] {
        assert!(is_pool(&files.path(name)));
        crate::common::assert_pool_is_clean(&files.path(name));
    }
}

#[test]
fn the_stock_shell_recovers_and_dumps() {
    let files = Pair::new();
    let (path, plain) = (files.path("pool.hpk"), files.path("plain.db"));
    let pair = files.open();
    both(&pair, TABLES);
    work(&pair.0, &pair.1, 51, "before");
    drop(pair);
    // Debian's shell has .recover, but not the table that it needs: then both must fail alike.
    for command in [".recover", ".dump"] {
        let ours = crate::common::shell(&crate::common::uri(&path, ""), &[command]);
        let theirs = crate::common::stock_shell(&[&format!(".open {}", plain.display()), command]);
        assert!(ours == theirs, "{command}: {ours:?}\nexpected: {theirs:?}");
    }
}
