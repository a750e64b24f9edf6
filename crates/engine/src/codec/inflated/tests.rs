#![forbid(unsafe_code)]

use proptest::prelude::*;

use super::zlib::deflated;
use super::*;

const USUAL: Settings = Settings { level: 6, memory: 8, window_bits: 15, strategy: 0 };

/// Text with words that come again.
fn text(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed | 1;
    let mut next = move || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state >> 33
    };
    let words = (0..).flat_map(|_| {
        let word = next() % 300;
        format!("word{word}{} ", if word % 7 == 0 { "\n" } else { "" }).into_bytes()
    });
    words.take(len).collect()
}

fn noise(len: usize) -> Vec<u8> {
    (0..len as u64)
        .map(|at| (twox_hash::XxHash3_64::oneshot(&at.to_le_bytes()) >> 9) as u8)
        .collect()
}

/// A member of a zip archive.
fn member(name: &str, stream: &[u8]) -> Vec<u8> {
    let mut bytes = b"PK\x03\x04\x14\0\0\0\x08\0".to_vec();
    bytes.extend_from_slice(&[7; 16]);
    bytes.extend_from_slice(&(name.len() as u16).to_le_bytes());
    bytes.extend_from_slice(&3u16.to_le_bytes());
    bytes.extend_from_slice(name.as_bytes());
    bytes.extend_from_slice(b"ext");
    bytes.extend_from_slice(stream);
    bytes
}

/// A gzip member with everything that its header can have.
fn gzip(stream: &[u8]) -> Vec<u8> {
    let header = b"\x1f\x8b\x08\x1e\0\0\0\0\0\x03\x04\0abcdname\0comment\0cr";
    [&header[..], stream, b"crc-leng"].concat()
}

fn zlib_member(window_bits: u8, stream: &[u8]) -> Vec<u8> {
    let first = (window_bits - 8) << 4 | 8;
    let second = (0..32).find(|low| (u16::from(first) << 8 | low) % 31 == 0).unwrap();
    [&[first, second as u8][..], stream, b"adle"].concat()
}

fn restored(form: &Form, range: Range<usize>, record_len: usize) -> Vec<u8> {
    let mut bytes = vec![0; range.len()];
    let directory = Directory::read(&form.bytes, record_len).unwrap();
    directory.restore(&form.bytes, range.start, &mut bytes).unwrap();
    bytes
}

/// Asserts that the form of a record has some streams, and gives it back whole and in parts.
fn assert_form(record: &[u8], stream_count: u32) -> Form {
    let form = Form::of(record).expect("it has streams");
    assert_eq!(form.stream_count, stream_count);
    assert!(restored(&form, 0..record.len(), record.len()) == record);
    let directory = Directory::read(&form.bytes, record.len()).unwrap();
    let mut at = 0;
    while at < record.len() {
        let span = directory.span_at(at);
        assert_eq!(span.start, at);
        assert!(span.end > at);
        for inside in [at, (at + span.end) / 2, span.end - 1] {
            assert_eq!(directory.span_at(inside), span);
        }
        let cuts = |entry: &Entry| entry.range.contains(&span.end) && entry.range.start < span.end;
        assert!(!directory.entries.iter().any(cuts), "{span:?} cuts a stream");
        assert!(restored(&form, span.clone(), record.len()) == record[span.clone()]);
        at = span.end;
    }
    for start in (0..record.len()).step_by(record.len() / 7 + 1) {
        let range = start..(start + 1000).min(record.len());
        assert!(restored(&form, range.clone(), record.len()) == record[range]);
    }
    form
}

#[test]
fn all_that_zlib_makes_is_made_again() {
    for level in 1..=9 {
        for (memory, strategy) in [(8, 0), (9, 0), (8, 1), (9, 1)] {
            for window_bits in [9, 12, 15] {
                let settings = Settings { level, memory, window_bits, strategy };
                assert_eq!(Settings::from_bits(settings.to_bits()), Some(settings));
                let text = text(level.into(), 40_000);
                let stream = deflated(&text, settings);
                let record = zlib_member(window_bits, &stream);
                let form = assert_form(&record, 1);
                assert_eq!(form.texts_len, 40_000);
                assert!(form.bytes.ends_with(&text), "{settings:?}");
            }
        }
    }
}

#[test]
fn streams_are_found_by_the_headers_before_them() {
    let mut record = noise(100);
    let mut count = 0;
    for seed in 0..40 {
        let stream = deflated(&text(seed, 500 + 3000 * seed as usize), USUAL);
        record.extend(match seed % 3 {
            0 => member("some/name.txt", &stream),
            1 => gzip(&stream),
            _ => zlib_member(15, &stream),
        });
        record.extend(noise(seed as usize * 10));
        count += 1;
    }
    let form = assert_form(&record, count);
    assert!(form.streams_len < form.texts_len / 2);
}

#[test]
fn a_long_stream_and_what_is_around_it() {
    let long = deflated(&text(3, 2_000_000), USUAL);
    assert!(long.len() > 4 * SPAN_LEN);
    let record = [noise(200_000), gzip(&long), noise(150_000)].concat();
    assert_form(&record, 1);
    // One that ends exactly where the record ends.
    let record = [noise(7), zlib_member(15, &long)].concat();
    assert_form(&record[..record.len() - 4], 1);
}

/// Whatever is in a stream is not looked at, and a zip member within a zip member stays one.
#[test]
fn a_stream_within_a_stream_stays_there() {
    let inner = member("inner", &deflated(&noise(3000), USUAL));
    let record = member("outer", &deflated(&[inner.clone(), text(1, 4000)].concat(), USUAL));
    assert_form(&record, 1);
}

#[test]
fn what_zlib_did_not_make_stays_as_it_is() {
    let text = text(5, 30_000);
    // Another compressor's stream, and one of its own that goes on after a flush.
    let mut other = libdeflater::Compressor::new(libdeflater::CompressionLvl::new(12).unwrap());
    let mut stream = vec![0; text.len()];
    let len = other.deflate_compress(&text, &mut stream).unwrap();
    stream.truncate(len);
    assert!(Form::of(&gzip(&stream)).is_none());
    // One of zlib's beside it.
    let record = [gzip(&stream), gzip(&deflated(&text, USUAL))].concat();
    assert_form(&record, 1);
    // Cut off, damaged, too short, or no stream at all.
    let whole = gzip(&deflated(&text, USUAL));
    assert!(Form::of(&whole[..whole.len() / 2]).is_none());
    let mut damaged = whole.clone();
    damaged[whole.len() / 2] ^= 0x10;
    assert!(Form::of(&damaged).is_none());
    assert!(Form::of(&gzip(&deflated(b"short", USUAL))).is_none());
    assert!(Form::of(&noise(100_000)).is_none());
    assert!(Form::of(b"").is_none());
    for len in 0..40 {
        assert!(Form::of(&whole[..len]).is_none());
        assert!(Form::of(&member("name", b"")[..len.min(30)]).is_none());
    }
}

/// A file can be made of which much is inflated in vain, but only so much.
#[test]
fn what_is_inflated_in_vain_is_bounded() {
    // Each stream breaks off after half a megabyte of zeros.
    let zeros = deflated(&vec![0; 1 << 19], USUAL);
    let broken = zlib_member(15, &zeros[..zeros.len() - 4]);
    let record: Vec<u8> = (0..500).flat_map(|_| broken.clone()).collect();
    let mut texts = Vec::new();
    assert!(find::find(&record, &mut texts, FORM_LEN_MAX).is_empty());
    let all = Inflation::of(&record, 1 << 20).bytes;
    assert!(all.len() <= 1 << 20, "{}", all.len());
    // What stands for more than a form may have is left.
    let large = gzip(&deflated(&vec![0; FORM_LEN_MAX], USUAL));
    assert!(Form::of(&large).is_none());
    assert!(Form::of(&vec![0; FORM_LEN_MAX]).is_none());
}

/// A file can be made of headers, or of streams, that keep whoever looks at them busy.
#[test]
fn what_is_tried_in_vain_is_bounded() {
    let found = |record: &[u8]| find::find(record, &mut Vec::new(), FORM_LEN_MAX).len();
    let good = gzip(&deflated(&text(1, 3000), USUAL));
    // Names that never end.
    let endless = [&[0x1f, 0x8b, 8, 8], &[1; 6][..]].concat().repeat(100_000);
    assert_eq!(found(&[&endless, &good[..]].concat()), 1);
    // Streams of empty blocks, one in the other.
    let blocks = [&[0, 2, 0, 0xfd, 0xff, 0x78, 1][..], &[0, 0, 0, 0xff, 0xff].repeat(400)].concat();
    assert_eq!(found(&[&blocks.repeat(3), &good[..]].concat()), 1);
    assert_eq!(found(&[&blocks.repeat(300), &good[..]].concat()), 0);
}

/// Those for which many settings have to be tried.
#[test]
fn settings_are_not_tried_for_ever() {
    let mut record = Vec::new();
    for window_bits in 9..=15 {
        for level in [1, 9] {
            let settings = Settings { level, window_bits, ..USUAL };
            record.extend(zlib_member(window_bits, &deflated(&text(1, 4000), settings)));
        }
    }
    let (fitted_len, good) = (record.len(), gzip(&deflated(&text(1, 3000), USUAL)));
    let other = zlib_member(15, &deflated(&text(2, 6000), Settings { memory: 1, ..USUAL }));
    for (count, is_found) in [(10, true), (800, false)] {
        record.truncate(fitted_len);
        record.extend(other.repeat(count));
        let good_at = record.len();
        record.extend(&good);
        let found = find::find(&record, &mut Vec::new(), FORM_LEN_MAX);
        assert!(found.len() >= 14);
        assert_eq!(found.last().unwrap().start > good_at, is_found, "{count}");
    }
}

#[test]
fn a_directory_is_not_longer_than_its_record() {
    let count = 1 << 16;
    let form = [&(count as u32).to_le_bytes()[..], &vec![0; count * ENTRY_LEN]].concat();
    let many = Malformed("it has more streams than the record has room for");
    assert_eq!(Directory::read(&form, 64 * count - 1).unwrap_err(), many);
}

/// However they lie, each byte is in one span, and each stream.
#[test]
fn spans_divide_a_record() {
    let stream = deflated(&noise(30_000), USUAL);
    let long = deflated(&noise(150_000), USUAL);
    let parts: [&[&[u8]]; 5] = [
        &[&stream, &stream, &long],
        &[&long],
        &[&noise(200_000), &long, &noise(1)],
        &[&long, &stream, &noise(65_536), &stream, &noise(131_072)],
        &[&noise(65_526), &stream, &stream],
    ];
    for parts in parts {
        let mut record = Vec::new();
        for part in parts {
            record.extend(if part.len() % 2 == 0 { part.to_vec() } else { gzip(part) });
        }
        let Some(form) = Form::of(&record) else { continue };
        let directory = Directory::read(&form.bytes, record.len()).unwrap();
        let mut at = 0;
        while at < record.len() {
            let span = directory.span_at(at);
            assert!(span.start == at && span.end > at);
            assert_eq!(directory.span_at(span.end - 1), span);
            let is_apart = |entry: &Entry| {
                entry.range.end <= span.start
                    || entry.range.start >= span.end
                    || (span.start <= entry.range.start && entry.range.end <= span.end)
            };
            assert!(directory.entries.iter().all(is_apart));
            at = span.end;
        }
        assert_eq!(at, record.len());
    }
}

#[test]
fn what_it_resembles_is_told_by_what_streams_stand_for() {
    let text = text(9, 100_000);
    let record = [noise(50), gzip(&deflated(&text, USUAL)), noise(60)].concat();
    let all = Inflation::of(&record, 1 << 20).bytes;
    assert!(all.windows(5).any(|window| *window == text[99_995..]));
    assert_eq!(all.len(), text.len() + record.len() - deflated(&text, USUAL).len());
    // The stream goes on behind the record. In front of it are noise and gzip's header.
    let all = Inflation::of(&record[..record.len() / 2], 1 << 20).bytes;
    let front_len = 50 + gzip(b"").len() - b"crc-leng".len();
    assert!(all.len() > 40_000 && text[..40_000] == all[front_len..][..40_000]);
    assert_eq!(Inflation::of(b"nothing", 0).bytes, b"nothing");
}

/// Forms that no writer made are refused, or stand for some bytes.
fn assert_bounded(form: &[u8], record_len: usize) {
    let Ok(directory) = Directory::read(form, record_len) else { return };
    for at in [0, record_len / 2, record_len.saturating_sub(1)] {
        let span = directory.span_at(at);
        assert!(span.end <= record_len && (span.contains(&at) || record_len == 0));
        let mut bytes = vec![0; span.len()];
        let _ = directory.restore(form, span.start, &mut bytes);
    }
    let mut whole = vec![0; record_len];
    let _ = directory.restore(form, 0, &mut whole);
    assert!(directory.restore(form, 1, &mut whole).is_err());
}

proptest! {
    #[test]
    fn damaged_forms_are_refused(
        seed in 0u64..50,
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        cut in any::<prop::sample::Index>(),
    ) {
        let stream = deflated(&text(seed, 3000), USUAL);
        let record = [member("a", &stream), gzip(&stream), zlib_member(15, &stream)].concat();
        let mut form = Form::of(&record).unwrap().bytes;
        for (at, byte) in changes {
            // Mostly in the directory.
            let len = if byte & 3 == 0 { form.len() } else { 50 };
            let at = at.index(len);
            form[at] = byte;
        }
        assert_bounded(&form, record.len());
        form.truncate(cut.index(form.len()));
        assert_bounded(&form, record.len());
    }

    #[test]
    fn whatever_a_record_holds_comes_back(
        parts in prop::collection::vec((0u8..6, 0usize..2000, any::<u64>()), 0..12),
        cut in (any::<prop::sample::Index>(), any::<prop::sample::Index>()),
    ) {
        let mut record = Vec::new();
        for (kind, len, seed) in parts {
            let settings = Settings { level: 1 + (seed % 9) as u8, ..USUAL };
            let stream = deflated(&text(seed, len), settings);
            match kind {
                0 => record.extend(noise(len)),
                1 => record.extend(b"PK\x03\x04\x14\0\0\0\x08\0"),
                2 => record.extend(gzip(&stream)),
                3 => record.extend(member("name", &stream)),
                4 => record.extend(zlib_member(15, &stream)),
                _ => record.extend([0x78, 0x9c, 0x1f, 0x8b, 8, 4]),
            }
        }
        let (from, to) = (cut.0.index(record.len() + 1), cut.1.index(record.len() + 1));
        for record in [&record[..], &record[from.min(to)..from.max(to)]] {
            Inflation::of(record, 10_000);
            if let Some(form) = Form::of(record) {
                assert_form(record, form.stream_count);
            }
        }
    }
}
