/* SPDX-License-Identifier: Apache-2.0 */
/* Run manifests: one line. Its number, the hash of the line before it, what happened, and its own hash. */
#include "run_int.h"

#include "db.h"
#include "mem.h"
#include "platform.h"
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* The form: {"n":N,"prev":"…","atMs":N,"event":"…",…,"sha256":"…"} as al_json_text writes it: UTF-8, no blanks, members
 * in this order, whole numbers only. The hash is of everything before `,"sha256":`, so it covers `prev`, too, and the
 * last line is as safe from a change as the others. */

#define HEAD_FORMAT "{\"n\":%" PRIu64 ",\"prev\":\"%s\",\"atMs\":%" PRId64 ","
#define TAIL ",\"sha256\":\""
#define TAIL_LEN (sizeof TAIL - 1 + AL_SHA256_HEX - 1 + 2) /* with `"}` */
#define NO_LINE "0000000000000000000000000000000000000000000000000000000000000000"

int
al__run_put(al_buf_t *out, const al_val_t *event, al__run_line_t *at) {
  AL_AUTO_FREE char *text = al_json_text(event);
  size_t begin = out->len, len = text ? strlen(text) : 0;
  if (!text) return -ENOMEM;
  AL_ASSERT(len > 2 && text[len - 1] == '}');
  al__run_line_t next = {.n = at->hash[0] ? at->n + 1 : 0, .at_ms = al_plat_wall_ms()};
  memcpy(next.prev, at->hash[0] ? at->hash : NO_LINE, sizeof next.prev);
  if (len > AL_RUN_LINE_MAX - 512) return -EMSGSIZE;
  int rc = al_buf_printf(out, HEAD_FORMAT, next.n, next.prev, next.at_ms);
  if (!rc) rc = al_buf_append(out, text + 1, len - 2);
  if (rc) return rc;
  al_sha256_text(out->data + begin, out->len - begin, next.hash);
  if ((rc = al_buf_printf(out, TAIL "%s\"}\n", next.hash))) return rc;
  const al_val_t *type = al_val_get(event, "event");
  snprintf(next.event, sizeof next.event, "%s", type ? type->text : "");
  *at = next;
  return 0;
}

bool
al__run_frame(const char *line, size_t len, al__run_line_t *out, const char **why) {
  char hash[AL_SHA256_HEX], head[192];
  int begin = 0;
  *why = "it is not a whole line of a manifest";
  if (len <= TAIL_LEN || len > AL_RUN_LINE_MAX || memchr(line, 0, len)) return false;
  const char *tail = line + len - TAIL_LEN;
  if (memcmp(tail, TAIL, sizeof TAIL - 1) || memcmp(line + len - 2, "\"}", 2)) return false;
  snprintf(head, sizeof head, "%.*s", (int) (len < sizeof head ? len : sizeof head - 1), line);
  int n = sscanf(head, "{\"n\":%" SCNu64 ",\"prev\":\"%64[0-9a-f]\",\"atMs\":%" SCNd64 ",\"event\":\"%15[a-z]\"%n", &out->n,
    out->prev, &out->at_ms, out->event, &begin);
  if (n != 4 || begin == 0 || strlen(out->prev) != AL_SHA256_HEX - 1) return false;
  snprintf(out->hash, sizeof out->hash, "%.*s", AL_SHA256_HEX - 1, tail + sizeof TAIL - 1);
  al_sha256_text(line, len - TAIL_LEN, hash);
  *why = "its hash is not that of its content";
  return strcmp(hash, out->hash) == 0;
}
