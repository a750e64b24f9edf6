use super::*;

use hardpack_engine::Durability;
use hardpack_engine::pool::ROOT;

struct Scene {
    _dir: tempfile::TempDir,
    path: PathBuf,
    writer: PoolUse,
}

impl Scene {
    fn new() -> Scene {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("p.hpk");
        fs::write(&path, "").unwrap();
        let writer = registry::create(&path, &[]).unwrap();
        Scene { _dir: dir, path, writer }
    }

    fn write(&self, name: &str, bytes: &[u8]) -> FileId {
        let pool = self.writer.pool();
        let file = match pool.resolve(name.as_bytes()) {
            Ok(entry) => entry.file,
            Err(_) => pool.create_file_at(name.as_bytes(), 0o644, system::now_ns()).unwrap(),
        };
        let open = pool.file(file).unwrap();
        open.write_at(bytes, 0).unwrap();
        open.commit(Durability::Durable).unwrap();
        file
    }
}

fn read(file: &FileReader, offset: u64) -> Result<Vec<u8>, ReadError> {
    let mut buf = [0; 16];
    file.read_at(&mut buf, offset).map(|n| buf[..n].to_vec())
}

#[test]
fn a_file_is_read_as_of_one_moment() {
    let scene = Scene::new();
    scene.write("a", b"first");
    let reader = PoolReader::open(&scene.path).unwrap();
    let file = reader.file(b"a").unwrap();
    assert_eq!((file.len(), read(&file, 0).unwrap()), (5, b"first".to_vec()));
    assert_eq!(read(&file, 3).unwrap(), b"st");
    assert_eq!(read(&file, 9).unwrap(), b"");
    // What happens to other files does not matter.
    scene.write("b", b"other");
    assert_eq!(read(&file, 0).unwrap(), b"first");
    // A file that is opened right after a change waits until another change can be told from it.
    let pool = scene.writer.pool();
    pool.create_snapshot(ROOT, b"then", 0).unwrap();
    for round in 0..5 {
        scene.write("a", format!("{round}").as_bytes());
        let file = reader.file(b"a").unwrap();
        scene.write("a", b"x");
        assert!(matches!(read(&file, 0), Err(ReadError::Changed)), "round {round}");
    }
    assert!(matches!(read(&file, 0), Err(ReadError::Changed)));
    let then = reader.file(b"a@then").unwrap();
    scene.write("a", b"again");
    assert_eq!(read(&then, 0).unwrap(), b"first");
    let gone = reader.file(b"b").unwrap();
    pool.remove_at(b"b", 1).unwrap();
    assert!(matches!(read(&gone, 0), Err(ReadError::Changed)));
}

#[test]
fn uncommitted_changes_are_not_read() {
    let scene = Scene::new();
    let id = scene.write("a", b"first");
    let reader = PoolReader::open(&scene.path).unwrap();
    let file = reader.file(b"a").unwrap();
    let open = scene.writer.pool().file(id).unwrap();
    open.write_at(b"later", 0).unwrap();
    assert_eq!(read(&file, 0).unwrap(), b"first");
    open.discard();
}

#[test]
fn a_database_with_a_log_is_not_read_without_it() {
    let scene = Scene::new();
    let content = [&DATABASE_MAGIC[..], &[0; 4080]].concat();
    let id = scene.write("a.db", &content);
    let reader = PoolReader::open(&scene.path).unwrap();
    assert_eq!(reader.file(b"a.db").unwrap().len(), 4096);
    let path = fs::canonicalize(&scene.path).unwrap();
    for suffix in ["-wal", "-journal"] {
        let log = format!("{}-db{}{suffix}", path.display(), id.0);
        fs::write(&log, "").unwrap();
        assert!(reader.file(b"a.db").is_ok(), "an empty log holds nothing");
        fs::write(&log, "changes").unwrap();
        assert!(matches!(reader.file(b"a.db"), Err(ReadError::HasLog)), "{suffix}");
        fs::remove_file(&log).unwrap();
    }
}

#[test]
fn names_and_wrong_uses() {
    let scene = Scene::new();
    scene.write("a", b"first");
    let pool = scene.writer.pool();
    pool.edit(1, |edit| {
        edit.symlink(ROOT, b"link", b"a", &Attributes::new(Kind::Symlink, ROOT)).map(drop)
    })
    .unwrap();
    let reader = PoolReader::open(&scene.path).unwrap();
    let mut names = Vec::new();
    reader
        .list(b"", &mut |entry, attributes| {
            names.push((lossy(&entry.name), attributes.len));
            true
        })
        .unwrap();
    assert_eq!(names, [("a".into(), 5), ("link".into(), 1), ("p.hpk".into(), 0)]);
    assert_eq!(reader.target(b"link").unwrap(), b"a");
    assert_eq!(reader.stat(b"link", true).unwrap().1.kind, Kind::File);
    assert_eq!(reader.stat(b"link", false).unwrap().1.kind, Kind::Symlink);
    assert_eq!(reader.stat(b"", true).unwrap().1.kind, Kind::Directory);
    assert!(reader.file(b"link").is_ok());
    assert!(matches!(reader.target(b"a"), Err(ReadError::NotAFile)));
    assert!(matches!(reader.file(b""), Err(ReadError::Pool(Error::IsADirectory { .. }))));
    assert!(matches!(reader.file(b"x"), Err(ReadError::Pool(Error::NotFound { .. }))));
    assert!(matches!(reader.file(b"a@x"), Err(ReadError::Pool(Error::NotFound { .. }))));
    let listed = reader.list(b"a", &mut |_, _| true);
    assert!(matches!(listed, Err(ReadError::Pool(Error::NotADirectory { .. }))));

    let plain = scene.path.with_file_name("plain.db");
    fs::write(&plain, DATABASE_MAGIC).unwrap();
    for _ in 0..2 {
        let refused = PoolReader::open(&plain);
        assert!(matches!(refused, Err(ReadError::Pool(Error::NotAPool(_)))));
    }
    // Not all of them stay open.
    for number in 0..2 * KEPT_COUNT_MAX {
        let other = plain.with_file_name(format!("other{number}"));
        fs::write(&other, "no database").unwrap();
        assert!(PoolReader::open(&other).is_err());
    }
    let directory = scene.path.parent().unwrap();
    let is_here = |entry: &fs::DirEntry| {
        fs::read_link(entry.path()).is_ok_and(|file| file.parent() == Some(directory))
    };
    let open = fs::read_dir("/proc/self/fd").unwrap().flatten().filter(is_here).count();
    assert!(open <= KEPT_COUNT_MAX + 2, "{open}");
    assert!(reader.is_current());
    fs::rename(&plain, &scene.path).unwrap();
    assert!(!reader.is_current());
}
