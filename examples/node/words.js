// Node with better-sqlite3, which brings a SQLite of its own.
//
// Look out: better-sqlite3 does not take URIs, and looks for the directory of a name itself. So Hardpack becomes the
// default VFS, through its second entry point. Then a pool is opened by its plain name, plain databases stay plain, and
// new databases become pools. A path into a pool cannot be opened this way. Each worker thread shares what one loaded.
'use strict';
const Database = require('better-sqlite3');

const [library, pool] = process.argv.slice(2);
if (pool === undefined) {
  console.error('usage: node words.js LIBRARY POOL');
  process.exit(2);
}

const loader = new Database(':memory:');
loader.loadExtension(library, 'sqlite3_hardpackdefault_init');
loader.close();

const db = new Database(pool, { fileMustExist: true });
db.prepare('INSERT INTO words VALUES (?, ?)').run('node', 1);
console.log(db.prepare('SELECT count(*) FROM words').pluck().get(), 'words');
db.close();
