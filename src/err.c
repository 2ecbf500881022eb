/* SPDX-License-Identifier: Apache-2.0 */
/* Errors: setting and wrapping the fixed struct, names and cures from the one table. */
#include "err.h"
#include "utf8.h"
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* Two entries with one number would be two equal case labels, which no compiler accepts; so the numbers are unique. */
const char *
al_err_name(int code) {
  switch (code) {
#define NAME(name, number, meaning, cure) case number: return #name;
    AL_ERR_MAP(NAME)
#undef NAME
    case 0: return "OK";
    case -ENOMEM: return "NO_MEMORY";
    default: return code > -20000 && code < 0 ? "IO_ERROR" : "INTERNAL";
  }
}

static const char *
table_cure(int code) {
  switch (code) {
#define CURE(name, number, meaning, cure) case number: return cure;
    AL_ERR_MAP(CURE)
#undef CURE
    case 0: return "";
    case -ENOMEM: return table_cure(AL_ENO_MEMORY);
    case -EMFILE:
    case -ENFILE: return "Close files in this process or raise its limit (ulimit -n), and try again.";
    case -EAGAIN: return "Raise the limit of processes (ulimit -u) or end some, and try again.";
    case -ENOSPC:
    case -EDQUOT: return "Free space on the disk that the message names, and try again.";
    case -EROFS: return "Make the file system writable again, or use another home (option home or AGENT_LANE_HOME).";
    default: return table_cure(code > -20000 && code < 0 ? AL_EIO_ERROR : AL_EINTERNAL);
  }
}

bool
al_err_exhausted(int code) {
  return code == -ENOMEM || code == -EMFILE || code == -ENFILE || code == -EAGAIN;
}

/* Formats into out; the text may hold bytes of a child or a guest, so it is made valid and harmless on the way. */
static void __attribute__((format(printf, 3, 0)))
format(char *out, size_t cap, const char *fmt, va_list ap) {
  char raw[AL_ERR_MSG_MAX * 2];

  int n = vsnprintf(raw, sizeof raw, fmt, ap);
  size_t len = n < 0 ? 0 : (size_t) n < sizeof raw ? (size_t) n : sizeof raw - 1;
  len = al_utf8_printable(out, cap, raw, len, true);
  while (len > 0 && (out[len - 1] == '\n' || out[len - 1] == ' ' || out[len - 1] == '\t')) out[--len] = 0;
}

int
al_err_set(al_err_t *err, int code, const char *fmt, ...) {
  char msg[AL_ERR_MSG_MAX];
  va_list ap;

  if (!err) return code;
  /* The arguments may point into *err, so it is only cleared when the text is done. */
  va_start(ap, fmt);
  format(msg, sizeof msg, fmt, ap);
  va_end(ap);
  memset(err, 0, sizeof *err);
  err->code = code;
  memcpy(err->msg, msg, sizeof msg);
  return code;
}

void
al_err_wrap(al_err_t *err, const char *fmt, ...) {
  char context[AL_ERR_MSG_MAX], whole[AL_ERR_MSG_MAX * 2];
  va_list ap;

  if (!err || err->code == 0) return;
  va_start(ap, fmt);
  format(context, sizeof context, fmt, ap);
  va_end(ap);
  int n = snprintf(whole, sizeof whole, "%s: %s", context, err->msg);
  al_utf8_printable(err->msg, sizeof err->msg, whole, n < 0 ? 0 : (size_t) n, true);
}

void
al_err_cure(al_err_t *err, const char *fmt, ...) {
  va_list ap;

  if (!err) return;
  va_start(ap, fmt);
  format(err->cure, sizeof err->cure, fmt, ap);
  va_end(ap);
}

const char *
al_err_cure_text(const al_err_t *err) {
  return err->cure[0] ? err->cure : table_cure(err->code);
}
