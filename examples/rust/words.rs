//! Rust with rusqlite: links the crate `hardpack-sqlite` instead of loading the extension. With
//! cargo:
//!
//! ```toml
//! rusqlite = { version = "0.41", features = ["bundled"] }
//! hardpack = { package = "hardpack-sqlite", path = "crates/sqlite" }
//! ```
//!
//! Look out: `api_from!` takes the module with SQLite's functions, which must be those that the
//! program uses. For other drivers that is `libsqlite3_sys` (diesel.rs). A program with `bundled`
//! has a SQLite of its own, which `hardpack run` does not reach.

use std::error::Error;

use rusqlite::Connection;

fn main() -> Result<(), Box<dyn Error>> {
    // The library is linked, so its path is not needed.
    let Some(pool) = std::env::args().nth(2) else {
        return Err("usage: words LIBRARY POOL".into());
    };
    hardpack::register(hardpack::api_from!(rusqlite::ffi)?, false)?;
    let db = Connection::open(format!("file:{pool}?vfs=hardpack"))?;
    db.execute("INSERT INTO words VALUES('rust', 1)", [])?;
    let count: i64 = db.query_row("SELECT count(*) FROM words", [], |row| row.get(0))?;
    println!("{count} words");
    Ok(())
}
