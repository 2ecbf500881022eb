/* SPDX-License-Identifier: Apache-2.0 */
/* UTF-8: validity, boundaries, and text made safe to show. */
#ifndef AL_UTF8_H
#define AL_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

bool
al_utf8_valid(const uint8_t *p, size_t n); /* strict: no surrogates, no overlong forms, <= U+10FFFF */
size_t
al_utf8_cut(const uint8_t *p, size_t n); /* length <= n of the longest prefix that ends on a sequence boundary */
/* Copies at most cap-1 bytes of p into out, control characters (but tab and newline when `keep_newlines`) and invalid
 * bytes replaced by '?'. Always terminates. For showing text that came from a guest or a child. Returns the length. */
size_t
al_utf8_printable(char *out, size_t cap, const void *p, size_t n, bool keep_newlines);

#endif
