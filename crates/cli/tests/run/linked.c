/* Uses libsqlite3 as programs that are linked to it do, and prints what each step found. The arguments are a database
   with a table t, and a name for a new database. */
#include <sqlite3.h>
#include <stdio.h>
#include <string.h>

static int rows(sqlite3 *db) {
    sqlite3_stmt *statement;
    int n = -1;
    if (sqlite3_prepare_v2(db, "SELECT count(*) FROM t", -1, &statement, NULL) != SQLITE_OK) return -1;
    if (sqlite3_step(statement) == SQLITE_ROW) n = sqlite3_column_int(statement, 0);
    sqlite3_finalize(statement);
    return n;
}

int main(int count, char **arguments) {
    const char *name = arguments[1];
    unsigned short wide[4096];
    sqlite3 *db;
    size_t i;
    if (count != 3) return 2;
    /* Allowed only before SQLite is initialised. */
    printf("config %d\n", sqlite3_config(SQLITE_CONFIG_MULTITHREAD));
    printf("initialize %d\n", sqlite3_initialize());
    printf("default %s\n", sqlite3_vfs_find(NULL)->zName);
    sqlite3_open(name, &db);
    printf("open %d\n", rows(db));
    sqlite3_close(db);
    sqlite3_open_v2(name, &db, SQLITE_OPEN_READONLY, NULL);
    printf("open_v2 %d\n", rows(db));
    sqlite3_close(db);
    for (i = 0; i <= strlen(name); i++) wide[i] = (unsigned char)name[i];
    sqlite3_open16(wide, &db);
    printf("open16 %d\n", rows(db));
    sqlite3_close(db);
    /* The VFS of the system is still there for those who name it. */
    sqlite3_open_v2(name, &db, SQLITE_OPEN_READONLY, "unix");
    printf("unix %d\n", rows(db));
    sqlite3_close(db);
    printf("shutdown %d\n", sqlite3_shutdown());
    sqlite3_open(name, &db);
    printf("again %d\n", rows(db));
    sqlite3_close(db);
    sqlite3_open(arguments[2], &db);
    printf("new %d\n", sqlite3_exec(db, "CREATE TABLE t(a)", NULL, NULL, NULL));
    sqlite3_close(db);
    return 0;
}
