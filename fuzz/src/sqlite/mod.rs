//! Targets for the VFS: calls on its files, as SQLite makes them and otherwise; hostile pools below
//! it; and statements, pragmas and names of databases.

pub mod file;
pub mod handle;
pub mod sql;

use crate::engine::Target;

/// The targets of this module.
pub const TARGETS: [Target; 3] =
    [("vfs_file", file::run), ("vfs_image", file::run_image), ("vfs_sql", sql::run)];
