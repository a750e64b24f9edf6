//! What `hardpack optimize` would make of the data: near-copies together, in segments.
//!
//! ```text
//! scan      each distinct chunk is looked at once: what it resembles
//! arrange   the chunks are put into segments as `optimize` does it (see the engine's `optimize/`)
//! measure   the chunks of some segments are read again, and compressed together
//! ```
//!
//! All segments are measured, or as many of them, chosen at random, as `--measure` allows. What
//! `optimize` saves beyond that is left out: stronger codecs, and differences between segments. So
//! the figure is an upper bound, but for the changes of a moment.
//!
//! How much a segment is compressed varies, so the ratio of those measured stands for the others,
//! with the error of a ratio of two sums over a random sample of clusters.
//!
//! Source: Cochran, "Sampling Techniques", 1977, chapter 6.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use hardpack_engine::FileId;
use hardpack_engine::codec::{Compression, Encoded, Policy, with_codec};
use hardpack_engine::pool::{Forecast, ForecastLook, ForecastPiece, ForecastPlace, Met, Pool};

use super::figures::{self, Estimate, Figures};
use super::reading::mix;
use super::scan::{into_inner, lock};
use super::walk::Named;
use crate::args::EstimateArgs;
use crate::commands::put::readers::open;
use crate::failure::{Code, Reason};
use crate::snapshot::read_full;
use crate::{pool_file, signals};

/// The length of segments, the default of `optimize`.
pub const SEGMENT_LEN: u32 = 4 << 20;
/// Fast enough for an estimate; takes about a fifth more than zstd-19, the default of `optimize`.
pub const COMPRESSION: Compression = Compression::Zstd(9);
/// So many segments are measured at least, whatever `--measure` says: fewer tell nothing of others.
const MEASURED_MIN: usize = 8;

/// A segment must save more than one part in this many, as in the engine.
const GAIN_PART_MIN: usize = 32;

/// The memory for each chunk, in bytes: what it resembles, where it is, and its place among others.
const CHUNK_MEMORY: u64 = 400;

/// What a window has to know of its file.
pub struct Origin {
    pub number: u64,
    pub path: Vec<u8>,
    /// Its number in the pool that the user named at this place, if it is in one.
    pub in_pool: Option<(usize, FileId)>,
}

/// What is collected while everything is read.
pub struct Segments {
    forecast: Mutex<Forecast>,
    /// The files that chunks are of, by their numbers.
    origins: Mutex<HashMap<u64, Arc<Origin>>>,
    /// Bytes of files that `optimize` leaves alone.
    left_alone: AtomicU64,
}

/// What the segments would take.
pub struct InSegments {
    /// Bytes stored, in whole sectors.
    pub stored: Estimate,
    pub count: usize,
    pub measured: usize,
    /// The length of the chunks in them. For others there was no memory.
    len: u64,
    /// Whether there were others.
    has_rest: bool,
    /// Bytes of files that `optimize` leaves alone.
    pub left_alone: u64,
}

impl Segments {
    /// Begins with nothing. At most this much memory is for chunks.
    pub fn new(memory: u64) -> Segments {
        let forecast = Mutex::new(Forecast::new((memory / CHUNK_MEMORY) as usize));
        Segments { forecast, origins: Mutex::default(), left_alone: AtomicU64::new(0) }
    }

    /// Takes a chunk of a file, and the front of the hash of its content.
    pub fn add(&self, origin: &Arc<Origin>, start: u64, hash: u64, bytes: &[u8]) {
        let place = ForecastPlace::new(origin.number, &origin.path, start);
        let met = lock(&self.forecast).meet(hash, place);
        if met == Met::New {
            let look = ForecastLook::new(hash, bytes);
            lock(&self.forecast).add(look);
        }
        if met != Met::Other {
            lock(&self.origins).entry(origin.number).or_insert_with(|| Arc::clone(origin));
        }
    }

    /// Counts bytes of a file that `optimize` leaves alone.
    pub fn leave_alone(&self, len: u64) {
        self.left_alone.fetch_add(len, Ordering::Relaxed);
    }

    /// Measures the segments. Returns nothing if there are none.
    pub fn measure(
        self,
        args: &EstimateArgs,
        named: &[Named],
        threads: usize,
    ) -> Result<Option<InSegments>, Reason> {
        let forecast = into_inner(self.forecast);
        let has_rest = forecast.has_rest();
        let segments = forecast.segments(SEGMENT_LEN);
        let lens: Vec<u64> = segments.iter().map(|pieces| len_of(pieces)).collect();
        let chosen = choose(&lens, args);
        let readers = Readers::new(named, into_inner(self.origins));
        let policy = Policy { sector: 1 << args.ashift, min_savings: 0, embed_limit: 0 };
        let (next, found) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
        let work = || -> Result<(), Reason> {
            while let Some(index) = chosen.get(next.fetch_add(1, Ordering::Relaxed)) {
                signals::check()?;
                if let Some(stored) = readers.stored_len(&segments[*index], &policy)? {
                    lock(&found).push((*index, lens[*index] as f64, stored as f64));
                }
            }
            Ok(())
        };
        thread::scope(|scope| {
            let spawn = |_| thread::Builder::new().spawn_scoped(scope, work);
            let threads: Vec<_> = (1..threads).filter_map(|it| spawn(it).ok()).collect();
            let done = work();
            let joined = threads.into_iter().map(|thread| {
                let gone = || hardpack_engine::Error::Internal("a thread panicked".into()).into();
                thread.join().unwrap_or_else(|_| Err(gone()))
            });
            joined.fold(done, Result::and)
        })?;
        let mut found = into_inner(found);
        // Sums of fractions depend on the order.
        found.sort_by_key(|(index, ..)| *index);
        let found: Vec<(f64, f64)> = found.into_iter().map(|(_, len, it)| (len, it)).collect();
        let len = lens.iter().sum::<u64>();
        let is_all = found.len() == segments.len();
        Ok((!found.is_empty()).then(|| InSegments {
            stored: figures::ratio_of_clusters(&found, len as f64, is_all),
            len,
            has_rest,
            count: segments.len(),
            measured: found.len(),
            left_alone: self.left_alone.into_inner(),
        }))
    }
}

impl InSegments {
    /// Adds what there was no memory for: its distinct chunks take what they take alone, at most,
    /// as these figures tell. What came first tells nothing of it.
    pub fn with_rest(mut self, figures: &Figures) -> InSegments {
        let alone = figures.stored.iter().map(|stored| stored.once);
        let least = alone.min_by(|one, other| one.high.total_cmp(&other.high));
        if let Some(alone) = least.filter(|_| self.has_rest) {
            let rest = |len: f64| (len - self.len as f64).max(0.0);
            let Estimate { value, high, .. } = figures.distinct_len;
            self.stored.value += rest(value) * (alone.value / value.max(1.0)).min(1.0);
            // It may compress less than the others do, but all of them take no more together.
            self.stored.high += rest(high).min(alone.high);
        }
        self
    }
}

fn len_of(pieces: &[ForecastPiece]) -> u64 {
    pieces.iter().map(|piece| u64::from(piece.len)).sum()
}

/// Chooses the segments to measure, each with the same probability.
fn choose(lens: &[u64], args: &EstimateArgs) -> Vec<usize> {
    let mut order: Vec<usize> = (0..lens.len()).collect();
    if lens.iter().sum::<u64>() <= args.measure {
        return order;
    }
    order.sort_by_key(|index| mix(args.seed ^ mix(*index as u64)));
    let mut left = args.measure;
    let mut count = 0;
    for index in &order {
        if lens[*index] > left {
            break;
        }
        left -= lens[*index];
        count += 1;
    }
    order.truncate(count.max(MEASURED_MIN));
    order
}

/// Reads files again.
struct Readers {
    origins: HashMap<u64, Arc<Origin>>,
    /// By their places among what the user named: the pool that each is in.
    paths: HashMap<usize, PathBuf>,
    /// The pools that were opened so far; nothing if one has gone.
    pools: Mutex<HashMap<PathBuf, Option<Pool>>>,
}

impl Readers {
    fn new(named: &[Named], origins: HashMap<u64, Arc<Origin>>) -> Readers {
        let in_pools = named.iter().enumerate().filter_map(|(index, one)| match one {
            Named::InPool(address) => Some((index, address.pool.clone())),
            Named::Path(_) => None,
        });
        Readers { origins, paths: in_pools.collect(), pools: Mutex::default() }
    }

    /// Returns the pool of what the user named at a place. It is opened once, however often it was
    /// named.
    fn pool(&self, index: usize) -> Option<Pool> {
        let path = self.paths.get(&index)?;
        let mut pools = lock(&self.pools);
        if let Some(pool) = pools.get(path) {
            return pool.clone();
        }
        let opened = pool_file::open_read_only(path, None).ok();
        pools.insert(path.clone(), opened.clone());
        opened
    }

    /// Returns how long the pieces of a segment become together, in whole sectors; nothing if some
    /// of them cannot be read any more.
    fn stored_len(&self, pieces: &[ForecastPiece], policy: &Policy) -> Result<Option<u64>, Reason> {
        let mut bytes = Vec::with_capacity(len_of(pieces) as usize);
        for piece in pieces {
            let start = bytes.len();
            bytes.resize(start + piece.len as usize, 0);
            if !self.read(piece, &mut bytes[start..]).unwrap_or(false) {
                return Ok(None);
            }
        }
        let mut output = Vec::new();
        let encoded = with_codec(|codec| codec.encode(COMPRESSION, &bytes, policy, &mut output));
        let encoded = encoded.map_err(|error| Reason::new(Code::Cannot, error.to_string()))?;
        let len = match encoded {
            // What gains less is left as it is.
            Encoded::Compressed { .. }
                if output.len() < bytes.len() - bytes.len() / GAIN_PART_MIN =>
            {
                output.len()
            }
            Encoded::Compressed { .. } | Encoded::Raw => bytes.len(),
            _ => output.len(),
        };
        Ok(Some(len.next_multiple_of(policy.sector) as u64))
    }

    /// Reads a piece. Returns whether all of it is still there.
    fn read(&self, piece: &ForecastPiece, bytes: &mut [u8]) -> Result<bool, Reason> {
        let Some(origin) = self.origins.get(&piece.file) else { return Ok(false) };
        let n = match origin.in_pool {
            None => {
                let file = open(Path::new(OsStr::from_bytes(&origin.path)))?;
                read_full(&file, bytes, piece.start)?
            }
            Some((index, file)) => {
                let Some(pool) = self.pool(index) else { return Ok(false) };
                pool.file(file)?.read_at(bytes, piece.start)?
            }
        };
        Ok(n == bytes.len())
    }
}
