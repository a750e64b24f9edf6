//! Inflated forms that no writer made, and records with deflate streams of all kinds.

use hardpack_engine::codec::deflated;
use hardpack_engine::pool::fuzzing::{inflated_form, restore_inflated};

use super::input::{Input, content};

const RECORD_LEN_MAX: usize = 60_000;

/// Restores a record from the input, and a part of it, which has the same bytes.
pub fn decode(data: &[u8]) {
    let mut input = Input(data);
    let len = input.below(RECORD_LEN_MAX);
    let start = input.below(len + 1);
    let part_len = input.below(len + 1 - start);
    let form = input.rest();
    let mut whole = vec![0; len];
    let mut part = vec![0; part_len];
    let has_whole = restore_inflated(form, len, 0, &mut whole);
    // Less than the whole can be sound where the whole is not.
    let has_part = restore_inflated(form, len, start, &mut part);
    assert!(has_part || !has_whole, "a part cannot be restored");
    if has_whole {
        assert!(part == whole[start..start + part_len], "the part has other bytes");
    }
}

/// A record with streams comes back, whole and in part.
pub fn round_trip(data: &[u8]) {
    let mut input = Input(data);
    let mut record = Vec::new();
    while !input.is_empty() && record.len() < RECORD_LEN_MAX {
        match input.below(6) {
            0 => record.extend_from_slice(input.short_bytes()),
            1 => record.extend(b"PK\x03\x04\x14\0\0\0\x08\0"),
            kind => {
                let text = content(u16::from(input.u8()), 100 + 50 * input.below(200));
                let settings =
                    u16::from(input.below(9) as u8 + 1) | 0x0f80 | u16::from(kind == 5) << 4;
                record.extend(if kind == 2 {
                    &[0x78, 0x9c][..]
                } else {
                    b"\x1f\x8b\x08\0\0\0\0\0\0\x03"
                });
                let stream = deflated(&text, settings).expect("the settings exist");
                // It may be cut off, or damaged.
                let len = if input.one_in(8) { input.below(stream.len()) } else { stream.len() };
                record.extend_from_slice(&stream[..len]);
                if input.one_in(8) {
                    let at = record.len() - 1 - input.below(len.max(1)).min(record.len() - 1);
                    record[at] ^= input.u8();
                }
            }
        }
    }
    let Some(form) = inflated_form(&record) else { return };
    let mut whole = vec![0; record.len()];
    assert!(restore_inflated(&form, record.len(), 0, &mut whole) && whole == record);
    let start = input.below(record.len());
    let mut part = vec![0; (record.len() - start).min(1000)];
    assert!(restore_inflated(&form, record.len(), start, &mut part));
    assert!(part == record[start..start + part.len()]);
}
