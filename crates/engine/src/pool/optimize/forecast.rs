//! What an optimisation would put into which segments, of data that is in no pool.
//!
//! Pieces are met in any order, and each is looked at once. Of equal ones, the first in the order
//! of their places counts, whichever was met first. Then they are arranged as those of a pool are,
//! and whoever wants to know how long a segment becomes reads its pieces again.

use std::collections::HashMap;

use super::PIECE_COUNT_MAX;
use super::arrange::{Item, arrange};
use super::goal::SEGMENT_PIECES_MAX;
use super::sketch::{Sketch, name_hash};

/// Where a piece begins.
#[derive(Clone, Copy, Debug)]
pub struct ForecastPlace {
    file: u64,
    start: u64,
    name: u64,
}

impl ForecastPlace {
    /// A place in the file with this path and this number, in the order of the paths.
    pub fn new(file: u64, path: &[u8], start: u64) -> ForecastPlace {
        // The versions of a program differ in the directory at the top.
        let names: Vec<&[u8]> = path.rsplit(|byte| *byte == b'/').take(2).collect();
        let name = name_hash(&[], name_hash(&names, 0) ^ start);
        ForecastPlace { file, start, name }
    }
}

/// What a piece resembles.
#[derive(Clone, Copy, Debug)]
pub struct ForecastLook {
    hash: u64,
    len: u32,
    sketch: Sketch,
}

impl ForecastLook {
    /// Looks at a piece whose content has a hash that begins like this.
    pub fn new(hash: u64, bytes: &[u8]) -> ForecastLook {
        ForecastLook { hash, len: bytes.len() as u32, sketch: Sketch::of(bytes) }
    }
}

/// A piece of a segment: a file by its number, and the bytes there.
#[derive(Clone, Copy, Debug)]
pub struct ForecastPiece {
    /// The number of the file.
    pub file: u64,
    /// Where it begins there.
    pub start: u64,
    /// Its length, in bytes.
    pub len: u32,
}

/// What a place is among those met.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Met {
    /// The content is new, and is to be looked at.
    New,
    /// The content is known from a place that comes later.
    Earlier,
    /// The content is known, or there are too many pieces.
    Other,
}

/// The pieces met so far, at most as many as one pass of an optimisation has. Each takes up to 400
/// bytes by the time that they are arranged.
#[derive(Debug)]
pub struct Forecast {
    count_max: usize,
    /// The first place of each content.
    places: HashMap<u64, ForecastPlace>,
    looks: Vec<ForecastLook>,
    /// Whether others came later.
    has_rest: bool,
}

impl Forecast {
    /// Begins with no pieces. At most `count_max` are kept.
    pub fn new(count_max: usize) -> Forecast {
        let count_max = count_max.min(PIECE_COUNT_MAX);
        Forecast { count_max, places: HashMap::new(), looks: Vec::new(), has_rest: false }
    }

    /// Takes a place of a piece whose content has a hash that begins like this.
    pub fn meet(&mut self, hash: u64, place: ForecastPlace) -> Met {
        let order = |place: &ForecastPlace| (place.file, place.start);
        let is_full = self.places.len() >= self.count_max;
        match self.places.get_mut(&hash) {
            Some(known) if order(&place) < order(known) => {
                *known = place;
                Met::Earlier
            }
            Some(_) => Met::Other,
            None if is_full => {
                self.has_rest = true;
                Met::Other
            }
            None => {
                self.places.insert(hash, place);
                Met::New
            }
        }
    }

    /// Adds what a new piece resembles.
    pub fn add(&mut self, look: ForecastLook) {
        self.looks.push(look);
    }

    /// Whether there were too many pieces.
    pub fn has_rest(&self) -> bool {
        self.has_rest
    }

    /// Returns the segments of up to `len` bytes that the pieces would be put into.
    pub fn segments(self, len: u32) -> Vec<Vec<ForecastPiece>> {
        let Forecast { places, looks, .. } = self;
        let placed = |look: ForecastLook| Some((*places.get(&look.hash)?, look));
        let mut pieces: Vec<(ForecastPlace, ForecastLook)> =
            looks.into_iter().filter_map(placed).collect();
        pieces.sort_by_key(|(place, _)| (place.file, place.start));
        let items = pieces.iter().zip(0..).map(|((place, look), number)| Item {
            number,
            count: 1,
            len: look.len,
            name: place.name,
            sketch: look.sketch,
            segment: None,
            new_len: 0,
        });
        let segments = arrange(&items.collect::<Vec<Item>>(), len.into(), SEGMENT_PIECES_MAX);
        let piece = |number: u32| {
            let (ForecastPlace { file, start, .. }, look) = pieces[number as usize];
            ForecastPiece { file, start, len: look.len }
        };
        segments.into_iter().map(|numbers| numbers.into_iter().map(piece).collect()).collect()
    }
}
