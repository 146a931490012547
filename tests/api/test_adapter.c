/* tests/api/test_adapter.c - merging an adapter: one failure at a time a sentence and nothing left, or the same model. */
#include "tests/api/handles_fixture.h"
#include "tests/common/fault_walk.h"
#include "tests/common/scratch.h"
#include "tests/common/test.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static char merged[33]; /* of the model without a failure */

static struct strata_merge_opts merge_to(const char *out)
{
    struct strata_merge_opts opts = STRATA_MERGE_OPTS_INIT;

    opts.adapter = "tests/golden/adapters/gpt2_exact";
    opts.model = "tests/golden/families/gpt2_exact";
    opts.out = out;
    return opts;
}

static int merge(void **state)
{
    struct strata_merge_opts opts;

    if (scratch_create(state) != 0)
        return -1;
    opts = merge_to(scratch_path("merged"));
    assert_ok(strata_adapter_merge(&opts));
    assert_ok(strata_directory_digest(scratch_path("merged"), merged));
    return 0;
}

static void merge_once(struct fault_walk *walk)
{
    const struct strata_merge_opts opts = merge_to(scratch_path("out"));
    const strata_status st = strata_adapter_merge(&opts);
    char digest[33], command[320];
    struct stat info;

    fault_walk_end(walk, st);
    if (st == STRATA_OK) {
        assert_ok(strata_directory_digest(scratch_path("out"), digest));
        assert_string_equal(digest, merged);
    } else if (stat(scratch_path("out/model.safetensors"), &info) == 0) {
        assert_ok(strata_directory_digest(scratch_path("out"), digest)); /* what has its name is whole */
        assert_string_equal(digest, merged);
    }
    snprintf(command, sizeof(command), "rm -rf %s", scratch_path("out"));
    assert_int_equal(system(command), 0);
}

TEST(a_failure_leaves_nothing_or_the_model)
{
    struct fault_walk walk = {.result = -EIO};

    while (fault_walk_next(&walk)) {
        merge_once(&walk);
        walk.after += 2;
    }
    assert_true(walk.failed > 0);
}

static bool stop_at_half(void *ctx, const char *what, uint64_t done, uint64_t total)
{
    (void)ctx;
    assert_string_equal(what, "merging");
    return done < total / 2;
}

TEST(merging_is_cancelled)
{
    struct strata_merge_opts opts = merge_to(scratch_path("deep/out"));
    struct stat info;

    opts.progress = stop_at_half;
    assert_status(strata_adapter_merge(&opts), STRATA_E_CANCELLED, "merge");
    assert_int_not_equal(stat(scratch_path("deep"), &info), 0);
}

TEST(arguments_are_checked)
{
    struct strata_merge_opts opts = merge_to("out"), none = STRATA_MERGE_OPTS_INIT;
    bool same;

    assert_refused(strata_adapter_merge(NULL), "opts is NULL");
    assert_refused(strata_adapter_merge(&none), "adapter is NULL");
    none.adapter = "a";
    assert_refused(strata_adapter_merge(&none), "out is NULL");
    opts.opts_size = 3;
    assert_refused(strata_adapter_merge(&opts), "gives its size as 3 bytes");
    opts = merge_to("out");
    opts.model = NULL;
    assert_status(strata_adapter_merge(&opts), STRATA_E_INPUT, "merge");
    assert_refused(strata_adapter_compare(NULL, "b", &same), "dir is NULL");
    assert_refused(strata_adapter_compare("a", NULL, &same), "checkpoint is NULL");
    assert_refused(strata_adapter_compare("a", "b", NULL), "same is NULL");
    assert_status(strata_adapter_compare("a", scratch_path("merged"), &same), STRATA_E_INPUT, "compare");
}

TEST_GROUP(merge, scratch_remove);
