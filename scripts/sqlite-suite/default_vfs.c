/*
** Makes Hardpack the default VFS of a program that is linked with SQLite, and lets SQLite's fault injection
** reach the engine. For SQLite's own test programs only.
**
** SQLite's suites open databases by plain names. With SQLITE_EXTRA_INIT=hardpack_suite_init, each
** sqlite3_initialize() ends here, also after an sqlite3_shutdown(), which forgets the default.
** HARDPACK_SUITE_LIBRARY names libhardpack.so; without it, SQLite is unchanged: the baseline.
**
** Faults: SQLite's tests make I/O fail through counters that os_unix.c consults before each call. The engine has a
** descriptor of its own and calls pread64() and similar functions itself. Those are defined here, so the program's
** definitions take precedence over the C library's. If the caller is libhardpack.so, the counters are consulted in
** the same way; calls of others just pass through. Only the thread that runs the tests gets faults: background
** maintenance would take them at random.
**
** Concurrency: HARDPACK_SUITE_CONCURRENCY, such as "snapshot", is what every pool gets whose database is opened
** for writing.
**
** On failure: if the library cannot be loaded, the program ends, since a suite that silently runs without it proves
** nothing.
*/
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <execinfo.h>
#include <fcntl.h>
#include <link.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

#include "sqlite3.h"

#define LIBRARY_VARIABLE "HARDPACK_SUITE_LIBRARY"
/* If set, each fault prints the callers, innermost first; addr2line turns the offsets into lines. */
#define TRACE_VARIABLE "HARDPACK_SUITE_TRACE"
#define TRACE_LEN_MAX 40
#define CONCURRENCY_VARIABLE "HARDPACK_SUITE_CONCURRENCY"
#define ENTRY_POINT "sqlite3_hardpackdefault_init"

typedef int (*entry_point)(sqlite3 *, char **, const void *);

/* The library, once it is loaded, and the range of its code. */
static entry_point hardpack_entry;
static uintptr_t code_start, code_end;

static void give_up(const char *what, const char *why){
  fprintf(stderr, "hardpack suite: %s: %s\n", what, why ? why : "unknown reason");
  _exit(99);
}

/* Records the range of the loaded object that contains the address in `data[0]`. */
static int note_code(struct dl_phdr_info *info, size_t size, void *data){
  uintptr_t wanted = *(uintptr_t *)data, start = UINTPTR_MAX, end = 0;
  int i;
  (void)size;
  for(i = 0; i < info->dlpi_phnum; i++){
    const ElfW(Phdr) *header = &info->dlpi_phdr[i];
    if( header->p_type != PT_LOAD ) continue;
    uintptr_t from = info->dlpi_addr + header->p_vaddr;
    if( from < start ) start = from;
    if( from + header->p_memsz > end ) end = from + header->p_memsz;
  }
  if( wanted < start || wanted >= end ) return 0;
  code_start = start;
  code_end = end;
  return 1;
}

/* Set while the harness itself uses the library, which then gets no faults. */
static __thread int is_harness;

/* These keep SQLite's injected failures of malloc() away. Weak, since only SQLITE_TEST builds export them. */
extern void sqlite3BeginBenignMalloc(void) __attribute__((weak));
extern void sqlite3EndBenignMalloc(void) __attribute__((weak));

/* Sends `PRAGMA hardpack_concurrency`; `wanted` may be NULL, to ask. Returns whether it has this value now. */
static int pragma_concurrency(sqlite3_file *file, const char *wanted, const char *expected){
  char *arguments[4] = {NULL, "hardpack_concurrency", (char *)wanted, NULL};
  int rc = file->pMethods->xFileControl(file, SQLITE_FCNTL_PRAGMA, arguments);
  int is_equal = rc == SQLITE_OK && arguments[0] && strcmp(arguments[0], expected) == 0;
  sqlite3_free(arguments[0]);
  return is_equal;
}

/* xOpen of the library. */
static int (*library_open)(sqlite3_vfs *, const char *, sqlite3_file *, int, int *);

/* Opens a file, and gives a pool the wanted concurrency. Other files and media refuse that, which is no failure. */
static int suite_open(sqlite3_vfs *vfs, const char *name, sqlite3_file *file, int flags, int *out_flags){
  const char *wanted = getenv(CONCURRENCY_VARIABLE);
  int rc = library_open(vfs, name, file, flags, out_flags);
  if( rc != SQLITE_OK || name == NULL || !(flags & SQLITE_OPEN_MAIN_DB) || !(flags & SQLITE_OPEN_READWRITE) ) return rc;
  is_harness = 1;
  if( &sqlite3BeginBenignMalloc != NULL ) sqlite3BeginBenignMalloc();
  if( !pragma_concurrency(file, NULL, wanted) ) pragma_concurrency(file, wanted, wanted);
  if( &sqlite3EndBenignMalloc != NULL ) sqlite3EndBenignMalloc();
  is_harness = 0;
  return rc;
}

/* Puts suite_open() in front of the library's xOpen, if a concurrency is wanted. */
static void wrap_open(void){
  const char *wanted = getenv(CONCURRENCY_VARIABLE);
  sqlite3_vfs *vfs = sqlite3_vfs_find("hardpack");
  if( wanted == NULL || wanted[0] == 0 || vfs == NULL || library_open != NULL ) return;
  library_open = vfs->xOpen;
  vfs->xOpen = suite_open;
}

static void load_library(const char *path){
  void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if( library == NULL ) give_up(path, dlerror());
  void *entry = dlsym(library, ENTRY_POINT);
  if( entry == NULL ) give_up(path, dlerror());
  *(void **)&hardpack_entry = entry;
  uintptr_t address = (uintptr_t)entry;
  if( !dl_iterate_phdr(note_code, &address) ) give_up(path, "its code was not found");
}

/* SQLite passes its table of functions to an extension; this one keeps it. */
static const void *api_routines;
static int keep_routines(sqlite3 *db, char **message, const void *routines){
  (void)db;
  (void)message;
  api_routines = routines;
  return SQLITE_OK;
}

/* The function named by SQLITE_EXTRA_INIT: called at the end of each sqlite3_initialize(). */
int hardpack_suite_init(const char *unused){
  const char *path = getenv(LIBRARY_VARIABLE);
  sqlite3 *db = NULL;
  char *message = NULL;
  int rc;
  (void)unused;
  if( path == NULL || path[0] == 0 ) return SQLITE_OK;
  if( hardpack_entry == NULL ) load_library(path);
  rc = sqlite3_auto_extension((void (*)(void))keep_routines);
  if( rc == SQLITE_OK ){
    rc = sqlite3_open_v2(":memory:", &db, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE, "unix");
  }
  sqlite3_cancel_auto_extension((void (*)(void))keep_routines);
  if( rc == SQLITE_OK ){
    if( api_routines == NULL ) give_up(path, "SQLite was built without loadable extensions");
    rc = hardpack_entry(db, &message, api_routines);
    if( rc == SQLITE_OK_LOAD_PERMANENTLY ) rc = SQLITE_OK;
    else if( rc != SQLITE_NOMEM ) give_up(path, message);
    if( rc == SQLITE_OK ) wrap_open();
  }
  sqlite3_free(message);
  sqlite3_close(db);
  return rc;
}

/* The counters of os_common.h. Weak, since only SQLITE_TEST builds have them. */
extern int sqlite3_io_error_hit __attribute__((weak));
extern int sqlite3_io_error_hardhit __attribute__((weak));
extern int sqlite3_io_error_pending __attribute__((weak));
extern int sqlite3_io_error_persist __attribute__((weak));
extern int sqlite3_io_error_benign __attribute__((weak));
extern int sqlite3_diskfull_pending __attribute__((weak));
extern int sqlite3_diskfull __attribute__((weak));
extern int sqlite3_sync_count __attribute__((weak));

/* Whether the caller is the library, in a program that has the counters. */
static int is_library(const void *caller){
  return &sqlite3_io_error_pending != NULL && (uintptr_t)caller >= code_start && (uintptr_t)caller < code_end;
}

/* Whether a call may be made to fail. */
static int may_fail(const void *caller){
  return !is_harness && is_library(caller) && (pid_t)syscall(SYS_gettid) == getpid();
}

static void note_hit(void){
  if( getenv(TRACE_VARIABLE) ){
    void *frames[TRACE_LEN_MAX];
    backtrace_symbols_fd(frames, backtrace(frames, TRACE_LEN_MAX), 2);
  }
  sqlite3_io_error_hit++;
  if( !sqlite3_io_error_benign ) sqlite3_io_error_hardhit++;
}

/* SimulateIOError: whether this is the call that fails. */
static int is_io_error_due(const void *caller){
  if( !may_fail(caller) ) return 0;
  if( !(sqlite3_io_error_persist && sqlite3_io_error_hit) && sqlite3_io_error_pending-- != 1 ) return 0;
  note_hit();
  return 1;
}

/* SimulateDiskfullError: whether the disk is full from this write on. */
static int is_disk_full(const void *caller){
  if( !may_fail(caller) || sqlite3_diskfull_pending == 0 ) return 0;
  if( sqlite3_diskfull_pending > 1 ){
    sqlite3_diskfull_pending--;
    return 0;
  }
  note_hit();
  sqlite3_diskfull = 1;
  sqlite3_io_error_hit = 1;
  return 1;
}

/* Declares `next`, the C library's definition of a function that is also defined here. */
#define NEXT(name) \
  static __typeof__(&name) next; \
  if( next == NULL ) *(void **)&next = dlsym(RTLD_NEXT, #name)

#define CALLER __builtin_return_address(0)

static int fail(int code){
  errno = code;
  return -1;
}

ssize_t pread64(int fd, void *buf, size_t len, off64_t offset){
  NEXT(pread64);
  return is_io_error_due(CALLER) ? fail(EIO) : next(fd, buf, len, offset);
}

ssize_t pwrite64(int fd, const void *buf, size_t len, off64_t offset){
  NEXT(pwrite64);
  if( is_io_error_due(CALLER) ) return fail(EIO);
  return is_disk_full(CALLER) ? fail(ENOSPC) : next(fd, buf, len, offset);
}

/* SQLite's test build counts syncs but skips them (SQLITE_NO_SYNC); the engine's are skipped too, except for faults. */
int fdatasync(int fd){
  NEXT(fdatasync);
  if( is_io_error_due(CALLER) ) return fail(EIO);
  if( !is_library(CALLER) ) return next(fd);
  sqlite3_sync_count++;
  return 0;
}

int fsync(int fd){
  NEXT(fsync);
  if( is_io_error_due(CALLER) ) return fail(EIO);
  return is_library(CALLER) ? 0 : next(fd);
}

int ftruncate64(int fd, off64_t len){
  NEXT(ftruncate64);
  return is_io_error_due(CALLER) ? fail(EIO) : next(fd, len);
}
