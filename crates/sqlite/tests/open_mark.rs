//! Every connection to the first file of a pool shares a mark, however it was opened, so that
//! nobody takes the file away. The mark ends with the last connection, or with its process, even if
//! a child that it forked lives on.
#![expect(unsafe_code, reason = "forks")]

mod common;

use std::path::{Path, PathBuf};

use common::{Role, open, run, text};
use hardpack::open_mark;
use hardpack_engine::FileId;
use hardpack_engine::device::FileDevice;
use rusqlite::Connection;

/// The number of the first file.
const FIRST: FileId = FileId(2);

#[test]
fn child_role() {
    let Some(role) = common::role() else { return };
    let path = common::path_argument(0);
    match role.as_str() {
        // Holds connections until it is killed. Further arguments are parameters and statements.
        "hold" => {
            let db = common::try_open(&path, &common::argument(1)).unwrap();
            run(&db, &common::argument(2));
            let twice = common::try_open(&path, &common::argument(1)).unwrap();
            common::report("held");
            drop(twice);
            common::report("held once");
            loop {
                std::thread::park();
            }
        }
        "attach" => {
            let db = Connection::open_in_memory().unwrap();
            common::setup();
            let uri = common::uri(&path, "");
            run(&db, &format!("attach '{uri}' as p; select count(*) from p.sqlite_schema"));
            common::report("held");
            common::report("held once");
            loop {
                std::thread::park();
            }
        }
        "fork" => {
            let db = open(&path);
            run(&db, "select count(*) from sqlite_schema");
            let mut ends = [0; 2];
            // SAFETY: the child only makes system calls, and the parent ends without clean-up. What
            // closes the child's files at a fork runs in the child, before `fork` returns there.
            unsafe {
                assert_eq!(libc::pipe(ends.as_mut_ptr()), 0);
                let child = libc::fork();
                let mut byte = 0_u8;
                if child == 0 {
                    libc::write(ends[1], (&raw const byte).cast(), 1);
                    loop {
                        libc::pause();
                    }
                }
                assert_eq!(libc::read(ends[0], (&raw mut byte).cast(), 1), 1);
                common::report(&format!("{child}"));
                common::report("held");
                loop {
                    libc::pause();
                }
            }
        }
        "try" => {
            common::setup();
            common::report("opens");
            let db = common::try_open(&path, "&mode=rw");
            common::report(if db.is_ok() { "opened" } else { "refused" });
        }
        other => panic!("role {other}"),
    }
}

fn is_marked(pool: &Path) -> bool {
    FileDevice::open(pool).unwrap().is_marked(open_mark(FIRST)).unwrap()
}

#[test]
fn every_connection_to_the_first_file_shares_the_mark() {
    let dir = tempfile::tempdir().unwrap();
    let lone = dir.path().join("lone.hpk");
    run(&open(&lone), "create table t(a)");
    let at = |name: &str| -> PathBuf { dir.path().join(name) };
    common::make_pool(&at("first.hpk"), &[]);
    std::fs::write(at("empty.hpk"), "").unwrap();
    let read = "select count(*) from sqlite_schema";
    let cases: [(PathBuf, PathBuf, &str, &str, &str); 9] = [
        (lone.clone(), lone.clone(), "hold", "", read),
        (lone.clone(), lone.join("lone.hpk"), "hold", "", read),
        (lone.clone(), lone.clone(), "hold", "&mode=ro", read),
        (lone.clone(), lone.join("lone.hpk"), "hold", "&mode=ro", read),
        (lone.clone(), lone.clone(), "hold", "&nolock=1", read),
        (lone.clone(), lone.join("lone.hpk"), "hold", "", "pragma journal_mode = wal"),
        (lone.clone(), lone.join("lone.hpk"), "attach", "", ""),
        // A file that becomes a pool, and the first file of an empty pool.
        (at("empty.hpk"), at("empty.hpk"), "hold", "", "create table t(a)"),
        (at("first.hpk"), at("first.hpk").join("x.db"), "hold", "", "create table t(a)"),
    ];
    for (pool, path, role, parameters, sql) in cases {
        assert!(!is_marked(&pool), "{path:?}");
        let mut role = Role::start(role, &[&path.to_string_lossy(), parameters, sql]);
        role.expect("held");
        assert!(is_marked(&pool), "{path:?} {parameters} {sql}");
        role.expect("held once");
        assert!(is_marked(&pool), "{path:?} {parameters} {sql}");
        role.kill();
        assert!(!is_marked(&pool), "{path:?} {parameters} {sql}");
    }
    // A snapshot of it, or another file, is not the first file.
    let pool = common::engine(&lone);
    pool.create_snapshot(hardpack_engine::pool::ROOT, b"then", 1).unwrap();
    drop(pool);
    run(&open(&lone.join("other.db")), "create table t(a)");
    for path in [lone.join("lone.hpk@then"), lone.join("other.db")] {
        let mut role = Role::start("hold", &[&path.to_string_lossy(), "", read]);
        role.expect("held once");
        assert!(!is_marked(&lone), "{path:?}");
        role.kill();
    }
}

#[test]
fn the_mark_does_not_outlive_its_process_in_a_forked_child() {
    let dir = tempfile::tempdir().unwrap();
    let pool = dir.path().join("lone.hpk");
    run(&open(&pool), "create table t(a)");
    let mut role = Role::start("fork", &[&pool.to_string_lossy()]);
    let child: libc::pid_t = std::iter::from_fn(|| role.line())
        .find_map(|line| line.parse().ok())
        .expect("the child's number");
    role.expect("held");
    assert!(is_marked(&pool));
    // The child keeps the pipe open, so its end cannot be waited for.
    role.child.kill().unwrap();
    role.child.wait().unwrap();
    // SAFETY: the child is alive, since nobody has waited for it.
    let is_alive = unsafe { libc::kill(child, 0) } == 0;
    let is_marked = is_marked(&pool);
    // SAFETY: as above.
    unsafe { libc::kill(child, libc::SIGKILL) };
    assert!(is_alive && !is_marked);
}

/// A connection that comes while somebody removes its database waits, and is refused if the file is
/// gone then.
#[test]
fn a_connection_waits_while_its_database_is_removed() {
    let dir = tempfile::tempdir().unwrap();
    let pool = dir.path().join("lone.hpk");
    run(&open(&pool), "create table t(a)");
    let path = pool.join("lone.hpk");
    let device = FileDevice::open(&pool).unwrap();
    assert!(device.try_claim(open_mark(FIRST)).unwrap());
    let mut role = Role::start("try", &[&path.to_string_lossy()]);
    role.expect("opens");
    let engine = common::engine(&pool);
    engine.remove_at(b"lone.hpk", 1).unwrap();
    drop(engine);
    device.release(open_mark(FIRST));
    role.expect("refused");
    role.finish();
    drop(device);
    common::assert_pool_is_clean(&pool);
    assert_eq!(text(&open(&pool.join("new.db")), "pragma journal_mode"), "delete");
}
