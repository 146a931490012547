/* offload/device/cpu/device_cpu_matmul.c - cuts a matmul into blocks, each one single-threaded library call over all of K, and
 * then runs the epilogue.
 *
 * The grid is a function of the shape and of what multiplies its dtype (a property of the processor), never of the number of
 * workers. */
#include "core/base/error.h"
#include "core/base/fault.h"
#include "offload/device/cpu/device_cpu_internal.h"
#include <assert.h>
#include <stdatomic.h>

#define BLOCK_LEAST 64u
#define DEEP_K      2048u

/* Blocks at most m x n, and how many are wanted, so that the workers finish together. */
struct block_rule {
    uint32_t m, n, wanted;
};

static const struct block_rule block_rules[] = {
    /* One core of a Zen 4 runs blocks of 128 x 192 x 768 as fast per FLOP as any larger block; below 64 x 64 it is slower. */
    [ST_MATMUL_LIBRARY] = {128, 768, 16},
    /* An operand is widened once per block, so widening wants fewer and larger blocks. */
    [ST_MATMUL_WIDENED] = {256, 768, 8},
    /* Operands are packed once per block: B, which is the weight, once for 512 rows. */
    [ST_MATMUL_TILES] = {512, 256, 8},
};
/* Reading a transposed B with long rows crosses pages: blocks of 64 x 768 x 4096 reach 96 and 200 GF/s (fp32, bf16) on a Zen 4,
 * while 128 x 192 reaches 87 and 170, and 64 x 384 reaches 72 and 142. */
static const struct block_rule deep_rule = {64, 768, 8};

struct grid {
    uint32_t block_m, block_n, rows, cols; /* rows x cols blocks */
};

struct matmul_job {
    struct st_matmul_engine *engine;
    const struct st_matmul *mm;
    struct grid grid;
    int id[2][2]; /* [last row of blocks][last column] */
    void *c;
    const void *a, *b, *bias;
    atomic_int rc; /* the first failure */
};

strata_status st_cpu_matmul_status(const char *site, int rc)
{
    rc = (int)st_fault(site, rc);
    switch (rc) {
    case 0:
        return STRATA_OK;
    case ST_MATMUL_NO_MEMORY:
        return st_error_remedy(st_error(STRATA_E_NOMEM, "matmul: oneDNN was refused memory"), "strata.host_memory",
                               "lower strata.host_memory or strata.device_memory, or raise the limit (ulimit -v)");
    case ST_MATMUL_UNSUPPORTED:
        return st_error(STRATA_E_NOSYS, "matmul: oneDNN cannot do this on this processor");
    default:
        return st_error(STRATA_E_INTERNAL, "matmul: oneDNN returned status %d", rc);
    }
}

bool st_cpu_widens(const struct cpu_device *cpu, strata_dtype dt)
{
    return st_matmul_path_of(cpu->matmul, &(struct st_matmul){.ab_dtype = dt}) == ST_MATMUL_WIDENED;
}

strata_status st_cpu_prepare(struct cpu_device *cpu, int *id, const struct st_matmul *mm)
{
    strata_status st;

    *id = st_matmul_prepare(cpu->matmul, mm);
    st = st_cpu_matmul_status("matmul.prepare", *id < 0 ? -*id : 0);
    return st == STRATA_OK ? st : st_error_prefix(st, "%u x %u x %u", mm->m, mm->n, mm->k);
}

/* The size of one of `parts` equal blocks of `total`, rounded up to whole vectors. */
static uint32_t block_extent(uint32_t total, uint32_t parts, uint32_t multiple)
{
    const uint32_t extent = (total + parts - 1) / parts;

    return (extent + multiple - 1) / multiple * multiple;
}

static struct grid grid_of(const struct st_matmul *mm, enum st_matmul_path path)
{
    const bool deep = path == ST_MATMUL_LIBRARY && mm->trans_b && mm->k >= DEEP_K;
    const struct block_rule rule = deep ? deep_rule : block_rules[path];
    uint32_t parts_m = (mm->m + rule.m - 1) / rule.m, parts_n = (mm->n + rule.n - 1) / rule.n;
    struct grid g;

    for (;;) {
        g.block_m = block_extent(mm->m, parts_m, 16);
        g.block_n = block_extent(mm->n, parts_n, 64);
        g.rows = (mm->m + g.block_m - 1) / g.block_m;
        g.cols = (mm->n + g.block_n - 1) / g.block_n;
        if ((uint64_t)g.rows * g.cols >= rule.wanted)
            return g;
        if (g.block_n > 2 * BLOCK_LEAST)
            parts_n = 2 * g.cols;
        else if (g.block_m > BLOCK_LEAST)
            parts_m = 2 * g.rows;
        else
            return g;
    }
}

static void matmul_item(void *ctx, uint64_t index, uint32_t worker)
{
    struct matmul_job *job = ctx;
    const struct st_matmul *mm = job->mm;
    const uint64_t row = index / job->grid.cols, col = index % job->grid.cols;
    const uint64_t m = row * job->grid.block_m, n = col * job->grid.block_n;
    const int id = job->id[row == job->grid.rows - 1][col == job->grid.cols - 1];
    const void *a = st_elem(job->a, mm->trans_a ? m : m * mm->lda, mm->ab_dtype);
    const void *b = st_elem(job->b, mm->trans_b ? n * mm->ldb : n, mm->ab_dtype);
    const void *bias = mm->bias ? st_elem(job->bias, n, mm->ab_dtype) : NULL;
    const int rc = st_matmul_run(job->engine, id, worker, st_elem_mut(job->c, m * mm->ldc + n, mm->c_dtype), a, b, bias);
    int none = 0;

    if (rc != 0)
        atomic_compare_exchange_strong(&job->rc, &none, rc);
}

static strata_status multiply(struct cpu_device *cpu, const struct st_matmul *mm, void *c, const void *a, const void *b,
                              const void *bias)
{
    const struct grid grid = grid_of(mm, st_matmul_path_of(cpu->matmul, mm));
    struct matmul_job job = {.engine = cpu->matmul, .mm = mm, .grid = grid, .c = c, .a = a, .b = b, .bias = bias};

    for (uint32_t i = 0; i < 2; i++) {
        for (uint32_t j = 0; j < 2; j++) {
            struct st_matmul block = *mm;
            strata_status st;

            if ((i == 0 && job.grid.rows == 1) || (j == 0 && job.grid.cols == 1))
                continue;
            block.m = i == 0 ? job.grid.block_m : mm->m - (job.grid.rows - 1) * job.grid.block_m;
            block.n = j == 0 ? job.grid.block_n : mm->n - (job.grid.cols - 1) * job.grid.block_n;
            block.epilogue = ST_EPILOGUE_NONE;
            st = st_cpu_prepare(cpu, &job.id[i][j], &block);
            if (st != STRATA_OK)
                return st;
        }
    }
    st_workers_run(cpu->workers, matmul_item, &job, (uint64_t)job.grid.rows * job.grid.cols);
    return st_cpu_matmul_status("matmul.run", atomic_load(&job.rc));
}

/* The epilogue is a separate pass.  Applying it to each block while the block was in cache took the same time for GELU and 1 to
 * 6 % longer for its backward (512 to 8192 x 3072 x 768, one and two workers). */
strata_status st_cpu_matmul(struct st_device *dev, const struct st_matmul *mm, void *c, const void *a, const void *b,
                            const void *bias)
{
    const bool backward = mm->epilogue == ST_EPILOGUE_GELU_BACKWARD;
    const bool to_aux = mm->epilogue == ST_EPILOGUE_GELU || mm->epilogue == ST_EPILOGUE_GELU_INPUT;
    const uint64_t elems = (uint64_t)mm->m * mm->n;
    strata_status st;

    assert(mm->bias == (bias != NULL));
    assert(mm->epilogue == ST_EPILOGUE_NONE || (mm->aux != NULL && mm->ldc == mm->n && !mm->accumulate));
    assert(!backward || !mm->bias);
    st = multiply(cpu_of(dev), mm, to_aux ? mm->aux : c, a, b, bias);
    if (st == STRATA_OK && mm->epilogue == ST_EPILOGUE_GELU)
        st = st_cpu_activation_forward(dev, mm->activation, c, mm->aux, elems, mm->c_dtype);
    else if (st == STRATA_OK && backward)
        st = st_cpu_activation_backward(dev, mm->activation, c, c, mm->aux, elems, mm->c_dtype);
    return st;
}
