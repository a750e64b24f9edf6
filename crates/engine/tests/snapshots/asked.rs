//! Whoever keeps others out of files is asked, within the transaction, before a rollback or an
//! incremental stream changes or removes one: wherever it was before, and whatever its names.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};

use hardpack_engine::pool::{Attributes, Kind, Pool, ROOT, ReceiveOptions, RollbackAsks, SendPlan};
use hardpack_engine::store::Durability;
use hardpack_engine::{Error, FileId};

use crate::common::{Rng, problems, read_all};
use crate::new_pool;

/// A pool with the directory of the snapshots, one below it and one elsewhere.
struct Tree {
    pool: Pool,
    directories: [FileId; 3],
}

impl Tree {
    fn new(rng: &mut Rng) -> Tree {
        let pool = new_pool(&[]).1;
        let make = |directory, name: &[u8]| {
            let like = Attributes::new(Kind::Directory, directory);
            pool.edit(1, |edit| edit.create(directory, name, &like)).unwrap()
        };
        let scope = make(ROOT, b"scope");
        let directories = [scope, make(scope, b"inner"), make(ROOT, b"elsewhere")];
        let tree = Tree { pool, directories };
        (0..12).for_each(|_| tree.create(rng));
        tree
    }

    fn create(&self, rng: &mut Rng) {
        let directory = rng.pick(&self.directories);
        let name = rng.next().to_string();
        let like = Attributes::new(Kind::File, directory);
        let file =
            self.pool.edit(1, |edit| edit.create(directory, name.as_bytes(), &like)).unwrap();
        self.write(file, rng);
    }

    fn write(&self, file: FileId, rng: &mut Rng) {
        let file = self.pool.file(file).unwrap();
        file.write_at(&rng.noise(100), 0).unwrap();
        file.commit(Durability::Visible).unwrap();
    }

    /// A name of a file, anywhere.
    fn some_name(&self, rng: &mut Rng) -> Option<(FileId, Vec<u8>, FileId)> {
        let directory = rng.pick(&self.directories);
        let mut entries = self.pool.list_some(directory, None, 100).unwrap();
        entries.retain(|entry| entry.kind == Kind::File);
        let index = rng.below(entries.len().max(1) as u64) as usize;
        entries.get(index).map(|entry| (directory, entry.name.clone(), entry.file))
    }

    fn change(&self, rng: &mut Rng) {
        let Some((directory, name, file)) = self.some_name(rng) else { return self.create(rng) };
        let (there, new) = (rng.pick(&self.directories), rng.next().to_string());
        match rng.below(5) {
            0 => self.create(rng),
            1 => self.write(file, rng),
            2 => self.pool.edit(1, |edit| edit.unlink(directory, &name)).unwrap(),
            3 => self.pool.edit(1, |edit| edit.link(file, there, new.as_bytes())).unwrap(),
            _ => self
                .pool
                .edit(1, |edit| {
                    edit.link(file, there, new.as_bytes())?;
                    edit.unlink(directory, &name)
                })
                .unwrap(),
        }
    }
}

/// Is called with each file before it changes.
type Ask<'a> = dyn Fn(FileId) -> Result<(), Error> + 'a;

/// The bytes of every file that has a name.
fn contents(pool: &Pool) -> BTreeMap<FileId, Vec<u8>> {
    let (mut found, mut directories) = (BTreeMap::new(), vec![ROOT]);
    while let Some(directory) = directories.pop() {
        for entry in pool.list_some(directory, None, 1000).unwrap() {
            match entry.kind {
                Kind::Directory => directories.push(entry.file),
                _ => drop(
                    found.insert(entry.file, read_all(&pool.file(entry.file).unwrap()).unwrap()),
                ),
            }
        }
    }
    found
}

/// Changes a pool twice: first one file may not be changed, which must keep everything as it is,
/// then all may. Returns how many files were changed or removed.
fn asks_first(pool: &Pool, rng: &mut Rng, change: &dyn Fn(&Ask<'_>) -> Result<(), Error>) -> usize {
    let (before, txg) = (contents(pool), pool.state().txg());
    let asked = RefCell::new(BTreeSet::new());
    let left = Cell::new(rng.below(4));
    let refused = change(&|_| {
        let is_last = left.get() == 0;
        left.set(left.get().saturating_sub(1));
        if is_last { Err(Error::Busy) } else { Ok(()) }
    });
    if refused.is_err() {
        assert!(matches!(refused, Err(Error::Busy)), "{refused:?}");
        assert_eq!((contents(pool), problems(pool).unwrap()), (before.clone(), vec![]));
    } else {
        // So few files were changed that none was refused.
        return usize::from(pool.state().txg() > txg);
    }
    change(&|file| {
        asked.borrow_mut().insert(file);
        Ok(())
    })
    .unwrap();
    let after = contents(pool);
    let changed: BTreeSet<FileId> = before
        .iter()
        .filter(|(file, bytes)| after.get(file) != Some(bytes))
        .map(|(file, _)| *file)
        .collect();
    let asked = asked.into_inner();
    assert!(changed.is_subset(&asked), "{changed:?} were changed, {asked:?} asked for");
    assert_eq!(problems(pool).unwrap(), Vec::<String>::new());
    changed.len()
}

#[test]
fn a_rollback_asks_before_it_changes_anything() {
    let mut changed = 0;
    for seed in 0..60 {
        let mut rng = Rng(seed);
        let tree = Tree::new(&mut rng);
        let (pool, scope) = (&tree.pool, tree.directories[0]);
        pool.create_snapshot(scope, b"then", 1).unwrap();
        (0..20).for_each(|_| tree.change(&mut rng));
        changed += asks_first(pool, &mut rng, &|ask| {
            let mut changing = |file: FileId| {
                let kind = pool.attributes(file)?.kind;
                assert_ne!(kind, Kind::Directory, "seed {seed}");
                ask(file)
            };
            let asks = RollbackAsks {
                taking: &mut |_| panic!("a directory takes no name from a file"),
                changing: &mut changing,
                ending: &mut |_| Ok(()),
            };
            pool.rollback_asking(scope, b"then", asks)
        });
    }
    assert!(changed > 200, "only {changed} files were changed");
}

#[test]
fn a_stream_asks_before_it_changes_anything() {
    let mut changed = 0;
    for seed in 0..60 {
        let mut rng = Rng(seed);
        let tree = Tree::new(&mut rng);
        let (from, scope) = (&tree.pool, tree.directories[0]);
        from.create_snapshot(scope, b"one", 1).unwrap();
        (0..20).for_each(|_| tree.change(&mut rng));
        from.create_snapshot(scope, b"two", 1).unwrap();
        let stream = |base: Option<&[u8]>, name: &[u8]| {
            let open = |name: &[u8]| from.open_snapshot(scope, name).unwrap();
            let (snapshot, base) = (open(name), base.map(open));
            let plan = SendPlan {
                snapshot: &snapshot,
                base: base.as_ref(),
                scope,
                name,
                created_ns: 1,
                resume: None,
            };
            let mut out = Vec::new();
            from.send(&plan, &mut out, &mut |_| {}).unwrap();
            out
        };
        let (full, step) = (stream(None, b"one"), stream(Some(b"one"), b"two"));
        let target = Tree::new(&mut rng);
        let to = &target.pool;
        let options = ReceiveOptions::default();
        let copy = to.receive(ROOT, b"copy", &mut &full[..], &options, &mut |_| {}).unwrap().file;
        // With some seeds a rollback comes first.
        let force = rng.one_in(2);
        if force {
            let inside = Tree { pool: target.pool.clone(), directories: [copy; 3] };
            (0..8).for_each(|_| inside.change(&mut rng));
        }
        changed += asks_first(to, &mut rng, &|ask| {
            let options = ReceiveOptions { force, changing: Some(ask), ..Default::default() };
            to.receive(ROOT, b"copy", &mut &step[..], &options, &mut |_| {}).map(drop)
        });
    }
    assert!(changed > 200, "only {changed} files were changed");
}
