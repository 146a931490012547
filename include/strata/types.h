/* strata/types.h - the few types that every interface shares: dtypes, tiers, version. */
#ifndef STRATA_TYPES_H
#define STRATA_TYPES_H

#include <stddef.h>
#include <stdint.h>

#define STRATA_VERSION_MAJOR  0
#define STRATA_VERSION_MINOR  1
#define STRATA_VERSION_PATCH  0
#define STRATA_VERSION_STRING "0.1.0"

/** An initializer of a public struct that begins with its size: all else is 0.  Used by the STRATA_..._INIT of each. */
#ifdef __cplusplus
#define STRATA_INIT(type, size_member)                                                                                           \
    [] {                                                                                                                         \
        type all_zero = type();                                                                                                  \
        all_zero.size_member = sizeof(type);                                                                                     \
        return all_zero;                                                                                                         \
    }()
#else
#define STRATA_INIT(type, size_member)                                                                                           \
    {                                                                                                                            \
        .size_member = sizeof(struct type)                                                                                       \
    }
#endif

/** Element types.  bf16 and fp16 are held as uint16_t. */
typedef enum strata_dtype {
    STRATA_DTYPE_INVALID = 0,
    STRATA_F32 = 1,
    STRATA_BF16 = 2,
    STRATA_F16 = 3,
    STRATA_NF4 = 4, /**< only ever stored: weights of 4 bits, 64 of which have one scale */
} strata_dtype;

/** Target of a row that is no token, but fills a sequence up: not counted, as any below 0, nor in an auxiliary loss. */
#define STRATA_TARGET_PADDING INT32_MIN

/** "fp32", "bf16", "fp16", "nf4". */
static inline const char *strata_dtype_name(strata_dtype dtype)
{
    switch (dtype) {
    case STRATA_F32:
        return "fp32";
    case STRATA_BF16:
        return "bf16";
    case STRATA_F16:
        return "fp16";
    case STRATA_NF4:
        return "nf4";
    case STRATA_DTYPE_INVALID:
        break;
    }
    return "no dtype";
}

/** Where data is stored, fastest first. */
typedef enum strata_tier {
    STRATA_TIER_DEVICE = 0, /**< GPU memory; on the cpu device a capped arena in RAM */
    STRATA_TIER_HOST = 1,   /**< pinned host memory */
    STRATA_TIER_NVME = 2,   /**< swap files */
    STRATA_TIER_COUNT = 3,
} strata_tier;

/** Lanes of a step, each a queue of one resource; strata_lane_name() names them. */
enum strata_lane {
    STRATA_LANE_COMPUTE,
    STRATA_LANE_UPLOAD,
    STRATA_LANE_DOWNLOAD,
    STRATA_LANE_UPDATE,        /**< updates on the host */
    STRATA_LANE_UPDATE_DEVICE, /**< updates on the device, in parallel with compute */
    STRATA_LANE_READ_STATE,    /**< from here on I/O, */
    STRATA_LANE_READ_WEIGHT,
    STRATA_LANE_READ_ACTIVATION,
    STRATA_LANE_WRITE, /**< up to here */
    STRATA_LANE_COMM,
    STRATA_LANE_CALLER, /**< layers that the program around the engine computes */
    STRATA_LANE_COUNT
};

/** Bytes of one element; 0 for an invalid dtype and for nf4, which has no whole bytes per element. */
static inline size_t strata_dtype_bytes(strata_dtype dtype)
{
    return dtype == STRATA_F32 ? 4 : dtype == STRATA_BF16 || dtype == STRATA_F16 ? 2 : 0;
}

#endif
