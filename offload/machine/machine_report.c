/* offload/machine/machine_report.c - asks the kernel and the tables; keeps nothing and leaves nothing on disk. */
#include "offload/machine/machine_report.h"
#include "core/base/cpu.h"
#include "core/base/fault.h"
#include "core/system/pressure.h"
#include "kernels/kernels.h"
#include "nvme/method/io.h"
#include "nvme/mover/depth.h"
#include "nvme/swap/swap.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

struct filesystem_name {
    unsigned long magic; /* statfs(2) */
    const char *name;
};

static const struct filesystem_name filesystem_names[] = {
    {0xef53, "ext4"},        {0x58465342, "xfs"},    {0x9123683e, "btrfs"}, {0x01021994, "tmpfs"},
    {0x794c7630, "overlay"}, {0x6969, "nfs"},        {0x2fc12fc1, "zfs"},   {0xf2f52010, "f2fs"},
    {0x65735546, "fuse"},    {0x0bd00bd0, "lustre"}, {0x01021997, "9p"},
};

static bool opens(const struct st_io_ops *ops, uint32_t depth)
{
    struct st_io *io = NULL;

    if (ops->open(&io, &(struct st_io_opts){.queue_depth = depth}) != STRATA_OK)
        return false;
    ops->close(io);
    return true;
}

/* Returns whether it opens with as many requests as a run has in flight of a directory: else a run falls back to another. */
static bool method_report(struct st_method_report *out, const struct st_io_ops *ops)
{
    const bool whole = opens(ops, ST_DEPTH_MAX);

    *out = (struct st_method_report){.name = ops->name, .usable = whole || opens(ops, 1)};
    if (!out->usable)
        snprintf(out->why, sizeof(out->why), "%s", strata_last_error());
    return whole;
}

uint32_t st_report_methods(struct st_method_report *out, uint32_t most)
{
    uint32_t count = 0;
    bool found = false, whole;

    for (const struct st_io_ops *const *ops = st_io_methods; *ops != NULL && count < most; ops++) {
        if (strcmp((*ops)->name, "fake") == 0)
            continue;
        whole = method_report(&out[count], *ops);
        out[count].automatic = whole && !found;
        found = found || out[count].automatic;
        count++;
    }
    return count;
}

static void filesystem_report(struct st_dir_report *out, const char *dir)
{
    struct statfs fs;

    if (st_fault_refuses("report.statfs") || statfs(dir, &fs) != 0) {
        snprintf(out->filesystem, sizeof(out->filesystem), "unknown");
        return;
    }
    snprintf(out->filesystem, sizeof(out->filesystem), "0x%lx", (unsigned long)fs.f_type);
    for (size_t i = 0; i < sizeof(filesystem_names) / sizeof(filesystem_names[0]); i++)
        if (filesystem_names[i].magic == (unsigned long)fs.f_type)
            snprintf(out->filesystem, sizeof(out->filesystem), "%s", filesystem_names[i].name);
}

void st_report_dir(struct st_dir_report *out, const char *dir)
{
    int fd;

    *out = (struct st_dir_report){0};
    if (st_swap_free_bytes(dir, &out->free_bytes) != STRATA_OK) {
        snprintf(out->problem, sizeof(out->problem), "%s", strata_last_error());
        return;
    }
    filesystem_report(out, dir);
    fd = st_fault_refuses("report.open") ? -1 : open(dir, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (fd < 0) {
        const int err = errno;

        out->writable = err == EOPNOTSUPP && !st_fault_refuses("report.access") && access(dir, W_OK) == 0;
        if (!out->writable)
            snprintf(out->problem, sizeof(out->problem), "cannot create files in %s: %s", dir, strerror(err));
        return;
    }
    out->writable = true;
    st_report_disk(&out->disk, fd);
    st_report_try(out, fd);
    st_report_advise(out);
    close(fd);
}

const char *st_report_kernels(uint32_t i)
{
    const struct st_kernels *kernels = st_kernels_usable(i);

    return kernels != NULL ? kernels->name : NULL;
}

uint32_t st_report_isas(const char *names[ST_REPORT_ISAS_MAX])
{
    static const struct {
        enum st_cpu_feature feature;
        const char *name;
    } isas[] = {
        {ST_CPU_AVX2_FMA, "avx2"},     {ST_CPU_AVX512, "avx512"}, {ST_CPU_AVX512_BF16, "avx512_bf16"},
        {ST_CPU_AMX_BF16, "amx_bf16"}, {ST_CPU_NEON, "neon"},
    };
    uint32_t count = 0;

    for (size_t i = 0; i < sizeof(isas) / sizeof(isas[0]); i++)
        if ((st_cpu_features() & isas[i].feature) != 0)
            names[count++] = isas[i].name;
    return count;
}

const char *st_report_psi(void)
{
    static const char *const names[] = {"", "machine", "control group"};
    struct st_pressure *pressure = NULL;
    const char *name = "";

    if (st_pressure_open(&pressure, NULL, NULL) == STRATA_OK)
        name = names[st_pressure_scope(pressure)];
    st_pressure_close(pressure);
    return name;
}

uint64_t st_report_memlock(void)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY)
        return UINT64_MAX;
    return limit.rlim_cur;
}

/* "4.4.0-19041-Microsoft"; "5.15.167.4-microsoft-standard-WSL2". */
uint32_t st_report_wsl(const char *release)
{
    return strstr(release, "Microsoft") != NULL ? 1 : strstr(release, "microsoft") != NULL ? 2 : 0;
}
