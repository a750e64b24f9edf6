//! Models what the databases must contain: applies the same transactions to plain databases in
//! memory, and keeps a digest of the content after each.
//!
//! Each transaction writes its number into the table `meta` of each database that it touches, so a
//! database itself says which state it is in; the digest then shows whether it is. The digest
//! covers the schema and every row of every table: ordinary tables, one without rowids, blobs,
//! full-text search, and tables that come and go.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};

use rusqlite::Connection;
use rusqlite::types::ValueRef;

use crate::common::Random;

const ITEM_COUNT: u64 = 90;
const NOTE_COUNT: u64 = 40;

/// The first transaction. `@` stands for the name of the database in each statement.
const SCHEMA: &str = "
    create table @meta(id integer primary key, k int);
    insert into @meta values(1, 0);
    create table @item(id integer primary key, name text, score int, body blob);
    create index @item_name on item(name);
    create index @item_score on item(score, id);
    create table @pair(a int, b int, c text, primary key(a, b)) without rowid;
    create virtual table @note using fts5(title, body);";

/// The databases after a transaction.
#[derive(Clone, Debug, Default)]
pub struct Version {
    /// Whether it touched the database.
    pub touches: [bool; 2],
    /// The digests that the content may have. A failed transaction may have had the same number, so
    /// there may be several.
    pub digests: [Vec<u64>; 2],
}

/// All versions, by the number of the transaction; 0 is the empty state.
#[derive(Clone, Debug)]
pub struct Versions(pub Vec<Version>);

impl Versions {
    /// Returns the number in `database` after transaction `g`: that of the last transaction that
    /// touched it.
    pub fn number(&self, database: usize, g: u64) -> u64 {
        let touches = |g: &usize| self.0[*g].touches[database];
        (0..=g as usize).rev().find(touches).unwrap_or(0) as u64
    }

    /// Whether `digest` is that of the database after transaction `number`.
    pub fn holds(&self, database: usize, number: u64, digest: u64) -> bool {
        let version = self.0.get(number as usize);
        version.is_some_and(|version| version.digests[database].contains(&digest))
    }
}

/// The databases in memory.
pub struct Model {
    pub databases: Vec<Connection>,
    pub versions: Versions,
    /// The number of the newest transaction.
    pub newest: u64,
}

/// A transaction: statements for each database that it touches.
#[derive(Clone, Debug)]
pub struct Transaction {
    pub number: u64,
    pub statements: Vec<(usize, String)>,
}

impl Transaction {
    /// Whether this database is touched.
    pub fn touches(&self, database: usize) -> bool {
        self.statements.iter().any(|(other, _)| *other == database)
    }

    /// The statements for one database alone.
    pub fn of(&self, database: usize) -> String {
        let own = self.statements.iter().filter(|(other, _)| *other == database);
        own.map(|(_, sql)| sql.replace('@', "")).collect::<Vec<_>>().join(";\n")
    }

    /// The statements for one connection to all databases, the second one attached as `b`.
    pub fn of_all(&self) -> String {
        let name = |(database, sql): &(usize, String)| {
            sql.replace('@', if *database == 0 { "main." } else { "b." })
        };
        self.statements.iter().map(name).collect::<Vec<_>>().join(";\n")
    }
}

impl Model {
    /// Creates empty databases.
    pub fn new(count: usize) -> Model {
        let open = |_| Connection::open_in_memory().unwrap();
        let databases: Vec<_> = (0..count).map(open).collect();
        let digests = std::array::from_fn(|index| match databases.get(index) {
            Some(database) => vec![digest(database).unwrap()],
            None => Vec::new(),
        });
        let versions = Versions(vec![Version { touches: [true; 2], digests }]);
        Model { databases, versions, newest: 0 }
    }

    /// Creates copies of other databases, as transaction `number` left them.
    pub fn copy_of(sources: &[Connection]) -> rusqlite::Result<Model> {
        let mut model = Model::new(sources.len());
        let mut version = Version::default();
        for (index, source) in sources.iter().enumerate() {
            let copy = &mut model.databases[index];
            rusqlite::backup::Backup::new(source, copy)?.step(-1)?;
            version.digests[index] = vec![digest(copy)?];
        }
        for (index, copy) in model.databases.iter().enumerate() {
            let number = number_in(copy)?;
            model.newest = model.newest.max(number);
            if model.versions.0.len() <= number as usize {
                model.versions.0.resize(number as usize + 1, Version::default());
            }
            let own = &mut model.versions.0[number as usize];
            own.touches[index] = true;
            own.digests[index] = std::mem::take(&mut version.digests[index]);
        }
        Ok(model)
    }

    /// Makes up the next transaction at random; without `savepoints` it contains none.
    pub fn next(&self, random: &mut Random, savepoints: bool) -> Transaction {
        let (number, created) = (self.newest + 1, self.newest > 0);
        let count = self.databases.len();
        let mut statements = Vec::new();
        if !created {
            statements.extend((0..count).map(|database| (database, SCHEMA.to_string())));
        }
        let only = random.below(3 * count as u64) as usize;
        for database in 0..count {
            // Usually all databases are touched, sometimes only one.
            if created && count > 1 && only < count && only != database {
                continue;
            }
            for _ in 0..1 + random.below(4) {
                statements.push((database, statement(random, savepoints)));
            }
            statements.push((database, format!("update @meta set k = {number} where id = 1")));
        }
        Transaction { number, statements }
    }

    /// Runs a transaction and leaves it open.
    pub fn begin(&self, transaction: &Transaction) {
        for (index, database) in self.databases.iter().enumerate() {
            let sql = format!("begin; {}", transaction.of(index));
            database.execute_batch(&sql).unwrap_or_else(|error| panic!("model: {sql}: {error}"));
        }
    }

    /// Adds the databases in the open transaction as a version.
    pub fn expect(&mut self, transaction: &Transaction) {
        let number = transaction.number as usize;
        if self.versions.0.len() <= number {
            self.versions.0.push(Version::default());
        }
        for (index, database) in self.databases.iter().enumerate() {
            let version = &mut self.versions.0[number];
            version.touches[index] = transaction.touches(index);
            if transaction.touches(index) {
                version.digests[index].push(digest(database).unwrap());
            }
        }
    }

    /// Ends the open transaction: it becomes the newest, or its number is used again.
    pub fn end(&mut self, committed: bool) {
        for database in &self.databases {
            database.execute_batch(if committed { "commit" } else { "rollback" }).unwrap();
        }
        self.newest += u64::from(committed);
    }
}

/// Returns a statement, or a few that belong together.
fn statement(random: &mut Random, savepoints: bool) -> String {
    let (id, score) = (1 + random.below(ITEM_COUNT), random.below(1000));
    let text = |random: &mut Random, len: u64| {
        let len = random.below(len) as usize;
        random.text(len)
    };
    match random.below(if savepoints { 18 } else { 17 }) {
        0..=3 => {
            let (name, body) = (text(random, 30), text(random, 1500));
            format!("insert or replace into @item values({id}, '{name}', {score}, '{body}')")
        }
        4 => format!(
            "update @item set score = score + 1, name = name || 'x' where id % 6 = {}",
            id % 6
        ),
        5 => format!("update @item set body = substr(body, 5) || 'changed' where id = {id}"),
        6 => format!("delete from @item where id between {id} and {}", id + random.below(20)),
        7 => {
            let noise: String = (0..200).map(|_| format!("{:02x}", random.below(256))).collect();
            format!("insert or replace into @item values({id}, 'noise', {score}, x'{noise}')")
        }
        8 => format!(
            "insert or replace into @item values({id}, 'long', 0, zeroblob({}));
             update @item set body = body || '{}' where id = {id}",
            score * 20,
            text(random, 6000)
        ),
        9 | 10 => {
            let (title, body) = (text(random, 30), text(random, 400));
            let rowid = 1 + random.below(NOTE_COUNT);
            format!(
                "delete from @note where rowid = {rowid};
                 insert into @note(rowid, title, body) values({rowid}, '{title}', '{body}')"
            )
        }
        11 => format!("delete from @note where rowid % 5 = {}", id % 5),
        12 | 13 => {
            let c = text(random, 200);
            format!("insert or replace into @pair values({}, {}, '{c}')", id % 9, score % 9)
        }
        14 => format!("delete from @pair where a = {}", id % 9),
        15 => {
            let n = id % 3;
            format!(
                "drop table if exists @x{n}; create table @x{n}(a integer primary key, b);
                 insert into @x{n} select id, name from @item;
                 create index @x{n}_b on x{n}(b); alter table @x{n} add column c default {score}"
            )
        }
        16 => format!("drop table if exists @x{}", id % 3),
        _ => format!(
            "savepoint one; delete from @item where id > {id};
             insert into @pair values(-1, {score}, 'gone'); savepoint two;
             update @item set name = 'other'; rollback to one;
             update @item set score = {score} where id = {id}; release one"
        ),
    }
}

/// Returns the number of the last transaction in a database; 0 if there is none.
pub fn number_in(db: &Connection) -> rusqlite::Result<u64> {
    let tables = "select count(*) from sqlite_schema where name = 'meta'";
    if db.query_row(tables, [], |row| row.get::<_, i64>(0))? == 0 {
        return Ok(0);
    }
    let number: i64 = db.query_row("select k from meta where id = 1", [], |row| row.get(0))?;
    Ok(number.unsigned_abs())
}

/// Returns a digest of the whole content of a database.
pub fn digest(db: &Connection) -> rusqlite::Result<u64> {
    let mut hasher = DefaultHasher::new();
    let schema = "select type, name, tbl_name, sql from sqlite_schema order by type, name";
    hash_rows(db, schema, &mut hasher)?;
    let tables = "select name from sqlite_schema where type = 'table' and name not like 'note\\_%'
                  escape '\\' order by name";
    let mut statement = db.prepare_cached(tables)?;
    let names: Vec<String> =
        statement.query_map([], |row| row.get(0))?.collect::<rusqlite::Result<_>>()?;
    for name in names {
        name.hash(&mut hasher);
        if name == "note" {
            let found = "select rowid from note where note match 'pool' order by rowid";
            hash_rows(db, found, &mut hasher)?;
            hash_rows(db, "select rowid, * from note order by rowid", &mut hasher)?;
        } else {
            hash_rows(db, &format!("select * from \"{name}\" order by 1, 2"), &mut hasher)?;
        }
    }
    Ok(hasher.finish())
}

fn hash_rows(db: &Connection, sql: &str, hasher: &mut DefaultHasher) -> rusqlite::Result<()> {
    let mut statement = db.prepare_cached(sql)?;
    let width = statement.column_count();
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        for index in 0..width {
            match row.get_ref(index)? {
                ValueRef::Null => 0u8.hash(hasher),
                ValueRef::Integer(n) => (1u8, n).hash(hasher),
                ValueRef::Real(n) => (2u8, n.to_bits()).hash(hasher),
                ValueRef::Text(bytes) => (3u8, bytes).hash(hasher),
                ValueRef::Blob(bytes) => (4u8, bytes).hash(hasher),
            }
        }
    }
    Ok(())
}
