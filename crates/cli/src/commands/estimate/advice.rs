//! The recommendation: the settings of this build that would store the data in the least space.
//!
//! Metadata counts here, as it is what small records and deduplication cost. A setting other than
//! the default must save [`GAIN_MIN`] to be recommended.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::hash::Hash;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use hardpack_engine::codec::Compression;

use super::blocks::Cut;
use super::walk::Named;
use super::{Report, Row, report};
use crate::output::bytes;

/// The length of a record's entry in the tree of records, in bytes: 43 to 63 were measured with
/// records of 4K to 128K, all else of a pool included.
const POINTER_LEN: f64 = 44.0;
/// What deduplication adds for each distinct record, in its trees and its index: 77 to 112 were
/// measured.
const ENTRY_LEN: f64 = 110.0;
/// The memory of the index for each distinct record, in bytes: filters of 16 bits, which merges of
/// runs may hold twice, and new entries.
pub const INDEX_ENTRY_LEN: f64 = 3.0;
/// The memory of OpenZFS's table for each distinct block: "approximately 320 bytes" (Oracle, "How
/// to Size Main Memory for ZFS Deduplication"); zdb -DD shows 150 to 400 "in core".
pub const OPENZFS_ENTRY_LEN: f64 = 320.0;

/// The share that a setting must save.
const GAIN_MIN: f64 = 0.03;
/// What names and pointers take once they are packed, in bytes: 44 for each file of one record, 19
/// to 26 for each record of long files were measured.
const PACKED_FILE_LEN: f64 = 24.0;
const PACKED_POINTER_LEN: f64 = 22.0;
/// The share that `optimize` must save to be recommended: it takes a while.
const SEGMENTS_GAIN_MIN: f64 = 0.1;
/// The greatest share of what it leaves alone.
const LEFT_ALONE_MAX: f64 = 0.1;
/// The share that chunks must save to be mentioned.
const CHUNKS_GAIN_MIN: f64 = 0.1;
const RECORD_LEN_MIN: usize = 4 << 10;
const RECORD_LEN_DEFAULT: usize = 128 << 10;
const COMPRESSION_DEFAULT: Compression = Compression::Zstd(3);

/// Settings, and the space that they would take.
#[derive(Clone, Copy)]
pub struct Advice<'r> {
    pub row: &'r Row,
    pub compression: Compression,
    pub dedup: bool,
    /// With metadata, in bytes.
    pub total: f64,
    /// The memory of the index, in bytes.
    pub index_len: f64,
    /// The same for the default record size without deduplication.
    pub plain_total: f64,
    /// What it takes at most after `optimize`, with metadata, if that is recommended.
    pub after_optimize: Option<f64>,
}

/// Ranks compressions by their speed.
fn slowness(compression: Compression) -> u32 {
    match compression {
        Compression::Off => 0,
        Compression::Zle => 1,
        Compression::Lz4 => 2,
        Compression::ZstdFast(_) => 3,
        Compression::Lzjb => 4,
        Compression::Zstd(level) => 5 + u32::from(level),
        Compression::Lz4Hc(level) => 10 + u32::from(level),
        Compression::Gzip(level) => 15 + u32::from(level),
        Compression::Lzma(level) => 40 + u32::from(level),
        _ => u32::MAX,
    }
}

fn total(row: &Row, column: usize, dedup: bool) -> f64 {
    let (figures, stored) = (&row.figures, &row.figures.stored[column]);
    let pointers = figures.count.value * POINTER_LEN + stored.in_pointers;
    match dedup {
        false => stored.all.value + pointers,
        // Of a sample, the worst case.
        true => stored.once.high + pointers + figures.distinct.high * ENTRY_LEN,
    }
}

fn is_default(row: &Row) -> bool {
    row.cut == Cut::Fixed(RECORD_LEN_DEFAULT)
}

/// Whether a command could store data in such blocks: only what is put into a pool is cut into
/// chunks.
fn is_possible(report: &Report<'_>, row: &Row) -> bool {
    match row.cut {
        Cut::Fixed(len) => len >= RECORD_LEN_MIN,
        Cut::Chunks(_) => report.named.iter().all(|named| matches!(named, Named::Path(_))),
    }
}

/// Returns the recommendation.
pub fn of<'r>(report: &'r Report<'_>) -> Option<Advice<'r>> {
    // No other record size would make smaller what is in segments: 'repack' takes it out of them.
    if report::unknown(report).is_some() {
        return None;
    }
    let compressions = &report.args.compression;
    let fastest = compressions.iter().map(|one| slowness(*one)).min()?;
    let rows = report.rows.iter();
    let possible = rows.filter(|row| is_possible(report, row));
    let default = report.rows.iter().find(|row| is_default(row))?;
    let plain_total = |column| total(default, column, false);
    let all = possible.flat_map(|row| {
        compressions.iter().enumerate().flat_map(move |(column, compression)| {
            // Without deduplication, chunks only cost.
            let is_cut = matches!(row.cut, Cut::Chunks(_));
            [false, true].into_iter().filter(move |dedup| *dedup || !is_cut).map(move |dedup| {
                Advice::new(row, (column, *compression), dedup, plain_total(column))
            })
        })
    });
    let cost = |advice: &Advice<'_>| {
        let is_slower = slowness(advice.compression) > fastest;
        let unusual = [advice.dedup, is_slower, !is_default(advice.row)];
        let count = unusual.iter().filter(|is_so| **is_so).count();
        advice.total * (1.0 + GAIN_MIN * count as f64)
    };
    let best = all.min_by(|one, other| cost(one).total_cmp(&cost(other)))?;
    Some(with_segments(report, best).unwrap_or(best))
}

fn pool_of(named: &Named) -> Option<&Path> {
    match named {
        Named::InPool(address) => Some(&address.pool),
        Named::Path(_) => None,
    }
}

/// Returns the settings with which files are put into segments, if that saves enough.
fn with_segments<'r>(report: &'r Report<'_>, best: Advice<'r>) -> Option<Advice<'r>> {
    let found = report.in_segments.as_ref()?;
    let rows = report.rows.iter();
    let row = rows.rev().find(|row| matches!(row.cut, Cut::Chunks(_)))?;
    let pools: Vec<&Path> = report.named.iter().filter_map(pool_of).collect();
    if !pools.is_empty() && pools.len() < report.named.len() {
        // No single command does it.
        return None;
    }
    if !are_distinct(&pools) {
        // Each would be optimised alone.
        return None;
    }
    let counts = &report.counts;
    // Names may not compress, nor may what is left alone.
    let names = counts.files as f64 * PACKED_FILE_LEN + counts.names as f64;
    let column = report.args.compression.iter().position(|one| *one == best.compression)?;
    let pointers =
        row.figures.count.value * PACKED_POINTER_LEN + row.figures.stored[column].in_pointers;
    let after_optimize = found.stored.high + found.left_alone as f64 + pointers + names;
    let pays = after_optimize < best.total * (1.0 - SEGMENTS_GAIN_MIN)
        && found.left_alone as f64 <= report.counts.bytes as f64 * LEFT_ALONE_MAX;
    if !pays {
        return None;
    }
    let after_optimize = Some(after_optimize);
    // What is in a pool keeps its records, and where nothing recurs, chunks only cost.
    if !is_possible(report, row) || !best.dedup {
        return Some(Advice { after_optimize, ..best });
    }
    let cut = Advice::new(row, (column, best.compression), true, best.plain_total);
    Some(Advice { after_optimize, ..cut })
}

impl<'r> Advice<'r> {
    fn new(
        row: &'r Row,
        (column, compression): (usize, Compression),
        dedup: bool,
        plain_total: f64,
    ) -> Advice<'r> {
        let index_len = row.figures.distinct.value * INDEX_ENTRY_LEN * f64::from(dedup);
        let total = total(row, column, dedup);
        Advice { row, compression, dedup, total, index_len, plain_total, after_optimize: None }
    }

    /// The properties that differ from the defaults.
    fn settings(&self) -> Vec<(&'static str, String)> {
        let mut settings = Vec::new();
        let (.., record_len) = self.row.cut.lengths();
        if record_len != RECORD_LEN_DEFAULT {
            settings.push(("recordsize", self.record_size()));
        }
        if self.compression != COMPRESSION_DEFAULT {
            settings.push(("compression", self.compression.to_string()));
        }
        if self.dedup {
            settings.push(("dedup", "on".to_owned()));
        }
        if self.chunking() != "fixed" {
            settings.push(("chunking", self.chunking().to_owned()));
        }
        settings
    }

    /// The record size, as a user would type it.
    pub fn record_size(&self) -> String {
        match self.row.cut {
            Cut::Fixed(_) => self.row.name.to_owned(),
            Cut::Chunks(_) => format!("{}K", self.row.cut.lengths().2 >> 10),
        }
    }

    /// How files are to be cut.
    pub fn chunking(&self) -> &'static str {
        match self.row.cut {
            Cut::Fixed(_) => "fixed",
            Cut::Chunks(_) => "auto",
        }
    }

    /// Why, in a few words.
    pub fn reason(&self, report: &Report<'_>) -> String {
        let size = |len: f64| bytes(len as u64, report.args.exact);
        if let Some(after_optimize) = self.after_optimize {
            return format!(
                "at most {} of {} with metadata, {} before 'optimize': near-copies are stored \
                 together",
                size(after_optimize),
                size(report.counts.bytes as f64),
                size(self.total)
            );
        }
        let is_least = if report.part.is_some() && self.dedup { "at most " } else { "" };
        let whole = report.counts.bytes as f64;
        let mut reason = format!("{is_least}{} of {} with metadata", size(self.total), size(whole));
        let is_plain = is_default(self.row) && !self.dedup;
        if self.plain_total > self.total && !is_plain {
            let less = 100.0 * (1.0 - self.total / self.plain_total);
            let (plain, name) = (size(self.plain_total), self.compression);
            reason += &format!(", {less:.0}% less than {plain} with {name}, 128K and no dedup");
        } else {
            reason += ", and neither dedup nor another record size saves 3%";
        }
        if self.dedup {
            reason += &format!("; the index takes {} of memory", size(self.index_len));
        }
        reason
    }

    /// The command that stores the data so.
    pub fn command(&self, report: &Report<'_>) -> String {
        let settings = self.settings();
        let paths = report.named.iter().filter_map(|named| match named {
            Named::Path(path) => Some(path.as_path()),
            Named::InPool(_) => None,
        });
        let paths: Vec<&Path> = paths.collect();
        if let Some(first) = paths.first() {
            let flags = settings.iter().map(|(property, value)| match *property {
                "dedup" | "chunking" => format!(" -o {property}={value}"),
                _ => format!(" --{property} {value}"),
            });
            let name = first.file_name().unwrap_or("data".as_ref()).to_os_string();
            let (flags, pool) = (flags.collect::<String>(), unused(&name));
            let put = |sources: &[&Path], to: &str| {
                let sources: String =
                    sources.iter().map(|path| format!(" {}", quoted(path))).collect();
                format!("hardpack put{flags}{sources} {pool}{to}")
            };
            let mut commands = match would_meet(&paths) {
                false => vec![put(&paths, "")],
                true => {
                    (1..).zip(&paths).map(|(n, path)| put(&[path], &format!("/{n}/"))).collect()
                }
            };
            commands.extend(self.after_optimize.map(|_| format!("hardpack optimize {pool}")));
            return commands.join(" && ");
        }
        let pools = report.named.iter().filter_map(|named| match named {
            // What is in a snapshot cannot be changed.
            Named::InPool(address) if report.counts.has_snapshots => Some(address.pool.as_path()),
            Named::InPool(address) => Some(Path::new(address.given())),
            Named::Path(_) => None,
        });
        let mut pools: Vec<String> = pools.map(quoted).collect();
        pools.sort();
        pools.dedup();
        if self.after_optimize.is_some() {
            let optimize = pools.iter().map(|pool| format!("hardpack optimize {pool}"));
            return optimize.collect::<Vec<_>>().join(" && ");
        }
        let all = pools.join(" ");
        let given: String =
            [("recordsize", self.row.name), ("compression", &self.compression.to_string())]
                .map(|(property, value)| format!(" {property}={value}"))
                .concat();
        let dedup = if self.dedup { " dedup=on" } else { "" };
        let repack = pools.iter().map(|pool| format!(" && hardpack repack {pool}"));
        format!("hardpack set{given}{dedup} {all}{}", repack.collect::<String>())
    }
}

/// Says what content-defined chunks would save beyond the recommendation, where that is for pools:
/// what is in a pool keeps its records.
pub fn note_on_chunks(report: &Report<'_>, advice: &Advice<'_>) -> Option<String> {
    let column = report.args.compression.iter().position(|one| *one == advice.compression)?;
    let chunks = report.rows.iter().filter(|row| matches!(row.cut, Cut::Chunks(_)));
    let best = chunks
        .map(|row| (total(row, column, true), row.name))
        .min_by(|one, other| one.0.total_cmp(&other.0))?;
    let is_cut = matches!(advice.row.cut, Cut::Chunks(_));
    let total = advice.after_optimize.unwrap_or(advice.total);
    (!is_cut && best.0 < total * (1.0 - CHUNKS_GAIN_MIN)).then(|| {
        let size = bytes(best.0 as u64, report.args.exact);
        format!(
            "content-defined chunks of {} would take {size}: 'hardpack put -o chunking=auto -o \
             dedup=on' stores files so",
            best.1
        )
    })
}

/// Whether what is below some paths would come to lie in one another if 'hardpack put' put all of
/// them into one directory.
fn would_meet(paths: &[&Path]) -> bool {
    let names: Option<Vec<&OsStr>> = paths.iter().map(|path| stored_name(path)).collect();
    paths.len() > 1 && names.is_none_or(|names| !are_distinct(&names))
}

/// The name that 'hardpack put' gives to a source; nothing for 'SOURCE/' and 'SOURCE/.', of which
/// it puts the contents.
fn stored_name(path: &Path) -> Option<&OsStr> {
    let bytes = path.as_os_str().as_bytes();
    let is_itself = !bytes.ends_with(b"/") && !bytes.ends_with(b"/.");
    path.file_name().filter(|_| is_itself)
}

fn are_distinct<T: Eq + Hash>(all: &[T]) -> bool {
    all.iter().collect::<HashSet<_>>().len() == all.len()
}

/// The name of a pool that does not exist yet.
fn unused(name: &OsStr) -> String {
    let mut pool = name.to_os_string();
    pool.push(".hpk");
    for number in 2..100 {
        if std::fs::symlink_metadata(&pool).is_err() {
            break;
        }
        pool = name.to_os_string();
        pool.push(format!("-{number}.hpk"));
    }
    quoted(Path::new(&pool))
}

/// A path as a shell takes it.
pub fn quoted(path: &Path) -> String {
    let bytes = path.as_os_str().as_bytes();
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"/._-+=:,@%".contains(byte);
    if bytes.iter().all(is_plain) && !bytes.starts_with(b"-") && !bytes.is_empty() {
        return String::from_utf8_lossy(bytes).into_owned();
    }
    let dash = if bytes.starts_with(b"-") { "./" } else { "" };
    match std::str::from_utf8(bytes) {
        Ok(text) if !text.chars().any(char::is_control) => {
            format!("{dash}'{}'", text.replace('\'', r"'\''"))
        }
        _ => {
            let byte = |byte: &u8| match byte {
                byte if byte.is_ascii_alphanumeric() || *byte == b'/' => char::from(*byte).into(),
                byte => format!(r"\x{byte:02x}"),
            };
            format!("{dash}$'{}'", bytes.iter().map(byte).collect::<String>())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_quoted_for_a_shell() {
        let of = |bytes: &[u8]| quoted(Path::new(OsStr::from_bytes(bytes)));
        assert_eq!(of(b"a/b-1.db"), "a/b-1.db");
        assert_eq!(of(b"it's"), r"'it'\''s'");
        assert_eq!(of(b"-rf"), "./'-rf'");
        assert_eq!(of("ä $x".as_bytes()), "'ä $x'");
        assert_eq!(of(b"a\n\xff'"), r"$'a\x0a\xff\x27'");
        assert_eq!(of(b""), "''");
    }
}
