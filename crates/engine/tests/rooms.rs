//! The layout of the engine's sources, kept by a test: which layer may name which, and which room of a layer.
//!
//! A layer is a folder of `src/`, a room a folder of `store/` or `pool/`. Imports point down: from a layer to those
//! below it, and within a layer from a room to those below it. Imports that still point up are listed with the name that
//! they need; one that is no longer there must leave the list, so the list only gets shorter.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Layers that each layer must not name.
const ABOVE: [(&str, &[&str]); 5] = [
    ("units.rs", &["error", "codec", "device", "store", "pool"]),
    ("codec", &["device", "store", "pool"]),
    ("device", &["codec", "store", "pool"]),
    ("error.rs", &["device", "store", "pool"]),
    ("store", &["pool"]),
];

/// The rooms of each layer from the bottom up.
const ROOMS: [(&str, &[&str]); 2] = [
    ("store", &["format", "tree", "space", "txn", "snapshots", "sharing", "recover"]),
    (
        "pool",
        &[
            "extents",
            "namespace",
            "write",
            "maintain",
            "snapshots",
            "import",
            "stream",
            "check",
            "salvage",
        ],
    ),
];

/// Imports that point up, as layer, from, to.
const UPWARDS: &[(&str, &str, &str)] = &[
    // The statistics count entries of the refs tree.
    ("store", "format", "sharing"),
    // The trees of free space are changed through the transaction that they belong to.
    ("store", "space", "txn"),
    // A transaction knows which extents snapshots hold.
    ("store", "txn", "snapshots"),
    // What only snapshots hold may have several pointers.
    ("store", "snapshots", "sharing"),
    // The index is rebuilt and given up in walks over whole trees.
    ("store", "sharing", "recover"),
];

type Edges = BTreeMap<(String, String), BTreeSet<String>>;

fn sources(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        if name == "tests" || name == "tests.rs" || name == "format_doc.rs" {
            continue;
        }
        if path.is_dir() {
            sources(&path, found);
        } else if name.ends_with(".rs") {
            found.push(path);
        }
    }
}

/// The code of a source file: without comments, visibilities and its tests.
fn code(text: &str) -> String {
    let text = text.split("#[cfg(test)]\nmod tests {").next().unwrap();
    let lines = text.lines().map(|line| line.split("//").next().unwrap());
    lines.collect::<Vec<_>>().join("\n").replace("pub(in crate::", "pub(in ")
}

/// The paths in `code` that start with `prefix`: what follows it, up to the end of the next name. A group in braces gives
/// each of its first names.
fn named_after(code: &str, prefix: &str) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for (at, _) in code.match_indices(prefix) {
        let before = code[..at].chars().next_back();
        if before.is_some_and(|c| c.is_alphanumeric() || c == '_' || c == ':') {
            continue;
        }
        let rest = &code[at + prefix.len()..];
        let is_name = |c: char| c.is_alphanumeric() || c == '_';
        if let Some(group) = rest.strip_prefix('{') {
            let (mut depth, mut name, mut is_first) = (0, String::new(), true);
            for c in group.chars() {
                match c {
                    '{' => depth += 1,
                    '}' if depth == 0 => break,
                    '}' => depth -= 1,
                    ',' if depth == 0 => {
                        names.insert(std::mem::take(&mut name));
                        is_first = true;
                    }
                    c if depth == 0 && is_first && is_name(c) => name.push(c),
                    c if depth == 0 && c == ':' => is_first = false,
                    _ => {}
                }
            }
            names.insert(name);
        } else {
            names.insert(rest.chars().take_while(|c| is_name(*c)).collect());
        }
    }
    names
}

/// The room that holds a file, by its path below the layer; none for the files beside the rooms.
fn room_of(below_layer: &Path) -> Option<String> {
    let mut parts = below_layer.components();
    let first = parts.next()?.as_os_str().to_str()?.to_owned();
    parts.next().map(|_| first)
}

/// The rooms that a file names.
fn rooms_named(code: &str, layer: &str, below_layer: &Path) -> BTreeSet<String> {
    let mut names = named_after(code, &format!("crate::{layer}::"));
    // `super` is the layer in the `mod.rs` of a room, and one level further up in each folder below.
    let depth = below_layer.components().count();
    let is_mod = below_layer.file_name().is_some_and(|name| name == "mod.rs");
    let ups = if is_mod { depth.saturating_sub(1) } else { depth };
    if ups > 0 {
        names.extend(named_after(code, &"super::".repeat(ups)));
    }
    names
}

fn edges(root: &Path, layer: &str, rooms: &[&str]) -> Edges {
    let (base, mut files, mut edges) = (root.join(layer), Vec::new(), Edges::new());
    sources(&base, &mut files);
    assert!(files.len() > rooms.len(), "{layer} has more files than rooms");
    for file in files {
        let below = file.strip_prefix(&base).unwrap();
        let Some(from) = room_of(below) else { continue };
        assert!(
            rooms.contains(&from.as_str()),
            "the room {layer}/{from} is not in the list of rooms"
        );
        for to in rooms_named(&code(&fs::read_to_string(&file).unwrap()), layer, below) {
            if to != from && rooms.contains(&to.as_str()) {
                let by = below.display().to_string();
                edges.entry((from.clone(), to)).or_default().insert(by);
            }
        }
    }
    edges
}

fn src() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src")
}

#[test]
fn layers_name_only_those_below() {
    let mut wrong = Vec::new();
    for (layer, above) in ABOVE {
        let (path, mut files) = (src().join(layer), Vec::new());
        if path.is_dir() {
            sources(&path, &mut files);
        } else {
            files.push(path);
        }
        assert!(!files.is_empty());
        for file in files {
            let names = named_after(&code(&fs::read_to_string(&file).unwrap()), "crate::");
            for name in above.iter().filter(|name| names.contains(**name)) {
                wrong.push(format!("{} names {name}", file.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn rooms_name_only_those_below() {
    let mut wrong = Vec::new();
    for (layer, rooms) in ROOMS {
        let edges = edges(&src(), layer, rooms);
        let rank = |room: &str| rooms.iter().position(|other| *other == room).unwrap();
        let is_known = |from: &str, to: &str| UPWARDS.contains(&(layer, from, to));
        for ((from, to), by) in &edges {
            if rank(to) > rank(from) && !is_known(from, to) {
                wrong.push(format!("{layer}/{from} names {to}, which is above it: {by:?}"));
            }
        }
        for (_, from, to) in UPWARDS.iter().filter(|known| known.0 == layer) {
            assert!(rank(to) > rank(from), "{layer}/{from} to {to} does not point up");
            if !edges.contains_key(&(from.to_string(), to.to_string())) {
                wrong.push(format!("{layer}/{from} no longer names {to}: take it off the list"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_name_is_found_however_it_is_written() {
    let text = "use crate::store::{a::B, c, d::{e, f}};\nuse super::super::g::H; // crate::store::no\n\
        pub(in crate::store) fn x() { crate::store::i::j() }\n#[cfg(test)]\nmod tests { use crate::store::k; }";
    let below = Path::new("room/file.rs");
    let names = rooms_named(&code(text), "store", below);
    let names: Vec<&str> =
        names.iter().map(String::as_str).filter(|name| !name.is_empty()).collect();
    assert_eq!(names, ["a", "c", "d", "g", "i"]);
    assert_eq!(room_of(below).as_deref(), Some("room"));
    assert_eq!(room_of(Path::new("file.rs")), None);
}
