use proptest::prelude::*;

use super::*;
use crate::test_common::Rng;
use crate::test_common::media::{self, code, sound};

const MACHINES: [(media::Machine, Machine); 4] = [
    (media::Machine::X86, Machine::X86),
    (media::Machine::Arm, Machine::Arm),
    (media::Machine::ArmThumb, Machine::ArmThumb),
    (media::Machine::Arm64, Machine::Arm64),
];

fn alone(position: u64) -> [Origin; 1] {
    [Origin { start: 0, file: 1, position }]
}

fn runs_of(form: &Form) -> Vec<Run> {
    split(&form.directory, form.bytes.len()).unwrap().1
}

fn restored(form: &Form) -> Vec<u8> {
    let mut bytes = vec![0; form.bytes.len()];
    let stored = [&form.bytes[..], &form.directory].concat();
    let mut codec = Codec::new();
    codec.decompress_transformed(CodecId::Raw as u8, &stored, &mut bytes).unwrap();
    bytes
}

fn compressed_len(bytes: &[u8]) -> usize {
    let mut out = Vec::new();
    let mut codec = Codec::new();
    codec.compress(crate::codec::Compression::Zstd(9), bytes, &mut out, usize::MAX).unwrap();
    out.len()
}

#[test]
fn code_is_recognised_wherever_it_begins() {
    for (machine, expected) in MACHINES {
        for position in [0, 1, 2, 3, 4096, (5 << 32) + 6] {
            let skipped = (position as usize).wrapping_neg() % expected.alignment() as usize;
            // What is before it belongs to no instruction.
            let code = code(machine, 7, position + skipped as u64, 200_000);
            let record = [vec![1; skipped], code].concat();
            let form = Form::of(&record, &alone(position)).unwrap();
            let run = Run {
                range: skipped..record.len(),
                position: position as u32 + skipped as u32,
                transform: Transform::Branches(expected),
            };
            assert_eq!(runs_of(&form), [run], "{machine:?} {position}");
            assert!(restored(&form) == record);
            let (with, without) = (compressed_len(&form.bytes), compressed_len(&record));
            assert!(with * 10 < without * 9, "{machine:?}: {with} of {without}");
        }
    }
}

#[test]
fn samples_are_recognised_however_they_lie() {
    for layout in [(1, 1), (1, 3), (1, 4), (2, 1), (2, 2), (3, 1), (3, 2), (4, 1), (4, 2)] {
        for is_big_endian in [false, true] {
            if is_big_endian && layout.0 == 1 {
                continue;
            }
            let (width, _) = layout;
            for header_len in 0..width {
                let sound = sound(header_len as u64, layout, is_big_endian, 100_001);
                let record = [&b"RIF"[..header_len], &sound].concat();
                let form = Form::of(&record, &alone(0)).unwrap();
                let runs = runs_of(&form);
                assert_eq!(runs.len(), 1, "{layout:?} {is_big_endian} {runs:?}");
                // Which of their bytes come first makes little difference.
                let Transform::Samples(samples) = runs[0].transform else { panic!("{runs:?}") };
                assert_eq!((samples.width, samples.channels), layout, "{is_big_endian}");
                assert!(runs[0].range.start < width && runs[0].range.end == record.len());
                assert!(restored(&form) == record);
                let (with, without) = (compressed_len(&form.bytes), compressed_len(&record));
                assert!(with * 20 < without * 19, "{layout:?}: {with} of {without}");
            }
        }
    }
}

#[test]
fn other_bytes_are_left_alone() {
    let numbers: Vec<u8> = (0..30_000_u32).flat_map(|n| (n / 7 * 232).to_le_bytes()).collect();
    let records = [
        Rng(1).text(100_000),
        Rng(2).noise(100_000),
        vec![0; 100_000],
        vec![0xE8; 100_000],
        Rng(3).archive(100_000),
        Vec::new(),
        vec![1],
        code(media::Machine::X86, 1, 0, 500),
    ];
    for (index, record) in records.iter().enumerate() {
        assert!(Form::of(record, &alone(0)).is_none(), "{index}");
    }
    // Tables of numbers look like samples, and like code to nobody.
    if let Some(form) = Form::of(&numbers, &alone(0)) {
        assert!(runs_of(&form).iter().all(|run| matches!(run.transform, Transform::Samples(_))));
        assert!(restored(&form) == numbers);
    }
}

/// The look for samples takes ten times as long as everything else, and finds nothing in what was
/// compressed before, which is most of what large files hold.
#[test]
fn noise_is_told_from_loud_sound() {
    for len in [1 << 10, 16 << 10, 24 << 10] {
        let blocks = (0..200).filter(|seed| look::is_noise(&Rng(*seed).noise(len)));
        let count = blocks.count();
        assert!(count > 190, "{count} of 200 blocks of {len} bytes");
        for layout in [(1, 1), (1, 3), (2, 1), (2, 2), (3, 2), (4, 1)] {
            assert!(!look::is_noise(&sound(1, layout, false, len)), "{layout:?} {len}");
        }
    }
}

/// A file goes on in the next piece; two files are two runs, which begin anew.
#[test]
fn runs_end_with_their_file() {
    let parts = [
        code(media::Machine::X86, 1, 0, 50_000),
        code(media::Machine::X86, 2, 50_000, 40_000),
        code(media::Machine::X86, 3, 0, 30_000),
        code(media::Machine::X86, 4, 90_000, 30_000),
        Rng(1).text(30_000),
        sound(1, (2, 2), false, 30_000),
        sound(1, (2, 2), false, 30_000),
    ];
    let places = [(1, 0), (1, 50_000), (2, 0), (2, 90_000), (3, 0), (3, 30_000), (3, 60_000)];
    let (mut record, mut origins) = (Vec::new(), Vec::new());
    for (bytes, (file, position)) in parts.iter().zip(places) {
        origins.push(Origin { start: record.len(), file, position });
        record.extend_from_slice(bytes);
    }
    let form = Form::of(&record, &origins).unwrap();
    let runs = runs_of(&form);
    let places: Vec<(Range<usize>, u32)> =
        runs.iter().map(|run| (run.range.clone(), run.position)).collect();
    let expected = [(0..90_000, 0), (90_000..120_000, 0), (120_000..150_000, 90_000)];
    assert_eq!(places[..3], expected);
    // A sample may begin with any of its bytes.
    assert!(matches!(&places[3..], [(range, _)] if range.start < 180_004 && range.end == 240_000));
    assert!(restored(&form) == record);
    let lens = runs.iter().map(|run| run.range.len() as u64);
    assert_eq!(form.transformed_len, lens.sum::<u64>());
}

#[test]
fn forged_directories_are_refused() {
    let data = Rng(1).noise(1000);
    let entry = |start: u32, len: u32, position: u32, transform: [u8; 2]| {
        let numbers = [start, len, position].map(u32::to_le_bytes);
        [&numbers.concat()[..], &transform].concat()
    };
    let stored = |entries: &[Vec<u8>], count: u32| {
        [&data[..], &entries.concat(), &count.to_le_bytes()].concat()
    };
    let decode = |stored: &[u8]| {
        let mut bytes = vec![0; data.len()];
        let mut codec = Codec::new();
        codec.decompress_transformed(CodecId::Raw as u8, stored, &mut bytes).map(|()| bytes)
    };
    assert!(decode(&stored(&[], 0)).unwrap() == data);
    let good = [entry(0, 64, 4, [2, 0]), entry(64, 936, u32::MAX, [5, 0x7d])];
    assert!(decode(&stored(&good, 2)).is_ok());
    let forged = [
        vec![],
        vec![0, 0, 0],
        u32::MAX.to_le_bytes().to_vec(),
        16_u32.to_le_bytes().to_vec(),
        stored(&good, 1),
        stored(&good, 3),
        stored(&good[..1], 2),
        stored(&[entry(0, 63, 0, [1, 0])], 1),
        stored(&[entry(0, 1001, 0, [1, 0])], 1),
        stored(&[entry(1000, 64, 0, [1, 0])], 1),
        stored(&[entry(u32::MAX, 64, 0, [1, 0])], 1),
        stored(&[entry(0, u32::MAX, 0, [1, 0])], 1),
        stored(&[entry(64, 64, 0, [1, 0]), entry(0, 64, 0, [1, 0])], 2),
        stored(&[entry(0, 64, 0, [1, 0]), entry(63, 64, 0, [1, 0])], 2),
        stored(&[entry(0, 64, 0, [0, 0])], 1),
        stored(&[entry(0, 64, 0, [6, 0])], 1),
        stored(&[entry(0, 64, 0, [1, 1])], 1),
        stored(&[entry(0, 64, 2, [2, 0])], 1),
        stored(&[entry(0, 64, 1, [3, 0])], 1),
        stored(&[entry(0, 64, 6, [4, 0])], 1),
        stored(&[entry(0, 64, 0, [5, 0x80])], 1),
        stored(&[entry(0, 64, 0, [5, 0x40])], 1),
    ];
    for (index, stored) in forged.iter().enumerate() {
        assert!(
            matches!(decode(stored), Err(CodecError::Corrupt { .. } | CodecError::Length { .. })),
            "{index}"
        );
    }
    let mut codec = Codec::new();
    assert!(codec.decompress_transformed(9, &stored(&[], 0), &mut [0; 1000]).is_err());
}

#[test]
fn numbers_on_disk_stand_for_one_transform_each() {
    let mut found = 0;
    for bytes in (0..=u16::MAX).map(u16::to_le_bytes) {
        if let Some(transform) = Transform::from_bytes(bytes) {
            assert_eq!(transform.to_bytes(), bytes);
            found += 1;
        }
    }
    assert_eq!(found, 4 + 16 * 7);
}

proptest! {
    #[test]
    fn any_bytes_come_back(
        seed: u64,
        // The filters of machine code go from one buffer of 4096 bytes to the next.
        len in 64_usize..14_000,
        position: u32,
        number in 1_u8..6,
        parameter in 0_u8..128,
        ones in 1_u64..20,
    ) {
        let transform = Transform::from_bytes([number, if number == 5 { parameter } else { 0 }]);
        let Some(transform) = transform else { return Ok(()) };
        // Mostly what calls begin and end with.
        let mut rng = Rng(seed);
        let call = [0xE8, 0xE9, 0xFF, 0, 0xEB, 0xF0, 0xF8, 0x94, 0x97, 0x90];
        let record: Vec<u8> = (0..len)
            .map(|_| if rng.one_in(ones) { rng.next() as u8 } else { rng.pick(&call) })
            .collect();
        let alignment = match transform {
            Transform::Branches(machine) => machine.alignment(),
            Transform::Samples(_) => 1,
        };
        let position = position / alignment * alignment;
        let run = Run { range: rng.below(10) as usize..len, position, transform };
        let mut bytes = record.clone();
        run.apply(&mut bytes);
        run.restore(&mut bytes);
        prop_assert!(bytes == record);
    }

    #[test]
    fn any_directory_is_read_or_refused(seed: u64, len in 0_usize..200, record_len in 0_usize..2000) {
        let mut stored = Rng(seed).noise(len);
        // Often enough few entries of small numbers.
        for (at, byte) in stored.iter_mut().enumerate() {
            if at % 4 > 1 || *byte > 200 {
                *byte = 0;
            }
        }
        if let Ok((_, runs)) = split(&stored, record_len) {
            let mut bytes = vec![7; record_len];
            runs.iter().for_each(|run| run.restore(&mut bytes));
        }
    }
}
