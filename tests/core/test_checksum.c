/* tests/core/test_checksum.c - XXH3 known answers, and streaming equal to one pass on every variant. */
#include "core/base/checksum.h"
#include "tests/common/test.h"

#include "core/base/checksum_internal.h"
#include "core/base/cpu.h"
#include "core/base/fault.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static unsigned char *make_bytes(size_t count)
{
    unsigned char *bytes = malloc(count);

    assert_non_null(bytes);
    for (size_t i = 0; i < count; i++)
        bytes[i] = (unsigned char)(i * 2654435761u >> 13);
    return bytes;
}

TEST(test_known_answers)
{
    struct st_digest *d;
    char hex[33];

    /* Empty input, seed 0: published with xxHash (XXH3_64bits, XXH3_128bits). */
    assert_true(st_checksum64("", 0) == UINT64_C(0x2d06800538d394c2));
    assert_int_equal(st_digest_create(&d), STRATA_OK);
    st_digest_hex(d, hex);
    assert_string_equal(hex, "99aa06d3014798d86001c324468d497f");
    st_digest_destroy(d);
}

TEST(test_variants_agree)
{
    size_t count = 20000;
    unsigned char *bytes = make_bytes(count);

    for (size_t length = 0; length < 1500; length += length < 300 ? 1 : 37)
        assert_true(st_checksum_base.hash64(bytes + length % 7, length) == st_checksum64(bytes + length % 7, length));
    assert_true(st_checksum_base.hash64(bytes, count) == st_checksum64(bytes, count));
#if defined(__x86_64__)
    if ((st_cpu_features() & ST_CPU_AVX2_FMA) != 0)
        assert_true(st_checksum_avx2.hash64(bytes, count) == st_checksum_base.hash64(bytes, count));
#endif
    free(bytes);
}

static void digest_in_pieces(const unsigned char *bytes, size_t count, size_t piece, char hex[33])
{
    struct st_digest *d;

    assert_int_equal(st_digest_create(&d), STRATA_OK);
    for (size_t at = 0; at < count; at += piece)
        st_digest_update(d, bytes + at, count - at < piece ? count - at : piece);
    st_digest_hex(d, hex);
    st_digest_destroy(d);
}

TEST(test_streaming)
{
    static const size_t pieces[] = {1, 63, 64, 255, 256, 257, 4096, 5000};
    size_t count = 12345;
    unsigned char *bytes = make_bytes(count);
    char whole[33], hex[33], expected[33];
    XXH128_hash_t hash = XXH3_128bits(bytes, count);

    digest_in_pieces(bytes, count, count, whole);
    snprintf(expected, sizeof(expected), "%016llx%016llx", (unsigned long long)hash.high64, (unsigned long long)hash.low64);
    assert_string_equal(whole, expected);
    for (size_t i = 0; i < sizeof(pieces) / sizeof(pieces[0]); i++) {
        digest_in_pieces(bytes, count, pieces[i], hex);
        assert_string_equal(hex, whole);
    }
    free(bytes);
}

TEST(test_every_bit_counts)
{
    size_t count = 1000;
    unsigned char *bytes = make_bytes(count);
    uint64_t whole = st_checksum64(bytes, count);

    for (size_t i = 0; i < count; i += 13) {
        bytes[i] ^= (unsigned char)(1u << (i % 8));
        assert_true(st_checksum64(bytes, count) != whole);
        bytes[i] ^= (unsigned char)(1u << (i % 8));
    }
    assert_true(st_checksum64(bytes, count) == whole);
    free(bytes);
}

TEST(test_no_memory)
{
    struct st_digest *d = NULL;

    st_fault_arm(&(struct st_fault_spec){.site = "digest.alloc", .result = -ENOMEM});
    assert_int_equal(st_digest_create(&d), STRATA_E_NOMEM);
    assert_int_equal(st_fault_disarm(), 1);
    assert_null(d);
    st_digest_destroy(NULL);
}
