//! Targets below SQLite: codecs, the on-disk format, whole images, and files against a model.
//!
//! Nothing may panic or loop, whatever the input; where there is an oracle, its answer is asserted.
//! libFuzzer's limits bound the memory, or a counting allocator in the tests.

pub mod codec;
pub mod file;
pub mod formats;
pub mod image;
pub mod inflated;
pub mod input;
pub mod pages;
pub mod transformed;

/// A name, and the function that takes an input.
pub type Target = (&'static str, fn(&[u8]));

/// The targets of this module.
pub const TARGETS: [Target; 17] = [
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
    ("inflated_decode", inflated::decode),
    ("inflated_round_trip", inflated::round_trip),
    ("transformed_decode", transformed::decode),
    ("transformed_round_trip", transformed::round_trip),
];
