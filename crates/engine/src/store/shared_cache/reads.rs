//! Reads that look into the shared cache before they read the pool.

use std::ops::Range;
use std::sync::Arc;

use super::{BLOCK_LEN, Key, SharedCache};
use crate::error::Result;
use crate::store::Store;
use crate::store::format::node::Node;
use crate::store::format::pointer::Pointer;
use crate::store::format::trees::TreeId;

/// The longest read that is looked up: SQLite's largest page. Longer ones are no point reads.
const READ_LEN_MAX: usize = 64 << 10;

impl Store {
    /// Sets the cache that is shared with other processes, once.
    pub(crate) fn set_shared_cache(&self, shared: Arc<SharedCache>) {
        let _ = self.shared.set(shared);
    }

    /// The cache that is shared with other processes, if there is one.
    pub fn shared_cache(&self) -> Option<&Arc<SharedCache>> {
        self.shared.get()
    }

    /// Fills `out` from byte `start` of what is behind a pointer, if the shared cache has all of it
    /// and the memory of this process does not.
    pub(crate) fn recall(&self, pointer: &Pointer, start: usize, out: &mut [u8]) -> bool {
        let Some(shared) = self.shared_cache().filter(|_| out.len() <= READ_LEN_MAX) else {
            return false;
        };
        if pointer.extent_key().is_none() || self.peek(pointer, start..start + out.len()).is_some()
        {
            return false;
        }
        self.recall_from(shared, pointer, start, out)
    }

    /// Like [`Store::recall`], wherever else the bytes are.
    pub(crate) fn recall_always(&self, pointer: &Pointer, start: usize, out: &mut [u8]) -> bool {
        let shared = self.shared_cache().filter(|_| out.len() <= READ_LEN_MAX);
        shared.is_some_and(|shared| self.recall_from(shared, pointer, start, out))
    }

    fn recall_from(
        &self,
        shared: &SharedCache,
        pointer: &Pointer,
        start: usize,
        out: &mut [u8],
    ) -> bool {
        let end = start + out.len();
        let mut at = start;
        while at < end {
            let (from, to) = block_around(pointer, at);
            let Some(key) = self.block_key(pointer, from) else { return false };
            let until = to.min(end);
            let part = &mut out[at - start..until - start];
            let is_whole = (at, until) == (from, to);
            let found = match is_whole {
                true => shared.get(&key, part).is_some_and(|(len, _)| len == to - from),
                false => {
                    let mut block = [0; BLOCK_LEN];
                    let found = shared.get(&key, &mut block).filter(|(len, _)| *len == to - from);
                    part.copy_from_slice(&block[at - from..until - from]);
                    found.is_some()
                }
            };
            if !found {
                return false;
            }
            at = until;
        }
        true
    }

    /// Adds `bytes` to the shared cache, which are behind a pointer from `start` on and consist of
    /// whole blocks (see [`Store::blocks_around`]).
    pub(crate) fn keep(&self, pointer: &Pointer, start: usize, bytes: &[u8]) {
        let Some(shared) = self.shared_cache().filter(|_| bytes.len() <= READ_LEN_MAX) else {
            return;
        };
        for (from, block) in (start..).step_by(BLOCK_LEN).zip(bytes.chunks(BLOCK_LEN)) {
            let Some(key) = self.block_key(pointer, from) else { return };
            shared.put(&key, 0, block);
        }
    }

    /// Returns the bytes behind a pointer that must be read for those in `range`, so that
    /// [`Store::keep`] has whole blocks.
    pub(crate) fn blocks_around(&self, pointer: &Pointer, range: Range<usize>) -> Range<usize> {
        if range.is_empty() {
            return range;
        }
        block_around(pointer, range.start).0..block_around(pointer, range.end - 1).1
    }

    fn block_key(&self, pointer: &Pointer, from: usize) -> Option<Key> {
        let at = pointer.part_offset.checked_add(u32::try_from(from).ok()?)?;
        Key::of(self, pointer, None, at)
    }

    /// Returns a tree node from the shared cache or else from the pool.
    pub(in crate::store) fn recall_node(
        &self,
        tree: TreeId,
        pointer: &Pointer,
    ) -> Result<Arc<Node>> {
        let Some(shared) = self.shared_cache() else { return self.read_node(tree, pointer) };
        let Some(key) = Key::of(self, pointer, Some(tree), 0) else {
            return self.read_node(tree, pointer);
        };
        let mut payload = [0; BLOCK_LEN];
        let found = shared.get(&key, &mut payload);
        if let Some(node) = found.and_then(|(len, level)| Node::parse(level, &payload[..len])) {
            return Ok(Arc::new(node));
        }
        let node = self.read_node(tree, pointer)?;
        shared.put(&key, node.level, &node.payload());
        Ok(node)
    }
}

/// Returns the start and end of the block around a byte of what is behind a pointer.
fn block_around(pointer: &Pointer, at: usize) -> (usize, usize) {
    let from = at / BLOCK_LEN * BLOCK_LEN;
    (from, (from + BLOCK_LEN).min((pointer.len as usize).max(at + 1)))
}
