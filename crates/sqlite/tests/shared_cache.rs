//! The cache that processes share: a second process is served by it, and nothing that happens to it
//! is seen by anybody.

mod common;

use std::fs;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use common::{Random, Role, code_of, ledger, logged_about, open, run, text, try_open, value};
use rusqlite::{Connection, ErrorCode};

const ROW_COUNT: i64 = 4000;
const TRANSACTIONS_PER_WRITER: usize = 60;

#[test]
fn child_role() {
    let Some(role) = common::role() else { return };
    let path = common::path_argument(0);
    // A pool that is opened anew has nothing in memory.
    let open_anew =
        || try_open(&path, &format!("&hardpack_shared_cache={}", common::argument(1))).unwrap();
    match role.as_str() {
        "writer" => {
            let mut random = Random(common::argument(2).parse().unwrap());
            for _ in 0..TRANSACTIONS_PER_WRITER {
                let filler_len = random.below(3000) as usize;
                ledger::transact(&open_anew(), &mut random, filler_len).unwrap();
            }
        }
        "reader" => {
            let target = common::argument(2).parse().unwrap();
            while ledger::assert_holds(&open_anew()) < target {}
            common::report(&stat(&open_anew(), "hits").to_string());
        }
        other => panic!("there is no role {other}"),
    }
}

/// Makes a pool with rows that lie far apart.
fn make(path: &Path) {
    let db = open(path);
    run(
        &db,
        &format!(
            "create table t(id integer primary key, body text);
             with recursive n(i) as (select 1 union all select i + 1 from n where i < {ROW_COUNT})
               insert into t select i, hex(randomblob(300)) from n"
        ),
    );
}

/// Reads rows as a process of its own would, and returns them.
fn read(db: &Connection) -> Vec<String> {
    let mut statement = db.prepare("select body from t where id = ?").unwrap();
    let ids = (0..60).map(|index| 1 + index * 1237 % ROW_COUNT);
    ids.map(|id| statement.query_row([id], |row| row.get(0)).unwrap()).collect()
}

fn stat(db: &Connection, name: &str) -> i64 {
    value(db, &format!("select value from hardpack_stats where name = 'shared_cache_{name}'"))
}

fn dir() -> (tempfile::TempDir, PathBuf, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let (pool, cache) = (dir.path().join("p.hpk"), dir.path().join("cache"));
    (dir, pool, cache)
}

#[test]
fn a_second_shell_is_served_by_it() {
    let (_dir, pool, cache) = dir();
    make(&pool);
    let uri = common::uri(&pool, &format!("&hardpack_shared_cache={}:8M", cache.display()));
    let ids: Vec<String> = (0..60).map(|n| (1 + n * 1237 % ROW_COUNT).to_string()).collect();
    let mut commands: Vec<String> =
        ids.iter().map(|id| format!("select body from t where id = {id};")).collect();
    commands.push("select name, value from hardpack_stats where name like 'shared_cache%';".into());
    let commands: Vec<&str> = commands.iter().map(String::as_str).collect();
    let shell = || {
        let (out, errors) = common::shell(&format!("'{uri}'"), &commands);
        assert_eq!(errors, "");
        let lines: Vec<String> = out.lines().map(str::to_owned).collect();
        let (rows, stats) = lines.split_at(60);
        let stat = |name: &str| {
            let line =
                stats.iter().find_map(|line| line.strip_prefix(&format!("shared_cache_{name}|")));
            line.unwrap().parse::<i64>().unwrap()
        };
        (rows.to_vec(), stat("hits"), stat("misses"), stat("stored"))
    };
    let first = shell();
    assert!(first.3 > 60, "{} blocks", first.3);
    let second = shell();
    assert_eq!(second.0, first.0);
    assert!(second.1 > 60, "{} hits", second.1);
    assert_eq!((second.2, second.3), (0, 0));
    assert_eq!(fs::metadata(&cache).unwrap().permissions().mode() & 0o777, 0o600);
}

/// The setting comes from the environment too, for all pools of a process.
#[test]
fn the_environment_names_it() {
    let (_dir, pool, cache) = dir();
    make(&pool);
    let shell = |setting: Option<&str>| {
        let script = format!(
            ".load {}\n.open 'file:{}?vfs=hardpack'\nselect body from t where id = 7;\n\
             select count(*) from hardpack_stats where name like 'shared_cache%';",
            common::library().display(),
            pool.display()
        );
        let mut command = Command::new("sqlite3");
        command.args(["-batch", ":memory:"]).env_remove("HARDPACK_SHARED_CACHE");
        command.envs(setting.map(|setting| ("HARDPACK_SHARED_CACHE", setting)));
        let input = pool.with_extension("sql");
        fs::write(&input, script).unwrap();
        let output = command.stdin(fs::File::open(input).unwrap()).output().unwrap();
        assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
        let out = String::from_utf8(output.stdout).unwrap();
        out.lines().last().unwrap().parse::<i64>().unwrap()
    };
    assert_eq!(shell(Some(&cache.display().to_string())), 6);
    assert!(cache.exists());
    for without in [None, Some("off"), Some("nonsense"), Some("/no/such/directory/cache")] {
        assert_eq!(shell(without), 0, "{without:?}");
    }
}

#[test]
fn what_cannot_be_used_is_logged_and_nothing_else() {
    let (_dir, pool, cache) = dir();
    make(&pool);
    let expected = read(&open(&pool));
    fs::write(&cache, "other people's").unwrap();
    let parameters = format!("&hardpack_shared_cache={}", cache.display());
    for mode in [0o644, 0o600] {
        fs::set_permissions(&cache, fs::Permissions::from_mode(mode)).unwrap();
        // Another size, since a process tries each setting once.
        let parameters = format!("{parameters}:{mode}M");
        let db = try_open(&pool, &parameters).unwrap();
        assert_eq!(read(&db), expected);
        assert_eq!(text(&db, "select name from hardpack_stats where name like 'shared%'"), "");
    }
    let logged: Vec<String> = logged_about(&cache).into_iter().map(|(_, text)| text).collect();
    let has = |end: &str| logged.iter().any(|text| text.ends_with(end));
    assert!(has("can be read or changed by other users") && has("is not a shared cache"));
    assert_eq!(fs::read(&cache).unwrap(), b"other people's");
    let refused = try_open(&pool, "&hardpack_shared_cache=nonsense");
    assert_eq!(code_of(refused), Some(ErrorCode::CannotOpen));
}

/// The setting also holds for a database by its path in a pool, and for a pool that it creates.
#[test]
fn it_serves_databases_in_pools_and_new_pools() {
    let (dir, pool, cache) = dir();
    let parameters = format!("&hardpack_shared_cache={}:4M", cache.display());
    let new = try_open(&pool, &parameters).unwrap();
    run(&new, "create table t(id integer primary key, body text)");
    assert!(stat(&new, "capacity") > 3 << 20);
    drop(new);
    let many = dir.path().join("many.hpk");
    common::make_pool(&many, &[]);
    let inside = many.join("a.db");
    let db = try_open(&inside, "").unwrap();
    run(&db, "create table t(id integer primary key, body text); insert into t values(1, 'x')");
    drop(db);
    let db = try_open(&inside, &parameters).unwrap();
    assert_eq!(text(&db, "select body from t where id = 1"), "x");
    assert!(stat(&db, "stored") > 0);
}

/// Writers and readers that open the pool again and again, while the cache is damaged, cut short
/// and removed.
#[test]
fn processes_agree_whatever_happens_to_it() {
    let (_dir, pool, cache) = dir();
    ledger::create(&open(&pool));
    let setting = format!("{}:1M", cache.display());
    let (path, total) = (pool.to_string_lossy(), (2 * TRANSACTIONS_PER_WRITER).to_string());
    let role = |role: &str, last: &str| Role::start(role, &[&path, &setting, last]);
    let writers = [role("writer", "1"), role("writer", "2")];
    let readers = [role("reader", &total), role("reader", &total)];
    let mut random = Random(7);
    let mut writers = writers.into_iter().collect::<Vec<_>>();
    let mut round = 0;
    while writers.iter_mut().any(|writer| writer.child.try_wait().unwrap().is_none()) {
        std::thread::sleep(Duration::from_millis(2));
        round += 1;
        let Ok(file) = fs::File::options().read(true).write(true).open(&cache) else { continue };
        let len = file.metadata().unwrap().len();
        if len < 100_000 {
            continue;
        }
        let mut bytes = vec![0; 1 + random.below(5000) as usize];
        let from = random.below(len - bytes.len() as u64);
        file.read_exact_at(&mut bytes, from).unwrap_or_default();
        file.write_all_at(&bytes, random.below(len - bytes.len() as u64)).unwrap();
        match round % 100 {
            50 => file.set_len(len / 2).unwrap(),
            // The next process makes a new one.
            99 => fs::remove_file(&cache).unwrap(),
            _ => {}
        }
    }
    for writer in writers {
        writer.finish();
    }
    for reader in readers {
        let (is_done, lines) = reader.wait();
        let hits = lines.iter().find_map(|line| line.parse::<u64>().ok());
        assert!(is_done && hits > Some(100), "{lines:?}");
    }
    assert_eq!(ledger::assert_sound(&open(&pool)), 2 * TRANSACTIONS_PER_WRITER as i64);
    common::assert_pool_is_clean(&pool);
}

/// A process that may not have files of such a length goes without the cache, whether it would
/// create it or finds it.
#[test]
fn a_limit_on_the_length_of_files_is_no_error() {
    let (_dir, pool, cache) = dir();
    make(&pool);
    let read = |first: i64, limit: &str| {
        let input = pool.with_extension("sql");
        let rows = (0..40).map(|n| format!("select id from t where id = {};\n", first + n * 97));
        let script = format!(
            ".load {}\n.open 'file:{}?vfs=hardpack'\n{}",
            common::library().display(),
            pool.display(),
            rows.collect::<String>()
        );
        fs::write(&input, script).unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", &format!("ulimit -f {limit}; exec sqlite3 -batch :memory:")]);
        command.env("HARDPACK_SHARED_CACHE", format!("{}:64M", cache.display()));
        let output = command.stdin(fs::File::open(input).unwrap()).output().unwrap();
        assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{}", output.status);
        String::from_utf8(output.stdout).unwrap().lines().count()
    };
    let names = || fs::read_dir(pool.parent().unwrap()).unwrap().count();
    // In units of 512 bytes or more, as shells have it.
    assert_eq!((read(1, "20000"), names()), (40, 2));
    assert!(!cache.exists());
    assert_eq!(read(2, "unlimited"), 40);
    let len = fs::metadata(&cache).unwrap().len();
    assert_eq!(read(3, "20000"), 40);
    assert_eq!(fs::metadata(&cache).unwrap().len(), len);
}

/// Without space for it, the cache is of no use, and nothing else happens.
#[test]
fn a_full_disk_is_no_error() {
    let (dir, pool, _) = dir();
    make(&pool);
    let expected = read(&open(&pool));
    let small = dir.path().join("small");
    fs::create_dir(&small).unwrap();
    let mounted =
        Command::new("mount").args(["-t", "tmpfs", "-o", "size=64k", "tmpfs"]).arg(&small).status();
    if !mounted.is_ok_and(|status| status.success()) {
        println!("SKIPPED: mounting a tmpfs is not permitted here; a full disk was not tested");
        return;
    }
    let parameters = format!("&hardpack_shared_cache={}/cache:4M", small.display());
    let db = try_open(&pool, &parameters).unwrap();
    let found = read(&db);
    let stored = stat(&db, "stored");
    drop(db);
    let unmounted = Command::new("umount").args(["-l"]).arg(&small).status();
    assert!(unmounted.is_ok_and(|status| status.success()));
    assert_eq!(found, expected);
    assert!(stored < 16, "{stored} blocks");
}
