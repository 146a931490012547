/* The queues of the cuda device over the emulator: marks and their order, a context that breaks, and the deadline of every wait.
 */
#include "core/system/clock.h"
#include "offload/device/cuda/link_roof.h"
#include "tests/cuda/device_rig.h"

/* --- queues --- */

/* More marks than a queue keeps; each comes once, in order, and finds what was enqueued before it done. */
TEST_SETUP(marks_come_in_order, before_each, after_each)
{
    enum { NOTES = 5 * ST_CUDA_MARKS };
    static struct note notes[NOTES];
    static unsigned char host[NOTES], back[NOTES];
    atomic_uint clock = 0;
    struct st_device *dev = opened(ARENA);

    for (unsigned i = 0; i < NOTES; i++)
        host[i] = (unsigned char)(i * 7 + 1);
    ok(ops->pin(dev, host, sizeof(host), NULL));
    ok(ops->upload(dev, ops->arena(dev), host, NOTES));
    ok(ops->finish(dev, ST_QUEUE_UPLOAD));
    for (unsigned i = 0; i < NOTES; i++) {
        notes[i] = (struct note){.clock = &clock, .st = STRATA_E_BUSY, .landed = &back[i]};
        ok(ops->download(dev, &back[i], ops->arena(dev) + i, 1));
        ok(ops->notify(dev, ST_QUEUE_DOWNLOAD, take_note, &notes[i]));
    }
    ops->close(dev); /* waits for all */
    assert_int_equal(atomic_load(&clock), NOTES);
    for (unsigned i = 0; i < NOTES; i++) {
        assert_int_equal(notes[i].came, i + 1);
        assert_int_equal(notes[i].st, STRATA_OK);
        assert_int_equal(notes[i].value, host[i]);
    }
}

/* Layers first, updates in what they leave; copies between. */
TEST_SETUP(layers_go_before_updates, before_each, after_each)
{
    struct st_device *dev = opened(ARENA);
    int priority[ST_QUEUE_COUNT], least, greatest;

    assert_int_equal(cudaDeviceGetStreamPriorityRange(&least, &greatest), cudaSuccess);
    for (uint32_t i = 0; i < ST_QUEUE_COUNT; i++)
        assert_int_equal(cudaStreamGetPriority(cuda_of(dev)->queues[i].stream, &priority[i]), cudaSuccess);
    assert_int_equal(priority[ST_QUEUE_COMPUTE], greatest);
    assert_int_equal(priority[ST_QUEUE_UPDATE], least);
    for (uint32_t i = ST_QUEUE_UPLOAD; i <= ST_QUEUE_DOWNLOAD; i++)
        assert_true(greatest < priority[i] && priority[i] < least); /* the most urgent is the least number */
    ops->close(dev);
}

struct turn {
    struct cuda_queue *queue;
    uint64_t before; /* marks added before this one */
};

static void mark_is_not_given_back(void *ctx, strata_status st)
{
    const struct turn *turn = ctx;

    pthread_mutex_lock(&turn->queue->lock);
    assert_int_equal(turn->queue->taken, turn->before);
    pthread_mutex_unlock(&turn->queue->lock);
    assert_int_equal(st, STRATA_OK);
}

/* A mark is the watcher's until its callback has returned: before that, nothing else may be put in its place. */
TEST_SETUP(a_mark_is_kept_until_its_callback_returns, before_each, after_each)
{
    static struct turn turns[2 * ST_CUDA_MARKS];
    struct st_device *dev = opened(ARENA);
    struct cuda_queue *const queue = &cuda_of(dev)->queues[ST_QUEUE_UPLOAD];

    for (uint32_t i = 0; i < 2 * ST_CUDA_MARKS; i++) {
        turns[i] = (struct turn){queue, i};
        ok(ops->notify(dev, ST_QUEUE_UPLOAD, mark_is_not_given_back, &turns[i]));
    }
    ops->close(dev);
}

/* A failed kernel is reported by every mark after it, with its sentence; nothing hangs. */
TEST_SETUP(a_broken_context_is_reported, before_each, after_each)
{
    struct note notes[3];
    atomic_uint clock = 0;
    struct st_device *dev = opened(ARENA);

    twin_break(0, cudaErrorIllegalAddress);
    for (int i = 0; i < 3; i++) {
        notes[i] = (struct note){.clock = &clock};
        (void)ops->zero(dev, ops->arena(dev), ARENA);
        if (ops->notify(dev, ST_QUEUE_COMPUTE, take_note, &notes[i]) != STRATA_OK)
            take_note(&notes[i], STRATA_E_INTERNAL); /* the break came first */
    }
    assert_int_equal(ops->finish(dev, ST_QUEUE_COMPUTE), STRATA_E_INTERNAL);
    assert_non_null(strstr(strata_last_error(), "cudaErrorIllegalAddress"));
    ops->close(dev);
    for (int i = 0; i < 3; i++)
        assert_int_equal(notes[i].st, STRATA_E_INTERNAL);
    assert_non_null(strstr(notes[0].text, "cudaErrorIllegalAddress"));
    twin_reset(); /* a lost context takes its memory along */
}

/* --- the deadline --- */

static struct st_device *opened_impatient(uint64_t deadline_ns)
{
    struct st_device *dev = NULL;

    ok(ops->open(&dev, &(struct st_device_opts){.arena_bytes = ARENA, .deadline_ns = deadline_ns}));
    return dev;
}

static void assert_says_lost(const char *text, const char *queue)
{
    const char *const words[] = {queue, "no progress for ", "strata.device_deadline", "nvidia-smi", "Xid"};

    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
        if (strstr(text, words[i]) == NULL)
            fail_msg("\"%s\" says nothing of %s", text, words[i]);
}

/* Another device of this process would wait for the same kernel. */
static void assert_refused_while_lost(void)
{
    struct st_device *dev = NULL;
    struct st_device_memory memory;

    assert_int_equal(ops->open(&dev, &(struct st_device_opts){.arena_bytes = ARENA}), STRATA_E_IO);
    assert_null(dev);
    assert_int_equal(ops->memory(0, &memory), STRATA_E_IO);
    assert_says_lost(strata_last_error(), "queue cuda-");
}

/* A lost device leaves its handles to the driver; here they are given back. */
static void forget_lost(void)
{
    assert_int_equal(twin_held().streams, ST_QUEUE_COUNT);
    assert_int_equal(blas->objects, 1);
    assert_refused_while_lost();
    blas->objects = 0;
    st_cuda_forget_loss();
    twin_reset();
}

/* A kernel that never ends: every mark behind it is reported, each call returns, and close() waits for nothing. */
TEST_SETUP(a_deadline_ends_every_wait, before_each, after_each)
{
    static struct note notes[3];
    atomic_uint clock = 0;
    struct st_device *dev = opened_impatient(20000000);
    unsigned char *arena = ops->arena(dev);

    for (int i = 0; i < 3; i++)
        notes[i] = (struct note){.clock = &clock, .st = STRATA_OK};
    twin_hang(0);
    for (int i = 0; i < 3; i++) {
        ok(ops->zero(dev, arena, 64));
        ok(ops->notify(dev, ST_QUEUE_COMPUTE, take_note, &notes[i]));
    }
    assert_int_equal(ops->finish(dev, ST_QUEUE_COMPUTE), STRATA_E_IO);
    assert_says_lost(strata_last_error(), "cuda-compute");
    assert_int_equal(atomic_load(&clock), 3);
    for (unsigned i = 0; i < 3; i++) {
        assert_int_equal(notes[i].came, i + 1);
        assert_int_equal(notes[i].st, STRATA_E_IO);
        assert_says_lost(notes[i].text, "cuda-compute");
    }
    for (unsigned q = 0; q < ST_QUEUE_COUNT; q++) {
        assert_int_equal(ops->finish(dev, (enum st_queue)q), STRATA_E_IO);
        assert_int_equal(ops->notify(dev, (enum st_queue)q, take_note, &notes[0]), STRATA_E_IO);
    }
    assert_int_equal(atomic_load(&clock), 3);
    ops->close(dev);
    forget_lost();
}

/* More calls than a queue keeps marks, and the kernel ends after all, late: its watcher finds the queue abandoned. */
TEST_SETUP(what_comes_late_is_ignored, before_each, after_each)
{
    enum { NOTES = 2 * ST_CUDA_MARKS };
    static struct note notes[NOTES];
    atomic_uint clock = 0;
    struct st_device *dev = opened_impatient(20000000);
    unsigned promised = 0;

    twin_hang(0);
    ok(ops->zero(dev, ops->arena(dev), 64));
    for (unsigned i = 0; i < NOTES; i++) {
        notes[i] = (struct note){.clock = &clock};
        promised += ops->notify(dev, ST_QUEUE_COMPUTE, take_note, &notes[i]) == STRATA_OK;
    }
    assert_true(promised >= ST_CUDA_MARKS && promised < NOTES);
    assert_int_equal(ops->finish(dev, ST_QUEUE_COMPUTE), STRATA_E_IO);
    assert_int_equal(atomic_load(&clock), promised);
    twin_release();
    ops->close(dev);
    forget_lost();
    assert_int_equal(atomic_load(&clock), promised);
}

/* The calling thread enqueues a staged copy and goes on: nothing of it runs before somebody waits.  Marks come after it. */
TEST_SETUP(staged_copies_do_not_keep_the_caller, before_each, after_each)
{
    static struct note notes[2];
    unsigned char *host = host_memory();
    struct st_device *dev = opened_impatient(500000000); /* a piece takes a tenth of it under tsan */
    atomic_uint clock = 0;

    twin_fail("cudaHostRegister", 0, 1, cudaErrorNotSupported);
    ok(ops->pin(dev, host, 2 * BYTES, NULL));
    assert_int_equal(twin_disarm(), 1);
    twin_hang(1); /* the second piece */
    for (int i = 0; i < 2; i++) {
        notes[i] = (struct note){.clock = &clock};
        ok(ops->upload(dev, ops->arena(dev), host, BYTES));
        (void)ops->notify(dev, ST_QUEUE_UPLOAD, take_note, &notes[i]);
    }
    assert_int_equal(ops->finish(dev, ST_QUEUE_UPLOAD), STRATA_E_IO);
    assert_says_lost(strata_last_error(), "cuda-upload");
    assert_int_equal(atomic_load(&clock), 2);
    assert_int_equal(notes[0].st, STRATA_E_IO);
    ops->close(dev);
    forget_lost();
    free(host);
}

/* Up and back down again in pieces, of which the last is a short one, by slots that are used again and again. */
static strata_status staged_round_trip(struct st_device *dev, unsigned char *host, uint64_t bytes)
{
    strata_status st;

    memset(host + bytes, 0, bytes);
    if ((st = ops->upload(dev, ops->arena(dev), host, bytes)) != STRATA_OK ||
        (st = ops->finish(dev, ST_QUEUE_UPLOAD)) != STRATA_OK ||
        (st = ops->download(dev, host + bytes, ops->arena(dev), bytes)) != STRATA_OK ||
        (st = ops->finish(dev, ST_QUEUE_DOWNLOAD)) != STRATA_OK)
        return st;
    assert_memory_equal(host, host + bytes, bytes);
    return STRATA_OK;
}

/* A slot is not filled, nor read, before the GPU is done with it, however late that is; a copy that fails is told once. */
TEST_SETUP(slots_wait_for_their_copies, before_each, after_each)
{
    const uint64_t bytes = 5 * ST_CUDA_STAGING_BYTES + 4096;
    unsigned char *host = aligned_alloc(4096, 2 * bytes);
    struct st_device *dev = opened(bytes);

    assert_non_null(host);
    for (uint64_t i = 0; i < bytes; i++)
        host[i] = (unsigned char)(i * 2654435761u >> 23);
    twin_fail("cudaHostRegister", 0, 1, cudaErrorNotSupported);
    ok(ops->pin(dev, host, 2 * bytes, NULL));
    assert_int_equal(twin_disarm(), 1);
    twin_be_lazy(1);
    ok(staged_round_trip(dev, host, bytes));
    for (uint64_t piece = 0; piece < 12; piece += 3) {
        twin_fail("cudaMemcpyAsync", piece, 1, cudaErrorUnknown);
        assert_int_equal(staged_round_trip(dev, host, bytes), STRATA_E_INTERNAL);
        assert_int_equal(twin_disarm(), 1);
        ok(staged_round_trip(dev, host, bytes));
    }
    twin_be_lazy(0);
    ops->close(dev);
    free(host);
}

/* The time between two stamps is no shorter than what passed between them here, and no longer than what passed around them. */
TEST_SETUP(stamps_measure_what_lies_between, before_each, after_each)
{
    struct st_device *dev = opened(ARENA);
    uint64_t ns, around, between;

    ok(ops->stamps(dev, 2));
    around = st_clock_ns();
    ok(ops->stamp(dev, ST_QUEUE_COMPUTE, 0));
    ok(ops->finish(dev, ST_QUEUE_COMPUTE));
    between = st_clock_ns();
    while (st_clock_ns() - between < 2000000)
        ok(ops->zero(dev, ops->arena(dev), ARENA));
    between = st_clock_ns() - between;
    ok(ops->stamp(dev, ST_QUEUE_COMPUTE, 1));
    ok(ops->finish(dev, ST_QUEUE_COMPUTE));
    around = st_clock_ns() - around;
    ok(ops->stamp_ns(dev, 0, 1, &ns));
    assert_true(ns + 10000 >= between && ns <= around + 10000); /* events have a resolution of half a microsecond */
    ops->close(dev);
}

/* Which copies a bare run makes: those of its directions, each as often as is asked for. */
TEST_SETUP(bare_copies_go_where_they_are_asked, before_each, after_each)
{
    static const struct {
        enum st_link_direction directions;
        uint64_t count, copies;
    } rows[] = {
        {ST_LINK_UPLOAD, 1, 1}, {ST_LINK_DOWNLOAD, 1, 1}, {ST_LINK_UPLOAD, 3, 3}, {ST_LINK_DOWNLOAD, 2, 2}, {ST_LINK_BOTH, 2, 4}};
    struct st_link_roof *roof;
    double seconds;

    ok(st_link_roof_open(&roof, "cuda:0", 65536));
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        for (uint64_t more = 0; more < 2; more++) { /* the last copy fails; one behind it, which there is not */
            twin_fail("cudaMemcpyAsync", rows[i].copies - 1 + more, 1, cudaErrorUnknown);
            assert_int_equal(st_link_roof_run(roof, rows[i].directions, 4096, rows[i].count, &seconds),
                             more == 0 ? STRATA_E_INTERNAL : STRATA_OK);
            assert_int_equal(twin_disarm(), 1 - more);
        }
    st_link_roof_close(roof);
}

/* A queue that has nothing to wait for is never late. */
TEST_SETUP(idle_queues_have_no_deadline, before_each, after_each)
{
    const uint64_t deadline_ns = 300000000;
    struct st_device *dev = opened_impatient(deadline_ns);

    for (unsigned q = 0; q < ST_QUEUE_COUNT; q++)
        ok(ops->finish(dev, (enum st_queue)q));
    st_clock_sleep_until(st_clock_ns() + 2 * deadline_ns);
    for (unsigned q = 0; q < ST_QUEUE_COUNT; q++)
        ok(ops->finish(dev, (enum st_queue)q));
    ops->close(dev);
}

TEST_MAIN(argc, argv)
{
    return device_rig_load() ? test_run(NULL, NULL) : 1;
}
