/* bench/bench.h - shared by the benches: rows, tables and JSON lines, and the functions behind `strata bench NAME`.
 *
 * Every rate is compared with a roof that was measured in the same run, in turns.  All calls come from one thread. */
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
    uint64_t bytes;                 /* moved by one repeat; 0: bytes are not what is measured */
    double seconds;                 /* of one repeat: the minimum; if a disk takes part, the median */
    double roof_gb_per_s;           /* NaN: none */
    double ratio;                   /* attained / roof, both from this run; NaN: none */
    const char *const *extra_names; /* more numbers of this bench; [extra_count] */
    const double *extra;
    uint32_t extra_count;
    uint32_t extra_hidden; /* this many of the last ones appear in JSON only */
    const char *bound_by;  /* which roof is the lowest; NULL: there is only one */
};

struct bench_printer {
    FILE *file;
    bool json;
    uint32_t rows;
};

/** A row as a line of a table (with a heading before the first) or as one JSON object: name, variant, bytes, seconds, gb_per_s,
 *  roof_gb_per_s, ratio, then the extra ones and bound_by.  All rows of one printer have the same extra names or none; the first
 *  row has all of them. */
void bench_print(struct bench_printer *p, const struct bench_row *row);

/* Callbacks and streams that the caller provides; each may be NULL. */
struct bench_hooks {
    void (*child)(pid_t); /* a child process to kill when a signal ends this process; 0: none any more */
    FILE *progress;       /* where a progress line is rewritten */
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
    uint64_t bytes;           /* link: bytes of one copy */
    const char *device;       /* link: "cpu", "cuda", "cuda:N"; NULL: cpu */
    const char *isa;          /* "auto" */
    const char *const *dirs;  /* update: NVMe directories; none: state in memory */
    uint32_t dir_count;       /* the first is used */
    const char *const *likes; /* update: schemes to compare with, "zero-infinity", "mlp-offload"; [like_count] */
    uint32_t like_count;
    const char *io_method; /* "auto" */
    double seconds_max;    /* update: no repeat begins after this; 0: its default */
    struct bench_hooks hooks;
};

/** Compares the optimizer kernels on each state layout with the lower of the memory and arithmetic roofs.  This and the next two
 *  return E_INVAL (an instruction set, layout, directory or method that does not exist), E_NOFIT (memory or disk), E_NOMEM, or
 *  I/O errors. */
strata_status bench_optim(const struct bench_opts *opts, FILE *out);
/** Compares copies to and from the device through the device table, each way and both at once, with bare copies of the same
 *  bytes.  E_NOSYS: there is no such device. */
strata_status bench_link(const struct bench_opts *opts, FILE *out);
/** Compares the engine's update of a whole state, in memory or on NVMe, with the slowest of disk, memory and compute. */
strata_status bench_update(const struct bench_opts *opts, FILE *out);

#define BENCH_BUDGETS_MAX 8u

/* A capacity of the device's memory. */
struct bench_budget {
    const char *name; /* as the user gave it */
    uint64_t bytes;   /* ST_AUTO_BYTES: all that the machine has */
};

struct strata_plan;

/* A training step of a model under each schedule. */
struct bench_step_opts {
    bool json;
    const struct strata_plan *plan; /* of the model on the machine to rehearse, for the largest of the budgets */
    const char *machine;            /* its file, for sentences; NULL: it is this one */
    const char *device;             /* "cpu", "paced", "cuda", "cuda:N"; NULL: only predict */
    uint64_t seed;                  /* of the weights */
    uint32_t steps;                 /* steps to measure of each schedule; at most BENCH_REPEATS_MAX */
    uint64_t fake_seed;
    uint32_t fake_latency_us;
    double load; /* scale compute to take this many times as long as the rest of the step; 0: use the machine's rates */
    bool only;   /* only the config's own schedule */
    bool ops;    /* also time every call of the device's ops: not if paced */
    const char *beside; /* another policy of updates, in turns with the config's own; NULL: none */
    double clip_rate;   /* share of steps whose early updates are made again, as if they had been clipped */
    const struct bench_budget *budgets; /* several: the config's own schedule with each, in turns; else the machine's budget */
    uint32_t budget_count;              /* at most BENCH_BUDGETS_MAX */
    struct bench_hooks hooks;
};
/** Compares predicted and measured steps with the bounds of schedule and hardware, model FLOPs with the device's matmul, and
 *  copies with the links; probes rates before, between and after the steps.  Errors as above. */
strata_status bench_step(const struct bench_step_opts *opts, FILE *out);

#define BENCH_IO_BLOCK_MAX (64u << 20)
#define BENCH_IO_DEPTH_MAX 1024u

/* Options of bench io; 0 and NULL: the default. */
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
    bool fio;                                    /* also run fio */
    struct bench_hooks hooks;
};
/** Measures rates, latencies and processor time of reads and writes by each method.  Errors as above. */
strata_status bench_io(const struct bench_io_opts *opts, FILE *out);
/** Print the fio job file that corresponds to what bench_io would run; creates no files. */
strata_status bench_io_fio_job(const struct bench_io_opts *opts, FILE *out);

struct bench_tune_opts {
    const char *const *dirs; /* at least one, at most 8 */
    uint32_t dir_count;
    const char *method; /* NULL: the preferred one, and any others that are clearly faster */
    uint64_t bytes;     /* as in bench_io_opts; 0: 512 MiB in all */
    double seconds;     /* of each point; 0: 0.5 */
    struct bench_hooks hooks;
};
struct bench_tuned {
    uint32_t block_bytes, queue_depth; /* depth: of each directory */
    const char *method;                /* static text */
    bool method_is_auto;               /* the method is the one that "auto" chooses */
};
/** Search request size and depth with the update's pattern; writes the table of measurements and the reason for the choice to
 *  `report`. */
strata_status bench_tune(struct bench_tuned *out, const struct bench_tune_opts *opts, FILE *report);

#endif
