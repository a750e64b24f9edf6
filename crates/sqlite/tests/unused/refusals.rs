//! Refused or left alone: unusual headers, pages that may be something else, damage.

use hardpack::unused::{HEADER_LEN, Layout, PENDING_BYTE_DEFAULT, freelist};

use super::workload::{Random, create, steps};

/// Returns the bytes of a database with every kind of page.
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
    // 2^24 pages: one more than is allowed.
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
    // An empty b-tree page whose free space is not zeros.
    let mut page = vec![0xaa; 512];
    page[..8].copy_from_slice(&[13, 0, 0, 0, 0, 2, 0, 0]);
    let is_cleared = |number: u32| layout.clear_unused(number, &mut page.clone());
    assert!(is_cleared(3) && is_cleared(104) && is_cleared(count));
    // Beyond the file; pointer maps, every 103 pages from page 2 on; both lock-byte pages.
    for number in [0, count + 1, u32::MAX, 2, 105, 208, 129, (1 << 30) / 512 + 1] {
        assert!(!is_cleared(number), "{number}");
    }
    // A lock-byte page at the place of a pointer map: the pointer map comes right after it.
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
        // After a change of one byte in the header, pointers or freeblocks, the page is refused or
        // still means the same.
        for (index, page) in bytes.chunks_exact(page_len).enumerate().skip(2).take(300) {
            let number = index as u32 + 1;
            let Some(ranges) = layout.unused(number, page) else { continue };
            let header_end = ranges.first().map_or(8, |range| range.start.min(40));
            // The number of the last child concerns only the tree.
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
