//! Stops the threads of other processes before each relevant system call, with `ptrace` and a
//! seccomp filter, so that the test decides which thread runs next. The programs are not modified:
//! their locks, forks and files are those of the system.
//!
//! * The thread that starts a process traces it, and is the only one that may use the functions
//!   here.
//! * A stopped thread has not made its call yet. It can be resumed, or be given a result without
//!   making the call.
//! * The vDSO, through which a process reads the time without a system call, is hidden from the
//!   processes, so that the test controls time too. Addresses are the same in every run.
#![expect(unsafe_code, reason = "traces processes with `ptrace`")]

use std::collections::BTreeSet;
use std::ffi::c_void;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

use libc::{c_int, c_long, pid_t, user_regs_struct};

/// The calls before which a thread stops.
const CALLS: &[c_long] = &[
    libc::SYS_open,
    libc::SYS_openat,
    libc::SYS_close,
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_pread64,
    libc::SYS_pwrite64,
    libc::SYS_fsync,
    libc::SYS_fdatasync,
    libc::SYS_sync_file_range,
    libc::SYS_ftruncate,
    libc::SYS_fallocate,
    libc::SYS_fcntl,
    libc::SYS_rename,
    libc::SYS_renameat,
    libc::SYS_renameat2,
    libc::SYS_link,
    libc::SYS_linkat,
    libc::SYS_unlink,
    libc::SYS_unlinkat,
    libc::SYS_futex,
    libc::SYS_nanosleep,
    libc::SYS_clock_nanosleep,
    libc::SYS_clock_gettime,
    libc::SYS_gettimeofday,
    libc::SYS_time,
    libc::SYS_getrandom,
    libc::SYS_sched_yield,
    libc::SYS_rt_sigtimedwait,
    libc::SYS_exit,
    libc::SYS_exit_group,
];
/// The offset of the call number in the data of a filter.
const NUMBER_OFFSET: u32 = 0;
const OPTIONS: c_int = libc::PTRACE_O_TRACESECCOMP
    | libc::PTRACE_O_TRACECLONE
    | libc::PTRACE_O_TRACEFORK
    | libc::PTRACE_O_EXITKILL
    | libc::PTRACE_O_TRACESYSGOOD;
const TRAP_OF_CALL: c_int = libc::SIGTRAP | 0x80;
/// The auxiliary-vector entry that holds the address of the vDSO.
const AT_SYSINFO_EHDR: u64 = 33;
const AT_IGNORE: u64 = 1;
/// How often to poll a running thread without a pause, how often in total, and how long to pause in
/// between.
const ASK_AT_ONCE: u32 = 100;
const ASK_MAX: u32 = 1_000_000;
const ASK_PAUSE: Duration = Duration::from_micros(50);
const STACK_LEN_MAX: usize = 256 << 10;

/// Why a thread no longer runs.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "there is one at a time")]
pub enum Stop {
    /// It is about to make a call.
    Call(user_regs_struct),
    /// It has created a thread or a process.
    Born(pid_t),
    /// It has ended, with a status as from `wait`.
    Gone(c_int),
}

/// Traces processes. Keeps the threads that stopped before their creation was reported.
#[derive(Debug, Default)]
pub struct Tracer {
    early: BTreeSet<pid_t>,
}

fn fail(what: &str) -> ! {
    panic!("{what}: {}", io::Error::last_os_error());
}

fn request(what: c_int, tid: pid_t, address: u64, data: u64) -> c_long {
    // SAFETY: the requests used here take numbers, or the address of registers that outlive the
    // call.
    unsafe { libc::ptrace(what as _, tid, address as *mut c_void, data as *mut c_void) }
}

fn statement(code: u32, jt: u8, jf: u8, k: u32) -> libc::sock_filter {
    libc::sock_filter { code: code as u16, jt, jf, k }
}

fn filter() -> Vec<libc::sock_filter> {
    let load = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
    let equal = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    let answer = libc::BPF_RET | libc::BPF_K;
    let mut program = vec![statement(load, 0, 0, NUMBER_OFFSET)];
    for (index, call) in CALLS.iter().enumerate() {
        let to_trace = (CALLS.len() - index) as u8;
        program.push(statement(equal, to_trace, 0, *call as u32));
    }
    program.push(statement(answer, 0, 0, libc::SECCOMP_RET_ALLOW));
    program.push(statement(answer, 0, 0, libc::SECCOMP_RET_TRACE));
    program
}

impl Tracer {
    /// Starts a process, which stops before its first instruction, and returns its pid.
    pub fn start(&mut self, command: &mut Command) -> pid_t {
        let program = filter();
        let prepare = move || {
            let filter =
                libc::sock_fprog { len: program.len() as u16, filter: program.as_ptr().cast_mut() };
            let results = [
                // SAFETY: plain calls; the filter outlives the last one.
                unsafe { libc::personality(libc::ADDR_NO_RANDOMIZE as _) } as c_long,
                request(libc::PTRACE_TRACEME as _, 0, 0, 0),
                // SAFETY: as above.
                unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) } as c_long,
                // SAFETY: as above.
                unsafe {
                    libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const filter)
                } as c_long,
            ];
            match results.contains(&-1) {
                true => Err(io::Error::last_os_error()),
                false => Ok(()),
            }
        };
        // SAFETY: between fork and exec only system calls are made.
        unsafe { command.pre_exec(prepare) };
        #[allow(clippy::zombie_processes, reason = "`Tracer::wait` waits for every process")]
        let child = command.spawn().expect("the system lets a process be traced");
        let pid = child.id() as pid_t;
        assert!(libc::WIFSTOPPED(self.wait(pid)), "the process did not stop at its start");
        if request(libc::PTRACE_SETOPTIONS as _, pid, 0, OPTIONS as u64) == -1 {
            fail("cannot trace");
        }
        hide_clock(pid);
        pid
    }

    /// Waits for a thread to stop or end; panics if that takes too long.
    fn wait(&self, tid: pid_t) -> c_int {
        let (mut status, mut asked) = (0, 0);
        loop {
            // SAFETY: the status outlives the call.
            let waited = unsafe { libc::waitpid(tid, &mut status, libc::__WALL | libc::WNOHANG) };
            if waited == tid {
                return status;
            }
            if waited != 0 && io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
                fail("cannot wait");
            }
            asked += 1;
            match asked {
                ..ASK_AT_ONCE => std::thread::yield_now(),
                ASK_AT_ONCE..ASK_MAX => std::thread::sleep(ASK_PAUSE),
                _ => {
                    let call = std::fs::read_to_string(format!("/proc/{tid}/syscall"));
                    panic!("thread {tid} waits in the system: {call:?}");
                }
            }
        }
    }

    /// Resumes a thread until it stops again.
    pub fn go(&mut self, tid: pid_t) -> Stop {
        let mut signal = 0;
        loop {
            if request(libc::PTRACE_CONT as _, tid, 0, signal as u64) == -1 {
                // The thread has just been killed.
                return Stop::Gone(self.wait(tid));
            }
            let status = self.wait(tid);
            if !libc::WIFSTOPPED(status) {
                return Stop::Gone(status);
            }
            signal = 0;
            match (status >> 16, libc::WSTOPSIG(status)) {
                (libc::PTRACE_EVENT_SECCOMP, _) => return Stop::Call(registers(tid)),
                (libc::PTRACE_EVENT_CLONE | libc::PTRACE_EVENT_FORK, _) => {
                    let mut born: u64 = 0;
                    request(libc::PTRACE_GETEVENTMSG as _, tid, 0, &raw mut born as u64);
                    let born = born as pid_t;
                    if !self.early.remove(&born) {
                        assert!(libc::WIFSTOPPED(self.wait(born)), "a new thread did not stop");
                    }
                    return Stop::Born(born);
                }
                (0, libc::SIGTRAP | libc::SIGSTOP) => {}
                (_, other) => signal = other,
            }
        }
    }

    /// Lets a thread make its pending call with these registers, stops it after the call, and
    /// returns the result.
    pub fn call(&mut self, tid: pid_t, registers: &user_regs_struct) -> i64 {
        set_registers(tid, registers);
        if request(libc::PTRACE_SYSCALL as _, tid, 0, 0) == -1 {
            fail("cannot let a call be made");
        }
        let status = self.wait(tid);
        assert!(libc::WIFSTOPPED(status) && libc::WSTOPSIG(status) == TRAP_OF_CALL, "{status:x}");
        self::registers(tid).rax as i64
    }

    /// Waits for threads to end, and returns the status of the last one, which must be the main
    /// thread of the process.
    pub fn bury(&mut self, tids: &[pid_t]) -> c_int {
        let mut status = 0;
        for tid in tids {
            loop {
                status = self.wait(*tid);
                if !libc::WIFSTOPPED(status) {
                    break;
                }
                request(libc::PTRACE_CONT as _, *tid, 0, 0);
            }
        }
        status
    }
}

/// Kills a process.
pub fn kill(pid: pid_t) {
    // SAFETY: a plain call.
    unsafe { libc::kill(pid, libc::SIGKILL) };
}

/// Waits for any thread that the calling thread traces to stop or end.
pub fn wait_for_any() -> (pid_t, c_int) {
    let mut status = 0;
    loop {
        // SAFETY: the status outlives the call.
        let tid = unsafe { libc::waitpid(-1, &mut status, libc::__WALL | libc::__WNOTHREAD) };
        if tid > 0 {
            return (tid, status);
        }
        if io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
            fail("cannot wait");
        }
    }
}

/// Resumes a thread, with a signal unless that is 0. With `stops_after`, it stops after the call
/// that it is about to make.
pub fn go_on(tid: pid_t, stops_after: bool, signal: c_int) {
    let how = if stops_after { libc::PTRACE_SYSCALL } else { libc::PTRACE_CONT };
    request(how as _, tid, 0, signal as u64);
}

/// Resumes a thread without waiting for it.
pub fn release(tid: pid_t) {
    request(libc::PTRACE_CONT as _, tid, 0, 0);
}

/// Returns the registers of a stopped thread.
pub fn registers(tid: pid_t) -> user_regs_struct {
    registers_of(tid).unwrap_or_else(|| fail("cannot read registers"))
}

/// Returns the registers of a stopped thread; nothing if it has ended since it stopped, because
/// another one ended the process.
pub fn registers_of(tid: pid_t) -> Option<user_regs_struct> {
    // SAFETY: registers are numbers.
    let mut registers: user_regs_struct = unsafe { std::mem::zeroed() };
    if request(libc::PTRACE_GETREGS as _, tid, 0, &raw mut registers as u64) == -1 {
        let is_gone = io::Error::last_os_error().raw_os_error() == Some(libc::ESRCH);
        return if is_gone { None } else { fail("cannot read registers") };
    }
    Some(registers)
}

/// Sets the registers of a stopped thread.
pub fn set_registers(tid: pid_t, registers: &user_regs_struct) {
    if request(libc::PTRACE_SETREGS as _, tid, 0, registers as *const _ as u64) == -1 {
        fail("cannot set registers");
    }
}

/// Gives a thread a result for its pending call, which is not made.
pub fn answer(tid: pid_t, registers: &user_regs_struct, result: i64) {
    set_registers(tid, &user_regs_struct { orig_rax: u64::MAX, rax: result as u64, ..*registers });
}

/// Reads memory of a stopped thread, as far as it is readable.
pub fn read(tid: pid_t, address: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0u8; len];
    let local = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: len };
    let remote = libc::iovec { iov_base: address as *mut c_void, iov_len: len };
    // SAFETY: the system writes at most the local length, and checks the remote side.
    let done = unsafe { libc::process_vm_readv(tid, &local, 1, &remote, 1, 0) };
    bytes.truncate(done.max(0) as usize);
    bytes
}

/// Writes to the memory of a stopped thread.
pub fn write(tid: pid_t, address: u64, bytes: &[u8]) {
    let local = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    let remote = libc::iovec { iov_base: address as *mut c_void, iov_len: bytes.len() };
    // SAFETY: the system only reads the local side, and checks the remote one.
    let done = unsafe { libc::process_vm_writev(tid, &local, 1, &remote, 1, 0) };
    assert_eq!(done, bytes.len() as isize, "cannot write memory");
}

/// Reads a string from a stopped thread.
pub fn read_string(tid: pid_t, address: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while !bytes.contains(&0) && bytes.len() < libc::PATH_MAX as usize {
        let at = address + bytes.len() as u64;
        // Do not read beyond the page, which may be the last one mapped.
        let part = read(tid, at, 4096 - (at % 4096) as usize);
        if part.is_empty() {
            break;
        }
        bytes.extend(part);
    }
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    bytes.truncate(end);
    bytes
}

/// Makes a new process ask the system for the time, by hiding the vDSO.
fn hide_clock(pid: pid_t) {
    let stack = registers(pid).rsp;
    let bytes = read(pid, stack, STACK_LEN_MAX);
    let words: Vec<u64> =
        bytes.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap())).collect();
    // The stack holds the argument count, the arguments and a zero, the environment and a zero.
    let mut at = 1 + words[0] as usize + 1;
    while words[at] != 0 {
        at += 1;
    }
    at += 1;
    while words[at] != 0 {
        if words[at] == AT_SYSINFO_EHDR {
            write(pid, stack + 8 * at as u64, &AT_IGNORE.to_le_bytes());
        }
        at += 2;
    }
}
