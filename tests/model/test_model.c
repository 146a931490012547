/* tests/model/test_model.c - presets, pages, tensors and the workload's numbers; refusals; st_workload_check. */
#include "model/layout.h"
#include "model_fixture.h"

static const struct {
    const char *name;
    uint64_t params; /* reference/models.md */
    uint32_t tile_rows, tiles;
} presets[] = {
    {"nano", 858880, 256, 1},
    {"gpt2", 124439808, 4096, 13},
    {"gpt2-medium", 354823168, 4096, 13},
    {"gpt2-large", 774030080, 2048, 25},
    {"gpt2-xl", 1557611200, 2048, 25},
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

static void test_presets_have_the_published_parameters(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < PRESETS; i++) {
        struct st_model *m = create(presets[i].name, &bf16_batch);
        const struct st_workload *w = st_model_workload(m);
        uint64_t elems = 0;

        for (uint32_t t = 0; t < st_model_tensor_count(m); t++)
            elems += st_model_tensor(m, t)->elems;
        assert_int_equal(w->params, presets[i].params);
        assert_int_equal(elems, presets[i].params);
        assert_int_equal(w->table_count, presets[i].tiles);
        assert_int_equal(w->pages[0].row_count, presets[i].tile_rows);
        assert_string_equal(st_model_preset_name(i), presets[i].name);
        st_model_destroy(m);
    }
    assert_null(st_model_preset_name(PRESETS));
}

static void test_unknown_preset_names_the_nearest(void **state)
{
    struct st_model_config config;

    (void)state;
    assert_refused(st_model_preset(&config, "gpt2-meduim"), STRATA_E_INVAL, "nearest: gpt2-medium");
    assert_refused(st_model_preset(&config, "nanp"), STRATA_E_INVAL, "nearest: nano");
    assert_refused(st_model_preset(&config, ""), STRATA_E_INVAL, "gpt2-xl");
}

static void test_tile_rows(void **state)
{
    (void)state;
    assert_int_equal(st_table_tile_rows(50257, 1024), 4096);
    assert_int_equal(st_table_tile_rows(50257, 1025), 2048);
    assert_int_equal(st_table_tile_rows(50257, 65536), 64);
    assert_int_equal(st_table_tile_rows(50257, 131072), 64);
    assert_int_equal(st_table_tile_rows(50257, 8), 4096);
    assert_int_equal(st_table_tile_rows(96, 64), 96);
}

static void test_block_page_holds_its_tensors_in_order(void **state)
{
    static const char *const names[] = {"attn.c_attn.weight", "attn.c_proj.weight", "mlp.c_fc.weight",  "mlp.c_proj.weight",
                                        "ln_1.weight",        "ln_1.bias",          "attn.c_attn.bias", "attn.c_proj.bias",
                                        "ln_2.weight",        "ln_2.bias",          "mlp.c_fc.bias",    "mlp.c_proj.bias"};
    struct st_model *m = tiny_model(STRATA_F32);
    const struct st_workload *w = st_model_workload(m);
    const struct st_page *p = &w->pages[w->block_first + 1];
    uint64_t offset = 0;

    (void)state;
    assert_int_equal(st_model_tensor_count(m), 2 + 2 * 12 + 2);
    for (uint32_t i = 0; i < 12; i++) {
        const struct st_tensor *t = st_model_tensor(m, 2 + 12 + i);

        assert_non_null(strstr(t->name, "transformer.h.1."));
        assert_string_equal(t->name + strlen("transformer.h.1."), names[i]);
        if (i == 4)
            offset = p->groups[1].offset;
        assert_int_equal(t->offset, offset);
        assert_int_equal(t->page, w->block_first + 1);
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
static void test_decay_all_moves_nothing(void **state)
{
    struct st_model_batch batch = bf16_batch;
    struct st_model *apart, *together;

    (void)state;
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
static void test_pieces_cover_every_tensor(void **state)
{
    struct st_model *m = tiny_model(STRATA_F32);
    uint64_t *seen = calloc(st_model_tensor_count(m), sizeof(*seen));

    (void)state;
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

static void test_head_workspace_is_bounded(void **state)
{
    static const uint32_t micro_batches[] = {1, 4, 16};
    static const strata_dtype dtypes[] = {STRATA_F32, STRATA_BF16};

    (void)state;
    for (uint32_t i = 1; i < PRESETS; i++) {
        for (uint32_t j = 0; j < 6; j++) {
            const struct st_model_batch batch = {
                .micro_batch = micro_batches[j % 3], .seq = 1024, .grad_accum = 1, .dtype = dtypes[j / 3]};
            struct st_model *m = create(presets[i].name, &batch);

            assert_true(st_model_workload(m)->head_workspace_bytes <= UINT64_C(64) << 20);
            st_model_destroy(m);
        }
    }
}

static void test_bytes_and_flops(void **state)
{
    const struct st_model_batch batch = {.micro_batch = 2, .seq = 512, .grad_accum = 4, .dtype = STRATA_BF16, .workers = 2};
    struct st_model *m = create("gpt2", &batch);
    const struct st_workload *w = st_model_workload(m);
    const double rows = 1024, hidden = 768;

    (void)state;
    assert_int_equal(w->activation_bytes, 1024 * 768 * 2);
    assert_int_equal(w->block_internal_bytes, 1024 * 768 * 2 * 9 + 2 * 1024 * 8 + 1024 * 12 * 4);
    assert_true(w->block_workspace_bytes ==
                1024 * 768 * 2 * 5 + (st_device_cpu_ops.attention_workspace(&m->attention, 2) + 255) / 256 * 256);
    assert_int_equal(w->head_internal_bytes, 1024 * (8 + 12 + 768 * 2 + 768 * 4));
    assert_true(w->block_forward_flops == rows * (24 * hidden * hidden + 4 * 512 * hidden));
    assert_true(w->block_backward_flops == 2 * w->block_forward_flops);
    assert_true(w->head_forward_flops == rows * 2 * hidden * 50257);
    assert_true(w->model_flops_per_token == 6.0 * 124439808 + 12.0 * 12 * hidden * 512);
    st_model_destroy(m);
}

static void test_more_workers_need_no_less_workspace(void **state)
{
    struct st_model_batch batch = bf16_batch;
    uint64_t last = 0;

    (void)state;
    for (batch.workers = 0; batch.workers <= 8; batch.workers++) {
        struct st_model *m = create("nano", &batch);

        assert_true(st_model_workload(m)->block_workspace_bytes >= last);
        last = st_model_workload(m)->block_workspace_bytes;
        st_model_destroy(m);
    }
}

static void test_bad_batches_are_refused(void **state)
{
    static const struct {
        struct st_model_batch batch;
        const char *part;
    } rows[] = {
        {{.micro_batch = 1, .seq = 257, .grad_accum = 1, .dtype = STRATA_BF16}, "over the context of model nano, 256"},
        {{.micro_batch = 0, .seq = 16, .grad_accum = 1, .dtype = STRATA_BF16}, "none may be 0"},
        {{.micro_batch = 1, .seq = 0, .grad_accum = 1, .dtype = STRATA_BF16}, "none may be 0"},
        {{.micro_batch = 1, .seq = 16, .grad_accum = 0, .dtype = STRATA_BF16}, "none may be 0"},
        {{.micro_batch = 1, .seq = 16, .grad_accum = 1, .dtype = STRATA_F16}, "bf16 and fp32"},
        {{.micro_batch = 1u << 30, .seq = 16, .grad_accum = 1, .dtype = STRATA_F32}, "raise the accumulation"},
    };
    struct st_model_config config;
    struct st_model *m = NULL;

    (void)state;
    assert_ok(st_model_preset(&config, "nano"));
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        assert_refused(st_model_create(&m, &config, &rows[i].batch), STRATA_E_INVAL, rows[i].part);
        assert_null(m);
    }
}

static void test_bad_configs_are_refused(void **state)
{
    static const struct {
        struct st_model_config config;
        const char *part;
    } rows[] = {
        {{"x", 0, 64, 2, 256, 96, 32, 1e-5f, 0}, "0 blocks"},
        {{"x", 1, 60, 2, 256, 96, 32, 1e-5f, 0}, "hidden size 60"},
        {{"x", 1, 64, 2, 250, 96, 32, 1e-5f, 0}, "feed-forward size 250"},
        {{"x", 1, 64, 3, 256, 96, 32, 1e-5f, 0}, "3 heads do not divide"},
        {{"x", 1, 64, 0, 256, 96, 32, 1e-5f, 0}, "0 heads"},
        {{"x", 1, 64, 2, 256, 1, 32, 1e-5f, 0}, "vocabulary of 1"},
        {{"x", 1, 64, 2, 256, 96, 0, 1e-5f, 0}, "context of 0"},
        {{"x", 1, 64, 2, 256, 96, 32, 0, 0}, "norm epsilon"},
        {{"x", 1, 64, 2, 256, 96, 32, 1e-5f, 2}, "dropout"},
    };
    struct st_model *m = NULL;

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        assert_refused(st_model_create(&m, &rows[i].config, &bf16_batch), STRATA_E_INVAL, rows[i].part);
}

/* Every broken number is found. */
static void test_workload_check_finds_faults(void **state)
{
    struct st_model *m = tiny_model(STRATA_F32);
    const struct st_workload *good = st_model_workload(m);

    (void)state;
    assert_ok(st_workload_check(good));
    for (uint32_t i = 0; i < 23; i++) {
        struct st_workload w;
        struct st_page *block;

        assert_ok(st_workload_copy(&w, good));
        block = &w.pages[w.block_first];
        switch (i) {
        case 0:
            w.dtype = STRATA_F16;
            break;
        case 1:
            w.block_count = 0;
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
            w.activation_bytes += 4;
            break;
        case 17:
            w.block_internal_bytes = 0;
            break;
        case 18:
            w.head_forward_flops = -1;
            break;
        case 19:
            w.norm_page--;
            break;
        case 20:
            w.head_count = 0;
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_presets_have_the_published_parameters),
        cmocka_unit_test(test_unknown_preset_names_the_nearest),
        cmocka_unit_test(test_tile_rows),
        cmocka_unit_test(test_block_page_holds_its_tensors_in_order),
        cmocka_unit_test(test_decay_all_moves_nothing),
        cmocka_unit_test(test_pieces_cover_every_tensor),
        cmocka_unit_test(test_head_workspace_is_bounded),
        cmocka_unit_test(test_bytes_and_flops),
        cmocka_unit_test(test_more_workers_need_no_less_workspace),
        cmocka_unit_test(test_bad_batches_are_refused),
        cmocka_unit_test(test_bad_configs_are_refused),
        cmocka_unit_test(test_workload_check_finds_faults),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
