/* offload/device/cpu/device_cpu_grouped.c - products of experts, cut into items of one expert, one block of columns and, of C's
 * rows, 128 of them; each is one single-threaded library call, or of a matrix that is the result one for each 128 rows.
 *
 * The last piece of an expert has the rows that are left, so that a product has 128 shapes of pieces at most.  Each is prepared
 * when it first comes: 0.1 to 0.6 ms, 25 to 140 KiB (Zen 4, 512 columns, K 2048).  A library call packs the weights for 0.3 ms
 * whatever its rows, so cutting what is left into powers of two took up to twice as long. */
#include "offload/device/cpu/device_cpu_internal.h"
#include <stdatomic.h>
#include <string.h>

#define PIECE       128u
#define COLUMNS     512u
#define MATRIX_ROWS 256u /* of a matrix that is the result */

/* Equal blocks of an extent, but for the last one. */
struct blocks {
    uint32_t total, size, count;
};

struct grouped_job {
    struct cpu_device *cpu;
    const struct st_expert_matmul *mm;
    void *c;
    const void *a, *b, *bias;
    const int32_t *offsets;
    struct blocks columns, matrix_rows;
    bool occurs[PIECE + 1];  /* [rows of a piece] */
    int id[PIECE + 1][2][2]; /* [rows of a piece][last block of the matrix's rows][of columns] */
    atomic_int rc;           /* the first failure */
};

static struct blocks blocks_of(uint32_t total, uint32_t most, uint32_t multiple)
{
    const uint32_t parts = (total + most - 1) / most;
    uint32_t size = (total + parts - 1) / parts;

    size = (size + multiple - 1) / multiple * multiple;
    return (struct blocks){total, size, (total + size - 1) / size};
}

static struct st_run block_at(const struct blocks *b, uint64_t index)
{
    return st_run_at(index, b->size, b->total);
}

/* The rows of expert `e` of the slice, counted from the slice's first. */
static struct st_run rows_of(const struct grouped_job *job, uint64_t e)
{
    const int32_t *offsets = job->offsets + job->mm->of.first;

    return (struct st_run){(uint64_t)(offsets[e] - offsets[0]), (uint64_t)(offsets[e + 1] - offsets[e])};
}

static void multiply(struct grouped_job *job, uint32_t worker, int id, void *c, const void *a, const void *b, const void *bias)
{
    const int rc = st_matmul_run(job->cpu->matmul, id, worker, c, a, b, bias);
    int none = 0;

    if (rc != 0)
        atomic_compare_exchange_strong(&job->rc, &none, rc);
}

/* A piece of an expert's rows times a block of its matrix's columns. */
static void multiply_rows(struct grouped_job *job, uint32_t worker, uint64_t e, struct st_run rows, uint64_t column)
{
    const struct st_expert_matmul *mm = job->mm;
    const uint64_t n = column * job->columns.size, matrix = e * mm->stride + (mm->trans_b ? n * mm->ldb : n);

    multiply(job, worker, job->id[rows.count][0][column == job->columns.count - 1],
             st_elem_mut(job->c, rows.first * mm->ldc + n, mm->c_dtype), st_elem(job->a, rows.first * mm->lda, mm->ab_dtype),
             st_elem(job->b, matrix, mm->ab_dtype), mm->bias ? st_elem(job->bias, e * mm->bias_stride + n, mm->ab_dtype) : NULL);
}

/* Finds the expert and its rows of item `index` of a block of columns: items of an expert follow each other. */
static void rows_item(void *ctx, uint64_t index, uint32_t worker)
{
    struct grouped_job *job = ctx;
    const uint64_t columns = job->columns.count;
    uint64_t e = 0, items = index;
    struct st_run rows = rows_of(job, 0);

    while (items >= columns * st_run_count(PIECE, rows.count)) {
        items -= columns * st_run_count(PIECE, rows.count);
        rows = rows_of(job, ++e);
    }
    const uint64_t pieces = st_run_count(PIECE, rows.count);
    const struct st_run part = st_run_at(items % pieces, PIECE, rows.count);

    multiply_rows(job, worker, e, (struct st_run){rows.first + part.first, part.count}, items / pieces);
}

/* One block of an expert's matrix, over its rows piece by piece. */
static void matrix_item(void *ctx, uint64_t index, uint32_t worker)
{
    struct grouped_job *job = ctx;
    const struct st_expert_matmul *mm = job->mm;
    const uint64_t column = index % job->columns.count, rest = index / job->columns.count;
    const uint64_t row = rest % job->matrix_rows.count, e = rest / job->matrix_rows.count;
    const struct st_run n = block_at(&job->columns, column), m = block_at(&job->matrix_rows, row);
    const struct st_run rows = rows_of(job, e);
    float *const c = (float *)job->c + e * mm->stride + m.first * mm->ldc + n.first;

    for (uint64_t i = 0; i < m.count && !mm->accumulate; i++)
        memset(c + i * mm->ldc, 0, n.count * sizeof(*c));
    for (uint64_t piece = 0; piece < st_run_count(PIECE, rows.count); piece++) {
        const struct st_run part = st_run_at(piece, PIECE, rows.count);

        multiply(job, worker, job->id[part.count][row == job->matrix_rows.count - 1][column == job->columns.count - 1], c,
                 st_elem(job->a, (rows.first + part.first) * mm->lda + m.first, mm->ab_dtype),
                 st_elem(job->b, (rows.first + part.first) * mm->ldb + n.first, mm->ab_dtype), NULL);
    }
}

/* The shape of a piece of so many rows in a block of the result. */
static strata_status prepare(struct grouped_job *job, uint32_t piece, bool last_row, bool last_column)
{
    const struct st_expert_matmul *mm = job->mm;
    const bool matrix = mm->k == 0;
    struct st_matmul block = {.m = piece,
                              .k = mm->k,
                              .lda = mm->lda,
                              .ldb = mm->ldb,
                              .ldc = mm->ldc,
                              .trans_a = matrix,
                              .trans_b = mm->trans_b,
                              .accumulate = mm->accumulate || matrix,
                              .bias = mm->bias,
                              .ab_dtype = mm->ab_dtype,
                              .c_dtype = mm->c_dtype};

    block.n = (uint32_t)block_at(&job->columns, last_column ? job->columns.count - 1 : 0).count;
    if (matrix) {
        block.m = (uint32_t)block_at(&job->matrix_rows, last_row ? job->matrix_rows.count - 1 : 0).count;
        block.k = piece;
    }
    return st_cpu_prepare(job->cpu, &job->id[piece][last_row][last_column], &block);
}

/* Of the pieces that occur. */
static strata_status prepare_all(struct grouped_job *job)
{
    strata_status st = STRATA_OK;

    for (uint32_t e = 0; e < job->mm->of.count; e++) {
        const uint64_t rows = rows_of(job, e).count;

        job->occurs[PIECE] |= rows >= PIECE;
        job->occurs[rows % PIECE] = true;
    }
    for (uint32_t piece = 1; piece <= PIECE; piece++)
        for (uint32_t i = 0; i < 4 && job->occurs[piece]; i++) {
            const bool last_row = i / 2 == 1, last_column = i % 2 == 1;

            if (st == STRATA_OK && (!last_row || job->mm->k == 0))
                st = prepare(job, piece, last_row, last_column);
        }
    return st;
}

strata_status st_cpu_experts_matmul(struct st_device *dev, const struct st_expert_matmul *mm, void *c, const void *a,
                                    const void *b, const void *bias, const int32_t *offsets)
{
    struct cpu_device *cpu = cpu_of(dev);
    struct grouped_job job = {.cpu = cpu, .mm = mm, .c = c, .a = a, .b = b, .bias = bias, .offsets = offsets};
    uint64_t items = 0;
    strata_status st;

    job.columns = blocks_of(mm->n, COLUMNS, 64);
    job.matrix_rows = blocks_of(mm->k == 0 ? mm->m : 1, MATRIX_ROWS, 16);
    if ((st = prepare_all(&job)) != STRATA_OK)
        return st;
    for (uint32_t e = 0; e < mm->of.count; e++)
        items += mm->k == 0 ? job.matrix_rows.count : st_run_count(PIECE, rows_of(&job, e).count);
    st_workers_run(cpu->workers, mm->k == 0 ? matrix_item : rows_item, &job, items * job.columns.count);
    return st_cpu_matmul_status("matmul.run", atomic_load(&job.rc));
}
