/* tests/model/test_hub.c - a published name is found in the Hugging Face cache, links followed; a damaged or hostile cache is
 * refused. */
#include "core/base/error.h"
#include "core/base/fault.h"
#include "model/hf/hub.h"
#include "tests/common/scratch.h"
#include "tests/common/test.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *const variables[] = {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME",
                                        "HOME",         "TRANSFORMERS_CACHE"};

/* The directories of scratch `path`, made. */
static void make(const char *path)
{
    char part[512];

    for (const char *at = strchr(path, '/');; at = strchr(at + 1, '/')) {
        snprintf(part, sizeof(part), "%.*s", at != NULL ? (int)(at - path) : (int)strlen(path), path);
        (void)!mkdir(scratch_path(part), 0700);
        if (at == NULL)
            return;
    }
}

static int begin(void **state)
{
    const int failed = scratch_begin(state);

    for (size_t i = 0; i < sizeof(variables) / sizeof(variables[0]); i++)
        unsetenv(variables[i]);
    make("c/models--org--m/refs");
    make("c/models--org--m/snapshots/abc1");
    make("c/models--org--m/blobs");
    scratch_put("c/models--org--m/refs/main", "abc1");
    setenv("HF_HUB_CACHE", scratch_path("c"), 1);
    return failed;
}

static strata_status find(char dir[ST_PATH_MAX], const char *id)
{
    char root[ST_PATH_MAX];

    return st_hub_find(dir, root, id);
}

TEST_SETUP(finds_what_refs_name, begin, scratch_end)
{
    static const char *const ids[] = {"org/m", "org/m@main", "org/m@abc1"};
    char dir[ST_PATH_MAX];

    for (size_t i = 0; i < sizeof(ids) / sizeof(ids[0]); i++) {
        assert_int_equal(find(dir, ids[i]), STRATA_OK);
        assert_string_equal(dir, scratch_path("c/models--org--m/snapshots/abc1"));
    }
    assert_int_equal(find(dir, "org/other"), STRATA_OK);
    assert_string_equal(dir, "");
    assert_int_equal(find(dir, "org/m@v2"), STRATA_E_INPUT);
    assert_non_null(strstr(strata_last_error(), "\"hf download org/m --revision v2\""));
}

/* A pull request's revision has slashes, and so has the name of its file. */
TEST_SETUP(a_revision_may_be_a_pull_request, begin, scratch_end)
{
    char dir[ST_PATH_MAX];

    make("c/models--org--m/refs/refs/pr");
    make("c/models--org--m/snapshots/abc2");
    scratch_put("c/models--org--m/refs/refs/pr/1", "abc2");
    assert_int_equal(find(dir, "org/m@refs/pr/1"), STRATA_OK);
    assert_string_equal(dir, scratch_path("c/models--org--m/snapshots/abc2"));
    assert_int_equal(find(dir, "org/m@refs/pr/2"), STRATA_E_INPUT);
    assert_int_equal(find(dir, "org/m@refs/pr"), STRATA_E_INPUT);
    assert_non_null(strstr(strata_last_error(), "refs/refs/pr: must be a file with the name of a commit"));
}

/* What may not be read is there, perhaps, and the sentence says which place that is. */
TEST_SETUP(what_is_forbidden_is_called_so, begin, scratch_end)
{
    static const char *const places[] = {"c/models--org--m", "c/models--org--m/refs/main", "c/models--org--m/snapshots/abc1"};
    char dir[ST_PATH_MAX], want[ST_PATH_MAX + 32];

    for (uint32_t i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
        st_fault_arm(&(struct st_fault_spec){.site = "hub.stat", .after = i, .count = 1, .result = -EACCES});
        assert_int_equal(find(dir, "org/m"), STRATA_E_INPUT);
        assert_int_equal(st_fault_disarm(), 1);
        snprintf(want, sizeof(want), "%s: Permission denied", scratch_path(places[i]));
        assert_non_null(strstr(strata_last_error(), want));
    }
}

/* The first variable that is set says where the cache is; the last is looked into for what is not there. */
TEST_SETUP(variables_have_an_order, begin, scratch_end)
{
    static const char *const below[] = {"", "", "/hub", "/huggingface/hub", "/.cache/huggingface/hub"};
    char dir[ST_PATH_MAX], root[ST_PATH_MAX], want[ST_PATH_MAX];

    for (size_t first = 5; first-- > 0;) {
        setenv(variables[first], scratch_path(variables[first]), 1);
        unsetenv("HF_HUB_CACHE");
        if (first == 0)
            setenv("HF_HUB_CACHE", scratch_path("HF_HUB_CACHE"), 1);
        assert_int_equal(st_hub_find(dir, root, "org/m"), STRATA_OK);
        snprintf(want, sizeof(want), "%s%s", scratch_path(variables[first]), below[first]);
        assert_string_equal(root, want);
        assert_string_equal(dir, "");
    }
    setenv("TRANSFORMERS_CACHE", scratch_path("c"), 1);
    assert_int_equal(find(dir, "org/m"), STRATA_OK);
    assert_string_equal(dir, scratch_path("c/models--org--m/snapshots/abc1"));
}

TEST_SETUP(names_lead_nowhere_else, begin, scratch_end)
{
    static const char *const names[] = {"../m",       "org/..", "org/m/x", "org",         "/m",           "org/",     "org/m@",
                                        "org/m@../x", "o g/m",  "a@b/c",   "org/m@refs/", "org/m@a/../b", "org/m@/a", "~/m"};

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        assert_false(st_hub_is_id(names[i]));
}

TEST_SETUP(hostile_refs_are_refused, begin, scratch_end)
{
    static const char *const texts[] = {"../../../x", "..", "", "abc1/../..", "abc1 abc2", "/etc"};
    char dir[ST_PATH_MAX];
    const char *ref;

    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        scratch_put("c/models--org--m/refs/main", texts[i]);
        assert_int_equal(find(dir, "org/m"), STRATA_E_INPUT);
    }
    ref = scratch_path("c/models--org--m/refs/main");
    assert_int_equal(unlink(ref), 0);
    assert_int_equal(symlink("main", ref), 0); /* a loop */
    assert_int_equal(find(dir, "org/m"), STRATA_E_INPUT);
    assert_int_equal(unlink(ref), 0);
    assert_int_equal(symlink("nowhere", ref), 0);
    assert_int_equal(find(dir, "org/m"), STRATA_E_INPUT);
    assert_int_equal(unlink(ref), 0);
    assert_int_equal(mkdir(ref, 0700), 0);
    assert_int_equal(find(dir, "org/m"), STRATA_E_INPUT);
}
