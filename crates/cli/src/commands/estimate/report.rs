//! The estimate as text: what was read, a table of all kinds of blocks, the reference counts of one
//! kind as `zdb -S` prints them, and the recommendation.

use super::figures::{Bucket, Estimate, Space, Stored};
use super::{Report, Row, advice, segments};
use crate::output::{self, bytes, count, ratio};
use crate::summary::told;
use crate::text::human;

/// An error of less than this share of a figure is not shown.
const ERROR_SHOWN: f64 = 0.0005;

/// A length, and how exact it is.
fn size(estimate: &Estimate, exact: bool) -> String {
    with_error(estimate, |value| bytes(value.round() as u64, exact))
}

/// A figure with its error: a percentage if that is the same on both sides, otherwise the bounds.
fn with_error(estimate: &Estimate, show: impl Fn(f64) -> String) -> String {
    let Estimate { value, low, high } = *estimate;
    let (below, above) = (value - low, high - value);
    if below.max(above) <= value * ERROR_SHOWN {
        let about = if estimate.is_exact() { "" } else { "~" };
        return format!("{about}{}", show(value));
    }
    match (below - above).abs() <= 0.2 * below.max(above) && above <= value / 2.0 {
        true => format!("{} ±{:.1}%", show(value), 100.0 * below.max(above) / value),
        false => format!("{}..{}", show(low), show(high)),
    }
}

/// The header and the rows of the table.
pub fn table(report: &Report<'_>) -> (Vec<String>, Vec<Vec<String>>) {
    let mut header: Vec<String> = ["BLOCKS", "COUNT", "DISTINCT", "DEDUP"].map(Into::into).into();
    for compression in &report.args.compression {
        let name = compression.to_string().to_uppercase();
        header.extend([name.clone(), format!("{name}+DEDUP")]);
    }
    header.extend(["INDEX", "IN OPENZFS"].map(Into::into));
    let exact = report.args.exact;
    let row = |row: &Row| {
        let figures = &row.figures;
        let number = |value: f64| count(value.round() as u64, exact);
        let mut cells = vec![
            row.name.to_owned(),
            with_error(&figures.count, number),
            with_error(&figures.distinct, number),
            with_error(&figures.dedup_ratio(), ratio),
        ];
        for stored in &figures.stored {
            cells.extend([size(&stored.all, exact), size(&stored.once, exact)]);
        }
        let index = |len: f64| bytes((figures.distinct.value * len) as u64, exact);
        cells.extend([index(advice::INDEX_ENTRY_LEN), index(advice::OPENZFS_ENTRY_LEN)]);
        cells
    };
    (header, report.rows.iter().map(row).collect())
}

/// What was read, in a line.
pub fn summary(report: &Report<'_>) -> String {
    let counts = &report.counts;
    let others = [
        (counts.symlinks, "symbolic links"),
        (counts.special_files, "special files skipped"),
        (counts.hard_links, "further names of files"),
        (counts.failed, "failed"),
    ];
    let mut line = told(counts.files, counts.bytes, &others);
    let finest = report.rows.first().map(|row| row.figures.zero_len);
    if let Some(zero_len) = finest.filter(|zeros| zeros.high > 0.0) {
        line += &format!("; {} in holes and zeros", size(&zero_len, report.args.exact));
    }
    if let Some(part) = report.part {
        let share = 100.0 * output::quotient(part.read, part.of);
        line += &format!("; {} read, {share:.2}%", bytes(part.read, report.args.exact));
    }
    format!("{line}; {:.1} s", report.seconds)
}

/// How exact the figures are.
pub fn certainty(report: &Report<'_>) -> String {
    if report.part.is_some() {
        return "From a sample of ranges of 1 MiB. Compression is known well; what occurs again in \
                the rest is not: \"A..B\" are\nbounds that hold in 95 of 100 cases for any data."
            .into();
    }
    let of = |share: fn(&Row) -> f64| -> Vec<String> {
        let rows = report.rows.iter().filter(|row| share(row) < 1.0);
        rows.map(|row| format!("{} 1/{:.0}", row.name, 1.0 / share(row))).collect()
    };
    let (kept, measured) = (of(|row| row.kept_share), of(|row| row.measured_share));
    let mut line = String::from("All counts are exact");
    if !kept.is_empty() {
        line = format!("Counts are from a sample of the distinct blocks ({})", kept.join(", "));
    }
    if !measured.is_empty() && !report.args.compression.is_empty() {
        let chosen = measured.join(", ");
        line += &format!(".\nStored lengths are from a part of the distinct blocks ({chosen})");
    }
    line + "."
}

/// The row whose reference counts are shown, and the column of its compression.
pub fn chosen<'r>(report: &'r Report<'_>) -> Option<(&'r Row, usize)> {
    let advice = advice::of(report);
    let name = report.args.histogram.as_deref();
    let name = name.or(advice.as_ref().map(|advice| advice.row.name))?;
    let compression = advice.map(|advice| advice.compression);
    let column = report.args.compression.iter().position(|one| Some(*one) == compression);
    let row = report.rows.iter().find(|row| row.name == name)?;
    Some((row, column.unwrap_or(0)))
}

/// What `optimize` would make of it, in a line.
pub fn in_segments(report: &Report<'_>) -> Option<String> {
    let found = report.in_segments.as_ref()?;
    let exact = report.args.exact;
    let what = bytes(report.counts.bytes.saturating_sub(found.left_alone), exact);
    let databases = match found.left_alone {
        0 => String::new(),
        len => format!("; {} in databases are left alone", bytes(len, exact)),
    };
    Some(format!(
        "After 'hardpack optimize': at most {} of {what}   ({} of {} segments of {} compressed with \
         {}{databases})",
        size(&found.stored, exact),
        count(found.measured as u64, exact),
        count(found.count as u64, exact),
        bytes(u64::from(segments::SEGMENT_LEN), false),
        segments::COMPRESSION,
    ))
}

pub fn text(report: &Report<'_>) -> String {
    let (header, rows) = table(report);
    let mut text = String::new();
    if !report.args.work.quiet {
        text += &format!("{}\n{}\n\n", summary(report), certainty(report));
    }
    text += &output::table(header.iter().map(String::as_str), rows, 1);
    if let Some(line) = in_segments(report) {
        text += &format!("\n{line}\n");
    }
    if let Some((row, column)) = chosen(report) {
        let compression = report.args.compression[column];
        let of = if report.part.is_some() { " of the sample" } else { "" };
        text += &format!("\nReferences{of} in blocks of {} with {compression}:\n\n", row.name);
        text += &histogram(&row.figures.stored[column]);
    }
    if let Some(advice) = advice::of(report) {
        let (command, reason) = (advice.command(report), advice.reason(report));
        text += &format!("\nRecommended: {command}   ({reason})\n");
        if let Some(note) = advice::note_on_chunks(report, &advice) {
            text += &format!("note: {note}\n");
        }
    }
    if let Some(line) = unknown(report) {
        text += &format!("\n{line}\n");
    }
    text
}

/// Why nothing is recommended.
pub fn unknown(report: &Report<'_>) -> Option<&'static str> {
    match report.counts.has_segments {
        true => Some(
            "Nothing is recommended: some of it is in segments already, and 'hardpack info' shows \
             what it takes. After new files, 'hardpack optimize --again=related' puts these to what \
             they resemble",
        ),
        false if report.part.is_some_and(|part| part.read == 0) => {
            Some("Nothing is recommended: the sample is too small, and none of it was read")
        }
        false => None,
    }
}

/// The sums over all buckets.
pub fn total(histogram: &[Bucket]) -> Bucket {
    let mut total = Bucket::default();
    for bucket in histogram {
        total.allocated.add(&bucket.allocated);
        total.referenced.add(&bucket.referenced);
    }
    total
}

fn histogram(stored: &Stored) -> String {
    let line = "-".repeat(5);
    let heads = ["blocks", "LSIZE", "PSIZE", "DSIZE"];
    let mut text = format!("{:<6}   {:^30}   {:^30}\n", "bucket", "allocated", "referenced");
    text += &format!("{0}   {1}   {1}\n", "_".repeat(6), "_".repeat(30));
    let row = |name: &str, cells: [&str; 8]| {
        let [a, b, c, d, e, f, g, h] = cells;
        format!(
            "{name:>6}   {a:>6}   {b:>5}   {c:>5}   {d:>5}   {e:>6}   {f:>5}   {g:>5}   {h:>5}\n"
        )
    };
    text += &row("refcnt", [heads, heads].concat().try_into().unwrap_or_default());
    text += &row("------", ["------", &line, &line, &line, "------", &line, &line, &line]);
    let cells = |space: &Space| {
        [space.blocks, space.lsize, space.psize, space.dsize]
            .map(|value| human(value.round() as u64))
    };
    let bucket = |name: &str, bucket: &Bucket| {
        let (own, all) = (cells(&bucket.allocated), cells(&bucket.referenced));
        let mut both = own.iter().chain(&all).map(String::as_str);
        row(name, std::array::from_fn(|_| both.next().unwrap_or_default()))
    };
    for one in &stored.histogram {
        text += &bucket(&human(one.refs), one);
    }
    let total = total(&stored.histogram);
    text += &bucket("Total", &total);
    let [dedup, compress] = ratios(&total);
    text + &format!(
        "\ndedup = {dedup:.2}, compress = {compress:.2}, copies = 1.00, \
         dedup * compress / copies = {:.2}\n",
        dedup * compress
    )
}

/// The ratios below the table, as `zdb` computes them: of space if blocks are shared, and of length
/// by compression.
pub fn ratios(total: &Bucket) -> [f64; 2] {
    let quotient = |a: f64, b: f64| if b > 0.0 { a / b } else { 1.0 };
    let (own, all) = (&total.allocated, &total.referenced);
    [quotient(all.dsize, own.dsize), quotient(all.lsize, all.psize)]
}
