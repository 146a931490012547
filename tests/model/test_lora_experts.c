/* test_lora_experts - adapters of experts, by either way to name them: losses and gradients are those of experts that have the
 * sum for their weights; what would mean something else is refused. */
#include "decoder_rig.h"
#include "model/hf/hf_adapter.h"
#include "tests/common/golden.h"
#include <math.h>
#include <stdio.h>

static const struct st_tensor *named(const struct st_model *m, const char *name)
{
    for (uint32_t i = 0; i < m->tensor_count; i++)
        if (strcmp(m->tensors[i].name, name) == 0)
            return &m->tensors[i];
    return NULL;
}

/* The adapter of a tensor, whose rows of B begin at *row: an up may share that of its gate.  NULL: it has none. */
static const struct st_tensor *adapter_of(const struct st_model *m, const struct st_tensor *t, uint64_t *row)
{
    const struct st_tensor *gate = t - 1, *own = t->adapter != ST_NO_TENSOR ? &m->tensors[t->adapter] : NULL;
    const bool shared = own == NULL && t->expert != ST_NO_EXPERT && t->part == ST_EXPERT_UP && gate->adapter != ST_NO_TENSOR &&
                        m->tensors[gate->adapter + 1].shape[0] == 2 * gate->shape[0];

    *row = shared ? gate->shape[0] : 0;
    return shared ? &m->tensors[gate->adapter] : own;
}

static const float *values_of(const struct rig *r, const struct st_tensor *t)
{
    return (const float *)(const void *)(r->weights[t->page] + st_page_at(&r->w->pages[t->page], t->offset));
}

/* Row and column of a matrix [out, in] as they are stored. */
static uint64_t stored_at(const struct st_model *m, const struct st_tensor *t, uint64_t out, uint64_t in)
{
    return st_model_is_turned(m, t) ? in * t->shape[1] + out : out * t->shape[1] + in;
}

/* W + s B A of each tensor that has an adapter in another rig. */
struct summed {
    const struct rig *adapted, *whole;
    struct st_weight_source from;
};

static strata_status read_summed(void *ctx, uint32_t page, uint64_t first, uint64_t count, float *out)
{
    const struct summed *s = ctx;
    const struct st_model *m = s->adapted->m;
    struct st_piece piece;

    assert_ok(s->from.read(s->from.ctx, page, first, count, out));
    for (uint32_t i = 0; st_model_piece(s->whole->m, page, first, count, i, &piece); i++) {
        const struct st_tensor *t = named(m, piece.tensor->name);
        uint64_t row;
        const struct st_tensor *a = adapter_of(m, t, &row);

        for (uint64_t e = 0; a != NULL && e < piece.count; e++) {
            const uint64_t at = piece.tensor_first + e, cols = t->shape[1], rank = a->shape[0];
            const uint64_t o = st_model_is_turned(m, t) ? at % cols : at / cols,
                           k = st_model_is_turned(m, t) ? at / cols : at % cols;
            double sum = 0;

            for (uint64_t q = 0; q < rank; q++)
                sum += (double)values_of(s->adapted, a + 1)[(row + o) * rank + q] *
                       (double)values_of(s->adapted, a)[q * a->shape[1] + k];
            out[piece.range_first + e] += (float)((double)a->scale * sum);
        }
    }
    return STRATA_OK;
}

/* dB = s dW A^T and dA = s B^T dW, where dW is the gradient of the sum's weight; what a shared A gets of gate and up is added. */
static void check_gradients(const struct rig *adapted, const struct rig *whole, const struct st_tensor *a)
{
    const struct st_model *m = adapted->m;
    const uint64_t rank = a->shape[0], in = a->shape[1], out = a[1].shape[0];
    const struct st_tensor *base = &m->tensors[a->adapts];
    float *want_a = calloc(rank * in, sizeof(*want_a)), *want_b = calloc(out * rank, sizeof(*want_b));

    for (uint64_t o = 0; o < out; o++) {
        const struct st_tensor *t = st_model_is_turned(m, base) || o < base->shape[0] ? base : base + 1;
        const struct st_tensor *w = named(whole->m, t->name);

        for (uint64_t k = 0; k < in; k++) {
            const float dw = whole->grads[w->page][w->offset + stored_at(m, t, o - (t == base ? 0 : base->shape[0]), k)];

            for (uint64_t q = 0; q < rank; q++) {
                want_b[o * rank + q] += a->scale * dw * values_of(adapted, a)[q * in + k];
                want_a[q * in + k] += a->scale * dw * values_of(adapted, a + 1)[o * rank + q];
            }
        }
    }
    rig_check_near(adapted->grads[a->page] + a->offset, want_a, rank * in);
    rig_check_near(adapted->grads[a->page] + a[1].offset, want_b, out * rank);
    free(want_a);
    free(want_b);
}

static void check_experts(const char *dir, const char *text, uint32_t pairs_of_expert)
{
    struct st_model_batch batch = {.dtype = STRATA_F32, .workers = 2, .slice_elems = 1};
    struct st_adapter_spec *spec;
    struct st_adapter_init_source begins;
    struct st_hf_reader *reader, *other;
    struct rig adapted, whole;
    struct summed summed = {.adapted = &adapted, .whole = &whole};
    uint32_t checked = 0;
    uint32_t sparse = 0;
    double loss;

    assert_ok(st_adapter_spec_parse(&spec, text, strlen(text), "here"));
    golden_open(&whole, dir, &batch, st_kernels_pick(NULL));
    batch.adapter = spec;
    golden_open(&adapted, dir, &batch, st_kernels_pick(NULL));
    st_adapter_spec_destroy(spec);
    for (uint32_t i = 0; i < adapted.m->tensor_count; i++)
        if (adapted.m->tensors[i].adapts != ST_NO_TENSOR)
            adapted.m->tensors[i].init_std = 0.1f, adapted.m->tensors[i].init_range = 0.0f;
    assert_ok(st_hf_reader_open(&reader, adapted.m, dir));
    begins = (struct st_adapter_init_source){.init = {.model = adapted.m, .seed = 3}, .base = st_hf_reader_source(reader)};
    rig_load(&adapted, st_model_adapter_source(&begins));
    assert_ok(st_hf_reader_open(&other, whole.m, dir));
    summed.from = st_hf_reader_source(other);
    rig_load(&whole, (struct st_weight_source){.ctx = &summed, .read = read_summed});
    loss = golden_loss(&whole, dir, false);
    assert_true(fabs(golden_loss(&adapted, dir, true) - loss) <= 1e-5 * loss);
    for (uint32_t i = 0; i < adapted.m->tensor_count; i++) {
        const struct st_tensor *a = &adapted.m->tensors[i];

        if (a->adapts == ST_NO_TENSOR || a->expert == ST_NO_EXPERT || strstr(a->name, "lora_A") == NULL)
            continue;
        check_gradients(&adapted, &whole, a);
        checked++;
    }
    for (uint32_t b = 0; b < adapted.m->config.blocks; b++)
        sparse += st_model_is_sparse(adapted.m, b);
    assert_int_equal(checked, sparse * adapted.m->config.experts * pairs_of_expert);
    st_hf_reader_close(reader);
    st_hf_reader_close(other);
    rig_close(&adapted);
    rig_close(&whole);
}

/* By either way to name them. */
TEST(test_adapters_of_experts_are_sums_of_their_weights)
{
    static const char stacks[] =
        "{\"r\":3,\"lora_alpha\":5,\"target_modules\":[\"q_proj\"],\"target_parameters\":["
        "\"mlp.experts.gate_up_proj\",\"experts.down_proj\"],\"rank_pattern\":{\"experts.down_proj\":2}}";

    check_experts("tests/golden/experts/qwen3_moe", stacks, 2);
    check_experts("tests/golden/experts/qwen2_moe", stacks, 2);
    check_experts("tests/golden/experts/gpt_oss", stacks, 2);
    check_experts("tests/golden/experts/qwen3_moe",
                  "{\"r\":3,\"target_modules\":[\"v_proj\",\"gate_proj\",\"up_proj\",\"down_proj\"],\"rank_pattern\":"
                  "{\"experts.*.gate_proj\":2}}",
                  3);
    check_experts("tests/golden/experts/mixtral", "{\"r\":2,\"target_modules\":[\"w3\"]}", 1);
}

/* What would mean something else is refused, by name. */
TEST(test_adapters_of_experts_that_are_refused)
{
    static const struct {
        const char *text, *says;
    } rows[] = {
        {"{\"target_parameters\":[\"experts.down_proj\"],\"lora_dropout\":0.1}", "must be 0 beside target_parameters"},
        {"{\"target_modules\":[\"up_proj\"],\"lora_dropout\":0.1}", "lora_dropout is not supported beside an adapter of"},
        {"{\"target_modules\":[\"down_proj\"],\"target_parameters\":[\"experts.down_proj\"]}",
         "by target_modules and by target_parameters"},
        {"{\"target_modules\":[\"experts.1.down_proj\"]}", "experts of a layer have adapters of one rank and scale"},
        {"{\"target_modules\":[\"down_proj\"],\"rank_pattern\":{\"experts.2.down_proj\":3}}", "rank 3"},
        {"{\"target_parameters\":[\"mlp.gate.weight\"]}", "only stacks of experts have adapters by it"},
        {"{\"target_parameters\":[\"experts.up_proj\"]}", "fits no stack of experts"},
        {"{\"target_modules\":[]}", "is an empty list"},
        {"{\"target_modules\":[\"q_proj\"],\"modules_to_save\":[\"mlp\"]}", "experts are not trained whole"},
        {"{\"target_modules\":[\"gate\"]}", "which is a router"},
        {"{\"target_modules\":[\"gate_up_proj\"]}", "\"gate_up_proj\" fits no module, but the parameter "
                                                    "model.layers.0.mlp.experts.gate_up_proj of a layer's experts: name that "
                                                    "in target_parameters"},
        {"{\"target_modules\":[\"gate_up_prj\"]}", "its modules end in gate_proj, embed_tokens"},
        {"{\"target_modules\":[\"q_proj\"],\"alpha_pattern\":{\"gate_up_proj\":3}}", "name that in target_parameters"},
        {"{\"target_modules\":[\"q_proj\"],\"exclude_modules\":[\"experts.gate_up_proj\"]}", "leave it out of target_parameters"},
    };
    struct st_model_batch batch = {.micro_batch = 1, .seq = 8, .grad_accum = 1, .dtype = STRATA_F32};
    struct st_model_config config;
    struct st_model *m;

    assert_ok(st_model_config_read(&config, "tests/golden/experts/qwen3_moe"));
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct st_adapter_spec *spec = NULL;
        strata_status st = st_adapter_spec_parse(&spec, rows[i].text, strlen(rows[i].text), "here");

        batch.adapter = spec;
        if (st == STRATA_OK)
            st = st_model_create(&m, &config, &batch);
        assert_int_equal(st, STRATA_E_CONFIG);
        if (strstr(strata_last_error(), rows[i].says) == NULL)
            fail_msg("%s: %s", rows[i].text, strata_last_error());
        st_adapter_spec_destroy(spec);
    }
}

/* What PEFT 0.21 beside transformers 5 made of files of such settings: python/tests/test_adapters.py has it read some. */
TEST(test_what_peft_reads_otherwise_is_known)
{
#define ALL                                                                                                                      \
    "\"target_modules\":[\"q_proj\",\"gate_proj\",\"up_proj\",\"down_proj\"],\"exclude_modules\":[\"layers.1.mlp.gate_proj\","   \
    "\"layers.1.mlp.up_proj\",\"layers.1.mlp.down_proj\"]"
#define PARTS "\"target_parameters\":[\"mlp.experts.gate_up_proj\",\"mlp.experts.down_proj\"]"
    static const struct {
        const char *model, *text, *says; /* says "": PEFT makes the same */
        bool apart;
    } rows[] = {
        {"qwen3_moe", "{" ALL "}", "", true},
        {"qwen3_moe", "{" ALL ",\"alpha_pattern\":{\"down_proj\":3},\"rank_pattern\":{\"q_proj\":2,\"down_proj\":5}}", "", true},
        {"qwen3_moe", "{" ALL ",\"use_rslora\":true}", "gate_up_proj adds by 4 in place of 2.82843", true},
        {"qwen3_moe", "{" ALL ",\"alpha_pattern\":{\"up_proj\":16}}", "have ranks 8 and 8, scales 1 and 2", true},
        {"qwen3_moe", "{" ALL ",\"alpha_pattern\":{\"(up|gate)_proj\":16}}", "gate_up_proj adds by 1 in place of 2", true},
        {"qwen3_moe", "{" ALL ",\"alpha_pattern\":{\".*experts.*\":16}}", "gate_up_proj adds by 1 in place of 2", true},
        {"qwen3_moe", "{" ALL ",\"alpha_pattern\":{\"experts.\\\\d.down_proj\":4}}",
         "experts.down_proj adds by 1 in place of 0.5", true},
        {"qwen3_moe", "{" ALL ",\"rank_pattern\":{\"up_proj\":4}}", "have ranks 8 and 4", true},
        {"qwen3_moe", "{" ALL ",\"rank_pattern\":{\"(up|gate)_proj\":4}}",
         "wants rank 16 of model.layers.0.mlp.experts.gate_up_proj", true},
        {"qwen3_moe", "{" ALL ",\"rank_pattern\":{\"experts.\\\\d.down_proj\":4}}", "and the file has 4", true},
        {"qwen3_moe", "{\"target_modules\":\"all-linear\"}", "leaves that of model.layers.1.mlp.gate_proj out", false},
        {"qwen3_moe", "{\"target_modules\":[\"mlp.down_proj\"]}", "leaves that of model.layers.1.mlp.down_proj out", false},
        {"qwen3_moe", "{\"target_modules\":[\"q_proj\"]," PARTS ",\"use_rslora\":true}", "", false},
        {"olmoe", "{\"target_modules\":[\"down_proj\"],\"use_rslora\":true}", "", false},
        {"olmoe", "{\"target_modules\":\"all-linear\"}", "", false},
        {"olmoe", "{\"target_modules\":[\"gate_proj\",\"up_proj\"]}", "out where no down_proj has any", true},
        {"olmoe", "{\"target_modules\":[\"up_proj\",\"down_proj\"]}", "have ranks 0 and 8", true},
        {"olmoe", "{\"target_modules\":\".*(gate|up|down)_proj\"}", "", true},
        {"olmoe", "{\"target_modules\":\".*experts.[0-9]+.(gate|up|down)_proj\"}",
         "looks for model.layers.0.mlp.experts.gate_proj", true},
        {"olmoe", "{\"target_modules\":[\"down_proj\"],\"target_parameters\":[\"experts.gate_up_proj\"]}",
         "for another name in target_parameters", false},
        {"mixtral", "{\"target_modules\":[\"w1\",\"w2\",\"w3\"]}", "", true},
        {"mixtral", "{\"target_modules\":[\"w1\",\"w3\"]}", "w1 and w3 out where no w2 has any", true},
        {"mixtral", "{\"target_modules\":\".*block_sparse_moe.*w2\"}", "looks for model.layers.0.mlp.experts.w2", false},
        {"qwen2_moe", "{\"target_modules\":[\"down_proj\"]}", "that target_modules names in qwen2_moe", false},
        {"qwen2_moe", "{\"target_modules\":[\"shared_expert.down_proj\"]," PARTS "}", "", false},
        {"gpt_oss", "{\"target_modules\":\"all-linear\"," PARTS "}", "", false},
    };
    struct st_model_batch batch = {.micro_batch = 1, .seq = 8, .grad_accum = 1, .dtype = STRATA_F32};

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct st_peft_reading reading[2];
        struct st_adapter_spec *spec;
        struct st_model_config config = {0};
        struct st_model *m[2];
        char dir[128];

        snprintf(dir, sizeof(dir), "tests/golden/experts/%s", rows[i].model);
        assert_ok(st_adapter_spec_parse(&spec, rows[i].text, strlen(rows[i].text), "here"));
        assert_ok(st_model_config_read(&config, dir));
        for (uint32_t k = 0; k < 2; k++) { /* without the adapter's own tensors, and with them */
            batch.adapter = k == 0 ? NULL : spec;
            assert_ok(st_model_create(&m[k], &config, &batch));
            assert_ok(st_model_peft_reading(&reading[k], m[k], spec));
            if (rows[i].says[0] == '\0' ? reading[k].what[0] != '\0' : strstr(reading[k].what, rows[i].says) == NULL)
                fail_msg("%s: %s: \"%s\"", rows[i].model, rows[i].text, reading[k].what);
            st_model_destroy(m[k]);
        }
        assert_string_equal(reading[0].what, reading[1].what);
        if (reading[0].what[0] == '\0')
            assert_int_equal(reading[0].apart, rows[i].apart);
        st_adapter_spec_destroy(spec);
    }
#undef ALL
#undef PARTS
}
