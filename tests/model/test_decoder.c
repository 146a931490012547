/* tests/model/test_decoder.c - the decoder's calls over a cpu device with everything resident: against PyTorch's numbers
 * on the golden model, kept against recomputed activations, and across workers, kernels and dtypes by memcmp. */
#include "core/json.h"
#include "core/workers.h"
#include "model/layout.h"
#include "model/tokens.h"
#include "model_fixture.h"
#include "offload/device.h"
#include <math.h>
#include <stdio.h>

#define GUARD_BYTES 256u
#define GUARD_BYTE  0xa5

/* One model on one device. */
struct rig {
    struct st_model *m;
    const struct st_workload *w;
    struct st_workers *workers;
    struct st_device *dev;
    struct st_compute compute;
    unsigned char **guards; /* [guard_count] after every buffer */
    uint32_t guard_count;
    uint64_t used, arena_bytes;
    unsigned char **weights;   /* [pages] */
    float **grads;             /* [pages] */
    unsigned char **acts;      /* [blocks + 1] */
    unsigned char **internals; /* [blocks] */
    unsigned char *head_internals, *workspace, *dact;
    int32_t *tokens, *targets;
    double *loss_sum;
};

static uint64_t arena_bytes(const struct st_workload *w)
{
    uint64_t bytes = w->block_workspace_bytes + w->head_workspace_bytes + w->head_internal_bytes;

    for (uint32_t i = 0; i < w->page_count; i++)
        bytes += w->pages[i].elems * (4 + strata_dtype_bytes(w->dtype));
    bytes += (w->block_count + 2) * w->activation_bytes + w->block_count * w->block_internal_bytes;
    return bytes + 8 * (uint64_t)w->micro_batch * w->seq + 2048 * (uint64_t)(w->page_count + w->block_count + 8);
}

/* From the arena, with a guard behind. */
static void *place(struct rig *r, uint64_t bytes)
{
    unsigned char *at = r->dev->ops->arena(r->dev) + r->used, *guard;

    bytes = (bytes + 255) / 256 * 256;
    r->used += bytes + GUARD_BYTES;
    assert_true(r->used <= r->arena_bytes);
    guard = at + bytes;
    memset(guard, GUARD_BYTE, GUARD_BYTES); /* the cpu device's arena is addressable */
    r->guards = realloc(r->guards, (r->guard_count + 1) * sizeof(*r->guards));
    assert_non_null(r->guards);
    r->guards[r->guard_count++] = guard;
    return at;
}

static void check_guards(const struct rig *r)
{
    unsigned char want[GUARD_BYTES];

    memset(want, GUARD_BYTE, sizeof(want));
    for (uint32_t i = 0; i < r->guard_count; i++)
        assert_memory_equal(r->guards[i], want, GUARD_BYTES);
}

static void place_all(struct rig *r)
{
    const struct st_workload *w = r->w;
    const uint64_t rows = (uint64_t)w->micro_batch * w->seq;
    const uint64_t workspace =
        w->block_workspace_bytes > w->head_workspace_bytes ? w->block_workspace_bytes : w->head_workspace_bytes;

    r->weights = calloc(w->page_count, sizeof(*r->weights));
    r->grads = calloc(w->page_count, sizeof(*r->grads));
    r->acts = calloc(w->block_count + 1, sizeof(*r->acts));
    r->internals = calloc(w->block_count, sizeof(*r->internals));
    for (uint32_t i = 0; i < w->page_count; i++) {
        r->weights[i] = place(r, w->pages[i].elems * strata_dtype_bytes(w->dtype));
        r->grads[i] = place(r, w->pages[i].elems * 4);
        assert_ok(r->dev->ops->zero(r->dev, r->grads[i], w->pages[i].elems * 4));
    }
    for (uint32_t i = 0; i <= w->block_count; i++)
        r->acts[i] = place(r, w->activation_bytes);
    for (uint32_t i = 0; i < w->block_count; i++)
        r->internals[i] = place(r, w->block_internal_bytes);
    r->head_internals = place(r, w->head_internal_bytes);
    r->workspace = place(r, workspace);
    r->dact = place(r, w->activation_bytes);
    r->tokens = place(r, 4 * rows);
    r->targets = place(r, 4 * rows);
    r->loss_sum = place(r, sizeof(double));
}

static void rig_open(struct rig *r, const struct st_model_config *config, const struct st_model_batch *batch,
                     const struct st_kernels *kernels)
{
    struct st_device_opts opts;

    memset(r, 0, sizeof(*r));
    assert_ok(st_model_create(&r->m, config, batch));
    r->w = st_model_workload(r->m);
    r->compute = st_model_compute(r->m);
    r->arena_bytes = arena_bytes(r->w);
    assert_ok(st_workers_create(&r->workers, batch->workers > 0 ? batch->workers : 1, NULL));
    opts = (struct st_device_opts){.arena_bytes = r->arena_bytes, .workers = r->workers, .kernels = kernels};
    assert_ok(st_device_cpu_ops.open(&r->dev, &opts));
    place_all(r);
}

static void rig_close(struct rig *r)
{
    check_guards(r);
    r->dev->ops->close(r->dev);
    st_workers_destroy(r->workers);
    st_model_destroy(r->m);
    free(r->weights);
    free(r->grads);
    free(r->acts);
    free(r->internals);
    free(r->guards);
}

static void load_weights(struct rig *r, struct st_weight_source source)
{
    const struct st_kernels *kernels = st_kernels_pick("scalar");

    for (uint32_t i = 0; i < r->w->page_count; i++) {
        const uint64_t elems = r->w->pages[i].elems;
        float *values = malloc(elems * sizeof(*values));

        assert_non_null(values);
        assert_ok(source.read(source.ctx, i, 0, elems, values));
        if (r->w->dtype == STRATA_BF16)
            kernels->f32_to_bf16((uint16_t *)values, values, elems); /* narrows in place, front to back */
        assert_ok(r->dev->ops->upload(r->dev, r->weights[i], values, elems * strata_dtype_bytes(r->w->dtype)));
        assert_ok(r->dev->ops->finish(r->dev, ST_QUEUE_UPLOAD));
        free(values);
    }
}

static struct st_call call_of(struct rig *r, enum st_call_kind kind, uint32_t page)
{
    return (struct st_call){
        .kind = kind,
        .device = r->dev,
        .weight = r->weights[page],
        .grad = r->grads[page],
        .dact = r->dact,
        .workspace = r->workspace,
        .tokens = r->tokens,
        .targets = r->targets,
        .loss_sum = r->loss_sum,
        .loss_gradient = 1.0f / (float)((uint64_t)r->w->micro_batch * r->w->seq),
    };
}

static void run(struct rig *r, const struct st_call *call)
{
    assert_ok(r->compute.run(r->compute.model, call));
}

static void embed(struct rig *r)
{
    const uint32_t rows = r->w->micro_batch * r->w->seq;
    struct st_call call = call_of(r, ST_CALL_EMBED_FORWARD, r->w->position_page);

    for (uint32_t i = 0; i < r->w->table_count; i++) {
        const struct st_page *p = &r->w->pages[i];

        assert_ok(r->dev->ops->embed_gather(r->dev, r->acts[0], r->weights[i], r->tokens, rows, r->w->hidden, p->row_first,
                                            p->row_count, r->w->dtype));
    }
    call.act = r->acts[0];
    run(r, &call);
}

static void forward(struct rig *r)
{
    embed(r);
    for (uint32_t b = 0; b < r->w->block_count; b++) {
        struct st_call call = call_of(r, ST_CALL_BLOCK_FORWARD, r->w->block_first + b);

        call.block = b;
        call.act = r->acts[b];
        call.act_out = r->acts[b + 1];
        call.internals = r->internals[b];
        run(r, &call);
    }
}

static void head_tiles(struct rig *r, enum st_call_kind kind)
{
    for (uint32_t i = 0; i < r->w->head_count; i++) {
        struct st_call call = call_of(r, kind, r->w->head_first + i);

        call.tile = i;
        call.internals = r->head_internals;
        run(r, &call);
    }
}

static void head(struct rig *r, enum st_call_kind kind)
{
    struct st_call call = call_of(r, kind, r->w->norm_page);

    call.act = r->acts[r->w->block_count];
    call.internals = r->head_internals;
    run(r, &call);
}

/* recompute: the internals are spoiled first. */
static void backward(struct rig *r, bool recompute)
{
    const uint32_t rows = r->w->micro_batch * r->w->seq;
    struct st_call call;

    head(r, ST_CALL_HEAD_BACKWARD);
    for (uint32_t b = r->w->block_count; b-- > 0;) {
        call = call_of(r, ST_CALL_BLOCK_BACKWARD, r->w->block_first + b);
        call.block = b;
        call.act = r->acts[b];
        call.internals = r->internals[b];
        call.recompute = recompute;
        if (recompute)
            memset(r->internals[b], 0xff, r->w->block_internal_bytes);
        run(r, &call);
    }
    call = call_of(r, ST_CALL_EMBED_BACKWARD, r->w->position_page);
    run(r, &call);
    for (uint32_t i = 0; i < r->w->table_count; i++) {
        const struct st_page *p = &r->w->pages[i];

        assert_ok(r->dev->ops->embed_scatter(r->dev, r->grads[i], r->dact, r->tokens, rows, r->w->hidden, p->row_first,
                                             p->row_count, r->w->dtype));
    }
}

static double micro_batch_loss(struct rig *r, const int32_t *tokens, const int32_t *targets, bool recompute)
{
    const uint64_t rows = (uint64_t)r->w->micro_batch * r->w->seq;
    double loss_sum;

    assert_ok(r->dev->ops->upload(r->dev, r->tokens, tokens, 4 * rows));
    assert_ok(r->dev->ops->upload(r->dev, r->targets, targets, 4 * rows));
    assert_ok(r->dev->ops->finish(r->dev, ST_QUEUE_UPLOAD));
    forward(r);
    head(r, ST_CALL_HEAD_NORM);
    head_tiles(r, ST_CALL_HEAD_STATS);
    head(r, ST_CALL_HEAD_LOSS);
    head_tiles(r, ST_CALL_HEAD_GRAD);
    backward(r, recompute);
    assert_ok(r->dev->ops->finish(r->dev, ST_QUEUE_COMPUTE));
    assert_ok(r->dev->ops->download(r->dev, &loss_sum, r->loss_sum, sizeof(loss_sum)));
    assert_ok(r->dev->ops->finish(r->dev, ST_QUEUE_DOWNLOAD));
    return loss_sum / (double)rows;
}

/* --- the golden model --- */

static void golden_open(struct rig *r, strata_dtype dtype, uint32_t workers, const struct st_kernels *kernels)
{
    const struct st_model_batch batch = {.micro_batch = 2, .seq = 32, .grad_accum = 1, .dtype = dtype, .workers = workers};
    struct st_model_config config;
    struct st_hf_reader *reader;

    assert_ok(st_model_config_read(&config, GOLDEN_DIR));
    rig_open(r, &config, &batch, kernels);
    assert_ok(st_hf_reader_open(&reader, r->m, GOLDEN_DIR));
    load_weights(r, st_hf_reader_source(reader));
    st_hf_reader_close(reader);
}

static double golden_loss(struct rig *r, bool recompute)
{
    const char *const path = GOLDEN_DIR "/tokens.bin";
    int32_t tokens[64], targets[64];
    struct st_token_set *set;

    assert_ok(st_token_set_open(&set, &path, 1, r->w->vocab, 32));
    for (uint32_t i = 0; i < 2; i++)
        assert_ok(st_token_set_window(set, i, 0, false, tokens + 32 * i, targets + 32 * i));
    st_token_set_close(set);
    return micro_batch_loss(r, tokens, targets, recompute);
}

static st_json *golden_json(void)
{
    st_json *root;

    assert_ok(st_json_parse_file(&root, GOLDEN_DIR "/golden.json", 1 << 20));
    return root;
}

static float grad_value(const struct rig *r, const struct st_tensor *t, uint64_t elem)
{
    uint32_t page = t->page;

    while (page + 1 < t->page + t->page_count && elem >= (uint64_t)r->w->pages[page].row_count * r->w->hidden)
        elem -= (uint64_t)r->w->pages[page++].row_count * r->w->hidden;
    return r->grads[page][t->offset + elem];
}

/* Within 1e-4 of the value, or of the tensor's typical value where that is larger. */
static void check_gradient(const struct rig *r, const struct st_tensor *t, const st_json *want)
{
    const double typical = st_json_number(st_json_get(want, "norm")) / sqrt((double)t->elems);
    uint64_t stride, elem = 0;

    assert_true(st_json_u64(st_json_get(want, "stride"), &stride));
    for (const st_json *n = st_json_first(st_json_get(want, "samples")); n != NULL; n = st_json_next(n), elem += stride) {
        const double value = st_json_number(n), got = (double)grad_value(r, t, elem);

        if (fabs(got - value) > 1e-4 * fmax(fabs(value), typical))
            fail_msg("%s[%llu]: %.9g, PyTorch %.9g", t->name, (unsigned long long)elem, got, value);
    }
    assert_true(elem > 0);
}

static void test_loss_and_gradients_are_pytorchs(void **state)
{
    st_json *root = golden_json();
    const st_json *first = st_json_get(root, "first_micro_batch");
    const double want = st_json_number(st_json_get(first, "loss"));
    struct rig r;
    double loss;

    (void)state;
    golden_open(&r, STRATA_F32, 2, st_kernels_pick(NULL));
    loss = golden_loss(&r, false);
    assert_true(fabs(loss - want) <= 1e-5 * want);
    for (uint32_t i = 0; i < st_model_tensor_count(r.m); i++) {
        const struct st_tensor *t = st_model_tensor(r.m, i);

        check_gradient(&r, t, st_json_get(st_json_get(first, "gradients"), t->name));
    }
    rig_close(&r);
    st_json_free(root);
}

static void assert_same_bits(const struct rig *a, const struct rig *b)
{
    assert_memory_equal(a->dact, b->dact, a->w->activation_bytes);
    for (uint32_t i = 0; i < a->w->page_count; i++)
        assert_memory_equal(a->grads[i], b->grads[i], a->w->pages[i].elems * 4);
}

static void test_recomputed_is_kept(void **state)
{
    static const strata_dtype dtypes[] = {STRATA_F32, STRATA_BF16};

    (void)state;
    for (size_t i = 0; i < 2; i++) {
        struct rig kept, recomputed;

        golden_open(&kept, dtypes[i], 2, st_kernels_pick(NULL));
        golden_open(&recomputed, dtypes[i], 2, st_kernels_pick(NULL));
        assert_true(golden_loss(&kept, false) == golden_loss(&recomputed, true));
        assert_same_bits(&kept, &recomputed);
        rig_close(&kept);
        rig_close(&recomputed);
    }
}

static void test_workers_and_kernels_do_not_matter(void **state)
{
    static const strata_dtype dtypes[] = {STRATA_F32, STRATA_BF16};

    (void)state;
    for (size_t i = 0; i < 2; i++) {
        struct rig reference;
        double loss;

        golden_open(&reference, dtypes[i], 1, st_kernels_pick("scalar"));
        loss = golden_loss(&reference, false);
        for (uint32_t k = 0; st_kernels_usable(k) != NULL; k++) {
            for (uint32_t workers = 1; workers <= 3; workers++) {
                struct rig r;

                golden_open(&r, dtypes[i], workers, st_kernels_usable(k));
                assert_true(golden_loss(&r, workers == 3) == loss);
                assert_same_bits(&reference, &r);
                rig_close(&r);
            }
        }
        rig_close(&reference);
    }
}

static void test_bf16_is_finite_and_near(void **state)
{
    struct rig wide, narrow;
    double want, loss;

    (void)state;
    golden_open(&wide, STRATA_F32, 1, st_kernels_pick(NULL));
    golden_open(&narrow, STRATA_BF16, 1, st_kernels_pick(NULL));
    want = golden_loss(&wide, false);
    loss = golden_loss(&narrow, false);
    assert_true(fabs(loss - want) < 0.01 * want);
    for (uint32_t i = 0; i < narrow.w->page_count; i++) {
        double difference2 = 0.0, norm2 = 0.0;

        for (uint64_t e = 0; e < narrow.w->pages[i].elems; e++) {
            const double a = (double)narrow.grads[i][e], b = (double)wide.grads[i][e];

            assert_true(isfinite(a));
            difference2 += (a - b) * (a - b);
            norm2 += b * b;
        }
        assert_true(difference2 < 0.05 * 0.05 * norm2);
    }
    rig_close(&wide);
    rig_close(&narrow);
}

/* --- more rows than the head takes at once, more than one tile --- */

static const struct st_model_config tall_config = {"tall", 1, 16, 2, 64, 5000, 128, 1e-5f, 0.0f};
enum { TALL_SEQ = 100, TALL_BATCH = 11, TALL_ROWS = TALL_SEQ * TALL_BATCH };

static void tall_open(struct rig *r, uint32_t micro_batch)
{
    const struct st_model_batch batch = {
        .micro_batch = micro_batch, .seq = TALL_SEQ, .grad_accum = 1, .dtype = STRATA_F32, .workers = 2};
    struct st_model_init init;

    rig_open(r, &tall_config, &batch, st_kernels_pick(NULL));
    init = (struct st_model_init){.model = r->m, .seed = 7};
    load_weights(r, st_model_init_source(&init));
}

static void test_head_in_parts_is_the_sum_of_its_rows(void **state)
{
    static int32_t tokens[TALL_ROWS], targets[TALL_ROWS];
    struct rig whole, part;
    double sum = 0.0;

    (void)state;
    for (uint32_t i = 0; i < TALL_ROWS; i++) {
        tokens[i] = (int32_t)(i * 2654435761u % 5000);
        targets[i] = (int32_t)((i + 1) * 2654435761u % 5000);
    }
    tall_open(&whole, TALL_BATCH);
    tall_open(&part, 1);
    assert_true(TALL_ROWS > ST_HEAD_ROWS);
    assert_int_equal(whole.w->head_count, 2);
    for (uint32_t b = 0; b < TALL_BATCH; b++)
        sum += micro_batch_loss(&part, tokens + b * TALL_SEQ, targets + b * TALL_SEQ, false) / TALL_BATCH;
    assert_true(fabs(micro_batch_loss(&whole, tokens, targets, true) - sum) < 1e-6 * sum);
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_loss_and_gradients_are_pytorchs),      cmocka_unit_test(test_recomputed_is_kept),
        cmocka_unit_test(test_workers_and_kernels_do_not_matter),    cmocka_unit_test(test_bf16_is_finite_and_near),
        cmocka_unit_test(test_head_in_parts_is_the_sum_of_its_rows),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
