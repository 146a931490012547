/* tests/offload/device_fixture.h - a cpu device with tensors in its arena; their values, device_values.h.
 *
 * Compiled with DF_DEVICE, another device's name: that one behind a mirror (device_mirror.h), for the same tests.  With DF_TIMED:
 * each op is called through a timed device (offload/device/device_timed.h). */
#ifndef TESTS_OFFLOAD_DEVICE_FIXTURE_H
#define TESTS_OFFLOAD_DEVICE_FIXTURE_H

#include "core/system/workers.h"
#include "offload/device/device_timed.h"
#include "offload/device/tensor_ops.h"
#include "tests/offload/device_values.h"

#ifndef DF_DEVICE
#define DF_DEVICE "cpu"
#endif

struct df_device {
    struct st_workers *workers;
    struct st_device *dev;
    const struct st_device_ops *ops;
    const struct st_tensor_ops *tensors;
    struct st_op_times *times; /* NULL: not timed */
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
/** A device, timed if there are times. */
strata_status df_open_timed(struct st_device **out, struct st_op_times *times, const struct st_device_ops *ops,
                            const struct st_device_opts *opts);
/** A paced device of 16 MiB on this machine, without workers; close it by its own ops. */
struct df_device df_open_paced(const struct st_machine *machine);
/** Run a check with a fresh device for fp32, bf16 and fp16. */
void df_each_dtype(void (*check)(struct df_device *d, strata_dtype dt));
/** The next `elems` elements of the arena, 64-byte aligned, zeroed. */
void *df_alloc(struct df_device *d, uint64_t elems, strata_dtype dt);
/** Allocate and fill with values uniform in [-scale, scale) plus offset, a function of the seed. */
void *df_random(struct df_device *d, uint64_t elems, strata_dtype dt, uint64_t seed, double scale, double offset);

#define df_ok(call) assert_int_equal((call), STRATA_OK)

#endif
