//! Keeps everybody out of all databases that a command may change, so that nobody opens one
//! meanwhile.
//!
//! The marks of what lies below the command's scope are claimed beforehand, in few ranges. What is
//! moved there afterwards is asked for in the transaction that changes it. Files elsewhere, and new
//! ones, stay usable throughout.

use std::ops::Range;
use std::time::{Duration, Instant};

use hardpack_engine::pool::{Kind, Pool, ROOT};
use hardpack_engine::{Error, FileId};

use super::{LOCK_WAIT, MARK_PAUSE, MOUNT_BIT, Users, busy, files_below};
use crate::failure::Reason;
use crate::sidecars::FIRST_FILE;
use crate::signals;

/// The numbers of all files, and the marks of mounts, lie below this.
const NUMBER_END: u64 = 1 << 61;
/// The mark of the command that keeps others out, until it is done. It would be that of readers of
/// the root, which is no database.
const TURN_MARK: u64 = 1 << 61 | ROOT.0;
/// In at most so many ranges are marks claimed: for each, the system goes through all locks of a
/// file. If there were more, the files between the nearest are claimed as well.
const RANGE_COUNT: usize = 1024;

/// The turn of this command to keep others out. Without it, the claims of another command would be
/// taken for users.
pub struct Turn(Users);

impl Users {
    /// Waits until no other command keeps others out; without a limit, until that is so.
    pub fn take_turn(self, limit: Option<Duration>) -> Result<Turn, Reason> {
        let begun = Instant::now();
        while !self.device.try_claim(TURN_MARK)? {
            signals::check()?;
            if limit.is_some_and(|limit| begun.elapsed() >= limit) {
                return Err(busy());
            }
            std::thread::sleep(MARK_PAUSE);
        }
        Ok(Turn(self))
    }

    /// Keeps everybody out of every database, as long as the returned value lives. Damage in the
    /// pool does not prevent it.
    pub fn keep_out_of_all(self, pool: &Pool) -> Result<Users, Reason> {
        let Turn(users) = self.take_turn(Some(LOCK_WAIT))?;
        if let Some(number) = users.device.claim_unused(ROOT.0..NUMBER_END)?.first() {
            return Err(users.in_use_at(pool, FileId(*number & !MOUNT_BIT)));
        }
        users.claim(pool, &[FIRST_FILE])?;
        Ok(users)
    }

    /// Keeps everybody out of a file that is about to change, under the pool's lock. Fails if
    /// another process uses it, as it may if it came below the scope only now.
    pub fn hold_changing(&self, pool: &Pool, file: FileId) -> Result<(), Reason> {
        let is_kept = match file {
            FIRST_FILE => self.first.borrow().is_some(),
            FileId(number) => {
                let behind = self.kept_out.partition_point(|range| range.start <= number);
                behind > 0 && self.kept_out[behind - 1].contains(&number)
            }
        };
        if is_kept || pool.attributes(file)?.kind != Kind::File {
            return Ok(());
        }
        self.hold_unread(pool, file)
    }
}

impl Turn {
    /// Keeps everybody out of the databases at or below `scope`, as long as the returned value
    /// lives; [`Users::hold_changing`] those that appear there later. Fails if another process
    /// already uses one. Who has the first file open and does nothing is in the way only if it may
    /// be taken away.
    pub fn keep_out(self, pool: &Pool, scope: FileId, takes_first: bool) -> Result<Users, Reason> {
        let Turn(mut users) = self;
        let is_concerned =
            |file| Ok::<_, Error>(pool.path_of(file).is_ok() && pool.is_below(file, scope)?);
        for range in marks_below(pool, scope)? {
            let mut from = range.start;
            for mark in users.device.claim_unused(range.clone())? {
                let file = FileId(mark & !MOUNT_BIT);
                if is_concerned(file)? {
                    return Err(users.in_use_at(pool, file));
                }
                users.kept_out.push(from..mark);
                from = mark + 1;
            }
            users.kept_out.push(from..range.end);
        }
        if is_concerned(FIRST_FILE)? {
            match takes_first {
                true => users.claim(pool, &[FIRST_FILE])?,
                false => users.lock_first(pool)?,
            }
        }
        Ok(users)
    }
}

/// The marks of all users of what is at or below a scope, in ascending order.
fn marks_below(pool: &Pool, scope: FileId) -> Result<Vec<Range<u64>>, Error> {
    if scope == ROOT {
        let all = ROOT.0..NUMBER_END;
        return Ok(Vec::from([all]));
    }
    let files = match pool.attributes(scope) {
        // A rollback brings it back.
        Err(Error::NotFound { .. }) => vec![scope],
        _ => files_below(pool, scope)?,
    };
    let of_mounts = files.contains(&FIRST_FILE).then_some(MOUNT_BIT | FIRST_FILE.0);
    let marks: Vec<u64> = files.iter().map(|file| file.0).chain(of_mounts).collect();
    Ok(ranges_over(&marks))
}

/// Numbers in ascending order as at most [`RANGE_COUNT`] ranges.
fn ranges_over(numbers: &[u64]) -> Vec<Range<u64>> {
    let steps = numbers.iter().zip(numbers.iter().skip(1)).map(|(one, next)| next - one);
    let mut gaps: Vec<u64> = steps.filter(|step| *step > 1).collect();
    gaps.sort_unstable_by(|one, other| other.cmp(one));
    // Only wider steps than this separate ranges.
    let joined = gaps.get(RANGE_COUNT - 1).copied().unwrap_or(1);
    let runs = numbers.chunk_by(|one, next| next - one <= joined);
    runs.filter_map(|run| Some(*run.first()?..run.last()? + 1)).collect()
}

#[cfg(test)]
mod tests {
    use hardpack::open_mark;
    use hardpack_engine::device::FileDevice;
    use hardpack_engine::pool::{Attributes, CreateOptions, Options};

    use super::*;
    use crate::users::mount_marks;

    fn make(pool: &Pool, directory: FileId, name: &str, kind: Kind) -> FileId {
        let like = Attributes::new(kind, directory);
        pool.edit(1, |edit| edit.create(directory, name.as_bytes(), &like)).unwrap()
    }

    /// What lies elsewhere, and what is new, can be opened; what is moved below the scope is kept
    /// out then, or refused.
    #[test]
    fn only_users_of_the_scope_are_kept_out() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("p.hpk");
        let device = FileDevice::create_new(&path).unwrap();
        let pool = Pool::create(
            std::sync::Arc::new(device),
            &CreateOptions::new([1; 16]),
            Options::new(1 << 20),
        )
        .unwrap();
        let scope = make(&pool, ROOT, "scope", Kind::Directory);
        let below = make(&pool, scope, "below", Kind::Directory);
        let inside = [make(&pool, scope, "a", Kind::File), make(&pool, below, "b", Kind::File)];
        let outside = ["c", "d", "e"].map(|name| make(&pool, ROOT, name, Kind::File));
        pool.edit(1, |edit| edit.link(outside[0], below, b"link")).unwrap();
        let (inside, outside) = ([inside[0], inside[1], outside[0]], [outside[1], outside[2]]);
        let other = FileDevice::open(&path).unwrap();
        let opens = |file: FileId| {
            let opened = mount_marks(file).map(|mark| {
                let is_shared = other.try_share(mark).unwrap();
                other.release(mark);
                is_shared
            });
            opened.min().unwrap()
        };
        let turn = || Users::of(&path).unwrap().take_turn(Some(Duration::ZERO));

        let kept_out = turn().unwrap().keep_out(&pool, scope, true).unwrap();
        assert!(turn().is_err());
        assert_eq!(inside.map(opens), [false; 3]);
        assert_eq!(outside.map(opens), [true; 2]);
        let new = make(&pool, ROOT, "new", Kind::File);
        assert!(opens(new));
        for file in inside {
            kept_out.hold_changing(&pool, file).unwrap();
        }
        for (name, file) in [(b"d", outside[0]), (b"e", outside[1])] {
            let edit = pool.edit(1, |edit| {
                edit.link(file, scope, name)?;
                edit.unlink(ROOT, name)
            });
            edit.unwrap();
        }
        assert!(other.try_share(open_mark(outside[0])).unwrap());
        kept_out.hold_changing(&pool, outside[0]).unwrap_err();
        assert!(opens(outside[1]));
        kept_out.hold_changing(&pool, outside[1]).unwrap();
        assert!(!opens(outside[1]));
        drop(kept_out);
        assert_eq!(inside.map(opens), [true; 3]);

        // Somebody has one of them open.
        assert!(turn().unwrap().keep_out(&pool, scope, true).is_err());
        turn().unwrap().keep_out(&pool, below, true).unwrap();
        assert!(turn().unwrap().keep_out(&pool, ROOT, true).is_err());
        other.release(open_mark(outside[0]));
        let kept_out = turn().unwrap().keep_out(&pool, ROOT, true).unwrap();
        assert!(!opens(new) && inside.into_iter().all(|file| !opens(file)));
        drop(kept_out);
    }

    #[test]
    fn many_numbers_become_few_ranges() {
        let one = |range: Range<u64>| vec![range];
        assert_eq!(ranges_over(&[]), []);
        assert_eq!(ranges_over(&[7]), one(7..8));
        assert_eq!(ranges_over(&[7, 8, 9, 11, 40]), [7..10, 11..12, 40..41]);
        let apart: Vec<u64> = (0..RANGE_COUNT as u64).map(|index| index * 3).collect();
        assert_eq!(ranges_over(&apart).len(), RANGE_COUNT);
        // Ever wider gaps: the narrowest are closed.
        let wider: Vec<u64> = (1..3000_u64).map(|index| index * index).collect();
        let ranges = ranges_over(&wider);
        assert_eq!(ranges.len(), RANGE_COUNT);
        assert!(wider.iter().all(|number| ranges.iter().any(|range| range.contains(number))));
        assert_eq!(ranges.last(), Some(&(2999 * 2999..2999 * 2999 + 1)));
        assert!(ranges[0].contains(&2));
        // Equal gaps cannot be told apart.
        let even: Vec<u64> = (0..5000).map(|index| index * 2).collect();
        assert_eq!(ranges_over(&even), one(0..9999));
    }
}
