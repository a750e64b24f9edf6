//! `flock` and `fcntl` between mounts of one pool, with `-o locks=pool`.

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::process::Child;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, fcntl_lock, flock};

use super::*;

/// What a worker is to do: see [`worker`].
const WORK: &str = "HARDPACK_LOCK_WORK";
/// How often each worker changes the file.
const COUNT: u32 = 40;

const WITH_LOCKS: &[&str] = &["-o", "locks=pool"];

/// Mounts of one pool with locks.
fn two_mounts() -> (Mount, Mount) {
    let mount = Mount::new();
    mount.unmount();
    mount.again(WITH_LOCKS);
    let second = Mount {
        directory: tempfile::tempdir().unwrap(),
        pool: mount.pool.clone(),
        point: mount.directory.path().join("second"),
    };
    fs::create_dir(&second.point).unwrap();
    second.again(WITH_LOCKS);
    (mount, second)
}

fn open(path: &Path) -> File {
    File::options().read(true).write(true).create(true).truncate(false).open(path).unwrap()
}

fn is_refused(done: rustix::io::Result<()>) -> bool {
    matches!(done, Err(rustix::io::Errno::AGAIN))
}

/// Starts this test program again as a worker.
fn start(work: &str, path: &Path) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "locks::worker", "--ignored", "--nocapture"]);
    command.env(WORK, format!("{work} {}", path.display()));
    command.stdout(std::process::Stdio::null()).spawn().unwrap()
}

/// Counts in a file, or adds lines to it, a lock around each change.
#[test]
#[ignore = "a process of the other tests"]
fn worker() {
    let work = std::env::var(WORK).unwrap();
    let (work, path) = work.split_once(' ').unwrap();
    let path = Path::new(path);
    let lock = |file: &File, operation| match work.starts_with("flock") {
        true => flock(file, operation).unwrap(),
        false => fcntl_lock(file, operation).unwrap(),
    };
    if work.ends_with("hold") {
        let mut file = open(path);
        lock(&file, FlockOperation::LockExclusive);
        file.write_all(b"held").unwrap();
        fs::write(path.with_extension("held"), b"").unwrap();
        std::thread::sleep(Duration::from_secs(600));
    }
    for _ in 0..COUNT {
        if work.ends_with("append") {
            let mut file = File::options().append(true).open(path).unwrap();
            lock(&file, FlockOperation::LockExclusive);
            file.write_all(b"a line\n").unwrap();
            lock(&file, FlockOperation::Unlock);
            continue;
        }
        // One descriptor for all, so that only the lock makes the kernel look again.
        let mut file = open(path);
        for _ in 0..2 {
            lock(&file, FlockOperation::LockExclusive);
            let mut text = String::new();
            file.seek(SeekFrom::Start(0)).unwrap();
            file.read_to_string(&mut text).unwrap();
            let next = text.parse::<u32>().unwrap_or(0) + 1;
            file.seek(SeekFrom::Start(0)).unwrap();
            file.write_all(next.to_string().as_bytes()).unwrap();
            lock(&file, FlockOperation::Unlock);
        }
    }
}

/// No change of any of four processes in two mounts is lost.
#[test]
fn no_update_is_lost() {
    if !can_mount() {
        return;
    }
    let (mount, second) = two_mounts();
    for (work, name) in
        [("flock", "a"), ("fcntl", "b"), ("flock append", "c"), ("fcntl append", "d")]
    {
        write(&mount.at(name), b"");
        File::open(mount.at(name)).unwrap().sync_all().unwrap();
        let mut workers: Vec<Child> = [&mount, &second, &mount, &second]
            .iter()
            .map(|at| start(&work.replace(' ', "-"), &at.at(name)))
            .collect();
        for worker in &mut workers {
            assert!(worker.wait().unwrap().success(), "{work}");
        }
        let file = open(&second.at(name));
        flock(&file, FlockOperation::LockShared).unwrap();
        let text = String::from_utf8(read(&second.at(name))).unwrap();
        match work.ends_with("append") {
            true => assert_eq!(text, "a line\n".repeat(4 * COUNT as usize), "{work}"),
            false => assert_eq!(text, (8 * COUNT).to_string(), "{work}"),
        }
    }
    second.unmount();
    mount.unmount();
    mount.check();
}

/// Shared and exclusive, of bytes and of all, waiting and not, within a mount and between two.
#[test]
fn locks_exclude_each_other() {
    if !can_mount() {
        return;
    }
    use FlockOperation::*;
    let (mount, second) = two_mounts();
    write(&mount.at("f"), b"content");
    File::open(mount.at("f")).unwrap().sync_all().unwrap();
    let [one, two, other] = [open(&mount.at("f")), open(&mount.at("f")), open(&second.at("f"))];
    flock(&one, LockShared).unwrap();
    flock(&two, NonBlockingLockShared).unwrap();
    flock(&other, NonBlockingLockShared).unwrap();
    assert!(is_refused(flock(&one, NonBlockingLockExclusive)));
    flock(&two, Unlock).unwrap();
    assert!(is_refused(flock(&one, NonBlockingLockExclusive)));
    flock(&other, Unlock).unwrap();
    flock(&one, LockExclusive).unwrap();
    assert!(is_refused(flock(&two, NonBlockingLockShared)));
    assert!(is_refused(flock(&other, NonBlockingLockShared)));
    // A signal ends the wait.
    let mut waiter = Command::new("flock").arg(second.at("f")).arg("true").spawn().unwrap();
    std::thread::sleep(Duration::from_millis(300));
    assert!(waiter.try_wait().unwrap().is_none());
    let began = Instant::now();
    waiter.kill().unwrap();
    waiter.wait().unwrap();
    assert!(began.elapsed() < Duration::from_secs(5));
    // What waits gets the lock when it is free, also if it is freed by closing.
    let waiter = std::thread::spawn(move || flock(&other, LockExclusive).map(|()| other));
    std::thread::sleep(Duration::from_millis(100));
    assert!(!waiter.is_finished());
    drop(one);
    let other = waiter.join().unwrap().unwrap();
    assert!(is_refused(flock(&two, NonBlockingLockShared)));
    drop(other);
    flock(&two, LockShared).unwrap();
    drop(two);

    // Bytes, which are not those of another process.
    let file = open(&mount.at("bytes"));
    fcntl_lock(&file, LockExclusive).unwrap();
    file.sync_all().unwrap();
    let test = |at: &Mount| {
        let script = "import fcntl,sys\nf=open(sys.argv[1],'r+')\ntry:\n fcntl.lockf(f,fcntl.LOCK_EX|fcntl.LOCK_NB,1,5)\nexcept OSError as e: sys.exit(e.errno)";
        Command::new("python3").args(["-c", script]).arg(at.at("bytes")).status().unwrap().code()
    };
    assert_eq!((test(&mount), test(&second)), (Some(libc::EAGAIN), Some(libc::EAGAIN)));
    // Closing any descriptor of the file drops the locks of the process.
    drop(open(&mount.at("bytes")));
    assert_eq!((test(&mount), test(&second)), (Some(0), Some(0)));
    drop(file);

    // Without the option, mounts know nothing of each other.
    second.unmount();
    second.again(&[]);
    let [one, other] = [open(&mount.at("f")), open(&second.at("f"))];
    flock(&one, NonBlockingLockExclusive).unwrap();
    flock(&other, NonBlockingLockExclusive).unwrap();
    drop((one, other));
    second.unmount();
    mount.unmount();
    mount.check();
}

/// The locks of a server that is killed are free.
#[test]
fn locks_end_with_their_server() {
    if !can_mount() {
        return;
    }
    let (mount, second) = two_mounts();
    for work in ["flock-hold", "fcntl-hold"] {
        write(&mount.at(work), b"");
        File::open(mount.at(work)).unwrap().sync_all().unwrap();
        let mut holder = start(work, &mount.at(work));
        let began = Instant::now();
        while !mount.at(work).with_extension("held").exists() {
            assert!(began.elapsed() < Duration::from_secs(30));
            std::thread::sleep(Duration::from_millis(10));
        }
        let file = open(&second.at(work));
        assert!(is_refused(flock(&file, FlockOperation::NonBlockingLockExclusive)));
        mount.kill();
        flock(&file, FlockOperation::LockExclusive).unwrap();
        drop(file);
        holder.kill().unwrap();
        holder.wait().unwrap();
        mount.again(&["--replace", "-o", "locks=pool"]);
    }
    second.unmount();
    mount.unmount();
    mount.check();
}
