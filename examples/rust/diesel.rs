//! Rust with diesel, which cannot load extensions: links the crate `hardpack-sqlite` instead. With
//! cargo:
//!
//! ```toml
//! diesel = { version = "2.3", features = ["sqlite"] }
//! libsqlite3-sys = { version = "0.37", features = ["bundled"] }
//! hardpack = { package = "hardpack-sqlite", path = "crates/sqlite" }
//! ```
//!
//! Look out: Hardpack must be registered with the SQLite that diesel calls, which is that of
//! `libsqlite3-sys`. Cargo allows only one version of that crate in a program, so give one that
//! diesel accepts: `cargo tree -i libsqlite3-sys` shows it. `hardpack run` reaches the program only
//! without `bundled`.

use std::error::Error;

use diesel::dsl::count_star;
use diesel::prelude::*;

diesel::table! {
    words (word) {
        word -> Text,
        count -> Integer,
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    // The library is linked, so its path is not needed.
    let Some(pool) = std::env::args().nth(2) else {
        return Err("usage: words-diesel LIBRARY POOL".into());
    };
    hardpack::register(hardpack::api_from!(libsqlite3_sys)?, false)?;
    let mut db = SqliteConnection::establish(&format!("file:{pool}?vfs=hardpack"))?;
    diesel::insert_into(words::table)
        .values((words::word.eq("diesel"), words::count.eq(1)))
        .execute(&mut db)?;
    let count: i64 = words::table.select(count_star()).first(&mut db)?;
    println!("{count} words");
    Ok(())
}
