//! What an optimisation would put into which segments, of data that is in no pool.
//!
//! Pieces are added in any order, each with its sketch. Then they are arranged as those of a pool
//! are, and whoever wants to know how long a segment becomes reads its pieces again.

use std::collections::HashSet;

use super::PIECE_COUNT_MAX;
use super::arrange::{Item, arrange};
use super::sketch::{Sketch, name_hash};
use super::survey::SEGMENT_PIECES_MAX;

/// A piece of a file: its place, and what it resembles.
#[derive(Clone, Copy, Debug)]
pub struct ForecastPiece {
    /// The number of the file, in the order of their paths.
    pub file: u64,
    /// Where it begins there.
    pub start: u64,
    /// Its length, in bytes.
    pub len: u32,
    name: u64,
    sketch: Sketch,
}

impl ForecastPiece {
    /// Looks at a piece of the file with this number and this path.
    pub fn new(file: u64, path: &[u8], start: u64, bytes: &[u8]) -> ForecastPiece {
        // The versions of a program differ in the directory at the top.
        let names: Vec<&[u8]> = path.rsplit(|byte| *byte == b'/').take(2).collect();
        let name = name_hash(&[], name_hash(&names, 0) ^ start);
        ForecastPiece { file, start, len: bytes.len() as u32, name, sketch: Sketch::of(bytes) }
    }
}

/// The pieces met so far, at most as many as one pass of an optimisation has. Each takes up to 400
/// bytes by the time that they are arranged.
#[derive(Debug)]
pub struct Forecast {
    count_max: usize,
    known: HashSet<u64>,
    pieces: Vec<ForecastPiece>,
    /// The length of those that came later.
    left_len: u64,
}

impl Forecast {
    /// Begins with no pieces. At most `count_max` are kept.
    pub fn new(count_max: usize) -> Forecast {
        let count_max = count_max.min(PIECE_COUNT_MAX);
        Forecast { count_max, known: HashSet::new(), pieces: Vec::new(), left_len: 0 }
    }

    /// Whether a piece is to be added, whose content has a hash that begins like this. The same
    /// content is wanted once.
    pub fn is_wanted(&mut self, hash: u64, len: usize) -> bool {
        if self.known.len() >= self.count_max {
            self.left_len += if self.known.contains(&hash) { 0 } else { len as u64 };
            return false;
        }
        self.known.insert(hash)
    }

    /// Adds a piece that is wanted.
    pub fn add(&mut self, piece: ForecastPiece) {
        self.pieces.push(piece);
    }

    /// The length of the pieces that were not wanted because there were too many, of which some may
    /// be equal.
    pub fn left_len(&self) -> u64 {
        self.left_len
    }

    /// Returns the segments of up to `len` bytes that the pieces would be put into.
    pub fn segments(self, len: u32) -> Vec<Vec<ForecastPiece>> {
        let mut pieces = self.pieces;
        pieces.sort_by_key(|piece| (piece.file, piece.start));
        let items = pieces.iter().zip(0..).map(|(piece, number)| Item {
            number,
            count: 1,
            len: piece.len,
            name: piece.name,
            sketch: piece.sketch,
            segment: None,
            new_len: 0,
        });
        let segments = arrange(&items.collect::<Vec<Item>>(), len.into(), SEGMENT_PIECES_MAX);
        let pieces_of =
            |numbers: Vec<u32>| numbers.into_iter().map(|it| pieces[it as usize]).collect();
        segments.into_iter().map(pieces_of).collect()
    }
}
