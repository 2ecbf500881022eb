/* SPDX-License-Identifier: Apache-2.0 */
/* Registry: the schema, as the steps that lead to it from nothing or from an older one. */
#include "registry_int.h"

/* Never change one that has been released, add the next. Only add: a process of an older version that has the file open
 * while a newer one migrates it goes on with the statements it knows (docs/adr/0014). One that takes something away
 * says so in `format`, and older versions refuse the file from then on.
 *
 * Row ids and tickets begin at the time of day, not at 1: a registry that is made anew, since the old one was lost,
 * gives no number that a process may still hold from before. History is only added to, whoever writes. */
static const char *const migrations[] = {
  "CREATE TABLE lanes ("
  " id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL UNIQUE, state TEXT NOT NULL,"
  " owner_pid INTEGER NOT NULL, owner_start TEXT NOT NULL, owner_boot TEXT NOT NULL, owner_exe TEXT NOT NULL,"
  " owner_env TEXT NOT NULL, created_s INTEGER NOT NULL, expires_s INTEGER NOT NULL, expires_boot_ms INTEGER NOT NULL,"
  " cpus INTEGER NOT NULL, memory_mib INTEGER NOT NULL, disk_gib INTEGER NOT NULL,"
  " image TEXT NOT NULL, network TEXT NOT NULL, accel TEXT NOT NULL, reason TEXT NOT NULL DEFAULT '');"
  "CREATE INDEX lanes_open ON lanes (id) WHERE state <> 'closed';"
  "CREATE TABLE history ("
  " id INTEGER PRIMARY KEY AUTOINCREMENT, lane INTEGER NOT NULL REFERENCES lanes (id), at_ms INTEGER NOT NULL,"
  " from_state TEXT NOT NULL, to_state TEXT NOT NULL, reason TEXT NOT NULL DEFAULT '');"
  "CREATE INDEX history_lane ON history (lane);"
  "CREATE TABLE waiters ("
  " ticket INTEGER PRIMARY KEY AUTOINCREMENT, pid INTEGER NOT NULL, start TEXT NOT NULL, boot TEXT NOT NULL,"
  " exe TEXT NOT NULL, since_s INTEGER NOT NULL);",

  "ALTER TABLE lanes ADD COLUMN keeper_pid INTEGER NOT NULL DEFAULT 0;"
  "ALTER TABLE lanes ADD COLUMN keeper_start TEXT NOT NULL DEFAULT '';"
  "ALTER TABLE lanes ADD COLUMN keeper_boot TEXT NOT NULL DEFAULT '';"
  "ALTER TABLE lanes ADD COLUMN keeper_exe TEXT NOT NULL DEFAULT '';"
  "ALTER TABLE lanes ADD COLUMN tries INTEGER NOT NULL DEFAULT 0;"   /* to end a stuck lane */
  "ALTER TABLE lanes ADD COLUMN retry_s INTEGER NOT NULL DEFAULT 0;" /* not before */
  "ALTER TABLE lanes ADD COLUMN orphan_boot_ms INTEGER NOT NULL DEFAULT 0;" /* since when the keeper alone has it */
  "ALTER TABLE lanes ADD COLUMN adopted INTEGER NOT NULL DEFAULT 0;" /* made of the record in its directory */
  "CREATE TABLE leases ("
  " name TEXT PRIMARY KEY, pid INTEGER NOT NULL, start TEXT NOT NULL, boot TEXT NOT NULL, exe TEXT NOT NULL,"
  " env TEXT NOT NULL, until_boot_ms INTEGER NOT NULL);"
  "CREATE TABLE format (oldest INTEGER NOT NULL);" /* the oldest schema whose programs may use this file */
  "INSERT INTO format VALUES (2);"
  "CREATE TRIGGER history_unchanged BEFORE UPDATE ON history"
  " BEGIN SELECT RAISE(ABORT, 'history is only added to'); END;"
  "CREATE TRIGGER history_kept BEFORE DELETE ON history"
  " BEGIN SELECT RAISE(ABORT, 'history is only added to'); END;"
  "INSERT INTO sqlite_sequence (name, seq) SELECT name, CAST(strftime('%s', 'now') AS INTEGER)"
  " FROM (SELECT 'lanes' AS name UNION SELECT 'waiters')"
  " WHERE name NOT IN (SELECT name FROM sqlite_sequence);",
};

const al_db_schema_t al__registry_schema = {
  .migrations = migrations, .count = sizeof migrations / sizeof *migrations, .fill = al__registry_fill};
