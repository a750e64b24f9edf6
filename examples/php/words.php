<?php
// PHP with its class SQLite3. Debian's uses libsqlite3, so `hardpack run -- php ...` works as well.
//
// Look out: loadExtension() takes the name of a file in the directory that the setting sqlite3.extension_dir names, and
// no entry point. SQLite3 takes no URIs, so Hardpack becomes the default VFS: that is what the extension does under the
// name libhardpackdefault.so, a copy of libhardpack.so in that directory (a symbolic link would lead out of it). PDO cannot load extensions before PHP 8.4, but the VFS
// is there for it, too, once SQLite3 has loaded it.
//
//   php -d sqlite3.extension_dir=DIRECTORY examples/php/words.php libhardpackdefault.so POOL

if ($argc !== 3) {
    fwrite(STDERR, "usage: words.php LIBRARY POOL\n");
    exit(2);
}

$loader = new SQLite3(':memory:');
if (!$loader->loadExtension($argv[1])) {
    exit(1);
}
$loader->close();

$db = new SQLite3($argv[2], SQLITE3_OPEN_READWRITE);
$db->enableExceptions(true);
$db->exec("INSERT INTO words VALUES('php', 1)");
$pdo = new PDO("sqlite:file:{$argv[2]}?vfs=hardpack");
echo $pdo->query('SELECT count(*) FROM words')->fetchColumn(), " words\n";
$db->close();
