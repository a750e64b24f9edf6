//! Signals: every long command answers Ctrl-C and its like, also while it waits for something, and
//! leaves nothing half-made.
//!
//! A command is made to wait for something that never comes, and then gets the signal. So it ends
//! with the right exit code, or never.

mod common;

use std::fs;
use std::io::{PipeReader, PipeWriter, Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use hardpack_engine::device::FileDevice;
use hardpack_engine::pool::{Options, Pool};
use hardpack_engine::store::checksum::ChecksumKind;
use tempfile::TempDir;

use common::{
    directory_with, hardpack, make_database, names_beside, open_in_pool, pack, random_bytes,
    with_ending,
};

const PAUSE: Duration = Duration::from_millis(2);

/// A command that can be interrupted, whatever signals this test ignores.
fn command(args: &[&str]) -> Command {
    let mut command = Command::new("env");
    command.args(["--default-signal=INT,TERM,HUP"]);
    command.arg(assert_cmd::cargo::cargo_bin!("hardpack")).args(args);
    command
}

/// Fills a pipe, so that every further write to it waits.
fn full_pipe() -> (PipeReader, PipeWriter) {
    let (reader, mut writer) = std::io::pipe().unwrap();
    let flags = rustix::fs::fcntl_getfl(&writer).unwrap();
    rustix::fs::fcntl_setfl(&writer, flags | rustix::fs::OFlags::NONBLOCK).unwrap();
    while writer.write(&[0; 4096]).is_ok() {}
    while writer.write(&[0]).is_ok() {}
    rustix::fs::fcntl_setfl(&writer, flags).unwrap();
    (reader, writer)
}

/// Waits until the process has blocked the signals, which it then answers itself.
fn wait_until_catching(child: &mut Child) {
    loop {
        let status = fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
        let blocked = status.lines().find_map(|line| line.strip_prefix("SigBlk:")).unwrap();
        // Bit 1 is SIGINT.
        if u64::from_str_radix(blocked.trim(), 16).unwrap() & 2 != 0 {
            return;
        }
        assert!(child.try_wait().unwrap().is_none(), "it ended by itself");
        std::thread::sleep(PAUSE);
    }
}

/// Waits until a thread of the process sleeps in a system call, such as "pipe_write".
fn wait_until_all_sleep(child: &mut Child) {
    let is_asleep = |task: &fs::DirEntry| {
        let stat = fs::read_to_string(task.path().join("stat")).unwrap_or_default();
        stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('S'))
    };
    // Several looks, since a thread may sleep for a moment.
    let mut looks = 0;
    while looks < 20 {
        assert!(child.try_wait().unwrap().is_none(), "it ended by itself");
        let tasks = fs::read_dir(format!("/proc/{}/task", child.id())).unwrap();
        looks = if tasks.flatten().all(|task| is_asleep(&task)) { looks + 1 } else { 0 };
        std::thread::sleep(PAUSE);
    }
}

fn send(child: &Child, signal: &str) {
    assert!(
        Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap().success()
    );
}

/// Starts a command, and waits until it answers signals.
fn start(command: &mut Command) -> Child {
    let mut child = command.spawn().unwrap();
    wait_until_catching(&mut child);
    child
}

/// Interrupts a command, which must say so with its exit code. Returns its standard error, if that
/// is a pipe to this test.
fn interrupt_at_once(child: Child, signal: &str) -> String {
    send(&child, signal);
    let output = child.wait_with_output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(130), "{signal}: {stderr}");
    stderr
}

/// Interrupts a command once it waits for something, as [`interrupt_at_once`] does.
fn interrupt(mut child: Child, signal: &str) -> String {
    wait_until_all_sleep(&mut child);
    interrupt_at_once(child, signal)
}

/// Interrupts a command whose stderr nobody reads, once it waits for that.
fn interrupt_silent(args: &[&str], signal: &str) {
    let (reader, writer) = full_pipe();
    let mut command = command(args);
    interrupt(start(command.stdout(Stdio::null()).stdin(Stdio::null()).stderr(writer)), signal);
    drop(reader);
}

/// Waits for a line that begins with `start`.
fn read_line(stderr: &mut impl Read, start: &str) {
    let mut line = Vec::new();
    let mut byte = [0];
    loop {
        assert_eq!(stderr.read(&mut byte).unwrap(), 1, "no line begins with '{start}'");
        match byte[0] {
            b'\n' if line.starts_with(start.as_bytes()) => return,
            b'\n' => line.clear(),
            other => line.push(other),
        }
    }
}

/// A pool, and the database in it.
fn database_pool() -> (TempDir, std::path::PathBuf, std::path::PathBuf) {
    let (directory, path) = directory_with("data.db", b"");
    make_database(&path, 4096, 40_000);
    let pool = pack(&path);
    let db = open_in_pool(&pool);
    db.execute_batch("UPDATE t SET b = b || '!' WHERE a % 50 = 0").unwrap();
    drop(db);
    (directory, path, pool)
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn commands_that_make_a_file_leave_none() {
    for signal in ["-INT", "-TERM", "-HUP"] {
        let (_directory, path, pool) = database_pool();
        let before = names_beside(&path);
        let content = fs::read(&path).unwrap();
        let out = with_ending(&path, ".out");
        interrupt_silent(&["pack", text(&path), text(&out)], signal);
        assert_eq!(names_beside(&path), before, "pack {signal}");
        interrupt_silent(&["pack", "--in-place", text(&path)], signal);
        assert_eq!(names_beside(&path), before, "pack --in-place {signal}");
        assert_eq!(fs::read(&path).unwrap(), content);
        interrupt_silent(&["unpack", text(&pool), text(&out)], signal);
        assert_eq!(names_beside(&path), before, "unpack {signal}");
        interrupt_silent(&["salvage", text(&pool), text(&out)], signal);
        assert_eq!(names_beside(&path), before, "salvage {signal}");
    }
}

#[test]
fn commands_that_work_on_a_pool_leave_it_whole() {
    for (signal, args) in [
        ("-INT", &["compact"][..]),
        ("-TERM", &["fold"]),
        ("-HUP", &["repack", "--compression", "lz4"]),
        ("-INT", &["check"]),
    ] {
        let (_directory, path, pool) = database_pool();
        if args[0] == "compact" {
            open_in_pool(&pool).execute_batch("DELETE FROM t WHERE a > 10; VACUUM").unwrap();
        }
        let before = names_beside(&path);
        interrupt_silent(&[args, &[text(&pool)]].concat(), signal);
        assert_eq!(names_beside(&path), before, "{args:?}");
        hardpack().args(["check", "-q"]).arg(&pool).assert().success();
    }
}

#[test]
fn a_stream_that_nobody_reads_can_be_interrupted() {
    let (_directory, _path, pool) = database_pool();
    hardpack().arg("snapshot").arg(with_ending(&pool, "@a")).assert().success();
    let snapshot = with_ending(&pool, "@a");
    for args in [
        &["send", text(&snapshot)][..],
        &["extract", "--tar", text(&pool), "-"],
        &["check", text(&pool)],
    ] {
        let (reader, writer) = full_pipe();
        let mut command = command(args);
        let child = start(command.stdin(Stdio::null()).stdout(writer).stderr(Stdio::piped()));
        let stderr = interrupt(child, "-TERM");
        drop(reader);
        assert!(stderr.contains("hardpack: stopping; a second signal ends at once\n"), "{stderr}");
        assert!(stderr.contains("interrupted") && stderr.contains("note: "), "{stderr}");
    }
}

/// What arrived before the signal is kept, and the stream continues from there.
#[test]
fn an_interrupted_receive_goes_on() {
    let (directory, _path, pool) = database_pool();
    let snapshot = with_ending(&pool, "@a");
    hardpack().arg("snapshot").arg(&snapshot).assert().success();
    let stream =
        hardpack().arg("send").arg(&snapshot).assert().success().get_output().stdout.clone();
    let other = directory.path().join("other.hpk");
    hardpack().arg("create").arg(&other).assert().success();
    let target = format!("{}/copy", other.display());
    let mut command = command(&["receive", &target]);
    let mut child = start(command.stdin(Stdio::piped()).stderr(Stdio::piped()));
    let mut input = child.stdin.take().unwrap();
    input.write_all(&stream[..stream.len() / 2]).unwrap();
    let stderr = interrupt(child, "-INT");
    drop(input);
    assert!(stderr.contains("--resume-token"), "{stderr}");
    let token = common::stdout_of(hardpack().args(["receive", "--resume-token", &target]));
    let rest =
        hardpack().args(["send", "--resume", token.trim()]).arg(&snapshot).assert().success();
    let rest = rest.get_output().stdout.clone();
    assert!(rest.len() < stream.len(), "nothing was kept");
    hardpack().args(["receive", &target]).write_stdin(rest).assert().success();
    hardpack().args(["check", "-q"]).arg(&other).assert().success();
}

#[test]
fn an_interrupted_put_keeps_what_was_complete() {
    let (directory, _path) = directory_with("first", b"1");
    let pool = directory.path().join("some.hpk");
    let at = directory.path();
    // A stream that goes no further after its first file.
    let tar = Command::new("tar").args(["-c", "first"]).current_dir(at).output().unwrap().stdout;
    let mut first = command(&["put", "--tar", "-", text(&pool)]);
    let mut child = start(first.stdin(Stdio::piped()).stderr(Stdio::piped()));
    let mut input = child.stdin.take().unwrap();
    input.write_all(&tar[..1024]).unwrap();
    let stderr = interrupt(child, "-HUP");
    drop(input);
    // Nothing had been committed, so the new pool is gone again.
    assert!(stderr.contains("nothing unfinished is left behind"), "{stderr}");
    assert!(!pool.exists());
    // With something in it, it stays.
    hardpack().args(["put", "-q"]).arg(at.join("first")).arg(&pool).assert().success();
    let held =
        Pool::open(Arc::new(FileDevice::open(&pool).unwrap()), Options::new(1 << 20)).unwrap();
    let txn = held.store().begin(ChecksumKind::default()).unwrap();
    fs::write(at.join("second"), b"2").unwrap();
    let second = at.join("second");
    let child = start(command(&["put", text(&second), text(&pool)]).stderr(Stdio::piped()));
    let stderr = interrupt_at_once(child, "-INT");
    drop(txn);
    drop(held);
    assert!(stderr.contains("the same command continues from there"), "{stderr}");
    hardpack().args(["put", "-q"]).arg(&second).arg(&pool).assert().success();
    let listed = common::stdout_of(hardpack().args(["ls"]).arg(&pool));
    assert!(listed.contains("first") && listed.contains("second"), "{listed}");
    hardpack().args(["check", "-q"]).arg(&pool).assert().success();
}

#[test]
fn an_interrupted_extract_leaves_complete_files() {
    let (directory, path) = directory_with("small", b"small");
    let at = directory.path();
    fs::write(at.join("big"), random_bytes(24 << 20, 7)).unwrap();
    let pool = at.join("some.hpk");
    hardpack().args(["put", "-q"]).args([&path, &at.join("big")]).arg(&pool).assert().success();
    let out = at.join("out");
    fs::create_dir(&out).unwrap();
    // It says what it writes, to nobody.
    interrupt_silent(&["extract", "-v", text(&pool), text(&out)], "-INT");
    for name in fs::read_dir(&out).unwrap() {
        let name = name.unwrap().file_name();
        assert!(name == "small" || name == "big", "{name:?} is left");
        assert_eq!(fs::read(out.join(&name)).unwrap(), fs::read(at.join(&name)).unwrap());
    }
    hardpack().args(["extract", "-q", "--update"]).arg(&pool).arg(&out).assert().success();
    assert_eq!(fs::read(out.join("big")).unwrap(), fs::read(at.join("big")).unwrap());
}

/// A codec call cannot be interrupted, so it is not waited for: here its processor time would not
/// suffice to end it.
#[test]
fn long_compression_is_abandoned() {
    let (_directory, path) = directory_with("text", b"");
    let words = random_bytes(64 << 20, 3);
    let text: Vec<u8> =
        words.iter().map(|byte| b"abcdefghijklmnop"[usize::from(byte % 16)]).collect();
    fs::write(&path, text).unwrap();
    let program = assert_cmd::cargo::cargo_bin!("hardpack");
    let mut child = Command::new("env")
        .args(["--default-signal=INT,TERM,HUP", "sh", "-c", "ulimit -t 10; exec \"$@\"", "sh"])
        .arg(program)
        .args(["pack", "-q", "-j1", "--compression", "zstd-19", "--recordsize", "16M"])
        .arg(&path)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    wait_until_catching(&mut child);
    // Two seconds of processor time: the first records are being compressed.
    let seconds = |child: &Child| {
        let stat = fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap();
        stat.rsplit(") ").next().unwrap().split(' ').nth(11).unwrap().parse::<u64>().unwrap() / 100
    };
    while seconds(&child) < 2 {
        assert!(child.try_wait().unwrap().is_none(), "it ended by itself");
        std::thread::sleep(PAUSE);
    }
    send(&child, "-INT");
    let mut stderr = child.stderr.take().unwrap();
    read_line(&mut stderr, "hardpack: stopping");
    let status = child.wait().unwrap();
    assert_eq!(status.code(), Some(130), "{status}");
    assert_eq!(names_beside(&path), ["text"]);
}

/// A signal that is ignored from the start, as by `nohup`, is not answered.
#[test]
fn ignored_signals_stay_ignored() {
    let (_directory, path) = directory_with("text", b"some text");
    let pool = pack(&path);
    let (mut reader, writer) = full_pipe();
    let mut child = Command::new("env")
        .args(["--default-signal=INT,TERM", "--ignore-signal=HUP"])
        .arg(assert_cmd::cargo::cargo_bin!("hardpack"))
        .arg("check")
        .arg(&pool)
        .stdout(Stdio::null())
        .stderr(writer)
        .spawn()
        .unwrap();
    wait_until_catching(&mut child);
    send(&child, "-HUP");
    // Now somebody reads, so that it can end.
    std::io::copy(&mut reader, &mut std::io::sink()).unwrap();
    assert!(child.wait().unwrap().success());
}
