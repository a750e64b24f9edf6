// Go with mattn/go-sqlite3, whose SQLite is compiled into the program (it needs cgo and a C compiler).
//
// Look out:
//   - The extension must be loaded before a connection to a pool is opened, so the driver that loads it opens
//     ":memory:" first. It is loaded once in a process; all drivers of this package share one SQLite.
//   - database/sql opens connections as it likes. Ping opens the first one at once.
//   - The build tag sqlite_omit_load_extension removes the loading of extensions.
//   - modernc.org/sqlite is SQLite translated to Go. It cannot load extensions, and 'hardpack run' cannot reach it.
package main

import (
	"database/sql"
	"fmt"
	"log"
	"os"

	"github.com/mattn/go-sqlite3"
)

func main() {
	if len(os.Args) != 3 {
		log.Fatal("usage: words LIBRARY POOL")
	}
	library, pool := os.Args[1], os.Args[2]

	sql.Register("loading", &sqlite3.SQLiteDriver{Extensions: []string{library}})
	loader, err := sql.Open("loading", ":memory:")
	if err != nil {
		log.Fatal(err)
	}
	if err := loader.Ping(); err != nil {
		log.Fatal(err)
	}
	loader.Close()

	db, err := sql.Open("sqlite3", "file:"+pool+"?vfs=hardpack")
	if err != nil {
		log.Fatal(err)
	}
	defer db.Close()
	if _, err := db.Exec("INSERT INTO words VALUES('go', 1)"); err != nil {
		log.Fatal(err)
	}
	var count int
	if err := db.QueryRow("SELECT count(*) FROM words").Scan(&count); err != nil {
		log.Fatal(err)
	}
	fmt.Println(count, "words")
}
