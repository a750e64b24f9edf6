//! Several processes of which one thread runs at a time, from one system call to the next, in an
//! order drawn from a seed or chosen by the test.
//!
//! * Between two stops nothing else runs. Futexes, sleeps and the clock are simulated: a waiting
//!   thread does not wait in the system, and time passes only when all threads wait, or when the
//!   order says so. So waiting takes no real time, and a timeout of an hour expires at once if no
//!   other thread can run.
//! * File locks are the system's, requested without waiting and requested again once another one
//!   was released.
//! * Random numbers come from a seed, addresses are fixed, and threads are numbered in order of
//!   creation, so the same seed gives the same calls.
//! * Other threads get a turn only at calls that concern files below the directory of the test.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use libc::{c_long, pid_t, user_regs_struct};

use super::medium::{Medium, Op};
use super::random::Random;
use super::tracer::{self, Stop, Tracer};

const NS: u64 = 1_000_000_000;
/// The initial values of the clocks.
const MONOTONIC_START: u64 = 1000 * NS;
const REALTIME_START: u64 = 1_700_000_000 * NS;
/// The simulated duration of a step, and of reading the clock.
const STEP_NS: u64 = 1000;
const ASK_NS: u64 = 10;
/// An upper bound of the steps of a run; beyond it, a thread waits for ever.
const STEP_COUNT_MAX: u64 = 400_000;
/// The reported line with which a worker pauses until it is resumed.
const PAUSE: &str = "pause";
/// The start of the range of marks for the names of a pool.
const NAME_MARKS_START: i64 = 7 << 60;
/// The number of trace lines in messages.
const TRACE_SHOWN: usize = 120;

/// The index of a process, in order of start.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Worker(pub usize);

#[derive(Debug)]
enum State {
    /// It has just been created.
    New,
    /// It is about to make a call.
    Call(user_regs_struct),
    /// It waits for a word to change, for a wake-up, or until a time.
    Futex {
        call: user_regs_struct,
        until: Option<u64>,
        woken: bool,
    },
    Sleep {
        call: user_regs_struct,
        until: u64,
    },
    /// It waits for a file lock; `unlocks` counts the releases before it began to wait.
    Lock {
        unlocks: u64,
    },
    /// It has reported a pause.
    Paused,
    /// It waits for a signal, which nobody sends.
    Idle,
}

#[derive(Debug)]
struct Thread {
    tid: pid_t,
    worker: Worker,
    state: State,
}

#[derive(Debug)]
struct Process {
    pid: pid_t,
    name: String,
    /// Its status as from `wait`, once it has ended.
    status: Option<i32>,
    out: Vec<u8>,
    err: Vec<u8>,
    reports_taken: usize,
}

/// An event of the run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    Began(Worker),
    /// A worker reported a line.
    Said(Worker, String),
    Ended(Worker, i32),
}

/// How the next thread is chosen.
#[derive(Clone, Debug)]
pub enum Order {
    /// The same thread again, or another with this chance in a thousand.
    Random(u64),
    /// The same thread again, but another at these steps.
    Points(Vec<u64>),
}

/// Why a run of a single worker stopped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ending {
    Ended(i32),
    Paused,
    /// It is about to make the requested call.
    Reached,
    /// It has waited longer than the given patience.
    Waits,
}

pub struct World {
    dir: PathBuf,
    tracer: Tracer,
    threads: BTreeMap<usize, Thread>,
    processes: Vec<Process>,
    born: usize,
    clock: u64,
    unlocks: u64,
    steps: u64,
    random: Random,
    current: Option<usize>,
    /// Whether threads also stop at reads.
    pub stops_at_reads: bool,
    pub trace: Vec<String>,
    pub events: Vec<Event>,
    /// Records what is written, if that is wanted.
    pub medium: Option<Medium>,
}

impl World {
    pub fn new(dir: &Path, seed: u64) -> World {
        World {
            dir: dir.canonicalize().unwrap(),
            tracer: Tracer::default(),
            threads: BTreeMap::new(),
            processes: Vec::new(),
            born: 0,
            clock: 0,
            unlocks: 0,
            steps: 0,
            random: Random(seed),
            current: None,
            stops_at_reads: false,
            trace: Vec::new(),
            events: Vec::new(),
            medium: None,
        }
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The simulated time, in milliseconds.
    pub fn now_ms(&self) -> u64 {
        self.clock / 1_000_000
    }

    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// Whether all threads have ended.
    pub fn is_over(&self) -> bool {
        self.threads.is_empty()
    }

    /// Adds an external action to the trace.
    pub fn note(&mut self, text: &str) {
        self.trace.push(text.into());
    }

    /// Starts a process, stopped before its first instruction.
    pub fn start(&mut self, name: &str, command: &mut Command) -> Worker {
        command.current_dir(&self.dir).stdout(Stdio::null()).stderr(Stdio::null());
        let pid = self.tracer.start(command);
        let worker = self.add_process(name, pid);
        self.add_thread(pid, worker);
        worker
    }

    fn add_process(&mut self, name: &str, pid: pid_t) -> Worker {
        let (name, worker) = (name.to_string(), Worker(self.processes.len()));
        let (out, err) = (Vec::new(), Vec::new());
        self.processes.push(Process { pid, name, status: None, out, err, reports_taken: 0 });
        self.events.push(Event::Began(worker));
        worker
    }

    fn add_thread(&mut self, tid: pid_t, worker: Worker) {
        self.threads.insert(self.born, Thread { tid, worker, state: State::New });
        self.born += 1;
    }

    /// The exit code of a process that has ended: 128 plus the signal if a signal ended it.
    pub fn code(&self, worker: Worker) -> Option<i32> {
        self.processes[worker.0].status.map(exit_code)
    }

    pub fn name(&self, worker: Worker) -> &str {
        &self.processes[worker.0].name
    }

    pub fn out_bytes(&self, worker: Worker) -> &[u8] {
        &self.processes[worker.0].out
    }

    pub fn err(&self, worker: Worker) -> String {
        String::from_utf8_lossy(&self.processes[worker.0].err).into_owned()
    }

    /// The lines that a worker has reported.
    pub fn said(&self, worker: Worker) -> Vec<&str> {
        self.events.iter().filter_map(|event| said_of(event, worker)).collect()
    }

    /// The last calls and the output of all processes, for a message.
    pub fn history(&self) -> String {
        let mut text = String::new();
        for line in &self.trace[self.trace.len().saturating_sub(TRACE_SHOWN)..] {
            let _ = writeln!(text, "  {line}");
        }
        for process in &self.processes {
            let _ = writeln!(
                text,
                "{}: {:?}\n{}",
                process.name,
                process.status.map(exit_code),
                String::from_utf8_lossy(&process.err)
            );
        }
        text
    }

    /// Kills a process at once.
    pub fn kill(&mut self, worker: Worker) {
        if self.processes[worker.0].status.is_some() {
            return;
        }
        self.trace.push(format!("{} killed", self.name(worker)));
        tracer::kill(self.processes[worker.0].pid);
        self.bury(worker);
    }

    /// Resumes the paused threads of a worker.
    pub fn resume(&mut self, worker: Worker) {
        for thread in self.threads.values_mut() {
            if thread.worker == worker && matches!(thread.state, State::Paused) {
                thread.state = State::New;
            }
        }
    }

    /// The paused threads of a worker, in order of creation.
    pub fn paused_threads(&self, worker: Worker) -> Vec<usize> {
        self.ids_of(worker).into_iter().filter(|id| self.is_paused(*id)).collect()
    }

    /// Resumes one paused thread.
    pub fn resume_thread(&mut self, id: usize) {
        self.threads.get_mut(&id).unwrap().state = State::New;
    }

    /// Runs one thread for `count` steps, or until it waits for another or pauses. Returns the
    /// number of steps.
    pub fn run_thread(&mut self, id: usize, count: u64) -> u64 {
        for done in 0..count {
            let is_there = self.threads.contains_key(&id);
            let goes = is_there && (self.can_go(id) || self.next_to_wake(&[id]).is_some());
            if !goes {
                return done;
            }
            self.step(id);
        }
        count
    }

    /// Runs only this worker, until it ends, pauses, is about to make a call for which `fits`
    /// returns true, or has waited for `patience_ms`.
    pub fn run_one(
        &mut self,
        worker: Worker,
        patience_ms: u64,
        fits: &mut dyn FnMut(&str) -> bool,
    ) -> Ending {
        let began = self.now_ms();
        loop {
            if let Some(status) = self.processes[worker.0].status {
                return Ending::Ended(exit_code(status));
            }
            let own: Vec<usize> = self.ids_of(worker);
            let can_go: Vec<usize> = own.iter().copied().filter(|id| self.can_go(*id)).collect();
            let id = match can_go.iter().find(|id| Some(**id) == self.current).or(can_go.first()) {
                Some(id) => *id,
                None => match self.next_to_wake(&own) {
                    Some(id) => id,
                    None if own.iter().any(|id| self.is_paused(*id)) => return Ending::Paused,
                    None => return Ending::Waits,
                },
            };
            if self.now_ms() - began > patience_ms {
                return Ending::Waits;
            }
            if let State::Call(call) = &self.threads[&id].state {
                let (tid, call) = (self.threads[&id].tid, *call);
                if fits(&self.label(tid, &call)) {
                    return Ending::Reached;
                }
            }
            self.step(id);
        }
    }

    /// Runs only this worker until it pauses.
    pub fn run_to_pause(&mut self, worker: Worker) {
        let ending = self.run_one(worker, 3_600_000, &mut |_| false);
        assert!(ending == Ending::Paused, "{ending:?}\n{}", self.history());
    }

    /// Runs all workers in the given order until they have ended. Calls `between` before each step.
    pub fn run_all(
        &mut self,
        order: &Order,
        between: &mut dyn FnMut(&mut World),
    ) -> Result<(), String> {
        loop {
            between(self);
            let can_go: Vec<usize> =
                self.threads.keys().copied().filter(|id| self.can_go(*id)).collect();
            let everybody: Vec<usize> = self.threads.keys().copied().collect();
            if everybody.is_empty() {
                return Ok(());
            }
            let wishes_switch = match order {
                Order::Random(chance) => self.random.below(1000) < *chance,
                Order::Points(points) => points.contains(&self.steps),
            };
            let stays = self.current.filter(|id| can_go.contains(id));
            let id = match stays {
                Some(id) if !wishes_switch => id,
                _ => {
                    let others: Vec<usize> =
                        can_go.iter().copied().filter(|id| Some(*id) != self.current).collect();
                    let among = if others.is_empty() { &can_go } else { &others };
                    // Sometimes time passes although a thread could run.
                    let wakes = among.is_empty() || self.random.below(8) == 0;
                    match self.next_to_wake(&everybody).filter(|_| wakes) {
                        Some(id) => id,
                        None if among.is_empty() => {
                            return Err(format!("all wait for ever\n{}", self.history()));
                        }
                        None => among[self.random.below(among.len() as u64) as usize],
                    }
                }
            };
            self.step(id);
            if self.steps > STEP_COUNT_MAX {
                return Err(format!("it does not end\n{}", self.history()));
            }
        }
    }

    fn ids_of(&self, worker: Worker) -> Vec<usize> {
        self.threads.iter().filter(|(_, t)| t.worker == worker).map(|(id, _)| *id).collect()
    }

    fn is_paused(&self, id: usize) -> bool {
        matches!(self.threads[&id].state, State::Paused)
    }

    /// Whether a thread can run without time passing.
    fn can_go(&self, id: usize) -> bool {
        let thread = &self.threads[&id];
        match &thread.state {
            State::New | State::Call(_) => true,
            State::Futex { call, woken, .. } => {
                let word = tracer::read(thread.tid, call.rdi, 4);
                *woken || word != (call.rdx as u32).to_le_bytes()
            }
            State::Lock { unlocks } => *unlocks < self.unlocks,
            State::Sleep { .. } | State::Paused | State::Idle => false,
        }
    }

    /// The thread among `ids` whose timeout comes first.
    fn next_to_wake(&self, ids: &[usize]) -> Option<usize> {
        let until = |id: &usize| match &self.threads[id].state {
            State::Sleep { until, .. } | State::Futex { until: Some(until), .. } => Some(*until),
            _ => None,
        };
        let times = ids.iter().filter_map(|id| Some((until(id)?, *id)));
        times.min().map(|(_, id)| id)
    }

    /// Runs one thread to its next stop.
    fn step(&mut self, id: usize) {
        self.steps += 1;
        self.clock += STEP_NS;
        self.current = Some(id);
        let can_go = self.can_go(id);
        let thread = self.threads.get_mut(&id).unwrap();
        let (tid, worker) = (thread.tid, thread.worker);
        let state = std::mem::replace(&mut thread.state, State::New);
        match state {
            State::New | State::Lock { .. } => {}
            State::Paused | State::Idle => panic!("a thread that cannot go was chosen"),
            State::Sleep { call, until } => {
                self.clock = self.clock.max(until);
                tracer::answer(tid, &call, 0);
            }
            State::Futex { call, until, .. } => {
                let result = match can_go {
                    true => 0,
                    false => {
                        self.clock = self.clock.max(until.unwrap());
                        -i64::from(libc::ETIMEDOUT)
                    }
                };
                tracer::answer(tid, &call, result);
            }
            State::Call(call) => {
                let label = self.label(tid, &call);
                let name = format!("{}.{id} {label}", self.name(worker));
                if !self.make_call(id, tid, &call, name) {
                    return;
                }
            }
        }
        self.advance(id);
    }

    /// Makes a call. Returns false if the thread now waits or has ended.
    fn make_call(&mut self, id: usize, tid: pid_t, call: &user_regs_struct, name: String) -> bool {
        match call.orig_rax as c_long {
            libc::SYS_exit_group => {
                self.trace.push(name);
                let worker = self.threads[&id].worker;
                tracer::release(tid);
                self.bury(worker);
                return false;
            }
            libc::SYS_fcntl if is_lock(call.rsi) => {
                let waits = [libc::F_SETLKW, libc::F_OFD_SETLKW].contains(&(call.rsi as i32));
                let at_once =
                    user_regs_struct { rsi: if waits { call.rsi - 1 } else { call.rsi }, ..*call };
                let lock = tracer::read(tid, call.rdx, size_of::<libc::flock>());
                let is_unlock = lock[..2] == (libc::F_UNLCK as u16).to_le_bytes();
                let result = self.tracer.call(tid, &at_once);
                self.trace.push(format!("{name} = {result}"));
                if is_unlock {
                    self.unlocks += 1;
                }
                if waits && [-i64::from(libc::EAGAIN), -i64::from(libc::EACCES)].contains(&result) {
                    // Set up to repeat the call.
                    let again = user_regs_struct {
                        rip: call.rip - 2,
                        rax: call.orig_rax,
                        orig_rax: u64::MAX,
                        ..*call
                    };
                    tracer::set_registers(tid, &again);
                    let unlocks = self.unlocks;
                    self.threads.get_mut(&id).unwrap().state = State::Lock { unlocks };
                    return false;
                }
            }
            libc::SYS_close => {
                self.trace.push(name);
                self.unlocks += 1;
            }
            _ => {
                self.trace.push(name);
                self.record(id, tid, call);
            }
        }
        true
    }

    /// Makes a call and records what it does, if that is wanted.
    fn record(&mut self, id: usize, tid: pid_t, call: &user_regs_struct) {
        let (dir, worker) = (self.dir.clone(), self.threads[&id].worker);
        let Some(mut medium) = self.medium.take() else { return };
        let in_dir = |path: &Path| {
            let name = path.strip_prefix(&dir).ok()?.to_str()?;
            let is_recorded = !name.is_empty() && !name.contains('/') && !name.ends_with("-shm");
            is_recorded.then(|| name.to_string())
        };
        let open_file = || in_dir(&fs::read_link(format!("/proc/{tid}/fd/{}", call.rdi)).ok()?);
        let named = |address| {
            use std::os::unix::ffi::OsStrExt;
            let path = tracer::read_string(tid, address);
            in_dir(&dir.join(std::ffi::OsStr::from_bytes(&path)))
        };
        match call.orig_rax as c_long {
            libc::SYS_open | libc::SYS_openat => {
                let is_at = call.orig_rax as c_long == libc::SYS_openat;
                if let Some(name) = named(if is_at { call.rsi } else { call.rdi }) {
                    let is_new = !dir.join(&name).exists();
                    let fd = self.tracer.call(tid, call);
                    if fd >= 0 {
                        medium.opened(worker, fd as u64, &name, is_new);
                    }
                }
            }
            libc::SYS_pwrite64 => {
                if let Some(name) = open_file() {
                    let written = self.tracer.call(tid, call).max(0);
                    let bytes = tracer::read(tid, call.rsi, written as usize);
                    medium.ops.push(Op::Write(name, call.r10, bytes));
                }
            }
            libc::SYS_write => assert!(open_file().is_none(), "a write without a place"),
            libc::SYS_ftruncate => {
                if let Some(name) = open_file()
                    && self.tracer.call(tid, call) == 0
                {
                    medium.ops.push(Op::SetLen(name, call.rsi));
                }
            }
            libc::SYS_fallocate => {
                if let Some(name) = open_file()
                    && self.tracer.call(tid, call) == 0
                    && call.rsi as i32 & libc::FALLOC_FL_PUNCH_HOLE != 0
                {
                    medium.ops.push(Op::Punch(name, call.rdx, call.r10));
                }
            }
            libc::SYS_fsync | libc::SYS_fdatasync => {
                if let Some(name) = open_file() {
                    if medium.sync_fails(worker, call.rdi, &name) {
                        tracer::answer(tid, call, -i64::from(libc::EIO));
                    } else if self.tracer.call(tid, call) == 0 {
                        medium.ops.push(Op::Sync(name));
                    }
                }
            }
            libc::SYS_sync_file_range => {
                if let Some(name) = open_file()
                    && medium.tells(worker, call.rdi, &name)
                {
                    tracer::answer(tid, call, -i64::from(libc::EIO));
                }
            }
            libc::SYS_unlink | libc::SYS_unlinkat => {
                let is_at = call.orig_rax as c_long == libc::SYS_unlinkat;
                if let Some(name) = named(if is_at { call.rsi } else { call.rdi })
                    && self.tracer.call(tid, call) == 0
                {
                    medium.ops.push(Op::Unlink(name));
                }
            }
            libc::SYS_exit | libc::SYS_exit_group | libc::SYS_read | libc::SYS_pread64 => {}
            libc::SYS_sched_yield => {}
            other => panic!("call {other} is not recorded"),
        }
        self.medium = Some(medium);
    }

    /// Runs a thread until it stops where others may get a turn.
    fn advance(&mut self, id: usize) {
        loop {
            let (tid, worker) = (self.threads[&id].tid, self.threads[&id].worker);
            match self.tracer.go(tid) {
                Stop::Born(born) => {
                    let is_thread = Path::new(&format!("/proc/{tid}/task/{born}")).exists();
                    let of = match is_thread {
                        true => worker,
                        false => self.add_process(&format!("{}'", self.name(worker)), born),
                    };
                    self.add_thread(born, of);
                }
                Stop::Gone(status) => {
                    self.threads.remove(&id);
                    self.unlocks += 1;
                    if self.processes[worker.0].pid == tid {
                        self.end(worker, status);
                    }
                    return;
                }
                Stop::Call(call) => {
                    if let Some(state) = self.met(worker, tid, &call) {
                        self.threads.get_mut(&id).unwrap().state = state;
                        return;
                    }
                }
            }
        }
    }

    /// Handles a thread that is about to make a call. Returns its new state, or `None` if it
    /// continues at once.
    fn met(&mut self, worker: Worker, tid: pid_t, call: &user_regs_struct) -> Option<State> {
        let number = call.orig_rax as c_long;
        match number {
            libc::SYS_futex => return self.met_futex(worker, tid, call),
            libc::SYS_nanosleep | libc::SYS_clock_nanosleep => {
                let (at, is_absolute) = match number {
                    libc::SYS_nanosleep => (call.rdi, false),
                    _ => (call.rdx, call.rsi & libc::TIMER_ABSTIME as u64 != 0),
                };
                let clock = if number == libc::SYS_nanosleep { 1 } else { call.rdi };
                let until = self.until(tid, at, is_absolute.then_some(clock));
                return Some(State::Sleep { call: *call, until });
            }
            libc::SYS_rt_sigtimedwait => return Some(State::Idle),
            libc::SYS_sched_yield => return Some(State::Call(*call)),
            libc::SYS_clock_gettime => {
                self.clock += ASK_NS;
                let start = start_of(call.rdi)?;
                let now = start + self.clock;
                tracer::write(tid, call.rsi, &[now / NS, now % NS].map(u64::to_le_bytes).concat());
                tracer::answer(tid, call, 0);
            }
            libc::SYS_gettimeofday | libc::SYS_time => {
                let now = REALTIME_START + self.clock;
                let micros = number == libc::SYS_gettimeofday;
                if call.rdi != 0 {
                    let second = [now / NS, now % NS / 1000].map(u64::to_le_bytes).concat();
                    tracer::write(tid, call.rdi, &second[..if micros { 16 } else { 8 }]);
                }
                tracer::answer(tid, call, if micros { 0 } else { (now / NS) as i64 });
            }
            libc::SYS_getrandom => {
                let bytes: Vec<u8> = (0..call.rsi).map(|_| self.random.next() as u8).collect();
                tracer::write(tid, call.rdi, &bytes);
                tracer::answer(tid, call, bytes.len() as i64);
            }
            libc::SYS_write if call.rdi == 1 || call.rdi == 2 => {
                let bytes = tracer::read(tid, call.rsi, call.rdx as usize);
                let process = &mut self.processes[worker.0];
                if call.rdi == 1 { &mut process.out } else { &mut process.err }.extend(bytes);
                tracer::answer(tid, call, call.rdx as i64);
                if call.rdi == 2 && self.take_reports(worker) {
                    return Some(State::Paused);
                }
            }
            libc::SYS_exit_group => return Some(State::Call(*call)),
            _ if self.concerns_others(tid, call) => return Some(State::Call(*call)),
            _ => {}
        }
        None
    }

    fn met_futex(&mut self, worker: Worker, tid: pid_t, call: &user_regs_struct) -> Option<State> {
        let operation = call.rsi as i32 & libc::FUTEX_CMD_MASK;
        match operation {
            libc::FUTEX_WAIT | libc::FUTEX_WAIT_BITSET => {
                if tracer::read(tid, call.rdi, 4) != (call.rdx as u32).to_le_bytes() {
                    tracer::answer(tid, call, -i64::from(libc::EAGAIN));
                    return None;
                }
                let is_real = call.rsi as i32 & libc::FUTEX_CLOCK_REALTIME != 0;
                let absolute =
                    (operation == libc::FUTEX_WAIT_BITSET).then_some(u64::from(!is_real));
                let until = (call.r10 != 0).then(|| self.until(tid, call.r10, absolute));
                Some(State::Futex { call: *call, until, woken: false })
            }
            libc::FUTEX_WAKE | libc::FUTEX_WAKE_BITSET => {
                let mut woken_count = 0;
                for thread in self.threads.values_mut().filter(|t| t.worker == worker) {
                    if let State::Futex { call: waits, woken, .. } = &mut thread.state
                        && waits.rdi == call.rdi
                        && !*woken
                        && woken_count < call.rdx as u32
                    {
                        *woken = true;
                        woken_count += 1;
                    }
                }
                tracer::answer(tid, call, i64::from(woken_count));
                None
            }
            other => panic!("futex operation {other}"),
        }
    }

    /// Converts a timeout in a thread's memory to simulated time: relative, or absolute on a clock.
    fn until(&self, tid: pid_t, address: u64, clock: Option<u64>) -> u64 {
        let bytes = tracer::read(tid, address, 16);
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
        let time = word(0).saturating_mul(NS).saturating_add(word(8));
        match clock {
            None => self.clock.saturating_add(time),
            Some(clock) => time.saturating_sub(start_of(clock).unwrap_or(MONOTONIC_START)),
        }
    }

    /// Takes the new lines that a worker has reported. Returns whether it pauses.
    fn take_reports(&mut self, worker: Worker) -> bool {
        // Messages name processes, whose numbers differ from run to run.
        let numbers: Vec<(String, String)> = self
            .processes
            .iter()
            .map(|process| {
                (format!("process {}", process.pid), format!("process {}", process.name))
            })
            .collect();
        let process = &mut self.processes[worker.0];
        let mut pauses = false;
        while let Some(len) = process.err[process.reports_taken..].iter().position(|b| *b == b'\n')
        {
            let from = process.reports_taken;
            let line = String::from_utf8_lossy(&process.err[from..from + len]).into_owned();
            let mut line = line.replace(&format!("{}/", self.dir.display()), "");
            for (number, name) in &numbers {
                line = line.replace(number, name);
            }
            process.reports_taken = from + len + 1;
            pauses |= line == PAUSE;
            self.trace.push(format!("{} says {line}", process.name));
            if let Some(medium) = &mut self.medium {
                medium.ops.push(Op::Said(line.clone()));
            }
            self.events.push(Event::Said(worker, line));
        }
        pauses
    }

    /// Whether a call concerns files of the test.
    fn concerns_others(&self, tid: pid_t, call: &user_regs_struct) -> bool {
        match call.orig_rax as c_long {
            libc::SYS_read | libc::SYS_pread64 if !self.stops_at_reads => false,
            libc::SYS_fcntl if !is_lock(call.rsi) => false,
            libc::SYS_exit => false,
            libc::SYS_open => self.is_below(&tracer::read_string(tid, call.rdi)),
            libc::SYS_openat => self.is_below(&tracer::read_string(tid, call.rsi)),
            libc::SYS_rename
            | libc::SYS_renameat
            | libc::SYS_renameat2
            | libc::SYS_link
            | libc::SYS_linkat
            | libc::SYS_unlink
            | libc::SYS_unlinkat => true,
            _ => fs::read_link(format!("/proc/{tid}/fd/{}", call.rdi))
                .is_ok_and(|path| path.starts_with(&self.dir)),
        }
    }

    fn is_below(&self, path: &[u8]) -> bool {
        use std::os::unix::ffi::OsStrExt;
        // Relative paths are below it, since processes start in the directory.
        !path.starts_with(b"/") || path.starts_with(self.dir.as_os_str().as_bytes())
    }

    /// Describes a call in words.
    fn label(&self, tid: pid_t, call: &user_regs_struct) -> String {
        let path = |address| {
            let text = String::from_utf8_lossy(&tracer::read_string(tid, address)).into_owned();
            let text = text.replace(&format!("{}/", self.dir.display()), "");
            text.replace(&self.dir.display().to_string(), ".")
        };
        let file = || {
            let link = fs::read_link(format!("/proc/{tid}/fd/{}", call.rdi)).unwrap_or_default();
            if link == self.dir {
                return ".".into();
            }
            link.file_name().unwrap_or_default().to_string_lossy().into_owned()
        };
        match call.orig_rax as c_long {
            libc::SYS_open => format!("open {} {:o}", path(call.rdi), call.rsi),
            libc::SYS_openat => format!("open {} {:o}", path(call.rsi), call.rdx),
            libc::SYS_close => format!("close {}", file()),
            libc::SYS_read | libc::SYS_pread64 => format!("read {} {}", file(), call.rdx),
            libc::SYS_write | libc::SYS_pwrite64 => format!("write {} {}", file(), call.rdx),
            libc::SYS_fsync | libc::SYS_fdatasync => format!("sync {}", file()),
            libc::SYS_sync_file_range => format!("look for losses of {}", file()),
            libc::SYS_ftruncate => format!("truncate {} {}", file(), call.rsi),
            libc::SYS_fallocate => format!("fallocate {}", file()),
            libc::SYS_fcntl => {
                let lock = tracer::read(tid, call.rdx, size_of::<libc::flock>());
                let kind = ["read", "write", "un"].get(usize::from(lock[0])).unwrap_or(&"?");
                let start = i64::from_le_bytes(lock[8..16].try_into().unwrap());
                let len = i64::from_le_bytes(lock[16..24].try_into().unwrap());
                let asks = [libc::F_GETLK, libc::F_OFD_GETLK].contains(&(call.rsi as i32));
                let asks = if asks { "ask-" } else { "" };
                // The mark for the pool's name depends on the directory, which is different in each
                // run.
                let range = match start >= NAME_MARKS_START {
                    true => "a name".into(),
                    false => format!("{start:#x}+{len}"),
                };
                format!("{asks}{kind}lock {} {range}", file())
            }
            libc::SYS_rename => format!("rename {} {}", path(call.rdi), path(call.rsi)),
            libc::SYS_renameat | libc::SYS_renameat2 => {
                format!("rename {} {}", path(call.rsi), path(call.r10))
            }
            libc::SYS_link => format!("link {} {}", path(call.rdi), path(call.rsi)),
            libc::SYS_linkat => format!("link {} {}", path(call.rsi), path(call.r10)),
            libc::SYS_unlink => format!("unlink {}", path(call.rdi)),
            libc::SYS_unlinkat => format!("unlink {}", path(call.rsi)),
            libc::SYS_exit_group => format!("exit {}", call.rdi),
            libc::SYS_sched_yield => "yield".into(),
            other => format!("call {other}"),
        }
    }

    /// Removes a process that was killed or has ended, with its threads.
    fn bury(&mut self, worker: Worker) {
        let pid = self.processes[worker.0].pid;
        let ids = self.ids_of(worker);
        let mut tids: Vec<pid_t> = ids.iter().map(|id| self.threads[id].tid).collect();
        for id in ids {
            self.threads.remove(&id);
        }
        tids.retain(|tid| *tid != pid);
        tids.push(pid);
        let status = self.tracer.bury(&tids);
        self.unlocks += 1;
        self.end(worker, status);
    }

    fn end(&mut self, worker: Worker, status: i32) {
        self.processes[worker.0].status = Some(status);
        self.events.push(Event::Ended(worker, exit_code(status)));
    }
}

impl Drop for World {
    fn drop(&mut self) {
        for index in 0..self.processes.len() {
            self.kill(Worker(index));
        }
    }
}

fn said_of(event: &Event, worker: Worker) -> Option<&str> {
    match event {
        Event::Said(by, line) if *by == worker => Some(line),
        _ => None,
    }
}

fn is_lock(command: u64) -> bool {
    let all = [
        libc::F_GETLK,
        libc::F_SETLK,
        libc::F_SETLKW,
        libc::F_OFD_GETLK,
        libc::F_OFD_SETLK,
        libc::F_OFD_SETLKW,
    ];
    all.contains(&(command as i32))
}

/// The initial value of a simulated clock.
fn start_of(clock: u64) -> Option<u64> {
    match clock as i32 {
        libc::CLOCK_REALTIME | libc::CLOCK_REALTIME_COARSE => Some(REALTIME_START),
        libc::CLOCK_MONOTONIC
        | libc::CLOCK_MONOTONIC_RAW
        | libc::CLOCK_MONOTONIC_COARSE
        | libc::CLOCK_BOOTTIME => Some(MONOTONIC_START),
        _ => None,
    }
}

fn exit_code(status: i32) -> i32 {
    match libc::WIFSIGNALED(status) {
        true => 128 + libc::WTERMSIG(status),
        false => libc::WEXITSTATUS(status),
    }
}
