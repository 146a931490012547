/* model/finite.c - checks that weights are finite.  A model with NaN or infinity is not written. */
#include "core/base/error.h"
#include "model/layout.h"
#include <inttypes.h>

/* Counts values whose exponent bits are all ones: infinity or NaN. */
static uint64_t count_16(const uint16_t *bits, uint64_t count, uint16_t exponent)
{
    uint64_t bad = 0;

    for (uint64_t i = 0; i < count; i++)
        bad += (bits[i] & exponent) == exponent;
    return bad;
}

static uint64_t count_32(const uint32_t *bits, uint64_t count)
{
    uint64_t bad = 0;

    for (uint64_t i = 0; i < count; i++)
        bad += (bits[i] & 0x7f800000u) == 0x7f800000u;
    return bad;
}

static uint64_t count_bad(const void *weight, uint64_t first, uint64_t count, strata_dtype dtype)
{
    if (dtype == STRATA_F32)
        return count_32((const uint32_t *)weight + first, count);
    return count_16((const uint16_t *)weight + first, count, dtype == STRATA_BF16 ? 0x7f80u : 0x7c00u);
}

strata_status st_model_check_finite(const struct st_model *m, uint32_t page, uint64_t first, uint64_t count, const void *weight)
{
    struct st_piece piece;

    for (uint32_t i = 0; st_model_piece(m, page, first, count, i, &piece); i++) {
        const uint64_t bad = piece.count > 0 ? count_bad(weight, piece.range_first, piece.count, m->workload.dtype) : 0;

        if (bad > 0)
            return st_error(STRATA_E_NUMERICS,
                            "tensor %s holds %" PRIu64
                            " %s not finite: the run has diverged, or the source model had them already",
                            piece.tensor->name, bad, bad == 1 ? "value that is" : "values that are");
    }
    return STRATA_OK;
}
