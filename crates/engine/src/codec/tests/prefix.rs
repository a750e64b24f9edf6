//! Tests of decoding only the front of a record.

use super::*;

/// Decodes a prefix into the middle of a larger buffer, whose surroundings must stay unchanged.
fn prefix_guarded(
    codec: &mut Codec,
    id: u8,
    src: &[u8],
    len: usize,
    full_len: usize,
) -> Result<Vec<u8>, CodecError> {
    const GUARD_LEN: usize = 64;
    let mut buffer = vec![0xa5; len + 2 * GUARD_LEN];
    let middle = GUARD_LEN..GUARD_LEN + len;
    let result = codec.decompress_prefix(id, src, &mut buffer[middle.clone()], full_len);
    let guards = buffer[..GUARD_LEN].iter().chain(&buffer[GUARD_LEN + len..]);
    assert!(guards.into_iter().all(|&byte| byte == 0xa5), "codec {id}");
    result.map(|()| buffer[middle].to_vec())
}

fn check_prefix(
    codec: &mut Codec,
    compression: Compression,
    src: &[u8],
    stored: &[u8],
    len: usize,
) {
    let id = compression.codec_id() as u8;
    let front = prefix_guarded(codec, id, stored, len, src.len());
    assert!(front.as_deref() == Ok(&src[..len]), "{compression}: {len} of {}", src.len());
}

#[test]
fn a_prefix_is_the_front_of_the_record() {
    let mut codec = Codec::new();
    let inputs = [
        vec![7],
        text(50, 1),
        mixed(5000, 2),
        vec![0; 9000],
        mixed(128 * KIB, 4),
        text(600_000, 5),
    ];
    for (_, compression) in table().filter(|(_, c)| !matches!(c, Compression::Zstd(5..=21))) {
        for input in &inputs {
            let stored = compress(&mut codec, compression, input);
            let full_len = input.len();
            let cuts = [0, 1, 4096, 8192, 65_535, 128 * KIB - 1, 128 * KIB, 128 * KIB + 1, 400_000];
            for len in cuts.into_iter().chain([full_len / 3, full_len - 1, full_len]) {
                if len <= full_len {
                    check_prefix(&mut codec, compression, input, &stored, len);
                }
            }
            check_round_trip(&mut codec, compression, input);
        }
    }
}

#[test]
fn every_cut_of_a_short_record_works() {
    let mut codec = Codec::new();
    let mut input = mixed(400, 3);
    input.extend(text(300, 4));
    for compression in HOSTILE_NAMES.map(parse) {
        let stored = compress(&mut codec, compression, &input);
        for len in 0..=input.len() {
            check_prefix(&mut codec, compression, &input, &stored, len);
        }
    }
}

#[test]
fn a_prefix_needs_no_more_of_the_data_than_it_covers() {
    let mut codec = Codec::new();
    let input = mixed(512 * KIB, 3);
    // gzip decodes everything; zstd, lz4 and lzma need the block, sequence or chunk that contains
    // the prefix's end.
    for name in ["off", "lzjb", "zle", "lz4", "zstd-3", "lzma-3"] {
        let compression = parse(name);
        let stored = compress(&mut codec, compression, &input);
        let mut damaged = stored.clone();
        let at = stored.len() - stored.len() / 8;
        damaged[at..].fill(0xff);
        check_prefix(&mut codec, compression, &input, &damaged, 4096);
        check_prefix(&mut codec, compression, &input, &damaged, 128 * KIB);
    }
}

#[test]
fn a_prefix_longer_than_record_or_data_is_refused() {
    let mut codec = Codec::new();
    let input = mixed(6000, 11);
    for compression in HOSTILE_NAMES.map(parse) {
        let id = compression.codec_id() as u8;
        let stored = compress(&mut codec, compression, &input);
        assert!(prefix_guarded(&mut codec, id, &stored, 6001, 6000).is_err());
        // The record claims to be longer than its data.
        assert!(prefix_guarded(&mut codec, id, &stored, 6001, 12_000).is_err(), "{compression}");
        assert!(prefix_guarded(&mut codec, id, &[], 10, 12_000).is_err());
        assert_eq!(prefix_guarded(&mut codec, id, &stored, 0, 12_000), Ok(vec![]));
    }
    for id in 7..=u8::MAX {
        let result = prefix_guarded(&mut codec, id, b"abc", 1, 3);
        assert_eq!(result, Err(CodecError::UnknownCodec(id)));
    }
}

#[test]
fn truncated_data_gives_the_prefix_or_an_error() {
    let mut codec = Codec::new();
    let input = mixed(6000, 10);
    for compression in HOSTILE_NAMES.map(parse) {
        let id = compression.codec_id() as u8;
        let stored = compress(&mut codec, compression, &input);
        for len in (0..stored.len()).filter(|len| len % 7 == 0 || stored.len() - len < 64) {
            for prefix_len in [1, 100, 3000, 5999] {
                let cut = &stored[..len];
                if let Ok(front) = prefix_guarded(&mut codec, id, cut, prefix_len, input.len()) {
                    assert!(front == input[..prefix_len], "{compression} {len} {prefix_len}");
                }
            }
        }
    }
}

#[test]
fn flipped_bits_never_harm_a_prefix() {
    let mut codec = Codec::new();
    let input = mixed(2000, 12);
    for compression in HOSTILE_NAMES.map(parse) {
        let id = compression.codec_id() as u8;
        let mut stored = compress(&mut codec, compression, &input);
        for bit in 0..stored.len() * 8 {
            stored[bit / 8] ^= 1 << (bit % 8);
            for len in [10, 1000, 1999] {
                let _ = prefix_guarded(&mut codec, id, &stored, len, input.len());
            }
            stored[bit / 8] ^= 1 << (bit % 8);
        }
        check_round_trip(&mut codec, compression, &input);
        check_prefix(&mut codec, compression, &input, &stored, 1234);
    }
}

proptest! {
    #[test]
    fn any_prefix_of_any_record_is_its_front(
        compression in any_compression(),
        src in any_record(),
        cut in any::<prop::sample::Index>(),
    ) {
        with_codec(|codec| {
            let stored = compress(codec, compression, &src);
            check_prefix(codec, compression, &src, &stored, cut.index(src.len() + 1));
        });
    }

    #[test]
    fn any_bytes_decode_to_a_prefix_or_fail_in_bounds(
        id in 0..8u8,
        stored in proptest::collection::vec(any::<u8>(), 0..300),
        len in 0..2000usize,
        more in 0..300_000usize,
    ) {
        let _ = with_codec(|codec| prefix_guarded(codec, id, &stored, len, len + more));
    }
}
