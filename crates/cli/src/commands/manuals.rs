//! `hardpack completions` and `hardpack man`: what a shell and `man` need to know of the commands,
//! from the same definitions as `--help`.

use std::process::ExitCode;
use std::{fs, io};

use clap::CommandFactory;
use clap_mangen::Man;

use crate::args::{Args, CompletionsArgs, ManArgs};
use crate::failure::{Cannot, Failure, Reason};
use crate::{output, text};

pub fn completions(args: &CompletionsArgs) -> Result<ExitCode, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Args::command(), "hardpack", &mut script);
    output::print_bytes(&script).cannot("write", "completions")?;
    Ok(ExitCode::SUCCESS)
}

pub fn man(args: &ManArgs) -> Result<ExitCode, Failure> {
    write_pages(args).cannot("write manual pages to", text::path(&args.directory))?;
    Ok(ExitCode::SUCCESS)
}

/// The manual page of a command.
fn page(name: &str, command: clap::Command) -> io::Result<Vec<u8>> {
    let notes = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    let has_commands = command.has_subcommands();
    let man = Man::new(command).title(name).section("1").manual("Hardpack");
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_options_section(&mut page)?;
    if has_commands {
        man.render_subcommands_section(&mut page)?;
    }
    page.extend_from_slice(notes_section(&notes).as_bytes());
    Ok(page)
}

/// The text behind the options: paragraphs are filled, lists and examples stay as they are.
fn notes_section(notes: &str) -> String {
    let mut out = String::new();
    for (index, block) in notes.split("\n\n").filter(|block| !block.is_empty()).enumerate() {
        out.push_str(if index == 0 { ".SH NOTES\n" } else { ".PP\n" });
        let (title, rest) = block.split_once('\n').unwrap_or((block, ""));
        let is_list = title.ends_with(':') && rest.starts_with("  ");
        out.push_str(&roff_line(title));
        out.push_str(if is_list { ".nf\n" } else { "" });
        rest.lines().for_each(|line| out.push_str(&roff_line(line)));
        out.push_str(if is_list { ".fi\n" } else { "" });
    }
    out
}

/// A line of text in which nothing is a request to the formatter.
fn roff_line(line: &str) -> String {
    format!("\\&{}\n", line.replace('\\', "\\e").replace('-', "\\-").replace('\'', "\\(aq"))
}

fn write_pages(args: &ManArgs) -> Result<(), Reason> {
    let mut top = Args::command().disable_help_subcommand(true);
    top.build();
    let write = |name: &str, command: clap::Command| {
        fs::write(args.directory.join(format!("{name}.1")), page(name, command)?)
    };
    for command in top.get_subcommands() {
        let name = format!("hardpack-{}", command.get_name());
        let usage_name = format!("hardpack {}", command.get_name());
        write(&name, command.clone().display_name(&name).bin_name(usage_name))?;
    }
    Ok(write("hardpack", top)?)
}
