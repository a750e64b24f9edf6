//! Fills slots with parts of cells, column by column, and lists the steps that write the cells.
//!
//! A slot has room for the short parts of one cell that lie one behind the other: the part before
//! the bodies, numbers, short strings. One column is put into the slots of all cells before the
//! next, in a loop without a decision for each field; then a cell is written in one step, or a few.
//! Parts are written as whole chunks, and the bytes these spoil are written later, as in `cells`.

use super::arena::Arena;
use super::fields::{Fields, MixedField, SERIAL_IS_CUT};
use super::page;
use super::program::{CHUNK_LEN, Operation, Program};
use super::texts::Span;

/// The length of a slot, in bytes.
pub(super) const LEN_MIN: usize = 64;
/// The same if that makes a page need fewer slots.
pub(super) const LEN_MAX: usize = 128;

/// The lengths of the chunks that strings are copied as, in bytes. Longer strings have no slot.
const SHORT_TEXT_LEN: usize = 16;
const TEXT_LEN: usize = 32;
const LONG_TEXT_LEN: usize = 64;

/// The length of the chunk that a number is written as.
const WORD_LEN: usize = 8;

/// The slots of a page are no longer than this, in bytes, except for one of `LEN_MIN` for each
/// cell. Otherwise a form could claim one for each field, at a few bytes of the page.
const ALL_LEN_MAX: usize = 512 << 10;

impl Program {
    /// Puts the bodies of short fields into slots.
    pub(super) fn fill_slots_with_bodies(&mut self, fields: &Fields, arena: &Arena) {
        self.choose_slot_len(0);
        if self.slot_len == LEN_MIN {
            self.fuse_all::<LEN_MIN>(None, fields, arena);
        } else {
            self.fuse_all::<LEN_MAX>(None, fields, arena);
        }
    }

    /// Fills slots with the parts that have the same length in all cells: prefixes (from the top of
    /// a word down) and types, then the bodies of short fields. Returns false if there are too many
    /// types.
    pub(super) fn fill_slots(
        &mut self,
        prefixes: impl Iterator<Item = u64>,
        prefix_len: usize,
        fields: &Fields,
        arena: &Arena,
    ) -> bool {
        if prefix_len + self.template.len() > LEN_MIN {
            return false;
        }
        self.choose_slot_len(prefix_len + self.types_len(0));
        if self.slot_len == LEN_MIN {
            self.fill_fronts::<LEN_MIN>(prefixes, prefix_len);
            self.fuse_all::<LEN_MIN>(Some(prefix_len), fields, arena);
        } else {
            self.fill_fronts::<LEN_MAX>(prefixes, prefix_len);
            self.fuse_all::<LEN_MAX>(Some(prefix_len), fields, arena);
        }
        true
    }

    /// Puts prefixes and types into slots of `LEN` bytes.
    fn fill_fronts<const LEN: usize>(
        &mut self,
        prefixes: impl Iterator<Item = u64>,
        prefix_len: usize,
    ) {
        let len = self.cell_count * LEN;
        if self.slots.len() < len {
            self.slots.resize(len, 0);
        }
        let slots = self.slots[..len].as_chunks_mut::<LEN>().0.iter_mut();
        match *self.template.as_chunks::<CHUNK_LEN>().0 {
            [chunk] => {
                for (slot, prefix) in slots.zip(prefixes) {
                    put(slot, 0, prefix.to_be_bytes());
                    put(slot, prefix_len, chunk);
                }
            }
            ref chunks => {
                for (slot, prefix) in slots.zip(prefixes) {
                    put(slot, 0, prefix.to_be_bytes());
                    for (i, chunk) in chunks.iter().enumerate() {
                        put(slot, prefix_len + i * CHUNK_LEN, *chunk);
                    }
                }
            }
        }
    }

    /// One of the slots.
    #[inline(always)]
    pub(super) fn slot(&self, index: usize) -> &[u8] {
        &self.slots[index * self.slot_len..][..self.slot_len]
    }

    /// Chooses the length of slots that begin with `front_len` bytes.
    fn choose_slot_len(&mut self, front_len: usize) {
        let (mut at, mut needed) = (front_len, 0);
        for operation in &self.operations {
            if let Some(body) = Body::of(operation) {
                needed = needed.max(at + body.room);
                at += body.len_max;
            }
        }
        let is_long = needed > LEN_MIN && self.cell_count * LEN_MAX <= ALL_LEN_MAX;
        self.slot_len = if is_long { LEN_MAX } else { LEN_MIN };
    }

    /// Puts the output of operations into slots of `LEN` bytes, or makes the operations steps.
    /// `types_at` is the position of the types, if the slots have them already.
    fn fuse_all<const LEN: usize>(
        &mut self,
        types_at: Option<usize>,
        fields: &Fields,
        arena: &Arena,
    ) {
        let front_len = types_at.map_or(0, |types_at| types_at + self.types_len(0));
        let mut run = Run { first: 0, len_max: front_len, first_len: None };
        self.steps.clear();
        self.slot_lens.clear();
        let operations = std::mem::take(&mut self.operations);
        for &operation in &operations {
            if let Some(types_at) = types_at {
                self.put_open_types::<LEN>(operation, types_at, fields);
            }
            if !self.fuse::<LEN>(operation, &mut run, fields, arena) {
                self.end_run(&mut run);
                self.steps.push(operation);
            }
        }
        self.end_run(&mut run);
        self.operations = operations;
    }

    /// Puts the output of an operation into slots. Returns false, and does nothing, if it is too
    /// long.
    fn fuse<const LEN: usize>(
        &mut self,
        operation: Operation,
        run: &mut Run,
        fields: &Fields,
        arena: &Arena,
    ) -> bool {
        let Some(body) = Body::of(&operation) else { return false };
        if !self.make_room(run, &body) {
            return false;
        }
        let start = run.len_max - body.len_max;
        let slots = &mut self.slots.as_chunks_mut::<LEN>().0[run.first..][..self.cell_count];
        let slots = slots.iter_mut();
        if body.is_same_len && run.first_len.is_none() {
            match operation {
                Operation::Word { first, shift, .. } => {
                    for (slot, word) in slots.zip(&fields.words[first..]) {
                        put(slot, start, (word << shift).to_be_bytes());
                    }
                }
                Operation::Text { first, .. } => {
                    let spans = slots.zip(&fields.spans[first..]);
                    match body.room {
                        SHORT_TEXT_LEN => put_texts::<LEN, SHORT_TEXT_LEN>(spans, start, arena),
                        TEXT_LEN => put_texts::<LEN, TEXT_LEN>(spans, start, arena),
                        _ => put_texts::<LEN, LONG_TEXT_LEN>(spans, start, arena),
                    }
                }
                _ => {}
            }
            return true;
        }
        let first_len = *run.first_len.get_or_insert_with(|| {
            let first_len = self.slot_lens.len();
            self.slot_lens.resize(first_len + self.cell_count, start as u8);
            first_len
        });
        let slots = slots.zip(&mut self.slot_lens[first_len..]);
        match operation {
            Operation::Word { first, shift, len } => {
                for ((slot, at), word) in slots.zip(&fields.words[first..]) {
                    add(slot, at, (word << shift).to_be_bytes(), len);
                }
            }
            Operation::Words { first, first_serial, .. } => {
                add_words(slots, &fields.words[first..], &fields.serials[first_serial..]);
            }
            Operation::Ints { first, first_serial, .. } => {
                add_words(slots, &fields.words[first..], &self.serials[first_serial..]);
            }
            Operation::Text { first, .. } | Operation::Texts { first, .. } => {
                let spans = slots.zip(&fields.spans[first..]);
                match body.room {
                    SHORT_TEXT_LEN => add_texts::<LEN, SHORT_TEXT_LEN>(spans, arena),
                    TEXT_LEN => add_texts::<LEN, TEXT_LEN>(spans, arena),
                    _ => add_texts::<LEN, LONG_TEXT_LEN>(spans, arena),
                }
            }
            Operation::Mixed { first, .. } => {
                let mixed = slots.zip(&fields.mixed[first..]);
                match body.room {
                    SHORT_TEXT_LEN => add_mixed::<LEN, SHORT_TEXT_LEN>(mixed, fields, arena),
                    TEXT_LEN => add_mixed::<LEN, TEXT_LEN>(mixed, fields, arena),
                    _ => add_mixed::<LEN, LONG_TEXT_LEN>(mixed, fields, arena),
                }
            }
            _ => {}
        }
        true
    }

    /// Puts one-byte types that differ between cells into the slots of the part before the bodies.
    fn put_open_types<const LEN: usize>(
        &mut self,
        operation: Operation,
        types_at: usize,
        fields: &Fields,
    ) {
        let slots = self.slots.as_chunks_mut::<LEN>().0[..self.cell_count].iter_mut();
        match operation {
            Operation::Words { first_serial, type_at, .. } => {
                for (slot, &serial) in slots.zip(&fields.serials[first_serial..]) {
                    put(slot, types_at + type_at, [serial]);
                }
            }
            Operation::Ints { first_serial, type_at, .. } => {
                for (slot, &serial) in slots.zip(&self.serials[first_serial..]) {
                    put(slot, types_at + type_at, [serial]);
                }
            }
            Operation::Texts { first, base, type_at, .. } => {
                for (slot, span) in slots.zip(&fields.spans[first..]) {
                    put(slot, types_at + type_at, [(base + 2 * span.len) as u8]);
                }
            }
            Operation::Mixed { first, type_at, .. } => {
                for (slot, field) in slots.zip(&fields.mixed[first..]) {
                    put(slot, types_at + type_at, [field.serial as u8]);
                }
            }
            _ => {}
        }
    }

    /// Makes room for a body in the run, or in a new one if it is full. Returns false, and does
    /// nothing, if there would be too many slots.
    fn make_room(&mut self, run: &mut Run, body: &Body) -> bool {
        let is_full = run.len_max + body.room > self.slot_len;
        let first = if is_full { run.first + self.cell_count } else { run.first };
        let len = (first + self.cell_count) * self.slot_len;
        if first > 0 && len > ALL_LEN_MAX {
            return false;
        }
        if is_full {
            self.end_run(run);
        }
        if self.slots.len() < len {
            self.slots.resize(len, 0);
        }
        run.len_max += body.len_max;
        true
    }

    /// Makes the run's slots a step, and starts a new run.
    fn end_run(&mut self, run: &mut Run) {
        let &mut Run { first, len_max, first_len } = run;
        if len_max > 0 {
            self.steps.push(match first_len {
                Some(first_len) => Operation::Slots { first, first_len, len_max },
                None => Operation::Slot { first, len: len_max },
            });
            *run = Run { first: first + self.cell_count, len_max: 0, first_len: None };
        }
    }
}

/// The slots being filled.
struct Run {
    first: usize,
    /// The length of their contents, or the greatest that it can be.
    len_max: usize,
    /// The index of the first length in [`Program::slot_lens`], if the lengths differ.
    first_len: Option<usize>,
}

/// The bodies that an operation writes into slots.
struct Body {
    len_max: usize,
    /// Whether they all have that length.
    is_same_len: bool,
    /// The length of the chunk that they are written as.
    room: usize,
}

impl Body {
    /// `None` if they are too long for a slot.
    fn of(operation: &Operation) -> Option<Body> {
        let (len_max, is_same_len, is_text) = match *operation {
            Operation::Word { len, .. } => (len as usize, true, false),
            Operation::Words { .. } | Operation::Ints { .. } => (WORD_LEN, false, false),
            Operation::Text { len, .. } => (len as usize, true, true),
            Operation::Texts { len_max, .. } | Operation::Mixed { len_max, .. } => {
                (len_max as usize, false, true)
            }
            Operation::Slot { .. } | Operation::Slots { .. } => return None,
        };
        let rooms: &[usize] =
            if is_text { &[SHORT_TEXT_LEN, TEXT_LEN, LONG_TEXT_LEN] } else { &[WORD_LEN] };
        let room = *rooms.iter().find(|&&room| len_max <= room)?;
        Some(Body { len_max, is_same_len, room })
    }
}

#[inline(always)]
fn string<const LEN: usize>(arena: &Arena, at: u32) -> [u8; LEN] {
    *arena.chunk::<LEN>(at as usize).unwrap_or(&[0; _])
}

#[inline(always)]
fn put<const SLOT: usize, const LEN: usize>(slot: &mut [u8; SLOT], at: usize, bytes: [u8; LEN]) {
    if let Some(target) = slot.get_mut(at..).and_then(|slot| slot.first_chunk_mut()) {
        *target = bytes;
    }
}

fn put_texts<'a, const SLOT: usize, const LEN: usize>(
    spans: impl Iterator<Item = (&'a mut [u8; SLOT], &'a Span)>,
    start: usize,
    arena: &Arena,
) {
    spans.for_each(|(slot, span)| put(slot, start, string::<LEN>(arena, span.at)));
}

/// Appends the first `len` of the bytes to a slot with `at` bytes.
#[inline(always)]
fn add<const SLOT: usize, const LEN: usize>(
    slot: &mut [u8; SLOT],
    at: &mut u8,
    bytes: [u8; LEN],
    len: u32,
) {
    put(slot, usize::from(*at), bytes);
    *at = at.wrapping_add(len as u8);
}

/// Appends the body of a serial type below 12.
#[inline(always)]
fn add_word<const SLOT: usize>(slot: &mut [u8; SLOT], at: &mut u8, word: i64, serial: u32) {
    let len = page::small_body_len(serial);
    // Without a body, this shifts by 64, and the written bytes do not matter.
    add(slot, at, word.wrapping_shl(64 - 8 * len).to_be_bytes(), len);
}

#[inline(always)]
fn add_words<'a, const SLOT: usize>(
    slots: impl Iterator<Item = (&'a mut [u8; SLOT], &'a mut u8)>,
    words: &[i64],
    serials: &[u8],
) {
    for (((slot, at), &word), &serial) in slots.zip(words).zip(serials) {
        add_word(slot, at, word, serial.into());
    }
}

fn add_texts<'a, const SLOT: usize, const LEN: usize>(
    spans: impl Iterator<Item = ((&'a mut [u8; SLOT], &'a mut u8), &'a Span)>,
    arena: &Arena,
) {
    spans.for_each(|((slot, at), span)| add(slot, at, string::<LEN>(arena, span.at), span.len));
}

fn add_mixed<'a, const SLOT: usize, const LEN: usize>(
    mixed: impl Iterator<Item = ((&'a mut [u8; SLOT], &'a mut u8), &'a MixedField)>,
    fields: &Fields,
    arena: &Arena,
) {
    for ((slot, at), field) in mixed {
        if page::is_number(field.serial) {
            add_word(slot, at, field.word(&fields.words), field.serial);
        } else if field.serial & SERIAL_IS_CUT == 0 {
            add(slot, at, string::<LEN>(arena, field.body), page::body_len(field.serial));
        }
    }
}
