/* tests/model/test_hf_beside.c - a model of more than text is written with all that is not its text model's as it was. */
#include "adapter_rig.h"
#include "model/layout.h"
#include "model_fixture.h"
#include "tests/common/fault_walk.h"

#include <errno.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#define WRAPPERS "tests/golden/wrappers"

static strata_status put_pages(const struct st_model *m, struct st_hf_reader *r, struct st_hf_writer *w)
{
    const struct st_weight_source values = st_hf_reader_source(r);
    strata_status st = STRATA_OK;

    for (uint32_t p = 0; p < m->workload.page_count && st == STRATA_OK; p++) {
        const uint64_t elems = m->workload.pages[p].elems;
        float *page = malloc(elems * sizeof(*page));

        assert_non_null(page);
        if ((st = values.read(values.ctx, p, 0, elems, page)) == STRATA_OK)
            st = st_hf_writer_put(w, p, 0, elems, page);
        free(page);
    }
    return st;
}

/* Every value of the text model as it is read from there. */
static strata_status write_as_read(const struct st_model *m, const char *from, const char *source, const char *to)
{
    struct st_hf_reader *r = NULL;
    struct st_hf_writer *w = NULL;
    strata_status st = st_hf_reader_open(&r, m, from);

    if (st == STRATA_OK && (st = st_hf_writer_open(&w, m, to, source, NULL, false)) == STRATA_OK)
        st = put_pages(m, r, w);
    if (st == STRATA_OK) {
        st = st_hf_writer_commit(w);
        w = NULL;
    }
    st_hf_writer_abort(w);
    st_hf_reader_close(r);
    return st;
}

/* The text model's in fp32, the others to the byte, under the same names. */
static void expect_all(const char *dir, const char *golden)
{
    char path[256];
    struct opened ours, theirs;

    open_tensors(&ours, join_path(path, dir, "", "model.safetensors"));
    open_tensors(&theirs, join_path(path, golden, "", "model.safetensors"));
    assert_int_equal(ours.header.count, theirs.header.count);
    for (uint32_t i = 0; i < theirs.header.count; i++) {
        const struct st_safetensor *t = &theirs.header.tensors[i], *o = find_tensor(&ours, t->name);

        if (o == NULL)
            fail_msg("%s: no %s", golden, t->name);
        assert_int_equal(o->rank, t->rank);
        assert_memory_equal(o->shape, t->shape, t->rank * sizeof(*t->shape));
        assert_true(o->dtype == STRATA_F32 || o->dtype == t->dtype);
        if (o->dtype == t->dtype)
            assert_memory_equal(ours.bytes + o->begin, theirs.bytes + t->begin, t->end - t->begin);
    }
    close_tensors(&ours);
    close_tensors(&theirs);
}

TEST(test_what_is_not_text_stays)
{
    static const char *const names[] = {"gemma3", "llava_next", "smolvlm", "qwen2_vl", "qwen2_5_vl", "qwen3_vl"};
    char golden[128];

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        struct st_model *m;

        snprintf(golden, sizeof(golden), WRAPPERS "/%s", names[i]);
        m = open_model(golden);
        scratch_open();
        assert_ok(write_as_read(m, golden, golden, scratch_path("out")));
        expect_all(scratch_path("out"), golden);
        /* a checkpoint's directory has the rest in a file of its own, which is enough */
        assert_int_equal(mkdir(scratch_path("small"), 0777), 0);
        assert_ok(st_hf_write_small(m, scratch_path("small"), golden, NULL));
        assert_int_equal(access(scratch_path("small/beside.safetensors"), F_OK), 0);
        assert_ok(write_as_read(m, golden, scratch_path("small"), scratch_path("exported")));
        expect_all(scratch_path("exported"), golden);
        assert_int_not_equal(access(scratch_path("exported/beside.safetensors"), F_OK), 0);
        scratch_close();
        st_model_destroy(m);
    }
}

TEST(test_every_single_failure_is_clean)
{
    static const char golden[] = WRAPPERS "/gemma3";
    struct fault_walk walk = {.result = -EIO}, memory = {.site = "hf.beside", .result = -ENOMEM};
    struct st_model *m = open_model(golden);

    while (fault_walk_next(&walk)) {
        strata_status st;

        scratch_open();
        assert_int_equal(mkdir(scratch_path("small"), 0777), 0);
        st = st_hf_write_small(m, scratch_path("small"), golden, NULL);
        fault_walk_end(&walk, st);
        assert_int_equal(scratch_entries_with(scratch_path("small"), ".strata-"), 0);
        scratch_close();
    }
    assert_true(walk.failed > 20);
    while (fault_walk_next(&memory)) {
        strata_status st;

        scratch_open();
        st = write_as_read(m, golden, golden, scratch_path("out"));
        fault_walk_end(&memory, st);
        assert_true(st == STRATA_OK || st == STRATA_E_NOMEM);
        scratch_close();
    }
    assert_int_equal(memory.failed, 2);
    st_model_destroy(m);
}
