/* A module with functions of its own that happen to have the names of SQLite's, as a second SQLite would. */
int sqlite3_open_v2(const char *name, void **db, int flags, const char *vfs) {
    (void)name, (void)db, (void)flags, (void)vfs;
    return 1234;
}

int rows_of(const char *name) {
    void *db;
    return sqlite3_open_v2(name, &db, 0, "none");
}
