/* A module of a program that is linked to libsqlite3 itself. */
#include <sqlite3.h>
#include <stddef.h>

int rows_of(const char *name) {
    sqlite3 *db;
    sqlite3_stmt *statement;
    int n = -1;
    if (sqlite3_open_v2(name, &db, SQLITE_OPEN_READONLY, NULL) == SQLITE_OK
        && sqlite3_prepare_v2(db, "SELECT count(*) FROM t", -1, &statement, NULL) == SQLITE_OK
        && sqlite3_step(statement) == SQLITE_ROW) {
        n = sqlite3_column_int(statement, 0);
        sqlite3_finalize(statement);
    }
    sqlite3_close(db);
    return n;
}
