/* test_workload - numbers of a workload that contradict each other are refused, one at a time. */
#include "plan_fixture.h"
#include "tests/common/shape.h"
#include "tests/common/test.h"

#include <string.h>

static const struct plan_sizes sizes = {.dtype = STRATA_BF16,
                                        .blocks = 2,
                                        .hidden = 16,
                                        .vocab = 60,
                                        .slice_rows = 30,
                                        .seq = 8,
                                        .micro_batch = 2,
                                        .grad_accum = 3,
                                        .positions = true};

/* A number of the workload, set to another value. */
struct row {
    size_t offset, bytes;
    int64_t by; /* added; 0: it becomes 0 */
    const char *sentence;
};

#define MEMBER(member)   offsetof(struct st_workload, member), sizeof(((struct st_workload *)0)->member)
#define OF_LAYER(member) offsetof(struct st_layer, member), sizeof(((struct st_layer *)0)->member)
#define OF_PAGE(member)  offsetof(struct st_page, member), sizeof(((struct st_page *)0)->member)

static void change(void *base, const struct row *row)
{
    uint64_t value = 0;

    memcpy(&value, (char *)base + row->offset, row->bytes);
    value = row->by == 0 ? 0 : value + (uint64_t)row->by;
    memcpy((char *)base + row->offset, &value, row->bytes);
}

static void refused(const struct st_workload *w, const char *sentence)
{
    assert_int_equal(st_workload_check(w), STRATA_E_INTERNAL);
    if (strstr(strata_last_error(), sentence) == NULL)
        fail_msg("\"%s\" does not say \"%s\"", strata_last_error(), sentence);
}

TEST(a_number_that_contradicts_the_others_is_refused)
{
    static const struct row rows[] = {
        {MEMBER(dtype), 0, "dtype is none of"},
        {MEMBER(vocab), 0, "a size is 0"},
        {MEMBER(hidden), 0, "a size is 0"},
        {MEMBER(seq), 0, "a size is 0"},
        {MEMBER(micro_batch), 0, "a size is 0"},
        {MEMBER(grad_accum), 0, "a size is 0"},
        {MEMBER(workers), 0, "sized for no worker"},
        {MEMBER(workspace_bytes), 0, "a workspace of 0 bytes"},
        {MEMBER(page_count), 0, "no pages"},
        {MEMBER(layer_count), 0, "no layers"},
        {MEMBER(layer_count), -1, "a page is not used"},
        {MEMBER(use_count), -1, "uses do not follow the layers"},
        {MEMBER(gathered_count), 0, "its uses"},
        {MEMBER(gathered_count), 1, "its uses"},
        {MEMBER(page_count), -1, "in the order of their first use"},
        {MEMBER(params), 1, "params is not the sum over the pages"},
        {MEMBER(vocab), 1, "slices do not cover the vocabulary"},
        {MEMBER(hidden), 1, "a slice is not whole rows"},
        {MEMBER(generate), 1, "more than one sequence"},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct st_workload w, changed;

        plan_workload(&w, &sizes, NULL);
        assert_int_equal(st_workload_check(&w), STRATA_OK);
        changed = w;
        change(&changed, &rows[i]);
        refused(&changed, rows[i].sentence);
        st_workload_fini(&w);
    }
}

/* Layer 0 looks up, 1 is a block, 3 gives the losses. */
TEST(a_layer_that_contradicts_the_others_is_refused)
{
    static const struct {
        uint32_t layer;
        struct row row;
    } rows[] = {
        {0, {OF_LAYER(kind), -1, "a block has a gathered page"}},
        {1, {OF_LAYER(kind), 1, "a layer's kind, or its place"}},
        {1, {OF_LAYER(kind), 2, "a layer's kind, or its place"}},
        {3, {OF_LAYER(kind), 1, "a layer's kind, or its place"}},
        {1, {OF_LAYER(kind), ST_LAYER_EXPERTS, "a layer of experts: its place, its slices"}},
        {1, {OF_LAYER(boundary_bytes), 0, "the bytes of a boundary"}},
        {3, {OF_LAYER(boundary_bytes), 1, "the bytes of a boundary"}},
        {3, {OF_LAYER(internal_bytes), 0, "has no internals"}},
        {1, {OF_LAYER(use_first), 1, "uses do not follow the layers"}},
        {1, {OF_LAYER(use_count), 1, "its layer"}},
        {3, {OF_LAYER(use_count), 1, "uses do not follow the layers"}},
    };
    struct st_workload w;

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        plan_workload(&w, &sizes, NULL);
        change(&w.layers[rows[i].layer], &rows[i].row);
        refused(&w, rows[i].row.sentence);
        st_workload_fini(&w);
    }
    plan_workload(&w, &sizes, NULL);
    w.layers[1].forward_flops = -1;
    refused(&w, "FLOPs");
    w.layers[1].forward_flops = 0; /* unknown */
    assert_int_equal(st_workload_check(&w), STRATA_OK);
    st_workload_fini(&w);
}

/* Each breaks one rule of who uses what. */
TEST(pages_are_used_as_they_may_be)
{
    struct plan_sizes tied = sizes;
    struct st_workload w;

    tied.tied = true;
    plan_workload(&w, &tied, NULL);
    w.uses[w.use_count - 1] = 0; /* a slice twice */
    refused(&w, "a layer has a page twice");
    st_workload_fini(&w);
    plan_workload(&w, &sizes, NULL);
    w.uses[0] = 1;
    refused(&w, "in the order of their first use");
    st_workload_fini(&w);
    plan_workload(&w, &sizes, NULL);
    w.pages[w.gathered_count].flags = 0; /* the positions */
    refused(&w, "is not small");
    st_workload_fini(&w);
    plan_workload(&w, &sizes, NULL);
    w.pages[st_layer_page(&w, w.layer_count - 1, 0)].flags = 0; /* the norm */
    refused(&w, "the layer of losses");
    st_workload_fini(&w);
}

static void accepted(struct st_workload *w)
{
    if (st_workload_check(w) != STRATA_OK)
        fail_msg("%s", strata_last_error());
}

/* What a stranger's layers are: no vocabulary, no FLOPs, boundaries that differ, several pages, one of several layers, none. */
TEST(layers_of_strangers_are_workloads)
{
    for (uint64_t seed = 1; seed <= 200; seed++) {
        struct plan_draws draws = {.seed = seed};
        struct st_workload w, copy;

        plan_random_layers(&w, &draws);
        accepted(&w);
        assert_int_equal(st_workload_tokens_bytes(&w), 0);
        assert_int_equal(st_workload_copy(&copy, &w), STRATA_OK);
        accepted(&copy);
        st_workload_fini(&copy);
        st_workload_fini(&w);
    }
}

TEST(a_page_that_contradicts_its_groups_is_refused)
{
    static const struct row rows[] = {
        {OF_PAGE(flags), ST_PAGE_GATHERED, "its uses"},
        {OF_PAGE(uses), 1, "its uses"},
        {OF_PAGE(layer), 1, "its layer"},
        {OF_PAGE(group_count), 0, "group count"},
        {OF_PAGE(group_count), ST_GROUPS_MAX, "group count"},
        {OF_PAGE(groups[0].elems), 0, "an empty group"},
        {OF_PAGE(groups[0].elems), 1 << 20, "leaves the page"},
        {OF_PAGE(groups[0].offset), 1, "a group is not aligned"},
        {OF_PAGE(groups[0].kind), ST_GROUP_FROZEN + 1, "out of order"},
        {OF_PAGE(groups[0].format), 0, "the format of a group"},
        {OF_PAGE(groups[0].bytes), 1, "the format of a group"},
        {OF_PAGE(groups[0].at), 1 << 20, "weights overlap another's or leave"},
        {OF_PAGE(trained_elems), 1, "the extent of what is trained"},
        {OF_PAGE(written_elems), 1 << 20, "more is written than has a gradient"},
        {OF_PAGE(trained_bytes), 1 << 20, "the extent of what is trained"},
        {OF_PAGE(trained_bytes), 0, "the extent of what is trained"},
        {OF_PAGE(elems), 1, "its extent is not aligned"},
        {OF_PAGE(params), 1, "not the sum of its groups"},
    };
    static const struct row slices[] = {
        {OF_PAGE(row_first), 1, "cover the vocabulary in order"},
        {OF_PAGE(row_count), 0, "cover the vocabulary in order"},
        {OF_PAGE(row_count), 100, "cover the vocabulary in order"},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]) + sizeof(slices) / sizeof(slices[0]); i++) {
        const bool of_slice = i >= sizeof(rows) / sizeof(rows[0]);
        const struct row *row = of_slice ? &slices[i - sizeof(rows) / sizeof(rows[0])] : &rows[i];
        struct st_workload w;

        plan_workload(&w, &sizes, NULL);
        change(&w.pages[of_slice ? 0 : shape_of(&w).block_first], row);
        refused(&w, row->sentence);
        st_workload_fini(&w);
    }
}

/* Experts that are chosen have their slices, and what says which lies where a layer leaves it. */
TEST(a_choice_that_does_not_fit_is_refused)
{
    static const struct row rows[] = {
        {MEMBER(experts), 1, "leaves a layer's internals, or slices"},
        {MEMBER(slice_experts), -1, "leaves a layer's internals, or slices"},
        {MEMBER(slice_experts), 0, "leaves a layer's internals, or slices"},
        {MEMBER(choice_offset), 1 << 20, "leaves a layer's internals, or slices"},
        {MEMBER(generate), 0, "in generation alone"},
    };
    struct plan_sizes generation = sizes;

    generation.micro_batch = generation.grad_accum = 1;
    generation.experts = 3;
    generation.chosen = true;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct st_workload w, changed;

        plan_workload(&w, &generation, NULL);
        w.experts = 6;
        assert_int_equal(st_workload_check(&w), STRATA_OK);
        changed = w;
        change(&changed, &rows[i]);
        refused(&changed, rows[i].sentence);
        st_workload_fini(&w);
    }
}

/* All slices but the last have as many rows as the first one, and the last no more. */
TEST(slices_differ_in_rows_at_the_end_alone)
{
    static const struct {
        uint32_t slice_rows, page; /* which changes places with the page behind it */
    } rows[] = {{31, 0}, {25, 1}};

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct plan_sizes uneven = sizes;
        struct st_page *page, other;
        struct st_workload w;

        uneven.slice_rows = rows[i].slice_rows;
        plan_workload(&w, &uneven, NULL);
        assert_int_equal(st_workload_check(&w), STRATA_OK);
        page = &w.pages[rows[i].page];
        other = page[0], page[0] = page[1], page[1] = other;
        page[0].row_first = page[1].row_first;
        page[1].row_first = page[0].row_first + page[0].row_count;
        refused(&w, "slices differ in rows before the last");
        st_workload_fini(&w);
    }
}
