//! The locks that programs hold on the bytes of one file.
//!
//! A lock belongs to an owner, as the kernel names it: a process for `fcntl`, an open file for
//! `flock`, which locks all bytes. Locks of one owner never overlap, and neighbours of one kind are
//! one lock.

/// How a lock excludes others.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Kind {
    /// Excludes writers.
    Read,
    /// Excludes everybody.
    Write,
}

/// A lock on bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lock {
    pub owner: u64,
    pub start: u64,
    /// The last byte.
    pub last: u64,
    pub kind: Kind,
    pub process: u32,
    /// The open file by way of which it was taken.
    pub handle: u64,
}

impl Lock {
    fn overlaps(&self, other: &Lock) -> bool {
        self.start <= other.last && other.start <= self.last
    }

    /// Whether two locks cannot be held at once.
    pub fn excludes(&self, other: &Lock) -> bool {
        let is_shared = self.kind == Kind::Read && other.kind == Kind::Read;
        self.owner != other.owner && !is_shared && self.overlaps(other)
    }
}

/// The locks on a file.
#[derive(Debug, Default)]
pub struct LockTable {
    locks: Vec<Lock>,
}

impl LockTable {
    /// Returns a lock that keeps this one from being taken.
    pub fn conflict(&self, wanted: &Lock) -> Option<&Lock> {
        self.locks.iter().find(|held| held.excludes(wanted))
    }

    /// Takes a lock, which replaces what its owner has of the bytes.
    pub fn set(&mut self, mut lock: Lock) {
        self.clear(lock.owner, lock.start, lock.last);
        self.locks.retain(|held| {
            let is_neighbour = held.last.checked_add(1) == Some(lock.start)
                || lock.last.checked_add(1) == Some(held.start);
            let joins = is_neighbour && (held.owner, held.kind) == (lock.owner, lock.kind);
            if joins {
                lock.start = lock.start.min(held.start);
                lock.last = lock.last.max(held.last);
            }
            !joins
        });
        self.locks.push(lock);
    }

    /// Gives up what an owner has of some bytes.
    pub fn clear(&mut self, owner: u64, start: u64, last: u64) {
        let mut left = Vec::new();
        self.locks.retain(|held| {
            if held.owner != owner || held.start > last || held.last < start {
                return true;
            }
            if held.start < start {
                left.push(Lock { last: start - 1, ..*held });
            }
            if held.last > last {
                left.push(Lock { start: last + 1, ..*held });
            }
            false
        });
        self.locks.extend(left);
    }

    /// Gives up what an owner has locked by way of an open file.
    pub fn clear_handle(&mut self, owner: u64, handle: u64) {
        self.locks.retain(|held| (held.owner, held.handle) != (owner, handle));
    }

    /// Whether an owner has any lock.
    pub fn has(&self, owner: u64) -> bool {
        self.locks.iter().any(|held| held.owner == owner)
    }

    /// Returns the strongest kind that anybody has.
    pub fn strongest(&self) -> Option<Kind> {
        self.locks.iter().map(|held| held.kind).max()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAST: u64 = 40;

    /// Random locks agree with a table of every byte.
    #[test]
    fn locks_are_exact() {
        let mut state = 99_u64;
        let mut random = move |below: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state % below
        };
        let mut table = LockTable::default();
        let mut bytes = vec![[None; 3]; LAST as usize + 1];
        for _ in 0..20_000 {
            let owner = random(3);
            let start = random(LAST + 1);
            let last = start + random(LAST + 1 - start);
            let range = start as usize..=last as usize;
            let kind = if random(2) == 0 { Kind::Read } else { Kind::Write };
            let lock = Lock { owner, start, last, kind, process: 0, handle: 0 };
            if random(3) == 0 {
                table.clear(owner, start, last);
                bytes[range].iter_mut().for_each(|byte| byte[owner as usize] = None);
                continue;
            }
            let is_free = bytes[range.clone()].iter().all(|byte| {
                (0..3).filter(|other| *other != owner).all(|other| match byte[other as usize] {
                    None => true,
                    Some(held) => held == Kind::Read && kind == Kind::Read,
                })
            });
            assert_eq!(table.conflict(&lock).is_none(), is_free);
            if is_free {
                table.set(lock);
                bytes[range].iter_mut().for_each(|byte| byte[owner as usize] = Some(kind));
            }
            assert_eq!(table.strongest(), bytes.iter().flatten().flatten().copied().max());
            assert_eq!(table.has(owner), bytes.iter().any(|byte| byte[owner as usize].is_some()));
            // Neighbours are one lock.
            for (one, held) in table.locks.iter().enumerate() {
                for other in &table.locks[one + 1..] {
                    let touches = held.last + 1 >= other.start && other.last + 1 >= held.start;
                    assert!(!touches || (held.owner, held.kind) != (other.owner, other.kind));
                }
            }
        }
    }

    #[test]
    fn the_last_byte_of_all() {
        let mut table = LockTable::default();
        let lock =
            |owner, start, kind| Lock { owner, start, last: u64::MAX, kind, process: 0, handle: 0 };
        table.set(lock(1, 0, Kind::Write));
        assert!(table.conflict(&lock(2, u64::MAX, Kind::Read)).is_some());
        table.clear(1, 5, u64::MAX);
        assert!(table.conflict(&lock(2, 5, Kind::Write)).is_none());
        assert!(table.conflict(&lock(2, 4, Kind::Read)).is_some());
    }
}
