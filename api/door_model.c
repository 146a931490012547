/* api/door_model.c - strata/model.h: opens a preset or a directory as the configuration asks. */
#include "api/handles.h"
#include "core/base/error.h"
#include "core/base/fault.h"
#include "core/base/log.h"
#include "offload/checkpoint/store.h"
#include "offload/device/device.h"
#include "run/checkpoint_adapter.h"
#include "run/ranks_agree.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DROPOUT_SEEN_LEAST 1e-6 /* a part of what adapters are given */

#define SEQ_DEFAULT_MAX 1024u
#define PROMPT_ROWS_MAX 256u /* tokens of a prompt in one call; each call moves the weights over the links once */

/* --- sizes --- */

static void size_sequence(struct strata_model *m, const struct strata_model_opts *o, const struct st_model_config *config)
{
    const uint32_t most = o->seq_len_most != 0 ? o->seq_len_most : SEQ_DEFAULT_MAX;

    m->size.seq = o->seq_len;
    if (m->size.seq == 0)
        m->size.seq = config->context < most ? config->context : most;
}

/* The cache holds the prompt and the requested tokens, within the context. */
static strata_status size_generation(struct strata_model *m, const struct strata_model_opts *o,
                                     const struct st_model_config *config)
{
    const uint64_t wanted = (uint64_t)o->prompt_tokens + (o->max_tokens != 0 ? o->max_tokens : STRATA_MAX_TOKENS_DEFAULT);

    if (o->cache_tokens != 0) {
        m->size.context = o->cache_tokens < config->context ? o->cache_tokens : config->context;
        m->size.seq = m->size.context < PROMPT_ROWS_MAX ? m->size.context : PROMPT_ROWS_MAX;
        return STRATA_OK;
    }
    if (o->prompt_tokens == 0)
        return st_error(STRATA_E_INVAL, "generation needs a prompt of one token or more: set prompt_tokens");
    if (o->prompt_tokens >= config->context)
        return st_error(STRATA_E_INVAL, "the prompt has %u tokens, the context of %s is %u%s: there is no room for another one",
                        o->prompt_tokens, m->name, config->context, st_model_context_key(config));
    m->size.context = wanted < config->context ? (uint32_t)wanted : config->context;
    m->size.seq = o->prompt_tokens < PROMPT_ROWS_MAX ? o->prompt_tokens : PROMPT_ROWS_MAX;
    return STRATA_OK;
}

/* bf16 explicitly switched off means fp32 here, whereas DeepSpeed would cast nothing. */
static strata_status note_widening(const struct strata_model *m, const struct strata_config *config)
{
    strata_dtype stored = STRATA_F32;
    strata_status st = STRATA_OK;

    if (m->is_dir && config->bf16_off && (st = st_hf_stored_dtype(&stored, m->name)) == STRATA_OK && stored != STRATA_F32 &&
        stored != STRATA_DTYPE_INVALID)
        st_log(ST_LOG_NOTICE, "%s sets bf16.enabled to false: fp32 here; DeepSpeed would keep %s in %s: %s.enabled true does so",
               config->name, m->name, strata_dtype_name(stored), strata_dtype_name(stored));
    return st;
}

/* The file turns on neither bf16 nor fp16: nothing casts the weights, as they are stored. */
static strata_status take_stored_dtype(struct strata_model *m, const struct strata_config *config)
{
    strata_dtype stored = STRATA_F32; /* the dtype in which a preset's weights are drawn */
    strata_status st;

    if (m->config.dtype != STRATA_DTYPE_INVALID)
        return note_widening(m, config);
    if ((m->is_dir && (st = st_hf_stored_dtype(&stored, m->name)) != STRATA_OK) ||
        (m->is_file && (st = st_hf_config_dtype(&stored, m->name)) != STRATA_OK))
        return st;
    if (stored == STRATA_DTYPE_INVALID) /* neither weights nor config.json say: as transformers would load them */
        stored = STRATA_F32;
    if (stored == STRATA_F16 && !st_handle_forward_only(m)) /* a forward pass needs no loss scaling */
        return st_error(
            STRATA_E_CONFIG,
            "%s turns on neither bf16 nor fp16, and the fp16 weights of %s need loss scaling: set fp16.enabled or bf16.enabled",
            config->name, m->name);
    st_log(ST_LOG_NOTICE, "%s turns on neither bf16 nor fp16: using %s, the dtype of %s%s", config->name,
           strata_dtype_name(stored), m->name, stored == STRATA_F32 ? "; bf16.enabled true halves their bytes" : "");
    m->config.dtype = stored;
    return STRATA_OK;
}

/* --- weights --- */

strata_status st_handle_open_weights(struct strata_model *m)
{
    strata_status st = STRATA_OK;

    if (m->from.adapter_dir != NULL && m->from.adapter_files == NULL &&
        (st = st_hf_adapter_open(&m->from.adapter_files, m->model, m->from.adapter_dir)) == STRATA_OK)
        st_hf_adapter_note_base(m->from.adapter_files, m->name);
    if (st != STRATA_OK || !m->is_dir || m->from.reader != NULL || m->from.weights != NULL)
        return st;
    if (m->from.saved == NULL) {
        if ((st = st_hf_reader_open(&m->from.reader, m->model, m->name)) == STRATA_OK && st_hf_reader_beside(m->from.reader) > 0)
            st_log(ST_LOG_NOTICE, "%s: only its text model is used; %u other tensors are written back unchanged", m->name,
                   st_hf_reader_beside(m->from.reader));
        return st;
    }
    if (m->from.checkpoint == NULL)
        st = st_checkpoint_open(&m->from.checkpoint, m->from.saved);
    return st == STRATA_OK ? st_checkpoint_weights_open(&m->from.weights, m->from.checkpoint, m->model) : st;
}

void st_handle_close_weights(struct strata_model *m)
{
    st_hf_adapter_close(m->from.adapter_files);
    m->from.adapter_files = NULL;
    st_hf_reader_close(m->from.reader);
    st_checkpoint_weights_close(m->from.weights);
    st_checkpoint_close(m->from.checkpoint);
    m->from.reader = NULL;
    m->from.weights = NULL;
    m->from.checkpoint = NULL;
}

static struct st_weight_source base_weights(struct strata_model *m)
{
    if (m->from.weights != NULL)
        return st_checkpoint_weights_source(m->from.weights);
    return m->is_dir ? st_hf_reader_source(m->from.reader) : st_model_init_source(&m->from.init);
}

struct st_weight_source st_handle_weights(struct strata_model *m)
{
    if (m->adapter == NULL || m->from.adapter_saved)
        return base_weights(m);
    if (m->from.adapter_files == NULL) {
        m->from.fresh = (struct st_adapter_init_source){.init = m->from.init, .base = base_weights(m)};
        return st_model_adapter_source(&m->from.fresh);
    }
    m->from.adapted = (struct st_hf_adapted_source){.m = m->model, .base = base_weights(m), .files = m->from.adapter_files};
    return st_hf_adapted_source(&m->from.adapted);
}

/* --- the adapter --- */

/* Its settings become part of the configuration, which checkpoints keep. */
static strata_status keep_settings(struct strata_model *m)
{
    char *text = NULL;
    size_t bytes = 0;
    struct st_json_writer w;
    FILE *file = st_fault_refuses("api.adapter") ? NULL : open_memstream(&text, &bytes);
    strata_status st = STRATA_OK;

    if (file == NULL)
        return st_nomem(0);
    st_json_begin(&w, file);
    st_json_put_node(&w, NULL, st_adapter_spec_object(m->adapter));
    if (fclose(file) != 0)
        st = st_nomem(0);
    else if (bytes >= sizeof(m->config.lora))
        st = st_error(STRATA_E_CONFIG, "%s: its settings have %zu bytes, and at most %zu can be kept", m->from.adapter_dir, bytes,
                      sizeof(m->config.lora) - 1);
    else
        memcpy(m->config.lora, text, bytes + 1);
    free(text);
    return st;
}

/* The checkpoint's own adapter comes first, if its run trained one: no other fits its weights. */
static strata_status take_saved_adapter(struct strata_model *m, const struct strata_model_opts *o)
{
    char *asked = NULL;
    strata_status st = m->from.checkpoint != NULL ? st_checkpoint_adapter_spec(&m->adapter, m->from.checkpoint) : STRATA_OK;

    if (st != STRATA_OK || m->adapter == NULL)
        return st;
    if (o->adapter != NULL)
        return st_error(
            STRATA_E_CONFIG,
            "%s has an adapter already: merge that with strata export (strata_adapter_merge()), or leave model.adapter %s out",
            m->from.checkpoint->path, o->adapter);
    m->from.adapter_saved = true;
    if (m->config.lora[0] != '\0')
        st = st_handle_text(&asked, m->config.lora);
    if (st == STRATA_OK)
        st = keep_settings(m);
    if (st == STRATA_OK && asked != NULL && strcmp(asked, m->config.lora) != 0)
        st = st_error(STRATA_E_CONFIG,
                      "%s has an adapter already, with other settings than strata.lora: merge that with strata "
                      "export (strata_adapter_merge()), or leave strata.lora out",
                      m->from.checkpoint->path);
    free(asked);
    return st;
}

static bool is_on_command_line(const struct strata_config *from, const char *path)
{
    for (uint32_t i = 0; i < st_config_row_count(from->source); i++)
        if (strcmp(st_config_row_at(from->source, i)->path, path) == 0)
            return st_config_row_at(from->source, i)->origin == ST_ORIGIN_COMMAND_LINE;
    return false;
}

/* A directory's adapter, or the configuration's. */
static strata_status take_new_adapter(struct strata_model *m, const struct strata_model_opts *o, const struct strata_config *from)
{
    char path[ST_PATH_MAX];
    strata_status st = STRATA_OK;

    if (o->adapter != NULL && m->config.lora[0] != '\0')
        return st_error(STRATA_E_CONFIG, "%s has strata.lora, and model.adapter %s has settings of its own: leave one out",
                        is_on_command_line(from, "strata.lora") ? "the command line" : from->name, o->adapter);
    if (o->adapter != NULL) {
        if ((st = st_handle_text(&m->from.adapter_dir, o->adapter)) == STRATA_OK &&
            (st = st_path_join(path, o->adapter, ST_ADAPTER_CONFIG_NAME)) == STRATA_OK)
            st = st_adapter_spec_read_file(&m->adapter, path);
    } else if (m->config.lora[0] != '\0') {
        snprintf(path, sizeof(path), "%.900s: strata.lora", from->name);
        st = st_adapter_spec_parse(&m->adapter, m->config.lora, strlen(m->config.lora), path);
    }
    return st == STRATA_OK && m->adapter != NULL ? keep_settings(m) : st;
}

/* Adapters learn nothing where nearly all inputs are dropped; modules that are saved whole do. */
static strata_status check_dropout(const struct strata_model *m)
{
    const double p = st_adapter_spec_dropout(m->adapter);

    if (m->use != STRATA_USE_TRAIN || 1 - p >= DROPOUT_SEEN_LEAST)
        return STRATA_OK;
    if (!st_adapter_spec_saves(m->adapter))
        return st_error(STRATA_E_CONFIG,
                        "lora_dropout %.9g: adapters see less than a millionth of their inputs and learn nothing: lower it", p);
    st_log(ST_LOG_NOTICE,
           "lora_dropout %.9g: adapters learn nothing, as they see less than a millionth of their inputs; modules_to_save do", p);
    return STRATA_OK;
}

static strata_status take_adapter(struct strata_model *m, const struct strata_model_opts *o, const struct strata_config *from)
{
    strata_status st = take_saved_adapter(m, o);

    if (st == STRATA_OK && !m->from.adapter_saved)
        st = take_new_adapter(m, o, from);
    if (st != STRATA_OK || m->adapter == NULL)
        return st;
    if (m->config.freeze_count > 0)
        return st_error(STRATA_E_CONFIG, "%s: strata.freeze: with an adapter everything else is frozen already: leave it out",
                        from->name);
    return check_dropout(m);
}

/* Gates and ups apart are other parameters to train than those that PEFT makes of the same names now. */
static strata_status note_peft(const struct strata_model *m)
{
    struct st_peft_reading reading;
    strata_status st = st_model_peft_reading(&reading, m->model, m->adapter);

    if (st != STRATA_OK || reading.what[0] != '\0')
        return st == STRATA_OK ? st_model_peft_note(m->model, m->adapter) : st;
    if (reading.apart && m->use == STRATA_USE_TRAIN)
        st_log(
            ST_LOG_NOTICE,
            "%s: experts' gates and ups have adapters of their own, as in PEFT beside transformers 4; beside transformers 5 it "
            "trains one of twice the rank for both, as target_parameters do",
            st_adapter_spec_where(m->adapter));
    return STRATA_OK;
}

/* --- opening --- */

/* Only a loss that is trained has it: that of an evaluation is the targets' alone. */
static float aux_loss_coef(const struct strata_model *m, const struct st_model_config *config)
{
    const float coef = st_model_aux_loss_coef(config, m->config.output_router_logits, m->config.aux_loss_coef);

    if (config->experts == 0 && !isnan(m->config.aux_loss_coef) && coef > 0.0f)
        st_log(ST_LOG_NOTICE, "strata.router_aux_loss_coef %g: %s has no experts, so it has no effect", (double)coef, m->name);
    return m->use == STRATA_USE_TRAIN || m->use == STRATA_USE_PLAN ? coef : 0.0f;
}

static strata_status create_model(struct strata_model *m, const struct st_model_config *config)
{
    struct st_model_batch batch = {
        .micro_batch = m->config.micro_batch,
        .seq = m->size.seq,
        .grad_accum = m->config.grad_accum,
        .dtype = m->config.dtype,
        .decay_all = m->config.decay_all,
        .freeze = m->config.freeze,
        .freeze_count = m->config.freeze_count,
        .nf4 = m->config.quantization != ST_QUANTIZATION_NONE,
        .adapter = m->adapter,
        .aux_loss_coef = aux_loss_coef(m, config),
    };
    strata_status st;

    if (batch.nf4 && m->adapter == NULL && !st_handle_forward_only(m))
        return st_error(STRATA_E_CONFIG,
                        "strata.quantization: weights in nf4 cannot be trained: set strata.lora, or use \"none\"");
    if (config->quantised && m->adapter == NULL && !st_handle_forward_only(m))
        return st_error(STRATA_E_CONFIG, "%s: quantised weights (\"quantization_config\") cannot be trained: set strata.lora",
                        m->name);
    if (config->quantised && !batch.nf4)
        st_log(ST_LOG_NOTICE,
               "%s stores its linear weights in nf4: they are widened to %s; strata.quantization \"nf4\" keeps them", m->name,
               strata_dtype_name(batch.dtype));
    batch.seed = m->seed;
    batch.documents = m->size.documents && m->use != STRATA_USE_GENERATE;
    if (m->use == STRATA_USE_GENERATE)
        batch.micro_batch = batch.grad_accum = 1, batch.generate = true, batch.context = m->size.context;
    st = st_model_create(&m->model, config, &batch);
    if (st == STRATA_OK && m->adapter != NULL)
        st = note_peft(m);
    if (st == STRATA_OK && !st_handle_only_plans(m))
        st = st_handle_open_weights(m);
    m->from.init = (struct st_model_init){.model = m->model, .seed = m->seed};
    return st;
}

static strata_status agree(struct strata_model *m)
{
    const struct st_ranks_model is = {
        .model = m->model,
        .config = &m->config,
        .name = m->name,
        .is_dir = m->is_dir,
        .use = m->use,
        .seq = m->size.seq,
        .seed = m->seed,
        .documents = m->size.documents,
        .source = st_handle_weights(m),
    };

    return st_ranks_agree_model(st_handle_comm(m), &is);
}

static strata_status open_model(struct strata_model *m, const struct strata_model_opts *o, const struct strata_config *from)
{
    struct st_model_config config;
    strata_status st = st_handle_read_config(&config, m);

    if (st != STRATA_OK)
        return st;
    if (config.experts == 0)
        m->config.output_router_logits = false; /* trainers' files ask for it of whatever model */
    if (config.dropout > 0 && m->use == STRATA_USE_TRAIN)
        st_log(ST_LOG_NOTICE, "%s asks for dropout %g: not applied", m->name, (double)config.dropout);
    if ((st = take_stored_dtype(m, from)) != STRATA_OK)
        return st;
    if (m->use != STRATA_USE_GENERATE)
        size_sequence(m, o, &config);
    else
        st = size_generation(m, o, &config);
    if (st == STRATA_OK)
        st = take_adapter(m, o, from);
    if (st == STRATA_OK)
        st = create_model(m, &config);
    return st == STRATA_OK ? agree(m) : st;
}

static strata_status take_opts(struct strata_model *m, const struct strata_config *config, const struct strata_model_opts *o)
{
    strata_status st;

    atomic_init(&m->users, 1);
    atomic_flag_clear(&m->has_engine);
    m->config = config->values;
    m->nvme_named = config->nvme_named;
    m->use = o->use;
    m->seed = o->seed;
    m->saved_checkpoints = o->saved_checkpoints;
    m->size.documents = o->documents;
    m->comm = o->comm;
    m->progress.fn = o->progress;
    m->progress.ctx = o->progress_ctx;
    st = st_handle_text(&m->name, o->model);
    return st == STRATA_OK ? st_handle_text(&m->beside.tokenizer, o->tokenizer) : st;
}

static strata_status check_opts(const struct strata_model_opts *o)
{
    if (o->model == NULL)
        return st_error(STRATA_E_INVAL, "no model is named: set model to a preset or a directory");
    if ((unsigned)o->use > STRATA_USE_PLAN)
        return st_error(STRATA_E_INVAL, "a model cannot have use %u: use STRATA_USE_TRAIN to STRATA_USE_PLAN, 0 to %u",
                        (unsigned)o->use, (unsigned)STRATA_USE_PLAN);
    if (o->comm != NULL && o->comm->world.ranks > 1 && o->use == STRATA_USE_PLAN)
        return st_error(STRATA_E_INVAL, "a comm is for training, evaluation and generation: leave it out for a plan");
    return STRATA_OK;
}

strata_status st_handle_check_ranks(const struct st_config *values, uint32_t ranks, const char *whose)
{
    const uint64_t counted = values->train_batch / ((uint64_t)values->micro_batch * values->grad_accum);

    if (counted == ranks)
        return STRATA_OK;
    return st_error(STRATA_E_INVAL,
                    "the configuration was opened for %" PRIu64
                    " %s, the %s for %u: strata_config_opts.ranks and its own must agree",
                    counted, counted == 1 ? "rank" : "ranks", whose, ranks);
}

strata_status strata_model_open(struct strata_model **model, const struct strata_config *config,
                                const struct strata_model_opts *opts)
{
    struct strata_model_opts o;
    struct strata_model *m;
    fenv_t floats;
    strata_status st = st_handle_opts(&o, sizeof(o), opts, "strata_model_opts");

    if (model == NULL || config == NULL || opts == NULL)
        return st_error_missing(__func__, model == NULL ? "model" : config == NULL ? "config" : "opts");
    if (strata_config_problem(config, 0) != NULL)
        return st_error(STRATA_E_INVAL, "%s: the configuration has problems: %s", __func__, strata_config_problem(config, 0));
    if (st != STRATA_OK || (st = check_opts(&o)) != STRATA_OK ||
        (o.use != STRATA_USE_PLAN &&
         (st = st_handle_check_ranks(&config->values, st_handle_ranks(o.comm).ranks, "model")) != STRATA_OK))
        return st;
    m = st_fault_refuses("api.model") ? NULL : calloc(1, sizeof(*m));
    if (m == NULL)
        return st_nomem(sizeof(*m));
    st_floats_plain(&floats);
    m->origins = st_handle_origins(config);
    st = m->origins != NULL ? take_opts(m, config, &o) : st_nomem(0);
    if (st == STRATA_OK)
        st = open_model(m, &o, config);
    if (st == STRATA_OK)
        st = st_handle_take_instead(m, o.use == STRATA_USE_TRAIN ? o.chat_template : NULL);
    st_floats_restore(&floats);
    if (st != STRATA_OK) {
        strata_model_close(m);
        return st;
    }
    *model = m;
    return STRATA_OK;
}

strata_status strata_model_get_info(const struct strata_model *model, struct strata_model_info *info)
{
    struct strata_model_info i = {0};

    if (model == NULL || info == NULL)
        return st_error_missing(__func__, model == NULL ? "model" : "info");
    const struct st_model_config none = {0}, *config = model->model != NULL ? st_model_config(model->model) : &none;
    const struct st_workload *w = st_handle_workload(model);

    memcpy(i.name, w->name, sizeof(i.name));
    i.dtype = w->dtype;
    i.adapter = model->adapter != NULL;
    i.params = w->params;
    i.blocks = config->blocks;
    i.hidden = config->hidden;
    i.vocab = config->vocab;
    i.context = config->context;
    i.seq_len = model->size.seq;
    i.cache_tokens = model->size.context;
    i.micro_batch = w->micro_batch;
    i.grad_accum = w->grad_accum;
    i.step_sequences = w->micro_batch * w->grad_accum;
    i.rank = st_handle_ranks(model->comm).rank;
    i.ranks = st_handle_ranks(model->comm).ranks;
    i.world_sequences = i.step_sequences * i.ranks;
    return st_handle_result(info, &i, sizeof(i), "strata_model_info");
}

strata_status strata_model_set_steps(struct strata_model *model, uint64_t steps)
{
    if (model == NULL)
        return st_error_missing(__func__, "model");
    if (steps == 0)
        return st_error(STRATA_E_INVAL, "%s: 0 steps: a run has at least one", __func__);
    if (steps > ST_STORE_STEP_MOST)
        return st_error(STRATA_E_INVAL, "%s: %" PRIu64 " steps: at most 2^53 are possible", __func__, steps);
    return st_config_set_steps(&model->config, steps, &model->told);
}

strata_status strata_directory_digest(const char *dir, char digest[33])
{
    strata_status st;

    if (dir == NULL || digest == NULL)
        return st_error_missing(__func__, dir == NULL ? "dir" : "digest");
    st = st_handle_check_directory(dir);
    return st == STRATA_OK ? st_hf_digest(dir, digest) : st;
}

const char *strata_preset_name(uint32_t index)
{
    return st_model_preset_name(index);
}

strata_status st_handle_watch(const struct strata_model *m, const char *what, uint64_t done, uint64_t total)
{
    if (m->progress.fn == NULL || m->progress.fn(m->progress.ctx, what, done, total))
        return STRATA_OK;
    return st_error(STRATA_E_CANCELLED, "%s was cancelled", what);
}

void strata_model_close(struct strata_model *model)
{
    if (model == NULL || atomic_fetch_sub(&model->users, 1) > 1)
        return;
    st_handle_close_weights(model);
    st_model_destroy(model->model);
    st_layers_destroy(model->layers);
    st_adapter_spec_destroy(model->adapter);
    free(model->beside.tokenizer);
    free(model->beside.chat_template);
    free(model->from.adapter_dir);
    st_json_free(model->origins);
    free(model->name);
    free(model->from.saved);
    free(model);
}
