//! Files and directories: their names, attributes and properties.

pub(in crate::pool) mod api;
pub(in crate::pool) mod attributes;
mod durations;
pub(in crate::pool) mod edit;
pub(in crate::pool) mod entries;
pub(in crate::pool) mod extra;
pub(in crate::pool) mod generation;
pub(in crate::pool) mod keys;
pub(in crate::pool) mod kind;
pub(in crate::pool) mod nameless;
pub(in crate::pool) mod names;
pub(in crate::pool) mod props;
pub(in crate::pool) mod receiving;
mod remove;
pub(in crate::pool) mod settings;
pub(in crate::pool) mod usage;
