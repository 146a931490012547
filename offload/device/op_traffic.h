/* offload/device/op_traffic.h - the ops of a device's two tables, and what each must move and compute, by its shape alone.
 *
 * One row per op: what it reads and writes at the least, each operand once, as if nothing but its operands existed.  Traffic
 * beyond that (operands read again, scratch) is what a kernel loses, not what the op is.  The rows are held against the tables
 * at compile time: an op without a row, or a row without an op, does not compile (op_traffic.c). */
#ifndef OFFLOAD_DEVICE_OP_TRAFFIC_H
#define OFFLOAD_DEVICE_OP_TRAFFIC_H

#include "strata/types.h"
#include <stdbool.h>

/* What the columns of a row count.  An array is read or written once for each 1; what an op reads and writes counts 2. */
struct st_device_op_row {
    const char *name;
    uint8_t bytes;      /* [rows, cols] bytes */
    uint8_t values;     /* [rows, cols] of dt */
    uint8_t others;     /* [rows, cols] of `other` */
    uint8_t floats;     /* [rows, cols] fp32 */
    uint8_t row_bytes;  /* bytes of each row: statistics, ids */
    uint8_t params;     /* [cols] of dt, read */
    uint8_t sums;       /* [cols] fp32, read and written; of frozen parameters: none */
    uint8_t table;      /* [positions, cols] of dt, read */
    uint8_t table_sums; /* [positions, cols] fp32, read and written */
    uint8_t angles;     /* [positions, depth] fp32, read */
    uint8_t operands;   /* [rows, depth] and [depth, cols] of dt, read */
    uint8_t kv;         /* [rows, kv_cols] of dt */
    uint8_t kv_table;   /* [positions, kv_cols] of dt, read */
    uint8_t lse;        /* [rows, heads] fp32 */
    uint8_t flops;      /* of each of [rows, cols, depth] */
};

/* X(id, member of the table, columns that are not 0).  The tensor ops' zero is the device's. */
/* clang-format off */
#define ST_DEVICE_OPS(X)                                                                                   \
    X(UPLOAD, upload, .bytes = 1) /* across the link */                                                    \
    X(DOWNLOAD, download, .bytes = 1)                                                                      \
    X(ZERO, zero, .bytes = 1)                                                                              \
    X(COPY, copy, .bytes = 2)                                                                              \
    X(EMBED_GATHER, embed_gather, .values = 2, .row_bytes = 4) /* rows: those in the range */              \
    X(EMBED_SCATTER, embed_scatter, .values = 1, .table_sums = 1, .row_bytes = 4) /* positions: different rows of the table */ \
    X(REDUCE, reduce, .floats = 2, .values = 1)                                                                  \
    X(GRAD_FINISH, grad_finish, .floats = 1, .values = 1)                                                  \
    X(UPDATE, update, .values = 1) /* the gradient; all else is state_bytes and more.others */
#define ST_TENSOR_OPS(X)                                                                                   \
    X(MATMUL, matmul, .operands = 1, .others = 1, .flops = 2) /* more: C read, aux, bias */                \
    X(BIAS_BACKWARD, bias_backward, .values = 1, .sums = 1)                                                \
    X(LAYERNORM_FORWARD, layernorm_forward, .values = 2, .params = 2, .row_bytes = 8)                      \
    X(LAYERNORM_BACKWARD, layernorm_backward, .values = 2, .others = 1, .params = 1, .sums = 2, .row_bytes = 8) \
    X(RMSNORM_FORWARD, rmsnorm_forward, .values = 2, .params = 1, .row_bytes = 4)                          \
    X(RMSNORM_BACKWARD, rmsnorm_backward, .values = 2, .others = 1, .params = 1, .sums = 1, .row_bytes = 4) \
    X(ROPE, rope, .values = 2, .angles = 1)                                                                \
    X(GATED_FORWARD, gated_forward, .values = 3)                                                           \
    X(GATED_BACKWARD, gated_backward, .values = 5)                                                         \
    X(ACTIVATION_FORWARD, activation_forward, .values = 2)                                                 \
    X(ACTIVATION_BACKWARD, activation_backward, .values = 3)                                               \
    X(ADD, add, .values = 3)                                                                               \
    X(SCALE, scale, .values = 2)                                                                           \
    X(CAST, cast, .values = 1, .others = 1) /* dt: from; other: to */                                      \
    X(DROPOUT, dropout, .values = 1, .floats = 1) /* more.others of fp32: the sum that is added to */      \
    X(THIN, thin, .operands = 1, .floats = 1, .flops = 2)                                                  \
    X(NF4_WIDEN, nf4_widen, .values = 1, .row_bytes = 36) /* rows: records */                              \
    X(ATTENTION_FORWARD, attention_forward, .values = 2, .kv = 2, .lse = 1, .flops = 4)                    \
    X(ATTENTION_BACKWARD, attention_backward, .values = 4, .kv = 4, .lse = 1, .flops = 10)                 \
    X(ATTENTION_SINKS_BACKWARD, attention_sinks_backward, .values = 2, .lse = 1)                           \
    X(ATTENTION_CACHED, attention_cached, .values = 2, .kv = 4, .kv_table = 2, .flops = 4)                 \
    X(ROUTE_CHOOSE, route_choose, .values = 1, .floats = 1, .lse = 2) /* cols: experts; heads: k */        \
    X(ROUTE_SORT, route_sort, .lse = 3)                                                                    \
    X(ROUTE_TOTALS, route_totals, .floats = 1, .lse = 1)                                                   \
    X(ROUTE_LOSS, route_loss, .row_bytes = 16) /* rows: experts */                                         \
    X(ROUTE_BACKWARD, route_backward, .values = 1, .floats = 1, .lse = 3)                                  \
    X(EXPERTS_GATHER, experts_gather, .values = 2, .row_bytes = 4) /* rows: the slice's, were all experts' equal */ \
    X(EXPERTS_MATMUL, experts_matmul, .operands = 1, .others = 1, .flops = 2) /* of one expert; state_bytes: more matrices */ \
    X(EXPERTS_CAST, experts_cast, .values = 1, .others = 1)                                                \
    X(EXPERTS_BIAS_BACKWARD, experts_bias_backward, .values = 1, .sums = 1)                                \
    X(EXPERTS_GATED_FORWARD, experts_gated_forward, .values = 3)                                           \
    X(EXPERTS_GATED_BACKWARD, experts_gated_backward, .values = 5)                                         \
    X(EXPERTS_ADD, experts_add, .values = 1, .table_sums = 1, .row_bytes = 8) /* positions: rows of the sum */ \
    X(EXPERTS_ADD_BACKWARD, experts_add_backward, .values = 2, .table = 1, .row_bytes = 12)                \
    X(SHARED_FORWARD, shared_forward, .values = 1, .floats = 1)                                            \
    X(SHARED_BACKWARD, shared_backward, .values = 3)                                                       \
    X(CLIP, clip, .values = 2)                                                                             \
    X(CLIP_BACKWARD, clip_backward, .values = 3)                                                           \
    X(EMBED_ADD_POSITION, embed_add_position, .values = 2, .table = 1)                                     \
    X(EMBED_POSITION_BACKWARD, embed_position_backward, .values = 1, .table_sums = 1)                      \
    X(XENT_STATS, xent_stats, .floats = 1, .row_bytes = 28)                                                \
    X(XENT_GRAD, xent_grad, .floats = 1, .values = 1, .row_bytes = 16)                                     \
    X(XENT_LOSS, xent_loss, .row_bytes = 16)
/* clang-format on */

enum st_device_op {
#define ST_X(id, member, ...) ST_DEVICE_##id,
    ST_DEVICE_OPS(ST_X) ST_TENSOR_OPS(ST_X)
#undef ST_X
        ST_DEVICE_OP_COUNT
};

extern const struct st_device_op_row st_device_op_rows[ST_DEVICE_OP_COUNT];

/* Of one call; what the op's row does not count may stay 0.  Without padding, so that equal shapes have equal bytes. */
struct st_op_shape {
    enum st_device_op op;
    strata_dtype dt, other; /* other: of C, of the norms' dy, of the weight that an update copies from its master */
    uint32_t heads;
    bool frozen; /* the parameters have no gradient */
    struct {     /* arrays beside those of the row: a residual, y of gates; accumulated C, aux, a copied weight; a bias */
        uint8_t values, others, params;
    } more;
    bool trans_a, trans_b, accumulate; /* of a product; these and the epilogue (enum st_epilogue) move nothing by themselves */
    uint8_t epilogue;
    uint64_t kv_cols;
    uint64_t rows, cols;  /* a plain array: one row.  Attention: rows of the micro-batch x q's columns */
    uint64_t positions;   /* rows of the table that the op uses, each once */
    double depth;         /* matmul: k; attention: positions that a row attends to, on average; rope: head_dim */
    uint64_t state_bytes; /* read and written back.  update: planes (low half and weight, master, moments) */
};

struct st_op_traffic {
    double bytes, flops;
};
struct st_op_traffic st_op_traffic(const struct st_op_shape *shape);

#define ST_OP_SHAPE_TEXT 96u
/** The shape in words: "1024 x 3072 x 768 bf16 bias gelu". */
const char *st_op_shape_text(char out[ST_OP_SHAPE_TEXT], const struct st_op_shape *shape);

/** On average, of rows first .. first + rows - 1 that each attend to the last `window` positions up to their own; 0: to all. */
double st_op_causal_depth(uint64_t first, uint64_t rows, uint64_t window);

#endif
