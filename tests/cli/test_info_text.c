/* tests/cli/test_info_text.c - all that strata info says of a machine that is made up, as text and as JSON: two nodes, two GPUs,
 * a disk, ranks and their links, and rates.  No two figures are the same, so that each stands where its own name is.
 *
 * The linker puts the functions here in the place of those that ask the real machine. */
#include "api/handles.h"
#include "cli/commands/commands.h"
#include "cli/ranks.h"
#include "core/base/cpu.h"
#include "core/base/print.h"
#include "core/system/pressure.h"
#include "offload/comm/comm_measure.h"
#include "offload/device/cuda/gpu_report.h"
#include "offload/machine/machine.h"
#include "offload/machine/machine_report.h"
#include "tests/common/scratch.h"
#include "tests/common/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

/* What there is; the rest is the same always. */
static struct {
    struct st_gpu_report gpus;
    struct st_dir_report dir;
    struct st_links links;
    struct st_rates rates;
    uint64_t memlock;
    enum st_pressure_scope scope;
    uint32_t ranks;
    uint32_t measured_dirs; /* of the last measurement */
    const char *quota, *release;
} here;

/* --- what stands in the place of the machine --- */

strata_status __wrap_st_topology_load_share(struct st_topology **out, const struct st_topology_share *share);
uint64_t __wrap_st_topology_memory_limit(const struct st_topology *topo);
uint64_t __wrap_st_topology_memory_available(const struct st_topology *topo);
const char *__wrap_st_topology_cpu_name(const struct st_topology *topo);
uint32_t __wrap_st_cpu_features(void);
int __wrap_uname(struct utsname *os);
enum st_pressure_scope __wrap_st_pressure_scope(const struct st_pressure *p);
void __wrap_st_gpu_report(struct st_gpu_report *out);
uint32_t __wrap_st_report_methods(struct st_method_report *out, uint32_t most);
void __wrap_st_report_dir(struct st_dir_report *out, const char *dir);
const char *__wrap_st_report_kernels(uint32_t i);
uint64_t __wrap_st_report_memlock(void);
strata_status __wrap_st_machine_here(struct st_machine *out, const struct st_machine_opts *opts);
strata_status __wrap_st_machine_measure(struct st_machine *machine, const struct st_workload *workload,
                                        const struct st_compute *compute, const struct st_machine_opts *opts, unsigned what);
strata_status __wrap_st_comm_measure(struct st_links *out, struct st_comm *comm, const uint16_t *node_of);
strata_status __wrap_cli_ranks_find(struct cli_ranks *r, const struct cli_args *args);
strata_status __wrap_cli_ranks_meet(struct cli_ranks *r, const struct strata_config *config);
void __wrap_cli_ranks_close(struct cli_ranks *r);

strata_status __wrap_st_topology_load_share(struct st_topology **out, const struct st_topology_share *share)
{
    const struct st_topology_source source = {.synthetic = "numa:2(memory=17179869184) core:4 pu:1",
                                              .affinity = "0-5",
                                              .cgroup_root = scratch_dir,
                                              .membership = scratch_path("membership")};

    (void)share;
    return st_topology_load_from(out, &source);
}

uint64_t __wrap_st_topology_memory_limit(const struct st_topology *topo)
{
    (void)topo;
    return UINT64_C(24) << 30;
}

uint64_t __wrap_st_topology_memory_available(const struct st_topology *topo)
{
    (void)topo;
    return UINT64_C(20) << 30;
}

const char *__wrap_st_topology_cpu_name(const struct st_topology *topo)
{
    (void)topo;
    return "a processor";
}

uint32_t __wrap_st_cpu_features(void)
{
    return ST_CPU_AVX2_FMA | ST_CPU_AVX512_BF16;
}

int __wrap_uname(struct utsname *os)
{
    *os = (struct utsname){.sysname = "System", .machine = "arch"};
    snprintf(os->release, sizeof(os->release), "%s", here.release);
    return 0;
}

enum st_pressure_scope __wrap_st_pressure_scope(const struct st_pressure *p)
{
    (void)p;
    return here.scope;
}

void __wrap_st_gpu_report(struct st_gpu_report *out)
{
    *out = here.gpus;
}

uint32_t __wrap_st_report_methods(struct st_method_report *out, uint32_t most)
{
    static const struct st_method_report methods[] = {{.name = "first", .why = "the kernel has none"},
                                                      {.name = "second", .usable = true, .automatic = true},
                                                      {"third", true, false, ""}};

    assert_true(most >= 3);
    memcpy(out, methods, sizeof(methods));
    return 3;
}

void __wrap_st_report_dir(struct st_dir_report *out, const char *dir)
{
    *out = (struct st_dir_report){0};
    if (strcmp(dir, "/missing") == 0)
        snprintf(out->problem, sizeof(out->problem), "/missing: there is no such directory");
    else
        *out = here.dir;
}

const char *__wrap_st_report_kernels(uint32_t i)
{
    assert_int_equal(i, 0);
    return "widest";
}

uint64_t __wrap_st_report_memlock(void)
{
    return here.memlock;
}

strata_status __wrap_st_machine_here(struct st_machine *out, const struct st_machine_opts *opts)
{
    (void)opts;
    *out = (struct st_machine){.name = "made up"};
    return STRATA_OK;
}

strata_status __wrap_st_machine_measure(struct st_machine *machine, const struct st_workload *workload,
                                        const struct st_compute *compute, const struct st_machine_opts *opts, unsigned what)
{
    (void)workload;
    (void)compute;
    assert_int_equal(what, opts->nvme.dir_count > 0 ? ST_MEASURE_ALL : ST_MEASURE_ALL & ~ST_MEASURE_DISK);
    machine->rates = here.rates;
    here.measured_dirs = opts->nvme.dir_count;
    return STRATA_OK;
}

strata_status __wrap_st_comm_measure(struct st_links *out, struct st_comm *comm, const uint16_t *node_of)
{
    (void)comm;
    (void)node_of;
    *out = here.links;
    return STRATA_OK;
}

strata_status __wrap_cli_ranks_find(struct cli_ranks *r, const struct cli_args *args)
{
    (void)args;
    r->who = (struct strata_comm_opts)STRATA_COMM_OPTS_INIT;
    r->who.ranks = here.ranks;
    return STRATA_OK;
}

strata_status __wrap_cli_ranks_meet(struct cli_ranks *r, const struct strata_config *config)
{
    static struct strata_comm comm;

    (void)config;
    comm.comm = (struct st_comm *)&comm; /* of which nothing is used */
    r->comm = &comm;
    return STRATA_OK;
}

void __wrap_cli_ranks_close(struct cli_ranks *r)
{
    r->comm = NULL;
}

/* --- the command --- */

/* The program's own is beside its main(). */
int cli_fail(strata_status st)
{
    fail_msg("%d: %s", st, strata_last_error());
    return 1;
}

/* What strata info with these words prints; owned by the caller. */
static char *info(const char *first, const char *second, const char *third)
{
    char *argv[] = {(char *)"strata", (char *)"info", (char *)(uintptr_t)first, (char *)(uintptr_t)second,
                    (char *)(uintptr_t)third};
    const int kept = dup(STDOUT_FILENO);
    FILE *file = tmpfile();
    struct cli_args args;
    char *text;
    long bytes;
    int argc = 2, code;

    while (argc < 5 && argv[argc] != NULL)
        argc++;
    assert_non_null(file);
    scratch_put("cpu.max", here.quota);
    scratch_put("membership", "0::/\n");
    assert_int_equal(cli_args_parse(&args, CLI_CMD_INFO, argc, argv), STRATA_OK);
    fflush(stdout);
    dup2(fileno(file), STDOUT_FILENO);
    code = cmd_info(&args);
    fflush(stdout);
    dup2(kept, STDOUT_FILENO);
    close(kept);
    cli_args_fini(&args);
    assert_int_equal(code, 0);
    bytes = lseek(fileno(file), 0, SEEK_END);
    text = calloc(1, (size_t)bytes + 1);
    assert_true(text != NULL && pread(fileno(file), text, (size_t)bytes, 0) == bytes);
    fclose(file);
    return text;
}

static void prints(const char *first, const char *second, const char *third, const char *wanted)
{
    char *text = info(first, second, third);

    if (strcmp(text, wanted) != 0)
        fprintf(stderr, "%s\nis not\n%s", text, wanted);
    assert_string_equal(text, wanted);
    free(text);
}

static void holds(const char *first, const char *second, const char *third, const char *wanted)
{
    char *text = info(first, second, third);

    if (strstr(text, wanted) == NULL)
        fprintf(stderr, "%s\nlacks\n%s", text, wanted);
    assert_non_null(strstr(text, wanted));
    free(text);
}

/* A machine with everything. */
static int setup(void **state)
{
    (void)state;
    scratch_open();
    memset(&here, 0, sizeof(here));
    here.quota = "max 100000\n";
    here.release = "1.2";
    here.memlock = 8 << 20;
    here.scope = ST_PRESSURE_OF_GROUP;
    here.ranks = 1;
    here.gpus = (struct st_gpu_report){
        .count = 2,
        .gpus = {{"a card", "0000:04:00.0", "GPU-1", false, UINT64_C(80) << 30, UINT64_C(79) << 30, UINT64_C(78) << 30, 9, 1},
                 {"a slice", "", "MIG-2", true, UINT64_C(20) << 30, UINT64_C(19) << 30, UINT64_C(18) << 30, 8, 6}},
        .driver = 13010,
        .runtime = 12080,
        .blas = "/lib/blas",
        .blas_version = 120304,
        .nccl = "/lib/nccl",
        .nccl_version = 22706,
    };
    here.dir = (struct st_dir_report){.filesystem = "ext4",
                                      .free_bytes = UINT64_C(3) << 40,
                                      .writable = true,
                                      .memory_align = 8,
                                      .offset_align = 512,
                                      .direct_works = true,
                                      .registers = true,
                                      .disk = {"nvme7n1", "a drive", false, "none", 1023, 128},
                                      .advice = "raise something."};
    here.links = (struct st_links){.ranks = 3,
                                   .here = 2,
                                   .pair = {[0][1] = 11e9, [0][2] = 12.5e9, [1][2] = 13e9},
                                   .link_node = 14e9,
                                   .link_nodes = 15e9,
                                   .latency_node = 1.6e-4,
                                   .latency_nodes = 1.7e-3};
    here.rates = (struct st_rates){.matmul_flops = 21e12,
                                   .block_flops = 20e12,
                                   .head_flops = 19e12,
                                   .memory = 3e12,
                                   .upload = 25e9,
                                   .download = 26e9,
                                   .read = 7e9,
                                   .write = 6e9,
                                   .mixed = 5e9,
                                   .update = 2e9,
                                   .update_even = true,
                                   .checksum = 41e9,
                                   .handover = 23e-6,
                                   .latency_io = 81e-6,
                                   .launch = 4e-6};
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    scratch_close();
    return 0;
}

#define CPU                                                                                                                      \
    "strata " STRATA_VERSION_STRING "\n"                                                                                         \
    "  system         System 1.2 arch\n"                                                                                         \
    "  cpu            a processor, 6 usable cores\n"                                                                             \
    "  numa           node 0: 16.0 GiB, cores 0-3\n"                                                                             \
    "                 node 1: 16.0 GiB, cores 4-5\n"                                                                             \
    "  workers        6, on cores 0-5\n"                                                                                         \
    "  isa found      avx2 avx512_bf16\n"                                                                                        \
    "  kernels used   widest\n"                                                                                                  \
    "  memory         24.0 GiB, 20.0 GiB available\n"
#define METHODS                                                                                                                  \
    "  io methods     first: not usable: the kernel has none\n"                                                                  \
    "                 second (auto)\n"                                                                                           \
    "                 third\n"

TEST_SETUP(all_of_a_machine, setup, teardown)
{
    prints("--nvme", "/drive", "/missing",
           CPU "  memlock limit  8.00 MiB\n"
               "  memory stalls  counted by PSI, of the control group\n"
               "  gpu            cuda:0: a card, 80.0 GiB, 79.0 GiB free, compute capability 9.1\n"
               "                 at most 78.0 GiB for the arena of a run, the rest for the code and stacks of kernels\n"
               "                 PCI 0000:04:00.0, GPU-1\n"
               "                 cuda:1: a slice, 20.0 GiB, 19.0 GiB free, compute capability 8.6\n"
               "                 at most 18.0 GiB for the arena of a run, the rest for the code and stacks of kernels\n"
               "                 PCI unknown, MIG-2, a MIG slice: a part of its card\n"
               "  cuda           driver for 13.1, runtime 12.8, cublasLt 12.3.4 (/lib/blas)\n"
               "  nccl           2.27.6 (/lib/nccl)\n" METHODS "  nvme           /drive: ext4, 3.00 TiB free\n"
               "                 device nvme7n1 (a drive), not rotating, scheduler none, 1023 requests queued at most, requests "
               "cut at 128 KiB\n"
               "                 O_DIRECT works, aligned to 512 (offset) and 8 (memory) bytes; buffers can be registered with "
               "io_uring\n"
               "                 to change: raise something.\n"
               "  nvme           /missing: there is no such directory\n");
}

/* Each limit has a line, which says what to do. */
TEST_SETUP(limits_of_wsl_and_of_gpus_are_named, setup, teardown)
{
    here.release = "5.15.167.4-microsoft-standard-WSL2";
    here.gpus.gpus[0].memory = ST_MEMORY_UNIFIED;
    here.gpus.gpus[1].memory = ST_MEMORY_COHERENT;
    here.gpus.gpus[1].lacks_bf16 = true;
    holds(NULL, NULL, NULL, "  wsl            memory is what .wslconfig gives (memory=), half of Windows's where it is silent\n");
    holds(NULL, NULL, NULL, "Windows bounds how much of it can be pinned");
    holds(NULL, NULL, NULL, "Windows's drives below /mnt are 9p");
    holds(NULL, NULL, NULL, "its memory is the host's: one budget for both");
    holds(NULL, NULL, NULL, "its memory and the host's are joined by more than PCIe");
    holds(NULL, NULL, NULL, "no bf16, which needs compute capability 8.0: train in fp16 (fp16.enabled)\n");
    holds("--json", NULL, NULL, "\"wsl\":2,");
    holds("--json", NULL, NULL, "\"memory_kind\":\"unified\",\"bf16\":true");
    holds("--json", NULL, NULL, "\"memory_kind\":\"coherent\",\"bf16\":false");
    here.gpus.gpus[1].usable_bytes = 0;
    holds(NULL, NULL, NULL, "no run can use it: too old, or without memory that is free\n");
    here.release = "4.4.0-19041-Microsoft";
    holds(NULL, NULL, NULL, "  wsl            version 1 has no GPU");
}

/* A container: a quota, no PSI, no GPU that can be used, memory that is no disk's. */
TEST_SETUP(what_a_machine_lacks, setup, teardown)
{
    here.quota = "250000 100000\n";
    here.memlock = UINT64_MAX;
    here.scope = ST_PRESSURE_NO_PSI;
    here.gpus.count = 1;
    snprintf(here.gpus.problem, sizeof(here.gpus.problem), "it is too old");
    here.gpus.driver = 0;
    here.gpus.blas[0] = here.gpus.nccl[0] = '\0';
    snprintf(here.gpus.nccl_problem, sizeof(here.gpus.nccl_problem), "no library");
    here.dir = (struct st_dir_report){.filesystem = "tmpfs", .free_bytes = 1 << 20};
    prints("--nvme", "/memory", NULL,
           "strata " STRATA_VERSION_STRING "\n"
           "  system         System 1.2 arch\n"
           "  cpu            a processor, 3 usable cores\n"
           "  numa           node 0: 16.0 GiB, cores 0-3\n"
           "                 node 1: 16.0 GiB, cores 4-5\n"
           "  workers        3: a quota of processor time allows 3; on any core of their node\n"
           "  isa found      avx2 avx512_bf16\n"
           "  kernels used   widest\n"
           "  memory         24.0 GiB, 20.0 GiB available\n"
           "  memlock limit  unlimited\n"
           "  memory stalls  unknown: this system has no PSI\n"
           "  gpu            cuda:0: a card, 80.0 GiB, 79.0 GiB free, compute capability 9.1\n"
           "                 at most 78.0 GiB for the arena of a run, the rest for the code and stacks of kernels\n"
           "                 PCI 0000:04:00.0, GPU-1\n"
           "                 not usable: it is too old\n"
           "  cuda           no driver, runtime 12.8, cublasLt not found\n"
           "  nccl           none: no library\n" METHODS "  nvme           /memory: tmpfs, 1.00 MiB free\n"
           "                 device: none that this system reports\n"
           "                 O_DIRECT does not work; buffers cannot be registered with io_uring\n");
    here.gpus = (struct st_gpu_report){.problem = "there is no driver"};
    here.dir.disk = (struct st_disk_report){.name = "sda", .rotational = true};
    holds("--nvme", "/memory", NULL, "  gpu            none: there is no driver\n" METHODS);
    holds("--nvme", "/memory", NULL, "\n                 device sda, rotating\n");
}

TEST_SETUP(rates_and_links, setup, teardown)
{
    here.ranks = 3;
    holds("--measure", "--nvme", "/missing",
          "\n  nvme           /missing: there is no such directory\n"
          "  measured       matmul 21000.0 GFLOP/s, block 20000.0 GFLOP/s, head 19000.0 GFLOP/s, upload 25.00 GB/s, download "
          "26.00 GB/s, update 2000 M parameters/s (fetched evenly), checksum 41.0 GB/s\n"
          "                 the device's own memory: 3000 GB/s, read and written\n"
          "                 from one op's end to the next one's start 23.0 us, 4.0 us to launch one\n"
          "                 disk: read 7.00 GB/s, write 6.00 GB/s, both at once 5.00 GB/s, a small read 81 us\n"
          "  links          ranks 0 and 1: 11.00 GB/s each way at once\n"
          "                 ranks 0 and 2: 12.50 GB/s each way at once\n"
          "                 ranks 1 and 2: 13.00 GB/s each way at once\n"
          "                 2 ranks of a machine together: 14.00 GB/s to each, 0.16 ms an exchange\n"
          "                 between machines: 15.00 GB/s to each, 1.7 ms an exchange\n");
    here.ranks = 1;
    here.rates = (struct st_rates){
        .matmul_flops = 1e11, .upload = 2e9, .download = 3e9, .staged = true, .update = 4e8, .checksum = 5e9, .handover = 6e-6};
    holds("--measure", NULL, NULL,
          METHODS
          "  measured       matmul 100.0 GFLOP/s, block not (too large, or too slow, for a probe), head not (too large, or too "
          "slow, for a probe), upload 2.00 GB/s, download 3.00 GB/s (host memory cannot be pinned), update 400 M "
          "parameters/s, checksum 5.0 GB/s\n"
          "                 from one op's end to the next one's start 6.0 us\n");
}

/* A directory that is named again is no second drive, however often: a run has it once, too. */
TEST_SETUP(a_directory_is_measured_once, setup, teardown)
{
    free(info("--measure", "--nvme=/a", "--nvme=/a"));
    assert_int_equal(here.measured_dirs, 1);
    free(info("--measure", "--nvme=/a", "--nvme=/b"));
    assert_int_equal(here.measured_dirs, 2);
}

#define CPU_JSON                                                                                                                 \
    "\"cpu\":{\"name\":\"a processor\",\"usable_cores\":6,\"numa_nodes\":2,\"nodes\":[{\"node\":0,\"memory_bytes\":17179869184," \
    "\"cores\":\"0-3\"},{\"node\":1,\"memory_bytes\":17179869184,\"cores\":\"4-5\"}],\"workers\":4,\"quota\":false,"             \
    "\"worker_cores\":\"0-3\",\"isa_found\":[\"avx2\",\"avx512_bf16\"],\"kernels_used\":\"widest\"}"

TEST_SETUP(json_has_all_of_it, setup, teardown)
{
    prints("--json", "--nvme=/drive", "--threads=4",
           "{\"version\":\"" STRATA_VERSION_STRING "\",\"wsl\":0," CPU_JSON ",\"memory_bytes\":25769803776,"
           "\"memory_available_bytes\":21474836480,\"memlock_bytes\":8388608,\"psi_scope\":\"control group\",\"gpu\":\"a card\","
           "\"gpus\":[{\"device_name\":\"a card\",\"pci_bus_id\":\"0000:04:00.0\",\"uuid\":\"GPU-1\",\"mig_slice\":false,"
           "\"memory_bytes\":85899345920,\"memory_free_bytes\":84825604096,\"memory_usable_bytes\":83751862272,"
           "\"compute_major\":9,\"compute_minor\":1,\"memory_kind\":\"own\",\"bf16\":true},{\"device_name\":\"a "
           "slice\",\"pci_bus_id\":null,\"uuid\":\"MIG-2\","
           "\"mig_slice\":true,\"memory_bytes\":21474836480,\"memory_free_bytes\":20401094656,"
           "\"memory_usable_bytes\":19327352832,\"compute_major\":8,\"compute_minor\":6,\"memory_kind\":\"own\",\"bf16\":true}],"
           "\"cuda_driver\":13010,"
           "\"cuda_runtime\":12080,\"cublaslt\":\"/lib/blas\",\"cublaslt_version\":120304,\"nccl\":\"/lib/nccl\","
           "\"nccl_version\":22706,\"nccl_problem\":null,\"io_methods\":[{\"name\":\"first\",\"usable\":false,\"automatic\":"
           "false,\"why\":\"the kernel has none\"},{\"name\":\"second\",\"usable\":true,\"automatic\":true,\"why\":null},"
           "{\"name\":\"third\",\"usable\":true,\"automatic\":false,\"why\":null}],\"nvme\":[{\"dir\":\"/drive\","
           "\"filesystem\":\"ext4\",\"free_bytes\":3298534883328,\"writable\":true,\"direct_offset_alignment\":512,"
           "\"direct_memory_alignment\":8,\"direct_works\":true,\"registers\":true,\"device\":{\"name\":\"nvme7n1\",\"model\":"
           "\"a drive\",\"rotational\":false,\"scheduler\":\"none\",\"nr_requests\":1023,\"max_sectors_kb\":128},\"problem\":"
           "null,\"advice\":\"raise something.\"}]}\n");
    here.memlock = UINT64_MAX;
    here.scope = ST_PRESSURE_OF_MACHINE;
    snprintf(here.gpus.problem, sizeof(here.gpus.problem), "it is too old");
    here.gpus.blas[0] = here.gpus.nccl[0] = '\0';
    snprintf(here.gpus.nccl_problem, sizeof(here.gpus.nccl_problem), "no library");
    holds("--json", NULL, NULL, "\"memlock_bytes\":null,\"psi_scope\":\"machine\",\"gpu\":\"none: it is too old\",\"gpus\":[{\"");
    holds("--json", NULL, NULL,
          "\"cublaslt\":null,\"cublaslt_version\":120304,\"nccl\":null,\"nccl_version\":22706,"
          "\"nccl_problem\":\"no library\",");
    here.ranks = 3;
    holds("--json", "--measure", NULL,
          "\"matmul_flops\":21000000000000,\"block_flops\":20000000000000,\"head_flops\":19000000000000,");
    holds("--json", "--measure", NULL,
          "},\"links\":[{\"rank\":0,\"other\":1,\"bytes_per_second\":11000000000},{\"rank\":0,\"other\":2,\"bytes_per_second\":"
          "12500000000},{\"rank\":1,\"other\":2,\"bytes_per_second\":13000000000}]}\n");
}

/* The links that ranks have measured become rates: of machines with fewer ranks than there are, also how many. */
TEST_SETUP(links_become_rates, setup, teardown)
{
    here.ranks = 3;
    here.rates.link_node = here.rates.link_nodes = 1; /* of no one */
    holds("--json", "--measure", NULL,
          "\"link_node\":14000000000,\"link_nodes\":15000000000,\"latency_node\":0.00016,"
          "\"latency_nodes\":0.0017,\"ranks_per_node\":2");
    here.links.here = 3;
    here.links.link_nodes = here.links.latency_nodes = 0;
    {
        char *text = info("--json", "--measure", NULL);

        assert_non_null(strstr(text, "\"link_node\":14000000000,\"latency_node\":0.00016"));
        assert_null(strstr(text, "link_nodes"));
        assert_null(strstr(text, "ranks_per_node"));
        free(text);
    }
}
