//! Explains paths that do not exist: says where they stop, and suggests similar names.
//!
//! The engine reports only that a file does not exist. This module follows the path again, name by
//! name, and may see another state than the one that failed. If anything goes wrong here, the plain
//! error remains.

use hardpack_engine::pool::{DirEntry, Kind, Pool, ROOT};
use hardpack_engine::{Error, FileId};

use crate::address::join;
use crate::failure::{Code, Reason};
use crate::text;

/// At most this many names of a directory are compared.
const NAMES_MAX: usize = 10_000;
/// The number of names read at a time.
const PAGE_LEN: usize = 256;
/// At most this many names are suggested.
const SUGGESTIONS_MAX: usize = 3;
/// Longer names are not compared by their letters.
const COMPARED_LEN_MAX: usize = 64;

/// Finds the entry at a path; `shown` is the name of the pool in messages. The error says where the
/// path stops.
pub fn resolve(pool: &Pool, shown: &[u8], path: &[u8]) -> Result<DirEntry, Reason> {
    pool.resolve(path).map_err(|error| explain(pool, shown, path, error))
}

/// Finds the entry at a path without following a symbolic link in its last component.
pub fn resolve_link(pool: &Pool, shown: &[u8], path: &[u8]) -> Result<DirEntry, Reason> {
    pool.resolve_link(path).map_err(|error| explain(pool, shown, path, error))
}

/// Finds the directory of a path, and splits off the last name, which need not exist.
pub fn resolve_parent<'p>(
    pool: &Pool,
    shown: &[u8],
    path: &'p [u8],
) -> Result<(FileId, &'p [u8]), Reason> {
    pool.resolve_parent(path).map_err(|error| {
        let end = path.iter().rposition(|byte| *byte != b'/').map_or(0, |last| last + 1);
        let parent = path[..end].iter().rposition(|byte| *byte == b'/').unwrap_or(0);
        explain(pool, shown, &path[..parent], error)
    })
}

fn explain(pool: &Pool, shown: &[u8], path: &[u8], error: Error) -> Reason {
    match error {
        Error::NotFound { what: "file", .. } | Error::NotADirectory { .. } => {
            look(pool, shown, path).ok().flatten().unwrap_or_else(|| error.into())
        }
        error => error.into(),
    }
}

/// Follows a path up to the name that is missing; `None` if nothing better than the error is known.
fn look(pool: &Pool, shown: &[u8], path: &[u8]) -> Result<Option<Reason>, Error> {
    let cannot = |text: String| Some(Reason::new(Code::Cannot, text));
    let (mut at, mut directory) = (Vec::new(), ROOT);
    let mut names = path.split(|byte| *byte == b'/').filter(|name| !name.is_empty());
    while let Some(name) = names.next() {
        let inner = join(&at, name);
        match pool.resolve(&inner) {
            Ok(entry) if entry.kind == Kind::Directory => directory = entry.file,
            Ok(_) if names.next().is_some() => {
                return Ok(cannot(format!("'{}' is not a directory", text::escaped(&inner))));
            }
            Ok(_) => return Ok(None),
            Err(Error::NotFound { .. }) => {
                if let Ok(link) = pool.resolve_link(&inner)
                    && link.kind == Kind::Symlink
                {
                    let target = pool.link_target(link.file)?;
                    return Ok(cannot(format!(
                        "'{}' is a symbolic link to '{}', which does not lead to a file of the pool",
                        text::escaped(&inner),
                        text::escaped(&target)
                    )));
                }
                let rest: Vec<&[u8]> = names.collect();
                let text = format!("no such file: {}", text::escaped(path));
                let mut reason = Reason::new(Code::Cannot, text);
                let similar = similar(pool, (directory, &at), name, &rest.join(&b'/'))?;
                if !similar.is_empty() {
                    let quoted =
                        |path: &Vec<u8>| format!("'{}'", text::escaped(&join(shown, path)));
                    let quoted: Vec<String> = similar.iter().map(quoted).collect();
                    reason = reason.hint(format!("did you mean {}?", quoted.join(" or ")));
                } else if !rest.is_empty() {
                    let (name, at) = (text::escaped(name), text::escaped(&join(shown, &at)));
                    reason = reason.hint(format!("there is no '{name}' in '{at}'"));
                }
                return Ok(Some(reason));
            }
            Err(error) => return Err(error),
        }
        at = inner;
    }
    Ok(None)
}

/// Lists paths similar to one that does not exist, the most similar first: `name` is missing in a
/// directory, and `rest` would be below it.
fn similar(
    pool: &Pool,
    (directory, at): (FileId, &[u8]),
    name: &[u8],
    rest: &[u8],
) -> Result<Vec<Vec<u8>>, Error> {
    let mut found: Vec<(bool, usize, Vec<u8>)> = Vec::new();
    let (mut after, mut looked_at): (Option<Vec<u8>>, usize) = (None, 0);
    while looked_at < NAMES_MAX {
        let page = pool.list_some(directory, after.as_deref(), PAGE_LEN)?;
        let Some(last) = page.last() else { break };
        after = Some(last.name.clone());
        looked_at += page.len();
        for entry in page {
            let Some(distance) = distance(name, &entry.name) else { continue };
            let path = join(at, &entry.name);
            if rest.is_empty() {
                found.push((false, distance, path));
                continue;
            }
            // Paths that exist in full come before those of which only the beginning exists.
            let whole = join(&path, rest);
            match pool.resolve_link(&whole) {
                Ok(_) => found.push((false, distance, whole)),
                Err(_) if entry.kind == Kind::Directory => found.push((true, distance, path)),
                Err(_) => {}
            }
        }
    }
    found.sort();
    if found.first().is_some_and(|(is_part, ..)| !is_part) {
        found.retain(|(is_part, ..)| !is_part);
    }
    found.truncate(SUGGESTIONS_MAX);
    Ok(found.into_iter().map(|(.., path)| path).collect())
}

/// The name most similar to one that does not exist, if one is similar enough.
pub fn nearest<'n>(wanted: &str, names: impl IntoIterator<Item = &'n str>) -> Option<&'n str> {
    let found = names.into_iter().filter_map(|name| {
        distance(wanted.as_bytes(), name.as_bytes()).map(|distance| (distance, name))
    });
    found.min_by_key(|(distance, _)| *distance).map(|(_, name)| name)
}

/// The distance between two names; `None` if they are too different.
fn distance(wanted: &[u8], there: &[u8]) -> Option<usize> {
    let fold = |name: &[u8]| String::from_utf8_lossy(name).to_lowercase();
    let (wanted, there) = (fold(wanted), fold(there));
    if wanted == there {
        return Some(0);
    }
    let has_ending = |long: &str, short: &str| {
        !short.is_empty() && long.strip_prefix(short).is_some_and(|rest| rest.starts_with('.'))
    };
    if has_ending(&there, &wanted) || has_ending(&wanted, &there) {
        return Some(1);
    }
    let (wanted, there): (Vec<char>, Vec<char>) =
        (wanted.chars().collect(), there.chars().collect());
    let longer = wanted.len().max(there.len());
    let limit = (longer / 3).max(1);
    if longer > COMPARED_LEN_MAX || wanted.len().abs_diff(there.len()) > limit {
        return None;
    }
    Some(edits(&wanted, &there)).filter(|edits| *edits <= limit)
}

/// The minimum number of letters to insert, delete, replace or swap with a neighbour (the optimal
/// string alignment of Damerau and Levenshtein).
fn edits(a: &[char], b: &[char]) -> usize {
    let mut rows: Vec<Vec<usize>> = vec![(0..=b.len()).collect()];
    for i in 1..=a.len() {
        let mut row = vec![i];
        for j in 1..=b.len() {
            let replaced = rows[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut least = replaced.min(rows[i - 1][j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                least = least.min(rows[i - 2][j - 2] + 1);
            }
            row.push(least);
        }
        rows.push(row);
    }
    rows[a.len()][b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_are_those_of_slips() {
        let cases: [(&str, &str, Option<usize>); 12] = [
            ("tree", "Tree", Some(0)),
            ("GRÖSSE", "größe", Some(2)),
            ("ÄPFEL", "äpfel", Some(0)),
            ("a", "a.txt", Some(1)),
            ("words.db", "words", Some(1)),
            ("a", "b", Some(1)),
            ("wrods", "words", Some(1)),
            ("word", "words", Some(1)),
            ("pictures", "picturs", Some(1)),
            ("ab", "cd", None),
            ("notes", "photos", None),
            ("", "b", Some(1)),
        ];
        for (wanted, there, expected) in cases {
            assert_eq!(distance(wanted.as_bytes(), there.as_bytes()), expected, "{wanted} {there}");
        }
    }
}
