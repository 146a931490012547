/* bench/bench.h - what the benches share: rows, tables and JSON lines, and the functions behind `strata bench NAME`.
 *
 * Every rate stands beside a roof measured in the same run, turn by turn.  One thread calls. */
#ifndef BENCH_BENCH_H
#define BENCH_BENCH_H

#include "offload/config/config.h"
#include "offload/engine/engine.h"
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>

#define BENCH_REPEATS_MAX 1000u

struct bench_row {
    const char *name, *variant;
    uint64_t bytes;                 /* moved by one repeat; 0: not a matter of bytes */
    double seconds;                 /* of one repeat: the least; where a disk takes part, the median */
    double roof_gb_per_s;           /* NaN: none */
    double ratio;                   /* attained / roof, of the same run; NaN: none */
    const char *const *extra_names; /* more numbers of this bench; [extra_count] */
    const double *extra;
    uint32_t extra_count;
    uint32_t extra_hidden; /* so many of the last ones are in JSON alone */
    const char *bound_by;  /* which roof is the lowest; NULL: there is one */
};

struct bench_printer {
    FILE *file;
    bool json;
    uint32_t rows;
};

/** A row as a line of a table (with a heading before the first) or as one JSON object: name, variant, bytes, seconds,
 *  gb_per_s, roof_gb_per_s, ratio, then the extra ones and bound_by.  Rows of one printer have the same extra names or none; the
 * first row has all. */
void bench_print(struct bench_printer *p, const struct bench_row *row);

/* What the caller lends a bench; each may be NULL. */
struct bench_hooks {
    void (*child)(pid_t); /* a process to kill when this one is ended by a signal; 0: none any more */
    FILE *progress;       /* a line that is rewritten */
};

/* Options of all benches; 0 and NULL: the bench's default. */
struct bench_opts {
    bool json;
    uint32_t threads, repeats; /* repeats: at most BENCH_REPEATS_MAX */
    uint64_t params;           /* update: parameters */
    const uint64_t *sizes;     /* optim: parameters of each tensor, rounded up to whole blocks; [size_count] */
    uint32_t size_count;
    const char *const *layouts; /* optim: names (bench/roofs/layouts.h), several in one with commas; none: all */
    uint32_t layout_count;
    uint64_t bytes;           /* link: of one copy */
    const char *device;       /* link: "cpu", "cuda", "cuda:N"; NULL: cpu */
    const char *isa;          /* "auto" */
    const char *const *dirs;  /* update: NVMe directories; none: state in memory */
    uint32_t dir_count;       /* the first is used */
    const char *const *likes; /* update: schemes beside ours, "zero-infinity", "mlp-offload"; [like_count] */
    uint32_t like_count;
    const char *io_method; /* "auto" */
    double seconds_max;    /* update: no further repeat begins after this; 0: its default */
    struct bench_hooks hooks;
};

/** The optimizer kernels over each state layout against the lower of memory's and arithmetic's roof.
 *  These three: E_INVAL (an instruction set, layout, directory or method that is not there), E_NOFIT (memory or disk), E_NOMEM,
 *  I/O errors. */
strata_status bench_optim(const struct bench_opts *opts, FILE *out);
/** Host to device and back through the device table, alone and both ways, against bare copies of the same bytes.  E_NOSYS: the
 * device is not there. */
strata_status bench_link(const struct bench_opts *opts, FILE *out);
/** The update of a whole state that lies in memory or on NVMe, by the engine, against the slowest of disk, memory and compute. */
strata_status bench_update(const struct bench_opts *opts, FILE *out);

#define BENCH_BUDGETS_MAX 8u

/* A capacity of the device's memory. */
struct bench_budget {
    const char *name; /* as it was asked for */
    uint64_t bytes;
};

/* A training step of a workload under each schedule. */
struct bench_step_opts {
    bool json;
    const struct st_workload *workload;
    const struct st_config *config;   /* its policy, and what the engine takes from it */
    const struct st_machine *machine; /* that is rehearsed: capacities and rates */
    const struct st_topology *topology;
    const char *device;        /* "cpu", "paced", "cuda", "cuda:N"; NULL: predict alone */
    struct st_compute compute; /* cpu, cuda: the model's, with its weights */
    st_engine_fill_fn *fill;
    void *fill_ctx;
    uint32_t steps; /* measured of each schedule; at most BENCH_REPEATS_MAX */
    uint64_t fake_seed;
    uint32_t fake_latency_us;
    double load;                        /* compute takes so many times what the rest of the step takes; 0: as the machine says */
    bool only;                          /* the config's own schedule */
    const struct bench_budget *budgets; /* several: the config's own schedule with each, in turns; none or one: the machine's */
    uint32_t budget_count;              /* at most BENCH_BUDGETS_MAX */
    struct bench_hooks hooks;
};
/** Predicted and measured steps against the schedule's bound and the hardware's, model FLOPs against the device's matmul, copies
 *  against links; rates probed before, between and after the steps.  Errors as above. */
strata_status bench_step(const struct bench_step_opts *opts, FILE *out);

#define BENCH_IO_BLOCK_MAX (64u << 20)
#define BENCH_IO_DEPTH_MAX 1024u

/* Requests to the drive; 0 and NULL: the default. */
struct bench_io_opts {
    bool json;
    const char *const *dirs; /* at least one, at most 8 */
    uint32_t dir_count;
    const char *const *patterns; /* fio's names and "optimizer", several in one with commas; none: all */
    uint32_t pattern_count;
    const uint64_t *blocks; /* bytes of a request, multiples of 4096 up to BENCH_IO_BLOCK_MAX; none: 1 MiB */
    uint32_t block_count;
    const uint64_t *depths; /* requests in flight per directory, 1..BENCH_IO_DEPTH_MAX; none: 32 */
    uint32_t depth_count;
    const char *const *methods; /* none: "auto" */
    uint32_t method_count;
    uint64_t bytes; /* of the file in each directory */
    double seconds; /* of each row and repeat */
    uint32_t repeats;
    bool unregistered, poll_device, poll_kernel; /* as in nvme/method/io.h */
    bool fio;                                    /* run fio beside us */
    struct bench_hooks hooks;
};
/** Rates, latencies and processor time of reads and writes by each method.  Errors as above. */
strata_status bench_io(const struct bench_io_opts *opts, FILE *out);
/** Print the job file of what bench_io would let fio do; touches nothing. */
strata_status bench_io_fio_job(const struct bench_io_opts *opts, FILE *out);

struct bench_tune_opts {
    const char *const *dirs; /* at least one, at most 8 */
    uint32_t dir_count;
    const char *method; /* NULL: the preferred one, and those that are clearly faster */
    uint64_t bytes;     /* as in bench_io_opts; 0: 512 MiB in all */
    double seconds;     /* of each point; 0: 0.5 */
    struct bench_hooks hooks;
};
struct bench_tuned {
    uint32_t block_bytes, queue_depth; /* depth: of each directory */
    const char *method;                /* static text */
    bool method_is_auto;               /* it is what "auto" takes */
};
/** Search request size and depth with the update's pattern; the table of what was measured and the reason go to `report`. */
strata_status bench_tune(struct bench_tuned *out, const struct bench_tune_opts *opts, FILE *report);

#endif
