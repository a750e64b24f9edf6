//! Transformed forms that no writer made, and records with code and samples of all kinds.

use hardpack_engine::pool::fuzzing::{restore_transformed, transformed_form};

use super::input::{Input, content};

const RECORD_LEN_MAX: usize = 100_000;

/// Restores a record from the input.
pub fn decode(data: &[u8]) {
    let mut input = Input(data);
    let codec = input.below(7) as u8;
    let mut record = vec![0; input.below(RECORD_LEN_MAX)];
    let is_restored = restore_transformed(codec, input.rest(), &mut record);
    let mut again = vec![1; record.len()];
    assert!(restore_transformed(codec, data_behind(data), &mut again) == is_restored);
    assert!(!is_restored || again == record, "it depends on what was there before");
}

/// What [`decode`] takes for the form.
fn data_behind(data: &[u8]) -> &[u8] {
    let mut input = Input(data);
    input.below(7);
    input.below(RECORD_LEN_MAX);
    input.rest()
}

/// A record with code and samples comes back.
pub fn round_trip(data: &[u8]) {
    let mut input = Input(data);
    let (mut record, mut starts) = (Vec::new(), Vec::new());
    while !input.is_empty() && record.len() < RECORD_LEN_MAX {
        if !record.is_empty() && input.one_in(2) {
            starts.push(record.len());
        }
        let (kind, len) = (input.below(8), 200 * (1 + input.below(200)));
        let unit = input.short_bytes();
        match kind {
            0 => record.extend(content(u16::from(input.u8()), len)),
            1 => record.extend_from_slice(unit),
            2 => {
                // Samples, whose differences are in the input.
                let mut value = 0_u32;
                for index in 0..len / 2 {
                    let step = unit.get(index % unit.len().max(1)).copied().unwrap_or(1);
                    value =
                        value.wrapping_add(u32::from(step)).wrapping_mul(1 + (index as u32 & 2));
                    record.extend_from_slice(&value.to_le_bytes()[..2]);
                }
            }
            kind => {
                let call: &[u8] = [
                    &[0xE8, 5, 6, 7, 0][..],
                    &[0xE9, 0xE8, 1, 2, 0xFF],
                    &[5, 6, 0xFF, 0xEB],
                    &[1, 0xF0, 3, 0xF8],
                    &[7, 0, 0, 0x94],
                ][kind - 3];
                for index in 0..len / 20 {
                    let shift = index % 7;
                    record.extend_from_slice(&unit[..unit.len().min(16 - shift)]);
                    record.extend_from_slice(call);
                    let at = record.len() - 3;
                    record[at] ^= index as u8;
                }
            }
        }
    }
    let Some(form) = transformed_form(&record, &starts) else { return };
    let mut restored = vec![0; record.len()];
    assert!(restore_transformed(0, &form, &mut restored) && restored == record);
}
