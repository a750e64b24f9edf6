//! The filtered form of a small record, byte for byte, as `docs/page-filter.md` specifies it: forms
//! written once must stay readable.

use hardpack_page_filter::PageFilter;

const PAGE_LEN: usize = 512;

/// A table leaf with five rows (id, NULL, integer, text), then a page that is not a b-tree page,
/// then part of a page.
fn record() -> Vec<u8> {
    let mut record = vec![0u8; PAGE_LEN];
    let rows: [(u8, u8, &str); 5] =
        [(1, 10, "ab"), (2, 12, "abc"), (3, 15, "b"), (4, 19, "abcd"), (7, 0, "")];
    let mut end = PAGE_LEN;
    for (i, (id, int, text)) in rows.iter().enumerate() {
        let mut payload = vec![4, 0, if *int == 0 { 8 } else { 1 }, 13 + 2 * text.len() as u8];
        if *int != 0 {
            payload.push(*int);
        }
        payload.extend(text.bytes());
        let mut cell = vec![payload.len() as u8, *id];
        cell.extend(payload);
        end -= cell.len();
        record[end..end + cell.len()].copy_from_slice(&cell);
        record[8 + 2 * i..10 + 2 * i].copy_from_slice(&(end as u16).to_be_bytes());
    }
    record[..8].copy_from_slice(&[13, 0, 0, 0, 5, (end >> 8) as u8, end as u8, 0]);
    record.extend([0, 0, 0, 9]);
    record.extend([0xEE; PAGE_LEN - 4]);
    record.extend([0xDD; 3]);
    record
}

#[test]
fn the_form_of_a_small_record_is_fixed() {
    let (record, mut filtered, mut filter) = (record(), Vec::new(), PageFilter::new());
    // The record starts with the file's second page.
    assert!(filter.encode(&record, 512, PAGE_LEN, &mut filtered));
    let mut expected = Vec::new();
    // Header: 2^9 bytes per page, none reserved, no head, first page 2.
    expected.extend([9, 0, 0, 2]);
    let control = [
        vec![4, 3],              // kinds: 2, 0
        vec![12],                // words: 9 - page 3
        vec![10],                // cell counts: 5
        vec![0],                 // flags
        vec![13, 3],             // group: table leaf, three columns
        vec![0x11, 2],           // row ids: delta in one plane, from 1
        vec![0x80],              // column 0: all NULL
        vec![0x81, 0x21, 20, 4], // column 1: all integers, delta of deltas in one plane, from 10 by 2
        vec![0x84, 0],           // column 2: all text, terminated
        vec![0],                 // rows with overflow pages: none
    ]
    .concat();
    let planes = [vec![2, 2, 2, 6], vec![2, 2, 45]].concat();
    let text = b"ab\0abc\0b\0abcd\0\0";
    expected.extend([control.len() as u8, 0, planes.len() as u8, text.len() as u8, 0]);
    expected.extend(control);
    expected.extend(planes);
    expected.extend(text);
    expected.extend([0xEE; PAGE_LEN - 4]);
    expected.extend([0xDD; 3]);
    assert_eq!(filtered, expected);
    let mut decoded = vec![0; record.len()];
    filter.decode(&filtered, &mut decoded).expect("decoding");
    assert_eq!(decoded, record);
}
