//! Targets below SQLite: codecs, what is on disk, whole images, files against a model.
//!
//! Nothing may panic or loop whatever the input; where there is an oracle, it is asserted. Memory is bounded
//! by libFuzzer's limits, and in the tests by a counting allocator.

pub mod codec;
pub mod file;
pub mod formats;
pub mod image;
pub mod input;
pub mod pages;

/// A name and what it does with an input.
pub type Target = (&'static str, fn(&[u8]));

/// The targets of this module.
pub const TARGETS: [Target; 13] = [
    ("codec_decompress", codec::decompress),
    ("codec_round_trip", codec::round_trip),
    ("header", formats::header),
    ("superblock", formats::superblock),
    ("pointer", formats::pointer),
    ("node", formats::node),
    ("entries", formats::entries),
    ("delta", formats::delta),
    ("settings", formats::settings),
    ("image", image::run),
    ("file", file::run),
    ("filter_decode", pages::decode),
    ("filter_round_trip", pages::round_trip),
];
