/* train.c - fine-tune a model: a DeepSpeed configuration, a Hugging Face directory (or a preset) and tokens in, a directory out.
 *
 *     strata tokens book.txt --out book.bin --heldout 0.1
 *     cc train.c $(pkg-config --cflags --libs strata) -o train
 *     ./train ds_config.json nano book.bin book.heldout.bin trained 100 optimizer.params.lr=1e-3 strata.device_memory=16MiB
 *
 * Each word after the number of steps changes a key of the configuration, as --set does for `strata train`, whose weights
 * these are to the bit: the same configuration, seed (0) and length of sequences (128). */
#include <strata/strata.h>

#include <stdio.h>
#include <stdlib.h>

#define SEQ_LEN 128
#define SEED    0

struct run {
    struct strata_config *config;
    struct strata_model *model;
    struct strata_model_info shape;
    struct strata_data *data, *heldout;
    struct strata_plan *plan;
    struct strata_export *out;
    struct strata_engine *engine;
    int32_t *tokens, *targets; /* [step_sequences * seq_len] */
};

/* Weights are loaded and data is evaluated for a while: say so, once. */
static bool show_progress(void *ctx, const char *what, uint64_t done, uint64_t total)
{
    (void)ctx;
    (void)total;
    if (done == 0)
        printf("%s ...\n", what);
    return true; /* false would end it */
}

/* What was asked for, checked before anything is taken. */
static strata_status open_all(struct run *r, char **words, uint64_t steps, char **overrides, uint32_t override_count)
{
    struct strata_config_opts config = STRATA_CONFIG_OPTS_INIT;
    struct strata_model_opts model = STRATA_MODEL_OPTS_INIT;
    const char *train = words[2], *heldout = words[3];
    strata_status st;

    config.file = words[0];
    config.overrides = (const char *const *)overrides;
    config.override_count = override_count;
    config.max_steps = steps;
    if ((st = strata_config_open(&r->config, &config)) != STRATA_OK)
        return st;
    model.model = words[1];
    model.seq_len = SEQ_LEN;
    model.seed = SEED; /* of a preset's weights; a directory has its own */
    model.progress = show_progress;
    r->shape = (struct strata_model_info)STRATA_MODEL_INFO_INIT;
    if ((st = strata_model_open(&r->model, r->config, &model)) != STRATA_OK ||
        (st = strata_model_get_info(r->model, &r->shape)) != STRATA_OK ||
        (st = strata_data_open(&r->data, r->model, &train, 1)) != STRATA_OK)
        return st;
    return strata_data_open(&r->heldout, r->model, &heldout, 1);
}

/* The plan first: what does not fit is told here, with what would help.  Then the room for the result, and the engine. */
static strata_status start(struct run *r, const char *out)
{
    const size_t count = (size_t)r->shape.step_sequences * r->shape.seq_len;
    const char *text;
    strata_status st = strata_plan_make(&r->plan, r->model, NULL);

    if (st != STRATA_OK || (st = strata_plan_text(r->plan, &text)) != STRATA_OK)
        return st;
    printf("%s", text);
    r->tokens = calloc(count, sizeof(*r->tokens));
    r->targets = calloc(count, sizeof(*r->targets));
    if (r->tokens == NULL || r->targets == NULL)
        return STRATA_E_NOMEM;
    if ((st = strata_export_open(&r->out, r->model, out, NULL)) != STRATA_OK ||
        (st = strata_engine_create(&r->engine, r->plan, NULL)) != STRATA_OK)
        return st;
    return strata_engine_load(r->engine);
}

static strata_status train(struct run *r, uint64_t steps)
{
    struct strata_eval eval = STRATA_EVAL_INIT;
    strata_status st;

    for (uint64_t step = 0; step < steps; step++) {
        struct strata_step result = STRATA_STEP_INIT;

        st = strata_data_read(r->data, STRATA_DATA_SHUFFLED, SEED, step * r->shape.step_sequences, r->shape.step_sequences,
                              r->tokens, r->targets, NULL);
        if (st != STRATA_OK || (st = strata_engine_step(r->engine, r->tokens, r->targets, NULL, &result)) != STRATA_OK)
            return st;
        printf("step %llu: loss %.4f, gradient norm %.3f, lr %.3g, %.0f tokens/s\n", (unsigned long long)step + 1, result.loss,
               result.grad_norm, result.lr, (double)result.tokens / result.seconds);
    }
    if ((st = strata_engine_eval_data(r->engine, r->heldout, &eval)) != STRATA_OK)
        return st;
    printf("held out: loss %.4f, perplexity %.2f over %llu tokens\n", eval.loss, eval.perplexity,
           (unsigned long long)eval.targets);
    return strata_engine_check(r->engine); /* is it worth a file? */
}

static strata_status save(struct run *r)
{
    struct strata_export *out = r->out;

    r->out = NULL; /* taken, whatever comes of it */
    return strata_engine_export(r->engine, out);
}

static void close_all(struct run *r)
{
    strata_engine_destroy(r->engine);
    strata_export_abort(r->out);
    strata_plan_destroy(r->plan);
    strata_data_close(r->heldout);
    strata_data_close(r->data);
    strata_model_close(r->model);
    strata_config_close(r->config);
    free(r->tokens);
    free(r->targets);
}

int main(int argc, char **argv)
{
    const uint64_t steps = argc > 6 ? strtoull(argv[6], NULL, 10) : 0;
    struct run r = {0};
    strata_status st;

    if (steps == 0) {
        fprintf(stderr, "usage: train CONFIG.json MODEL TRAIN.bin HELDOUT.bin OUT_DIR STEPS [KEY=VALUE...]\n");
        return 2;
    }
    st = open_all(&r, argv + 1, steps, argv + 7, (uint32_t)argc - 7);
    if (st == STRATA_OK)
        st = start(&r, argv[5]);
    if (st == STRATA_OK)
        st = train(&r, steps);
    if (st == STRATA_OK)
        st = save(&r);
    if (st != STRATA_OK)
        fprintf(stderr, "train: %s: %s\n", strata_status_text(st), strata_last_error());
    else
        printf("the model is in %s\n", argv[5]);
    close_all(&r);
    return strata_status_exit_code(st);
}
