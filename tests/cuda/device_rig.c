/* tests/cuda/device_rig.c - see device_rig.h. */
#include "tests/cuda/device_rig.h"
#include <dlfcn.h>

const struct st_device_ops *const ops = &st_device_cuda_ops;
struct twin_blas *blas;
const char *blas_file;

int before_each(void **state)
{
    (void)state;
    twin_reset();
    setenv("STRATA_CUBLASLT", blas_file, 1);
    blas->refuses_heuristics = 0;
    blas->refuses_gelu = 0;
    blas->refuses_bias = 0;
    blas->offered = 0;
    blas->claims = 0;
    blas->code_bytes = 0;
    return 0;
}

void assert_nothing_held(void)
{
    const struct twin_holdings held = twin_held();

    assert_int_equal(held.device_bytes, 0);
    assert_int_equal(held.pinned_bytes, 0);
    assert_int_equal(held.streams, 0);
    assert_int_equal(held.events, 0);
    assert_int_equal(blas->objects, 0);
}

struct st_device *opened(uint64_t arena_bytes)
{
    struct st_device *dev = NULL;

    ok(ops->open(&dev, &(struct st_device_opts){.arena_bytes = arena_bytes}));
    return dev;
}

int after_each(void **state)
{
    (void)state;
    assert_nothing_held();
    return 0;
}

unsigned char *host_memory(void)
{
    unsigned char *p = aligned_alloc(4096, (2 * BYTES + 4095) / 4096 * 4096);

    assert_non_null(p);
    for (uint64_t i = 0; i < BYTES; i++)
        p[i] = (unsigned char)(i * 2654435761u >> 13);
    return p;
}

void to_device(void *device, const void *host, size_t bytes)
{
    assert_int_equal(cudaMemcpy(device, host, bytes, cudaMemcpyHostToDevice), cudaSuccess);
}

void from_device(void *host, const void *device, size_t bytes)
{
    assert_int_equal(cudaMemcpy(host, device, bytes, cudaMemcpyDeviceToHost), cudaSuccess);
}

strata_status round_trip(struct st_device *dev, unsigned char *host)
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

void assert_round_trip(struct st_device *dev, unsigned char *host)
{
    static const unsigned char zeros[7];

    memset(host + BYTES, 0xee, BYTES);
    ok(round_trip(dev, host));
    assert_memory_equal(host + BYTES, host, BYTES - 7);
    assert_memory_equal(host + 2 * BYTES - 7, zeros, 7);
}

struct st_matmul square(uint32_t size, strata_dtype ab, strata_dtype c)
{
    return (struct st_matmul){
        .m = size, .n = size, .k = size, .lda = size, .ldb = size, .ldc = size, .ab_dtype = ab, .c_dtype = c};
}

void take_note(void *ctx, strata_status st)
{
    struct note *n = ctx;

    n->st = st;
    if (st != STRATA_OK)
        strncpy(n->text, strata_last_error(), sizeof(n->text) - 1);
    if (n->landed != NULL)
        n->value = *n->landed;
    n->came = atomic_fetch_add(n->clock, 1) + 1;
}

bool device_rig_load(void)
{
    void *library;

    blas_file = getenv("STRATA_CUBLASLT");
    blas_file = blas_file != NULL ? strdup(blas_file) : NULL;
    library = blas_file != NULL ? dlopen(blas_file, RTLD_NOW | RTLD_NODELETE) : NULL;
    blas = library != NULL ? dlsym(library, TWIN_BLAS_SYMBOL) : NULL;
    if (blas == NULL)
        fputs("STRATA_CUBLASLT must name the emulator's library\n", stderr);
    return blas != NULL;
}
