//! An idle connection stays open while somebody else replaces the content of its database.
//! Everything that it knows of the old content is then useless: its pages and its schema, whatever
//! numbers they have.

use crate::common::{Role, open, run, text, value};

#[test]
fn child_role() {
    let Some(role) = crate::common::role() else { return };
    let path = crate::common::path_argument(0);
    match role.as_str() {
        "snapshot" => {
            let pool = crate::common::engine(&path);
            pool.create_snapshot(pool.only_file().unwrap().file, b"then", 1).unwrap();
            pool.close().unwrap();
        }
        // Rolls back to the snapshot, and creates another table with the schema number that the old
        // content had.
        "exchange" => {
            let pool = crate::common::engine(&path);
            pool.rollback(pool.only_file().unwrap().file, b"then").unwrap();
            pool.close().unwrap();
            drop(pool);
            let db = open(&path);
            if crate::common::path_argument(1).as_os_str() == "wal" {
                run(&db, "pragma journal_mode=wal");
            }
            run(&db, "create table other(b unique, c); insert into other values('theirs', 2)");
            crate::common::report("exchanged");
            while !crate::common::path_argument(2).exists() {
                std::thread::sleep(std::time::Duration::from_millis(5));
            }
        }
        other => panic!("role {other}"),
    }
}

/// Both schemas have the same number, and their tables begin at the same page.
#[test]
fn a_schema_is_not_taken_for_another_of_the_same_number() {
    for mode in ["delete", "wal"] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pool.hpk");
        let signal = dir.path().join("signal");
        let db = open(&path);
        run(&db, "create table t(a); insert into t values(1)");
        Role::start("snapshot", &[&path.to_string_lossy()]).finish();
        run(&db, "create table own(a); insert into own values('ours')");
        let known: i64 = value(&db, "pragma schema_version");
        let mut statement = db.prepare("insert into own values('again')").unwrap();

        let arguments = [path.display().to_string(), mode.into(), signal.display().to_string()];
        let mut other = Role::start("exchange", &arguments.each_ref().map(|text| &text[..]));
        other.expect("exchanged");
        let refused = if mode == "wal" { "disk I/O error" } else { "no such table: own" };
        for error in [
            statement.execute([]).unwrap_err(),
            db.execute_batch("insert into own values('again')").unwrap_err(),
            db.execute_batch("update own set a = 1").unwrap_err(),
        ] {
            assert!(error.to_string().contains(refused), "{mode}: {error}");
        }
        std::fs::write(&signal, "").unwrap();
        other.finish();
        drop(statement);
        drop(db);
        let db = open(&path);
        assert_eq!(value::<i64>(&db, "pragma schema_version"), known);
        assert_eq!(text(&db, "select group_concat(b) from other"), "theirs");
        crate::common::assert_integrity(&db);
        drop(db);
        crate::common::assert_pool_is_clean(&path);
    }
}

/// The connection goes on with the new content, and may change its schema.
#[test]
fn a_connection_goes_on_with_exchanged_content() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pool.hpk");
    let signal = dir.path().join("signal");
    std::fs::write(&signal, "").unwrap();
    let db = open(&path);
    run(&db, "create table t(a); insert into t values(1)");
    Role::start("snapshot", &[&path.to_string_lossy()]).finish();
    for round in 0..3 {
        run(&db, &format!("create table own{round}(a); insert into own{round} values('ours')"));
        let arguments = [path.display().to_string(), "".into(), signal.display().to_string()];
        Role::start("exchange", &arguments.each_ref().map(|text| &text[..])).finish();
        assert_eq!(
            text(&db, "select group_concat(name) from sqlite_schema where type = 'table'"),
            "t,other"
        );
        run(&db, "begin; insert into other values('ours', 3); rollback");
        run(&db, "insert into other values('ours', 3); create index i on other(c)");
        assert_eq!(value::<i64>(&db, "select count(*) from other indexed by i where c = 3"), 1);
        let second = open(&path);
        assert_eq!(value::<i64>(&second, "select count(*) from other indexed by i where c = 3"), 1);
        crate::common::assert_integrity(&db);
    }
    drop(db);
    crate::common::assert_pool_is_clean(&path);
}
