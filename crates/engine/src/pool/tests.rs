//! Tests of the pool against a model of it: a vector of bytes.

mod faults;
mod model;
mod namespace;
mod rewrite;
