//! Measures the page filter on databases: sizes without it and with it (per record, the smaller),
//! and speeds.
//!
//! ```text
//! cargo run --release -p hardpack-page-filter --example measure -- [--level NAME] [--record KIB]
//! [--first MB] FILE...
//! ```
//!
//! The codecs are those of the pool. Speeds are of the filter alone, in MB of database per second
//! and core. Every record is decoded and compared.

use std::fs::File;
use std::io::Read;
use std::time::{Duration, Instant};

use hardpack_engine::codec::{Codec, Compression, Encoded, Policy};
use hardpack_page_filter::{PageFilter, guess_page_len};

const RUN_COUNT: usize = 3;

/// The length of bytes as the pool stores them, without rounding to sectors.
fn compressed_len(
    compression: Compression,
    codec: &mut Codec,
    bytes: &[u8],
    buffer: &mut Vec<u8>,
) -> usize {
    let policy = Policy { sector: 1, min_savings: 0, embed_limit: 0 };
    match codec.encode(compression, bytes, &policy, buffer).expect("compression") {
        Encoded::Compressed { .. } => buffer.len(),
        _ => bytes.len(),
    }
}

#[derive(Default)]
struct Figures {
    len: usize,
    plain: usize,
    filtered: usize,
    chosen: usize,
    total: usize,
    encode: Duration,
    decode: Duration,
}

fn measure(path: &str, compression: Compression, record_len: usize, first: usize) -> Figures {
    let mut bytes = Vec::new();
    let mut file = File::open(path).expect("a database");
    file.by_ref().take(first as u64).read_to_end(&mut bytes).expect("reading");
    let page_len = guess_page_len(&bytes, 0).expect("a database");
    let (mut filter, mut codec) = (PageFilter::new(), Codec::new());
    let (mut filtered, mut buffer) = (Vec::new(), Vec::new());
    let mut decoded = vec![0u8; record_len];
    let mut figures = Figures { len: bytes.len(), ..Figures::default() };
    for (i, record) in bytes.chunks(record_len).enumerate() {
        let plain = compressed_len(compression, &mut codec, record, &mut buffer);
        figures.plain += plain;
        figures.total += 1;
        let mut is_filtered = false;
        figures.encode += fastest(|| {
            is_filtered = filter.encode(record, (i * record_len) as u64, page_len, &mut filtered);
        });
        if !is_filtered {
            figures.filtered += plain;
            continue;
        }
        let decoded = &mut decoded[..record.len()];
        figures.decode += fastest(|| filter.decode(&filtered, decoded).expect("decoding"));
        assert!(decoded == record, "record {i} of {path} differs");
        let len = compressed_len(compression, &mut codec, &filtered, &mut buffer);
        figures.chosen += usize::from(len < plain);
        figures.filtered += len.min(plain);
    }
    figures
}

/// The duration of the fastest run; the others were interrupted.
fn fastest(mut run: impl FnMut()) -> Duration {
    let timed = |_| {
        let start = Instant::now();
        run();
        start.elapsed()
    };
    (0..RUN_COUNT).map(timed).min().unwrap_or_default()
}

fn main() {
    let (mut level, mut record_kib, mut first_mb) =
        ("zstd-3".to_string(), 128, usize::MAX / 1_000_000);
    let mut paths = Vec::new();
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().expect("a value");
        match argument.as_str() {
            "--level" => level = value(),
            "--record" => record_kib = value().parse().expect("KiB"),
            "--first" => first_mb = value().parse().expect("MB"),
            _ => paths.push(argument),
        }
    }
    let compression: Compression = level.parse().expect("an algorithm and level");
    println!("{level}, records of {record_kib} KiB");
    println!(
        "{:32} {:>11} {:>11} {:>11} {:>6} {:>11} {:>8} {:>8}",
        "database", "bytes", "plain", "filtered", "ratio", "chosen", "enc MB/s", "dec MB/s"
    );
    let mut log_sum = 0.0;
    for path in &paths {
        let f = measure(path, compression, record_kib << 10, first_mb * 1_000_000);
        let ratio = f.filtered as f64 / f.plain as f64;
        log_sum += ratio.ln();
        let speed = |time: Duration| f.len as f64 / 1e6 / time.as_secs_f64();
        let name = path.rsplit('/').next().unwrap_or(path);
        let chosen = format!("{}/{}", f.chosen, f.total);
        println!(
            "{name:32} {:>11} {:>11} {:>11} {ratio:6.3} {chosen:>11} {:8.0} {:8.0}",
            f.len,
            f.plain,
            f.filtered,
            speed(f.encode),
            speed(f.decode)
        );
    }
    println!("geometric mean {:.4}", (log_sum / paths.len().max(1) as f64).exp());
}
