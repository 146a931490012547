/* tests/model/test_layout.c - no call writes past a part of its buffers, whichever part the model's shape makes the widest: every
 * family, each of a block's tensors frozen alone, adapters, NF4 and generation.  The rig looks (layout_gaps.h). */
#include "decoder_rig.h"
#include "model/adapter/adapter.h"
#include "tests/common/golden.h"
#include "tests/common/shape.h"

#define SEQ 6u

static const char *const dirs[] = {GOLDEN_TORCH, GOLDEN_FAMILIES};

enum shape { SHAPE_OWN, SHAPE_FFN, SHAPE_HEADS, SHAPE_HIDDEN, SHAPES };

/* False: the family's parts depend on each other. */
static bool reshape(struct st_model_config *c, enum shape shape)
{
    const bool tied_widths = c->family == ST_FAMILY_GPT2; /* heads x head_dim is the hidden size */

    if (shape == SHAPE_FFN)
        c->ffn = 480;
    if (shape == SHAPE_HEADS && (tied_widths || c->rope_type == ST_ROPE_LONGROPE))
        return false;
    if (shape == SHAPE_HEADS)
        c->head_dim = 80;
    if (shape == SHAPE_HIDDEN && !tied_widths && c->head_dim == 0)
        c->head_dim = c->hidden / c->heads;
    if (shape == SHAPE_HIDDEN)
        c->hidden = 320;
    return true;
}

/* A step, or two runs of a generation. */
static void run(const struct st_model_config *config, const struct st_model_batch *batch)
{
    int32_t tokens[SEQ];
    struct rig r;

    for (uint32_t i = 0; i < SEQ; i++)
        tokens[i] = (int32_t)(i * 7 % config->vocab);
    rig_open(&r, config, batch, st_kernels_pick(NULL));
    rig_load_seed(&r, 5);
    if (batch->generate) {
        rig_forward(&r, tokens, tokens);
        r.position = SEQ;
        r.rows = 1;
        rig_forward(&r, tokens, tokens);
    } else {
        (void)rig_step(&r, tokens, tokens, true);
    }
    rig_close(&r);
}

static void freeze_each(const struct st_model_config *config, struct st_model_batch batch)
{
    struct st_model *m;
    char freeze[1][128];

    assert_ok(st_model_create(&m, config, &batch));
    batch.freeze = (const char(*)[128])freeze;
    batch.freeze_count = 1;
    for (uint32_t i = 0; i < st_model_tensor_count(m); i++) {
        const struct st_tensor *t = st_model_tensor(m, i);

        if (t->page != shape_of(st_model_workload(m)).block_first)
            continue;
        snprintf(freeze[0], sizeof(freeze[0]), "%s", t->name);
        run(config, &batch);
    }
    st_model_destroy(m);
}

static void each_model(void (*body)(const struct st_model_config *config, struct st_model_batch batch))
{
    uint32_t models = 0;

    for (size_t i = 0; i < sizeof(dirs) / sizeof(dirs[0]); i++)
        for (uint32_t shape = 0; shape < SHAPES; shape++) {
            struct st_model_batch batch = {.micro_batch = 1, .seq = SEQ, .grad_accum = 1, .dtype = STRATA_F32};
            struct st_model_config config;

            assert_ok(st_model_config_read(&config, dirs[i]));
            if (!reshape(&config, (enum shape)shape))
                continue;
            models++;
            body(&config, batch);
        }
    print_message("%u models\n", models);
}

static void train(const struct st_model_config *config, struct st_model_batch batch)
{
    run(config, &batch);
    batch.dtype = STRATA_BF16;
    run(config, &batch);
    batch.workers = 3;
    run(config, &batch);
}

static void generate(const struct st_model_config *config, struct st_model_batch batch)
{
    batch.generate = true;
    batch.context = SEQ + 1;
    run(config, &batch);
}

static void adapt(const struct st_model_config *config, struct st_model_batch batch)
{
    static const char text[] = "{\"peft_type\": \"LORA\", \"r\": 24, \"lora_alpha\": 8, \"target_modules\": \"all-linear\"}";
    struct st_adapter_spec *spec;

    assert_ok(st_adapter_spec_parse(&spec, text, strlen(text), "adapter"));
    batch.adapter = spec;
    run(config, &batch);
    batch.nf4 = config->family != ST_FAMILY_GPT2;
    batch.dtype = STRATA_BF16;
    run(config, &batch);
    generate(config, batch);
    st_adapter_spec_destroy(spec);
}

TEST(training_stays_within)
{
    each_model(train);
}

TEST(frozen_tensors_stay_within)
{
    each_model(freeze_each);
}

TEST(adapters_stay_within)
{
    each_model(adapt);
}

TEST(generation_stays_within)
{
    each_model(generate);
}
