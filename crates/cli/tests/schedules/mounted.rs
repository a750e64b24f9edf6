//! Loss of power under a real mount: the writes and syncs of its server are recorded while programs
//! write through the kernel. The recording is cut at some places, and what may be left of the pool
//! is checked and compared with what was synced by then.
//!
//! Unlike in the other tests here, threads run as they like: the server is only stopped for the
//! moment in which a call is recorded. So a seed does not make the same recording again.
//!
//! `HARDPACK_MOUNT_CUTS=n` tries that many cuts.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard};

use libc::{c_int, c_long, pid_t};

use super::common::{hardpack, random_bytes};
use super::medium::{self, Disk, Image, Medium, Op};
use super::random::Random;
use super::tracer::{self, Tracer};

const CUTS: &str = "HARDPACK_MOUNT_CUTS";
const CUTS_DEFAULT: u64 = 40;
const POOL: &str = "p.hpk";
const FILE_COUNT: u64 = 24;
const WRITER_COUNT: u64 = 2;
/// The length of a file that is moved over another one without a sync.
const MOVED_LEN: usize = 3000;
const TRAP_OF_CALL: c_int = libc::SIGTRAP | 0x80;

/// What was recorded so far.
type Recording = Arc<Mutex<Vec<Op>>>;

fn ops(recording: &Recording) -> MutexGuard<'_, Vec<Op>> {
    recording.lock().unwrap_or_else(|error| error.into_inner())
}

fn say(recording: &Recording, line: String) {
    ops(recording).push(Op::Said(line));
}

/// A call that a thread is making: what it will have done, and its place if that is not the end.
struct Pending {
    op: Op,
    at: Option<usize>,
}

/// Runs a server until it ends, and records what it does to the pool.
fn trace(command: &mut Command, recording: &Recording, started: impl FnOnce()) {
    let mut tracer = Tracer::default();
    let pid = tracer.start(command);
    started();
    let mut pending: BTreeMap<pid_t, Pending> = BTreeMap::new();
    tracer::go_on(pid, false, 0);
    loop {
        let (tid, status) = tracer::wait_for_any();
        if !libc::WIFSTOPPED(status) {
            match tid == pid {
                true => return,
                false => continue,
            }
        }
        match (status >> 16, libc::WSTOPSIG(status)) {
            (libc::PTRACE_EVENT_SECCOMP, _) => {
                let found = recorded_call(tid, recording);
                let is_recorded = found.is_some();
                pending.extend(found.map(|call| (tid, call)));
                tracer::go_on(tid, is_recorded, 0);
            }
            (_, TRAP_OF_CALL) => {
                if let Some(Pending { op, at }) = pending.remove(&tid) {
                    note_done(tid, op, at, recording);
                }
                tracer::go_on(tid, false, 0);
            }
            (0, libc::SIGSTOP | libc::SIGTRAP) | (1.., _) => tracer::go_on(tid, false, 0),
            (_, signal) => tracer::go_on(tid, false, signal),
        }
    }
}

/// Returns what a call is about to do to the pool.
fn recorded_call(tid: pid_t, recording: &Recording) -> Option<Pending> {
    let call = tracer::registers_of(tid)?;
    let number = call.orig_rax as c_long;
    let calls = [
        libc::SYS_pwrite64,
        libc::SYS_ftruncate,
        libc::SYS_fallocate,
        libc::SYS_fsync,
        libc::SYS_fdatasync,
    ];
    if !calls.contains(&number) {
        return None;
    }
    let path = fs::read_link(format!("/proc/{tid}/fd/{}", call.rdi)).ok()?;
    if path.file_name()?.to_str()? != POOL {
        return None;
    }
    let name = POOL.to_string();
    Some(match number {
        libc::SYS_pwrite64 => {
            let bytes = tracer::read(tid, call.rsi, call.rdx as usize);
            Pending { op: Op::Write(name, call.r10, bytes), at: None }
        }
        libc::SYS_ftruncate => Pending { op: Op::SetLen(name, call.rsi), at: None },
        libc::SYS_fallocate => {
            let punches = call.rsi as i32 & libc::FALLOC_FL_PUNCH_HOLE != 0;
            assert!(punches, "the server sets space aside");
            Pending { op: Op::Punch(name, call.rdx, call.r10), at: None }
        }
        // It covers what was done before it began.
        _ => {
            let mut ops = ops(recording);
            ops.push(Op::Said(String::new()));
            Pending { op: Op::Sync(name), at: Some(ops.len() - 1) }
        }
    })
}

fn note_done(tid: pid_t, op: Op, at: Option<usize>, recording: &Recording) {
    // Who has ended has nothing to say of it.
    let Some(registers) = tracer::registers_of(tid) else { return };
    let result = registers.rax as i64;
    let mut ops = ops(recording);
    match (op, at) {
        (Op::Write(name, offset, bytes), _) if result >= 0 => {
            ops.push(Op::Write(name, offset, bytes[..result as usize].to_vec()));
        }
        (op, Some(at)) if result == 0 => ops[at] = op,
        (op, None) if result == 0 => ops.push(op),
        _ => {}
    }
}

/// The bytes of the file that a writer fills at its end.
fn log_bytes(writer: u64) -> Vec<u8> {
    random_bytes(600_000, 1000 + writer)
}

fn file_bytes(writer: u64, number: u64) -> Vec<u8> {
    let len = 1 + (number * 7919) % 60_000 + if number.is_multiple_of(8) { 700_000 } else { 0 };
    random_bytes(len as usize, writer << 32 | number)
}

/// Writes through the mount, and says what is synced.
fn work(point: &Path, writer: u64, recording: &Recording) -> std::io::Result<()> {
    let log = log_bytes(writer);
    let mut log_file = File::create(point.join(format!("log-{writer}")))?;
    let mut log_len = 0;
    for number in 0..FILE_COUNT {
        let mut file = File::create(point.join(format!("{writer}-{number}")))?;
        file.write_all(&file_bytes(writer, number))?;
        match number % 3 {
            0 => {
                file.sync_all()?;
                say(recording, format!("synced {writer} {number}"));
            }
            1 => {
                drop(file);
                File::open(point)?.sync_all()?;
                say(recording, format!("synced {writer} {number}"));
            }
            _ => {}
        }
        let moved = point.join(format!("new-{writer}"));
        fs::write(&moved, [number as u8; MOVED_LEN])?;
        fs::rename(&moved, point.join(format!("moved-{writer}")))?;
        let end = (log_len + 1 + (number as usize * 4099) % 23_000).min(log.len());
        log_file.write_all(&log[log_len..end])?;
        log_len = end;
        if number % 2 == 1 {
            log_file.sync_data()?;
            say(recording, format!("log {writer} {log_len}"));
        }
    }
    Ok(())
}

/// Mounts a pool, works, and unmounts it. Returns the recording and what it began with.
fn record(directory: &Path) -> (Image, Vec<Op>) {
    let (pool, point) = (directory.join(POOL), directory.join("mnt"));
    hardpack().arg("create").arg(&pool).assert().success();
    fs::create_dir(&point).unwrap();
    let base = Medium::of(directory).base;
    let recording = Recording::default();
    let (tell, started) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut server = Command::new(assert_cmd::cargo::cargo_bin!("hardpack"));
            server.args(["mount", "--foreground"]).args([&pool, &point]).stdin(Stdio::null());
            trace(&mut server, &recording, || tell.send(()).unwrap());
        });
        started.recv().unwrap();
        let began = std::time::Instant::now();
        let mut number = [0; 16];
        while rustix::fs::getxattr(&point, "user.hardpack.server", &mut number).is_err() {
            assert!(began.elapsed().as_secs() < 60, "the server does not mount");
            std::thread::yield_now();
        }
        std::thread::scope(|scope| {
            for writer in 0..WRITER_COUNT {
                let (recording, point) = (&recording, &point);
                scope.spawn(move || work(point, writer, recording).unwrap());
            }
        });
        hardpack().arg("umount").arg(&point).assert().success();
    });
    fs::remove_dir(&point).unwrap();
    let ops = std::mem::take(&mut *ops(&recording));
    let mut disk = Disk::new(&base);
    ops.iter().for_each(|op| disk.apply(op));
    assert!(disk.all_kept() == medium::read_image(directory), "the recording is incomplete");
    (base, ops)
}

/// Checks an image, and compares it with what was synced.
fn judge(directory: &Path, image: &Image, ops: &[Op]) -> Result<(), String> {
    let (pool, out) = (directory.join(POOL), directory.join("out"));
    fs::write(&pool, &image[POOL]).unwrap();
    let check = hardpack().args(["check", "-q"]).arg(&pool).output().unwrap();
    if !check.status.success() {
        return Err(String::from_utf8_lossy(&check.stderr).into_owned());
    }
    let _ = fs::remove_dir_all(&out);
    let extract = hardpack().arg("extract").args([&pool, &out]).output().unwrap();
    if !extract.status.success() {
        return Err(String::from_utf8_lossy(&extract.stderr).into_owned());
    }
    let (mut synced, mut logs) = (Vec::new(), [0; WRITER_COUNT as usize]);
    for op in ops {
        let Op::Said(line) = op else { continue };
        let number = |at: usize| line.split(' ').nth(at).unwrap().parse::<u64>().unwrap();
        match line.split(' ').next() {
            Some("synced") => synced.push((number(1), number(2))),
            Some("log") => logs[number(1) as usize] = number(2) as usize,
            _ => {}
        }
    }
    for writer in 0..WRITER_COUNT {
        for number in 0..FILE_COUNT {
            let name = format!("{writer}-{number}");
            let (found, wanted) = (fs::read(out.join(&name)), file_bytes(writer, number));
            let is_synced = synced.contains(&(writer, number));
            match found {
                Ok(found) if found == wanted => {}
                Ok(found) if !is_synced && wanted.starts_with(&found) => {}
                Err(_) if !is_synced => {}
                found => {
                    let len = found.map(|bytes| bytes.len());
                    return Err(format!("'{name}', synced: {is_synced}, has {len:?} bytes"));
                }
            }
        }
        if let Ok(moved) = fs::read(out.join(format!("moved-{writer}")))
            && (moved.len() != MOVED_LEN || moved.iter().any(|byte| *byte != moved[0]))
        {
            // The first one replaced nothing.
            let is_first = moved.is_empty();
            if !is_first {
                return Err(format!("what writer {writer} moved has {} bytes", moved.len()));
            }
        }
        let log = fs::read(out.join(format!("log-{writer}"))).unwrap_or_default();
        if log.len() < logs[writer as usize] || !log_bytes(writer).starts_with(&log) {
            return Err(format!("the log of {writer} has {} bytes, of {logs:?}", log.len()));
        }
    }
    Ok(())
}

/// Cuts a recording at some places.
fn cut(base: &Image, ops: &[Op], seed: u64, count: u64) -> Result<(), String> {
    let mut random = Random(seed);
    let directory = tempfile::tempdir().unwrap();
    for _ in 0..count {
        let end = random.below(ops.len() as u64 + 1) as usize;
        let mut disk = Disk::new(base);
        ops[..end].iter().for_each(|op| disk.apply(op));
        let image = disk.crash(&mut random);
        judge(directory.path(), &image, &ops[..end])
            .map_err(|error| format!("after operation {end} of {}: {error}", ops.len()))?;
    }
    Ok(())
}

#[test]
fn what_was_synced_through_a_mount_survives() {
    let has_device = File::options().read(true).write(true).open("/dev/fuse").is_ok();
    if !has_device || !rustix::process::geteuid().is_root() {
        println!("skipped: this needs root and /dev/fuse");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let (base, mut ops) = record(directory.path());
    let syncs = ops.iter().filter(|op| matches!(op, Op::Sync(_))).count() as u64;
    assert!(syncs > FILE_COUNT, "{syncs}");
    let count = std::env::var(CUTS).ok().and_then(|text| text.parse().ok());
    cut(&base, &ops, 1, count.unwrap_or(CUTS_DEFAULT)).unwrap();
    // A test that never complains proves nothing.
    ops.retain(|op| !matches!(op, Op::Sync(_)));
    cut(&base, &ops, 1, 10).unwrap_err();
}
