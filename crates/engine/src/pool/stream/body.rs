//! The payloads of the frames in a stream.
//!
//! ```text
//! 1 DICTIONARY      number u32, its bytes
//! 2 OBJECT          file u64, parent u64, name_len u16, name, attributes_len u16, attributes,
//!                   target of a link
//! 3 ATTRIBUTES      file u64, parent u64, attributes
//! 4 PROPERTY        file u64, is set u8, name_len u16, name, value
//! 5 XATTR           file u64, is set u8, name_len u16, name, value
//! 6 USES            file u64, number u32 of the dictionary for new data; 0 if none pays
//! 7 NAME            directory u64, file u64, name
//! 8 FILE EXTENT     tree u8, file u64, offset u64, pointer_len u16, pointer, stored bytes
//! 9 SHARED          tree u8, file u64, offset u64, pointer_len u16, pointer, tree u8, file u64,
//!                   offset u64
//! 10 KNOWN          file u64, path in the base, from its scope
//! 11 REMOVE NAME    directory u64, name
//! 12 REMOVE FILE EXTENT   tree u8, file u64, offset u64
//! 13 END            frames u64, BLAKE3
//! ```
//!
//! Files and dictionaries are identified by their numbers in the source. Attributes and pointers
//! are encoded as in the trees. The parent within attributes is always 1; the parent of the frame
//! counts instead: the directory to inherit from, or 0 for the scope itself and if that directory
//! is outside it. A pointer has no sector and no birth. The stored bytes of a FILE EXTENT match the
//! length and the checksum of its pointer; there are none if the pointer itself contains them. A
//! SHARED refers to the extent of an earlier FILE EXTENT or SHARED of the stream. The first OBJECT
//! is the scope: its parent is 0, and its name is empty. A DICTIONARY precedes every reference to
//! it, and an OBJECT or KNOWN precedes every reference to its file.
//!
//! A segment that others are stored as differences from is sent like a dictionary, by a FILE EXTENT
//! or SHARED: its tree is that of the dictionaries, its number stands for the file, and the offset
//! is 0. Records may share it, and it may share the segment of records.

use crate::pool::namespace::entries::{Attributes, NAME_LEN_MAX, TARGET_LEN_MAX, XATTR_LEN_MAX};
use crate::store::dictionaries::DICTIONARY_LEN_MAX;
use crate::store::format::fields::{FieldReader, FieldWriter};
use crate::store::format::node::VALUE_LEN_MAX;
use crate::store::format::pointer::{POINTER_LEN_MAX, Place, Pointer};
use crate::store::trees::TreeId;
use crate::units::{FileId, Sector, Txg};

/// The longest path of a KNOWN, in bytes: that of the deepest directory.
pub(crate) const PATH_LEN_MAX: usize = 1024 * (NAME_LEN_MAX + 1);

/// The place of a record or patch, or of a base (see `store/bases.rs`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct At {
    /// The tree: the map or the patches, or for a base the dictionaries. Then its number stands for
    /// that of a file, and the offset is 0.
    pub tree: TreeId,
    pub file: FileId,
    pub offset: u64,
}

impl At {
    /// The place of a base.
    pub fn of_base(number: u32) -> At {
        At { tree: TreeId::Dictionaries, file: FileId(number.into()), offset: 0 }
    }

    /// The number of the base, if this is the place of one.
    pub fn base(&self) -> Option<u32> {
        (self.tree == TreeId::Dictionaries).then_some(u32::try_from(self.file.0).ok()?)
    }
}

/// The decoded payload of a frame.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Body {
    Dictionary { number: u32, bytes: Vec<u8> },
    Object { file: FileId, parent: FileId, name: Vec<u8>, attributes: Attributes, target: Vec<u8> },
    Attributes { file: FileId, parent: FileId, attributes: Attributes },
    Property { file: FileId, name: Vec<u8>, value: Option<Vec<u8>> },
    Xattr { file: FileId, name: Vec<u8>, value: Option<Vec<u8>> },
    Uses { file: FileId, number: u32 },
    Name { directory: FileId, file: FileId, name: Vec<u8> },
    FileExtent { at: At, pointer: Pointer, stored: Vec<u8> },
    Shared { at: At, pointer: Pointer, of: At },
    Known { file: FileId, path: Vec<u8> },
    RemoveName { directory: FileId, name: Vec<u8> },
    RemoveFileExtent { at: At },
    End { frames: u64, hash: [u8; 32] },
}

/// The type of the frame that ends a stream.
pub(crate) const END: u8 = 13;
/// The type of a frame with a file extent.
pub(crate) const FILE_EXTENT: u8 = 8;

/// Prepares a pointer for a stream: its sector and birth mean nothing in another pool.
pub(crate) fn travelling(pointer: &Pointer) -> Pointer {
    let mut pointer = Pointer { birth: Txg(0), ..pointer.clone() };
    if let Place::Extent { sector, .. } = &mut pointer.place {
        *sector = Sector(0);
    }
    pointer
}

/// Returns the payload length of a file extent.
pub(crate) fn file_extent_len(pointer: &Pointer) -> usize {
    let stored = match pointer.place {
        Place::Extent { .. } => pointer.stored_len as usize,
        _ => 0,
    };
    1 + 8 + 8 + 2 + pointer.to_bytes().len() + stored
}

fn put_name(f: &mut FieldWriter<'_>, name: &[u8]) {
    f.u16(name.len() as u16);
    f.bytes(name);
}

fn put_at(f: &mut FieldWriter<'_>, at: &At) {
    f.u8(at.tree.number());
    f.u64(at.file.0);
    f.u64(at.offset);
}

fn put_value(f: &mut FieldWriter<'_>, file: FileId, name: &[u8], value: Option<&Vec<u8>>) {
    f.u64(file.0);
    f.u8(u8::from(value.is_some()));
    put_name(f, name);
    f.bytes(value.map_or(&[], Vec::as_slice));
}

impl Body {
    /// Encodes the frame: its type and payload.
    pub(crate) fn encode(&self) -> (u8, Vec<u8>) {
        let mut out = Vec::new();
        let mut f = FieldWriter(&mut out);
        let tag = match self {
            Body::Dictionary { number, bytes } => {
                f.u32(*number);
                f.bytes(bytes);
                1
            }
            Body::Object { file, parent, name, attributes, target } => {
                f.u64(file.0);
                f.u64(parent.0);
                put_name(&mut f, name);
                put_name(&mut f, &attributes.encode());
                f.bytes(target);
                2
            }
            Body::Attributes { file, parent, attributes } => {
                f.u64(file.0);
                f.u64(parent.0);
                f.bytes(&attributes.encode());
                3
            }
            Body::Property { file, name, value } => {
                put_value(&mut f, *file, name, value.as_ref());
                4
            }
            Body::Xattr { file, name, value } => {
                put_value(&mut f, *file, name, value.as_ref());
                5
            }
            Body::Uses { file, number } => {
                f.u64(file.0);
                f.u32(*number);
                6
            }
            Body::Name { directory, file, name } => {
                f.u64(directory.0);
                f.u64(file.0);
                f.bytes(name);
                7
            }
            Body::FileExtent { at, pointer, stored } => {
                put_at(&mut f, at);
                put_name(&mut f, &pointer.to_bytes());
                f.bytes(stored);
                FILE_EXTENT
            }
            Body::Shared { at, pointer, of } => {
                put_at(&mut f, at);
                put_name(&mut f, &pointer.to_bytes());
                put_at(&mut f, of);
                9
            }
            Body::Known { file, path } => {
                f.u64(file.0);
                f.bytes(path);
                10
            }
            Body::RemoveName { directory, name } => {
                f.u64(directory.0);
                f.bytes(name);
                11
            }
            Body::RemoveFileExtent { at } => {
                put_at(&mut f, at);
                12
            }
            Body::End { frames, hash } => {
                f.u64(*frames);
                f.bytes(hash);
                END
            }
        };
        (tag, out)
    }

    /// Decodes a frame; `None` if the payload does not match its type.
    pub(crate) fn decode(tag: u8, payload: &[u8]) -> Option<Body> {
        let mut f = FieldReader(payload);
        let body = match tag {
            1 => {
                let number = f.u32().filter(|number| *number > 0)?;
                Body::Dictionary { number, bytes: rest(&mut f, DICTIONARY_LEN_MAX)? }
            }
            2 => {
                let (file, parent) = (FileId(f.u64()?), FileId(f.u64()?));
                let name = take_name(&mut f, NAME_LEN_MAX)?;
                let attributes = take_name(&mut f, VALUE_LEN_MAX)?;
                let attributes = Attributes::decode(&attributes)?;
                let target = rest(&mut f, TARGET_LEN_MAX)?;
                Body::Object { file, parent, name, attributes, target }
            }
            3 => {
                let (file, parent) = (FileId(f.u64()?), FileId(f.u64()?));
                let attributes = Attributes::decode(&rest(&mut f, VALUE_LEN_MAX)?)?;
                Body::Attributes { file, parent, attributes }
            }
            4 => {
                let (file, name, value) = take_value(&mut f, VALUE_LEN_MAX)?;
                Body::Property { file, name, value }
            }
            5 => {
                let (file, name, value) = take_value(&mut f, XATTR_LEN_MAX)?;
                Body::Xattr { file, name, value }
            }
            6 => Body::Uses { file: FileId(f.u64()?), number: f.u32()? },
            7 => {
                let (directory, file) = (FileId(f.u64()?), FileId(f.u64()?));
                Body::Name { directory, file, name: rest(&mut f, NAME_LEN_MAX)? }
            }
            FILE_EXTENT => {
                let (at, pointer) = (take_at(&mut f)?, take_pointer(&mut f)?);
                let stored = std::mem::take(&mut f.0).to_vec();
                let expected = match pointer.place {
                    Place::Extent { .. } => pointer.stored_len as usize,
                    _ => 0,
                };
                (stored.len() == expected).then_some(())?;
                Body::FileExtent { at, pointer, stored }
            }
            9 => {
                let (at, pointer) = (take_at(&mut f)?, take_pointer(&mut f)?);
                matches!(pointer.place, Place::Extent { .. }).then_some(())?;
                Body::Shared { at, pointer, of: take_at(&mut f)? }
            }
            10 => Body::Known { file: FileId(f.u64()?), path: rest(&mut f, PATH_LEN_MAX)? },
            11 => {
                let directory = FileId(f.u64()?);
                Body::RemoveName { directory, name: rest(&mut f, NAME_LEN_MAX)? }
            }
            12 => Body::RemoveFileExtent { at: take_at(&mut f).filter(|at| at.base().is_none())? },
            END => Body::End { frames: f.u64()?, hash: f.bytes(32)?.try_into().ok()? },
            _ => return None,
        };
        f.0.is_empty().then_some(body)
    }
}

fn rest(f: &mut FieldReader<'_>, len_max: usize) -> Option<Vec<u8>> {
    let rest = std::mem::take(&mut f.0);
    (rest.len() <= len_max).then(|| rest.to_vec())
}

fn take_name(f: &mut FieldReader<'_>, len_max: usize) -> Option<Vec<u8>> {
    let len = usize::from(f.u16()?);
    (len <= len_max).then_some(())?;
    f.bytes(len).map(<[u8]>::to_vec)
}

fn take_at(f: &mut FieldReader<'_>) -> Option<At> {
    let tree = TreeId::from_stored(f.u8()?)?;
    let at = At { tree, file: FileId(f.u64()?), offset: f.u64()? };
    let is_sound = match tree {
        TreeId::Map | TreeId::Patches => true,
        _ => at.base().is_some_and(|number| number > 0 && at == At::of_base(number)),
    };
    is_sound.then_some(at)
}

fn take_pointer(f: &mut FieldReader<'_>) -> Option<Pointer> {
    let pointer = Pointer::decode(&take_name(f, POINTER_LEN_MAX)?)?;
    (travelling(&pointer) == pointer).then_some(pointer)
}

type Value = (FileId, Vec<u8>, Option<Vec<u8>>);

fn take_value(f: &mut FieldReader<'_>, len_max: usize) -> Option<Value> {
    let file = FileId(f.u64()?);
    let is_set = f.u8().filter(|is_set| *is_set <= 1)? == 1;
    let name = take_name(f, NAME_LEN_MAX)?;
    let value = rest(f, len_max)?;
    (is_set || value.is_empty()).then_some(())?;
    Some((file, name, is_set.then_some(value)))
}
