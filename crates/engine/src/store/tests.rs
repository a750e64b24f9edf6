//! Tests of the store by topic: trees, formats, the accounting of space, limits, and races.

mod bases;
mod compact;
mod dictionaries;
mod formats;
mod inflated;
mod limits;
mod races;
mod reserved;
mod space;
mod survey;
mod tree;
mod unsynced;
