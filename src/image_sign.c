/* SPDX-License-Identifier: Apache-2.0 */
/* A signature beside the manifest: how it is kept, and whether an image is among those that a trusted key has signed.
 * What a signature is worth is found out in lib/minisign.ts. */
#include "image_int.h"
#include "mem.h"
#include "platform.h"
#include <errno.h>
#include <stdio.h>
#include <string.h>

/* The first line of a minisign signature is a comment that nothing signs. In the store it is a checksum of the other
 * three lines, so that a damaged signature is found without anybody's key, and minisign reads the file as ever. */
#define COMMENT "untrusted comment: "
#define TRUSTED "trusted comment: "
#define KEPT COMMENT "kept by agent-lane, sha256 of the rest "
#define KEPT_LEN (sizeof KEPT - 1 + 64 + 1)
#define LINES 4

static int
bad(al_err_t *err, const char *why) {
  return al_err_set(err, AL_EIMAGE_INVALID, AL_IMAGE_SIGNATURE " is no signature of minisign: %s.", why);
}

/* Copies the text without the carriage returns that some editors put before each newline, and with a last newline. */
static size_t
clean(const char *text, size_t len, char *out) {
  size_t n = 0;

  for (size_t i = 0; i < len; i++) {
    if (text[i] == '\r' && (i + 1 == len || text[i + 1] == '\n')) continue;
    out[n++] = text[i];
  }
  if (n > 0 && out[n - 1] != '\n') out[n++] = '\n';
  out[n] = 0;
  return n;
}

/* Checks the shape: four lines, two of them comments, nothing that moves a cursor. `second`: where that line begins. */
static const char *
misshapen(const char *text, size_t len, size_t *second) {
  size_t lines = 0, begin = 0;

  for (size_t i = 0; i < len; i++) {
    unsigned char c = (unsigned char) text[i];
    if ((c < 0x20 && c != '\n' && c != '\t') || c == 0x7f) return "it has control characters in it";
    if (c != '\n') continue;
    const char *line = text + begin;
    if (++lines == 1) *second = i + 1;
    if (lines == 1 && strncmp(line, COMMENT, sizeof COMMENT - 1)) return "its first line is no comment";
    if (lines == 3 && strncmp(line, TRUSTED, sizeof TRUSTED - 1)) return "its third line is no trusted comment";
    begin = i + 1;
  }
  return lines == LINES ? NULL : "it does not have four lines";
}

int
al__signature_keep(const char *text, size_t len, char **out, al_err_t *err) {
  AL_AUTO_FREE char *copy = al_malloc(len + 2);
  char hex[AL_SHA256_HEX];
  size_t second = 0;

  if (!copy) return al_err_set(err, -ENOMEM, "Out of memory.");
  size_t n = clean(text, len, copy);
  const char *wrong = misshapen(copy, n, &second);
  if (wrong) return bad(err, wrong);
  al_sha256_text(copy + second, n - second, hex);
  *out = al_asprintf(KEPT "%s\n%s", hex, copy + second);
  return *out ? 0 : al_err_set(err, -ENOMEM, "Out of memory.");
}

int
al__signature_load(int dir, const char *id, char **out, size_t *len, al_err_t *err) {
  AL_AUTO_FREE char *text = NULL;
  char hex[AL_SHA256_HEX];
  size_t n;

  *out = NULL;
  int rc = al_plat_read_file(dir, AL_IMAGE_SIGNATURE, AL_IMAGE_SIGNATURE_MAX + KEPT_LEN, &text, &n);
  if (rc == -ENOENT) return 0;
  if (rc == -ENOMEM) return al_err_set(err, rc, "Out of memory.");
  if (rc)
    return al_err_set(err, AL_EIMAGE_CORRUPT, "Image %s: its signature cannot be read: %s.", id, strerror(-rc));
  bool whole = n > KEPT_LEN && memcmp(text, KEPT, sizeof KEPT - 1) == 0 && text[KEPT_LEN - 1] == '\n';
  if (whole) {
    al_sha256_text(text + KEPT_LEN, n - KEPT_LEN, hex);
    whole = memcmp(text + sizeof KEPT - 1, hex, 64) == 0;
  }
  if (!whole)
    return al_err_set(err, AL_EIMAGE_CORRUPT, "Image %s: " AL_IMAGE_SIGNATURE " is not what was imported.", id);
  if (len) *len = n;
  *out = al_steal(&text);
  return 0;
}

/* The second line is base64 of two letters, the id (its last byte is shown first), and the signature. */
#define ID_AT 2u
#define ID_LEN 8u

void
al__signature_key_id(const char *text, char id[17]) {
  static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  const char *line = strchr(text, '\n');
  uint8_t raw[ID_AT + ID_LEN];
  uint32_t bits = 0;
  size_t n = 0;

  id[0] = 0;
  for (unsigned have = 0; line && n < sizeof raw;) {
    const char *digit = *++line ? strchr(digits, *line) : NULL;
    if (!digit) return;
    bits = bits << 6 | (uint32_t) (digit - digits);
    have += 6;
    if (have >= 8) raw[n++] = (uint8_t) (bits >> (have -= 8));
  }
  for (size_t i = 0; i < n && i < ID_LEN; i++) snprintf(id + 2 * i, 3, "%02X", raw[ID_AT + ID_LEN - 1 - i]);
}

bool
al__image_trusted(const al_image_trust_t *trust, const char *sha256, const char **by) {
  if (by) *by = "";
  if (!trust) return true;
  for (size_t i = 0; i < trust->count; i++) {
    if (strcmp(trust->sha256[i], sha256)) continue;
    if (by && trust->key) *by = trust->key[i];
    return true;
  }
  return false;
}

int
al__image_untrusted(al_err_t *err, const char *id) {
  return al_err_set(err, AL_EIMAGE_UNTRUSTED, "Image %s has no valid signature by one of the keys that are asked for.",
    id);
}

#define DIGEST_LEN 64u
#define KEY_LEN (AL_IMAGE_KEY_MAX - 1u)
#define PAIR_LEN (DIGEST_LEN + 1 + KEY_LEN)

static bool
is_pair(const al_val_t *v) {
  return v->kind == AL_TEXT && v->len == PAIR_LEN && strspn(v->text, "0123456789abcdef") == DIGEST_LEN &&
    v->text[DIGEST_LEN] == ' ' && !strpbrk(v->text + DIGEST_LEN + 1, " \t\r\n");
}

int
al_image_trust_read(const al_val_t *list, al_image_trust_t **out, al_err_t *err) {
  *out = NULL;
  if (!list) return 0;
  if (list->kind != AL_LIST) return al_err_set(err, AL_EBAD_OPTION, "imageDigests must be a list");
  AL_AUTO_FREE al_image_trust_t *t = NULL;
  size_t pointers = sizeof *t + 2 * list->len * sizeof(char *);
  if (list->len > 100000 || !(t = al_malloc(pointers + list->len * (PAIR_LEN + 1))))
    return al_err_set(err, -ENOMEM, "Out of memory.");
  const char **sha256 = (const char **) (void *) (t + 1), **key = sha256 + list->len;
  char *text = (char *) t + pointers;
  for (size_t i = 0; i < list->len; i++, text += PAIR_LEN + 1) {
    if (!is_pair(list->items[i]))
      return al_err_set(err, AL_EBAD_OPTION, "imageDigests must be digests of 64 hex digits, each with its key");
    memcpy(text, list->items[i]->text, PAIR_LEN + 1);
    text[DIGEST_LEN] = 0;
    sha256[i] = text, key[i] = text + DIGEST_LEN + 1;
  }
  t->sha256 = sha256, t->key = key, t->count = list->len;
  *out = al_steal(&t);
  return 0;
}
