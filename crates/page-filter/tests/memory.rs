//! The maximum memory of decoding: for forms that claim as much as possible, and for honest records
//! of the worst kind. The test counts allocations and does not rely on the library's own figures.
//!
//! `HARDPACK_FUZZ_COUNT` sets the number of small forms.
#![expect(unsafe_code, reason = "a global allocator")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use hardpack_page_filter::PageFilter;

/// The maximum memory of decoding per byte of the record, as in `docs/page-filter.md`, and the
/// constant part.
const PER_BYTE_MAX: usize = 17;
const BESIDES: usize = 1 << 20;
/// Long enough that the part proportional to the length dominates.
const RECORD_LEN: usize = 2 << 20;

struct Counting;

static LIVE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);
/// The total ever allocated, since allocated memory is also written.
static TOTAL: AtomicUsize = AtomicUsize::new(0);

fn grown(len: usize) {
    TOTAL.fetch_add(len, Ordering::Relaxed);
    let live = LIVE.fetch_add(len, Ordering::Relaxed) + len;
    PEAK.fetch_max(live, Ordering::Relaxed);
}

// SAFETY: every call is forwarded unchanged to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        grown(layout.size());
        // SAFETY: the caller guarantees what the system's allocator requires.
        unsafe { System.alloc(layout) }
    }
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        grown(layout.size());
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: as above; the pointer came from `System`.
        unsafe { System.dealloc(pointer, layout) }
    }
    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, len: usize) -> *mut u8 {
        // Long allocations are moved by remapping pages, not copied.
        match len.checked_sub(layout.size()) {
            Some(more) => grown(more),
            None => drop(LIVE.fetch_sub(layout.size() - len, Ordering::Relaxed)),
        }
        // SAFETY: as above.
        unsafe { System.realloc(pointer, layout, len) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Allocations are counted for the whole process, so only one test runs at a time.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Decodes with a new decoder. Returns the peak and the total of its allocations (without `out`),
/// and whether it succeeded.
fn cost(form: &[u8], out: &mut [u8]) -> (usize, usize, bool) {
    let (live, total) = (LIVE.load(Ordering::Relaxed), TOTAL.load(Ordering::Relaxed));
    PEAK.store(live, Ordering::Relaxed);
    let is_right = PageFilter::new().decode(form, out).is_ok();
    let peak = PEAK.load(Ordering::Relaxed) - live;
    (peak, TOTAL.load(Ordering::Relaxed) - total, is_right)
}

fn check(what: &str, form: &[u8], out: &mut [u8]) -> bool {
    let (peak, total, is_right) = cost(form, out);
    let per_byte = |len: usize| len as f64 / out.len() as f64;
    let is_long = form.len() > 200 || out.len() >= RECORD_LEN;
    if is_long {
        println!("{what}: {:.2} held, {:.2} allocated per byte", per_byte(peak), per_byte(total));
    }
    let limit = PER_BYTE_MAX * out.len() + BESIDES;
    assert!(peak <= limit, "{what}: {peak} bytes held for a record of {}", out.len());
    assert!(total <= 2 * limit, "{what}: {total} bytes allocated for a record of {}", out.len());
    is_right
}

fn varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// The mode of a sequence whose residuals are all 0: `DELTA2` counts up.
const PLAIN: u8 = 0;
const DELTA2: u8 = 0x20;

/// Builds a form by hand.
#[derive(Default)]
struct Form {
    control: Vec<u8>,
    symbols: Vec<u8>,
}

impl Form {
    /// Adds a sequence of any length whose items are all `value`.
    fn all(&mut self, value: i64) -> &mut Form {
        self.control.push(PLAIN);
        varint(&mut self.control, (value << 1 ^ value >> 63) as u64);
        self
    }

    fn bytes(&mut self, bytes: &[u8]) -> &mut Form {
        self.control.extend_from_slice(bytes);
        self
    }

    fn number(&mut self, value: u64) -> &mut Form {
        varint(&mut self.control, value);
        self
    }

    /// Adds identical pages of one group, with this many cells and these flags.
    fn pages(&mut self, cell_count: i64, flags: i64) -> &mut Form {
        self.all(2).all(cell_count).all(flags);
        for flag in [2, 4] {
            if flags & flag != 0 {
                self.all(0);
            }
        }
        self
    }

    fn finish(&self, page_bits: u8) -> Vec<u8> {
        let mut form = vec![page_bits, 0, 0, 2];
        for len in [self.control.len(), self.symbols.len(), 0, 0, 0] {
            varint(&mut form, len as u64);
        }
        form.extend_from_slice(&self.control);
        form.extend_from_slice(&self.symbols);
        form
    }
}

const INDEX_INTERIOR: u8 = 2;
const TABLE_LEAF: u8 = 13;

/// Forms that claim as much as possible: cells with all their parts; payloads with overflow pages;
/// fields in each shape; words and strings in a single page; columns of groups without rows.
fn greedy_forms() -> Vec<(String, Vec<u8>)> {
    let mut forms = Vec::new();
    for (page_bits, cell_counts) in [(9, [84, 256]), (12, [681, 2048]), (16, [10_921, 32_768])] {
        let pages = (RECORD_LEN >> page_bits) as i64;
        for cells in cell_counts {
            let mut form = Form::default();
            form.pages(cells, 6).bytes(&[INDEX_INTERIOR]).number(1);
            form.all(0).bytes(&[0x81]).all(5);
            form.number((cells * pages) as u64).bytes(&[DELTA2, 0, 2]).all(0);
            forms.push((format!("{cells} cells a page of 2^{page_bits}"), form.finish(page_bits)));
        }
        let rows_max = RECORD_LEN as i64 / 2000;
        for cells in [1.max(rows_max / pages), cell_counts[0]] {
            let columns = (RECORD_LEN as i64 / (cells * pages)).min(2000) as usize;
            for class in [1, 3, 6, 7, 14] {
                let mut form = Form::default();
                form.pages(cells, 6).bytes(&[TABLE_LEAF]).number(columns as u64).all(5);
                for _ in 0..columns {
                    form.bytes(&[0x80 | class]);
                    if class != 7 {
                        form.all(9);
                    }
                }
                form.number(0);
                let what = format!("{columns} columns of class {class}, 2^{page_bits}");
                forms.push((what, form.finish(page_bits)));
            }
            // Cycles through the classes, so that each column leaves different lists long.
            let mut form = Form::default();
            form.pages(cells, 6).bytes(&[TABLE_LEAF]).number(columns as u64).all(5);
            let rows = (cells * pages) as usize;
            for column in 0..columns {
                let class = [1, 14, 3, 6][column % 4];
                form.bytes(&[0]).all(9);
                form.symbols.extend_from_slice(&[7]);
                form.symbols.resize(form.symbols.len() + rows - 1, class);
            }
            form.number(0);
            forms.push((
                format!("{columns} columns of any class, 2^{page_bits}"),
                form.finish(page_bits),
            ));
        }
    }
    let mut form = Form::default();
    // The first page is kept, the second belongs to the last group.
    form.bytes(&[0x30, 0]).number(1).number(514);
    forms.push(("groups without rows".into(), form.finish(9)));
    forms
}

#[test]
fn no_form_takes_more_than_its_record_allows() {
    let _alone = alone();
    let mut out = vec![0; RECORD_LEN];
    for (what, form) in greedy_forms() {
        check(&what, &form, &mut out);
    }
}

/// Makes pages full of rows: `row` returns the serial types of each, all without a body.
fn record(page_len: usize, len: usize, row: impl Fn(usize) -> Vec<u8>) -> Vec<u8> {
    let mut record = vec![0; len];
    let mut number = 0;
    for page in record.chunks_exact_mut(page_len) {
        let (mut end, mut count) = (page_len, 0);
        loop {
            let types = row(number);
            let header_len = types.len() + 1 + usize::from(types.len() > 126);
            let mut cell = Vec::new();
            let sqlite = |cell: &mut Vec<u8>, value: usize| {
                if value >= 128 {
                    cell.push(0x80 | (value >> 7) as u8);
                }
                cell.push(value as u8 & 0x7f);
            };
            sqlite(&mut cell, header_len);
            cell.push(number as u8 & 0x7f);
            sqlite(&mut cell, header_len);
            cell.extend(types);
            let cell_len = cell.len().max(4);
            if 8 + 2 * (count + 1) + cell_len > end {
                break;
            }
            end -= cell_len;
            page[end..end + cell.len()].copy_from_slice(&cell);
            page[8 + 2 * count..][..2].copy_from_slice(&(end as u16).to_be_bytes());
            (count, number) = (count + 1, number + 1);
        }
        page[0] = TABLE_LEAF;
        page[3..5].copy_from_slice(&(count as u16).to_be_bytes());
        page[5..7].copy_from_slice(&(end as u16).to_be_bytes());
    }
    record
}

/// With the maximum number of cells, and of fields in each shape, an honest form is decoded
/// completely and uses no more memory than any other.
#[test]
fn honest_records_of_the_worst_kind_are_within_the_bound() {
    let _alone = alone();
    let bits =
        |number: usize| move |i: usize| (number.wrapping_mul(0x9e37_79b9) >> (i % 24)) & 1 == 1;
    type Make<'a> = Box<dyn Fn(usize) -> Vec<u8> + 'a>;
    let kinds: [(&str, Make<'_>); 5] = [
        ("cells", Box::new(|_| vec![8])),
        ("zeros and ones", Box::new(|n| (0..100).map(|i| 8 + u8::from(bits(n)(i))).collect())),
        ("NULLs and ones", Box::new(|n| (0..100).map(|i| 9 * u8::from(bits(n)(i))).collect())),
        ("NULLs and texts", Box::new(|n| (0..100).map(|i| 13 * u8::from(bits(n)(i))).collect())),
        ("rows cut short", Box::new(|n| vec![9; 95 + n % 6])),
    ];
    let mut out = vec![0; RECORD_LEN];
    let (mut filter, mut form) = (PageFilter::new(), Vec::new());
    for (what, row) in &kinds {
        for page_len in [512, 65536] {
            let record = record(page_len, RECORD_LEN, row);
            assert!(filter.encode(&record, RECORD_LEN as u64, page_len, &mut form), "{what}");
            assert!(check(&format!("{what}, {page_len}"), &form, &mut out), "{what}, {page_len}");
            assert!(out == record, "{what}, {page_len}");
        }
    }
}

/// A small pseudo-random number generator (xorshift64*).
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) as usize % limit
    }
}

/// Forms of a few bytes, made of numbers that are meaningful in many places, for records of each
/// length.
#[test]
fn small_forms_take_no_more_than_their_records_allow() {
    let _alone = alone();
    const LIKELY: [u8; 22] = [
        0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 13, 0x10, 0x20, 0x30, 0x7f, 0x80, 0x81, 0x87, 0xff,
    ];
    let count = std::env::var("HARDPACK_FUZZ_COUNT").map_or(2000, |n| n.parse().expect("a number"));
    let mut whole = vec![0; 1 << 20];
    for seed in 0..count {
        let mut random = Random(seed * 0x9E37_79B9 + 0x5851_F42D);
        let mut form = vec![9 + random.below(8) as u8, 0, 0, random.below(3) as u8];
        let control_len = 3 + random.below(40);
        let symbols_len = random.below(4);
        form.extend([control_len as u8, symbols_len as u8, 0, 0, 0]);
        let pages_are_alike = random.below(4) > 0;
        let mut control = Vec::new();
        if pages_are_alike {
            control.extend([0, 4, 0, random.below(128) as u8 & !1, 0, random.below(16) as u8 * 2]);
        }
        control.resize_with(control_len.max(control.len()), || LIKELY[random.below(LIKELY.len())]);
        form[4] = control.len() as u8;
        form.extend(control);
        form.resize_with(form.len() + symbols_len, || random.below(3) as u8);
        let len = [1 << 20, 1 << 16, 4096, 512][random.below(4)];
        let what = format!("seed {seed}, {len}: {form:?}");
        check(&what, &form, &mut whole[..len]);
    }
}
