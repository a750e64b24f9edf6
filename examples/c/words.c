/*
 * C with libsqlite3: links to libhardpack.so and registers it with the program's SQLite.
 *
 *   cc -I crates/sqlite/include examples/c/words.c -L target/release -lhardpack -lsqlite3 -ldl
 *
 * Look out: with a SQLite that is compiled into the program, dlsym() finds nothing; docs/c.md says what to do then.
 */
#include <dlfcn.h>
#include <sqlite3.h>
#include <stdio.h>
#include "hardpack.h"

static void *find(void *context, const char *name) {
    (void)context;
    return dlsym(RTLD_DEFAULT, name);
}

static int print_count(void *context, int columns, char **values, char **names) {
    (void)context, (void)columns, (void)names;
    printf("%s words\n", values[0]);
    return 0;
}

int main(int count, char **arguments) {
    char uri[4096];
    sqlite3 *db = NULL;
    if (count != 3) {
        fprintf(stderr, "usage: words LIBRARY POOL\n");
        return 2;
    }
    /* The library is linked, so its path is not needed. */
    if (hardpack_register_with(find, NULL, 0) != HARDPACK_OK) {
        fprintf(stderr, "%s\n", hardpack_error());
        return 1;
    }
    snprintf(uri, sizeof uri, "file:%s?vfs=hardpack", arguments[2]);
    if (sqlite3_open_v2(uri, &db, SQLITE_OPEN_READWRITE | SQLITE_OPEN_URI, NULL) != SQLITE_OK
        || sqlite3_exec(db, "INSERT INTO words VALUES('c', 1)", NULL, NULL, NULL) != SQLITE_OK
        || sqlite3_exec(db, "SELECT count(*) FROM words", print_count, NULL, NULL) != SQLITE_OK) {
        fprintf(stderr, "%s\n", sqlite3_errmsg(db));
        sqlite3_close(db);
        return 1;
    }
    sqlite3_close(db);
    return 0;
}
