//! The C interface, used by a real program through its real header, which is compiled as C and as
//! C++. The program lists what it expects; here it is only built and started.

#![expect(unsafe_code, reason = "calls C functions")]

mod common;

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::ptr::null;

use hardpack::c::{Code, Info, hardpack_info, hardpack_pack, hardpack_snapshot, hardpack_unpack};

const HEADER: &str = include_str!("../include/hardpack.h");

fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

/// Builds a program with a compiler and its options; `None` if there is no such compiler.
fn build(directory: &Path, code: &Path, (compiler, options): (&str, &[&str])) -> Option<PathBuf> {
    let output = directory.join("program");
    let libraries = common::library().parent().unwrap().to_owned();
    let mut command = Command::new(compiler);
    command.args(["-Wall", "-Wextra", "-Werror", "-pedantic"]).args(options);
    command.arg("-I").arg(source("include")).arg(code);
    command.args(["-x", "none", "-o"]).arg(&output).arg("-L").arg(&libraries);
    command.arg(format!("-Wl,-rpath,{}", libraries.display()));
    let done = command.args(["-lhardpack", "-lsqlite3", "-ldl"]).output().ok()?;
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    Some(output)
}

#[test]
fn a_program_in_c_and_in_cpp_uses_every_function() {
    let languages = [
        ("cc", &["-std=c99", "-D_DEFAULT_SOURCE", "-D_GNU_SOURCE", "-x", "c"][..]),
        ("c++", &["-std=c++11", "-Wno-missing-field-initializers", "-x", "c++"]),
    ];
    for (compiler, options) in languages {
        let directory = tempfile::tempdir().unwrap();
        let Some(program) =
            build(directory.path(), &source("tests/c/interface.c"), (compiler, options))
        else {
            assert_ne!(compiler, "cc", "the Debian package gcc is installed");
            println!("skipped: there is no {compiler}");
            continue;
        };
        let data = directory.path().join("some data");
        std::fs::create_dir(&data).unwrap();
        // Cargo names another directory first, where an older library may be.
        let mut command = Command::new(program);
        command.arg(&data).env("LD_LIBRARY_PATH", common::library().parent().unwrap());
        let output = command.output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{compiler}: {}: {stderr}", output.status);
        assert_eq!(output.stdout, b"done\n", "{stderr}");
        for name in ["words.hpk", "text.hpk", "packed.db"] {
            common::assert_pool_is_clean(&data.join(name));
        }
        let left = std::fs::read_dir(&data).unwrap().map(|entry| entry.unwrap().file_name());
        let left: Vec<_> = left.filter(|name| name.to_string_lossy().starts_with('.')).collect();
        assert!(left.is_empty(), "left behind: {left:?}");
    }
}

#[test]
fn the_program_in_the_documentation_works() {
    let page = std::fs::read_to_string(source("../../docs/c.md")).unwrap();
    let program = page.split("```c\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    std::fs::write(at.join("program.c"), program).unwrap();
    let program = build(at, &at.join("program.c"), ("cc", &["-D_GNU_SOURCE"])).unwrap();
    common::run(&common::open_plain(&at.join("words.db")), "create table t(a)");
    let mut command = Command::new(program);
    command.current_dir(at).env("LD_LIBRARY_PATH", common::library().parent().unwrap());
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(common::is_pool(&at.join("words.db.hpk")));
}

fn c_string(path: &Path) -> CString {
    CString::new(path.as_os_str().as_bytes()).unwrap()
}

/// What another process is told that begins to write to a plain database, without waiting.
fn begin_elsewhere(database: &Path) -> String {
    let open = format!(".open '{}'", database.display());
    common::stock_shell(&[&open, "begin immediate;", "select 'begun';"]).1
}

/// Closing any descriptor of a file drops the locks that this process has on it.
#[test]
fn what_is_no_pool_keeps_the_locks_that_sqlite_has_on_it() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| c_string(&directory.path().join(name));
    let mut info = Info { size: size_of::<Info>() as u64, ..Info::default() };
    let info: *mut Info = &raw mut info;
    for (name, sql) in [("full.db", "create table t(a)"), ("empty.db", "")] {
        let path = directory.path().join(name);
        let db = common::open_plain(&path);
        common::run(&db, sql);
        common::run(&db, "begin immediate");
        let pool = c_string(&path);
        assert!(begin_elsewhere(&path).contains("database is locked"), "{name}");
        // SAFETY: the arguments are C strings, and a structure as long as it says.
        let codes = unsafe {
            [
                hardpack_info(pool.as_ptr(), info.cast()),
                hardpack_unpack(pool.as_ptr(), null(), at("out").as_ptr()),
                hardpack_snapshot(pool.as_ptr(), null(), c"now".as_ptr()),
            ]
        };
        assert_eq!(codes, [Code::NotAPool as i32; 3], "{name}");
        assert!(begin_elsewhere(&path).contains("database is locked"), "{name}");
        // SAFETY: the arguments are C strings.
        let code =
            unsafe { hardpack_pack(pool.as_ptr(), at(&format!("{name}.hpk")).as_ptr(), null()) };
        assert_eq!(code, Code::Ok as i32, "{name}");
        assert!(begin_elsewhere(&path).contains("database is locked"), "{name}");
        common::run(&db, "create table u(a); commit");
        assert_eq!(begin_elsewhere(&path), "", "{name}");
        common::assert_integrity(&db);
    }
}

/// The log of a database is named after the file that a link leads to.
#[test]
fn a_pool_behind_a_link_has_its_log_in_its_snapshots() {
    let directory = tempfile::tempdir().unwrap();
    let (pool, link) = (directory.path().join("pool.hpk"), directory.path().join("link.hpk"));
    std::os::unix::fs::symlink("pool.hpk", &link).unwrap();
    let db = common::open(&pool);
    common::run(&db, "pragma journal_mode=wal; pragma wal_autocheckpoint=0");
    common::run(&db, "create table t(a); insert into t values(1)");
    // SAFETY: the arguments are C strings.
    let code = unsafe { hardpack_snapshot(c_string(&link).as_ptr(), null(), c"one".as_ptr()) };
    assert_eq!(code, Code::Ok as i32);
    let taken = common::open(&directory.path().join("pool.hpk@one"));
    assert_eq!(common::text(&taken, "select count(*) from t"), "1");
}

/// POSIX lets a path begin with two slashes, but in a URI a host would follow them.
#[test]
fn paths_may_begin_with_two_slashes() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| {
        let path = directory.path().join(name);
        c_string(Path::new(&format!("/{}", path.display())))
    };
    common::run(&common::open_plain(&directory.path().join("a.db")), "create table t(a)");
    // SAFETY: the arguments are C strings.
    let codes = unsafe {
        [
            hardpack_pack(at("a.db").as_ptr(), at("a.hpk").as_ptr(), null()),
            hardpack_unpack(at("a.hpk").as_ptr(), null(), at("b.db").as_ptr()),
        ]
    };
    assert_eq!(codes, [Code::Ok as i32; 2]);
    let back = common::open_plain(&directory.path().join("b.db"));
    assert_eq!(common::text(&back, "select count(*) from t"), "0");
}

/// The library exports what the header declares, and the header declares every such function.
#[test]
fn the_header_declares_what_the_library_has() {
    let output = Command::new("nm").args(["-D", "--defined-only"]).arg(common::library()).output();
    let symbols = String::from_utf8(output.expect("binutils are installed").stdout).unwrap();
    let exported = symbols.lines().filter_map(|line| line.rsplit(' ').next());
    // Those of other bindings are documented with them.
    let is_ours = |name: &&str| {
        (name.starts_with("hardpack_") || name.starts_with("sqlite3_hardpack"))
            && !name.starts_with("hardpack_reader_")
            && *name != "hardpack_register_resolved"
    };
    let exported: Vec<&str> = exported.filter(is_ours).collect();
    for name in &exported {
        assert!(HEADER.contains(&format!("{name}(")), "{name} is not in hardpack.h");
    }
    let declared = HEADER.lines().filter(|line| line.ends_with(");"));
    let names = declared.filter_map(|line| line.split('(').next()?.rsplit([' ', '*']).next());
    let names: Vec<&str> = names.collect();
    assert!(names.len() >= 11, "{names:?}");
    for name in names {
        assert!(exported.contains(&name), "{name} is not exported");
    }
    assert!(HEADER.contains(&format!("\"{}\"", env!("CARGO_PKG_VERSION"))));
}
