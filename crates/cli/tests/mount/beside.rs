//! A mount beside commands, databases and other mounts of the same pool.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;

use super::*;

/// Longer than the kernel answers from what it knows.
const SEEN_AFTER: std::time::Duration = std::time::Duration::from_millis(1100);

#[test]
fn commands_and_the_mount_see_each_other() {
    if !can_mount() {
        return;
    }
    let mount = Mount::new();
    let source = mount.directory.path().join("source");
    write(&source, b"from outside");
    hardpack().args(["put", "-q"]).args([&source, &mount.in_pool("a")]).assert().success();
    assert_eq!(read(&mount.at("a")), b"from outside");
    write(&source, b"from outside, and longer");
    eventually(&["put", "-q"], &[&source, &mount.in_pool("a")]);
    std::thread::sleep(SEEN_AFTER);
    assert_eq!(read(&mount.at("a")), b"from outside, and longer");

    write(&mount.at("b"), b"from inside");
    File::open(mount.at("b")).unwrap().sync_all().unwrap();
    assert_eq!(stdout_of(hardpack().arg("cat").arg(mount.in_pool("b"))), "from inside");
    eventually(&["mv"], &[&mount.in_pool("b"), &mount.in_pool("c")]);
    std::thread::sleep(SEEN_AFTER);
    assert!(!mount.at("b").exists());
    assert_eq!(read(&mount.at("c")), b"from inside");
    let snapshot = with_ending(&mount.pool, "@now");
    hardpack().arg("snapshot").arg(&snapshot).assert().success();
    write(&mount.at("c"), b"changed");
    mount.unmount();
    mount.part("@now", &[]);
    assert_eq!(read(&mount.at("c")), b"from inside");
    let error = fs::write(mount.at("c"), b"no").unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EROFS));
    mount.unmount();
    mount.check();
}

/// What a program has open through the mount, no command takes away or replaces.
#[test]
fn an_open_file_is_in_use() {
    if !can_mount() {
        return;
    }
    let mount = Mount::new();
    write(&mount.at("f"), b"content");
    mount.unmount();
    hardpack().arg("snapshot").arg(with_ending(&mount.pool, "/f@s")).assert().success();
    mount.again(&[]);
    let file = File::options().read(true).write(true).open(mount.at("f")).unwrap();
    let source = mount.directory.path().join("source");
    write(&source, b"other");
    let target = mount.in_pool("f");
    let snapshot = with_ending(&target, "@s");
    let refused: [&[&std::ffi::OsStr]; 3] = [
        &["put".as_ref(), "-q".as_ref(), source.as_ref(), target.as_ref()],
        &["rm".as_ref(), target.as_ref()],
        &["rollback".as_ref(), snapshot.as_ref()],
    ];
    for arguments in refused {
        let output = hardpack().args(arguments).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains("has it open"), "{arguments:?}: {said}");
    }
    file.write_all_at(b"CONTENT", 0).unwrap();
    drop(file);
    // Changes that are not committed count as well, so the end of the mount is waited for.
    mount.unmount();
    assert_eq!(stdout_of(hardpack().arg("cat").arg(&target)), "CONTENT");
    hardpack().arg("rm").arg(&target).assert().success();
    mount.check();
}

/// Databases of the pool commit while a mount writes a lot.
#[test]
fn databases_commit_beside_a_busy_mount() {
    if !can_mount() {
        return;
    }
    let (directory, pool) = packed_as("a.db", 10);
    let pool_of_many = directory.path().join("many.hpk");
    hardpack().arg("create").arg(&pool_of_many).assert().success();
    let database = pool_of_many.join("a.db");
    let plain = directory.path().join("a.db");
    hardpack().args(["put", "-q"]).args([&plain, &database]).assert().success();
    drop(pool);
    let mount = Mount::of(directory, pool_of_many);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            for n in 0..3 {
                write(&mount.at(&format!("large{n}")), &random_bytes(40 << 20, n));
                for small in 0..200 {
                    write(&mount.at(&format!("small{n}-{small}")), &[n as u8; 700]);
                }
            }
        });
        let db = open_in_pool(&database);
        let mut rows = 10;
        while !writer.is_finished() || rows < 60 {
            db.execute("insert into t(b) values('x')", []).unwrap();
            rows += 1;
        }
        let count: u32 = db.query_row("select count(*) from t", [], |row| row.get(0)).unwrap();
        assert_eq!(count, rows);
    });
    for n in 0..3 {
        assert!(read(&mount.at(&format!("large{n}"))) == random_bytes(40 << 20, n));
    }
    mount.unmount();
    mount.check();
}

/// Two mounts of one pool write different files, and see each other's.
#[test]
fn two_mounts_of_one_pool() {
    if !can_mount() {
        return;
    }
    let mount = Mount::new();
    let second = Mount {
        directory: tempfile::tempdir().unwrap(),
        pool: mount.pool.clone(),
        point: mount.directory.path().join("second"),
    };
    fs::create_dir(&second.point).unwrap();
    second.again(&[]);
    std::thread::scope(|scope| {
        for (name, at) in [("one", &mount), ("two", &second)] {
            scope.spawn(move || {
                fs::create_dir(at.at(name)).unwrap();
                for n in 0..200_u32 {
                    write(&at.at(&format!("{name}/{n}")), name.as_bytes());
                }
                File::open(&at.point).unwrap().sync_all().unwrap();
            });
        }
    });
    std::thread::sleep(SEEN_AFTER);
    for (name, at) in [("two", &mount), ("one", &second)] {
        assert_eq!(fs::read_dir(at.at(name)).unwrap().count(), 200);
        assert_eq!(read(&at.at(&format!("{name}/199"))), name.as_bytes());
    }
    second.unmount();
    mount.unmount();
    mount.check();
}

/// Whoever reads from a pipe that the caller of the command has open finds its end.
#[test]
fn the_server_keeps_nothing_of_its_caller_open() {
    if !can_mount() {
        return;
    }
    let mount = Mount::new();
    mount.unmount();
    let script = r#"exec "$0" mount "$1" "$2" 3>&1 9<"$1""#;
    let program = assert_cmd::cargo::cargo_bin!("hardpack");
    let mut shell = Command::new("sh");
    shell.args(["-c", script]).arg(program).args([&mount.pool, &mount.point]);
    // Returns at the end of the pipe.
    let done = shell.output().unwrap();
    assert!(done.status.success(), "{done:?}");
    let open = std::fs::read_dir(format!("/proc/{}/fd", mount.server().as_raw_nonzero())).unwrap();
    let open: Vec<_> = open.map(|entry| std::fs::read_link(entry.unwrap().path())).collect();
    let pipes = open.iter().flatten().filter(|it| it.to_string_lossy().starts_with("pipe:"));
    assert_eq!(pipes.count(), 0, "{open:?}");
    mount.unmount();
}
