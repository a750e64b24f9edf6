//! Writes a part of a pool as a tar stream in the pax format.

use std::collections::HashMap;
use std::io::Write;

use hardpack_engine::FileId;
use hardpack_engine::pool::{Attributes, DirEntry, Kind, Xattr};
use tar::{EntryType, Header};

use crate::address::{Address, Opened, join};
use crate::args::ExtractArgs;
use crate::contents::{self, Restart};
use crate::failure::{Code, Reason};
use crate::signals;
use crate::summary::Account;

/// The length of a block of a stream, in bytes.
const BLOCK_LEN: u64 = 512;
/// The longest name that fits in a header, in bytes.
const NAME_LEN: usize = 100;
/// The largest numbers that fit in a header.
const ID_MAX: u32 = 0o7_777_777;
const SIZE_MAX: u64 = 0o77_777_777_777;

pub struct TarWriter<'w, W> {
    out: &'w mut W,
    /// The path of the first name of each file with several names.
    first_names: HashMap<FileId, Vec<u8>>,
    is_broken: bool,
}

/// The content of a header.
struct Head<'h> {
    path: &'h [u8],
    kind: EntryType,
    attributes: &'h Attributes,
    len: u64,
    target: &'h [u8],
    xattrs: &'h [Xattr],
}

impl<'w, W: Write> TarWriter<'w, W> {
    pub fn new(out: &'w mut W) -> TarWriter<'w, W> {
        TarWriter { out, first_names: HashMap::new(), is_broken: false }
    }

    /// Whether a write to the stream has failed.
    pub fn is_broken(&self) -> bool {
        self.is_broken
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), Reason> {
        self.out.write_all(bytes).map_err(|error| {
            self.is_broken = true;
            Reason::stdout(error)
        })
    }

    /// Pads content of `len` bytes to whole blocks.
    fn pad(&mut self, len: u64) -> Result<(), Reason> {
        let n = (BLOCK_LEN - len % BLOCK_LEN) % BLOCK_LEN;
        self.write(&[0; BLOCK_LEN as usize][..n as usize])
    }

    fn head(&mut self, head: &Head<'_>) -> Result<(), Reason> {
        let extensions = extensions(head);
        if !extensions.is_empty() {
            let mut header = Header::new_ustar();
            put_name(&mut header, b"././@PaxHeader");
            header.set_entry_type(EntryType::XHeader);
            header.set_size(extensions.len() as u64);
            header.set_mode(0o644);
            header.set_uid(0);
            header.set_gid(0);
            header.set_mtime(0);
            header.set_cksum();
            self.write(header.as_bytes())?;
            self.write(&extensions)?;
            self.pad(extensions.len() as u64)?;
        }
        let known = head.attributes;
        let owner = known.owner.unwrap_or_default();
        let mut header = Header::new_ustar();
        put_name(&mut header, head.path);
        header.set_entry_type(head.kind);
        header.set_mode(known.mode & 0o7777);
        header.set_uid(u64::from(owner.uid.min(ID_MAX)));
        header.set_gid(u64::from(owner.gid.min(ID_MAX)));
        header.set_mtime(u64::try_from(known.modified_ns.div_euclid(1_000_000_000)).unwrap_or(0));
        header.set_size(head.len.min(SIZE_MAX));
        if known.kind.is_device() {
            header.set_device_major(known.device.major.min(ID_MAX))?;
            header.set_device_minor(known.device.minor.min(ID_MAX))?;
        }
        let n = head.target.len().min(NAME_LEN);
        if let Some(ustar) = header.as_ustar_mut() {
            ustar.linkname[..n].copy_from_slice(&head.target[..n]);
        }
        header.set_cksum();
        self.write(header.as_bytes())
    }

    /// Notes the path of a file, in case that it has other names.
    fn note_name(&mut self, file: FileId, attributes: &Attributes, path: &[u8]) {
        if attributes.link_count > 1 {
            self.first_names.insert(file, path.to_vec());
        }
    }

    /// Ends the stream.
    pub fn finish(mut self) -> Result<(), Reason> {
        self.write(&[0; 2 * BLOCK_LEN as usize])
    }
}

fn put_name(header: &mut Header, name: &[u8]) {
    let n = name.len().min(NAME_LEN);
    if let Some(ustar) = header.as_ustar_mut() {
        ustar.name[..n].copy_from_slice(&name[..n]);
    }
}

/// Encodes the values that do not fit in the header itself.
fn extensions(head: &Head<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    let mut add = |key: &[u8], value: &[u8]| {
        // The length counts its own digits.
        let rest = key.len() + value.len() + 3;
        let mut len = rest + 1;
        while len != rest + len.to_string().len() {
            len = rest + len.to_string().len();
        }
        out.extend_from_slice(len.to_string().as_bytes());
        for part in [b" ", key, b"=", value, b"\n"] {
            out.extend_from_slice(part);
        }
    };
    if head.path.len() > NAME_LEN {
        add(b"path", head.path);
    }
    if head.target.len() > NAME_LEN {
        add(b"linkpath", head.target);
    }
    let known = head.attributes;
    let (seconds, ns) =
        (known.modified_ns.div_euclid(1_000_000_000), known.modified_ns.rem_euclid(1_000_000_000));
    if ns != 0 || seconds < 0 {
        let text = if seconds < 0 && ns != 0 {
            format!("-{}.{:09}", -(seconds + 1), 1_000_000_000 - ns)
        } else {
            format!("{seconds}.{ns:09}")
        };
        add(b"mtime", text.as_bytes());
    }
    if head.len > SIZE_MAX {
        add(b"size", head.len.to_string().as_bytes());
    }
    if let Some(owner) = known.owner {
        for (key, id) in [(&b"uid"[..], owner.uid), (b"gid", owner.gid)] {
            if id > ID_MAX {
                add(key, id.to_string().as_bytes());
            }
        }
    }
    for (key, number) in
        [(super::DEVICE_MAJOR, known.device.major), (super::DEVICE_MINOR, known.device.minor)]
    {
        if number > ID_MAX {
            add(key.as_bytes(), number.to_string().as_bytes());
        }
    }
    for (name, value) in head.xattrs {
        add(&[super::XATTR_PREFIX, &name[..]].concat(), value);
    }
    out
}

/// Adds a source, with everything below it.
pub fn add<W: Write>(
    args: &ExtractArgs,
    source: &Address,
    writer: &mut TarWriter<'_, W>,
    account: &Account,
) -> Result<(), Reason> {
    let opened = source.open(args.work.threads)?;
    writer.first_names.clear();
    let top = if source.ends_with_slash() { opened.entry()? } else { opened.link_entry()? };
    let is_contents = top.name.is_empty() || source.ends_with_slash() || args.no_target_directory;
    let name =
        if is_contents && top.kind == Kind::Directory { Vec::new() } else { top.name.clone() };
    if !name.is_empty() {
        let attributes = opened.pool.attributes(top.file)?;
        add_one(&opened, &opened.path, &name, &top, &attributes, writer, account)?;
    }
    if top.kind != Kind::Directory {
        return Ok(());
    }
    opened.walk(top.file, &mut |path, entry, attributes| {
        signals::check()?;
        let (from, to) = (join(&opened.path, path), join(&name, path));
        add_one(&opened, &from, &to, entry, attributes, writer, account)?;
        Ok(true)
    })
}

fn add_one<W: Write>(
    opened: &Opened,
    path: &[u8],
    to: &[u8],
    entry: &DirEntry,
    attributes: &Attributes,
    writer: &mut TarWriter<'_, W>,
    account: &Account,
) -> Result<(), Reason> {
    let pool = &opened.pool;
    let is_file = |_| entry.kind == Kind::File;
    let found = contents::following(opened, entry.file, path, &is_file, |file| {
        let attributes = match file == entry.file {
            true => *attributes,
            false => pool.attributes(file)?,
        };
        Ok((file, attributes, pool.xattrs(file)?))
    });
    let (file, attributes, xattrs) = found?;
    let mut entry = entry.clone();
    entry.file = file;
    let (entry, attributes) = (&entry, &attributes);
    let head =
        |path, kind, len, target| Head { path, kind, attributes, len, target, xattrs: &xattrs };
    let first_name = match entry.kind {
        Kind::Directory | Kind::Symlink => None,
        _ if attributes.link_count > 1 => writer.first_names.get(&entry.file).cloned(),
        _ => None,
    };
    if let Some(first) = first_name {
        account.note(|done| done.hard_links += 1);
        return writer.head(&head(to, EntryType::Link, 0, &first));
    }
    let special = match entry.kind {
        Kind::Directory => {
            account.note(|done| done.directories += 1);
            let path = [to, b"/"].concat();
            return writer.head(&head(&path, EntryType::Directory, 0, b""));
        }
        Kind::Symlink => {
            account.note(|done| done.symlinks += 1);
            let target = contents::link_target(opened, entry.file, path)?;
            return writer.head(&head(to, EntryType::Symlink, 0, &target));
        }
        Kind::File => {
            writer.note_name(entry.file, attributes, to);
            let len = add_content(opened, path, entry, writer, &mut |len| {
                head(to, EntryType::Regular, len, b"")
            })?;
            account.wrote(path, len);
            return Ok(());
        }
        Kind::Socket => {
            account.left_out(to, "tar has no entry for a socket");
            return Ok(());
        }
        Kind::Fifo => EntryType::Fifo,
        Kind::CharDevice => EntryType::Char,
        Kind::BlockDevice => EntryType::Block,
    };
    writer.note_name(entry.file, attributes, to);
    account.note(|done| done.special_files += 1);
    writer.head(&head(to, special, 0, b""))
}

/// Writes a file. If it ends early or is damaged, the whole stream fails, since a tar stream cannot
/// express that.
fn add_content<'h, W: Write>(
    opened: &Opened,
    path: &[u8],
    entry: &DirEntry,
    writer: &mut TarWriter<'_, W>,
    head: &mut dyn FnMut(u64) -> Head<'h>,
) -> Result<u64, Reason> {
    let writer = std::cell::RefCell::new(writer);
    let (len, mut done) = (std::cell::Cell::new(0), 0);
    let mut once = contents::once();
    let mut begin = |n: u64| {
        once(n)?;
        len.set(n);
        writer.borrow_mut().head(&head(n))
    };
    let mut sink = contents::as_bytes(|bytes| {
        signals::check()?;
        done += bytes.len() as u64;
        writer.borrow_mut().write(bytes)
    });
    contents::read(opened, entry.file, path, Restart::Impossible, &mut begin, &mut sink)?;
    drop(sink);
    if done != len.get() {
        return Err(Reason::new(Code::InUse, "it became shorter while it was read"));
    }
    writer.borrow_mut().pad(done)?;
    Ok(done)
}
