//! What the kernel is told about a file that others change.

use std::time::UNIX_EPOCH;

use super::*;

const FILE: INodeNo = INodeNo(7);
const ME: Caller = 1;
const OTHER: Caller = 2;

/// A file of this length, which has changed long ago.
fn old(len: u64, epoch: u64) -> Seen {
    let time = UNIX_EPOCH + Duration::from_secs(len);
    Seen { epoch, stamp: Stamp { len, modified: time, changed: time }, is_settled: true }
}

fn open_for_reading(known: &Known, number: INodeNo, now: Seen) -> Opened {
    known.open(number, now, false, ME)
}

#[test]
fn a_file_keeps_its_number_until_others_change_it() {
    let known = Known::default();
    assert_eq!(known.tell(FILE, old(1, 0), ME), FILE);
    // Commits that do not concern it.
    assert_eq!(known.tell(FILE, old(1, 1), ME), FILE);
    assert_eq!(open_for_reading(&known, FILE, old(1, 2)), Opened::Known);
    // Changes of its own, while nobody else commits.
    known.note_change(FILE);
    assert_eq!(known.tell(FILE, old(2, 2), ME), FILE);
    // Somebody else's.
    let second = known.tell(FILE, old(3, 3), ME);
    assert_ne!(second, FILE);
    assert_eq!(first_generation(second), FILE);
    assert_eq!(known.number(FILE), second);
}

#[test]
fn a_mount_may_begin_with_another_generation() {
    let known = Known::with_generation(7);
    let first = known.number(FILE);
    assert_ne!(first, FILE);
    assert_eq!(first_generation(first), FILE);
    assert_eq!(known.tell(FILE, old(1, 0), ME), first);
    assert_eq!(open_for_reading(&known, first, old(1, 0)), Opened::Known);
    assert_eq!(open_for_reading(&known, FILE, old(1, 0)), Opened::Refused);
    // What the kernel has forgotten begins anew.
    assert_ne!(known.tell(FILE, old(2, 1), OTHER), first);
    known.forget(first, 2);
    assert_eq!(known.number(FILE), first);
}

#[test]
fn what_cannot_be_told_apart_counts_as_changed() {
    let known = Known::default();
    known.tell(FILE, old(1, 0), ME);
    known.note_change(FILE);
    assert_eq!(known.unsure(10), [FILE]);
    assert_ne!(known.tell(FILE, old(1, 1), ME), FILE);
    // If length and times are the same, only bytes can be others.
    let known = Known::default();
    known.tell(FILE, Seen { is_settled: false, ..old(1, 0) }, ME);
    assert_eq!(known.unsure(10), [FILE]);
    assert_eq!(known.tell(FILE, old(1, 1), ME), FILE);
    assert_eq!(open_for_reading(&known, FILE, old(1, 1)), Opened::Outdated);
    assert_eq!(open_for_reading(&known, FILE, old(1, 1)), Opened::Known);
    let known = Known::default();
    known.tell(FILE, Seen { is_settled: false, ..old(1, 0) }, ME);
    known.note_seen(FILE, old(1, 0));
    assert!(known.unsure(10).is_empty());
    assert_eq!(known.tell(FILE, old(1, 1), ME), FILE);
    // What was seen too late says nothing.
    known.note_change(FILE);
    known.note_seen(FILE, old(2, 2));
    assert_ne!(known.tell(FILE, old(2, 2), ME), FILE);
}

#[test]
fn a_file_that_is_written_keeps_its_number() {
    let known = Known::default();
    known.tell(FILE, old(1, 0), ME);
    assert_eq!(known.open(FILE, old(1, 0), true, ME), Opened::Known);
    assert_eq!(known.tell(FILE, old(2, 1), OTHER), FILE);
    assert_eq!(known.open(FILE, old(2, 1), true, OTHER), Opened::Outdated);
    known.close(FILE, true);
    assert_eq!(known.tell(FILE, old(2, 1), ME), FILE);
    known.close(FILE, true);
    assert!(!known.is_written(FILE));
    assert_ne!(known.tell(FILE, old(2, 1), ME), FILE);
}

/// Programs may hold locks on what they have open, and locks belong to an inode.
#[test]
fn a_file_that_is_open_keeps_its_number_if_it_keeps_its_length() {
    let known = Known::default();
    known.tell(FILE, old(1, 0), ME);
    assert_eq!(open_for_reading(&known, FILE, old(1, 0)), Opened::Known);
    let mut now = old(1, 1);
    now.stamp.changed += Duration::from_secs(1);
    assert_eq!(known.tell(FILE, now, OTHER), FILE);
    for _ in 0..2 {
        assert_eq!(known.open(FILE, now, false, OTHER), Opened::Outdated);
        known.close(FILE, false);
    }
    known.close(FILE, false);
    // Now the kernel has to learn the times.
    assert_eq!(open_for_reading(&known, FILE, now), Opened::Refused);
    let second = known.tell(FILE, now, ME);
    assert_ne!(second, FILE);
    assert_eq!(open_for_reading(&known, second, now), Opened::Known);
    assert_ne!(known.tell(FILE, old(2, 2), OTHER), second);
}

#[test]
fn who_was_refused_is_not_refused_again() {
    let known = Known::default();
    known.tell(FILE, old(1, 0), ME);
    assert_eq!(open_for_reading(&known, FILE, old(2, 1)), Opened::Refused);
    let second = known.tell(FILE, old(2, 1), ME);
    // Another commit, and somebody else who has seen it: the number stays until I have come back.
    assert_eq!(known.tell(FILE, old(3, 2), OTHER), second);
    assert_eq!(open_for_reading(&known, second, old(3, 2)), Opened::Outdated);
    // That was the second try; this is a first one.
    assert_eq!(open_for_reading(&known, second, old(3, 2)), Opened::Refused);
    let third = known.tell(FILE, old(3, 2), OTHER);
    assert_ne!(second, third);
    assert_eq!(known.open(third, old(3, 2), false, OTHER), Opened::Known);
}

/// Bytes that are written to one inode are not seen through another one.
#[test]
fn only_one_generation_is_written_to() {
    let known = Known::default();
    known.tell(FILE, old(1, 0), ME);
    let second = known.tell(FILE, old(2, 1), ME);
    // An open file that comes with an older number, from before.
    assert_eq!(known.open(FILE, old(2, 1), true, OTHER), Opened::Refused);
    assert_eq!(known.open(second, old(2, 1), true, ME), Opened::Known);
    assert_eq!(known.open(FILE, old(2, 1), true, OTHER), Opened::Refused);
    assert_eq!(known.tell(FILE, old(3, 2), OTHER), second);
    assert_eq!(known.open(second, old(3, 2), true, OTHER), Opened::Outdated);
    known.close(second, true);
    known.close(second, true);
    let third = known.tell(FILE, old(3, 2), ME);
    assert!(![FILE, second].contains(&third));
}

#[test]
fn numbers_stay_if_the_kernel_believes_the_server() {
    let known = Known::default();
    known.believe_server();
    known.tell(FILE, old(1, 0), ME);
    assert_eq!(known.open(FILE, old(2, 1), true, ME), Opened::Outdated);
    assert_eq!(known.open(FILE, old(2, 1), true, ME), Opened::Known);
    assert_eq!(known.tell(FILE, old(3, 2), ME), FILE);
}

#[test]
fn it_is_forgotten_with_the_last_of_its_numbers() {
    let known = Known::default();
    known.tell(FILE, old(1, 0), ME);
    let second = known.tell(FILE, old(2, 1), ME);
    known.forget(second, 1);
    assert_eq!(known.number(FILE), second);
    known.forget(FILE, 1);
    assert_eq!(known.number(FILE), FILE);
}
