/* SPDX-License-Identifier: Apache-2.0 */
/* SHA-256 and HMAC: the published vectors, and every length around the block against one another. */
#include "al_test.h"
#include "sha256.h"

static void
digest(const void *p, size_t n, size_t chunk, char hex[AL_SHA256_HEX]) {
  uint8_t out[AL_SHA256_LEN];
  al_sha256_t s;
  al_sha256_init(&s);
  for (size_t i = 0; i < n; i += chunk) al_sha256_update(&s, (const char *) p + i, chunk < n - i ? chunk : n - i);
  al_sha256_final(&s, out);
  al_sha256_hex(out, hex);
}

static void
test_sha256_published_vectors(void **state) {
  static const char two[] = "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq";
  char hex[AL_SHA256_HEX];
  (void) state;
  digest("", 0, 1, hex);
  assert_string_equal(hex, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  digest("abc", 3, 3, hex);
  assert_string_equal(hex, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  digest(two, strlen(two), 7, hex);
  assert_string_equal(hex, "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  char *million = malloc(1000000);
  memset(million, 'a', 1000000);
  /* In small pieces, at once (where the processor's own instructions take over), and in pieces that are no whole
   * blocks. */
  for (size_t chunk = 1000; chunk <= 1000000; chunk *= 1000) {
    digest(million, 1000000, chunk, hex);
    assert_string_equal(hex, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
  }
  digest(million, 1000000, 333333, hex);
  assert_string_equal(hex, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
  free(million);
}

/* The digest of the digests of 0..299 bytes, made with Python's hashlib. */
static void
test_sha256_every_length(void **state) {
  uint8_t data[300];
  al_sha256_t all;
  char hex[AL_SHA256_HEX], other[AL_SHA256_HEX];
  uint8_t out[AL_SHA256_LEN];
  (void) state;
  for (size_t i = 0; i < sizeof data; i++) data[i] = (uint8_t) (i * 7);
  al_sha256_init(&all);
  for (size_t n = 0; n < sizeof data; n++) {
    digest(data, n, sizeof data, hex);
    for (size_t chunk = 1; chunk < 130; chunk += 21) {
      digest(data, n, chunk, other);
      assert_string_equal(hex, other);
    }
    al_sha256_update(&all, hex, 64);
  }
  al_sha256_final(&all, out);
  al_sha256_hex(out, hex);
  assert_string_equal(hex, "2956ef4e8392a8964f6f552bfba7613a805ef8f8550abe7eedcd072dcec36695");
}

static void
mac(const char *key, size_t key_len, const char *data, const char *want) {
  uint8_t out[AL_SHA256_LEN];
  char hex[AL_SHA256_HEX];
  al_hmac_sha256((const uint8_t *) key, key_len, data, strlen(data), out);
  al_sha256_hex(out, hex);
  assert_string_equal(hex, want);
}

static void
test_sha256_hmac_rfc4231(void **state) {
  char key[131];
  (void) state;
  memset(key, 0x0b, 20);
  mac(key, 20, "Hi There", "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  mac("Jefe", 4, "what do ya want for nothing?", "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  memset(key, 0xaa, sizeof key);
  mac(key, sizeof key, "Test Using Larger Than Block-Size Key - Hash Key First",
    "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
  mac("", 0, "", "b613679a0814d9ec772f95d778c35fc5ff1697c493715653c6c712144292c5ad");
}

static void
test_sha256_equal_sees_every_bit(void **state) {
  uint8_t a[32] = {0}, b[32] = {0};
  (void) state;
  assert_true(al_equal_secret(a, b, 32));
  for (int i = 0; i < 256; i++) {
    b[i / 8] = (uint8_t) (1u << (i % 8));
    assert_false(al_equal_secret(a, b, 32));
    b[i / 8] = 0;
  }
  assert_true(al_equal_secret(a, b, 0));
}

int
main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_sha256_published_vectors),
    cmocka_unit_test(test_sha256_every_length),
    cmocka_unit_test(test_sha256_hmac_rfc4231),
    cmocka_unit_test(test_sha256_equal_sees_every_bit),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
