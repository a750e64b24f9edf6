//! Dot commands. One table has them all: it runs them and makes their help.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::import::{self, Import};
use super::settings::Layout;
use super::shell::{self, Shell, Trouble};
use super::{copies, dump, schema, words};
use crate::{near, text};

type Words<'w> = &'w [Vec<u8>];
type Done = Result<(), Trouble>;

struct Dot {
    name: &'static str,
    /// Another name for it.
    alias: &'static str,
    takes: &'static str,
    help: &'static str,
    /// How many words it takes at least and at most.
    words: (usize, usize),
    run: fn(&mut Shell, Words<'_>) -> Done,
}

const fn dot(
    [name, alias, takes, help]: [&'static str; 4],
    words: (usize, usize),
    run: fn(&mut Shell, Words<'_>) -> Done,
) -> Dot {
    Dot { name, alias, takes, help, words, run }
}

const ON_OFF: &str = "on|off";

const DOTS: [Dot; 26] = [
    dot(
        ["backup", "save", "[DB] FILE", "Copy a database to a file; FILE.hpk becomes a pool"],
        (1, 2),
        copies::backup,
    ),
    dot(["bail", "", ON_OFF, "Stop at the first error in input"], (1, 1), |shell, words| {
        switch(&words[0], &mut shell.settings.bail)
    }),
    dot(
        ["changes", "", ON_OFF, "Show how many rows a statement changed"],
        (1, 1),
        |shell, words| switch(&words[0], &mut shell.settings.changes),
    ),
    dot(["databases", "", "", "List attached databases"], (0, 0), |shell, _| {
        schema::list_databases(shell)
    }),
    dot(
        ["dump", "", "[PATTERN...]", "Print the database, or tables like these, as SQL"],
        (0, usize::MAX),
        dump::dump,
    ),
    dot(["echo", "", ON_OFF, "Print each command before it runs"], (1, 1), |shell, words| {
        switch(&words[0], &mut shell.settings.echo)
    }),
    dot(["exit", "", "[CODE]", "End the shell, with this exit code"], (0, 1), quit),
    dot(["headers", "header", ON_OFF, "Print column names above rows"], (1, 1), |shell, words| {
        switch(&words[0], &mut shell.settings.headers)?;
        shell.settings.headers_set = true;
        Ok(())
    }),
    dot(["help", "", "", "List these commands"], (0, 0), |shell, _| shell.write(help())),
    dot(["import", "", "[--csv] [--skip N] FILE TABLE", IMPORT_HELP], (2, usize::MAX), import_file),
    dot(
        ["indexes", "indices", "[TABLE]", "List indexes, or those of a table"],
        (0, 1),
        |shell, words| schema::names(shell, words.first().map(Vec::as_slice), true),
    ),
    dot(["mode", "", "[MODE]", MODE_HELP], (0, usize::MAX), mode),
    dot(["nullvalue", "", "TEXT", "Print this for NULL"], (1, 1), |shell, words| {
        shell.settings.null = words[0].clone();
        Ok(())
    }),
    dot(["once", "", "[FILE]", "Write the next result to a file"], (0, 1), |shell, words| {
        redirect(shell, words, true)
    }),
    dot(
        ["open", "", "[--readonly] POOL[/PATH]", "Close the database and open another one"],
        (1, 2),
        copies::reopen,
    ),
    dot(
        ["output", "", "[FILE]", "Write results to a file, or to stdout again"],
        (0, 1),
        |shell, words| redirect(shell, words, false),
    ),
    dot(["print", "", "TEXT...", "Print text"], (0, usize::MAX), |shell, words| {
        shell.write([words.join(&b' '), b"\n".to_vec()].concat())
    }),
    dot(["quit", "", "", "End the shell"], (0, 0), quit),
    dot(["read", "", "FILE", "Run the lines of a file"], (1, 1), |shell, words| {
        shell::run_file(shell, &words[0])
    }),
    dot(
        ["restore", "", "[DB] FILE", "Replace a database by the content of a file"],
        (1, 2),
        copies::restore,
    ),
    dot(
        ["schema", "", "[PATTERN] [--nosys]", "Print the statements that make the schema"],
        (0, 2),
        schema_of,
    ),
    dot(
        ["separator", "", "COLUMN [ROW]", "Print this between columns and behind rows"],
        (1, 2),
        |shell, words| {
            shell.settings.separator = words[0].clone();
            if let Some(row_end) = words.get(1) {
                shell.settings.row_end = row_end.clone();
            }
            Ok(())
        },
    ),
    dot(["show", "", "", "Print all settings"], (0, 0), show),
    dot(
        ["tables", "", "[PATTERN]", "List tables and views whose names are LIKE this"],
        (0, 1),
        |shell, words| schema::names(shell, words.first().map(Vec::as_slice), false),
    ),
    dot(["timer", "", ON_OFF, "Print how long each statement takes"], (1, 1), |shell, words| {
        switch(&words[0], &mut shell.settings.timer)
    }),
    dot(
        ["width", "", "NUMBER...", "Set widths of columns; negative ones align right"],
        (0, usize::MAX),
        width,
    ),
];

const IMPORT_HELP: &str = "Insert the records of a file into a table, or into a new one whose columns the first record \
     names; fields are separated as in the output, or by commas";
const MODE_HELP: &str = "Print rows as box, column, csv, insert [TABLE], json, line, list, markdown, qbox, quote, table or tabs; \
     --wrap N, --ww, --quote";

/// Lists all commands, one a line.
pub fn help() -> String {
    let widths = 30;
    DOTS.iter()
        .map(|dot| format!("  {:widths$}{}\n", format!(".{} {}", dot.name, dot.takes), dot.help))
        .collect()
}

/// Runs the dot command of a line.
pub fn run(shell: &mut Shell, line: &[u8]) -> Done {
    if line.contains(&0) {
        return Err(Trouble::usage("a NUL byte in a dot command"));
    }
    let mut words = words::split(&line[1..]);
    // Nothing but a dot does nothing, as in the stock shell.
    if words.is_empty() {
        return Ok(());
    }
    let name = String::from_utf8_lossy(&words.remove(0)).to_lowercase();
    let dot = find(&name)?;
    if words.len() < dot.words.0 || words.len() > dot.words.1 {
        return Err(Trouble::usage(format!("usage: .{} {}", dot.name, dot.takes)));
    }
    (dot.run)(shell, &words)?;
    // What `.once` announces is still to come.
    if dot.name == "once" { shell.sink.flush() } else { shell.sink.end_result() }
}

/// The command of this name, or the only one that begins so.
fn find(name: &str) -> Result<&'static Dot, Trouble> {
    if let Some(dot) = DOTS.iter().find(|dot| [dot.name, dot.alias].contains(&name)) {
        return Ok(dot);
    }
    let begin: Vec<&Dot> = DOTS.iter().filter(|dot| dot.name.starts_with(name)).collect();
    match &begin[..] {
        [dot] => return Ok(dot),
        [] => {}
        several => {
            let names: Vec<String> = several.iter().map(|dot| format!("'.{}'", dot.name)).collect();
            let text = format!("this may be {}", names.join(" or "));
            return Err(Trouble::usage(text));
        }
    }
    let all = DOTS.iter().flat_map(|dot| [dot.name, dot.alias]).filter(|name| !name.is_empty());
    let hint = match near::nearest(name, all) {
        Some(near) => format!("did you mean '.{near}'?"),
        None => "'.help' lists those there are".into(),
    };
    Err(Trouble::usage(format!("there is no such dot command; {hint}")))
}

/// Sets a switch by its state in words or numbers.
fn switch(word: &[u8], to: &mut bool) -> Done {
    let word = String::from_utf8_lossy(word).to_lowercase();
    *to = match &word[..] {
        "on" | "yes" | "true" | "1" => true,
        "off" | "no" | "false" | "0" => false,
        _ => {
            let text = format!("'{}' is neither on nor off", text::escaped(word.as_bytes()));
            return Err(Trouble::usage(text));
        }
    };
    Ok(())
}

fn number<T: std::str::FromStr>(word: &[u8]) -> Result<T, Trouble> {
    let number = std::str::from_utf8(word).ok().and_then(|word| word.parse().ok());
    number.ok_or_else(|| Trouble::usage(format!("'{}' is no number here", text::escaped(word))))
}

fn quit(_: &mut Shell, words: Words<'_>) -> Done {
    Err(Trouble::Quit(words.first().map(|word| number(word)).transpose()?))
}

fn redirect(shell: &mut Shell, words: Words<'_>, once: bool) -> Done {
    let name = words.first().map(Vec::as_slice).filter(|name| *name != b"stdout");
    if name.is_some_and(|name| name.starts_with(b"|")) {
        return Err(Trouble::usage("output goes to files only: use a pipe of your shell"));
    }
    if let Some(name) = name {
        shell.refuse_open_database(Path::new(OsStr::from_bytes(name)))?;
    }
    shell.sink.redirect(name, once)
}

fn mode(shell: &mut Shell, words: Words<'_>) -> Done {
    let mut layout = Layout { wrap: 60, ..Layout::default() };
    let mut names: Vec<&[u8]> = Vec::new();
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let option = word.strip_prefix(b"-").map(|rest| rest.strip_prefix(b"-").unwrap_or(rest));
        let mut value = || words.next().ok_or_else(|| Trouble::usage("this option takes a value"));
        match option {
            Some(b"wrap") => layout.wrap = number(value()?)?,
            Some(b"ww") => layout.by_words = true,
            Some(b"wordwrap") => switch(value()?, &mut layout.by_words)?,
            Some(b"quote") => layout.quoted = true,
            Some(b"noquote") => layout.quoted = false,
            Some(_) => {
                let text = format!("there is no option '{}'", text::escaped(word));
                return Err(Trouble::usage(text));
            }
            None => {
                if names.is_empty() && word == b"qbox" {
                    layout = Layout { quoted: true, ..layout };
                }
                names.push(word);
            }
        }
    }
    let Some(name) = names.first() else {
        let line = format!("current output mode: {}\n", shell.settings.shown_mode());
        return shell.write(line);
    };
    if names.len() > 2 {
        return Err(Trouble::usage("usage: .mode MODE [TABLE]"));
    }
    let name = String::from_utf8_lossy(name).to_lowercase();
    if !shell.settings.set_mode(&name, names.get(1).copied(), layout) {
        let text = "modes are box, column, csv, insert, json, line, list, markdown, qbox, quote, \
                    table and tabs";
        return Err(Trouble::usage(text));
    }
    Ok(())
}

fn schema_of(shell: &mut Shell, words: Words<'_>) -> Done {
    let (mut pattern, mut with_system) = (None, true);
    for word in words {
        match &word[..] {
            b"--nosys" | b"-nosys" => with_system = false,
            [b'-', ..] => return Err(Trouble::usage("usage: .schema [PATTERN] [--nosys]")),
            word if pattern.is_none() => pattern = Some(word),
            _ => return Err(Trouble::usage("usage: .schema [PATTERN] [--nosys]")),
        }
    }
    schema::schema(shell, pattern, with_system)
}

fn import_file(shell: &mut Shell, words: Words<'_>) -> Done {
    let (mut is_csv, mut skip, mut names) = (false, 0, Vec::new());
    let mut words = words.iter();
    while let Some(word) = words.next() {
        match &word[..] {
            b"--csv" | b"-csv" => is_csv = true,
            b"--skip" | b"-skip" => {
                let value = words.next().ok_or_else(|| Trouble::usage("--skip takes a number"))?;
                skip = number(value)?;
            }
            [b'-', ..] => {
                let text = format!("there is no option '{}'", text::escaped(word));
                return Err(Trouble::usage(text));
            }
            name => names.push(name),
        }
    }
    let [file, table] = names[..] else {
        return Err(Trouble::usage("usage: .import [--csv] [--skip N] FILE TABLE"));
    };
    let separator = if is_csv { b"," } else { &shell.settings.separator[..] };
    let &[separator] = separator else {
        return Err(Trouble::usage("fields are separated by a single byte; see '.separator'"));
    };
    import::import(shell, &Import { file, table, separator, skip })
}

fn width(shell: &mut Shell, words: Words<'_>) -> Done {
    shell.settings.widths = words.iter().map(|word| number(word)).collect::<Result<_, _>>()?;
    Ok(())
}

fn show(shell: &mut Shell, _: Words<'_>) -> Done {
    let settings = &shell.settings;
    let on = |is_on: bool| if is_on { "on" } else { "off" }.to_owned();
    let c_string = |bytes: &[u8]| format!("\"{}\"", text::escaped(bytes).replace('"', "\\\""));
    let widths: Vec<String> = settings.widths.iter().map(i32::to_string).collect();
    let lines = [
        ("bail", on(settings.bail)),
        ("changes", on(settings.changes)),
        ("echo", on(settings.echo)),
        ("headers", on(settings.headers)),
        ("mode", settings.shown_mode()),
        ("nullvalue", c_string(&settings.null)),
        ("output", text::escaped(shell.sink.name())),
        ("colseparator", c_string(&settings.separator)),
        ("rowseparator", c_string(&settings.row_end)),
        ("timer", on(settings.timer)),
        ("width", widths.join(" ")),
        ("filename", shell.name.clone()),
    ];
    let lines: String =
        lines.iter().map(|(name, value)| format!("{name:>12}: {value}\n")).collect();
    shell.write(lines)
}
