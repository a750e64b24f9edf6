//! Checks the clearing of unused bytes against SQLite itself: after any workload, a cleared file
//! has the same content, passes integrity_check, works on like the original, and recovers like it.
//!
//! Another test checks that these tests would notice one byte too many.

mod refusals;
mod workload;

use std::path::Path;

use hardpack::unused::{HEADER_LEN, Layout, PENDING_BYTE_DEFAULT, freelist};
use rusqlite::Connection;

use workload::{Random, create, dump, steps};

/// A deliberate mistake.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Mistake {
    None,
    GapStartsEarly,
    GapEndsLate,
    FreeblockStartsEarly,
    FreeblockEndsLate,
    TrunkRestStartsEarly,
    NextPageIsLeafToo,
}

#[derive(Default, Clone, Copy, Debug)]
struct Cleared {
    gap_len: usize,
    freeblock_len: usize,
    leaf_count: usize,
    /// Pages that begin like a b-tree, and the number of them that were taken for one.
    flagged_count: usize,
    btree_count: usize,
}

/// Clears everything unused in the database `bytes`, with the given mistake.
fn clear(bytes: &mut [u8], mistake: Mistake) -> Cleared {
    let mut done = Cleared::default();
    let header: [u8; HEADER_LEN] = bytes[..HEADER_LEN].try_into().unwrap();
    let layout =
        Layout::parse(&header, bytes.len() as u64, PENDING_BYTE_DEFAULT).expect("a usual header");
    let page_len = layout.page_len();
    let at = |number: u32| (number as usize - 1) * page_len;
    let mut read = |number: u32| Ok::<_, ()>(bytes[at(number)..at(number) + page_len].to_vec());
    let free = freelist::walk(&layout, &mut read).unwrap();
    done.leaf_count = free.leaves.len();
    for number in 1..=layout.page_count() {
        let page = &mut bytes[at(number)..at(number) + page_len];
        let header = if number == 1 { HEADER_LEN } else { 0 };
        let is_free = free.leaves.contains(&number);
        let is_flagged = !is_free && matches!(page[header], 2 | 5 | 10 | 13);
        done.flagged_count += usize::from(is_flagged);
        let Some(ranges) = layout.unused(number, page) else { continue };
        done.btree_count += usize::from(is_flagged);
        let pointers_end = header
            + if page[header] > 5 { 8 } else { 12 }
            + 2 * usize::from(u16::from_be_bytes([page[header + 3], page[header + 4]]));
        if mistake == Mistake::None {
            layout.clear_unused(number, page);
            assert!(!layout.clear_unused(number, page), "nothing is left to clear");
            assert_eq!(layout.unused(number, page).as_ref(), Some(&ranges));
        }
        for range in ranges {
            let is_gap = range.start == pointers_end;
            *if is_gap { &mut done.gap_len } else { &mut done.freeblock_len } += range.len();
            let (start, end) = match mistake {
                Mistake::GapStartsEarly if is_gap => (range.start - 1, range.end),
                Mistake::FreeblockStartsEarly if !is_gap => (range.start - 1, range.end),
                Mistake::GapEndsLate if is_gap => (range.start, range.end + 1),
                Mistake::FreeblockEndsLate if !is_gap => (range.start, range.end + 1),
                _ => (range.start, range.end),
            };
            let end = end.min(page_len);
            page[start..end].fill(0);
        }
    }
    for leaf in &free.leaves {
        bytes[at(*leaf)..at(*leaf) + page_len].fill(0);
        if mistake == Mistake::NextPageIsLeafToo && *leaf < layout.page_count() {
            bytes[at(leaf + 1)..at(leaf + 1) + page_len].fill(0);
        }
    }
    for (trunk, used_len) in free.trunks {
        let early = if mistake == Mistake::TrunkRestStartsEarly { 4 } else { 0 };
        bytes[at(trunk) + used_len - early..at(trunk) + page_len].fill(0);
    }
    done
}

fn clear_file(path: &Path, mistake: Mistake) -> Cleared {
    let mut bytes = std::fs::read(path).unwrap();
    let done = clear(&mut bytes, mistake);
    std::fs::write(path, bytes).unwrap();
    done
}

fn check_integrity(db: &Connection) -> Result<(), String> {
    let text = |error: rusqlite::Error| error.to_string();
    let answer: String =
        db.query_row("pragma integrity_check", [], |row| row.get(0)).map_err(text)?;
    if answer != "ok" {
        return Err(answer);
    }
    db.execute("insert into words(words) values('integrity-check')", []).map_err(text)?;
    Ok(())
}

/// Checks that the cleared file has the same content as the original, and works on in the same way.
fn compare(original: &Path, cleared: &Path, page_len: usize, seed: u64) -> Result<(), String> {
    let text = |error: rusqlite::Error| error.to_string();
    let one = Connection::open(original).map_err(text)?;
    let other = Connection::open(cleared).map_err(text)?;
    for (count, round) in [(0, 0), (1, 1), (10, 2), (150, 3)] {
        for db in [&one, &other] {
            db.execute_batch("pragma synchronous=off").map_err(text)?;
            steps(db, &mut Random::new(seed + round), page_len, count).map_err(text)?;
        }
        check_integrity(&other)?;
        if dump(&one).map_err(text)? != dump(&other).map_err(text)? {
            return Err(format!("the content differs after round {round}"));
        }
    }
    Ok(())
}

/// Builds a database, clears a copy of it, and compares them; repeats this several times with the
/// copy.
fn run(page_len: usize, auto_vacuum: u32, seed: u64, mistake: Mistake) -> Result<Cleared, String> {
    let dir = tempfile::tempdir().unwrap();
    let (path, original, cleared) =
        (dir.path().join("db"), dir.path().join("original"), dir.path().join("cleared"));
    let mut random = Random::new(seed);
    let mut total = Cleared::default();
    let db = create(&path, page_len, auto_vacuum);
    for round in 0..3 {
        let text = |error: rusqlite::Error| error.to_string();
        steps(&db, &mut random, page_len, 250).map_err(text)?;
        std::fs::copy(&path, &original).unwrap();
        std::fs::copy(&path, &cleared).unwrap();
        let done = clear_file(&cleared, mistake);
        total.gap_len += done.gap_len;
        total.freeblock_len += done.freeblock_len;
        total.leaf_count += done.leaf_count;
        total.flagged_count += done.flagged_count;
        total.btree_count += done.btree_count;
        compare(&original, &cleared, page_len, seed + round)
            .map_err(|reason| format!("round {round}: {reason}"))?;
    }
    Ok(total)
}

#[test]
fn a_cleared_database_holds_the_same_and_goes_on_alike() {
    let mut freed = [0; 3];
    for page_len in [512, 1024, 4096, 16384, 65536] {
        for auto_vacuum in 0..3 {
            let seed = (page_len as u64) + u64::from(auto_vacuum);
            let what = format!("pages of {page_len}, auto_vacuum {auto_vacuum}, seed {seed}");
            let done = run(page_len, auto_vacuum, seed, Mistake::None)
                .unwrap_or_else(|reason| panic!("{what}: {reason}"));
            assert!(done.gap_len > 0 && done.freeblock_len > 0, "{what}: {done:?}");
            // All b-tree pages are recognised, except one at the place of a pointer map.
            let missed = done.flagged_count - done.btree_count;
            assert!(missed * 50 <= done.flagged_count + 150, "{what}: {done:?}");
            freed[auto_vacuum as usize] += done.leaf_count;
        }
    }
    assert!(freed[0] > 40 && freed[1] == 0 && freed[2] > 10, "{freed:?}");
}

#[test]
fn one_byte_too_many_would_be_noticed() {
    for mistake in [
        Mistake::GapStartsEarly,
        Mistake::GapEndsLate,
        Mistake::FreeblockStartsEarly,
        Mistake::FreeblockEndsLate,
        Mistake::TrunkRestStartsEarly,
        Mistake::NextPageIsLeafToo,
    ] {
        for page_len in [512, 4096] {
            let noticed = run(page_len, 0, 7, mistake);
            assert!(noticed.is_err(), "{mistake:?}, pages of {page_len}");
        }
    }
}

/// Leaves the files of a database as after a crash in the middle of a transaction.
fn crash_in_transaction(path: &Path, journal_mode: &str, crashed: &Path, page_len: usize) {
    let db = Connection::open(path).unwrap();
    db.execute_batch(&format!(
        "pragma journal_mode={journal_mode}; pragma cache_size=3; pragma wal_autocheckpoint=0;"
    ))
    .unwrap();
    if journal_mode == "wal" {
        steps(&db, &mut Random::new(99), page_len, 10).unwrap();
    }
    db.execute_batch("begin; update rows set body = zeroblob(3000); delete from pairs;").unwrap();
    db.execute_batch("insert into log select hex(randomblob(400)) from rows;").unwrap();
    for suffix in ["", "-journal", "-wal"] {
        let name = |path: &Path| format!("{}{suffix}", path.display());
        let _ = std::fs::copy(name(path), name(crashed));
    }
}

#[test]
fn a_cleared_database_recovers_like_the_original() {
    for journal_mode in ["delete", "wal"] {
        for page_len in [512, 4096] {
            let dir = tempfile::tempdir().unwrap();
            let [original, cleared, crashed] =
                ["original", "cleared", "crashed"].map(|name| dir.path().join(name));
            let db = create(&original, page_len, 0);
            steps(&db, &mut Random::new(5), page_len, 400).unwrap();
            db.execute_batch("delete from rows where id % 2").unwrap();
            drop(db);
            std::fs::copy(&original, &cleared).unwrap();
            clear_file(&cleared, Mistake::None);
            crash_in_transaction(&cleared, journal_mode, &crashed, page_len);
            let journal = format!("{}-journal", crashed.display());
            assert_eq!(Path::new(&journal).exists(), journal_mode == "delete");
            let expected = Connection::open(&original).unwrap();
            if journal_mode == "wal" {
                steps(&expected, &mut Random::new(99), page_len, 10).unwrap();
            }
            let recovered = Connection::open(&crashed).unwrap();
            check_integrity(&recovered).unwrap();
            assert!(dump(&recovered).unwrap() == dump(&expected).unwrap(), "{journal_mode}");
        }
    }
}
