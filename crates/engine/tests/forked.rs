//! Devices in children made by `fork`, beside the locks: the page that is mapped to wait for
//! others.
#![expect(unsafe_code, reason = "fork")]

use std::io::{BufRead, BufReader};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Barrier;
use std::time::Duration;

use hardpack_engine::device::{Device, FileDevice};

const PAGE: usize = 4096;

/// Where a process has mapped a file.
fn mapped_at(process: &str, path: &Path) -> Option<usize> {
    let inode = format!(" {} ", std::fs::metadata(path).unwrap().ino());
    let maps = std::fs::read_to_string(format!("/proc/{process}/maps")).ok()?;
    let line = maps.lines().find(|line| line.contains(&inode))?;
    usize::from_str_radix(line.split('-').next()?, 16).ok()
}

/// A child has other memory where its parent has mapped the page of a pool. To drop the device
/// there must not unmap it.
#[test]
fn a_child_that_drops_a_device_keeps_its_memory() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pool");
    std::fs::write(&path, [7; PAGE]).unwrap();
    let device = FileDevice::open(&path).unwrap();
    let at = mapped_at("self", &path).unwrap();
    // SAFETY: the child makes system calls, drops the device, and exits.
    let status = unsafe {
        let child = libc::fork();
        if child == 0 {
            let (access, fixed) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_FIXED_NOREPLACE);
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | fixed;
            // As any allocation of the child may.
            let memory = libc::mmap(at as *mut libc::c_void, PAGE, access, flags, -1, 0);
            if memory as usize != at {
                libc::_exit(2);
            }
            memory.cast::<u8>().write_volatile(1);
            drop(device);
            libc::_exit(i32::from(memory.cast::<u8>().read_volatile() != 1));
        }
        let mut status = -1;
        assert_eq!(libc::waitpid(child, &mut status, 0), child);
        status
    };
    assert_eq!(status, 0, "the memory of the child is gone (11 is a segmentation fault)");
}

/// The process that is killed below: opens devices while it forks, until a child has a device's
/// page.
#[test]
fn victim() {
    let Ok(path) = std::env::var("HARDPACK_FORKED") else { return };
    let path = Path::new(&path);
    let (begin, end) = (Barrier::new(2), Barrier::new(2));
    let found = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            loop {
                begin.wait();
                let device = FileDevice::open(path).unwrap();
                device.lock_writer().unwrap();
                end.wait();
                begin.wait();
                if found.load(std::sync::atomic::Ordering::SeqCst) {
                    std::thread::sleep(Duration::from_secs(60));
                }
                drop(device);
            }
        });
        for round in 0..20_000u32 {
            begin.wait();
            for _ in 0..round % 64 * 16 {
                std::hint::spin_loop();
            }
            // SAFETY: the child only waits.
            let child = unsafe { libc::fork() };
            if child == 0 {
                // SAFETY: it takes no pointers.
                unsafe { libc::alarm(60) };
                loop {
                    // SAFETY: it takes no pointers.
                    unsafe { libc::pause() };
                }
            }
            end.wait();
            let is_mapped = mapped_at(&child.to_string(), path).is_some();
            found.store(is_mapped, std::sync::atomic::Ordering::SeqCst);
            if is_mapped {
                println!("\nchild {child} in round {round}");
            } else {
                // SAFETY: it is our child.
                unsafe {
                    libc::kill(child, libc::SIGKILL);
                    libc::waitpid(child, std::ptr::null_mut(), 0);
                }
            }
            begin.wait();
            if is_mapped {
                std::thread::sleep(Duration::from_secs(60));
            }
        }
        println!("\nchild 0");
        std::process::exit(0);
    });
}

/// Locks end with their process, whenever it forks.
#[test]
fn no_child_keeps_the_locks_of_its_dead_parent() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pool");
    std::fs::write(&path, [7; PAGE]).unwrap();
    let mut victim = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "victim", "--nocapture"])
        .env("HARDPACK_FORKED", &path)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(victim.stdout.take().unwrap()).lines().map(Result::unwrap);
    let line = lines.into_iter().find(|line| line.starts_with("child ")).unwrap();
    victim.kill().unwrap();
    victim.wait().unwrap();
    let child: i32 = line.split(' ').nth(1).unwrap().parse().unwrap();
    let is_free = FileDevice::open(&path).unwrap().try_lock_writer().unwrap();
    if child != 0 {
        // SAFETY: it is a child of the victim, which only waits.
        unsafe { libc::kill(child, libc::SIGKILL) };
        std::thread::sleep(Duration::from_millis(100));
        assert!(FileDevice::open(&path).unwrap().try_lock_writer().unwrap(), "somebody else");
    }
    assert!(is_free, "{line} holds the writer lock of the dead");
}
