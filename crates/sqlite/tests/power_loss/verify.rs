//! Verifies the state after a power loss:
//!
//! * each database opens, passes SQLite's `integrity_check`, and has exactly the content that some
//!   transaction left: at least the newest one that was promised, at most the newest that was
//!   begun;
//! * after transactions across files, all files are in the same state, where SQLite promises that;
//! * the engine's check of each pool finds nothing;
//! * the database can be written to, closed and checked again.

use std::path::Path;

use hardpack_engine::device::FileDevice;
use hardpack_engine::store::Store;
use rusqlite::Connection;

use super::disk::{Class, Disk, Image, Note, Op, Promise};
use super::model::{Versions, digest, number_in};
use super::workload::Shape;
use crate::common::{self, Random};

/// One crash in this many is followed by more work.
const GO_ON_ONE_IN: u64 = 4;

/// The transactions that may be found.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Span {
    /// At least this one, by database.
    pub floor: [u64; 2],
    /// At most this one.
    pub newest: u64,
    with_pool: u64,
    with_log: u64,
    elsewhere: bool,
}

impl Span {
    /// Returns the span of a durable state.
    pub fn at(number: u64) -> Span {
        Span { floor: [number; 2], newest: number, ..Span::default() }
    }

    /// Takes an operation into account, after `disk` did.
    pub fn apply(&mut self, disk: &Disk, op: &Op) {
        match op {
            Op::Note(Note::Begin(number)) => self.newest = *number,
            Op::Note(Note::Ack(number, Promise::Durable)) => self.floor = [*number; 2],
            Op::Note(Note::Ack(number, Promise::WithPool)) => self.with_pool = *number,
            Op::Note(Note::Ack(number, Promise::WithLog)) => self.with_log = *number,
            Op::Note(Note::Elsewhere(elsewhere)) => self.elsewhere = *elsewhere,
            Op::Sync(_) if self.elsewhere => {}
            // A sync does not make up for the writes that an earlier sync failed to make durable.
            Op::Sync(file) if disk.has_doubts(*file) => {}
            Op::Sync(file) => match disk.class(*file) {
                Class::Pool(index) => self.floor[index] = self.floor[index].max(self.with_pool),
                Class::Log(index) => self.floor[index] = self.floor[index].max(self.with_log),
                Class::Journal | Class::SuperJournal | Class::LockFile => {}
            },
            _ => {}
        }
    }
}

/// The expected result of a crash.
#[derive(Clone, Copy)]
pub struct Expected<'a> {
    pub shape: Shape,
    pub versions: &'a Versions,
    pub span: Span,
}

/// Writes an image into a directory, which contains nothing else afterwards.
pub fn materialise(directory: &Path, image: &Image) {
    for entry in std::fs::read_dir(directory).unwrap() {
        std::fs::remove_file(entry.unwrap().path()).unwrap();
    }
    for (name, bytes) in image {
        std::fs::write(directory.join(name), bytes).unwrap();
    }
}

fn text(error: rusqlite::Error) -> String {
    format!("{error} ({:?})", error.sqlite_error().map(|error| error.extended_code))
}

fn integrity(db: &Connection) -> Result<(), String> {
    let sql = "pragma integrity_check";
    let found: String = db.query_row(sql, [], |row| row.get(0)).map_err(text)?;
    if found == "ok" { Ok(()) } else { Err(format!("integrity_check: {found}")) }
}

impl Expected<'_> {
    /// Returns the last transaction in each database, or what is wrong.
    pub fn verify(&self, directory: &Path, random: &mut Random) -> Result<[u64; 2], String> {
        let mut found = [0; 2];
        let first = random.below(self.shape.pools as u64) as usize;
        for turn in 0..self.shape.pools {
            let index = (first + turn) % self.shape.pools;
            found[index] = self
                .database(directory, index)
                .map_err(|error| format!("database {index}, expected {:?}: {error}", self.span))?;
        }
        self.judge(found)?;
        self.check_pools(directory)?;
        if !self.shape.may_damage() && random.below(GO_ON_ONE_IN) == 0 {
            for index in 0..self.shape.pools {
                go_on(self.shape, directory, index)
                    .map_err(|error| format!("going on: {error}"))?;
            }
            self.check_pools(directory).map_err(|error| format!("after going on: {error}"))?;
        }
        Ok(found)
    }

    fn check_pools(&self, directory: &Path) -> Result<(), String> {
        for index in 0..self.shape.pools {
            let path = self.shape.pool(directory, index);
            let device = FileDevice::open_read_only(&path).map_err(|error| error.to_string())?;
            // A pool whose creation was interrupted counts as empty.
            if !Store::is_unborn(&device).map_err(|error| error.to_string())? {
                common::check_pool(&path)?;
            }
        }
        Ok(())
    }

    fn database(&self, directory: &Path, index: usize) -> Result<u64, String> {
        let db = self.shape.open_one(directory, index).map_err(text)?;
        if self.shape.may_damage() {
            // The content of the pool is intact; whether SQLite can use it is another matter.
            let _ = db.execute_batch("pragma integrity_check");
            return Ok(self.span.newest);
        }
        let number = number_in(&db).map_err(text)?;
        integrity(&db).map_err(|error| format!("transaction {number}: {error}"))?;
        let digest = digest(&db).map_err(text)?;
        if !self.versions.holds(index, number, digest) {
            return Err(format!("its content is not that of transaction {number}"));
        }
        Ok(number)
    }

    /// Checks that these states may be found.
    pub fn judge(&self, found: [u64; 2]) -> Result<(), String> {
        if self.shape.may_damage() {
            return Ok(());
        }
        let Span { floor, newest, .. } = self.span;
        let is_state = |index: usize, g: u64| self.versions.number(index, g) == found[index];
        let pools = 0..self.shape.pools;
        let fits = if self.shape.is_atomic() {
            (floor[0].max(floor[1])..=newest).any(|g| pools.clone().all(|index| is_state(index, g)))
        } else {
            pools.clone().all(|index| (floor[index]..=newest).any(|g| is_state(index, g)))
        };
        if fits {
            return Ok(());
        }
        let found = &found[..self.shape.pools];
        Err(format!("found {found:?}, at least {floor:?} were promised, at most {newest} begun"))
    }
}

/// Goes on with a recovered database.
fn go_on(shape: Shape, directory: &Path, index: usize) -> Result<(), String> {
    let db = shape.open_one(directory, index).map_err(text)?;
    let had_number = number_in(&db).map_err(text)? > 0;
    let sql = "create table goes_on(a integer primary key, b);
               insert into goes_on values(1, hex(zeroblob(3000)))";
    db.execute_batch(sql).map_err(text)?;
    if had_number {
        db.execute_batch(
            "begin; insert into note(title, body) values('goes', 'on in the pool');
             insert into note(note) values('integrity-check');
             update item set body = 'after the crash' where id % 3 = 0; commit",
        )
        .map_err(text)?;
    }
    db.execute_batch("pragma wal_checkpoint(restart)").map_err(text)?;
    integrity(&db)?;
    let before = digest(&db).map_err(text)?;
    drop(db);
    let db = shape.open_one(directory, index).map_err(text)?;
    integrity(&db)?;
    if digest(&db).map_err(text)? == before {
        Ok(())
    } else {
        Err("the content changed when closed".into())
    }
}
