//! Clearing a whole database as it is copied or compressed anew: what is on the freelist, and what is
//! unused inside pages, becomes zeros, which take no space in a pool.
//!
//! The contract of [`super`] holds: all bytes must be of one committed state, and stay so until the
//! cleared ones are in their place. Whoever cannot promise that must not clear.

use std::collections::HashMap;

use super::{HEADER_LEN, Layout, PENDING_BYTE_DEFAULT, freelist};

/// Fills a buffer from an offset of the database.
pub type ReadAt<'a, E> = dyn FnMut(&mut [u8], u64) -> Result<(), E> + 'a;

/// What of a database need not be kept.
#[derive(Debug)]
pub struct Clearing {
    layout: Layout,
    /// Pages on the freelist, in ascending order.
    leaves: Vec<u32>,
    /// Pages that list them, and how much of each is in use.
    trunks: HashMap<u32, usize>,
}

impl Clearing {
    /// Looks at a database of `len` bytes; `read` fills a buffer from an offset. Nothing comes out where
    /// it is not certain what its bytes mean.
    pub fn new<E>(len: u64, read: &mut ReadAt<'_, E>) -> Result<Option<Clearing>, E> {
        let mut header = [0; HEADER_LEN];
        if len < HEADER_LEN as u64 {
            return Ok(None);
        }
        read(&mut header, 0)?;
        let Some(layout) = Layout::parse(&header, len, PENDING_BYTE_DEFAULT) else {
            return Ok(None);
        };
        let page_len = layout.page_len();
        let free = freelist::walk(&layout, &mut |number| {
            let mut page = vec![0; page_len];
            read(&mut page, u64::from(number - 1) * page_len as u64)?;
            Ok(page)
        })?;
        let trunks = free.trunks.into_iter().collect();
        Ok(Some(Clearing { layout, leaves: free.leaves, trunks }))
    }

    /// Sets what need not be kept of `bytes`, which begin at `offset` of the database, to zeros. Pages
    /// that are not there as a whole are left as they are.
    pub fn clear(&self, offset: u64, bytes: &mut [u8]) {
        let page_len = self.layout.page_len();
        let skip = offset.next_multiple_of(page_len as u64) - offset;
        let Some(whole) = bytes.get_mut(skip as usize..) else { return };
        let first = (offset + skip) / page_len as u64 + 1;
        for (number, page) in (first..).zip(whole.chunks_exact_mut(page_len)) {
            let Ok(number) = u32::try_from(number) else { return };
            if self.leaves.binary_search(&number).is_ok() {
                page.fill(0);
            } else if let Some(used_len) = self.trunks.get(&number) {
                page[*used_len..].fill(0);
            } else {
                self.layout.clear_unused(number, page);
            }
        }
    }
}
