//! Changes recordings as a disk would that breaks its promises, or as software would that breaks a
//! rule of the design. The harness must notice each change.

use hardpack_engine::store::superblock::{EXTENTS_OFFSET, RING_OFFSET};

use super::disk::{Class, Op, class_of};
use super::run::Recording;

/// A change to a recording.
pub type Mutate = fn(&mut Recording);

/// Each mutant, with the workload in which it must be noticed.
pub const MUTANTS: &[(&str, &str, Mutate)] = &[
    ("syncs of the pool are lies", "rollback", |r| {
        leave_out(r, |class| matches!(class, Class::Pool(_)))
    }),
    ("the pool is synced after the acknowledgement", "rollback", sync_late),
    ("syncs of the log are lies", "log, full", |r| {
        leave_out(r, |class| matches!(class, Class::Log(_)))
    }),
    ("syncs of the pool are lies", "log, normal", |r| {
        leave_out(r, |class| matches!(class, Class::Pool(_)))
    }),
    ("syncs of journals are lies", "attached", |r| leave_out(r, |class| class == Class::Journal)),
    ("syncs of super-journals are lies", "attached", |r| {
        leave_out(r, |class| class == Class::SuperJournal);
    }),
    ("syncs of the pool are lies", "attached, one pool", |r| {
        leave_out(r, |class| matches!(class, Class::Pool(_)))
    }),
    ("the pool is synced after the acknowledgement", "attached, one pool", sync_late),
    ("syncs of directories are lies", "creation", leave_out_directories),
    ("some writes are lost", "rollback", lose_writes),
    ("the newest durable superblock is overwritten", "rollback", reuse_slot),
    ("freed space is reused too early", "rollback", reuse_early),
];

/// Returns the kind of the file of each operation.
fn classes(recording: &Recording) -> Vec<Option<Class>> {
    let mut files: Vec<Class> = recording.base.keys().map(|name| class_of(name)).collect();
    let mut class = |op: &Op| match op {
        Op::Create(name, _) => {
            files.push(class_of(name));
            None
        }
        Op::Write(file, ..) | Op::SetLen(file, _) | Op::Punch(file, ..) | Op::Sync(file) => {
            Some(files[*file])
        }
        _ => None,
    };
    recording.trace.iter().map(&mut class).collect()
}

fn is_pool(class: Option<Class>) -> bool {
    matches!(class, Some(Class::Pool(_)))
}

fn leave_out(recording: &mut Recording, which: fn(Class) -> bool) {
    let classes = classes(recording);
    let mut index = 0;
    recording.trace.retain(|op| {
        index += 1;
        !(matches!(op, Op::Sync(_)) && classes[index - 1].is_some_and(which))
    });
}

fn leave_out_directories(recording: &mut Recording) {
    recording.trace.retain(|op| !matches!(op, Op::SyncDirectory));
}

/// Moves each sync of a pool behind the next note, which acknowledges what it should have made
/// durable.
fn sync_late(recording: &mut Recording) {
    let classes = classes(recording);
    for index in (0..recording.trace.len()).rev() {
        if matches!(recording.trace[index], Op::Sync(_)) && is_pool(classes[index]) {
            let rest = &recording.trace[index..];
            let note = rest.iter().position(|op| matches!(op, Op::Note(_)));
            recording.trace[index..][..=note.unwrap_or(0)].rotate_left(1);
        }
    }
}

/// Loses every tenth write of an extent, which claims to have happened.
fn lose_writes(recording: &mut Recording) {
    let classes = classes(recording);
    let (mut index, mut count) = (0, 0);
    recording.trace.retain(|op| {
        index += 1;
        match op {
            Op::Write(_, offset, _) if is_pool(classes[index - 1]) && *offset >= EXTENTS_OFFSET => {
                count += 1;
                count % 10 != 0
            }
            _ => true,
        }
    });
}

/// Writes every superblock to the slot of the newest durable one.
fn reuse_slot(recording: &mut Recording) {
    let classes = classes(recording);
    let (mut newest, mut durable) = (None, None);
    for (index, op) in
        recording.trace.iter_mut().enumerate().filter(|(index, _)| is_pool(classes[*index]))
    {
        let _ = index;
        match op {
            Op::Write(_, offset, _) if (RING_OFFSET..EXTENTS_OFFSET).contains(offset) => {
                *offset = durable.unwrap_or(*offset);
                newest = Some(*offset);
            }
            Op::Sync(_) => durable = newest,
            _ => {}
        }
    }
}

/// Moves each write to a place that was written before three syncs ahead, when the old data is
/// still in use.
fn reuse_early(recording: &mut Recording) {
    const SYNCS: usize = 3;
    let classes = classes(recording);
    let trace = std::mem::take(&mut recording.trace);
    let mut early: Vec<Op> = Vec::with_capacity(trace.len());
    let mut written: Vec<(u64, u64)> = Vec::new();
    for (op, class) in trace.into_iter().zip(classes) {
        let Op::Write(_, offset, bytes) = &op else {
            early.push(op);
            continue;
        };
        let (start, end) = (*offset, *offset + bytes.len() as u64);
        let is_extent = is_pool(class) && start >= EXTENTS_OFFSET;
        let again = is_extent && written.iter().any(|(a, b)| *a < end && *b > start);
        if is_extent {
            written.push((start, end));
        }
        let syncs = early.iter().enumerate().rev().filter(|(_, op)| matches!(op, Op::Sync(_)));
        match syncs.map(|(index, _)| index).nth(SYNCS - 1) {
            Some(at) if again => early.insert(at, op),
            _ => early.push(op),
        }
    }
    recording.trace = early;
}
