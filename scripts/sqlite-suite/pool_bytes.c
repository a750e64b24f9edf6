/*
** The Tcl command `pool_bytes`: access to the bytes of a pool's database, for tests that read or damage the database
** file itself. They expect SQLite's format, which the VFS serves from a pool; so harness.tcl turns hexio_read,
** [file size] and similar commands into calls of this command.
**
**   pool_bytes is FILE                      whether the file is a pool
**   pool_bytes size FILE                    xFileSize
**   pool_bytes read FILE OFFSET LENGTH      xRead, cut off at the end of the database
**   pool_bytes write FILE OFFSET BYTES      xWrite and xSync
**   pool_bytes truncate FILE LENGTH         xTruncate and xSync
**
** No locks are taken, as with a test that writes to a file. Faults that a test has armed are suspended while the
** command runs: they are meant for SQLite.
**
** TCLSH_INIT_PROC=hardpack_suite_tcl_init adds the command to testfixture.
*/
#include <stdio.h>
#include <string.h>
#include <tcl.h>

#include "sqlite3.h"

#define VFS_NAME "hardpack"
#define MAGIC "Hardpack pool\x1a\r\n"
#define PATH_LEN_MAX 4096

extern int sqlite3_io_error_pending, sqlite3_io_error_persist, sqlite3_diskfull_pending;
extern const char *sqlite3TestInit(Tcl_Interp *);

static int is_pool(const char *path){
  char front[sizeof(MAGIC) - 1];
  FILE *in = fopen(path, "rb");
  int is = in != NULL && fread(front, 1, sizeof(front), in) == sizeof(front)
        && memcmp(front, MAGIC, sizeof(front)) == 0;
  if( in ) fclose(in);
  return is;
}

/* Opens the database in the pool at `path`. The file must be closed with close_pool(). */
static sqlite3_file *open_pool(const char *path, int flags, char **name, int *rc){
  char full[PATH_LEN_MAX];
  sqlite3_vfs *vfs = sqlite3_vfs_find(VFS_NAME);
  sqlite3_file *file;
  *name = NULL;
  *rc = SQLITE_NOTFOUND;
  if( vfs == NULL ) return NULL;
  *rc = vfs->xFullPathname(vfs, path, sizeof(full), full);
  if( *rc != SQLITE_OK && *rc != SQLITE_OK_SYMLINK ) return NULL;
  *name = (char *)sqlite3_create_filename(full, "", "", 0, NULL);
  file = sqlite3_malloc(vfs->szOsFile);
  *rc = SQLITE_NOMEM;
  if( file == NULL || *name == NULL ) return file;
  memset(file, 0, vfs->szOsFile);
  *rc = vfs->xOpen(vfs, *name, file, flags | SQLITE_OPEN_MAIN_DB, &flags);
  return file;
}

static void close_pool(sqlite3_file *file, char *name){
  if( file && file->pMethods ) file->pMethods->xClose(file);
  sqlite3_free(file);
  sqlite3_free_filename(name);
}

static int sync_after(sqlite3_file *file, int rc){
  return rc == SQLITE_OK ? file->pMethods->xSync(file, SQLITE_SYNC_NORMAL) : rc;
}

/* Runs one of the commands on an open database. */
static int run(Tcl_Interp *interp, const char *what, sqlite3_file *file, Tcl_Obj *const argument[]){
  const sqlite3_io_methods *methods = file->pMethods;
  sqlite3_int64 size = 0;
  Tcl_WideInt at = 0;
  int len = 0, rc = methods->xFileSize(file, &size);
  if( rc != SQLITE_OK ) return rc;
  if( strcmp(what, "size") == 0 ){
    Tcl_SetObjResult(interp, Tcl_NewWideIntObj(size));
    return SQLITE_OK;
  }
  if( argument[0] == NULL || Tcl_GetWideIntFromObj(interp, argument[0], &at) ) return SQLITE_MISUSE;
  if( strcmp(what, "truncate") == 0 ) return sync_after(file, methods->xTruncate(file, at));
  if( argument[1] == NULL ) return SQLITE_MISUSE;
  if( strcmp(what, "write") == 0 ){
    unsigned char *bytes = Tcl_GetByteArrayFromObj(argument[1], &len);
    return sync_after(file, methods->xWrite(file, bytes, len, at));
  }
  if( Tcl_GetIntFromObj(interp, argument[1], &len) ) return SQLITE_MISUSE;
  if( at >= size ) len = 0;
  else if( len > size - at ) len = (int)(size - at);
  Tcl_Obj *bytes = Tcl_NewByteArrayObj(NULL, 0);
  unsigned char *buf = Tcl_SetByteArrayLength(bytes, len);
  if( len > 0 ) rc = methods->xRead(file, buf, len, at);
  Tcl_SetObjResult(interp, bytes);
  return rc;
}

static int pool_bytes(ClientData unused, Tcl_Interp *interp, int objc, Tcl_Obj *const objv[]){
  Tcl_Obj *argument[2] = { objc > 3 ? objv[3] : NULL, objc > 4 ? objv[4] : NULL };
  int pending = sqlite3_io_error_pending, persist = sqlite3_io_error_persist;
  int full = sqlite3_diskfull_pending, rc;
  (void)unused;
  if( objc < 3 || objc > 5 ){
    Tcl_WrongNumArgs(interp, 1, objv, "is|size|read|write|truncate FILE ?ARG ARG?");
    return TCL_ERROR;
  }
  const char *what = Tcl_GetString(objv[1]), *path = Tcl_GetString(objv[2]);
  if( strcmp(what, "is") == 0 ){
    Tcl_SetObjResult(interp, Tcl_NewBooleanObj(is_pool(path)));
    return TCL_OK;
  }
  sqlite3_io_error_pending = sqlite3_io_error_persist = sqlite3_diskfull_pending = 0;
  int changes = strcmp(what, "write") == 0 || strcmp(what, "truncate") == 0;
  char *name;
  sqlite3_file *file = open_pool(path, changes ? SQLITE_OPEN_READWRITE : SQLITE_OPEN_READONLY, &name, &rc);
  if( rc == SQLITE_OK ) rc = run(interp, what, file, argument);
  close_pool(file, name);
  sqlite3_io_error_pending = pending;
  sqlite3_io_error_persist = persist;
  sqlite3_diskfull_pending = full;
  if( rc == SQLITE_OK ) return TCL_OK;
  Tcl_SetObjResult(interp, Tcl_ObjPrintf("pool_bytes %s %s: %s", what, path, sqlite3_errstr(rc)));
  return TCL_ERROR;
}

const char *hardpack_suite_tcl_init(Tcl_Interp *interp){
  Tcl_CreateObjCommand(interp, "pool_bytes", pool_bytes, NULL, NULL);
  return sqlite3TestInit(interp);
}
