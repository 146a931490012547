/* tests/model/test_sums.c - how a page's sum begins: whatever lay in it, the first call leaves the gradients that adding to zeros
 * leaves, in every family, whatever is frozen, with adapters and NF4; and nothing is zeroed that a product writes. */
#include "decoder_rig.h"
#include "model/adapter/adapter.h"
#include "tests/common/golden.h"
#include "tests/common/shape.h"

#define SEQ    5u
#define MICROS 2u

static const char *const dirs[] = {GOLDEN_TORCH, GOLDEN_FAMILIES};

/* --- what is zeroed --- */

static const struct st_tensor_ops *device_ops;
static struct rig *watched;
static uint64_t zeroed_bytes;

/* Counts bytes of gradients. */
static strata_status count_zero(struct st_device *dev, void *p, uint64_t bytes)
{
    for (uint32_t i = 0; i < watched->w->page_count; i++) {
        const float *grad = watched->grads[i], *at = p;

        if (grad != NULL && at >= grad && at < grad + watched->w->pages[i].trained_elems)
            zeroed_bytes += bytes;
    }
    return device_ops->zero(dev, p, bytes);
}

/* Of calls, by the tensors: matrices of blocks, and a head that is trained, are written; what an embedding's rows are added to is
 * nobody's product. */
static uint64_t expected_bytes(const struct rig *r)
{
    const struct st_workload *w = r->w;
    uint64_t elems = 0;

    for (uint32_t i = shape_of(w).tied ? 0 : shape_of(w).table_count; i < w->page_count; i++)
        elems += w->pages[i].trained_elems;
    for (uint32_t i = 0; i < st_model_tensor_count(r->m); i++) {
        const struct st_tensor *t = st_model_tensor(r->m, i);
        const bool in_block = t->page >= shape_of(w).block_first && t->page < shape_of(w).norm_page;

        if (!t->frozen && t->rank == 2 && t->adapts == ST_NO_TENSOR && (in_block || t->page == shape_of(w).head_first))
            elems -= t->elems;
    }
    return elems * sizeof(float);
}

/* --- the same gradients --- */

static void open_seeded(struct rig *r, const struct st_model_config *config, const struct st_model_batch *batch)
{
    rig_open(r, config, batch, st_kernels_pick(NULL));
    rig_load_seed(r, 5);
}

static double step(struct rig *r, uint32_t micro)
{
    int32_t tokens[SEQ], targets[SEQ];

    for (uint32_t i = 0; i < SEQ; i++) {
        tokens[i] = (int32_t)((i * 7 + micro) % r->w->vocab);
        targets[i] = (int32_t)((i * 5 + micro) % r->w->vocab);
    }
    return rig_step(r, tokens, targets, false);
}

/* NaN. */
static void fill_with_garbage(struct rig *r)
{
    for (uint32_t i = 0; i < r->w->page_count; i++) {
        if (r->grads[i] != NULL)
            memset(r->grads[i], 0xff, r->w->pages[i].trained_elems * sizeof(float));
    }
}

/* Padding included; signs of zeros may differ. */
static void check_equal(const struct rig *r, const struct rig *want)
{
    for (uint32_t i = 0; i < r->w->page_count; i++) {
        for (uint64_t e = 0; r->grads[i] != NULL && e < r->w->pages[i].trained_elems; e++) {
            if (r->grads[i][e] != want->grads[i][e])
                fail_msg("%s, page %u, element %llu: %g, from zeros %g", r->w->name, i, (unsigned long long)e,
                         (double)r->grads[i][e], (double)want->grads[i][e]);
        }
    }
}

static void compare(const struct st_model_config *config, const struct st_model_batch *batch)
{
    struct st_tensor_ops counting;
    struct rig begun, added;

    open_seeded(&begun, config, batch);
    open_seeded(&added, config, batch);
    device_ops = begun.ops;
    watched = &begun;
    zeroed_bytes = 0;
    counting = *device_ops;
    counting.zero = count_zero;
    begun.ops = &counting;
    fill_with_garbage(&begun);
    for (uint32_t m = 0; m < MICROS; m++) {
        begun.begins = m == 0;
        assert_true(step(&begun, m) == step(&added, m));
        check_equal(&begun, &added);
    }
    assert_int_equal(zeroed_bytes, expected_bytes(&begun));
    rig_close(&begun);
    rig_close(&added);
}

/* --- models --- */

static void each_model(void (*body)(const struct st_model_config *config, struct st_model_batch batch))
{
    static const strata_dtype dtypes[] = {STRATA_F32, STRATA_BF16, STRATA_F16};

    for (uint32_t i = 0; i < sizeof(dirs) / sizeof(dirs[0]); i++) {
        struct st_model_batch batch = {.micro_batch = 1, .seq = SEQ, .grad_accum = MICROS, .dtype = dtypes[i % 3]};
        struct st_model_config config;

        assert_ok(st_model_config_read(&config, dirs[i]));
        body(&config, batch);
    }
}

static void train(const struct st_model_config *config, struct st_model_batch batch)
{
    compare(config, &batch);
    batch.dtype = STRATA_F32;
    compare(config, &batch);
    batch.decay_all = true;
    compare(config, &batch);
}

/* Each of the first block's tensors, and of those outside blocks, every other one with the tensor before it. */
static void freeze_each(const struct st_model_config *config, struct st_model_batch batch)
{
    char freeze[2][128];
    struct st_model *m;

    assert_ok(st_model_create(&m, config, &batch));
    batch.freeze = (const char(*)[128])freeze;
    for (uint32_t i = 0; i < st_model_tensor_count(m); i++) {
        const struct st_tensor *t = st_model_tensor(m, i);

        if (t->page > shape_of(st_model_workload(m)).block_first && t->page < shape_of(st_model_workload(m)).norm_page)
            continue;
        snprintf(freeze[0], sizeof(freeze[0]), "%s", t->name);
        snprintf(freeze[1], sizeof(freeze[1]), "%s", st_model_tensor(m, i > 0 ? i - 1 : 0)->name);
        batch.freeze_count = i % 2 + 1;
        compare(config, &batch);
    }
    st_model_destroy(m);
}

static void adapt(const struct st_model_config *config, struct st_model_batch batch)
{
    static const char *const specs[] = {
        "{\"peft_type\": \"LORA\", \"r\": 3, \"lora_alpha\": 8, \"target_modules\": \"all-linear\"}",
        "{\"peft_type\": \"LORA\", \"r\": 2, \"target_modules\": \"all-linear\", \"modules_to_save\": [\"lm_head\"]}"};

    for (uint32_t i = 0; i < sizeof(specs) / sizeof(specs[0]); i++) {
        struct st_adapter_spec *spec;

        if (i == 1 && !config->untied)
            continue;
        assert_ok(st_adapter_spec_parse(&spec, specs[i], strlen(specs[i]), "adapter"));
        batch.adapter = spec;
        batch.nf4 = i == 0 && config->family != ST_FAMILY_GPT2 && batch.dtype == STRATA_BF16;
        compare(config, &batch);
        st_adapter_spec_destroy(spec);
    }
}

TEST(test_garbage_is_overwritten)
{
    each_model(train);
}

TEST(test_beside_what_is_frozen)
{
    each_model(freeze_each);
}

TEST(test_of_adapters)
{
    each_model(adapt);
}

/* More rows than make their logits at once: only the first run of them writes. */
TEST(test_runs_of_rows)
{
    enum { ROWS = 4200 };
    static const struct st_model_config config = {
        .name = "tall", .blocks = 1, .hidden = 16, .heads = 2, .ffn = 64, .vocab = 5000, .context = 128, .norm_eps = 1e-5f};
    static const struct st_model_batch batch = {
        .micro_batch = ROWS / 100, .seq = 100, .grad_accum = 1, .dtype = STRATA_F32, .workers = 2};
    static int32_t tokens[ROWS];
    struct rig begun, added;

    for (uint32_t i = 0; i < ROWS; i++)
        tokens[i] = (int32_t)(i * 2654435761u % 5000);
    open_seeded(&begun, &config, &batch);
    open_seeded(&added, &config, &batch);
    assert_true(ROWS > st_head_rows(begun.m));
    fill_with_garbage(&begun);
    begun.begins = true;
    assert_true(rig_step(&begun, tokens, tokens, false) == rig_step(&added, tokens, tokens, false));
    check_equal(&begun, &added);
    rig_close(&begun);
    rig_close(&added);
}
