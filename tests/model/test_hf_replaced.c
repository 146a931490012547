/* tests/model/test_hf_replaced.c - whatever fails while a model or an adapter is replaced, one of the two is there: the old one
 * until the new one is whole. */
#include "adapter_rig.h"
#include "hf_rig.h"
#include "model/hf/hf_output_internal.h"
#include "model_fixture.h"
#include "tests/common/fault_walk.h"
#include "tests/common/whole_file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#define MODEL   FAMILIES "/llama_linear"
#define ADAPTER ADAPTERS "/llama_linear"
#define CUT     5u /* tensors of the first shard */

/* Nobody cuts the power here, and a thousand runs would wait for the disk: nothing is written to it before it is gone again. */
int fsync(int fd)
{
    return fd >= 0 ? 0 : -1;
}

int fallocate(int fd, int mode, off_t offset, off_t bytes)
{
    (void)fd, (void)mode, (void)offset, (void)bytes;
    errno = EOPNOTSUPP;
    return -1;
}

/* How the weights lie: in model.safetensors, or in two shards with an index. */
struct lie {
    const char *first, *second; /* the shards; NULL: one file */
};
static const struct lie whole = {0}, usual = {"model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"},
                        other = {"model-00001-of-00003.safetensors", "second part.safetensors"};

/* Weights and config of the golden model. */
static void put_model(const char *dir, const struct lie *lie)
{
    char path[256], text[8192];
    struct opened all;
    size_t bytes, used = 0;
    char *config = read_file(MODEL "/config.json", &bytes);

    write_file(join_path(path, dir, "", "config.json"), config, bytes);
    free(config);
    open_tensors(&all, MODEL "/model.safetensors");
    if (lie->first == NULL) {
        put_shard(&all, 0, all.header.count, join_path(path, dir, "", "model.safetensors"));
    } else {
        put_shard(&all, 0, CUT, join_path(path, dir, "", lie->first));
        put_shard(&all, CUT, all.header.count, join_path(path, dir, "", lie->second));
        for (uint32_t i = 0; i < all.header.count; i++)
            used += (size_t)snprintf(text + used, sizeof(text) - used, "%s\"%s\": \"%s\"", i > 0 ? ", " : "{\"weight_map\": {",
                                     all.header.tensors[i].name, i < CUT ? lie->first : lie->second);
        used += (size_t)snprintf(text + used, sizeof(text) - used, "}}");
        assert_true(used < sizeof(text));
        write_file(join_path(path, dir, "", "model.safetensors.index.json"), text, used);
    }
    close_tensors(&all);
}

static void empty(const char *dir)
{
    char path[NAME_MAX + 256];
    DIR *entries = opendir(dir);

    assert_non_null(entries);
    for (const struct dirent *entry = readdir(entries); entry != NULL; entry = readdir(entries)) {
        snprintf(path, sizeof(path), "%s/%s", dir, entry->d_name);
        if (entry->d_name[0] != '.')
            assert_int_equal(unlink(path), 0);
    }
    closedir(entries);
}

/* What replaces the model in "out", or is written to "fresh". */
typedef strata_status replace_fn(void *ctx, const char *out);

/* The old model is one of the same shape, with settings of its own. */
static void put_old(const struct lie *lie)
{
    empty(scratch_path("out"));
    put_model(scratch_path("out"), lie);
    scratch_put("out/generation_config.json", "{}");
}

/* @return whether it is the new model; else all of the old one is there, and at most new weights that took hours */
static bool is_replaced(const char *was, const char *want)
{
    char have[33];

    assert_ok(st_hf_digest(scratch_path("out"), have));
    if (strcmp(have, want) == 0)
        return true;
    assert_string_equal(have, was);
    assert_int_equal(access(scratch_path("out/generation_config.json"), F_OK), 0);
    assert_true(scratch_entries_with(scratch_path("out"), ".strata-") <= 1);
    return false;
}

static void walk_replacing(replace_fn *replace, void *ctx, const struct lie *old, bool lasting)
{
    struct fault_walk walk = {.result = -EIO, .lasting = lasting};
    char was[33], want[33];
    uint32_t stayed = 0, left = 0, files;

    scratch_put("out/x", "");
    scratch_put("fresh/x", "");
    empty(scratch_path("fresh"));
    assert_ok(replace(ctx, scratch_path("fresh")));
    assert_ok(st_hf_digest(scratch_path("fresh"), want));
    put_old(old);
    assert_ok(st_hf_digest(scratch_path("out"), was));
    assert_string_not_equal(was, want);
    files = scratch_entries(scratch_path("out"), NULL);
    while (fault_walk_next(&walk)) {
        const strata_status st = replace(ctx, scratch_path("out"));
        bool replaced;

        fault_walk_end(&walk, st);
        assert_int_equal(scratch_entries_with(scratch_path("out"), ".tmp"), 0);
        replaced = is_replaced(was, want);
        if (replaced && st == STRATA_OK)
            left += scratch_entries(scratch_path("out"), NULL) - scratch_entries(scratch_path("fresh"), NULL);
        assert_true(replaced || st != STRATA_OK);
        stayed += !replaced;
        if (replaced || scratch_entries(scratch_path("out"), NULL) != files)
            put_old(old);
    }
    assert_true(stayed > 20 && stayed <= walk.failed);
    assert_true(left <= (old == &other)); /* an index that changes while it is read names no file */
}

/* @return whether the file in `dir` is that of `new`, all of it; else it is that of `old` */
static bool is_either(const char *dir, const char *old, const char *new, const char *name)
{
    char path[256];
    size_t bytes, old_bytes, new_bytes;
    char *have = read_file(join_path(path, scratch_path(dir), "", name), &bytes),
         *was = read_file(join_path(path, scratch_path(old), "", name), &old_bytes),
         *want = read_file(join_path(path, scratch_path(new), "", name), &new_bytes);
    const bool is_new = bytes == new_bytes && memcmp(have, want, bytes) == 0;

    if (!is_new && (bytes != old_bytes || memcmp(have, was, bytes) != 0))
        fail_msg("%s is neither the old one nor the new one", name);
    free(have);
    free(was);
    free(want);
    return is_new;
}

/* --- a merged model --- */

struct merge {
    struct st_model *m;
    struct st_hf_adapter *a;
    const char *base;
};

static strata_status merge_into(const struct merge *x, const char *out, bool overwrite)
{
    struct st_hf_merge how = {
        .model = x->m, .dir = x->base, .values = st_hf_adapter_values(x->a), .out = out, .overwrite = overwrite};

    how.tensors = st_hf_adapter_tensors(x->a, &how.count);
    return st_hf_merge(&how);
}

static strata_status merge_over(void *ctx, const char *out)
{
    return merge_into(ctx, out, true);
}

static void walk_merging(const struct lie *new, const struct lie *old, bool lasting)
{
    char base[256];
    struct merge x = {.base = base};

    snprintf(base, sizeof(base), "%s", scratch_path("base"));
    scratch_put("base/config.json", "");
    put_model(base, new);
    x.m = open_model(base);
    assert_ok(st_hf_adapter_open(&x.a, x.m, ADAPTER));
    walk_replacing(merge_over, &x, old, lasting);
    st_hf_adapter_close(x.a);
    st_model_destroy(x.m);
}

TEST_SETUP(test_a_merged_file_replaces_a_file, scratch_begin, scratch_end)
{
    walk_merging(&whole, &whole, false);
}

TEST_SETUP(test_a_merged_file_replaces_shards, scratch_begin, scratch_end)
{
    walk_merging(&whole, &other, false);
}

TEST_SETUP(test_merged_shards_replace_a_file, scratch_begin, scratch_end)
{
    walk_merging(&usual, &whole, true);
}

TEST_SETUP(test_merged_shards_replace_shards, scratch_begin, scratch_end)
{
    walk_merging(&usual, &other, false);
}

/* Shards and small files, in a directory that has something else: whichever call fails, the next merge can have the names.  What
 * is copied beside the model comes when the model is whole, and a directory that cannot be synced is no reason to take it back.
 */
TEST_SETUP(test_a_merge_that_fails_leaves_nothing, scratch_begin, scratch_end)
{
    struct fault_walk walk = {.result = -EIO};
    char base[256], out[256];
    struct merge x = {.base = base};
    uint32_t nothing = 0;

    snprintf(base, sizeof(base), "%s", scratch_path("base"));
    snprintf(out, sizeof(out), "%s", scratch_path("out"));
    scratch_put("base/generation_config.json", "{}");
    put_model(base, &usual);
    scratch_put("out/notes", "mine");
    x.m = open_model(base);
    assert_ok(st_hf_adapter_open(&x.a, x.m, ADAPTER));
    while (fault_walk_next(&walk)) {
        const strata_status st = merge_into(&x, out, false);
        const uint32_t left = scratch_entries(out, "notes");
        bool complete;

        fault_walk_end(&walk, st);
        complete = access(scratch_path("out/model.safetensors.index.json"), F_OK) == 0;
        if (left > 0 && !complete)
            fail_msg("%u files are left of: %s", left, strata_last_error());
        assert_true(complete || st != STRATA_OK);
        nothing += left == 0;
        empty(out);
        scratch_put("out/notes", "mine");
    }
    assert_true(nothing > 40);
    st_hf_adapter_close(x.a);
    st_model_destroy(x.m);
}

/* Of one name they are replaced one by one; a sentence says so where it stops in between. */
TEST_SETUP(test_shards_of_the_same_names_are_each_whole, scratch_begin, scratch_end)
{
    char base[256];
    struct fault_walk walk = {.site = "file.rename", .result = -EIO};
    struct merge x = {.base = base};

    snprintf(base, sizeof(base), "%s", scratch_path("base"));
    scratch_put("base/config.json", "");
    scratch_put("out/config.json", "");
    put_model(base, &usual);
    x.m = open_model(base);
    assert_ok(st_hf_adapter_open(&x.a, x.m, ADAPTER));
    assert_ok(merge_over(&x, scratch_path("fresh")));
    for (put_old(&usual); fault_walk_next(&walk); put_old(&usual)) {
        const strata_status st = merge_over(&x, scratch_path("out"));
        const char *const names[] = {usual.first, usual.second};
        uint32_t changed = 0;

        fault_walk_end(&walk, st);
        for (int i = 0; i < 2; i++)
            changed += is_either("out", "base", "fresh", names[i]);
        if (st != STRATA_OK && walk.after > 0 && walk.after < 4)
            assert_non_null(strstr(strata_last_error(), "is replaced in part: merge once more"));
        assert_true(st != STRATA_OK || changed == 2);
    }
    assert_true(walk.failed > 3);
    st_hf_adapter_close(x.a);
    st_model_destroy(x.m);
}

/* --- a trained model --- */

static strata_status train_over(void *ctx, const char *out)
{
    return write_model(ctx, out);
}

TEST_SETUP(test_a_trained_model_replaces_shards, scratch_begin, scratch_end)
{
    struct st_model *m = open_model(MODEL);

    walk_replacing(train_over, m, &other, false);
    st_model_destroy(m);
}

/* --- an adapter --- */

static strata_status write_adapter(struct st_model *m, const struct st_hf_adapter *a, const char *dir)
{
    const struct st_hf_adapter_output output = {
        .model = m, .spec = st_hf_adapter_spec(a), .base = "the/base", .dir = dir, .overwrite = true};
    struct st_hf_adapter_writer *w;
    strata_status st = st_hf_adapter_writer_open(&w, &output);
    const struct st_hf_adapted *tensors;
    uint32_t count;

    if (st != STRATA_OK)
        return st;
    tensors = st_hf_adapter_writer_tensors(w, &count);
    for (uint32_t i = 0; i < count && st == STRATA_OK; i++) {
        const uint64_t elems = tensors[i].shape[0] * (tensors[i].rank == 2 ? tensors[i].shape[1] : 1);
        float *zeros = calloc(elems, sizeof(*zeros));

        assert_non_null(zeros);
        st = st_hf_adapter_writer_put(w, i, 0, elems, zeros);
        free(zeros);
    }
    if (st == STRATA_OK)
        return st_hf_adapter_writer_commit(w);
    st_hf_adapter_writer_abort(w);
    return st;
}

static void put_copy(const char *dir, const char *from, const char *name)
{
    char path[256];
    size_t bytes;
    char *text = read_file(join_path(path, scratch_path(from), "", name), &bytes);

    write_file(join_path(path, scratch_path(dir), "", name), text, bytes);
    free(text);
}

TEST_SETUP(test_an_adapter_replaces_an_adapter, scratch_begin, scratch_end)
{
    static const char *const names[] = {ST_ADAPTER_CONFIG_NAME, ST_ADAPTER_WEIGHTS_NAME};
    struct fault_walk walk = {.result = -EIO};
    struct st_model *m = open_model(MODEL);
    struct st_hf_adapter *a;

    assert_ok(st_hf_adapter_open(&a, m, copy_adapter("llama_linear", NULL, NULL, NULL)));
    assert_ok(write_adapter(m, a, scratch_path("fresh")));
    scratch_put("out/" ST_ADAPTER_CONFIG_NAME, "");
    for (;;) {
        uint32_t changed = 0;
        strata_status st;

        for (int i = 0; i < 2; i++)
            put_copy("out", "adapter", names[i]);
        if (!fault_walk_next(&walk))
            break;
        st = write_adapter(m, a, scratch_path("out"));
        fault_walk_end(&walk, st);
        for (int i = 0; i < 2; i++)
            changed += is_either("out", "adapter", "fresh", names[i]);
        assert_int_equal(scratch_entries(scratch_path("out"), NULL), 2);
        assert_true(st != STRATA_OK || changed == 2);
    }
    assert_true(walk.failed > 20);
    st_hf_adapter_close(a);
    st_model_destroy(m);
}

/* Where there was none. */
TEST_SETUP(test_an_adapter_is_there_or_not, scratch_begin, scratch_end)
{
    struct fault_walk walk = {.result = -EIO};
    struct st_model *m = open_model(MODEL);
    struct st_hf_adapter *a;
    uint32_t none = 0;

    assert_ok(st_hf_adapter_open(&a, m, copy_adapter("llama_linear", NULL, NULL, NULL)));
    scratch_put("out/notes", "mine");
    while (fault_walk_next(&walk)) {
        struct st_hf_adapter_writer *w = NULL;
        const struct st_hf_adapter_output output = {
            .model = m, .spec = st_hf_adapter_spec(a), .base = "the/base", .dir = scratch_path("out")};
        strata_status st = st_hf_adapter_writer_open(&w, &output);
        uint32_t left;

        if (st == STRATA_OK)
            st = st_hf_adapter_writer_commit(w);
        fault_walk_end(&walk, st);
        left = scratch_entries(scratch_path("out"), "notes");
        assert_true(left == 2 || (left == 0 && st != STRATA_OK));
        none += left == 0;
        empty(scratch_path("out"));
        scratch_put("out/notes", "mine");
    }
    assert_true(none > 10);
    st_hf_adapter_close(a);
    st_model_destroy(m);
}

/* Cut, the path would be another file's. */
TEST_SETUP(test_too_long_a_path_removes_nothing, scratch_begin, scratch_end)
{
    const char *begin = scratch_path("");
    char dir[ST_PATH_MAX];

    scratch_put("model", "mine");
    memset(dir, '/', sizeof(dir));
    memcpy(dir, begin, strlen(begin));
    dir[sizeof(dir) - sizeof("model") - 1] = '\0'; /* room for "/model" */
    assert_refused(st_hf_output_remove(dir, "model.safetensors"), STRATA_E_INVAL, "path too long");
    assert_int_equal(access(scratch_path("model"), F_OK), 0);
    assert_int_equal(st_hf_output_remove(dir, "model"), STRATA_OK);
    assert_int_equal(access(scratch_path("model"), F_OK), -1);
}
