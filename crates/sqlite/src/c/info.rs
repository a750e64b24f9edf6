//! `hardpack_info`.
#![expect(unsafe_code, reason = "C programs call this function")]

use std::ffi::{c_char, c_int, c_void};

use super::copies::path;
use super::{Code, Failure, required, run};
use crate::reader::open_pool;

/// What is known about a pool. Fields are only added at the end.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Info {
    /// The length of the structure that the caller knows, in bytes.
    pub size: u64,
    /// The length of the pool's file.
    pub pool_bytes: u64,
    /// The length of all files in the pool.
    pub logical_bytes: u64,
    /// What their records and patches take, compressed.
    pub stored_bytes: u64,
    /// Space in the pool that can be reused.
    pub free_bytes: u64,
    /// The number of the newest commit.
    pub txg: u64,
    /// The number of snapshots.
    pub snapshots: u64,
    /// Logical bytes of records by stored ones.
    pub compress_ratio: f64,
}

/// The first version of the structure.
const SIZE_MIN: usize = 64;

/// Describes the pool `pool` in `info`, whose first field must be set.
///
/// # Safety
///
/// `pool` is a C string; `info` is NULL or as long as its first field says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hardpack_info(pool: *const c_char, info: *mut c_void) -> c_int {
    run(|| {
        // SAFETY: the caller vouches for the argument.
        let pool = unsafe { required(pool, "a pool")? };
        if info.is_null() {
            return Err(Failure::new(Code::Usage, "there is no place for the answer"));
        }
        // SAFETY: the structure begins with its size.
        let size = usize::try_from(unsafe { info.cast::<u64>().read_unaligned() }).unwrap_or(0);
        if size < SIZE_MIN {
            let text = "the field 'size' must be set to sizeof(struct hardpack_info)";
            return Err(Failure::new(Code::Usage, text));
        }
        let (opened, _) = open_pool(path(pool))?;
        let pool = opened.pool();
        pool.refresh()?;
        let state = pool.state();
        let (stats, ashift) = (state.stats(), pool.store().ashift());
        let known = Info {
            size: size_of::<Info>().min(size) as u64,
            pool_bytes: state.superblock.end.0 << ashift,
            logical_bytes: stats.file_bytes,
            stored_bytes: stats.data().stored,
            free_bytes: state.free_bytes(ashift),
            txg: state.txg().0,
            snapshots: pool.snapshots()?.len() as u64,
            compress_ratio: stats.compress_ratio(),
        };
        let len = size_of::<Info>().min(size);
        // SAFETY: the caller's structure has at least this length.
        unsafe {
            info.cast::<u8>().copy_from_nonoverlapping((&raw const known).cast(), len);
        }
        Ok(())
    })
}
