/* link_roof_none.c - the roof of the links in a build without CUDA, which has none. */
#include "core/base/error.h"
#include "offload/device/cuda/link_roof.h"

strata_status st_link_roof_open(struct st_link_roof **out, const char *device, uint64_t bytes)
{
    (void)out;
    (void)bytes;
    return st_error(STRATA_E_NOSYS, "%s has no links of its own in this build", device);
}

void st_link_roof_close(struct st_link_roof *roof)
{
    (void)roof;
}

strata_status st_link_roof_run(struct st_link_roof *roof, enum st_link_direction directions, uint64_t bytes, uint64_t count,
                               double *seconds)
{
    (void)roof;
    (void)directions;
    (void)bytes;
    (void)count;
    (void)seconds;
    return st_error(STRATA_E_NOSYS, "this build has no links to measure");
}
