/* test_cuda_ranks.c - several ranks train one model on the cuda device over the emulator, their device's exchanges by the
 * stand-in of NCCL, or by threads: the bits of one rank on that device. */
#include "core/base/error.h"
#include "offload/comm/comm_nccl.h"
#include "tests/common/sample.h"
#include "tests/common/scratch.h"
#include "tests/common/test.h"
#include "tests/cuda/emulator/twin.h"
#include "tests/engine/layouts.h"

static strata_status open_nccl(struct st_comm **out, struct st_comm *host)
{
    return st_comm_nccl_open(out, host, 0);
}

static void check(struct rig_cell model, bool nccl, uint32_t first, uint32_t step)
{
    model.cuda = true;
    if (!sample_is_all())
        model.grad_accum = 4; /* one of each leaf */
    model.open_device_comm = nccl ? open_nccl : NULL;
    layouts_check(&model, first, step);
}

/* A lazy stream runs only what somebody waits for: an exchange that began before the device had come to its memory would send
 * what was there before.  In the sample, two ranks whose blocks are on the device in slices. */
TEST(over_nccl)
{
    twin_be_lazy(1);
    check(layouts_model(STRATA_BF16, false), true, sample_is_all() ? 0 : 8, sample_is_all() ? 1 : 100);
    twin_reset();
}

TEST(over_nccl_untied)
{
    if (!sample_is_all())
        skip();
    check(layouts_model(STRATA_F32, true), true, 0, 1);
}

/* What one rank rounds on its device another widens on its own. */
TEST(rounded_over_nccl)
{
    struct rig_cell model = layouts_model(STRATA_BF16, false);

    if (!sample_is_all())
        skip();
    model.cuda = true;
    model.open_device_comm = open_nccl;
    twin_be_lazy(1);
    layouts_check_rounded(&model, UINT32_MAX, UINT32_MAX);
    twin_reset();
}

TEST(over_threads)
{
    if (!sample_is_all())
        skip();
    check(layouts_model(STRATA_F16, false), false, 0, 1);
}

TEST_GROUP(scratch_create, scratch_remove);
