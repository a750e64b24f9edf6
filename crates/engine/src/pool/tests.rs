//! Tests of the pool against a model of it: a vector of bytes.

mod check;
mod dedup;
mod drafts;
mod faults;
mod filter;
mod gone;
mod group;
mod model;
mod namespace;
mod outdated;
mod overwritten;
mod parts;
mod places;
mod repair;
mod rewrite;
mod shared_cache;
mod together;
mod zeros;
