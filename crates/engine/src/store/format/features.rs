//! Features by name: a superblock names its feature bits, so that a reader older than a feature can
//! tell its user what is missing.
//!
//! ```text
//! i0=deltas i1=dictionaries r3=quotas    set (c compat, r read-only-compat, i incompat), bit, name
//! ```
//!
//! The bits decide; the names are only for messages. Entries of any other form are ignored.

use std::fmt::Write;

use crate::store::format::superblock::{
    FEATURE_CHUNKS, FEATURE_DELTAS, FEATURE_DICTIONARIES, FEATURE_DIFFERENCES,
    FEATURE_FILTERED_DIFFERENCES, FEATURE_GENERATIONS, FEATURE_INFLATED, FEATURE_LZMA,
    FEATURE_NAMES, FEATURE_PAGE_FILTER, FEATURE_PAGES_APART, FEATURE_PARTS_BY_CONTENT,
    FEATURE_PASSING, FEATURE_PINNED_READERS, FEATURE_READER_SLOTS, FEATURE_ROOTS,
    FEATURE_SECOND_BASES, FEATURE_SEGMENTS, FEATURE_SHARED, FEATURE_SHORT_PART_HASHES,
    FEATURE_SNAPSHOT_IDS, FEATURE_SNAPSHOTS, FEATURE_SPECIAL_FILES, FEATURE_TRANSFORMED,
};

/// The length of the field in a superblock, in bytes.
pub(in crate::store) const FEATURE_NAMES_LEN: usize = 512;
/// The maximum number of features named in a message.
const NAMED_COUNT_MAX: usize = 8;
/// The maximum length of a name, in bytes.
const NAME_LEN_MAX: usize = 40;

/// The sets of features that must not be ignored if unknown.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::store) enum Set {
    /// Unknown features of this set forbid writing.
    ReadOnlyCompat,
    /// Unknown features of this set forbid reading.
    Incompat,
}

impl Set {
    fn letter(self) -> char {
        match self {
            Set::ReadOnlyCompat => 'r',
            Set::Incompat => 'i',
        }
    }
}

/// The features that this version knows.
const KNOWN: [(Set, u64, &str); 24] = [
    (Set::Incompat, FEATURE_DELTAS, "deltas"),
    (Set::Incompat, FEATURE_DICTIONARIES, "dictionaries"),
    (Set::Incompat, FEATURE_ROOTS, "roots"),
    (Set::Incompat, FEATURE_SNAPSHOTS, "snapshots"),
    (Set::Incompat, FEATURE_SHARED, "shared-extents"),
    (Set::Incompat, FEATURE_NAMES, "names"),
    (Set::Incompat, FEATURE_PAGE_FILTER, "page-filter"),
    (Set::Incompat, FEATURE_GENERATIONS, "generations"),
    (Set::Incompat, FEATURE_SNAPSHOT_IDS, "snapshot-ids"),
    (Set::Incompat, FEATURE_PINNED_READERS, "pinned-readers"),
    (Set::Incompat, FEATURE_READER_SLOTS, "reader-slots"),
    (Set::Incompat, FEATURE_SPECIAL_FILES, "special-files"),
    (Set::Incompat, FEATURE_PAGES_APART, "pages-apart"),
    (Set::Incompat, FEATURE_SEGMENTS, "segments"),
    (Set::Incompat, FEATURE_PARTS_BY_CONTENT, "parts-by-content"),
    (Set::Incompat, FEATURE_CHUNKS, "chunks"),
    (Set::Incompat, FEATURE_PASSING, "passing-superblocks"),
    (Set::Incompat, FEATURE_INFLATED, "inflated"),
    (Set::Incompat, FEATURE_TRANSFORMED, "transformed"),
    (Set::Incompat, FEATURE_LZMA, "lzma"),
    (Set::Incompat, FEATURE_DIFFERENCES, "differences"),
    (Set::Incompat, FEATURE_SHORT_PART_HASHES, "short-part-hashes"),
    (Set::Incompat, FEATURE_FILTERED_DIFFERENCES, "filtered-differences"),
    (Set::Incompat, FEATURE_SECOND_BASES, "second-bases"),
];

fn is_known(set: char, bit: u32) -> bool {
    KNOWN.iter().any(|(known, mask, _)| known.letter() == set && mask.trailing_zeros() == bit)
}

/// Parses an entry such as `i7=column-filter`.
fn parse(entry: &str) -> Option<(char, u32, &str)> {
    let (which, name) = entry.split_once('=')?;
    let set = which.chars().next().filter(|set| "cri".contains(*set))?;
    let bit = which[1..].parse().ok().filter(|bit| *bit < u64::BITS)?;
    let is_fit = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let is_name = (1..=NAME_LEN_MAX).contains(&name.len()) && name.chars().all(is_fit);
    is_name.then_some((set, bit, name))
}

/// Returns the field for a superblock with these incompatible features: the names of those known to
/// this version, then the `foreign` ones that came with the pool.
pub(in crate::store) fn encode(incompat: u64, foreign: &str) -> Vec<u8> {
    let mut text = String::with_capacity(FEATURE_NAMES_LEN);
    for (set, mask, name) in KNOWN {
        if incompat & mask != 0 {
            // Writing to a string cannot fail.
            let _ = write!(text, "{}{}={name} ", set.letter(), mask.trailing_zeros());
        }
    }
    text += foreign;
    text.truncate(text.trim_end().len());
    let mut field = text.into_bytes();
    field.resize(FEATURE_NAMES_LEN, 0);
    field
}

/// Returns the entries of a field for features that this version does not know, in the same form.
pub(in crate::store) fn foreign(field: &[u8]) -> String {
    let end = field.iter().position(|byte| *byte == 0).unwrap_or(field.len());
    let Ok(text) = std::str::from_utf8(&field[..end]) else { return String::new() };
    let entries = text
        .split(' ')
        .filter(|entry| parse(entry).is_some_and(|(set, bit, _)| !is_known(set, bit)));
    entries.collect::<Vec<_>>().join(" ")
}

/// Describes the features of these bits, such as `column-filter (bit 7), bit 9`.
pub(in crate::store) fn describe(set: Set, bits: u64, foreign: &str) -> String {
    let words = (0..u64::BITS).filter(|bit| bits >> bit & 1 == 1).map(|bit| {
        let named = foreign.split(' ').filter_map(parse);
        let mut names = named.filter(|(s, b, _)| (*s, *b) == (set.letter(), bit));
        match names.next() {
            Some((_, _, name)) => format!("{name} (bit {bit})"),
            None => format!("bit {bit}"),
        }
    });
    let mut text = words.take(NAMED_COUNT_MAX).collect::<Vec<_>>().join(", ");
    let more = (bits.count_ones() as usize).saturating_sub(NAMED_COUNT_MAX);
    if more > 0 {
        text += &format!(" and {more} more");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_unknown_features_come_through() {
        let mine = encode(FEATURE_DELTAS, "i40=column-filter r3=quotas");
        assert!(mine.starts_with(b"i0=deltas i40=column-filter r3=quotas\0"));
        assert_eq!(foreign(&mine), "i40=column-filter r3=quotas");
        assert_eq!(
            describe(Set::Incompat, 3 << 40, &foreign(&mine)),
            "column-filter (bit 40), bit 41"
        );
        assert_eq!(describe(Set::ReadOnlyCompat, 8, &foreign(&mine)), "quotas (bit 3)");
        assert_eq!(describe(Set::ReadOnlyCompat, 0x80, &foreign(&mine)), "bit 7");
        assert!(describe(Set::Incompat, u64::MAX, "").ends_with(", bit 7 and 56 more"));
        assert_eq!(encode(0, ""), [0; FEATURE_NAMES_LEN]);
    }

    #[test]
    fn what_is_no_name_is_passed_over() {
        for text in
            ["", "x7=name", "i=name", "i64=name", "i40", "i40=", "i40=\u{1b}[2J", "i-1=a", "\u{e9}"]
        {
            assert_eq!(foreign(text.as_bytes()), "", "{text:?}");
        }
        assert_eq!(foreign(&[0xff; 512]), "");
        assert_eq!(foreign(format!("i40={}", "a".repeat(41)).as_bytes()), "");
        assert_eq!(foreign(b"i40=a i0=deltas junk r1=b"), "i40=a r1=b");
    }
}
