//! The items of an import: what was given, until it is applied.

use crate::pool::namespace::entries::{Attributes, Kind, Xattr};
use crate::pool::namespace::props::Settings;
use crate::units::FileId;

/// A pending item; items are applied in order.
pub(super) enum Item {
    Directory {
        file: FileId,
        at: Place,
        /// Whether it was given itself, and not only something inside it.
        is_given: bool,
    },
    File {
        at: Place,
        content: Vec<u8>,
    },
    Symlink {
        at: Place,
        target: Vec<u8>,
    },
    Special {
        at: Place,
    },
    HardLink {
        existing: (FileId, Vec<u8>),
        parent: FileId,
        name: Vec<u8>,
    },
    /// Creates a file that has no name yet, with the settings of its directory.
    Begin {
        file: FileId,
        parent: FileId,
    },
    Part {
        file: FileId,
        settings: Settings,
        offset: u64,
        bytes: Vec<u8>,
        /// The lengths of the chunks; none if it is cut into slots.
        chunks: Vec<usize>,
    },
    End {
        file: FileId,
        at: Place,
        len: u64,
    },
}

impl Item {
    /// Returns the directory and the name that the item gets; parts of a file have none.
    pub fn place(&self) -> Option<(FileId, &[u8])> {
        match self {
            Item::Directory { at, .. }
            | Item::File { at, .. }
            | Item::Symlink { at, .. }
            | Item::Special { at }
            | Item::End { at, .. } => Some((at.parent, &at.name)),
            Item::HardLink { parent, name, .. } => Some((*parent, name)),
            Item::Begin { .. } | Item::Part { .. } => None,
        }
    }

    /// Replaces the directories that it names.
    pub fn map_directories(&mut self, actual: impl Fn(FileId) -> FileId) {
        let parent = match self {
            Item::Directory { at, .. }
            | Item::File { at, .. }
            | Item::Symlink { at, .. }
            | Item::Special { at }
            | Item::End { at, .. } => &mut at.parent,
            Item::HardLink { existing, parent, .. } => {
                existing.0 = actual(existing.0);
                parent
            }
            Item::Begin { parent, .. } => parent,
            Item::Part { .. } => return,
        };
        *parent = actual(*parent);
    }

    /// Returns the length of its extended attributes, in bytes.
    pub fn xattrs_len(&self) -> usize {
        match self {
            Item::Directory { at, .. }
            | Item::File { at, .. }
            | Item::Symlink { at, .. }
            | Item::Special { at }
            | Item::End { at, .. } => {
                at.xattrs.iter().map(|(name, value)| name.len() + value.len()).sum()
            }
            Item::HardLink { .. } | Item::Begin { .. } | Item::Part { .. } => 0,
        }
    }
}

/// The destination of an item, and its attributes.
pub(super) struct Place {
    pub parent: FileId,
    pub name: Vec<u8>,
    pub attributes: Attributes,
    pub xattrs: Vec<Xattr>,
}

impl Place {
    pub fn new(
        parent: FileId,
        name: &[u8],
        like: &Attributes,
        xattrs: &[Xattr],
        kind: Kind,
    ) -> Place {
        let attributes = Attributes { kind, ..*like };
        Place { parent, name: name.to_vec(), attributes, xattrs: xattrs.to_vec() }
    }
}

/// A file that is being streamed.
pub(super) struct Open {
    pub at: Place,
    /// The settings of the file that it replaces, otherwise those of its directory.
    pub settings: Settings,
    /// Its id, once a part of it was queued.
    pub file: Option<FileId>,
    /// The bytes queued so far.
    pub len: u64,
    /// Whether it is cut into chunks; known once a part of it was queued.
    pub is_chunked: bool,
    pub buffer: Vec<u8>,
    /// How many bytes are buffered before it is known that the file is long, and then for each
    /// part.
    pub whole_len_max: usize,
    pub part_len: usize,
}

impl Open {
    /// Returns how many bytes were given.
    pub fn end(&self) -> u64 {
        self.len + self.buffer.len() as u64
    }

    /// Returns how many more bytes are buffered before they are queued.
    pub fn room(&self) -> u64 {
        let len_max = if self.file.is_some() { self.part_len } else { self.whole_len_max };
        (len_max - self.buffer.len()) as u64
    }
}
