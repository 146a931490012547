/* tests/engine/test_saved_weights.c - the weights of a checkpoint at the places that a model without frozen tensors has for them,
 * whatever range is read. */
#include "run/checkpoint_weights.h"
#include "tests/common/test.h"

#include "model/model.h"
#include "tests/common/assert_status.h"
#include "tests/common/scratch.h"
#include "tests/offload/checkpoint_fixture.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define CHUNK (UINT64_C(200) * ST_TILE_ELEMS) /* elements of a row, of which one transfer brings a part */

/* A table of three pages, and matrices that one transfer does not bring. */
static struct st_model *model_of(const char *frozen)
{
    struct st_model_batch batch = {.micro_batch = 1, .seq = 4, .grad_accum = 1, .dtype = STRATA_BF16};
    struct st_model_config config;
    struct st_model *m;
    char patterns[1][128];

    assert_ok(st_model_preset(&config, "nano"));
    config.blocks = 1;
    config.hidden = 512;
    config.ffn = 4104; /* its biases are followed by padding */
    config.vocab = 9000;
    if (frozen != NULL) {
        snprintf(patterns[0], sizeof(patterns[0]), "%s", frozen);
        batch.freeze = (const char(*)[128])patterns;
        batch.freeze_count = 1;
    }
    assert_ok(st_model_create(&m, &config, &batch));
    return m;
}

/* --- a checkpoint of it --- */

static void put_groups(struct st_manifest *m, const struct st_workload *w)
{
    free(m->groups);
    m->groups = calloc((size_t)w->page_count * ST_GROUPS_MAX, sizeof(*m->groups));
    assert_non_null(m->groups);
    m->group_count = 0;
    m->page_count = w->page_count;
    for (uint32_t p = 0; p < w->page_count; p++)
        for (uint32_t i = 0; i < w->pages[p].group_count; i++) {
            const struct st_group *g = &w->pages[p].groups[i];

            m->groups[m->group_count++] = (struct st_manifest_group){
                .page = p, .kind = g->kind, .format = g->format, .offset = g->offset, .elems = g->elems};
        }
}

/* Where part `i` of a tensor lies. */
static struct st_manifest_tensor part_of(const struct st_model *model, const struct st_tensor *t, uint32_t i)
{
    const struct st_workload *w = st_model_workload(model);
    struct st_manifest_tensor part = {.page = t->page + i, .offset = t->offset, .elems = t->elems};

    snprintf(part.name, sizeof(part.name), "%s", t->name);
    if (t->page_count > 1)
        part.elems = (uint64_t)w->pages[t->page + i].row_count * w->hidden;
    return part;
}

static void put_tensors(struct st_manifest *m, const struct st_model *model)
{
    free(m->tensors);
    m->tensors = calloc(st_model_tensor_count(model) + 8, sizeof(*m->tensors));
    assert_non_null(m->tensors);
    m->tensor_count = 0;
    for (uint32_t i = 0; i < st_model_tensor_count(model); i++)
        for (uint32_t k = 0; k < st_model_tensor(model, i)->page_count; k++)
            m->tensors[m->tensor_count++] = part_of(model, st_model_tensor(model, i), k);
}

static struct st_checkpoint *saved_of(const struct st_model *model)
{
    struct st_manifest m = fixture_manifest_of(CHUNK);
    struct st_extents e;
    struct st_checkpoint *ck;

    put_groups(&m, st_model_workload(model));
    put_tensors(&m, model);
    e = fixture_extents_of(&m, CHUNK);
    assert_int_equal(mkdir(scratch_path("ck"), 0777), 0);
    fixture_write(scratch_path("ck"), &m, &e);
    st_extents_fini(&e);
    st_manifest_fini(&m);
    assert_ok(st_checkpoint_open(&ck, scratch_path("ck")));
    return ck;
}

/* --- what is to be read --- */

/* An element of a page of the saved model, from the page's start. */
static uint16_t saved_at(const struct st_checkpoint *ck, uint32_t page, uint64_t element)
{
    const struct st_manifest_group *g;
    const struct st_extent_row *row;
    uint32_t group = 0;
    uint64_t at;

    while ((g = st_manifest_group(&ck->manifest, page, group)) != NULL && element >= g->offset + g->elems)
        group++;
    assert_non_null(g);
    row = st_extents_row(&ck->extents, page, group, ST_PLANE_WEIGHT, element - g->offset);
    assert_non_null(row);
    at = row->offset + (element - g->offset - row->first) * 2;
    return (uint16_t)(fixture_byte((enum st_space)row->space, at) | fixture_byte((enum st_space)row->space, at + 1) << 8);
}

/* All of a page of the model, padding 0, and which of it is no padding. */
struct page {
    uint16_t *values;
    bool *there;
};

static void put_part(struct page *pages, const struct st_checkpoint *ck, const struct st_manifest_tensor *to,
                     const struct st_manifest_tensor *from)
{
    assert_int_equal(to->elems, from->elems); /* slices are the same, whatever is frozen */
    for (uint64_t i = 0; i < to->elems; i++) {
        pages[to->page].values[to->offset + i] = saved_at(ck, from->page, from->offset + i);
        pages[to->page].there[to->offset + i] = true;
    }
}

static struct page *pages_of(const struct st_model *model, const struct st_model *saved, const struct st_checkpoint *ck)
{
    const struct st_workload *w = st_model_workload(model);
    struct page *pages = calloc(w->page_count, sizeof(*pages));

    assert_non_null(pages);
    for (uint32_t p = 0; p < w->page_count; p++) {
        pages[p].values = calloc(w->pages[p].elems, sizeof(*pages[p].values));
        pages[p].there = calloc(w->pages[p].elems, sizeof(*pages[p].there));
        assert_true(pages[p].values != NULL && pages[p].there != NULL);
    }
    for (uint32_t i = 0; i < st_model_tensor_count(model); i++)
        for (uint32_t k = 0; k < st_model_tensor(model, i)->page_count; k++) {
            const struct st_manifest_tensor to = part_of(model, st_model_tensor(model, i), k);
            const struct st_manifest_tensor from = part_of(saved, st_model_tensor(saved, i), k);

            put_part(pages, ck, &to, &from);
        }
    return pages;
}

/* --- tests --- */

struct seen {
    uint16_t *values;
    uint64_t first, next, count;
};

static strata_status see(void *ctx, uint32_t page, uint64_t first, uint64_t count, strata_dtype format, const void *weight)
{
    struct seen *s = ctx;

    (void)page;
    assert_int_equal(format, STRATA_BF16);
    assert_true(first >= s->next);
    memcpy(s->values + (first - s->first), weight, count * sizeof(*s->values));
    s->next = first + count;
    s->count += count;
    return STRATA_OK;
}

static void check_range(struct st_checkpoint_weights *w, const struct page *pages, uint32_t page, uint64_t first, uint64_t count)
{
    const struct st_weight_source source = st_checkpoint_weights_source(w);
    struct seen s = {.values = calloc(count, sizeof(*s.values)), .first = first, .next = first};
    float *widened = malloc(count * sizeof(*widened));
    uint64_t wanted = 0;

    assert_true(s.values != NULL && widened != NULL);
    memset(widened, 0xff, count * sizeof(*widened)); /* so that padding must be written */
    assert_ok(st_checkpoint_weights_each(w, page, first, count, see, &s));
    assert_ok(source.read(source.ctx, page, first, count, widened));
    assert_memory_equal(s.values, pages[page].values + first, count * sizeof(*s.values));
    for (uint64_t i = 0; i < count; i++) {
        const uint32_t bits = (uint32_t)pages[page].values[first + i] << 16;

        wanted += pages[page].there[first + i];
        assert_memory_equal(&widened[i], &bits, sizeof(bits));
    }
    assert_int_equal(s.count, wanted);
    free(s.values);
    free(widened);
}

/* What the model freezes lies behind the rest of its pages. */
static void check_model(const char *frozen)
{
    struct st_model *saved = model_of("*.weight"), *model = model_of(frozen);
    struct st_checkpoint *ck = saved_of(saved);
    struct page *pages = pages_of(model, saved, ck);
    const struct st_workload *w = st_model_workload(model);
    struct st_checkpoint_weights *weights;
    uint64_t random = 1;

    assert_ok(st_checkpoint_weights_open(&weights, ck, model));
    for (uint32_t p = 0; p < w->page_count; p++) {
        check_range(weights, pages, p, 0, w->pages[p].elems);
        for (uint32_t i = 0; i < 4; i++) {
            uint64_t first, count;

            random = random * 6364136223846793005u + 1442695040888963407u;
            first = (random >> 33) % w->pages[p].elems;
            count = (random >> 20) % (w->pages[p].elems - first) % 300000 + 1;
            check_range(weights, pages, p, first, count);
        }
        free(pages[p].values);
        free(pages[p].there);
    }
    free(pages);
    st_checkpoint_weights_close(weights);
    st_checkpoint_close(ck);
    st_model_destroy(model);
    st_model_destroy(saved);
}

TEST_SETUP(every_range_is_read, scratch_begin, scratch_end)
{
    check_model(NULL);
}

TEST_SETUP(every_range_is_read_where_others_are_frozen, scratch_begin, scratch_end)
{
    check_model("*.attn.*");
}

/* config.json is of another model than the planes. */
TEST_SETUP(another_model_is_refused, scratch_begin, scratch_end)
{
    struct st_model *saved = model_of("*.weight");
    struct st_checkpoint *ck = saved_of(saved);
    struct st_model_batch batch = {.micro_batch = 1, .seq = 4, .grad_accum = 1, .dtype = STRATA_BF16};
    static const struct {
        const char *preset;
        uint32_t vocab, blocks;
        const char *why;
    } others[] = {{"nano-llama", 9000, 1, "lacks tensor model.embed_tokens.weight"},
                  {"nano", 9000, 2, "lacks tensor transformer.h.1"},
                  {"nano", 9001, 1, "lacks tensor transformer.wte.weight, or a part of it"},
                  {"nano", 8000, 1, "tensor transformer.wte.weight is larger"}};

    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
        struct st_model_config config;
        struct st_checkpoint_weights *weights;
        struct st_model *m;

        assert_ok(st_model_preset(&config, others[i].preset));
        config.blocks = others[i].blocks;
        config.hidden = 512;
        config.ffn = 4104; /* its biases are followed by padding */
        config.vocab = others[i].vocab;
        assert_ok(st_model_create(&m, &config, &batch));
        assert_refused(st_checkpoint_weights_open(&weights, ck, m), STRATA_E_CORRUPT, others[i].why);
        st_model_destroy(m);
    }
    st_checkpoint_close(ck);
    st_model_destroy(saved);
}
