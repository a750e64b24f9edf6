//! Tests of the codecs: round trips, hostile input, golden vectors, and the choice of how to store
//! a record.
#![forbid(unsafe_code)]

mod dictionary;
mod differences;
mod prefix;

use std::collections::HashSet;

use proptest::prelude::*;

use super::*;

const KIB: usize = 1 << 10;
const BASE64: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Returns bytes of xorshift64* from a seed, since tests must be repeatable.
fn random(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        bytes.extend_from_slice(&state.wrapping_mul(0x2545_f491_4f6c_dd1d).to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

fn base64(len: usize, seed: u64) -> Vec<u8> {
    random(len, seed).iter().map(|byte| BASE64[usize::from(byte & 63)]).collect()
}

/// Returns words drawn from a small vocabulary, which every algorithm that finds matches can
/// compress.
fn text(len: usize, seed: u64) -> Vec<u8> {
    const WORDS: [&str; 16] = [
        "record ",
        "extent ",
        "of ",
        "the ",
        "transaction ",
        "commits ",
        "in ",
        "order ",
        "a ",
        "superblock ",
        "names ",
        "every ",
        "root, ",
        "and ",
        "nothing\n",
        "else ",
    ];
    let mut bytes = Vec::with_capacity(len + 16);
    for word in random(len, seed) {
        if bytes.len() >= len {
            break;
        }
        bytes.extend_from_slice(WORDS[usize::from(word & 15)].as_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// Text, zeros, random bytes and base64, a quarter each.
fn mixed(len: usize, seed: u64) -> Vec<u8> {
    let quarter = len / 4;
    let mut bytes = text(quarter, seed);
    bytes.resize(2 * quarter, 0);
    bytes.extend(random(quarter, seed + 1));
    bytes.extend(base64(len - 3 * quarter, seed + 2));
    bytes
}

fn compress(codec: &mut Codec, compression: Compression, src: &[u8]) -> Vec<u8> {
    let mut dst = Vec::new();
    let fits = codec.compress(compression, src, &mut dst, usize::MAX);
    assert_eq!(fits, Ok(true), "{compression}, {} bytes", src.len());
    dst
}

fn check_round_trip(codec: &mut Codec, compression: Compression, src: &[u8]) {
    let stored = compress(codec, compression, src);
    let mut back = vec![0xa5; src.len()];
    let result = codec.decompress(compression.codec_id() as u8, &stored, &mut back);
    assert_eq!(result, Ok(()), "{compression}, {} bytes", src.len());
    assert!(back == src, "{compression}, {} bytes", src.len());
}

fn parse(name: &str) -> Compression {
    name.parse().expect(name)
}

#[test]
fn every_compression_round_trips_small_and_large_records() {
    let mut codec = Codec::new();
    let inputs = [
        vec![],
        vec![0],
        vec![7],
        vec![0; 4 * KIB],
        vec![0xff; 5000],
        text(4 * KIB, 1),
        random(4 * KIB, 2),
        mixed(10_001, 3),
        vec![0; 128 * KIB],
        mixed(128 * KIB, 4),
        random(128 * KIB, 5),
    ];
    for (_, compression) in table() {
        for input in &inputs {
            check_round_trip(&mut codec, compression, input);
        }
    }
}

#[test]
fn every_compression_round_trips_a_mebibyte() {
    let mut codec = Codec::new();
    let input = mixed(1024 * KIB, 6);
    for (_, compression) in table() {
        check_round_trip(&mut codec, compression, &input);
    }
}

#[test]
fn every_length_up_to_two_pages_of_runs_round_trips() {
    let mut codec = Codec::new();
    for len in 0..600 {
        let mut input = text(len, len as u64);
        for at in (0..len).filter(|at| at % 97 > 60) {
            input[at] = 0;
        }
        for name in ["off", "lzjb", "zle", "gzip-1", "lz4", "lz4hc-3", "zstd-1", "lzma-1"] {
            check_round_trip(&mut codec, parse(name), &input);
        }
    }
}

#[test]
fn results_do_not_depend_on_what_a_codec_did_before() {
    let input = mixed(32 * KIB, 7);
    let mut used = Codec::new();
    for (_, compression) in table() {
        used.compress(compression, &random(9000, 8), &mut Vec::new(), 100).unwrap();
        let fresh = compress(&mut Codec::new(), compression, &input);
        assert!(compress(&mut used, compression, &input) == fresh, "{compression}");
    }
}

#[test]
fn output_stays_within_the_limit() {
    let mut codec = Codec::new();
    let input = mixed(16 * KIB, 9);
    let mut dst = Vec::new();
    for (_, compression) in table() {
        let full_len = compress(&mut codec, compression, &input).len();
        for limit in [0, 1, 2, 3, 64, full_len / 2, full_len - 1] {
            let fits = codec.compress(compression, &input, &mut dst, limit);
            assert_eq!(fits, Ok(false), "{compression}, {limit} of {full_len}");
            assert!(dst.is_empty());
        }
        let fits = codec.compress(compression, &input, &mut dst, full_len + 64);
        assert_eq!(fits, Ok(true), "{compression}");
        assert_eq!(dst.len(), full_len, "{compression}");
    }
}

#[test]
fn invalid_levels_and_unknown_codecs_are_errors() {
    let mut codec = Codec::new();
    for compression in [
        Compression::Gzip(0),
        Compression::Gzip(10),
        Compression::Lz4Hc(13),
        Compression::Zstd(0),
        Compression::Zstd(23),
        Compression::ZstdFast(0),
        Compression::ZstdFast(11),
        Compression::ZstdFast(u16::MAX),
        Compression::Lzma(0),
        Compression::Lzma(10),
    ] {
        let result = codec.compress(compression, b"abc", &mut Vec::new(), 100);
        assert_eq!(result, Err(CodecError::InvalidLevel(compression)));
        let stored = Compression::from_stored(compression.codec_id() as u8, compression.level());
        assert_ne!(stored, Some(compression));
    }
    for id in 7..=u8::MAX {
        let result = codec.decompress(id, b"abc", &mut [0; 3]);
        assert_eq!(result, Err(CodecError::UnknownCodec(id)));
        assert_eq!(Compression::from_stored(id, 0), None);
    }
}

#[test]
fn codec_numbers_are_fixed() {
    let numbers = CodecId::ALL.map(|codec| (codec as u8, codec.to_string()));
    let expected = ["raw", "lzjb", "zle", "gzip", "lz4", "zstd", "lzma"];
    for (index, (number, name)) in numbers.iter().enumerate() {
        assert_eq!((usize::from(*number), name.as_str()), (index, expected[index]));
        assert_eq!(CodecId::try_from(*number), Ok(CodecId::ALL[index]));
        let version = if *name == "zstd" { 3 } else { 1 };
        assert_eq!(codec_version(CodecId::ALL[index]), version);
    }
}

#[test]
fn an_empty_record_is_stored_as_nothing() {
    let mut codec = Codec::new();
    for (_, compression) in table() {
        let id = compression.codec_id() as u8;
        assert_eq!(compress(&mut codec, compression, &[]), []);
        assert_eq!(codec.decompress(id, &[], &mut []), Ok(()));
        for stored in [&[0][..], &[1, 0], &[3, 0], &random(40, 25)] {
            assert!(codec.decompress(id, stored, &mut []).is_err());
        }
        assert!(codec.decompress(id, &[], &mut [0; 3]).is_err());
    }
}

// Names.

#[test]
fn names_parse_and_display() {
    let mut names = HashSet::new();
    let mut stored_forms = HashSet::new();
    for (name, compression) in table() {
        assert_eq!(parse(&name), compression);
        assert_eq!(compression.to_string(), name);
        let stored = (compression.codec_id() as u8, compression.level());
        assert_eq!(Compression::from_stored(stored.0, stored.1), Some(compression));
        assert!(names.insert(name) && stored_forms.insert(stored));
    }
    // off, lzjb, zle, lz4; nine, twelve and twenty-two levels; 1-10, 20-100, 500, 1000; nine.
    assert_eq!(names.len(), 4 + 9 + 12 + 22 + 21 + 9);
}

#[test]
fn bare_names_stand_for_their_default_level() {
    for (name, canonical) in [
        ("on", "lz4"),
        ("off", "off"),
        ("gzip", "gzip-6"),
        ("lz4hc", "lz4hc-9"),
        ("zstd", "zstd-3"),
        ("zstd-fast", "zstd-fast-1"),
        ("lzma", "lzma-6"),
    ] {
        assert_eq!(parse(name).to_string(), canonical);
    }
    assert_eq!(parse("zstd-fast-1000").level(), -1000);
    assert_eq!(parse("lz4hc").level(), 9);
    assert_eq!(format!("{:>8}|", parse("zstd")), "  zstd-3|");
}

#[test]
fn other_names_are_refused_with_a_list() {
    for name in [
        "",
        "inherit",
        "ZSTD",
        "zstd-",
        "zstd-0",
        "zstd-03",
        "zstd-+3",
        "zstd-23",
        "gzip-10",
        "gzip6",
        "lz4-1",
        "lz4hc-13",
        "zstd-fast-",
        "zstd-fast-11",
        "zstd-fast-200",
        "lzma-0",
        "lzma-10",
        "xz",
        "off-1",
        "on-1",
        "zstd-3 ",
    ] {
        let error = name.parse::<Compression>().expect_err(name).to_string();
        for family in families() {
            assert!(error.contains(family.name), "{error}");
        }
    }
}

// Hostile input.

/// Decompresses into the middle of a larger buffer, whose surroundings must stay unchanged.
fn decompress_guarded(codec: &mut Codec, id: u8, src: &[u8], len: usize) -> Result<(), CodecError> {
    const GUARD_LEN: usize = 64;
    let mut buffer = vec![0xa5; len + 2 * GUARD_LEN];
    let result = codec.decompress(id, src, &mut buffer[GUARD_LEN..GUARD_LEN + len]);
    let guards = buffer[..GUARD_LEN].iter().chain(&buffer[GUARD_LEN + len..]);
    assert!(guards.into_iter().all(|&byte| byte == 0xa5), "codec {id}");
    result
}

const HOSTILE_NAMES: [&str; 9] =
    ["off", "lzjb", "zle", "gzip-6", "lz4", "lz4hc-9", "zstd-3", "zstd-19", "lzma-6"];

#[test]
fn truncated_data_is_refused() {
    let mut codec = Codec::new();
    let input = mixed(6000, 10);
    for compression in HOSTILE_NAMES.map(parse) {
        let id = compression.codec_id() as u8;
        let stored = compress(&mut codec, compression, &input);
        for len in (0..stored.len()).filter(|len| len % 7 == 0 || stored.len() - len < 64) {
            let result = decompress_guarded(&mut codec, id, &stored[..len], input.len());
            assert!(result.is_err(), "{compression}: {len} of {}", stored.len());
        }
    }
}

#[test]
fn a_record_of_another_length_is_refused() {
    let mut codec = Codec::new();
    let input = mixed(6000, 11);
    for compression in HOSTILE_NAMES.map(parse) {
        let id = compression.codec_id() as u8;
        let stored = compress(&mut codec, compression, &input);
        for len in [0, 1, 100, 3000, 5999, 6001, 6100, 12_000] {
            let result = decompress_guarded(&mut codec, id, &stored, len);
            assert!(result.is_err(), "{compression}: {len} of {}", input.len());
        }
        assert_eq!(decompress_guarded(&mut codec, id, &stored, 6000), Ok(()));
    }
}

#[test]
fn flipped_bits_never_harm() {
    let mut codec = Codec::new();
    let input = mixed(2000, 12);
    for compression in HOSTILE_NAMES.map(parse) {
        let id = compression.codec_id() as u8;
        let mut stored = compress(&mut codec, compression, &input);
        for bit in 0..stored.len() * 8 {
            stored[bit / 8] ^= 1 << (bit % 8);
            // It may decode to something else of the same length; checksums are there to catch
            // that.
            let _ = decompress_guarded(&mut codec, id, &stored, input.len());
            stored[bit / 8] ^= 1 << (bit % 8);
        }
        check_round_trip(&mut codec, compression, &input);
    }
}

// Golden vectors, worked out by hand from the format descriptions in lzjb.rs and zle.rs.

fn check_golden(compression: Compression, src: &[u8], stored: &[u8]) {
    let mut codec = Codec::new();
    assert_eq!(compress(&mut codec, compression, src), stored);
    let mut back = vec![0xa5; src.len()];
    let id = compression.codec_id() as u8;
    assert_eq!(codec.decompress(id, stored, &mut back), Ok(()));
    assert_eq!(back, src);
}

#[test]
fn zle_golden_vectors() {
    let check = |src: &[u8], stored: &[u8]| check_golden(Compression::Zle, src, stored);
    check(b"", b"");
    check(b"abc", b"\x02abc");
    check(&[0; 1], &[64]);
    check(&[0; 5], &[68]);
    check(&[0; 192], &[255]);
    check(&[0; 193], &[255, 64]);
    // A lone zero stays among literals, two zeros do not, and a zero at the end is a run of its
    // own.
    check(&[1, 0, 2], &[2, 1, 0, 2]);
    check(&[1, 0, 0, 2, 3], &[0, 1, 65, 1, 2, 3]);
    check(&[1, 0], &[0, 1, 64]);
    let mut long = vec![63];
    long.extend([9; 64]);
    long.extend([0, 9]);
    check(&[9; 65], &long);
}

#[test]
fn lzjb_golden_vectors() {
    let check = |src: &[u8], stored: &[u8]| check_golden(Compression::Lzjb, src, stored);
    check(b"", b"");
    check(b"abc", b"\x00abc");
    // Three literals, then six bytes from three bytes back: bit 3 set, (6 - 3) << 2, distance 3.
    check(b"abcabcabc", b"\x08abc\x0c\x03");
    // Nine literals need a second group.
    check(b"abcdefghi", b"\x00abcdefgh\x00i");
    // A literal, 66 bytes from 1 byte back, then 3 bytes from the last position of their hash, 66
    // back.
    check(&[b'a'; 70], &[6, b'a', 63 << 2, 1, 0, 66]);
}

#[test]
fn lzjb_decodes_every_form_of_match() {
    let mut codec = Codec::new();
    // 300 literals, then the longest possible match from 300 bytes back: distance 1 << 8 | 44.
    let literals = random(300, 13);
    let mut stored = Vec::new();
    for (index, group) in literals.chunks(8).enumerate() {
        stored.push(if index == 300 / 8 { 1 << 4 } else { 0 });
        stored.extend_from_slice(group);
    }
    stored.extend([63 << 2 | 1, 44]);
    let mut back = [0; 366];
    assert_eq!(codec.decompress(1, &stored, &mut back), Ok(()));
    assert_eq!(back[..300], literals);
    assert_eq!(back[300..], literals[..66]);
}

#[test]
fn lzjb_and_zle_refuse_malformed_streams() {
    let mut codec = Codec::new();
    let mut refuse = |id: CodecId, stored: &[u8], len: usize| {
        let result = decompress_guarded(&mut codec, id as u8, stored, len);
        assert!(result.is_err(), "{id} {stored:?}");
    };
    // Distance 0; a distance before the start; a match past the end; half a match; an empty group.
    refuse(CodecId::Lzjb, &[2, b'a', 0, 0], 4);
    refuse(CodecId::Lzjb, &[2, b'a', 0, 2], 4);
    refuse(CodecId::Lzjb, &[2, b'a', 4, 1], 4);
    refuse(CodecId::Lzjb, &[2, b'a', 0], 4);
    refuse(CodecId::Lzjb, b"\x00abcdefgh\x00", 8);
    refuse(CodecId::Lzjb, &[0, b'a', b'b'], 1);
    refuse(CodecId::Lzjb, &[0], 0);
    // Literals cut short or past the end; zeros past the end.
    refuse(CodecId::Zle, &[2, 1, 2], 3);
    refuse(CodecId::Zle, &[2, 1, 2, 3], 2);
    refuse(CodecId::Zle, &[68], 4);
    refuse(CodecId::Zle, &[67, 0], 4);
}

#[test]
fn zstd_frames_carry_two_bytes_of_header() {
    let mut codec = Codec::new();
    let stored = compress(&mut codec, Compression::Zstd(3), b"a");
    // Descriptor, window, the header of a raw last block of one byte, and the byte.
    assert_eq!((stored.len(), stored[0]), (2 + 3 + 1, 0));
}

#[test]
fn faster_zstd_levels_are_no_smaller() {
    let mut codec = Codec::new();
    let input = mixed(128 * KIB, 14);
    let names =
        ["zstd-19", "zstd-3", "zstd-fast-1", "zstd-fast-10", "zstd-fast-100", "zstd-fast-1000"];
    let lens = names.map(|name| compress(&mut codec, parse(name), &input).len());
    assert!(lens.is_sorted(), "{lens:?}");
    assert!(lens[1] < lens[2] && lens[2] < lens[5], "{lens:?}");
}

// How a record is stored.

fn encode(codec: &mut Codec, name: &str, src: &[u8]) -> (Encoded, Vec<u8>) {
    encode_with(codec, name, src, &Policy::default())
}

fn encode_with(codec: &mut Codec, name: &str, src: &[u8], policy: &Policy) -> (Encoded, Vec<u8>) {
    let mut dst = vec![1, 2, 3];
    let encoded = codec.encode(parse(name), src, policy, &mut dst).unwrap();
    (encoded, dst)
}

#[test]
fn zeros_are_holes_whatever_the_compression() {
    let mut codec = Codec::new();
    for name in ["off", "lz4", "zstd-19"] {
        for len in [0, 1, 255, 256, 257, 128 * KIB] {
            let mut src = vec![0; len];
            assert_eq!(encode(&mut codec, name, &src), (Encoded::Hole, vec![]));
            for at in [0, len / 2, len.wrapping_sub(1)] {
                if let Some(byte) = src.get_mut(at) {
                    *byte = 1;
                    assert_ne!(encode(&mut codec, name, &src).0, Encoded::Hole);
                    src[at] = 0;
                }
            }
        }
    }
}

#[test]
fn short_records_go_into_the_pointer() {
    let mut codec = Codec::new();
    let raw = Encoded::Embedded { codec: CodecId::Raw, level: 0 };
    let src = random(112, 15);
    assert_eq!(encode(&mut codec, "off", &src), (raw, src.clone()));
    assert_eq!(encode(&mut codec, "zstd-3", &src), (raw, src));
    let src = random(113, 15);
    assert_eq!(encode(&mut codec, "off", &src), (Encoded::Raw, vec![]));
    // `off` does not compress, even where the result would be embedded.
    assert_eq!(encode(&mut codec, "off", &[7; 4096]).0, Encoded::Raw);
    let embedded = Encoded::Embedded { codec: CodecId::Zstd, level: -10 };
    assert_eq!(encode(&mut codec, "zstd-fast-10", &[7; 4096]).0, embedded);
}

#[test]
fn compression_must_save_an_eighth_and_a_sector() {
    let mut codec = Codec::new();
    // zle shrinks `c` zeros to `c / 192` bytes; the rest stays, plus one byte for every 64.
    let saving = |len: usize, zero_len: usize| {
        let mut src = random(len, 16).iter().map(|b| b | 1).collect::<Vec<_>>();
        src[..zero_len].fill(0);
        src
    };
    let raw = Encoded::Raw;
    let compressed = Encoded::Compressed { codec: CodecId::Zle, level: 0 };
    // 8 KiB: an eighth less is 7168 bytes in sectors of 512 and 1024; in sectors of 4096 it must
    // halve.
    let policy = |sector| Policy { sector, ..Policy::default() };
    for (zero_len, sector, expected) in [
        (1100, 512, raw),
        (1200, 512, compressed),
        (1200, 1024, compressed),
        (1200, 4096, raw),
        (4100, 4096, raw),
        (4200, 4096, compressed),
        (8000, 8192, raw),
        (1200, 0, compressed),
    ] {
        let src = saving(8192, zero_len);
        let (encoded, dst) = encode_with(&mut codec, "zle", &src, &policy(sector));
        assert_eq!(encoded, expected, "{zero_len} {sector}");
        assert_eq!(dst.is_empty(), expected == raw);
    }
    // A record of one sector can only be embedded.
    assert_eq!(encode(&mut codec, "zle", &saving(512, 300)).0, raw);
    let embedded = Encoded::Embedded { codec: CodecId::Zle, level: 0 };
    assert_eq!(encode(&mut codec, "zle", &saving(512, 450)).0, embedded);
    let greedy = Policy { min_savings: 1001, ..Policy::default() };
    let src = saving(8192, 6000);
    assert_eq!(encode_with(&mut codec, "zle", &src, &greedy).0, raw);
}

#[test]
fn random_data_never_reaches_a_slow_algorithm() {
    for name in ["lzjb", "gzip-1", "gzip-9", "lz4hc", "zstd-9", "zstd-19", "zstd-22"] {
        let mut codec = Codec::new();
        for (index, len) in
            [4 * KIB, 5000, 16 * KIB, 64 * KIB, 128 * KIB, 1024 * KIB].into_iter().enumerate()
        {
            let src = random(len, 17);
            assert_eq!(encode(&mut codec, name, &src), (Encoded::Raw, vec![]));
            let count = index as u64 + 1;
            let expected = Counters { compressions: 0, probes: count, early_aborts: count };
            assert_eq!(codec.counters(), expected, "{name}, {len} bytes");
        }
    }
}

#[test]
fn fast_algorithms_and_short_records_are_not_probed() {
    let mut codec = Codec::new();
    for name in ["lz4", "zle", "zstd-1", "zstd-3", "zstd-fast-100"] {
        assert_eq!(encode(&mut codec, name, &random(128 * KIB, 18)).0, Encoded::Raw);
    }
    assert_eq!(encode(&mut codec, "zstd-19", &random(4095, 18)).0, Encoded::Raw);
    let expected = Counters { compressions: 6, ..Counters::default() };
    assert_eq!(codec.counters(), expected);
}

#[test]
fn compressible_records_pass_the_probe() {
    let mut codec = Codec::new();
    let is_compressed = |encoded| matches!(encoded, Encoded::Compressed { .. });
    for len in [4 * KIB, 16 * KIB, 128 * KIB, 1024 * KIB] {
        // No matches at all, but only six bits per byte: just Huffman coding helps.
        let no_matches = base64(len, 19);
        assert_eq!(encode(&mut codec, "lz4", &no_matches).0, Encoded::Raw);
        // Matches at a distance that no sample covers.
        let half = random(len / 2, 20);
        let twice = [&half[..], &half[..]].concat();
        // Random except for its last quarter.
        let mut tail = random(len, 21);
        let text_from = len - len / 4;
        tail[text_from..].copy_from_slice(&text(len / 4, 22));
        for name in ["zstd-3", "gzip-6", "zstd-9", "zstd-19"] {
            assert!(is_compressed(encode(&mut codec, name, &no_matches).0), "{name} {len}");
            assert!(is_compressed(encode(&mut codec, name, &tail).0), "{name} {len}");
            // Deflate looks back 32 KiB.
            if name != "gzip-6" || len <= 32 * KIB {
                assert!(is_compressed(encode(&mut codec, name, &twice).0), "{name} {len}");
            }
        }
        assert!(is_compressed(encode(&mut codec, "lz4hc", &tail).0), "{len}");
        assert!(is_compressed(encode(&mut codec, "lzjb", &text(len, 23)).0), "{len}");
    }
    assert_eq!(codec.counters().early_aborts, 0);
}

#[test]
fn codecs_are_lent_across_threads_and_nested() {
    let input = mixed(16 * KIB, 24);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for name in ["lz4", "zstd-3", "gzip-6", "lz4hc-3", "lzma-3"] {
                    let compression = parse(name);
                    with_codec(|codec| {
                        check_round_trip(codec, compression, &input);
                        with_codec(|codec| check_round_trip(codec, compression, &input));
                    });
                }
            });
        }
    });
}

fn any_compression() -> impl Strategy<Value = Compression> {
    // The tests above cover the slowest levels.
    let all: Vec<_> = table()
        .map(|(_, compression)| compression)
        .filter(|compression| !matches!(compression, Compression::Zstd(16..)))
        .collect();
    proptest::sample::select(all)
}

/// Runs, repeats and noise, up to a few kilobytes.
fn any_record() -> impl Strategy<Value = Vec<u8>> {
    let part = prop_oneof![
        (any::<u8>(), 0..400usize).prop_map(|(byte, len)| vec![byte; len]),
        (0..300usize).prop_map(|len| vec![0; len]),
        proptest::collection::vec(any::<u8>(), 0..200),
        (proptest::collection::vec(any::<u8>(), 1..9), 0..60usize)
            .prop_map(|(unit, count)| unit.repeat(count)),
        (0..600usize, any::<u64>()).prop_map(|(len, seed)| text(len, seed)),
    ];
    proptest::collection::vec(part, 0..12).prop_map(|parts| parts.concat())
}

proptest! {
    #[test]
    fn any_record_round_trips(compression in any_compression(), src in any_record()) {
        with_codec(|codec| check_round_trip(codec, compression, &src));
    }

    #[test]
    fn any_encoding_keeps_its_promises(
        compression in any_compression(),
        src in any_record(),
        sector in prop_oneof![Just(512usize), Just(4096)],
        embed_limit in 0..200usize,
    ) {
        let policy = Policy { sector, embed_limit, ..Policy::default() };
        let mut dst = Vec::new();
        let encoded = with_codec(|codec| codec.encode(compression, &src, &policy, &mut dst));
        let (codec_id, is_embedded) = match encoded.unwrap() {
            Encoded::Hole => {
                prop_assert!(dst.is_empty() && src.iter().all(|&byte| byte == 0));
                return Ok(());
            }
            Encoded::Raw => {
                prop_assert!(dst.is_empty() && src.len() > embed_limit);
                return Ok(());
            }
            Encoded::Compressed { codec, .. } => (codec, false),
            Encoded::Embedded { codec, .. } => (codec, true),
        };
        prop_assert_eq!(is_embedded, dst.len() <= embed_limit);
        if !is_embedded {
            prop_assert!(dst.len() * 8 <= src.len() * 7);
            prop_assert!(dst.len().div_ceil(sector) < src.len().div_ceil(sector));
        }
        let mut back = vec![0xa5; src.len()];
        with_codec(|codec| codec.decompress(codec_id as u8, &dst, &mut back)).unwrap();
        prop_assert!(back == src);
    }

    #[test]
    fn any_bytes_decode_or_fail_in_bounds(
        id in 0..8u8,
        stored in proptest::collection::vec(any::<u8>(), 0..300),
        len in 0..2000usize,
    ) {
        let _ = with_codec(|codec| decompress_guarded(codec, id, &stored, len));
    }

    #[test]
    fn damaged_data_decodes_or_fails_in_bounds(
        compression in any_compression(),
        src in any_record(),
        damage in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        len in 0..4000usize,
    ) {
        with_codec(|codec| {
            let mut stored = compress(codec, compression, &src);
            for (index, byte) in damage {
                if !stored.is_empty() {
                    let at = index.index(stored.len());
                    stored[at] = byte;
                }
            }
            let id = compression.codec_id() as u8;
            let _ = decompress_guarded(codec, id, &stored, src.len());
            let _ = decompress_guarded(codec, id, &stored, len);
        });
    }

    #[test]
    fn any_text_parses_or_is_refused(name in "[a-z]{0,5}-?[a-z0-9-]{0,8}") {
        if let Ok(compression) = name.parse::<Compression>() {
            prop_assert_eq!(parse(&compression.to_string()), compression);
        }
    }
}
