//! Clears a whole database while it is copied or recompressed: free pages, and the unused bytes
//! inside other pages, become zeros, which take no space in a pool.
//!
//! The contract of [`super`] applies: all bytes must belong to one committed state, and stay so
//! until the cleared bytes are in their place. Whoever cannot promise that must not clear.

use std::collections::HashMap;

use super::{HEADER_LEN, Layout, PENDING_BYTE_DEFAULT, freelist};

/// Fills a buffer from an offset of the database.
pub type ReadAt<'a, E> = dyn FnMut(&mut [u8], u64) -> Result<(), E> + 'a;

/// The bytes of a database that need not be kept.
#[derive(Debug)]
pub struct Clearing {
    layout: Layout,
    /// Pages on the freelist, in ascending order.
    leaves: Vec<u32>,
    /// Pages that list the free pages, and the length of each that is in use.
    trunks: HashMap<u32, usize>,
}

impl Clearing {
    /// Examines a database of `len` bytes; `read` fills a buffer from an offset. Returns `None` if
    /// the meaning of its bytes is not certain.
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

    /// Sets the bytes that need not be kept to zeros in `bytes`, which begin at `offset` of the
    /// database. Incomplete pages are left as they are.
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
