/* SPDX-License-Identifier: Apache-2.0 */
/* Registry: what its own files share: a call with its one job, statements, identities, histories. */
#ifndef AL_REGISTRY_INT_H
#define AL_REGISTRY_INT_H

#include "registry.h"
#include <sqlite3.h>

/* registry_schema.c */
extern const al_db_schema_t al__registry_schema;
/* registry_adopt.c: what a registry that is made begins with. */
int
al__registry_fill(sqlite3 *sql, const char *path, al_err_t *err);
#define AL__REG_ADOPTED "taken over from the record in its directory"
/* registry_strays.c: adds the names of lanes of which there is a directory. */
int
al__reg_directories(const char *lima, al_val_t *names, al_err_t *err);

/* First member of every call: it is one job of the database thread, in one transaction, and frees itself. */
typedef struct al__reg_call_s {
  al_db_job_t job;
  al_registry_cb cb;
  void *data;
  int outcome;    /* positive answer of a committed job */
  char start[24]; /* text of an identity that is bound */
} al__reg_call_t;

/* NULL when out of memory, which cb has then been told. */
void *
al__reg_call(size_t size, al_registry_cb cb, void *data);
void
al__reg_run(al_registry_t *r, al__reg_call_t *c, int (*run)(al_db_job_t *, sqlite3 *));
/* Sets the job's error when it did not get as far as to have one. */
void
al__reg_explain(al_db_job_t *job, int status);

int
al__reg_prepare(al_db_job_t *job, sqlite3 *sql, const char *text, sqlite3_stmt **out);
/* Steps once, to the end of a statement that gives no rows, and finalizes it. */
int
al__reg_finish(al_db_job_t *job, sqlite3 *sql, sqlite3_stmt *st, const char *what);
/* All texts are bound as they stand until the statement is done: a copy that failed would be written as nothing. */
void
al__reg_bind_text(sqlite3_stmt *st, int at, const char *text);
/* Four parameters from `at`; `start` is its text until then. */
void
al__reg_bind_ident(sqlite3_stmt *st, int at, const al_ident_t *id, char start[24]);
const char *
al__reg_column(sqlite3_stmt *st, int i); /* never NULL */
/* Four columns from `at`. */
void
al__reg_read_ident(sqlite3_stmt *st, int at, al_ident_t *id);
void
al__reg_copy(char *out, size_t cap, const char *text);

/* One line of a lane's history, in the transaction of the change itself. */
int
al__reg_add_history(al_db_job_t *job, sqlite3 *sql, int64_t id, const char *from, const char *to, const char *reason);

#endif
