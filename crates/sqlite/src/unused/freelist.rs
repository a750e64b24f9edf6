//! The free-list: the free pages of a database, and the trunk pages that name them.
//!
//! A trunk holds the number of the next trunk, a count, and that many numbers of leaves; the header
//! of the database holds the number of the first trunk and the number of free pages, trunks
//! included. SQLite never reads a leaf: it is allocated without being read (`PAGER_GET_NOCONTENT`
//! in `btree.c`), and not written to a journal. Nor does it read the bytes after a trunk's last
//! leaf. Both can be zeros in a committed state; the parent module says what that excludes, and
//! why.
//!
//! The list is trusted only if all of it is consistent: every number is that of a page that can be
//! free, no number occurs twice, each count fits its page, and the total is the header's. Otherwise
//! it counts as empty, so nothing is cleared. The list cannot show that a free page is not also in
//! use; `PRAGMA integrity_check` can. The walk reads each trunk once, and stops at the header's
//! total.
#![forbid(unsafe_code)]

use super::{Layout, be32};

/// The unused parts of a database's free pages.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FreeList {
    /// Pages that are unused as a whole, in ascending order.
    pub leaves: Vec<u32>,
    /// The trunks, and the offset in each where the unused rest begins, in bytes.
    pub trunks: Vec<(u32, usize)>,
}

/// Walks the free-list of a database. `read` returns the page with a number between 2 and
/// [`Layout::page_count`].
///
/// # Errors
///
/// Returns the errors of `read`.
pub fn walk<E>(
    layout: &Layout,
    read: &mut dyn FnMut(u32) -> Result<Vec<u8>, E>,
) -> Result<FreeList, E> {
    let mut walk = Walk { layout, seen: vec![0; layout.page_count as usize / 64 + 1], count: 0 };
    let mut found = FreeList::default();
    let mut number = layout.freelist_trunk;
    while number != 0 {
        if walk.visit(number).is_none() {
            return Ok(FreeList::default());
        }
        let trunk = read(number)?;
        let Some(used_len) = walk.visit_leaves(&trunk, &mut found.leaves) else {
            return Ok(FreeList::default());
        };
        found.trunks.push((number, used_len));
        number = be32(&trunk, 0);
    }
    if walk.count != layout.freelist_count {
        return Ok(FreeList::default());
    }
    found.leaves.sort_unstable();
    Ok(found)
}

struct Walk<'a> {
    layout: &'a Layout,
    /// One bit for each page.
    seen: Vec<u64>,
    count: u32,
}

impl Walk<'_> {
    /// Records a free page. Returns `None` if this page cannot be free.
    fn visit(&mut self, number: u32) -> Option<()> {
        let layout = self.layout;
        let can_be_free = (2..=layout.page_count).contains(&number)
            && !layout.is_lock_page(number)
            && !(layout.has_pointer_maps && layout.is_pointer_map_place(number))
            && self.count < layout.freelist_count;
        if !can_be_free {
            return None;
        }
        let word = self.seen.get_mut(number as usize / 64)?;
        let bit = 1 << (number % 64);
        if *word & bit != 0 {
            return None;
        }
        *word |= bit;
        self.count += 1;
        Some(())
    }

    /// Records the leaves of a trunk. Returns how much of its page is in use, in bytes.
    fn visit_leaves(&mut self, trunk: &[u8], leaves: &mut Vec<u32>) -> Option<usize> {
        if trunk.len() != self.layout.page_len {
            return None;
        }
        let used_len = (be32(trunk, 4) as usize).checked_mul(4)?.checked_add(8)?;
        for leaf in trunk.get(8..used_len)?.as_chunks::<4>().0 {
            let leaf = u32::from_be_bytes(*leaf);
            self.visit(leaf)?;
            leaves.push(leaf);
        }
        Some(used_len)
    }
}
