/* bench/roofs/layouts.h - the optimizer states that a bench uses, plane by plane, and the bytes that a pass over them moves.
 *
 * Bytes that must cross the memory bus once per parameter, reads + writes (8-bit moments: 1/64 more each way for the scales of
 * each moment):
 *   split        weight 2, low half 2, moments 8, gradient 2 (bf16) read; all but the gradient written      14 + 12 = 26
 *   full         master 4, moments 8, gradient 2 (bf16) read; master, moments and a bf16 copy written       14 + 14 = 28
 *   fp32         master 4, moments 8, gradient 4 read; master and moments written                           16 + 12 = 28
 *   split_bf16m  moments 4                  10 + 8 = 18      full_bf16m  10 + 10 = 20
 *   split_8bit   moments 2                  8 + 6 = 14       full_8bit   8 + 8 = 16
 * A rule with one moment (Adagrad, Lion, SGD):
 *   split  10 + 8 = 18      full  10 + 10 = 20 */
#ifndef BENCH_ROOFS_LAYOUTS_H
#define BENCH_ROOFS_LAYOUTS_H

#include "kernels/kernels.h"
#include "strata/status.h"

enum bench_plane {
    BENCH_WEIGHT, /* bf16; with low half: the split master */
    BENCH_LOW_HALF,
    BENCH_MASTER, /* fp32 */
    BENCH_MOMENT1,
    BENCH_MOMENT2,
    BENCH_GRAD,
    BENCH_COPY, /* bf16, of a full master */
    BENCH_PLANE_COUNT
};

/* The first are Adam's. */
enum bench_layout {
    BENCH_SPLIT,
    BENCH_FULL,
    BENCH_FP32,
    BENCH_SPLIT_BF16M,
    BENCH_FULL_BF16M,
    BENCH_SPLIT_8BIT,
    BENCH_FULL_8BIT,
    BENCH_ADAGRAD,
    BENCH_ADAGRAD_FULL,
    BENCH_LION,
    BENCH_LION_FULL,
    BENCH_SGD,
    BENCH_SGD_FULL,
    BENCH_LAYOUT_COUNT
};

enum bench_master { BENCH_MASTER_SPLIT, BENCH_MASTER_COPIED, BENCH_MASTER_ALONE };

struct bench_layout_info {
    const char *name;
    enum st_rule rule;
    enum bench_master master;
    enum st_moment_format moments;
    strata_dtype grad_dtype;
};

/* Defined in the header so that the loops of each instruction set can fold the constants. */
static const struct bench_layout_info bench_layouts[BENCH_LAYOUT_COUNT] = {
    [BENCH_SPLIT] = {"split", ST_RULE_ADAM, BENCH_MASTER_SPLIT, ST_MOMENTS_F32, STRATA_BF16},
    [BENCH_FULL] = {"full", ST_RULE_ADAM, BENCH_MASTER_COPIED, ST_MOMENTS_F32, STRATA_BF16},
    [BENCH_FP32] = {"fp32", ST_RULE_ADAM, BENCH_MASTER_ALONE, ST_MOMENTS_F32, STRATA_F32},
    [BENCH_SPLIT_BF16M] = {"split_bf16m", ST_RULE_ADAM, BENCH_MASTER_SPLIT, ST_MOMENTS_BF16, STRATA_BF16},
    [BENCH_FULL_BF16M] = {"full_bf16m", ST_RULE_ADAM, BENCH_MASTER_COPIED, ST_MOMENTS_BF16, STRATA_BF16},
    [BENCH_SPLIT_8BIT] = {"split_8bit", ST_RULE_ADAM, BENCH_MASTER_SPLIT, ST_MOMENTS_8BIT, STRATA_BF16},
    [BENCH_FULL_8BIT] = {"full_8bit", ST_RULE_ADAM, BENCH_MASTER_COPIED, ST_MOMENTS_8BIT, STRATA_BF16},
    [BENCH_ADAGRAD] = {"adagrad", ST_RULE_ADAGRAD, BENCH_MASTER_SPLIT, ST_MOMENTS_F32, STRATA_BF16},
    [BENCH_ADAGRAD_FULL] = {"adagrad_full", ST_RULE_ADAGRAD, BENCH_MASTER_COPIED, ST_MOMENTS_F32, STRATA_BF16},
    [BENCH_LION] = {"lion", ST_RULE_LION, BENCH_MASTER_SPLIT, ST_MOMENTS_F32, STRATA_BF16},
    [BENCH_LION_FULL] = {"lion_full", ST_RULE_LION, BENCH_MASTER_COPIED, ST_MOMENTS_F32, STRATA_BF16},
    [BENCH_SGD] = {"sgd", ST_RULE_SGD, BENCH_MASTER_SPLIT, ST_MOMENTS_F32, STRATA_BF16},
    [BENCH_SGD_FULL] = {"sgd_full", ST_RULE_SGD, BENCH_MASTER_COPIED, ST_MOMENTS_F32, STRATA_BF16},
};

/** Bytes of a plane of `params` parameters; 0: the layout has none. */
uint64_t bench_plane_bytes(enum bench_layout layout, enum bench_plane plane, uint64_t params);

struct bench_traffic {
    uint64_t read, written;
};
/** Bytes that one pass over all planes of the layout reads and writes. */
struct bench_traffic bench_layout_traffic(enum bench_layout layout, uint64_t params);

/** Whether a step of this rule divides and takes a square root for each element. */
bool bench_rule_divides(enum st_rule rule);

/** Mark the layouts that `words` name, each word one name or several separated by commas; no words: all. E_INVAL: there is no
 *  such layout; the sentence lists the known ones. */
strata_status bench_layouts_choose(bool chosen[BENCH_LAYOUT_COUNT], const char *const *words, uint32_t count);

#endif
