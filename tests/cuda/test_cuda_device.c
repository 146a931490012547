/* The cuda device where only the emulator can go: opening and what refuses it, pinned memory and what stands in for it, queues
 * and their marks, a context that breaks, matmul shapes, and every single failure.  What its ops compute is checked by the
 * contract tests of tests/offload, run on it. */
#include "core/base/error.h"
#include "core/system/clock.h"
#include "offload/device/cuda/device_cuda_internal.h"
#include "offload/device/cuda/gpu_report.h"
#include "tests/common/fault_walk.h"
#include "tests/cuda/emulator/blas.h"
#include "tests/cuda/emulator/twin.h"
#include "tests/offload/device_values.h"
#include <dlfcn.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define ARENA    (UINT64_C(24) << 20)
#define BYTES    (2 * ST_CUDA_STAGING_BYTES + 12345)
#define ok(call) assert_int_equal((call), STRATA_OK)

static const struct st_device_ops *const ops = &st_device_cuda_ops;
static struct twin_blas *blas;
static const char *blas_file;

static int before_each(void **state)
{
    (void)state;
    twin_reset();
    setenv("STRATA_CUBLASLT", blas_file, 1);
    blas->refuses_heuristics = 0;
    blas->refuses_gelu = 0;
    blas->refuses_bias = 0;
    return 0;
}

static void assert_nothing_held(void)
{
    const struct twin_holdings held = twin_held();

    assert_int_equal(held.device_bytes, 0);
    assert_int_equal(held.pinned_bytes, 0);
    assert_int_equal(held.streams, 0);
    assert_int_equal(held.events, 0);
    assert_int_equal(blas->objects, 0);
}

static struct st_device *opened(uint64_t arena_bytes)
{
    struct st_device *dev = NULL;

    ok(ops->open(&dev, &(struct st_device_opts){.arena_bytes = arena_bytes}));
    return dev;
}

static void assert_refused(const struct st_device_opts *opts, strata_status want, const char *word)
{
    struct st_device *dev = NULL;

    assert_int_equal(ops->open(&dev, opts), want);
    assert_null(dev);
    if (strstr(strata_last_error(), word) == NULL)
        fail_msg("\"%s\" says nothing of %s", strata_last_error(), word);
    assert_nothing_held();
}

/* --- open --- */

static void devices_have_names(void **state)
{
    (void)state;
    assert_ptr_equal(st_device_find("cuda"), ops);
    assert_ptr_equal(st_device_find("cuda:0"), ops);
    assert_ptr_equal(st_device_find("cuda:12"), ops);
    assert_int_equal(st_device_index("cuda"), 0);
    assert_int_equal(st_device_index("cuda:12"), 12);
    assert_null(st_device_find("cuda:"));
    assert_null(st_device_find("cuda:x"));
    assert_null(st_device_find("cuda:1x"));
    assert_null(st_device_find("cuda:1234"));
    assert_null(st_device_find("cudax"));
    assert_null(st_device_find("cpu:1"));
    ops->close(NULL);
}

static void a_machine_without_gpu_says_so(void **state)
{
    struct st_device_memory memory;
    struct st_gpu_report report;

    (void)state;
    twin_remove_driver();
    assert_refused(&(struct st_device_opts){.arena_bytes = ARENA}, STRATA_E_NOSYS, "driver");
    assert_int_equal(ops->memory(0, &memory), STRATA_E_NOSYS);
    st_gpu_report(&report);
    assert_int_equal(report.count, 0);
    assert_non_null(strstr(report.problem, "driver"));
    twin_reset();
    twin_set_devices(0, 0);
    assert_refused(&(struct st_device_opts){.arena_bytes = ARENA}, STRATA_E_NOSYS, "--device cpu");
}

static void gpus_are_counted(void **state)
{
    struct st_device_memory memory;
    struct st_gpu_report report;
    struct st_device *dev = NULL;

    (void)state;
    twin_set_devices(2, UINT64_C(4) << 30);
    assert_refused(&(struct st_device_opts){.index = 2}, STRATA_E_NOSYS, "2 GPUs");
    ok(ops->open(&dev, &(struct st_device_opts){.arena_bytes = ARENA, .index = 1}));
    ok(ops->memory(1, &memory));
    assert_int_equal(memory.total, UINT64_C(4) << 30);
    assert_true(memory.free <= memory.total - ARENA - ST_CUDA_WORKSPACE);
    /* 4 multiprocessors of 2048 threads with 1 KiB of stack */
    assert_int_equal(memory.beside, ST_CUDA_WORKSPACE + ST_CUDA_CODE + (UINT64_C(8) << 20));
    assert_int_equal(memory.usable, memory.free - memory.beside);
    ops->close(dev);
    st_gpu_report(&report);
    assert_int_equal(report.count, 2);
    assert_string_equal(report.problem, "");
    assert_int_equal(report.gpus[1].bytes, UINT64_C(4) << 30);
    assert_int_equal(report.gpus[1].usable_bytes, report.gpus[1].free_bytes - memory.beside);
    assert_true(report.gpus[1].usable_bytes > 0 && report.runtime > 0 && report.driver > 0);
    assert_string_equal(report.blas, blas_file);
}

/* By bus id and UUID a GPU is the same to nvidia-smi; of a MIG slice the memory is its own. */
static void gpus_are_told_apart(void **state)
{
    struct st_device_memory memory;
    struct st_gpu_report report;

    (void)state;
    twin_set_devices(2, UINT64_C(4) << 30);
    st_gpu_report(&report);
    assert_string_equal(report.gpus[0].pci, "0000:01:00.0");
    assert_string_equal(report.gpus[1].pci, "0000:02:00.0");
    assert_string_equal(report.gpus[1].uuid, "GPU-01112131-4151-6171-8191-a1b1c1d1e1f1");
    assert_false(report.gpus[1].is_slice);
    twin_make_slices();
    st_gpu_report(&report);
    assert_string_equal(report.gpus[0].uuid, "MIG-00102030-4050-6070-8090-a0b0c0d0e0f0");
    assert_true(report.gpus[0].is_slice);
    assert_int_equal(report.gpus[0].bytes, UINT64_C(4) << 30);
    ok(ops->memory(0, &memory));
    assert_int_equal(memory.total, UINT64_C(4) << 30);
}

/* A context keeps memory of its GPU from whoever else uses it. */
static void a_report_leaves_no_context(void **state)
{
    struct st_gpu_report report;

    (void)state;
    twin_set_devices(3, UINT64_C(4) << 30);
    st_gpu_report(&report);
    assert_int_equal(report.count, 3);
    assert_int_equal(twin_held().contexts, 0);
    setenv("STRATA_CUBLASLT", "libm.so.6", 1);
    st_gpu_report(&report);
    assert_non_null(strstr(report.problem, "has no cublasLtGetVersion"));
    assert_int_equal(twin_held().contexts, 0);
}

/* This machine may have one or not; a refusal is always possible. */
static void nccl_is_named_or_missed(void **state)
{
    struct st_gpu_report report;

    (void)state;
    st_gpu_report(&report);
    assert_true((report.nccl[0] != '\0') == (report.nccl_version >= 20000));
    assert_true((report.nccl[0] != '\0') == (report.nccl_problem[0] == '\0'));
    st_fault_arm(&(struct st_fault_spec){.site = "cuda.nccl", .count = 0, .result = -1});
    st_gpu_report(&report);
    assert_true(st_fault_disarm() > 0);
    assert_string_equal(report.nccl, "");
    assert_int_equal(report.nccl_version, 0);
    assert_non_null(strstr(report.nccl_problem, "libnccl.so.2"));
}

static void the_arena_is_exactly_the_plans(void **state)
{
    struct st_device *dev = opened(ARENA);

    (void)state;
    assert_int_equal(twin_held().device_bytes, ARENA + ST_CUDA_WORKSPACE);
    assert_non_null(ops->arena(dev));
    ops->close(dev);
}

static void what_does_not_fit_is_refused(void **state)
{
    (void)state;
    assert_refused(&(struct st_device_opts){.arena_bytes = UINT64_C(1) << 30}, STRATA_E_NOFIT, "free");
    twin_fail("cudaMalloc", 0, 1, cudaErrorMemoryAllocation);
    assert_refused(&(struct st_device_opts){.arena_bytes = ARENA}, STRATA_E_NOFIT, "--device-memory");
    assert_int_equal(twin_disarm(), 1);
    twin_fail("cudaMalloc", 1, 1, cudaErrorMemoryAllocation);
    assert_refused(&(struct st_device_opts){.arena_bytes = ARENA}, STRATA_E_DEVICE_OOM, "workspace");
    assert_int_equal(twin_disarm(), 1);
}

static void without_cublas_it_does_not_open(void **state)
{
    (void)state;
    setenv("STRATA_CUBLASLT", "/nonexistent/libcublasLt.so.13", 1);
    assert_refused(&(struct st_device_opts){.arena_bytes = ARENA}, STRATA_E_NOSYS, "/nonexistent/libcublasLt.so.13");
    setenv("STRATA_CUBLASLT", "libm.so.6", 1);
    assert_refused(&(struct st_device_opts){.arena_bytes = ARENA}, STRATA_E_NOSYS, "has no cublasLtGetVersion");
}

/* --- copies --- */

static unsigned char *host_memory(void)
{
    unsigned char *p = aligned_alloc(4096, (2 * BYTES + 4095) / 4096 * 4096);

    assert_non_null(p);
    for (uint64_t i = 0; i < BYTES; i++)
        p[i] = (unsigned char)(i * 2654435761u >> 13);
    return p;
}

/* Up, across the arena, and down again without the last bytes, from the first half of `host` to the second. */
static strata_status round_trip(struct st_device *dev, unsigned char *host)
{
    unsigned char *arena = ops->arena(dev), *half = arena + ARENA / 2;
    strata_status st = ops->upload(dev, arena, host, BYTES);

    if (st == STRATA_OK)
        st = ops->finish(dev, ST_QUEUE_UPLOAD);
    if (st == STRATA_OK)
        st = ops->copy(dev, half, arena, BYTES);
    if (st == STRATA_OK)
        st = ops->zero(dev, half + BYTES - 7, 7);
    if (st == STRATA_OK)
        st = ops->finish(dev, ST_QUEUE_COMPUTE);
    if (st == STRATA_OK)
        st = ops->download(dev, host + BYTES, half, BYTES);
    return st == STRATA_OK ? ops->finish(dev, ST_QUEUE_DOWNLOAD) : st;
}

static void assert_round_trip(struct st_device *dev, unsigned char *host)
{
    static const unsigned char zeros[7];

    memset(host + BYTES, 0xee, BYTES);
    ok(round_trip(dev, host));
    assert_memory_equal(host + BYTES, host, BYTES - 7);
    assert_memory_equal(host + 2 * BYTES - 7, zeros, 7);
}

static void pinned_memory_is_registered(void **state)
{
    unsigned char *host = host_memory();
    struct st_device *dev = opened(ARENA);

    (void)state;
    assert_round_trip(dev, host);
    assert_int_equal(twin_held().pinned_bytes, 0);
    ok(ops->pin(dev, host, 2 * BYTES, NULL));
    assert_int_equal(twin_held().pinned_bytes, 2 * BYTES);
    assert_round_trip(dev, host);
    ops->close(dev);
    assert_int_equal(twin_held().pinned_bytes, 0);
    free(host);
}

static void assert_staged(const struct st_staged *staged, uint64_t bytes)
{
    assert_int_equal(staged->bytes, bytes);
    assert_true((staged->upload > 0) == (bytes > 0) && (staged->download > 0) == (bytes > 0));
}

static void refused_memory_is_staged(void **state)
{
    unsigned char *host = host_memory();
    struct st_device *dev = opened(ARENA);
    struct st_staged staged;

    (void)state;
    twin_fail("cudaHostRegister", 0, 1, cudaErrorNotSupported);
    ok(ops->pin(dev, host, 2 * BYTES, &staged));
    assert_int_equal(twin_disarm(), 1);
    assert_staged(&staged, 2 * BYTES);
    assert_int_equal(twin_held().pinned_bytes, 4 * ST_CUDA_STAGING_BYTES);
    for (int i = 0; i < 3; i++)
        assert_round_trip(dev, host);
    ops->close(dev);
    free(host);
}

/* A limit on what may be registered at once: pieces, and the rest staged.  A copy across all of them arrives. */
static void memory_is_registered_in_pieces(void **state)
{
    const uint64_t bytes = 2 * ST_CUDA_PIECE_MIN + 8192, first = ST_CUDA_PIECE_MIN - BYTES / 2;
    unsigned char *host = aligned_alloc(4096, bytes);

    (void)state;
    assert_non_null(host);
    for (int refused = 1; refused <= 2; refused++) { /* whole alone, then the second piece, too */
        struct st_device *dev = opened(ARENA);
        unsigned char *at = host + first;
        struct st_staged staged = {.bytes = 1};

        twin_fail("cudaHostRegister", 0, 1, cudaErrorMemoryAllocation);
        if (refused == 2)
            st_fault_arm(&(struct st_fault_spec){.site = "cuda.register", .after = 2, .count = 1, .result = -1});
        ok(ops->pin(dev, host, bytes, &staged));
        assert_int_equal(twin_disarm(), 1);
        assert_int_equal(st_fault_disarm(), refused - 1);
        assert_staged(&staged, refused == 1 ? 0 : bytes - ST_CUDA_PIECE_MIN);
        assert_int_equal(twin_held().pinned_bytes, refused == 1 ? bytes : ST_CUDA_PIECE_MIN + 4 * ST_CUDA_STAGING_BYTES);
        for (uint64_t i = 0; i < BYTES; i++)
            at[i] = (unsigned char)(i * 2654435761u >> 13);
        assert_round_trip(dev, at);
        ops->close(dev);
    }
    free(host);
}

static void without_pinned_memory_copies_are_pageable(void **state)
{
    unsigned char *host = host_memory();
    struct st_device *dev = opened(ARENA);
    const struct st_fault_spec fault = {.site = "cuda.host_alloc", .count = 0, .result = -1};
    struct st_staged staged;

    (void)state;
    st_fault_arm(&fault);
    twin_fail("cudaHostRegister", 0, 1, cudaErrorNotSupported);
    ok(ops->pin(dev, host, 2 * BYTES, &staged));
    assert_int_equal(twin_disarm(), 1);
    assert_int_equal(st_fault_disarm(), 1);
    assert_staged(&staged, 2 * BYTES);
    assert_int_equal(twin_held().pinned_bytes, 0);
    assert_round_trip(dev, host);
    ops->close(dev);
    free(host);
}

/* --- queues --- */

struct note {
    atomic_uint *clock;
    unsigned came; /* 1-based; written by the watcher before the last note's count is seen */
    strata_status st;
    const unsigned char *landed; /* or NULL */
    unsigned char value;
    char text[256];
};

static void take_note(void *ctx, strata_status st)
{
    struct note *n = ctx;

    n->st = st;
    if (st != STRATA_OK)
        strncpy(n->text, strata_last_error(), sizeof(n->text) - 1);
    if (n->landed != NULL)
        n->value = *n->landed;
    n->came = atomic_fetch_add(n->clock, 1) + 1;
}

/* More marks than a queue keeps; each comes once, in order, and finds what was enqueued before it done. */
static void marks_come_in_order(void **state)
{
    enum { NOTES = 5 * ST_CUDA_MARKS };
    static struct note notes[NOTES];
    static unsigned char host[NOTES], back[NOTES];
    atomic_uint clock = 0;
    struct st_device *dev = opened(ARENA);

    (void)state;
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
static void a_mark_is_kept_until_its_callback_returns(void **state)
{
    static struct turn turns[2 * ST_CUDA_MARKS];
    struct st_device *dev = opened(ARENA);
    struct cuda_queue *const queue = &cuda_of(dev)->queues[ST_QUEUE_UPLOAD];

    (void)state;
    for (uint32_t i = 0; i < 2 * ST_CUDA_MARKS; i++) {
        turns[i] = (struct turn){queue, i};
        ok(ops->notify(dev, ST_QUEUE_UPLOAD, mark_is_not_given_back, &turns[i]));
    }
    ops->close(dev);
}

/* A failed kernel is reported by every mark after it, with its sentence; nothing hangs. */
static void a_broken_context_is_reported(void **state)
{
    struct note notes[3];
    atomic_uint clock = 0;
    struct st_device *dev = opened(ARENA);

    (void)state;
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
    assert_says_lost(strata_last_error(), "the queue cuda-");
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
static void a_deadline_ends_every_wait(void **state)
{
    static struct note notes[3];
    atomic_uint clock = 0;
    struct st_device *dev = opened_impatient(20000000);
    unsigned char *arena = ops->arena(dev);

    (void)state;
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
static void what_comes_late_is_ignored(void **state)
{
    enum { NOTES = 2 * ST_CUDA_MARKS };
    static struct note notes[NOTES];
    atomic_uint clock = 0;
    struct st_device *dev = opened_impatient(20000000);
    unsigned promised = 0;

    (void)state;
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
static void staged_copies_do_not_keep_the_caller(void **state)
{
    static struct note notes[2];
    unsigned char *host = host_memory();
    struct st_device *dev = opened_impatient(500000000); /* a piece takes a tenth of it under tsan */
    atomic_uint clock = 0;

    (void)state;
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

/* A queue that has nothing to wait for is never late. */
static void idle_queues_have_no_deadline(void **state)
{
    const uint64_t deadline_ns = 300000000;
    struct st_device *dev = opened_impatient(deadline_ns);

    (void)state;
    for (unsigned q = 0; q < ST_QUEUE_COUNT; q++)
        ok(ops->finish(dev, (enum st_queue)q));
    st_clock_sleep_until(st_clock_ns() + 2 * deadline_ns);
    for (unsigned q = 0; q < ST_QUEUE_COUNT; q++)
        ok(ops->finish(dev, (enum st_queue)q));
    ops->close(dev);
}

/* --- matmul --- */

static struct st_matmul square(uint32_t size, strata_dtype ab, strata_dtype c)
{
    return (struct st_matmul){
        .m = size, .n = size, .k = size, .lda = size, .ldb = size, .ldc = size, .ab_dtype = ab, .c_dtype = c};
}

static void shapes_are_prepared_once(void **state)
{
    struct st_device *dev = opened(ARENA);
    unsigned char *arena = ops->arena(dev);
    struct st_matmul mm = square(16, STRATA_BF16, STRATA_F32);
    uint64_t asked = blas->heuristics;
    int64_t most = 0;

    (void)state;
    ok(ops->zero(dev, arena, ARENA));
    for (int i = 0; i < 5; i++)
        ok(ops->tensors->matmul(dev, &mm, arena + 65536, arena + 4096 * i, arena + 32768, NULL)); /* where it lies is no matter */
    assert_int_equal(blas->heuristics - asked, 1);
    ok(ops->tensors->matmul(dev, &mm, arena + 65536, arena + 2, arena + 32768, NULL)); /* less aligned: another algorithm */
    assert_int_equal(blas->heuristics - asked, 2);
    for (uint32_t n = 1; n <= 1000; n++) {
        mm = (struct st_matmul){
            .m = 1, .n = n, .k = 1, .lda = 1, .ldb = n, .ldc = n, .ab_dtype = STRATA_F32, .c_dtype = STRATA_F32};
        ok(ops->tensors->matmul(dev, &mm, arena + 65536, arena, arena + 32768, NULL));
        most = blas->objects > most ? blas->objects : most;
    }
    assert_true(most <= 4 * 256 + 2);
    mm.m = 0;
    ok(ops->tensors->matmul(dev, &mm, arena + 65536, arena, arena + 32768, NULL));
    ops->close(dev);
}

static void unsupported_matmuls_are_named(void **state)
{
    struct st_device *dev = opened(ARENA);
    unsigned char *arena = ops->arena(dev);
    struct st_matmul mm = square(24, STRATA_BF16, STRATA_F32);

    (void)state;
    mm.bias = true;
    blas->refuses_heuristics = 1;
    assert_int_equal(ops->tensors->matmul(dev, &mm, arena, arena, arena, arena), STRATA_E_NOSYS);
    assert_non_null(strstr(strata_last_error(), "24 x 24 x 24 from bf16 to fp32")); /* nor without the bias */
    mm.epilogue = ST_EPILOGUE_GELU;
    mm.aux = arena + 4096;
    assert_int_equal(ops->tensors->matmul(dev, &mm, arena, arena, arena, arena), STRATA_E_NOSYS); /* nor without GELU */
    blas->refuses_heuristics = 0;
    mm = square(24, STRATA_BF16, STRATA_F32);
    ok(ops->tensors->matmul(dev, &mm, arena + 65536, arena, arena, NULL));
    mm = (struct st_matmul){.m = 1,
                            .n = 5000000,
                            .k = 1,
                            .lda = 1,
                            .ldb = 5000000,
                            .ldc = 5000000,
                            .bias = true,
                            .ab_dtype = STRATA_BF16,
                            .c_dtype = STRATA_F32};
    assert_int_equal(ops->tensors->matmul(dev, &mm, arena, arena, arena, arena), STRATA_E_NOSYS);
    assert_non_null(strstr(strata_last_error(), "a bias of 5000000 columns"));
    ops->close(dev);
}

/* aux and C of one matmul with each epilogue, `size` square, to out [4][size * size]. */
static void run_gelus(float *out, uint32_t size)
{
    struct st_device *dev = opened(ARENA);
    float *const arena = (float *)(void *)ops->arena(dev);
    const size_t elems = (size_t)size * size;
    struct st_matmul mm = square(size, STRATA_F32, STRATA_F32);

    assert_true(7 * elems + size <= ARENA / sizeof(float));
    for (uint32_t i = 0; i < 2 * elems + size; i++) /* a, b, bias; the emulator's memory is ours */
        arena[i] = (float)((i * 37u) % 23u) / 11 - 1;
    mm.bias = true;
    mm.epilogue = ST_EPILOGUE_GELU;
    mm.aux = arena + 3 * elems;
    for (int i = 0; i < 3; i++)
        ok(ops->tensors->matmul(dev, &mm, arena + 4 * elems, arena, arena + elems, arena + 2 * elems));
    mm.epilogue = ST_EPILOGUE_GELU_INPUT;
    mm.aux = arena + 5 * elems;
    ok(ops->tensors->matmul(dev, &mm, arena + 6 * elems, arena, arena + elems, arena + 2 * elems));
    mm.bias = false;
    mm.epilogue = ST_EPILOGUE_GELU_BACKWARD;
    ok(ops->tensors->matmul(dev, &mm, arena + 6 * elems, arena, arena + elems, NULL));
    ok(ops->finish(dev, ST_QUEUE_COMPUTE));
    memcpy(out, arena + 3 * elems, 4 * elems * sizeof(float));
    ops->close(dev);
    assert_memory_equal(out, out + 2 * elems, elems * sizeof(float)); /* GELU_INPUT's aux is GELU's */
}

/* The library's epilogue where it has one; else a pass of ours, and the library is not asked each time. */
static void gelu_is_an_epilogue_or_a_pass(void **state)
{
    enum { SIZE = 24, ELEMS = SIZE * SIZE, ODD = 25 };
    static float fused[4 * ELEMS], apart[4 * ELEMS], odd[4 * ODD * ODD];
    const struct twin_blas before = *blas;

    (void)state;
    run_gelus(fused, SIZE);
    assert_int_equal(blas->gelus - before.gelus, 4);
    assert_int_equal(blas->gelu_gradients - before.gelu_gradients, 1);
    assert_int_equal(blas->heuristics - before.heuristics, 2);
    blas->refuses_gelu = 1;
    run_gelus(apart, SIZE);
    blas->refuses_gelu = 0;
    assert_int_equal(blas->heuristics - before.heuristics, 6); /* each once with and once without */
    run_gelus(odd, ODD);                                       /* rows that the library cannot take as aux */
    assert_int_equal(blas->heuristics - before.heuristics, 8);
    assert_int_equal(blas->gelus - before.gelus, 4);
    assert_int_equal(blas->invalid, before.invalid);
    for (int i = 0; i < 4 * ELEMS; i++)
        assert_true(fabsf(fused[i] - apart[i]) <= 2e-5f);
    assert_memory_not_equal(fused, apart, sizeof(fused)); /* neither is promised the other's bits */
    blas->refuses_gelu = 1;
    blas->refuses_bias = 1; /* two passes */
    run_gelus(apart, SIZE);
    for (int i = 0; i < 4 * ELEMS; i++)
        assert_true(fabsf(fused[i] - apart[i]) <= 2e-5f);
}

enum { BIAS_ROWS = 9, BIAS_COLS = 21, BIAS_DEEP = 24, BIAS_STRIDE = 25, BIAS_ELEMS = BIAS_ROWS * BIAS_STRIDE };

/* C of one matmul with a bias; its last columns are not the matmul's. */
static void run_bias(float out[BIAS_ELEMS], strata_dtype ab, strata_dtype c, bool accumulate)
{
    struct st_device *dev = opened(ARENA);
    unsigned char *arena = ops->arena(dev);
    const struct st_matmul mm = {.m = BIAS_ROWS,
                                 .n = BIAS_COLS,
                                 .k = BIAS_DEEP,
                                 .lda = BIAS_DEEP,
                                 .ldb = BIAS_COLS,
                                 .ldc = BIAS_STRIDE,
                                 .accumulate = accumulate,
                                 .bias = true,
                                 .ab_dtype = ab,
                                 .c_dtype = c};

    for (uint32_t i = 0; i < 3 * 4096 / strata_dtype_bytes(ab); i++) /* a, b, bias; the emulator's memory is ours */
        df_set(arena, i, ab, (double)((i * 37u) % 23u) / 11 - 1);
    for (uint32_t i = 0; i < BIAS_ELEMS; i++)
        df_set(arena + 16384, i, c, (double)(i % 5));
    for (int i = 0; i < (accumulate ? 1 : 3); i++)
        ok(ops->tensors->matmul(dev, &mm, arena + 16384, arena, arena + 4096, arena + 8192));
    ok(ops->finish(dev, ST_QUEUE_COMPUTE));
    for (uint32_t i = 0; i < BIAS_ELEMS; i++)
        out[i] = (float)df_at(arena + 16384, i, c);
    ops->close(dev);
}

/* The library's epilogue where it has one; else a pass of ours, with the same one rounding. */
static void bias_is_an_epilogue_or_a_pass(void **state)
{
    static const struct {
        strata_dtype ab, c;
        bool accumulate;
        float loss;
    } cases[] = {{STRATA_F32, STRATA_F32, false, 1e-5f},
                 {STRATA_F32, STRATA_F32, true, 1e-5f},
                 {STRATA_BF16, STRATA_BF16, false, 0.04f}, /* half a unit in the last place of the largest */
                 {STRATA_F16, STRATA_F16, false, 0.005f},
                 {STRATA_BF16, STRATA_F32, false, 1e-5f}};

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        float fused[BIAS_ELEMS], apart[BIAS_ELEMS];
        const uint64_t asked = blas->heuristics;

        run_bias(fused, cases[i].ab, cases[i].c, cases[i].accumulate);
        assert_int_equal(blas->heuristics - asked, 1);
        blas->refuses_bias = 1;
        run_bias(apart, cases[i].ab, cases[i].c, cases[i].accumulate);
        blas->refuses_bias = 0;
        assert_int_equal(blas->heuristics - asked, 3); /* once with and once without */
        for (uint32_t e = 0; e < BIAS_ELEMS; e++)
            if (fabsf(fused[e] - apart[e]) > (e % BIAS_STRIDE < BIAS_COLS ? cases[i].loss : 0))
                fail_msg("case %zu, element %u: %g, not %g", i, e, (double)apart[e], (double)fused[e]);
    }
}

/* --- attention --- */

/* The driver is asked for shared memory when the device opens, and never by a launch. */
static void kernels_are_allowed_their_memory_once(void **state)
{
    const struct st_attention at = {.batch = 1,
                                    .seq = 8,
                                    .heads = 1,
                                    .kv_heads = 1,
                                    .head_dim = 128,
                                    .qkv_stride = 384,
                                    .out_stride = 128,
                                    .dt = STRATA_BF16};
    struct st_device *dev = opened(ARENA);
    unsigned char *arena = ops->arena(dev), *workspace = arena + 4 * 65536;
    float *lse = (float *)(void *)(arena + 3 * 65536);

    (void)state;
    ok(ops->zero(dev, arena, ARENA));
    for (int direction = 0; direction < 2; direction++) {
        static const char *const calls[] = {"cudaFuncSetAttribute", "cudaGetDeviceProperties", "cudaGetDevice"};

        for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
            twin_fail(calls[i], 0, UINT64_MAX, cudaErrorUnknown);
            if (direction == 0)
                ok(ops->tensors->attention_forward(dev, &at, arena + 65536, lse, arena, workspace));
            else
                ok(ops->tensors->attention_backward(dev, &at, arena + 2 * 65536, arena + 65536, arena + 65536, lse, arena,
                                                    workspace));
            assert_int_equal(twin_disarm(), 0);
        }
    }
    ops->close(dev);
}

/* --- every single failure --- */

static void ignore(void *ctx, strata_status st)
{
    (void)st;
    atomic_fetch_add((atomic_uint *)ctx, 1);
}

/* A little of everything; *told: notifications that came, which must be those that were promised. */
static strata_status a_run(unsigned char *host, bool *all_told)
{
    const struct st_matmul mm = square(8, STRATA_F32, STRATA_F32);
    struct st_matmul gelu = square(8, STRATA_BF16, STRATA_F32);
    struct st_device *dev = NULL;
    atomic_uint told = 0;
    unsigned promised = 0;
    strata_status st = ops->open(&dev, &(struct st_device_opts){.arena_bytes = ARENA});

    *all_told = true;
    if (st != STRATA_OK)
        return st;
    st = ops->pin(dev, host, 2 * BYTES, NULL);
    if (st == STRATA_OK)
        st = round_trip(dev, host);
    if (st == STRATA_OK)
        st = ops->tensors->matmul(dev, &mm, ops->arena(dev), ops->arena(dev) + 4096, ops->arena(dev) + 8192, NULL);
    if (st == STRATA_OK)
        st = ops->tensors->activation_forward(dev, ST_GELU_TANH, ops->arena(dev), ops->arena(dev), 100, STRATA_F32);
    if (st == STRATA_OK) {
        gelu.bias = true;
        gelu.epilogue = ST_EPILOGUE_GELU;
        gelu.aux = ops->arena(dev) + 12288;
        st = ops->tensors->matmul(dev, &gelu, ops->arena(dev), ops->arena(dev) + 4096, ops->arena(dev) + 8192,
                                  ops->arena(dev) + 4096);
    }
    for (unsigned q = 0; q < ST_QUEUE_COUNT && st == STRATA_OK; q++) {
        st = ops->notify(dev, (enum st_queue)q, ignore, &told);
        promised += st == STRATA_OK;
    }
    ops->close(dev);
    *all_told = atomic_load(&told) == promised;
    return st;
}

static void every_single_failure_is_clean(void **state)
{
    static const char *const calls[] = {
        "cudaGetDeviceCount",        "cudaGetDeviceProperties",  "cudaSetDevice",      "cudaMemGetInfo",       "cudaMalloc",
        "cudaStreamCreateWithFlags", "cudaEventCreateWithFlags", "cudaHostRegister",   "cudaMemcpyAsync",      "cudaMemsetAsync",
        "cudaEventRecord",           "cudaEventSynchronize",     "cudaLaunchHostFunc", "cudaFuncSetAttribute",
    };
    struct fault_walk walk = {.result = -1}; /* our own sites */
    unsigned char *host = host_memory();
    bool all_told;

    (void)state;
    while (fault_walk_next(&walk)) {
        fault_walk_end(&walk, a_run(host, &all_told));
        assert_true(all_told);
        assert_nothing_held();
    }
    for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) { /* the runtime's */
        uint32_t fired = 1;

        for (uint64_t nth = 0; fired > 0; nth++) {
            twin_fail(calls[i], nth, 1, cudaErrorUnknown);
            (void)a_run(host, &all_told);
            fired = (uint32_t)twin_disarm();
            assert_true(all_told);
            assert_nothing_held();
        }
    }
    ok(a_run(host, &all_told));
    free(host);
}

static int after_each(void **state)
{
    (void)state;
    assert_nothing_held();
    return 0;
}

#define device_test(f) cmocka_unit_test_setup_teardown(f, before_each, after_each)

int main(void)
{
    const struct CMUnitTest tests[] = {
        device_test(devices_have_names),
        device_test(a_machine_without_gpu_says_so),
        device_test(gpus_are_counted),
        device_test(gpus_are_told_apart),
        device_test(a_report_leaves_no_context),
        device_test(nccl_is_named_or_missed),
        device_test(the_arena_is_exactly_the_plans),
        device_test(what_does_not_fit_is_refused),
        device_test(without_cublas_it_does_not_open),
        device_test(pinned_memory_is_registered),
        device_test(refused_memory_is_staged),
        device_test(memory_is_registered_in_pieces),
        device_test(without_pinned_memory_copies_are_pageable),
        device_test(marks_come_in_order),
        device_test(a_mark_is_kept_until_its_callback_returns),
        device_test(a_broken_context_is_reported),
        device_test(a_deadline_ends_every_wait),
        device_test(what_comes_late_is_ignored),
        device_test(staged_copies_do_not_keep_the_caller),
        device_test(idle_queues_have_no_deadline),
        device_test(shapes_are_prepared_once),
        device_test(unsupported_matmuls_are_named),
        device_test(gelu_is_an_epilogue_or_a_pass),
        device_test(bias_is_an_epilogue_or_a_pass),
        device_test(kernels_are_allowed_their_memory_once),
        device_test(every_single_failure_is_clean),
    };
    void *library;

    blas_file = getenv("STRATA_CUBLASLT");
    blas_file = blas_file != NULL ? strdup(blas_file) : NULL;
    library = blas_file != NULL ? dlopen(blas_file, RTLD_NOW | RTLD_NODELETE) : NULL;
    blas = library != NULL ? dlsym(library, TWIN_BLAS_SYMBOL) : NULL;
    if (blas == NULL) {
        fputs("STRATA_CUBLASLT must name the emulator's library\n", stderr);
        return 1;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
