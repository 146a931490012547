/* kernels/matmul/matmul.c - shapes of matmul blocks: prepares each once, chooses what multiplies it, and cuts and widens those
 * that the library cannot multiply.
 *
 * The widened path cuts K in pieces of WIDEN_K, so that its scratch is bounded: each piece of A and B becomes fp32 and is
 * multiplied into an fp32 C, which is rounded at the end when C has 16 bits.  fp16 is always widened: few processors can multiply
 * it, and the library refuses it on the others. */
#include "kernels/matmul/matmul.h"
#include "kernels/kernels.h"
#include "kernels/matmul/matmul_amx_internal.h"
#include "kernels/matmul/matmul_dnnl_internal.h"
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define WIDEN_K       1024u /* 256 x 1024 and 1024 x 768 floats are 4 MiB: the tiles that device_cpu requests stay in cache */
#define SCRATCH_ALIGN 64u
#define STEPS_MAX     3u

/* Steps run in order, step i `repeat[i]` times on the next k[i] of K; the library's products, of which tiles have none. */
struct shape {
    struct st_matmul mm; /* padding zeroed: compared by memcmp */
    struct st_dnnl_product *step[STEPS_MAX];
    uint32_t step_count;
    uint32_t k[STEPS_MAX], repeat[STEPS_MAX];
    enum st_matmul_path path;                     /* WIDENED: A and B go through fp32 scratch */
    bool round_c;                                 /* C is computed in fp32 scratch and rounded */
    size_t a_bytes, b_bytes, c_bytes, bias_bytes; /* of that scratch */
};

struct scratch {
    unsigned char *base;
    size_t bytes;
};

struct st_matmul_engine {
    struct st_dnnl *lib;
    struct scratch *scratch; /* [workers]; its layout depends on the shape */
    struct shape **shape;    /* [shape_count], in order of preparation: the id */
    int32_t *slot;           /* [slot_count] open hash of ids, -1 empty */
    uint32_t workers, shape_count, shape_capacity, slot_count;
    enum st_matmul_path bf16;
    const struct st_kernels *kernels; /* for casts, which every table does exactly or to nearest even */
};

static size_t align_up(size_t bytes)
{
    return (bytes + SCRATCH_ALIGN - 1) / SCRATCH_ALIGN * SCRATCH_ALIGN;
}

/* --- shapes --- */

static void shape_destroy(struct shape *sh)
{
    if (sh == NULL)
        return;
    for (uint32_t i = 0; i < STEPS_MAX; i++)
        st_dnnl_product_destroy(sh->step[i]);
    free(sh);
}

/* Sets dense leading dimensions, as widened pieces have. */
static void piece_ld(struct st_matmul *mm)
{
    mm->lda = mm->trans_a ? mm->m : mm->k;
    mm->ldb = mm->trans_b ? mm->k : mm->n;
}

/* Cuts K into a first piece, further pieces of equal size and a remainder. */
static int widened_steps(struct shape *sh, struct st_matmul_engine *e)
{
    const uint32_t k = sh->mm.k, first = k < WIDEN_K ? k : WIDEN_K;
    const uint32_t length[STEPS_MAX] = {first, WIDEN_K, (k - first) % WIDEN_K};
    const uint32_t repeat[STEPS_MAX] = {1, (k - first) / WIDEN_K, (k - first) % WIDEN_K != 0};
    int rc;

    for (uint32_t i = 0; i < STEPS_MAX; i++) {
        struct st_matmul mm = sh->mm;

        if (repeat[i] == 0)
            continue;
        mm.k = length[i];
        piece_ld(&mm);
        mm.ab_dtype = STRATA_F32;
        mm.c_dtype = STRATA_F32;
        mm.ldc = sh->round_c ? mm.n : mm.ldc;
        mm.accumulate = mm.accumulate || i > 0;
        mm.bias = mm.bias && i == 0;
        sh->k[sh->step_count] = length[i];
        sh->repeat[sh->step_count] = repeat[i];
        if ((rc = st_dnnl_product_create(&sh->step[sh->step_count++], e->lib, &mm)) != 0)
            return rc;
    }
    sh->a_bytes = align_up(4 * (size_t)sh->mm.m * first);
    sh->b_bytes = align_up(4 * (size_t)sh->mm.n * first);
    sh->bias_bytes = sh->mm.bias ? align_up(4 * (size_t)sh->mm.n) : 0;
    return 0;
}

static int plain_step(struct shape *sh, struct st_matmul_engine *e)
{
    struct st_matmul mm = sh->mm;

    if (sh->round_c) {
        mm.c_dtype = STRATA_F32;
        mm.ldc = mm.n;
    }
    sh->step_count = 1;
    sh->k[0] = mm.k;
    sh->repeat[0] = 1;
    return st_dnnl_product_create(&sh->step[0], e->lib, &mm);
}

static int shape_create(struct shape **out, struct st_matmul_engine *e, const struct st_matmul *mm)
{
    struct shape *sh = calloc(1, sizeof(*sh));
    int rc;

    if (sh == NULL)
        return ST_MATMUL_NO_MEMORY;
    memcpy(&sh->mm, mm, sizeof(*mm));
    sh->path = st_matmul_path_of(e, mm);
    sh->round_c = mm->c_dtype != STRATA_F32 && (sh->path == ST_MATMUL_WIDENED || mm->ab_dtype == STRATA_F32);
    sh->c_bytes = sh->round_c ? align_up(4 * (size_t)mm->m * mm->n) : 0;
    rc = sh->path == ST_MATMUL_TILES ? 0 : sh->path == ST_MATMUL_WIDENED ? widened_steps(sh, e) : plain_step(sh, e);
    if (rc == 0)
        *out = sh;
    else
        shape_destroy(sh);
    return rc;
}

static size_t shape_scratch_bytes(const struct shape *sh)
{
    size_t pad = sh->path == ST_MATMUL_TILES ? st_amx_scratch(&sh->mm) : 0;

    for (uint32_t i = 0; i < sh->step_count; i++)
        pad = st_dnnl_product_scratchpad(sh->step[i]) > pad ? st_dnnl_product_scratchpad(sh->step[i]) : pad;
    return sh->a_bytes + sh->b_bytes + sh->c_bytes + sh->bias_bytes + align_up(pad);
}

/* --- the table of shapes --- */

static uint32_t hash(const struct st_matmul *mm)
{
    unsigned char bytes[sizeof(*mm)];
    uint32_t h = 2166136261u; /* FNV-1a */

    memcpy(bytes, mm, sizeof(bytes));
    for (size_t i = 0; i < sizeof(bytes); i++)
        h = (h ^ bytes[i]) * 16777619u;
    return h;
}

/* The slot that holds mm, or the empty one where it belongs. */
static uint32_t find_slot(const struct st_matmul_engine *e, const struct st_matmul *mm)
{
    uint32_t i = hash(mm) & (e->slot_count - 1);

    while (e->slot[i] >= 0 && memcmp(&e->shape[e->slot[i]]->mm, mm, sizeof(*mm)) != 0)
        i = (i + 1) & (e->slot_count - 1);
    return i;
}

static int grow_table(struct st_matmul_engine *e)
{
    const uint32_t capacity = e->shape_capacity == 0 ? 64 : 2 * e->shape_capacity;
    struct shape **shape = realloc(e->shape, capacity * sizeof(struct shape *));
    int32_t *slot;

    if (shape == NULL)
        return ST_MATMUL_NO_MEMORY;
    e->shape = shape;
    slot = realloc(e->slot, 2 * capacity * sizeof(*slot));
    if (slot == NULL)
        return ST_MATMUL_NO_MEMORY;
    e->slot = slot;
    e->shape_capacity = capacity;
    e->slot_count = 2 * capacity;
    memset(e->slot, 0xff, e->slot_count * sizeof(*slot));
    for (uint32_t i = 0; i < e->shape_count; i++)
        e->slot[find_slot(e, &e->shape[i]->mm)] = (int32_t)i;
    return 0;
}

static int grow_scratch(struct st_matmul_engine *e, size_t bytes)
{
    for (uint32_t w = 0; w < e->workers; w++) {
        unsigned char *base;

        if (e->scratch[w].bytes >= bytes)
            continue;
        base = aligned_alloc(SCRATCH_ALIGN, bytes);
        if (base == NULL)
            return ST_MATMUL_NO_MEMORY;
        free(e->scratch[w].base);
        e->scratch[w] = (struct scratch){base, bytes};
    }
    return 0;
}

/* A copy whose padding is zero, so that equal shapes are equal bytes. */
static void normalise(struct st_matmul *out, const struct st_matmul *mm)
{
    memset(out, 0, sizeof(*out));
    out->m = mm->m;
    out->n = mm->n;
    out->k = mm->k;
    out->lda = mm->lda;
    out->ldb = mm->ldb;
    out->ldc = mm->ldc;
    out->trans_a = mm->trans_a;
    out->trans_b = mm->trans_b;
    out->accumulate = mm->accumulate;
    out->bias = mm->bias;
    out->ab_dtype = mm->ab_dtype;
    out->c_dtype = mm->c_dtype;
}

static bool supported(const struct st_matmul *mm)
{
    const bool ab = mm->ab_dtype != STRATA_DTYPE_INVALID;
    const bool c = mm->c_dtype == STRATA_F32 || mm->c_dtype == mm->ab_dtype ||
                   (mm->ab_dtype == STRATA_F32 && mm->c_dtype != STRATA_DTYPE_INVALID);

    return ab && c && (mm->c_dtype == STRATA_F32 || !mm->accumulate) && mm->m > 0 && mm->n > 0 && mm->k > 0 &&
           mm->epilogue == ST_EPILOGUE_NONE;
}

int st_matmul_prepare(struct st_matmul_engine *e, const struct st_matmul *mm)
{
    struct st_matmul key;
    struct shape *sh;
    uint32_t slot;
    int rc;

    if (!supported(mm))
        return -ST_MATMUL_UNSUPPORTED;
    normalise(&key, mm);
    slot = find_slot(e, &key);
    if (e->slot[slot] >= 0)
        return e->slot[slot];
    if (e->shape_count == e->shape_capacity) {
        if ((rc = grow_table(e)) != 0)
            return -rc;
        slot = find_slot(e, &key);
    }
    if ((rc = shape_create(&sh, e, &key)) != 0)
        return -rc;
    if ((rc = grow_scratch(e, shape_scratch_bytes(sh))) != 0) {
        shape_destroy(sh);
        return -rc;
    }
    e->shape[e->shape_count] = sh;
    e->slot[slot] = (int32_t)e->shape_count;
    return (int)e->shape_count++;
}

/* --- running --- */

static st_cast_bf16_f32_fn *widening_of(const struct st_matmul_engine *e, const struct st_matmul *mm)
{
    return mm->ab_dtype == STRATA_F16 ? e->kernels->f16_to_f32 : e->kernels->bf16_to_f32;
}

/* Widens rows x cols of src (leading dimension lds) to dense fp32. */
static void widen(st_cast_bf16_f32_fn *cast, float *dst, const uint16_t *src, size_t lds, uint32_t rows, uint32_t cols)
{
    for (size_t r = 0; r < rows; r++)
        cast(dst + r * cols, src + r * lds, cols);
}

static void widen_a(st_cast_bf16_f32_fn *cast, const struct st_matmul *mm, float *dst, const uint16_t *a, uint32_t k0, uint32_t k)
{
    if (mm->trans_a)
        widen(cast, dst, a + (size_t)k0 * mm->lda, mm->lda, k, mm->m);
    else
        widen(cast, dst, a + k0, mm->lda, mm->m, k);
}

static void widen_b(st_cast_bf16_f32_fn *cast, const struct st_matmul *mm, float *dst, const uint16_t *b, uint32_t k0, uint32_t k)
{
    if (mm->trans_b)
        widen(cast, dst, b + k0, mm->ldb, mm->n, k);
    else
        widen(cast, dst, b + (size_t)k0 * mm->ldb, mm->ldb, k, mm->n);
}

static int run_widened(struct st_matmul_engine *e, const struct shape *sh, uint32_t worker, float *c, const uint16_t *a,
                       const uint16_t *b, const uint16_t *bias, unsigned char *scratch)
{
    float *const wide_a = (float *)(void *)scratch;
    float *const wide_b = (float *)(void *)(scratch + sh->a_bytes);
    float *const wide_bias = (float *)(void *)(scratch + sh->a_bytes + sh->b_bytes);
    void *const scratchpad = scratch + sh->a_bytes + sh->b_bytes + sh->bias_bytes;
    st_cast_bf16_f32_fn *const cast = widening_of(e, &sh->mm);
    uint32_t k0 = 0;

    if (sh->mm.bias)
        cast(wide_bias, bias, sh->mm.n);
    for (uint32_t i = 0; i < sh->step_count; i++) {
        for (uint32_t j = 0; j < sh->repeat[i]; j++) {
            int rc;

            widen_a(cast, &sh->mm, wide_a, a, k0, sh->k[i]);
            widen_b(cast, &sh->mm, wide_b, b, k0, sh->k[i]);
            rc = st_dnnl_product_run(sh->step[i], worker, c, wide_a, wide_b, wide_bias, scratchpad);
            if (rc != 0)
                return rc;
            k0 += sh->k[i];
        }
    }
    return 0;
}

int st_matmul_run(struct st_matmul_engine *e, int id, uint32_t worker, void *c, const void *a, const void *b, const void *bias)
{
    const struct shape *sh = e->shape[id];
    unsigned char *scratch = e->scratch[worker].base;
    float *const wide_c = sh->round_c ? (float *)(void *)scratch : c;
    st_cast_f32_bf16_fn *const round = sh->mm.c_dtype == STRATA_F16 ? e->kernels->f32_to_f16 : e->kernels->f32_to_bf16;
    int rc = 0;

    assert(id >= 0 && (uint32_t)id < e->shape_count && worker < e->workers);
    if (sh->c_bytes > 0) /* without widening there is no memory to begin with */
        scratch += sh->c_bytes;
    if (sh->path == ST_MATMUL_TILES)
        st_amx_run(&sh->mm, c, a, b, bias, scratch);
    else if (sh->path == ST_MATMUL_WIDENED)
        rc = run_widened(e, sh, worker, wide_c, a, b, bias, scratch);
    else
        rc = st_dnnl_product_run(sh->step[0], worker, wide_c, a, b, bias, scratch);
    for (size_t r = 0; rc == 0 && sh->round_c && r < sh->mm.m; r++)
        round((uint16_t *)c + r * sh->mm.ldc, wide_c + r * sh->mm.n, sh->mm.n);
    return rc;
}

/* --- the engine --- */

int st_matmul_create(struct st_matmul_engine **out, uint32_t workers)
{
    struct st_matmul_engine *e = calloc(1, sizeof(*e));
    int rc;

    if (e == NULL)
        return ST_MATMUL_NO_MEMORY;
    e->workers = workers;
    e->kernels = st_kernels_pick(NULL);
    e->scratch = calloc(workers, sizeof(*e->scratch));
    rc = e->scratch != NULL ? grow_table(e) : ST_MATMUL_NO_MEMORY;
    if (rc != 0 || (rc = st_dnnl_create(&e->lib, workers)) != 0) {
        st_matmul_destroy(e);
        return rc;
    }
    e->bf16 = st_dnnl_bf16_path();
    *out = e;
    return 0;
}

void st_matmul_destroy(struct st_matmul_engine *e)
{
    if (e == NULL)
        return;
    for (uint32_t i = 0; i < e->shape_count; i++)
        shape_destroy(e->shape[i]);
    for (uint32_t w = 0; e->scratch != NULL && w < e->workers; w++)
        free(e->scratch[w].base);
    st_dnnl_destroy(e->lib);
    free(e->scratch);
    free(e->shape);
    free(e->slot);
    free(e);
}

enum st_matmul_path st_matmul_path_of(const struct st_matmul_engine *e, const struct st_matmul *mm)
{
    if (mm->ab_dtype == STRATA_BF16)
        return e->bf16 == ST_MATMUL_TILES && mm->m == 1 ? ST_MATMUL_LIBRARY : e->bf16;
    return mm->ab_dtype == STRATA_F16 ? ST_MATMUL_WIDENED : ST_MATMUL_LIBRARY;
}

void st_matmul_limit(struct st_matmul_engine *e, enum st_matmul_path bf16)
{
    assert(e->shape_count == 0);
    e->bf16 = e->bf16 < bf16 ? e->bf16 : bf16;
}
