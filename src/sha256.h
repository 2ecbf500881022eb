/* SPDX-License-Identifier: Apache-2.0 */
/* SHA-256 and HMAC-SHA-256 (FIPS 180-4, RFC 2104), shared by the host and the static guest agent. */
#ifndef AL_SHA256_H
#define AL_SHA256_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define AL_SHA256_LEN 32
#define AL_SHA256_HEX 65 /* with the terminating zero */

typedef struct al_sha256_s {
  uint32_t state[8];
  uint64_t total;
  uint8_t block[64];
} al_sha256_t;

void
al_sha256_init(al_sha256_t *s);
void
al_sha256_update(al_sha256_t *s, const void *p, size_t n);
void
al_sha256_final(al_sha256_t *s, uint8_t out[AL_SHA256_LEN]);
/* All at once: the digest of n bytes as text. */
void
al_sha256_text(const void *p, size_t n, char out[AL_SHA256_HEX]);
void
al_sha256_hex(const uint8_t digest[AL_SHA256_LEN], char out[AL_SHA256_HEX]);
void
al_hmac_sha256(const uint8_t *key, size_t key_len, const void *p, size_t n, uint8_t out[AL_SHA256_LEN]);
bool
al_equal_secret(const uint8_t *a, const uint8_t *b, size_t n); /* constant time */

#endif
