//! The round trip shared by the tests.

use hardpack_page_filter::PageFilter;

/// Encodes and decodes a record. Returns its filtered form, if it has one.
pub fn round_trip<'a>(
    filter: &mut PageFilter,
    record: &[u8],
    offset: u64,
    page_len: usize,
    filtered: &'a mut Vec<u8>,
    what: &str,
) -> Option<&'a [u8]> {
    if !filter.encode(record, offset, page_len, filtered) {
        return None;
    }
    // Leftovers of an earlier record must not matter.
    let mut decoded = vec![0xA5; record.len()];
    filter
        .decode(filtered, &mut decoded)
        .unwrap_or_else(|error| panic!("{what}: offset {offset}, page length {page_len}: {error}"));
    if let Some(at) = decoded.iter().zip(record).position(|(a, b)| a != b) {
        panic!("{what}: offset {offset}, page length {page_len}: differs at byte {at}");
    }
    assert!(filter.restores(filtered, record), "{what}: offset {offset}: it restores the record");
    for at in [0, record.len() / 3, record.len() - 1] {
        decoded[at] ^= 1;
        assert!(!filter.restores(filtered, &decoded), "{what}: offset {offset}: {at} differs");
        decoded[at] ^= 1;
    }
    // Decode parts at several positions, with leftovers of other parts.
    for (at, of) in [(0, 1), (1, 2), (1, 3), (1, 5), (4, 5), (1, 1)] {
        let start = (record.len() * at / of).min(record.len().saturating_sub(1));
        for len in [1, 512, 4096, 16384] {
            let part = start..(start + len).min(record.len());
            let out = &mut decoded[..part.len()];
            out.fill(0x5A);
            filter.decode_part(filtered, record.len(), start, out).expect("decoding of a part");
            let is_same = *out == record[part.clone()];
            assert!(is_same, "{what}: offset {offset}: {part:?}");
        }
    }
    Some(filtered)
}
