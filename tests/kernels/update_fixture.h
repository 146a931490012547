/* tests/kernels/update_fixture.h - arrays, contents and coefficients for the update kernels: every rule, layout and format of
 * moments. */
#ifndef TESTS_KERNELS_UPDATE_FIXTURE_H
#define TESTS_KERNELS_UPDATE_FIXTURE_H

#include "tests/kernels/kernel_fixture.h"

#define UF_ELEMS_MAX 1336336u /* 34^4: every combination of special values */
#define UF_SHIFTS    32u      /* elements: every alignment modulo 64 bytes that a plane may have */

enum uf_plane { UF_WEIGHT, UF_LOW_HALF, UF_MASTER, UF_COPY, UF_MOMENT1, UF_MOMENT2, UF_GRAD, UF_PLANE_COUNT };
enum uf_layout { UF_SPLIT, UF_FULL, UF_FULL_BF16, UF_FULL_F16, UF_LAYOUT_COUNT };
enum uf_rule { UF_ADAM, UF_ADAGRAD, UF_LION, UF_SGD, UF_NESTEROV, UF_RULE_COUNT };

extern const char *const uf_rule_names[UF_RULE_COUNT];
extern const strata_dtype uf_grad_dtypes[3];

/* Hyper-parameters.  weight_decay: decoupled. */
struct uf_recipe {
    enum uf_rule rule;
    double lr, beta1, beta2, dampening, eps, weight_decay, l2, grad_scale;
};

/** Coefficients as the caller makes them: all in double, rounded once.  rounding_key: 0. */
struct st_update_coef uf_coef(const struct uf_recipe *r, unsigned step);
/** Coefficients for a comparison, a function of `choice`: bit 0 switches L2 decay on, bit 1 the decoupled one. */
struct st_update_coef uf_any_coef(enum uf_rule rule, size_t choice);

/* One call of a kernel. */
struct uf_case {
    enum uf_rule rule;
    enum uf_layout layout;
    enum st_moment_format format;
    strata_dtype grad_dtype;
    size_t elems;
    uint64_t position;
    struct st_update_coef coef; /* of `rule` */
};

struct uf_arrays {
    struct kf_array plane[UF_PLANE_COUNT][2]; /* [0] of the table under test, [1] of the scalar one */
    struct kf_array source[UF_PLANE_COUNT];   /* what both begin with */
};

/** Group setup and teardown: *state is a struct uf_arrays. */
int uf_create(void **state);
int uf_destroy(void **state);

/** Place the source's planes, each at its own alignment as `shift` goes from 0 to UF_SHIFTS. */
void uf_place(struct uf_arrays *a, const struct uf_case *c, size_t shift);
/** Place them before a page that faults. */
void uf_place_at_end(struct uf_arrays *a, const struct uf_case *c);
/** Fill the source with a function of the seed: kf_fill() for fp32 moments, with sums of squares mostly not negative; else
 *  uf_fill_blocks(). */
void uf_fill(struct uf_arrays *a, const struct uf_case *c, uint64_t seed);
/** Contents by blocks of moments, each of another kind: ordinary, any bits, all zero, tiny, with masters that overflow,
 *  with one infinity or NaN, of many magnitudes. */
void uf_fill_blocks(struct uf_arrays *a, const struct uf_case *c, uint64_t seed);
/** Copy the source, placement and all. */
void uf_take_source(struct uf_arrays *a, size_t side);

/** The planes of a side.  Moments of elements from `at` on: at a multiple of ST_NORM_BLOCK unless they are fp32. */
void *uf_data(struct uf_arrays *a, enum uf_plane plane, size_t side);
struct st_moments uf_moments(struct uf_arrays *a, const struct uf_case *c, size_t side, size_t at);

/** Run `elems` elements from `at` on; returns the kernel's count. */
uint64_t uf_run_part(const struct st_kernels *k, struct uf_arrays *a, size_t side, const struct uf_case *c, size_t at,
                     size_t elems);
uint64_t uf_run(const struct st_kernels *k, struct uf_arrays *a, size_t side, const struct uf_case *c);

/** Fails, naming table and case, unless the planes of both sides are equal and their surroundings untouched. */
void uf_assert_same(struct uf_arrays *a, const char *table, const struct uf_case *c);
/** From the source: every table's result and count, by both ways of fetching ahead, against scalar's. */
void uf_compare(struct uf_arrays *a, const struct uf_case *c);
/** By every table, a case of UF_SPLIT and the same of UF_FULL_BF16 from the same values, a function of the seed: same masters,
 *  moments and counts; the copy is the weight. */
void uf_compare_split_and_full(struct uf_arrays *a, const struct uf_case *split, uint64_t seed);

/** Fails on a NaN that is not 0x7fc00000. */
void uf_assert_one_nan(const float *values, size_t elems);

#endif
