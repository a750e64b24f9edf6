//! Tests of the store, by what they test: trees, formats, the accounting of space, its limits, and races.

mod compact;
mod dictionaries;
mod formats;
mod limits;
mod races;
mod reserved;
mod space;
mod tree;
mod unsynced;
