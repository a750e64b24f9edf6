//! Checks that names, attributes and records agree: every name leads to a file and back, nothing
//! belongs to a missing file, and every file's link count equals its number of names.

use std::collections::BTreeSet;

use crate::error::{Error, Result};
use crate::pool::check::repair::is_of_a_file_that_is_gone;
use crate::pool::check::report::CheckReport;
use crate::pool::extents::next_file;
use crate::pool::extents::source::Source;
use crate::pool::namespace::entries::{self, Kind, Owned, ROOT};
use crate::store::trees::TreeId;
use crate::units::FileId;

/// How many entries are read at a time.
const ENTRY_COUNT: usize = 256;

/// Adds inconsistencies to the report. The trees must be readable. If there are no names, as in a
/// bare store or a pool whose creation was interrupted, there is nothing to compare.
pub(in crate::pool) fn check_names(
    source: &mut impl Source,
    report: &mut CheckReport,
) -> Result<()> {
    if source.is_empty(TreeId::Names) {
        return Ok(());
    }
    let mut from = Vec::new();
    loop {
        let entries = source.range(TreeId::Names, &from, &[0xff], ENTRY_COUNT)?;
        for (key, value) in &entries {
            if let Some((file, problem)) = check_entry(source, key, value)? {
                report.repairable += u64::from(is_of_a_file_that_is_gone(source, key)?);
                report.add(file, None, problem);
            }
        }
        let Some((last, _)) = entries.last() else { break };
        from.clone_from(last);
        from.push(0);
    }
    for tree in [TreeId::Map, TreeId::Patches] {
        let mut last = FileId(0);
        while let Some(file) = next_file(source, tree, last)? {
            if kind_of(source, file)? != Some(Kind::File) {
                report.add(Some(file), None, "it has records but is not a file");
            }
            last = file;
        }
    }
    Ok(())
}

type Finding = Option<(Option<FileId>, String)>;

fn kind_of(source: &mut impl Source, file: FileId) -> Result<Option<Kind>> {
    match entries::attributes(source, file) {
        Ok(attributes) => Ok(Some(attributes.kind)),
        Err(Error::NotFound { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

fn check_entry(source: &mut impl Source, key: &[u8], value: &[u8]) -> Result<Finding> {
    let finding = |file: FileId, problem: &str| Ok(Some((Some(file), problem.to_string())));
    match entries::owned_by(key) {
        None => Ok(Some((None, format!("names tree: the key {key:02x?} belongs to nothing")))),
        Some(Owned::Entry(directory)) => {
            let Some(entry) = entries::parse_entry(key, value) else {
                return finding(directory, "an entry of this directory is malformed");
            };
            let name = entry.display_name().into_owned();
            if kind_of(source, directory)? != Some(Kind::Directory) {
                return finding(
                    directory,
                    &format!("'{name}' is in it, but it is not a directory"),
                );
            }
            if kind_of(source, entry.file)? != Some(entry.kind) {
                let what =
                    format!("'{name}' refers to number {}, which is of another kind", entry.file.0);
                return finding(directory, &what);
            }
            let back = (directory, entry.name);
            match entries::names_of(source, entry.file)?.contains(&back) {
                true => Ok(None),
                false => finding(entry.file, &format!("its name '{name}' does not lead back")),
            }
        }
        Some(Owned::Attributes(file)) => check_attributes(source, file),
        Some(Owned::Name(file, directory, name)) => {
            let entry = entries::lookup(source, directory, name)?;
            match entry.is_some_and(|entry| entry.file == file) {
                true => Ok(None),
                false => finding(file, "it has a name that is not in its directory"),
            }
        }
        Some(Owned::Other(file)) => match kind_of(source, file)? {
            Some(_) => Ok(None),
            None => finding(file, "it does not exist, but has entries"),
        },
    }
}

fn check_attributes(source: &mut impl Source, file: FileId) -> Result<Finding> {
    let finding = |problem: String| Ok(Some((Some(file), problem)));
    let attributes = entries::attributes(source, file)?;
    if file == ROOT {
        let is_root = attributes.kind == Kind::Directory && attributes.parent == ROOT;
        return if is_root { Ok(None) } else { finding("it is not a root directory".into()) };
    }
    let names = entries::names_of(source, file)?;
    let directories: BTreeSet<FileId> = names.iter().map(|(directory, _)| *directory).collect();
    if names.len() != attributes.link_count as usize {
        let counted = attributes.link_count;
        return finding(format!("its link count is {counted}, but it has {} names", names.len()));
    }
    if names.is_empty() {
        return match entries::is_nameless(source, file)? {
            true => Ok(None),
            false => finding("it has no name".into()),
        };
    }
    if !directories.contains(&attributes.parent) {
        return finding("it has no name in the directory that it inherits from".into());
    }
    if attributes.kind == Kind::Directory && names.len() > 1 {
        return finding("a directory has several names".into());
    }
    if attributes.kind == Kind::Symlink {
        let len = entries::target(source, file)?.len() as u64;
        if len != attributes.len {
            return finding(format!(
                "the target of this link is not {} bytes long",
                attributes.len
            ));
        }
    }
    Ok(None)
}
