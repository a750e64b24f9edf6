//! Tests of dictionaries: round trips, gains, wrong dictionaries, hostile bytes, training.

use std::sync::Arc;

use super::*;

/// Returns pages like those of a database of people: repetitive fields, unique numbers and names.
fn pages(count: usize, seed: u64) -> Vec<Vec<u8>> {
    const CITIES: [&str; 8] =
        ["Lisbon", "Reykjavik", "Montevideo", "Osaka", "Nairobi", "Tromso", "Hobart", "Quito"];
    let numbers = random(count * 4096, seed);
    let page = |part: &[u8]| {
        let mut page = Vec::with_capacity(4200);
        for row in part.chunks(8) {
            if page.len() >= 4096 {
                break;
            }
            let number = row.iter().fold(0, |n: u64, byte| n << 8 | u64::from(*byte));
            let city = CITIES[number as usize % 8];
            let row = format!(
                "{{\"id\":{},\"mail\":\"user{}@example.org\",\"city\":\"{city}\",\"balance\":{}}}\n",
                number >> 40,
                number % 99_991,
                number % 10_007,
            );
            page.extend_from_slice(row.as_bytes());
        }
        page.truncate(4096);
        page
    };
    numbers.chunks(4096).map(page).collect()
}

fn trained(seed: u64) -> Dictionary {
    let samples = pages(200, seed);
    let lens: Vec<usize> = samples.iter().map(Vec::len).collect();
    Dictionary::new(Dictionary::train(&samples.concat(), &lens, 32 * KIB).expect("enough samples"))
}

fn compress_with(
    codec: &mut Codec,
    compression: Compression,
    src: &[u8],
    dictionary: &Dictionary,
) -> Vec<u8> {
    let mut dst = Vec::new();
    let fits = codec.compress_with(compression, src, &mut dst, usize::MAX, Some(dictionary));
    assert_eq!(fits, Ok(true), "{compression}, {} bytes", src.len());
    dst
}

fn check_round_trip_with(
    codec: &mut Codec,
    compression: Compression,
    src: &[u8],
    dictionary: &Dictionary,
) {
    let stored = compress_with(codec, compression, src, dictionary);
    let mut back = vec![0xa5; src.len()];
    let id = compression.codec_id() as u8;
    let result = codec.decompress_with(id, &stored, &mut back, Some(dictionary));
    assert_eq!(result, Ok(()), "{compression}, {} bytes", src.len());
    assert!(back == src, "{compression}, {} bytes", src.len());
    if !compression.uses_dictionary() {
        assert!(stored == compress(codec, compression, src), "{compression}");
    }
}

fn dictionaries() -> Vec<Dictionary> {
    vec![
        trained(1),
        Dictionary::new(text(112 * KIB, 2)),
        Dictionary::new(random(200 * KIB, 3)),
        Dictionary::new(text(64 * KIB, 4)),
        Dictionary::new(&b"record "[..]),
        Dictionary::new(&b"abc"[..]),
        Dictionary::new(&b""[..]),
    ]
}

#[test]
fn every_compression_round_trips_with_dictionaries() {
    let mut codec = Codec::new();
    let page = pages(1, 9).concat();
    let inputs = [
        vec![],
        vec![7],
        text(40, 1),
        page,
        vec![0; 4 * KIB],
        random(4 * KIB, 2),
        text(4 * KIB + 1, 3),
        mixed(70_001, 4),
        text(128 * KIB, 5),
    ];
    for dictionary in &dictionaries() {
        for (_, compression) in table().filter(|(_, c)| !matches!(c, Compression::Zstd(5..=21))) {
            for input in &inputs {
                check_round_trip_with(&mut codec, compression, input, dictionary);
            }
        }
    }
}

#[test]
fn every_short_length_round_trips_with_a_dictionary() {
    let mut codec = Codec::new();
    let dictionary = trained(1);
    for len in 0..300 {
        let input = text(len, len as u64);
        for name in ["lz4", "zstd-3", "zstd-fast-5"] {
            check_round_trip_with(&mut codec, parse(name), &input, &dictionary);
        }
    }
}

#[test]
fn pages_compress_better_with_a_trained_dictionary() {
    let mut codec = Codec::new();
    let dictionary = trained(1);
    // The maximum length, in percent of the length without a dictionary.
    for (name, percent_max) in [("lz4", 92), ("zstd-3", 92), ("zstd-9", 95), ("zstd-fast-1", 92)] {
        let (mut plain_len, mut with_len) = (0, 0);
        for page in pages(20, 77) {
            plain_len += compress(&mut codec, parse(name), &page).len();
            with_len += compress_with(&mut codec, parse(name), &page, &dictionary).len();
        }
        assert!(with_len * 100 < plain_len * percent_max, "{name}: {with_len} of {plain_len}");
    }
}

#[test]
fn what_only_the_dictionary_holds_is_found_there() {
    let mut codec = Codec::new();
    // lz4 sees only the last 64 KiB, zstd everything.
    let bytes = random(100 * KIB, 11);
    let dictionary = Dictionary::new(bytes.clone());
    for (name, from, is_found) in [
        ("lz4", 37 * KIB, true),
        ("lz4", 90 * KIB, true),
        ("lz4", 30 * KIB, false),
        ("zstd-3", 90 * KIB, true),
        ("zstd-3", KIB, true),
        ("zstd-19", KIB, true),
    ] {
        let src = &bytes[from..from + 4 * KIB];
        let len = compress_with(&mut codec, parse(name), src, &dictionary).len();
        assert_eq!(len < 200, is_found, "{name} from {from}: {len}");
    }
}

#[test]
fn results_do_not_depend_on_other_records_or_dictionaries() {
    let input = pages(1, 5).concat();
    let large = mixed(32 * KIB, 7);
    let (one, other) = (trained(1), Dictionary::new(text(64 * KIB, 2)));
    let mut used = Codec::new();
    for name in ["lz4", "zstd-1", "zstd-3", "zstd-9", "zstd-fast-1", "zstd-19"] {
        let compression = parse(name);
        for input in [&input, &large] {
            let fresh = compress_with(&mut Codec::new(), compression, input, &trained(1));
            let plain = compress(&mut Codec::new(), compression, input);
            compress_with(&mut used, compression, &large, &other);
            // The output is too short, so this fails halfway through the record.
            let mut dst = Vec::new();
            let fits = used.compress_with(compression, &large, &mut dst, 100, Some(&other));
            assert_eq!(fits, Ok(false), "{name}");
            assert!(compress_with(&mut used, compression, input, &one) == fresh, "{name}");
            assert!(compress(&mut used, compression, input) == plain, "{name}");
            assert!(compress_with(&mut used, compression, input, &one) == fresh, "{name}");
            assert!(input.len() > 4096 || fresh != plain, "{name}");
        }
    }
}

#[test]
fn a_dictionary_may_go_before_the_codec() {
    let mut codec = Codec::new();
    let input = pages(1, 5).concat();
    for seed in 0..6 {
        let dictionary = Dictionary::new(text(20 * KIB, seed));
        for name in ["lz4", "zstd-3"] {
            check_round_trip_with(&mut codec, parse(name), &input, &dictionary);
        }
        drop(dictionary);
        for name in ["lz4", "zstd-3"] {
            check_round_trip(&mut codec, parse(name), &input);
        }
    }
}

#[test]
fn more_levels_than_are_kept_prepared_work() {
    let mut codec = Codec::new();
    let dictionary = Dictionary::new(text(8 * KIB, 2));
    let input = text(4 * KIB, 3);
    let names = ["zstd-1", "zstd-2", "zstd-3", "zstd-4", "zstd-5", "zstd-fast-1", "zstd-6"];
    let first = names.map(|name| compress_with(&mut codec, parse(name), &input, &dictionary));
    let len_after_first = dictionary.len_in_memory();
    for _ in 0..3 {
        let again = names.map(|name| compress_with(&mut codec, parse(name), &input, &dictionary));
        assert!(again == first);
    }
    assert!(dictionary.len_in_memory() <= 2 * len_after_first);
}

#[test]
fn one_dictionary_serves_several_threads() {
    let dictionary = Arc::new(trained(1));
    let inputs = pages(30, 6);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for input in &inputs {
                    for name in ["lz4", "zstd-3", "zstd-9"] {
                        with_codec(|codec| {
                            check_round_trip_with(codec, parse(name), input, &dictionary);
                        });
                    }
                }
            });
        }
    });
}

#[test]
fn encode_says_whether_the_dictionary_is_needed() {
    let mut codec = Codec::new();
    let dictionary = trained(1);
    let policy = Policy::default();
    let page = pages(1, 5).concat();
    let mut dst = Vec::new();
    for (name, src, expected) in [
        ("zstd-3", &page, true),
        ("zstd-9", &page, true),
        ("zstd-fast-3", &page, true),
        ("lz4", &page, true),
        ("lz4hc-9", &page, false),
        ("gzip-6", &page, false),
        ("lzjb", &page, false),
        ("zle", &page, false),
        ("off", &page, false),
        ("zstd-3", &vec![0; 4096], false),
        ("zstd-3", &random(4096, 1), false),
        ("zstd-19", &random(4096, 1), false),
        ("lz4", &random(100, 1), false),
    ] {
        let result =
            codec.encode_with(parse(name), src, &policy, &mut dst, Some(&dictionary)).unwrap();
        assert_eq!(result.1, expected, "{name} {} {:?}", src.len(), result.0);
        let without = codec.encode_with(parse(name), src, &policy, &mut dst, None).unwrap();
        assert_eq!(without, (codec.encode(parse(name), src, &policy, &mut dst).unwrap(), false));
    }
    // The probe uses the dictionary too: without it these bytes are random.
    let bytes = random(64 * KIB, 11);
    let with_bytes = Dictionary::new(bytes.clone());
    let src = &bytes[8 * KIB..16 * KIB];
    let mut encode = |dictionary| {
        codec.encode_with(parse("zstd-19"), src, &policy, &mut dst, dictionary).unwrap()
    };
    assert_eq!(encode(None), (Encoded::Raw, false));
    let embedded = Encoded::Embedded { codec: CodecId::Zstd, level: 19 };
    assert_eq!(encode(Some(&with_bytes)), (embedded, true));
}

/// Decompresses into the middle of a larger buffer, whose surroundings must stay unchanged.
fn decompress_guarded_with(
    codec: &mut Codec,
    id: u8,
    src: &[u8],
    len: usize,
    dictionary: Option<&Dictionary>,
) -> Result<Vec<u8>, CodecError> {
    const GUARD_LEN: usize = 64;
    let mut buffer = vec![0xa5; len + 2 * GUARD_LEN];
    let middle = GUARD_LEN..GUARD_LEN + len;
    let result = codec.decompress_with(id, src, &mut buffer[middle.clone()], dictionary);
    let guards = buffer[..GUARD_LEN].iter().chain(&buffer[GUARD_LEN + len..]);
    assert!(guards.into_iter().all(|&byte| byte == 0xa5), "codec {id}");
    result.map(|()| buffer[middle].to_vec())
}

#[test]
fn a_wrong_dictionary_never_gives_the_record() {
    let mut codec = Codec::new();
    let right = trained(1);
    let page = pages(1, 5).concat();
    let wrong = [
        trained(2),
        Dictionary::new(random(300, 1)),
        Dictionary::new(&b""[..]),
        Dictionary::new(vec![0; 64 * KIB]),
    ];
    for name in ["lz4", "zstd-3", "zstd-19", "zstd-fast-1"] {
        let compression = parse(name);
        let id = compression.codec_id() as u8;
        let stored = compress_with(&mut codec, compression, &page, &right);
        for wrong in wrong.iter().map(Some).chain([None]) {
            let back = decompress_guarded_with(&mut codec, id, &stored, page.len(), wrong);
            assert_ne!(back.as_ref(), Ok(&page), "{name}");
        }
        let back = decompress_guarded_with(&mut codec, id, &stored, page.len(), Some(&right));
        assert_eq!(back.as_ref(), Ok(&page), "{name}");
    }
    // Without references into a dictionary, it does not matter which one is passed.
    let stored = compress(&mut codec, parse("lz4"), &page);
    let back = decompress_guarded_with(&mut codec, 4, &stored, page.len(), Some(&right));
    assert_eq!(back, Ok(page));
}

#[test]
fn bytes_that_only_begin_like_a_trained_dictionary_are_refused() {
    let mut codec = Codec::new();
    let mut bytes = trained(1).bytes().to_vec();
    bytes[8..64].fill(0xff);
    let dictionary = Dictionary::new(bytes);
    let page = pages(1, 5).concat();
    let mut dst = Vec::new();
    for name in ["zstd-3", "zstd-9"] {
        let result =
            codec.compress_with(parse(name), &page, &mut dst, usize::MAX, Some(&dictionary));
        assert!(matches!(result, Err(CodecError::Library { .. })), "{result:?}");
        let stored = compress(&mut codec, parse(name), &page);
        let back = decompress_guarded_with(&mut codec, 5, &stored, page.len(), Some(&dictionary));
        assert!(matches!(back, Err(CodecError::Corrupt { .. })));
    }
    check_round_trip_with(&mut codec, parse("lz4"), &page, &dictionary);
    check_round_trip(&mut codec, parse("zstd-3"), &page);
}

#[test]
fn damaged_streams_and_dictionaries_never_harm() {
    let mut codec = Codec::new();
    let right = trained(1);
    let page = pages(1, 5).concat();
    let page = &page[..1500];
    for name in ["lz4", "zstd-3", "zstd-fast-1"] {
        let compression = parse(name);
        let id = compression.codec_id() as u8;
        let mut stored = compress_with(&mut codec, compression, page, &right);
        for bit in 0..stored.len() * 8 {
            stored[bit / 8] ^= 1 << (bit % 8);
            let _ = decompress_guarded_with(&mut codec, id, &stored, page.len(), Some(&right));
            stored[bit / 8] ^= 1 << (bit % 8);
        }
        for len in 0..stored.len() {
            let short = &stored[..len];
            let back = decompress_guarded_with(&mut codec, id, short, page.len(), Some(&right));
            assert!(back.is_err(), "{name} {len}");
        }
        for seed in 0..200 {
            // Damages the tables at the start of a trained dictionary.
            let mut bytes = right.bytes().to_vec();
            for pair in random(6, seed).chunks(2) {
                bytes[8 + usize::from(pair[0]) % 200] = pair[1];
            }
            let damaged = Dictionary::new(bytes);
            let _ = decompress_guarded_with(&mut codec, id, &stored, page.len(), Some(&damaged));
            let mut dst = Vec::new();
            let result =
                codec.compress_with(compression, page, &mut dst, usize::MAX, Some(&damaged));
            if result.is_ok() {
                check_round_trip_with(&mut codec, compression, page, &damaged);
            }
        }
        check_round_trip_with(&mut codec, compression, page, &right);
    }
}

#[test]
fn training_repeats_and_keeps_its_length() {
    let samples = pages(100, 3);
    let lens: Vec<usize> = samples.iter().map(Vec::len).collect();
    let samples = samples.concat();
    let train = |len_max| Dictionary::train(&samples, &lens, len_max);
    let first = train(16 * KIB).expect("enough samples");
    assert!(first.len() <= 16 * KIB && first.len() > KIB);
    assert_eq!(train(16 * KIB), Some(first));
    assert!(train(usize::MAX).is_some_and(|bytes| bytes.len() <= 1 << 20));
}

#[test]
fn training_refuses_what_is_too_little_or_inconsistent() {
    let samples = pages(100, 3).concat();
    let train = Dictionary::train;
    assert_eq!(train(&[], &[], 16 * KIB), None);
    assert_eq!(train(&[], &[0; 50], 16 * KIB), None);
    assert_eq!(train(&samples, &[], 16 * KIB), None);
    assert_eq!(train(&samples, &[1, 2, 3], 16 * KIB), None);
    assert_eq!(train(&samples[..10], &[usize::MAX, 11], 16 * KIB), None);
    assert_eq!(train(&samples[..10], &[10], 16 * KIB), None);
    assert_eq!(train(&samples[..40], &[8; 5], 16 * KIB), None);
    assert_eq!(train(&samples, &[samples.len()], 16 * KIB), None);
    for len_max in [0, 1, 100, 255] {
        assert_eq!(train(&samples, &vec![100; samples.len() / 100], len_max), None, "{len_max}");
    }
    // Training returns, whatever it makes of these samples.
    for (len, count) in [(1, 5000), (7, 700), (8, 600), (0, 100), (3000, 7), (100_000, 3)] {
        for bytes in [vec![0; len * count], random(len * count, 1), text(len * count, 1)] {
            let _ = train(&bytes, &vec![len; count], 4 * KIB);
        }
    }
}

proptest! {
    #[test]
    fn any_record_round_trips_with_any_dictionary(
        compression in any_compression(),
        src in any_record(),
        bytes in any_record(),
    ) {
        let dictionary = Dictionary::new(bytes);
        with_codec(|codec| check_round_trip_with(codec, compression, &src, &dictionary));
    }

    #[test]
    fn any_bytes_decode_with_any_dictionary_or_fail_in_bounds(
        id in 4..6u8,
        stored in proptest::collection::vec(any::<u8>(), 0..300),
        bytes in proptest::collection::vec(any::<u8>(), 0..300),
        len in 0..2000usize,
    ) {
        let dictionary = Dictionary::new(bytes);
        with_codec(|codec| {
            let _ = decompress_guarded_with(codec, id, &stored, len, Some(&dictionary));
        });
    }
}
