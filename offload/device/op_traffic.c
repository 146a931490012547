/* op_traffic.c - the table of what ops move and compute, held against the tables of functions.  Pure functions. */
#include "offload/device/op_traffic.h"
#include "offload/device/device.h"
#include "offload/device/tensor_ops.h"

const struct st_device_op_row st_device_op_rows[ST_DEVICE_OP_COUNT] = {
#define ST_X(id, member, ...) [ST_DEVICE_##id] = {#member, __VA_ARGS__},
    ST_DEVICE_OPS(ST_X) ST_TENSOR_OPS(ST_X)
#undef ST_X
};

/* Members that are not ops, each as large as a pointer: name, arena_is_zero, tensors, open, close, arena, memory, pin, finish and
 * notify; attention_workspace, and zero, which is the device's. */
#define OTHERS_OF_DEVICE      10
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
    const double kv = (row->kv * rows + row->kv_table * positions) * shape->kv_cols * value;
    const double deep = shape->depth * (row->angles * positions * 4 + row->operands * (rows + cols) * value);

    return (struct st_op_traffic){.bytes = rows * (cols * element + row->row_bytes + row->lse * 4.0 * shape->heads) +
                                           cols * column + kv + deep + 2 * (double)shape->state_bytes,
                                  .flops = row->flops * rows * cols * shape->depth};
}

double st_op_causal_depth(uint64_t first, uint64_t rows)
{
    return (double)first + ((double)rows + 1) / 2;
}
