/* tests/model/test_nf4_model.c - linear weights in NF4: their places, the decoder's values, and what is refused. */
#include "decoder_rig.h"
#include "model/adapter/adapter.h"
#include "model/nf4.h"
#include "tests/common/shape.h"
#include <fnmatch.h>
#include <math.h>

#define TIED   "tests/golden/llama_tiny_tied"
#define UNTIED "tests/golden/llama_tiny_untied"

static const char linear[][128] = {"*_proj.weight"}, linear_gpt2[][128] = {"*.c_*.weight"};

/* As records leave them: [elems], or a matrix [in, out] that is quantised as [out, in]. */
static void leave(float *values, uint64_t elems)
{
    for (uint64_t at = 0; at < elems; at += ST_NF4_ELEMS) {
        struct st_nf4_block block;

        st_kernels_pick("scalar")->nf4_quantise(&block, values + at, ST_NF4_ELEMS);
        st_kernels_pick("scalar")->nf4_widen(values + at, STRATA_F32, &block, ST_NF4_ELEMS);
    }
}

static void leave_turned(float *values, uint64_t in, uint64_t out)
{
    float *turned = malloc(in * out * sizeof(*turned));

    assert_non_null(turned);
    for (uint64_t i = 0; i < in * out; i++)
        turned[i % out * in + i / out] = values[i];
    leave(turned, in * out);
    for (uint64_t i = 0; i < in * out; i++)
        values[i] = turned[i % out * in + i / out];
    free(turned);
}

/* Values of the linear weights as their records leave them, around another source. */
struct left {
    const struct st_model *m;
    struct st_weight_source from;
};

static strata_status read_left(void *ctx, uint32_t page, uint64_t first, uint64_t count, float *out)
{
    const struct left *l = ctx;
    struct st_piece piece;

    assert_ok(l->from.read(l->from.ctx, page, first, count, out));
    for (uint32_t i = 0; st_model_piece(l->m, page, first, count, i, &piece); i++) {
        float *values = out + piece.range_first;

        if (fnmatch(l->m->config.out_in ? linear[0] : linear_gpt2[0], piece.tensor->name, 0) != 0)
            continue;
        if (l->m->config.out_in) {
            leave(values, piece.count);
        } else if (piece.count > 0) {
            assert_int_equal(piece.count, piece.tensor->elems);
            leave_turned(values, piece.tensor->shape[0], piece.tensor->shape[1]);
        }
    }
    return STRATA_OK;
}

static void load_left(struct rig *r, const char *dir)
{
    struct st_hf_reader *reader;
    struct left left = {.m = r->m};

    assert_ok(st_hf_reader_open(&reader, r->m, dir));
    left.from = st_hf_reader_source(reader);
    rig_load(r, (struct st_weight_source){.ctx = &left, .read = read_left});
    st_hf_reader_close(reader);
}

/* As a run loads it. */
static void load_stored(struct rig *r, const char *dir)
{
    struct st_hf_reader *reader;
    struct st_nf4_source *s;

    assert_ok(st_hf_reader_open(&reader, r->m, dir));
    assert_ok(st_nf4_source_open(&s, r->m, st_hf_reader_source(reader), false, false));
    rig_load(r, st_nf4_source_values(s));
    st_nf4_source_close(s);
    st_hf_reader_close(reader);
}

static void same_gradients(const struct rig *a, const struct rig *b)
{
    for (uint32_t i = 0; i < st_model_tensor_count(a->m); i++) {
        const struct st_tensor *t = st_model_tensor(a->m, i), *other = st_model_tensor(b->m, i);

        assert_int_equal(t->frozen, other->frozen);
        if (!t->frozen)
            assert_memory_equal(a->grads[t->page] + t->offset, b->grads[other->page] + other->offset, t->elems * sizeof(float));
    }
}

/* To the bit those of frozen weights in the model's dtype that hold the widened values. */
static void check_steps(const char *dir, strata_dtype dtype)
{
    struct st_model_batch batch = {.dtype = dtype, .workers = 2, .nf4 = true};
    struct rig packed, plain;
    double loss;

    golden_open(&packed, dir, &batch, st_kernels_pick(NULL));
    load_stored(&packed, dir);
    batch.nf4 = false;
    batch.freeze = packed.m->config.out_in ? linear : linear_gpt2;
    batch.freeze_count = 1;
    golden_open(&plain, dir, &batch, st_kernels_pick(NULL));
    load_left(&plain, dir);
    for (int recompute = 0; recompute < 2; recompute++) {
        loss = golden_loss(&packed, dir, recompute != 0);
        assert_true(isfinite(loss) && loss == golden_loss(&plain, dir, recompute != 0));
        same_gradients(&packed, &plain);
    }
    rig_close(&packed);
    rig_close(&plain);
}

TEST(test_steps_are_those_of_the_widened_weights)
{
    for (strata_dtype dtype = STRATA_F32; dtype <= STRATA_F16; dtype++) {
        check_steps(TIED, dtype);
        check_steps(UNTIED, dtype);
        check_steps("tests/golden/families/gemma2_caps", dtype);
        check_steps("tests/golden/families/olmo2", dtype);
        check_steps("tests/golden/families/phi3_long", dtype);
        check_steps("tests/golden/experts/qwen3_moe", dtype);
        check_steps("tests/golden/experts/qwen2_moe", dtype);
        check_steps("tests/golden/experts/olmoe", dtype);
        check_steps("tests/golden/gpt2_tiny", dtype);
        check_steps("tests/golden/families/gpt2_exact", dtype);
    }
}

/* Seeded weights, those of adapters of which none is zero. */
static void open_adapted(struct rig *r, const char *dir, struct st_model_batch batch, const char *text)
{
    struct st_adapter_spec *spec;
    struct st_model_config config;
    struct st_model_init init = {.seed = 7};
    struct left left;

    assert_ok(st_adapter_spec_parse(&spec, text, strlen(text), "here"));
    assert_ok(st_model_config_read(&config, dir));
    batch.micro_batch = 2;
    batch.seq = 32;
    batch.grad_accum = 1;
    batch.adapter = spec;
    rig_open(r, &config, &batch, st_kernels_pick(NULL));
    st_adapter_spec_destroy(spec);
    for (uint32_t i = 0; i < r->m->tensor_count; i++)
        if (r->m->tensors[i].adapts != ST_NO_TENSOR)
            r->m->tensors[i].init_std = 0.1f, r->m->tensors[i].init_range = 0.0f;
    init.model = r->m;
    left = (struct left){.m = r->m, .from = st_model_init_source(&init)};
    rig_load(r, batch.nf4 ? left.from : (struct st_weight_source){.ctx = &left, .read = read_left});
}

TEST(test_adapters_of_nf4_are_those_of_the_widened_weights)
{
    static const char *const specs[] = {"{\"r\":4,\"target_modules\":\"all-linear\"}",
                                        "{\"r\":2,\"target_modules\":[\"v_proj\",\"up_proj\"],\"modules_to_save\":[\"norm\"]}"};

    for (uint32_t i = 0; i < 6; i++) {
        struct st_model_batch batch = {.dtype = (strata_dtype)(STRATA_F32 + i / 2), .workers = 2, .nf4 = true};
        struct rig packed, plain;

        open_adapted(&packed, UNTIED, batch, specs[i % 2]);
        batch.nf4 = false;
        open_adapted(&plain, UNTIED, batch, specs[i % 2]);
        assert_true(golden_loss(&packed, UNTIED, i % 2 == 0) == golden_loss(&plain, UNTIED, i % 2 == 0));
        assert_true(packed.w->params > 0 && packed.w->params == plain.w->params);
        same_gradients(&packed, &plain);
        rig_close(&packed);
        rig_close(&plain);
    }
}

/* --- places --- */

TEST(test_linear_weights_are_a_group_of_their_own)
{
    const struct st_model_batch batch = {.micro_batch = 1, .seq = 16, .grad_accum = 1, .dtype = STRATA_BF16, .nf4 = true};
    const struct st_model_config config = tiny_llama_config();
    const struct st_group *g;
    const struct st_page *p;
    struct st_model *m;
    uint64_t elems = 0;

    assert_ok(st_model_create(&m, &config, &batch));
    p = &st_model_workload(m)->pages[shape_of(st_model_workload(m)).block_first];
    g = &p->groups[p->group_count - 1];
    assert_int_equal(g->kind, ST_GROUP_FROZEN);
    assert_int_equal(g->format, STRATA_NF4);
    assert_int_equal(g->bytes, g->elems / 64 * 36);
    for (uint32_t i = 0; i < st_model_tensor_count(m); i++) {
        const struct st_tensor *t = st_model_tensor(m, i);
        const bool is_linear = strstr(t->name, "_proj.weight") != NULL;

        assert_int_equal(t->format, is_linear ? STRATA_NF4 : STRATA_BF16);
        assert_int_equal(t->frozen, is_linear);
        if (!is_linear || t->page != shape_of(st_model_workload(m)).block_first)
            continue;
        assert_int_equal((t->offset - g->offset) % ST_PAGE_ALIGN, 0);
        elems += (t->elems + ST_PAGE_ALIGN - 1) / ST_PAGE_ALIGN * ST_PAGE_ALIGN;
    }
    assert_int_equal(g->elems, elems);
    for (uint32_t i = 0; i + 1 < p->group_count; i++)
        assert_true(p->groups[i].kind != ST_GROUP_FROZEN);
    st_model_destroy(m);
}

TEST(test_what_nf4_cannot_hold_is_refused)
{
    const struct st_model_batch batch = {.micro_batch = 1, .seq = 16, .grad_accum = 1, .dtype = STRATA_BF16, .nf4 = true};
    struct st_model_config config = tiny_llama_config();
    struct st_model *m = NULL;

    config.hidden = 40;
    config.head_dim = 6;
    config.ffn = 40;
    assert_refused(st_model_create(&m, &config, &batch), STRATA_E_INVAL, "blocks of 64");
    assert_null(m);
}

/* --- the source --- */

static strata_status read_nan(void *ctx, uint32_t page, uint64_t first, uint64_t count, float *out)
{
    struct st_weight_source *from = ctx;
    const strata_status st = from->read(from->ctx, page, first, count, out);

    for (uint64_t i = 0; i < count; i++)
        out[i] = first + i == 4096 ? NAN : out[i];
    return st;
}

TEST(test_values_that_are_not_finite_are_refused)
{
    const struct st_model_batch batch = {.micro_batch = 1, .seq = 16, .grad_accum = 1, .dtype = STRATA_BF16, .nf4 = true};
    const struct st_model_config config = tiny_llama_config();
    struct st_nf4_source *s;
    struct st_model_init init = {.seed = 1};
    struct st_weight_source from;
    struct st_model *m;
    float *values;

    assert_ok(st_model_create(&m, &config, &batch));
    const uint32_t page = shape_of(st_model_workload(m)).block_first;
    const uint64_t elems = st_model_workload(m)->pages[page].elems;

    init.model = m;
    from = st_model_init_source(&init);
    values = malloc(elems * sizeof(*values));
    assert_non_null(values);
    for (int twice = 0; twice < 2; twice++) {
        assert_ok(st_nf4_source_open(&s, m, (struct st_weight_source){.ctx = &from, .read = read_nan}, false, twice != 0));
        assert_refused(st_nf4_source_values(s).read(s, page, 0, elems, values), STRATA_E_NUMERICS, "_proj.weight holds 1 value");
        st_nf4_source_close(s);
    }
    free(values);
    st_model_destroy(m);
}

/* Against their definition: less the mean of all, each 256 over their own largest magnitude, and of the values the nearest. */
TEST(test_scales_of_scales)
{
    static const float values[] = {
#include "model/nf4_scales.inc"
    };
    static const uint64_t counts[] = {1, 2, 255, 256, 257, 600};

    for (uint32_t n = 0; n < sizeof(counts) / sizeof(counts[0]); n++) {
        float scales[600], want[600];
        double sum = 0.0;

        for (uint64_t i = 0; i < counts[n]; i++) {
            scales[i] = (float)(i < 300 ? 1 : 3) * (0.5f + (float)((uint32_t)i * 2654435761u >> 8) * 0x1p-24f);
            sum += (double)scales[i];
        }
        const float mean = (float)(sum / (double)counts[n]);

        for (uint64_t i = 0; i < counts[n]; i++) {
            const uint64_t first = i / 256 * 256, end = first + 256 < counts[n] ? first + 256 : counts[n];
            uint32_t best = 0;
            float most = 0.0f;

            for (uint64_t j = first; j < end; j++)
                most = fmaxf(most, fabsf(scales[j] - mean));
            for (uint32_t v = 1; v < 256; v++)
                if (fabsf(values[v] * most - (scales[i] - mean)) < fabsf(values[best] * most - (scales[i] - mean)))
                    best = v;
            want[i] = values[best] * most + mean;
        }
        st_nf4_scales_twice(scales, counts[n]);
        for (uint64_t i = 0; i < counts[n]; i++)
            assert_true(fabsf(scales[i] - want[i]) <= 2e-6f);
    }
}

/* Any cut of the page gives the same values, and they become records with the scales that they came from. */
TEST(test_double_quantisation_does_not_depend_on_cuts)
{
    const struct st_model_batch batch = {.micro_batch = 1, .seq = 16, .grad_accum = 1, .dtype = STRATA_BF16, .nf4 = true};
    const struct st_model_config config = tiny_llama_config();
    struct st_model_init init = {.seed = 1};
    struct st_nf4_source *s;
    struct st_model *m;
    float *whole, *plain, *part;
    bool moved = false;

    assert_ok(st_model_create(&m, &config, &batch));
    const uint32_t page = shape_of(st_model_workload(m)).block_first;
    const struct st_page *p = &st_model_workload(m)->pages[page];
    const struct st_group *g = &p->groups[p->group_count - 1];

    init.model = m;
    whole = malloc(p->elems * sizeof(*whole));
    plain = malloc(p->elems * sizeof(*plain));
    part = malloc(p->elems * sizeof(*part));
    assert_true(whole != NULL && plain != NULL && part != NULL);
    assert_ok(st_nf4_source_open(&s, m, st_model_init_source(&init), false, true));
    assert_ok(st_nf4_source_values(s).read(s, page, 0, p->elems, whole));
    assert_ok(st_model_init_source(&init).read(&init, page, 0, p->elems, plain));
    for (uint64_t at = g->offset; at < g->offset + g->elems; at += 192) {
        const uint64_t count = g->offset + g->elems - at < 192 ? g->offset + g->elems - at : 192;
        struct st_nf4_block block, again;

        assert_ok(st_nf4_source_values(s).read(s, page, at, count, part));
        assert_memory_equal(part, whole + at, count * sizeof(*part));
        st_kernels_pick("scalar")->nf4_quantise(&block, plain + at, ST_NF4_ELEMS);
        st_kernels_pick("scalar")->nf4_quantise(&again, part, ST_NF4_ELEMS);
        assert_memory_equal(again.codes, block.codes, sizeof(block.codes));
        assert_true(fabsf(again.absmax - block.absmax) <= 0.05f * block.absmax);
        moved = moved || again.absmax != block.absmax;
    }
    assert_true(moved);
    st_nf4_source_close(s);
    free(whole);
    free(plain);
    free(part);
    st_model_destroy(m);
}
