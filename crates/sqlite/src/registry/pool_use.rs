//! The use of an open pool by one connection: the name it goes by, and the marks that it shares or
//! holds exclusively.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use hardpack_engine::pool::Pool;
use hardpack_engine::{Error, FileId, Result};

use super::{Entry, Era, FileKey, key_of, registry_of};
use crate::maintenance::Maintenance;
use crate::pool_names;
use crate::refusals::{self, Cause};
use crate::system;

/// How often to check that the pool is not in use by another name, and the pause in between: two
/// processes that come at once may both see each other.
const NAME_TRY_COUNT: u32 = 10;
const NAME_TRY_PAUSE: Duration = Duration::from_millis(5);

/// The use of an engine by one connection.
#[derive(Debug)]
pub struct PoolUse {
    // Fields drop in this order: the descriptor must be closed under the registry's lock, so the
    // registry's entry must be the last owner of the pool.
    pub(super) name: Option<NameUse>,
    pub(super) pool: Pool,
    pub(super) maintenance: Arc<Maintenance>,
    #[allow(dead_code, reason = "counts as long as it lives")]
    pub(super) user: User,
}

/// One use of a pool, with this key, by its name.
#[derive(Debug)]
pub(super) struct NameUse(FileKey, Era);

impl Drop for NameUse {
    fn drop(&mut self) {
        // In a forked child, the name belongs to the parent.
        let Some(mut registry) = registry_of(self.1) else { return };
        let Some(entry) = registry.pools.get_mut(&self.0) else { return };
        entry.name = match entry.name {
            Some((mark, users)) if users > 1 => Some((mark, users - 1)),
            Some((mark, _)) => {
                entry.device.release(mark);
                None
            }
            None => None,
        };
    }
}

impl Entry {
    /// Uses the pool by the name of this mark, unless somebody uses another name.
    fn enter_name(&mut self, mark: u64) -> std::io::Result<bool> {
        if let Some((known, users)) = &mut self.name {
            let is_same = *known == mark;
            *users += usize::from(is_same);
            return Ok(is_same);
        }
        // The mark is shared before the check: of two processes that come at once by different
        // names, at least one sees the other.
        let shared = self.device.try_share(mark)?;
        if !shared || pool_names::is_any_but(&*self.device, mark)? {
            self.device.release(mark);
            return Ok(false);
        }
        self.name = Some((mark, 1));
        Ok(true)
    }

    /// Gives a shared mark back. Returns whether nobody in this process shares it any more.
    fn unshare(&mut self, mark: u64) -> bool {
        if let Some(shared) = self.shared_marks.get_mut(&mark).filter(|shared| **shared > 1) {
            *shared -= 1;
            return false;
        }
        self.shared_marks.remove(&mark);
        // Nobody in this process has the file of these descriptors open any more.
        self.kept.remove(&mark);
        self.device.release(mark);
        true
    }
}

impl PoolUse {
    /// The engine's pool.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Tells the maintenance that this process has committed a transaction that changed `file`.
    pub fn note_commit(&self, file: FileId) {
        self.maintenance.note_commit(&self.pool, file);
    }

    /// Uses the pool by this name for as long as the value lives. Fails while somebody uses another
    /// name, see `pool_names.rs`.
    pub fn enter_by(&mut self, path: &Path) -> Result<()> {
        let find_error = |source| Error::Io { action: "find", source };
        let mark = pool_names::mark_of(path).map_err(find_error)?;
        for _ in 0..NAME_TRY_COUNT {
            if !self.with_entry(|entry| entry.enter_name(mark))?.map_err(lock_error)? {
                system::sleep(NAME_TRY_PAUSE);
                continue;
            }
            let name = NameUse(self.user.0, self.user.1);
            // Now that nobody can use another name. Who did until a moment ago may have committed
            // to a log and been killed since.
            if let Some(left) = pool_names::companion_of_another_name(path).map_err(find_error)? {
                let text = format!("the pool has another name with the companion file '{left}'");
                refusals::refuse(path, Cause::OtherLog, text);
                return Err(Error::Busy);
            }
            self.name = Some(name);
            return Ok(());
        }
        let text = "the pool is in use under another name (a link to it, or it was renamed)";
        refusals::refuse(path, Cause::OtherName, text.into());
        Err(Error::Busy)
    }

    /// Returns another use of the same engine, which does not count as a use of the name.
    pub fn again(&self) -> Result<PoolUse> {
        self.with_entry(|entry| entry.users += 1)?;
        Ok(PoolUse {
            name: None,
            pool: self.pool.clone(),
            maintenance: Arc::clone(&self.maintenance),
            user: User(self.user.0, self.user.1),
        })
    }

    /// Whether the pool is the file at this path.
    pub fn is_at(&self, path: &Path) -> bool {
        key_of(path).is_ok_and(|key| key == self.user.0)
    }

    fn with_entry<R>(&self, act: impl FnOnce(&mut Entry) -> R) -> Result<R> {
        // An entry exists as long as it has users, except in a forked child.
        let mut registry = registry_of(self.user.1).ok_or_else(inherited)?;
        registry.pools.get_mut(&self.user.0).map(act).ok_or_else(inherited)
    }

    /// Shares a mark (see [`FileDevice::try_share`]) with other users in any process. Returns false
    /// while somebody holds it exclusively. [`PoolUse::unshare`] gives it back.
    pub fn try_share(&self, mark: u64) -> Result<bool> {
        self.with_entry(|entry| {
            if let Some(shared) = entry.shared_marks.get_mut(&mark) {
                *shared += 1;
                return Ok(true);
            }
            let is_claimed = entry.claimed_marks.contains(&mark);
            if is_claimed || !entry.device.try_share(mark).map_err(lock_error)? {
                return Ok(false);
            }
            entry.shared_marks.insert(mark, 1);
            Ok(true)
        })?
    }

    /// Whether another process has a mark.
    pub fn is_marked(&self, mark: u64) -> Result<bool> {
        self.with_entry(|entry| entry.device.is_marked(mark).map_err(lock_error))?
    }

    /// Gives a shared mark back.
    pub fn unshare(&self, mark: u64) {
        // In a forked child, the mark belongs to the parent.
        let _ = self.with_entry(|entry| entry.unshare(mark));
    }

    /// Gives a shared mark back. If nobody in any process shares it any more, calls `last` while
    /// nobody can take it.
    pub fn unshare_and(&self, mark: u64, last: impl FnOnce()) {
        let done = self.with_entry(|entry| {
            if !entry.unshare(mark) {
                return;
            }
            // If several leave at once, the last to get here finds nobody else. On a read-only
            // device this cannot be determined.
            if matches!(entry.device.try_claim(mark), Ok(true)) {
                last();
                entry.device.release(mark);
            }
        });
        // In a forked child, the mark belongs to the parent.
        let _ = done;
    }

    /// Keeps a descriptor open until nobody in this process shares the mark, as everybody does who
    /// has the file open as a database. Closing it earlier would drop their locks on the file.
    pub fn keep(&self, mark: u64, file: fs::File) {
        let mut file = Some(file);
        let done = self.with_entry(|entry| {
            entry.kept.entry(mark).or_default().extend(file.take());
        });
        // A forked child has no such locks, so there the descriptor may be closed.
        let _ = done;
    }

    /// Takes a mark exclusively. Returns false while anybody has it.
    pub fn try_claim(&self, mark: u64) -> Result<bool> {
        self.with_entry(|entry| {
            let is_taken =
                entry.shared_marks.contains_key(&mark) || entry.claimed_marks.contains(&mark);
            if is_taken || !entry.device.try_claim(mark).map_err(lock_error)? {
                return Ok(false);
            }
            entry.claimed_marks.insert(mark);
            Ok(true)
        })?
    }

    /// Gives an exclusive mark back.
    pub fn unclaim(&self, mark: u64) {
        // In a forked child, the mark belongs to the parent.
        let _ = self.with_entry(|entry| {
            entry.claimed_marks.remove(&mark);
            entry.device.release(mark);
        });
    }
}

/// The error of a connection that a forked child has of its parent.
fn inherited() -> Error {
    let source = std::io::Error::other("its connection was opened before a fork, by the parent");
    Error::Io { action: "use", source }
}

fn lock_error(source: std::io::Error) -> Error {
    Error::Io { action: "lock", source }
}

/// One user of the pool with this key, in one era.
#[derive(Debug)]
pub(super) struct User(pub(super) FileKey, pub(super) Era);

impl User {
    /// Removes the user from the count. The last user gets the pool and its maintenance, to finish
    /// them.
    fn leave(&self) -> Option<(Pool, Arc<Maintenance>)> {
        let mut registry = registry_of(self.1)?;
        let entry = registry.pools.get_mut(&self.0)?;
        entry.users -= 1;
        if entry.users > 0 || std::mem::replace(&mut entry.closing, true) {
            return None;
        }
        Some((entry.pool.clone(), Arc::clone(&entry.maintenance)))
    }
}

impl Drop for User {
    fn drop(&mut self) {
        let Some((pool, maintenance)) = self.leave() else { return };
        loop {
            // This may take a while. Others can open and close pools meanwhile.
            maintenance.finish(&pool);
            let Some(mut registry) = registry_of(self.1) else { return };
            let Some(entry) = registry.pools.get_mut(&self.0) else { return };
            // Users who came and left meanwhile have left it to us to finish the maintenance that
            // they started.
            if entry.users == 0 && maintenance.is_begun() {
                continue;
            }
            entry.closing = false;
            if entry.users == 0 {
                // This only saves the next process that opens the pool some work.
                let _ = entry.pool.close();
                // The entry must be the last owner of the pool: the descriptor is closed under the
                // registry's lock.
                drop(pool);
                registry.pools.remove(&self.0);
            }
            return;
        }
    }
}
