/* test_store_replaced.c - names of checkpoints that are taken again: by links and files, and after what was there could not be
 * removed. */
#include "offload/checkpoint/store.h"
#include "tests/common/test.h"

#include "core/base/fault.h"
#include "core/system/file.h"
#include "tests/common/assert_status.h"
#include "tests/common/scratch.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static struct st_store *opened(void)
{
    struct st_store *s = NULL;

    assert_ok(st_store_open(&s, scratch_path("save")));
    return s;
}

static strata_status put_text(struct st_store *s, const char *text)
{
    char path[ST_PATH_MAX];
    struct st_new_file f;
    strata_status st = st_path_join(path, st_store_path(s), "says");

    if (st != STRATA_OK || (st = st_new_file_create(&f, path, 0)) != STRATA_OK)
        return st;
    if ((st = st_new_file_write_at(&f, text, strlen(text), 0)) == STRATA_OK)
        return st_new_file_commit(&f);
    st_new_file_abort(&f);
    return st;
}

static strata_status make(struct st_store *s, uint64_t step, bool replace, const char *text)
{
    strata_status st = st_store_begin(s, step);

    if (st != STRATA_OK)
        return st;
    if ((st = put_text(s, text)) == STRATA_OK)
        st = st_store_commit(s, replace);
    if (st != STRATA_OK)
        st_store_abort(s);
    return st;
}

static enum st_store_judgement whole(void *ctx, const char *path, uint64_t step, double *score)
{
    (void)ctx;
    (void)path;
    (void)step;
    (void)score;
    return ST_STORE_WHOLE;
}

/* A checkpoint that was moved to another disk, say, and a link in its place. */
static void put_link(const char *link)
{
    assert_int_equal(symlink("../moved/step-00000001", scratch_path(link)), 0);
}

TEST_SETUP(what_a_link_leads_to_stays, scratch_create, scratch_remove)
{
    struct st_store *s = opened();

    scratch_put("moved/step-00000001/says", "old");
    put_link("save/step-00000001");
    assert_refused(make(s, 1, false, "new"), STRATA_E_INPUT, "step-00000001 exists already, and is kept");
    assert_ok(make(s, 1, true, "new"));
    scratch_holds("save/step-00000001/says", "new");
    put_link("save/step-00000002");
    assert_ok(make(s, 3, false, "three"));
    assert_ok(st_store_prune(s, 3, 1, 0, whole, NULL));
    scratch_put("save/step-00000004", "a file");
    assert_ok(make(s, 4, true, "four"));
    scratch_holds("save/step-00000004/says", "four");
    scratch_holds("moved/step-00000001/says", "old");
    st_store_close(s);
    assert_int_equal(scratch_entries(scratch_path("save"), NULL), 2);
}

/* The old one is out of sight, and its files are there still. */
TEST_SETUP(what_stays_of_the_old_one_is_in_nobodys_way, scratch_create, scratch_remove)
{
    static const struct {
        const char *site;
        uint32_t after;
        strata_status status;
    } rows[] = {
        {"tree.open", 0, STRATA_OK}, {"tree.unlink", 0, STRATA_OK}, {"store.sync", 1, STRATA_E_IO}, /* of the directory */
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct st_store *s = opened();
        strata_status st;

        assert_ok(make(s, 1, false, "first"));
        st_fault_arm(&(struct st_fault_spec){.site = rows[i].site, .after = rows[i].after, .count = 1, .result = -EIO});
        st = make(s, 1, true, "second");
        assert_int_equal(st_fault_disarm(), 1);
        assert_int_equal(st, rows[i].status);
        scratch_holds("save/step-00000001/says", "second");
        assert_ok(make(s, 1, true, "third"));
        scratch_holds("save/step-00000001/says", "third");
        st_store_close(s);
        assert_int_equal(scratch_entries(scratch_path("save"), NULL), 1);
        scratch_remove(state);
        assert_int_equal(scratch_create(state), 0);
    }
}

TEST_SETUP(what_stays_of_an_unfinished_one_is_in_nobodys_way, scratch_create, scratch_remove)
{
    struct st_store *s = opened();

    assert_ok(st_store_begin(s, 1));
    assert_ok(put_text(s, "unfinished"));
    st_fault_arm(&(struct st_fault_spec){.site = "tree.unlink", .count = 1, .result = -EIO});
    st_store_abort(s);
    assert_int_equal(st_fault_disarm(), 1);
    assert_ok(make(s, 1, false, "whole"));
    scratch_holds("save/step-00000001/says", "whole");
    st_store_close(s);
    assert_int_equal(scratch_entries(scratch_path("save"), NULL), 1);
}
