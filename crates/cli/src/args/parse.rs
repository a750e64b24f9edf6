//! Parses the command line.

use std::ffi::OsString;
use std::fmt::Display;
use std::os::unix::ffi::OsStrExt;

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser};

use super::{Args, find, mount};
use crate::text;

/// Parses the arguments of this process. Prints help, or what is wrong, and exits if that is all
/// there is to do.
pub fn parse() -> Args {
    let given = mount::from_fstab(std::env::args_os().collect());
    let given = sql_from_one_dash(find::from_one_dash(given));
    Args::try_parse_from(&given).unwrap_or_else(|error| {
        let group = (error.kind() == ErrorKind::DisplayHelp).then(|| group_asking_for_help(&given));
        match group.flatten() {
            Some(group) => unknown_h(&given, group).exit(),
            None => escaped(&given, error).exit(),
        }
    })
}

/// The options of the stock shell that `hardpack sql` takes with one dash.
const SQL_ONE_DASH: [&str; 8] =
    ["-json", "-csv", "-column", "-line", "-box", "-header", "-bail", "-readonly"];

/// Writes the options of the stock shell with two dashes.
fn sql_from_one_dash(mut given: Vec<OsString>) -> Vec<OsString> {
    if given.get(1).is_some_and(|command| command == "sql") {
        for word in given.iter_mut().skip(2).take_while(|word| *word != "--") {
            if let Some(option) = SQL_ONE_DASH.into_iter().find(|option| *word == *option) {
                *word = format!("-{option}").into();
            }
        }
    }
    given
}

/// The same error with the arguments that it quotes escaped. The parser quotes them as they are.
fn escaped(given: &[OsString], error: clap::Error) -> clap::Error {
    // These quote nothing.
    if !error.use_stderr() || error.kind() == ErrorKind::InvalidUtf8 {
        return error;
    }
    match Args::try_parse_from(given.iter().map(|text| text::escaped(text.as_bytes()))) {
        Err(same) if same.kind() == error.kind() => same,
        _ => Args::command().error(error.kind(), text::line(&error.render().to_string())),
    }
}

/// Returns the group of short options with an 'h' in it, such as `-sh`, if nothing else asks for
/// help. Whoever writes that means an option that the command does not have.
fn group_asking_for_help(given: &[OsString]) -> Option<&OsString> {
    let operands = given.iter().skip(1).take_while(|text| *text != "--");
    let is_clear = |text: &&OsString| *text == "-h" || *text == "help" || is_long_help(text);
    if operands.clone().any(|text| is_clear(&text)) {
        return None;
    }
    operands.into_iter().find(|text| {
        let bytes = text.as_bytes();
        bytes.len() > 2 && bytes[0] == b'-' && bytes[1] != b'-' && bytes.contains(&b'h')
    })
}

/// Whether this is `--help`.
fn is_long_help(text: &OsString) -> bool {
    text == "--help"
}

/// The error for an unknown option 'h' in a group of short options.
fn unknown_h(given: &[OsString], group: &OsString) -> clap::Error {
    let name = given.get(1).and_then(|name| name.to_str()).unwrap_or_default();
    let text = format!("unexpected argument '-h' found in '{}'", text::escaped(group.as_bytes()));
    command_error(name, ErrorKind::UnknownArgument, text)
}

/// Ends the process with an error about the arguments of a command, as the parser does.
pub fn wrong_usage(name: &str, kind: ErrorKind, text: impl Display) -> ! {
    command_error(name, kind, text).exit()
}

fn command_error(name: &str, kind: ErrorKind, text: impl Display) -> clap::Error {
    let text = text::line(&text.to_string());
    let mut command = Args::command();
    command.build();
    match command.find_subcommand_mut(name) {
        Some(found) => found.error(kind, text),
        None => command.error(kind, text),
    }
}
