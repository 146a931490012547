/* The cuda device where only the emulator can go: opening and what refuses it, pinned memory and what stands in for it, and every
 * single failure.  What its ops compute is checked by the contract tests of tests/offload, run on it; its queues and products by
 * test_cuda_queues.c and test_cuda_matmul.c. */
#include "offload/device/cuda/gpu_report.h"
#include "tests/common/fault_walk.h"
#include "tests/cuda/device_rig.h"

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

TEST_SETUP(devices_have_names, before_each, after_each)
{
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

TEST_SETUP(a_machine_without_gpu_says_so, before_each, after_each)
{
    struct st_device_memory memory;
    struct st_gpu_report report;

    twin_remove_driver();
    assert_refused(&(struct st_device_opts){.arena_bytes = ARENA}, STRATA_E_NOSYS, "driver");
    assert_int_equal(ops->memory(0, &memory), STRATA_E_NOSYS);
    st_gpu_report(&report);
    assert_int_equal(report.count, 0);
    assert_non_null(strstr(report.problem, "driver"));
    twin_reset();
    twin_set_devices(0, 0);
    assert_refused(&(struct st_device_opts){.arena_bytes = ARENA}, STRATA_E_NOSYS, "machine.device cpu");
}

TEST_SETUP(gpus_are_counted, before_each, after_each)
{
    struct st_device_memory memory;
    struct st_gpu_report report;
    struct st_device *dev = NULL;

    twin_set_devices(2, UINT64_C(4) << 30);
    assert_refused(&(struct st_device_opts){.index = 2}, STRATA_E_NOSYS, "2 GPUs");
    ok(ops->open(&dev, &(struct st_device_opts){.arena_bytes = ARENA, .index = 1}));
    ok(ops->memory(1, &memory));
    assert_string_equal(memory.name, "Emulated GPU 1");
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
TEST_SETUP(gpus_are_told_apart, before_each, after_each)
{
    struct st_device_memory memory;
    struct st_gpu_report report;

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
TEST_SETUP(a_report_leaves_no_context, before_each, after_each)
{
    struct st_gpu_report report;

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
TEST_SETUP(nccl_is_named_or_missed, before_each, after_each)
{
    struct st_gpu_report report;

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

/* What a kind of GPU lacks, and whose its memory is; one that is too old is refused. */
TEST_SETUP(kinds_of_gpus_are_told, before_each, after_each)
{
    static const struct {
        enum twin_kind kind;
        enum st_memory_kind memory;
        uint32_t capability;
        bool lacks_bf16;
    } kinds[] = {{TWIN_CARD, ST_MEMORY_OWN, 90, false},
                 {TWIN_TURING, ST_MEMORY_OWN, 75, true},
                 {TWIN_UNIFIED, ST_MEMORY_UNIFIED, 121, false},
                 {TWIN_COHERENT, ST_MEMORY_COHERENT, 90, false}};
    struct st_gpu_report report;
    struct st_device_memory memory;
    struct st_device *dev = NULL;

    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        twin_set_kind(kinds[i].kind);
        st_gpu_report(&report);
        assert_string_equal(report.problem, "");
        assert_int_equal(10 * report.gpus[0].major + report.gpus[0].minor, kinds[i].capability);
        assert_int_equal(report.gpus[0].memory, kinds[i].memory);
        assert_int_equal(report.gpus[0].lacks_bf16, kinds[i].lacks_bf16);
        ok(ops->memory(0, &memory));
        assert_int_equal(memory.kind, kinds[i].memory);
        ok(ops->open(&dev, &(struct st_device_opts){.arena_bytes = ARENA}));
        ops->close(dev);
    }
    twin_set_kind(TWIN_TURING);
    twin_fail("cudaFuncSetAttribute", 0, 1, cudaErrorInvalidDeviceFunction);
    assert_refused(&(struct st_device_opts){.arena_bytes = ARENA}, STRATA_E_NOSYS, "STRATA_CUDA_ARCHITECTURES=native");
    assert_int_equal(twin_disarm(), 1);
    twin_set_kind(TWIN_VOLTA);
    assert_refused(&(struct st_device_opts){.arena_bytes = ARENA}, STRATA_E_NOSYS, "7.5 is needed");
    st_gpu_report(&report);
    assert_true(report.gpus[0].lacks_bf16);
}

TEST_SETUP(the_arena_is_exactly_the_plans, before_each, after_each)
{
    struct st_device *dev = opened(ARENA);

    assert_int_equal(twin_held().device_bytes, ARENA + ST_CUDA_WORKSPACE);
    assert_non_null(ops->arena(dev));
    ops->close(dev);
}

TEST_SETUP(what_does_not_fit_is_refused, before_each, after_each)
{
    assert_refused(&(struct st_device_opts){.arena_bytes = UINT64_C(1) << 30}, STRATA_E_NOFIT, "free");
    twin_fail("cudaMalloc", 0, 1, cudaErrorMemoryAllocation);
    assert_refused(&(struct st_device_opts){.arena_bytes = ARENA}, STRATA_E_NOFIT, "strata.device_memory");
    assert_int_equal(twin_disarm(), 1);
    twin_fail("cudaMalloc", 1, 1, cudaErrorMemoryAllocation);
    assert_refused(&(struct st_device_opts){.arena_bytes = ARENA}, STRATA_E_DEVICE_OOM, "workspace");
    assert_int_equal(twin_disarm(), 1);
}

TEST_SETUP(without_cublas_it_does_not_open, before_each, after_each)
{
    setenv("STRATA_CUBLASLT", "/nonexistent/libcublasLt.so.13", 1);
    assert_refused(&(struct st_device_opts){.arena_bytes = ARENA}, STRATA_E_NOSYS, "/nonexistent/libcublasLt.so.13");
    setenv("STRATA_CUBLASLT", "libm.so.6", 1);
    assert_refused(&(struct st_device_opts){.arena_bytes = ARENA}, STRATA_E_NOSYS, "has no cublasLtGetVersion");
}

/* --- copies --- */

TEST_SETUP(pinned_memory_is_registered, before_each, after_each)
{
    unsigned char *host = host_memory();
    struct st_device *dev = opened(ARENA);

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

TEST_SETUP(refused_memory_is_staged, before_each, after_each)
{
    unsigned char *host = host_memory();
    struct st_device *dev = opened(ARENA);
    struct st_staged staged;

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
TEST_SETUP(memory_is_registered_in_pieces, before_each, after_each)
{
    const uint64_t bytes = 2 * ST_CUDA_PIECE_MIN + 8192, first = ST_CUDA_PIECE_MIN - BYTES / 2;
    unsigned char *host = aligned_alloc(4096, bytes);

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

TEST_SETUP(without_pinned_memory_copies_are_pageable, before_each, after_each)
{
    unsigned char *host = host_memory();
    struct st_device *dev = opened(ARENA);
    const struct st_fault_spec fault = {.site = "cuda.host_alloc", .count = 0, .result = -1};
    struct st_staged staged;

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

/* An error that somebody else's call, or a question for what is not ready, left on the thread. */
TEST_SETUP(an_old_error_is_no_launchs, before_each, after_each)
{
    struct st_device *dev = opened(ARENA);
    unsigned char *arena = ops->arena(dev);
    void *too_much;
    uint64_t ns;

    assert_int_equal(cudaMalloc(&too_much, SIZE_MAX / 2), cudaErrorMemoryAllocation);
    ok(ops->tensors->activation_forward(dev, ST_GELU_TANH, arena, arena, 100, STRATA_F32));
    ok(ops->stamps(dev, 2));
    twin_be_lazy(1);
    ok(ops->stamp(dev, ST_QUEUE_COMPUTE, 0));
    ok(ops->stamp(dev, ST_QUEUE_COMPUTE, 1));
    ok(ops->stamp_ns(dev, 0, 1, &ns));
    assert_int_equal(cudaPeekAtLastError(), cudaSuccess);
    twin_be_lazy(0);
    ops->close(dev);
}

TEST_SETUP(every_single_failure_is_clean, before_each, after_each)
{
    static const char *const calls[] = {
        "cudaGetDeviceCount",
        "cudaGetDeviceProperties",
        "cudaSetDevice",
        "cudaMemGetInfo",
        "cudaMalloc",
        "cudaDeviceGetStreamPriorityRange",
        "cudaStreamCreateWithPriority",
        "cudaEventCreateWithFlags",
        "cudaHostRegister",
        "cudaMemcpyAsync",
        "cudaMemsetAsync",
        "cudaEventRecord",
        "cudaEventSynchronize",
        "twin_launch",
        "cudaFuncSetAttribute",
    };
    struct fault_walk walk = {.result = -1}; /* our own sites */
    unsigned char *host = host_memory();
    bool all_told;

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
            assert_int_equal(cudaPeekAtLastError(), cudaSuccess);
        }
    }
    ok(a_run(host, &all_told));
    free(host);
}

TEST_MAIN(argc, argv)
{
    return device_rig_load() ? test_run(NULL, NULL) : 1;
}
