// Node with its own module node:sqlite, from Node 22.13 on.
//
// Look out: a database takes extensions only if it is opened with allowExtension. Names may be URLs: a string that
// begins with "file:" is not one in every version, so this makes a URL object.
'use strict';
const { DatabaseSync } = require('node:sqlite');
const { pathToFileURL } = require('node:url');

const [library, pool] = process.argv.slice(2);
if (pool === undefined) {
  console.error('usage: node builtin.js LIBRARY POOL');
  process.exit(2);
}

const loader = new DatabaseSync(':memory:', { allowExtension: true });
loader.loadExtension(library);
loader.close();

const url = pathToFileURL(pool);
url.searchParams.set('vfs', 'hardpack');
const db = new DatabaseSync(url);
db.prepare('INSERT INTO words VALUES (?, ?)').run('node:sqlite', 1);
console.log(db.prepare('SELECT count(*) AS n FROM words').get().n, 'words');
db.close();
