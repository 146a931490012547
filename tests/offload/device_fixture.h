/* tests/offload/device_fixture.h - a cpu device with tensors in its arena, and fp64 views of them.
 *
 * Compiled with DF_DEVICE, another device's name: that one behind a mirror (device_mirror.h), for the same tests. */
#ifndef TESTS_OFFLOAD_DEVICE_FIXTURE_H
#define TESTS_OFFLOAD_DEVICE_FIXTURE_H

#include "core/workers.h"
#include "offload/device.h"

#ifndef DF_DEVICE
#define DF_DEVICE "cpu"
#endif

struct df_device {
    struct st_workers *workers;
    struct st_device *dev;
    const struct st_device_ops *ops;
    uint64_t used, bytes;
};

struct df_opts {
    uint32_t workers;    /* 0: 2 */
    const char *kernels; /* NULL: best */
    bool widen_bf16;
    uint64_t arena_bytes; /* 0: 16 MiB */
};

void df_open(struct df_device *d, const struct df_opts *opts);
void df_close(struct df_device *d);
/** A paced device of 16 MiB on this machine, without workers; close it by its own ops. */
struct df_device df_open_paced(const struct st_machine *machine);
/** Run a check with a fresh device for fp32, bf16 and fp16. */
void df_each_dtype(void (*check)(struct df_device *d, strata_dtype dt));
/** The next `elems` elements of the arena, 64-byte aligned, zeroed. */
void *df_alloc(struct df_device *d, uint64_t elems, strata_dtype dt);
/** Allocate and fill with values uniform in [-scale, scale) plus offset, a function of the seed. */
void *df_random(struct df_device *d, uint64_t elems, strata_dtype dt, uint64_t seed, double scale, double offset);
/** Element i as a double. */
double df_at(const void *p, uint64_t i, strata_dtype dt);
/** A copy as doubles; free() it. */
double *df_doubles(const void *p, uint64_t elems, strata_dtype dt);
/** 64 bits that are a function of seed and index. */
uint64_t df_bits(uint64_t seed, uint64_t index);

/** Fails unless |got[i] - want[i]| <= tolerance * max |want| for every i, where `got` has dtype dt. */
void df_assert_close(const char *what, const void *got, strata_dtype dt, const double *want, uint64_t elems, double tolerance);
/** What fp32, bf16 and fp16 arithmetic may lose, relative to the largest value of the tensor. */
double df_tolerance(strata_dtype dt);

#define DF_STEP 1e-5 /* of a central difference */
/** Central difference of loss(of) along the value at `at`, which loss reads and which is as before afterwards. */
double df_slope(double (*loss)(void *of), void *of, double *at);

#define df_ok(call) assert_int_equal((call), STRATA_OK)

#endif
