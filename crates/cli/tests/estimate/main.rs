//! `hardpack estimate`: its figures against pools that `put` makes, and against a count of all
//! blocks; samples; what it reads and shows.

#[path = "../common/mod.rs"]
mod common;

mod against_pools;
mod exact;
mod partly;
mod promised;
mod shown;

use std::fs;
use std::path::Path;

use common::{hardpack, json_of, make_database, random_bytes};
use serde_json::Value;

/// Text that compresses, the same for the same seed.
fn text(len: usize, seed: u64) -> Vec<u8> {
    let words = ["record", "extent", "pool", "sector", "commit", "of", "the", "a"];
    let mut text = Vec::with_capacity(len + 16);
    for byte in random_bytes(len / 2, seed) {
        text.extend_from_slice(words[usize::from(byte % 8)].as_bytes());
        text.push(if byte > 250 { b'\n' } else { b' ' });
    }
    text.truncate(len);
    text
}

/// Makes a tree with all that deduplication and compression meet: copies, shifted copies, random
/// bytes, text, zeros, short files, an empty one, a database and its copy.
fn make_tree(at: &Path) {
    fs::create_dir_all(at.join("deep/er")).unwrap();
    let file = |name: &str, content: &[u8]| fs::write(at.join(name), content).unwrap();
    let (noise, prose) = (random_bytes(700_000, 1), text(900_000, 2));
    file("noise", &noise);
    file("deep/copy of noise", &noise);
    file("deep/er/shifted", &[b"shift", &noise[..]].concat());
    file("prose", &prose);
    file("prose again", &[&prose[..400_000], &text(300_000, 3)].concat());
    file("zeros", &vec![0; 3 << 20]);
    file("holes", &[&vec![0; 300_000][..], &prose[..70_000], &vec![0; 1 << 20]].concat());
    file("empty", b"");
    file("ff", &vec![0xff; 500_000]);
    for n in 0..40 {
        file(&format!("deep/short {n}"), &text(50 + 40 * n, n as u64 % 7));
    }
    make_database(&at.join("a.db"), 4096, 30_000);
    fs::copy(at.join("a.db"), at.join("deep/b.db")).unwrap();
}

/// Returns the estimate of these paths as JSON.
fn estimate(directory: &Path, arguments: &[&str]) -> Value {
    json_of(hardpack().current_dir(directory).args(["estimate", "-q", "--json"]).args(arguments))
}

/// Returns the part of an estimate about one kind of block.
fn blocks<'e>(estimate: &'e Value, name: &str) -> &'e Value {
    let all = estimate["blocks"].as_array().unwrap();
    all.iter().find(|blocks| blocks["name"] == name).unwrap()
}

/// Runs a recommended command as the user would.
fn run(at: &Path, command: &str) {
    let program = assert_cmd::cargo::cargo_bin!("hardpack").display().to_string();
    let ran = command.replace("hardpack ", &format!("{program} "));
    let shell = std::process::Command::new("sh").current_dir(at).args(["-c", &ran]).output();
    let done = shell.unwrap();
    assert!(done.status.success(), "{command}: {}", String::from_utf8_lossy(&done.stderr));
}

/// Returns the part about one compression.
fn stored<'b>(blocks: &'b Value, compression: &str) -> &'b Value {
    let all = blocks["stored"].as_array().unwrap();
    all.iter().find(|stored| stored["compression"] == compression).unwrap()
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is no number"))
}

/// Whether `truth` is within the bounds of a figure.
fn is_within(estimate: &Value, truth: f64) -> bool {
    number(&estimate["low"]) <= truth && truth <= number(&estimate["high"])
}
