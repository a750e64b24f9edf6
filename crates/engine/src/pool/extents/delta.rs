//! Deltas: patches stored as their differences from the record below.
//!
//! An update of one row changes a few dozen bytes of a page. Stored as edits they fit into the
//! pointer of the patch: no extent is written, and none is freed when the page changes again.
//!
//! A delta is a list of edits in ascending order. Each consists of the number of unchanged bytes
//! (LEB128), the number of replaced bytes (LEB128, not zero), and their new values. Bytes after the
//! last edit are unchanged. A delta always refers to the record, never to another patch, so that
//! reading takes one step.
//!
//! A list that does not fit the bytes it is applied to is damage; applying it never writes outside
//! the given bytes.

/// Runs of equal bytes shorter than this do not end an edit.
const GAP_LEN_MIN: usize = 4;
/// How many bytes are compared at a time.
const STRIDE: usize = 16;

/// Appends to `out` the edits that turn `base` into `new`; bytes past the end of `base` count as
/// zeros. Returns false, with `out` unspecified, if that takes more than `limit` bytes.
pub(in crate::pool) fn encode(base: &[u8], new: &[u8], limit: usize, out: &mut Vec<u8>) -> bool {
    let mut at = 0;
    let mut written_to = 0;
    while let Some(start) = first_difference(base, new, at) {
        let end = edit_end(base, new, start);
        put_number(out, start - written_to);
        put_number(out, end - start);
        out.extend_from_slice(&new[start..end]);
        if out.len() > limit {
            return false;
        }
        (at, written_to) = (end, end);
    }
    true
}

fn byte(base: &[u8], at: usize) -> u8 {
    base.get(at).copied().unwrap_or(0)
}

fn first_difference(base: &[u8], new: &[u8], from: usize) -> Option<usize> {
    let mut at = from;
    while let (Some(old), Some(part)) = (base.get(at..at + STRIDE), new.get(at..at + STRIDE)) {
        if old != part {
            break;
        }
        at += STRIDE;
    }
    (at..new.len()).find(|at| new[*at] != byte(base, *at))
}

/// Returns the end of the edit that begins at `start`: the next run of equal bytes that is long
/// enough to be left out.
fn edit_end(base: &[u8], new: &[u8], start: usize) -> usize {
    let mut end = start + 1;
    for (at, value) in new.iter().enumerate().skip(end) {
        if *value != byte(base, at) {
            end = at + 1;
        } else if at + 1 - end >= GAP_LEN_MIN {
            break;
        }
    }
    end
}

fn put_number(out: &mut Vec<u8>, mut number: usize) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// Reads a number of at most 21 bits.
fn take_number(bytes: &mut &[u8]) -> Option<usize> {
    let mut number = 0;
    for shift in [0, 7, 14] {
        let (first, rest) = bytes.split_first()?;
        *bytes = rest;
        number |= usize::from(first & 0x7f) << shift;
        if first & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

/// Applies a delta for `len` bytes to the part of them that begins at byte `from`. Returns `None`
/// if the delta is malformed.
pub(in crate::pool) fn apply(
    mut delta: &[u8],
    len: usize,
    part: &mut [u8],
    from: usize,
) -> Option<()> {
    let to = from + part.len();
    let mut at = 0;
    while !delta.is_empty() {
        at += take_number(&mut delta)?;
        let count = take_number(&mut delta)?;
        if count == 0 || at + count > len {
            return None;
        }
        let (bytes, rest) = delta.split_at_checked(count)?;
        delta = rest;
        let (start, end) = (at.max(from), (at + count).min(to));
        if start < end {
            part[start - from..end - from].copy_from_slice(&bytes[start - at..end - at]);
        }
        at += count;
    }
    Some(())
}

/// Whether a delta is well-formed for `len` bytes.
pub(in crate::pool) fn is_sound(delta: &[u8], len: usize) -> bool {
    apply(delta, len, &mut [], 0).is_some()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Generates a base, and a new version that differs in a few runs.
    fn versions() -> impl Strategy<Value = (Vec<u8>, Vec<u8>)> {
        let base = prop::collection::vec(any::<u8>(), 0..6000);
        let edits = prop::collection::vec((0..6000_usize, 1..90_usize, any::<u8>()), 0..12);
        (base, 1..6000_usize, edits).prop_map(|(base, len, edits)| {
            let mut new = base.clone();
            new.resize(len, 0);
            for (start, count, value) in edits {
                for byte in new.iter_mut().skip(start).take(count) {
                    *byte = byte.wrapping_add(value);
                }
            }
            (base, new)
        })
    }

    proptest! {
        #[test]
        fn applying_gives_the_new_version((base, new) in versions(), from in 0..6000_usize, len in 0..6000_usize) {
            let mut delta = Vec::new();
            prop_assert!(encode(&base, &new, usize::MAX, &mut delta));
            prop_assert!(is_sound(&delta, new.len()));
            let mut old = base.clone();
            old.resize(new.len(), 0);
            prop_assert_eq!(delta.is_empty(), old == new);
            let from = from.min(new.len());
            let to = (from + len).min(new.len());
            let mut part = old[from..to].to_vec();
            prop_assert!(apply(&delta, new.len(), &mut part, from).is_some());
            prop_assert_eq!(&part, &new[from..to]);
        }

        #[test]
        fn hostile_lists_write_nothing_outside(delta in prop::collection::vec(any::<u8>(), 0..80), len in 0..300_usize) {
            let mut part = vec![7; len];
            let _ = apply(&delta, len, &mut part, 0);
            prop_assert_eq!(part.len(), len);
        }
    }

    #[test]
    fn a_changed_number_takes_a_few_bytes() {
        let base = vec![b'x'; 4096];
        let mut new = base.clone();
        new[2000..2004].copy_from_slice(b"1234");
        new[24..28].copy_from_slice(b"abcd");
        let mut delta = Vec::new();
        assert!(encode(&base, &new, 112, &mut delta));
        assert_eq!(delta, [&[24, 4][..], b"abcd", &[0xb4, 0x0f, 4], b"1234"].concat());
        assert!(!encode(&base, &new, delta.len() - 1, &mut Vec::new()));
    }

    #[test]
    fn edits_behind_the_end_are_refused() {
        assert!(is_sound(&[2, 2, 1, 1], 4));
        assert!(!is_sound(&[2, 2, 1, 1], 3), "past the end");
        assert!(!is_sound(&[2, 2, 1], 4), "cut short");
        assert!(!is_sound(&[2, 0], 4), "an edit of nothing");
        assert!(!is_sound(&[0x80, 0x80, 0x80, 1, 1, 1], 1 << 24), "a number that is too long");
    }
}
