//! Shows the progress of long work on stderr: a bar on a terminal, otherwise a line every few
//! seconds and one at the end. Programs that run a command set `HARDPACK_PROGRESS=json` and get a
//! line of JSON several times a second.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{BinaryBytes, HumanCount, HumanDuration, ProgressBar, ProgressStyle};

use crate::output;

/// The minimum time between two plain lines.
const LINE_INTERVAL: Duration = Duration::from_secs(5);
/// The minimum time between two lines of JSON.
const JSON_INTERVAL: Duration = Duration::from_millis(100);
/// Set to `json`, this variable asks for lines of JSON.
const VARIABLE: &str = "HARDPACK_PROGRESS";

enum View {
    Quiet,
    Bar(ProgressBar),
    Lines { last: Instant },
    Json { last: Option<Instant> },
}

fn is_json() -> bool {
    std::env::var_os(VARIABLE).is_some_and(|value| value == "json")
}

fn tell_json(progress: serde_json::Value) {
    output::tell(serde_json::json!({ "progress": progress }));
}

/// Whether a line is due, which it is for the first time at once.
fn is_due(last: &mut Option<Instant>) -> bool {
    let is_due = last.is_none_or(|last| last.elapsed() >= JSON_INTERVAL);
    if is_due {
        *last = Some(Instant::now());
    }
    is_due
}

/// The progress of one step.
pub struct Progress {
    view: View,
    label: String,
    total: u64,
    done: u64,
    ratio: Option<f64>,
    began: Instant,
}

impl Progress {
    /// Starts a step of `total` bytes, such as "packing words.db".
    pub fn new(label: String, total: u64, quiet: bool) -> Progress {
        let began = Instant::now();
        let view = if quiet {
            View::Quiet
        } else if is_json() {
            View::Json { last: None }
        } else if std::io::stderr().is_terminal() {
            let bar = ProgressBar::new(total).with_message(label.clone());
            bar.set_style(style());
            bar.enable_steady_tick(Duration::from_millis(200));
            View::Bar(bar)
        } else {
            View::Lines { last: began }
        };
        Progress { view, label, total, done: 0, ratio: None, began }
    }

    /// Sets the compression ratio so far.
    pub fn set_ratio(&mut self, ratio: f64) {
        self.ratio = Some(ratio);
    }

    /// Sets the number of bytes done so far.
    pub fn at(&mut self, done: u64) {
        self.done = done;
        self.total = self.total.max(done);
        match &mut self.view {
            View::Quiet => {}
            View::Bar(bar) => {
                bar.set_length(self.total);
                bar.set_position(done);
                if let Some(ratio) = self.ratio {
                    bar.set_prefix(output::ratio(ratio));
                }
            }
            View::Lines { last } => {
                if last.elapsed() >= LINE_INTERVAL {
                    *last = Instant::now();
                    output::tell(self.line());
                }
            }
            View::Json { last } => {
                if is_due(last) {
                    tell_json(self.json());
                }
            }
        }
    }

    fn json(&self) -> serde_json::Value {
        serde_json::json!({ "step": self.label, "done": self.done, "total": self.total })
    }

    fn bytes_per_second(&self) -> f64 {
        self.done as f64 / self.began.elapsed().as_secs_f64().max(0.001)
    }

    fn line(&self) -> String {
        let rate = self.bytes_per_second();
        let left = (self.total - self.done) as f64 / rate.max(1.0);
        let percent = output::quotient(self.done, self.total) * 100.0;
        format!(
            "{}: {percent:.0}%, {} of {}, {}/s, {} left{}",
            self.label,
            BinaryBytes(self.done),
            BinaryBytes(self.total),
            BinaryBytes(rate as u64),
            HumanDuration(Duration::from_secs_f64(left.min(1e9))),
            self.ratio.map_or(String::new(), |ratio| format!(", {}", output::ratio(ratio))),
        )
    }

    /// Ends the step.
    pub fn finish(mut self) {
        match &mut self.view {
            View::Quiet => {}
            View::Bar(bar) => bar.finish_and_clear(),
            View::Lines { .. } => output::tell(format_args!(
                "{}: {} in {:.1} s, {}/s",
                self.label,
                BinaryBytes(self.done),
                self.began.elapsed().as_secs_f64(),
                BinaryBytes(self.bytes_per_second() as u64),
            )),
            View::Json { .. } => tell_json(self.json()),
        }
        self.view = View::Quiet;
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let View::Bar(bar) = &self.view {
            bar.finish_and_clear();
        }
    }
}

/// The progress of work on an unknown number of files.
pub struct FilesProgress {
    bar: Option<ProgressBar>,
    /// When the last line of JSON was written, if they are asked for.
    json: Option<Option<Instant>>,
    label: String,
    is_quiet: bool,
    files: u64,
    bytes: u64,
    began: Instant,
    last_line: Instant,
}

impl FilesProgress {
    /// Starts showing progress under a label such as "putting".
    pub fn new(label: &str, is_quiet: bool) -> FilesProgress {
        let json = (!is_quiet && is_json()).then_some(None);
        let is_shown = !is_quiet && json.is_none();
        let bar = (is_shown && std::io::stderr().is_terminal()).then(|| {
            let bar = ProgressBar::new_spinner();
            let style = ProgressStyle::with_template("{spinner} {msg}");
            bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()));
            bar.enable_steady_tick(Duration::from_millis(200));
            bar
        });
        let began = Instant::now();
        let label = label.to_owned();
        let (files, bytes) = (0, 0);
        FilesProgress { bar, json, label, is_quiet, files, bytes, began, last_line: began }
    }

    /// Adds to the files and bytes done.
    pub fn add(&mut self, files: u64, bytes: u64) {
        self.files += files;
        self.bytes += bytes;
        if let Some(last) = &mut self.json {
            if is_due(last) {
                tell_json(serde_json::json!({
                    "step": self.label, "files": self.files, "done": self.bytes,
                }));
            }
        } else if let Some(bar) = &self.bar {
            bar.set_message(self.line());
        } else if !self.is_quiet && self.last_line.elapsed() >= LINE_INTERVAL {
            self.last_line = Instant::now();
            output::tell(self.line());
        }
    }

    /// Writes a line to stderr, above the bar.
    pub fn say(&self, line: &str) {
        match &self.bar {
            Some(bar) => bar.suspend(|| output::tell(line)),
            None => output::tell(line),
        }
    }

    fn line(&self) -> String {
        let rate = self.bytes as f64 / self.began.elapsed().as_secs_f64().max(0.001);
        let (files, bytes) = (HumanCount(self.files), BinaryBytes(self.bytes));
        let rate = BinaryBytes(rate as u64);
        format!("{}: {files} files, {bytes}, {rate}/s", self.label)
    }
}

impl Drop for FilesProgress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// A sign of life for work of unknown length; shown on a terminal only.
pub struct Spinner {
    bar: Option<ProgressBar>,
}

impl Spinner {
    pub fn new(label: &'static str, quiet: bool) -> Spinner {
        let bar = (!quiet && !is_json() && std::io::stderr().is_terminal()).then(|| {
            let bar = ProgressBar::new_spinner().with_message(label);
            bar.set_style(
                ProgressStyle::with_template("{msg} {spinner} {elapsed}")
                    .unwrap_or_else(|_| ProgressStyle::default_spinner()),
            );
            bar.enable_steady_tick(Duration::from_millis(200));
            bar
        });
        Spinner { bar }
    }
}

impl Drop for Spinner {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

fn style() -> ProgressStyle {
    let template = "{msg} {wide_bar} {percent:>3}% {binary_bytes} of {binary_total_bytes}, \
                    {binary_bytes_per_sec}, {eta} left {prefix}";
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}
