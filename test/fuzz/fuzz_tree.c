/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzzer of the records of a directory: however they are cut, the same comes of them; names, depth and limits hold; and
 * when all is made, no link, through whatever other links it leads, comes out of the tree. */
#include "fuzz.h"
#include "tree_parse.h"

#define NODES_MAX 600
#define HOPS_MAX 40
#define STREAM_MAX 65536u

typedef struct node_s {
  int parent; /* -1 = the root */
  char name[AL_TREE_NAME_MAX + 1];
  char *target; /* a link's; NULL = a directory or file */
  bool dir;
} node_t;

typedef struct model_s {
  al_tree_t t;
  node_t nodes[NODES_MAX];
  int len, open;
  unsigned depth;
  uint64_t hash, left, bytes;
  bool in_file, began;
  int code;
  al_err_t err;
} model_t;

static void
mix(model_t *m, const void *p, size_t n) {
  for (size_t i = 0; i < n; i++) m->hash = (m->hash ^ ((const uint8_t *) p)[i]) * 1099511628211u;
}

static int
add(model_t *m, char what, const al_tree_entry_t *e, const char *target) {
  size_t n = strlen(e->name);
  MUST(m->began && !m->in_file, "an entry out of order");
  MUST(n >= 1 && n <= 255 && !strchr(e->name, '/'), "a name that is none");
  MUST(strcmp(e->name, ".") && strcmp(e->name, "..") && strcasecmp(e->name, ".git"), "a name that may not be");
  MUST(e->mode <= 0777 && e->mtime_ns < 1000000000, "attributes");
  MUST(m->t.entries <= m->t.max_entries && m->t.bytes <= m->t.max_bytes, "more than the limits");
  mix(m, &what, 1);
  mix(m, e->name, n + 1);
  mix(m, &e->size, 8);
  mix(m, &e->mtime_s, 8);
  for (int i = 0; i < m->len; i++)
    if (m->nodes[i].parent == m->open && strcmp(m->nodes[i].name, e->name) == 0) return -77; /* as the host's EEXIST */
  if (m->len == NODES_MAX) return -78;
  node_t *d = &m->nodes[m->len++];
  d->parent = m->open;
  d->dir = what == 'd';
  memcpy(d->name, e->name, n + 1);
  d->target = target ? strdup(target) : NULL;
  return 0;
}

static int
on_root(void *data, const al_tree_entry_t *e) {
  model_t *m = data;
  MUST(!m->began && !e->name[0], "a root that is none");
  m->began = true;
  return 0;
}

static int
on_enter(void *data, const al_tree_entry_t *e) {
  model_t *m = data;
  int r = add(m, 'd', e, NULL);
  if (r < 0) return r;
  m->open = m->len - 1;
  MUST(++m->depth <= m->t.max_depth && m->depth == m->t.depth, "deeper than may be");
  return 0;
}

static int
on_leave(void *data) {
  model_t *m = data;
  MUST(m->depth-- > 0 && !m->in_file, "left more than entered");
  m->open = m->nodes[m->open].parent;
  mix(m, "l", 1);
  return 0;
}

static int
on_file(void *data, const al_tree_entry_t *e) {
  model_t *m = data;
  int r = add(m, 'f', e, NULL);
  m->left = e->size;
  m->in_file = true;
  return r;
}

static int
on_bytes(void *data, const uint8_t *p, size_t n) {
  model_t *m = data;
  MUST(m->in_file && n > 0 && n <= m->left, "bytes that no file has");
  m->left -= n;
  m->bytes += n;
  mix(m, p, n);
  return 0;
}

static int
on_file_end(void *data) {
  model_t *m = data;
  MUST(m->in_file && m->left == 0, "the end of a file that is not whole");
  m->in_file = false;
  return 0;
}

static int
on_link(void *data, const al_tree_entry_t *e, const char *target) {
  model_t *m = data;
  MUST(strlen(target) == e->size && e->size > 0, "a target of another length");
  mix(m, target, (size_t) e->size);
  m->bytes += e->size;
  return add(m, 's', e, target);
}

static int
find(const model_t *m, int dir, const char *name, size_t n) {
  for (int i = 0; i < m->len; i++)
    if (m->nodes[i].parent == dir && strlen(m->nodes[i].name) == n && memcmp(m->nodes[i].name, name, n) == 0) return i;
  return -2;
}

/* Where the kernel would come to from directory `dir`; -2 = nowhere. It must never go above the root. */
static int
resolve(const model_t *m, int dir, const char *path, unsigned *hops) {
  MUST(*path != '/', "an absolute target was made");
  while (*path && dir >= -1) {
    size_t n = strcspn(path, "/");
    if (n == 2 && path[0] == '.' && path[1] == '.') {
      MUST(dir >= 0, "a link leads out of the tree");
      dir = m->nodes[dir].parent;
    } else if (n > 0 && !(n == 1 && path[0] == '.')) {
      int to = find(m, dir, path, n);
      if (to >= 0 && m->nodes[to].target) to = ++*hops > HOPS_MAX ? -2 : resolve(m, dir, m->nodes[to].target, hops);
      else if (to >= 0 && !m->nodes[to].dir) to = path[n] ? -2 : to;
      if (to == -1 || to >= 0) dir = to;
      else return -2;
      if (dir >= 0 && !m->nodes[dir].dir) return path[n] ? -2 : dir;
    }
    path += n + (path[n] == '/');
  }
  return dir;
}

static void
run(model_t *m, const uint8_t *limits, const uint8_t *p, size_t n, uint32_t chunks) {
  static const al_tree_cbs_t cbs = {.root = on_root, .enter = on_enter, .leave = on_leave, .file = on_file, .bytes = on_bytes,
    .file_end = on_file_end, .link = on_link};
  memset(m, 0, sizeof *m);
  m->open = -1;
  al_tree_init(&m->t, &cbs, m);
  m->t.max_bytes = limits[0] < 200 ? limits[0] * 16u : 1u << 20;
  m->t.max_entries = limits[1] < 200 ? limits[1] : 400;
  m->t.max_depth = limits[2] % (AL_TREE_DEPTH_MAX + 1);
  for (size_t at = 0; at < n && m->code == 0;) {
    size_t take = 1 + (chunks = chunks * 1664525u + 1013904223u) % 37;
    if (chunks >> 30 == 0) take *= 60;
    if (take > n - at) take = n - at;
    uint8_t *copy = malloc(take);
    MUST(copy != NULL, "memory");
    memcpy(copy, p + at, take);
    m->code = al_tree_feed(&m->t, copy, take, &m->err);
    free(copy);
    at += take;
    MUST(strlen(m->t.path) <= AL_PATH_MAX, "a path that is too long");
  }
  MUST(m->code <= 0 && (m->code > -100 || m->err.code == m->code), "an error without its reason");
  MUST(!m->t.done || (m->depth == 0 && !m->in_file && m->began), "done before its end");
}

/* Records that the parser takes, but for what the input changes in them. */
static size_t
records(fuzz_in_t *in, uint8_t *out) {
  static const char *const names[] = {"a", "b", "c", ".git", ".GIT", "..", ".", "a/b", "git~1", "x y", "\xff\n"};
  static const char *const parts[] = {"..", "../", "a", "/", "b", ".", "c", "a/..", "/..", "b/", ".git"};
  size_t len = 0;
  uint64_t entries = 0;
  unsigned depth = 0;
  memset(out, 0, AL_TREE_HEADER);
  out[0] = AL_TREE_ROOT;
  len = AL_TREE_HEADER;
  while (in->n > 0 && len < STREAM_MAX - 2048) {
    uint32_t what = fuzz_take(in, 1), pick = fuzz_take(in, 1);
    uint8_t *h = out + len, type = (uint8_t) (2 + what % 5);
    char target[256] = "";
    size_t size = 0, n = 0;
    if (what % 16 == 15) type = (uint8_t) fuzz_take(in, 1);
    if (type == AL_TREE_END && what < 128) type = AL_TREE_LINK;
    memset(h, 0, AL_TREE_HEADER);
    h[0] = type;
    if (type == AL_TREE_ENTER || type == AL_TREE_FILE || type == AL_TREE_LINK) {
      char wide[16];
      snprintf(wide, sizeof wide, "n%u", fuzz_take(in, 1) & 15);
      const char *name = pick < 240 ? pick < 80 ? wide : names[pick % 3] : names[pick % 11];
      n = strlen(name);
      memcpy(h + AL_TREE_HEADER, name, n);
      entries++;
    }
    if (type == AL_TREE_LINK)
      for (uint32_t k = 1 + pick % 6; k > 0; k--) {
        uint32_t part = fuzz_take(in, 1);
        strcat(target, parts[part % 11]);
        if (part & 64) strcat(target, "/");
        size = strlen(target);
      }
    if (type == AL_TREE_FILE) size = pick % 64;
    if (type == AL_TREE_ENTER) depth++;
    if (type == AL_TREE_LEAVE && depth > 0) depth--;
    if (type == AL_TREE_END) size = entries;
    al_put16(h + 2, (uint16_t) n);
    if (type == AL_TREE_ENTER || type == AL_TREE_FILE) al_put32(h + 4, pick | 0600u);
    al_put64(h + 24, size);
    if ((what & 0x60) == 0x60) h[pick % AL_TREE_HEADER] ^= (uint8_t) fuzz_take(in, 1);
    len += AL_TREE_HEADER + n;
    if (type == AL_TREE_LINK) memcpy(out + len, target, size), len += size;
    if (type == AL_TREE_FILE) memset(out + len, (int) pick, size), len += size;
  }
  for (; depth > 0; depth--, len += AL_TREE_HEADER) memset(out + len, 0, AL_TREE_HEADER), out[len] = AL_TREE_LEAVE;
  memset(out + len, 0, AL_TREE_HEADER);
  out[len] = AL_TREE_END;
  al_put64(out + len + 24, entries);
  return len + AL_TREE_HEADER;
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static model_t a, b;
  static uint8_t stream[STREAM_MAX];
  fuzz_in_t in = {data, size};
  uint8_t limits[3];
  for (int i = 0; i < 3; i++) limits[i] = (uint8_t) fuzz_take(&in, 1);
  uint32_t chunks = fuzz_take(&in, 2), raw = fuzz_take(&in, 1);
  const uint8_t *p = in.p;
  size_t n = in.n;
  if (raw > 40) {
    n = records(&in, stream);
    p = stream;
  }
  run(&a, limits, p, n, chunks);
  run(&b, limits, p, n, chunks ^ 0x5555aaaau);
  MUST(a.code == b.code && a.hash == b.hash && a.len == b.len && a.bytes == b.bytes, "cuts change what comes");
  MUST(strcmp(a.err.msg, b.err.msg) == 0 && a.t.skipped == b.t.skipped && a.t.done == b.t.done, "cuts change the end");
  for (int i = 0; i < a.len; i++) {
    unsigned hops = 0;
    if (a.nodes[i].target) resolve(&a, a.nodes[i].parent, a.nodes[i].target, &hops);
  }
  for (int i = 0; i < a.len; i++) free(a.nodes[i].target);
  for (int i = 0; i < b.len; i++) free(b.nodes[i].target);
  return 0;
}
