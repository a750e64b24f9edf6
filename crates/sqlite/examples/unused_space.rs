//! Measures what clearing unused bytes would save: `cargo run --release --example unused_space --
//! DB...`
//!
//! For each database: the bytes of free-list leaves, of gaps in pages, and inside freeblocks, with
//! the share that is not zero already; and the length of all records of 128 KiB under zstd-3,
//! before and after. The files are only read; they must be complete, without a hot journal or a
//! WAL.

use hardpack::unused::{HEADER_LEN, Layout, PENDING_BYTE_DEFAULT, freelist};
use hardpack_engine::codec::{Codec, CodecError, Encoded, Policy};

const RECORD_LEN: usize = 128 << 10;

#[derive(Default)]
struct Part {
    len: usize,
    non_zero_len: usize,
}

impl Part {
    fn clear(&mut self, bytes: &mut [u8]) {
        self.len += bytes.len();
        self.non_zero_len += bytes.iter().filter(|&&byte| byte != 0).count();
        bytes.fill(0);
    }

    fn show(&self, file_len: usize) -> String {
        let percent = |part: usize, whole: usize| 100.0 * part as f64 / whole.max(1) as f64;
        let (share, dirty) = (percent(self.len, file_len), percent(self.non_zero_len, self.len));
        format!("{share:5.1} % ({dirty:3.0} % dirty)")
    }
}

fn compressed_len(bytes: &[u8]) -> Result<usize, CodecError> {
    let mut codec = Codec::new();
    let mut dst = Vec::new();
    let zstd = hardpack_engine::codec::Compression::Zstd(3);
    bytes.chunks(RECORD_LEN).try_fold(0, |sum, record| {
        let len = match codec.encode(zstd, record, &Policy::default(), &mut dst)? {
            Encoded::Hole | Encoded::Embedded { .. } => 0,
            Encoded::Raw => record.len(),
            Encoded::Compressed { .. } => dst.len().next_multiple_of(512),
        };
        Ok(sum + len)
    })
}

fn measure(path: &str) -> Result<(), Box<dyn std::error::Error>> {
    let mut bytes = std::fs::read(path)?;
    let header: [u8; HEADER_LEN] = bytes.get(..HEADER_LEN).ok_or("too short")?.try_into()?;
    let layout = Layout::parse(&header, bytes.len() as u64, PENDING_BYTE_DEFAULT)
        .ok_or("an unusual header")?;
    let before = compressed_len(&bytes)?;
    let page_len = layout.page_len();
    let at = |number: u32| (number as usize - 1) * page_len;
    let free = freelist::walk(&layout, &mut |number| {
        Ok::<_, CodecError>(bytes[at(number)..at(number) + page_len].to_vec())
    })?;
    let (mut leaves, mut gaps, mut freeblocks) =
        (Part::default(), Part::default(), Part::default());
    for leaf in &free.leaves {
        leaves.clear(&mut bytes[at(*leaf)..at(*leaf) + page_len]);
    }
    for (trunk, used_len) in free.trunks {
        leaves.clear(&mut bytes[at(trunk) + used_len..at(trunk) + page_len]);
    }
    let (mut page_count, mut known_count) = (0, 0);
    for number in 1..=layout.page_count() {
        let page = &mut bytes[at(number)..at(number) + page_len];
        let header = if number == 1 { HEADER_LEN } else { 0 };
        page_count += usize::from(matches!(page[header], 2 | 5 | 10 | 13));
        let Some(ranges) = layout.unused(number, page) else { continue };
        known_count += 1;
        let content = u16::from_be_bytes([page[header + 5], page[header + 6]]);
        for range in ranges {
            let is_gap = range.end == usize::from(content) || content == 0;
            if is_gap { &mut gaps } else { &mut freeblocks }.clear(&mut page[range]);
        }
    }
    let after = compressed_len(&bytes)?;
    let name = path.rsplit('/').next().unwrap_or(path);
    println!(
        "{name:<34} {:>7.1} MB pages of {page_len:>5}, b-tree {known_count}/{page_count}: free {}  \
         gaps {}  freeblocks {}  zstd-3 {before} -> {after} ({:+.2} %)",
        bytes.len() as f64 / 1e6,
        leaves.show(bytes.len()),
        gaps.show(bytes.len()),
        freeblocks.show(bytes.len()),
        100.0 * (after as f64 / before as f64 - 1.0),
    );
    Ok(())
}

fn main() {
    for path in std::env::args().skip(1) {
        if let Err(reason) = measure(&path) {
            eprintln!("cannot measure '{path}': {reason}");
        }
    }
}
