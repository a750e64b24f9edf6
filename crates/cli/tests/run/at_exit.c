/* Writes to a database and closes it when the program exits, as programs in C++ do that keep it in a static object. The
   arguments are the database and a journal mode. Prints what failed. */
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>

static sqlite3 *db;

static void run(const char *sql) {
    if (sqlite3_exec(db, sql, NULL, NULL, NULL) != SQLITE_OK) printf("%s: %s\n", sql, sqlite3_errmsg(db));
}

static void end(void) {
    run("INSERT INTO t(b) VALUES('at exit')");
    if (sqlite3_close(db) != SQLITE_OK) printf("not closed\n");
}

int main(int count, char **arguments) {
    char mode[64];
    if (count != 3 || sqlite3_open(arguments[1], &db) != SQLITE_OK) return 2;
    snprintf(mode, sizeof mode, "PRAGMA journal_mode=%s", arguments[2]);
    run(mode);
    run("INSERT INTO t(b) VALUES('before')");
    atexit(end);
    return 0;
}
