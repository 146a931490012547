/* nvme/swap/swap_space.c - whether directories have room for their parts of a swap; directories on one file system share its free
 * bytes. */
#include "nvme/swap/swap_internal.h"

#include "core/base/error.h"
#include "core/base/fault.h"
#include "core/base/size.h"

#include <errno.h>
#include <inttypes.h>
#include <stddef.h>
#include <sys/stat.h>

struct space {
    uint64_t free_bytes;
    dev_t device;
};

static strata_status look(struct space *space, const char *dir)
{
    struct stat info;
    strata_status st = st_swap_free_bytes(dir, &space->free_bytes);

    if (st != STRATA_OK)
        return st;
    if (st_fault_refuses("nvme.stat") || stat(dir, &info) != 0)
        return st_error_errno(errno, "%s: cannot look at its file system", dir);
    space->device = info.st_dev;
    return STRATA_OK;
}

static bool is_shared(const struct space *a, const struct space *b)
{
    return a->device == b->device;
}

uint64_t st_swap_volume_bytes(const uint64_t bytes[ST_SPACE_COUNT], uint32_t volume)
{
    return bytes[volume < ST_SPACE_SET ? volume : ST_SPACE_SET];
}

strata_status st_swap_check_room(const char *const *dirs, const struct st_stripe *stripe, const uint64_t bytes[ST_SPACE_COUNT],
                                 uint32_t volume_count)
{
    struct space spaces[ST_SWAP_DIRS_MAX];
    char needed[24], there[24];

    for (uint32_t d = 0; d < stripe->dir_count; d++) {
        const strata_status st = look(&spaces[d], dirs[d]);
        uint64_t wanted = 0;

        if (st != STRATA_OK)
            return st;
        for (uint32_t i = 0; i <= d; i++)
            for (uint32_t v = 0; v < volume_count && is_shared(&spaces[i], &spaces[d]); v++)
                wanted += st_stripe_file_bytes(stripe, i, st_swap_volume_bytes(bytes, v));
        if (wanted > spaces[d].free_bytes)
            return st_error_remedy(st_error(STRATA_E_NOSPC, "%s: %s of swap space needed, %s free", dirs[d],
                                            st_size_text(needed, wanted), st_size_text(there, spaces[d].free_bytes)),
                                   "strata.nvme", "free space, or name another directory with strata.nvme");
    }
    return STRATA_OK;
}

strata_status st_swap_room(const char *const *dirs, uint32_t dir_count, const double *dir_rates, uint32_t block_bytes,
                           uint64_t *out, uint32_t *tightest)
{
    const uint64_t unit = block_bytes > 0 ? block_bytes : ST_SWAP_BLOCK_DEFAULT;
    struct space spaces[ST_SWAP_DIRS_MAX];
    uint64_t patterns = UINT64_MAX;
    struct st_stripe stripe;
    uint32_t tight = 0;
    strata_status st;

    if (dir_count == 0 || dir_count > ST_SWAP_DIRS_MAX)
        return st_error(STRATA_E_INVAL, "%" PRIu32 " swap directories: one to %u are possible", dir_count, ST_SWAP_DIRS_MAX);
    if (tightest != NULL)
        *tightest = 0;
    if (dir_count == 1)
        return st_swap_free_bytes(dirs[0], out);
    for (uint32_t d = 0; d < dir_count; d++)
        if ((st = look(&spaces[d], dirs[d])) != STRATA_OK)
            return st;
    st_stripe_init(&stripe, dir_count, dir_rates, (uint32_t)unit);
    for (uint32_t d = 0; d < dir_count; d++) {
        uint64_t slots = 0;

        for (uint32_t i = 0; i < dir_count; i++)
            slots += is_shared(&spaces[i], &spaces[d]) ? stripe.weight[i] : 0;
        if (spaces[d].free_bytes / (slots * unit) < patterns) {
            patterns = spaces[d].free_bytes / (slots * unit);
            tight = d;
        }
    }
    if (tightest != NULL)
        *tightest = tight;
    *out = patterns * stripe.slot_count * unit;
    return STRATA_OK;
}
