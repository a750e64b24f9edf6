//! Trees of files that change at random, with one commit for each change.

use std::sync::Arc;

use hardpack_engine::Ashift;
use hardpack_engine::device::Device;
use hardpack_engine::pool::{Attributes, CreateOptions, Kind, Pool, Property, ROOT};
use hardpack_engine::store::Durability;
use hardpack_engine::{Error, FileId, Result};

use super::sim_device::{Op, SimDevice};
use super::{GUID, Rng, options, read_all};

/// There are few names, so that they collide.
const NAMES: [&[u8]; 5] = [b"a", b"b", b"c", b"\xff", b"long name"];

/// Counts of what the recorded runs did, for people.
#[derive(Clone, Copy, Debug, Default)]
#[allow(dead_code, reason = "printed")]
pub struct Done {
    writes: usize,
    syncs: usize,
}

impl Done {
    /// Counts a trace.
    pub fn add(&mut self, trace: &[Op]) {
        self.writes += trace.iter().filter(|op| matches!(op, Op::Write(..))).count();
        self.syncs += trace.iter().filter(|op| matches!(op, Op::Sync)).count();
    }
}

/// Creates a pool without files.
pub fn empty_image(rng: &mut Rng) -> Vec<u8> {
    let device = SimDevice::new(Vec::new());
    let create = CreateOptions {
        guid: GUID,
        ashift: Ashift::new(rng.pick(&[9, 12])).unwrap(),
        properties: vec![(Property::RecordSize, rng.pick(&["4K", "16K"]).into())],
        file_name: None,
        file_mode: 0,
    };
    let pool = Pool::create(device.clone() as Arc<dyn Device>, &create, options(1 << 20));
    drop(pool.expect("a pool is created"));
    device.image()
}

/// The trees of a pool.
pub struct Tree {
    pool: Pool,
}

/// Whether random changes may lead to this error: a name is taken, missing, or of the wrong kind.
fn is_expected(error: &Error) -> bool {
    matches!(
        error,
        Error::NotFound { .. }
            | Error::Exists { .. }
            | Error::NotADirectory { .. }
            | Error::IsADirectory { .. }
            | Error::NotEmpty { .. }
            | Error::Invalid(_)
    )
}

impl Tree {
    /// Wraps the trees of this pool.
    pub fn new(pool: Pool) -> Tree {
        Tree { pool }
    }

    /// Returns a hash of everything visible in the trees.
    pub fn fingerprint(&self) -> std::result::Result<u128, String> {
        self.describe().map_err(|error| error.to_string())
    }

    fn describe(&self) -> Result<u128> {
        let pool = &self.pool;
        let mut text = Vec::new();
        pool.walk(ROOT, &mut |path, entry, attributes| {
            text.extend_from_slice(path);
            text.extend_from_slice(format!("{entry:?} {attributes:?}").as_bytes());
            text.extend_from_slice(format!("{:?}", pool.xattrs(entry.file)?).as_bytes());
            text.extend_from_slice(format!("{:?}", pool.local_properties(entry.file)?).as_bytes());
            match entry.kind {
                Kind::File => text.extend_from_slice(&{
                    let file = pool.file(entry.file)?;
                    read_all(&file)?
                }),
                Kind::Symlink => text.extend_from_slice(&pool.link_target(entry.file)?),
                Kind::Directory => {}
                // The attributes say everything about them.
                Kind::Fifo | Kind::Socket | Kind::CharDevice | Kind::BlockDevice => {}
            }
            Ok(true)
        })?;
        Ok(twox_hash::XxHash3_128::oneshot(&text))
    }

    fn all(&self, kind: Kind) -> Result<Vec<FileId>> {
        let mut found = Vec::new();
        self.pool.walk(ROOT, &mut |_, entry, _| {
            found.extend((entry.kind == kind).then_some(entry.file));
            Ok(true)
        })?;
        Ok(found)
    }

    fn directory(&self, rng: &mut Rng) -> Result<FileId> {
        let mut directories = self.all(Kind::Directory)?;
        directories.push(ROOT);
        Ok(rng.pick(&directories))
    }

    /// Makes one change. Returns whether it is acknowledged as durable.
    pub fn change(&mut self, rng: &mut Rng) -> std::result::Result<bool, String> {
        match self.try_change(rng) {
            Err(error) if !is_expected(&error) => Err(error.to_string()),
            Err(_) => Ok(false),
            done => done.map_err(|error| error.to_string()),
        }
    }

    fn try_change(&mut self, rng: &mut Rng) -> Result<bool> {
        let (directory, other) = (self.directory(rng)?, self.directory(rng)?);
        let (name, new) = (rng.pick(&NAMES), rng.pick(&NAMES));
        let now_ns = 1 + rng.below(1 << 40) as i64;
        let like = |kind| Attributes { mode: 0o640, ..Attributes::new(kind, ROOT) };
        match rng.below(12) {
            0..=2 => {
                let kind = rng.pick(&[Kind::Directory, Kind::File]);
                self.pool.edit(now_ns, |edit| edit.create(directory, name, &like(kind)))?;
            }
            3 => {
                let target = rng.text(300);
                let link = like(Kind::Symlink);
                self.pool.edit(now_ns, |edit| edit.symlink(directory, name, &target, &link))?;
            }
            4 => self.pool.edit(now_ns, |edit| edit.unlink(directory, name))?,
            5 => self.pool.remove_tree(directory, name, now_ns, &mut |_| true)?,
            6 => {
                let (from, to) = ((directory, name), (other, new));
                self.pool.edit(now_ns, |edit| edit.rename(from, to))?;
            }
            7 => {
                let found = self.pool.lookup_in(directory, name)?;
                let value = rng.noise(2000);
                let file = found.map_or(ROOT, |entry| entry.file);
                self.pool.edit(now_ns, |edit| {
                    edit.set_xattr(file, b"user.note", &value)?;
                    if file == ROOT { Ok(()) } else { edit.link(file, other, new) }
                })?;
            }
            8 => self.import(rng, directory, name)?,
            _ => return self.write(rng),
        }
        Ok(true)
    }

    /// Imports several files together.
    fn import(&self, rng: &mut Rng, directory: FileId, name: &[u8]) -> Result<()> {
        let mut import = self.pool.import(3);
        let attributes = Attributes::new(Kind::File, ROOT);
        let len = rng.pick(&[0, 100, 30_000]);
        import.file(directory, name, &attributes, &[], rng.text(len))?;
        let of = Attributes::new(Kind::Directory, ROOT);
        if let Ok(inner) = import.directory(directory, b"in", &of, &[]) {
            for name in NAMES {
                import.file(inner, name, &attributes, &[], rng.text(5000))?;
            }
        }
        import.finish().map(drop)
    }

    fn write(&self, rng: &mut Rng) -> Result<bool> {
        let files = self.all(Kind::File)?;
        if files.is_empty() {
            return Ok(false);
        }
        let file = self.pool.file(rng.pick(&files))?;
        let offset = rng.below(60_000);
        let len = rng.below(40_000) as usize;
        file.write_at(&rng.text(len), offset)?;
        if rng.one_in(4) {
            file.set_len(rng.below(60_000))?;
        }
        let is_durable = rng.one_in(2);
        file.commit(if is_durable { Durability::Durable } else { Durability::Visible })?;
        Ok(is_durable)
    }
}
