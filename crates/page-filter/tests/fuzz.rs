//! Pages that SQLite never writes, and filtered forms that no encoder writes. Seeded; a failure
//! prints its seed.
//!
//! `HARDPACK_FUZZ_COUNT` sets the number of cases per test.

mod common;

use common::round_trip;
use hardpack_page_filter::{PageFilter, RECORD_LEN_MAX};

/// A small pseudo-random number generator (xorshift64*), so that a seed reproduces a failure.
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit.max(1) as u64) as usize
    }
}

fn case_count() -> u64 {
    std::env::var("HARDPACK_FUZZ_COUNT").map_or(2000, |count| count.parse().expect("a number"))
}

fn push_varint(out: &mut Vec<u8>, value: u64) {
    let mut groups = vec![(value & 0x7f) as u8];
    let mut rest = value >> 7;
    while rest > 0 {
        groups.push((rest & 0x7f) as u8 | 0x80);
        rest >>= 7;
    }
    groups.reverse();
    out.extend(groups);
}

/// Draws a field: its serial type and body.
fn field(random: &mut Random) -> (u64, Vec<u8>) {
    let bytes = |random: &mut Random, len: usize| -> Vec<u8> {
        (0..len).map(|_| random.next() as u8).collect()
    };
    match random.below(8) {
        0 => (0, vec![]),
        1 => (8 + random.next() % 2, vec![]),
        2 => {
            let serial = 1 + random.below(7);
            let body = bytes(random, [0, 1, 2, 3, 4, 6, 8, 8][serial]);
            (serial as u64, body)
        }
        3 => (7, (random.below(100_000) as f64 / 1000.0).to_be_bytes().to_vec()),
        4 => (1, vec![random.next() as u8]),
        5 => {
            let len = random.below(40);
            (12 + 2 * len as u64, bytes(random, len))
        }
        _ => {
            let mut text = format!("text {}", random.below(300));
            if random.below(5) > 0 {
                text += &date(random);
            }
            (13 + 2 * text.len() as u64, text.into_bytes())
        }
    }
}

/// Draws a date in one of a few notations. Some dates do not exist.
fn date(random: &mut Random) -> String {
    let (hour, minute, second) = (random.below(12), random.below(61), random.below(60));
    let day = 27 + random.below(4);
    match random.below(5) {
        0 => format!(" 2024-02-{day}"),
        1 => format!(" 2024-02-{day} {hour:02}:{minute:02}:{second:02}"),
        2 => format!(" 2024-02-{day}T{hour:02}:{minute:02}:{second:02}Z"),
        3 => format!(" [{day}/Feb/2024:{hour:02}:{minute:02}:{second:02}]"),
        _ => format!(" Feb {day:2} {hour:02}:{minute:02}:{second:02} ü"),
    }
}

/// Draws a typical page: cells as SQLite writes them, from the end down.
fn btree_page(random: &mut Random, page_len: usize, btree_at: usize) -> Vec<u8> {
    let kind = [2u8, 5, 10, 13][random.below(4)];
    let mut page = vec![0u8; page_len];
    let header_len = if kind < 8 { 12 } else { 8 };
    let column_count = random.below(6);
    let (mut end, mut count, mut row_id) = (page_len, 0, random.next() >> random.below(64));
    let count_max = random.below(200);
    while count < count_max {
        let mut cell = Vec::new();
        if kind < 8 {
            cell.extend((random.next() as u32).to_be_bytes());
        }
        let fields: Vec<_> = (0..column_count).map(|_| field(random)).collect();
        let mut types = Vec::new();
        fields.iter().for_each(|(serial, _)| push_varint(&mut types, *serial));
        let bodies: Vec<u8> = fields.into_iter().flat_map(|(_, body)| body).collect();
        if kind != 5 {
            push_varint(&mut cell, (types.len() + 1 + bodies.len()) as u64);
        }
        if kind == 5 || kind == 13 {
            row_id = row_id.wrapping_add(random.next() % 3) & (u64::MAX >> 8);
            push_varint(&mut cell, row_id);
        }
        if kind != 5 {
            push_varint(&mut cell, types.len() as u64 + 1);
            cell.extend(types);
            cell.extend(bodies);
        }
        let pointer_at = btree_at + header_len + 2 * count;
        let hole = if random.below(20) == 0 { random.below(9) } else { 0 };
        let room = cell.len().max(4) + hole;
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

fn shuffle_pointers(random: &mut Random, page: &mut [u8], btree_at: usize) {
    let header_len = if page[btree_at] < 8 { 12 } else { 8 };
    let count = usize::from(page[btree_at + 3]) << 8 | usize::from(page[btree_at + 4]);
    for i in 1..count {
        let (a, b) =
            (btree_at + header_len + 2 * i, btree_at + header_len + 2 * random.below(i + 1));
        page.swap(a, b);
        page.swap(a + 1, b + 1);
    }
}

fn record(random: &mut Random, page_len: usize, offset: u64) -> Vec<u8> {
    let mut record = Vec::new();
    for i in 0..1 + random.below(12) {
        let btree_at = if offset == 0 && i == 0 { 100 } else { 0 };
        let page = match random.below(6) {
            0 => vec![0; page_len],
            1 => (0..page_len).map(|_| random.next() as u8).collect(),
            kind => {
                let mut page = btree_page(random, page_len, btree_at);
                if kind == 2 {
                    shuffle_pointers(random, &mut page, btree_at);
                }
                page
            }
        };
        record.extend(page);
    }
    record
}

/// Flips, sets, copies or cuts bytes, mostly near the front of pages.
fn mutate(random: &mut Random, bytes: &mut [u8], page_len: usize) {
    for _ in 0..random.below(6) {
        if bytes.is_empty() {
            return;
        }
        let at = match random.below(3) {
            0 => random.below(bytes.len()),
            1 => random.below(64.min(bytes.len())),
            _ => (random.below(bytes.len() / page_len + 1) * page_len + random.below(40))
                .min(bytes.len() - 1),
        };
        match random.below(5) {
            0 => bytes[at] ^= 1 << random.below(8),
            1 => bytes[at] = random.next() as u8,
            2 => bytes[at] = [0, 1, 0x7f, 0x80, 0xff][random.below(5)],
            3 => {
                let len = random.below(64).min(bytes.len() - at);
                let from = random.below(bytes.len() - len + 1);
                bytes.copy_within(from..from + len, at);
            }
            _ => bytes[at] = bytes[at].wrapping_add(1),
        }
    }
}

#[test]
fn mutated_pages_come_back() {
    let mut filter = PageFilter::new();
    let mut filtered = Vec::new();
    let mut filtered_count = 0;
    for seed in 0..case_count() {
        let mut random = Random::new(seed);
        let page_len = 512 << random.below(8);
        let offset =
            if random.below(3) == 0 { 0 } else { random.next() >> (20 + random.below(20)) };
        let mut record = record(&mut random, page_len, offset);
        mutate(&mut random, &mut record, page_len);
        let cut = if random.below(3) == 0 { random.below(record.len()) } else { record.len() };
        record.truncate(cut);
        let aligned = offset / page_len as u64 * page_len as u64;
        let offset = if random.below(2) == 0 { aligned } else { offset };
        let what = format!("seed {seed}");
        let form = round_trip(&mut filter, &record, offset, page_len, &mut filtered, &what);
        filtered_count += u64::from(form.is_some());
    }
    assert!(filtered_count * 4 > case_count(), "only {filtered_count} records were filtered");
}

#[test]
fn mutated_forms_neither_panic_nor_take_much_memory() {
    let mut filtered = Vec::new();
    let mut accepted = 0u64;
    for seed in 0..case_count() {
        let mut random = Random::new(seed);
        let page_len = 512 << random.below(4);
        let record = record(&mut random, page_len, 0);
        let mut filter = PageFilter::new();
        if !filter.encode(&record, 0, page_len, &mut filtered) {
            continue;
        }
        for _ in 0..20 {
            let mut mutated = filtered.clone();
            mutate(&mut random, &mut mutated, 4096);
            if random.below(8) == 0 {
                mutated.truncate(random.below(mutated.len()));
            }
            let mut decoder = PageFilter::new();
            let mut out = vec![0; record.len() + random.below(2)];
            let is_right = decoder.decode(&mutated, &mut out).is_ok();
            accepted += u64::from(is_right);
            assert_eq!(decoder.restores(&mutated, &out), is_right, "seed {seed}");
            let (len, start) = (out.len(), random.below(out.len()));
            let part_len = random.below(len);
            let found = decoder.decode_part(&mutated, len, start, &mut out[..part_len]);
            assert!(start + part_len <= len || found.is_err(), "seed {seed}");
            let len = decoder.len_in_memory();
            let allowed = 200 * out.len() + (1 << 20);
            assert!(len <= allowed, "seed {seed}: {len} bytes for a record of {}", out.len());
        }
    }
    assert!(accepted > 0, "no form was left whole");
}

#[test]
fn any_bytes_are_refused_or_decoded() {
    let mut filter = PageFilter::new();
    let mut out = vec![0; 16384];
    for seed in 0..case_count() {
        let mut random = Random::new(seed);
        let mut bytes = vec![9 + random.below(8) as u8, 0, 0, 1];
        bytes.extend((0..5).map(|_| random.below(100) as u8));
        let small = random.below(2) == 0;
        bytes.extend(
            (0..random.below(600))
                .map(|_| if small { random.below(20) as u8 } else { random.next() as u8 }),
        );
        let _ = filter.decode(&bytes, &mut out);
        let (start, len) = (random.below(16384), random.below(16384));
        let _ = filter.decode_part(&bytes, 16384, start, &mut out[..len]);
    }
}

#[test]
fn records_that_are_none_are_left_alone() {
    let mut filter = PageFilter::new();
    let mut filtered = Vec::new();
    for (len, page_len) in
        [(0, 4096), (100, 4096), (4096, 1000), (4096, 4096), (8192, 0), (8192, 131_072)]
    {
        assert!(!filter.encode(&vec![0; len], 0, page_len, &mut filtered));
    }
    assert!(!filter.encode(&vec![0; RECORD_LEN_MAX + 1], 0, 4096, &mut filtered));
    assert!(!filter.encode(&[0; 512], u64::MAX, 512, &mut filtered));
    assert!(filter.decode(&[], &mut []).is_err());
    assert!(filter.decode(&[12, 0, 0, 1, 0, 0, 0, 0, 0], &mut []).is_ok());
}

#[test]
fn the_same_record_gives_the_same_form() {
    let mut random = Random::new(7);
    let records: Vec<_> = (0..8).map(|_| record(&mut random, 4096, 4096)).collect();
    let (mut used, mut a, mut b) = (PageFilter::new(), Vec::new(), Vec::new());
    for record in &records {
        let is_filtered = used.encode(record, 4096, 4096, &mut a);
        assert_eq!(is_filtered, PageFilter::new().encode(record, 4096, 4096, &mut b));
        assert!(!is_filtered || a == b);
    }
}

/// Wherever a form decodes, each part of it decodes alone to the same bytes, also with a decoder
/// that has decoded other parts, and of forms that no encoder wrote.
#[test]
fn parts_of_mutated_forms_are_those_of_the_whole() {
    let mut filtered = Vec::new();
    let mut used = PageFilter::new();
    let mut accepted = 0u64;
    for seed in 0..case_count().div_ceil(8) {
        let mut random = Random::new(seed);
        let page_len = 512 << random.below(5);
        let offset = if random.below(3) == 0 { 0 } else { page_len as u64 * (random.next() >> 50) };
        let mut record = record(&mut random, page_len, offset);
        if random.below(2) == 0 {
            // Repeat pages, so that groups have many.
            for _ in 0..random.below(4) {
                let more = record.clone();
                if record.len() < 1 << 18 {
                    record.extend(more);
                }
            }
        }
        mutate(&mut random, &mut record, page_len);
        if random.below(3) == 0 {
            record.truncate(record.len() - random.below(record.len()));
        }
        let shift = if random.below(4) == 0 { random.below(page_len) as u64 } else { 0 };
        if !used.encode(&record, offset + shift, page_len, &mut filtered) {
            continue;
        }
        for round in 0..12 {
            let mut mutated = filtered.clone();
            if round > 0 {
                mutate(&mut random, &mut mutated, 4096);
            }
            let len =
                record.len() + if random.below(8) == 0 { random.below(2 * page_len) } else { 0 };
            let mut whole = vec![0; len];
            let is_right = PageFilter::new().decode(&mutated, &mut whole).is_ok();
            accepted += u64::from(is_right);
            for _ in 0..6 {
                let start = random.below(len);
                let end = (start
                    + 1
                    + [0, 511, 4095, page_len, 16383, random.below(len)][random.below(6)])
                .min(len);
                let mut out = vec![random.next() as u8; end - start];
                let found = used.decode_part(&mutated, len, start, &mut out);
                if is_right {
                    assert!(found.is_ok(), "seed {seed} round {round}: {start}..{end}: {found:?}");
                    let is_same = out == whole[start..end];
                    assert!(is_same, "seed {seed} round {round}: {start}..{end}");
                }
            }
        }
    }
    assert!(accepted > 0, "no form was left whole");
}
