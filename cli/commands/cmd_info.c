/* cli/commands/cmd_info.c - prints what this machine has and lacks; with --measure, also its rates. */
#include "api/handles.h"
#include "cli/commands/commands.h"
#include "cli/options/output.h"
#include "cli/run.h"
#include "core/base/cpu.h"
#include "core/base/error.h"
#include "core/base/print.h"
#include "core/base/size.h"
#include "core/base/wrap.h"
#include "core/json/json.h"
#include "core/system/pressure.h"
#include "offload/config/config_options.h"
#include "offload/device/cuda/gpu_report.h"
#include "offload/machine/machine_report.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/utsname.h>

#define LABEL         "  %-15s" /* two spaces after the longest label: wrapped lines continue below the second column */
#define METHODS_MAX   8u
#define MEASURE_MODEL "gpt2"
#define MEASURE_SEQ   512u

struct isa_name {
    enum st_cpu_feature feature;
    const char *name;
};

static const struct isa_name isa_names[] = {
    {ST_CPU_AVX2_FMA, "avx2"},     {ST_CPU_AVX512, "avx512"}, {ST_CPU_AVX512_BF16, "avx512_bf16"},
    {ST_CPU_AMX_BF16, "amx_bf16"}, {ST_CPU_NEON, "neon"},
};
#define ISA_COUNT (sizeof(isa_names) / sizeof(isa_names[0]))

/* --- text --- */

static void print_words(FILE *file, const char *label, const char *const words[], uint32_t count)
{
    st_print(file, LABEL, label);
    for (uint32_t i = 0; i < count; i++)
        st_print(file, "%s%s", i == 0 ? "" : " ", words[i]);
    st_print(file, "%s\n", count == 0 ? "none" : "");
}

static uint32_t isa_found(const char *words[ISA_COUNT])
{
    uint32_t count = 0;

    for (size_t i = 0; i < ISA_COUNT; i++)
        if ((st_cpu_features() & isa_names[i].feature) != 0)
            words[count++] = isa_names[i].name;
    return count;
}

/* The machine that is measured and printed, and the configuration, which sets the number of threads. */
struct info {
    struct cli_run run;
    struct st_config config;
    struct st_topology *topology;
    struct st_machine machine;
    const char *device; /* by name; NULL: "cpu" */
    struct cli_ranks ranks;
    struct st_links links; /* between them; ranks 0: there is one */
};

static uint32_t worker_count(const struct info *s)
{
    return st_machine_workers(s->topology, s->device, s->config.threads);
}

/* Prints one line per NUMA node, then the cores that the workers use. */
static void print_workers(FILE *file, const struct info *s)
{
    const struct st_topology *topo = s->topology;
    const uint32_t workers = worker_count(s);
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

/* The scope for which the kernel counts memory stalls, which show memory pressure in a run.  "": it does not count them. */
static const char *psi_scope(void)
{
    static const char *const names[] = {"", "machine", "control group"};
    struct st_pressure *pressure = NULL;
    const char *name = "";

    if (st_pressure_open(&pressure, NULL, NULL) == STRATA_OK)
        name = names[st_pressure_scope(pressure)];
    st_pressure_close(pressure);
    return name;
}

static void print_cpu(FILE *file, const struct info *s)
{
    const struct st_topology *topo = s->topology;
    const char *words[ISA_COUNT];
    char limit[24], available[24], memlock[24];

    st_print(file, LABEL "%s, %u usable cores\n", "cpu", st_topology_cpu_name(topo), st_topology_core_count(topo));
    print_workers(file, s);
    print_words(file, "isa found", words, isa_found(words));
    st_print(file, LABEL "%s\n", "kernels used", st_report_kernels(0));
    st_print(file, LABEL "%s, %s available\n", "memory", st_size_text(limit, st_topology_memory_limit(topo)),
             st_size_text(available, st_topology_memory_available(topo)));
    st_print(file, LABEL "%s\n", "memlock limit",
             st_report_memlock() == UINT64_MAX ? "unlimited" : st_size_text(memlock, st_report_memlock()));
    st_print(file, LABEL "%s%s\n", "memory stalls",
             psi_scope()[0] != '\0' ? "counted by PSI, of the " : "unknown: this system has no PSI", psi_scope());
}

/* What WSL limits.  Sources: NVIDIA's CUDA on WSL user guide, "Known limitations"; microsoft/WSL, issues 8447 and 14078. */
static void print_wsl(FILE *file, uint32_t version)
{
    if (version == 1)
        st_print(file, LABEL "version 1 has no GPU: wsl --set-version NAME 2\n", "wsl");
    if (version != 2)
        return;
    st_print(file, LABEL "memory is what .wslconfig gives (memory=), half of Windows's where it is silent\n", "wsl");
    st_print(file,
             LABEL "Windows bounds how much of it can be pinned, at times to 1 GiB: a run stages the rest, at the rate that "
                   "--measure finds\n",
             "");
    st_print(file, LABEL "GPU memory that nvidia-smi calls free may be Windows's: leave it some (--device-memory)\n", "");
    st_print(file, LABEL "Windows's drives below /mnt are 9p, too slow for a tier: --nvme on WSL's own disk\n", "");
}

static const struct {
    const char *name, *note;
} memory_kinds[] = {
    [ST_MEMORY_OWN] = {"own", NULL},
    [ST_MEMORY_COHERENT] = {"coherent",
                            "its memory and the host's are joined by more than PCIe: --measure finds the link's rate"},
    [ST_MEMORY_UNIFIED] = {"unified",
                           "its memory is the host's: one budget for both, and nothing is offloaded from the one to the "
                           "other"},
};

static void print_gpus(FILE *file, const struct st_gpu_report *r)
{
    char size[24], available[24];

    if (r->count == 0)
        st_print(file, LABEL "none: %s\n", "gpu", r->problem);
    for (uint32_t i = 0; i < r->count; i++) {
        const struct st_gpu *gpu = &r->gpus[i];

        st_print(file, LABEL "cuda:%u: %s, %s, %s free, compute capability %u.%u\n", i == 0 ? "gpu" : "", i, gpu->name,
                 st_size_text(size, gpu->bytes), st_size_text(available, gpu->free_bytes), gpu->major, gpu->minor);
        if (gpu->usable_bytes != 0)
            st_print(file, LABEL "at most %s for the arena of a run, the rest for the code and stacks of kernels\n", "",
                     st_size_text(size, gpu->usable_bytes));
        else
            st_print(file, LABEL "no run can use it: too old, or without memory that is free\n", "");
        if (memory_kinds[gpu->memory].note != NULL)
            st_print(file, LABEL "%s\n", "", memory_kinds[gpu->memory].note);
        if (gpu->lacks_bf16 && gpu->usable_bytes != 0)
            st_print(file, LABEL "no bf16, which needs compute capability 8.0: train in fp16 (--fp16)\n", "");
        st_print(file, LABEL "PCI %s, %s%s\n", "", gpu->pci[0] != '\0' ? gpu->pci : "unknown", gpu->uuid,
                 gpu->is_slice ? ", a MIG slice: a part of its card" : "");
    }
    if (r->count > 0 && r->problem[0] != '\0')
        st_print(file, LABEL "not usable: %s\n", "", r->problem);
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
    struct st_method_report methods[METHODS_MAX];
    const uint32_t count = st_report_methods(methods, METHODS_MAX);

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
        st_print(file, LABEL "%s\n", "nvme", report.problem); /* which names the directory */
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

static void print_links(FILE *file, const struct info *s)
{
    const struct st_links *l = &s->links;

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

static void print_rates(FILE *file, const struct st_machine *m)
{
    st_print(file, LABEL "matmul %.1f GFLOP/s", "measured", m->rates.matmul_flops * 1e-9);
    print_part(file, "block", m->rates.block_flops);
    print_part(file, "head", m->rates.head_flops);
    st_print(file, ", upload %.2f GB/s, download %.2f GB/s%s, update %.0f M parameters/s, checksum %.1f GB/s\n",
             m->rates.upload * 1e-9, m->rates.download * 1e-9, m->rates.staged ? " (host memory cannot be pinned)" : "",
             m->rates.update * 1e-6, m->rates.checksum * 1e-9);
    if (m->rates.memory > 0)
        st_print(file, LABEL "the device's own memory: %.0f GB/s, read and written\n", "", m->rates.memory * 1e-9);
    st_print(file, LABEL "from one op's end to the next one's start %.1f us", "", m->rates.handover * 1e6);
    if (m->rates.launch > 0)
        st_print(file, ", %.1f us to launch one", m->rates.launch * 1e6);
    st_print(file, "\n");
    if (m->rates.read > 0 || m->rates.write > 0)
        st_print(file, LABEL "disk: read %.2f GB/s, write %.2f GB/s, both at once %.2f GB/s, a small read %.0f us\n", "",
                 m->rates.read * 1e-9, m->rates.write * 1e-9, m->rates.mixed * 1e-9, m->rates.latency_io * 1e6);
}

static void print_text(const struct info *s, const struct cli_args *args)
{
    FILE *const file = st_wrap_open(stdout);
    struct st_gpu_report gpus;
    struct utsname os;

    st_print(file, "strata %s\n", STRATA_VERSION_STRING);
    if (uname(&os) == 0) {
        st_print(file, LABEL "%s %s %s\n", "system", os.sysname, os.release, os.machine);
        print_wsl(file, st_report_wsl(os.release));
    }
    print_cpu(file, s);
    st_gpu_report(&gpus);
    print_gpus(file, &gpus);
    print_methods(file);
    for (uint32_t i = 0; i < args->nvme.count; i++)
        print_dir(file, args->nvme.items[i]);
    if (args->measure)
        print_rates(file, &s->machine);
    print_links(file, s);
    st_wrap_close(file, stdout);
}

/* --- JSON --- */

static void put_methods(struct st_json_writer *w)
{
    struct st_method_report methods[METHODS_MAX];
    const uint32_t count = st_report_methods(methods, METHODS_MAX);

    st_json_array_open(w, "io_methods");
    for (uint32_t i = 0; i < count; i++) {
        st_json_object_open(w, NULL);
        st_json_put_string(w, "name", methods[i].name);
        st_json_put_bool(w, "usable", methods[i].usable);
        st_json_put_bool(w, "automatic", methods[i].automatic);
        st_json_put_string(w, "why", methods[i].why[0] != '\0' ? methods[i].why : NULL);
        st_json_object_close(w);
    }
    st_json_array_close(w);
}

static void put_disk(struct st_json_writer *w, const struct st_disk_report *disk)
{
    st_json_object_open(w, "device");
    st_json_put_string(w, "name", disk->name[0] != '\0' ? disk->name : NULL);
    st_json_put_string(w, "model", disk->model[0] != '\0' ? disk->model : NULL);
    st_json_put_bool(w, "rotational", disk->rotational);
    st_json_put_string(w, "scheduler", disk->scheduler[0] != '\0' ? disk->scheduler : NULL);
    st_json_put_u64(w, "nr_requests", disk->nr_requests);
    st_json_put_u64(w, "max_sectors_kb", disk->max_sectors_kb);
    st_json_object_close(w);
}

static void put_dirs(struct st_json_writer *w, const struct cli_list *dirs)
{
    st_json_array_open(w, "nvme");
    for (uint32_t i = 0; i < dirs->count; i++) {
        struct st_dir_report report;

        st_report_dir(&report, dirs->items[i]);
        st_json_object_open(w, NULL);
        st_json_put_string(w, "dir", dirs->items[i]);
        st_json_put_string(w, "filesystem", report.filesystem[0] != '\0' ? report.filesystem : NULL);
        st_json_put_u64(w, "free_bytes", report.free_bytes);
        st_json_put_bool(w, "writable", report.writable);
        st_json_put_u64(w, "direct_offset_alignment", report.offset_align);
        st_json_put_u64(w, "direct_memory_alignment", report.memory_align);
        st_json_put_bool(w, "direct_works", report.direct_works);
        st_json_put_bool(w, "registers", report.registers);
        put_disk(w, &report.disk);
        st_json_put_string(w, "problem", report.problem[0] != '\0' ? report.problem : NULL);
        st_json_put_string(w, "advice", report.advice[0] != '\0' ? report.advice : NULL);
        st_json_object_close(w);
    }
    st_json_array_close(w);
}

static void put_nodes(struct st_json_writer *w, const struct st_topology *topo)
{
    char list[256];

    st_json_array_open(w, "nodes");
    for (uint32_t i = 0; i < st_topology_numa_count(topo); i++) {
        const struct st_numa_node node = st_topology_numa_node(topo, i);

        st_json_object_open(w, NULL);
        st_json_put_u64(w, "node", node.os_index);
        st_json_put_u64(w, "memory_bytes", node.memory_bytes);
        st_json_put_string(w, "cores", st_topology_units_text(topo, UINT32_MAX, i, list, sizeof(list)));
        st_json_object_close(w);
    }
    st_json_array_close(w);
}

static void put_cpu(struct st_json_writer *w, const struct info *s)
{
    const struct st_topology *topo = s->topology;
    char list[256];
    const char *words[ISA_COUNT];
    const uint32_t count = isa_found(words);

    st_json_object_open(w, "cpu");
    st_json_put_string(w, "name", st_topology_cpu_name(topo));
    st_json_put_u64(w, "usable_cores", st_topology_core_count(topo));
    st_json_put_u64(w, "numa_nodes", st_topology_numa_count(topo));
    put_nodes(w, topo);
    st_json_put_u64(w, "workers", worker_count(s));
    st_json_put_bool(w, "quota", st_topology_has_quota(topo));
    st_json_put_string(w, "worker_cores", st_topology_units_text(topo, worker_count(s), UINT32_MAX, list, sizeof(list)));
    st_json_array_open(w, "isa_found");
    for (uint32_t i = 0; i < count; i++)
        st_json_put_string(w, NULL, words[i]);
    st_json_array_close(w);
    st_json_put_string(w, "kernels_used", st_report_kernels(0));
    st_json_object_close(w);
}

/* "gpu": the first one's name, or "none: " and why. */
static void put_gpus(struct st_json_writer *w)
{
    struct st_gpu_report r;
    char none[sizeof(r.problem) + 8];

    st_gpu_report(&r);
    snprintf(none, sizeof(none), "none: %s", r.problem);
    st_json_put_string(w, "gpu", r.count > 0 && r.problem[0] == '\0' ? r.gpus[0].name : none);
    st_json_array_open(w, "gpus");
    for (uint32_t i = 0; i < r.count; i++) {
        st_json_object_open(w, NULL);
        st_json_put_string(w, "device_name", r.gpus[i].name);
        st_json_put_string(w, "pci_bus_id", r.gpus[i].pci[0] != '\0' ? r.gpus[i].pci : NULL);
        st_json_put_string(w, "uuid", r.gpus[i].uuid);
        st_json_put_bool(w, "mig_slice", r.gpus[i].is_slice);
        st_json_put_u64(w, "memory_bytes", r.gpus[i].bytes);
        st_json_put_u64(w, "memory_free_bytes", r.gpus[i].free_bytes);
        st_json_put_u64(w, "memory_usable_bytes", r.gpus[i].usable_bytes);
        st_json_put_u64(w, "compute_major", r.gpus[i].major);
        st_json_put_u64(w, "compute_minor", r.gpus[i].minor);
        st_json_put_string(w, "memory_kind", memory_kinds[r.gpus[i].memory].name);
        st_json_put_bool(w, "bf16", !r.gpus[i].lacks_bf16);
        st_json_object_close(w);
    }
    st_json_array_close(w);
    st_json_put_u64(w, "cuda_driver", r.driver);
    st_json_put_u64(w, "cuda_runtime", r.runtime);
    st_json_put_string(w, "cublaslt", r.blas[0] != '\0' ? r.blas : NULL);
    st_json_put_u64(w, "cublaslt_version", r.blas_version);
    st_json_put_string(w, "nccl", r.nccl[0] != '\0' ? r.nccl : NULL);
    st_json_put_u64(w, "nccl_version", r.nccl_version);
    st_json_put_string(w, "nccl_problem", r.nccl[0] == '\0' ? r.nccl_problem : NULL);
}

static void put_links(struct st_json_writer *w, const struct st_links *l)
{
    st_json_array_open(w, "links");
    for (uint32_t a = 0; a < l->ranks; a++)
        for (uint32_t b = a + 1; b < l->ranks; b++) {
            st_json_object_open(w, NULL);
            st_json_put_u64(w, "rank", a);
            st_json_put_u64(w, "other", b);
            st_json_put_double(w, "bytes_per_second", l->pair[a][b]);
            st_json_object_close(w);
        }
    st_json_array_close(w);
}

static void print_json(const struct info *s, const struct cli_args *args)
{
    struct st_json_writer w;
    struct utsname os;

    st_json_begin(&w, stdout);
    st_json_object_open(&w, NULL);
    st_json_put_string(&w, "version", STRATA_VERSION_STRING);
    st_json_put_u64(&w, "wsl", uname(&os) == 0 ? st_report_wsl(os.release) : 0);
    put_cpu(&w, s);
    st_json_put_u64(&w, "memory_bytes", st_topology_memory_limit(s->topology));
    st_json_put_u64(&w, "memory_available_bytes", st_topology_memory_available(s->topology));
    if (st_report_memlock() == UINT64_MAX)
        st_json_put_string(&w, "memlock_bytes", NULL);
    else
        st_json_put_u64(&w, "memlock_bytes", st_report_memlock());
    st_json_put_string(&w, "psi_scope", psi_scope()[0] != '\0' ? psi_scope() : NULL);
    put_gpus(&w);
    put_methods(&w);
    put_dirs(&w, &args->nvme);
    if (args->measure) {
        st_json_object_open(&w, "machine");
        st_machine_put_fields(&s->machine, &w);
        st_json_object_close(&w);
    }
    if (s->links.ranks > 0)
        put_links(&w, &s->links);
    st_json_object_close(&w);
    st_json_end_line(&w);
}

/* --- measuring --- */

/* Directories come from --nvme here, so that a disk can be measured without configuring a tier; one that is named twice counts
 * once, as in a run. */
static void take_dirs(struct st_machine_opts *opts, const struct st_config *config, bool given)
{
    opts->nvme.dir_count = given ? config->nvme_dir_count : 0;
    for (uint32_t i = 0; i < opts->nvme.dir_count; i++)
        opts->nvme.dirs[i] = config->nvme_dirs[i];
}

/* Ranks are there for their links alone: the first one goes on by itself. */
static strata_status measure_links(struct info *s)
{
    strata_status st;

    if (s->ranks.who.ranks == 1)
        return STRATA_OK;
    if (s->device != NULL && strncmp(s->device, "cuda", 4) == 0)
        return st_error(STRATA_E_NOSYS,
                        "links between GPUs are not measured: measure without ranks, and write link_node, link_nodes, "
                        "latency_node and latency_nodes into the machine file by hand");
    if ((st = cli_ranks_meet(&s->ranks, s->run.config)) == STRATA_OK)
        st = st_comm_measure(&s->links, s->ranks.comm->comm, s->ranks.comm->node_of);
    cli_ranks_leave(&s->ranks, st);
    cli_ranks_close(&s->ranks);
    return st;
}

static void take_links(struct st_rates *rates, const struct st_links *l)
{
    rates->link_node = l->link_node;
    rates->link_nodes = l->link_nodes;
    rates->latency_node = l->latency_node;
    rates->latency_nodes = l->latency_nodes;
    rates->node_ranks = l->here < l->ranks ? l->here : 0;
}

static strata_status measure(struct info *s, const struct cli_args *args)
{
    struct st_new_file out = {.fd = -1};
    struct st_machine_opts opts;
    strata_status st = cli_output_create(&out, "--out", args->out, args);

    st_config_machine_opts(&opts, &s->config);
    opts.topology = s->topology;
    opts.device = s->device;
    take_dirs(&opts, &s->config, args->nvme.count > 0);
    if (st == STRATA_OK)
        st = cli_run_model(&s->run);
    if (st == STRATA_OK)
        st = st_machine_here(&s->machine, &opts);
    if (st == STRATA_OK) {
        const struct st_compute compute = st_model_compute(s->run.model->model);
        struct st_case c;

        st_handle_case(&c, s->run.model, s->run.machine);
        st = st_machine_measure(&s->machine, &c.workload, &compute, &opts,
                                opts.nvme.dir_count > 0 ? ST_MEASURE_ALL : ST_MEASURE_ALL & ~ST_MEASURE_DISK);
    }
    if (st == STRATA_OK)
        take_links(&s->machine.rates, &s->links);
    if (st == STRATA_OK && args->out != NULL)
        st = st_machine_write(&s->machine, &out);
    st_new_file_abort(&out);
    return st;
}

/* Of several ranks the first one, once all have measured their links. */
static strata_status look(struct info *s, const struct cli_args *args)
{
    strata_status st;

    if (s->ranks.who.rank > 0)
        return STRATA_OK;
    s->config = s->run.config->values;
    if ((st = st_topology_load(&s->topology, NULL)) == STRATA_OK && args->measure)
        st = measure(s, args);
    if (st != STRATA_OK)
        return st;
    if (args->json)
        print_json(s, args);
    else
        print_text(s, args);
    return STRATA_OK;
}

int cmd_info(const struct cli_args *args)
{
    struct cli_args with_model = *args;
    struct info info = {.device = args->device};
    strata_status st = STRATA_OK;
    int code;

    if (args->out != NULL && !args->measure)
        return cli_fail(st_error(STRATA_E_INVAL, "--out writes a machine file: it needs --measure"));
    if (args->model == NULL) {
        with_model.model = MEASURE_MODEL;
        with_model.seq_len = args->seq_len != 0 ? args->seq_len : MEASURE_SEQ;
    }
    if (args->measure)
        st = cli_ranks_find(&info.ranks, args);
    if (st == STRATA_OK)
        st = cli_run_configure(&info.run, &with_model, NULL);
    if (st == STRATA_OK && args->measure)
        st = measure_links(&info);
    if (st == STRATA_OK)
        st = look(&info, args);
    code = st == STRATA_OK ? 0 : cli_fail(st);
    st_topology_destroy(info.topology);
    cli_run_close(&info.run);
    return code;
}
