/* tests/model/test_freeze.c - frozen tensors: their groups, gradients of what is trained unchanged, pages without one. */
#include "decoder_rig.h"
#include "tests/common/shape.h"
#include <math.h>

#define TIED   "tests/golden/llama_tiny_tied"
#define UNTIED "tests/golden/llama_tiny_untied"
#define GPT2   "tests/golden/gpt2_tiny"

#define FAMILY(name) "tests/golden/families/" name

static bool page_frozen(const struct rig *r, uint32_t page)
{
    return r->w->pages[page].group_count == 1 && r->w->pages[page].groups[0].kind == ST_GROUP_FROZEN;
}

/* Gradients of the trained tensors are those of a run without frozen ones: to the bit, or within the rounding of
 * products taken apart. */
static void check_gradients(const struct rig *r, const struct rig *all, bool exact)
{
    for (uint32_t i = 0; i < st_model_tensor_count(r->m); i++) {
        const struct st_tensor *t = st_model_tensor(r->m, i), *other = st_model_tensor(all->m, i);
        double difference2 = 0.0, norm2 = 0.0;

        assert_int_equal(page_frozen(r, t->page), r->grads[t->page] == NULL);
        if (t->frozen)
            continue;
        for (uint64_t e = 0; e < t->elems; e++) {
            const float got = r->grads[t->page][t->offset + e], want = all->grads[other->page][other->offset + e];

            assert_true(!exact || got == want);
            difference2 += pow((double)got - (double)want, 2.0);
            norm2 += (double)want * (double)want;
        }
        assert_true(norm2 > 0.0 && difference2 <= 1e-10 * norm2);
    }
}

static void check(const char *dir, const char (*freeze)[128], uint32_t count, bool exact)
{
    struct st_model_batch batch = {.dtype = STRATA_F32, .workers = 2};
    struct rig all, some, again;
    double loss;

    golden_open(&all, dir, &batch, st_kernels_pick(NULL));
    batch.freeze = freeze;
    batch.freeze_count = count;
    golden_open(&some, dir, &batch, st_kernels_pick(NULL));
    golden_open(&again, dir, &batch, st_kernels_pick(NULL));
    loss = golden_loss(&all, dir, false);
    assert_true(fabs(golden_loss(&some, dir, false) - loss) <= 1e-6 * loss);
    assert_true(golden_loss(&again, dir, true) == golden_loss(&again, dir, true));
    assert_memory_equal(some.dact, again.dact, shape_of(some.w).activation_bytes);
    assert_true(some.w->params < all.w->params);
    assert_true(shape_of(some.w).block->backward_flops <= shape_of(all.w).block->backward_flops);
    check_gradients(&some, &all, exact);
    rig_close(&all);
    rig_close(&some);
    rig_close(&again);
}

TEST(test_whole_pages)
{
    static const char block[][128] = {"model.layers.0.*"}, head[][128] = {"lm_head.*", "model.norm.*"};
    static const char table[][128] = {"model.embed_tokens.weight", "model.layers.1.*"};
    static const char gpt2[][128] = {"transformer.w[tp]e.*", "*.h.1.*", "*.ln_f.*"};

    check(TIED, block, 1, true);
    check(UNTIED, block, 1, true);
    check(UNTIED, head, 2, true);
    check(TIED, table, 2, true);
    check(GPT2, gpt2, 3, true);
}

TEST(test_parts_of_pages)
{
    static const char apart[][128] = {"*.q_proj.bias", "*.k_proj.weight", "*.up_proj.weight", "*layernorm.weight"};
    static const char middle[][128] = {"model.layers.1.self_attn.k_proj.*", "model.layers.0.mlp.gate_proj.weight"};
    static const char vectors[][128] = {"*.bias", "transformer.wpe.weight"};
    static const char matrices[][128] = {"*.weight"};
    /* The last trained matrix and the first frozen one are neighbours in the page, and one product in forward. */
    static const char but_q[][128] = {"*.[kvo]_proj.*", "*.mlp.*", "*layernorm*", "*embed*"};
    static const char but_up[][128] = {"*.self_attn.*", "*.up_proj.*", "*.down_proj.*", "*layernorm*"};

    check(TIED, apart, 4, false);
    check(TIED, middle, 2, false);
    check(UNTIED, middle, 2, false);
    check(GPT2, vectors, 2, true);
    check(GPT2, matrices, 1, true);
    check(TIED, but_q, 4, false);
    check(UNTIED, but_up, 4, false);
}

/* Norms of queries and keys, fused matrices, biases beside them, post norms. */
TEST(test_parts_of_families)
{
    static const char keys[][128] = {"*.k_proj.*", "*.q_norm.weight", "*.v_proj.bias"};
    static const char halves[][128] = {"*.post_*_layernorm.weight", "*.gate_proj.weight",
                                       "model.layers.1.self_attn.q_proj.weight"};
    static const char fused[][128] = {"*.qkv_proj.weight", "model.layers.1.mlp.gate_up_proj.weight"};
    static const char mlp[][128] = {"*.gate_proj.bias", "*.up_proj.weight"};
    /* In the first block, where the input is the scaled embedding, which is made again for each of its uses. */
    static const char first[][128] = {"model.layers.0.*.[kq]_proj.weight", "model.layers.0.*.gate_proj.weight"};

    check(FAMILY("qwen3_bias"), keys, 3, false);
    check(FAMILY("olmo2"), keys, 3, false);
    check(FAMILY("olmo2"), halves, 3, false);
    check(FAMILY("gemma3_local"), halves, 3, false);
    check(FAMILY("gemma2_caps"), halves, 3, false);
    check(FAMILY("gemma2_caps"), first, 2, false);
    check(FAMILY("gemma3_local"), first, 2, false);
    check(FAMILY("gemma2_caps"), first + 1, 1, false);
    check(FAMILY("phi3_long"), fused, 2, true);
    check(FAMILY("llama_linear"), mlp, 2, false);
}

TEST(test_groups)
{
    static const char freeze[][128] = {"model.layers.1.self_attn.[qv]_proj.*", "*.input_layernorm.weight", "model.embed*"};
    const struct st_model_batch batch = {
        .micro_batch = 1, .seq = 8, .grad_accum = 1, .dtype = STRATA_BF16, .freeze = freeze, .freeze_count = 3};
    const struct st_model_config config = tiny_llama_config();
    const struct st_page *p;
    struct st_model *m;
    uint64_t frozen = 0;

    assert_ok(st_model_create(&m, &config, &batch));
    p = &m->workload.pages[shape_of(&m->workload).block_first + 1];
    assert_int_equal(p->group_count, 3);
    for (uint32_t g = 0; g < 3; g++)
        assert_int_equal(p->groups[g].kind, g);
    assert_int_equal(p->groups[2].elems, (32 + 16) * 24 + 24);
    assert_int_equal(p->groups[1].elems, 24);
    for (uint32_t i = 0; i < st_model_tensor_count(m); i++)
        frozen += m->tensors[i].frozen ? m->tensors[i].elems : 0;
    assert_int_equal(frozen, 131 * 24 + 2 * 24 + (32 + 16) * 24);
    assert_int_equal(m->workload.pages[0].groups[0].kind, ST_GROUP_FROZEN);
    assert_int_equal(st_block_linear(m, 0, ST_LINEAR_QKV).part_count, 1);
    assert_int_equal(st_block_linear(m, 1, ST_LINEAR_QKV).part_count, 3);
    st_model_destroy(m);
}

TEST(test_bad_patterns_are_refused)
{
    static const char none[][128] = {"*", "*.w"}, all[][128] = {"model.*"};
    struct st_model_batch batch = {.micro_batch = 1, .seq = 8, .grad_accum = 1, .dtype = STRATA_BF16};
    const struct st_model_config config = tiny_llama_config();
    struct st_model *m = NULL;

    batch.freeze = none;
    batch.freeze_count = 2;
    assert_refused(st_model_create(&m, &config, &batch), STRATA_E_INVAL, "\"*.w\" matches no tensor of model tiny-llama");
    batch.freeze = all;
    batch.freeze_count = 1;
    assert_refused(st_model_create(&m, &config, &batch), STRATA_E_INVAL, "nothing is left to train");
    assert_null(m);
}
