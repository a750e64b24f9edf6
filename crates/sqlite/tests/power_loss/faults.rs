//! Makes system calls fail, one by one: SQLite gets a fitting error, no acknowledged transaction is
//! lost, work goes on where it can, and once the fault is gone everything is as the model says.

use std::path::Path;

use rusqlite::ffi;

use super::disk::Image;
use super::model::{Model, number_in};
use super::recorder::{self, Failure, Fault, Kind};
use super::run::{Counts, Recording, Scratch};
use super::verify::{Expected, Span, materialise};
use super::workload::{Session, Shape};
use crate::common::Random;

/// The number of steps of a workload; the databases are reopened before the one in the middle.
const STEPS: u64 = 6;
const REOPEN_AT: u64 = 3;
/// The number of power losses within each run.
const CRASHES: u64 = 3;
/// The most calls between two that fail.
const PLACES_APART: u64 = 40;
/// The number of seeds to try: some workloads do not make some calls at all.
const SEEDS_MAX: u64 = 8;
/// Every further call fails.
const ALL: u64 = u64::MAX;

/// A kind of call and how it fails.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    kind: Kind,
    failure: Failure,
    times: u64,
    /// The suffix of the names of the affected files.
    suffix: &'static str,
    /// The fitting result codes; none if nobody may notice.
    codes: &'static [i32],
}

const fn case(kind: Kind, errno: i32, times: u64, codes: &'static [i32]) -> Case {
    Case { kind, failure: Failure::Errno(errno), times, suffix: "", codes }
}

const IO: &[i32] = &[ffi::SQLITE_IOERR];
/// SQLite reports a medium error in a file of its own as damage (SQLITE_IOERR_CORRUPTFS).
const READ: &[i32] = &[ffi::SQLITE_IOERR, ffi::SQLITE_CANTOPEN, ffi::SQLITE_CORRUPT];
const FULL: &[i32] = &[ffi::SQLITE_FULL];
/// If SQLite cannot open a file for writing, it tries to open it read-only.
const OPEN_OR_READ: &[i32] = &[ffi::SQLITE_IOERR, ffi::SQLITE_CANTOPEN, ffi::SQLITE_READONLY];

/// All kinds of failures.
pub const CASES: &[Case] = &[
    case(Kind::Read, libc::EIO, 1, READ),
    case(Kind::Read, libc::EINTR, 1, &[]),
    Case { kind: Kind::Read, failure: Failure::Short, times: 1, suffix: "", codes: &[] },
    case(Kind::Write, libc::EIO, 1, IO),
    case(Kind::Write, libc::ENOSPC, 1, FULL),
    case(Kind::Write, libc::ENOSPC, ALL, FULL),
    case(Kind::Write, libc::EINTR, 1, &[]),
    Case { kind: Kind::Write, failure: Failure::Short, times: 1, suffix: "", codes: &[] },
    case(Kind::SetLen, libc::EIO, 1, IO),
    case(Kind::Sync, libc::EIO, 1, IO),
    case(Kind::Open, libc::EIO, 1, OPEN_OR_READ),
    case(Kind::Open, libc::EMFILE, 1, OPEN_OR_READ),
    case(Kind::Unlink, libc::EIO, 1, IO),
];

/// Journals that cannot be written.
pub const JOURNAL: Case = Case { suffix: "-journal", ..case(Kind::Write, libc::EIO, 1, IO) };
/// Journals that cannot be truncated when their transaction has ended.
pub const CUT: Case = Case { suffix: "-journal", ..case(Kind::SetLen, libc::EIO, 1, IO) };
/// Pools that cannot be synced.
pub const POOL_SYNC: Case = Case { suffix: ".hpk", ..case(Kind::Sync, libc::EIO, 1, IO) };

impl Case {
    /// The most calls between two that fail: there are many reads and writes, and few of the
    /// others.
    fn apart(&self) -> u64 {
        match self.kind {
            Kind::Read | Kind::Write if self.suffix.is_empty() => PLACES_APART,
            _ => 1,
        }
    }
}

/// Databases with some history, with which each run begins.
pub struct Template {
    pub shape: Shape,
    pub image: Image,
    pub seed: u64,
}

fn text(error: rusqlite::Error) -> String {
    format!("{error} ({:?})", error.sqlite_error().map(|error| error.extended_code))
}

struct Run<'a> {
    case: Case,
    session: Session,
    directory: &'a Path,
    /// A sync of the pool has failed, and the pool was not reopened since.
    failed_stop: bool,
    /// The position of that sync in the recording.
    crash_end: Option<usize>,
}

impl Run<'_> {
    fn judge(&self, error: rusqlite::Error) -> Result<(), String> {
        let code = error.sqlite_error().map_or(0, |error| error.extended_code & 0xff);
        if self.case.codes.contains(&code) { Ok(()) } else { Err(text(error)) }
    }

    fn look_at_syncs(&mut self) {
        self.failed_stop |= recorder::pool_sync_failed();
    }

    /// Closes all connections, and with them the engine whose sync has failed.
    fn close(&mut self) {
        self.session.close();
        if self.failed_stop || recorder::pool_sync_failed() {
            // Nobody knows what the system dropped; later writes may rely on it.
            self.crash_end.get_or_insert(recorder::trace_len());
            recorder::forget_failed_sync();
            self.failed_stop = false;
        }
    }

    /// Closes and reopens everything; a failed attempt must fail properly, and the next one must
    /// succeed.
    fn reopen(&mut self) -> Result<(), String> {
        self.look_at_syncs();
        self.close();
        if let Err(error) = self.session.open() {
            self.judge(error)?;
            self.close();
            if self.case.times > 1 {
                recorder::set_fault(None);
            }
            self.session.open().map_err(|error| format!("opened again: {}", text(error)))?;
        }
        Ok(())
    }

    /// Returns the number of the last transaction as the connections see it, or else after
    /// reopening without the fault.
    fn number(&mut self) -> Result<u64, String> {
        if self.session.shape.pools == 1
            && let Ok(number) = number_in(self.session.db())
        {
            return Ok(number);
        }
        recorder::set_fault(None);
        self.reopen()?;
        let count = self.session.shape.pools;
        self.session.close();
        let mut numbers = Vec::new();
        for index in 0..count {
            let db = self.session.shape.open_one(self.directory, index).map_err(text)?;
            numbers.push(number_in(&db).map_err(text)?);
        }
        self.session.open().map_err(text)?;
        Ok(numbers.into_iter().max().unwrap_or(0))
    }

    fn transact(&mut self) -> Result<(), String> {
        self.look_at_syncs();
        let stopped = self.failed_stop && self.session.setup.journal != "wal";
        let before = recorder::fired();
        let (transaction, sql) = self.session.next();
        let db = self.session.db();
        let done = db.execute_batch(&sql).and_then(|()| db.execute_batch("commit"));
        let error = match done {
            Ok(()) if stopped => {
                return Err("a transaction is acknowledged after a failed sync of the pool".into());
            }
            Ok(()) => {
                self.session.acknowledge(&transaction);
                return Ok(());
            }
            Err(error) => error,
        };
        self.judge(error)?;
        if !db.is_autocommit()
            && let Err(error) = db.execute_batch("rollback")
        {
            self.judge(error)?;
        }
        self.look_at_syncs();
        // A file that SQLite could open only read-only stays so until it is reopened.
        let stays = self.case.kind == Kind::Open;
        if self.case.times == 1 && !stays && recorder::fired() == before && !self.failed_stop {
            return Err("a transaction fails after the fault has gone".into());
        }
        if self.case.kind == Kind::Sync && self.session.setup.journal == "wal" {
            // After a commit that failed at the sync of the log, FTS5 goes on with what it knew of
            // that transaction, and damages its index; so it does with a plain database.
            self.reopen()?;
        }
        let number = self.number()?;
        let last = self.session.model.versions.number(0, transaction.number - 1);
        let committed = number == transaction.number;
        if !committed && self.session.shape.pools == 1 && number != last {
            return Err(format!("after a failure it is transaction {number}, not {last}"));
        }
        self.session.model.end(committed);
        Ok(())
    }

    fn checkpoint(&mut self) -> Result<(), String> {
        if self.session.setup.journal != "wal" {
            return Ok(());
        }
        self.look_at_syncs();
        let done = self
            .session
            .db()
            .query_row("pragma wal_checkpoint(truncate)", [], |row| row.get::<_, i64>(0));
        match done {
            Ok(0) if self.failed_stop => {
                Err("a checkpoint succeeds after a failed sync of the pool".into())
            }
            Ok(_) => Ok(()),
            Err(error) => self.judge(error),
        }
    }

    fn steps(&mut self) -> Result<(), String> {
        for step in 0..STEPS {
            if step == REOPEN_AT {
                self.reopen()?;
            }
            self.transact().map_err(|error| format!("step {step}: {error}"))?;
            if step % 2 == 1 {
                self.checkpoint().map_err(|error| format!("checkpoint {step}: {error}"))?;
            }
        }
        Ok(())
    }
}

/// Makes calls of a kind fail at some places in several workloads. Returns the number of failures.
pub fn everywhere(
    shape: Shape,
    case: Case,
    places: u64,
    first_seed: u64,
    scratch: &Scratch,
) -> Result<u64, String> {
    let mut fired = 0;
    let mut random = Random(first_seed);
    // Without a journal SQLite cannot roll back a failed transaction.
    let shape =
        Shape { journal: shape.journal.strip_suffix(&["off"]).unwrap_or(shape.journal), ..shape };
    for seed in first_seed.. {
        let template = super::run::record(Shape { steps: 0, ..shape }, seed, &scratch.directory)?;
        let template = Template { shape, image: template.base, seed };
        // Some of the calls of one workload fail, evenly spread, until there are no more.
        let mut after = random.below(case.apart());
        loop {
            let label = |error| format!("seed {seed}, after {after} calls: {error}");
            if !run(&template, case, after, scratch).map_err(label)? {
                break;
            }
            fired += 1;
            if fired >= places {
                return Ok(fired);
            }
            after += 1 + random.below(case.apart());
        }
        if seed - first_seed >= SEEDS_MAX {
            return Ok(fired);
        }
    }
    Ok(fired)
}

/// Runs the workload of a template with one fault. Returns whether the fault hit any call.
pub fn run(template: &Template, case: Case, after: u64, scratch: &Scratch) -> Result<bool, String> {
    materialise(&scratch.directory, &template.image);
    let shape = template.shape;
    let model = copy(shape, &scratch.directory)?;
    let first = model.newest;
    let mut random = Random(template.seed);
    let session = Session::new(&scratch.directory, shape, model, Random(random.next()));
    let base = recorder::start(&scratch.directory);
    let mut run =
        Run { case, session, directory: &scratch.directory, failed_stop: false, crash_end: None };
    run.session.open().map_err(text)?;
    let Case { kind, failure, times, suffix, .. } = case;
    recorder::set_fault(Some(Fault { kind, failure, after, times, suffix }));
    let done = run.steps();
    let fired = recorder::fired() > 0;
    recorder::set_fault(None);
    let end = run.crash_end.take();
    run.session.close();
    let mut trace = recorder::finish();
    done?;
    let (newest, versions) = (run.session.model.newest, run.session.model.versions);
    let expected = Expected { shape, versions: &versions, span: Span::at(newest) };
    let found = expected.verify(&scratch.directory, &mut random);
    found.map_err(|error| format!("with the fault gone: {error}"))?;
    trace.truncate(end.unwrap_or(usize::MAX));
    let transactions = newest - first;
    let recording = Recording { shape, base, trace, versions, first, transactions };
    recording.crash_somewhere(CRASHES, scratch, &mut random, &mut Counts::default())?;
    Ok(fired)
}

fn copy(shape: Shape, directory: &Path) -> Result<Model, String> {
    let sources = (0..shape.pools).map(|index| shape.open_one(directory, index));
    let sources = sources.collect::<rusqlite::Result<Vec<_>>>().map_err(text)?;
    Model::copy_of(&sources).map_err(text)
}
