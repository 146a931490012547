/* tests/model/test_init.c - initial weights: any range equals the whole, the distribution is GPT-2's, seeds differ. */
#include "model/adapter/adapter.h"
#include "model/layout.h"
#include "model_fixture.h"
#include "tests/common/golden.h"
#include "tests/common/shape.h"
#include <math.h>

static float *page_values(const struct st_model *m, uint64_t seed, uint32_t page)
{
    struct st_model_init init = {.model = m, .seed = seed};
    const struct st_weight_source source = st_model_init_source(&init);
    const uint64_t elems = st_model_workload(m)->pages[page].elems;
    float *values = malloc(elems * sizeof(*values));

    assert_non_null(values);
    assert_ok(source.read(source.ctx, page, 0, elems, values));
    return values;
}

TEST(test_ranges_equal_the_whole)
{
    struct st_model *m = tiny_model(STRATA_F32);
    struct st_model_init init = {.model = m, .seed = 5};
    const struct st_weight_source source = st_model_init_source(&init);

    for (uint32_t page = 0; page < m->workload.page_count; page++) {
        const uint64_t elems = m->workload.pages[page].elems;
        float *whole = page_values(m, 5, page), part[61];

        for (uint64_t first = 0; first < elems; first += 61) {
            const uint64_t count = elems - first < 61 ? elems - first : 61;

            assert_ok(source.read(source.ctx, page, first, count, part));
            assert_memory_equal(part, whole + first, count * sizeof(float));
        }
        free(whole);
    }
    st_model_destroy(m);
}

/* Values of the table do not depend on where its slices are cut: slice 1 continues slice 0. */
TEST(test_slices_continue_the_table)
{
    const struct st_model_config config = {
        .name = "wide", .blocks = 1, .hidden = 8, .heads = 1, .ffn = 8, .vocab = 6000, .context = 8, .norm_eps = 1e-5f};
    const struct st_model_batch batch = {.micro_batch = 1, .seq = 8, .grad_accum = 1, .dtype = STRATA_F32};
    struct st_model_config whole_config = config;
    struct st_model *cut, *whole;
    float *first, *second, *same;

    whole_config.vocab = 4096;
    assert_ok(st_model_create(&cut, &config, &batch));
    assert_ok(st_model_create(&whole, &whole_config, &batch));
    first = page_values(cut, 1, 0);
    second = page_values(cut, 1, 1);
    same = page_values(whole, 1, 0);
    assert_memory_equal(first, same, 4096 * 8 * sizeof(float));
    assert_memory_not_equal(first, second, 1000 * 8 * sizeof(float));
    free(first);
    free(second);
    free(same);
    st_model_destroy(cut);
    st_model_destroy(whole);
}

static void check_tensor(const struct st_tensor *t, const float *values, double std, double mean)
{
    double sum = 0.0, squares = 0.0, n = (double)t->elems;

    for (uint64_t i = 0; i < t->elems; i++) {
        sum += (double)values[i];
        squares += ((double)values[i] - mean) * ((double)values[i] - mean);
    }
    if (std == 0.0) {
        assert_true(squares == 0.0);
        return;
    }
    assert_true(squares > 0.0 && fabs(sum / n - mean) < 5.0 * std / sqrt(n));
    assert_true(fabs(sqrt(squares / n) - std) < 5.0 * std / sqrt(2.0 * n));
}

TEST(test_distribution_is_gpt2s)
{
    const struct st_model_batch batch = {.micro_batch = 1, .seq = 8, .grad_accum = 1, .dtype = STRATA_BF16};
    struct st_model_config config;
    struct st_model *m;

    assert_ok(st_model_preset(&config, "nano"));
    assert_ok(st_model_create(&m, &config, &batch));
    for (uint32_t i = 0; i < st_model_tensor_count(m); i++) {
        const struct st_tensor *t = st_model_tensor(m, i);
        const bool residual = strstr(t->name, "c_proj.weight") != NULL;
        const bool norm = strstr(t->name, "ln_") != NULL && strstr(t->name, "weight") != NULL;
        float *values = page_values(m, 42, t->page);

        check_tensor(t, values + t->offset, t->rank == 2 ? residual ? 0.02 / sqrt(8.0) : 0.02 : 0.0, norm ? 1.0 : 0.0);
        free(values);
    }
    st_model_destroy(m);
}

TEST(test_distribution_of_llama)
{
    struct st_model_config config = tiny_llama_config();
    struct st_model *m;

    config.hidden = 128;
    config.ffn = 384;
    config.family = ST_FAMILY_QWEN2;
    config.biases = ST_BIAS_QKV;
    m = tiny_model_of(&config, STRATA_F32);
    for (uint32_t i = 0; i < st_model_tensor_count(m); i++) {
        const struct st_tensor *t = st_model_tensor(m, i);
        float *values = page_values(m, 42, t->page);

        check_tensor(t, values + t->offset, t->rank == 2 ? 0.02 : 0.0, strstr(t->name, "norm") != NULL ? 1.0 : 0.0);
        free(values);
    }
    st_model_destroy(m);
}

/* As _init_weights() of each class in transformers: sinks and the router's bias are drawn, other biases are 0. */
TEST(test_distribution_of_experts)
{
    static const char *const dirs[] = {GOLDEN_EXPERTS};

    for (size_t d = 0; d < sizeof(dirs) / sizeof(dirs[0]); d++) {
        struct st_model_config config;
        struct st_model *m;

        assert_ok(st_model_config_read(&config, dirs[d]));
        m = tiny_model_of(&config, STRATA_F32);
        for (uint32_t i = 0; i < st_model_tensor_count(m); i++) {
            const struct st_tensor *t = st_model_tensor(m, i);
            const bool drawn = t->rank == 2 || strstr(t->name, "sinks") != NULL || strstr(t->name, "router.bias") != NULL;
            float *values = page_values(m, 42, t->page);

            check_tensor(t, values + t->offset, drawn ? 0.02 : 0.0, strstr(t->name, "norm") != NULL ? 1.0 : 0.0);
            free(values);
        }
        st_model_destroy(m);
    }
}

/* A is uniform up to 1 / sqrt(in), or normal with 1 / r; B is zero; what is not an adapter's comes from the other source. */
static void check_adapters(const char *text, double std)
{
    const struct st_model_config config = tiny_llama_config();
    struct st_model_batch batch = {.micro_batch = 1, .seq = 8, .grad_accum = 1, .dtype = STRATA_BF16};
    struct st_adapter_spec *spec;
    struct st_model *m;

    assert_ok(st_adapter_spec_parse(&spec, text, strlen(text), "here"));
    batch.adapter = spec;
    assert_ok(st_model_create(&m, &config, &batch));
    st_adapter_spec_destroy(spec);
    for (uint32_t i = 0; i < st_model_tensor_count(m); i++) {
        const struct st_tensor *t = st_model_tensor(m, i);
        struct st_model_init base = {.model = m, .seed = 42};
        struct st_adapter_init_source source = {.init = {.model = m, .seed = 1}, .base = st_model_init_source(&base)};
        const uint64_t elems = m->workload.pages[t->page].elems;
        float *values = page_values(m, 1, t->page), *plain = page_values(m, 42, t->page), *both = malloc(elems * sizeof(*both));
        const double in = (double)t->shape[1], range = std > 0.0 ? 1e9 : 1.0 / sqrt(in);
        const bool is_a = strstr(t->name, "lora_A") != NULL;

        assert_non_null(both);
        assert_ok(st_model_adapter_source(&source).read(&source, t->page, 0, elems, both));
        if (t->page_count == 1)
            assert_memory_equal(both + t->offset, (t->adapts != ST_NO_TENSOR ? values : plain) + t->offset, t->elems * 4);
        if (t->adapts != ST_NO_TENSOR)
            check_tensor(t, values + t->offset, !is_a ? 0.0 : std > 0.0 ? std : range / sqrt(3.0), 0.0);
        for (uint64_t e = 0; e < t->elems && is_a; e++)
            assert_true(fabs((double)values[t->offset + e]) < range);
        free(values);
        free(plain);
        free(both);
    }
    st_model_destroy(m);
}

TEST(test_adapters_begin_as_pefts)
{
    check_adapters("{\"r\":64,\"target_modules\":\"all-linear\"}", 0.0);
    check_adapters("{\"r\":32,\"target_modules\":\"all-linear\",\"init_lora_weights\":\"gaussian\"}", 1.0 / 32);
}

TEST(test_seeds_and_tensors_differ)
{
    struct st_model *m = tiny_model(STRATA_F32);
    const uint32_t page = shape_of(&m->workload).block_first;
    float *a = page_values(m, 1, page), *b = page_values(m, 2, page), *other = page_values(m, 1, page + 1);

    for (uint32_t i = 0; i < 100; i++)
        assert_true(a[i] != b[i] && a[i] != other[i]);
    free(a);
    free(b);
    free(other);
    st_model_destroy(m);
}

TEST(test_padding_is_zero)
{
    struct st_model *m = tiny_model(STRATA_F32);
    const struct st_page *p = &m->workload.pages[0]; /* 131 * 24 elements and padding */
    float *values = page_values(m, 9, 0);

    assert_true(p->elems > p->params);
    for (uint64_t i = p->params; i < p->elems; i++)
        assert_true(values[i] == 0.0f);
    free(values);
    st_model_destroy(m);
}
