//! The commands, one file each.

pub mod attributes;
pub mod check;
pub mod codecs;
pub mod compact;
pub mod cp;
pub mod extract;
pub mod fold;
pub mod info;
pub mod ls;
pub mod names;
pub mod pack;
pub mod properties;
pub mod put;
pub mod receive;
pub mod repack;
pub mod rewind;
pub mod run;
pub mod salvage;
pub mod send;
pub mod snapshots;
pub mod sql;
pub mod stat;
pub mod stats;
pub mod tree;
pub mod unpack;
