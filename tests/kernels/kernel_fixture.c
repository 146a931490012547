/* tests/kernels/kernel_fixture.c - see kernel_fixture.h. */
#include "tests/common/test.h"
#include "tests/kernels/kernel_fixture.h"
#include "kernels/isa/scalar.h"
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define CANARY       0xa5
#define CANARY_BYTES 64u

void kf_array_create(struct kf_array *a, size_t bytes_max)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);

    a->map_bytes = (bytes_max + 3 * CANARY_BYTES + page - 1) / page * page;
    a->map = mmap(NULL, a->map_bytes + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(a->map, MAP_FAILED);
    assert_int_equal(mprotect(a->map + a->map_bytes, page, PROT_NONE), 0);
    a->data = a->map;
    a->data_bytes = 0;
}

void kf_array_destroy(struct kf_array *a)
{
    assert_int_equal(munmap(a->map, a->map_bytes + (size_t)sysconf(_SC_PAGESIZE)), 0);
}

/* The canaries begin 64 to 127 bytes before the data and end 64 behind, or where the mapping does. */
static unsigned char *canary_begin(const struct kf_array *a)
{
    const size_t at = (size_t)(a->data - a->map);

    return at < 2 * CANARY_BYTES ? a->map : a->data - CANARY_BYTES;
}

static unsigned char *canary_end(const struct kf_array *a)
{
    unsigned char *const data_end = a->data + a->data_bytes;

    return (size_t)(a->map + a->map_bytes - data_end) < CANARY_BYTES ? a->map + a->map_bytes : data_end + CANARY_BYTES;
}

static void *place(struct kf_array *a, size_t at, size_t bytes)
{
    assert_true(at >= CANARY_BYTES && at + bytes <= a->map_bytes);
    a->data = a->map + at;
    a->data_bytes = bytes;
    memset(canary_begin(a), CANARY, (size_t)(canary_end(a) - canary_begin(a)));
    return a->data;
}

void *kf_array_place(struct kf_array *a, size_t elem_bytes, size_t elems, size_t shift)
{
    return kf_array_place_bytes(a, elem_bytes * elems, elem_bytes * shift);
}

void *kf_array_place_at_end(struct kf_array *a, size_t elem_bytes, size_t elems)
{
    return kf_array_place_bytes_at_end(a, elem_bytes * elems, elem_bytes);
}

void *kf_array_place_bytes(struct kf_array *a, size_t bytes, size_t shift)
{
    return place(a, CANARY_BYTES + shift % 64, bytes);
}

void *kf_array_place_bytes_at_end(struct kf_array *a, size_t bytes, size_t align)
{
    return place(a, (a->map_bytes - bytes) / align * align, bytes);
}

void *kf_array_copy(struct kf_array *b, const struct kf_array *a)
{
    assert_int_equal(b->map_bytes, a->map_bytes);
    place(b, (size_t)(a->data - a->map), a->data_bytes);
    memcpy(b->data, a->data, a->data_bytes);
    return b->data;
}

static void assert_canaries(const struct kf_array *a, const char *what)
{
    for (const unsigned char *p = canary_begin(a); p < canary_end(a); p++) {
        if (p == a->data)
            p += a->data_bytes;
        if (p < canary_end(a) && *p != CANARY)
            fail_msg("%s: byte %td beside %zu bytes of data was written", what, p - a->data, a->data_bytes);
    }
}

void kf_assert_same(const struct kf_array *got, const struct kf_array *want, const char *what)
{
    assert_int_equal(got->data_bytes, want->data_bytes);
    assert_canaries(got, what);
    assert_canaries(want, what);
    if (memcmp(got->data, want->data, got->data_bytes) == 0)
        return;
    for (size_t i = 0; i < got->data_bytes; i++) {
        if (got->data[i] != want->data[i])
            fail_msg("%s: byte %zu of %zu is %02x, not %02x", what, i, got->data_bytes, got->data[i], want->data[i]);
    }
}

uint32_t kf_bits(uint64_t seed, uint64_t index)
{
    uint64_t z = (seed * 0xd1342543de82ef95u) + (index + 1) * 0x9e3779b97f4a7c15u; /* splitmix64 */

    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return (uint32_t)((z ^ z >> 31) >> 32);
}

float kf_uniform(uint64_t seed, uint64_t index)
{
    return (float)(kf_bits(seed, index) >> 8) * 0x1p-23f - 1.0f;
}

const uint32_t kf_special[KF_SPECIAL_COUNT] = {
    0x00000000u, 0x80000000u,                                        /* zeros */
    0x00000001u, 0x80000001u, 0x007fffffu, 0x80012345u,              /* subnormals */
    0x00800000u, 0x80800000u,                                        /* smallest normal */
    0x3f800000u, 0xbf800000u, 0x3f808000u, 0xbf818000u,              /* 1; bf16 ties above an even and an odd neighbour */
    0x3f807fffu, 0x3f808001u,                                        /* beside a tie */
    0x3f801000u, 0xbf803000u,                                        /* fp16 ties */
    0x33000000u, 0x33000001u, 0xb3c00000u, 0x387fe000u, 0x387ff000u, /* fp16: half of its least, ties among subnormals */
    0x477fe000u, 0x477fefffu, 0xc77ff000u,                           /* fp16: largest, below and at the overflow */
    0x7f7f7fffu, 0x7f7f8000u, 0xff7fffffu, 0x7f000000u,              /* bf16: below and at the overflow; largest */
    0x7f800000u, 0xff800000u,                                        /* infinities */
    0x7fc00000u, 0xffc12345u, 0x7f800001u, 0xffffffffu,              /* NaNs: canonical, quiet, signalling, all ones */
};

/* Sixteens in turn: ordinary values; every fourth of any kind; every fourth of any kind below 2^60, so that a result is
 * rarely infinite or NaN and wide kernels keep to their common path among subnormals and ties. */
static float mixed(uint64_t seed, uint64_t index, float scale)
{
    const uint32_t choice = kf_bits(seed ^ 0x5eedu, index), turn = (uint32_t)(index / 16 % 3);
    const uint32_t bits = (choice >> 29) == 0 ? kf_special[choice % KF_SPECIAL_COUNT] : kf_bits(seed ^ 0xa11u, index);

    if (turn == 0 || (choice >> 29) > 1 || (turn == 2 && (bits & ST_F32_MAG) >= st_f32_bits(0x1p60f)))
        return kf_uniform(seed, index) * scale;
    return st_f32_from_bits(bits);
}

/* Truncates for the 16-bit formats, so that payloads and every pattern occur. */
void kf_fill(void *out, strata_dtype dtype, size_t elems, uint64_t seed, float scale)
{
    for (size_t i = 0; i < elems; i++) {
        const float x = mixed(seed, i, scale);

        if (dtype == STRATA_F32)
            ((float *)out)[i] = x;
        else if (dtype == STRATA_BF16 || kf_bits(seed ^ 0xf16u, i) % 4 == 0)
            ((uint16_t *)out)[i] = (uint16_t)(st_f32_bits(x) >> 16);
        else
            ((uint16_t *)out)[i] = st_f32_to_f16(x);
    }
}

const struct st_kernels *kf_scalar(void)
{
    const struct st_kernels *table = st_kernels_pick("scalar");

    assert_non_null(table);
    return table;
}

const struct st_kernels *kf_variant(size_t i)
{
    const struct st_kernels *table = st_kernels_usable(i);

    return table == kf_scalar() ? NULL : table; /* scalar is the last */
}
