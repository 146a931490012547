/* commit.c - see commit.h. */
#include "offload/checkpoint/commit.h"

#include "core/base/error.h"
#include "core/base/fault.h"
#include "core/base/log.h"
#include "core/base/size.h"
#include "core/system/cleanup.h"
#include "core/system/clock.h"
#include "core/system/file.h"
#include "core/system/thread.h"
#include "offload/checkpoint/checkpoint.h"
#include "offload/checkpoint/commit_internal.h"
#include "offload/checkpoint/store.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum phase { IDLE, WORKING, ENDED };

struct st_committer {
    struct st_committer_opts opts;
    char save[ST_PATH_MAX];
    struct st_commit_base base; /* the thread's while it works */
    struct st_store *store;     /* the thread's, once it runs */
    char dir[ST_PATH_MAX];      /* of the checkpoint that is being made */
    int dir_fd;
    bool told_of_copies;
    bool base_lost, set_lost; /* a sync of the base has failed; of the set, for the step: */
    uint32_t lost_set;
    uint64_t lost_step;
    struct st_commit job; /* the thread's while WORKING */
    struct st_commit_report report;

    pthread_t thread;
    bool running;
    pthread_mutex_t lock;  /* guards all below */
    pthread_cond_t change; /* of phase or stop */
    enum phase phase;
    bool stop;
    const char *stage; /* of the job; static */
    uint64_t stage_ns; /* since when */
    uint64_t say_ns;   /* when who waits says so */
};

#define REPORT_NS UINT64_C(30000000000)

static void enter(struct st_committer *c, const char *stage)
{
    pthread_mutex_lock(&c->lock);
    c->stage = stage;
    c->stage_ns = st_clock_ns();
    pthread_mutex_unlock(&c->lock);
}

/* --- the files of planes --- */

struct sync {
    struct st_transfer transfer;
    struct st_committer *committer;
    strata_status status;
    bool ended; /* guarded by the committer's lock */
};

static void sync_done(struct st_transfer *t, strata_status st)
{
    struct sync *s = t->owner;

    pthread_mutex_lock(&s->committer->lock);
    s->status = st;
    if (st != STRATA_OK)
        st_error_keep(&s->committer->report.sentence);
    s->ended = true;
    pthread_cond_broadcast(&s->committer->change);
    pthread_mutex_unlock(&s->committer->lock);
}

/* Makes a volume durable, through the I/O thread. */
static strata_status sync_volume(struct st_committer *c, uint32_t volume)
{
    struct sync s = {.transfer = {.op = ST_IO_SYNC, .volume = volume, .done = sync_done, .what = "checkpoint"}, .committer = c};
    strata_status st;

    s.transfer.owner = &s;
    if ((st = st_swap_submit(c->opts.swap, &s.transfer)) != STRATA_OK)
        return st;
    pthread_mutex_lock(&c->lock);
    while (!s.ended)
        pthread_cond_wait(&c->change, &c->lock);
    pthread_mutex_unlock(&c->lock);
    return s.status == STRATA_OK ? STRATA_OK : st_error_again(s.status, &c->report.sentence);
}

static bool is_foreign(const struct st_committer *c, const struct st_manifest_file *f)
{
    return f->space == ST_SPACE_BASE && c->base.count > 0;
}

static strata_status link_one(struct st_committer *c, const struct st_manifest_file *f, bool *crossed)
{
    strata_status st;

    st_cleanup_hold();
    st = is_foreign(c, f) ? st_commit_base_link(&c->base, f, c->dir_fd, crossed)
                          : st_swap_link(c->opts.swap, st_swap_volume(c->opts.swap, f->space, c->job.set), f->dir, c->dir_fd,
                                         f->name, crossed);
    st_cleanup_release();
    return st;
}

static strata_status copy_one(const struct st_committer *c, const struct st_manifest_file *f)
{
    char to[ST_PATH_MAX];
    const strata_status st = st_path_join(to, c->dir, f->name);

    if (st != STRATA_OK)
        return st;
    if (is_foreign(c, f))
        return st_commit_base_copy(&c->base, f, to);
    return st_commit_copy(to, "the run's own file",
                          st_swap_fd(c->opts.swap, st_swap_volume(c->opts.swap, f->space, c->job.set), f->dir), f->bytes);
}

static uint32_t parts_of(const struct st_committer *c)
{
    return c->opts.parts > 0 ? c->opts.parts : 1;
}

static void tell_of_copies(struct st_committer *c, uint64_t bytes)
{
    const uint64_t nameless = c->base.nameless_bytes;
    char text[24];

    if (nameless > 0)
        st_log(ST_LOG_NOTICE,
               "%s: the checkpoint that the run resumed from is gone: its frozen weights (%s, still open here) are copied",
               c->dir, st_size_text(text, nameless));
    bytes -= nameless;
    if (bytes > 0 && !c->told_of_copies)
        st_log(ST_LOG_NOTICE,
               "strata.save %s cannot link files of the run's drives: %s of %seach checkpoint are copied; a directory on their "
               "file system copies nothing",
               c->save, st_size_text(text, bytes), parts_of(c) > 1 ? "this rank's part of " : "");
    c->told_of_copies = c->told_of_copies || bytes > 0;
}

/* Links what can be linked, then copies the rest, if there is room. */
static strata_status place_files(struct st_committer *c)
{
    const struct st_manifest *m = &c->job.manifest;
    bool crossed[ST_SPACE_COUNT * ST_STRIPE_DIRS_MAX] = {false};
    uint64_t *copied = &c->report.copied_bytes;
    strata_status st = STRATA_OK;
    bool any = false;

    c->base.nameless_bytes = 0;
    for (uint32_t i = 0; i < m->file_count && st == STRATA_OK; i++) {
        st = link_one(c, &m->files[i], &crossed[i]);
        *(crossed[i] ? copied : &c->report.linked_bytes) += m->files[i].bytes;
        any = any || crossed[i];
    }
    if (st != STRATA_OK || !any) /* an empty file is to be copied, too */
        return st;
    tell_of_copies(c, *copied);
    st = st_commit_check_room(m, c->save, c->dir, *copied, parts_of(c));
    for (uint32_t i = 0; i < m->file_count && st == STRATA_OK; i++)
        if (crossed[i])
            st = copy_one(c, &m->files[i]);
    return st;
}

/* --- the whole --- */

static enum st_store_judgement judge(void *ctx, const char *path, uint64_t step, double *score)
{
    const char *run = ctx;
    char manifest[ST_PATH_MAX];
    struct st_manifest m;
    struct st_checkpoint *ck;
    bool ours;

    (void)step;
    if (st_path_join(manifest, path, ST_MANIFEST_NAME) != STRATA_OK || st_manifest_read(&m, manifest) != STRATA_OK)
        return ST_STORE_FOREIGN;
    ours = strcmp(m.run, run) == 0;
    if (!st_manifest_score(&m, score))
        *score = (double)NAN;
    st_manifest_fini(&m);
    if (!ours)
        return ST_STORE_FOREIGN;
    if (st_checkpoint_open(&ck, path) != STRATA_OK)
        return ST_STORE_DAMAGED;
    st_checkpoint_close(ck);
    return ST_STORE_WHOLE;
}

/* A system that could not write what it had may have thrown it away: only what is written again can be made durable.  That is the
 * set, by the updates of a later step. */
static strata_status sync_set(struct st_committer *c)
{
    const uint64_t step = c->job.manifest.step;
    strata_status st;

    if (c->set_lost && c->lost_set == c->job.set && c->lost_step == step)
        return st_error(STRATA_E_IO,
                        "%s: what step %" PRIu64
                        " has written could not be made durable: no checkpoint of it is made, and the next one may succeed",
                        c->save, step);
    st = sync_volume(c, st_swap_volume(c->opts.swap, ST_SPACE_SET, c->job.set));
    c->set_lost = st != STRATA_OK;
    c->lost_set = c->job.set;
    c->lost_step = step;
    return st;
}

static strata_status sync_base(struct st_committer *c)
{
    strata_status st;

    if (c->base_lost)
        return st_error(STRATA_E_IO,
                        "%s: the frozen weights could not be made durable: this run makes no more checkpoints; start it again",
                        c->save);
    st = sync_volume(c, st_swap_volume(c->opts.swap, ST_SPACE_BASE, 0));
    c->base_lost = st != STRATA_OK;
    return st;
}

/* The planes' files of this run, durable and in the checkpoint's directory. */
static strata_status put_planes(struct st_committer *c)
{
    const struct st_manifest *m = &c->job.manifest;
    strata_status st = STRATA_OK;

    enter(c, "making the run's files durable");
    if (m->space_bytes[ST_SPACE_SET] > 0)
        st = sync_set(c);
    if (st == STRATA_OK && m->space_bytes[ST_SPACE_BASE] > 0 && c->base.count == 0)
        st = sync_base(c);
    enter(c, "linking or copying the run's files");
    return st == STRATA_OK ? place_files(c) : st;
}

static strata_status begin(struct st_committer *c, uint64_t step)
{
    const strata_status st = st_store_begin(c->store, step);

    if (st != STRATA_OK)
        return st;
    snprintf(c->dir, sizeof(c->dir), "%s", st_store_path(c->store));
    c->dir_fd = st_store_dir_fd(c->store);
    return STRATA_OK;
}

/* Everything up to the name; what is unfinished stays for the caller to remove. */
static strata_status assemble(struct st_committer *c)
{
    const struct st_commit_parts alone = {.all = 1, .count = 1};
    struct st_manifest *m = &c->job.manifest;
    strata_status st = st_commit_name_files(m, st_swap_stripe(c->opts.swap), &alone);

    enter(c, "beginning it");
    if (st == STRATA_OK)
        st = st_checkpoint_check(m, &c->job.extents, "what is to be saved");
    if (st == STRATA_OK)
        st = begin(c, m->step);
    if (st == STRATA_OK)
        st = put_planes(c);
    enter(c, "writing its small files");
    if (st == STRATA_OK)
        st = st_commit_write_small(c->store, m, &c->job.extents, c->opts.model, c->opts.ctx);
    enter(c, "giving it its name");
    return st == STRATA_OK ? st_store_commit(c->store, c->opts.overwrite) : st;
}

/* This part's planes and rows, into the directory that part 0 has begun. */
static strata_status make_part(struct st_committer *c)
{
    const struct st_commit_parts own = {.all = c->opts.parts, .first = c->opts.part, .count = 1};
    struct st_manifest *m = &c->job.manifest;
    char name[32], path[ST_PATH_MAX];
    strata_status st = st_commit_name_files(m, st_swap_stripe(c->opts.swap), &own);

    if (st != STRATA_OK)
        return st;
    snprintf(c->dir, sizeof(c->dir), "%s", c->job.dir);
    c->dir_fd = st_fault_refuses("commit.open") ? -1 : open(c->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (c->dir_fd < 0)
        return st_error_errno(errno,
                              "%s: rank %u does not see the checkpoint that rank 0 has begun: put strata.save on a file system "
                              "that all ranks share",
                              c->dir, c->opts.part);
    st = put_planes(c);
    enter(c, "writing its small files");
    st_commit_rows_name(name, c->opts.part);
    if (st == STRATA_OK && (st = st_path_join(path, c->dir, name)) == STRATA_OK)
        st = st_commit_write_rows(path, &c->job.extents, &m->extents_bytes, m->extents_digest);
    close(c->dir_fd);
    return st;
}

/* The checkpoint of all parts, which are there. */
static strata_status join(struct st_committer *c)
{
    const struct st_commit_parts all = {.all = c->opts.parts, .count = c->opts.parts};
    struct st_manifest *m = &c->job.manifest;
    strata_status st = st_commit_name_files(m, st_swap_stripe(c->opts.swap), &all);

    enter(c, "writing its small files");
    if (st == STRATA_OK)
        st = st_commit_join_small(c->store, m, c->opts.parts, c->opts.model, c->opts.ctx);
    enter(c, "giving it its name");
    return st == STRATA_OK ? st_store_commit(c->store, c->opts.overwrite) : st;
}

/* A step's checkpoint has its name. */
static void follow_base(struct st_committer *c, uint64_t step)
{
    const struct st_commit_parts own = {.all = parts_of(c), .first = c->opts.part, .count = 1};
    char name[ST_STORE_NAME_BYTES], path[ST_PATH_MAX];

    st_store_name(name, step);
    if (st_path_join(path, c->save, name) == STRATA_OK)
        st_commit_base_follow(&c->base, path, &own);
}

/* After the step's checkpoint has its name: `latest`, and the end of those before.  The first failure. */
static strata_status tidy(struct st_committer *c, const char *run, uint64_t step)
{
    struct st_sentence sentence;
    char id[sizeof(c->job.manifest.run)];
    strata_status st, pruned;

    snprintf(id, sizeof(id), "%s", run);
    st = st_store_set_latest(c->store, step);
    if (st != STRATA_OK)
        st_error_keep(&sentence);
    enter(c, "removing older ones");
    pruned = st_store_prune(c->store, step, c->opts.keep, c->opts.keep_best, judge, id);
    return st == STRATA_OK ? pruned : st_error_again(st, &sentence);
}

static strata_status work(struct st_committer *c)
{
    strata_status st;

    if (c->job.what == ST_COMMIT_PART)
        return make_part(c);
    st = c->job.what == ST_COMMIT_JOIN ? join(c) : assemble(c);
    if (st != STRATA_OK) {
        st_store_abort(c->store);
        return st;
    }
    c->report.committed = true;
    follow_base(c, c->job.manifest.step);
    return tidy(c, c->job.manifest.run, c->job.manifest.step);
}

static void run_job(struct st_committer *c)
{
    const uint64_t start_ns = st_clock_ns();

    c->report = (struct st_commit_report){.step = c->job.manifest.step};
    c->report.status = work(c);
    if (c->report.status != STRATA_OK)
        st_error_keep(&c->report.sentence);
    c->report.seconds = (double)(st_clock_ns() - start_ns) / 1e9;
    st_manifest_fini(&c->job.manifest);
    st_extents_fini(&c->job.extents);
}

static void *thread_main(void *arg)
{
    struct st_committer *c = arg;

    pthread_mutex_lock(&c->lock);
    for (;;) {
        while (c->phase != WORKING && !c->stop)
            pthread_cond_wait(&c->change, &c->lock);
        if (c->phase != WORKING)
            break;
        pthread_mutex_unlock(&c->lock);
        run_job(c);
        pthread_mutex_lock(&c->lock);
        c->phase = ENDED;
        pthread_cond_broadcast(&c->change);
    }
    pthread_mutex_unlock(&c->lock);
    return NULL;
}

/* --- the caller's side --- */

strata_status st_committer_start(struct st_committer **out, const struct st_committer_opts *opts)
{
    struct st_committer *c = st_fault("commit.alloc", 0) < 0 ? NULL : calloc(1, sizeof(*c));
    strata_status st;

    assert(opts->keep > 0);
    if (c == NULL)
        return st_nomem(sizeof(*c));
    pthread_mutex_init(&c->lock, NULL);
    st_cond_init(&c->change);
    c->opts = *opts;
    c->stage = "beginning it";
    c->stage_ns = st_clock_ns();
    st = opts->part == 0 ? st_store_open(&c->store, opts->save) : STRATA_OK;
    if (st == STRATA_OK) {
        if (opts->part == 0)
            (void)st_swap_sweep(opts->save); /* a run without drives has its swap there: this one may have others */
        snprintf(c->save, sizeof(c->save), "%s", opts->save);
        st = st_thread_start(&c->thread, "strata-save", thread_main, c);
        c->running = st == STRATA_OK;
    }
    if (st != STRATA_OK) {
        st_committer_stop(c);
        return st;
    }
    *out = c;
    return STRATA_OK;
}

strata_status st_committer_keep_model(struct st_committer *c)
{
    assert(c->phase != WORKING);
    return c->store != NULL ? st_commit_keep_model(c->store, c->opts.model, c->opts.ctx) : STRATA_OK;
}

strata_status st_committer_use_base(struct st_committer *c, const struct st_volume_file *files, uint32_t count)
{
    assert(c->phase != WORKING);
    c->base_lost = c->set_lost = false; /* another run's */
    return st_commit_base_take(&c->base, files, count);
}

strata_status st_committer_tidy(struct st_committer *c, const char *run, uint64_t step)
{
    struct st_store_list list;
    bool newest;
    const strata_status st = st_store_list(&list, c->save);

    assert(c->phase != WORKING);
    if (st != STRATA_OK)
        return st;
    newest = list.count > 0 && list.steps[list.count - 1] == step;
    free(list.steps);
    return newest ? tidy(c, run, step) : STRATA_OK;
}

strata_status st_committer_begin(struct st_committer *c, uint64_t step, char dir[ST_PATH_MAX])
{
    const strata_status st = begin(c, step);

    assert(c->phase != WORKING);
    memcpy(dir, c->dir, sizeof(c->dir));
    return st;
}

void st_committer_end(struct st_committer *c, uint64_t step, bool committed)
{
    assert(c->phase != WORKING);
    if (committed)
        follow_base(c, step);
    else if (c->store != NULL)
        st_store_abort(c->store);
}

strata_status st_committer_submit(struct st_committer *c, struct st_commit *job)
{
    strata_status st = STRATA_OK;

    pthread_mutex_lock(&c->lock);
    if (c->phase == IDLE) {
        c->job = *job;
        c->phase = WORKING;
        pthread_cond_broadcast(&c->change);
    } else {
        st = STRATA_E_BUSY;
    }
    pthread_mutex_unlock(&c->lock);
    if (st != STRATA_OK)
        return st_error(st, "%s: the checkpoint before is still being made", c->save);
    job->manifest = (struct st_manifest){0};
    job->extents = (struct st_extents){0};
    return STRATA_OK;
}

bool st_committer_reported(struct st_committer *c, struct st_commit_report *out)
{
    bool ended;

    pthread_mutex_lock(&c->lock);
    ended = c->phase == ENDED;
    if (ended) {
        *out = c->report;
        c->phase = IDLE;
    }
    pthread_mutex_unlock(&c->lock);
    return ended;
}

/* Lock held, but not while it speaks. */
static void say_where(struct st_committer *c)
{
    const char *stage = c->stage;
    char taken[24];

    st_seconds_text(taken, (double)(st_clock_ns() - c->stage_ns) * 1e-9);
    pthread_mutex_unlock(&c->lock);
    st_log(ST_LOG_WARN, "%s: the checkpoint is not complete yet: %s has taken %s so far", c->save, stage, taken);
    pthread_mutex_lock(&c->lock);
}

void st_committer_wait(struct st_committer *c)
{
    st_committer_wait_for(c, UINT64_MAX);
}

void st_committer_wait_for(struct st_committer *c, uint64_t ns)
{
    const uint64_t report_ns = c->opts.report_ns > 0 ? c->opts.report_ns : REPORT_NS;
    const uint64_t now_ns = st_clock_ns(), end_ns = ns < UINT64_MAX - now_ns ? now_ns + ns : UINT64_MAX;

    pthread_mutex_lock(&c->lock);
    if (c->say_ns < now_ns) /* nobody has waited for a while */
        c->say_ns = now_ns + report_ns;
    while (c->phase == WORKING && st_clock_ns() < end_ns)
        if (!st_cond_wait(&c->change, &c->lock, c->say_ns < end_ns ? c->say_ns : end_ns) && st_clock_ns() >= c->say_ns) {
            say_where(c);
            c->say_ns = st_clock_ns() + 2 * report_ns;
        }
    pthread_mutex_unlock(&c->lock);
}

void st_committer_stop(struct st_committer *c)
{
    if (c == NULL)
        return;
    if (c->running) {
        pthread_mutex_lock(&c->lock);
        c->stop = true;
        pthread_cond_broadcast(&c->change);
        pthread_mutex_unlock(&c->lock);
        pthread_join(c->thread, NULL);
    }
    st_store_close(c->store);
    st_commit_base_drop(&c->base);
    pthread_cond_destroy(&c->change);
    pthread_mutex_destroy(&c->lock);
    free(c);
}
