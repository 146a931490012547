/* tests/kernels/kernel_fixture.h - arrays with canaries, awkward values and the list of tables to compare. */
#ifndef TESTS_KERNELS_KERNEL_FIXTURE_H
#define TESTS_KERNELS_KERNEL_FIXTURE_H

#include "kernels/kernels.h"

/* An array for a kernel under test.  Memory is one mapping before a page that faults. */
struct kf_array {
    unsigned char *map;
    size_t map_bytes;    /* without the faulting page */
    unsigned char *data; /* inside map, canaries on both sides */
    size_t data_bytes;
};

/** @param bytes_max  the largest that will be placed. */
void kf_array_create(struct kf_array *a, size_t bytes_max);
void kf_array_destroy(struct kf_array *a);
/** `elems` elements of elem_bytes, `shift` elements (modulo 64 bytes) past a multiple of 64, canaries on both sides. */
void *kf_array_place(struct kf_array *a, size_t elem_bytes, size_t elems, size_t shift);
/** The same, canaries before and a faulting byte behind. */
void *kf_array_place_at_end(struct kf_array *a, size_t elem_bytes, size_t elems);
/** The same for `bytes` bytes: `shift` bytes (modulo 64) past a multiple of 64. */
void *kf_array_place_bytes(struct kf_array *a, size_t bytes, size_t shift);
/** Before a faulting page, with canaries between where `align` wants it. */
void *kf_array_place_bytes_at_end(struct kf_array *a, size_t bytes, size_t align);
/** Place b as a is placed, with a's data. */
void *kf_array_copy(struct kf_array *b, const struct kf_array *a);
/** Fails the test if the data differ, naming `what`, or a canary of either was touched. */
void kf_assert_same(const struct kf_array *got, const struct kf_array *want, const char *what);

/** 32 bits that are a function of seed and index. */
uint32_t kf_bits(uint64_t seed, uint64_t index);
/** In [-1, 1), a multiple of 2^-23. */
float kf_uniform(uint64_t seed, uint64_t index);

/* fp32 patterns: zeros, subnormals, ties and edges of every format, infinities, NaNs with payloads; both signs. */
#define KF_SPECIAL_COUNT       34u
#define KF_SPECIAL_SMALL_COUNT 24u /* the first ones: below 2^17, with which results are mostly finite */
extern const uint32_t kf_special[KF_SPECIAL_COUNT];

/** Fill with a function of the seed: elements 0..15 of every 48 uniform times `scale`; among the next 16 specials and random
 *  bits, among the last 16 only those below 2^60. */
void kf_fill(void *out, strata_dtype dtype, size_t elems, uint64_t seed, float scale);

/** Table i of those that must equal the scalar one; NULL past the end. */
const struct st_kernels *kf_variant(size_t i);
const struct st_kernels *kf_scalar(void);

#endif
