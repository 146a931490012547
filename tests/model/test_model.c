/* tests/model/test_model.c - presets, pages, tensors and the workload's numbers; refusals; st_workload_check. */
#include "model/layout.h"
#include "model_fixture.h"
#include "tests/common/shape.h"
#include <math.h>

/* Tied, without biases: table, final norm, and per block q and proj, k and v, three feed-forward matrices, two norms. */
#define LLAMA_PARAMS(vocab, hidden, blocks, heads, kv_heads, ffn)                                                                \
    ((vocab) * (hidden) + (hidden) +                                                                                             \
     (blocks) *                                                                                                                  \
         (2 * (hidden) * (hidden) + 2 * (hidden) * ((hidden) / (heads) * (kv_heads)) + 3 * (hidden) * (ffn) + 2 * (hidden)))

static const struct {
    const char *name;
    uint64_t params; /* reference/models.md */
    uint32_t slice_rows, slices;
} presets[] = {
    {"nano", 858880, 256, 1},
    {"mini", 10942464, 256, 1},
    {"gpt2", 124439808, 4096, 13},
    {"gpt2-medium", 354823168, 4096, 13},
    {"gpt2-large", 774030080, 2048, 25},
    {"gpt2-xl", 1557611200, 2048, 25},
    {"nano-llama", LLAMA_PARAMS(256, 128, 4, 4, 2, 384), 256, 1},
    {"mini-llama", LLAMA_PARAMS(256, 384, 6, 6, 2, 1024), 256, 1},
    {"smollm2-135m", 134515008, 4096, 12},
    {"gemma-3-270m", 268098176, 4096, 64},
    {"smollm2-360m", 361821120, 4096, 12},
    {"qwen2.5-0.5b", 494032768, 4096, 38},
    {"qwen3-0.6b", 596049920, 4096, 38},
    {"tinyllama-1.1b", 1100048384, 2048, 16},
    {"llama-1b", 1235814400, 2048, 63},
    {"olmo-2-1b", 1484916736, 2048, 49},
    {"olmoe-1b-7b", 6919161856, 2048, 25},
    {"qwen2.5-1.5b", 1543714304, 2048, 75},
    {"smollm2-1.7b", 1711376384, 2048, 24},
    {"qwen3-1.7b", 1720574976, 2048, 75},
    {"gemma-2-2b", 2614341888, 1024, 250},
    {"smollm3-3b", 3075098624, 2048, 63},
    {"qwen2.5-3b", 3085938688, 2048, 75},
    {"llama-3.2-3b", 3212749824, 1024, 126},
    {"phi-3-mini", 3821079552, 1024, 32},
    {"qwen3-4b", 4022468096, 1024, 149},
    {"llama-2-7b", 6738415616, 1024, 32},
    {"mistral-7b", 7241732096, 1024, 32},
    {"qwen2.5-7b", 7615616512, 1024, 149},
    {"llama-3-8b", 8030261248, 1024, 126},
    {"llama-3.1-8b", 8030261248, 1024, 126},
    {"qwen3-8b", 8190735360, 1024, 149},
    {"qwen1.5-moe-a2.7b", 14315784192, 2048, 75},
    {"qwen3-14b", 14768307200, 512, 297},
    {"qwen2.5-14b", 14770033664, 512, 297},
    {"gpt-oss-20b", 20914757184, 1024, 197},
    {"qwen3-30b-a3b", 30532122624, 2048, 75},
    {"qwen3-32b", 32762123264, 512, 297},
    {"qwen2.5-32b", 32763876352, 512, 297},
    {"mixtral-8x7b", 46702792704, 1024, 32},
    {"llama-3-70b", 70553706496, 512, 251},
    {"llama-3.1-70b", 70553706496, 512, 251},
    {"gpt-oss-120b", 116829156672, 1024, 197},
};
enum { PRESETS = sizeof(presets) / sizeof(presets[0]) };

static const struct st_model_batch bf16_batch = {.micro_batch = 1, .seq = 256, .grad_accum = 4, .dtype = STRATA_BF16};

static struct st_model *create(const char *preset, const struct st_model_batch *batch)
{
    struct st_model_config config;
    struct st_model *m = NULL;

    assert_ok(st_model_preset(&config, preset));
    assert_ok(st_model_create(&m, &config, batch));
    return m;
}

TEST(test_presets_have_the_published_parameters)
{
    for (uint32_t i = 0; i < PRESETS; i++) {
        struct st_model *m = create(presets[i].name, &bf16_batch);
        const struct st_workload *w = st_model_workload(m);
        uint64_t elems = 0;

        for (uint32_t t = 0; t < st_model_tensor_count(m); t++)
            elems += st_model_tensor(m, t)->elems;
        assert_int_equal(w->params, presets[i].params);
        assert_int_equal(elems, presets[i].params);
        assert_int_equal(shape_of(w).table_count, presets[i].slices);
        assert_int_equal(w->pages[0].row_count, presets[i].slice_rows);
        assert_string_equal(st_model_preset_name(i), presets[i].name);
        st_model_destroy(m);
    }
    assert_null(st_model_preset_name(PRESETS));
}

TEST(test_unknown_preset_names_the_nearest)
{
    struct st_model_config config;

    assert_refused(st_model_preset(&config, "gpt2-meduim"), STRATA_E_INVAL, "nearest: gpt2-medium");
    assert_refused(st_model_preset(&config, "nanp"), STRATA_E_INVAL, "nearest: nano");
    assert_refused(st_model_preset(&config, "llama1b"), STRATA_E_INVAL, "nearest: llama-1b");
    assert_refused(st_model_preset(&config, ""), STRATA_E_INVAL, "gpt2-xl");
}

TEST(test_published_names_have_presets)
{
    static const char *const names[][2] = {
        {"Llama-3.2-1B", "llama-1b"},
        {"meta-llama/Llama-3.1-8B", "llama-3.1-8b"},
        {"meta-llama/Meta-Llama-3-8B-Instruct", "llama-3-8b"},
        {"meta-llama/Llama-3.3-70B-Instruct", "llama-3.1-70b"},
        {"meta-llama/Llama-2-7b-chat-hf", "llama-2-7b"},
        {"Qwen/Qwen2.5-7B-Instruct", "qwen2.5-7b"},
        {"Qwen/Qwen3-32B", "qwen3-32b"},
        {"Qwen/Qwen3-30B-A3B", "qwen3-30b-a3b"},
        {"allenai/OLMoE-1B-7B-0924", "olmoe-1b-7b"},
        {"mistralai/Mixtral-8x7B-Instruct-v0.1", "mixtral-8x7b"},
        {"Qwen/Qwen3-8B-Base", "qwen3-8b"},
        {"mistralai/Mistral-7B-v0.1", "mistral-7b"},
        {"HuggingFaceTB/SmolLM2-1.7B", "smollm2-1.7b"},
        {"google/gemma-2-2b-it", "gemma-2-2b"},
        {"gpt2", "gpt2"},
    };
    static const char *const none[] = {"", "/", "-it", "meta-", "org/model", "Llama-3.1-405B", "mistralai/Mistral-7B-v0.3"};

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        assert_string_equal(st_model_preset_of(names[i][0]), names[i][1]);
    for (size_t i = 0; i < sizeof(none) / sizeof(none[0]); i++)
        assert_null(st_model_preset_of(none[i]));
}

TEST(test_slice_rows)
{
    assert_int_equal(st_table_slice_rows(50257, 1024), 4096);
    assert_int_equal(st_table_slice_rows(50257, 1025), 2048);
    assert_int_equal(st_table_slice_rows(50257, 65536), 64);
    assert_int_equal(st_table_slice_rows(50257, 131072), 64);
    assert_int_equal(st_table_slice_rows(50257, 8), 4096);
    assert_int_equal(st_table_slice_rows(96, 64), 96);
}

TEST(test_block_page_holds_its_tensors_in_order)
{
    static const char *const names[] = {"attn.c_attn.weight", "attn.c_proj.weight", "mlp.c_fc.weight",  "mlp.c_proj.weight",
                                        "ln_1.weight",        "ln_1.bias",          "attn.c_attn.bias", "attn.c_proj.bias",
                                        "ln_2.weight",        "ln_2.bias",          "mlp.c_fc.bias",    "mlp.c_proj.bias"};
    struct st_model *m = tiny_model(STRATA_F32);
    const struct st_workload *w = st_model_workload(m);
    const struct st_page *p = &w->pages[shape_of(w).block_first + 1];
    uint64_t offset = 0;

    assert_int_equal(st_model_tensor_count(m), 2 + 2 * 12 + 2);
    for (uint32_t i = 0; i < 12; i++) {
        const struct st_tensor *t = st_model_tensor(m, 2 + 12 + i);

        assert_non_null(strstr(t->name, "transformer.h.1."));
        assert_string_equal(t->name + strlen("transformer.h.1."), names[i]);
        if (i == 4)
            offset = p->groups[1].offset;
        assert_int_equal(t->offset, offset);
        assert_int_equal(t->page, shape_of(w).block_first + 1);
        offset += t->elems;
    }
    assert_int_equal(p->group_count, 2);
    assert_int_equal(p->groups[0].kind, ST_GROUP_DECAY);
    assert_int_equal(p->groups[0].elems, 4 * 24 * 24 + 2 * 24 * 40);
    assert_int_equal(p->groups[1].kind, ST_GROUP_NO_DECAY);
    assert_int_equal(p->groups[1].elems, 9 * 24 + 40);
    assert_int_equal(p->layer, 2);
    st_model_destroy(m);
}

/* Same places, one group. */
TEST(test_decay_all_moves_nothing)
{
    struct st_model_batch batch = bf16_batch;
    struct st_model *apart, *together;

    apart = create("nano", &batch);
    batch.decay_all = true;
    together = create("nano", &batch);
    for (uint32_t i = 0; i < st_model_tensor_count(apart); i++)
        assert_int_equal(st_model_tensor(apart, i)->offset, st_model_tensor(together, i)->offset);
    for (uint32_t i = 0; i < st_model_workload(apart)->page_count; i++) {
        const struct st_page *a = &st_model_workload(apart)->pages[i], *b = &st_model_workload(together)->pages[i];

        assert_int_equal(a->elems, b->elems);
        assert_int_equal(b->group_count, 1);
        assert_int_equal(b->groups[0].kind, ST_GROUP_DECAY);
        assert_int_equal(b->groups[0].elems, a->params);
    }
    st_model_destroy(apart);
    st_model_destroy(together);
}

/* Walking every page in odd steps meets every element of every tensor once, in order. */
static void check_pieces(struct st_model *m)
{
    uint64_t *seen = calloc(st_model_tensor_count(m), sizeof(*seen));

    assert_non_null(seen);
    for (uint32_t page = 0; page < m->workload.page_count; page++) {
        const uint64_t elems = m->workload.pages[page].elems;

        for (uint64_t first = 0; first < elems; first += 37) {
            const uint64_t count = elems - first < 37 ? elems - first : 37;
            struct st_piece piece;

            for (uint32_t i = 0; st_model_piece(m, page, first, count, i, &piece); i++) {
                const uint64_t t = (uint64_t)(piece.tensor - m->tensors);

                if (piece.count == 0)
                    continue;
                assert_int_equal(piece.tensor_first, seen[t]);
                assert_true(piece.range_first + piece.count <= count);
                seen[t] += piece.count;
            }
        }
    }
    for (uint32_t t = 0; t < st_model_tensor_count(m); t++)
        assert_int_equal(seen[t], m->tensors[t].elems);
    free(seen);
    st_model_destroy(m);
}

TEST(test_pieces_cover_every_tensor)
{
    static const char freeze[][128] = {"*.k_proj.*", "model.norm.weight"};
    struct st_model_batch batch = {.micro_batch = 1, .seq = 8, .grad_accum = 1, .dtype = STRATA_F32};
    struct st_model_config config = tiny_llama_config();
    struct st_model *m;

    check_pieces(tiny_model(STRATA_F32));
    config.untied = true;
    config.vocab = 5000;
    check_pieces(tiny_model_of(&config, STRATA_F32));
    batch.freeze = freeze;
    batch.freeze_count = 2;
    assert_ok(st_model_create(&m, &config, &batch));
    check_pieces(m);
}

TEST(test_head_workspace_is_bounded)
{
    static const uint32_t micro_batches[] = {1, 4, 16};
    static const strata_dtype dtypes[] = {STRATA_F32, STRATA_BF16};

    for (uint32_t i = 1; i < PRESETS; i++) {
        for (uint32_t j = 0; j < 6; j++) {
            const struct st_model_batch batch = {.micro_batch = micro_batches[j % 3],
                                                 .seq = presets[i].params < 100000000 ? 512 : 1024,
                                                 .grad_accum = 1,
                                                 .dtype = dtypes[j / 3]};
            const uint64_t logit_bytes = sizeof(float) + strata_dtype_bytes(batch.dtype);
            struct st_model *m = create(presets[i].name, &batch);

            assert_true(st_head_workspace_layout(m).bytes <= ST_HEAD_LOGITS * logit_bytes);
            st_model_destroy(m);
        }
    }
}

TEST(test_bytes_and_flops)
{
    const struct st_model_batch batch = {.micro_batch = 2, .seq = 512, .grad_accum = 4, .dtype = STRATA_BF16, .workers = 2};
    struct st_model *m = create("gpt2", &batch);
    const struct st_workload *w = st_model_workload(m);
    const double rows = 1024, hidden = 768;
    const struct st_attention attention = st_block_attention(m, 0);

    assert_int_equal(shape_of(w).activation_bytes, 1024 * 768 * 2);
    assert_int_equal(shape_of(w).block_internal_bytes, 1024 * 768 * 2 * 9 + 2 * 1024 * 8 + 1024 * 12 * 4);
    assert_true(st_block_workspace_layout(m).bytes ==
                1024 * 768 * 2 * 5 + (st_tensor_cpu_ops.attention_workspace(&attention, 2) + 255) / 256 * 256);
    assert_int_equal(shape_of(w).head_internal_bytes, 1024 * (8 + 12 + 768 * 2 + 768 * 4));
    assert_true(shape_of(w).block->forward_flops == rows * (24 * hidden * hidden + 4 * 512 * hidden));
    assert_true(shape_of(w).block->backward_flops == 2 * shape_of(w).block->forward_flops);
    assert_true(shape_of(w).head->forward_flops == rows * 2 * hidden * 50257);
    assert_true(w->model_flops_per_token == 6.0 * 124439808 + 12.0 * 12 * hidden * 512);
    st_model_destroy(m);
}

TEST(test_more_workers_need_no_less_workspace)
{
    struct st_model_batch batch = bf16_batch;
    uint64_t last = 0;

    for (batch.workers = 0; batch.workers <= 8; batch.workers++) {
        struct st_model *m = create("nano", &batch);

        assert_true(st_model_workload(m)->workspace_bytes >= last);
        last = st_model_workload(m)->workspace_bytes;
        st_model_destroy(m);
    }
}

TEST(test_bad_batches_are_refused)
{
    static const struct {
        struct st_model_batch batch;
        const char *part;
    } rows[] = {
        {{.micro_batch = 1, .seq = 257, .grad_accum = 1, .dtype = STRATA_BF16}, "over the context of model nano, 256"},
        {{.micro_batch = 0, .seq = 16, .grad_accum = 1, .dtype = STRATA_BF16}, "none may be 0"},
        {{.micro_batch = 1, .seq = 0, .grad_accum = 1, .dtype = STRATA_BF16}, "none may be 0"},
        {{.micro_batch = 1, .seq = 16, .grad_accum = 0, .dtype = STRATA_BF16}, "none may be 0"},
        {{.micro_batch = 1, .seq = 16, .grad_accum = 1, .dtype = STRATA_DTYPE_INVALID}, "bf16, fp16 and fp32"},
        {{.micro_batch = 1u << 30, .seq = 16, .grad_accum = 1, .dtype = STRATA_F32}, "raise the accumulation"},
    };
    struct st_model_config config;
    struct st_model *m = NULL;

    assert_ok(st_model_preset(&config, "nano"));
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        assert_refused(st_model_create(&m, &config, &rows[i].batch), STRATA_E_INVAL, rows[i].part);
        assert_null(m);
    }
}

static struct st_model *of_config(const struct st_model_config *config)
{
    return tiny_model_of(config, STRATA_F32);
}

TEST(test_llama_page_holds_its_tensors_in_order)
{
    static const char *const names[] = {"self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight",
                                        "self_attn.o_proj.weight", "mlp.gate_proj.weight",    "mlp.up_proj.weight",
                                        "mlp.down_proj.weight",    "input_layernorm.weight",  "self_attn.q_proj.bias",
                                        "self_attn.k_proj.bias",   "self_attn.v_proj.bias",   "post_attention_layernorm.weight"};
    struct st_model_config config = tiny_llama_config();
    const struct st_page *p;
    struct st_linear qkv;
    struct st_model *m;

    config.family = ST_FAMILY_QWEN2;
    config.biases = ST_BIAS_QKV;
    m = of_config(&config);
    p = &m->workload.pages[shape_of(&m->workload).block_first + 1];
    assert_int_equal(shape_of(&m->workload).position_page, ST_NO_PAGE);
    assert_int_equal(shape_of(&m->workload).block_first, 1);
    assert_int_equal(m->tensor_count, 1 + 2 * 12 + 1);
    for (uint32_t i = 0; i < 12; i++) {
        const struct st_tensor *t = st_model_tensor(m, 1 + 12 + i);

        assert_non_null(strstr(t->name, "model.layers.1."));
        assert_string_equal(t->name + strlen("model.layers.1."), names[i]);
        assert_int_equal(t->page, shape_of(&m->workload).block_first + 1);
    }
    assert_int_equal(p->group_count, 2);
    assert_int_equal(p->groups[0].elems, 24 * (32 + 2 * 16) + 24 * 32 + 3 * 24 * 40);
    assert_int_equal(p->groups[1].elems, 2 * 24 + 32 + 2 * 16);
    qkv = st_block_linear(m, 1, ST_LINEAR_QKV); /* one product */
    assert_int_equal(qkv.part_count, 1);
    assert_int_equal(qkv.parts[0].count, 64);
    assert_true(qkv.bias);
    assert_int_equal(st_block_linear(m, 0, ST_LINEAR_FC).part_count, 1);
    assert_int_equal(st_block_linear(m, 0, ST_LINEAR_FC).out, 80);
    assert_int_equal(m->workload.constants_bytes, 8 * 8 * sizeof(float));
    st_model_destroy(m);
}

TEST(test_untied_head_has_pages)
{
    struct st_model_config config = tiny_llama_config();
    const struct st_workload *w;
    const struct st_tensor *head;
    struct st_model *m;

    config.vocab = 9000;
    config.untied = true;
    m = of_config(&config);
    w = &m->workload;
    head = st_model_tensor(m, m->tensor_count - 1);
    assert_false(shape_of(w).tied);
    assert_int_equal(shape_of(w).head_first, shape_of(w).norm_page + 1);
    assert_int_equal(shape_of(w).head_count, 3);
    assert_int_equal(w->page_count, shape_of(w).head_first + 3);
    assert_string_equal(head->name, "lm_head.weight");
    assert_int_equal(head->page, shape_of(w).head_first);
    assert_int_equal(head->page_count, 3);
    assert_int_equal(w->pages[shape_of(w).head_first + 2].row_first, 8192);
    assert_int_equal(w->pages[shape_of(w).head_first + 2].row_count, 9000 - 8192);
    st_model_destroy(m);
}

/* Embeddings are multiplied by sqrt(hidden) as a tensor of the dtype would hold it. */
TEST(test_embeddings_are_scaled_in_their_dtype)
{
    static const uint32_t sizes[] = {32, 64, 640, 1152, 2048, 2304, 3072, 3584, 5376, 8192};
    const struct st_kernels *k = st_kernels_pick("scalar");

    for (uint32_t i = 0; i < 3 * sizeof(sizes) / sizeof(sizes[0]); i++) {
        const struct st_model_batch batch = {
            .micro_batch = 1, .seq = 8, .grad_accum = 1, .dtype = (strata_dtype)(STRATA_F32 + i % 3)};
        struct st_model_config config = tiny_llama_config();
        float want = sqrtf((float)sizes[i / 3]);
        uint16_t narrow;
        struct st_model *m;

        config.hidden = sizes[i / 3];
        config.embed_scaled = true;
        if (batch.dtype == STRATA_BF16)
            k->f32_to_bf16(&narrow, &want, 1), k->bf16_to_f32(&want, &narrow, 1);
        else if (batch.dtype == STRATA_F16)
            k->f32_to_f16(&narrow, &want, 1), k->f16_to_f32(&want, &narrow, 1);
        assert_ok(st_model_create(&m, &config, &batch));
        assert_true(m->embed_factor == want);
        st_model_destroy(m);
    }
}

TEST(test_llama_bytes_and_flops)
{
    const struct st_model_batch batch = {.micro_batch = 1, .seq = 512, .grad_accum = 1, .dtype = STRATA_BF16, .workers = 2};
    const struct st_model_batch generation = {
        .micro_batch = 1, .seq = 16, .grad_accum = 1, .dtype = STRATA_BF16, .workers = 2, .generate = true, .context = 700};
    struct st_model *m = create("llama-1b", &batch);
    const struct st_workload *w = st_model_workload(m);
    const double hidden = 2048, linear = 2 * hidden * (2048 + 2 * 512 + 2048 + 3 * 8192);

    assert_int_equal(shape_of(w).block_internal_bytes, 512 * (4 + 4 + 32 * 4 + 2 * (3072 + 2048 + 2048 + 2 * 8192)));
    assert_int_equal(w->constants_bytes, 512 * 64 * 4);
    assert_true(shape_of(w).block->forward_flops == 512 * (linear + 4 * 512 * hidden));
    assert_true(w->model_flops_per_token == 6.0 * 1235814400 + 12.0 * 16 * hidden * 512);
    assert_true(shape_of(w).head->forward_flops == 512 * 2 * hidden * 128256);
    assert_true(shape_of(w).head->backward_flops == 3 * shape_of(w).head->forward_flops);
    st_model_destroy(m);
    m = create("llama-1b", &generation); /* of the last row alone */
    w = st_model_workload(m);
    assert_true(shape_of(w).head->forward_flops == 2 * hidden * 128256);
    assert_true(shape_of(w).block->forward_flops == 16 * (linear + 4 * 700 * hidden)); /* over a full cache */
    st_model_destroy(m);
}

TEST(test_bad_configs_are_refused)
{
    static const struct st_model_config good = {
        .name = "x", .blocks = 1, .hidden = 64, .heads = 2, .ffn = 256, .vocab = 96, .context = 32, .norm_eps = 1e-5f};
    static const struct {
        const char *part;
        uint32_t offset, value;
    } rows[] = {
        {"0 blocks", offsetof(struct st_model_config, blocks), 0},
        {"hidden size 60", offsetof(struct st_model_config, hidden), 60},
        {"feed-forward size 250", offsetof(struct st_model_config, ffn), 250},
        {"3 heads do not divide", offsetof(struct st_model_config, heads), 3},
        {"0 heads", offsetof(struct st_model_config, heads), 0},
        {"vocabulary of 1", offsetof(struct st_model_config, vocab), 1},
        {"context of 0", offsetof(struct st_model_config, context), 0},
        {"not those of its family", offsetof(struct st_model_config, norm), ST_NORM_RMSNORM},
        {"not those of its family", offsetof(struct st_model_config, biases), ST_BIAS_NONE},
        {"a GPT-2 has", offsetof(struct st_model_config, kv_heads), 1},
        {"a GPT-2 has", offsetof(struct st_model_config, head_dim), 16},
        {"4 key-value heads do not divide 2", offsetof(struct st_model_config, kv_heads), 4},
    };
    struct st_model_config config;
    struct st_model *m = NULL;

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        config = good;
        memcpy((char *)&config + rows[i].offset, &rows[i].value, sizeof(rows[i].value));
        assert_refused(st_model_create(&m, &config, &bf16_batch), STRATA_E_INVAL, rows[i].part);
    }
    config = good;
    config.norm_eps = 0.0f;
    assert_refused(st_model_create(&m, &config, &bf16_batch), STRATA_E_INVAL, "norm epsilon");
    config = good;
    config.dropout = 2.0f;
    assert_refused(st_model_create(&m, &config, &bf16_batch), STRATA_E_INVAL, "dropout");
    assert_null(m);
}

TEST(test_bad_llama_configs_are_refused)
{
    static const struct {
        const char *part;
        uint32_t offset;
        float value;
    } rows[] = {
        {"rotary base 1", offsetof(struct st_model_config, rope_base), 1.0f},
        {"rotary base inf", offsetof(struct st_model_config, rope_base), INFINITY},
        {"scaling factor 0.5", offsetof(struct st_model_config, rope_factor), 0.5f},
        {"rotary base 0.5", offsetof(struct st_model_config, rope_local_base), 0.5f},
        {"rotary scaling from 0 to 0", offsetof(struct st_model_config, rope_factor), 8.0f},
    };
    struct st_model_config config;
    struct st_model *m = NULL;

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        config = tiny_llama_config();
        config.rope_type = ST_ROPE_LLAMA3;
        memcpy((char *)&config + rows[i].offset, &rows[i].value, sizeof(rows[i].value));
        assert_refused(st_model_create(&m, &config, &bf16_batch), STRATA_E_INVAL, rows[i].part);
    }
    config = tiny_llama_config();
    config.head_dim = 7;
    assert_refused(st_model_create(&m, &config, &bf16_batch), STRATA_E_INVAL, "heads of 7 values");
    config.head_dim = 1u << 30;
    assert_refused(st_model_create(&m, &config, &bf16_batch), STRATA_E_INVAL, "4 heads of 1073741824 values");
    config = tiny_llama_config();
    config.kv_heads = 3;
    assert_refused(st_model_create(&m, &config, &bf16_batch), STRATA_E_INVAL, "3 key-value heads do not divide 4");
    assert_null(m);
}

/* Every broken number is found. */
TEST(test_workload_check_finds_faults)
{
    struct st_model *m = tiny_model(STRATA_F32);
    const struct st_workload *good = st_model_workload(m);

    assert_ok(st_workload_check(good));
    for (uint32_t i = 0; i < 23; i++) {
        struct st_workload w;
        struct st_page *block;

        assert_ok(st_workload_copy(&w, good));
        block = &w.pages[shape_of(&w).block_first];
        switch (i) {
        case 0:
            w.dtype = STRATA_DTYPE_INVALID;
            break;
        case 1:
            w.layer_count = 0;
            break;
        case 2:
            w.params++;
            break;
        case 3:
            block->groups[1].offset++;
            break;
        case 4:
            block->groups[1].offset = 0;
            break;
        case 5:
            block->groups[0].elems = 0;
            break;
        case 6:
            block->groups[1].elems += block->elems;
            break;
        case 7:
            block->groups[1].kind = ST_GROUP_DECAY;
            break;
        case 8:
            block->params++;
            break;
        case 9:
            block->elems++;
            break;
        case 10:
            block->group_count = 0;
            break;
        case 11:
            block->group_count = ST_GROUPS_MAX + 1;
            break;
        case 12:
            block->layer = 3;
            break;
        case 13:
            w.pages[0].row_count--;
            break;
        case 14:
            w.pages[0].row_first++;
            break;
        case 15:
            w.vocab++;
            break;
        case 16:
            w.layers[0].boundary_bytes = 0;
            break;
        case 17:
            w.workspace_bytes = 0;
            break;
        case 18:
            shape_of(&w).head->forward_flops = -1;
            break;
        case 19:
            w.uses[0]++;
            break;
        case 20:
            w.gathered_count = 0;
            break;
        case 21:
            w.workers = 0;
            break;
        default:
            w.page_count++;
            break;
        }
        assert_refused(st_workload_check(&w), STRATA_E_INTERNAL, "workload tiny");
        w.page_count = good->page_count;
        st_workload_fini(&w);
    }
    st_workload_fini(NULL);
    st_model_destroy(m);
}
