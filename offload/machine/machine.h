/* offload/machine/machine.h - describes the machine that a plan is for: capacities from budgets, and rates measured or read from
 * a file. */
#ifndef OFFLOAD_MACHINE_MACHINE_H
#define OFFLOAD_MACHINE_MACHINE_H

#include "core/base/size.h"
#include "core/system/file.h"
#include "kernels/kernels.h"
#include "nvme/swap/swap.h"
#include "offload/compute.h"
#include "offload/machine/rates.h"

struct st_topology;
struct st_json_writer;

/* What an automatic host budget sets aside for the process itself: what it needs beside the arenas. */
#define ST_MACHINE_FIXED_BYTES (UINT64_C(96) << 20)

/* What is set aside in addition beside a GPU: the file of cublasLt, of which every page that was read counts (516 MiB in
 * CUDA 13.0), and, as a guess, as much again for the driver's context and the kernels it keeps for loading.  `strata bench step`
 * prints what a run used: peak_rss_mb, planned_rss_mb. */
#define ST_MACHINE_GPU_BYTES (UINT64_C(1) << 30)

/* What a run may use of this machine.  Borrowed during a call. */
struct st_machine_opts {
    const struct st_topology *topology;
    const char *device;                  /* by name (offload/device/device.h); NULL: "cpu" */
    uint64_t device_memory, host_memory; /* budgets, the host's of all processes of a run here; ST_AUTO_BYTES: what is free */
    uint32_t threads;                    /* workers; 0: see st_machine_workers() */
    const char *isa;                     /* kernels: a name, or "auto" */
    enum st_fetch fetch;                 /* of the update to measure; auto: the faster one */
    enum st_rule rule;                   /* with the format of its moments: the update to measure */
    enum st_moment_format moments;
    uint64_t device_deadline_ns; /* see st_device_opts.deadline_ns */
    struct st_nvme_opts nvme;    /* directories, method and block */
};

/** Workers of a run on a device (by name; NULL: "cpu") for which `threads` are asked for; for 0 one for each usable core.  On a
 *  device with memory and queues of its own one or two cores stay free for the threads beside the workers: the one that hands out
 *  ops, those that wait for the queues and make staged copies, the mover of the swap.  Of 4 to 7 cores one, of 8 or more two; of
 *  2 or 3 none, since there a worker more is worth more (an update of two workers on two cores is 4 to 5 % faster). */
uint32_t st_machine_workers(const struct st_topology *topology, const char *device, uint32_t threads);

/** Memory of which automatic budgets are parts: the smaller of the limit and what is free. */
uint64_t st_machine_available(const struct st_topology *topology);

/** The host's automatic budget: 80 % of what is available, less the fixed part and what the device takes beside it. */
uint64_t st_machine_host_budget(uint64_t available, uint64_t beside);
/** Of the host's automatic budget, what a GPU gets whose memory is the host's: all but an eighth, since the host only passes on
 *  what is read and saved. */
uint64_t st_machine_unified_budget(uint64_t host_budget);
/** That of a cpu device, whose memory is the host's: half of what is available; where little is, three quarters of what
 *  the two have together. */
uint64_t st_machine_device_budget(uint64_t available);

/** Capacities for this process: its budgets; auto: host 80 % of the smaller of cgroup limit and available memory, less the fixed
 * part, less what a cpu device takes; device auto: half of available memory on a cpu device.  nvme: what the directories hold in
 * equal parts.  A device with its own memory takes none of the host's; auto: its free memory, less what its library and driver
 * need.  Of the host's memory and the drives each process that shares them (core/system/topology.h) has an equal part.  E_NOSYS:
 * there is no such device, with the reason. */
strata_status st_machine_here(struct st_machine *out, const struct st_machine_opts *opts);

enum st_measure {
    ST_MEASURE_COMPUTE = 1, /* matmul at the workload's shapes on the workers; a block forward and backward; a head slice */
    ST_MEASURE_LINKS = 2,   /* copies, over the link and within a device's own memory */
    ST_MEASURE_UPDATE = 4,  /* updates, checksums */
    ST_MEASURE_DISK = 8,    /* the NVMe directories, each alone and all together; nothing with the fake method */
    ST_MEASURE_ALL = 15
};

/** A short measurement (about three seconds for everything, half of that on a device with queues). Fills in the rates of
 *  *machine; if a probe fails, its rate stays 0, with a warning in the log.
 *  @param compute  runs the block, then the head's slice, each on buffers of at most 1 GiB (4 in a device's own memory, and half
 * of what is free there) and a quarter of the device's capacity; if a probe needs more, or takes over five seconds, or compute is
 * NULL, block_flops, experts_flops and head_flops stay as they are.
 *  @param what  of st_measure. Matmuls, the block and copies (from memory that it pins) are the device's own; without COMPUTE and
 *  LINKS it is not opened. Always OK except for E_NOMEM, E_INVAL (the requested workers or kernels are not available), a
 *  device that does not open, and E_IO: the device was lost, and no more of it was measured. */
strata_status st_machine_measure(struct st_machine *machine, const struct st_workload *workload, const struct st_compute *compute,
                                 const struct st_machine_opts *opts, unsigned what);

/* The highest rate of a device's own matmul. */
struct st_matmul_ceiling {
    double flops;  /* per second */
    uint32_t size; /* of the square matrices that reached it */
};
/** The best rate of products of large square matrices of a dtype: a step's model FLOPs are compared with it.  Sizes double up to
 *  16384 on a device with memory of its own, 2048 on others, as long as a product takes less than a second; the best of the
 * largest three, about half a second.  E_NOFIT, E_DEVICE_OOM: no room for it; errors of st_machine_measure(). */
strata_status st_machine_matmul_ceiling(struct st_matmul_ceiling *out, strata_dtype dtype, const struct st_machine_opts *opts);

/** Machine file (JSON): {"name", "device_bytes", "host_bytes", "nvme_bytes", "workers", "device_is_host", "unified",
 * "lacks_bf16", "drives", "matmul_flops", "block_flops", "experts_flops", "head_flops", "memory", "upload", "download", "read",
 * "write", "mixed", "update", "update_even", "checksum", "link_node", "link_nodes", "latency_node", "latency_nodes", "handover",
 * "latency_io", "launch", "ranks_per_node", "dir_rates"}; rates in units per second, latencies in seconds; absent ones stay 0,
 * but for `memory` of a device that is not the host, which then follows from matmul_flops (ST_MACHINE_FLOPS_PER_BYTE); dir_rates,
 * a list, is only there with several directories. E_INPUT: missing or wrong.
 */
strata_status st_machine_read(struct st_machine *out, const char *path);
/** Write it to a file that was begun, and commit that; on failure nothing is left. */
strata_status st_machine_write(const struct st_machine *machine, struct st_new_file *file);
/** Write the same keys into an open object; unknown values (0) are left out. */
void st_machine_put_fields(const struct st_machine *machine, struct st_json_writer *w);

#endif
