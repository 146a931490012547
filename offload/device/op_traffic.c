/* op_traffic.c - the table of what ops move and compute, held against the tables of functions.  Pure functions. */
#include "offload/device/op_traffic.h"
#include "offload/device/device.h"
#include "offload/device/tensor_ops.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

const struct st_device_op_row st_device_op_rows[ST_DEVICE_OP_COUNT] = {
#define ST_X(id, member, ...) [ST_DEVICE_##id] = {#member, __VA_ARGS__},
    ST_DEVICE_OPS(ST_X) ST_TENSOR_OPS(ST_X)
#undef ST_X
};

/* Members that are not ops, each as large as a pointer: name, arena_is_host, tensors, open, close, arena, memory, pin, finish,
 * notify, stamps, stamp, stamp_ns, join, reads and add, which device_timed.c passes on where they are for its callers;
 * attention_workspace, and zero, which is the device's. */
#define OTHERS_OF_DEVICE      16
#define OTHERS_OF_TENSORS     2
#define ST_X(id, member, ...) +1
_Static_assert(sizeof(struct st_device_ops) == (ST_DEVICE_OPS(ST_X) + OTHERS_OF_DEVICE) * sizeof(void (*)(void)),
               "every op of the device has a row in op_traffic.h");
_Static_assert(sizeof(struct st_tensor_ops) == (ST_TENSOR_OPS(ST_X) + OTHERS_OF_TENSORS) * sizeof(void (*)(void)),
               "every tensor op has a row in op_traffic.h");
#undef ST_X

struct st_op_traffic st_op_traffic(const struct st_op_shape *shape)
{
    const struct st_device_op_row *row = &st_device_op_rows[shape->op];
    const double value = (double)strata_dtype_bytes(shape->dt), other = (double)strata_dtype_bytes(shape->other);
    const double rows = (double)shape->rows, cols = (double)shape->cols, positions = (double)shape->positions;
    const double element =
        row->bytes + (row->values + shape->more.values) * value + (row->others + shape->more.others) * other + row->floats * 4.0;
    const double column = (row->params + shape->more.params) * value + (shape->frozen ? 0 : row->sums * 8.0) +
                          positions * (row->table * value + row->table_sums * 8.0);
    const double kv = (row->kv * rows + row->kv_table * positions) * (double)shape->kv_cols * value;
    const double deep = shape->depth * (row->angles * positions * 4 + row->operands * (rows + cols) * value);

    return (struct st_op_traffic){.bytes = rows * (cols * element + row->row_bytes + row->lse * 4.0 * shape->heads) +
                                           cols * column + kv + deep + 2 * (double)shape->state_bytes,
                                  .flops = row->flops * rows * cols * shape->depth};
}

/* Rows whose window is not full yet attend to one position more than the row before. */
double st_op_causal_depth(uint64_t first, uint64_t rows, uint64_t window)
{
    const uint64_t left = window > first + 1 ? window - 1 - first : 0;
    const uint64_t growing = window == 0 || left > rows ? rows : left;
    const double grown = (double)growing * ((double)first + ((double)growing + 1) / 2);

    return (grown + (double)(rows - growing) * (double)window) / (double)rows;
}

/* --- in words --- */

struct words {
    char *out;
    size_t used;
};

static void add(struct words *w, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void add(struct words *w, const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    w->used += (size_t)vsnprintf(w->out + w->used, ST_OP_SHAPE_TEXT - w->used, fmt, args);
    va_end(args);
    if (w->used >= ST_OP_SHAPE_TEXT)
        w->used = ST_OP_SHAPE_TEXT - 1;
}

static void add_product(struct words *w, const struct st_op_shape *s)
{
    static const char *const epilogues[] = {[ST_EPILOGUE_NONE] = "",
                                            [ST_EPILOGUE_GELU] = " gelu",
                                            [ST_EPILOGUE_GELU_INPUT] = " gelu_input",
                                            [ST_EPILOGUE_GELU_BACKWARD] = " gelu_backward"};

    add(w, " %c%c%s%s%s", s->trans_a ? 't' : 'n', s->trans_b ? 't' : 'n', s->accumulate ? " +=" : "",
        s->more.params > 0 ? " bias" : "", epilogues[s->epilogue]);
}

/* The array beside those of the row: what gates leave, or a residual. */
static const char *more_text(const struct st_op_shape *shape)
{
    if (shape->more.values == 0)
        return "";
    return shape->op == ST_DEVICE_GATED_BACKWARD || shape->op == ST_DEVICE_EXPERTS_GATED_BACKWARD ? " y" : " residual";
}

const char *st_op_shape_text(char out[ST_OP_SHAPE_TEXT], const struct st_op_shape *shape)
{
    const struct st_device_op_row *row = &st_device_op_rows[shape->op];
    struct words w = {.out = out};

    out[0] = '\0';
    if (shape->rows == 0 && shape->cols == 0) {
        add(&w, "other shapes");
        return out;
    }
    if (shape->rows > 1 && shape->cols > 0)
        add(&w, "%" PRIu64 " x ", shape->rows);
    add(&w, "%" PRIu64 "%s", shape->cols > 0 ? shape->cols : shape->rows, shape->cols > 0 ? "" : " rows");
    if (row->flops > 0)
        add(&w, " x %.12g", shape->depth);
    add(&w, " %s", row->bytes > 0 ? "bytes" : strata_dtype_name(shape->dt != STRATA_DTYPE_INVALID ? shape->dt : STRATA_F32));
    if (shape->other != STRATA_DTYPE_INVALID && shape->other != shape->dt)
        add(&w, " %s", strata_dtype_name(shape->other));
    if (row->operands > 0)
        add_product(&w, shape);
    else
        add(&w, "%s%s", more_text(shape), shape->frozen ? " frozen" : "");
    return out;
}
