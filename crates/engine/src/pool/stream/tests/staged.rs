//! The records of an incremental stream are in the pool before the transaction that applies it.

use std::cell::RefCell;
use std::sync::Arc;

use super::chains::receive;
use super::trees::{assert_same, new_pool};
use crate::device::{Device, MemoryDevice};
use crate::error::{Error, Location, Result};
use crate::pool::extents::source::Committed;
use crate::pool::namespace::entries;
use crate::pool::namespace::nameless;
use crate::pool::{
    Attributes, Kind, Pool, Property, ROOT, ReceiveOptions, SendPlan, Settings, StepLimits,
};
use crate::store::format::checksum::ChecksumKind;
use crate::store::{Durability, Patience};
use crate::test_common::{Rng, problems};
use crate::units::FileId;

const LEN: u64 = 1 << 20;

/// A pool with a file of noise in a directory, and two snapshots; another pool that has received
/// the first; and the increment.
struct World {
    source: Pool,
    target: Pool,
    copy: FileId,
    increment: Vec<u8>,
}

fn write(pool: &Pool, file: FileId, bytes: &[u8], at: u64) {
    let file = pool.file(file).unwrap();
    file.write_at(bytes, at).unwrap();
    file.commit(Durability::Durable).unwrap();
}

fn world(settings: &[(Property, &str)]) -> World {
    let [here, there]: [Arc<dyn Device>; 2] =
        [(); 2].map(|()| Arc::new(MemoryDevice::default()) as Arc<dyn Device>);
    let (source, target) = (new_pool(&here, 9, &[]), new_pool(&there, 12, settings));
    let mut rng = Rng(5);
    let attributes = Attributes::new(Kind::File, ROOT);
    let file = source.edit(0, |edit| edit.create(ROOT, b"file", &attributes)).unwrap();
    write(&source, file, &rng.noise(LEN as usize), 0);
    source.create_snapshot(ROOT, b"s0", 0).unwrap();
    write(&source, file, &rng.noise(LEN as usize / 2), LEN / 4);
    // Of equal records, the second is not sent again.
    let block = rng.noise(32 << 10);
    write(&source, file, &block, LEN);
    write(&source, file, &block, 2 * LEN);
    source.create_snapshot(ROOT, b"s1", 1).unwrap();
    let stream = |base: Option<&Pool>, name: &[u8]| {
        let snapshot = source.open_snapshot(ROOT, name).unwrap();
        let (scope, created_ns) = (ROOT, 0);
        let plan = SendPlan { snapshot: &snapshot, base, scope, name, created_ns, resume: None };
        let mut out = Vec::new();
        source.send(&plan, &mut out, &mut |_| {}).unwrap();
        out
    };
    let first = source.open_snapshot(ROOT, b"s0").unwrap();
    let (complete, increment) = (stream(None, b"s0"), stream(Some(&first), b"s1"));
    let copy = receive(&target, &complete, &ReceiveOptions::default()).unwrap().file;
    World { source, target, copy, increment }
}

impl World {
    /// Receives the increment; `meanwhile` is called before the last transaction.
    fn receive(&self, stream: &[u8], meanwhile: &dyn Fn() -> Result<()>) -> Result<()> {
        let before_change = |_| meanwhile();
        let options = ReceiveOptions {
            batch_len: 100_000,
            before_change: Some(&before_change),
            ..ReceiveOptions::default()
        };
        receive(&self.target, stream, &options).map(drop)
    }

    /// Returns the nameless file that collects no frames.
    fn staging(&self) -> Option<FileId> {
        let (store, state) = (self.target.store(), self.target.state());
        let source = &mut Committed::new(store, &state);
        let found = entries::nameless(source, usize::MAX).unwrap();
        found.into_iter().find(|file| entries::progress(source, *file).unwrap().is_none())
    }

    fn assert_received(&self, what: &str) {
        let snapshot = self.source.open_snapshot(ROOT, b"s1").unwrap();
        assert_same(&snapshot, ROOT, &self.target, self.copy, 0);
        assert_eq!(problems(&self.target).unwrap(), Vec::<String>::new(), "{what}");
        assert_eq!(self.staging(), None, "{what}");
    }
}

#[test]
fn the_last_transaction_stores_no_records() {
    for settings in [&[][..], &[(Property::Dedup, "on")]] {
        let world = world(settings);
        let before = world.target.state().txg().0;
        let seen = RefCell::new(None);
        world
            .receive(&world.increment, &|| {
                let state = world.target.state();
                let staged = world.target.file(world.staging().unwrap()).unwrap().len().unwrap();
                *seen.borrow_mut() = Some((state.txg().0, staged));
                Ok(())
            })
            .unwrap();
        let (last, staged) = seen.take().unwrap();
        assert!(staged >= LEN / 2, "only {staged} bytes were stored before");
        assert!(last > before + 8, "the increment was stored in {} transactions", last - before);
        assert_eq!(world.target.state().txg().0, last + 1);
        world.assert_received(&format!("{settings:?}"));
    }
}

/// What was rewritten meanwhile is read from the stream.
#[test]
fn maintenance_may_rewrite_what_is_staged() {
    let world = world(&[]);
    let rewritten = RefCell::new(0);
    world
        .receive(&world.increment, &|| {
            let mut goal = Settings::default();
            goal.set(Property::Compression, "gzip-1")?;
            goal.set(Property::RecordSize, "4K")?;
            let staging = world.staging().unwrap();
            let mut repack = world.target.begin_repack(staging, goal, Patience::Endless)?;
            let limits = StepLimits { rewrite_len_max: LEN / 8, ..StepLimits::default() };
            *rewritten.borrow_mut() +=
                world.target.repack_step(&mut repack, &limits, None)?.rewritten;
            let mut compaction = world.target.compact();
            while compaction.step()? {}
            Ok(())
        })
        .unwrap();
    assert!(rewritten.take() > 0);
    world.assert_received("repacked");
}

/// Somebody takes a snapshot of everything while records are staged: it keeps them, and so does
/// their file.
#[test]
fn a_snapshot_may_hold_what_is_staged() {
    let world = world(&[]);
    world
        .receive(&world.increment, &|| world.target.create_snapshot(ROOT, b"between", 7).map(drop))
        .unwrap();
    world.assert_received("with the snapshot");
    world.target.destroy_snapshot(ROOT, b"between").unwrap();
    world.assert_received("without it");
}

/// A receive that fails between leaves the target as it was; what it had staged is removed as a
/// leftover, and the stream may come again.
#[test]
fn what_was_staged_by_the_dead_is_removed() {
    let world = world(&[]);
    let failed = world.receive(&world.increment, &|| Err(Error::Busy));
    assert!(matches!(failed, Err(Error::Busy)));
    assert!(world.staging().is_some());
    assert_eq!(problems(&world.target).unwrap(), Vec::<String>::new());
    let first = world.source.open_snapshot(ROOT, b"s0").unwrap();
    assert_same(&first, ROOT, &world.target, world.copy, 0);
    nameless::remove_leftovers(world.target.store(), ChecksumKind::Xxh3, &mut |_| false).unwrap();
    assert_eq!(world.staging(), None);
    world.receive(&world.increment, &|| Ok(())).unwrap();
    world.assert_received("again");
}

/// A record whose content is not what its frame says is refused before anything changes.
#[test]
fn a_false_record_is_refused() {
    let world = world(&[]);
    let starts = super::frame_starts(&world.increment);
    let mut ends = starts.windows(2).enumerate();
    let (number, ends) = ends.find(|(_, ends)| ends[1] - ends[0] > 16 << 10).unwrap();
    let mut bad = world.increment.clone();
    bad[ends[1] - 100] ^= 1;
    let refused = world.receive(&super::seal(&bad), &|| panic!("it came to the last transaction"));
    assert!(
        matches!(&refused, Err(Error::Corrupt { location: Location::Frame(found), .. })
            if *found == number as u64),
        "frame {number}: {refused:?}"
    );
    let first = world.source.open_snapshot(ROOT, b"s0").unwrap();
    assert_same(&first, ROOT, &world.target, world.copy, 0);
    assert_eq!(problems(&world.target).unwrap(), Vec::<String>::new());
}
