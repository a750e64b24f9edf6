//! The kinds of blocks that are counted: fixed ones of several lengths, and content-defined chunks.
//!
//! A fixed block is known by a hash over the hashes of the next smaller blocks in it, so all
//! lengths together hash each byte once. That identifies its content as the hash of its bytes
//! would.

use std::ops::Range;

use hardpack_engine::pool::{cut_chunks, is_changed_in_place};

/// How a kind of block is cut.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cut {
    /// Blocks of this length, in bytes.
    Fixed(usize),
    /// Chunks of about this length on average, as `chunking=auto` cuts them: each is a quarter to
    /// four times as long. What it does not cut has records of the longest length.
    Chunks(usize),
}

/// The fixed lengths, in ascending order; each is a multiple of the one before.
const FIXED: [usize; 6] = [2 << 10, 4 << 10, 16 << 10, 64 << 10, 128 << 10, 1 << 20];
pub const FIXED_COUNT: usize = FIXED.len();
/// The usual lengths of chunks: those with records of 64K, and of 128K, the default.
const CHUNKS: [usize; 2] = [16 << 10, 32 << 10];
pub const CHUNKS_COUNT: usize = CHUNKS.len();
pub const COUNT: usize = FIXED_COUNT + CHUNKS_COUNT;

/// All kinds, with the names under which users see them.
pub const KINDS: [(&str, Cut); COUNT] = [
    ("2K", Cut::Fixed(FIXED[0])),
    ("4K", Cut::Fixed(FIXED[1])),
    ("16K", Cut::Fixed(FIXED[2])),
    ("64K", Cut::Fixed(FIXED[3])),
    ("128K", Cut::Fixed(FIXED[4])),
    ("1M", Cut::Fixed(FIXED[5])),
    ("~16K", Cut::Chunks(CHUNKS[0])),
    ("~32K", Cut::Chunks(CHUNKS[1])),
];

/// The longest fixed block. Windows are multiples of it.
pub const BLOCK_LEN_MAX: usize = FIXED[FIXED_COUNT - 1];

impl Cut {
    /// The shortest, usual and longest length, in bytes. The last block of a file may be shorter.
    pub fn lengths(self) -> (usize, usize, usize) {
        match self {
            Cut::Fixed(len) => (len, len, len),
            Cut::Chunks(len) => (len / 4, len, len * 4),
        }
    }
}

/// A block of a window.
#[derive(Clone, Debug)]
pub struct Block {
    /// The front of the hash of its content.
    pub id: u64,
    pub range: Range<usize>,
    pub is_zero: bool,
}

#[derive(Clone)]
struct Node {
    hash: [u8; 32],
    is_zero: bool,
}

/// Hashes a window and calls `visit` with the blocks of each fixed length, in ascending order.
pub fn fixed<E>(
    bytes: &[u8],
    mut visit: impl FnMut(usize, Vec<Block>) -> Result<(), E>,
) -> Result<(), E> {
    let is_zero = hardpack_engine::codec::is_all_zero;
    let leaf = |bytes: &[u8]| Node { hash: hash(bytes), is_zero: is_zero(bytes) };
    let mut nodes: Vec<Node> = bytes.chunks(FIXED[0]).map(leaf).collect();
    for (kind, len) in FIXED.into_iter().enumerate() {
        if kind > 0 {
            nodes = nodes.chunks(len / FIXED[kind - 1]).map(parent).collect();
        }
        let blocks = nodes.iter().zip((0..).step_by(len)).map(|(node, start)| Block {
            id: id_of(&node.hash),
            range: start..bytes.len().min(start + len),
            is_zero: node.is_zero,
        });
        visit(kind, blocks.collect())?;
    }
    Ok(())
}

fn parent(children: &[Node]) -> Node {
    let mut hasher = blake3::Hasher::new();
    children.iter().for_each(|child| {
        hasher.update(&child.hash);
    });
    let is_zero = children.iter().all(|child| child.is_zero);
    Node { hash: *hasher.finalize().as_bytes(), is_zero }
}

/// Returns the block of a content-defined chunk.
pub fn chunk(bytes: &[u8], range: Range<usize>) -> Block {
    let content = &bytes[range.clone()];
    let is_zero = hardpack_engine::codec::is_all_zero(content);
    Block { id: id_of(&hash(content)), range, is_zero }
}

fn hash(bytes: &[u8]) -> [u8; 32] {
    *blake3::hash(bytes).as_bytes()
}

/// The first eight bytes are enough: with 2^19 blocks in a table, one in 2^45 blocks is taken for
/// another.
fn id_of(hash: &[u8; 32]) -> u64 {
    let (front, _) = hash.split_at(8);
    front.iter().fold(0, |id, byte| id << 8 | u64::from(*byte))
}

/// Whether `chunking=auto` cuts a file that begins like this.
pub fn is_cut(front: &[u8]) -> bool {
    !is_changed_in_place(front)
}

/// Cuts chunks off the front of `bytes` from `start` on, and returns where the rest begins. Unless
/// the bytes `end` the file, a chunk that reaches their end is left, as more bytes may belong to
/// it. A file that is not cut (see [`is_cut`]) has records of the longest chunk's length.
pub fn cut(
    kind: usize,
    (bytes, is_cut): (&[u8], bool),
    start: usize,
    end: bool,
    chunks: &mut Vec<Range<usize>>,
) -> usize {
    let (.., longest) = Cut::Chunks(CHUNKS[kind]).lengths();
    let rest = &bytes[start..];
    let lens = match is_cut {
        true => cut_chunks(longest, rest, end),
        false => {
            let whole = rest.chunks(longest).map(<[u8]>::len);
            whole.filter(|len| *len == longest || end).collect()
        }
    };
    let mut from = start;
    for len in lens {
        chunks.push(from..from + len);
        from += len;
    }
    from
}
