//! `doctor`, `completions` and `man`: what one needs before the first pool.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::*;

fn library() -> PathBuf {
    std::env::current_exe().unwrap().with_file_name("libhardpack.so")
}

/// The answers of `doctor`, by what was looked at.
fn answers(directory: &Path, variables: &[(&str, &str)]) -> serde_json::Value {
    let mut command = hardpack();
    command.args(["doctor", "--json"]).current_dir(directory);
    command.env("HARDPACK_LIBRARY", library()).envs(variables.iter().copied());
    let checks = json_of(&mut command)["checks"].take();
    let pairs = checks.as_array().unwrap().iter();
    pairs.map(|check| (check["check"].as_str().unwrap().to_owned(), check.clone())).collect()
}

#[test]
fn a_machine_that_runs_the_tests_is_fit() {
    let directory = tempfile::tempdir().unwrap();
    let found = answers(directory.path(), &[]);
    for name in ["kernel", "locks", "extension", "hardpack run", "sqlite3", "sqlite3 loads it"] {
        assert_eq!(found[name]["ok"], true, "{name}: {}", found[name]);
        assert_eq!(found[name]["advice"], "", "{name}");
    }
    assert!(found["sqlite3"]["found"].as_str().unwrap().contains("version 3."));
    assert!(found["extension"]["found"].as_str().unwrap().ends_with(env!("CARGO_PKG_VERSION")));
    assert_eq!(found["/usr/bin/python3 has sqlite3"]["ok"], true);
    // Nothing is left.
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
    let mut command = hardpack();
    let table = stdout_of(command.arg("doctor").env("HARDPACK_LIBRARY", library()));
    assert!(table.starts_with("CHECK ") && table.contains("\nlocks "), "{table}");
}

#[test]
fn what_is_missing_is_told_with_what_to_do() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    let none = at.join("none");
    let found = answers(at, &[("PATH", "/nothere"), ("HARDPACK_LIBRARY", none.to_str().unwrap())]);
    for name in ["extension", "hardpack run", "sqlite3"] {
        assert_eq!(found[name]["ok"], false, "{name}: {}", found[name]);
        assert_ne!(found[name]["advice"], "", "{name}");
    }
    assert_eq!(found["/usr/bin/python3 loads it"]["ok"], serde_json::Value::Null);
    // A file that is no library, and a Python that cannot load extensions.
    fs::write(&none, "no library").unwrap();
    let python = at.join("python3");
    write_program(&python, "#!/bin/sh\necho 'built without enable_load_extension' >&2\nexit 1\n");
    let path = format!("{}:/usr/bin", at.display());
    let found = answers(at, &[("PATH", &path), ("HARDPACK_LIBRARY", none.to_str().unwrap())]);
    assert_eq!(found["extension"]["ok"], false);
    let name = format!("{} has sqlite3", python.display());
    assert_eq!(found[&name]["found"], "built without enable_load_extension", "{found}");
}

#[test]
fn the_shared_cache_is_looked_at() {
    let directory = tempfile::tempdir().unwrap();
    let cache = directory.path().join("cache");
    let look = |setting: &str| {
        let mut found = answers(directory.path(), &[("HARDPACK_SHARED_CACHE", setting)]);
        found["shared cache"].take()
    };
    let good = look(&format!("{}:4M", cache.display()));
    assert!(good["ok"] == true && good["found"].as_str().unwrap().ends_with(" taken"), "{good}");
    assert_eq!(look("off")["ok"], true);
    fs::write(&cache, "mine").unwrap();
    for setting in ["nonsense", cache.to_str().unwrap()] {
        let bad = look(setting);
        assert!(bad["ok"] == false && bad["advice"] != "", "{bad}");
    }
}

fn has(program: &str) -> bool {
    let is_there = Command::new(program).arg("--version").output().is_ok();
    if !is_there {
        println!("skipped: {program} is not here");
    }
    is_there
}

#[test]
fn every_shell_accepts_its_completions_which_know_every_command() {
    let directory = tempfile::tempdir().unwrap();
    for shell in ["bash", "zsh", "fish"] {
        let script = stdout_of(hardpack().args(["completions", shell]));
        for name in command_names() {
            assert!(script.contains(&name), "{shell}: {name}");
        }
        assert!(script.contains("new-packed"), "{shell}");
        if has(shell) {
            let path = directory.path().join(shell);
            fs::write(&path, script).unwrap();
            let done = Command::new(shell).arg("-n").arg(&path).output().unwrap();
            assert!(done.status.success() && done.stderr.is_empty(), "{shell}: {done:?}");
        }
    }
    stderr_of(hardpack().args(["completions", "csh"]), 2);
}

#[test]
fn every_command_has_a_manual_page() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    hardpack().arg("man").arg(at).assert().success().stdout("");
    let mut expected: Vec<String> =
        command_names().iter().map(|name| format!("hardpack-{name}.1")).collect();
    expected.retain(|name| name != "hardpack-help.1");
    expected.push("hardpack.1".into());
    expected.sort();
    assert_eq!(names_beside(&at.join("any")), expected);
    let page = fs::read_to_string(at.join("hardpack-run.1")).unwrap();
    assert!(page.contains(".TH hardpack\\-run 1") || page.contains(".TH hardpack-run 1"), "{page}");
    assert!(page.contains("\\-\\-new\\-packed") && page.contains("\n.nf\n"), "{page}");
    if has("man") {
        for name in expected {
            let mut command = Command::new("man");
            command.args(["--warnings", "-Tutf8", "-l"]).arg(at.join(&name)).env("MANWIDTH", "100");
            let done = command.env("LC_ALL", "C.UTF-8").output().unwrap();
            let warnings = String::from_utf8_lossy(&done.stderr);
            assert!(done.status.success() && warnings.is_empty(), "{name}: {warnings}");
        }
    }
    let nowhere = at.join("nothere");
    let stderr = stderr_of(hardpack().arg("man").arg(&nowhere), 3);
    assert!(stderr.starts_with("hardpack: cannot write manual pages to"), "{stderr}");
}
