/* tests/engine/agree.c - see agree.h. */
#include "agree.h"
#include "tests/common/test.h"

#include <string.h>

struct rig_result rig_agree(const struct rig_cell *cells, size_t count, uint32_t steps, const char *nvme_dir)
{
    struct rig_result first = {0};

    for (size_t i = 0; i < count; i++) {
        struct rig_result r;
        char text[RIG_TEXT];

        if (rig_run(&r, &cells[i], steps, nvme_dir) != STRATA_OK || !r.planned)
            fail_msg("%s: %s", rig_cell_text(text, &cells[i]), strata_last_error());
        assert_memory_equal(&r.planned_bytes, &r.moved_bytes, sizeof(r.moved_bytes));
        if (i == 0)
            first = r;
        if (memcmp(first.losses, r.losses, sizeof(r.losses)) != 0 || strcmp(first.weights, r.weights) != 0 ||
            strcmp(first.state, r.state) != 0)
            fail_msg("other bits: %s", rig_cell_text(text, &cells[i]));
    }
    return first;
}

/* All on the device; state on NVMe with the least memory; all on NVMe, in slots, and activations; state in memory, another
 * schedule and kernels.
 */
static const struct rig_cell places[AGREE_PLACES] = {
    {.device = RIG_ALL,
     .host = RIG_ALL,
     .optimizer = STRATA_TIER_DEVICE,
     .param = STRATA_TIER_DEVICE,
     .update = ST_UPDATE_SERIAL,
     .io_method = "fake",
     .isa = "scalar",
     .threads = 1},
    {.device = RIG_SMALLEST,
     .host = RIG_SMALLEST,
     .optimizer = STRATA_TIER_NVME,
     .param = STRATA_TIER_HOST,
     .update = ST_UPDATE_GATED,
     .io_method = "auto",
     .isa = "auto",
     .threads = 2},
    {.device = RIG_MIDWAY,
     .host = RIG_SMALLEST,
     .optimizer = STRATA_TIER_NVME,
     .param = STRATA_TIER_NVME,
     .update = ST_UPDATE_GATED,
     .io_method = "threads",
     .isa = "auto",
     .threads = 2,
     .cache = ST_AUTO_BYTES,
     .flush_after = 2},
    {.device = RIG_SMALLEST,
     .host = RIG_ALL,
     .optimizer = STRATA_TIER_HOST,
     .param = STRATA_TIER_HOST,
     .update = ST_UPDATE_SERIAL,
     .io_method = "fake",
     .isa = "avx2",
     .threads = 2,
     .accumulation = ST_ACCUMULATE_HORIZONTAL},
};

struct rig_cell agree_place(size_t place)
{
    struct rig_cell cell = places[place];

    cell.grad_accum = 2;
    cell.act_tier = place == 2 ? STRATA_TIER_NVME : STRATA_TIER_COUNT;
    if (st_kernels_pick(cell.isa) == NULL)
        cell.isa = "scalar";
    return cell;
}
