/* tests/nvme/test_volumes.c - volumes of the I/O thread over real methods: they come and go while others' transfers run, keep
 * their bytes apart, are synced as a whole. */
#include "core/base/error.h"
#include "core/base/fault.h"
#include "core/base/rng.h"
#include "nvme/mover/mover.h"
#include "swap_fixture.h"
#include "tests/common/fault_walk.h"
#include "tests/common/kept_log.h"
#include "tests/common/scratch.h"
#include "tests/common/test.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <unistd.h>

#define BLOCK     ((uint64_t)8192)
#define FILES_MAX 6u

static const char *const methods[] = {"uring", "aio", "threads", "fake"};

/* --- a volume of its own files --- */

struct files {
    struct st_stripe stripe;
    struct st_volume_file file[FILES_MAX];
    char path[FILES_MAX][96];
    uint64_t bytes;
};

/* Files that have no name, as if they had just been made; O_DIRECT where it works. */
static void files_open(struct files *f, const char *name, uint32_t count, uint64_t bytes)
{
    *f = (struct files){.bytes = bytes};
    st_stripe_init(&f->stripe, count, NULL, (uint32_t)BLOCK);
    for (uint32_t i = 0; i < count; i++) {
        int fd;

        snprintf(f->path[i], sizeof(f->path[i]), "%s/%s-%u", scratch_dir, name, i);
        fd = open(f->path[i], O_RDWR | O_CREAT | O_EXCL | O_DIRECT, 0600);
        if (fd < 0)
            fd = open(f->path[i], O_RDWR | O_CREAT | O_EXCL, 0600);
        assert_true(fd >= 0);
        assert_int_equal(unlink(f->path[i]), 0);
        assert_int_equal(ftruncate(fd, (off_t)st_stripe_file_bytes(&f->stripe, i, bytes)), 0);
        f->file[i] = (struct st_volume_file){.path = f->path[i], .fd = fd, .drive = i % 2};
    }
}

static void files_close(struct files *f)
{
    for (uint32_t i = 0; i < f->stripe.dir_count; i++)
        close(f->file[i].fd);
}

static struct st_volume_opts opts_of(const struct files *f)
{
    return (struct st_volume_opts){.stripe = &f->stripe, .files = f->file, .bytes = f->bytes};
}

static struct st_mover *mover_start(const char *method, strata_status *st)
{
    struct st_mover *mover = NULL;
    bool registered;

    *st = st_mover_start(&mover,
                         &(struct st_mover_opts){.ops = st_io_find(method, NULL),
                                                 .io = {.queue_depth = 8, .fake_seed = 4},
                                                 .drive_count = 2,
                                                 .block_bytes = (uint32_t)BLOCK / 2},
                         &registered);
    return mover;
}

static bool is_usable(const char *method)
{
    strata_status st;
    struct st_mover *mover = mover_start(method, &st);

    st_mover_stop(mover);
    if (st != STRATA_OK)
        print_message("%s: not tested on this machine: %s\n", method, strata_last_error());
    return st == STRATA_OK;
}

/* --- transfers that are waited for --- */

struct job {
    struct st_transfer transfer;
    pthread_mutex_t lock;
    pthread_cond_t ended;
    uint32_t done_count;
    strata_status status;
    char sentence[512];
};

static void on_done(struct st_transfer *t, strata_status st)
{
    struct job *job = t->owner;

    pthread_mutex_lock(&job->lock);
    job->done_count++;
    job->status = st;
    snprintf(job->sentence, sizeof(job->sentence), "%s", st == STRATA_OK ? "" : strata_last_error());
    pthread_cond_signal(&job->ended);
    pthread_mutex_unlock(&job->lock);
}

static strata_status move(struct st_mover *mover, uint32_t volume, enum st_io_op op, uint64_t offset, uint64_t bytes, void *buf)
{
    struct job job = {.transfer = {.op = op, .volume = volume, .offset = offset, .bytes = bytes, .buf = buf, .done = on_done},
                      .lock = PTHREAD_MUTEX_INITIALIZER,
                      .ended = PTHREAD_COND_INITIALIZER};
    strata_status st;

    job.transfer.owner = &job;
    if ((st = st_mover_submit(mover, &job.transfer)) != STRATA_OK)
        return st;
    pthread_mutex_lock(&job.lock);
    while (job.done_count == 0)
        pthread_cond_wait(&job.ended, &job.lock);
    pthread_mutex_unlock(&job.lock);
    return job.status == STRATA_OK ? STRATA_OK : st_error(job.status, "%s", job.sentence);
}

static strata_status sync_all(struct st_mover *mover, uint32_t volume)
{
    return move(mover, volume, ST_IO_SYNC, 0, 0, NULL);
}

static unsigned char *random_bytes(uint64_t seed, uint64_t bytes)
{
    unsigned char *buf = aligned_alloc(ST_MOVER_ALIGN, bytes);

    assert_non_null(buf);
    for (uint64_t i = 0; i < bytes / 8; i++) {
        const uint64_t word = st_rng_u64(seed, 5, i);

        memcpy(buf + i * 8, &word, 8);
    }
    return buf;
}

/* Writes, makes durable and reads back all of a volume. */
static strata_status round_trip(struct st_mover *mover, uint32_t volume, uint64_t bytes, uint64_t seed)
{
    unsigned char *out = random_bytes(seed, bytes), *in = random_bytes(seed + 1, bytes);
    strata_status st = move(mover, volume, ST_IO_WRITE, 0, bytes, out);

    if (st == STRATA_OK && (st = sync_all(mover, volume)) == STRATA_OK)
        st = move(mover, volume, ST_IO_READ, 0, bytes, in);
    if (st == STRATA_OK)
        assert_memory_equal(out, in, bytes);
    free(out);
    free(in);
    return st;
}

/* --- tests --- */

/* The same offsets of several volumes, which share files' places in the method and drives. */
TEST(volumes_keep_their_bytes_apart)
{
    enum { VOLUMES = 5 };

    for (size_t m = 0; m < sizeof(methods) / sizeof(methods[0]); m++) {
        const uint64_t bytes = 9 * BLOCK;
        unsigned char *out[VOLUMES], *in = random_bytes(99, bytes);
        struct files files[VOLUMES];
        uint32_t volume[VOLUMES];
        struct st_mover *mover;
        strata_status st;

        if (!is_usable(methods[m]))
            continue;
        mover = mover_start(methods[m], &st);
        assert_int_equal(move(mover, 0, ST_IO_READ, 0, BLOCK, in), STRATA_E_INVAL); /* none is there */
        assert_non_null(strstr(strata_last_error(), "no volume 0"));
        for (uint32_t v = 0; v < VOLUMES; v++) {
            struct st_volume_opts opts;

            files_open(&files[v], "apart", 1 + v % 3, bytes);
            opts = opts_of(&files[v]);
            assert_int_equal(st_mover_add(mover, &opts, &volume[v]), STRATA_OK);
            out[v] = random_bytes(v, bytes);
            assert_int_equal(move(mover, volume[v], ST_IO_WRITE, 0, bytes, out[v]), STRATA_OK);
        }
        for (uint32_t v = 0; v < VOLUMES; v++) {
            assert_int_equal(sync_all(mover, volume[v]), STRATA_OK);
            assert_int_equal(move(mover, volume[v], ST_IO_READ, 0, bytes, in), STRATA_OK);
            assert_memory_equal(in, out[v], bytes);
        }
        for (uint32_t v = 0; v < VOLUMES; v++) {
            st_mover_remove(mover, volume[v]);
            assert_int_equal(move(mover, volume[v], ST_IO_READ, 0, BLOCK, in), STRATA_E_INVAL);
            files_close(&files[v]);
            free(out[v]);
        }
        st_mover_stop(mover);
        free(in);
    }
}

/* What was written space by space is read as one volume, across their borders, too, and synced as one. */
TEST(spaces_follow_each_other)
{
    enum { SPACES = 3 };
    const uint64_t bytes = 5 * BLOCK - ST_MOVER_ALIGN;

    for (uint32_t dirs = 1; dirs <= 2; dirs++) {
        unsigned char *out = random_bytes(dirs, SPACES * bytes), *in = random_bytes(9, SPACES * bytes);
        struct st_volume_file file[2 * SPACES];
        struct files files[SPACES];
        struct st_volume_opts opts;
        uint32_t volume;
        uint64_t at;
        strata_status st;
        struct st_mover *mover = mover_start("threads", &st);

        assert_int_equal(st, STRATA_OK);
        for (uint32_t s = 0; s < SPACES; s++) {
            char name[16];

            snprintf(name, sizeof(name), "space-%u", s);
            files_open(&files[s], name, dirs, bytes);
            memcpy(&file[s * dirs], files[s].file, dirs * sizeof(file[0]));
            opts = opts_of(&files[s]);
            assert_int_equal(st_mover_add(mover, &opts, &volume), STRATA_OK);
            assert_int_equal(move(mover, volume, ST_IO_WRITE, 0, bytes, out + s * bytes), STRATA_OK);
            st_mover_remove(mover, volume);
        }
        opts.files = file;
        opts.spaces = SPACES;
        assert_int_equal(st_mover_add(mover, &opts, &volume), STRATA_OK);
        assert_int_equal(sync_all(mover, volume), STRATA_OK);
        assert_int_equal(move(mover, volume, ST_IO_READ, 0, SPACES * bytes, in), STRATA_OK);
        assert_memory_equal(in, out, SPACES * bytes);
        assert_int_equal(move(mover, volume, ST_IO_READ, bytes - ST_MOVER_ALIGN, bytes, in), STRATA_OK);
        assert_memory_equal(in, out + bytes - ST_MOVER_ALIGN, bytes);
        assert_non_null(strstr(st_mover_place(mover, volume, 2 * bytes, &at), "space-2"));
        assert_int_equal(at, 0);
        assert_int_equal(move(mover, volume, ST_IO_READ, SPACES * bytes, BLOCK, in), STRATA_E_INVAL);
        st_mover_stop(mover);
        for (uint32_t s = 0; s < SPACES; s++)
            files_close(&files[s]);
        free(out);
        free(in);
    }
}

struct comer {
    struct st_mover *mover;
    const char *name;
    uint32_t rounds;
    pthread_t thread;
};

static void *come_and_go(void *arg)
{
    struct comer *c = arg;

    for (uint32_t round = 0; round < c->rounds; round++) {
        struct files files[2];
        struct st_volume_opts opts;
        uint32_t volume;

        for (uint32_t k = 0; k < 2; k++)
            files_open(&files[k], c->name, 1 + (round + k) % 3, (1 + round % 5) * BLOCK);
        opts = opts_of(&files[0]);
        assert_int_equal(st_mover_add(c->mover, &opts, &volume), STRATA_OK);
        assert_int_equal(round_trip(c->mover, volume, files[0].bytes, round), STRATA_OK);
        opts = opts_of(&files[1]);
        assert_int_equal(st_mover_replace(c->mover, volume, &opts), STRATA_OK);
        files_close(&files[0]);
        assert_int_equal(round_trip(c->mover, volume, files[1].bytes, round + 7), STRATA_OK);
        st_mover_remove(c->mover, volume);
        files_close(&files[1]);
    }
    return NULL;
}

/* Submits itself again while `going`. */
struct runner {
    struct st_transfer transfer;
    struct st_mover *mover;
    atomic_bool going, ended;
    atomic_uint count;
};

static void run_again(struct st_transfer *t, strata_status st)
{
    struct runner *r = t->owner;

    assert_int_equal(st, STRATA_OK);
    atomic_fetch_add(&r->count, 1);
    if (atomic_load(&r->going))
        assert_int_equal(st_mover_submit(r->mover, t), STRATA_OK);
    else
        atomic_store(&r->ended, true);
}

TEST(volumes_come_and_go_while_transfers_run)
{
    static const char *const names[] = {"first", "second", "third"};

    for (size_t m = 0; m < sizeof(methods) / sizeof(methods[0]); m++) {
        struct comer comers[3];
        struct st_volume_opts opts;
        struct runner runner;
        struct files files;
        unsigned char *buf;
        strata_status st;

        if (!is_usable(methods[m]))
            continue;
        files_open(&files, "stays", 2, 16 * BLOCK);
        opts = opts_of(&files);
        runner = (struct runner){.mover = mover_start(methods[m], &st)};
        assert_int_equal(st, STRATA_OK);
        assert_int_equal(st_mover_add(runner.mover, &opts, &runner.transfer.volume), STRATA_OK);
        buf = random_bytes(3, files.bytes);
        assert_int_equal(move(runner.mover, 0, ST_IO_WRITE, 0, files.bytes, buf), STRATA_OK);
        runner.transfer =
            (struct st_transfer){.op = ST_IO_READ, .bytes = files.bytes, .buf = buf, .done = run_again, .owner = &runner};
        atomic_store(&runner.going, true);
        assert_int_equal(st_mover_submit(runner.mover, &runner.transfer), STRATA_OK);
        for (uint32_t i = 0; i < 3; i++) {
            comers[i] = (struct comer){.mover = runner.mover, .name = names[i], .rounds = 12};
            assert_int_equal(pthread_create(&comers[i].thread, NULL, come_and_go, &comers[i]), 0);
        }
        for (uint32_t i = 0; i < 3; i++)
            assert_int_equal(pthread_join(comers[i].thread, NULL), 0);
        atomic_store(&runner.going, false);
        st_mover_stop(runner.mover); /* after all that was submitted */
        assert_true(atomic_load(&runner.ended));
        assert_true(atomic_load(&runner.count) > 1);
        files_close(&files);
        free(buf);
    }
}

/* Also by a descriptor that is open for reading alone. */
TEST(a_read_only_volume_is_not_written)
{
    const uint64_t bytes = 4 * BLOCK;
    unsigned char *out = random_bytes(1, bytes), *in = random_bytes(2, bytes);
    struct st_volume_opts opts;
    struct st_mover *mover;
    struct files files;
    char link[64];
    strata_status st;
    uint32_t volume;
    int fd;

    files_open(&files, "given", 1, bytes);
    snprintf(link, sizeof(link), "/proc/self/fd/%d", files.file[0].fd);
    assert_int_equal(pwrite(files.file[0].fd, out, bytes, 0), bytes);
    assert_true((fd = open(link, O_RDONLY)) >= 0);
    close(files.file[0].fd);
    files.file[0].fd = fd;
    opts = opts_of(&files);
    opts.read_only = true;
    mover = mover_start("threads", &st);
    assert_int_equal(st_mover_add(mover, &opts, &volume), STRATA_OK);
    assert_int_equal(move(mover, volume, ST_IO_READ, 0, bytes, in), STRATA_OK);
    assert_memory_equal(in, out, bytes);
    assert_int_equal(move(mover, volume, ST_IO_WRITE, 0, BLOCK, in), STRATA_E_INVAL);
    assert_non_null(strstr(strata_last_error(), files.path[0]));
    assert_int_equal(sync_all(mover, volume), STRATA_OK);
    st_mover_stop(mover);
    files_close(&files);
    free(out);
    free(in);
}

/* Each file of a volume is synced, and one that cannot be, as a pipe, is named. */
TEST(every_file_is_synced)
{
    for (size_t m = 0; strcmp(methods[m], "fake") != 0; m++) {
        if (!is_usable(methods[m]))
            continue;
        for (uint32_t i = 0; i < FILES_MAX; i++) {
            struct st_volume_opts opts;
            struct st_mover *mover;
            struct files files;
            uint32_t volume;
            strata_status st;
            int ends[2];

            files_open(&files, "synced", FILES_MAX, BLOCK);
            assert_int_equal(pipe(ends), 0);
            close(files.file[i].fd);
            files.file[i].fd = ends[0];
            opts = opts_of(&files);
            mover = mover_start(methods[m], &st);
            assert_int_equal(st_mover_add(mover, &opts, &volume), STRATA_OK);
            assert_int_equal(sync_all(mover, volume), STRATA_E_IO);
            assert_non_null(strstr(strata_last_error(), files.path[i]));
            assert_non_null(strstr(strata_last_error(), "fsync: Invalid argument"));
            st_mover_stop(mover);
            files_close(&files);
            close(ends[1]);
        }
    }
}

/* Nothing is asked twice, and the volume is as good as before. */
TEST(a_failed_sync_is_not_repeated)
{
    for (size_t m = 0; m < sizeof(methods) / sizeof(methods[0]); m++) {
        struct st_volume_opts opts;
        struct st_mover *mover;
        struct files files;
        uint32_t volume;
        strata_status st;

        if (!is_usable(methods[m]))
            continue;
        files_open(&files, "synced", 3, 7 * BLOCK);
        opts = opts_of(&files);
        mover = mover_start(methods[m], &st);
        assert_int_equal(st_mover_add(mover, &opts, &volume), STRATA_OK);
        for (uint32_t after = 0; after < 3; after++) {
            st_fault_arm(&(struct st_fault_spec){.site = "nvme.fsync", .after = after, .count = 1, .result = -EIO});
            assert_int_equal(sync_all(mover, volume), STRATA_E_IO);
            assert_int_equal(st_fault_disarm(), 1);
            assert_non_null(strstr(strata_last_error(), "fsync: Input/output error"));
        }
        assert_int_equal(round_trip(mover, volume, files.bytes, 3), STRATA_OK);
        st_mover_stop(mover);
        files_close(&files);
    }
}

/* There may be any number of volumes, and one whose number was given back gets it again; one that is replaced keeps its number,
 * also if that fails. */
TEST(numbers_are_kept)
{
    enum { VOLUMES = 100 };
    uint32_t volume[VOLUMES];
    struct st_volume_opts opts;
    struct st_mover *mover;
    struct files files;
    unsigned char *buf = random_bytes(1, BLOCK);
    strata_status st;

    files_open(&files, "same", 2, 2 * BLOCK);
    opts = opts_of(&files);
    mover = mover_start("threads", &st);
    for (uint32_t i = 0; i < VOLUMES; i++)
        assert_int_equal(st_mover_add(mover, &opts, &volume[i]), STRATA_OK);
    assert_int_equal(round_trip(mover, volume[99], files.bytes, 1), STRATA_OK);
    st_mover_remove(mover, volume[5]);
    assert_int_equal(st_mover_add(mover, &opts, &volume[5]), STRATA_OK);
    assert_int_equal(volume[5], 5);
    assert_int_equal(round_trip(mover, volume[5], files.bytes, 1), STRATA_OK);

    st_fault_arm(&(struct st_fault_spec){.site = "nvme.alloc", .after = 2, .count = 1, .result = -1});
    assert_int_equal(st_mover_replace(mover, volume[6], &opts), STRATA_E_NOMEM);
    assert_int_equal(st_fault_disarm(), 1);
    assert_int_equal(round_trip(mover, volume[6], files.bytes, 2), STRATA_OK);
    opts.bytes = BLOCK;
    for (uint32_t i = 0; i < ST_IO_FILES_DEFAULT; i++)
        assert_int_equal(st_mover_replace(mover, volume[6], &opts), STRATA_OK);
    assert_int_equal(move(mover, volume[6], ST_IO_READ, BLOCK, BLOCK, buf), STRATA_E_INVAL);
    assert_non_null(strstr(strata_last_error(), "outside the volume's 8192 bytes"));
    assert_int_equal(move(mover, volume[6], ST_IO_READ, 512, 0, NULL), STRATA_E_INVAL);
    assert_int_equal(move(mover, ST_MOVER_NO_VOLUME, ST_IO_READ, 0, 0, NULL), STRATA_E_INVAL);
    st_mover_stop(mover);
    files_close(&files);
    free(buf);
}

/* A volume that finds no room for all of its files takes none of their places. */
TEST(a_refused_volume_takes_no_place)
{
    const uint32_t five = ST_IO_FILES_DEFAULT / 5;
    struct st_volume_opts opts;
    struct st_mover *mover;
    struct files files[2];
    uint32_t volume;
    strata_status st;

    files_open(&files[0], "five", 5, BLOCK);
    files_open(&files[1], "six", 6, BLOCK);
    opts = opts_of(&files[0]);
    mover = mover_start("threads", &st);
    for (uint32_t i = 0; i < five; i++)
        assert_int_equal(st_mover_add(mover, &opts, &volume), STRATA_OK);
    assert_int_equal(st_mover_add(mover, &opts, &volume), STRATA_E_INVAL);
    assert_non_null(strstr(strata_last_error(), "five-1: an io takes at most 256 files"));
    st_mover_remove(mover, 3);
    opts = opts_of(&files[1]);
    assert_int_equal(st_mover_add(mover, &opts, &volume), STRATA_OK);
    assert_int_equal(volume, 3);
    assert_int_equal(round_trip(mover, volume, BLOCK, 1), STRATA_OK);
    st_mover_stop(mover);
    for (uint32_t k = 0; k < 2; k++)
        files_close(&files[k]);
}

static strata_status live(struct st_mover *mover, struct files *files)
{
    struct st_volume_opts opts[2] = {opts_of(&files[0]), opts_of(&files[1])};
    uint32_t volume;
    strata_status st;

    if ((st = st_mover_add(mover, &opts[0], &volume)) != STRATA_OK)
        return st;
    if ((st = round_trip(mover, volume, files[0].bytes, 1)) != STRATA_OK)
        return st;
    if ((st = st_mover_replace(mover, volume, &opts[1])) != STRATA_OK)
        return st;
    if ((st = round_trip(mover, volume, files[1].bytes, 2)) != STRATA_OK)
        return st;
    st_mover_remove(mover, volume);
    return STRATA_OK;
}

TEST(every_single_failure_is_clean)
{
    const bool in_memory = mount("strata-test", scratch_dir, "tmpfs", 0, "size=8m") == 0; /* where a sync is quick */

    kept_log_begin(ST_LOG_DEBUG);
    for (size_t m = 0; m < sizeof(methods) / sizeof(methods[0]); m++) {
        struct fault_walk walk = {.result = -EIO};

        if (!is_usable(methods[m]))
            continue;
        while (fault_walk_next(&walk)) {
            struct files files[2];
            struct st_mover *mover;
            strata_status st;

            for (uint32_t k = 0; k < 2; k++)
                files_open(&files[k], "walk", 1 + k, 3 * BLOCK);
            mover = mover_start(methods[m], &st);
            if (st == STRATA_OK)
                st = live(mover, files);
            fault_walk_end(&walk, st);
            st_mover_stop(mover);
            for (uint32_t k = 0; k < 2; k++)
                files_close(&files[k]);
        }
        assert_true(walk.failed > 20);
    }
    kept_log_end();
    if (in_memory)
        assert_int_equal(umount2(scratch_dir, MNT_DETACH), 0);
}

static int create(void **state)
{
    (void)swap_private_mounts();
    return scratch_create(state);
}

TEST_GROUP(create, scratch_remove);
