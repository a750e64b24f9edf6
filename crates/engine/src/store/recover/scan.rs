//! Finding a pool's states without trusting its front: what is left of header and superblocks, and
//! what a search of the whole pool finds.
//!
//! Every tree node begins on a sector with a magic number, and carries a hash of itself; the tree of
//! roots (see [`crate::store::txn::roots`]) says which nodes were the roots of one state. So a state can be found
//! when all superblocks are lost, when the header is, and when nothing is left of the front.
//!
//! Nothing is written. Where the medium refuses to read, the range is read again in smaller pieces,
//! and what still cannot be read counts as zeros. Memory: some 40 bytes for each node found.

use std::collections::HashMap;
use std::sync::Arc;

use crate::device::Device;
use crate::error::{Error, Result};
use crate::store::Store;
use crate::store::cache::Caches;
use crate::store::format::node::{Front, NODE_HEADER_LEN, NODE_PAYLOAD_LIMIT, Node};
use crate::store::format::pointer::Pointer;
use crate::store::format::superblock::{
    ASHIFT_RANGE, BLOCK_LEN, EXTENTS_OFFSET, FORMAT_VERSION, Header, SLOT_COUNT, Superblock,
    TREE_COUNT, is_sealed, slot_offset,
};
use crate::store::format::trees::{NAMES, ROOTS};
use crate::store::txn::roots::Roots;
use crate::units::Sector;

/// How much is read at a time.
const CHUNK_LEN: usize = 1 << 20;
/// What follows a chunk is read with it, for nodes that begin near its end.
const NODE_LEN_MAX: usize = NODE_HEADER_LEN + NODE_PAYLOAD_LIMIT;
/// Where reading fails it is tried in pieces of these lengths.
const PIECE_LENS: [usize; 3] = [64 << 10, 4096, SECTOR_LEN];
/// No sector is shorter.
const SECTOR_LEN: usize = 1 << *ASHIFT_RANGE.start();

/// A node that the search found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FoundNode {
    /// Where it begins, in bytes.
    pub offset: u64,
    /// What it says of itself.
    pub front: Front,
}

/// What a search found.
#[derive(Clone, Debug, Default)]
pub struct Scan {
    /// The nodes, by place.
    pub nodes: Vec<FoundNode>,
    /// Bytes that the medium refused to read.
    pub refused: u64,
}

/// Fills `buf`; what cannot be read is zero. Returns how many bytes there were before the end, and how
/// many of them were refused.
fn read_forgiving(device: &dyn Device, buf: &mut [u8], offset: u64, depth: usize) -> (usize, u64) {
    if let Ok(n) = device.read_at(buf, offset) {
        buf[n..].fill(0);
        return (n, 0);
    }
    let Some(piece) = PIECE_LENS.get(depth) else {
        buf.fill(0);
        return (buf.len(), buf.len() as u64);
    };
    let mut total = (0, 0);
    for (index, part) in buf.chunks_mut(*piece).enumerate() {
        let (n, refused) = read_forgiving(device, part, offset + (index * piece) as u64, depth + 1);
        total = (total.0 + n, total.1 + refused);
    }
    total
}

/// Searches the whole pool for nodes. `progress` gets the bytes looked at.
pub fn scan(device: &dyn Device, progress: &mut dyn FnMut(u64)) -> Result<Scan> {
    let len = device.len().map_err(|error| Error::io("measure", error))?;
    let mut found = Scan::default();
    let mut buf = vec![0; CHUNK_LEN + NODE_LEN_MAX];
    let mut at = 0;
    while at < len {
        let wanted = buf.len().min(usize::try_from(len - at).unwrap_or(usize::MAX));
        let (n, refused) = read_forgiving(device, &mut buf[..wanted], at, 0);
        found.refused += refused;
        for start in (0..n.min(CHUNK_LEN)).step_by(SECTOR_LEN) {
            let bytes = &buf[start..n];
            if let Some(front) = Front::parse(bytes).filter(|front| front.verifies(bytes)) {
                found.nodes.push(FoundNode { offset: at + start as u64, front });
            }
        }
        at += CHUNK_LEN as u64;
        progress(at.min(len));
    }
    Ok(found)
}

/// What is known of a pool before any of its states is chosen.
#[derive(Clone, Debug)]
pub struct Identity {
    /// The header, or what it must have been.
    pub header: Header,
    /// Whether the header itself was there.
    pub has_header: bool,
    /// The valid superblocks, the newest first.
    pub superblocks: Vec<Superblock>,
    /// There may have been a newer superblock than those.
    pub may_lack_newest: bool,
}

/// Reads header and ring. `scan` is needed where both are lost; `None` says that it is.
pub fn identify(device: &Arc<dyn Device>, scan: Option<&Scan>) -> Result<Option<Identity>> {
    let mut front = vec![0; EXTENTS_OFFSET as usize];
    read_forgiving(&**device, &mut front, 0, 1);
    let header = match Header::decode(&front[..BLOCK_LEN]) {
        // Only where it is whole does it say what it needs.
        Err(error @ Error::Unsupported(_)) if is_sealed(&front[..BLOCK_LEN]) => return Err(error),
        decoded => decoded.ok(),
    };
    Ok(identify_front(device, &front, header, scan))
}

fn identify_front(
    device: &Arc<dyn Device>,
    front: &[u8],
    header: Option<Header>,
    scan: Option<&Scan>,
) -> Option<Identity> {
    let mut slots: Vec<Option<Superblock>> = (0..SLOT_COUNT)
        .map(|slot| {
            let block = &front[slot_offset(slot) as usize..][..BLOCK_LEN];
            let own = block[8..24].try_into().ok()?;
            Superblock::decode(block, &header.map_or(own, |header| header.guid))
        })
        .collect();
    let newest = slots.iter().flatten().max_by_key(|superblock| superblock.txg).cloned();
    let header_found = match (header, &newest, scan) {
        (Some(header), ..) => header,
        (None, Some(newest), _) => {
            let slot = slots.iter().position(|slot| slot.as_ref() == Some(newest))?;
            let guid = front[slot_offset(slot as u64) as usize + 8..][..16].try_into().ok()?;
            // A superblock of another pool may be left from what the place was used for before.
            for slot in 0..SLOT_COUNT {
                let block = &front[slot_offset(slot) as usize..][..BLOCK_LEN];
                slots[slot as usize] = Superblock::decode(block, &guid);
            }
            let pointers: Vec<Pointer> =
                slots.iter().flatten().flat_map(|sb| sb.roots.iter().flatten().cloned()).collect();
            let ashift = find_ashift(device, guid, &pointers).or_else(|| {
                let nodes = &scan?.nodes;
                find_ashift(device, guid, &pointers_in(device, guid, nodes))
            })?;
            Header { version: FORMAT_VERSION, guid, ashift }
        }
        (None, None, Some(scan)) => header_of(device, scan)?,
        (None, None, None) => return None,
    };
    let next = newest.as_ref().and_then(|newest| newest.next_slot);
    let may_lack_newest = match next {
        Some(slot) => slots[slot as usize].is_none(),
        None => slots.iter().any(Option::is_none),
    };
    let mut superblocks: Vec<Superblock> = slots.into_iter().flatten().collect();
    superblocks.sort_by_key(|superblock| std::cmp::Reverse(superblock.txg));
    Some(Identity {
        header: header_found,
        has_header: header.is_some(),
        superblocks,
        may_lack_newest,
    })
}

/// What the header must have been, from the nodes alone: whose most are, and what their pointers say.
fn header_of(device: &Arc<dyn Device>, scan: &Scan) -> Option<Header> {
    let mut owners: HashMap<[u8; 8], u64> = HashMap::new();
    for node in &scan.nodes {
        *owners.entry(node.front.owner).or_default() += 1;
    }
    let (owner, _) = owners.into_iter().max_by_key(|(owner, count)| (*count, *owner))?;
    let mut guid = [0; 16];
    guid[..8].copy_from_slice(&owner);
    let ashift = find_ashift(device, guid, &pointers_in(device, guid, &scan.nodes))?;
    Some(Header { version: FORMAT_VERSION, guid, ashift })
}

/// How many nodes are looked at for pointers, the newest first.
const SAMPLE_COUNT: usize = 64;

/// Pointers to nodes and extents, from nodes that were found.
fn pointers_in(device: &Arc<dyn Device>, guid: [u8; 16], nodes: &[FoundNode]) -> Vec<Pointer> {
    let mut newest: Vec<&FoundNode> = nodes
        .iter()
        .filter(|node| node.front.owner == guid[..8] && node.front.tree != NAMES)
        .collect();
    newest.sort_by_key(|node| std::cmp::Reverse(node.front.birth));
    let read = |node: &FoundNode| read_found(&**device, &guid, node);
    newest.into_iter().take(SAMPLE_COUNT).filter_map(read).fold(Vec::new(), |mut all, node| {
        all.extend((0..node.len()).filter_map(|index| node.child(index)));
        all
    })
}

/// The length of a sector with which a pointer leads to what it says.
fn find_ashift(device: &Arc<dyn Device>, guid: [u8; 16], pointers: &[Pointer]) -> Option<u8> {
    ASHIFT_RANGE.into_iter().find(|ashift| {
        let header = Header { version: FORMAT_VERSION, guid, ashift: *ashift };
        let store = Store::with_header(Arc::clone(device), Caches::new(0), header);
        pointers
            .iter()
            .any(|pointer| pointer.run(*ashift).is_some() && store.read_stored(pointer).is_ok())
    })
}

/// Reads a node that was found.
pub fn read_found(device: &dyn Device, guid: &[u8; 16], node: &FoundNode) -> Option<Node> {
    let mut stored = vec![0; node.front.len];
    let n = device.read_at(&mut stored, node.offset).ok()?;
    Node::decode(stored.get(..n)?, node.front.tree, guid, node.offset).ok()
}

impl Scan {
    /// Forgets the nodes of other pools.
    pub fn keep_only(&mut self, guid: &[u8; 16]) {
        self.nodes.retain(|node| node.front.owner == guid[..8]);
    }

    /// The states that trees of roots tell of, the newest first.
    pub fn states<'s>(
        &'s self,
        device: &'s Arc<dyn Device>,
        header: &'s Header,
    ) -> impl Iterator<Item = Superblock> + 's {
        let mut leaves: Vec<&FoundNode> = self
            .nodes
            .iter()
            .filter(|node| node.front.tree == ROOTS && node.front.level == 0)
            .collect();
        leaves.sort_by_key(|node| std::cmp::Reverse(node.front.birth));
        leaves.into_iter().filter_map(|found| {
            let node = read_found(&**device, &header.guid, found)?;
            let roots = Roots::decode(&node)?;
            Some(roots.superblock(found.front.birth))
        })
    }

    /// A state put together from the newest node of each tree: what is left where no tree of roots
    /// is. Nothing says that it is one state, nor that it is the newest.
    pub fn guess(&self, header: &Header, device: &dyn Device) -> Option<Superblock> {
        let mut newest: [Option<&FoundNode>; TREE_COUNT] = [None; TREE_COUNT];
        for node in &self.nodes {
            let Some(best) = newest.get_mut(usize::from(node.front.tree)) else { continue };
            let rank = |node: &FoundNode| (node.front.birth, node.front.level);
            if best.is_none_or(|best| rank(node) > rank(best)) {
                *best = Some(node);
            }
        }
        let txg = newest.iter().flatten().map(|node| node.front.birth).max()?;
        let mut superblock = Superblock::empty(txg, Sector(0));
        for (root, node) in superblock.roots.iter_mut().zip(newest) {
            *root = node.and_then(|node| pointer_to(device, header, node));
        }
        superblock.roots[usize::from(ROOTS)] = None;
        Some(superblock)
    }
}

/// A pointer to a node that was found.
fn pointer_to(device: &dyn Device, header: &Header, node: &FoundNode) -> Option<Pointer> {
    use crate::store::format::checksum::ChecksumKind;
    use crate::store::format::pointer::Place;
    let mut stored = vec![0; node.front.len];
    let n = device.read_at(&mut stored, node.offset).ok()?;
    (n == stored.len() && node.offset.is_multiple_of(1 << header.ashift)).then_some(())?;
    let checksum_kind = ChecksumKind::Xxh3;
    let sector = Sector(node.offset >> header.ashift);
    Some(Pointer {
        place: Place::Extent { sector, checksum_kind, checksum: checksum_kind.sum(&stored) },
        codec: 0,
        level: 0,
        codec_version: 0,
        filter: 0,
        gain: 0,
        dictionary: 0,
        birth: node.front.birth,
        len: stored.len() as u32,
        stored_len: stored.len() as u32,
        extent_len: stored.len() as u32,
        part_offset: 0,
        span_log2: 0,
    })
}

/// The state to take of some, the newest first: that of which all new parts can be read, if it may be
/// the newest one that a loss of power left. Where it is none of these, the newest is damaged, and is
/// still better than one from long ago.
pub fn newest_whole(
    device: &Arc<dyn Device>,
    header: Header,
    states: &[Superblock],
) -> Option<Superblock> {
    let is_whole = |superblock: &Superblock| {
        Store::open_pinned(Arc::clone(device), Caches::new(0), header, superblock.clone())
            .and_then(|store| crate::store::recover::verify::is_whole(&store, superblock))
            .is_ok()
    };
    let durable = states.first()?.durable_txg;
    let mut candidates = states.iter().filter(|state| state.txg >= durable);
    candidates.find(|superblock| is_whole(superblock)).or(states.first()).cloned()
}
