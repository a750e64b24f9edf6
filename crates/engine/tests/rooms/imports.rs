//! The imports between source files, read from their text.
//!
//! A path is followed through modules and re-exports to the file that defines its last name, so it
//! does not matter by which way a name is imported. Code in `#[cfg(test)]` modules does not count.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// A module of the crate, as the names that lead to it from the root.
pub type Module = Vec<String>;

/// A `use` of a module: the path as it is written, its new name, and whether it is a re-export.
struct Use {
    path: Vec<String>,
    name: String,
    is_public: bool,
}

/// The sources of a crate.
pub struct Crate {
    /// The code of each module, without comments and tests, except its `use` declarations.
    code: BTreeMap<Module, String>,
    uses: BTreeMap<Module, Vec<Use>>,
    /// Whether a module is a `mod.rs` or `lib.rs`, which passes on names of the files below it.
    is_front: BTreeMap<Module, bool>,
}

/// The longest chain of re-exports that is followed.
const REEXPORTS_MAX: usize = 10;

fn is_name(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// The paths that a tree in a `use` declaration stands for, and the name of each.
fn flatten(tree: &str, before: &[String], found: &mut Vec<(Vec<String>, String)>) {
    let names = |text: &str| -> Vec<String> {
        text.split("::")
            .map(|part| part.trim().to_owned())
            .filter(|part| !part.is_empty())
            .collect()
    };
    let Some((front, group)) = tree.split_once('{') else {
        let (path, name) = tree.split_once(" as ").map_or((tree, None), |(p, n)| (p, Some(n)));
        let mut path = [before, &names(path)].concat();
        if path.last().is_some_and(|last| last == "self") && path.len() > 1 {
            path.pop();
        }
        let name = name.map_or_else(|| path.last().cloned().unwrap_or_default(), str::to_owned);
        if !path.is_empty() {
            found.push((path, name.trim().to_owned()));
        }
        return;
    };
    let before = [before, &names(front)].concat();
    let group = group.rsplit_once('}').expect("a group ends").0;
    let (mut depth, mut from) = (0, 0);
    for (at, c) in group.char_indices().chain([(group.len(), ',')]) {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                flatten(&group[from..at], &before, found);
                from = (at + 1).min(group.len());
            }
            _ => {}
        }
    }
}

/// Separates the `use` declarations of a file from its other code.
fn split_uses(text: &str) -> (Vec<Use>, String) {
    let text = text.split("#[cfg(test)]\nmod tests {").next().unwrap();
    let lines = text.lines().map(|line| line.split("//").next().unwrap());
    let text = lines.collect::<Vec<_>>().join("\n");
    let (mut uses, mut rest, mut left) = (Vec::new(), String::new(), &text[..]);
    while let Some(at) = left.find("use ") {
        let is_word = !left[..at].chars().next_back().is_some_and(is_name);
        let line = left[..at].rsplit('\n').next().unwrap().trim();
        let Some(end) = left[at..].find(';').filter(|_| is_word && !line.contains('"')) else {
            rest.push_str(&left[..at + 4]);
            left = &left[at + 4..];
            continue;
        };
        let mut found = Vec::new();
        flatten(&left[at + 4..at + end], &[], &mut found);
        let is_public = line.starts_with("pub");
        uses.extend(found.into_iter().map(|(path, name)| Use { path, name, is_public }));
        rest.push_str(&left[..at]);
        left = &left[at + end..];
    }
    rest.push_str(left);
    (uses, rest)
}

/// The paths in code, outside of `use` declarations, that start with `crate` or `super`.
fn paths(code: &str) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    for start in ["crate::", "super::"] {
        for (at, _) in code.match_indices(start) {
            let before = code[..at].chars().next_back();
            if before.is_some_and(|c| is_name(c) || c == ':') || code[..at].ends_with("pub(in ") {
                continue;
            }
            let path = code[at..].split(|c: char| !is_name(c) && c != ':').next().unwrap();
            found.push(
                path.split("::").filter(|name| !name.is_empty()).map(str::to_owned).collect(),
            );
        }
    }
    found
}

impl Crate {
    /// Reads the sources below a folder, except tests.
    pub fn read(src: &Path) -> Crate {
        let mut sources =
            Crate { code: BTreeMap::new(), uses: BTreeMap::new(), is_front: BTreeMap::new() };
        sources.read_folder(src, &[]);
        sources
    }

    fn read_folder(&mut self, folder: &Path, module: &[String]) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap().to_owned();
            if ["tests", "tests.rs", "format_doc.rs"].contains(&&name[..]) {
                continue;
            }
            if path.is_dir() {
                self.read_folder(&path, &[module, &[name]].concat());
            } else if let Some(stem) = name.strip_suffix(".rs") {
                let is_front = stem == "mod" || stem == "lib";
                let own = if is_front { Vec::new() } else { vec![stem.to_owned()] };
                self.add([module, &own].concat(), is_front, &fs::read_to_string(&path).unwrap());
            }
        }
    }

    fn add(&mut self, module: Module, is_front: bool, text: &str) {
        let (uses, code) = split_uses(text);
        self.uses.insert(module.clone(), uses);
        self.is_front.insert(module.clone(), is_front);
        self.code.insert(module, code);
    }

    /// Whether a module is a folder.
    pub fn is_front(&self, module: &[String]) -> bool {
        self.is_front.get(module).copied().unwrap_or(false)
    }

    /// The path from the root of the crate; `None` for a path of another crate.
    fn absolute(&self, module: &Module, path: &[String]) -> Option<Module> {
        let below = |path: &[String]| Some([&module[..], path].concat());
        match &path.first()?[..] {
            "crate" => Some(path[1..].to_vec()),
            "self" => below(&path[1..]),
            "super" => {
                let ups = path.iter().take_while(|name| *name == "super").count();
                let kept = module.len().checked_sub(ups)?;
                Some([&module[..kept], &path[ups..]].concat())
            }
            first => {
                let is_child = self.code.contains_key(&[&module[..], &[first.to_owned()]].concat());
                is_child.then(|| below(path))?
            }
        }
    }

    /// The module that defines the name at the end of a path from the root.
    fn definer(&self, path: &[String], depth: usize) -> Option<Module> {
        if depth > REEXPORTS_MAX {
            return None;
        }
        let len = (0..=path.len()).rev().find(|len| self.code.contains_key(&path[..*len]))?;
        let (module, rest) = (path[..len].to_vec(), &path[len..]);
        let Some(name) = rest.first() else { return Some(module) };
        for one in self.uses[&module].iter().filter(|one| one.is_public && one.name == *name) {
            if let Some(target) = self.absolute(&module, &one.path) {
                return self.definer(&[&target[..], &rest[1..]].concat(), depth + 1);
            }
        }
        Some(module)
    }

    /// The modules that each module names. What the front of a folder only passes on is not named.
    pub fn edges(&self) -> BTreeMap<Module, BTreeSet<Module>> {
        let mut edges = BTreeMap::new();
        for (module, code) in &self.code {
            let is_passed_on = |one: &&Use| self.is_front[module] && one.is_public;
            let uses = self.uses[module].iter().filter(|one| !is_passed_on(one));
            let named = uses.map(|one| one.path.clone()).chain(paths(code));
            let targets = named.filter_map(|path| {
                self.definer(&self.absolute(module, &path)?, 0).filter(|target| target != module)
            });
            edges.insert(module.clone(), targets.collect::<BTreeSet<_>>());
        }
        edges
    }
}

/// The groups of modules, of two or more, each of which leads to all others of its group.
pub fn circles(edges: &BTreeMap<Module, BTreeSet<Module>>) -> Vec<BTreeSet<Module>> {
    let reached = |from: &Module| {
        let (mut seen, mut open) = (BTreeSet::new(), vec![from.clone()]);
        while let Some(module) = open.pop() {
            for next in edges.get(&module).into_iter().flatten() {
                if seen.insert(next.clone()) {
                    open.push(next.clone());
                }
            }
        }
        seen
    };
    let reached: BTreeMap<&Module, BTreeSet<Module>> =
        edges.keys().map(|module| (module, reached(module))).collect();
    let mut found: Vec<BTreeSet<Module>> = Vec::new();
    for (module, forth) in &reached {
        if !forth.contains(*module) || found.iter().any(|circle| circle.contains(*module)) {
            continue;
        }
        let leads_back =
            |other: &&Module| reached.get(*other).is_some_and(|back| back.contains(*module));
        found.push(forth.iter().filter(leads_back).cloned().collect());
    }
    found
}

mod tests {
    use super::*;

    fn module(path: &str) -> Module {
        path.split("::").filter(|name| !name.is_empty()).map(str::to_owned).collect()
    }

    fn of(files: &[(&str, bool, &str)]) -> Crate {
        let mut sources =
            Crate { code: BTreeMap::new(), uses: BTreeMap::new(), is_front: BTreeMap::new() };
        for (path, is_front, text) in files {
            sources.add(module(path), *is_front, text);
        }
        sources
    }

    #[test]
    fn a_name_is_found_however_it_is_written() {
        let sources = of(&[
            ("", true, "pub mod a; pub mod b; pub mod c;"),
            ("a", true, "mod one;\nmod two;\npub use self::one::{First, Second as Other};"),
            ("a::one", false, "pub struct First; pub struct Second;"),
            ("a::two", false, "use super::one;\nfn f() { crate::c::run() }"),
            (
                "b",
                false,
                "use crate::{a::{First, Other}, c};\n// use crate::a::two::Hidden;\n\
                pub(in crate::a) fn x() {}\n#[cfg(test)]\nmod tests { use crate::a::two::T; }",
            ),
            (
                "c",
                false,
                "use crate::a::two::Thing as _;\nfn g() -> super::b::X { panic!(\"use it;\") }",
            ),
        ]);
        let edges = sources.edges();
        let named =
            |path: &str| edges[&module(path)].iter().map(|to| to.join("::")).collect::<Vec<_>>();
        assert_eq!(named("a"), [""; 0]);
        assert_eq!(named("a::two"), ["a::one", "c"]);
        assert_eq!(named("b"), ["a::one", "c"]);
        assert_eq!(named("c"), ["a::two", "b"]);
        let circles = circles(&edges);
        assert_eq!(circles.len(), 1, "{circles:?}");
        assert_eq!(circles[0], ["a::two", "b", "c"].map(module).into());
    }
}
