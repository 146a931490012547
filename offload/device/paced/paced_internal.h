/* offload/device/paced/paced_internal.h - shared by the files of the paced device; no other file includes it. */
#ifndef OFFLOAD_DEVICE_PACED_PACED_INTERNAL_H
#define OFFLOAD_DEVICE_PACED_PACED_INTERNAL_H

#include "core/system/arena.h"
#include "offload/device/paced/device_paced.h"
#include "offload/device/paced/paced_queue.h"

#define ST_PACED_PATTERNS      16u /* blocks of ST_NORM_BLOCK gradients, from which all gradients are made */
#define ST_PACED_PATTERN_ELEMS (ST_PACED_PATTERNS * ST_NORM_BLOCK)

struct paced_device {
    struct st_device base; /* first member: st_device * is paced_device * */
    struct st_arena arena;
    const struct st_kernels *kernels; /* borrowed */
    struct st_machine machine;
    float pattern_f32[ST_PACED_PATTERN_ELEMS]; /* constant after open, like the next two members */
    uint16_t pattern_bf16[ST_PACED_PATTERN_ELEMS], pattern_f16[ST_PACED_PATTERN_ELEMS];
    struct paced_processor processors[ST_QUEUE_COUNT]; /* each queue's, but that updates run on the one of compute */
    struct paced_queue queues[ST_QUEUE_COUNT];
};

static inline struct paced_device *paced_of(struct st_device *dev)
{
    return (struct paced_device *)(void *)dev;
}

/** Pattern block `pick` % ST_PACED_PATTERNS: ST_NORM_BLOCK values of `dt`. */
static inline const void *st_paced_pattern(const struct paced_device *dev, uint64_t pick, strata_dtype dt)
{
    const uint64_t first = pick % ST_PACED_PATTERNS * ST_NORM_BLOCK;

    return dt == STRATA_F32    ? (const void *)(dev->pattern_f32 + first)
           : dt == STRATA_BF16 ? (const void *)(dev->pattern_bf16 + first)
                               : (const void *)(dev->pattern_f16 + first);
}

#endif
