//! The page filter: filtered forms that no encoder wrote, and pages that no SQLite wrote.

use hardpack_engine::codec::{Codec, CodecId, Compression, Encoded, Form, Policy, with_codec};

use super::input::Input;

const RECORD_LEN_MAX: usize = 40_000;

/// Decodes the input as a filtered form, and as a record with pages apart. Decoding twice gives the
/// same bytes.
pub fn decode(data: &[u8]) {
    let mut input = Input(data);
    let len = input.below(RECORD_LEN_MAX);
    let mut stored = input.rest().to_vec();
    decode_as(Form::Apart, &stored, len);
    let form_len = stored.len() as u32;
    stored.extend(form_len.to_le_bytes());
    decode_as(Form::Joint, &stored, len);
}

fn decode_as(form: Form, stored: &[u8], len: usize) {
    let raw = CodecId::Raw as u8;
    let mut record = vec![0; len];
    let src = (stored, form);
    let decoded = with_codec(|codec| codec.decompress_filtered(raw, src, &mut record, None));
    if decoded.is_ok() {
        let mut again = vec![1; len];
        // A codec that has not decoded anything before.
        let decoded = Codec::new().decompress_filtered(raw, src, &mut again, None);
        decoded.expect("it decoded once");
        assert!(again == record, "the second decoding gives other bytes");
    }
    if form == Form::Apart {
        let page = len / 3..(len / 3 + 512).min(len);
        let _ = Codec::new().decompress_apart(raw, stored, &page, len, |_, _| ());
    }
}

/// Filtered records decode to the same bytes, also for nearly valid pages.
pub fn round_trip(data: &[u8]) {
    let mut input = Input(data);
    let page_len = 512 << input.below(5);
    let offset = input.below(4) as u64 * page_len as u64 + [0, 0, 0, 13][input.below(4)];
    let mut record = Vec::new();
    for _ in 0..1 + input.below(6) {
        let is_first = offset == 0 && record.is_empty();
        let page = page(&mut input, page_len, if is_first { 100 } else { 0 });
        record.extend(page);
    }
    if offset == 0 {
        record[..16].copy_from_slice(b"SQLite format 3\0");
        record[16..18].copy_from_slice(&(page_len as u16).to_be_bytes());
    }
    // Parts of the record are overwritten, and it may end anywhere.
    for _ in 0..input.below(8) {
        let at = input.below(record.len());
        record[at] = input.u8();
    }
    record.truncate(record.len() - input.below(20));
    let mut stored = Vec::new();
    with_codec(|codec| {
        // The filter decodes its own output; in a build with assertions it panics if that differs.
        if !codec.filter(&record, offset) {
            return;
        }
        let how =
            codec.encode_filtered(Compression::Lz4, record.len(), &Policy::default(), &mut stored);
        let how = how.expect("lz4 cannot fail");
        let Some((how, form)) = how else { return };
        let (Encoded::Compressed { codec: id, .. } | Encoded::Embedded { codec: id, .. }) = how
        else {
            return;
        };
        assert!(stored.len() < record.len());
        let mut back = vec![0; record.len()];
        let src = (&stored[..], form);
        codec.decompress_filtered(id as u8, src, &mut back, None).expect("it was just encoded");
        assert!(back == record);
        check_parts(codec, id as u8, src, &record);
    });
}

/// Every page of a record decodes alone to the same bytes.
fn check_parts(codec: &mut Codec, id: u8, src: (&[u8], Form), record: &[u8]) {
    for start in (0..record.len()).step_by(512) {
        let range = start..(start + 512).min(record.len());
        let mut part = vec![0; range.len()];
        codec
            .decompress_filtered_part(id, src, &mut part, start, record.len())
            .expect("the whole record decodes");
        assert!(part == record[range.clone()], "the part at {start}");
        if src.1 == Form::Apart {
            let check = |at: usize, page: &[u8]| assert!(record[at..].starts_with(page), "at {at}");
            codec
                .decompress_apart(id, src.0, &range, record.len(), check)
                .expect("the whole record decodes");
        }
    }
}

/// Returns a page of a b-tree with cells from the end down, or bytes of the input.
fn page(input: &mut Input<'_>, len: usize, btree_at: usize) -> Vec<u8> {
    let mut page = vec![0; len];
    let kind = [13, 10, 5, 2, 13, 10, 0, 255][input.below(8)];
    if kind == 0 || kind == 255 {
        let bytes = input.short_bytes();
        page[..bytes.len().min(len)].copy_from_slice(&bytes[..bytes.len().min(len)]);
        return page;
    }
    let header_len = if kind < 8 { 12 } else { 8 };
    let (mut end, mut count) = (len, 0);
    let columns = input.below(5);
    for _ in 0..input.below(60) {
        let mut cell = Vec::new();
        if kind < 8 {
            cell.extend([0, 0, input.u8(), input.u8()]);
        }
        let (mut types, mut bodies) = (Vec::<u8>::new(), Vec::<u8>::new());
        for _ in 0..columns {
            let body = input.short_bytes();
            let body = &body[..body.len().min(50)];
            match body.len() {
                0 => types.push(input.u8() % 16),
                body_len @ (1 | 2 | 4) if input.one_in(2) => {
                    types.push(body_len as u8);
                    bodies.extend(body);
                }
                body_len => {
                    types.push(12 + 2 * body_len as u8 + input.u8() % 2);
                    bodies.extend(body);
                }
            }
        }
        if kind != 5 {
            cell.push((1 + types.len() + bodies.len()).min(127) as u8);
        }
        if kind == 13 || kind == 5 {
            cell.push(input.u8());
        }
        if kind != 5 {
            cell.push(1 + types.len() as u8);
            cell.extend(types);
            cell.extend(bodies);
        }
        let pointer_at = btree_at + header_len + 2 * count;
        let room = cell.len().max(4) + if input.one_in(9) { input.below(5) } else { 0 };
        if pointer_at + 2 + room > end {
            break;
        }
        end -= room;
        page[end..end + cell.len()].copy_from_slice(&cell);
        page[pointer_at..pointer_at + 2].copy_from_slice(&(end as u16).to_be_bytes());
        count += 1;
    }
    page[btree_at] = kind;
    page[btree_at + 3..btree_at + 5].copy_from_slice(&(count as u16).to_be_bytes());
    page[btree_at + 5..btree_at + 7].copy_from_slice(&(end as u16).to_be_bytes());
    page
}
