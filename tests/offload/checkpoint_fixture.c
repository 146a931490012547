/* tests/offload/checkpoint_fixture.c - see checkpoint_fixture.h. */
#include "tests/offload/checkpoint_fixture.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DIGEST "00112233445566778899aabbccddee"

static void *copied(const void *from, size_t bytes)
{
    void *to = malloc(bytes);

    if (to == NULL)
        abort();
    return memcpy(to, from, bytes);
}

/* Member by member: what lies between them stays zero, so that two can be compared as bytes. */
static void set_coef(struct st_update_coef *c, float base)
{
    c->rule = ST_RULE_LION;
    c->nesterov = true;
    c->grad_scale = base + 0.1f;
    c->beta1 = base + 0.2f;
    c->one_minus_beta1 = base + 0.3f;
    c->beta2 = base + 0.4f;
    c->one_minus_beta2 = 1e-45f; /* the least there is */
    c->eps = base + 0.6f;
    c->step_size = -base;
    c->vhat_scale = INFINITY;
    c->decay = base + 0.7f;
    c->l2 = base + 0.8f;
    c->rounding_key = UINT64_MAX - (uint64_t)base;
}

static void set_train(struct st_train_state *t)
{
    t->pending = true;
    t->steps_applied = 100;
    t->steps_skipped = 3;
    t->sequences = 824;
    t->idle_in_row = 2;
    t->loss_lost = true;
    t->beta1 = 0.9;
    t->beta2 = 0.999;
    t->beta1_power = pow(0.9, 100);
    t->beta2_power = 5e-324;
    t->scaler.scale = 65536;
    t->scaler.dynamic = true;
    t->scaler.consecutive_hysteresis = true;
    t->scaler.window = 1000;
    t->scaler.hysteresis = 4;
    t->scaler.hysteresis_left = 1;
    t->scaler.min_scale = 1.0 / 3;
    t->scaler.iteration = 103;
    t->scaler.last_overflow = -1;
    t->update_scale = 32768;
    t->overflowed_host = 11;
    t->overflowed_seen = 10;
    t->update.skip = true;
    t->update.loss = 2.71828;
    t->update.grad_norm = -0.0;
    t->update.lr = NAN;
    t->update.step = 99;
    set_coef(&t->update.decay, 1);
    set_coef(&t->update.no_decay, 2);
}

static void set_lists(struct st_manifest *m)
{
    const struct st_manifest_group groups[] = {
        {.page = 0, .kind = ST_GROUP_DECAY, .format = STRATA_BF16, .offset = 0, .elems = FIXTURE_ELEMS},
        {.page = 0, .kind = ST_GROUP_NO_DECAY, .format = STRATA_F32, .offset = FIXTURE_ELEMS, .elems = FIXTURE_BIASES},
        {.page = 1, .kind = ST_GROUP_FROZEN, .format = STRATA_F16, .offset = 0, .elems = FIXTURE_FROZEN},
    };
    const struct st_manifest_tensor tensors[] = {
        {.name = "wte.weight", .page = 0, .offset = 0, .elems = 6400},
        {.name = "h.0.\"\x1b[2J", .page = 0, .offset = 6400, .elems = FIXTURE_ELEMS - 6400},
        {.name = "h.0.bias", .page = 0, .offset = FIXTURE_ELEMS, .elems = FIXTURE_BIASES},
        {.name = "ln_f.weight", .page = 1, .offset = 0, .elems = FIXTURE_FROZEN},
    };
    const struct st_manifest_data data[] = {
        {.path = "book.bin", .bytes = 4096, .header = DIGEST "01", .windows = DIGEST "02"},
        {.path = "/data/dir with space/b.bin", .bytes = UINT64_C(1) << 53, .header = DIGEST "03", .windows = DIGEST "04"},
    };

    m->groups = copied(groups, sizeof(groups));
    m->group_count = 3;
    m->tensors = copied(tensors, sizeof(tensors));
    m->tensor_count = 4;
    m->data = copied(data, sizeof(data));
    m->data_count = 2;
}

static void set_storage(struct st_manifest *m)
{
    static const double rates[] = {2, 1};
    struct st_manifest_file files[4] = {0};

    st_stripe_init(&m->stripe, 2, rates, 65536);
    m->space_bytes[ST_SPACE_BASE] = 8192;
    m->space_bytes[ST_SPACE_SET] = 847872;
    for (uint32_t i = 0; i < 4; i++) {
        files[i].space = i < 2 ? ST_SPACE_BASE : ST_SPACE_SET;
        files[i].dir = i % 2;
        files[i].bytes = st_stripe_file_bytes(&m->stripe, files[i].dir, m->space_bytes[files[i].space]);
        snprintf(files[i].name, sizeof(files[i].name), "%s.%u", i < 2 ? "base" : "set", i % 2);
    }
    m->files = copied(files, sizeof(files));
    m->file_count = 4;
    m->extents_bytes = 824;
    memcpy(m->extents_digest, DIGEST "05", ST_DIGEST_TEXT);
}

struct st_manifest fixture_manifest(void)
{
    struct st_manifest m = {
        .version = "0.1.0",
        .run = "0123456789abcdef",
        .step = 100,
        .world = 1,
        .leaves = 1,
        .numerics = 2,
        .device = "cpu",
        .isa = "avx2",
        .matmul = "oneDNN 3.5",
        .optimizer = "adamw",
        .moments = 2,
        .moment_format = ST_MOMENTS_8BIT,
        .model = "nano",
        .model_source = "/models/nano",
        .model_shapes = DIGEST "06",
        .tokenizer = "",
        .dtype = STRATA_BF16,
        .page_count = 2,
        .data_seed = UINT64_MAX,
        .data_sequences = 5000,
        .data_seq = 1024,
        .data_position = 823,
        .metrics_lines = 101,
        .metrics_bytes = 40999,
        .written_bytes = 123456789012,
        .config = copied("{\"a\": [1, \"b\"]}\n", 17),
    };

    set_train(&m.train);
    set_lists(&m);
    set_storage(&m);
    return m;
}

struct st_extents fixture_extents(void)
{
    const struct st_manifest m = fixture_manifest();
    const uint8_t masters[] = {ST_MASTER_SPLIT, 0, 0};
    struct st_extents e = {.rows = calloc(16, sizeof(*e.rows)), .sums = calloc(64, sizeof(*e.sums))};
    uint64_t at[ST_SPACE_COUNT] = {0};

    for (uint32_t i = 0; i < m.group_count && e.rows != NULL && e.sums != NULL; i++)
        for (uint32_t plane = 0; plane < ST_PLANE_COUNT; plane++) {
            const struct st_manifest_group *g = &m.groups[i];
            const uint64_t bytes = st_plane_bytes((enum st_plane)plane, g->format, m.moment_format, g->elems);
            struct st_extent_row *row = &e.rows[e.row_count];

            if (bytes == 0 || (g->kind == ST_GROUP_FROZEN && plane != ST_PLANE_WEIGHT))
                continue;
            *row = (struct st_extent_row){.page = g->page,
                                          .group = g->page == 0 ? (uint8_t)i : 0,
                                          .plane = (uint8_t)plane,
                                          .space = g->kind == ST_GROUP_FROZEN ? ST_SPACE_BASE : ST_SPACE_SET,
                                          .elems = g->elems,
                                          .bytes = bytes,
                                          .sum_first = e.sum_count,
                                          .sum_count = (g->elems - 1) / ST_TILE_ELEMS + 1};
            row->format = plane == ST_PLANE_WEIGHT   ? (uint8_t)g->format
                          : plane == ST_PLANE_MASTER ? masters[i]
                                                     : (uint8_t)m.moment_format;
            row->offset = at[row->space];
            at[row->space] += st_extent_bytes(bytes);
            for (uint64_t j = 0; j < row->sum_count; j++, e.sum_count++)
                e.sums[e.sum_count] = 0x0123456789abcdef * (e.sum_count + 1);
            e.row_count++;
        }
    st_manifest_fini((struct st_manifest *)(uintptr_t)&m);
    return e;
}
