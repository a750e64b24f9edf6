//! Measures how fast the page filter is, without a codec: encoding, decoding, decoding a part, and
//! checking that a form restores its record.
//!
//! ```text
//! cargo run --release -p hardpack-page-filter --example speed -- [--only encode|check|decode|part]
//! [--rounds N] [--record KIB] [--part KIB] [--first MB] FILE...
//! ```
//!
//! Speeds are in MB of database per second. Each record counts with its fastest round, and a round
//! visits all records, so that branch predictors see what a scan shows them. The input was just
//! copied, as if read from a file or decompressed. The hash is of all forms: it must stay the same
//! if only the speed changes. With `--only`, the difference of two numbers of rounds in `perf stat`
//! is what one round costs.

use std::collections::hash_map::DefaultHasher;
use std::fs::File;
use std::hash::Hasher;
use std::io::Read;
use std::time::{Duration, Instant};

use hardpack_page_filter::{PageFilter, guess_page_len};

struct Options {
    only: Option<String>,
    round_count: usize,
    record_len: usize,
    part_len: usize,
    first_len: u64,
}

impl Options {
    fn read() -> (Options, Vec<String>) {
        let mut options = Options {
            only: None,
            round_count: 5,
            record_len: 128 << 10,
            part_len: 16 << 10,
            first_len: u64::MAX,
        };
        let mut paths = Vec::new();
        let mut arguments = std::env::args().skip(1);
        while let Some(argument) = arguments.next() {
            let mut value = || arguments.next().expect("a value");
            let number = |value: String| value.parse::<usize>().expect("a number");
            match argument.as_str() {
                "--only" => options.only = Some(value()),
                "--rounds" => options.round_count = number(value()),
                "--record" => options.record_len = number(value()) << 10,
                "--part" => options.part_len = number(value()) << 10,
                "--first" => options.first_len = number(value()) as u64 * 1_000_000,
                _ => paths.push(argument),
            }
        }
        (options, paths)
    }

    fn does(&self, what: &str) -> bool {
        self.only.as_ref().is_none_or(|only| only == what)
    }
}

/// The fastest time of each item, over all rounds.
struct Times(Vec<Duration>);

impl Times {
    /// Calls `run` with the number of each item, and a copy of its input.
    fn of<'a>(
        round_count: usize,
        inputs: impl Iterator<Item = &'a [u8]> + Clone,
        mut run: impl FnMut(usize, &[u8]),
    ) -> Times {
        let mut times = vec![Duration::MAX; inputs.clone().count()];
        let mut copy = Vec::new();
        for _ in 0..round_count {
            for (i, (time, input)) in times.iter_mut().zip(inputs.clone()).enumerate() {
                copy.clear();
                copy.extend_from_slice(input);
                let start = Instant::now();
                run(i, &copy);
                *time = start.elapsed().min(*time);
            }
        }
        Times(times)
    }

    fn sum(&self) -> f64 {
        self.0.iter().sum::<Duration>().as_secs_f64()
    }
}

/// Measures one database and prints a line.
fn measure(path: &str, options: &Options) {
    let mut bytes = Vec::new();
    let mut file = File::open(path).expect("a database").take(options.first_len);
    file.read_to_end(&mut bytes).expect("reading");
    let page_len = guess_page_len(&bytes, 0).expect("a database");
    let mut filter = PageFilter::new();
    let (mut forms, mut hasher) = (Vec::new(), DefaultHasher::new());
    for (i, record) in bytes.chunks(options.record_len).enumerate() {
        let mut form = Vec::new();
        if !filter.encode(record, (i * options.record_len) as u64, page_len, &mut form) {
            hasher.write_usize(i);
            continue;
        }
        hasher.write(&form);
        let mut decoded = vec![0xEE; record.len()];
        filter.decode(&form, &mut decoded).expect("decoding");
        assert!(decoded == record, "record {i} of {path} differs");
        forms.push((i * options.record_len, record, form));
    }
    let filtered_len: usize = forms.iter().map(|(_, record, _)| record.len()).sum();
    let mut out = vec![0; options.record_len];
    let mut columns = [0.0; 4];
    if options.does("encode") {
        let mut form = Vec::new();
        let records = forms.iter().map(|(_, record, _)| *record);
        let times = Times::of(options.round_count, records, |i, record| {
            filter.encode(record, forms[i].0 as u64, page_len, &mut form);
        });
        columns[0] = filtered_len as f64 / 1e6 / times.sum();
    }
    let inputs = forms.iter().map(|(.., form)| &form[..]);
    if options.does("check") {
        let times = Times::of(options.round_count, inputs.clone(), |i, form| {
            assert!(filter.restores(form, forms[i].1), "record {i} of {path} differs");
        });
        columns[3] = filtered_len as f64 / 1e6 / times.sum();
    }
    if options.does("decode") {
        let times = Times::of(options.round_count, inputs.clone(), |i, form| {
            filter.decode(form, &mut out[..forms[i].1.len()]).expect("decoding");
        });
        columns[1] = filtered_len as f64 / 1e6 / times.sum();
    }
    if options.does("part") {
        let times = Times::of(options.round_count, inputs, |i, form| {
            let record = forms[i].1;
            let start = i * options.part_len % record.len();
            let part = start..record.len().min(start + options.part_len);
            let out = &mut out[..part.len()];
            filter.decode_part(form, record.len(), start, out).expect("decoding");
            assert!(*out == record[part], "a part of {path} differs");
        });
        columns[2] = times.sum() * 1e6 / forms.len().max(1) as f64;
    }
    let name = path.rsplit('/').next().unwrap_or(path);
    let [encode, decode, part, check] = columns;
    let hash = hasher.finish();
    println!(
        "{name:32} {filtered_len:>11} {encode:9.0} {decode:9.0} {part:9.1}  {hash:016x} {check:10.0}"
    );
}

fn main() {
    let (options, paths) = Options::read();
    println!(
        "{:32} {:>11} {:>9} {:>9} {:>9}  {:16} {:>10}",
        "database", "bytes", "enc MB/s", "dec MB/s", "part µs", "hash of all forms", "check MB/s"
    );
    for path in &paths {
        measure(path, &options);
    }
}
