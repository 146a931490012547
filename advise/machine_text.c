/* advise/machine_text.c - this machine for people: a label and a few lines for each part. */
#include "advise/machine_facts.h"
#include "core/base/print.h"
#include "core/base/size.h"
#include "offload/device/cuda/gpu_report.h"
#include "offload/machine/machine_report.h"

#include <inttypes.h>
#include <sys/utsname.h>

#define LABEL "  %-15s" /* two spaces after the longest label: wrapped lines continue below the second column */

static void print_isas(FILE *file)
{
    const char *names[ST_REPORT_ISAS_MAX];
    const uint32_t count = st_report_isas(names);

    st_print(file, LABEL, "isa found");
    for (uint32_t i = 0; i < count; i++)
        st_print(file, "%s%s", i == 0 ? "" : " ", names[i]);
    st_print(file, "%s\n", count == 0 ? "none" : "");
}

/* Prints one line per NUMA node, then the cores that the workers use. */
static void print_workers(FILE *file, const struct st_machine_facts *of)
{
    const struct st_topology *topo = of->topology;
    const uint32_t workers = of->workers;
    char list[256], size[24];

    for (uint32_t i = 0; i < st_topology_numa_count(topo); i++) {
        const struct st_numa_node node = st_topology_numa_node(topo, i);

        st_print(file, LABEL "node %u: %s, cores %s\n", i == 0 ? "numa" : "", node.os_index,
                 st_size_text(size, node.memory_bytes), st_topology_units_text(topo, UINT32_MAX, i, list, sizeof(list)));
    }
    if (st_topology_has_quota(topo))
        st_print(file, LABEL "%u: a quota of processor time allows %u; on any core of their node\n", "workers", workers,
                 st_topology_core_count(topo));
    else
        st_print(file, LABEL "%u, on cores %s\n", "workers", workers,
                 st_topology_units_text(topo, workers, UINT32_MAX, list, sizeof(list)));
}

static void print_cpu(FILE *file, const struct st_machine_facts *of)
{
    const struct st_topology *topo = of->topology;
    const char *const psi = st_report_psi();
    char limit[24], available[24], memlock[24];

    st_print(file, LABEL "%s, %u usable cores\n", "cpu", st_topology_cpu_name(topo), st_topology_core_count(topo));
    print_workers(file, of);
    print_isas(file);
    st_print(file, LABEL "%s\n", "kernels used", st_report_kernels(0));
    st_print(file, LABEL "%s, %s available\n", "memory", st_size_text(limit, st_topology_memory_limit(topo)),
             st_size_text(available, st_topology_memory_available(topo)));
    st_print(file, LABEL "%s\n", "memlock limit",
             st_report_memlock() == UINT64_MAX ? "unlimited" : st_size_text(memlock, st_report_memlock()));
    st_print(file, LABEL "%s%s\n", "memory stalls",
             psi[0] != '\0' ? "counted by PSI, of the " : "unknown: this system has no PSI", psi);
}

/* What WSL limits.  Sources: NVIDIA's CUDA on WSL user guide, "Known limitations"; microsoft/WSL, issues 8447 and 14078. */
static void print_wsl(FILE *file, uint32_t version)
{
    if (version == 1)
        st_print(file, LABEL "version 1 has no GPU: wsl --set-version NAME 2\n", "wsl");
    if (version != 2)
        return;
    st_print(file, LABEL "memory is what .wslconfig gives (memory=), half of Windows's where it is silent\n", "wsl");
    st_print_keyed(file,
                   LABEL "Windows bounds how much of it can be pinned, at times to 1 GiB: a run stages the rest, at the rate "
                         "that info.measure finds\n",
                   "");
    st_print_keyed(file, LABEL "GPU memory that nvidia-smi calls free may be Windows's: leave it some (strata.device_memory)\n",
                   "");
    st_print_keyed(file, LABEL "Windows's drives below /mnt are 9p, too slow for a tier: strata.nvme on WSL's own disk\n", "");
}

static const char *const memory_notes[] = {
    [ST_MEMORY_COHERENT] = "its memory and the host's are joined by more than PCIe: info.measure finds the link's rate",
    [ST_MEMORY_UNIFIED] = "its memory is the host's: one budget for both, and nothing is offloaded from the one to the "
                          "other",
};

static void print_gpus(FILE *file, const struct st_gpu_report *r)
{
    char size[24], available[24];

    if (r->count == 0)
        st_print_keyed(file, LABEL "none: %s\n", "gpu", r->problem);
    for (uint32_t i = 0; i < r->count; i++) {
        const struct st_gpu *gpu = &r->gpus[i];

        st_print(file, LABEL "cuda:%u: %s, %s, %s free, compute capability %u.%u\n", i == 0 ? "gpu" : "", i, gpu->name,
                 st_size_text(size, gpu->bytes), st_size_text(available, gpu->free_bytes), gpu->major, gpu->minor);
        if (gpu->usable_bytes != 0)
            st_print(file, LABEL "at most %s for the arena of a run, the rest for the code and stacks of kernels\n", "",
                     st_size_text(size, gpu->usable_bytes));
        else
            st_print(file, LABEL "no run can use it: too old, or without memory that is free\n", "");
        if (gpu->memory != ST_MEMORY_OWN)
            st_print_keyed(file, LABEL "%s\n", "", memory_notes[gpu->memory]);
        if (gpu->lacks_bf16 && gpu->usable_bytes != 0)
            st_print(file, LABEL "no bf16, which needs compute capability 8.0: train in fp16 (fp16.enabled)\n", "");
        st_print(file, LABEL "PCI %s, %s%s\n", "", gpu->pci[0] != '\0' ? gpu->pci : "unknown", gpu->uuid,
                 gpu->is_slice ? ", a MIG slice: a part of its card" : "");
    }
    if (r->count > 0 && r->problem[0] != '\0')
        st_print_keyed(file, LABEL "not usable: %s\n", "", r->problem);
    if (r->runtime == 0)
        return;
    if (r->driver != 0)
        st_print(file, LABEL "driver for %u.%u", "cuda", r->driver / 1000, r->driver % 1000 / 10);
    else
        st_print(file, LABEL "no driver", "cuda");
    st_print(file, ", runtime %u.%u, cublasLt ", r->runtime / 1000, r->runtime % 1000 / 10);
    if (r->blas[0] != '\0')
        st_print(file, "%" PRIu64 ".%" PRIu64 ".%" PRIu64 " (%s)\n", r->blas_version / 10000, r->blas_version % 10000 / 100,
                 r->blas_version % 100, r->blas);
    else
        st_print(file, "not found\n");
    if (r->nccl[0] != '\0')
        st_print(file, LABEL "%u.%u.%u (%s)\n", "nccl", r->nccl_version / 10000, r->nccl_version % 10000 / 100,
                 r->nccl_version % 100, r->nccl);
    else
        st_print(file, LABEL "none: %s\n", "nccl", r->nccl_problem);
}

static void print_methods(FILE *file)
{
    struct st_method_report methods[ST_REPORT_METHODS_MAX];
    const uint32_t count = st_report_methods(methods, ST_REPORT_METHODS_MAX);

    for (uint32_t i = 0; i < count; i++)
        st_print(file, LABEL "%s%s%s\n", i == 0 ? "io methods" : "", methods[i].name,
                 methods[i].automatic ? " (auto)"
                 : methods[i].usable  ? ""
                                      : ": not usable: ",
                 methods[i].why);
}

static void print_disk(FILE *file, const struct st_disk_report *disk)
{
    if (disk->name[0] == '\0') {
        st_print(file, LABEL "device: none that this system reports\n", "");
        return;
    }
    st_print(file, LABEL "device %s%s%s%s", "", disk->name, disk->model[0] != '\0' ? " (" : "", disk->model,
             disk->model[0] != '\0' ? ")" : "");
    st_print(file, ", %s", disk->rotational ? "rotating" : "not rotating");
    if (disk->scheduler[0] != '\0')
        st_print(file, ", scheduler %s", disk->scheduler);
    if (disk->nr_requests != 0)
        st_print(file, ", %" PRIu64 " requests queued at most", disk->nr_requests);
    if (disk->max_sectors_kb != 0)
        st_print(file, ", requests cut at %" PRIu64 " KiB", disk->max_sectors_kb);
    st_print(file, "\n");
}

static void print_dir(FILE *file, const char *dir)
{
    struct st_dir_report report;
    char size[24];

    st_report_dir(&report, dir);
    if (report.problem[0] != '\0') {
        st_print_keyed(file, LABEL "%s\n", "nvme", report.problem); /* which names the directory */
        return;
    }
    st_print(file, LABEL "%s: %s, %s free\n", "nvme", dir, report.filesystem, st_size_text(size, report.free_bytes));
    print_disk(file, &report.disk);
    st_print(file, LABEL "O_DIRECT %s", "", report.direct_works ? "works" : "does not work");
    if (report.offset_align != 0)
        st_print(file, ", aligned to %u (offset) and %u (memory) bytes", report.offset_align, report.memory_align);
    st_print(file, "; buffers %s with io_uring\n", report.registers ? "can be registered" : "cannot be registered");
    if (report.advice[0] != '\0')
        st_print(file, LABEL "to change: %s\n", "", report.advice);
}

static void print_part(FILE *file, const char *name, double flops)
{
    if (flops > 0)
        st_print(file, ", %s %.1f GFLOP/s", name, flops * 1e-9);
    else
        st_print(file, ", %s not (too large, or too slow, for a probe)", name);
}

static void print_links(FILE *file, const struct st_links *l)
{
    for (uint32_t a = 0; a < l->ranks; a++)
        for (uint32_t b = a + 1; b < l->ranks; b++)
            st_print(file, LABEL "ranks %u and %u: %.2f GB/s each way at once\n", b == 1 ? "links" : "", a, b,
                     l->pair[a][b] * 1e-9);
    if (l->link_node > 0)
        st_print(file, LABEL "%u ranks of a machine together: %.2f GB/s to each, %.3g ms an exchange\n", "", l->here,
                 l->link_node * 1e-9, l->latency_node * 1e3);
    if (l->link_nodes > 0)
        st_print(file, LABEL "between machines: %.2f GB/s to each, %.3g ms an exchange\n", "", l->link_nodes * 1e-9,
                 l->latency_nodes * 1e3);
}

void st_machine_rates_print(const struct st_rates *rates, FILE *file)
{
    st_print(file, LABEL "matmul %.1f GFLOP/s", "measured", rates->matmul_flops * 1e-9);
    print_part(file, "block", rates->block_flops);
    if (rates->experts_flops > 0)
        print_part(file, "experts", rates->experts_flops);
    print_part(file, "head", rates->head_flops);
    st_print(file, ", upload %.2f GB/s, download %.2f GB/s%s, update %.0f M parameters/s%s, checksum %.1f GB/s\n",
             rates->upload * 1e-9, rates->download * 1e-9, rates->staged ? " (host memory cannot be pinned)" : "",
             rates->update * 1e-6, rates->update_even ? " (fetched evenly)" : "", rates->checksum * 1e-9);
    if (rates->memory > 0)
        st_print(file, LABEL "the device's own memory: %.0f GB/s, read and written\n", "", rates->memory * 1e-9);
    st_print(file, LABEL "from one op's end to the next one's start %.1f us", "", rates->handover * 1e6);
    if (rates->launch > 0)
        st_print(file, ", %.1f us to launch one", rates->launch * 1e6);
    st_print(file, "\n");
    if (rates->read > 0 || rates->write > 0)
        st_print(file, LABEL "disk: read %.2f GB/s, write %.2f GB/s, both at once %.2f GB/s, a small read %.0f us\n", "",
                 rates->read * 1e-9, rates->write * 1e-9, rates->mixed * 1e-9, rates->latency_io * 1e6);
}

void st_machine_facts_print(const struct st_machine_facts *of, FILE *file)
{
    struct st_gpu_report gpus;
    struct utsname os;

    st_print(file, "strata %s\n", STRATA_VERSION_STRING);
    if (uname(&os) == 0) {
        st_print(file, LABEL "%s %s %s\n", "system", os.sysname, os.release, os.machine);
        print_wsl(file, st_report_wsl(os.release));
    }
    print_cpu(file, of);
    st_gpu_report(&gpus);
    print_gpus(file, &gpus);
    print_methods(file);
    for (uint32_t i = 0; of->dirs != NULL && i < of->dirs->nvme_dir_count; i++)
        print_dir(file, of->dirs->nvme_dirs[i]);
    if (of->measured != NULL)
        st_machine_rates_print(&of->measured->rates, file);
    if (of->links != NULL)
        print_links(file, of->links);
}
