/* SPDX-License-Identifier: Apache-2.0 */
/* SQLite's file system with faults: the n-th call of a kind that may fail so does, for files of the registry. */
#ifndef FAULT_VFS_H
#define FAULT_VFS_H

#include "al_test.h"
#include <sqlite3.h>

typedef struct fault_file_s {
  sqlite3_file base;
  bool watched;
  /* the real one follows */
} fault_file_t;

static struct {
  sqlite3_vfs vfs, *real;
  atomic_int code;   /* SQLITE_BUSY, _IOERR, _FULL, _CORRUPT; 0: none */
  atomic_long left;  /* the call that reaches 0 fails */
  atomic_long more;  /* and so many after it */
  atomic_long calls; /* that might have failed */
  atomic_bool hit;
} fault;

AL_TEST_FN sqlite3_file *
fault_real(sqlite3_file *f) {
  return (sqlite3_file *) (void *) ((char *) f + sizeof(fault_file_t));
}

/* Whether this call fails, which can fail with `code`. */
AL_TEST_FN bool
fault_now(const sqlite3_file *f, int code) {
  if (!((const fault_file_t *) (const void *) f)->watched || code != atomic_load(&fault.code)) return false;
  atomic_fetch_add(&fault.calls, 1);
  if (atomic_fetch_sub(&fault.left, 1) > 0) return false;
  if (atomic_fetch_sub(&fault.more, 1) < 0) return false;
  atomic_store(&fault.hit, true);
  return true;
}

#define FAULT_REAL(f, call) fault_real(f)->pMethods->call

static int
fault_close(sqlite3_file *f) {
  return fault_real(f)->pMethods ? FAULT_REAL(f, xClose)(fault_real(f)) : SQLITE_OK;
}

static int
fault_read(sqlite3_file *f, void *p, int n, sqlite3_int64 at) {
  if (fault_now(f, SQLITE_IOERR)) return SQLITE_IOERR_READ;
  if (fault_now(f, SQLITE_CORRUPT)) return SQLITE_CORRUPT;
  return FAULT_REAL(f, xRead)(fault_real(f), p, n, at);
}

static int
fault_write(sqlite3_file *f, const void *p, int n, sqlite3_int64 at) {
  if (fault_now(f, SQLITE_IOERR)) return SQLITE_IOERR_WRITE;
  if (fault_now(f, SQLITE_FULL)) return SQLITE_FULL;
  return FAULT_REAL(f, xWrite)(fault_real(f), p, n, at);
}

static int
fault_truncate(sqlite3_file *f, sqlite3_int64 size) {
  return fault_now(f, SQLITE_IOERR) ? SQLITE_IOERR_TRUNCATE : FAULT_REAL(f, xTruncate)(fault_real(f), size);
}

static int
fault_sync(sqlite3_file *f, int flags) {
  return fault_now(f, SQLITE_IOERR) ? SQLITE_IOERR_FSYNC : FAULT_REAL(f, xSync)(fault_real(f), flags);
}

static int
fault_size(sqlite3_file *f, sqlite3_int64 *size) {
  return fault_now(f, SQLITE_IOERR) ? SQLITE_IOERR_FSTAT : FAULT_REAL(f, xFileSize)(fault_real(f), size);
}

static int
fault_lock(sqlite3_file *f, int level) {
  return fault_now(f, SQLITE_BUSY) ? SQLITE_BUSY : FAULT_REAL(f, xLock)(fault_real(f), level);
}

static int
fault_unlock(sqlite3_file *f, int level) {
  return FAULT_REAL(f, xUnlock)(fault_real(f), level);
}

static int
fault_reserved(sqlite3_file *f, int *out) {
  return FAULT_REAL(f, xCheckReservedLock)(fault_real(f), out);
}

static int
fault_control(sqlite3_file *f, int op, void *arg) {
  return FAULT_REAL(f, xFileControl)(fault_real(f), op, arg);
}

static int
fault_sector(sqlite3_file *f) {
  return FAULT_REAL(f, xSectorSize)(fault_real(f));
}

static int
fault_device(sqlite3_file *f) {
  return FAULT_REAL(f, xDeviceCharacteristics)(fault_real(f));
}

static int
fault_shm_map(sqlite3_file *f, int page, int size, int extend, void volatile **out) {
  if (fault_now(f, SQLITE_IOERR)) return SQLITE_IOERR_SHMMAP;
  return FAULT_REAL(f, xShmMap)(fault_real(f), page, size, extend, out);
}

static int
fault_shm_lock(sqlite3_file *f, int offset, int n, int flags) {
  bool takes = flags & SQLITE_SHM_LOCK;
  return takes && fault_now(f, SQLITE_BUSY) ? SQLITE_BUSY : FAULT_REAL(f, xShmLock)(fault_real(f), offset, n, flags);
}

static void
fault_shm_barrier(sqlite3_file *f) {
  FAULT_REAL(f, xShmBarrier)(fault_real(f));
}

static int
fault_shm_unmap(sqlite3_file *f, int remove) {
  return FAULT_REAL(f, xShmUnmap)(fault_real(f), remove);
}

static const sqlite3_io_methods fault_methods = {2, fault_close, fault_read, fault_write, fault_truncate, fault_sync,
  fault_size, fault_lock, fault_unlock, fault_reserved, fault_control, fault_sector, fault_device, fault_shm_map,
  fault_shm_lock, fault_shm_barrier, fault_shm_unmap, NULL, NULL};

static int
fault_open(sqlite3_vfs *vfs, const char *name, sqlite3_file *f, int flags, int *out) {
  fault_file_t *file = (fault_file_t *) (void *) f;
  (void) vfs;
  memset(file, 0, sizeof *file);
  file->watched = name && strstr(name, "registry.db");
  int rc = fault_now(f, SQLITE_IOERR) ? SQLITE_CANTOPEN
                                      : fault.real->xOpen(fault.real, name, fault_real(f), flags, out);
  file->base.pMethods = rc == SQLITE_OK ? &fault_methods : NULL;
  return rc;
}

/* From now on all databases of this process are opened through it. */
AL_TEST_FN void
fault_install(void) {
  fault.real = sqlite3_vfs_find(NULL);
  fault.vfs = *fault.real;
  fault.vfs.zName = "faults";
  fault.vfs.pNext = NULL;
  fault.vfs.szOsFile = fault.real->szOsFile + (int) sizeof(fault_file_t);
  fault.vfs.xOpen = fault_open;
  assert_int_equal(sqlite3_vfs_register(&fault.vfs, 1), SQLITE_OK);
}

/* The n-th call from now on (from 0) fails with `code`, and `more` after it. */
AL_TEST_FN void
fault_set(int code, long n, long more) {
  atomic_store(&fault.hit, false);
  atomic_store(&fault.calls, 0);
  atomic_store(&fault.left, n);
  atomic_store(&fault.more, more);
  atomic_store(&fault.code, code);
}

AL_TEST_FN void
fault_none(void) {
  atomic_store(&fault.code, 0);
}

#endif
