//! Resolves addresses that contain a snapshot: `HEAD@NAME/TAIL`, a path in the pool with an `@`
//! after the scope of the snapshot, or after something inside it. Every command that accepts such
//! addresses resolves them here, so they work the same everywhere.
//!
//! ```text
//! 1  the snapshot NAME of the current file or directory at HEAD
//! 2  the snapshot NAME of whatever was at HEAD when it was made, if that is gone or elsewhere now
//! 3  the snapshot NAME of the directory above, by rule 1 or 2, and so on up to the whole pool.
//!    There HEAD continues with the path as it was then, or else with the file that is now at HEAD,
//!    under the name that it had then
//! ```
//!
//! If rule 2 finds several, the address is ambiguous, which is an error. `HEAD@NAME@TXG` tells them
//! apart, since names of snapshots contain no `@`. Operations that change or destroy a snapshot use
//! rules 1 and 2 only ([`Pool::snapshot_at`]); reads use 3 as well ([`Pool::in_snapshot`]). A file
//! whose own name equals the whole address takes precedence: callers look for that first.

use crate::error::{Error, Result};
use crate::pool::snapshots::SnapshotInfo;
use crate::pool::{Pool, ROOT};
use crate::units::{FileId, Txg};

const MARK: u8 = b'@';

/// A place in a snapshot.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct InSnapshot {
    /// The scope of the snapshot.
    pub scope: FileId,
    /// The name of the snapshot.
    pub name: Vec<u8>,
    /// The path in it, from the root of the pool; it need not exist.
    pub path: Vec<u8>,
}

/// An address split at one of its marks.
struct Parts<'a> {
    head: &'a [u8],
    name: &'a [u8],
    /// The state that the snapshot must preserve, to tell several with this name apart.
    txg: Option<Txg>,
    /// Empty, or begins with a slash.
    tail: &'a [u8],
}

/// Returns the ways to split an address, the last mark first.
fn parts(address: &[u8]) -> impl Iterator<Item = Parts<'_>> {
    let marks = (0..address.len()).rev().filter(|at| address[*at] == MARK);
    marks.filter_map(|at| {
        let (head, rest) = (&address[..at], &address[at + 1..]);
        let end = rest.iter().position(|byte| *byte == b'/').unwrap_or(rest.len());
        let (name, tail) = rest.split_at(end);
        let (name, txg) = match name.iter().position(|byte| *byte == MARK) {
            None => (name, None),
            Some(at) => {
                let txg = std::str::from_utf8(&name[at + 1..]).ok()?.parse().ok()?;
                (&name[..at], Some(Txg(txg)))
            }
        };
        (!name.is_empty()).then_some(Parts { head, name, txg, tail })
    })
}

/// Returns a path and all of its ancestors, the root last.
fn upwards(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::successors(Some(path), |at| {
        let end = at.iter().rposition(|byte| *byte == b'/').unwrap_or(0);
        (!at.is_empty()).then(|| &at[..end])
    })
}

/// Turns errors about a missing path into `None`.
fn if_there<T>(answer: Result<T>) -> Result<Option<T>> {
    match answer {
        Ok(found) => Ok(Some(found)),
        Err(Error::NotFound { .. } | Error::NotADirectory { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

/// All snapshots with one name, opened.
struct Candidates<'p> {
    pool: &'p Pool,
    those: Vec<(SnapshotInfo, Pool)>,
}

impl<'p> Candidates<'p> {
    fn named(pool: &'p Pool, name: &[u8], txg: Option<Txg>) -> Result<Candidates<'p>> {
        let mut those = Vec::new();
        for info in pool.snapshots()? {
            if info.name == name && txg.is_none_or(|txg| txg == info.txg) {
                // It may be destroyed at this moment.
                let opened = if_there(pool.open_snapshot(info.scope, name))?;
                those.extend(opened.map(|opened| (info, opened)));
            }
        }
        Ok(Candidates { pool, those })
    }

    /// Returns the snapshot of the file at a path, now or when the snapshot was made.
    fn of(&self, path: &[u8]) -> Result<Option<&(SnapshotInfo, Pool)>> {
        if self.those.is_empty() {
            return Ok(None);
        }
        let now = if_there(self.pool.resolve(path))?;
        let is_it = |info: &SnapshotInfo| now.as_ref().is_some_and(|now| now.file == info.scope);
        let mut of_now = self.those.iter().filter(|(info, _)| is_it(info));
        if let Some(found) = of_now.next() {
            return Ok(Some(found));
        }
        let mut found = Vec::new();
        for one in &self.those {
            let then = if_there(one.1.resolve(path))?;
            found.extend(then.filter(|then| then.file == one.0.scope).map(|_| one));
        }
        match found[..] {
            [] => Ok(None),
            [one] => Ok(Some(one)),
            _ => Err(several(path, &found)),
        }
    }
}

fn several(path: &[u8], found: &[&(SnapshotInfo, Pool)]) -> Error {
    let name = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let each = found.iter().map(|(info, _)| {
        let (path, snapshot) = (name(path), name(&info.name));
        format!("'{path}@{snapshot}@{}'", info.txg)
    });
    let each = each.collect::<Vec<_>>().join(" or ");
    Error::Invalid(format!("several snapshots match the former path '{}'; use {each}", name(path)))
}

impl Pool {
    /// Resolves an address to a snapshot, as its scope and name. Returns `None` if there is none,
    /// or if the address leads into one.
    pub fn snapshot_at(&self, address: &[u8]) -> Result<Option<(FileId, Vec<u8>)>> {
        for Parts { head, name, txg, tail } in parts(address) {
            if tail.iter().any(|byte| *byte != b'/') {
                continue;
            }
            if let Some((info, _)) = Candidates::named(self, name, txg)?.of(head)? {
                return Ok(Some((info.scope, info.name.clone())));
            }
        }
        Ok(None)
    }

    /// Resolves an address that contains a snapshot. Returns `None` if there is no such snapshot.
    pub fn in_snapshot(&self, address: &[u8]) -> Result<Option<InSnapshot>> {
        let mut first = None;
        for Parts { head, name, txg, tail } in parts(address) {
            let candidates = Candidates::named(self, name, txg)?;
            // `@NAME/PATH` may also mean a snapshot of the file at PATH.
            let is_path = head.is_empty() && !tail.is_empty();
            let also = is_path
                .then(|| (&tail[tail.iter().take_while(|b| **b == b'/').count()..], &[][..]));
            for (head, tail) in [Some((head, tail)), also].into_iter().flatten() {
                for above in upwards(head) {
                    let Some((info, opened)) = candidates.of(above)? else { continue };
                    let (path, is_there) = self.path_in(opened, info.scope, head, above, tail)?;
                    let found = InSnapshot { scope: info.scope, name: info.name.clone(), path };
                    if is_there {
                        return Ok(Some(found));
                    }
                    first.get_or_insert(found);
                }
            }
        }
        Ok(first)
    }

    /// Returns where the file at `head` is in a snapshot of the file at `above`, and whether it
    /// exists there.
    fn path_in(
        &self,
        snapshot: &Pool,
        scope: FileId,
        head: &[u8],
        above: &[u8],
        tail: &[u8],
    ) -> Result<(Vec<u8>, bool)> {
        let top = if scope == ROOT { Vec::new() } else { snapshot.path_of(scope)? };
        let mut path = [&top, &head[above.len()..], tail].concat();
        let slashes = path.iter().take_while(|byte| **byte == b'/').count();
        path.drain(..slashes);
        if if_there(snapshot.resolve_link(&path))?.is_some() {
            return Ok((path, true));
        }
        if above.len() < head.len()
            && let Some(now) = if_there(self.resolve_link(head))?
            && if_there(snapshot.is_below(now.file, scope))? == Some(true)
        {
            let then = if_there(snapshot.path_of(now.file))?;
            let other = then.map(|then| [&then[..], tail].concat());
            if let Some(other) = other
                && if_there(snapshot.resolve_link(&other))?.is_some()
            {
                return Ok((other, true));
            }
        }
        Ok((path, false))
    }

    /// Returns an unambiguous address of a snapshot: the path of its scope, or the former path if
    /// the scope is gone; the name; and the txg if it is needed to tell the snapshot from others.
    pub fn snapshot_address(&self, info: &SnapshotInfo) -> Result<Vec<u8>> {
        let path = match if_there(self.path_of(info.scope))? {
            Some(path) => path,
            None => self.open_snapshot(info.scope, &info.name)?.path_of(info.scope)?,
        };
        let address = [&path[..], &[MARK], &info.name].concat();
        let is_it = |found: &Result<Option<(FileId, Vec<u8>)>>| matches!(found, Ok(Some((scope, name))) if (*scope, name) == (info.scope, &info.name));
        // A file with that very name takes precedence.
        let is_taken = if_there(self.resolve_link(&address))?.is_some();
        match !is_taken && is_it(&self.snapshot_at(&address)) {
            true => Ok(address),
            false => Ok([&address[..], &[MARK], info.txg.to_string().as_bytes()].concat()),
        }
    }
}
