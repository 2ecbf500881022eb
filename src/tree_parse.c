/* SPDX-License-Identifier: Apache-2.0 */
/* Records of a guest's directory: order, names, sizes and limits. Every byte is the guest's. */
#include "tree_parse.h"
#include "tmp_name.h"
#include "utf8.h"
#include <string.h>

enum { FIRST, HEADER, NAME, TARGET, BYTES, DONE };

const char *
al_tree_shown(const al_tree_t *t, char out[AL_TREE_SHOWN]) {
  al_utf8_printable(out, AL_TREE_SHOWN, t->path, strlen(t->path), false);
  return out;
}

static int
malformed(const al_tree_t *t, al_err_t *err, const char *what) {
  char path[AL_TREE_SHOWN];
  return al_err_set(err, AL_ECOPY_OUT_FAILED, "the guest sent what cannot be: %s%s%s", what, t->path[0] ? ", at " : "",
    al_tree_shown(t, path));
}

static int
refused(const al_tree_t *t, al_err_t *err, const char *what) {
  char path[AL_TREE_SHOWN];
  return al_err_set(err, AL_ETREE_REFUSED, "%s: %s", what, al_tree_shown(t, path));
}

void
al_tree_init(al_tree_t *t, const al_tree_cbs_t *cbs, void *data) {
  memset(t, 0, sizeof *t);
  t->cbs = cbs;
  t->data = data;
  t->max_bytes = UINT64_MAX;
  t->max_entries = UINT32_MAX;
  t->max_depth = AL_TREE_DEPTH_MAX;
  t->state = FIRST;
}

bool
al_tree_stays_inside(const char *target, unsigned depth) {
  bool down = false;
  if (!*target || *target == '/') return false;
  while (*target) {
    size_t n = strcspn(target, "/");
    if (n == 2 && target[0] == '.' && target[1] == '.') {
      if (down || depth-- == 0) return false;
    } else if (n > 0 && !(n == 1 && target[0] == '.')) {
      if (al_is_dotgit(target, n)) return false;
      down = true;
    }
    target += n + (target[n] == '/');
  }
  return true;
}

static uint8_t
type_of(const al_tree_t *t) {
  return t->header[0];
}

static uint16_t
name_len(const al_tree_t *t) {
  return al_get16(t->header + 2);
}

static uint64_t
size_of(const al_tree_t *t) {
  return al_get64(t->header + 24);
}

/* Whether the header alone can be, and may come now. */
static int
check_header(const al_tree_t *t, al_err_t *err) {
  uint8_t type = type_of(t);
  bool named = type == AL_TREE_ENTER || type == AL_TREE_FILE || type == AL_TREE_LINK;
  static const uint8_t zeros[AL_TREE_HEADER - 1];
  if ((t->state == FIRST) != (type == AL_TREE_ROOT)) return malformed(t, err, "a record out of order");
  if (type < AL_TREE_ROOT || type > AL_TREE_END) return malformed(t, err, "an unknown record");
  if (t->header[1] || al_get32(t->header + 20)) return malformed(t, err, "a reserved field that is not zero");
  if (type == AL_TREE_LEAVE) {
    if (t->depth == 0) return malformed(t, err, "the end of a directory that was not begun");
    return memcmp(t->header + 1, zeros, sizeof zeros) ? malformed(t, err, "an end with a content") : 0;
  }
  if (named ? name_len(t) < 1 || name_len(t) > AL_TREE_NAME_MAX : name_len(t) > 0)
    return malformed(t, err, "a name that is empty or too long");
  if (type == AL_TREE_END) return t->depth > 0 ? malformed(t, err, "the end within a directory") : 0;
  if (al_get32(t->header + 4) > 07777) return malformed(t, err, "a mode that is none");
  if (al_get32(t->header + 16) >= 1000000000) return malformed(t, err, "a time that is none");
  if ((type == AL_TREE_ROOT || type == AL_TREE_ENTER) && size_of(t)) return malformed(t, err, "a directory with a size");
  return 0;
}

/* Puts the name behind the path of the directory that is open. */
static int
check_name(al_tree_t *t, al_err_t *err) {
  size_t at = t->end[t->depth], n = name_len(t);
  if (memchr(t->name, 0, n)) return malformed(t, err, "a name with a zero byte");
  if (memchr(t->name, '/', n)) return malformed(t, err, "a name with a slash");
  if (strcmp(t->name, ".") == 0 || strcmp(t->name, "..") == 0) return malformed(t, err, "a name that is `.` or `..`");
  if (at + (at > 0) + n > AL_PATH_MAX) return refused(t, err, "a path is longer than 4096 bytes, below");
  if (at > 0) t->path[at++] = '/';
  memcpy(t->path + at, t->name, n + 1);
  /* On the host such a name stands for what a copy has left, and the next copy would remove it. */
  if (al_tmp_name_is(t->name)) return refused(t, err, "the name of what a copy has not put in place is not copied");
  if (!al_is_dotgit(t->name, n)) return 0;
  int r = refused(t, err, "what may be .git on the host is not copied");
  al_err_cure(err, "Copy out what lies beside it, or make a bundle of the repository in the guest (git bundle create) and copy that out.");
  return r;
}

static int
check_limits(const al_tree_t *t, al_err_t *err) {
  char path[AL_TREE_SHOWN];
  if (t->entries >= t->max_entries)
    return al_err_set(err, AL_ETREE_TOO_LARGE, "there are more than %u entries", t->max_entries);
  if (type_of(t) == AL_TREE_ENTER && t->depth >= t->max_depth)
    return al_err_set(err, AL_ETREE_TOO_LARGE, "there are more than %u levels: %s", t->max_depth,
      al_tree_shown(t, path));
  if (type_of(t) != AL_TREE_ENTER && size_of(t) > t->max_bytes - t->bytes)
    return al_err_set(err, AL_ETREE_TOO_LARGE, "there are more than %llu bytes, with %s",
      (unsigned long long) t->max_bytes, al_tree_shown(t, path));
  return 0;
}

static al_tree_entry_t
entry(const al_tree_t *t) {
  return (al_tree_entry_t){ .name = t->name,
    .mode = al_get32(t->header + 4) & 0777,
    .mtime_s = (int64_t) al_get64(t->header + 8),
    .mtime_ns = al_get32(t->header + 16),
    .size = size_of(t) };
}

static void
next(al_tree_t *t, int state) {
  t->state = state;
  t->have = 0;
}

static int
end_file(al_tree_t *t) {
  next(t, HEADER);
  return t->cbs->file_end(t->data);
}

static int
on_root(al_tree_t *t) {
  al_tree_entry_t e = entry(t);
  next(t, HEADER);
  return t->cbs->root(t->data, &e);
}

static int
on_leave(al_tree_t *t) {
  next(t, HEADER);
  t->depth--;
  t->path[t->end[t->depth]] = 0;
  return t->cbs->leave(t->data);
}

static int
on_last(al_tree_t *t, al_err_t *err) {
  if (size_of(t) != t->entries) return malformed(t, err, "another number of entries than came");
  t->changed = al_get32(t->header + 4);
  if (t->changed > t->entries) return malformed(t, err, "more changed files than files");
  t->done = true;
  next(t, DONE);
  return 0;
}

/* Header and name are here. */
static int
on_entry(al_tree_t *t, al_err_t *err) {
  int r = check_name(t, err);
  if (r == 0) r = check_limits(t, err);
  if (r < 0) return r;
  al_tree_entry_t e = entry(t);
  t->entries++;
  if (type_of(t) == AL_TREE_ENTER) {
    t->end[++t->depth] = (uint16_t) strlen(t->path);
    next(t, HEADER);
    return t->cbs->enter(t->data, &e);
  }
  if (type_of(t) == AL_TREE_LINK) {
    if (e.size < 1 || e.size > AL_TREE_TARGET_MAX) return malformed(t, err, "a link's target that is empty or too long");
    t->bytes += e.size;
    next(t, TARGET);
    return 0;
  }
  t->left = e.size;
  next(t, BYTES);
  r = t->cbs->file(t->data, &e);
  return r == 0 && t->left == 0 ? end_file(t) : r;
}

static int
on_link(al_tree_t *t, al_err_t *err) {
  al_tree_entry_t e = entry(t);
  if (memchr(t->target, 0, (size_t) e.size)) return malformed(t, err, "a link's target with a zero byte");
  next(t, HEADER);
  if (al_tree_stays_inside(t->target, t->depth)) return t->cbs->link(t->data, &e, t->target);
  if (t->skipped++ == 0) memcpy(t->skipped_path, t->path, sizeof t->path);
  return 0;
}

static int
on_header(al_tree_t *t, al_err_t *err) {
  int r = check_header(t, err);
  if (r < 0) return r;
  switch (type_of(t)) {
    case AL_TREE_ROOT: return on_root(t);
    case AL_TREE_LEAVE: return on_leave(t);
    case AL_TREE_END: return on_last(t, err);
    default: next(t, NAME); return 0;
  }
}

/* Fills `to` up to `want` bytes. Returns what it took; t->have == want when it is whole. */
static size_t
gather(al_tree_t *t, void *to, size_t want, const uint8_t *p, size_t n) {
  if (n > want - t->have) n = want - t->have;
  memcpy((uint8_t *) to + t->have, p, n);
  t->have += n;
  return n;
}

static int
step(al_tree_t *t, const uint8_t *p, size_t n, size_t *took, al_err_t *err) {
  switch (t->state) {
    case FIRST:
    case HEADER:
      *took = gather(t, t->header, AL_TREE_HEADER, p, n);
      return t->have == AL_TREE_HEADER ? on_header(t, err) : 0;
    case NAME:
      *took = gather(t, t->name, name_len(t), p, n);
      if (t->have < name_len(t)) return 0;
      t->name[t->have] = 0;
      return on_entry(t, err);
    case TARGET:
      *took = gather(t, t->target, (size_t) size_of(t), p, n);
      if (t->have < size_of(t)) return 0;
      t->target[t->have] = 0;
      return on_link(t, err);
    case BYTES: {
      *took = n > t->left ? (size_t) t->left : n;
      t->left -= *took;
      t->bytes += *took;
      int r = t->cbs->bytes(t->data, p, *took);
      return r == 0 && t->left == 0 ? end_file(t) : r;
    }
    default: return malformed(t, err, "more behind the end");
  }
}

int
al_tree_feed(al_tree_t *t, const uint8_t *p, size_t n, al_err_t *err) {
  while (n > 0) {
    size_t took = 0;
    int r = step(t, p, n, &took, err);
    if (r < 0) return r;
    p += took;
    n -= took;
  }
  return 0;
}
