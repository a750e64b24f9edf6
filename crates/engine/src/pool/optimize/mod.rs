//! Optimising: stores near-copies, and small files, together in *segments*.
//!
//! A record that is compressed alone knows nothing of the one that it nearly repeats. A segment is
//! one extent of some megabytes that holds the bytes of many records, of any files, each of which
//! has a pointer to its part of it. Reading one decodes the segment, once.
//!
//! ```text
//! count     how much of each segment is still in use (`made.rs`)
//! survey    read every record: which are equal, and which resemble each other
//! arrange   fill each segment with what resembles what is in it (`arrange.rs`; `forecast.rs` for
//!           data that is in no pool)
//! plan      which segments are stored as differences from which (`bases.rs`)
//! store     read again, compress on all cores; in a transaction for each segment, exchange the
//!           pointers of all records that nobody changed in the meantime
//! versions  share records among versions of a database, with patches (`versions/`)
//! pack      merge the nodes of the trees that lead to all of this, and to names (`pack.rs`)
//! ```
//!
//! With [`Again::Related`], the segments that resemble what is new are made anew together with it
//! (`related.rs`), or if others differ from them, serve as bases for it; with [`Again::All`] all of
//! them. Records leave old segments only where a new one takes less than their share of these.
//! What is left of an old one then takes all of its space. So segments that are mostly unused by
//! then are made anew in the end, whatever that takes.
//!
//! It goes on beside readers and writers like any other rewrite (see `maintain/rewrite.rs`), may be
//! stopped between any two steps, and when it is begun again goes on with what is not in a segment.
//! Databases get no segments, since they have a better form of their own. Left alone is what
//! snapshots, or files that do not take part, hold as well, which would not go away; what fits into
//! its pointer; and records that a segment would not make smaller.
//!
//! Memory is bounded by [`PIECE_COUNT_MAX`] pieces of about four hundred bytes each, and eight
//! segments for each thread, with what the codec needs. More pieces are optimised in several
//! passes.

mod arrange;
mod bases;
mod compress;
mod forecast;
mod goal;
mod look;
mod made;
mod pack;
mod related;
mod sketch;
mod store;
mod survey;
mod versions;

use std::collections::{HashMap, HashSet, VecDeque};
use std::time::Duration;

use self::bases::{Base, Planned};
pub use self::forecast::{Forecast, ForecastLook, ForecastPiece, ForecastPlace, Met};
pub use self::goal::{Again, SegmentGoal};
use self::pack::Packing;
use self::survey::Survey;
use self::versions::families::Versions;
use crate::error::{Error, Result};
use crate::pool::Pool;
use crate::pool::namespace::entries::Kind;
use crate::store::Patience;
use crate::store::format::checksum::ChecksumKind;
use crate::store::format::pointer::EXTENT_LEN_MAX;
use crate::units::FileId;

/// The pieces of one pass.
const PIECE_COUNT_MAX: usize = 1 << 20;
/// How many bytes are surveyed in one step.
const SURVEY_STEP_LEN: u64 = 16 << 20;
/// How long to wait for other transactions.
const STEP_WAIT: Duration = Duration::from_secs(10);
/// How many records are looked up at a time.
const LOOK_COUNT: usize = 256;

/// What an optimisation has done so far.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct OptimizeReport {
    /// Bytes of the files, holes included.
    pub file_len: u64,
    /// How many of them were examined.
    pub surveyed_len: u64,
    /// Bytes of the records chosen for segments, equal ones once.
    pub planned_len: u64,
    /// How many of them were compressed.
    pub done_len: u64,
    /// New segments.
    pub segments: u64,
    /// How many of them are stored as differences from others.
    pub differences: u64,
    /// The records in them.
    pub records: u64,
    /// The space that these records took before, in bytes.
    pub allocated_before: u64,
    /// The space that they take now, in bytes.
    pub allocated_after: u64,
    /// The deflate streams that were inflated.
    pub inflated_streams: u64,
    /// Their bytes.
    pub inflated_from_len: u64,
    /// The bytes that they stand for.
    pub inflated_to_len: u64,
    /// Bytes of code, sound and pictures that were transformed.
    pub transformed_len: u64,
    /// Bytes of records that were in segments already.
    pub segment_len: u64,
    /// Bytes of records that snapshots hold, or whose segments files that do not take part share.
    pub held_len: u64,
    /// Records of databases that share those of other versions now.
    pub versions: u64,
    /// How many of them are stored as differences.
    pub version_differences: u64,
    /// Their bytes.
    pub versions_len: u64,
    /// The space that they took before, in bytes.
    pub versions_before: u64,
    /// The space that they take now besides what they share, in bytes.
    pub versions_after: u64,
    /// How many bytes of databases were looked at for that.
    pub compared_len: u64,
    /// Bytes of databases.
    pub database_len: u64,
    /// Records that were changed meanwhile.
    pub overtaken: u64,
    /// Bytes of names, pointers and all other metadata, uncompressed.
    pub metadata_len: u64,
    /// How many of them were in nodes that were merged with others; some more than once.
    pub packed_len: u64,
    /// The space that names, pointers and all other metadata took when there were all segments, in
    /// bytes.
    pub metadata_before: u64,
    /// The space that they take now that they are packed.
    pub metadata_after: u64,
    /// Unreadable ranges of files, each with the reason.
    pub damaged: Vec<(FileId, u64, u64, String)>,
}

/// What an optimisation is doing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum OptimizeStage {
    /// It looks at what there is.
    Survey,
    /// It makes segments.
    Store,
    /// It looks for versions of databases.
    Versions,
    /// It packs names and pointers.
    Pack,
    /// It has ended.
    Done,
}

/// An optimisation in progress.
#[derive(Debug)]
pub struct Optimisation {
    pool: Pool,
    goal: SegmentGoal,
    checksum: ChecksumKind,
    /// The files, in the order of their paths, with the hash of their names.
    files: Vec<(FileId, u64)>,
    /// Whether these are all that the pool has.
    is_all: bool,
    stage: OptimizeStage,
    survey: Survey,
    /// The files that got no segments, as databases.
    databases: HashSet<FileId>,
    versions: Versions,
    packing: Packing,
    /// Whether only what is left of old segments is still looked for.
    is_clearing: bool,
    /// The segments still to make.
    plan: VecDeque<Planned>,
    /// The bases that there are, by their indices; nothing if one was not stored.
    bases: HashMap<usize, Option<Base>>,
    report: OptimizeReport,
}

impl Pool {
    /// Begins to put a file, or all files below a directory, into segments. Nothing is changed
    /// before the first [`Optimisation::step`].
    pub fn optimize(&self, file: FileId, goal: SegmentGoal) -> Result<Optimisation> {
        self.refresh()?;
        let (files, file_len) = self.files_in_order(file)?;
        let is_all = file == FileId::ROOT;
        let goal = SegmentGoal { len: goal.len.min(EXTENT_LEN_MAX), ..goal };
        let made = self.segments_made((&files, is_all), &goal, goal.again != Again::No)?;
        Ok(Optimisation {
            pool: self.clone(),
            goal,
            checksum: self.settings(file)?.checksum,
            files,
            is_all,
            stage: OptimizeStage::Survey,
            survey: Survey::new(made),
            databases: HashSet::new(),
            versions: Versions::default(),
            packing: Packing::default(),
            is_clearing: false,
            plan: VecDeque::new(),
            bases: HashMap::new(),
            report: OptimizeReport { file_len, ..OptimizeReport::default() },
        })
    }

    fn files_in_order(&self, top: FileId) -> Result<(Vec<(FileId, u64)>, u64)> {
        let attributes = self.attributes(top)?;
        if attributes.kind != Kind::Directory {
            return Ok((vec![(top, sketch::name_hash(&[], 0))], attributes.len));
        }
        let (mut files, mut seen, mut len) = (Vec::new(), HashSet::new(), 0);
        self.walk(top, &mut |path, entry, attributes| {
            let is_new = attributes.link_count < 2 || seen.insert(entry.file);
            if entry.kind == Kind::File && is_new {
                // The versions of a program differ in the directory at the top.
                let names: Vec<&[u8]> = path.rsplit(|byte| *byte == b'/').take(2).collect();
                files.push((entry.file, sketch::name_hash(&names, 0)));
                len += attributes.len;
            }
            Ok(true)
        })?;
        Ok((files, len))
    }
}

impl Optimisation {
    /// Does a bounded amount of work, and returns whether there is more to do. After
    /// [`Error::Busy`], when others hold the pool for long, it can be called again.
    pub fn step(&mut self) -> Result<bool> {
        if (self.pool.options().is_stopped)() {
            return Err(Error::Stopped);
        }
        self.pool.refresh()?;
        match self.stage {
            OptimizeStage::Survey => {
                if !self.survey_step()? {
                    self.begin_storing();
                }
            }
            OptimizeStage::Store => {
                if !self.store_step()? {
                    let mut has_more = self.survey.is_before_end(&self.files);
                    self.survey.begin_pass();
                    if !has_more {
                        // What differed from others may have gone.
                        self.pool.remove_unused_dictionaries(Patience::Within(STEP_WAIT))?;
                        if self.goal.again != Again::No {
                            has_more = self.begin_clearing()?;
                        }
                    }
                    if !has_more {
                        self.begin_versions();
                    }
                    self.stage =
                        if has_more { OptimizeStage::Survey } else { OptimizeStage::Versions };
                }
            }
            OptimizeStage::Versions => {
                if !self.versions_step()? {
                    self.begin_packing()?;
                    self.stage = OptimizeStage::Pack;
                }
            }
            OptimizeStage::Pack => {
                if !self.pack_step()? {
                    self.stage = OptimizeStage::Done;
                }
            }
            OptimizeStage::Done => {}
        }
        Ok(self.stage != OptimizeStage::Done)
    }

    /// Begins to make segments anew of which little is in use since their records were put into
    /// others. Returns false if there are none.
    fn begin_clearing(&mut self) -> Result<bool> {
        self.goal.again = Again::No;
        let made = self.pool.segments_made((&self.files, self.is_all), &self.goal, true)?;
        let is_needed = !made.wasteful.is_empty();
        self.is_clearing = true;
        self.survey = Survey::new(made);
        Ok(is_needed)
    }

    /// What it is doing.
    pub fn stage(&self) -> OptimizeStage {
        self.stage
    }

    /// What it has done so far.
    pub fn report(&self) -> &OptimizeReport {
        &self.report
    }

    fn begin_storing(&mut self) {
        let (bases, segments) = self.survey.segments(self.goal.len, self.goal.again);
        self.bases = bases.into_iter().map(Some).enumerate().collect();
        self.report.planned_len += self.survey.unique_len();
        self.report.segment_len += self.survey.left_len();
        self.plan = segments.into();
        self.stage = OptimizeStage::Store;
    }
}
