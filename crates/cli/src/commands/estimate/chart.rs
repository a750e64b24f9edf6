//! The estimate as a chart: for each kind of block and each codec a bar, pale for the space without
//! deduplication, full for the space with it, and a line for the range of error.
//!
//! The image has its own text and colours for light and dark, and needs nothing from elsewhere. A
//! page also holds the table and the recommendation, for readers who cannot see the image.

use std::fs;
use std::path::Path;

use super::{Report, advice, report};
use crate::failure::Reason;
use crate::output::bytes;
use crate::publish::Unfinished;

const WIDTH: f64 = 860.0;
const LEFT: f64 = 130.0;
/// Room for figures on the right.
const RIGHT: f64 = 230.0;
const BAR: f64 = 16.0;
const GAP: f64 = 12.0;
const TOP: f64 = 64.0;

const STYLE: &str = "\
svg{background:#fff;max-width:100%}text{font:13px system-ui,sans-serif;fill:#1f2328}\
.t{font-size:16px;font-weight:600}.e{stroke:#1f2328}.p{fill-opacity:.3}\
.c0{fill:#0969da}.c1{fill:#bc4c00}.c2{fill:#1a7f37}.c3{fill:#8250df}\
@media(prefers-color-scheme:dark){svg{background:#0d1117}text{fill:#e6edf3}.e{stroke:#e6edf3}\
.c0{fill:#4493f8}.c1{fill:#db6d28}.c2{fill:#3fb950}.c3{fill:#ab7df8}}";
const PAGE_STYLE: &str = "\
:root{color-scheme:light dark}body{font:15px system-ui,sans-serif;max-width:60rem;margin:2rem auto;\
padding:0 1rem}table{border-collapse:collapse}td,th{padding:.2rem .6rem;text-align:right}\
td:first-child,th:first-child{text-align:left}code{overflow-wrap:anywhere}";

/// Text for XML, which cannot have the characters U+FFFE and U+FFFF. Control characters have been
/// escaped already.
fn xml(text: &str) -> String {
    let text = text.replace(['\u{fffe}', '\u{ffff}'], "\u{fffd}");
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

fn title(report: &Report<'_>) -> String {
    xml(&format!("Estimate of {}", super::shown(report.named)))
}

fn svg(report: &Report<'_>) -> String {
    let compressions = &report.args.compression;
    let stored = || report.rows.iter().flat_map(|row| &row.figures.stored);
    let longest = stored().map(|stored| stored.all.high.max(stored.once.high)).fold(1.0, f64::max);
    let x = |len: f64| LEFT + (WIDTH - LEFT - RIGHT) * len / longest;
    let size = |len: f64| bytes(len.round() as u64, false);
    let group = compressions.len() as f64 * BAR + GAP;
    let height = TOP + group * report.rows.len() as f64 + GAP;
    let mut body = String::new();
    for (index, compression) in compressions.iter().enumerate() {
        let (at, class) = (LEFT + 130.0 * index as f64, index % 4);
        body += &format!(
            "<rect class=\"c{class}\" x=\"{at}\" y=\"38\" width=\"12\" height=\"12\"/>\
             <text x=\"{}\" y=\"49\">{compression}</text>\n",
            at + 18.0
        );
    }
    for (row, top) in report.rows.iter().zip((0..).map(|n| TOP + group * f64::from(n))) {
        body += &format!(
            "<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text>\n",
            LEFT - 10.0,
            top + group / 2.0 - 2.0,
            row.name
        );
        for (column, stored) in row.figures.stored.iter().enumerate() {
            let (y, class) = (top + BAR * column as f64, column % 4);
            let (once, all) = (stored.once, stored.all);
            let bar = |extra: &str, len: f64| {
                let (width, bar) = (x(len) - LEFT, BAR - 3.0);
                format!(
                    "<rect class=\"c{class}{extra}\" x=\"{LEFT}\" y=\"{y}\" width=\"{width:.1}\" \
                     height=\"{bar}\"/>"
                )
            };
            body += &bar(" p", all.value);
            body += &bar("", once.value);
            if !once.is_exact() {
                body += &format!(
                    "<path class=\"e\" d=\"M{:.1} {}H{:.1}\"/>",
                    x(once.low),
                    y + BAR / 2.0 - 1.5,
                    x(once.high)
                );
            }
            let label = match once.is_exact() {
                true => format!("{} of {}", size(once.value), size(all.value)),
                false => format!("{}..{} of {}", size(once.low), size(once.high), size(all.value)),
            };
            let (at, y) = (x(all.value.max(once.high)) + 8.0, y + BAR - 5.0);
            body += &format!("<text x=\"{at:.1}\" y=\"{y}\">{label}</text>\n");
        }
    }
    let about = "Space for each kind of block and each codec: pale without deduplication, full with \
                 it. Lines show the range of error.";
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" \
         aria-labelledby=\"t d\">\n<title id=\"t\">{}</title><desc id=\"d\">{about}</desc>\n\
         <style>{STYLE}</style>\n<text class=\"t\" x=\"10\" y=\"24\">{}: {}</text>\n{body}</svg>\n",
        title(report),
        title(report),
        size(report.counts.bytes as f64)
    )
}

fn page(report: &Report<'_>) -> String {
    let line = |tag: &str, cells: &[String]| {
        let cells = cells.iter().map(|cell| format!("<{tag}>{}</{tag}>", xml(cell)));
        format!("<tr>{}</tr>\n", cells.collect::<String>())
    };
    let (header, rows) = report::table(report);
    let rows: String = rows.iter().map(|row| line("td", row)).collect();
    let in_segments = report::in_segments(report).map(|line| format!("<p>{}</p>\n", xml(&line)));
    let advice = advice::of(report).map(|advice| {
        let (command, reason) = (advice.command(report), advice.reason(report));
        format!("<p>Recommended: <code>{}</code> ({})</p>\n", xml(&command), xml(&reason))
    });
    let unknown = report::unknown(report).map(|line| format!("<p>{}</p>\n", xml(line)));
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"/><title>{0}</title>\
         <style>{PAGE_STYLE}</style></head>\n<body><h1>{0}</h1>\n<p>{1}. {2}</p>\n{3}\
         <table>\n{4}{rows}</table>\n{5}{6}</body></html>\n",
        title(report),
        xml(&report::summary(report)),
        xml(&report::certainty(report)),
        svg(report),
        line("th", &header),
        in_segments.unwrap_or_default(),
        advice.or(unknown).unwrap_or_default(),
    )
}

/// Writes the chart to `path`.
pub fn write(report: &Report<'_>, path: &Path) -> Result<(), Reason> {
    let is_page = path.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("html"));
    let text = if is_page { page(report) } else { svg(report) };
    let unfinished = Unfinished::create(path)?;
    fs::write(unfinished.path(), text)?;
    unfinished.complete(0o644, None)?;
    unfinished.publish(path, report.args.force)
}
