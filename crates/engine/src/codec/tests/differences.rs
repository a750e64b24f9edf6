//! Tests of differences between filtered records.

use super::*;

const PAGE_LEN: usize = 4096;

/// Returns leaf pages of a table, of which some rows depend on `version`; one page in `interior` is
/// above them.
fn pages(count: usize, version: u64, interior: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    for number in 0..count {
        let mut page = vec![0; PAGE_LEN];
        let is_interior = number % interior == interior - 1;
        let (mut end, rows) = (PAGE_LEN, 60);
        for row in 0..rows {
            let id = 128 + (number * rows + row) % 16_000;
            let id = [(id >> 7) as u8 | 0x80, id as u8 & 0x7f];
            let name = text(20, (number * rows + row) as u64);
            let value = if row % 3 == 0 { 20_000 + 7 * version as u16 } else { 17_000 };
            let cell = match is_interior {
                true => [&(number as u32 + row as u32).to_be_bytes()[..], &id].concat(),
                false => {
                    let head = [[6 + 20, id[0], id[1], 4].as_slice(), &[0, 2, 13 + 40]].concat();
                    [&head[..], &value.to_be_bytes(), &name[..20]].concat()
                }
            };
            end -= cell.len();
            page[end..end + cell.len()].copy_from_slice(&cell);
            let at = if is_interior { 12 } else { 8 } + 2 * row;
            page[at..at + 2].copy_from_slice(&(end as u16).to_be_bytes());
        }
        page[0] = if is_interior { 5 } else { 13 };
        page[3..5].copy_from_slice(&(rows as u16).to_be_bytes());
        page[5..7].copy_from_slice(&(end as u16).to_be_bytes());
        bytes.extend(page);
    }
    bytes
}

/// Stores a record as a filtered one, and returns the bytes and their form.
fn filtered(codec: &mut Codec, compression: Compression, record: &[u8]) -> (Vec<u8>, Form) {
    let policy = Policy { sector: 512, min_savings: 0, embed_limit: 0 };
    assert!(codec.filter(record, 1 << 20));
    let mut stored = Vec::new();
    let encoded = codec.encode_filtered(compression, record.len(), &policy, &mut stored).unwrap();
    (stored, encoded.expect("it saves something").1)
}

struct Difference {
    forms: Vec<u8>,
    stored: Vec<u8>,
    record: Vec<u8>,
    id: u8,
}

fn difference(codec: &mut Codec, compression: Compression, interior: usize) -> Difference {
    let (base, record) = (pages(16, 1, interior), pages(15, 2, interior));
    let (stored, form) = filtered(codec, Compression::Lz4, &base);
    assert_eq!(form == Form::Apart, interior <= 16, "{interior}");
    let forms = codec.forms(CodecId::Lz4 as u8, (&stored, form), base.len()).unwrap();
    assert!(codec.filter_joint(&record, 1 << 20));
    let mut stored = Vec::new();
    codec.compress_filtered_after(compression, &forms, &mut stored).unwrap();
    Difference { forms, stored, record, id: compression.codec_id() as u8 }
}

#[test]
fn a_difference_between_forms_gives_the_record_back() {
    let mut codec = Codec::new();
    let all = [1, 3, 19].map(Compression::Zstd).into_iter();
    for compression in all.chain([Compression::ZstdFast(1), Compression::Lzma(6)]) {
        for interior in [8, 100] {
            let Difference { forms, stored, record, id } =
                difference(&mut codec, compression, interior);
            let mut found = vec![1; record.len()];
            codec.decompress_filtered_after(id, &forms, &stored, &mut found).unwrap();
            assert!(found == record, "{compression}");
            let (alone, _) = filtered(&mut codec, compression, &record);
            assert!(
                stored.len() * 3 < alone.len(),
                "{compression}: {} {}",
                stored.len(),
                alone.len()
            );
        }
    }
}

/// What is damaged is an error or other bytes, and never a panic.
#[test]
fn malformed_differences_between_forms_are_refused() {
    let mut codec = Codec::new();
    for compression in [Compression::Zstd(3), Compression::Lzma(1)] {
        let Difference { forms, stored, record, id } = difference(&mut codec, compression, 8);
        let mut found = vec![0; record.len()];
        for len in [0, 3, 4, 5, stored.len() / 2, stored.len() - 1] {
            let cut = codec.decompress_filtered_after(id, &forms, &stored[..len], &mut found);
            assert!(cut.is_err(), "{compression}, {len} bytes");
        }
        let (mut wrong, mut refused) = (0, 0);
        for at in 0..stored.len() {
            let mut stored = stored.clone();
            stored[at] ^= 1 << (at % 8);
            match codec.decompress_filtered_after(id, &forms, &stored, &mut found) {
                Err(_) => refused += 1,
                Ok(()) => wrong += 1,
            }
        }
        assert!(refused > wrong / 4, "{refused} {wrong}");
        // The length of the form is limited before anything is allocated.
        let mut long = stored.clone();
        let at = long.len() - 4;
        long[at..].copy_from_slice(&u32::MAX.to_le_bytes());
        let long = codec.decompress_filtered_after(id, &forms, &long, &mut found);
        assert!(long.unwrap_err().to_string().contains("too long"));
        // Another base, another length, another codec.
        let other = &forms[..forms.len() - 1];
        let other = codec.decompress_filtered_after(id, other, &stored, &mut found);
        assert!(other.is_err() || found != record);
        let mut short = vec![0; record.len() - PAGE_LEN];
        assert!(codec.decompress_filtered_after(id, &forms, &stored, &mut short).is_err());
        for codec_id in [CodecId::Raw, CodecId::Lz4, CodecId::Gzip] {
            let id = codec_id as u8;
            assert!(codec.decompress_filtered_after(id, &forms, &stored, &mut found).is_err());
        }
        codec.decompress_filtered_after(id, &forms, &stored, &mut found).unwrap();
        assert!(found == record, "the codec remains usable");
    }
}
