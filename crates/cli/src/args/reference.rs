//! Writes `docs/cli.md` from the definitions of the flags, and tests that one name means one thing.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use clap::{Arg, ArgAction, Command, CommandFactory};

use super::{Args, EXIT_CODES};

const PATH: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/cli.md");

const BEGINNING: &str = "\
# Commands

Every command of `hardpack`, with all its arguments and options, as `hardpack help COMMAND` shows them. This page is
written by a test from the definitions that the program itself uses: `HARDPACK_WRITE_CLI=1 cargo test -p hardpack-cli
--bin hardpack reference`. [guide.md](guide.md) shows what the commands are for.

`POOL[/PATH]` is a pool, or a file or directory in it, written as if the pool were a directory. `@NAME` behind it names
a snapshot. A PATH of something that exists may be a pattern with `*`, `?`, `[a-z]` and `**`, which stands for any
number of directories; a name that exists as it is written comes first, and a backslash takes the next character as it
is. Every command also takes `--help`, and `-h` unless that means something else there.
";

/// The commands as the parser sees them, with all arguments.
fn commands() -> Vec<Command> {
    let mut top = Args::command();
    top.build();
    let all = top.get_subcommands().filter(|command| command.get_name() != "help");
    all.cloned().collect()
}

fn shown_arguments(command: &Command) -> impl Iterator<Item = &Arg> {
    command.get_arguments().filter(|arg| !arg.is_hide_set() && arg.get_id() != "help")
}

/// How an argument is written on the command line, such as `-j`, `--threads N`.
fn spelling(arg: &Arg) -> String {
    let names = arg.get_value_names().unwrap_or_default();
    let value = names.iter().map(|name| name.as_str()).collect::<Vec<_>>().join(" ");
    let takes_value = matches!(arg.get_action(), ArgAction::Set | ArgAction::Append);
    let short = arg.get_short().map(|short| format!("-{short}"));
    let long = arg.get_long().map(|long| format!("--{long}"));
    let mut spellings: Vec<String> = short.into_iter().chain(long).collect();
    match spellings.last_mut() {
        None => spellings.push(value),
        Some(last) if takes_value && arg.is_require_equals_set() => {
            let is_optional = arg.get_num_args().is_some_and(|range| range.min_values() == 0);
            let (open, close) = if is_optional { ("[", "]") } else { ("", "") };
            let _ = write!(last, "{open}={value}{close}");
        }
        Some(last) if takes_value => {
            let _ = write!(last, " {value}");
        }
        Some(_) => {}
    }
    let quoted = spellings.iter().map(|text| format!("`{}`", text.replace('|', "\\|")));
    quoted.collect::<Vec<_>>().join(", ")
}

/// The help of an argument, on one line, with its values and default.
fn meaning(arg: &Arg) -> String {
    let help = arg.get_long_help().or(arg.get_help()).map(ToString::to_string).unwrap_or_default();
    let mut text = help.split_whitespace().collect::<Vec<_>>().join(" ");
    let takes_value = matches!(arg.get_action(), ArgAction::Set | ArgAction::Append);
    let defaults: Vec<_> = arg.get_default_values().iter().map(|v| v.to_string_lossy()).collect();
    if takes_value && !defaults.is_empty() {
        let _ = write!(text, " [default: {}]", defaults.join(","));
    }
    let values = arg.get_possible_values();
    if takes_value && !values.is_empty() {
        let names: Vec<_> = values.iter().map(|value| value.get_name()).collect();
        let _ = write!(text, " [values: {}]", names.join(", "));
    }
    text.replace('|', "\\|").replace('<', "\\<")
}

/// The text behind the options: paragraphs as they are, lists and examples as code.
fn after(text: &str) -> String {
    let mut out = String::new();
    for block in text.split("\n\n") {
        let (title, rest) = block.split_once('\n').unwrap_or((block, ""));
        if title.ends_with(':') && rest.starts_with("  ") {
            let _ = write!(out, "\n{title}\n\n```text\n");
            for line in rest.lines() {
                let _ = writeln!(out, "{}", line.strip_prefix("  ").unwrap_or(line));
            }
            out.push_str("```\n");
        } else {
            let _ = write!(out, "\n{}\n", block.replace('<', "\\<"));
        }
    }
    out
}

fn section(command: &Command) -> String {
    let name = command.get_name();
    let about = command.get_about().map(ToString::to_string).unwrap_or_default();
    let usage = command.clone().render_usage().to_string();
    let usage = usage.strip_prefix("Usage: ").unwrap_or(&usage);
    let mut out = format!("\n## {name}\n\n{about}.\n\n```text\n{usage}\n```\n");
    let arguments: Vec<_> = shown_arguments(command).collect();
    if !arguments.is_empty() {
        out.push_str("\n| argument | meaning |\n| --- | --- |\n");
    }
    let (positional, options): (Vec<&Arg>, Vec<&Arg>) =
        arguments.into_iter().partition(|arg| arg.is_positional());
    for arg in positional.into_iter().chain(options) {
        let _ = writeln!(out, "| {} | {} |", spelling(arg), meaning(arg));
    }
    if let Some(text) = command.get_after_help() {
        out.push_str(&after(&text.to_string()));
    }
    out
}

fn page() -> String {
    let mut out = String::from(BEGINNING);
    out.push_str("\n| command | what it does |\n| --- | --- |\n");
    for command in commands() {
        let (name, about) = (command.get_name(), command.get_about().cloned().unwrap_or_default());
        let _ = writeln!(out, "| [{name}](#{name}) | {about} |");
    }
    out.push_str(&after(EXIT_CODES));
    commands().iter().for_each(|command| out.push_str(&section(command)));
    out
}

#[test]
fn the_reference_is_what_the_help_says() {
    let page = page();
    if std::env::var_os("HARDPACK_WRITE_CLI").is_some() {
        std::fs::write(PATH, &page).unwrap();
    }
    let written = std::fs::read_to_string(PATH).unwrap_or_default();
    let differs = page.lines().zip(written.lines()).find(|(new, old)| new != old);
    assert!(
        page == written,
        "docs/cli.md is out of date ({differs:?}); HARDPACK_WRITE_CLI=1 writes it"
    );
}

/// What a long option is called in short is the same in every command that has it, except where a
/// command copies a program that everybody knows.
#[test]
fn an_option_has_one_name_everywhere() {
    let exceptions = [
        ("ls", "recursive"),
        ("chmod", "recursive"),
        ("chown", "recursive"),
        ("ls", "help"),
        ("du", "help"),
    ];
    let mut known: BTreeMap<String, (Option<char>, String)> = BTreeMap::new();
    for command in commands() {
        for arg in command.get_arguments() {
            let Some(long) = arg.get_long() else { continue };
            if exceptions.contains(&(command.get_name(), long)) {
                continue;
            }
            let new = (arg.get_short(), command.get_name().to_owned());
            let (short, first) = known.entry(long.to_owned()).or_insert_with(|| new.clone());
            assert_eq!(*short, new.0, "--{long} of {first} and of {}", new.1);
        }
    }
}

/// What two commands call differently is not the same thing: no two names have the same help.
#[test]
fn a_meaning_has_one_name_everywhere() {
    let mut known: BTreeMap<String, String> = BTreeMap::new();
    for command in commands() {
        for arg in shown_arguments(&command).filter(|arg| !arg.is_positional()) {
            let (meaning, name) = (meaning(arg), arg.get_long().unwrap_or_default());
            let first = known.entry(meaning).or_insert_with(|| name.to_owned());
            assert_eq!(first, name, "one meaning has two names in {}", command.get_name());
        }
    }
}

/// Each line is as full as the width allows, so that no paragraph looks ragged.
#[test]
fn help_is_wrapped_once() {
    let first_word = |line: &str| line.split(' ').next().unwrap_or_default().chars().count();
    let is_prose = |line: &str| !line.is_empty() && !line.starts_with(' ');
    for command in commands() {
        let name = command.get_name().to_owned();
        let text = command.term_width(100).render_long_help().to_string();
        let lines: Vec<&str> = text.lines().collect();
        for pair in lines.windows(2) {
            let len = pair[0].chars().count();
            assert!(len <= 100, "{name}: {}", pair[0]);
            if is_prose(pair[0]) && is_prose(pair[1]) && !pair[0].ends_with(':') {
                assert!(len + 1 + first_word(pair[1]) > 100, "{name}: {pair:?}");
            }
        }
    }
}
