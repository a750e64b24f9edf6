//! Damage, full disks, and logs that somebody has left.

mod block_device;
#[path = "../common/mod.rs"]
mod common;
mod damage;
mod full_disk;
mod log_of_old;
mod replaced;
