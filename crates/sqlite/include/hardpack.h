/*
 * hardpack.h - packed SQLite databases and files, for programs that link to libhardpack.so or load it themselves.
 *
 * SQLite stays the program's own. Once Hardpack is registered with it, `file:words.db.hpk?vfs=hardpack` opens a
 * database in a pool, and everything else is SQLite's interface as always. The functions below register, and pack,
 * unpack, snapshot and describe pools. docs/c.md has a program that uses them.
 *
 * Results. Every function that returns int returns HARDPACK_OK or another of the codes below, which are the exit codes
 * of the command. hardpack_error() then has the reason, for this thread.
 *
 * Names. All strings are UTF-8 or, for files, bytes, and end with NUL. `path` is the path of a file or directory in a
 * pool, without a slash in front; an '@' in it is a character like any other.
 *
 * Threads and processes. Every function may be called from any thread, and while the databases of a pool are in use, in
 * this process or another. A child of fork() must open its own databases, as with SQLite. Do not open the file of a
 * pool or database yourself while SQLite has it open: closing such a descriptor drops SQLite's locks.
 *
 * Compatibility. HARDPACK_VERSION_NUMBER is the version of this header and hardpack_version_number() that of the
 * library. What a version has (functions, their arguments, values of constants, the order of fields) stays as it is in
 * every later one. A structure grows only at its end; its first field is its size as the program was compiled, and the
 * library fills in what fits. So a program runs with every library that is at least as new as its header.
 */
#ifndef HARDPACK_H
#define HARDPACK_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define HARDPACK_VERSION "0.1.0"
/* A million for each major version, a thousand for each minor one, and the patch. */
#define HARDPACK_VERSION_NUMBER 1000

#define HARDPACK_OK 0
#define HARDPACK_DAMAGED 1    /* stored data fails its checksum, or is missing */
#define HARDPACK_USAGE 2      /* an argument is wrong, or Hardpack is not registered yet */
#define HARDPACK_CANNOT 3     /* the system refused, or something does not exist or exists already */
#define HARDPACK_NOT_A_POOL 4 /* or it needs a newer version */
#define HARDPACK_IN_USE 5     /* somebody else holds it for too long; try again */
#define HARDPACK_INTERNAL 70  /* a defect of Hardpack, which says nothing about the data */

/* The version of the library. */
const char *hardpack_version(void);
int hardpack_version_number(void);

/* The reason of the last failure in this thread; "" if there was none. Never NULL. Valid until the next call of a
 * function of this header in this thread. */
const char *hardpack_error(void);

/* Flags of the functions that register. */
#define HARDPACK_REGISTER_DEFAULT 1u   /* make Hardpack the default VFS: file names need no ?vfs=hardpack */
#define HARDPACK_REGISTER_NEW_PLAIN 2u /* new databases are plain, unless the name ends in .hpk or its URI asks */

struct sqlite3_api_routines;

/* Registers the VFS `hardpack` with the SQLite whose functions these are: what SQLite passes to an extension's entry
 * point, and to a function given to sqlite3_auto_extension(). Registering again is harmless: it sets
 * HARDPACK_REGISTER_NEW_PLAIN anew, and once Hardpack is the default VFS, it stays that. A process can register one
 * SQLite, of version 3.31.0 or newer. */
int hardpack_register(const struct sqlite3_api_routines *routines, unsigned flags);

/* The same for a SQLite whose functions `find` returns by their full names, such as "sqlite3_vfs_register"; NULL for
 * one that it does not have. `context` is passed on. dlsym() does for a SQLite in a shared library. */
int hardpack_register_with(void *(*find)(void *context, const char *name), void *context, unsigned flags);

/* Makes the pool `pool`, which must not exist, from the file `input`. A database may be in use; it is copied page by
 * page as of one moment, including its log. `properties` is NULL or settings such as "compression=zstd-9
 * recordsize=64K" (docs/guide.md lists them). The pool is verified and durable when the function returns; if it fails,
 * there is none. Needs a registered SQLite. */
int hardpack_pack(const char *input, const char *pool, const char *properties);

/* Writes a file of a pool to `output`, which must not exist. `path` may be NULL for a pool that holds one file or
 * database. A database may be in use, and needs a registered SQLite; it is written as a plain one. (`hardpack unpack`
 * writes it byte for byte as it was packed; this function copies its pages through SQLite.) */
int hardpack_unpack(const char *pool, const char *path, const char *output);

/* Takes the snapshot `name` of a file or directory in a pool, or of the whole pool if `path` is NULL. Transactions that
 * are still in a log are copied into the pool first, which needs a registered SQLite. */
int hardpack_snapshot(const char *pool, const char *path, const char *name);

struct hardpack_info {
    uint64_t size;          /* to be set to sizeof(struct hardpack_info); then, how much of it was filled in */
    uint64_t pool_bytes;    /* the length of the pool */
    uint64_t logical_bytes; /* the length of all files in it */
    uint64_t stored_bytes;  /* what their content takes, compressed */
    uint64_t free_bytes;    /* space in the pool that can be reused */
    uint64_t txg;           /* the number of the newest commit */
    uint64_t snapshots;     /* how many snapshots there are */
    double compress_ratio;  /* how many times smaller the content is */
};

/* Describes a pool. `SELECT * FROM hardpack_stats` on an open database shows more. */
int hardpack_info(const char *pool, struct hardpack_info *info);

/* The entry points that sqlite3_load_extension() calls. The second makes Hardpack the default VFS as well. */
struct sqlite3;
int sqlite3_hardpack_init(struct sqlite3 *db, char **message, const struct sqlite3_api_routines *routines);
int sqlite3_hardpackdefault_init(struct sqlite3 *db, char **message, const struct sqlite3_api_routines *routines);

#ifdef __cplusplus
}
#endif

#endif
