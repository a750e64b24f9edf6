//! Looks at all records: which are equal, and which resemble each other.

use std::collections::{BTreeMap, HashMap};

use super::arrange::{Item, arrange};
use super::bases::{Base, Known, Planned, plan};
use super::goal::{Again, SEGMENT_PIECES_MAX};
use super::look::{FollowLimit, Look, Looked};
use super::made::SegmentsMade;
use super::related::related;
use super::sketch::{Sketch, name_hash};
use super::{LOOK_COUNT, Optimisation, PIECE_COUNT_MAX, SURVEY_STEP_LEN};
use crate::error::Result;
use crate::pool::Pool;
use crate::pool::extents::{FileExtent, file_extents_in, read_range};
use crate::pool::maintain::repack::is_database;
use crate::pool::write::workers::Workers;
use crate::store::format::pointer::{EXTENT_LEN_MAX, Place, Pointer, span_of};
use crate::store::format::refs::HashKind;
use crate::store::holds::Holds;
use crate::store::trees::TreeId;
use crate::units::{FileId, Sector, Txg};

/// How many times the bytes of a step are read again, at most, to follow streams behind pieces.
const FOLLOW_PARTS_MAX: u64 = 4;

/// The first bytes of a BLAKE3 hash. Pieces that agree in them are compared before they share
/// anything.
pub(super) type Content = [u8; 16];

/// Where a piece lies: a place of the pool, the offset there, the length of the record, and that of
/// the piece. A piece is longer than its record if its file was extended.
type At = (Sector, u32, u32, u32);

/// A record that may become part of a segment.
#[derive(Clone, Debug)]
pub(super) struct Piece {
    pub file: FileId,
    pub start: u64,
    pub span_log2: u8,
    pub len: u32,
    pub content: Content,
    pub is_in_segment: bool,
}

impl Piece {
    /// Returns how many bytes of the file the record covers.
    pub fn span(&self) -> u64 {
        span_of(self.span_log2, self.len.into())
    }
}

/// What is known so far. Pieces are numbered as they are met.
#[derive(Debug, Default)]
pub(super) struct Survey {
    pieces: Vec<Piece>,
    /// For each piece that is equal to an earlier one, its number and that of the first.
    equal: HashMap<u32, Vec<u32>>,
    by_content: HashMap<Content, u32>,
    /// The piece met first at a place.
    by_place: HashMap<At, u32>,
    /// What is to be arranged: all pieces but equal ones.
    items: Vec<Item>,
    unique_len: u64,
    /// The length of pieces that stay in their segments.
    left_len: u64,
    /// Whether the next piece stays with the last item.
    joining: Option<Joining>,
    /// The file that comes next, and where in it.
    at: (usize, u64),
    /// The segments that there were at the beginning.
    made: SegmentsMade,
    /// The sketches of what is in bases that stay, by base and place in it; nothing of what is
    /// still to be read.
    in_bases: BTreeMap<(Sector, u32), Option<Sketch>>,
}

/// A stream that goes on behind the last piece.
#[derive(Debug)]
struct Joining {
    file: FileId,
    /// Where the next piece begins, and where the stream ends.
    next: u64,
    until: u64,
    /// How long the pieces are so far.
    len: u32,
}

impl Joining {
    fn behind(piece: &Piece, until: u64) -> Joining {
        Joining { file: piece.file, next: piece.start + piece.span(), until, len: piece.len }
    }
}

/// A record to read.
struct Candidate {
    record: FileExtent,
    file: FileId,
    name: u64,
    file_len: u64,
    /// Whether it has patches: then its place does not tell what it holds.
    is_patched: bool,
    /// Whether it stays in a base, and is looked at only to find what resembles that.
    is_of_base: bool,
}

impl Survey {
    pub fn new(made: SegmentsMade) -> Survey {
        Survey { made, ..Survey::default() }
    }

    pub fn piece(&self, number: u32) -> &Piece {
        &self.pieces[number as usize]
    }

    /// Returns the pieces that are equal to one that was met before them.
    pub fn equal_to(&self, number: u32) -> &[u32] {
        self.equal.get(&number).map_or(&[], Vec::as_slice)
    }

    /// Whether any of these records is part of a segment that is mostly unused, and goes away with
    /// its last part.
    pub fn is_wasted(&self, records: &[FileExtent]) -> bool {
        let mut segments = records.iter().filter_map(|record| segment_of(&record.pointer));
        segments.any(|sector| self.made.wasteful.contains(&sector))
    }

    /// Whether a record is a part of a base that stays.
    fn is_of_base(&self, pointer: &Pointer) -> bool {
        segment_of(pointer).is_some_and(|sector| self.made.bases.contains_key(&sector))
    }

    /// Takes note of a part of a base. Returns whether it is to be read.
    fn is_new_in_base(&mut self, pointer: &Pointer) -> bool {
        let Some(sector) = pointer.sector() else { return false };
        let at = (sector, pointer.part_offset);
        if self.in_bases.len() >= PIECE_COUNT_MAX || self.in_bases.contains_key(&at) {
            return false;
        }
        self.in_bases.insert(at, None);
        true
    }

    /// Returns the length of all pieces, equal ones once.
    pub fn unique_len(&self) -> u64 {
        self.unique_len
    }

    /// Returns the length of the pieces that stay where they are.
    pub fn left_len(&self) -> u64 {
        self.left_len
    }

    pub fn is_before_end(&self, files: &[(FileId, u64)]) -> bool {
        self.at.0 < files.len()
    }

    /// Forgets all pieces, and goes on where it is.
    pub fn begin_pass(&mut self) {
        let made = std::mem::take(&mut self.made);
        let in_bases = std::mem::take(&mut self.in_bases);
        *self = Survey { at: self.at, made, in_bases, ..Survey::default() };
    }

    /// Distributes the pieces to segments of about `len` bytes. Also returns the bases that there
    /// are.
    pub fn segments(&mut self, len: u32, again: Again) -> (Vec<Base>, Vec<Planned>) {
        let mut items = std::mem::take(&mut self.items);
        if again == Again::Related {
            self.leave_unrelated(&mut items);
        }
        // Nothing more is looked up in this pass.
        self.by_content = HashMap::new();
        self.by_place = HashMap::new();
        let segments = arrange(&items, len.into(), SEGMENT_PIECES_MAX);
        let items: HashMap<u32, &Item> = items.iter().map(|item| (item.number, item)).collect();
        let filled = segments.into_iter().map(|numbers| {
            let items: Vec<&Item> =
                numbers.iter().filter_map(|it| items.get(it).copied()).collect();
            let numbers = items.iter().flat_map(|it| it.number..it.number + it.count).collect();
            (numbers, items.iter().map(|item| item.sketch).collect())
        });
        let (bases, known): (Vec<Base>, Vec<Known>) = self.known_bases().into_iter().unzip();
        (bases, plan(&known, filled.collect()))
    }

    /// Returns the bases that there are.
    fn known_bases(&self) -> Vec<(Base, Known)> {
        let mut sketches: BTreeMap<Sector, Vec<Sketch>> = BTreeMap::new();
        for ((sector, _), sketch) in &self.in_bases {
            sketches.entry(*sector).or_default().extend(sketch);
        }
        let base = |(sector, sketches)| Some((self.made.bases.get(&sector)?.clone(), sketches));
        let bases: Vec<(Base, Vec<Sketch>)> = sketches.into_iter().filter_map(base).collect();
        let indices: HashMap<u32, usize> =
            bases.iter().enumerate().map(|(index, (base, _))| (base.number, index)).collect();
        let known = bases.into_iter().map(|(base, sketches)| {
            let is_second = base.pointer.is_second_base();
            let first = indices.get(&base.pointer.dictionary).copied();
            (base, Known { sketches, is_second, first })
        });
        known.collect()
    }

    /// Takes out what stays in its segment, since nothing new resembles that. Copies of it that are
    /// in no segment are to be arranged all the same.
    fn leave_unrelated(&mut self, items: &mut Vec<Item>) {
        let related = related(items);
        let mut chosen = Vec::with_capacity(items.len());
        for item in items.drain(..) {
            let is_chosen = item.segment.is_none_or(|segment| {
                related.contains(&segment) || self.made.wasteful.contains(&segment)
            });
            if is_chosen {
                chosen.push(item);
                continue;
            }
            for number in item.number..item.number + item.count {
                let len = if item.count == 1 { item.len } else { self.piece(number).len };
                let copy = self.leave(number);
                chosen.extend(copy.map(|number| Item {
                    number,
                    count: 1,
                    len,
                    segment: None,
                    new_len: 0,
                    ..item
                }));
            }
        }
        *items = chosen;
    }

    /// Takes out a piece, and those equal to it, that are in a segment. Returns the first of the
    /// others, if there are any.
    fn leave(&mut self, number: u32) -> Option<u32> {
        let len = u64::from(self.piece(number).len);
        let mut all = vec![number];
        all.extend(self.equal.remove(&number).unwrap_or_default());
        let (left, mut copies): (Vec<u32>, Vec<u32>) =
            all.into_iter().partition(|number| self.piece(*number).is_in_segment);
        self.left_len += len * left.len() as u64;
        if copies.is_empty() {
            self.unique_len -= len;
            return None;
        }
        let first = copies.remove(0);
        self.equal.insert(first, copies);
        Some(first)
    }

    /// Whether a piece, which gets the next number, is to stay with the one before it.
    fn joins(&self, piece: &Piece) -> bool {
        self.joining.as_ref().is_some_and(|joining| {
            (joining.file, joining.next) == (piece.file, piece.start)
                && joining.next < joining.until
                // All of them go into one extent.
                && joining.len.saturating_add(piece.len) <= EXTENT_LEN_MAX
        })
    }

    /// Adds a piece to the last item.
    fn join(&mut self, piece: &Piece, look: &Look, segment: Option<Sector>) {
        let Some(item) = self.items.last_mut() else { return };
        item.count += 1;
        item.new_len += if segment.is_none() { piece.len.into() } else { 0 };
        item.len = item.len.saturating_add(piece.len);
        item.sketch.join(&look.sketch);
        if let Some(joining) = &mut self.joining {
            joining.next = piece.start + piece.span();
            joining.len += piece.len;
        }
    }

    /// Takes note, in the item that has a piece, of another piece that is equal.
    fn count_equal(&mut self, first: u32, segment: Option<Sector>, len: u32) {
        let behind = self.items.partition_point(|item| item.number <= first);
        let Some(item) = behind.checked_sub(1).and_then(|at| self.items.get_mut(at)) else {
            return;
        };
        match (item.segment, segment) {
            (_, None) => item.new_len += u64::from(len),
            (None, Some(_)) => {
                item.new_len += u64::from(item.len);
                item.segment = segment;
            }
            (Some(_), Some(_)) => {}
        }
    }

    /// Takes note of a piece, and of the segment that it is in.
    fn add(&mut self, piece: Piece, name: u64, look: Look, segment: Option<Sector>) -> u32 {
        let number = self.pieces.len() as u32;
        match self.by_content.get(&piece.content).copied() {
            Some(first) => {
                self.equal.entry(first).or_default().push(number);
                self.count_equal(first, segment, piece.len);
                self.joining = None;
            }
            None if self.joins(&piece) => {
                self.by_content.insert(piece.content, number);
                self.unique_len += u64::from(piece.len);
                self.join(&piece, &look, segment);
            }
            None => {
                self.by_content.insert(piece.content, number);
                self.joining = look.joins_until.map(|until| Joining::behind(&piece, until));
                let name = name_hash(&[], name ^ piece.start);
                self.items.push(Item {
                    number,
                    count: 1,
                    len: look.decoded_len,
                    name,
                    sketch: look.sketch,
                    segment,
                    new_len: 0,
                });
                self.unique_len += u64::from(piece.len);
            }
        }
        self.pieces.push(piece);
        number
    }

    /// Takes note of a piece whose bytes are those of an earlier one.
    fn add_equal(&mut self, candidate: &Candidate, first: u32) {
        let content = self.pieces[first as usize].content;
        let piece = candidate.piece(content);
        self.add(piece, candidate.name, Look::default(), candidate.segment());
    }
}

impl Candidate {
    fn place(&self) -> Option<At> {
        let pointer = &self.record.pointer;
        match pointer.place {
            Place::Extent { sector, .. } if !self.is_patched => {
                Some((sector, pointer.part_offset, pointer.len, self.len()))
            }
            _ => None,
        }
    }

    /// Returns the segment that it is a part of.
    fn segment(&self) -> Option<Sector> {
        segment_of(&self.record.pointer)
    }

    fn len(&self) -> u32 {
        let end = self.record.slot_end().min(self.file_len);
        end.saturating_sub(self.record.start) as u32
    }

    fn piece(&self, content: Content) -> Piece {
        Piece {
            file: self.file,
            start: self.record.start,
            span_log2: self.record.pointer.span_log2,
            len: self.len(),
            content,
            is_in_segment: self.segment().is_some(),
        }
    }
}

/// Identifies the bytes of a piece.
pub(super) fn content_of(bytes: &[u8]) -> Content {
    let mut content = Content::default();
    content.copy_from_slice(&HashKind::Blake3.of(bytes).hash[..16]);
    content
}

/// Returns the segment that a record is a part of.
fn segment_of(pointer: &Pointer) -> Option<Sector> {
    pointer.sector().filter(|_| pointer.is_part())
}

/// Whether a record is a part of a segment that snapshots, or files that do not take part, hold.
fn is_kept(pointer: &Pointer, made: &SegmentsMade) -> bool {
    segment_of(pointer).is_some_and(|sector| made.kept.contains(&sector))
}

impl Optimisation {
    /// Looks at the next records. Returns false when there are no more, or enough for one pass.
    pub(super) fn survey_step(&mut self) -> Result<bool> {
        let candidates = self.gather()?;
        let workers = Workers::beside_others(self.pool.store(), self.pool.options().threads());
        let (pool, by_place, goal) = (&self.pool, &self.survey.by_place, self.goal);
        let follow_limit = FollowLimit::new(FOLLOW_PARTS_MAX * SURVEY_STEP_LEN);
        let is_known = |candidate: &Candidate| {
            candidate.place().is_some_and(|place| by_place.contains_key(&place))
        };
        // What is in segments already is read from one after the other, each decoded once.
        let mut order: Vec<usize> = (0..candidates.len()).collect();
        order.sort_by_key(|index| candidates[*index].place());
        let looked = workers.at_most(order.len()).run(order.len(), |at| {
            let candidate = &candidates[order[at]];
            if is_known(candidate) {
                return Ok(Ok(None));
            }
            let read = pool.read(|source| {
                let (file, file_len, start) =
                    (candidate.file, candidate.file_len, candidate.record.start);
                let mut bytes = vec![0; candidate.len() as usize];
                read_range(source, file, &mut bytes, start)?;
                let look = match goal.inflate {
                    true => {
                        let piece = Looked { file, file_len, start, bytes: &bytes };
                        Look::into(source, &piece, goal.len, &follow_limit)?
                    }
                    false => Look::at(&bytes),
                };
                Ok((content_of(&bytes), look))
            });
            match read {
                Err(error) if error.is_corruption() => Ok(Err(error.to_string())),
                read => read.map(|found| Ok(Some(found))),
            }
        })?;
        let mut looked: Vec<_> = order.into_iter().zip(looked).collect();
        looked.sort_by_key(|(index, _)| *index);
        for (candidate, (_, found)) in candidates.iter().zip(looked) {
            match found {
                Ok(Some((_, look))) if candidate.is_of_base => {
                    if let Some(sector) = candidate.segment() {
                        let at = (sector, candidate.record.pointer.part_offset);
                        self.survey.in_bases.insert(at, Some(look.sketch));
                    }
                }
                Ok(Some((content, look))) => {
                    let piece = candidate.piece(content);
                    let segment = candidate.segment();
                    let number = self.survey.add(piece, candidate.name, look, segment);
                    if let Some(place) = candidate.place() {
                        self.survey.by_place.entry(place).or_insert(number);
                    }
                }
                Ok(None) => {
                    let first = candidate.place().and_then(|at| self.survey.by_place.get(&at));
                    if let Some(first) = first.copied() {
                        self.survey.add_equal(candidate, first);
                    }
                }
                Err(reason) => {
                    let start = candidate.record.start;
                    let end = start + u64::from(candidate.len());
                    if !self.is_clearing {
                        self.report.damaged.push((candidate.file, start, end, reason));
                    }
                }
            }
        }
        Ok(self.survey.is_before_end(&self.files) && self.survey.pieces.len() < PIECE_COUNT_MAX)
    }

    /// Returns what counts of a length in the report: when the rest of old segments is looked for,
    /// everything was counted before.
    fn counted(&self, len: u64) -> u64 {
        if self.is_clearing { 0 } else { len }
    }

    /// Whether a record may become part of a segment, whatever it holds.
    fn is_wanted(&self, pointer: &Pointer) -> bool {
        let Some(sector) = pointer.sector() else { return false };
        let is_wanted = match pointer.is_part() {
            true => {
                let made = &self.survey.made;
                let is_made_anew = self.goal.again != Again::No || made.wasteful.contains(&sector);
                is_made_anew || made.bases.contains_key(&sector)
            }
            false => !self.is_clearing,
        };
        is_wanted && !pointer.is_filtered()
    }

    /// Finds the next records to read.
    fn gather(&mut self) -> Result<Vec<Candidate>> {
        let (mut candidates, mut len) = (Vec::new(), 0);
        while len < SURVEY_STEP_LEN
            && let Some((file, name)) = self.files.get(self.survey.at.0).copied()
        {
            let found = self.records_of(file, self.survey.at.1)?;
            let Some((records, patches, file_len)) = found else {
                self.survey.at = (self.survey.at.0 + 1, 0);
                continue;
            };
            let births = records.iter().map(|record| record.pointer.birth);
            let held = self.pool.held_by_snapshots_of(file, births)?;
            for (record, is_held) in records.into_iter().zip(held) {
                self.survey.at.1 = record.start + 1;
                let is_patched =
                    patches.iter().any(|start| (record.start..record.slot_end()).contains(start));
                let is_of_base = self.survey.is_of_base(&record.pointer);
                let candidate = Candidate { record, file, name, file_len, is_patched, is_of_base };
                let candidate_len = u64::from(candidate.len());
                let pointer = &candidate.record.pointer;
                let counted_len = self.counted(candidate_len);
                self.report.surveyed_len += counted_len;
                if !self.is_wanted(pointer) {
                    let is_in_segment = pointer.is_part();
                    self.report.segment_len += if is_in_segment { counted_len } else { 0 };
                } else if is_of_base {
                    match is_kept(pointer, &self.survey.made) {
                        true => self.report.held_len += counted_len,
                        false => self.report.segment_len += counted_len,
                    }
                    // Those with patches do not tell what the base holds.
                    if !is_patched && self.survey.is_new_in_base(pointer) {
                        len += candidate_len;
                        candidates.push(candidate);
                    }
                } else if is_held || is_kept(pointer, &self.survey.made) {
                    self.report.held_len += counted_len;
                } else if candidate_len > 0 {
                    len += candidate_len;
                    candidates.push(candidate);
                }
            }
        }
        Ok(candidates)
    }

    /// Returns the next records of a file, where patches begin over them, and the length of the
    /// file; nothing at its end, or if it is not to be looked at.
    #[expect(clippy::type_complexity, reason = "three things that belong together only here")]
    fn records_of(
        &mut self,
        file: FileId,
        from: u64,
    ) -> Result<Option<(Vec<FileExtent>, Vec<u64>, u64)>> {
        let is_gone =
            |error: &crate::error::Error| matches!(error, crate::error::Error::NotFound { .. });
        let len = match self.pool.attributes(file) {
            Err(error) if is_gone(&error) => return Ok(None),
            attributes => attributes?.len,
        };
        let (records, patches) = self.pool.read(|source| {
            let records = file_extents_in(source, TreeId::Map, file, from, u64::MAX, LOOK_COUNT)?;
            let end = records.last().map_or(from, FileExtent::slot_end);
            let patches = file_extents_in(source, TreeId::Patches, file, from, end, usize::MAX)?;
            Ok((records, patches))
        })?;
        let Some(first) = records.first() else { return Ok(None) };
        // Segments hold no databases. To read the front of each of their files, in the order of
        // names, would decode some of them over and over.
        let may_be_database = from == 0 && len > 0 && !first.pointer.is_part();
        let is_database = match may_be_database.then(|| is_database(&self.pool, file)) {
            Some(Err(error)) if is_gone(&error) => return Ok(None),
            found => found.transpose()? == Some(true),
        };
        if is_database {
            let counted_len = self.counted(len);
            self.databases.insert(file);
            self.report.database_len += counted_len;
            self.report.surveyed_len += counted_len;
            return Ok(None);
        }
        let patches = patches.iter().map(|patch| patch.start).collect();
        Ok(Some((records, patches, len)))
    }
}

impl Pool {
    /// Returns which records of a file snapshots hold, by their births, so that their space would
    /// not become free.
    pub(in crate::pool) fn held_by_snapshots_of(
        &self,
        file: FileId,
        births: impl Iterator<Item = Txg> + Clone,
    ) -> Result<Vec<bool>> {
        self.read(|source| {
            let next = Txg(source.state.txg().0 + 1);
            let mut holds = Holds::new(source.store.holders(source.state)?);
            let held = |birth| holds.is_held(source.store, birth, next, Some(file));
            births.clone().map(held).collect()
        })
    }
}
