//! `hardpack info`: shows what a pool holds. Except for the number of names, which it counts, the
//! pool keeps all figures up to date, so no record is read.

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use hardpack_engine::codec::CodecId;
use hardpack_engine::pool::{Attributes, DirEntry, Kind, Pool, Property, ROOT, Repack};
use hardpack_engine::store::dead::Held;
use hardpack_engine::store::stats::{CodecStats, PoolStats};
use hardpack_engine::store::superblock::EXTENTS_OFFSET;
use hardpack_engine::{FileId, Txg};
use serde_json::{Value, json};

use super::properties::guid;
use crate::args::InfoArgs;
use crate::failure::{Cannot, Failure, Reason};
use crate::output::{self, bytes, count, json_ratio, quotient, ratio};
use crate::sidecars::without_link;
use crate::{pool_file, sqlite, text, users};

pub fn run(args: &InfoArgs) -> Result<ExitCode, Failure> {
    show(args).cannot("show", text::path(&args.pool))?;
    Ok(ExitCode::SUCCESS)
}

fn show(args: &InfoArgs) -> Result<(), Reason> {
    let pool = pool_file::open_read_only(&args.pool, None)?;
    let info = Info::gather(&pool, &args.pool)?;
    if args.json {
        output::print_json(&info.json()?)
    } else {
        output::print(info.text(args.exact)?)
    }
}

struct Info<'p> {
    pool: &'p Pool,
    path: &'p Path,
    /// The only file of the pool, with its attributes.
    only: Option<(DirEntry, Attributes)>,
    counts: Counts,
    stats: PoolStats,
    txg: u64,
    durable_txg: u64,
    pool_bytes: u64,
    free_bytes: u64,
    /// Everything but what is free, and what no pool uses.
    used_bytes: u64,
    /// The space that only snapshots hold.
    held: Held,
    wal_bytes: u64,
    /// An unfinished repack.
    repack: Option<Repack>,
    /// The states that other processes read, oldest first.
    pinned: Vec<Pinned>,
}

/// A state that other processes read.
struct Pinned {
    txg: u64,
    /// The processes, as far as they can be seen.
    readers: Vec<String>,
    /// When the database in it was last changed, if that is known.
    changed: Option<Changed>,
}

/// When the database was last changed in a state, in nanoseconds since 1970.
enum Changed {
    At(i64),
    /// This is known of a later state only.
    AtOrBefore(i64),
}

impl Changed {
    /// Finds out when the database was last changed in a state. Only states in the ring can be
    /// read.
    fn of(pool: &Pool, txg: Txg, database: FileId) -> Option<Changed> {
        let states = pool.store().superblocks().ok()?;
        let first = states.iter().rev().find(|state| state.txg >= txg)?.txg;
        let device = Arc::clone(pool.store().device());
        let state = Pool::open_at(device, pool.options().clone(), first).ok()?;
        let time_ns = state.attributes(database).ok()?.modified_ns;
        match time_ns {
            0 => None,
            _ if first == txg => Some(Changed::At(time_ns)),
            _ => Some(Changed::AtOrBefore(time_ns)),
        }
    }
}

impl Pinned {
    /// Space that is free since one of these states cannot be reused yet.
    fn all(pool: &Pool, path: &Path, database: Option<FileId>) -> Result<Vec<Pinned>, Reason> {
        let all = pool.store().pinned_by_others()?.into_iter();
        let pinned = |txg: Txg| Pinned {
            txg: txg.0,
            readers: users::readers_of(path, txg),
            changed: database.and_then(|file| Changed::of(pool, txg, file)),
        };
        Ok(all.map(pinned).collect())
    }

    fn text(&self, newest: u64) -> String {
        let who = match &self.readers[..] {
            [] => "another process".into(),
            known => known.join(", "),
        };
        let when = match self.changed {
            Some(Changed::At(ns)) => format!(", as of {}", text::time(ns, false)),
            Some(Changed::AtOrBefore(ns)) => {
                format!(", as of {} or before", text::time(ns, false))
            }
            None => String::new(),
        };
        match newest.saturating_sub(self.txg) {
            0 => format!("{who}, the newest state{when}"),
            1 => format!("{who}, the state 1 commit ago{when}"),
            ago => format!("{who}, the state {ago} commits ago{when}"),
        }
    }
}

/// The number of entries of each kind in a pool.
#[derive(Default)]
struct Counts {
    files: u64,
    directories: u64,
    symlinks: u64,
    special_files: u64,
}

impl Counts {
    fn of(pool: &Pool) -> Result<Counts, Reason> {
        let mut counts = Counts::default();
        pool.walk(ROOT, &mut |_, entry, _| {
            match entry.kind {
                Kind::File => counts.files += 1,
                Kind::Directory => counts.directories += 1,
                Kind::Symlink => counts.symlinks += 1,
                Kind::Fifo | Kind::Socket | Kind::CharDevice | Kind::BlockDevice => {
                    counts.special_files += 1;
                }
            }
            Ok(true)
        })?;
        Ok(counts)
    }
}

impl<'p> Info<'p> {
    fn gather(pool: &'p Pool, path: &'p Path) -> Result<Info<'p>, Reason> {
        let only = match pool.only_file() {
            Ok(entry) => Some((entry.clone(), pool.attributes(entry.file)?)),
            Err(_) => None,
        };
        let database = only.as_ref().map(|(entry, _)| entry.file);
        let state = pool.state();
        let repack = match &only {
            Some((entry, _)) => pool.unfinished_repack(entry.file)?,
            None => None,
        };
        let wal = std::fs::metadata(sqlite::beside(&without_link(path), "-wal"));
        let ashift = pool.store().ashift();
        let end = state.superblock.end.0 << ashift;
        // While somebody uses the pool, its file may be longer than it needs to be. A block device
        // always is.
        let metadata = std::fs::metadata(path)?;
        let pool_bytes = if metadata.is_file() { metadata.len() } else { end };
        Ok(Info {
            pool,
            path,
            only,
            counts: Counts::of(pool)?,
            stats: *state.stats(),
            txg: state.txg().0,
            durable_txg: state.durable_txg().0,
            pool_bytes,
            free_bytes: state.free_bytes(ashift) + pool_bytes.saturating_sub(end),
            used_bytes: state.used_sectors(ashift) << ashift,
            held: pool.held_by_snapshots()?,
            wal_bytes: wal.map_or(0, |metadata| metadata.len()),
            repack,
            pinned: Pinned::all(pool, path, database)?,
        })
    }

    /// The file or directory whose properties are shown.
    fn subject(&self) -> FileId {
        self.only.as_ref().map_or(ROOT, |(entry, _)| entry.file)
    }

    fn ratio(&self) -> f64 {
        quotient(self.stats.file_bytes, self.pool_bytes)
    }

    /// Bytes of files that no record covers. Patches do not count, since they override parts of
    /// records.
    fn hole_bytes(&self) -> u64 {
        let records = self.stats.data().logical.saturating_sub(self.stats.patches.logical);
        self.stats.file_bytes.saturating_sub(records)
    }

    /// What records take, each extent once. The statistics have the share of each pointer, and do
    /// not tell how many point to the same part of a segment.
    fn data_bytes(&self) -> u64 {
        let others = [EXTENTS_OFFSET, self.stats.nodes.allocated, self.held.only];
        others.into_iter().fold(self.used_bytes, u64::saturating_sub)
    }

    /// What records would take if none shared an extent, as far as pointers tell.
    fn referenced_bytes(&self) -> u64 {
        self.stats.data().allocated
    }

    /// What records would take if none shared an extent, divided by what they take. What is unused
    /// in segments makes nothing worse than no sharing at all.
    fn dedup_ratio(&self) -> f64 {
        quotient(self.referenced_bytes(), self.data_bytes()).max(1.0)
    }

    /// The rest, neither data, metadata, held by snapshots nor free: header and superblocks, and in
    /// a large pool the range that is never used.
    fn fixed_bytes(&self) -> u64 {
        let known = self.used_bytes + self.free_bytes;
        EXTENTS_OFFSET + self.pool_bytes.saturating_sub(known)
    }

    /// The statistics of each codec in use.
    fn codecs(&self) -> Vec<(String, CodecStats)> {
        let name = |number: usize| {
            let known = u8::try_from(number).ok().and_then(|n| CodecId::try_from(n).ok());
            known.map_or_else(|| format!("codec {number}"), |id| id.to_string())
        };
        let codecs = self.stats.codecs.iter().enumerate();
        codecs.filter(|(_, stats)| stats.records > 0).map(|(n, stats)| (name(n), *stats)).collect()
    }

    fn json(&self) -> Result<Value, Reason> {
        let stats_json = |stats: &CodecStats| {
            json!({
                "records": stats.records,
                "logical_bytes": stats.logical,
                "stored_bytes": stats.stored,
                "allocated_bytes": stats.allocated,
                "ratio": json_ratio(quotient(stats.logical, stats.allocated.max(stats.stored))),
            })
        };
        let codecs: serde_json::Map<String, Value> =
            self.codecs().iter().map(|(name, stats)| (name.clone(), stats_json(stats))).collect();
        let properties = self.pool.properties(self.subject())?.into_iter().map(|known| {
            json!({
                "property": known.property.name(),
                "value": known.value,
                "source": known.source.to_string(),
            })
        });
        Ok(json!({
            "pool": self.path.to_string_lossy(),
            "file": self.only.as_ref().map(|(entry, _)| entry.display_name()),
            "files": self.counts.files,
            "directories": self.counts.directories,
            "symlinks": self.counts.symlinks,
            "special_files": self.counts.special_files,
            "logical_bytes": self.stats.file_bytes,
            "pool_bytes": self.pool_bytes,
            "ratio": json_ratio(self.ratio()),
            "compressratio": json_ratio(self.stats.compress_ratio()),
            "dedupratio": json_ratio(self.dedup_ratio()),
            "stored_bytes": self.stats.data().stored,
            "data_bytes": self.data_bytes(),
            "referenced_bytes": self.referenced_bytes(),
            "metadata_bytes": self.stats.nodes.allocated,
            "snapshot_bytes": self.held.only,
            "free_bytes": self.free_bytes,
            "fixed_bytes": self.fixed_bytes(),
            "hole_bytes": self.hole_bytes(),
            "wal_bytes": self.wal_bytes,
            "embedded": stats_json(&self.stats.embedded),
            "patches": stats_json(&self.stats.patches),
            "filtered": {
                "records": self.stats.filtered.records,
                "logical_bytes": self.stats.filtered.logical,
                "unfiltered_bytes": self.stats.filtered.unfiltered,
                "stored_bytes": self.stats.filtered.stored,
            },
            "codecs": codecs,
            "mode": self.only.as_ref().map(|(_, known)| format!("{:o}", known.mode)),
            "modified_ns": self.only.as_ref().map(|(_, known)| known.modified_ns),
            "properties": properties.collect::<Value>(),
            "repack": self.repack.as_ref().map(|repack| json!({
                "compression": repack.goal.get(Property::Compression),
                "recordsize": repack.goal.record_len,
                "position": repack.position,
            })),
            "readers": self.pinned.iter().map(|pinned| json!({
                "txg": pinned.txg,
                "processes": pinned.readers,
            })).collect::<Value>(),
            "txg": self.txg,
            "durable_txg": self.durable_txg,
            "sector_bytes": 1_u64 << self.pool.store().ashift(),
            "guid": guid(self.pool),
        }))
    }

    /// The row about what records take.
    fn data(&self, exact: bool) -> String {
        let (taken, referenced) = (self.data_bytes(), self.referenced_bytes());
        let shared = match referenced > taken {
            true => format!(", {} if nothing were shared", bytes(referenced, exact)),
            false => String::new(),
        };
        format!("{}{shared}", bytes(taken, exact))
    }

    /// The row about the page filter.
    fn filtered(&self, exact: bool) -> String {
        let filtered = &self.stats.filtered;
        let saved = filtered.unfiltered.saturating_sub(filtered.stored);
        format!(
            "{} records, {}; saves about {} ({:.0}%)",
            count(filtered.records, exact),
            bytes(filtered.stored, exact),
            bytes(saved, exact),
            quotient(saved, filtered.unfiltered) * 100.0,
        )
    }

    fn what(&self, exact: bool) -> (&'static str, String) {
        if let Some((entry, _)) = &self.only {
            return ("file", text::escaped(&entry.name));
        }
        let Counts { files, directories, symlinks, special_files } = &self.counts;
        let mut text = count(*files, exact);
        let others = [
            (*directories, "directory", "directories"),
            (*symlinks, "symbolic link", "symbolic links"),
            (*special_files, "special file", "special files"),
        ];
        for (number, one, many) in others {
            match number {
                0 => {}
                1 => text.push_str(&format!(", 1 {one}")),
                _ => text.push_str(&format!(", {} {many}", count(number, exact))),
            }
        }
        ("files", text)
    }

    fn text(&self, exact: bool) -> Result<String, Reason> {
        let size = |n| bytes(n, exact);
        let stats = &self.stats;
        let records = |stats: &CodecStats| {
            format!("{} records, {}", count(stats.records, exact), size(stats.stored))
        };
        let mut rows = vec![
            self.what(exact),
            ("logical size", size(stats.file_bytes)),
            ("pool size", size(self.pool_bytes)),
            ("ratio", ratio(self.ratio())),
            ("compressratio", ratio(stats.compress_ratio())),
            ("dedupratio", ratio(self.dedup_ratio())),
            ("data", self.data(exact)),
            ("metadata", size(stats.nodes.allocated)),
            ("free", size(self.free_bytes)),
            ("header", size(self.fixed_bytes())),
            ("holes", size(self.hole_bytes())),
            ("embedded", records(&stats.embedded)),
            ("patches", records(&stats.patches)),
        ];
        if self.held.only > 0 {
            let at = rows.iter().position(|(name, _)| *name == "free").unwrap_or(rows.len());
            rows.insert(at, ("snapshots", format!("{} held only by them", size(self.held.only))));
        }
        if stats.filtered.records > 0 {
            rows.push(("page filter", self.filtered(exact)));
        }
        if self.wal_bytes > 0 {
            rows.push(("write-ahead log", format!("{} next to the pool", size(self.wal_bytes))));
        }
        if let Some(repack) = &self.repack {
            let percent = quotient(repack.position, stats.file_bytes) * 100.0;
            let goal = repack.goal.get(Property::Compression);
            rows.push((
                "repack",
                format!("to {goal}, {percent:.0}% done; 'hardpack repack' continues it"),
            ));
        }
        for pinned in &self.pinned {
            rows.push(("read by", pinned.text(self.txg)));
        }
        rows.extend([
            ("txg", self.txg.to_string()),
            ("sector size", size(1 << self.pool.store().ashift())),
            ("guid", guid(self.pool)),
        ]);
        let mut text = output::pairs(rows);

        text.push('\n');
        let codecs = self.codecs().into_iter().map(|(name, stats)| {
            [
                name,
                count(stats.records, exact),
                size(stats.logical),
                size(stats.stored),
                size(stats.allocated),
                ratio(quotient(stats.logical, stats.allocated)),
            ]
        });
        let header = ["CODEC", "RECORDS", "LOGICAL", "STORED", "ALLOCATED", "RATIO"];
        text.push_str(&output::columns(header, codecs, 1));

        text.push('\n');
        let properties = self.pool.properties(self.subject())?.into_iter();
        let properties = properties
            .map(|known| [known.property.to_string(), known.value, known.source.to_string()]);
        text.push_str(&output::columns(["PROPERTY", "VALUE", "SOURCE"], properties, 3));
        Ok(text)
    }
}
