/* tests/model/test_lora.c - linear layers with adapters, everything resident: against PEFT's numbers in every family, kept
 * against recomputed activations, workers and kernels by memcmp, more rows than are added at once, generation, and modules that
 * are saved whole. */
#include "decoder_rig.h"
#include "model/hf/hf_adapter.h"
#include "tests/common/golden.h"
#include "tests/common/shape.h"
#include <math.h>
#include <stdio.h>

static const struct {
    const char *adapter, *model;
} pairs[] = {GOLDEN_LORA};
enum { PAIRS = sizeof(pairs) / sizeof(pairs[0]) };

static struct st_adapter_spec *spec_of(const char *adapter)
{
    struct st_adapter_spec *spec;
    char path[256];

    snprintf(path, sizeof(path), "%s/%s", adapter, ST_ADAPTER_CONFIG_NAME);
    assert_ok(st_adapter_spec_read_file(&spec, path));
    return spec;
}

static void lora_open(struct rig *r, uint32_t pair, strata_dtype dtype, uint32_t workers, const struct st_kernels *kernels)
{
    struct st_adapter_spec *spec = spec_of(pairs[pair].adapter);
    const struct st_model_batch batch = {.dtype = dtype, .workers = workers, .adapter = spec};
    struct st_hf_adapted_source source = {0};
    struct st_hf_reader *reader;

    golden_open(r, pairs[pair].model, &batch, kernels);
    st_adapter_spec_destroy(spec);
    for (uint32_t i = 0; i < r->w->page_count; i++) { /* the base has nothing of the adapters */
        const struct st_page *p = &r->w->pages[i];

        for (uint64_t e = 0; e < p->trained_elems; e++)
            assert_true(((const float *)(const void *)r->weights[i])[e] == 0.0f);
    }
    assert_ok(st_hf_reader_open(&reader, r->m, pairs[pair].model));
    source.m = r->m;
    source.base = st_hf_reader_source(reader);
    assert_ok(st_hf_adapter_open(&source.files, r->m, pairs[pair].adapter));
    rig_load(r, st_hf_adapted_source(&source));
    assert_ok(st_hf_adapter_check_unchanged(source.files));
    st_hf_adapter_close(source.files);
    st_hf_reader_close(reader);
}

static void check_peft(uint32_t pair)
{
    st_json *root = golden_json(pairs[pair].adapter);
    const st_json *first = st_json_get(root, "first_micro_batch");
    const double want = st_json_number(st_json_get(first, "loss"));
    uint64_t parameters;
    struct rig r;
    double loss;

    lora_open(&r, pair, STRATA_F32, 2, st_kernels_pick(NULL));
    assert_true(st_json_u64(st_json_get(root, "parameters"), &parameters));
    assert_int_equal(r.w->params, parameters);
    loss = golden_loss(&r, pairs[pair].model, false);
    if (fabs(loss - want) > 1e-5 * want)
        fail_msg("%s: loss %.9g, PEFT %.9g", pairs[pair].adapter, loss, want);
    for (uint32_t i = 0; i < st_model_tensor_count(r.m); i++) {
        const struct st_tensor *t = st_model_tensor(r.m, i);

        assert_int_equal(t->frozen, t->adapts == ST_NO_TENSOR);
        if (!t->frozen)
            golden_gradient(&r, t, st_json_get(st_json_get(first, "gradients"), t->name));
    }
    rig_close(&r);
    st_json_free(root);
}

TEST(test_loss_and_gradients_are_pefts)
{
    for (uint32_t i = 0; i < PAIRS; i++)
        check_peft(i);
}

static void assert_same_bits(const struct rig *a, const struct rig *b)
{
    assert_memory_equal(a->dact, b->dact, shape_of(a->w).activation_bytes);
    for (uint32_t i = 0; i < a->w->page_count; i++)
        if (a->grads[i] != NULL)
            assert_memory_equal(a->grads[i], b->grads[i], a->w->pages[i].trained_elems * 4);
}

/* Kept and recomputed; another table of kernels, and another number of workers. */
TEST(test_bits)
{
    static const strata_dtype dtypes[] = {STRATA_F32, STRATA_BF16, STRATA_F16};

    for (uint32_t i = 0; i < 3 * PAIRS; i++) {
        struct rig kept, other;
        double loss;

        lora_open(&kept, i / 3, dtypes[i % 3], 1, st_kernels_pick("scalar"));
        lora_open(&other, i / 3, dtypes[i % 3], 3, st_kernels_pick(NULL));
        loss = golden_loss(&kept, pairs[i / 3].model, false);
        assert_true(isfinite(loss) && golden_loss(&other, pairs[i / 3].model, true) == loss);
        assert_same_bits(&kept, &other);
        rig_close(&kept);
        rig_close(&other);
    }
}

/* Of what is kept of a block, backward needs every part, though all that is not an adapter is frozen: what only gradients of
 * weights need (the inputs of layers behind a norm or an activation, and with them the norm's statistics, 4 or 8 bytes a row) is
 * computed again where an adapter needs it. */
TEST(test_all_that_is_kept_is_needed)
{
    for (uint32_t pair = 0; pair < PAIRS; pair++) {
        struct rig whole, spoilt;
        struct st_block_values v;
        double loss;

        lora_open(&whole, pair, STRATA_F32, 2, st_kernels_pick(NULL));
        loss = golden_loss(&whole, pairs[pair].model, false);
        v = st_block_values_layout(whole.m, false);
        const uint64_t begins[] = {v.post_stats[0], v.post_stats[1], v.qk_stats[0], v.qk_stats[1], v.lse,  v.qkv,
                                   v.attention,     v.projected,     v.middle,      v.fc,          v.down, v.bytes};

        for (size_t i = 0; i + 1 < sizeof(begins) / sizeof(begins[0]); i++) {
            bool differs = false;

            if (begins[i] + ST_LAYOUT_GAP == begins[i + 1])
                continue; /* the model has no such part */
            lora_open(&spoilt, pair, STRATA_F32, 2, st_kernels_pick(NULL));
            spoilt.spoilt_first = begins[i];
            spoilt.spoilt_bytes = begins[i + 1] - begins[i];
            assert_true(golden_loss(&spoilt, pairs[pair].model, false) == loss);
            for (uint32_t p = 0; p < whole.w->page_count; p++)
                differs = differs || (whole.grads[p] != NULL && memcmp(whole.grads[p], spoilt.grads[p],
                                                                       whole.w->pages[p].trained_elems * sizeof(float)) != 0);
            if (!differs)
                fail_msg("%s: backward does without part %zu of a block's values", pairs[pair].adapter, i);
            rig_close(&spoilt);
        }
        rig_close(&whole);
    }
}

/* Nothing is rounded between W x and s B (A x): 16 bits are as near to fp32 as without adapters. */
TEST(test_narrow_is_near)
{
    for (uint32_t i = 0; i < 2 * PAIRS; i++) {
        const strata_dtype dtype = i % 2 == 0 ? STRATA_BF16 : STRATA_F16;
        const double tolerance = dtype == STRATA_BF16 ? 0.08 : 0.01;
        struct rig wide, narrow;
        double want, difference2 = 0.0, norm2 = 0.0;

        lora_open(&wide, i / 2, STRATA_F32, 1, st_kernels_pick(NULL));
        lora_open(&narrow, i / 2, dtype, 1, st_kernels_pick(NULL));
        want = golden_loss(&wide, pairs[i / 2].model, false);
        assert_true(fabs(golden_loss(&narrow, pairs[i / 2].model, false) - want) < 0.2 * tolerance * want);
        for (uint32_t t = 0; t < st_model_tensor_count(wide.m); t++) {
            const struct st_tensor *a = st_model_tensor(wide.m, t), *b = st_model_tensor(narrow.m, t);

            for (uint64_t e = 0; e < a->elems && !a->frozen; e++) {
                const double x = (double)wide.grads[a->page][a->offset + e], y = (double)narrow.grads[b->page][b->offset + e];

                difference2 += (x - y) * (x - y);
                norm2 += x * x;
            }
        }
        if (!(difference2 < tolerance * tolerance * norm2))
            fail_msg("%s in %s: %g", pairs[i / 2].adapter, strata_dtype_name(dtype), sqrt(difference2 / norm2));
        rig_close(&wide);
        rig_close(&narrow);
    }
}

/* --- a model without files --- */

static struct st_adapter_spec *spec_from(const char *text)
{
    struct st_adapter_spec *spec;

    assert_ok(st_adapter_spec_parse(&spec, text, strlen(text), "here"));
    return spec;
}

static void seeded_open(struct rig *r, const struct st_model_config *config, struct st_model_batch batch, const char *text)
{
    struct st_adapter_spec *spec = spec_from(text);

    batch.adapter = spec;
    rig_open(r, config, &batch, st_kernels_pick(NULL));
    st_adapter_spec_destroy(spec);
    for (uint32_t i = 0; i < r->m->tensor_count; i++) /* B is zero as a rule */
        if (r->m->tensors[i].adapts != ST_NO_TENSOR)
            r->m->tensors[i].init_std = 0.1f, r->m->tensors[i].init_range = 0.0f;
    rig_load_seed(r, 7);
}

/* --- one rounding --- */

static double bf16_at(const void *values, uint64_t i)
{
    float value;

    st_kernels_pick("scalar")->bf16_to_f32(&value, (const uint16_t *)values + i, 1);
    return (double)value;
}

static double tensor_at(const struct rig *r, const struct st_tensor *t, uint64_t i)
{
    const unsigned char *page = r->weights[t->page];
    const uint64_t at = st_page_at(&r->w->pages[t->page], t->offset);

    return t->format == STRATA_F32 ? (double)((const float *)(const void *)(page + at))[i] : bf16_at(page + at, i);
}

/* Row and column of W x + b + s B (A x); W: [in, out]. */
static double exact(const struct rig *r, const struct st_tensor *w, const struct st_tensor *bias, const void *x, uint64_t row,
                    uint64_t col)
{
    const struct st_tensor *a = &r->m->tensors[w->adapter], *b = a + 1;
    const uint64_t in = w->shape[0], out = w->shape[1], rank = a->shape[0];
    double sum = tensor_at(r, bias, col);

    for (uint64_t k = 0; k < in; k++)
        sum += bf16_at(x, row * in + k) * tensor_at(r, w, k * out + col);
    for (uint64_t q = 0; q < rank; q++) {
        double inner = 0.0;

        for (uint64_t k = 0; k < in; k++)
            inner += bf16_at(x, row * in + k) * tensor_at(r, a, q * in + k);
        sum += (double)a->scale * tensor_at(r, b, col * rank + q) * inner;
    }
    return sum;
}

/* The first feed-forward layer, whose input stays in the workspace: its output is the nearest bf16 number to the whole sum, save
 * where fp32 sums lie on the other side of a tie. */
TEST(test_one_rounding)
{
    const struct st_model_config config = tiny_config();
    const struct st_model_batch batch = {.micro_batch = 2, .seq = 8, .grad_accum = 1, .dtype = STRATA_BF16, .workers = 2};
    const struct st_tensor *w, *bias;
    const unsigned char *x, *fc;
    uint32_t other = 0, count;
    struct st_call call;
    struct rig r;

    seeded_open(&r, &config, batch, "{\"r\":4,\"lora_alpha\":20,\"target_modules\":[\"c_fc\"]}");
    for (uint64_t i = 0; i < (uint64_t)r.rows * config.hidden; i++) {
        const float value = (float)(i * 2654435761u % 1024) / 512.0f - 1.0f;

        st_kernels_pick("scalar")->f32_to_bf16((uint16_t *)(void *)r.acts[0] + i, &value, 1);
    }
    call = rig_call(&r, ST_CALL_BLOCK_FORWARD, shape_of(r.w).block_first);
    call.act = r.acts[0];
    call.act_out = r.acts[1];
    call.internals = r.internals[0];
    rig_run(&r, &call);
    x = r.workspace + st_block_workspace_layout(r.m).narrow;
    fc = r.internals[0] + st_block_values_layout(r.m, false).fc;
    w = &r.m->tensors[st_model_block_tensors(r.m, 0) + st_model_roles(r.m, 0)[ST_ROLE_GATE_WEIGHT]];
    bias = &r.m->tensors[st_model_block_tensors(r.m, 0) + st_model_roles(r.m, 0)[ST_ROLE_GATE_BIAS]];
    count = r.rows * config.ffn;
    for (uint32_t i = 0; i < count; i++) {
        const float sum = (float)exact(&r, w, bias, x, i / config.ffn, i % config.ffn);
        uint16_t nearest;

        st_kernels_pick("scalar")->f32_to_bf16(&nearest, &sum, 1);
        other += memcmp(&nearest, fc + 2 * (uint64_t)i, sizeof(nearest)) != 0;
    }
    if (other > count / 200)
        fail_msg("%u of %u values are not the nearest", other, count);
    rig_close(&r);
}

enum { TALL_SEQ = 100, TALL_BATCH = 21, TALL_ROWS = TALL_SEQ * TALL_BATCH };

TEST(test_rows_in_parts)
{
    static const char spec[] = "{\"r\":3,\"target_modules\":\"all-linear\"}";
    static int32_t tokens[TALL_ROWS], targets[TALL_ROWS];
    const struct st_model_config config = {
        .name = "tall", .blocks = 1, .hidden = 16, .heads = 2, .ffn = 64, .vocab = 500, .context = 128, .norm_eps = 1e-5f};
    struct st_model_batch batch = {
        .micro_batch = TALL_BATCH, .seq = TALL_SEQ, .grad_accum = 1, .dtype = STRATA_F32, .workers = 2};
    struct rig whole, part;
    double sum = 0.0;

    assert_true(TALL_ROWS > ST_ADAPTED_ROWS);
    for (uint32_t i = 0; i < TALL_ROWS; i++) {
        tokens[i] = (int32_t)(i * 2654435761u % 500);
        targets[i] = (int32_t)((i + 1) * 2654435761u % 500);
    }
    seeded_open(&whole, &config, batch, spec);
    batch.micro_batch = 1;
    seeded_open(&part, &config, batch, spec);
    for (uint32_t b = 0; b < TALL_BATCH; b++)
        sum += rig_step(&part, tokens + b * TALL_SEQ, targets + b * TALL_SEQ, false) / TALL_BATCH;
    assert_true(fabs(rig_step(&whole, tokens, targets, true) - sum) < 1e-6 * sum);
    for (uint32_t i = 0; i < whole.w->page_count; i++) {
        for (uint64_t e = 0; e < whole.w->pages[i].trained_elems; e++)
            part.grads[i][e] /= TALL_BATCH;
        if (whole.grads[i] != NULL)
            rig_check_near(whole.grads[i], part.grads[i], whole.w->pages[i].trained_elems);
    }
    rig_close(&whole);
    rig_close(&part);
}

/* The last row's logits, from a cache, in runs of `chunk` tokens. */
static void last_logits(const struct st_model_config *config, uint32_t chunk, const int32_t tokens[24], float *out)
{
    const struct st_model_batch batch = {
        .micro_batch = 1, .seq = chunk, .grad_accum = 1, .dtype = STRATA_F32, .workers = 2, .generate = true, .context = 24};
    struct rig r;

    seeded_open(&r, config, batch, "{\"r\":2,\"lora_alpha\":6,\"target_modules\":\"all-linear\"}");
    for (uint32_t at = 0; at < 24; at += chunk) {
        r.position = at;
        r.rows = 24 - at < chunk ? 24 - at : chunk;
        rig_forward(&r, tokens + at, tokens + at);
    }
    memcpy(out, r.head_internals + r.w->logits_offset, config->vocab * sizeof(*out));
    rig_close(&r);
}

TEST(test_generation)
{
    struct st_model_config configs[] = {tiny_config(), tiny_llama_config()};

    for (uint32_t k = 0; k < 2; k++) {
        float *want = malloc(configs[k].vocab * sizeof(*want)), *got = malloc(configs[k].vocab * sizeof(*got));
        int32_t tokens[24];

        configs[k].context = 24;
        for (uint32_t i = 0; i < 24; i++)
            tokens[i] = (int32_t)(i * 2654435761u % configs[k].vocab);
        last_logits(&configs[k], 24, tokens, want);
        for (uint32_t chunk = 1; chunk < 8; chunk += 3) {
            last_logits(&configs[k], chunk, tokens, got);
            for (uint32_t v = 0; v < configs[k].vocab; v++)
                assert_true(fabsf(got[v] - want[v]) <= 1e-4f * fmaxf(1.0f, fabsf(want[v])));
        }
        free(want);
        free(got);
    }
}

/* As they begin, adapters add nothing: modules that are saved whole have the gradients of a model without adapters, and A none.
 */
TEST(test_saved_modules)
{
    static const char text[] =
        "{\"target_modules\":[\"v_proj\",\"down_proj\"],\"modules_to_save\":[\"q_proj\",\"lm_head\",\"input_layernorm\"]}";
    static const char dir[] = "tests/golden/families/llama_linear";
    struct st_adapter_spec *spec = spec_from(text);
    const struct st_model_batch plain = {.dtype = STRATA_F32, .workers = 2};
    struct st_model_batch batch = plain;
    struct st_adapter_init_source begins;
    struct st_hf_reader *reader;
    struct rig all, some;
    uint32_t saved = 0;

    batch.adapter = spec;
    golden_open(&all, dir, &plain, st_kernels_pick(NULL));
    golden_open(&some, dir, &batch, st_kernels_pick(NULL));
    st_adapter_spec_destroy(spec);
    assert_ok(st_hf_reader_open(&reader, some.m, dir));
    begins = (struct st_adapter_init_source){.init = {.model = some.m, .seed = 3}, .base = st_hf_reader_source(reader)};
    rig_load(&some, st_model_adapter_source(&begins));
    st_hf_reader_close(reader);
    assert_true(golden_loss(&some, dir, true) == golden_loss(&all, dir, true));
    for (uint32_t i = 0; i < some.m->tensor_count; i++) {
        const struct st_tensor *t = &some.m->tensors[i];
        const bool is_a = t->adapts != ST_NO_TENSOR && strstr(t->name, "lora_A") != NULL;
        double norm2 = 0.0;

        for (uint64_t e = 0; e < t->elems && !t->frozen && t->page_count == 1; e++)
            norm2 += pow((double)some.grads[t->page][t->offset + e], 2.0);
        if (t->adapts != ST_NO_TENSOR)
            assert_true(!t->frozen && (norm2 == 0.0) == is_a);
        if (t->frozen || t->adapts != ST_NO_TENSOR)
            continue;
        saved++;
        for (uint32_t k = 0; k < all.m->tensor_count; k++) {
            const struct st_tensor *other = &all.m->tensors[k];

            if (strcmp(other->name, t->name) == 0)
                rig_check_near(some.grads[t->page] + t->offset, all.grads[other->page] + other->offset, t->elems);
        }
    }
    assert_int_equal(saved, 2 * 3 + 1); /* q's weight and bias and a norm of two blocks, and the head */
    rig_close(&all);
    rig_close(&some);
}

/* Of a micro-batch through a block's matrices. */
static double linear_flops(const struct st_model *m)
{
    uint64_t elems = 0;

    for (uint32_t i = st_model_block_tensors(m, 0); i < st_model_block_end(m, 0); i++)
        elems += m->tensors[i].rank == 2 ? m->tensors[i].elems : 0;
    return 2.0 * (double)elems * m->batch.micro_batch * m->batch.seq;
}

/* Blocks without adapters have no gradients at all; formats and sums of the pages. */
TEST(test_pages)
{
    struct st_adapter_spec *spec = spec_from("{\"r\":4,\"target_modules\":[\"q_proj\",\"up_proj\"],\"layers_to_transform\":[1]}");
    struct st_model_batch batch = {.micro_batch = 1, .seq = 8, .grad_accum = 1, .dtype = STRATA_BF16, .adapter = spec};
    const struct st_model_config config = tiny_llama_config();
    static const char freeze[][128] = {"*norm*"};
    const struct st_page *page;
    struct st_model *m, *plain;
    double adapters;

    assert_ok(st_model_create(&m, &config, &batch));
    page = &m->workload.pages[shape_of(&m->workload).block_first];
    assert_int_equal(page->trained_elems, 0);
    assert_int_equal(page[1].group_count, 2);
    assert_int_equal(page[1].groups[0].format, STRATA_F32);
    assert_int_equal(page[1].groups[0].kind, ST_GROUP_DECAY);
    assert_int_equal(page[1].groups[0].elems, m->workload.params);
    assert_int_equal(m->workload.params, 4 * (2 * config.hidden + m->width.attention + config.ffn));
    assert_int_equal(page[1].groups[1].format, STRATA_BF16);
    assert_int_equal(page[1].groups[1].kind, ST_GROUP_FROZEN);
    batch.adapter = NULL;
    assert_ok(st_model_create(&plain, &config, &batch));
    adapters = 2.0 * 8 * (double)m->workload.params / config.blocks;
    assert_true(shape_of(&m->workload).block->forward_flops == shape_of(&plain->workload).block->forward_flops + adapters);
    assert_true(shape_of(&m->workload).block->backward_flops ==
                2.0 * shape_of(&plain->workload).block->forward_flops - linear_flops(plain) + 3.0 * adapters);
    batch.adapter = spec;
    batch.freeze = freeze;
    batch.freeze_count = 1;
    st_model_destroy(plain);
    assert_int_equal(st_model_create(&plain, &config, &batch), STRATA_E_INVAL);
    assert_non_null(strstr(strata_last_error(), "strata.freeze beside an adapter"));
    st_model_destroy(m);
    st_adapter_spec_destroy(spec);
}
