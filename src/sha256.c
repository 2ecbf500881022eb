/* SPDX-License-Identifier: Apache-2.0 */
/* SHA-256 and HMAC-SHA-256. Nothing but libc, since the guest agent compiles it too. */
#include "sha256.h"
#include <string.h>
#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#if !defined(__ARM_FEATURE_SHA2) && __has_include(<sys/auxv.h>)
#include <sys/auxv.h>
#define ASK_AUXV 1
#endif
#endif

static const uint32_t K[64] = {0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4,
  0xab1c5ed5, 0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
  0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da, 0x983e5152,
  0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967, 0x27b70a85, 0x2e1b2138,
  0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85, 0xa2bfe8a1, 0xa81a664b, 0xc24b8b70,
  0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5,
  0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3, 0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa,
  0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

static inline uint32_t
rotr(uint32_t x, unsigned n) {
  return x >> n | x << (32 - n);
}

static void
compress(uint32_t state[8], const uint8_t *p) {
  uint32_t w[64], v[8];

  for (int i = 0; i < 16; i++, p += 4)
    w[i] = (uint32_t) p[0] << 24 | (uint32_t) p[1] << 16 | (uint32_t) p[2] << 8 | (uint32_t) p[3];
  for (int i = 16; i < 64; i++) {
    uint32_t s0 = rotr(w[i - 15], 7) ^ rotr(w[i - 15], 18) ^ w[i - 15] >> 3;
    uint32_t s1 = rotr(w[i - 2], 17) ^ rotr(w[i - 2], 19) ^ w[i - 2] >> 10;
    w[i] = w[i - 16] + s0 + w[i - 7] + s1;
  }
  memcpy(v, state, sizeof v);
  for (int i = 0; i < 64; i++) {
    uint32_t s1 = rotr(v[4], 6) ^ rotr(v[4], 11) ^ rotr(v[4], 25);
    uint32_t t1 = v[7] + s1 + ((v[4] & v[5]) ^ (~v[4] & v[6])) + K[i] + w[i];
    uint32_t s0 = rotr(v[0], 2) ^ rotr(v[0], 13) ^ rotr(v[0], 22);
    uint32_t t2 = s0 + ((v[0] & v[1]) ^ (v[0] & v[2]) ^ (v[1] & v[2]));
    v[7] = v[6], v[6] = v[5], v[5] = v[4], v[4] = v[3] + t1;
    v[3] = v[2], v[2] = v[1], v[1] = v[0], v[0] = t1 + t2;
  }
  for (int i = 0; i < 8; i++) state[i] += v[i];
}

/* The processor's own instructions hash an image of half a gigabyte seven times as fast. Looked for only where there is
 * much to hash: asking a virtual processor what it can do is dear. */
#define ACCEL_MIN_BLOCKS 64

#if defined(__x86_64__)
#define HAS_COMPRESS_SHA 1

static int
ask_for_sha(void) {
  unsigned a, b, c, d;
  if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_SSSE3) || !(c & bit_SSE4_1)) return 0;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) && b >> 29 & 1;
}

__attribute__((target("sha,sse4.1,ssse3"))) static void
compress_sha(uint32_t state[8], const uint8_t *p, size_t blocks) {
  const __m128i swap = _mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203);
  /* The instructions want the words as {f,e,b,a} and {h,g,d,c}. */
  __m128i abef = _mm_set_epi32((int) state[0], (int) state[1], (int) state[4], (int) state[5]);
  __m128i cdgh = _mm_set_epi32((int) state[2], (int) state[3], (int) state[6], (int) state[7]);
  for (; blocks > 0; blocks--, p += 64) {
    __m128i w[4], abef0 = abef, cdgh0 = cdgh;
    for (int i = 0; i < 16; i++) {
      __m128i *now = &w[i & 3];
      if (i < 4) {
        *now = _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *) (const void *) (p + 16 * i)), swap);
      } else { /* w[t-16] + s0(w[t-15]) + w[t-7] + s1(w[t-2]), four at once */
        __m128i back7 = _mm_alignr_epi8(w[(i + 3) & 3], w[(i + 2) & 3], 4);
        *now = _mm_sha256msg2_epu32(_mm_add_epi32(_mm_sha256msg1_epu32(*now, w[(i + 1) & 3]), back7), w[(i + 3) & 3]);
      }
      __m128i wk = _mm_add_epi32(*now, _mm_loadu_si128((const __m128i *) (const void *) (K + 4 * i)));
      cdgh = _mm_sha256rnds2_epu32(cdgh, abef, wk);
      abef = _mm_sha256rnds2_epu32(abef, cdgh, _mm_shuffle_epi32(wk, 0x0e));
    }
    abef = _mm_add_epi32(abef, abef0);
    cdgh = _mm_add_epi32(cdgh, cdgh0);
  }
  uint32_t first[4], second[4];
  _mm_storeu_si128((__m128i *) (void *) first, abef);
  _mm_storeu_si128((__m128i *) (void *) second, cdgh);
  state[0] = first[3], state[1] = first[2], state[4] = first[1], state[5] = first[0];
  state[2] = second[3], state[3] = second[2], state[6] = second[1], state[7] = second[0];
}
#elif defined(__ARM_FEATURE_SHA2) || defined(ASK_AUXV)
#define HAS_COMPRESS_SHA 1

#if defined(__ARM_FEATURE_SHA2)
#define TARGET_SHA /* the compiler takes them for granted, as for Apple Silicon, which always has them */
static int
ask_for_sha(void) {
  return 1;
}
#else
#define TARGET_SHA __attribute__((target("+crypto"))) /* GCC 12 does not take "+sha2" as enough */
static int
ask_for_sha(void) {
  return getauxval(AT_HWCAP) >> 6 & 1; /* HWCAP_SHA2 */
}
#endif

TARGET_SHA static void
compress_sha(uint32_t state[8], const uint8_t *p, size_t blocks) {
  uint32x4_t abcd = vld1q_u32(state), efgh = vld1q_u32(state + 4);
  for (; blocks > 0; blocks--, p += 64) {
    uint32x4_t w[4], abcd0 = abcd, efgh0 = efgh;
    for (int i = 0; i < 16; i++) {
      uint32x4_t *now = &w[i & 3];
      if (i < 4) *now = vreinterpretq_u32_u8(vrev32q_u8(vld1q_u8(p + 16 * i)));
      else *now = vsha256su1q_u32(vsha256su0q_u32(*now, w[(i + 1) & 3]), w[(i + 2) & 3], w[(i + 3) & 3]);
      uint32x4_t wk = vaddq_u32(*now, vld1q_u32(K + 4 * i)), before = abcd;
      abcd = vsha256hq_u32(abcd, efgh, wk);
      efgh = vsha256h2q_u32(efgh, before, wk);
    }
    abcd = vaddq_u32(abcd, abcd0);
    efgh = vaddq_u32(efgh, efgh0);
  }
  vst1q_u32(state, abcd);
  vst1q_u32(state + 4, efgh);
}
#endif

#if defined(HAS_COMPRESS_SHA)
/* Asked once: a copy hashes what comes in thousands of pieces. */
static int
has_sha(void) {
  static int known = -1;
  int has = __atomic_load_n(&known, __ATOMIC_RELAXED);
  if (has < 0) __atomic_store_n(&known, has = ask_for_sha(), __ATOMIC_RELAXED);
  return has;
}
#endif

static void
compress_many(uint32_t state[8], const uint8_t *p, size_t blocks) {
#if defined(HAS_COMPRESS_SHA)
  if (blocks >= ACCEL_MIN_BLOCKS && has_sha()) {
    compress_sha(state, p, blocks);
    return;
  }
#endif
  for (; blocks > 0; blocks--, p += 64) compress(state, p);
}

void
al_sha256_init(al_sha256_t *s) {
  *s = (al_sha256_t){
    .state = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19}};
}

void
al_sha256_update(al_sha256_t *s, const void *data, size_t n) {
  const uint8_t *p = data;
  size_t used = (size_t) (s->total % 64);

  if (n == 0) return;
  s->total += n;
  if (used) {
    size_t take = n < 64 - used ? n : 64 - used;
    memcpy(s->block + used, p, take);
    p += take, n -= take;
    if (used + take < 64) return;
    compress(s->state, s->block);
  }
  compress_many(s->state, p, n / 64);
  p += n / 64 * 64, n %= 64;
  if (n) memcpy(s->block, p, n);
}

void
al_sha256_final(al_sha256_t *s, uint8_t out[AL_SHA256_LEN]) {
  static const uint8_t pad[64] = {0x80};
  uint8_t bits[8];
  uint64_t total = s->total * 8;
  size_t used = (size_t) (s->total % 64);

  for (int i = 0; i < 8; i++) bits[i] = (uint8_t) (total >> (56 - 8 * i));
  al_sha256_update(s, pad, used < 56 ? 56 - used : 120 - used);
  al_sha256_update(s, bits, 8);
  for (int i = 0; i < 8; i++)
    for (int j = 0; j < 4; j++) out[4 * i + j] = (uint8_t) (s->state[i] >> (24 - 8 * j));
}

void
al_sha256_hex(const uint8_t digest[AL_SHA256_LEN], char out[AL_SHA256_HEX]) {
  for (int i = 0; i < AL_SHA256_LEN; i++) {
    out[2 * i] = "0123456789abcdef"[digest[i] >> 4];
    out[2 * i + 1] = "0123456789abcdef"[digest[i] & 15];
  }
  out[2 * AL_SHA256_LEN] = 0;
}

void
al_sha256_text(const void *p, size_t n, char out[AL_SHA256_HEX]) {
  uint8_t digest[AL_SHA256_LEN];
  al_sha256_t s;
  al_sha256_init(&s);
  al_sha256_update(&s, p, n);
  al_sha256_final(&s, digest);
  al_sha256_hex(digest, out);
}

void
al_hmac_sha256(const uint8_t *key, size_t key_len, const void *p, size_t n, uint8_t out[AL_SHA256_LEN]) {
  uint8_t block[64] = {0}, inner[AL_SHA256_LEN];
  al_sha256_t s;

  if (key_len > sizeof block) {
    al_sha256_init(&s);
    al_sha256_update(&s, key, key_len);
    al_sha256_final(&s, block);
  } else if (key_len) {
    memcpy(block, key, key_len);
  }
  for (size_t i = 0; i < sizeof block; i++) block[i] ^= 0x36;
  al_sha256_init(&s);
  al_sha256_update(&s, block, sizeof block);
  al_sha256_update(&s, p, n);
  al_sha256_final(&s, inner);
  for (size_t i = 0; i < sizeof block; i++) block[i] ^= 0x36 ^ 0x5c;
  al_sha256_init(&s);
  al_sha256_update(&s, block, sizeof block);
  al_sha256_update(&s, inner, sizeof inner);
  al_sha256_final(&s, out);
}

bool
al_equal_secret(const uint8_t *a, const uint8_t *b, size_t n) {
  volatile uint8_t diff = 0;

  for (size_t i = 0; i < n; i++) diff = (uint8_t) (diff | (a[i] ^ b[i]));
  return diff == 0;
}
