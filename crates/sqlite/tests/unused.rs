//! Clearing what SQLite never reads, against SQLite itself: after any workload, a cleared file holds the
//! same, passes integrity_check, goes on like the original, and recovers like it.
//!
//! That these tests would notice one byte too many is tested as well.

use std::fmt::Write;
use std::path::Path;

use hardpack::unused::{HEADER_LEN, Layout, PENDING_BYTE_DEFAULT, freelist};
use rusqlite::{Connection, types::ValueRef};

/// xorshift64*, from a seed: tests must repeat.
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16) % bound
    }

    fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.below(256) as u8).collect()
    }
}

/// What to do wrong, on purpose.
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
    /// Pages that begin like a b-tree, and how many of them were taken for one.
    flagged_count: usize,
    btree_count: usize,
}

/// Clears everything unused in the database `bytes`, with the mistake given.
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

fn create(path: &Path, page_len: usize, auto_vacuum: u32) -> Connection {
    let db = Connection::open(path).unwrap();
    db.execute_batch(&format!(
        "pragma page_size={page_len}; pragma auto_vacuum={auto_vacuum}; pragma synchronous=off;
         pragma secure_delete=off;
         create table rows(id integer primary key, k int, name text, body blob);
         create index rows_by_k on rows(k, name);
         create index rows_by_name on rows(name) where k % 2;
         create table pairs(a text, b int, body blob, primary key(a, b)) without rowid;
         create table log(line text);
         create virtual table words using fts5(line);"
    ))
    .unwrap();
    db
}

fn word(random: &mut Random) -> String {
    let len = 1 + random.below(12);
    (0..len).map(|_| char::from(b'a' + random.below(26) as u8)).collect()
}

/// A body that may overflow, in part by far, and may look like a b-tree page.
fn body(random: &mut Random, page_len: usize) -> Vec<u8> {
    let len = match random.below(12) {
        0 => page_len as u64 * (1 + random.below(4)),
        1..4 => random.below(page_len as u64),
        _ => random.below(60),
    };
    let mut bytes = random.bytes(len.min(150_000) as usize);
    if random.below(4) == 0 {
        for at in (0..bytes.len()).step_by(4) {
            bytes[at] = [2, 5, 10, 13][random.below(4) as usize];
        }
    }
    bytes
}

/// One step of the workload; it depends on the content of the database and on `random` alone.
fn step(db: &Connection, random: &mut Random, page_len: usize) -> rusqlite::Result<()> {
    let id = random.below(300) as i64;
    let k = random.below(40) as i64;
    match random.below(100) {
        0..30 => db.execute(
            "insert or replace into rows values(?1, ?2, ?3, ?4)",
            (id, k, word(random), body(random, page_len)),
        )?,
        30..45 => db.execute(
            "update rows set body = ?2, name = ?3 where id between ?1 and ?1 + 3",
            (id, body(random, page_len), word(random)),
        )?,
        45..55 => db.execute("delete from rows where id between ?1 and ?1 + 9", [id])?,
        55..70 => db.execute(
            "insert or replace into pairs values(?1, ?2, ?3)",
            (word(random), k, body(random, page_len)),
        )?,
        70..76 => db.execute("delete from pairs where b = ?1", [k])?,
        76..88 => {
            let line = format!("{} {} {}", word(random), word(random), word(random));
            db.execute("insert into log values(?1)", [&line])?;
            db.execute("insert into words values(?1)", [&line])?
        }
        88..92 => db.execute("delete from log where rowid % 7 = ?1", [k % 7])?,
        92..94 => db.execute("delete from words where rowid % 5 = ?1", [k % 5])?,
        94 => db.execute("delete from rows where k < 30", [])?,
        95..98 => {
            db.execute_batch(&format!("pragma incremental_vacuum({k});"))?;
            0
        }
        98 => {
            db.execute_batch(&format!(
                "create table if not exists extra{k}(x unique);
                 insert or ignore into extra{k} select name from rows;"
            ))?;
            0
        }
        _ if random.below(4) == 0 => {
            db.execute_batch("vacuum")?;
            0
        }
        _ => {
            db.execute_batch(&format!("drop table if exists extra{}", random.below(40)))?;
            0
        }
    };
    Ok(())
}

fn steps(
    db: &Connection,
    random: &mut Random,
    page_len: usize,
    count: u32,
) -> rusqlite::Result<()> {
    (0..count).try_for_each(|_| step(db, random, page_len))
}

/// Everything that is in the database, as text.
fn dump(db: &Connection) -> rusqlite::Result<String> {
    let mut text = String::new();
    let mut tables = vec!["sqlite_schema".to_string()];
    let mut statement =
        db.prepare("select name from sqlite_schema where type = 'table' order by name")?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        tables.push(row.get(0)?);
    }
    for table in tables {
        // By the table, and by an index where there is one.
        for order in ["", "order by 2, 1"] {
            let sql = format!("select * from \"{table}\" {order}");
            let Ok(mut statement) = db.prepare(&sql) else { continue };
            let column_count = statement.column_count();
            let mut rows = statement.query([])?;
            while let Some(row) = rows.next()? {
                write!(text, "{table}:").unwrap();
                for column in 0..column_count {
                    match row.get_ref(column)? {
                        ValueRef::Blob(bytes) => write!(text, " {bytes:02x?}"),
                        value => write!(text, " {value:?}"),
                    }
                    .unwrap();
                }
                text.push('\n');
            }
        }
    }
    Ok(text)
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

/// Whether the cleared file holds what the original does, and goes on in the same way.
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

/// Builds a database, clears a copy of it, and compares them; several times, going on with the copy.
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
            // All b-tree pages are known, but one that lies where a pointer map could.
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

/// Leaves the files of a database as a crash in the middle of a transaction does.
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

/// A database with every kind of page, as bytes.
fn sample(page_len: usize, auto_vacuum: u32) -> Vec<u8> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("db");
    let db = create(&path, page_len, auto_vacuum);
    steps(&db, &mut Random::new(11), page_len, 200).unwrap();
    db.execute_batch("delete from rows where id % 2").unwrap();
    drop(db);
    std::fs::read(&path).unwrap()
}

fn parse(bytes: &[u8]) -> Option<Layout> {
    let header = bytes[..HEADER_LEN].try_into().unwrap();
    Layout::parse(&header, bytes.len() as u64, PENDING_BYTE_DEFAULT)
}

#[test]
fn an_unusual_header_is_refused() {
    let bytes = sample(1024, 0);
    assert!(parse(&bytes).is_some());
    // Magic, page size, versions, reserved bytes, fractions, page count and its validity, the
    // free-list's length, schema format, encoding, expansion.
    for at in [0, 15, 17, 18, 19, 20, 21, 22, 23, 24, 28, 31, 36, 47, 59, 72, 91, 92] {
        let mut bytes = bytes.clone();
        bytes[at] ^= 0x41;
        assert_eq!(parse(&bytes), None, "byte {at}");
    }
    for len in [0, 100, bytes.len() - 1024, bytes.len() - 1, bytes.len() + 1] {
        let header = bytes[..HEADER_LEN].try_into().unwrap();
        assert_eq!(Layout::parse(&header, len as u64, PENDING_BYTE_DEFAULT), None);
    }
    // 2^24 pages: one more than there may be.
    let mut large = bytes.clone();
    for (count, is_known) in [(1u32 << 24, false), ((1 << 24) - 1, true)] {
        large[28..32].copy_from_slice(&count.to_be_bytes());
        let header = large[..HEADER_LEN].try_into().unwrap();
        let layout = Layout::parse(&header, u64::from(count) * 1024, PENDING_BYTE_DEFAULT);
        assert_eq!(layout.is_some(), is_known);
    }
}

#[test]
fn pages_that_may_be_something_else_are_left_alone() {
    let bytes = sample(512, 1);
    let mut header: [u8; HEADER_LEN] = bytes[..HEADER_LEN].try_into().unwrap();
    let count = (1u32 << 30) / 512 + 4000;
    header[28..32].copy_from_slice(&count.to_be_bytes());
    let file_len = u64::from(count) * 512;
    let layout = Layout::parse(&header, file_len, 65536).unwrap();
    // An empty b-tree page that is not empty.
    let mut page = vec![0xaa; 512];
    page[..8].copy_from_slice(&[13, 0, 0, 0, 0, 2, 0, 0]);
    let is_cleared = |number: u32| layout.clear_unused(number, &mut page.clone());
    assert!(is_cleared(3) && is_cleared(104) && is_cleared(count));
    // Beyond the file; pointer maps, each 103 pages from page 2 on; both lock-byte pages.
    for number in [0, count + 1, u32::MAX, 2, 105, 208, 129, (1 << 30) / 512 + 1] {
        assert!(!is_cleared(number), "{number}");
    }
    // A lock-byte page where a pointer map should be: that one comes right behind it.
    let layout = Layout::parse(&header, file_len, 104 * 512).unwrap();
    for (number, expected) in [(104, true), (105, false), (106, false), (107, true)] {
        assert_eq!(layout.clear_unused(number, &mut page.clone()), expected, "{number}");
    }
    assert!(!layout.clear_unused(3, &mut page[..511]));
    assert!(!layout.clear_unused(3, &mut vec![13; 1024]));
}

#[test]
fn any_bytes_are_taken_and_damaged_pages_left_alone() {
    let mut random = Random::new(1);
    for page_len in [512, 4096, 65536] {
        let bytes = sample(page_len, 0);
        let layout = parse(&bytes).unwrap();
        for _ in 0..20_000 * 512 / page_len {
            let mut page = random.bytes(page_len);
            page[0] = [2, 5, 10, 13][random.below(4) as usize];
            page[1..8].fill(0);
            let count = random.below(6);
            page[4] = count as u8;
            page[5] = random.below(256) as u8;
            page[6] = random.below(256) as u8;
            let before = page.clone();
            let ranges = layout.unused(3, &page);
            layout.clear_unused(3, &mut page);
            let covered = |at: &usize| ranges.iter().flatten().any(|range| range.contains(at));
            assert!((0..page_len).filter(|at| !covered(at)).all(|at| page[at] == before[at]));
        }
        // One byte of header, pointers or freeblocks changed: it is refused, or still means the same.
        for (index, page) in bytes.chunks_exact(page_len).enumerate().skip(2).take(300) {
            let number = index as u32 + 1;
            let Some(ranges) = layout.unused(number, page) else { continue };
            let header_end = ranges.first().map_or(8, |range| range.start.min(40));
            // The number of the last child is the business of the tree.
            let is_header = |at: &usize| page[0] > 5 || !(8..12).contains(at);
            for at in (1..header_end)
                .filter(is_header)
                .chain(ranges.iter().skip(1).map(|range| range.start - 1))
            {
                let mut damaged = page.to_vec();
                damaged[at] = damaged[at].wrapping_add(1 + random.below(255) as u8);
                assert_ne!(layout.unused(number, &damaged), Some(ranges.clone()), "{number} {at}");
            }
        }
    }
}

#[test]
fn an_inconsistent_free_list_is_empty() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("db");
    let db = create(&path, 512, 0);
    db.execute_batch(
        "with recursive n(i) as (select 1 union all select i + 1 from n where i < 600)
         insert into pairs select i, i, zeroblob(200) from n;
         delete from pairs;",
    )
    .unwrap();
    drop(db);
    let bytes = std::fs::read(&path).unwrap();
    let walk = |bytes: &[u8]| {
        let layout = parse(bytes)?;
        let mut reads = 0;
        let mut read = |number: u32| {
            reads += 1;
            assert!(reads < 10_000 && (2..=layout.page_count()).contains(&number));
            Ok::<_, ()>(bytes[(number as usize - 1) * 512..number as usize * 512].to_vec())
        };
        Some(freelist::walk(&layout, &mut read).unwrap())
    };
    let found = walk(&bytes).unwrap();
    assert!(found.trunks.len() > 1 && found.leaves.len() > 150, "{found:?}");
    let number_at = |at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap());
    assert_eq!(found.leaves.len() + found.trunks.len(), number_at(36) as usize);
    assert!(found.leaves.is_sorted());

    let refused = |at: usize, value: u32| {
        let mut damaged = bytes.clone();
        damaged[at..at + 4].copy_from_slice(&value.to_be_bytes());
        let found = walk(&damaged);
        assert!(found.is_none_or(|found| found == Default::default()), "{at} {value}");
    };
    let page_count = number_at(28);
    let trunk = (found.trunks[0].0 as usize - 1) * 512;
    let second = found.trunks[1].0;
    for value in [0, 1, page_count + 1, u32::MAX, found.leaves[0]] {
        refused(32, value);
        refused(trunk, value);
        refused(trunk + 8, value);
    }
    // Cycles, a trunk as a leaf, a leaf twice.
    refused(trunk, found.trunks[0].0);
    refused(trunk + 8, second);
    refused(trunk + 8, found.trunks[0].0);
    refused(trunk + 12, number_at(trunk + 8));
    // Counts that do not fit the page, or the header.
    for value in [0, 1, 127, 128, u32::MAX, 0x4000_0000] {
        refused(trunk + 4, value);
    }
    refused(36, number_at(36) + 1);
    refused(36, number_at(36) - 1);
    let layout = parse(&bytes).unwrap();
    let failing = freelist::walk(&layout, &mut |_| Err("cannot read"));
    assert_eq!(failing, Err("cannot read"));
    let short = freelist::walk(&layout, &mut |_| Ok::<_, ()>(vec![0; 511]));
    assert_eq!(short, Ok(Default::default()));
}
