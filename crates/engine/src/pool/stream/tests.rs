//! Tests of streams: the receiver gets exactly what was sent, whatever happens on the way.

mod bases;
mod chains;
mod crash;
mod damaged;
mod diverged;
mod staged;
mod trees;

use std::io::Read;
use std::sync::Arc;

use self::trees::{Tree, assert_same, grow, new_pool};
use super::apply::Apply;
use super::body::{Body, PATH_LEN_MAX};
use super::frame::HEADER_FRONT_LEN;
use super::{ReceiveOptions, ResumeToken, SendPlan};
use crate::codec::CodecId;
use crate::device::{Device, MemoryDevice};
use crate::error::{Error, Location, Result};
use crate::pool::{Kind, Pool, ROOT, ReceiveReport};
use crate::store::Patience;
use crate::store::format::checksum::ChecksumKind;
use crate::store::format::pointer::Place;
use crate::store::format::snapshot::StateId;
use crate::test_common::{Rng, options, problems};
use crate::units::FileId;

/// A pool with a tree, and its state opened for sending.
struct Source {
    pool: Pool,
    pinned: Pool,
    tree: Tree,
}

fn source(seed: u64) -> Source {
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::default());
    let pool = new_pool(&device, 9, &[]);
    let mut tree = Tree::default();
    let mut rng = Rng(seed);
    grow(&pool, &mut tree, &mut rng, 60);
    let pinned = Pool::open_at(device, options(1 << 20), pool.state().txg()).unwrap();
    Source { pool, pinned, tree }
}

impl Source {
    fn plan(&self, scope: FileId) -> SendPlan<'_> {
        SendPlan {
            snapshot: &self.pinned,
            base: None,
            scope,
            name: b"one",
            created_ns: 5,
            resume: None,
        }
    }

    fn stream(&self, plan: &SendPlan<'_>) -> Vec<u8> {
        let mut out = Vec::new();
        let report = self.pool.send(plan, &mut out, &mut |_| {}).unwrap();
        assert_eq!(report.bytes, out.len() as u64);
        assert_eq!(self.pool.measure_send(plan).unwrap(), report);
        out
    }
}

fn target() -> Pool {
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::default());
    new_pool(&device, 12, &[])
}

fn receive(pool: &Pool, mut stream: &[u8], batch_len: usize) -> Result<ReceiveReport> {
    let options = ReceiveOptions { batch_len, ..ReceiveOptions::default() };
    pool.receive(ROOT, b"copy", &mut stream, &options, &mut |_| {})
}

#[test]
fn a_tree_comes_out_as_it_went_in() {
    for seed in 0..4 {
        let source = source(seed);
        let stream = source.stream(&source.plan(ROOT));
        assert_eq!(stream, source.stream(&source.plan(ROOT)), "seed {seed}: not the same again");
        let pool = target();
        let report = receive(&pool, &stream, 10_000).unwrap();
        assert_eq!(report.bytes, stream.len() as u64);
        assert_same(&source.pinned, ROOT, &pool, report.file, seed);
        source.tree.assert_read(&pool, b"copy", seed);
        let kept = pool.open_snapshot(report.file, b"one").unwrap();
        assert_same(&source.pinned, ROOT, &kept, report.file, seed);
        assert_eq!(pool.snapshots().unwrap()[0].created_ns, 5);
        assert_eq!(problems(&pool).unwrap(), Vec::<String>::new(), "seed {seed}");
        assert!(pool.receive_token(ROOT, b"copy").unwrap().is_none());
        let again = receive(&pool, &stream, 0);
        assert!(matches!(again, Err(Error::Exists { .. })), "seed {seed}: {again:?}");
    }
}

#[test]
fn a_single_file_and_a_single_directory_can_be_sent() {
    let source = source(11);
    for name in source.pinned.list().unwrap() {
        if !matches!(name.kind, Kind::File | Kind::Directory) {
            continue;
        }
        let stream = source.stream(&source.plan(name.file));
        let pool = target();
        let report = receive(&pool, &stream, 0).unwrap();
        assert_same(&source.pinned, name.file, &pool, report.file, 11);
        assert_eq!(problems(&pool).unwrap(), Vec::<String>::new(), "{}", name.display_name());
    }
}

#[test]
fn a_cut_stream_goes_on_from_where_it_was_cut() {
    let source = source(21);
    let stream = source.stream(&source.plan(ROOT));
    let mut rng = Rng(21);
    let mut cuts: Vec<usize> = (0..12).map(|_| rng.below(stream.len() as u64) as usize).collect();
    cuts.extend([0, 1, 80, 100, stream.len() - 1, stream.len() - 45, stream.len() - 60]);
    for cut in cuts {
        let pool = target();
        let batch_len = 1 + rng.below(30_000) as usize;
        receive(&pool, &stream[..cut], batch_len).unwrap_err();
        assert!(pool.lookup_in(ROOT, b"copy").unwrap().is_none(), "cut {cut}: half is visible");
        assert_eq!(problems(&pool).unwrap(), Vec::<String>::new(), "cut {cut}");
        assert_eq!(pool.remove_nameless(&mut |_| false).unwrap(), 0, "cut {cut}");
        let token = pool.receive_token(ROOT, b"copy").unwrap();
        let token: Option<ResumeToken> = token.map(|token| token.to_string().parse().unwrap());
        let plan = SendPlan { resume: token, ..source.plan(ROOT) };
        let rest = source.stream(&plan);
        if let Some(token) = token {
            assert!(token.frames > 0);
            assert!(rest.len() < stream.len(), "cut {cut}: all of it once more");
        }
        let report = receive(&pool, &rest, batch_len).unwrap();
        assert_same(&source.pinned, ROOT, &pool, report.file, cut as u64);
        assert_eq!(problems(&pool).unwrap(), Vec::<String>::new(), "cut {cut}, resumed");
    }
}

#[test]
fn the_whole_stream_may_come_again_after_a_cut() {
    let source = source(22);
    let stream = source.stream(&source.plan(ROOT));
    let pool = target();
    receive(&pool, &stream[..stream.len() / 2], 5_000).unwrap_err();
    let report = receive(&pool, &stream, 5_000).unwrap();
    assert_same(&source.pinned, ROOT, &pool, report.file, 22);
    assert_eq!(problems(&pool).unwrap(), Vec::<String>::new());
}

#[test]
fn what_is_given_up_leaves_nothing() {
    let source = source(23);
    let stream = source.stream(&source.plan(ROOT));
    let pool = target();
    let before = pool.state().stats().data();
    receive(&pool, &stream[..stream.len() * 3 / 4], 5_000).unwrap_err();
    assert!(pool.state().stats().data().records > before.records);
    assert!(pool.abort_receive(ROOT, b"copy").unwrap());
    assert!(!pool.abort_receive(ROOT, b"copy").unwrap());
    assert_eq!(pool.state().stats().data(), before);
    assert_eq!(pool.state().stats().file_bytes, 0);
    assert_eq!(problems(&pool).unwrap(), Vec::<String>::new());
    let report = receive(&pool, &stream, 0).unwrap();
    assert_same(&source.pinned, ROOT, &pool, report.file, 23);
}

#[test]
fn a_flipped_bit_anywhere_is_noticed() {
    let source = source(31);
    let stream = source.stream(&source.plan(ROOT));
    let mut rng = Rng(31);
    let mut places: Vec<usize> = (0..60).map(|_| rng.below(stream.len() as u64) as usize).collect();
    places.extend(0..100);
    places.extend(stream.len() - 60..stream.len());
    for place in places {
        let mut bad = stream.clone();
        bad[place] ^= 1 << rng.below(8);
        let pool = target();
        let received = receive(&pool, &bad, 20_000);
        assert!(received.is_err(), "byte {place} of {}", stream.len());
        assert!(pool.lookup_in(ROOT, b"copy").unwrap().is_none(), "byte {place}");
        assert_eq!(problems(&pool).unwrap(), Vec::<String>::new(), "byte {place}");
    }
}

/// Returns where the frames of a stream begin.
fn frame_starts(stream: &[u8]) -> Vec<usize> {
    let name_len = usize::from(u16::from_le_bytes([
        stream[HEADER_FRONT_LEN - 2],
        stream[HEADER_FRONT_LEN - 1],
    ]));
    let mut starts = vec![HEADER_FRONT_LEN + name_len + 8];
    while let Some(front) = stream.get(starts[starts.len() - 1]..).filter(|rest| rest.len() > 5) {
        let len = u32::from_le_bytes([front[1], front[2], front[3], front[4]]) as usize;
        starts.push(starts[starts.len() - 1] + 5 + len + 8);
    }
    starts
}

#[test]
fn lost_repeated_and_swapped_frames_are_noticed() {
    let source = source(32);
    let stream = source.stream(&source.plan(ROOT));
    let starts = frame_starts(&stream);
    assert!(starts.len() > 20);
    let mut rng = Rng(32);
    for _ in 0..30 {
        let at = rng.below(starts.len() as u64 - 3) as usize;
        let (a, b, c) = (starts[at], starts[at + 1], starts[at + 2]);
        let (before, one, two, behind) = (&stream[..a], &stream[a..b], &stream[b..c], &stream[c..]);
        let changed = match rng.below(3) {
            0 => [before, two, behind].concat(),
            1 => [before, one, one, two, behind].concat(),
            _ => [before, two, one, behind].concat(),
        };
        let pool = target();
        assert!(receive(&pool, &changed, 0).is_err(), "frame {at}");
        assert!(pool.lookup_in(ROOT, b"copy").unwrap().is_none(), "frame {at}");
    }
}

/// Recomputes the hash of every frame of a stream, and of its end.
fn seal(stream: &[u8]) -> Vec<u8> {
    use std::hash::Hasher;
    let starts = frame_starts(stream);
    let header_len = starts[0];
    let mut out = stream[..header_len - 8].to_vec();
    let hash = twox_hash::XxHash3_64::oneshot(&out);
    out.extend(hash.to_le_bytes());
    for (number, ends) in starts.windows(2).enumerate() {
        let (start, end) = (ends[0], ends[1].min(stream.len()));
        if end < start + 13 {
            break;
        }
        let mut frame = stream[start..end - 8].to_vec();
        if frame[0] == 13 && frame.len() == 45 {
            frame[13..45].copy_from_slice(blake3::hash(&out).as_bytes());
        }
        let mut hasher = twox_hash::XxHash3_64::new();
        hasher.write(&(number as u64).to_le_bytes());
        hasher.write(&frame[..1]);
        hasher.write(&frame[5..]);
        out.extend(frame);
        out.extend(hasher.finish().to_le_bytes());
    }
    out
}

#[test]
fn a_hostile_stream_does_no_harm() {
    let source = source(41);
    let stream = source.stream(&source.plan(ROOT));
    assert_eq!(seal(&stream), stream);
    let starts = frame_starts(&stream);
    let (mut refused, mut taken) = (0, 0);
    for seed in 0..400 {
        let mut rng = Rng(4100 + seed);
        let mut bad = stream.clone();
        for _ in 0..=rng.below(3) {
            let frame = rng.below(starts.len() as u64 - 2) as usize;
            // The front holds type, numbers and pointers. Lengths are left alone; otherwise no
            // later bytes would be a frame.
            let span = (starts[frame + 1] - starts[frame]).min(90) as u64;
            let at = match rng.below(span) as usize {
                1..=4 => 0,
                at => at,
            };
            bad[starts[frame] + at] = match rng.below(3) {
                0 => rng.below(14) as u8,
                1 => bad[starts[frame] + at] ^ 1 << rng.below(8),
                _ => rng.below(256) as u8,
            };
        }
        let pool = target();
        match receive(&pool, &seal(&bad), 1 + rng.below(40_000) as usize) {
            Ok(_) => taken += 1,
            Err(_) => {
                refused += 1;
                assert!(pool.lookup_in(ROOT, b"copy").unwrap().is_none(), "seed {seed}");
            }
        }
        assert_eq!(problems(&pool).unwrap(), Vec::<String>::new(), "seed {seed}");
        let _ = pool.abort_receive(ROOT, b"copy").unwrap();
        assert_eq!(problems(&pool).unwrap(), Vec::<String>::new(), "seed {seed}, given up");
    }
    assert!(refused > 100 && taken > 10, "{refused} refused, {taken} taken");
}

/// A record that its checksum fits but its codec did not write is damage of the stream; no byte of
/// the pool is to blame.
#[test]
fn a_record_that_cannot_be_decoded_is_named_by_its_frame() {
    let source = source(42);
    let stream = source.stream(&source.plan(ROOT));
    let mut met = 0;
    for (number, ends) in frame_starts(&stream).windows(2).enumerate() {
        let payload = ends[0] + 5..ends[1] - 8;
        let Some(Body::FileExtent { at, mut pointer, stored }) =
            stream.get(payload.clone()).and_then(|bytes| Body::decode(stream[ends[0]], bytes))
        else {
            continue;
        };
        let Place::Extent { checksum_kind, checksum, .. } = &mut pointer.place else { continue };
        if pointer.codec == CodecId::Raw as u8 {
            continue;
        }
        let stored = vec![0xff; stored.len()];
        *checksum = checksum_kind.sum(&stored);
        let (_, bytes) = Body::FileExtent { at, pointer, stored }.encode();
        let mut bad = stream.clone();
        bad[payload].copy_from_slice(&bytes);
        let error = receive(&target(), &seal(&bad), 20_000).unwrap_err();
        assert!(
            matches!(&error, Error::Corrupt { location: Location::Frame(found), .. }
                if *found == number as u64),
            "frame {number}: {error}"
        );
        met += 1;
        if met == 10 {
            return;
        }
    }
    assert!(met > 0);
}

#[test]
fn a_message_does_not_hold_all_of_a_long_path() {
    let pool = target();
    let mut txn = pool.store().begin_with(ChecksumKind::Xxh3, Patience::None).unwrap();
    let apply = Apply { key: ROOT, root: ROOT, checksum: ChecksumKind::Xxh3, from: 0 };
    let path = [b'x'; PATH_LEN_MAX];
    let refused = apply.know(&mut txn, FileId(9), &path, &mut |_| Ok(())).unwrap_err().to_string();
    assert!(refused.len() < 500, "{} bytes", refused.len());
    let refused =
        apply.know(&mut txn, FileId(9), b"d/short", &mut |_| Ok(())).unwrap_err().to_string();
    assert!(refused.contains("'d/short'"), "{refused}");
}

#[test]
fn what_is_no_stream_is_refused() {
    let pool = target();
    let mut rng = Rng(51);
    for len in [0, 7, 80, 100, 5000] {
        let noise = rng.noise(len);
        assert!(receive(&pool, &noise, 0).is_err());
    }
    let source = source(51);
    let stream = source.stream(&source.plan(ROOT));
    let mut newer = stream.clone();
    newer[8] = 3;
    assert!(matches!(receive(&pool, &newer, 0), Err(Error::Unsupported(_))));
    // The features follow the version; these two are nobody's yet.
    let mut richer = stream.clone();
    richer[15] |= 0b1010_0000;
    let error = receive(&pool, &richer, 0).unwrap_err();
    assert!(matches!(&error, Error::Unsupported(why) if why.contains("(bits 29, 31)")), "{error}");
    let (id, base) = (StateId([1; 16]), StateId::NONE);
    let token = ResumeToken { id, base, frames: 1 };
    let plan = SendPlan { resume: Some(token), ..source.plan(ROOT) };
    assert!(source.pool.send(&plan, &mut Vec::new(), &mut |_| {}).is_err());
    for bad in ["", "0-1-2-3", "zz", "00112233445566778899aabbccddeeff-1-2", &format!("{token}-1")]
    {
        assert!(bad.parse::<ResumeToken>().is_err(), "{bad}");
    }
    assert_eq!(token.to_string().parse::<ResumeToken>().unwrap(), token);
}

/// A reader that fails at the end of its bytes.
struct Failing<'a>(&'a [u8]);

impl Read for Failing<'_> {
    fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
        match self.0.read(buf)? {
            0 => Err(std::io::Error::other("the cable is cut")),
            n => Ok(n),
        }
    }
}

#[test]
fn an_input_that_fails_is_reported_and_kept() {
    let source = source(61);
    let stream = source.stream(&source.plan(ROOT));
    let pool = target();
    let input = &mut Failing(&stream[..stream.len() / 2]);
    let failed = pool.receive(ROOT, b"copy", input, &ReceiveOptions::default(), &mut |_| {});
    assert!(matches!(failed, Err(Error::Stream { .. })), "{failed:?}");
    assert!(pool.receive_token(ROOT, b"copy").unwrap().is_some_and(|token| token.frames > 0));
}
