//! `hardpack send` and `receive`.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::common::*;
use tempfile::TempDir;

/// Makes a pool with a directory and two snapshots of it, and an empty pool.
fn pools() -> (TempDir, PathBuf, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let tree = directory.path().join("a");
    fs::create_dir_all(tree.join("b")).unwrap();
    fs::write(tree.join("b/one"), "content one").unwrap();
    fs::write(tree.join("two"), random_bytes(300_000, 3)).unwrap();
    let (from, to) = (directory.path().join("from.hpk"), directory.path().join("to.hpk"));
    hardpack().args(["put", "-q"]).args([&tree, &from]).assert().success();
    hardpack().arg("create").arg(&to).assert().success();
    snapshot(&from, "a@old");
    fs::write(tree.join("b/one"), "content two, which is longer").unwrap();
    fs::remove_file(tree.join("two")).unwrap();
    hardpack().arg("rm").arg(from.join("a/two")).assert().success();
    hardpack().args(["put", "-q"]).args([&tree, &from]).assert().success();
    snapshot(&from, "a@new");
    (directory, from, to)
}

fn snapshot(pool: &Path, name: &str) {
    hardpack().arg("snapshot").arg(pool.join(name)).assert().success();
}

fn send(from: &Path, arguments: &[&str], name: &str) -> Vec<u8> {
    let mut command = hardpack();
    let sent = command.args(["send", "-q"]).args(arguments).arg(from.join(name)).assert().success();
    sent.get_output().stdout.clone()
}

fn receive(to: &Path, arguments: &[&str], stream: &[u8]) -> assert_cmd::assert::Assert {
    let mut command = hardpack();
    command.args(["receive", "-q"]).args(arguments).arg(to.join("copy"));
    command.write_stdin(stream).assert()
}

fn list(path: PathBuf) -> String {
    stdout_of(hardpack().args(["ls", "-R"]).arg(path))
        .replace("/copy", "/a")
        .replace("to.hpk", "from.hpk")
}

#[test]
fn snapshots_go_from_pool_to_pool() {
    let (_directory, from, to) = pools();
    let stream = send(&from, &[], "a@old");
    let estimate = stdout_of(hardpack().args(["send", "-n"]).arg(from.join("a@old")));
    assert_eq!(estimate.trim(), stream.len().to_string());
    receive(&to, &[], &stream).success().stdout("").stderr("");
    assert_eq!(list(to.join("copy@old")), list(from.join("a@old")));
    receive(&to, &[], &stream).code(3);
    let part = send(&from, &["-i", "@old"], "a@new");
    assert!(part.len() < 2000 && stream.len() > 300_000);
    receive(&to, &[], &part).success();
    assert_eq!(list(to.join("copy")), list(from.join("a")));
    let one = stdout_of(hardpack().arg("cat").arg(to.join("copy/b/one")));
    assert_eq!(one, "content two, which is longer");
    let before = stdout_of(hardpack().arg("cat").arg(to.join("copy@old/b/one")));
    assert_eq!(before, "content one");
    hardpack().args(["check", "-q"]).arg(&to).assert().success();
}

#[test]
fn a_stream_that_was_cut_goes_on() {
    let (_directory, from, to) = pools();
    let stream = send(&from, &[], "a@old");
    let cut = receive(&to, &[], &stream[..stream.len() / 2]).code(1);
    let error = String::from_utf8(cut.get_output().stderr.clone()).unwrap();
    assert!(error.contains("--resume-token"), "{error}");
    let token = stdout_of(hardpack().args(["receive", "--resume-token"]).arg(to.join("copy")));
    let rest = send(&from, &["--resume", token.trim()], "a@old");
    assert!(rest.len() < stream.len());
    receive(&to, &[], &rest).success();
    hardpack().args(["receive", "--resume-token"]).arg(to.join("copy")).assert().code(3);
    assert_eq!(list(to.join("copy")), list(from.join("a@old")).replace("@old", ""));
}

#[test]
fn what_was_changed_is_rolled_back_only_where_that_is_asked_for() {
    let (_directory, from, to) = pools();
    receive(&to, &[], &send(&from, &[], "a@old")).success();
    hardpack().arg("mkdir").arg(to.join("copy/mine")).assert().success();
    let part = send(&from, &["-i", "@old"], "a@new");
    receive(&to, &[], &part).code(3);
    receive(&to, &["-F"], &part).success();
    assert_eq!(list(to.join("copy")), list(from.join("a")));
}

#[test]
fn what_is_given_up_is_gone() {
    let (_directory, from, to) = pools();
    let stream = send(&from, &[], "a@old");
    receive(&to, &[], &stream[..stream.len() - 20]).code(1);
    receive(&to, &["--abort"], b"").success();
    receive(&to, &["--abort"], b"").code(3);
    receive(&to, &[], b"no stream at all").code(3);
    receive(&to, &[], &stream).success();
    hardpack().args(["receive"]).arg(&to).assert().code(3);
    hardpack().args(["send", "-q"]).arg(from.join("a")).assert().code(3);
}

/// A nightly `send -i` from a pool that was restored from a copy and then changed: its txgs repeat,
/// but stand for different states.
#[test]
fn a_stream_from_a_pool_that_was_put_back_is_not_taken_for_another() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("file");
    let (from, to) = (directory.path().join("from.hpk"), directory.path().join("to.hpk"));
    let copy = directory.path().join("copy.hpk");
    let night = |content: &[u8], name: &str| {
        fs::write(&file, content).unwrap();
        hardpack().args(["put", "-q"]).arg(&file).arg(from.join("a")).assert().success();
        snapshot(&from, &format!("a@{name}"));
    };
    hardpack().arg("create").arg(&from).assert().success();
    hardpack().arg("create").arg(&to).assert().success();
    hardpack().arg("mkdir").arg(from.join("a")).assert().success();
    night(&random_bytes(50_000, 1), "first");
    receive(&to, &[], &send(&from, &[], "a@first")).success();
    fs::copy(&from, &copy).unwrap();
    night(&random_bytes(50_000, 2), "second");
    receive(&to, &[], &send(&from, &["-i", "@first"], "a@second")).success();
    let cut = send(&from, &[], "a@second");
    let to_part = directory.path().join("part.hpk");
    hardpack().arg("create").arg(&to_part).assert().success();
    receive(&to_part, &[], &cut[..cut.len() / 2]).code(1);
    let token = stdout_of(hardpack().args(["receive", "--resume-token"]).arg(to_part.join("copy")));

    fs::copy(&copy, &from).unwrap();
    night(&random_bytes(50_000, 3), "second");
    night(&random_bytes(50_000, 4), "third");
    let wrong = send(&from, &["-i", "@second"], "a@third");
    receive(&to, &[], &wrong).code(3);
    receive(&to, &["-F"], &wrong).code(3);
    let kept = hardpack().arg("cat").arg(to.join("copy/file")).assert().success();
    assert_eq!(kept.get_output().stdout, random_bytes(50_000, 2));
    let resume = ["send", "-q", "--resume", token.trim()];
    hardpack().args(resume).arg(from.join("a@second")).assert().code(3);

    // Both can continue from a common snapshot without later changes.
    hardpack().args(["rollback"]).arg(to.join("copy@first")).assert().success();
    receive(&to, &[], &send(&from, &["-i", "@first"], "a@third")).success();
    let kept = hardpack().arg("cat").arg(to.join("copy/file")).assert().success();
    assert_eq!(kept.get_output().stdout, random_bytes(50_000, 4));
    hardpack().args(["check", "-q"]).arg(&to).assert().success();
}

#[test]
fn streams_in_one_input_are_received_one_after_the_other() {
    let (_directory, from, to) = pools();
    let (whole, part) = (send(&from, &[], "a@old"), send(&from, &["-i", "@old"], "a@new"));
    let error_of = |assert: assert_cmd::assert::Assert| {
        String::from_utf8(assert.get_output().stderr.clone()).unwrap()
    };
    let error = error_of(receive(&to, &[], &[&whole[..], b"something else"].concat()).code(1));
    assert!(error.contains(&format!("byte {}", whole.len())), "{error}");
    hardpack().arg("ls").arg(to.join("copy")).assert().code(3);
    receive(&to, &["--abort"], b"").success();

    receive(&to, &[], &[&whole[..], &part].concat()).success().stderr("");
    assert_eq!(list(to.join("copy@old")), list(from.join("a@old")));
    assert_eq!(list(to.join("copy@new")), list(from.join("a@new")));
    hardpack().arg("rm").args(["-r"]).arg(to.join("copy")).assert().success();

    let error = error_of(receive(&to, &[], &[&whole[..], &part, &part[..99]].concat()).code(1));
    assert!(error.contains("the 2 streams before it were received"), "{error}");
    assert_eq!(list(to.join("copy@new")), list(from.join("a@new")));
}

#[test]
fn a_target_that_was_renamed_takes_what_follows() {
    let (_directory, from, to) = pools();
    receive(&to, &[], &send(&from, &[], "a@old")).success();
    hardpack().arg("mkdir").arg(to.join("deep")).assert().success();
    hardpack().arg("mv").arg(to.join("copy")).arg(to.join("deep/other")).assert().success();
    let mut command = hardpack();
    command.args(["receive", "-q"]).arg(to.join("deep/other"));
    command.write_stdin(send(&from, &["-i", "@old"], "a@new")).assert().success();
    let found = list(to.join("deep/other")).replace("/deep/other", "/a");
    assert_eq!(found, list(from.join("a")));
}

/// Sending fails if the reader stops before the end of the stream.
#[test]
fn a_stream_that_nobody_takes_is_not_sent() {
    let (_directory, from, _) = pools();
    let mut command = std::process::Command::new(assert_cmd::cargo::cargo_bin!("hardpack"));
    command.args(["send", "-q"]).arg(from.join("a@old"));
    command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::null());
    let mut child = command.spawn().unwrap();
    drop(child.stdout.take());
    assert_eq!(child.wait().unwrap().code(), Some(3));
}

/// One process waits for the rest of a stream that another has received by then.
#[test]
fn the_second_to_receive_a_stream_says_so() {
    let (directory, from, to) = pools();
    fs::write(directory.path().join("large"), random_bytes(6 << 20, 5)).unwrap();
    hardpack()
        .args(["put", "-q"])
        .arg(directory.path().join("large"))
        .arg(from.join("a/large"))
        .assert()
        .success();
    snapshot(&from, "a@large");
    let stream = send(&from, &[], "a@large");
    let mut waiting = Command::new(assert_cmd::cargo::cargo_bin!("hardpack"))
        .args(["receive", "-q"])
        .arg(to.join("copy"))
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = waiting.stdin.take().unwrap();
    input.write_all(&stream[..stream.len() / 2]).unwrap();
    // It has committed a part of it.
    let has_begun = || hardpack().args(["receive", "--resume-token"]).arg(to.join("copy")).ok();
    while has_begun().is_err() {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    receive(&to, &[], &stream).success();
    // It need not read all of it to find out.
    drop(input.write_all(&stream[stream.len() / 2..]));
    drop(input);
    let ended = waiting.wait_with_output().unwrap();
    let stderr = String::from_utf8(ended.stderr).unwrap();
    assert_eq!(ended.status.code(), Some(5), "{stderr}");
    assert!(stderr.contains("another process has received the same stream"), "{stderr}");
    hardpack().args(["check", "-q"]).arg(&to).assert().success();
}
