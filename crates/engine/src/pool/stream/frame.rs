//! The outer format of a stream: its header, and frames as types and payloads. See `mod.rs` for the
//! bytes.

use std::hash::Hasher;
use std::io::{self, Read, Write};

use twox_hash::XxHash3_64;

use super::body::END;
use crate::error::{Error, Location, Result};
use crate::pool::namespace::entries::{Kind, Origin};
use crate::store::format::fields::{FieldReader, FieldWriter};
use crate::store::format::pointer::EXTENT_LEN_MAX;
use crate::store::format::snapshot::{STATE_ID_LEN, StateId};
use crate::store::format::superblock::{
    FEATURE_CHUNKS, FEATURE_DIFFERENCES, FEATURE_FILTERED_DIFFERENCES, FEATURE_INFLATED,
    FEATURE_LZMA, FEATURE_PAGES_APART, FEATURE_SECOND_BASES, FEATURE_SEGMENTS,
    FEATURE_SPECIAL_FILES, FEATURE_TRANSFORMED, NUMBER_MAX,
};
use crate::units::{FileId, Txg};

/// The first bytes of a stream.
pub(crate) const STREAM_MAGIC: &[u8; 8] = b"hpkstrm\n";
/// The version of the stream. A different order of frames requires a new version.
pub(crate) const STREAM_VERSION: u32 = 2;
/// The features of a stream, in the order of their bits, each as the feature of the pool that the
/// stream comes from.
const FEATURES: [u64; 10] = [
    FEATURE_SPECIAL_FILES,
    FEATURE_PAGES_APART,
    FEATURE_SEGMENTS,
    FEATURE_CHUNKS,
    FEATURE_INFLATED,
    FEATURE_TRANSFORMED,
    FEATURE_LZMA,
    FEATURE_DIFFERENCES,
    FEATURE_FILTERED_DIFFERENCES,
    FEATURE_SECOND_BASES,
];
/// The features that this version can receive.
const KNOWN_FEATURES: u32 = (1 << FEATURES.len()) - 1;
/// The length of the header before the name of the snapshot.
pub(crate) const HEADER_FRONT_LEN: usize = 112;
/// The end of magic and version, which every version has.
const VERSION_END: usize = 12;
/// The longest name of a snapshot, in bytes.
const SNAPSHOT_NAME_LEN_MAX: usize = 255;
/// The longest payload, in bytes: an extent with its description.
pub(crate) const PAYLOAD_LEN_MAX: usize = EXTENT_LEN_MAX as usize + 4096;
/// The length of a frame's type and length fields.
const FRAME_FRONT_LEN: usize = 5;
const HASH_LEN: usize = 8;
/// The size of a frame besides its payload.
pub(crate) const FRAME_EXTRA_LEN: usize = FRAME_FRONT_LEN + HASH_LEN;
/// This many bytes of a payload must arrive before memory is allocated for more.
const READ_LEN: usize = 64 << 10;

/// Returns the features of a stream from a pool with these features (`incompat`).
pub(crate) fn features_of(incompat: u64) -> u32 {
    let bits = FEATURES.iter().enumerate();
    bits.map(|(bit, feature)| u32::from(incompat & feature != 0) << bit).sum()
}

/// The header of a stream.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Header {
    pub origin: Origin,
    /// The txg of the base; 0 for a complete stream.
    pub base: Txg,
    /// The identity of the base; none for a complete stream.
    pub base_id: StateId,
    /// The number of the first frame.
    pub first: u64,
    /// The file or directory in the source pool.
    pub scope: FileId,
    pub created_ns: i64,
    /// The kind of the scope.
    pub kind: Kind,
    /// What may be in the stream (see [`features_of`]).
    pub features: u32,
    /// The name of the snapshot.
    pub name: Vec<u8>,
}

impl Header {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(HEADER_FRONT_LEN + self.name.len() + HASH_LEN);
        let mut f = FieldWriter(&mut out);
        f.bytes(STREAM_MAGIC);
        f.u32(STREAM_VERSION);
        f.u32(self.features);
        f.bytes(&self.origin.guid);
        f.u64(self.origin.txg.0);
        f.u64(self.base.0);
        f.u64(self.first);
        f.u64(self.scope.0);
        f.u64(self.created_ns as u64);
        f.bytes(&self.origin.id.0);
        f.bytes(&self.base_id.0);
        f.u8(self.kind as u8);
        f.zeros(5);
        f.u16(self.name.len() as u16);
        f.bytes(&self.name);
        let hash = XxHash3_64::oneshot(f.0);
        f.u64(hash);
        out
    }

    fn decode(front: &[u8], name: &[u8]) -> Option<Header> {
        let mut f = FieldReader(front.get(VERSION_END..)?);
        let features = f.u32()?;
        let guid = f.bytes(16)?.try_into().ok()?;
        let txg = Txg(f.u64()?);
        let base = Txg(f.u64()?);
        let first = f.u64()?;
        let scope = FileId(f.u64()?);
        let created_ns = f.u64()? as i64;
        let id = StateId(f.bytes(STATE_ID_LEN)?.try_into().ok()?);
        let base_id = StateId(f.bytes(STATE_ID_LEN)?.try_into().ok()?);
        let origin = Origin { guid, txg, id };
        let kind = Kind::from_stored(f.u8()?)?;
        let is_scope = matches!(kind, Kind::File | Kind::Directory);
        f.zeros(5)?;
        let sound = is_scope
            && txg.0 < NUMBER_MAX
            && base < txg
            && first < NUMBER_MAX
            && !id.is_none()
            && base_id.is_none() == (base.0 == 0);
        sound.then_some(Header {
            origin,
            base,
            base_id,
            first,
            scope,
            created_ns,
            kind,
            features,
            name: name.into(),
        })
    }
}

/// A frame: its number, type and payload.
pub(crate) struct Frame {
    pub number: u64,
    pub tag: u8,
    pub payload: Vec<u8>,
}

impl Frame {
    /// Encodes the frame as it was received.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = vec![self.tag];
        bytes.extend((self.payload.len() as u32).to_le_bytes());
        bytes.extend(&self.payload);
        bytes.extend(frame_hash(self.number, self.tag, &self.payload).to_le_bytes());
        bytes
    }
}

fn frame_hash(number: u64, tag: u8, payload: &[u8]) -> u64 {
    let mut hasher = XxHash3_64::new();
    hasher.write(&number.to_le_bytes());
    hasher.write(&[tag]);
    hasher.write(payload);
    hasher.finish()
}

/// Writes a stream.
pub(crate) struct FrameWriter<'w> {
    out: &'w mut dyn Write,
    hasher: blake3::Hasher,
    /// Bytes written.
    pub len: u64,
}

impl<'w> FrameWriter<'w> {
    pub(crate) fn new(out: &'w mut dyn Write) -> FrameWriter<'w> {
        FrameWriter { out, hasher: blake3::Hasher::new(), len: 0 }
    }

    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.hasher.update(bytes);
        self.len += bytes.len() as u64;
        self.out.write_all(bytes).map_err(|source| Error::Stream { action: "write", source })
    }

    pub(crate) fn frame(&mut self, number: u64, tag: u8, payload: &[u8]) -> Result<()> {
        let mut front = [tag; FRAME_FRONT_LEN];
        front[1..].copy_from_slice(&(payload.len() as u32).to_le_bytes());
        self.write(&front)?;
        self.write(payload)?;
        self.write(&frame_hash(number, tag, payload).to_le_bytes())
    }

    /// Returns the hash of everything written.
    pub(crate) fn hash(&self) -> [u8; 32] {
        *self.hasher.finalize().as_bytes()
    }

    pub(crate) fn flush(&mut self) -> Result<()> {
        self.out.flush().map_err(|source| Error::Stream { action: "write", source })
    }
}

/// Reads a stream.
pub(crate) struct FrameReader<'r> {
    input: &'r mut dyn Read,
    hasher: blake3::Hasher,
    next: u64,
    /// The hash of everything before the last frame.
    before: Option<[u8; 32]>,
    /// Whether the magic was already read by the caller.
    has_magic: bool,
    /// Bytes read, including earlier streams in the same input.
    pub len: u64,
}

impl<'r> FrameReader<'r> {
    pub(crate) fn new(input: &'r mut dyn Read) -> FrameReader<'r> {
        let hasher = blake3::Hasher::new();
        FrameReader { input, hasher, next: 0, before: None, has_magic: false, len: 0 }
    }

    /// Creates a reader for a stream that begins at this byte of the input, whose magic was already
    /// read (see [`FrameReader::next_stream`]).
    pub(crate) fn behind(input: &'r mut dyn Read, at: u64) -> FrameReader<'r> {
        FrameReader { has_magic: true, len: at, ..FrameReader::new(input) }
    }

    /// Whether another stream follows the end of this one; if so, reads its magic. Returns an error
    /// if anything else follows.
    pub(crate) fn next_stream(&mut self) -> Result<bool> {
        let mut magic = Vec::new();
        let mut rest = (&mut *self.input).take(STREAM_MAGIC.len() as u64);
        let read = rest.read_to_end(&mut magic);
        read.map_err(|source| Error::Stream { action: "read", source })?;
        match magic.is_empty() || magic == STREAM_MAGIC {
            true => Ok(!magic.is_empty()),
            false => Err(self.damage("expected its end or another stream, found other bytes")),
        }
    }

    /// Creates a reader for frames without a header, numbered from `first` on.
    pub(crate) fn from_frame(input: &'r mut dyn Read, first: u64) -> FrameReader<'r> {
        FrameReader { next: first, ..FrameReader::new(input) }
    }

    /// Creates an error about the bytes just read.
    pub(crate) fn damage(&self, detail: impl Into<String>) -> Error {
        Error::corrupt("stream", Location::Stream(self.len), detail)
    }

    /// Reads exactly `count` bytes, in steps, so that a length that is merely claimed takes no
    /// memory.
    fn take(&mut self, count: usize) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        if std::mem::take(&mut self.has_magic) {
            bytes.extend_from_slice(STREAM_MAGIC);
            self.len += bytes.len() as u64;
        }
        while bytes.len() < count {
            let start = bytes.len();
            let step = (count - start).min(READ_LEN.max(start));
            bytes.resize(start + step, 0);
            self.input.read_exact(&mut bytes[start..]).map_err(|source| match source.kind() {
                io::ErrorKind::UnexpectedEof => {
                    self.damage(format!("expected {} more bytes, found its end", count - start))
                }
                _ => Error::Stream { action: "read", source },
            })?;
            self.len += step as u64;
        }
        Ok(bytes)
    }

    /// Reads the header, which contains the number of the first frame.
    pub(crate) fn header(&mut self) -> Result<Header> {
        let mut front = self.take(VERSION_END)?;
        let mut f = FieldReader(&front);
        if f.bytes(8) != Some(STREAM_MAGIC) {
            return Err(Error::Invalid("this is not a stream written by 'send'".into()));
        }
        let version = f.u32();
        if version != Some(STREAM_VERSION) {
            let version = version.unwrap_or(0);
            let why = match version {
                1 => ", which does not identify its base for certain; send it again",
                _ => "",
            };
            return Err(Error::Unsupported(format!("the stream is of version {version}{why}")));
        }
        front.extend(self.take(HEADER_FRONT_LEN - VERSION_END)?);
        let mut f = FieldReader(&front[VERSION_END..]);
        let unknown = f.u32().unwrap_or(0) & !KNOWN_FEATURES;
        if unknown != 0 {
            let bits: Vec<String> =
                (0..32).filter(|bit| unknown >> bit & 1 != 0).map(|bit| bit.to_string()).collect();
            return Err(Error::Unsupported(format!(
                "the stream has features that this version of the program does not know (bits {}); \
                 a newer one may receive it",
                bits.join(", ")
            )));
        }
        let name_len = usize::from(u16::from_le_bytes([front[110], front[111]]));
        if name_len > SNAPSHOT_NAME_LEN_MAX {
            let what = format!(
                "expected a snapshot's name of at most {SNAPSHOT_NAME_LEN_MAX} bytes, found one of \
                 {name_len}"
            );
            return Err(self.damage(what));
        }
        let name = self.take(name_len)?;
        let hash = self.take(HASH_LEN)?;
        let whole = [&front[..], &name].concat();
        if XxHash3_64::oneshot(&whole).to_le_bytes() != hash[..] {
            return Err(
                self.damage("expected a header with the hash behind it, found another hash")
            );
        }
        self.hasher.update(&whole);
        self.hasher.update(&hash);
        let header = Header::decode(&front, &name);
        let header = header.ok_or_else(|| {
            self.damage("expected a header whose fields agree, found impossible values")
        })?;
        self.next = header.first;
        Ok(header)
    }

    /// Reads a frame and verifies its hash.
    pub(crate) fn frame(&mut self) -> Result<Frame> {
        let front = self.take(FRAME_FRONT_LEN)?;
        let (tag, len) = (front[0], [front[1], front[2], front[3], front[4]]);
        let len = u32::from_le_bytes(len) as usize;
        if len > PAYLOAD_LEN_MAX {
            let what =
                format!("expected a frame of at most {PAYLOAD_LEN_MAX} bytes, found one of {len}");
            return Err(self.damage(what));
        }
        let payload = self.take(len)?;
        let hash = self.take(HASH_LEN)?;
        let number = self.next;
        if frame_hash(number, tag, &payload).to_le_bytes() != hash[..] {
            let what =
                format!("expected frame {number} with the hash behind it, found another hash");
            return Err(self.damage(what));
        }
        if tag == END {
            self.before = Some(*self.hasher.finalize().as_bytes());
        }
        for part in [&front, &payload, &hash] {
            self.hasher.update(part);
        }
        self.next += 1;
        Ok(Frame { number, tag, payload })
    }

    /// Returns the hash of everything before the END frame.
    pub(crate) fn end_hash(&self) -> [u8; 32] {
        self.before.unwrap_or_default()
    }
}
