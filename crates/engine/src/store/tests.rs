//! Tests of the store, by what they test: trees, formats, the accounting of space, and its limits.

mod compact;
mod formats;
mod limits;
mod reserved;
mod space;
mod tree;
