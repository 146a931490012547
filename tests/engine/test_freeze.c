/* test_freeze - what is frozen keeps its bits, has no state and moves no gradient; the rest trains with one set of bits wherever
 * it lies. */
#include "rig.h"
#include "tests/common/scratch.h"
#include "tests/common/shape.h"
#include "tests/common/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STEPS 3u

/* GPT-2: a whole block, biases and norms, the tied table, everything below the last block; Llama: the untied head. */
static const struct {
    bool llama;
    const char *pattern;
} cases[] = {
    {false, "transformer.h.1.*"},        {false, "*.bias"},  {false, "transformer.wte.weight"},
    {false, "transformer.[hw]*[0pe].*"}, {true, "lm_head*"}, {true, "model.embed_tokens.weight"},
    {true, "model.layers.[01].*"},
};
#define CASES (sizeof(cases) / sizeof(cases[0]))

static struct rig_cell cell_of(size_t i, uint32_t placement)
{
    struct rig_cell cell = {.llama = cases[i].llama,
                            .freeze = cases[i].pattern,
                            .grad_accum = 2,
                            .act_tier = STRATA_TIER_COUNT,
                            .io_method = "auto",
                            .isa = "auto",
                            .threads = 2,
                            .clip = RIG_CLIP_ALWAYS,
                            .dtype = STRATA_BF16};

    if (placement == 0) {
        cell.device = RIG_ALL;
        cell.update = ST_UPDATE_SERIAL;
        return cell;
    }
    cell.device = RIG_SMALLEST;
    cell.host = RIG_SMALLEST;
    cell.optimizer = cell.param = STRATA_TIER_NVME;
    cell.update = placement == 1 ? ST_UPDATE_GATED : ST_UPDATE_SERIAL;
    cell.accumulation = placement == 1 ? ST_ACCUMULATE_VERTICAL : ST_ACCUMULATE_HORIZONTAL;
    cell.activations = ST_ACT_RECOMPUTED;
    return cell;
}

static void run(struct rig_result *out, const struct rig_cell *cell)
{
    const strata_status st = rig_run(out, cell, STEPS, scratch_dir);

    if (st != STRATA_OK)
        fail_msg("%s: %s", cell->freeze == NULL ? "nothing frozen" : cell->freeze, strata_last_error());
    assert_true(out->planned);
    assert_int_equal(out->planned_bytes.upload, out->moved_bytes.upload);
    assert_int_equal(out->planned_bytes.download, out->moved_bytes.download);
    assert_int_equal(out->planned_bytes.read, out->moved_bytes.read);
    assert_int_equal(out->planned_bytes.write, out->moved_bytes.write);
}

TEST(placement_does_not_change_bits)
{
    for (size_t i = 0; i < CASES; i++) {
        const struct rig_cell resident = cell_of(i, 0);
        struct rig_cell trained = resident;
        struct rig_result want, got;

        run(&want, &resident);
        for (uint32_t placement = 1; placement <= 2; placement++) {
            const struct rig_cell paged = cell_of(i, placement);

            run(&got, &paged);
            assert_memory_equal(got.losses, want.losses, sizeof(got.losses));
            assert_string_equal(got.weights, want.weights);
            assert_string_equal(got.state, want.state);
        }
        trained.freeze = NULL;
        run(&got, &trained);
        assert_string_not_equal(got.weights, want.weights);
    }
}

/* --- what is trained moves, and nothing else --- */

/* All of a block but its biases, which are a small part of it; on either processor, each way that its weights go home. */
static const struct rig_cell small_parts[] = {
    {.update = ST_UPDATE_GATED},
    {.update = ST_UPDATE_SERIAL},
    {.update = ST_UPDATE_SERIAL, .accumulation = ST_ACCUMULATE_HORIZONTAL},
    {.update = ST_UPDATE_GATED, .streamed = 2},
    {.update = ST_UPDATE_SERIAL, .streamed = 2},
    {.update = ST_UPDATE_SERIAL, .streamed = 2, .accumulation = ST_ACCUMULATE_HORIZONTAL},
};
#define SMALL_PARTS (sizeof(small_parts) / sizeof(small_parts[0]))

static struct rig_cell small_part(size_t i)
{
    struct rig_cell cell = cell_of(0, i == 0 ? 1 : 2);

    cell.freeze = "transformer.h.*.weight";
    cell.update = small_parts[i].update;
    cell.accumulation = small_parts[i].accumulation;
    cell.streamed = small_parts[i].streamed;
    cell.device = cell.streamed > 0 ? RIG_MIDWAY : RIG_SMALLEST; /* room for the state that comes */
    return cell;
}

static uint64_t trained_elems(const struct st_model *model, uint32_t page)
{
    uint64_t elems = 0;

    for (uint32_t i = 0; i < st_model_tensor_count(model); i++) {
        const struct st_tensor *t = st_model_tensor(model, i);

        elems += t->page == page && !t->frozen ? t->elems : 0;
    }
    return elems;
}

/* Elements of `width` bytes, but for the padding of a page's one or two trained groups. */
static void assert_about(uint64_t bytes, uint64_t elems, uint64_t width)
{
    assert_true(bytes >= elems * width && bytes < (elems + 2 * ST_PAGE_ALIGN) * width);
}

static void check_moves(const struct st_plan *plan, const struct st_model *model, uint32_t seen[ST_OP_KIND_COUNT])
{
    const struct st_workload *w = &plan->program.workload;

    for (uint32_t i = 0; i < plan->program.op_count; i++) {
        const struct st_op *op = &plan->program.ops[i];
        uint64_t elems;

        if (op->page == ST_NO_PAGE || op->page < shape_of(w).block_first || op->page >= shape_of(w).norm_page)
            continue;
        elems = trained_elems(model, op->page);
        assert_true(20 * elems < w->pages[op->page].elems); /* the biases */
        seen[op->kind]++;
        if (op->kind == ST_OP_DOWNLOAD_GRAD)
            assert_about(op->bytes, elems, 2);
        if (op->kind == ST_OP_DOWNLOAD_ACCUM || op->kind == ST_OP_UPLOAD_ACCUM)
            assert_about(op->bytes, elems, 4);
        if (op->kind == ST_OP_WRITE_WEIGHT || op->kind == ST_OP_DOWNLOAD_WEIGHT)
            assert_true(op->bytes <= (elems * 2 / ST_EXTENT_ALIGN + 1) * ST_EXTENT_ALIGN); /* whole blocks of a drive */
    }
}

TEST(a_small_group_moves_alone)
{
    uint32_t seen[ST_OP_KIND_COUNT] = {0};
    struct rig_result want, got;

    for (size_t i = 0; i < SMALL_PARTS; i++) {
        const struct rig_cell cell = small_part(i);
        struct st_model *model;
        struct st_plan *plan;

        assert_int_equal(rig_model(&model, &cell), STRATA_OK);
        assert_int_equal(rig_plan(&plan, model, &cell), STRATA_OK);
        assert_int_equal(st_plan_verify(plan), STRATA_OK);
        check_moves(plan, model, seen);
        st_plan_destroy(plan);
        st_model_destroy(model);
        run(i == 0 ? &want : &got, &cell);
        if (i == 0)
            continue;
        assert_string_equal(got.weights, want.weights);
        assert_string_equal(got.state, want.state);
    }
    assert_true(seen[ST_OP_DOWNLOAD_GRAD] > 0 && seen[ST_OP_DOWNLOAD_ACCUM] > 0 && seen[ST_OP_UPLOAD_ACCUM] > 0);
    assert_true(seen[ST_OP_DOWNLOAD_WEIGHT] > 0 && seen[ST_OP_WRITE_WEIGHT] > 0);
}

/* --- what is frozen --- */

struct kept {
    const struct st_workload *w;
    const uint16_t *before; /* second pass: the first's values */
    uint16_t *values;       /* [elements of all pages] */
    uint64_t *page_at;
    uint64_t moved[3]; /* values that differ, by group kind */
};

static enum st_group_kind kind_at(const struct st_page *page, uint64_t element)
{
    for (uint32_t i = 0; i < page->group_count; i++)
        if (element >= page->groups[i].offset && element < page->groups[i].offset + page->groups[i].elems)
            return page->groups[i].kind;
    fail_msg("element %u is in no group", (unsigned)element);
    return ST_GROUP_FROZEN;
}

static strata_status keep(void *ctx, uint32_t page, uint64_t first, uint64_t count, const void *weight)
{
    struct kept *k = ctx;
    const uint64_t at = k->page_at[page] + first;

    memcpy(k->values + at, weight, count * 2);
    for (uint64_t i = 0; k->before != NULL && i < count; i++)
        k->moved[kind_at(&k->w->pages[page], first + i)] += k->before[at + i] != k->values[at + i];
    return STRATA_OK;
}

TEST(frozen_weights_keep_their_bits)
{
    for (size_t i = 0; i < CASES; i++) {
        const struct rig_cell cell = cell_of(i, 1);
        struct st_model *model;
        struct st_plan *plan;
        struct kept k = {0};
        uint64_t total = 0, frozen = 0;

        assert_int_equal(rig_model(&model, &cell), STRATA_OK);
        assert_int_equal(rig_plan(&plan, model, &cell), STRATA_OK);
        k.w = &plan->program.workload;
        k.page_at = calloc(k.w->page_count, sizeof(*k.page_at));
        for (uint32_t p = 0; p < k.w->page_count; p++) {
            k.page_at[p] = total;
            total += k.w->pages[p].elems;
            for (uint32_t g = 0; g < k.w->pages[p].group_count; g++)
                frozen += k.w->pages[p].groups[g].kind == ST_GROUP_FROZEN ? k.w->pages[p].groups[g].elems : 0;
        }
        k.values = calloc(total, 2);
        assert_true(frozen > 0);
        assert_int_equal(rig_export(model, plan, &cell, 0, scratch_dir, keep, &k), STRATA_OK);
        k.before = k.values;
        k.values = calloc(total, 2);
        assert_int_equal(rig_export(model, plan, &cell, STEPS, scratch_dir, keep, &k), STRATA_OK);
        assert_int_equal(k.moved[ST_GROUP_FROZEN], 0);
        assert_true(k.moved[ST_GROUP_DECAY] > 0);
        for (uint32_t c = 0; c < plan->program.chunk_count; c++)
            assert_int_equal(plan->program.chunks[c].group == ST_GROUP_FROZEN, plan->program.chunks[c].region == ST_NO_BUFFER);
        print_message("%s: %u values frozen, %u of the others moved\n", cases[i].pattern, (unsigned)frozen,
                      (unsigned)(k.moved[ST_GROUP_DECAY] + k.moved[ST_GROUP_NO_DECAY]));
        free((void *)(uintptr_t)k.before);
        free(k.values);
        free(k.page_at);
        st_plan_destroy(plan);
        st_model_destroy(model);
    }
}

/* --- what is trained --- */

struct learnt {
    struct st_model *model;
    float *values; /* [elements of all pages] */
    uint64_t *page_at;
};

static strata_status learn(void *ctx, uint32_t page, uint64_t first, uint64_t count, const void *weight)
{
    const struct learnt *l = ctx;

    memcpy(l->values + l->page_at[page] + first, weight, count * sizeof(float));
    return STRATA_OK;
}

/* One step in fp32, with a norm that clips nothing. */
static void learnt_open(struct learnt *l, bool llama, const char *freeze)
{
    struct rig_cell cell = cell_of(0, 0);
    const struct st_workload *w;
    struct st_plan *plan;
    uint64_t total = 0;

    cell.llama = llama;
    cell.freeze = freeze;
    cell.clip = RIG_CLIP_NEVER;
    cell.dtype = STRATA_F32;
    assert_int_equal(rig_model(&l->model, &cell), STRATA_OK);
    assert_int_equal(rig_plan(&plan, l->model, &cell), STRATA_OK);
    w = &plan->program.workload;
    l->page_at = calloc(w->page_count, sizeof(*l->page_at));
    for (uint32_t p = 0; p < w->page_count; p++) {
        l->page_at[p] = total;
        total += w->pages[p].elems;
    }
    l->values = calloc(total, sizeof(float));
    assert_int_equal(rig_export(l->model, plan, &cell, 1, scratch_dir, learn, l), STRATA_OK);
    st_plan_destroy(plan);
}

static void learnt_close(struct learnt *l)
{
    st_model_destroy(l->model);
    free(l->values);
    free(l->page_at);
}

/* The first update of a weight does not depend on which others are frozen: above them, below them or between. */
TEST(what_is_trained_learns_as_if_nothing_were_frozen)
{
    for (size_t i = 0; i <= CASES; i++) {
        const bool llama = i < CASES && cases[i].llama;
        /* The last one: the positions alone are trained below the second block. */
        const char *freeze = i < CASES ? cases[i].pattern : "transformer.[hw][.t][0e].*";
        struct learnt all, some;
        uint32_t trained = 0;

        learnt_open(&all, llama, NULL);
        learnt_open(&some, llama, freeze);
        for (uint32_t t = 0; t < st_model_tensor_count(all.model); t++) {
            const struct st_tensor *a = st_model_tensor(all.model, t), *b = st_model_tensor(some.model, t);

            assert_string_equal(a->name, b->name);
            if (b->frozen)
                continue;
            trained++;
            if (memcmp(all.values + all.page_at[a->page] + a->offset, some.values + some.page_at[b->page] + b->offset,
                       a->elems * sizeof(float)) != 0)
                fail_msg("%s learns otherwise where %s is frozen", b->name, freeze);
        }
        assert_true(trained > 0 && trained < st_model_tensor_count(all.model));
        learnt_close(&all);
        learnt_close(&some);
    }
}

TEST_GROUP(scratch_create, scratch_remove_empty);
