/* offload/machine/machine_measure_disk.c - measures the rates of the swap directories, each alone and all together, with
 * nvme/measure/probe.c. */
#include "offload/machine/machine_measure_internal.h"

#include "core/base/error.h"
#include "nvme/swap/swap.h"

#define PROBE_DISK_SECONDS 0.9
#define PROBE_FILE_BYTES   (UINT64_C(128) << 20)

/* Bytes of the files of a probe over `dirs` directories; there is room for at least one block. */
static uint64_t file_bytes(uint32_t dirs, uint64_t room)
{
    return dirs * PROBE_FILE_BYTES < room ? dirs * PROBE_FILE_BYTES : room;
}

/* Measures each directory alone, to find its share of the swap.  The rate is that of reads and writes together, since a step
 * mixes them. */
static strata_status measure_dirs(struct st_machine *m, const struct st_nvme_opts *nvme, struct st_probe_opts *probe)
{
    struct st_probe_rates rates;

    for (uint32_t i = 0; i < nvme->dir_count; i++) {
        strata_status st;

        probe->dir = nvme->dirs[i];
        if ((st = st_probe_run(probe, &rates)) != STRATA_OK)
            return st;
        m->rates.dir_rates[i] = rates.mixed;
    }
    m->rates.dir_count = m->rates.drives = nvme->dir_count;
    return STRATA_OK;
}

strata_status st_machine_measure_disk(struct st_machine *m, const struct st_nvme_opts *nvme)
{
    const uint64_t room = m->capacity.bytes[STRATA_TIER_NVME] / 4 / ST_SWAP_ALIGN * ST_SWAP_ALIGN;
    const uint32_t count = nvme->dir_count;
    struct st_probe_opts probe = {.dir = nvme->dirs[0],
                                  .method = nvme->method,
                                  .bytes = file_bytes(1, room),
                                  .seconds_max = st_measure_patience(PROBE_DISK_SECONDS)};
    struct st_probe_rates rates;
    strata_status st;

    if (room == 0)
        return st_error(STRATA_E_NOSPC, "%s: no space to measure with", nvme->dirs[0]);
    if (count > 1) {
        if ((st = measure_dirs(m, nvme, &probe)) != STRATA_OK)
            return st;
        probe.dirs = nvme->dirs;
        probe.dir_count = count;
        probe.dir_rates = m->rates.dir_rates;
        probe.bytes = file_bytes(count, room);
    }
    if ((st = st_probe_run(&probe, &rates)) != STRATA_OK)
        return st;
    m->rates.read = rates.read;
    m->rates.write = rates.write;
    m->rates.mixed = rates.mixed;
    m->rates.latency_io = rates.latency;
    return STRATA_OK;
}
