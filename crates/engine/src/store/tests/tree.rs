//! Tests that a [`TxnTree`] behaves like a `BTreeMap`, and never loses or leaks a node.

use std::collections::{BTreeMap, HashMap};
use std::ops::ControlFlow;
use std::sync::Arc;

use proptest::prelude::*;

use crate::error::{Error, Result};
use crate::store::format::checksum::ChecksumKind;
use crate::store::format::node::{LEVEL_MAX, NODE_PAYLOAD_MAX, Node, PACKED_PAYLOAD_MAX};
use crate::store::format::pointer::{Place, Pointer};
use crate::store::format::trees::TreeId;
use crate::store::tree::{Bound, NodeSink, NodeSource, TxnTree, may_be_split};
use crate::test_common::{GUID, Rng};
use crate::units::{Sector, Txg};

const TREE: TreeId = TreeId::Map;

/// Holds placed nodes as stored bytes. Retiring a node twice, or reading a retired one, is an
/// error, and so is calling a node the same as a retired one that it is not.
#[derive(Default)]
struct MemorySink {
    nodes: HashMap<u64, Vec<u8>>,
    retired: HashMap<u64, Vec<u8>>,
    /// How many nodes were stored again as they were.
    renewed: usize,
    next: u64,
    checksum: ChecksumKind,
    /// Whether nodes may be as long as packed ones.
    is_packing: bool,
    /// How long a free piece is, in bytes; any length if 0.
    piece_len: usize,
    /// How many nodes were refused a place for that.
    refused: usize,
}

impl NodeSource for MemorySink {
    fn load(&mut self, tree: TreeId, pointer: &Pointer) -> Result<Arc<Node>> {
        let Place::Extent { sector, .. } = pointer.place else { panic!("nodes have extents") };
        let stored = self.nodes.get(&sector.0).ok_or_else(|| {
            Error::corrupt("tree node", crate::Location::Byte(sector.0), "it was retired")
        })?;
        Node::decode(stored, tree, &GUID, sector.0).map(Arc::new)
    }
}

impl NodeSink for MemorySink {
    fn retire(&mut self, _tree: TreeId, pointer: &Pointer) {
        let Place::Extent { sector, .. } = pointer.place else { panic!("nodes have extents") };
        let stored = self.nodes.remove(&sector.0);
        let stored = stored.unwrap_or_else(|| panic!("node {} is retired twice", sector.0));
        self.retired.insert(sector.0, stored);
    }

    fn payload_max(&self, _tree: TreeId) -> usize {
        if self.is_packing { PACKED_PAYLOAD_MAX } else { NODE_PAYLOAD_MAX }
    }

    fn place(
        &mut self,
        tree: TreeId,
        node: &Arc<Node>,
        old: Option<&Pointer>,
    ) -> Result<Option<Pointer>> {
        assert!(!node.is_empty(), "an empty node is stored");
        let stored = node.encode(tree, Txg(3), &GUID)?;
        if self.piece_len > 0 && stored.len() > self.piece_len && may_be_split(node, tree) {
            self.refused += 1;
            return Ok(None);
        }
        if let Some(old) = old {
            let Place::Extent { sector, .. } = old.place else { panic!("nodes have extents") };
            assert!(self.retired[&sector.0] == stored, "a node is not what it was");
            self.renewed += 1;
        }
        let sector = Sector(self.next);
        self.next += 1;
        let (stored_len, len) = (stored.len() as u32, node.payload_len() as u32);
        let checksum = self.checksum.sum(&stored);
        self.nodes.insert(sector.0, stored);
        Ok(Some(Pointer {
            place: Place::Extent { sector, checksum_kind: self.checksum, checksum },
            codec: 0,
            level: 0,
            codec_version: 1,
            filter: 0,
            gain: 0,
            birth: Txg(3),
            len,
            stored_len,
            extent_len: len,
            part_offset: 0,
            span_log2: 0,
            dictionary: 0,
        }))
    }
}

/// A tree together with its model.
struct Pair {
    sink: MemorySink,
    tree: TxnTree,
    model: BTreeMap<Vec<u8>, Vec<u8>>,
    /// How many bytes keys are longer than necessary: long keys make deep trees.
    padding: usize,
}

impl Pair {
    fn new(padding: usize, checksum: ChecksumKind) -> Pair {
        let sink = MemorySink { checksum, ..MemorySink::default() };
        Pair { sink, tree: TxnTree::new(TREE, None), model: BTreeMap::new(), padding }
    }

    fn key(&self, n: u16) -> Vec<u8> {
        let mut key = n.to_be_bytes().to_vec();
        // Keys differ in length, and some are prefixes of others.
        key.resize(2 + self.padding * usize::from(n % 4) / 3, n as u8);
        key
    }

    fn insert(&mut self, n: u16, value: Vec<u8>) {
        let key = self.key(n);
        let old = self.tree.insert(&mut self.sink, &key, &value).unwrap();
        assert_eq!(old, self.model.insert(key, value));
    }

    fn remove(&mut self, n: u16) {
        let key = self.key(n);
        let old = self.tree.remove(&mut self.sink, &key).unwrap();
        assert_eq!(old, self.model.remove(&key));
    }

    fn look(&mut self, n: u16, limit: usize) {
        let (tree, sink) = (&self.tree, &mut self.sink);
        let mut key = n.to_be_bytes().to_vec();
        key.resize(2 + self.padding * usize::from(n % 4) / 3, n as u8);
        assert_eq!(tree.get(sink, &key).unwrap(), self.model.get(&key).cloned());
        let floor = tree.floor(sink, &key).unwrap();
        let floor = floor.map(|entry| (entry.key().to_vec(), entry.value().to_vec()));
        let expected = self.model.range(..=key.clone()).next_back();
        assert_eq!(floor, expected.map(|(k, v)| (k.clone(), v.clone())));
        let to = n.saturating_add(300).to_be_bytes();
        let found = tree.range(sink, &key, &to, limit).unwrap();
        let expected = self.model.range(key.clone()..).take_while(|(k, _)| k[..] < to[..]);
        let expected: Vec<_> = expected.take(limit).map(|(k, v)| (k.clone(), v.clone())).collect();
        assert_eq!(found, expected);
        let last = self.model.last_key_value().map(|(k, v)| (k.clone(), v.clone()));
        assert_eq!(tree.last(sink).unwrap(), last);
        assert_eq!(tree.is_empty(), self.model.is_empty());
    }

    fn scan_all(&mut self) {
        let mut found = Vec::new();
        self.tree
            .scan(&mut self.sink, &[], &mut |key, value| {
                found.push((key.to_vec(), value.to_vec()));
                ControlFlow::Continue(())
            })
            .unwrap();
        assert!(found.iter().map(|(k, v)| (k, v)).eq(self.model.iter()), "a scan differs");
    }

    /// Flushes and checks that every stored node is part of the tree exactly once.
    fn flush(&mut self) -> Option<Pointer> {
        let root = self.tree.flush(&mut self.sink).unwrap();
        assert_eq!(self.tree.dirty_count(), 0);
        let reachable = root.as_ref().map_or(0, |root| self.count(root));
        assert_eq!(reachable, self.sink.nodes.len(), "nodes are leaked");
        root
    }

    fn count(&mut self, pointer: &Pointer) -> usize {
        let node = self.sink.load(TREE, pointer).unwrap();
        let children = 0..if node.level == 0 { 0 } else { node.len() };
        1 + children.map(|index| self.count(&node.child(index).unwrap())).sum::<usize>()
    }

    /// Merges what fits into one node, on one level.
    fn merge(&mut self, level: u8, spares: u8) {
        let mut next = Some(Vec::new());
        while let Some(key) = next {
            let may = |_: Option<&Pointer>, key: &[u8], _: Bound<'_>| {
                spares == 0 || key.first().is_none_or(|first| first % spares != 0)
            };
            let (sink, max) = (&mut self.sink, PACKED_PAYLOAD_MAX);
            let found = self.tree.mergeable(sink, level, &key, max, &may).unwrap();
            self.tree.merge(sink, &key, &found, max).unwrap();
            assert!(found.next.as_ref().is_none_or(|next| *next > key));
            next = found.next;
        }
    }

    /// Has the lowest committed node on the path to a key rewritten.
    fn renew(&mut self, n: u16) {
        let key = self.key(n);
        let Some(path) = self.tree.path_to(&mut self.sink, &key).unwrap() else { return };
        if let Some(depth) = path.places.iter().rposition(Option::is_some) {
            self.tree.renew(&mut self.sink, &key, depth).unwrap();
        }
    }

    fn depth(&mut self) -> u8 {
        self.flush().map_or(0, |root| self.sink.load(TREE, &root).unwrap().level + 1)
    }
}

#[derive(Clone, Debug)]
enum Op {
    Insert(u16, usize),
    InsertMany { from: u16, step: u16, count: u16, len: usize },
    Remove(u16),
    RemoveMany { from: u16, step: u16, count: u16 },
    Look(u16, usize),
    Scan,
    Flush,
    Reopen,
    Merge(u8, u8),
    Pack(bool),
    Pieces(usize),
    Renew(u16),
}

fn op() -> impl Strategy<Value = Op> {
    let key = 0..2000_u16;
    let len = prop_oneof![Just(0_usize), 1..40_usize, 0..=1024_usize];
    prop_oneof![
        4 => (key.clone(), len.clone()).prop_map(|(n, len)| Op::Insert(n, len)),
        2 => (key.clone(), 1..9_u16, 1..250_u16, len)
            .prop_map(|(from, step, count, len)| Op::InsertMany { from, step, count, len }),
        4 => key.clone().prop_map(Op::Remove),
        2 => (key.clone(), 1..9_u16, 1..250_u16)
            .prop_map(|(from, step, count)| Op::RemoveMany { from, step, count }),
        4 => (key.clone(), 0..50_usize).prop_map(|(n, limit)| Op::Look(n, limit)),
        2 => key.prop_map(Op::Renew),
        1 => Just(Op::Scan),
        2 => Just(Op::Flush),
        1 => Just(Op::Reopen),
        2 => (0..4_u8, 0..3_u8).prop_map(|(level, spares)| Op::Merge(level, spares)),
        1 => any::<bool>().prop_map(Op::Pack),
        1 => prop_oneof![Just(0_usize), Just(512), 300..6000_usize].prop_map(Op::Pieces),
    ]
}

fn run(pair: &mut Pair, ops: &[Op]) {
    let mut rng = Rng(1);
    let mut value = move |len: usize| rng.content(len);
    for op in ops {
        match *op {
            Op::Insert(n, len) => pair.insert(n, value(len)),
            Op::InsertMany { from, step, count, len } => {
                for i in 0..count {
                    pair.insert(from + i * step, value(len));
                }
            }
            Op::Remove(n) => pair.remove(n),
            Op::RemoveMany { from, step, count } => {
                for i in 0..count {
                    pair.remove(from + i * step);
                }
            }
            Op::Look(n, limit) => pair.look(n, limit),
            Op::Scan => pair.scan_all(),
            Op::Flush => drop(pair.flush()),
            Op::Reopen => {
                let root = pair.flush();
                pair.tree = TxnTree::new(TREE, root);
            }
            Op::Merge(level, spares) => pair.merge(level, spares),
            Op::Pack(on) => pair.sink.is_packing = on,
            Op::Pieces(len) => pair.sink.piece_len = len,
            Op::Renew(n) => pair.renew(n),
        }
    }
    pair.scan_all();
    pair.flush();
    pair.scan_all();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..Default::default() })]

    #[test]
    fn a_tree_is_a_map(
        ops in prop::collection::vec(op(), 1..120),
        padding in prop_oneof![Just(0_usize), Just(14), Just(510)],
        checksum in prop_oneof![Just(ChecksumKind::Xxh3), Just(ChecksumKind::Blake3)],
    ) {
        run(&mut Pair::new(padding, checksum), &ops);
    }
}

#[test]
fn deep_trees_grow_and_shrink() {
    for seed in 0..6 {
        let mut rng = Rng(seed);
        let mut pair = Pair::new(510, ChecksumKind::Sha256);
        for _ in 0..3000 {
            let n = rng.below(4000) as u16;
            pair.insert(n, vec![n as u8; 900]);
        }
        assert!(pair.depth() >= 5, "{} levels only", pair.depth());
        // Removes keys from the front, from the back or anywhere, with lookups and insertions in
        // between.
        for round in 0..5000 {
            let n = match seed % 3 {
                0 => round as u16,
                1 => 5000 - round as u16,
                _ => rng.below(4000) as u16,
            };
            pair.remove(n);
            if rng.one_in(10) {
                pair.insert(rng.below(4000) as u16, vec![7; 100]);
            }
            if rng.one_in(50) {
                pair.look(n, 10);
                pair.look(rng.below(4000) as u16, 10);
            }
            if rng.one_in(500) {
                pair.flush();
            }
        }
        pair.scan_all();
        for n in 0..=5000 {
            pair.remove(n);
        }
        assert!(pair.tree.is_empty() && pair.flush().is_none());
    }
}

/// Where nodes find no piece that is as long, they become several. Few entries in a node make a
/// tree high, but not higher than trees may be, however often it is written.
#[test]
fn nodes_are_split_where_only_short_pieces_are_free() {
    for (padding, is_packing) in [(0, false), (40, false), (0, true), (40, true)] {
        let mut rng = Rng(padding as u64);
        let mut pair = Pair::new(padding, ChecksumKind::Blake3);
        pair.sink.is_packing = is_packing;
        (0..4000).for_each(|n| pair.insert(n, rng.content(60)));
        let depth = pair.depth();
        pair.sink.piece_len = 512;
        for _ in 0..60 {
            for _ in 0..200 {
                pair.insert(rng.below(6000) as u16, rng.content(60));
                pair.remove(rng.below(6000) as u16);
            }
            pair.flush();
        }
        assert!(pair.sink.refused > 0);
        let higher = pair.depth();
        assert!(higher > depth && higher < LEVEL_MAX / 2 + 4, "{depth} levels, then {higher}");
        pair.scan_all();
        // They are merged again as entries go.
        pair.sink.piece_len = 0;
        (0..6000).filter(|n| n % 16 != 0).for_each(|n| pair.remove(n));
        assert!(pair.depth() <= depth);
        pair.scan_all();
    }
}

/// Only a node that nothing has changed is stored again as it was.
#[test]
fn renewed_nodes_are_stored_as_they_were() {
    let mut pair = Pair::new(14, ChecksumKind::Xxh3);
    (0..2000).for_each(|n| pair.insert(n, vec![n as u8; 60]));
    pair.flush();
    pair.renew(700);
    pair.flush();
    assert_eq!(pair.sink.renewed, 1);
    pair.renew(700);
    pair.renew(1900);
    pair.insert(700, vec![1; 60]);
    pair.flush();
    assert_eq!(pair.sink.renewed, 2);
    pair.scan_all();
}

/// A tree of a few long nodes, which are split again by what is inserted, and not by what moves.
#[test]
fn merged_nodes_stay_long_until_something_is_inserted() {
    let mut pair = Pair::new(14, ChecksumKind::Xxh3);
    (0..4000).for_each(|n| pair.insert(n * 7 % 4000, vec![n as u8; 60]));
    pair.flush();
    let before = pair.sink.nodes.len();
    for level in [3, 2, 1, 0, 1, 2] {
        pair.merge(level, 0);
        pair.flush();
        pair.scan_all();
    }
    let merged = pair.sink.nodes.len();
    assert!(merged * 4 < before, "{before} nodes became {merged}");
    pair.sink.is_packing = true;
    (0..4000).for_each(|n| pair.insert(n, vec![1; 60]));
    pair.flush();
    assert_eq!(pair.sink.nodes.len(), merged);
    pair.sink.is_packing = false;
    (0..4000).for_each(|n| pair.insert(n, vec![2; 60]));
    pair.flush();
    pair.scan_all();
    let split = pair.sink.nodes.values().map(|node| Node::decode(node, TREE, &GUID, 0).unwrap());
    assert!(split.into_iter().all(|node| node.payload_len() <= NODE_PAYLOAD_MAX));
}

#[test]
fn a_limit_of_nothing_finds_nothing() {
    let mut pair = Pair::new(0, ChecksumKind::Xxh3);
    pair.insert(1, vec![1]);
    assert!(pair.tree.range(&mut pair.sink, &[], &[0xff; 3], 0).unwrap().is_empty());
    // A range whose end precedes its start is empty too.
    assert!(pair.tree.range(&mut pair.sink, &[9], &[0], 9).unwrap().is_empty());
}

#[test]
fn a_child_of_the_wrong_level_is_corruption() {
    let mut pair = Pair::new(510, ChecksumKind::Xxh3);
    (0..500).for_each(|n| pair.insert(n, vec![1; 500]));
    let root = pair.flush().unwrap();
    let leaf = {
        let mut pointer = root.clone();
        loop {
            let node = pair.sink.load(TREE, &pointer).unwrap();
            if node.level == 0 {
                break pointer;
            }
            pointer = node.child(0).unwrap();
        }
    };
    let mut node = Node::new(5);
    node.insert(0, &[], &leaf.to_bytes());
    let wrong = pair.sink.place(TREE, &Arc::new(node), None).unwrap().unwrap();
    let mut tree = TxnTree::new(TREE, Some(wrong));
    assert!(tree.get(&mut pair.sink, &[1]).unwrap_err().is_corruption());
    assert!(tree.insert(&mut pair.sink, &[1], &[]).unwrap_err().is_corruption());
}

/// So many nodes become several at once that one root does not hold them all.
#[test]
fn what_a_root_is_split_into_takes_several_nodes() {
    let mut rng = Rng(1);
    let mut pair = Pair::new(0, ChecksumKind::Xxh3);
    pair.sink.is_packing = true;
    (0..60_000).for_each(|n| pair.insert(n, rng.content(60)));
    pair.flush();
    pair.sink.is_packing = false;
    pair.sink.piece_len = 512;
    (0..60_000).step_by(16).for_each(|n| pair.remove(n));
    pair.flush();
    pair.scan_all();
}
