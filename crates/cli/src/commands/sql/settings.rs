//! How results are shown: the output mode and what goes with it.

use super::quote;

/// The form in which rows are written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    Box,
    Column,
    Csv,
    Insert,
    Json,
    Line,
    List,
    Markdown,
    Quote,
    Table,
}

/// Each name that `.mode` takes, and what it stands for.
const MODES: [(&str, Mode); 12] = [
    ("lines", Mode::Line),
    ("columns", Mode::Column),
    ("list", Mode::List),
    ("csv", Mode::Csv),
    ("tabs", Mode::List),
    ("insert", Mode::Insert),
    ("quote", Mode::Quote),
    ("markdown", Mode::Markdown),
    ("table", Mode::Table),
    ("box", Mode::Box),
    ("qbox", Mode::Box),
    ("json", Mode::Json),
];

impl Mode {
    pub fn name(self) -> &'static str {
        match self {
            Mode::Box => "box",
            Mode::Column => "column",
            Mode::Csv => "csv",
            Mode::Insert => "insert",
            Mode::Json => "json",
            Mode::Line => "line",
            Mode::List => "list",
            Mode::Markdown => "markdown",
            Mode::Quote => "quote",
            Mode::Table => "table",
        }
    }

    pub fn has_columns(self) -> bool {
        matches!(self, Mode::Box | Mode::Column | Mode::Markdown | Mode::Table)
    }
}

/// How the modes with columns lay out values.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Layout {
    /// The longest line of a value, in characters; 0 for no limit.
    pub wrap: usize,
    /// Whether long lines are cut between words.
    pub by_words: bool,
    /// Whether values are SQL literals.
    pub quoted: bool,
}

#[derive(Clone, Debug)]
pub struct Settings {
    pub mode: Mode,
    pub layout: Layout,
    pub headers: bool,
    /// Whether somebody said whether there are headers; otherwise `.mode column` does.
    pub headers_set: bool,
    pub separator: Vec<u8>,
    pub row_end: Vec<u8>,
    pub null: Vec<u8>,
    /// The table in INSERT statements, quoted if need be.
    pub table: Vec<u8>,
    /// Widths of columns in characters; 0 for as wide as needed, negative to align right.
    pub widths: Vec<i32>,
    pub echo: bool,
    pub bail: bool,
    pub timer: bool,
    pub changes: bool,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            mode: Mode::List,
            layout: Layout::default(),
            headers: false,
            headers_set: false,
            separator: b"|".to_vec(),
            row_end: b"\n".to_vec(),
            null: Vec::new(),
            table: quote::name(b"table"),
            widths: Vec::new(),
            echo: false,
            bail: false,
            timer: false,
            changes: false,
        }
    }
}

impl Settings {
    /// Sets the mode of this name, or of which this is the beginning, and the separators that go
    /// with it. Returns whether there is such a mode.
    pub fn set_mode(&mut self, name: &str, table: Option<&[u8]>, layout: Layout) -> bool {
        let found = MODES.iter().find(|(known, _)| known.starts_with(name) && !name.is_empty());
        let Some((known, mode)) = found else { return false };
        self.mode = *mode;
        let separators = match (*known, mode) {
            ("tabs", _) => (Some("\t"), None),
            (_, Mode::List) => (Some("|"), Some("\n")),
            (_, Mode::Csv) => (Some(","), Some("\r\n")),
            (_, Mode::Quote) => (Some(","), Some("\n")),
            (_, Mode::Line | Mode::Column) => (None, Some("\n")),
            _ => (None, None),
        };
        if let Some(separator) = separators.0 {
            self.separator = separator.into();
        }
        if let Some(row_end) = separators.1 {
            self.row_end = row_end.into();
        }
        if mode.has_columns() {
            self.layout = layout;
        }
        match mode {
            Mode::Column if !self.headers_set => self.headers = true,
            Mode::Insert => self.table = quote::name(table.unwrap_or(b"table")),
            _ => {}
        }
        true
    }

    /// The mode, and its layout if it has one.
    pub fn shown_mode(&self) -> String {
        let name = self.mode.name();
        if !self.mode.has_columns() {
            return name.into();
        }
        let Layout { wrap, by_words, quoted } = self.layout;
        let by_words = if by_words { "on" } else { "off" };
        let no = if quoted { "" } else { "no" };
        format!("{name} --wrap {wrap} --wordwrap {by_words} --{no}quote")
    }
}
