/* tests/offload/commit_fixture.c - see commit_fixture.h. */
#include "tests/common/test.h"
#include "tests/offload/commit_fixture.h"

#include "core/system/tree.h"
#include "offload/checkpoint/checkpoint.h"
#include "offload/checkpoint/store.h"
#include "offload/checkpoint/verify.h"
#include "tests/common/assert_status.h"
#include "tests/common/scratch.h"
#include "tests/offload/checkpoint_fixture.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define ELEMS (5 * (uint64_t)ST_TILE_ELEMS + 4480)
#define CHUNK (2 * (uint64_t)ST_TILE_ELEMS)

struct st_swap *fixture_swap;

/* --- a run that has written its sets --- */

struct arrival {
    pthread_mutex_t lock;
    pthread_cond_t here;
    bool ended;
    strata_status status;
};

static void arrived(struct st_transfer *t, strata_status st)
{
    struct arrival *a = t->owner;

    pthread_mutex_lock(&a->lock);
    a->status = st;
    a->ended = true;
    pthread_cond_signal(&a->here);
    pthread_mutex_unlock(&a->lock);
}

static void fill(uint32_t volume, enum st_space space, uint64_t bytes)
{
    struct arrival a = {.lock = PTHREAD_MUTEX_INITIALIZER, .here = PTHREAD_COND_INITIALIZER};
    unsigned char *image = aligned_alloc(ST_SWAP_ALIGN, bytes);
    struct st_transfer t = {.op = ST_IO_WRITE, .volume = volume, .bytes = bytes, .buf = image, .done = arrived, .owner = &a};

    assert_non_null(image);
    for (uint64_t i = 0; i < bytes; i++)
        image[i] = fixture_byte(space, i);
    assert_ok(st_swap_submit(fixture_swap, &t));
    pthread_mutex_lock(&a.lock);
    while (!a.ended)
        pthread_cond_wait(&a.here, &a.lock);
    pthread_mutex_unlock(&a.lock);
    assert_ok(a.status);
    free(image);
}

struct st_commit fixture_job(uint64_t step)
{
    struct st_commit job = {.manifest = fixture_manifest_of(ELEMS)};

    job.extents = fixture_extents_of(&job.manifest, CHUNK);
    fixture_seal(&job.manifest, &job.extents);
    free(job.manifest.files);
    job.manifest.files = NULL;
    job.manifest.file_count = 0;
    job.manifest.step = step;
    job.set = (uint32_t)(step % FIXTURE_SETS);
    return job;
}

void fixture_drop(struct st_commit *job)
{
    st_manifest_fini(&job->manifest);
    st_extents_fini(&job->extents);
}

int fixture_setup(void **state)
{
    char dirs[2][64];
    const char *const names[2] = {dirs[0], dirs[1]};
    struct st_commit job;
    struct st_swap_opts opts = {
        .dirs = names, .dir_count = 2, .set_count = FIXTURE_SETS, .method = "threads", .block_bytes = 65536};

    scratch_begin(state);
    for (uint32_t i = 0; i < 2; i++) {
        snprintf(dirs[i], sizeof(dirs[i]), "%s/drive-%u", scratch_dir, i);
        assert_int_equal(mkdir(dirs[i], 0700), 0);
    }
    job = fixture_job(0);
    opts.bytes[ST_SPACE_SCRATCH] = ST_SWAP_ALIGN;
    opts.bytes[ST_SPACE_BASE] = job.manifest.space_bytes[ST_SPACE_BASE];
    opts.bytes[ST_SPACE_SET] = job.manifest.space_bytes[ST_SPACE_SET];
    fixture_drop(&job);
    assert_ok(st_swap_open(&fixture_swap, &opts));
    fill(st_swap_volume(fixture_swap, ST_SPACE_BASE, 0), ST_SPACE_BASE, opts.bytes[ST_SPACE_BASE]);
    for (uint32_t set = 0; set < FIXTURE_SETS; set++)
        fill(st_swap_volume(fixture_swap, ST_SPACE_SET, set), ST_SPACE_SET, opts.bytes[ST_SPACE_SET]);
    return 0;
}

int fixture_teardown(void **state)
{
    st_swap_close(fixture_swap);
    return scratch_end(state);
}

/* --- a committer --- */

const char *fixture_save(void)
{
    return scratch_path("save");
}

struct st_committer *fixture_started(struct st_committer_opts opts)
{
    struct st_committer *c = NULL;

    opts.save = fixture_save();
    opts.swap = fixture_swap;
    opts.keep = opts.keep > 0 ? opts.keep : 2;
    assert_ok(st_committer_start(&c, &opts));
    return c;
}

struct st_commit_report fixture_commit(struct st_committer *c, uint64_t step)
{
    struct st_commit job = fixture_job(step);
    struct st_commit_report report = {.status = STRATA_E_INTERNAL};

    assert_ok(st_committer_submit(c, &job));
    assert_null(job.manifest.groups);
    st_committer_wait(c);
    assert_true(st_committer_reported(c, &report));
    assert_false(st_committer_reported(c, &report));
    return report;
}

static const char *checkpoint_path(uint64_t step)
{
    char name[64];

    snprintf(name, sizeof(name), "save/step-%08u", (unsigned)step);
    return scratch_path(name);
}

strata_status fixture_try_base(struct st_committer *c, uint64_t step)
{
    struct st_checkpoint *ck;
    struct st_checkpoint_volume base;
    strata_status st;

    assert_ok(st_checkpoint_open(&ck, checkpoint_path(step)));
    assert_ok(st_checkpoint_volume_open(&base, ck, ST_SPACE_BASE, ST_CHECKPOINT_PARTS));
    st = st_committer_use_base(c, base.files, base.count);
    st_checkpoint_volume_close(&base);
    st_checkpoint_close(ck);
    return st;
}

void fixture_use_base(struct st_committer *c, uint64_t step)
{
    assert_ok(fixture_try_base(c, step));
}

void fixture_remove(uint64_t step)
{
    assert_int_equal(st_tree_remove(AT_FDCWD, checkpoint_path(step)), 0);
}

void fixture_assert_whole(const char *want)
{
    struct st_store_list list;
    char have[128] = "";

    assert_ok(st_store_list(&list, fixture_save()));
    for (uint32_t i = 0; i < list.count; i++) {
        struct st_checkpoint *ck;
        uint64_t damages;

        assert_ok(st_checkpoint_open(&ck, checkpoint_path(list.steps[i])));
        assert_int_equal(ck->manifest.step, list.steps[i]);
        assert_ok(st_verify(ck, NULL, NULL, NULL, &damages));
        st_checkpoint_close(ck);
        snprintf(have + strlen(have), sizeof(have) - strlen(have), "%s%u", i > 0 ? " " : "", (unsigned)list.steps[i]);
    }
    free(list.steps);
    assert_string_equal(have, want);
}
