/* tests/model/test_decoder.c - the decoder's calls with everything resident: against PyTorch's numbers on the golden models,
 * kept against recomputed activations, and across workers, kernels and dtypes by memcmp. */
#include "decoder_rig.h"
#include "tests/common/golden.h"
#include "tests/common/golden_documents.h"
#include "tests/common/shape.h"
#include <math.h>

static const char *const dirs[] = {GOLDEN_TORCH, GOLDEN_FAMILIES, GOLDEN_EXPERTS};
static const char *const experts[] = {GOLDEN_EXPERTS};
enum { DIRS = sizeof(dirs) / sizeof(dirs[0]), EXPERTS = sizeof(experts) / sizeof(experts[0]) };

static void check_pytorch(const char *dir)
{
    const struct st_model_batch batch = {.dtype = STRATA_F32, .workers = 2};
    st_json *root = golden_json(dir);
    const st_json *first = st_json_get(root, "first_micro_batch");
    const double want = st_json_number(st_json_get(first, "loss"));
    uint64_t parameters;
    struct rig r;
    double loss;

    golden_open(&r, dir, &batch, st_kernels_pick(NULL));
    assert_true(st_json_u64(st_json_get(root, "parameters"), &parameters));
    assert_int_equal(r.w->params, parameters);
    loss = golden_loss(&r, dir, false);
    assert_true(fabs(loss - want) <= 1e-5 * want);
    for (uint32_t i = 0; i < st_model_tensor_count(r.m); i++) {
        const struct st_tensor *t = st_model_tensor(r.m, i);

        golden_gradient(&r, t, st_json_get(st_json_get(first, "gradients"), t->name));
    }
    rig_close(&r);
    st_json_free(root);
}

TEST(test_loss_and_gradients_are_pytorchs)
{
    for (uint32_t d = 0; d < DIRS; d++)
        check_pytorch(dirs[d]);
}

/* The ends of sequences become padding, as golden_aux.json says: how many rows have a target. */
static uint32_t pad(int32_t *tokens, int32_t *targets, const st_json *padded)
{
    uint32_t count = 0, end = 32;

    for (const st_json *n = st_json_first(padded); n != NULL; n = st_json_next(n), end += 32) {
        uint64_t pads;

        assert_true(st_json_u64(n, &pads) && pads < 32);
        targets[end - pads - 1] = -1; /* the last token's */
        for (uint64_t i = end - pads; i < end; i++) {
            tokens[i] = 0;
            targets[i] = STRATA_TARGET_PADDING;
        }
        count += 31 - (uint32_t)pads;
    }
    return count;
}

static void check_norms(const struct rig *r, const char *dir, const st_json *gradients)
{
    for (uint32_t i = 0; i < st_model_tensor_count(r->m); i++) {
        const struct st_tensor *t = st_model_tensor(r->m, i);
        const double norm = st_json_number(st_json_get(gradients, t->name)), got = golden_norm(r, t);

        if (fabs(got - norm) > 1e-5 * norm)
            fail_msg("%s: %s: norm %.9g, transformers %.9g", dir, t->name, got, norm);
    }
}

/* Loss, auxiliary loss and gradients of transformers, of tokens alone. */
static void check_aux_loss(const char *dir)
{
    st_json *root = golden_json_of(dir, "golden_aux.json");
    const st_json *first = st_json_get(root, "first_micro_batch");
    const double coef = st_json_number(st_json_get(root, "router_aux_loss_coef"));
    const struct st_model_batch batch = {.dtype = STRATA_F32, .workers = 2, .aux_loss_coef = (float)coef};
    const double want = st_json_number(st_json_get(first, "loss")), want_aux = st_json_number(st_json_get(first, "aux_loss"));
    int32_t tokens[64], targets[64];
    uint32_t routers = 0;
    struct rig r;
    double loss;

    golden_open(&r, dir, &batch, st_kernels_pick(NULL));
    golden_rows(&r, dir, tokens, targets);
    r.target_count = pad(tokens, targets, st_json_get(first, "padded"));
    loss = rig_step(&r, tokens, targets, false);
    if (fabs(*r.aux_loss - want_aux) > 1e-6 * want_aux || fabs(loss + coef * *r.aux_loss - want) > 1e-6 * want)
        fail_msg("%s: auxiliary loss %.9g, loss %.9g, transformers %.9g, %.9g", dir, *r.aux_loss, loss + coef * *r.aux_loss,
                 want_aux, want);
    check_norms(&r, dir, st_json_get(first, "gradients"));
    for (uint32_t i = 0; i < st_model_tensor_count(r.m); i++)
        routers += st_model_tensor(r.m, i)->rank == 2 && st_model_tensor(r.m, i)->shape[0] == r.m->config.experts;
    assert_true(routers > 0);
    rig_close(&r);
    st_json_free(root);
}

TEST(test_auxiliary_loss_is_transformers)
{
    static const char *const with_aux[] = {GOLDEN_AUX};

    for (size_t d = 0; d < sizeof(with_aux) / sizeof(with_aux[0]); d++)
        check_aux_loss(with_aux[d]);
}

/* Documents that share a window: loss and gradients of transformers, which saw each by itself. */
TEST(test_packed_documents_are_transformers)
{
    static const char *const packed[] = {GOLDEN_PACKED};
    const struct st_model_batch batch = {.dtype = STRATA_F32, .workers = 2, .documents = true};

    for (size_t d = 0; d < sizeof(packed) / sizeof(packed[0]); d++) {
        st_json *root = golden_json_of(packed[d], "golden_packed.json");
        const st_json *first = st_json_get(root, "first_micro_batch");
        const double want = st_json_number(st_json_get(first, "loss"));
        int32_t tokens[64], targets[64];
        struct rig r;
        double loss;

        golden_open(&r, packed[d], &batch, st_kernels_pick(NULL));
        golden_rows(&r, packed[d], tokens, targets);
        r.target_count = golden_documents(st_json_get(root, "documents"), 2, 32, targets, r.positions);
        loss = rig_step(&r, tokens, targets, false);
        if (fabs(loss - want) > 1e-6 * want)
            fail_msg("%s: loss %.9g, transformers %.9g", packed[d], loss, want);
        check_norms(&r, packed[d], st_json_get(first, "gradients"));
        rig_close(&r);
        st_json_free(root);
    }
}

static void assert_same_bits(const struct rig *a, const struct rig *b)
{
    assert_memory_equal(a->dact, b->dact, shape_of(a->w).activation_bytes);
    for (uint32_t i = 0; i < a->w->page_count; i++)
        assert_memory_equal(a->grads[i], b->grads[i], a->w->pages[i].elems * 4);
}

TEST(test_recomputed_is_kept)
{
    static const strata_dtype dtypes[] = {STRATA_F32, STRATA_BF16, STRATA_F16};

    for (uint32_t i = 0; i < 3 * DIRS; i++) {
        const struct st_model_batch batch = {.dtype = dtypes[i % 3], .workers = 2};
        const char *dir = dirs[i / 3];
        struct rig kept, recomputed;

        golden_open(&kept, dir, &batch, st_kernels_pick(NULL));
        golden_open(&recomputed, dir, &batch, st_kernels_pick(NULL));
        assert_true(golden_loss(&kept, dir, false) == golden_loss(&recomputed, dir, true));
        assert_same_bits(&kept, &recomputed);
        rig_close(&kept);
        rig_close(&recomputed);
    }
}

/* Of what a sparse block's first part leaves its other parts, backward needs all: nothing is kept that it could do without.  What
 * slices add to is opened again.  The one weight of a softmax over the chosen is 1, whichever it is: no gradient asks for ids. */
static void check_route_kept(const char *dir)
{
    const struct st_model_batch batch = {.dtype = STRATA_F32, .workers = 2, .aux_loss_coef = 0.25f};
    struct rig whole, spoilt;
    double loss;

    golden_open(&whole, dir, &batch, st_kernels_pick(NULL));
    loss = golden_loss(&whole, dir, false);
    const struct st_route_values v = st_route_values_layout(whole.m);
    const bool is_one = whole.m->config.experts_chosen == 1 && st_family_of(whole.m->config.family)->weights_after;
    enum { IDS = 2 };
    const struct {
        uint64_t first, end;
        bool index; /* of rows or experts: 0 is one, NaN would be none */
    } parts[] = {{v.input, v.probs, false},   {v.probs, v.ids, false},          {v.ids, v.weights, true},
                 {v.weights, v.order, false}, {v.order, v.places, true},        {v.places, v.offsets, true},
                 {v.offsets, v.sum, true},    {v.shared, v.shared_gate, false}, {v.shared_gate, v.bytes, false}};

    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
        bool differs = false;

        if (parts[i].first + ST_LAYOUT_GAP == parts[i].end || (i == IDS && is_one))
            continue; /* the model has no such part, or no use for it */
        golden_open(&spoilt, dir, &batch, st_kernels_pick(NULL));
        spoilt.spoilt_kind = ST_LAYER_EXPERTS;
        spoilt.spoilt_first = st_block_internal_bytes(whole.m, true) - v.bytes + parts[i].first;
        spoilt.spoilt_bytes = parts[i].end - parts[i].first;
        spoilt.spoilt_to_zero = parts[i].index;
        assert_true(golden_loss(&spoilt, dir, false) == loss);
        for (uint32_t p = 0; p < whole.w->page_count; p++)
            differs = differs || memcmp(whole.grads[p], spoilt.grads[p], whole.w->pages[p].elems * sizeof(float)) != 0;
        if (!differs)
            fail_msg("%s: backward does without part %zu of a route", dir, i);
        rig_close(&spoilt);
    }
    rig_close(&whole);
}

TEST(test_all_that_a_route_keeps_is_needed)
{
    for (uint32_t d = 0; d < EXPERTS; d++)
        check_route_kept(experts[d]);
}

/* Experts of a page are computed together, and added to a row's sum in the order of their numbers: pages of one or of all of them
 * give the same. */
TEST(test_slices_do_not_matter)
{
    for (uint32_t d = 0; d < 2 * EXPERTS; d++) {
        struct st_model_batch batch = {.dtype = d % 2 == 0 ? STRATA_F32 : STRATA_BF16, .decay_all = d % 2 == 0, .workers = 2};
        const char *dir = experts[d / 2];
        struct rig all, one;

        golden_open(&all, dir, &batch, st_kernels_pick(NULL));
        batch.slice_elems = 1;
        golden_open(&one, dir, &batch, st_kernels_pick(NULL));
        assert_true(one.w->page_count > all.w->page_count);
        assert_true(golden_loss(&all, dir, false) == golden_loss(&one, dir, true));
        for (uint32_t i = 0; i < st_model_tensor_count(all.m); i++) {
            const struct st_tensor *a = st_model_tensor(all.m, i), *b = st_model_tensor(one.m, i);

            if (a->page_count == 1)
                assert_memory_equal(all.grads[a->page] + a->offset, one.grads[b->page] + b->offset, a->elems * sizeof(float));
        }
        rig_close(&all);
        rig_close(&one);
    }
}

/* A cpu device that counts what it computes of gates. */
static uint32_t gates_forward, gates_left;

static strata_status counted_forward(struct st_device *dev, enum st_activation activation, void *y, const void *gate_up,
                                     uint32_t rows, uint32_t ffn, strata_dtype dt)
{
    gates_forward++;
    return st_tensor_cpu_ops.gated_forward(dev, activation, y, gate_up, rows, ffn, dt);
}

static strata_status counted_backward(struct st_device *dev, enum st_activation activation, void *dgate_up, void *y,
                                      const void *dy, const void *gate_up, uint32_t rows, uint32_t ffn, strata_dtype dt)
{
    gates_left += y != NULL;
    return st_tensor_cpu_ops.gated_backward(dev, activation, dgate_up, y, dy, gate_up, rows, ffn, dt);
}

static void check_gates(const char *dir)
{
    const struct st_model_batch batch = {.dtype = STRATA_BF16, .workers = 2};
    struct st_tensor_ops tensors = st_tensor_cpu_ops;
    struct rig r;

    golden_open(&r, dir, &batch, st_kernels_pick(NULL));
    tensors.gated_forward = counted_forward;
    tensors.gated_backward = counted_backward;
    r.ops = &tensors;
    gates_forward = gates_left = 0;
    golden_loss(&r, dir, false);
    assert_int_equal(gates_forward, shape_of(r.w).block_count);
    assert_int_equal(gates_left, shape_of(r.w).block_count);
    rig_close(&r);
}

/* Backward's one pass over gates leaves the activation that the next product needs: forward's is not run again. */
TEST(test_gates_are_computed_once)
{
    check_gates("tests/golden/llama_tiny_tied");
    check_gates("tests/golden/families/gemma2_caps");
    check_gates("tests/golden/families/olmo2");
}

static void check_workers_and_kernels(const char *dir, strata_dtype dtype)
{
    struct st_model_batch batch = {.dtype = dtype, .workers = 1};
    struct rig reference;
    double loss;

    golden_open(&reference, dir, &batch, st_kernels_pick("scalar"));
    loss = golden_loss(&reference, dir, false);
    for (uint32_t k = 0; st_kernels_usable(k) != NULL; k++) {
        for (batch.workers = 1; batch.workers <= 3; batch.workers++) {
            struct rig r;

            golden_open(&r, dir, &batch, st_kernels_usable(k));
            assert_true(golden_loss(&r, dir, batch.workers == 3) == loss);
            assert_same_bits(&reference, &r);
            rig_close(&r);
        }
    }
    rig_close(&reference);
}

TEST(test_workers_and_kernels_do_not_matter)
{
    static const strata_dtype dtypes[] = {STRATA_F32, STRATA_BF16, STRATA_F16};

    for (uint32_t i = 0; i < 3 * DIRS; i++)
        check_workers_and_kernels(dirs[i / 3], dtypes[i % 3]);
}

static void check_narrow(const char *dir, strata_dtype dtype)
{
    const struct st_model_batch wide_batch = {.dtype = STRATA_F32}, narrow_batch = {.dtype = dtype};
    const double tolerance = dtype == STRATA_BF16 ? 0.05 : 0.01;
    struct rig wide, narrow;
    double want, loss;

    golden_open(&wide, dir, &wide_batch, st_kernels_pick(NULL));
    golden_open(&narrow, dir, &narrow_batch, st_kernels_pick(NULL));
    want = golden_loss(&wide, dir, false);
    loss = golden_loss(&narrow, dir, false);
    assert_true(fabs(loss - want) < 0.2 * tolerance * want);
    for (uint32_t i = 0; i < narrow.w->page_count; i++) {
        double difference2 = 0.0, norm2 = 0.0;

        for (uint64_t e = 0; e < narrow.w->pages[i].elems; e++) {
            const double a = (double)narrow.grads[i][e], b = (double)wide.grads[i][e];

            assert_true(isfinite(a));
            difference2 += (a - b) * (a - b);
            norm2 += b * b;
        }
        assert_true(difference2 < tolerance * tolerance * norm2);
    }
    rig_close(&wide);
    rig_close(&narrow);
}

TEST(test_narrow_dtypes_are_finite_and_near)
{
    for (uint32_t d = 0; d < DIRS - EXPERTS; d++) { /* rounding may choose other experts */
        check_narrow(dirs[d], STRATA_BF16);
        check_narrow(dirs[d], STRATA_F16);
    }
}

/* --- more rows than the head takes at once, more than one slice --- */

static const struct st_model_config tall_config = {
    .name = "tall", .blocks = 1, .hidden = 16, .heads = 2, .ffn = 64, .vocab = 5000, .context = 128, .norm_eps = 1e-5f};
enum { TALL_SEQ = 100, TALL_BATCH = 41, TALL_ROWS = TALL_SEQ * TALL_BATCH };

static void tall_open(struct rig *r, uint32_t micro_batch)
{
    const struct st_model_batch batch = {
        .micro_batch = micro_batch, .seq = TALL_SEQ, .grad_accum = 1, .dtype = STRATA_F32, .workers = 2};

    rig_open(r, &tall_config, &batch, st_kernels_pick(NULL));
    rig_load_seed(r, 7);
}

TEST(test_head_in_parts_is_the_sum_of_its_rows)
{
    static int32_t tokens[TALL_ROWS], targets[TALL_ROWS];
    struct rig whole, part;
    double sum = 0.0;

    for (uint32_t i = 0; i < TALL_ROWS; i++) {
        tokens[i] = (int32_t)(i * 2654435761u % 5000);
        targets[i] = (int32_t)((i + 1) * 2654435761u % 5000);
    }
    tall_open(&whole, TALL_BATCH);
    tall_open(&part, 1);
    assert_true(TALL_ROWS > st_head_rows(whole.m));
    assert_int_equal(shape_of(whole.w).head_count, 2);
    for (uint32_t b = 0; b < TALL_BATCH; b++)
        sum += rig_step(&part, tokens + b * TALL_SEQ, targets + b * TALL_SEQ, false) / TALL_BATCH;
    assert_true(fabs(rig_step(&whole, tokens, targets, true) - sum) < 1e-6 * sum);
    for (uint32_t i = 0; i < whole.w->page_count; i++) {
        double difference2 = 0.0, norm2 = 0.0;

        for (uint64_t e = 0; e < whole.w->pages[i].elems; e++) {
            const double want = (double)part.grads[i][e] / TALL_BATCH, got = (double)whole.grads[i][e];

            difference2 += (got - want) * (got - want);
            norm2 += want * want;
        }
        assert_true(norm2 > 0.0 && difference2 < 1e-10 * norm2);
    }
    rig_close(&whole);
    rig_close(&part);
}
