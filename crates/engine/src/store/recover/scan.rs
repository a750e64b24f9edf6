//! Finds a pool's states without trusting its front: from the remains of header and superblocks,
//! and by a search of the whole pool.
//!
//! Every tree node begins on a sector with a magic number and carries a hash of itself; the tree of
//! roots (see [`crate::store::txn::roots`]) records which nodes were the roots of one state. So a
//! state can be found even if all superblocks are lost, the header is lost, or nothing is left of
//! the front.
//!
//! Nothing is written. If the medium refuses to read a range, it is read again in smaller pieces,
//! and whatever still cannot be read counts as zeros. This takes some 40 bytes of memory for each
//! node found.

use std::collections::HashMap;
use std::sync::Arc;

use crate::device::Device;
use crate::error::{Error, Result};
use crate::store::Store;
use crate::store::cache::Caches;
use crate::store::format::node::{Front, NODE_HEADER_LEN, NODE_PAYLOAD_LIMIT, Node};
use crate::store::format::pointer::Pointer;
use crate::store::format::superblock::{
    BLOCK_LEN, EXTENTS_OFFSET, FORMAT_VERSION, Header, SLOT_COUNT, Superblock, is_sealed,
    slot_offset,
};
use crate::store::format::trees::{PerTree, TreeId};
use crate::store::txn::roots::Roots;
use crate::units::{Ashift, Sector};

/// The number of bytes examined at a time.
const CHUNK_LEN: usize = 1 << 20;
/// The number of bytes read beyond a chunk, for nodes that begin near its end.
const NODE_LEN_MAX: usize = NODE_HEADER_LEN + NODE_PAYLOAD_LIMIT;
/// The lengths of the pieces in which a failed read is retried.
const PIECE_LENS: [usize; 3] = [64 << 10, 4096, SECTOR_LEN];
/// The minimum length of a sector.
const SECTOR_LEN: usize = Ashift::MIN.sector_len();

/// A node that the search found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FoundNode {
    /// Its offset in bytes.
    pub offset: u64,
    /// The front of the node.
    pub front: Front,
}

/// The result of a search.
#[derive(Clone, Debug, Default)]
pub struct Scan {
    /// The nodes in order of their places.
    pub nodes: Vec<FoundNode>,
    /// Bytes that the medium refused to read.
    pub refused: u64,
}

/// Fills `buf`, with zeros where reading fails. Returns the number of bytes before the end of the
/// device, and how many of them were refused.
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

/// Searches the whole pool for nodes. `progress` receives the number of bytes searched so far.
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

/// The facts known about a pool before one of its states is chosen.
#[derive(Clone, Debug)]
pub struct Identity {
    /// The header, or its reconstruction.
    pub header: Header,
    /// Whether the header itself was found.
    pub has_header: bool,
    /// The valid superblocks, newest first.
    pub superblocks: Vec<Superblock>,
    /// Whether there may have been a newer superblock.
    pub may_lack_newest: bool,
}

/// Reads header and ring. Returns `None` if both are lost and `scan` is needed to go on.
pub fn identify(device: &Arc<dyn Device>, scan: Option<&Scan>) -> Result<Option<Identity>> {
    let mut front = vec![0; EXTENTS_OFFSET as usize];
    read_forgiving(&**device, &mut front, 0, 1);
    let header = match Header::decode(&front[..BLOCK_LEN]) {
        // What a header requires counts only if its checksum matches.
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
            // A superblock of another pool may be left from an earlier use of the medium.
            for slot in 0..SLOT_COUNT {
                let block = &front[slot_offset(slot) as usize..][..BLOCK_LEN];
                slots[slot as usize] = Superblock::decode(block, &guid);
            }
            let pointers: Vec<Pointer> = slots
                .iter()
                .flatten()
                .flat_map(|sb| sb.roots.values().iter().flatten().cloned())
                .collect();
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

/// Reconstructs the header from the nodes alone: from the pool that owns most of them, and from
/// their pointers.
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

/// How many nodes are searched for pointers, newest first.
const SAMPLE_COUNT: usize = 64;

/// Returns pointers to nodes and extents, taken from the nodes that were found.
fn pointers_in(device: &Arc<dyn Device>, guid: [u8; 16], nodes: &[FoundNode]) -> Vec<Pointer> {
    let mut newest: Vec<&FoundNode> = nodes
        .iter()
        .filter(|node| node.front.owner == guid[..8] && node.front.tree != TreeId::Names)
        .collect();
    newest.sort_by_key(|node| std::cmp::Reverse(node.front.birth));
    let read = |node: &FoundNode| read_found(&**device, &guid, node);
    newest.into_iter().take(SAMPLE_COUNT).filter_map(read).fold(Vec::new(), |mut all, node| {
        all.extend((0..node.len()).filter_map(|index| node.child(index)));
        all
    })
}

/// Finds the sector size with which some pointer leads to bytes that match its checksum.
fn find_ashift(device: &Arc<dyn Device>, guid: [u8; 16], pointers: &[Pointer]) -> Option<Ashift> {
    Ashift::ALL.into_iter().find(|ashift| {
        let header = Header { version: FORMAT_VERSION, guid, ashift: *ashift };
        let store = Store::with_header(Arc::clone(device), Caches::new(0), header);
        pointers
            .iter()
            .any(|pointer| pointer.run(*ashift).is_some() && store.read_stored(pointer).is_ok())
    })
}

/// Reads a node that the search found.
pub fn read_found(device: &dyn Device, guid: &[u8; 16], node: &FoundNode) -> Option<Node> {
    let mut stored = vec![0; node.front.len];
    let n = device.read_at(&mut stored, node.offset).ok()?;
    Node::decode(stored.get(..n)?, node.front.tree, guid, node.offset).ok()
}

impl Scan {
    /// Removes the nodes of other pools.
    pub fn keep_only(&mut self, guid: &[u8; 16]) {
        self.nodes.retain(|node| node.front.owner == guid[..8]);
    }

    /// Returns the states recorded in trees of roots, newest first.
    pub fn states<'s>(
        &'s self,
        device: &'s Arc<dyn Device>,
        header: &'s Header,
    ) -> impl Iterator<Item = Superblock> + 's {
        let mut leaves: Vec<&FoundNode> = self
            .nodes
            .iter()
            .filter(|node| node.front.tree == TreeId::Roots && node.front.level == 0)
            .collect();
        leaves.sort_by_key(|node| std::cmp::Reverse(node.front.birth));
        leaves.into_iter().filter_map(|found| {
            let node = read_found(&**device, &header.guid, found)?;
            let roots = Roots::decode(&node)?;
            Some(roots.superblock(found.front.birth))
        })
    }

    /// Assembles a state from the newest node of each tree, for pools without any tree of roots. It
    /// may not be one consistent state, nor the newest.
    pub fn guess(&self, header: &Header, device: &dyn Device) -> Option<Superblock> {
        let mut newest: PerTree<Option<&FoundNode>> = PerTree::default();
        for node in &self.nodes {
            let best = &mut newest[node.front.tree];
            let rank = |node: &FoundNode| (node.front.birth, node.front.level);
            if best.is_none_or(|best| rank(node) > rank(best)) {
                *best = Some(node);
            }
        }
        let txg = newest.values().iter().flatten().map(|node| node.front.birth).max()?;
        let mut superblock = Superblock::empty(txg, Sector(0));
        for (tree, node) in newest.iter().filter(|(tree, _)| *tree != TreeId::Roots) {
            superblock.roots[tree] = node.and_then(|node| pointer_to(device, header, node));
        }
        Some(superblock)
    }
}

/// Creates a pointer to a node that the search found.
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

/// Chooses one of `states`, which are sorted newest first: the newest whose new parts can all be
/// read, among those that a loss of power may have left as the newest. If none of these is intact,
/// returns the newest one: damaged as it is, it is still better than a much older one.
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
