/* kernels/matmul/matmul_dnnl.c - oneDNN 2.x or 3.x: the only file that includes dnnl.h.
 *
 * Every call is single-threaded: a thread that enters the library sets the size of its OpenMP team to one, and back when it
 * leaves, since the caller's thread, which is a worker, too, may have a team for work of its own.  All workers can share a
 * primitive, since each passes a scratchpad of its own.
 *
 * The versions differ in descriptors: 2.x has memory descriptors that are values, and an operation descriptor between them and
 * the primitive descriptor; 3.x has opaque memory descriptors and no operation descriptor.  cmake/find_dnnl.cmake checks the
 * version. */
#include "core/base/cpu.h"
#include "kernels/matmul/matmul_dnnl_internal.h"
#include <dnnl.h>
#include <stdio.h>
#include <stdlib.h>

/* From libgomp, which oneDNN uses.  Declared here because omp.h belongs to a compiler, not to the library. */
int omp_get_max_threads(void);
void omp_set_num_threads(int threads);

_Static_assert(dnnl_out_of_memory == ST_MATMUL_NO_MEMORY && dnnl_unimplemented == ST_MATMUL_UNSUPPORTED, "a library's status");

enum { ARG_A, ARG_B, ARG_C, ARG_BIAS, ARG_SCRATCH, ARG_COUNT };

struct st_dnnl {
    dnnl_engine_t engine;
    dnnl_stream_t *stream; /* [workers] */
    uint32_t workers;
};

struct st_dnnl_product {
    struct st_dnnl *lib;
    dnnl_primitive_t primitive;
    dnnl_memory_t *memory; /* [workers][ARG_COUNT]; NULL where unused */
    dnnl_memory_desc_t desc[ARG_COUNT];
    size_t scratchpad_bytes;
    bool bias;
};

/* The team size is a property of the calling thread.  What it was, for team_restore(). */
static int team_of_one(void)
{
    const int before = omp_get_max_threads();

    if (before != 1)
        omp_set_num_threads(1);
    return before;
}

static void team_restore(int before)
{
    if (before != 1)
        omp_set_num_threads(before);
}

/* --- differences between the versions --- */

#if DNNL_VERSION_MAJOR >= 3

typedef const_dnnl_memory_desc_t desc_ref;

static desc_ref ref_of(const dnnl_memory_desc_t *desc)
{
    return *desc;
}

static dnnl_status_t desc_init(dnnl_memory_desc_t *desc, const dnnl_dims_t dims, dnnl_data_type_t type, const dnnl_dims_t strides)
{
    return dnnl_memory_desc_create_with_strides(desc, 2, dims, type, strides);
}

static dnnl_status_t desc_copy(dnnl_memory_desc_t *desc, desc_ref from)
{
    return dnnl_memory_desc_clone(desc, from);
}

static void desc_fini(dnnl_memory_desc_t *desc)
{
    if (*desc != NULL)
        dnnl_memory_desc_destroy(*desc);
}

static dnnl_status_t append_sum(dnnl_post_ops_t ops)
{
    return dnnl_post_ops_append_sum(ops, 1.0f, 0, dnnl_data_type_undef);
}

static dnnl_status_t matmul_desc(dnnl_primitive_desc_t *pd, dnnl_engine_t engine, desc_ref a, desc_ref b, desc_ref bias,
                                 desc_ref c, const_dnnl_primitive_attr_t attr)
{
    return dnnl_matmul_primitive_desc_create(pd, engine, a, b, bias, c, attr);
}

#else

typedef const dnnl_memory_desc_t *desc_ref;

static desc_ref ref_of(const dnnl_memory_desc_t *desc)
{
    return desc;
}

static dnnl_status_t desc_init(dnnl_memory_desc_t *desc, const dnnl_dims_t dims, dnnl_data_type_t type, const dnnl_dims_t strides)
{
    return dnnl_memory_desc_init_by_strides(desc, 2, dims, type, strides);
}

static dnnl_status_t desc_copy(dnnl_memory_desc_t *desc, desc_ref from)
{
    *desc = *from;
    return dnnl_success;
}

static void desc_fini(dnnl_memory_desc_t *desc)
{
    (void)desc;
}

static dnnl_status_t append_sum(dnnl_post_ops_t ops)
{
    return dnnl_post_ops_append_sum(ops, 1.0f);
}

static dnnl_status_t matmul_desc(dnnl_primitive_desc_t *pd, dnnl_engine_t engine, desc_ref a, desc_ref b, desc_ref bias,
                                 desc_ref c, const_dnnl_primitive_attr_t attr)
{
    dnnl_matmul_desc_t op;
    dnnl_status_t rc = dnnl_matmul_desc_init(&op, a, b, bias, c);

    return rc == dnnl_success ? dnnl_primitive_desc_create(pd, &op, attr, engine, NULL) : rc;
}

#endif

/* --- products --- */

static dnnl_data_type_t data_type(strata_dtype dt)
{
    return dt == STRATA_BF16 ? dnnl_bf16 : dnnl_f32;
}

static dnnl_status_t make_desc(dnnl_memory_desc_t *desc, uint32_t rows, uint32_t cols, uint32_t ld, bool trans, strata_dtype dt)
{
    const dnnl_dims_t dims = {rows, cols};
    const dnnl_dims_t strides = {trans ? 1 : ld, trans ? ld : 1};

    return desc_init(desc, dims, data_type(dt), strides);
}

static dnnl_status_t make_attr(dnnl_primitive_attr_t *out, bool accumulate)
{
    dnnl_primitive_attr_t attr = NULL;
    dnnl_post_ops_t ops = NULL;
    dnnl_status_t rc = dnnl_primitive_attr_create(&attr);

    if (rc == 0)
        rc = dnnl_primitive_attr_set_scratchpad_mode(attr, dnnl_scratchpad_mode_user);
    if (rc == 0 && accumulate) {
        rc = dnnl_post_ops_create(&ops);
        if (rc == 0)
            rc = append_sum(ops);
        if (rc == 0)
            rc = dnnl_primitive_attr_set_post_ops(attr, ops);
        dnnl_post_ops_destroy(ops);
    }
    if (rc == 0)
        *out = attr;
    else
        dnnl_primitive_attr_destroy(attr);
    return rc;
}

static dnnl_status_t make_primitive(struct st_dnnl_product *s, const struct st_matmul *mm)
{
    dnnl_primitive_attr_t attr = NULL;
    dnnl_primitive_desc_t pd = NULL;
    dnnl_status_t rc = make_desc(&s->desc[ARG_A], mm->m, mm->k, mm->lda, mm->trans_a, mm->ab_dtype);

    if (rc == 0)
        rc = make_desc(&s->desc[ARG_B], mm->k, mm->n, mm->ldb, mm->trans_b, mm->ab_dtype);
    if (rc == 0)
        rc = make_desc(&s->desc[ARG_C], mm->m, mm->n, mm->ldc, false, mm->c_dtype);
    if (rc == 0 && mm->bias)
        rc = make_desc(&s->desc[ARG_BIAS], 1, mm->n, mm->n, false, mm->ab_dtype);
    if (rc == 0)
        rc = make_attr(&attr, mm->accumulate);
    if (rc == 0)
        rc = matmul_desc(&pd, s->lib->engine, ref_of(&s->desc[ARG_A]), ref_of(&s->desc[ARG_B]),
                         mm->bias ? ref_of(&s->desc[ARG_BIAS]) : NULL, ref_of(&s->desc[ARG_C]), attr);
    if (rc == 0)
        rc = desc_copy(&s->desc[ARG_SCRATCH], dnnl_primitive_desc_query_md(pd, dnnl_query_scratchpad_md, 0));
    if (rc == 0) {
        s->scratchpad_bytes = dnnl_memory_desc_get_size(ref_of(&s->desc[ARG_SCRATCH]));
        s->bias = mm->bias;
        rc = dnnl_primitive_create(&s->primitive, pd);
    }
    dnnl_primitive_desc_destroy(pd);
    dnnl_primitive_attr_destroy(attr);
    return rc;
}

static dnnl_status_t make_memory(struct st_dnnl_product *s)
{
    const uint32_t workers = s->lib->workers;

    s->memory = calloc((size_t)workers * ARG_COUNT, sizeof(dnnl_memory_t));
    if (s->memory == NULL)
        return dnnl_out_of_memory;
    for (uint32_t w = 0; w < workers; w++) {
        for (uint32_t arg = 0; arg < ARG_COUNT; arg++) {
            dnnl_status_t rc;

            if ((arg == ARG_BIAS && !s->bias) || (arg == ARG_SCRATCH && s->scratchpad_bytes == 0))
                continue;
            rc = dnnl_memory_create(&s->memory[w * ARG_COUNT + arg], ref_of(&s->desc[arg]), s->lib->engine, DNNL_MEMORY_NONE);
            if (rc != dnnl_success)
                return rc;
        }
    }
    return dnnl_success;
}

int st_dnnl_product_create(struct st_dnnl_product **out, struct st_dnnl *lib, const struct st_matmul *mm)
{
    struct st_dnnl_product *s = calloc(1, sizeof(*s));
    dnnl_status_t rc;
    int team;

    if (s == NULL)
        return ST_MATMUL_NO_MEMORY;
    s->lib = lib;
    team = team_of_one();
    if ((rc = make_primitive(s, mm)) == dnnl_success)
        rc = make_memory(s);
    team_restore(team);
    if (rc != dnnl_success) {
        st_dnnl_product_destroy(s);
        return (int)rc;
    }
    *out = s;
    return 0;
}

void st_dnnl_product_destroy(struct st_dnnl_product *s)
{
    if (s == NULL)
        return;
    for (uint32_t i = 0; s->memory != NULL && i < s->lib->workers * ARG_COUNT; i++)
        dnnl_memory_destroy(s->memory[i]);
    free(s->memory);
    for (uint32_t arg = 0; arg < ARG_COUNT; arg++)
        desc_fini(&s->desc[arg]);
    dnnl_primitive_destroy(s->primitive);
    free(s);
}

size_t st_dnnl_product_scratchpad(const struct st_dnnl_product *s)
{
    return s->scratchpad_bytes;
}

int st_dnnl_product_run(const struct st_dnnl_product *s, uint32_t worker, void *c, const void *a, const void *b, const void *bias,
                        void *scratchpad)
{
    /* oneDNN takes handles without const; sources are only read. */
    void *handle[ARG_COUNT] = {(void *)(uintptr_t)a, (void *)(uintptr_t)b, c, (void *)(uintptr_t)bias, scratchpad};
    static const int name[ARG_COUNT] = {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST, DNNL_ARG_BIAS, DNNL_ARG_SCRATCHPAD};
    dnnl_exec_arg_t args[ARG_COUNT];
    int count = 0, team, ended;

    for (uint32_t i = 0; i < ARG_COUNT; i++) {
        dnnl_memory_t memory = s->memory[worker * ARG_COUNT + i];
        dnnl_status_t rc;

        if (memory == NULL)
            continue;
        rc = dnnl_memory_set_data_handle(memory, handle[i]);
        if (rc != 0)
            return (int)rc;
        args[count++] = (dnnl_exec_arg_t){name[i], memory};
    }
    team = team_of_one();
    ended = (int)dnnl_primitive_execute(s->primitive, s->lib->stream[worker], count, args);
    team_restore(team);
    return ended;
}

/* --- the library --- */

static bool allows(dnnl_cpu_isa_t isa)
{
    return (dnnl_get_effective_cpu_isa() & isa) == isa;
}

/* The user may cap the library below the processor's instruction set (DNNL_MAX_CPU_ISA); then it refuses bf16 or emulates it
 * slowly.  It asks the kernel for the process's right to tiles, and allows them only if it has that. */
enum st_matmul_path st_dnnl_bf16_path(void)
{
    const uint32_t have = st_cpu_features(), tiles = ST_CPU_AVX512 | ST_CPU_AVX512_BF16 | ST_CPU_AMX_BF16;

    if ((have & tiles) == tiles && allows(dnnl_cpu_isa_avx512_core_amx))
        return ST_MATMUL_TILES;
    if ((have & (ST_CPU_AVX512_BF16 | ST_CPU_AMX_BF16)) != 0 && allows(dnnl_cpu_isa_avx512_core_bf16))
        return ST_MATMUL_LIBRARY;
    return ST_MATMUL_WIDENED;
}

/* The largest instruction set that products of fp32 or bf16 differ by. */
static const char *isa_name(void)
{
    static const struct {
        dnnl_cpu_isa_t isa;
        const char *name;
    } isas[] = {{dnnl_cpu_isa_avx512_core_amx, ", amx"},
                {dnnl_cpu_isa_avx512_core_bf16, ", avx512 bf16"},
                {dnnl_cpu_isa_avx512_core, ", avx512"},
                {dnnl_cpu_isa_avx2, ", avx2"},
                {dnnl_cpu_isa_avx, ", avx"},
                {dnnl_cpu_isa_sse41, ", sse4.1"}};

    for (size_t i = 0; i < sizeof(isas) / sizeof(isas[0]); i++)
        if (allows(isas[i].isa))
            return isas[i].name;
    return "";
}

void st_matmul_library(char name[ST_MATMUL_LIBRARY_BYTES])
{
    const dnnl_version_t *version = dnnl_version();

    snprintf(name, ST_MATMUL_LIBRARY_BYTES, "oneDNN %d.%d.%d%s", version->major, version->minor, version->patch, isa_name());
}

int st_dnnl_create(struct st_dnnl **out, uint32_t workers)
{
    struct st_dnnl *lib = calloc(1, sizeof(*lib));
    dnnl_status_t rc;
    int team;

    if (lib == NULL)
        return ST_MATMUL_NO_MEMORY;
    team = team_of_one();
    lib->workers = workers;
    lib->stream = calloc(workers, sizeof(dnnl_stream_t));
    rc = lib->stream != NULL ? dnnl_engine_create(&lib->engine, dnnl_cpu, 0) : dnnl_out_of_memory;
    for (uint32_t w = 0; rc == dnnl_success && w < workers; w++)
        rc = dnnl_stream_create(&lib->stream[w], lib->engine, dnnl_stream_default_flags);
    team_restore(team);
    if (rc == dnnl_success)
        *out = lib;
    else
        st_dnnl_destroy(lib);
    return (int)rc;
}

void st_dnnl_destroy(struct st_dnnl *lib)
{
    if (lib == NULL)
        return;
    for (uint32_t w = 0; lib->stream != NULL && w < lib->workers; w++)
        dnnl_stream_destroy(lib->stream[w]);
    dnnl_engine_destroy(lib->engine);
    free(lib->stream);
    free(lib);
}
