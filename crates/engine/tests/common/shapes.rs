//! The table of workloads that are crashed; `make crash` runs what is in it.

use std::sync::{Arc, OnceLock};

use hardpack_engine::device::Device;
use hardpack_engine::pool::Property;
use hardpack_engine::store::Durability;
use hardpack_engine::store::superblock::{BLOCK_LEN, Header};
use hardpack_engine::store::trees::TreeId;

use super::faults::Kind;
use super::sim_device::SimDevice;
use super::{Rng, create, only_file};

/// The pool before the workload begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Base {
    /// An empty file, records of 16 KiB.
    Empty,
    /// An empty file, in the first version of the format.
    Version1,
    /// A short file, for which a dictionary was trained while it was long.
    Dictionary,
    /// An empty file that the first commit makes long enough for a dictionary.
    Untrained,
}

/// The parameters of a workload.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// The name, which says what the workload is about.
    pub name: &'static str,
    /// The pool to begin with.
    pub base: Base,
    /// The number of commits.
    pub commit_count: u64,
    /// The approximate length of the file.
    pub file_len: u64,
    /// One commit in this many is durable; 1 for all.
    pub durable_one_in: u64,
    /// The number of processes that take turns.
    pub process_count: usize,
    /// How many superblocks may have to stay in the ring before further ones are passing.
    pub anchor_count_max: usize,
    /// After one commit in this many, some steps of a compaction; 0 for never.
    pub compact_one_in: u64,
    /// After one commit in this many, some steps of folding, repacking or sinking; 0 for never.
    pub rewrite_one_in: u64,
    /// After one commit in this many, a snapshot is created, destroyed or rolled back to; 0 for
    /// never.
    pub snapshot_one_in: u64,
    /// Records are often equal, and then stored once; the dedup index comes and goes.
    pub dedup: bool,
    /// One commit in this many is an import that replaces the file, cut into chunks; 0 for none.
    pub import_one_in: u64,
    /// Changes longer than one of these are written ahead of the commit.
    pub dirty_lens: &'static [usize],
    /// The choices for `compression`.
    pub compressions: &'static [&'static str],
    /// Before one operation in this many, a fault is armed; 0 for never.
    pub fault_one_in: u64,
    /// The faults to choose from.
    pub faults: &'static [Kind],
    /// The number of crashes at each write and sync.
    pub tries: u64,
    /// The workload runs in one round of this many; long ones run less often.
    pub one_round_in: u64,
}

const COMPRESSIONS: &[&str] = &["off", "lz4", "zstd", "gzip"];
const ERRORS: &[Kind] = &[Kind::ReadError, Kind::WriteError, Kind::TornWrite, Kind::LengthError];
const BAD_READS: &[Kind] = &[Kind::ReadError, Kind::ShortRead, Kind::Flip, Kind::Flip];
const SYNCS: &[Kind] = &[Kind::SyncError];

/// Small transactions, some of them durable.
pub const SMALL: Shape = Shape {
    name: "small transactions",
    base: Base::Empty,
    commit_count: 14,
    file_len: 60_000,
    durable_one_in: 2,
    process_count: 1,
    anchor_count_max: usize::MAX,
    compact_one_in: 0,
    rewrite_one_in: 0,
    snapshot_one_in: 0,
    dedup: false,
    import_one_in: 0,
    dirty_lens: &[30_000, 32 << 20],
    compressions: COMPRESSIONS,
    fault_one_in: 0,
    faults: &[],
    tries: 2,
    one_round_in: 1,
};

const REWRITES: Shape = Shape {
    name: "deltas, folds, repacks, sinks",
    commit_count: 30,
    file_len: 120_000,
    durable_one_in: 3,
    process_count: 2,
    rewrite_one_in: 2,
    ..SMALL
};

const SNAPSHOTS: Shape = Shape {
    name: "snapshots",
    commit_count: 30,
    durable_one_in: 3,
    process_count: 2,
    snapshot_one_in: 1,
    ..SMALL
};

const FAULTY: Shape = Shape {
    commit_count: 30,
    durable_one_in: 3,
    process_count: 2,
    rewrite_one_in: 6,
    fault_one_in: 2,
    ..SMALL
};

/// All workloads.
pub const WORKLOADS: [Shape; 26] = [
    SMALL,
    Shape { name: "every commit durable", file_len: 200_000, durable_one_in: 1, ..SMALL },
    Shape {
        name: "few commits durable",
        commit_count: 30,
        file_len: 30_000,
        durable_one_in: 9,
        ..SMALL
    },
    Shape {
        name: "three processes",
        commit_count: 30,
        durable_one_in: 4,
        process_count: 3,
        ..SMALL
    },
    Shape {
        name: "pool of version 1",
        base: Base::Version1,
        commit_count: 30,
        durable_one_in: 4,
        process_count: 2,
        ..SMALL
    },
    Shape { process_count: 1, ..REWRITES },
    Shape { name: "the same, compactions too", compact_one_in: 12, ..REWRITES },
    Shape {
        name: "compactions",
        commit_count: 30,
        file_len: 500_000,
        durable_one_in: 3,
        process_count: 2,
        compact_one_in: 3,
        tries: 1,
        one_round_in: 2,
        ..SMALL
    },
    Shape {
        name: "compression=auto",
        compressions: &["auto", "zstd-auto"],
        file_len: 100_000,
        ..REWRITES
    },
    SNAPSHOTS,
    Shape {
        name: "snapshots, folds, compactions",
        base: Base::Dictionary,
        rewrite_one_in: 3,
        compact_one_in: 12,
        ..SNAPSHOTS
    },
    Shape {
        name: "snapshots, deduplication",
        dedup: true,
        rewrite_one_in: 6,
        compact_one_in: 12,
        ..SNAPSHOTS
    },
    Shape { name: "snapshots, EIO", faults: ERRORS, snapshot_one_in: 2, ..FAULTY },
    Shape { name: "dictionary in use", base: Base::Dictionary, ..REWRITES },
    Shape {
        name: "dictionary trained",
        base: Base::Untrained,
        commit_count: 2,
        durable_one_in: 2,
        process_count: 1,
        dirty_lens: &[32 << 20],
        tries: 1,
        one_round_in: 32,
        ..REWRITES
    },
    Shape {
        name: "large transactions, streamed",
        commit_count: 8,
        file_len: 7_000_000,
        durable_one_in: 4,
        tries: 1,
        one_round_in: 16,
        ..SMALL
    },
    Shape {
        name: "deduplication",
        dedup: true,
        rewrite_one_in: 4,
        compact_one_in: 15,
        file_len: 200_000,
        ..REWRITES
    },
    Shape {
        name: "deduplication, errors",
        dedup: true,
        faults: &[Kind::ReadError, Kind::WriteError, Kind::NoSpace, Kind::SyncError],
        file_len: 200_000,
        ..FAULTY
    },
    Shape { name: "EIO in reads, writes, lengths", faults: ERRORS, ..FAULTY },
    Shape { name: "disk full, then room again", faults: &[Kind::NoSpace], ..FAULTY },
    Shape { name: "short reads, flipped bits", faults: BAD_READS, process_count: 3, ..FAULTY },
    Shape { name: "failed and lying syncs", faults: &[Kind::SyncError, Kind::Lie], ..FAULTY },
    Shape {
        name: "imports in chunks",
        dedup: true,
        import_one_in: 3,
        rewrite_one_in: 6,
        compact_one_in: 12,
        snapshot_one_in: 6,
        file_len: 100_000,
        ..REWRITES
    },
    Shape {
        name: "imports in chunks, errors",
        dedup: true,
        import_one_in: 3,
        faults: &[Kind::ReadError, Kind::WriteError, Kind::NoSpace, Kind::SyncError],
        file_len: 100_000,
        ..FAULTY
    },
    Shape {
        name: "passing superblocks",
        commit_count: 40,
        durable_one_in: 6,
        process_count: 3,
        anchor_count_max: 1,
        compact_one_in: 12,
        ..SMALL
    },
    Shape {
        name: "passing superblocks, errors",
        faults: &[Kind::WriteError, Kind::TornWrite, Kind::NoSpace, Kind::SyncError],
        durable_one_in: 4,
        process_count: 3,
        anchor_count_max: 2,
        ..FAULTY
    },
];

/// Only failing syncs: for the tests of the simulator.
pub const FAILED_SYNCS: Shape =
    Shape { name: "failed syncs", faults: SYNCS, durable_one_in: 2, ..FAULTY };

/// The number of pages of a file that is long enough for a dictionary.
const DICTIONARY_PAGES: u64 = 2100;

/// Returns text with a few of many phrases in each page: only a dictionary can know them all.
fn phrases(rng: &mut Rng, len: usize) -> Vec<u8> {
    const PHRASE_COUNT: usize = 800;
    const PHRASE_LEN: usize = 60;
    let phrases = Rng(1).noise(PHRASE_COUNT * PHRASE_LEN);
    let mut bytes = Vec::with_capacity(len + PHRASE_LEN);
    while bytes.len() < len {
        let at = rng.below(PHRASE_COUNT as u64) as usize * PHRASE_LEN;
        bytes.extend_from_slice(&phrases[at..at + PHRASE_LEN]);
    }
    bytes.truncate(len);
    bytes
}

/// Returns one of a few contents, so that it is often stored already.
pub fn repeated(rng: &mut Rng) -> Vec<u8> {
    const KIND_COUNT: u64 = 7;
    const LEN: usize = 16 << 10;
    let kind = rng.below(KIND_COUNT);
    Rng(kind).content(LEN)
}

/// Returns the content of a file that is long enough for a dictionary and benefits from one.
pub fn trainable(rng: &mut Rng) -> Vec<u8> {
    phrases(rng, DICTIONARY_PAGES as usize * 4096)
}

impl Base {
    /// Returns the image, all of it durable, and the content of its file.
    pub fn image(self) -> (Vec<u8>, Vec<u8>) {
        static DICTIONARY: OnceLock<(Vec<u8>, Vec<u8>)> = OnceLock::new();
        if self == Base::Dictionary {
            return DICTIONARY.get_or_init(with_dictionary).clone();
        }
        let sim = SimDevice::new(Vec::new());
        let device: Arc<dyn Device> = sim.clone();
        let record_size = if self == Base::Untrained { "4K" } else { "16K" };
        drop(create(&device, &[(Property::RecordSize, record_size)], 32 << 20));
        let mut image = sim.image();
        if self == Base::Version1 {
            let header = Header::decode(&image[..BLOCK_LEN]).expect("a pool was created");
            let header = Header { version: 1, ..header };
            image[..BLOCK_LEN].copy_from_slice(&header.encode());
        }
        (image, Vec::new())
    }
}

fn with_dictionary() -> (Vec<u8>, Vec<u8>) {
    let sim = SimDevice::new(Vec::new());
    let device: Arc<dyn Device> = sim.clone();
    let pool = create(&device, &[(Property::RecordSize, "4K")], 32 << 20);
    let file = only_file(&pool).expect("there is a file");
    let mut bytes = trainable(&mut Rng(5));
    file.write_at(&bytes, 0).expect("it is written");
    file.commit(Durability::Durable).expect("it is committed");
    bytes.truncate(100_000);
    file.set_len(bytes.len() as u64).expect("it is cut");
    file.commit(Durability::Durable).expect("it is committed");
    let mut compaction = pool.compact();
    while compaction.step().expect("it is compacted") {}
    let state = pool.state();
    assert!(state.superblock.roots[TreeId::Dictionaries].is_some(), "a dictionary is trained");
    pool.store().make_durable().expect("it is durable");
    (sim.image(), bytes)
}
