/* tests/offload/test_op_traffic.c - bytes and FLOPs of each op of the device, added up operand by operand. */
#include "kernels/matmul/matmul.h"
#include "offload/device/op_traffic.h"
#include "tests/common/test.h"

#include <stdio.h>

#define SHAPE(id, ...)                                                                                                           \
    {                                                                                                                            \
        .op = ST_DEVICE_##id, __VA_ARGS__                                                                                        \
    }
#define BF16   .dt = STRATA_BF16
#define FP32   .dt = STRATA_F32
#define C_BF16 .other = STRATA_BF16
#define C_FP32 .other = STRATA_F32

struct row {
    struct st_op_shape shape;
    double bytes, flops;
};

/* 100 rows, 64 columns; k 32; a table of 10 rows.  Each sum names the operands in the order of the call. */
/* clang-format off */
static const struct row table[] = {
    {SHAPE(UPLOAD, .rows = 1, .cols = 1000), 1000, 0},
    {SHAPE(DOWNLOAD, .rows = 1, .cols = 1000), 1000, 0},
    {SHAPE(ZERO, .rows = 1, .cols = 1000), 1000, 0},
    {SHAPE(COPY, .rows = 1, .cols = 1000), 1000 + 1000, 0},
    {SHAPE(EMBED_GATHER, BF16, .rows = 100, .cols = 64), 12800 + 12800 + 400, 0},
    {SHAPE(EMBED_SCATTER, BF16, .rows = 100, .cols = 64, .positions = 10), 2 * 2560 + 12800 + 400, 0},
    {SHAPE(REDUCE, FP32, .rows = 1, .cols = 1000), 3 * 4000, 0},
    {SHAPE(GRAD_FINISH, BF16, .rows = 1, .cols = 1000), 2000 + 4000, 0},
    {SHAPE(GRAD_FINISH, FP32, .rows = 1, .cols = 1000), 4000 + 4000, 0},
    /* AdamW, 26 bytes: weight, low half and moments both ways, gradient; 28 with a master and the weight written alone */
    {SHAPE(UPDATE, BF16, .rows = 1, .cols = 1000, .state_bytes = 12000), 26000, 0},
    {SHAPE(UPDATE, BF16, C_BF16, .rows = 1, .cols = 1000, .state_bytes = 12000, .more.others = 1), 28000, 0},
    {SHAPE(MATMUL, BF16, C_BF16, .rows = 100, .cols = 64, .depth = 32), 12800 + 6400 + 4096, 409600},
    {SHAPE(MATMUL, BF16, C_BF16, .rows = 100, .cols = 64, .depth = 32, .more.others = 1, .more.params = 1),
     12800 + 12800 + 6400 + 4096 + 128, 409600},
    {SHAPE(MATMUL, BF16, C_FP32, .rows = 100, .cols = 64, .depth = 32, .more.others = 1), 2 * 25600 + 6400 + 4096, 409600},
    {SHAPE(MATMUL, FP32, C_FP32, .rows = 100, .cols = 64, .depth = 32), 25600 + 12800 + 8192, 409600},
    {SHAPE(BIAS_BACKWARD, BF16, .rows = 100, .cols = 64), 2 * 256 + 12800, 0},
    {SHAPE(LAYERNORM_FORWARD, BF16, .rows = 100, .cols = 64), 12800 + 800 + 12800 + 128 + 128, 0},
    {SHAPE(LAYERNORM_BACKWARD, BF16, C_BF16, .rows = 100, .cols = 64), 12800 + 4 * 256 + 12800 + 12800 + 800 + 128, 0},
    {SHAPE(LAYERNORM_BACKWARD, BF16, C_FP32, .rows = 100, .cols = 64, .frozen = true, .more.values = 1),
     12800 + 25600 + 12800 + 800 + 128 + 12800, 0},
    {SHAPE(RMSNORM_FORWARD, BF16, .rows = 100, .cols = 64), 12800 + 400 + 12800 + 128, 0},
    {SHAPE(RMSNORM_BACKWARD, BF16, C_BF16, .rows = 100, .cols = 64, .more.values = 1),
     12800 + 2 * 256 + 12800 + 12800 + 400 + 128 + 12800, 0},
    {SHAPE(ROPE, BF16, .rows = 100, .cols = 64, .depth = 16, .positions = 50), 2 * 12800 + 50 * 8 * 2 * 4, 0},
    {SHAPE(GATED_FORWARD, BF16, .rows = 100, .cols = 64), 12800 + 25600, 0},
    {SHAPE(RMSNORM_FORWARD, BF16, .rows = 100, .cols = 64, .more.values = 2), 12800 + 400 + 12800 + 128 + 12800 + 12800, 0},
    {SHAPE(GATED_BACKWARD, BF16, .rows = 100, .cols = 64), 25600 + 12800 + 25600, 0},
    {SHAPE(GATED_BACKWARD, BF16, .rows = 100, .cols = 64, .more.values = 1), 25600 + 12800 + 25600 + 12800, 0},
    {SHAPE(ACTIVATION_FORWARD, BF16, .rows = 1, .cols = 6400), 12800 + 12800, 0},
    {SHAPE(ACTIVATION_BACKWARD, BF16, .rows = 1, .cols = 6400), 3 * 12800, 0},
    {SHAPE(CAST, BF16, C_FP32, .rows = 100, .cols = 64), 12800 + 25600, 0},
    {SHAPE(THIN, BF16, C_FP32, .rows = 100, .cols = 16, .depth = 64), (100 + 16) * 64 * 2 + 6400, 2.0 * 100 * 16 * 64},
    {SHAPE(DROPOUT, BF16, C_FP32, .rows = 100, .cols = 64), 12800 + 25600, 0},
    {SHAPE(DROPOUT, FP32, C_FP32, .rows = 100, .cols = 64, .more.others = 1), 25600 + 25600 + 25600, 0},
    {SHAPE(ADD, FP32, .rows = 1, .cols = 6400), 3 * 25600, 0},
    {SHAPE(SCALE, FP32, .rows = 1, .cols = 6400), 2 * 25600, 0},
    {SHAPE(NF4_WIDEN, BF16, .rows = 100, .cols = 64), 100 * 36 + 12800, 0},
    /* 2 sequences of 50 rows, 4 heads of 16 columns, 2 of keys and values: 2 * 50 * 51 / 2 pairs, each 16 columns in 4 heads */
    {SHAPE(ATTENTION_FORWARD, BF16, .rows = 100, .cols = 64, .depth = 25.5, .heads = 4, .kv_cols = 32),
     12800 + 1600 + 12800 + 6400 + 6400, 4.0 * 2550 * 64},
    {SHAPE(ATTENTION_BACKWARD, BF16, .rows = 100, .cols = 64, .depth = 25.5, .heads = 4, .kv_cols = 32),
     12800 + 12800 + 12800 + 12800 + 1600 + 12800 + 12800, 10.0 * 2550 * 64},
    {SHAPE(ATTENTION_CACHED, BF16, .rows = 1, .cols = 64, .depth = 10, .positions = 10, .heads = 4, .kv_cols = 32),
     128 + 2 * 640 + 2 * 64 + 128 + 2 * 64, 4.0 * 10 * 64},
    {SHAPE(ATTENTION_SINKS_BACKWARD, BF16, .rows = 100, .cols = 64, .heads = 4), 12800 + 12800 + 1600, 0},
    /* 4 experts of each row, of 64 */
    {SHAPE(ROUTE_CHOOSE, BF16, .rows = 100, .cols = 64, .heads = 4), 1600 + 1600 + 25600 + 12800, 0},
    {SHAPE(ROUTE_SORT, .rows = 100, .heads = 4), 3 * 1600, 0},
    {SHAPE(ROUTE_TOTALS, .rows = 100, .cols = 64, .heads = 4), 1600 + 25600, 0},
    {SHAPE(ROUTE_LOSS, .rows = 64), 64 * 8 + 64 * 8, 0},
    {SHAPE(ROUTE_BACKWARD, BF16, .rows = 100, .cols = 64, .heads = 4), 12800 + 1600 + 25600 + 1600 + 1600, 0},
    {SHAPE(EXPERTS_GATHER, BF16, .rows = 100, .cols = 64), 12800 + 12800 + 400, 0},
    /* three experts with a matrix of 4096 bytes */
    {SHAPE(EXPERTS_MATMUL, BF16, C_BF16, .rows = 100, .cols = 64, .depth = 32, .state_bytes = 4096),
     12800 + 6400 + 3 * 4096, 409600},
    {SHAPE(EXPERTS_CAST, BF16, .other = STRATA_F32, .rows = 100, .cols = 64), 12800 + 25600, 0},
    {SHAPE(EXPERTS_BIAS_BACKWARD, BF16, .rows = 100, .cols = 64), 2 * 256 + 12800, 0},
    {SHAPE(EXPERTS_GATED_FORWARD, BF16, .rows = 100, .cols = 64), 12800 + 25600, 0},
    {SHAPE(EXPERTS_GATED_BACKWARD, BF16, .rows = 100, .cols = 64, .more.values = 1), 25600 + 12800 + 25600 + 12800, 0},
    {SHAPE(EXPERTS_ADD, BF16, .rows = 100, .cols = 64, .positions = 50), 2 * 12800 + 12800 + 400 + 400, 0},
    {SHAPE(EXPERTS_ADD_BACKWARD, BF16, .rows = 100, .cols = 64, .positions = 50), 12800 + 400 + 6400 + 12800 + 400 + 400, 0},
    {SHAPE(SHARED_FORWARD, BF16, .rows = 100, .cols = 64), 25600 + 12800, 0},
    {SHAPE(SHARED_BACKWARD, BF16, .rows = 100, .cols = 64), 3 * 12800, 0},
    {SHAPE(CLIP, BF16, .rows = 100, .cols = 64), 2 * 12800, 0},
    {SHAPE(CLIP_BACKWARD, BF16, .rows = 100, .cols = 64), 3 * 12800, 0},
    {SHAPE(EMBED_ADD_POSITION, BF16, .rows = 100, .cols = 64, .positions = 50), 2 * 12800 + 6400, 0},
    {SHAPE(EMBED_POSITION_BACKWARD, BF16, .rows = 100, .cols = 64, .positions = 50), 2 * 12800 + 12800, 0},
    {SHAPE(XENT_STATS, .rows = 100, .cols = 64), 2 * 1200 + 25600 + 400, 0},
    {SHAPE(XENT_GRAD, BF16, .rows = 100, .cols = 64), 12800 + 25600 + 1200 + 400, 0},
    {SHAPE(XENT_LOSS, .rows = 100), 1200 + 400, 0},
};
/* clang-format on */

TEST(traffic_is_the_sum_of_the_operands)
{
    bool seen[ST_DEVICE_OP_COUNT] = {false};

    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        const struct st_op_traffic t = st_op_traffic(&table[i].shape);
        const char *name = st_device_op_rows[table[i].shape.op].name;

        if (t.bytes != table[i].bytes || t.flops != table[i].flops)
            fail_msg("%s, row %zu: %.0f bytes and %.0f FLOPs, not %.0f and %.0f", name, i, t.bytes, t.flops, table[i].bytes,
                     table[i].flops);
        seen[table[i].shape.op] = true;
    }
    for (uint32_t op = 0; op < ST_DEVICE_OP_COUNT; op++)
        if (!seen[op])
            fail_msg("%s has no row in this test", st_device_op_rows[op].name);
}

TEST(causal_rows_attend_to_half_or_to_a_window)
{
    assert_true(st_op_causal_depth(0, 1, 0) == 1);
    assert_true(st_op_causal_depth(0, 50, 0) == 25.5);
    assert_true(st_op_causal_depth(7, 1, 0) == 8);    /* positions 0 to 7 */
    assert_true(st_op_causal_depth(10, 3, 0) == 12);  /* 11, 12, 13 */
    assert_true(st_op_causal_depth(0, 4, 2) == 1.75); /* 1, 2, 2, 2 */
    assert_true(st_op_causal_depth(0, 4, 4) == 2.5);
    assert_true(st_op_causal_depth(0, 4, 100) == 2.5);
    assert_true(st_op_causal_depth(10, 3, 12) == 35.0 / 3); /* 11, 12, 12 */
    assert_true(st_op_causal_depth(10, 3, 5) == 5);
    assert_true(st_op_causal_depth(0, 3, 1) == 1);
}

TEST(shapes_are_put_in_words)
{
    static const struct {
        struct st_op_shape shape;
        const char *text;
    } words[] = {
        {SHAPE(ZERO, .rows = 1, .cols = 4096), "4096 bytes"},
        {SHAPE(ADD, BF16, .rows = 1, .cols = 4096), "4096 bf16"},
        {SHAPE(XENT_LOSS, .rows = 100), "100 rows fp32"},
        {SHAPE(LAYERNORM_BACKWARD, BF16, C_FP32, .rows = 100, .cols = 64, .frozen = true, .more.values = 1),
         "100 x 64 bf16 fp32 residual frozen"},
        {SHAPE(RMSNORM_FORWARD, BF16, .rows = 100, .cols = 64, .more.values = 2), "100 x 64 bf16 residual"},
        {SHAPE(GATED_BACKWARD, BF16, .rows = 100, .cols = 64, .more.values = 1), "100 x 64 bf16 y"},
        {SHAPE(ATTENTION_FORWARD, BF16, .rows = 100, .cols = 64, .depth = 25.5), "100 x 64 x 25.5 bf16"},
        {SHAPE(MATMUL, BF16, C_BF16, .rows = 100, .cols = 64, .depth = 32, .more.params = 1, .epilogue = ST_EPILOGUE_GELU),
         "100 x 64 x 32 bf16 nn bias gelu"},
        {SHAPE(MATMUL, BF16, C_FP32, .rows = 100, .cols = 64, .depth = 32, .trans_a = true, .accumulate = true),
         "100 x 64 x 32 bf16 fp32 tn +="},
        {SHAPE(MATMUL, .dt = STRATA_F16, .other = STRATA_F16, .rows = UINT32_MAX, .cols = UINT32_MAX, .depth = UINT32_MAX,
               .trans_b = true, .epilogue = ST_EPILOGUE_GELU_BACKWARD),
         "4294967295 x 4294967295 x 4294967295 fp16 nt gelu_backward"},
        {SHAPE(UPDATE), "other shapes"},
    };
    char text[ST_OP_SHAPE_TEXT];

    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
        assert_string_equal(st_op_shape_text(text, &words[i].shape), words[i].text);
}
