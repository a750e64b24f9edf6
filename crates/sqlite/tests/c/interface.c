/* Uses every function of hardpack.h. Compiled as C and as C++; the argument is an empty directory. */
#include "hardpack.h"

#include <dlfcn.h>
#include <sqlite3.h>
#include <sqlite3ext.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#undef sqlite3_close
#undef sqlite3_column_int
#undef sqlite3_exec
#undef sqlite3_finalize
#undef sqlite3_open_v2
#undef sqlite3_prepare_v2
#undef sqlite3_step
#undef sqlite3_auto_extension
#undef sqlite3_cancel_auto_extension
#undef sqlite3_errmsg
#undef sqlite3_vfs_find

static const char *at;

static void fail(const char *what, int line) {
    fprintf(stderr, "line %d: %s: %s\n", line, what, hardpack_error());
    exit(1);
}

#define CHECK(what) ((what) ? (void)0 : fail(#what, __LINE__))
#define REFUSED(code, text, call) (CHECK((call) == (code)), CHECK(strstr(hardpack_error(), text) != NULL))

/* The path of a file in the directory; a few are valid at a time. */
static const char *in(const char *name) {
    static char paths[4][4096];
    static int next;
    char *path = paths[next++ % 4];
    snprintf(path, sizeof paths[0], "%s/%s", at, name);
    return path;
}

static sqlite3 *opened(const char *name, const char *parameters) {
    char uri[8192];
    sqlite3 *db;
    snprintf(uri, sizeof uri, "file:%s%s", in(name), parameters);
    CHECK(sqlite3_open_v2(uri, &db, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_URI, NULL) == SQLITE_OK);
    return db;
}

static void run(sqlite3 *db, const char *sql) {
    if (sqlite3_exec(db, sql, NULL, NULL, NULL) != SQLITE_OK) {
        fprintf(stderr, "%s: %s\n", sql, sqlite3_errmsg(db));
        exit(1);
    }
}

static int number(sqlite3 *db, const char *sql) {
    sqlite3_stmt *statement;
    int n;
    CHECK(sqlite3_prepare_v2(db, sql, -1, &statement, NULL) == SQLITE_OK);
    CHECK(sqlite3_step(statement) == SQLITE_ROW);
    n = sqlite3_column_int(statement, 0);
    sqlite3_finalize(statement);
    return n;
}

static int begins(const char *path, const char *front) {
    char bytes[32] = {0};
    FILE *file = fopen(path, "rb");
    size_t n = file == NULL ? 0 : fread(bytes, 1, sizeof bytes - 1, file);
    if (file != NULL) fclose(file);
    return n > 0 && strncmp(bytes, front, strlen(front)) == 0;
}

static void *find(void *context, const char *name) {
    (void)context;
    return dlsym(RTLD_DEFAULT, name);
}

static void *find_nothing(void *context, const char *name) {
    (void)context, (void)name;
    return NULL;
}

static int by_table(sqlite3 *db, char **message, const struct sqlite3_api_routines *routines) {
    (void)db, (void)message;
    return hardpack_register(routines, 0) == HARDPACK_OK ? SQLITE_OK : SQLITE_ERROR;
}

static void registering(void) {
    REFUSED(HARDPACK_USAGE, "no SQLite is registered", hardpack_pack(in("words.db"), in("words.hpk"), NULL));
    REFUSED(HARDPACK_CANNOT, "no table of functions", hardpack_register(NULL, 0));
    REFUSED(HARDPACK_USAGE, "no function to find", hardpack_register_with(NULL, NULL, 0));
    REFUSED(HARDPACK_CANNOT, "does not report its version", hardpack_register_with(find_nothing, NULL, 0));
    REFUSED(HARDPACK_USAGE, "unknown flags: 0x8", hardpack_register_with(find, NULL, 8));
    CHECK(sqlite3_vfs_find("hardpack") == NULL);
    CHECK(sqlite3_auto_extension((void (*)(void))by_table) == SQLITE_OK);
    sqlite3_close(opened("unused.db", ""));
    CHECK(sqlite3_cancel_auto_extension((void (*)(void))by_table) == 1);
    CHECK(sqlite3_vfs_find("hardpack") != NULL && sqlite3_vfs_find("hardpack") != sqlite3_vfs_find(NULL));
    CHECK(hardpack_register_with(find, NULL, HARDPACK_REGISTER_DEFAULT | HARDPACK_REGISTER_NEW_PLAIN) == HARDPACK_OK);
    CHECK(sqlite3_vfs_find("hardpack") == sqlite3_vfs_find(NULL));
    sqlite3 *db = opened("plain.db", "");
    run(db, "CREATE TABLE t(a)");
    sqlite3_close(db);
    CHECK(begins(in("plain.db"), "SQLite format 3"));
    CHECK(hardpack_register_with(find, NULL, 0) == HARDPACK_OK);
    CHECK(sqlite3_vfs_find("hardpack") == sqlite3_vfs_find(NULL));
    db = opened("packed.db", "");
    run(db, "CREATE TABLE t(a)");
    sqlite3_close(db);
    CHECK(begins(in("packed.db"), "Hardpack pool"));
}

static void packing(void) {
    sqlite3 *words = opened("words.db", "?vfs=unix");
    run(words, "PRAGMA journal_mode=wal; CREATE TABLE t(a, b); BEGIN");
    for (int i = 0; i < 2000; i++) run(words, "INSERT INTO t VALUES(random(), 'some text that is always the same')");
    run(words, "COMMIT");
    /* In use, with everything still in the log. */
    CHECK(hardpack_pack(in("words.db"), in("words.hpk"), "compression=zstd-9 recordsize=64K") == HARDPACK_OK);
    CHECK(begins(in("words.hpk"), "Hardpack pool"));
    sqlite3 *packed = opened("words.hpk", "?vfs=hardpack");
    CHECK(number(packed, "SELECT count(*) FROM t") == 2000);
    CHECK(number(packed, "SELECT value = 'zstd-9' FROM hardpack_stats WHERE name = 'compression'") == 1);
    run(words, "INSERT INTO t VALUES(1, 2)");
    CHECK(number(words, "SELECT count(*) FROM t") == 2001);
    sqlite3_close(words);

    REFUSED(HARDPACK_CANNOT, "exists already", hardpack_pack(in("words.db"), in("words.hpk"), NULL));
    REFUSED(HARDPACK_USAGE, "it is a pool already", hardpack_pack(in("words.hpk"), in("new.hpk"), NULL));
    REFUSED(HARDPACK_USAGE, "there is no property 'nonsense'", hardpack_pack(in("words.db"), in("new.hpk"), "nonsense=1"));
    REFUSED(HARDPACK_USAGE, "compression", hardpack_pack(in("words.db"), in("new.hpk"), "compression=none-such"));
    REFUSED(HARDPACK_CANNOT, "No such file", hardpack_pack(in("nothere.db"), in("new.hpk"), NULL));
    REFUSED(HARDPACK_USAGE, "a pool must be named", hardpack_pack(in("words.db"), NULL, NULL));
    REFUSED(HARDPACK_USAGE, "a file must be named", hardpack_pack("", in("new.hpk"), NULL));

    /* The connection that is open goes on, before and after. */
    run(packed, "PRAGMA journal_mode=wal; INSERT INTO t VALUES(3, 4)");
    CHECK(hardpack_unpack(in("words.hpk"), NULL, in("again.db")) == HARDPACK_OK);
    CHECK(begins(in("again.db"), "SQLite format 3"));
    sqlite3 *again = opened("again.db", "?vfs=unix");
    CHECK(number(again, "SELECT count(*) FROM t") == 2001);
    CHECK(number(again, "SELECT count(*) FROM pragma_integrity_check WHERE integrity_check = 'ok'") == 1);
    sqlite3_close(again);
    REFUSED(HARDPACK_CANNOT, "exists already", hardpack_unpack(in("words.hpk"), NULL, in("again.db")));
    REFUSED(HARDPACK_CANNOT, "no such file", hardpack_unpack(in("words.hpk"), "other", in("new.db")));
    REFUSED(HARDPACK_NOT_A_POOL, "not a Hardpack pool", hardpack_unpack(in("words.db"), NULL, in("new.db")));

    CHECK(hardpack_snapshot(in("words.hpk"), NULL, "monday") == HARDPACK_OK);
    run(packed, "DELETE FROM t");
    sqlite3 *monday = opened("words.hpk@monday", "?vfs=hardpack");
    CHECK(number(monday, "SELECT count(*) FROM t") == 2001);
    sqlite3_close(monday);
    CHECK(hardpack_snapshot(in("words.hpk"), "words.db", "empty") == HARDPACK_OK);
    REFUSED(HARDPACK_CANNOT, "monday", hardpack_snapshot(in("words.hpk"), NULL, "monday"));
    REFUSED(HARDPACK_USAGE, "a name must be named", hardpack_snapshot(in("words.hpk"), NULL, NULL));

    struct hardpack_info info;
    memset(&info, 0xff, sizeof info);
    info.size = sizeof info;
    CHECK(hardpack_info(in("words.hpk"), &info) == HARDPACK_OK);
    CHECK(info.size == sizeof info && info.snapshots == 2 && info.compress_ratio > 1.0);
    CHECK(info.logical_bytes > info.stored_bytes && info.stored_bytes > 0 && info.pool_bytes > 0 && info.txg > 0);
    info.size = 8;
    REFUSED(HARDPACK_USAGE, "sizeof", hardpack_info(in("words.hpk"), &info));
    sqlite3_close(packed);
}

static void plain_files(void) {
    static const char text[] = "not a database, but a file like any other";
    char bytes[sizeof text] = {0};
    FILE *file = fopen(in("text@home"), "wb");
    CHECK(file != NULL && fwrite(text, 1, sizeof text, file) == sizeof text);
    fclose(file);
    CHECK(hardpack_pack(in("text@home"), in("text.hpk"), NULL) == HARDPACK_OK);
    CHECK(hardpack_unpack(in("text.hpk"), "text@home", in("text.again")) == HARDPACK_OK);
    file = fopen(in("text.again"), "rb");
    CHECK(file != NULL && fread(bytes, 1, sizeof bytes, file) == sizeof text && memcmp(bytes, text, sizeof text) == 0);
    fclose(file);
}

int main(int count, char **arguments) {
    if (count != 2) return 2;
    at = arguments[1];
    CHECK(strcmp(hardpack_version(), HARDPACK_VERSION) == 0);
    CHECK(hardpack_version_number() == HARDPACK_VERSION_NUMBER);
    CHECK(strcmp(hardpack_error(), "") == 0);
    registering();
    packing();
    plain_files();
    puts("done");
    return 0;
}
