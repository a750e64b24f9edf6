//! Tests of the mounted directory without a kernel: its methods are called as `filesystem.rs` calls
//! them.

mod model;
mod power_loss;
