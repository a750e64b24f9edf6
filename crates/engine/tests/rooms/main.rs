//! The layout of the engine's sources, kept by a test: which layer may name which, and which room
//! of a layer.
//!
//! A layer is a folder of `src/`, a room a folder of `store/` or `pool/`. Imports point down: from
//! a layer to those below it, and within a layer from a room to those below it. The files beside
//! the rooms, with the façade types `Store` and `Pool`, are the ceiling and the floor at once: the
//! façade holds parts of every room, and every room works on the façade.

mod imports;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use imports::{Crate, Module, circles};

/// The layers that each layer must not name.
const ABOVE: [(&str, &[&str]); 6] = [
    ("system", &["error", "codec", "device", "store", "pool"]),
    ("units", &["error", "codec", "device", "store", "pool"]),
    ("codec", &["device", "store", "pool"]),
    ("device", &["codec", "store", "pool"]),
    ("error", &["device", "store", "pool"]),
    ("store", &["pool"]),
];

/// The rooms of each layer from the bottom up.
const ROOMS: [(&str, &[&str]); 2] = [
    (
        "store",
        &["format", "shared_cache", "tree", "space", "txn", "sharing", "snapshots", "recover"],
    ),
    (
        "pool",
        &[
            "extents",
            "namespace",
            "write",
            "maintain",
            "optimize",
            "snapshots",
            "import",
            "stream",
            "check",
            "salvage",
        ],
    ),
];

/// The longest circle of files that name each other, within a room or a layer without rooms.
const CIRCLE_LEN_MAX: usize = 3;

fn engine() -> Crate {
    Crate::read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"))
}

/// The room of a module: `None` for the files beside the rooms.
fn room_of<'a>(sources: &Crate, module: &'a [String]) -> Option<(&'a str, &'a str)> {
    let [layer, room, ..] = module else { return None };
    let is_folder = sources.is_front(&module[..2]);
    is_folder.then_some((layer, room))
}

#[test]
fn layers_name_only_those_below() {
    let sources = engine();
    let mut wrong = Vec::new();
    for (layer, above) in ABOVE {
        let mut count = 0;
        for (from, named) in
            sources.edges().iter().filter(|(from, _)| from.first().is_some_and(|it| it == layer))
        {
            count += 1;
            for to in
                named.iter().filter(|to| to.first().is_some_and(|it| above.contains(&&it[..])))
            {
                wrong.push(format!("{} names {}", from.join("::"), to.join("::")));
            }
        }
        assert!(count > 0, "there is no layer {layer}");
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn rooms_name_only_those_below() {
    let sources = engine();
    let mut wrong = Vec::new();
    for (layer, rooms) in ROOMS {
        let rank = |room: &str| rooms.iter().position(|other| *other == room);
        let mut seen = BTreeSet::new();
        for (from, named) in sources.edges() {
            let Some((_, room)) = room_of(&sources, &from).filter(|(of, _)| *of == layer) else {
                continue;
            };
            let from_rank =
                rank(room).unwrap_or_else(|| panic!("{layer}/{room} is not in the list of rooms"));
            seen.insert(room.to_owned());
            for to in named {
                let to_rank = room_of(&sources, &to)
                    .filter(|(of, _)| *of == layer)
                    .and_then(|(_, to)| rank(to));
                if to_rank.is_some_and(|to_rank| to_rank > from_rank) {
                    wrong.push(format!(
                        "{} names {}, which is above it",
                        from.join("::"),
                        to.join("::")
                    ));
                }
            }
        }
        assert_eq!(seen.len(), rooms.len(), "a room of {layer} is not there: {seen:?}");
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn circles_within_a_room_are_short() {
    let sources = engine();
    let all = sources.edges();
    // A room, or a whole layer without rooms.
    let place = |module: &Module| match room_of(&sources, module) {
        Some((layer, room)) if ROOMS.iter().any(|(of, _)| *of == layer) => {
            format!("{layer}/{room}")
        }
        _ if ROOMS.iter().any(|(of, _)| module.first().is_some_and(|it| it == of)) => String::new(),
        _ => module.first().cloned().unwrap_or_default(),
    };
    let mut edges: BTreeMap<String, BTreeMap<Module, BTreeSet<Module>>> = BTreeMap::new();
    for (from, named) in &all {
        let here = place(from);
        if !here.is_empty() {
            let inside = named.iter().filter(|to| place(to) == here).cloned().collect();
            edges.entry(here).or_default().insert(from.clone(), inside);
        }
    }
    let mut wrong = Vec::new();
    for (place, edges) in &edges {
        for circle in circles(edges).iter().filter(|circle| circle.len() > CIRCLE_LEN_MAX) {
            let files: Vec<String> = circle.iter().map(|module| module.join("::")).collect();
            wrong.push(format!(
                "{place}: {} files name each other: {}",
                files.len(),
                files.join(", ")
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
