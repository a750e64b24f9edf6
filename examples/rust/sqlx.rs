//! Rust with sqlx: loads the extension, into the SQLite that is compiled into the program. With
//! cargo:
//!
//! ```toml
//! sqlx = { version = "0.9", features = ["runtime-tokio", "sqlite"] }
//! ```
//!
//! Look out: `hardpack run` does not reach such a SQLite. sqlx loads an extension after it has
//! opened a database, so another one, in memory, must load it before the pool is opened. The VFS
//! stays when that is closed. The name of a pool is given with `filename`, without `file:`, and the
//! VFS apart. In a URL, it is `sqlite://words.hpk?vfs=hardpack`.
//!
//! Instead, a program can link the crate `hardpack-sqlite`, as diesel.rs does.

use std::error::Error;

use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{ConnectOptions, Connection, query, query_scalar};

async fn words(library: String, pool: &str) -> Result<(), sqlx::Error> {
    let memory = SqliteConnectOptions::new().filename(":memory:");
    // SAFETY: this is Hardpack's own library.
    let loader = unsafe { memory.extension(library) };
    loader.connect().await?.close().await?;

    let options = SqliteConnectOptions::new().filename(pool).vfs("hardpack");
    let mut db = options.connect().await?;
    query("INSERT INTO words VALUES('sqlx', 1)").execute(&mut db).await?;
    let count: i64 = query_scalar("SELECT count(*) FROM words").fetch_one(&mut db).await?;
    println!("{count} words");
    db.close().await
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(library), Some(pool)) = (arguments.next(), arguments.next()) else {
        return Err("usage: words-sqlx LIBRARY POOL".into());
    };
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    Ok(runtime.block_on(words(library, &pool))?)
}
