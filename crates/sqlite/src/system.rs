//! The clocks, threads, pauses, random bytes, memory and the user of the VFS. Nothing else may use
//! them: `clippy.toml` denies it.
#![expect(clippy::disallowed_methods, reason = "the one place for them")]
#![expect(unsafe_code, reason = "asks the system for the user, local time and its memory")]

use std::io;
use std::sync::OnceLock;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use hardpack_engine::pool::FileOwner;

/// The clock of a simulation.
static CLOCK: OnceLock<fn() -> i64> = OnceLock::new();

/// Replaces the time of day of this process by that of a simulation, once.
pub fn simulate_clock(clock: fn() -> i64) {
    let _ = CLOCK.set(clock);
}

/// Returns the user and the group with whose rights this process creates files.
pub fn owner() -> FileOwner {
    // SAFETY: neither function has preconditions, and neither can fail.
    let (uid, gid) = unsafe { (libc::geteuid(), libc::getegid()) };
    FileOwner { uid, gid }
}

/// Whether this process has more rights than whoever started it, as a program with the set-user-ID
/// bit does.
pub fn is_privileged() -> bool {
    // SAFETY: the function has no preconditions; an unknown kind of value is 0.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

/// Returns the current time in nanoseconds since 1970.
pub fn now_ns() -> i64 {
    if let Some(clock) = CLOCK.get() {
        return clock();
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(now.as_nanos()).unwrap_or(0)
}

/// Converts a local date and time (year, month, day, hour, minute, second) to seconds since 1970;
/// `None` if the system cannot.
pub fn from_local([year, month, day, hour, minute, second]: [i64; 6]) -> Option<i64> {
    let int = |n: i64| libc::c_int::try_from(n).ok();
    // SAFETY: `tm` is a plain structure for which zeros are valid, and outlives the call.
    unsafe {
        let mut tm: libc::tm = std::mem::zeroed();
        (tm.tm_year, tm.tm_mon, tm.tm_mday) = (int(year - 1900)?, int(month - 1)?, int(day)?);
        (tm.tm_hour, tm.tm_min, tm.tm_sec) = (int(hour)?, int(minute)?, int(second)?);
        // The system finds out about summer time.
        tm.tm_isdst = -1;
        let seconds = libc::mktime(&mut tm);
        // -1 is an error, and a second of 1969 that nobody will miss.
        (seconds != -1).then_some(seconds)
    }
}

/// Measures the time since it was started.
#[derive(Clone, Copy, Debug)]
pub struct Stopwatch(Instant);

impl Stopwatch {
    /// Starts a stopwatch.
    pub fn start() -> Stopwatch {
        Stopwatch(Instant::now())
    }

    /// Returns the time since the start.
    pub fn elapsed(self) -> Duration {
        self.0.elapsed()
    }
}

/// Pauses the calling thread.
pub fn sleep(pause: Duration) {
    thread::sleep(pause);
}

/// Starts `work` on a thread of its own; returns `None` if the system cannot.
pub fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> Option<JoinHandle<()>> {
    thread::Builder::new().name(name.into()).spawn(work).ok()
}

/// Returns random bytes that identify a new pool.
pub fn random_guid() -> io::Result<[u8; 16]> {
    let mut guid = [0; 16];
    getrandom::fill(&mut guid).map_err(|error| io::Error::other(error.to_string()))?;
    Ok(guid)
}

/// Returns the machine's memory in bytes, if the system tells.
pub fn memory_len() -> Option<u64> {
    // SAFETY: `sysconf` takes any number and has no other effects.
    let (pages, page_len) =
        unsafe { (libc::sysconf(libc::_SC_PHYS_PAGES), libc::sysconf(libc::_SC_PAGESIZE)) };
    u64::try_from(pages).ok()?.checked_mul(u64::try_from(page_len).ok()?).filter(|len| *len > 0)
}
