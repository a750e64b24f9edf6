//! Tests of the store, by what they test: trees, formats, and the accounting of space.

mod formats;
mod space;
mod tree;
