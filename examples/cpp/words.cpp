/*
 * C++ with libsqlite3: loads the extension, as any program may that is not linked to it.
 *
 *   c++ examples/cpp/words.cpp -lsqlite3
 *
 * Look out: the connection that loads the extension may be closed; the VFS stays. sqlite3_db_config() allows loading
 * from C only, unlike sqlite3_enable_load_extension(), which allows it from SQL as well.
 */
#include <cstdio>
#include <memory>
#include <sqlite3.h>
#include <stdexcept>
#include <string>

using Database = std::unique_ptr<sqlite3, int (*)(sqlite3 *)>;

static void check(sqlite3 *db, int code) {
    if (code != SQLITE_OK) throw std::runtime_error(sqlite3_errmsg(db));
}

static Database open(const std::string &name) {
    sqlite3 *db = nullptr;
    int flags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_URI;
    int code = sqlite3_open_v2(name.c_str(), &db, flags, nullptr);
    Database owned(db, sqlite3_close);
    check(db, code);
    return owned;
}

static void load(const std::string &library) {
    Database db = open(":memory:");
    char *message = nullptr;
    check(db.get(), sqlite3_db_config(db.get(), SQLITE_DBCONFIG_ENABLE_LOAD_EXTENSION, 1, nullptr));
    if (sqlite3_load_extension(db.get(), library.c_str(), nullptr, &message) != SQLITE_OK) {
        std::string text = message == nullptr ? "unknown error" : message;
        sqlite3_free(message);
        throw std::runtime_error(text);
    }
}

static int print_count(void *, int, char **values, char **) {
    std::printf("%s words\n", values[0]);
    return 0;
}

int main(int count, char **arguments) try {
    if (count != 3) throw std::runtime_error("usage: words LIBRARY POOL");
    load(arguments[1]);
    Database db = open("file:" + std::string(arguments[2]) + "?vfs=hardpack");
    check(db.get(), sqlite3_exec(db.get(), "INSERT INTO words VALUES('c++', 1)", nullptr, nullptr, nullptr));
    check(db.get(), sqlite3_exec(db.get(), "SELECT count(*) FROM words", print_count, nullptr, nullptr));
} catch (const std::exception &error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
}
