/* api/session.c - builds what a run stands on, checking before taking: nothing is created on disk before the engine. */
#include "api/session.h"
#include "core/base/error.h"
#include "core/base/fault.h"
#include "core/base/log.h"
#include "core/base/page.h"
#include "core/base/size.h"
#include "core/trace/trace.h"
#include "offload/device.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define SEQ_DEFAULT_MAX 1024u
#define TRACE_STEPS_MAX 50u
#define IDLE_NAMED_MOST 4u   /* keys without effect that a start names */
#define PROMPT_ROWS_MAX 256u /* tokens of a prompt in one call: the weights cross the links once for so many */

strata_status st_session_watch(const struct st_session *s, const char *what, uint64_t done, uint64_t total)
{
    if (s->opts.watch == NULL || s->opts.watch(s->opts.watch_ctx, what, done, total))
        return STRATA_OK;
    return st_error(STRATA_E_CANCELLED, "%s was cancelled", what);
}

/* --- configuration --- */

static strata_status check_device(const char *device, bool rehearsal)
{
    if (strcmp(device, "cpu") == 0 || (strcmp(device, "paced") == 0 && rehearsal))
        return STRATA_OK;
    if (strncmp(device, "cuda", 4) == 0 && st_device_find("cuda") == NULL)
        return st_error(STRATA_E_NOSYS, "--device %s: this build has no GPU support: use --device cpu", device);
    if (strncmp(device, "cuda", 4) == 0)
        return st_device_find(device) != NULL ? STRATA_OK
                                              : st_error(STRATA_E_INVAL, "--device %s: use cuda or cuda:N, N from 0", device);
    return st_error(STRATA_E_INVAL, "--device: unknown device \"%s\": use cpu", device);
}

static bool is_idle(const struct st_config_row *row)
{
    return row->verdict == ST_VERDICT_NOTICE && (row->origin == ST_ORIGIN_FILE || row->origin == ST_ORIGIN_COMMAND_LINE);
}

/* Names those that would change results first; the rest is a number. */
static void print_idle_keys(const struct st_session *s)
{
    char text[512] = "";
    size_t length = 0;
    uint32_t count = 0, named = 0;

    for (uint32_t i = 0; i < 2 * st_config_row_count(s->source); i++) {
        const struct st_config_row *row = st_config_row_at(s->source, i % st_config_row_count(s->source));
        const bool results = i < st_config_row_count(s->source);

        if (!is_idle(row) || row->results != results)
            continue;
        count++;
        if (named < IDLE_NAMED_MOST && length < sizeof(text)) {
            length += (size_t)snprintf(text + length, sizeof(text) - length, "%s%.64s", named == 0 ? "" : ", ", row->path);
            named++;
        }
    }
    if (count > named)
        snprintf(text + length, sizeof(text) - length, " and %u more", count - named);
    if (count > 0)
        st_log(ST_LOG_NOTICE, "%u %s no effect here, strata check says why: %s", count, count == 1 ? "key has" : "keys have",
               text);
}

static bool is_forward_only(const struct st_session *s)
{
    return s->opts.use == ST_USE_EVAL || s->opts.use == ST_USE_GENERATE;
}

/* One line for all keys that have no meaning here, and one for each value that the file's reader may not expect: all of them are
 * about the update. */
static void print_notices(const struct st_session *s)
{
    for (uint32_t i = 0; !is_forward_only(s) && i < st_config_row_count(s->source); i++)
        if (st_config_row_at(s->source, i)->announced)
            st_log(ST_LOG_NOTICE, "%s: %s", st_config_row_at(s->source, i)->path, st_config_row_at(s->source, i)->reason);
    print_idle_keys(s);
}

static void print_other_problems(const struct st_config_source *source)
{
    for (uint32_t i = 1; source != NULL && i < st_config_problem_count(source); i++)
        st_page_print(stderr, "strata: error: %s\n", st_config_problem_at(source, i));
}

strata_status st_session_configure(struct st_session *s, const struct st_session_opts *opts)
{
    strata_status st;

    *s = (struct st_session){.opts = *opts};
    st = check_device(opts->device, opts->use == ST_USE_REHEARSE);
    if (st != STRATA_OK)
        return st;
    st = st_config_load(&s->config, &s->source, &opts->config);
    if (st != STRATA_OK) {
        print_other_problems(s->source);
        return st;
    }
    print_notices(s);
    return st_topology_load(&s->topology, NULL);
}

/* --- model and data --- */

static bool is_directory(const char *path)
{
    struct stat info;

    return !st_fault_refuses("model.stat") && stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

/* ORG/NAME, as models are called where they are published. */
static bool is_hub_id(const char *name)
{
    const char *slash = strchr(name, '/');

    return slash != NULL && slash > name && slash[1] != '\0' && strchr(slash + 1, '/') == NULL && name[0] != '.' &&
           name[0] != '~';
}

static strata_status no_such_model(const char *name)
{
    struct stat info;
    const bool there = !st_fault_refuses("model.stat") && stat(name, &info) == 0;

    if (!there && errno != ENOENT)
        return st_error_errno(errno, "--model %s", name);
    if (there || !is_hub_id(name))
        return st_error(STRATA_E_INPUT, "--model %s: %s", name, there ? "is no directory" : "no such directory");
    return st_error(
        STRATA_E_INPUT,
        "--model %s: no such directory, and nothing is downloaded: fetch it with \"hf download %s --local-dir DIR\", then "
        "say --model DIR",
        name, name);
}

static bool is_preset(const char *name)
{
    for (uint32_t i = 0; st_model_preset_name(i) != NULL; i++)
        if (strcmp(st_model_preset_name(i), name) == 0)
            return true;
    return false;
}

static strata_status size_sequence(struct st_session *s, const struct st_model_config *config)
{
    s->seq = s->opts.seq_len;
    if (s->seq == 0)
        s->seq = config->context < SEQ_DEFAULT_MAX ? config->context : SEQ_DEFAULT_MAX;
    if (s->opts.seq_len == 0 && config->window != 0 && config->window < s->seq)
        s->seq = config->window;
    return STRATA_OK;
}

/* The cache holds the prompt and what is asked for, within the context; a number of tokens that nobody asked for stays within the
 * window, too.  One that was asked for and leaves the window is refused with the model's other sizes. */
static strata_status size_generation(struct st_session *s, const struct st_model_config *config)
{
    const bool asked = s->opts.max_tokens != 0;
    const bool windowed = config->window != 0 && config->window < config->context;
    const uint32_t room = windowed ? config->window : config->context, most = asked ? config->context : room;
    const uint64_t wanted = s->opts.prompt_tokens + (asked ? s->opts.max_tokens : ST_MAX_TOKENS_DEFAULT);

    if (s->opts.prompt_tokens >= room)
        return st_error(STRATA_E_INVAL, "the prompt has %u tokens, the %s of %s is %u: no room for another one",
                        s->opts.prompt_tokens, windowed ? "sliding window" : "context", s->opts.model, room);
    s->context = wanted < most ? (uint32_t)wanted : most;
    s->seq = s->opts.prompt_tokens < PROMPT_ROWS_MAX ? s->opts.prompt_tokens : PROMPT_ROWS_MAX;
    return STRATA_OK;
}

static bool file_turns_bf16_off(const struct st_session *s)
{
    for (uint32_t i = 0; i < st_config_row_count(s->source); i++) {
        const struct st_config_row *row = st_config_row_at(s->source, i);

        if (strcmp(row->path, "bf16.enabled") == 0 || strcmp(row->path, "bfloat16.enabled") == 0)
            return s->config.dtype == STRATA_F32 && row->origin == ST_ORIGIN_FILE;
    }
    return false;
}

/* Explicitly no bf16 means fp32 here, where DeepSpeed would cast nothing. */
static strata_status note_widening(const struct st_session *s)
{
    strata_dtype stored = STRATA_F32;
    strata_status st = STRATA_OK;

    if (s->model_is_dir && file_turns_bf16_off(s) && (st = st_hf_stored_dtype(&stored, s->opts.model)) == STRATA_OK &&
        stored != STRATA_F32)
        st_log(ST_LOG_NOTICE,
               "%s sets bf16.enabled to false: fp32, where DeepSpeed would keep the weights of %s in %s, as they are stored; "
               "%s.enabled true does that here",
               s->opts.config.file, s->opts.model, strata_dtype_name(stored), strata_dtype_name(stored));
    return st;
}

/* The file names no precision: that of the weights, which nothing casts. */
static strata_status take_stored_dtype(struct st_session *s)
{
    strata_dtype stored = STRATA_F32; /* what a preset's weights are drawn in */
    strata_status st;

    if (s->config.dtype != STRATA_DTYPE_INVALID)
        return note_widening(s);
    if (s->model_is_dir && (st = st_hf_stored_dtype(&stored, s->opts.model)) != STRATA_OK)
        return st;
    if (stored == STRATA_F16 && !is_forward_only(s)) /* a forward pass needs no loss scaling */
        return st_error(
            STRATA_E_CONFIG,
            "%s names no precision, and the weights of %s are stored in fp16, which needs loss scaling: set fp16.enabled "
            "or bf16.enabled to true",
            s->opts.config.file, s->opts.model);
    st_log(ST_LOG_NOTICE, "%s names no precision: %s, the dtype of %s%s", s->opts.config.file, strata_dtype_name(stored),
           s->opts.model, stored == STRATA_F32 ? "; bf16.enabled true halves their bytes" : "");
    s->config.dtype = stored;
    return STRATA_OK;
}

/* A bench rehearses the machine of its file, as a plan does; all else is about this machine. */
static bool is_foreign(const struct st_session *s)
{
    return s->opts.use == ST_USE_PLAN || s->opts.use == ST_USE_REHEARSE;
}

/* Threads, for each of which the device has scratch: those of the machine that the model is planned for. */
static uint32_t workers_of(const struct st_session *s)
{
    if (s->config.threads != 0)
        return s->config.threads;
    return is_foreign(s) && s->file.capacity.workers != 0 ? s->file.capacity.workers : st_topology_core_count(s->topology);
}

strata_status st_session_model(struct st_session *s)
{
    const char *name = s->opts.model;
    struct st_model_config config;
    struct st_model_batch batch;
    strata_status st;

    if (s->opts.machine != NULL && (st = st_machine_read(&s->file, s->opts.machine)) != STRATA_OK)
        return st;
    if (is_preset(name) && is_directory(name))
        st_log(ST_LOG_NOTICE, "%s is a preset and a directory here: taken as the preset; for the directory say --model ./%s",
               name, name);
    s->model_is_dir = !is_preset(name) && (strchr(name, '/') != NULL || is_directory(name));
    if (s->model_is_dir && !is_directory(name))
        return no_such_model(name);
    st = s->model_is_dir ? st_model_config_read(&config, name) : st_model_preset(&config, name);
    if (st != STRATA_OK)
        return st;
    if (config.dropout > 0)
        st_log(ST_LOG_NOTICE, "%s asks for dropout %g: not applied", name, (double)config.dropout);
    if ((st = take_stored_dtype(s)) != STRATA_OK)
        return st;
    st = s->opts.use == ST_USE_GENERATE ? size_generation(s, &config) : size_sequence(s, &config);
    if (st != STRATA_OK)
        return st;
    batch = (struct st_model_batch){
        .micro_batch = s->config.micro_batch,
        .seq = s->seq,
        .grad_accum = s->config.grad_accum,
        .dtype = s->config.dtype,
        .decay_all = s->config.decay_all,
        .workers = workers_of(s),
        .device = st_device_find(s->opts.device),
        .freeze = s->config.freeze,
        .freeze_count = s->config.freeze_count,
    };
    if (s->opts.use == ST_USE_GENERATE)
        batch.micro_batch = batch.grad_accum = 1, batch.generate = true, batch.context = s->context;
    st = st_model_create(&s->model, &config, &batch);
    if (st == STRATA_OK && s->model_is_dir && !is_foreign(s))
        st = st_hf_reader_open(&s->reader, s->model, name);
    return st;
}

strata_status st_session_tokens(const struct st_session *s, struct st_token_set **out, const char *const *paths, uint32_t count)
{
    return st_token_set_open(out, paths, count, st_model_config(s->model)->vocab, s->seq);
}

/* --- machine and plan --- */

/* The plan may be for another machine: what its file says holds where the configuration says nothing. */
static void take_capacities(struct st_session *s)
{
    const struct st_machine *file = &s->file;
    const uint64_t *from = file->capacity.bytes;
    uint64_t *capacity = s->machine.capacity.bytes;

    if (s->config.device_memory == ST_AUTO_BYTES && from[STRATA_TIER_DEVICE] != 0)
        capacity[STRATA_TIER_DEVICE] = from[STRATA_TIER_DEVICE];
    if (s->config.host_memory == ST_AUTO_BYTES && from[STRATA_TIER_HOST] != 0)
        capacity[STRATA_TIER_HOST] = from[STRATA_TIER_HOST];
    if (from[STRATA_TIER_NVME] != 0)
        capacity[STRATA_TIER_NVME] = from[STRATA_TIER_NVME];
    s->machine.capacity.workers = workers_of(s);
    s->machine.capacity.device_is_host = file->capacity.device_is_host;
    if (file->name[0] != '\0')
        memcpy(s->machine.name, file->name, sizeof(s->machine.name));
}

static void take_rates(struct st_session *s, const struct st_rates *rates)
{
    s->machine.rates = *rates;
    s->rates_known = rates->matmul_flops > 0 || rates->update > 0 || rates->read > 0;
}

static bool uses_nvme(const struct st_config *config)
{
    return config->optimizer_tier == STRATA_TIER_NVME || config->param_tier == STRATA_TIER_NVME ||
           config->activation_tier == STRATA_TIER_NVME;
}

static strata_status find_machine(struct st_session *s)
{
    const bool foreign = is_foreign(s);
    struct st_config here = s->config;
    strata_status st;

    if (s->opts.nvme_named && !uses_nvme(&s->config))
        st_log(ST_LOG_NOTICE, "--nvme names a directory, but the configuration puts nothing there: set "
                              "zero_optimization.offload_optimizer.device=nvme");
    if (!uses_nvme(&s->config) || (foreign && s->file.capacity.bytes[STRATA_TIER_NVME] != 0))
        here.nvme_dir_count = 0;
    /* The plan for a foreign machine with its device's bytes asks nothing of a GPU here. */
    st = st_machine_here_on(&s->machine, &here, s->topology,
                            foreign && s->file.capacity.bytes[STRATA_TIER_DEVICE] != 0 ? "cpu" : s->opts.device);
    if (st != STRATA_OK || s->opts.machine == NULL)
        return st;
    if (foreign)
        take_capacities(s);
    take_rates(s, &s->file.rates);
    return STRATA_OK;
}

/* Budgets that follow from a limit of the shell's are told with it. */
static strata_status name_ulimit(const struct st_session *s, strata_status st)
{
    char have[24];

    if (st != STRATA_E_NOFIT || is_foreign(s) || st_topology_ulimit(s->topology) == NULL)
        return st;
    return st_error(st, "%s; %s leaves %s of memory in all", strata_last_error(), st_topology_ulimit(s->topology),
                    st_size_text(have, st_topology_memory_limit(s->topology)));
}

/* Budgets may be larger than the machine: then the plan fits them, but not the memory that is there. */
static strata_status check_memory(const struct st_session *s)
{
    const uint64_t limit = st_topology_memory_limit(s->topology), available = st_topology_memory_available(s->topology);
    char wanted[24], have[24];

    if (s->plan->rss_bytes_max > limit && st_topology_ulimit(s->topology) != NULL)
        return st_error(STRATA_E_NOFIT,
                        "the plan takes %s of memory, %s leaves %s beside the threads' stacks: raise it, or lower --host-memory, "
                        "--device-memory or --threads",
                        st_size_text(wanted, s->plan->rss_bytes_max), st_topology_ulimit(s->topology), st_size_text(have, limit));
    if (s->plan->rss_bytes_max > limit)
        return st_error(STRATA_E_NOFIT,
                        "the plan takes %s of memory, this machine has %s: lower --host-memory or --device-memory",
                        st_size_text(wanted, s->plan->rss_bytes_max), st_size_text(have, limit));
    if (s->plan->rss_bytes_max > available)
        st_log(ST_LOG_WARN, "the plan takes %s of memory, %s are free now", st_size_text(wanted, s->plan->rss_bytes_max),
               st_size_text(have, available));
    return STRATA_OK;
}

strata_status st_session_plan(struct st_session *s)
{
    struct st_policy policy;
    strata_status st = find_machine(s);

    if (st != STRATA_OK)
        return st;
    st_policy_from_config(&policy, &s->config);
    policy.forward_only = is_forward_only(s);
    if (s->opts.use == ST_USE_GENERATE)
        policy.activations = ST_ACT_KEPT; /* the key-value cache lies there */
    st = name_ulimit(s, st_plan_make(&s->plan, st_model_workload(s->model), &s->machine.capacity, &policy));
    if (st == STRATA_OK && (st = st_plan_verify(s->plan)) == STRATA_OK)
        st_figures_make(&s->figures, &s->plan->program, &s->machine);
    return st == STRATA_OK && !is_foreign(s) ? check_memory(s) : st;
}

strata_status st_session_rates(struct st_session *s, bool measure)
{
    strata_status st = STRATA_OK;

    if (measure && s->opts.machine == NULL) {
        const struct st_compute compute = st_model_compute(s->model);

        if ((st = st_session_watch(s, "measuring the rates of this machine", 0, 0)) != STRATA_OK)
            return st;
        st = st_machine_measure_on(
            &s->machine, st_model_workload(s->model), &compute, &s->config, s->topology,
            s->plan->program.needed[STRATA_TIER_NVME] > 0 ? ST_MEASURE_ALL : ST_MEASURE_ALL & ~ST_MEASURE_DISK, s->opts.device);
        take_rates(s, &s->machine.rates);
    }
    if (st != STRATA_OK || !s->rates_known)
        return st;
    if ((st = st_plan_balance(&s->plan, &s->machine)) == STRATA_OK && (st = st_plan_verify(s->plan)) == STRATA_OK)
        st_figures_make(&s->figures, &s->plan->program, &s->machine);
    return st;
}

/* --- engine --- */

static struct st_weight_source weight_source(struct st_session *s)
{
    if (s->model_is_dir)
        return st_hf_reader_source(s->reader);
    s->init = (struct st_model_init){.model = s->model, .seed = s->opts.seed};
    return st_model_init_source(&s->init);
}

/* Parts in proportion to the directories' rates, where they are known and each holds its part; else NULL, equal parts, for which
 * the plan has found room. */
static const double *dir_rates(const struct st_session *s)
{
    const struct st_config *config = &s->config;
    const char *dirs[ST_CONFIG_DIRS_MAX];
    uint64_t room = 0;

    if (config->nvme_dir_count < 2 || s->machine.rates.dir_count != config->nvme_dir_count)
        return NULL;
    for (uint32_t i = 0; i < config->nvme_dir_count; i++)
        dirs[i] = config->nvme_dirs[i];
    if (st_swap_room(dirs, config->nvme_dir_count, s->machine.rates.dir_rates, config->block_bytes, &room, NULL) == STRATA_OK &&
        room >= s->plan->program.needed[STRATA_TIER_NVME])
        return s->machine.rates.dir_rates;
    st_log(ST_LOG_NOTICE, "the nvme directories take equal parts: one of them lacks space for its part by speed");
    return NULL;
}

static strata_status create_engine(struct st_session *s)
{
    const struct st_engine_opts opts = {
        .program = &s->plan->program,
        .config = &s->config,
        .compute = st_model_compute(s->model),
        .topology = s->topology,
        .device = s->opts.device,
        .dir_rates = s->plan->program.needed[STRATA_TIER_NVME] > 0 ? dir_rates(s) : NULL,
        .fake_seed = s->opts.fake_seed,
        .fake_latency_us = s->opts.fake_latency_us,
        .trace = s->trace,
    };

    return st_engine_create(&s->engine, &opts);
}

/* Launchers set OMP_NUM_THREADS to 1 for every program: not obeyed, and not in silence. */
static void print_omp_threads(const struct st_session *s)
{
    const char *text = getenv("OMP_NUM_THREADS");
    const uint32_t workers = st_topology_core_count(s->topology);
    unsigned long asked;
    char *end;

    if (text == NULL || s->config.threads != 0)
        return;
    asked = strtoul(text, &end, 10);
    if (end != text && asked != workers)
        st_log(ST_LOG_NOTICE, "OMP_NUM_THREADS is %lu, which is not obeyed: %u %s; --threads N sets their number", asked, workers,
               workers == 1 ? "worker" : "workers");
}

/* A source of weights, and who watches it being read.  Workers read, several at once. */
struct watched_source {
    struct st_weight_source source;
    const struct st_session *session;
    const char *what;
    uint64_t total;
    atomic_uint_fast64_t done;
};

static strata_status read_watched(void *ctx, uint32_t page, uint64_t first, uint64_t count, float *out)
{
    struct watched_source *w = ctx;
    const strata_status st = w->source.read(w->source.ctx, page, first, count, out);

    return st == STRATA_OK ? st_session_watch(w->session, w->what, atomic_fetch_add(&w->done, count) + count, w->total) : st;
}

static strata_status load_weights(struct st_session *s)
{
    struct watched_source watched = {.source = weight_source(s), .session = s, .total = st_model_workload(s->model)->params};
    strata_status st;

    watched.what = s->model_is_dir ? "loading weights" : "making initial weights";
    st = st_session_watch(s, watched.what, 0, watched.total);
    if (st == STRATA_OK)
        st = st_engine_load(s->engine, read_watched, &watched);
    if (st == STRATA_OK && s->reader != NULL)
        st = st_hf_reader_check_unchanged(s->reader);
    return st;
}

strata_status st_session_start(struct st_session *s)
{
    strata_status st = s->opts.trace ? st_engine_trace_create(&s->trace, &s->plan->program, TRACE_STEPS_MAX) : STRATA_OK;

    print_omp_threads(s);
    if (st == STRATA_OK)
        st = create_engine(s);
    if (st == STRATA_E_NOSPC)
        st = STRATA_E_NOFIT; /* from here on its space is taken: a disk that fills is one that fails */
    if (st == STRATA_OK)
        st = load_weights(s);
    st_hf_reader_close(s->reader);
    s->reader = NULL;
    return st;
}

void st_session_close(struct st_session *s)
{
    st_engine_destroy(s->engine);
    st_trace_destroy(s->trace);
    st_plan_destroy(s->plan);
    st_hf_reader_close(s->reader);
    st_model_destroy(s->model);
    st_topology_destroy(s->topology);
    st_config_source_free(s->source);
    *s = (struct st_session){.opts = s->opts};
}
