//! Whether transformed segments are as short as they are said to be: what another codec than the
//! trial's makes of them, and directories that are longer than what was saved.

use std::sync::Arc;

use crate::common::media::{Machine, code, sound};
use crate::common::segments::{
    Files, GOAL, assert_holds, empty_pool, optimize, pointers, pool_of, put,
};
use crate::common::{Rng, options};
use hardpack_engine::codec::{Codec, Compression};
use hardpack_engine::device::MemoryDevice;
use hardpack_engine::pool::{Options, Pool, Property, SegmentGoal};
use hardpack_engine::store::format::pointer::EXTENT_LEN_MAX;

/// Code whose calls are a small part of it, as in real programs.
fn program(seed: u64, len: usize) -> Vec<u8> {
    let mut rng = Rng(seed);
    let functions: Vec<u32> = (0..60).map(|_| rng.below(1 << 19) as u32).collect();
    let mut bytes = Vec::with_capacity(len + 20);
    while bytes.len() < len {
        bytes.extend(rng.noise(12));
        bytes.push(0xE8);
        bytes.extend(rng.pick(&functions).wrapping_sub(bytes.len() as u32 + 4).to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

fn compressed_len(compression: Compression, bytes: &[u8]) -> usize {
    let mut out = Vec::new();
    Codec::new().compress(compression, bytes, &mut out, usize::MAX).unwrap();
    out.len()
}

/// The length of a segment made of a file of one record.
fn stored_len(bytes: &[u8], compression: Compression) -> usize {
    let (_, pool) = empty_pool(&[(Property::RecordSize, "16M"), (Property::Compression, "off")]);
    put(&pool, b"file", bytes);
    optimize(&pool, SegmentGoal { compression, len: EXTENT_LEN_MAX, ..GOAL });
    assert_holds(&pool, &[(b"file".to_vec(), bytes.to_vec())]);
    pointers(&pool)[0].stored_len as usize
}

/// zstd finds calls of the same functions; zle finds nothing but zeros.
#[test]
fn another_codec_than_that_of_the_trial_makes_it_shorter_too() {
    let mut rng = Rng(4);
    let samples: Vec<u8> =
        (0..120_000_u32).map(|n| (n / 9 * 5) as u8 ^ rng.below(8) as u8).collect();
    let contents = [
        ("code", [code(Machine::X86, 1, 0, 120_000), vec![0; 6000]].concat()),
        ("program", [program(1, 120_000), vec![0; 6000]].concat()),
        ("sound", [sound(1, (2, 1), false, 120_000), vec![0; 6000]].concat()),
        ("pixels", [sound(1, (1, 3), false, 120_000), vec![0; 6000]].concat()),
        ("samples", [samples, vec![0; 6000]].concat()),
    ];
    let mut longer = Vec::new();
    for (name, bytes) in contents {
        for compression in [
            Compression::Zle,
            Compression::Lzjb,
            Compression::Lz4,
            Compression::Lz4Hc(9),
            Compression::Gzip(9),
            Compression::ZstdFast(5),
            Compression::Zstd(3),
        ] {
            let plain = compressed_len(compression, &bytes).min(bytes.len());
            let stored = stored_len(&bytes, compression);
            if stored > plain + 512 {
                longer.push((name, compression, plain, stored));
            }
        }
    }
    assert!(longer.is_empty(), "{longer:?}");
}

/// Small pictures, each with a run of its own: the directory is longer than what lz4 saves.
#[test]
fn no_segment_is_longer_than_an_extent_may_be() {
    let mut rng = Rng(5);
    let mut files: Files = Vec::new();
    let mut picture = |number: u64| {
        let mut value = 0_u8;
        let mut next = || {
            // Differences of five bits: shorter with entropy coding only.
            value = value.wrapping_add(rng.below(40) as u8).wrapping_sub(rng.below(40) as u8);
            value
        };
        (format!("{number}").into_bytes(), (0..4097).map(|_| next()).collect::<Vec<u8>>())
    };
    let mut len = 0;
    for number in 0..4090 {
        let (path, mut bytes) = picture(number);
        if number % 200 == 0 {
            // What lz4 does shorten.
            bytes = vec![number as u8; 4600];
        }
        len += bytes.len();
        if len > EXTENT_LEN_MAX as usize {
            break;
        }
        files.push((path, bytes));
    }
    let (device, pool) = pool_of(&files, &[(Property::Compression, "off")]);
    let compression = Compression::Lz4;
    optimize(&pool, SegmentGoal { compression, len: EXTENT_LEN_MAX, ..GOAL });
    pool.close().unwrap();
    // A cache that has no room for the segment would decode it again for each file.
    let options = Options { caches: Options::new(128 << 20).caches, ..options(8 << 20) };
    let pool = Pool::open(Arc::new(MemoryDevice::new(device.image())), options);
    assert_holds(&pool.unwrap(), &files);
}

/// The trial sees 4 MiB back; the strongest levels see all of a segment.
#[test]
fn moved_copies_far_away_are_still_found() {
    let (program, mut rng) = (program(1, 600_000), Rng(3));
    let bytes = [&program[..], &rng.noise((4 << 20) + 3), &program].concat();
    let compression = Compression::Zstd(18);
    let (plain, stored) = (compressed_len(compression, &bytes), stored_len(&bytes, compression));
    assert!(stored <= plain + plain / 100, "{stored} bytes, without transforms {plain}");
}
