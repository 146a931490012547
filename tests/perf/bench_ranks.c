/* tests/perf/bench_ranks.c - how much of a step's exchanges, copies, updates and I/O hide behind a GPU's computation, of several
 * ranks: a step of the paced device by its schedule bound.
 *
 * Each rank is a thread of this program with an engine, a worker and a paced device of its own; they exchange by a comm that is
 * never faster than the links of the machine file.  ZeRO 3: weights in host memory, gathered for forward and for backward; state
 * there too, then on the drive.  Compute takes 0.5, 1 and 2 times as long as the busiest other resource.  The rates of updates
 * and of the drive, which the ranks share, are probed on all ranks at once, before the engines and four times between steps;
 * their medians give the bound, the first probe the prediction.
 *
 *     bench_ranks MACHINE.json DIR [STEPS [RANKS]]      DIR: on the drive; 6 GB are used, then deleted */
#include "core/base/print.h"
#include "core/base/rng.h"
#include "core/system/thread.h"
#include "core/system/topology.h"
#include "offload/comm/comm.h"
#include "offload/config/config_options.h"
#include "offload/device/paced/device_paced.h"
#include "offload/plan/plan.h"
#include "offload/simulate/figures.h"
#include "offload/simulate/simulate.h"

#include "model/model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RANKS_MAX   4u
#define STEPS_MAX   100u
#define SEQ         512u
#define VOCAB       4096u
#define WARM_UPS    2u /* the first step has no update pending, and the second has a cold disk */
#define PROBES      5u
#define DEVICE      (UINT64_C(300) << 20)
#define HOST_MEMORY (UINT64_C(4) << 30)
#define HOST_DRIVE  (UINT64_C(1) << 30)

struct job {
    const char *machine_file, *dir, *tier;
    double load;
    uint32_t ranks, steps;
    struct rank *all;
    pthread_barrier_t together;
};

struct rank {
    struct job *job;
    uint32_t index;
    struct st_comm *comm;
    struct st_topology *topology;
    struct st_config config;
    struct st_config_source *source;
    struct st_model *model;
    struct st_machine machine;      /* all ranks' alike */
    struct st_rates probed[PROBES]; /* this rank's */
    struct st_plan *plan;
    struct st_engine *engine;
    struct st_paced_model paced;
    double seconds[STEPS_MAX], comm_ms;
    pthread_t thread;
};

static void need(strata_status st, const char *what)
{
    if (st == STRATA_OK)
        return;
    st_print(stderr, "bench_ranks: %s: %s\n", what, strata_last_error());
    exit(1);
}

static void meet(struct rank *r)
{
    (void)pthread_barrier_wait(&r->job->together);
}

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return x < y ? -1 : x > y;
}

static double median(const double *values, uint32_t count)
{
    double sorted[STEPS_MAX];

    memcpy(sorted, values, count * sizeof(*values));
    qsort(sorted, count, sizeof(*sorted), ascending);
    return count % 2 == 1 ? sorted[count / 2] : (sorted[count / 2 - 1] + sorted[count / 2]) / 2;
}

/* --- what a rank is --- */

static void read_config(struct rank *r)
{
    const struct st_config_opts opts = {.ranks = r->job->ranks, .max_steps = r->job->steps};
    char text[1024];

    snprintf(
        text, sizeof(text),
        "{\"train_micro_batch_size_per_gpu\":1,\"gradient_accumulation_steps\":1,\"bf16\":{\"enabled\":true},"
        "\"zero_optimization\":{\"stage\":3,\"offload_param\":{\"device\":\"cpu\"},\"offload_optimizer\":{\"device\":\"%s\"}},"
        "\"strata\":{\"threads\":1,\"nvme\":[\"%s\"]}}",
        r->job->tier, r->job->dir);
    need(st_config_load_text(&r->config, &r->source, text, strlen(text), "bench_ranks", &opts), "configuration");
}

/* The shape of bench/overlap.sh: 346 M parameters, so that the start and the end of a step weigh little. */
static void make_model(struct rank *r)
{
    static const struct st_model_config shape = {.name = "llama-346m",
                                                 .family = ST_FAMILY_LLAMA,
                                                 .blocks = 48,
                                                 .hidden = 768,
                                                 .heads = 12,
                                                 .kv_heads = 12,
                                                 .ffn = 2048,
                                                 .vocab = VOCAB,
                                                 .context = SEQ,
                                                 .norm = ST_NORM_RMSNORM,
                                                 .norm_eps = 1e-5f,
                                                 .activation = ST_ACTIVATION_SWIGLU,
                                                 .positions = ST_POSITION_ROTARY,
                                                 .biases = ST_BIAS_NONE,
                                                 .rope_base = 10000,
                                                 .out_in = true,
                                                 .untied = true};
    const struct st_model_batch batch = {.micro_batch = 1, .seq = SEQ, .grad_accum = 1, .dtype = STRATA_BF16, .workers = 1};

    need(st_model_create(&r->model, &shape, &batch), "model");
}

static void prepare(struct rank *r)
{
    const struct st_topology_share share = {.units = r->index, .of_units = r->job->ranks, .memory = r->job->ranks};

    need(st_topology_load_share(&r->topology, &share), "cores");
    read_config(r);
    make_model(r);
    need(st_machine_read(&r->machine, r->job->machine_file), r->job->machine_file);
    r->machine.capacity.workers = 1;
    r->machine.capacity.bytes[STRATA_TIER_DEVICE] = DEVICE;
    r->machine.capacity.bytes[STRATA_TIER_HOST] = strcmp(r->job->tier, "cpu") == 0 ? HOST_MEMORY : HOST_DRIVE;
}

/* --- rates --- */

/* All ranks at once, since they share memory and drive. */
static void probe(struct rank *r, uint32_t index)
{
    struct st_machine machine = r->machine;
    struct st_machine_opts opts;

    st_config_machine_opts(&opts, &r->config);
    opts.topology = r->topology;
    opts.device = "cpu";
    meet(r);
    need(st_machine_measure(&machine, st_model_workload(r->model), NULL, &opts,
                            ST_MEASURE_UPDATE | (strcmp(r->job->tier, "cpu") == 0 ? 0 : ST_MEASURE_DISK)),
         "rates");
    r->probed[index] = machine.rates;
    meet(r);
}

static double least(const struct rank *r, uint32_t index, size_t offset)
{
    double rate = INFINITY;

    for (uint32_t i = 0; i < r->job->ranks; i++)
        rate = fmin(rate, *(const double *)(const void *)((const char *)&r->job->all[i].probed[index] + offset));
    return rate;
}

/* The slowest rank's rates, in the median of so many probes. */
static void take_rates(struct rank *r, struct st_machine *out, uint32_t probes)
{
    static const size_t offsets[] = {offsetof(struct st_rates, update), offsetof(struct st_rates, checksum),
                                     offsetof(struct st_rates, read), offsetof(struct st_rates, write),
                                     offsetof(struct st_rates, mixed)};

    *out = r->machine;
    for (size_t o = 0; o < sizeof(offsets) / sizeof(offsets[0]); o++) {
        double rates[PROBES];

        for (uint32_t p = 0; p < probes; p++)
            rates[p] = least(r, p, offsets[o]);
        *(double *)(void *)((char *)&out->rates + offsets[o]) = median(rates, probes);
    }
}

/* --- the run --- */

static void make_plan(struct rank *r, bool balanced)
{
    struct st_policy policy;

    st_config_policy(&policy, &r->config);
    policy.ranks = r->job->ranks;
    policy.rank = r->index;
    policy.stage = 3;
    need(st_plan_make(&r->plan, st_model_workload(r->model), &r->machine.capacity, &policy), "plan");
    if (balanced)
        need(st_plan_evaluate(&r->plan, &r->machine), "plan");
}

static void scale_compute(struct rank *r)
{
    struct st_rates *rates = &r->machine.rates;
    struct st_bounds t;
    double rest, factor;

    make_plan(r, false);
    st_bounds_make(&t, &r->plan->program, &r->machine);
    st_plan_destroy(r->plan);
    rest = fmax(fmax(fmax(t.io, t.update), fmax(t.upload, t.download)), t.comm);
    factor = (t.compute_forward + t.compute_backward) / (r->job->load * rest);
    rates->matmul_flops *= factor;
    rates->block_flops *= factor;
    rates->experts_flops *= factor;
    rates->head_flops *= factor;
    rates->memory *= factor;
}

static void open_comm(struct rank *r)
{
    const struct st_rates *rates = &r->machine.rates;
    const struct st_comm_pace pace = {.rate = 1e9 / st_comm_seconds(rates, r->job->ranks, 1e9),
                                      .latency = st_comm_latency(rates, r->job->ranks)};

    need(st_comm_paced_open(&r->comm, r->comm, &pace), "comm");
}

static void open_engine(struct rank *r)
{
    struct st_engine_opts opts;

    r->paced = (struct st_paced_model){.workload = &r->plan->program.workload, .machine = r->machine};
    st_config_engine_opts(&opts, &r->config);
    opts.program = &r->plan->program;
    opts.compute = st_paced_compute(&r->paced);
    opts.topology = r->topology;
    opts.device = "paced";
    opts.pace = &r->machine;
    opts.comm = opts.device_comm = r->comm;
    need(st_engine_create(&r->engine, &opts), "engine");
    need(st_engine_load(r->engine, st_paced_fill, NULL), "load");
}

static void run_steps(struct rank *r)
{
    const uint32_t steps = r->job->steps, between = (steps + PROBES - 2) / (PROBES - 1);
    int32_t tokens[SEQ], targets[SEQ];
    struct st_step_result result;

    for (uint32_t i = 0; i < SEQ; i++) {
        tokens[i] = (int32_t)(st_rng_u64(1, r->index, i) % VOCAB);
        targets[i] = (int32_t)(st_rng_u64(2, r->index, i) % VOCAB);
    }
    for (uint32_t i = 0; i < WARM_UPS + steps; i++) {
        st_config_set_rates(&r->config, r->engine);
        need(st_engine_step(r->engine, tokens, targets, NULL, &result), "step");
        if (i < WARM_UPS)
            continue;
        r->seconds[i - WARM_UPS] = result.seconds;
        r->comm_ms += result.busy_ms[STRATA_LANE_COMM] / steps;
        if ((i - WARM_UPS) % between == between - 1)
            probe(r, 1 + (i - WARM_UPS) / between);
    }
}

static void print_row(struct rank *r)
{
    const struct job *job = r->job;
    const uint32_t probes = 1 + job->steps / ((job->steps + PROBES - 2) / (PROBES - 1));
    const double step = median(r->seconds, job->steps);
    struct st_machine machine;
    struct st_figures figures;
    struct st_simulation sim;

    need(st_simulate(&sim, &r->plan->program, &r->machine), "prediction");
    take_rates(r, &machine, probes);
    st_figures_make(&figures, &r->plan->program, &machine);
    st_print(stdout, "%5u  %-5s  %7.1f  %8.0f  %8.0f  %6.3f  %9.0f  %-8s  %8.0f  %9.0f  %9.0f\n", job->ranks, job->tier,
             job->load, step * 1e3, figures.bounds.schedule * 1e3, step / figures.bounds.schedule, sim.seconds * 1e3,
             figures.bounds.bound_by, figures.bounds.comm * 1e3, r->comm_ms, (double)figures.traffic[1].comm * 1e-6);
    (void)fflush(stdout);
}

static void *rank_main(void *arg)
{
    struct rank *r = arg;
    struct st_machine agreed;

    prepare(r);
    probe(r, 0);
    take_rates(r, &agreed, 1);
    r->machine = agreed;
    scale_compute(r);
    make_plan(r, true);
    open_comm(r);
    open_engine(r);
    run_steps(r);
    if (r->index == 0)
        print_row(r);
    meet(r);
    st_engine_destroy(r->engine);
    st_plan_destroy(r->plan);
    st_model_destroy(r->model);
    st_config_source_free(r->source);
    st_topology_destroy(r->topology);
    st_comm_close(r->comm);
    return NULL;
}

static void run(struct job *job)
{
    static struct rank ranks[RANKS_MAX];
    struct st_comm *comms[RANKS_MAX];

    job->all = ranks;
    (void)pthread_barrier_init(&job->together, NULL, job->ranks);
    need(st_comm_threads_open(comms, job->ranks, 0), "comm");
    for (uint32_t i = 0; i < job->ranks; i++) {
        ranks[i] = (struct rank){.job = job, .index = i, .comm = comms[i]};
        need(st_thread_start(&ranks[i].thread, "bench-rank", rank_main, &ranks[i]), "thread");
    }
    for (uint32_t i = 0; i < job->ranks; i++)
        (void)pthread_join(ranks[i].thread, NULL);
    (void)pthread_barrier_destroy(&job->together);
}

static uint32_t number(const char *text, uint32_t low, uint32_t high)
{
    const long value = strtol(text, NULL, 10);

    return value < (long)low ? low : value > (long)high ? high : (uint32_t)value;
}

int main(int argc, char **argv)
{
    static const char *const tiers[] = {"cpu", "nvme"};
    static const double loads[] = {0.5, 1, 2};
    struct job job = {.steps = 20, .ranks = 2};

    if (argc < 3) {
        st_print(stderr, "bench_ranks MACHINE.json DIR [STEPS [RANKS]]\n");
        return 2;
    }
    job.machine_file = argv[1];
    job.dir = argv[2];
    if (argc > 3)
        job.steps = number(argv[3], 4, STEPS_MAX);
    if (argc > 4)
        job.ranks = number(argv[4], 2, RANKS_MAX);
    st_print(stdout, "ranks  state  compute  step, ms  bound, ms  ratio  predicted  bound by  comm, ms  comm busy  comm, MB\n");
    for (size_t t = 0; t < sizeof(tiers) / sizeof(tiers[0]); t++)
        for (size_t l = 0; l < sizeof(loads) / sizeof(loads[0]); l++) {
            job.tier = tiers[t];
            job.load = loads[l];
            run(&job);
        }
    return 0;
}
