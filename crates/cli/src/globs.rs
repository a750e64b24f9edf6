//! Patterns in pool paths, such as `pool.hpk/logs/*.db`, which no shell can expand.
//!
//! * A path that exists as it is written is that path, whatever characters it has.
//! * `*`, `?` and `[a-z]` match within one name, `**` matches any number of directories. As in the
//!   shell, names that begin with a dot must be asked for by a dot.
//! * A backslash takes the next character as it is.
//! * An `@` in a pattern is a character of a name, as in a name that exists. So a pattern never
//!   stands for snapshots; it may follow the full name of one, as in `pool.hpk@monday/*.db`.
//! * A pattern that matches nothing is an error, since it is most likely mistyped.
//!
//! Only the part inside a pool is a pattern; the shell expands the names of pools.

use hardpack_engine::pool::{DirEntry, Kind};

use crate::address::{Address, Opened, join};
use crate::failure::{Cannot, Code, Failure, Reason};
use crate::text;

/// The characters that a backslash protects.
const SPECIAL: &[u8] = b"*?[\\";
/// The number of names read at a time.
const PAGE_LEN: usize = 256;

/// Replaces each address whose path is a pattern by the paths that match, in the order of their
/// names.
pub fn expand(given: &[Address], action: &'static str) -> Result<Vec<Address>, Failure> {
    let mut expanded = Vec::with_capacity(given.len());
    for address in given {
        match matching(address).cannot(action, address)? {
            found if found.is_empty() => return Err(no_match(address).cannot(action, address)),
            found => expanded.extend(found),
        }
    }
    Ok(expanded)
}

/// Expands like [`expand`], but a pattern that matches nothing is left out.
pub fn expand_any(given: &[Address], action: &'static str) -> Result<Vec<Address>, Failure> {
    let mut expanded = Vec::with_capacity(given.len());
    for address in given {
        expanded.extend(matching(address).cannot(action, address)?);
    }
    Ok(expanded)
}

/// Expands a pattern that must match a single path.
pub fn expand_one(given: &Address, action: &'static str) -> Result<Address, Failure> {
    let mut found = matching(given).cannot(action, given)?;
    match (found.pop(), found.len()) {
        (Some(one), 0) => Ok(one),
        (None, _) => Err(no_match(given).cannot(action, given)),
        (Some(_), others) => {
            let text = format!("the pattern matches {} names", others + 1);
            let reason = Reason::new(Code::Cannot, text).hint("this command takes a single one");
            Err(reason.cannot(action, given))
        }
    }
}

fn no_match(address: &Address) -> Reason {
    let path = text::escaped(&address.path);
    let has_mark = address.path.split(|byte| *byte == b'/').any(|part| {
        let mark = part.iter().position(|byte| *byte == b'@');
        mark.is_some_and(|mark| wildcards(&part[..mark]).0)
    });
    Reason::new(Code::Cannot, format!("no name in the pool matches '{path}'")).hint(
        match has_mark {
            true => {
                "a pattern matches names; for those in a snapshot, put it behind: POOL@NAME/PATTERN"
            }
            false => "a backslash before *, ? or [ takes the character as it is",
        },
    )
}

/// Whether a part of a path has a wildcard, and whether it has an escaped one.
fn wildcards(part: &[u8]) -> (bool, bool) {
    let (mut has_pattern, mut has_escape) = (false, false);
    let mut bytes = part.iter();
    while let Some(byte) = bytes.next() {
        match byte {
            b'\\' => has_escape |= bytes.next().is_some_and(|next| SPECIAL.contains(next)),
            b'*' | b'?' | b'[' => has_pattern = true,
            _ => {}
        }
    }
    (has_pattern, has_escape)
}

/// A part of a path without its backslashes, if they protect anything.
fn unescaped(part: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(part.len());
    let mut bytes = part.iter().peekable();
    while let Some(byte) = bytes.next() {
        match (byte, bytes.peek()) {
            (b'\\', Some(next)) if SPECIAL.contains(next) => plain.extend(bytes.next()),
            _ => plain.push(*byte),
        }
    }
    plain
}

/// Returns the addresses that one stands for.
fn matching(address: &Address) -> Result<Vec<Address>, Reason> {
    let (has_pattern, has_escape) = wildcards(&address.path);
    if !has_pattern && !has_escape {
        return Ok(vec![address.clone()]);
    }
    // A pool or snapshot that cannot be opened is for the command to report.
    let top = address.with_path(Vec::new());
    let Ok(opened) = top.open(Some(1)) else { return Ok(vec![address.clone()]) };
    let search = Search { address, opened };
    if search.look_at(&address.path, false).is_some() || search.leads_nowhere() {
        return Ok(vec![address.clone()]);
    }
    if !has_pattern {
        return Ok(vec![address.with_path(unescaped(&address.path))]);
    }
    search.paths().map(|paths| paths.into_iter().map(|path| address.with_path(path)).collect())
}

struct Search<'a> {
    address: &'a Address,
    /// The pool, or the snapshot of all of it that the address names.
    opened: Opened,
}

impl Search<'_> {
    /// Whether the directories before the first wildcard name a snapshot that does not exist.
    fn leads_nowhere(&self) -> bool {
        let parts: Vec<&[u8]> = self.address.path.split(|byte| *byte == b'/').collect();
        let is_plain = |part: &&&[u8]| !wildcards(part).0;
        let above = parts.iter().take_while(is_plain).map(|part| unescaped(part));
        let above = above.fold(Vec::new(), |above, part| join(&above, &part));
        above.contains(&b'@') && self.address.with_path(above).open(Some(1)).is_err()
    }

    fn paths(&self) -> Result<Vec<Vec<u8>>, Reason> {
        let path = &self.address.path;
        let parts: Vec<&[u8]> =
            path.split(|byte| *byte == b'/').filter(|p| !p.is_empty()).collect();
        let mut found: Vec<Vec<u8>> = vec![Vec::new()];
        for (index, part) in parts.iter().enumerate() {
            let is_last = index + 1 == parts.len();
            let mut next = Vec::new();
            for above in &found {
                if *part == b"**" {
                    self.all_below(above, is_last, &mut next)?;
                } else if wildcards(part).0 {
                    self.matching_in(above, part, is_last, &mut next)?;
                } else {
                    next.push(join(above, &unescaped(part)));
                }
            }
            found = next;
        }
        let wants_directory = path.ends_with(b"/");
        let mut kept = Vec::new();
        for mut path in found {
            let Some((_, kind)) = self.look_at(&path, wants_directory) else { continue };
            if wants_directory {
                if kind != Kind::Directory {
                    continue;
                }
                path.push(b'/');
            }
            kept.push(path);
        }
        kept.sort();
        kept.dedup();
        Ok(kept)
    }

    /// Finds what is at a path, and opens the snapshot if the path leads into one.
    fn look_at(&self, path: &[u8], follows: bool) -> Option<(Opened, Kind)> {
        let look = |opened: Opened| {
            let found = match follows {
                true => opened.pool.resolve(&opened.path),
                false => opened.pool.resolve_link(&opened.path),
            };
            found.ok().map(|entry| (opened, entry.kind))
        };
        let found = look(self.opened.at(path));
        if found.is_some() || !path.contains(&b'@') {
            return found;
        }
        self.address.with_path(path.to_vec()).open(Some(1)).ok().and_then(look)
    }

    fn matching_in(
        &self,
        above: &[u8],
        pattern: &[u8],
        is_last: bool,
        next: &mut Vec<Vec<u8>>,
    ) -> Result<(), Reason> {
        let Some((opened, Kind::Directory)) = self.look_at(above, true) else { return Ok(()) };
        let directory = opened.entry()?.file;
        let wants_hidden = pattern.starts_with(b".") || pattern.starts_with(b"\\.");
        let is_wanted = |entry: &&DirEntry| {
            (wants_hidden || !entry.name.starts_with(b"."))
                && (is_last || entry.kind != Kind::File)
                && text::matches(pattern, &entry.name)
        };
        let mut after: Option<Vec<u8>> = None;
        loop {
            let page = opened.pool.list_some(directory, after.as_deref(), PAGE_LEN)?;
            let Some(last) = page.last() else { return Ok(()) };
            after = Some(last.name.clone());
            next.extend(page.iter().filter(is_wanted).map(|entry| join(above, &entry.name)));
        }
    }

    /// Appends the directory itself and all directories below it; everything below it if this is
    /// the last part of the pattern.
    fn all_below(
        &self,
        above: &[u8],
        is_last: bool,
        next: &mut Vec<Vec<u8>>,
    ) -> Result<(), Reason> {
        let Some((opened, Kind::Directory)) = self.look_at(above, true) else { return Ok(()) };
        if !is_last {
            next.push(above.to_vec());
        }
        opened.walk(opened.entry()?.file, &mut |path, entry, _| {
            if entry.name.starts_with(b".") {
                return Ok(false);
            }
            if is_last || entry.kind == Kind::Directory {
                next.push(join(above, path));
            }
            Ok(true)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_backslash_protects_wildcards_only() {
        assert_eq!(wildcards(br"a\*b"), (false, true));
        assert_eq!(wildcards(br"a\*?"), (true, true));
        assert_eq!(wildcards(br"a\b"), (false, false));
        assert_eq!(wildcards(br"a\\*"), (true, true));
        assert_eq!(unescaped(br"a\*\[b\c\\d"), br"a*[b\c\d");
    }
}
