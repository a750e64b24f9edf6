//! Tests what a survey says about free space between extents that stay where they are.

use crate::store::survey::Survey;
use crate::units::{Ashift, Run, Sector};

/// The sectors in front of all extents.
const FRONT: u64 = (2 + 8) * 8;

/// What `lengths` leaves of the gaps between these runs, counted from the first sector of extents.
fn unusable(staying: &[(u64, u64)], lengths: &[u64]) -> u64 {
    let mut survey = Survey::default();
    for (start, sectors) in staying {
        survey.stays(Run { start: Sector(FRONT + start), sectors: *sectors });
    }
    lengths.iter().for_each(|sectors| survey.add(*sectors));
    survey.unusable(Ashift::MIN)
}

#[test]
fn gaps_are_worth_what_fits_into_them() {
    assert_eq!(unusable(&[], &[5, 5]), 0);
    // Everything fits: the pool cannot end before what stays.
    assert_eq!(unusable(&[(100, 10)], &[30, 20]), 50);
    // Nothing does.
    assert_eq!(unusable(&[(0, 10), (15, 10), (30, 1)], &[6, 200]), 10);
    // The longest first, and what remains of its gap for others.
    assert_eq!(unusable(&[(10, 1), (15, 1)], &[4, 6, 4]), 0);
    // The tightest gap.
    assert_eq!(unusable(&[(10, 1), (15, 1)], &[4, 10]), 0);
    // Several of one length, in gaps of several lengths.
    assert_eq!(unusable(&[(10, 1), (21, 1), (25, 1)], &[3; 6]), 1 + 4);
    // Runs that touch, overlap, or are met twice.
    assert_eq!(unusable(&[(4, 4), (0, 5), (4, 4), (8, 2), (12, 1)], &[3]), 2);
}

/// The gap in front counts, the reserved sectors do not.
#[test]
fn reserved_sectors_are_no_gap() {
    let reserved = (1 << 30) / 512 - FRONT;
    let gap = reserved - 10 + 28;
    assert_eq!(unusable(&[(0, 10), (reserved + 128 + 28, 5)], &[]), gap);
    assert_eq!(unusable(&[(0, 10), (reserved + 128 + 28, 5)], &[29]), gap - 29);
}

/// Of too many runs, those with the shortest gaps between them count as one.
#[test]
fn the_shortest_gaps_are_ignored_if_there_are_too_many() {
    let mut survey = Survey::default();
    let mut at = FRONT;
    for n in 0..(1 << 20) + 2 {
        let mut part = Survey::default();
        part.stays(Run { start: Sector(at), sectors: 1 });
        survey.append(part);
        at += if n % 1024 == 0 { 21 } else { 2 };
    }
    assert_eq!(survey.unusable(Ashift::MIN), 20 * 1025);
}
