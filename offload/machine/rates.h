/* offload/machine/rates.h - a machine's capacities and rates.
 *
 * Capacities decide what can be placed where.  Rates feed figures and predictions, and choose among the plans that fit the
 * capacities (st_plan_evaluate()).
 *
 * Where several ranks train on one machine, a node, a machine file tells what the node has for all of them, but of the device and
 * its link what each has.  st_machine_share() makes of it what one rank has. */
#ifndef OFFLOAD_MACHINE_RATES_H
#define OFFLOAD_MACHINE_RATES_H

#include "offload/compute.h"
#include "strata/status.h"
#include "strata/types.h"

#include <stdbool.h>
#include <stdint.h>

#define ST_MACHINE_DIRS_MAX 8u
#define ST_MACHINE_PATH_MAX 512u

/* A card multiplies about this often for each byte that its memory moves, both as attained: what a machine file without `memory`
 * stands for.  H100: 620e12 / 2.9e12 = 214; RTX 4090: 132e12 / 0.92e12 = 143. */
#define ST_MACHINE_FLOPS_PER_BYTE 150.0

struct st_capacity {
    uint64_t bytes[STRATA_TIER_COUNT];       /* that may be used; nvme 0: no directory given */
    char nvme_tightest[ST_MACHINE_PATH_MAX]; /* directory whose free bytes limit bytes[NVME]; "": none is known */
    uint64_t device_beside; /* GPU memory that driver and libraries may take beside bytes[DEVICE]; 0: none, or unknown */
    uint32_t workers;
    bool device_is_host; /* cpu device: its arena is RAM, and compute, copies and updates share the cores */
    bool unified;        /* a GPU with queues and cores of its own, whose memory is the host's: nothing is offloaded to that */
    bool lacks_bf16;     /* of a GPU: fp16 and fp32 alone */
};

struct st_rates {
    uint32_t drives;                       /* number of drives whose sum read, write and mixed are; 0: one */
    double matmul_flops;                   /* per second, the workload's dtype; hardware bound; 0: unknown */
    double block_flops;                    /* per second over a whole block, norms and attention included; 0: matmul_flops */
    double experts_flops;                  /* per second over slices of experts; 0: block_flops */
    double head_flops;                     /* per second over a slice of the head, softmax included; 0: block_flops */
    double memory;                         /* bytes per second that a device's own passes read and write in memory of its own;
                                              0: they take no time, as on a device that is the host, where workers make them */
    double upload, download;               /* bytes per second */
    bool staged;                           /* these two are of host memory that could not be pinned */
    double read, write, mixed;             /* bytes per second */
    double update;                         /* parameters per second, state in memory */
    bool update_even;                      /* which fetches evenly (enum st_fetch) */
    double checksum;                       /* bytes per second, in cache, all workers; predictions; 0: takes no time */
    double link_node;                      /* bytes per second that a rank receives from peers in its node while it sends as many;
                                              0: as `upload`, since without links of their own devices meet in host memory */
    double link_nodes;                     /* the same of a whole node from other nodes, shared by its ranks; 0: takes no time */
    double latency_node, latency_nodes;    /* seconds of an exchange beside its bytes, within a node and between nodes */
    uint32_t node_ranks;                   /* ranks of a node; 0: as many as there are */
    uint32_t dir_count;                    /* of dir_rates; 0: not known, or one directory */
    double dir_rates[ST_MACHINE_DIRS_MAX]; /* bytes per second of each NVMe directory alone; how much of the swap each holds */
    /* Seconds: from the end of an op that a queue or another thread runs until one that waits for it begins; the same of a
     * transfer to or from the drives, with what that takes beside its bytes; of an op on a queue of the device beside its work.
     * 0: none. */
    double handover, latency_io, launch;
};

struct st_staged;

struct st_machine {
    char name[64];
    struct st_capacity capacity;
    struct st_rates rates;
};

/** E_CONFIG, with the sentence for a run in bf16 on a GPU that lacks it. */
strata_status st_machine_no_bf16(void);
/** Seconds of an amount; a rate that is 0 takes no time. */
double st_seconds_at(double amount, double rate);
/** Leave one rank's part of what so many share: of a node's host memory, drives and workers, and their rates; on a device that is
 *  the host of that, too.  Links of the device and those between ranks stay as they are. */
void st_machine_share(struct st_machine *machine, uint32_t ranks);
/** The same of rates alone. */
void st_rates_share(struct st_rates *rates, bool device_is_host, uint32_t ranks);
/** Ranks of a world that are on one node. */
uint32_t st_node_ranks(const struct st_rates *rates, uint32_t ranks);
/** Seconds in which each of so many ranks receives `bytes` from all others, equally many from each: those from its node and those
 *  from other nodes come at the same time.  Without latency. */
double st_comm_seconds(const struct st_rates *rates, uint32_t ranks, double bytes);
/** Seconds of an exchange beside its bytes: messages to different ranks are under way together, so it is that of the farthest. */
double st_comm_latency(const struct st_rates *rates, uint32_t ranks);
/** Slow the links down as far as the memory of a run is not pinned: its `bytes` of host memory count as copied evenly. */
void st_rates_stage(struct st_rates *rates, uint64_t bytes, const struct st_staged *staged);
/** Seconds that a device with these rates computes for a call: a block's FLOPs at block_flops (else matmul_flops), those of
 *  experts at experts_flops and of the head at head_flops (else as a block's).  The passes of a block or slice beside its
 * products are part of these rates. */
double st_call_seconds(const struct st_layer *layer, const struct st_rates *rates, enum st_call_kind kind, bool recompute);
/** Bytes that a call without FLOPs of its own (positions, the final norm, losses) reads and writes; 0 for the others. */
double st_call_bytes(const struct st_workload *w, enum st_call_kind kind);

#endif
