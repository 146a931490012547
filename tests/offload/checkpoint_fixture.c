/* tests/offload/checkpoint_fixture.c - see checkpoint_fixture.h. */
#include "tests/offload/checkpoint_fixture.h"

#include "core/base/checksum.h"
#include "offload/checkpoint/store.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

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

static void set_lists(struct st_manifest *m, uint64_t elems)
{
    const struct st_manifest_group groups[] = {
        {.page = 0, .kind = ST_GROUP_DECAY, .format = STRATA_BF16, .offset = 0, .elems = elems},
        {.page = 0, .kind = ST_GROUP_NO_DECAY, .format = STRATA_F32, .offset = elems, .elems = FIXTURE_BIASES},
        {.page = 1, .kind = ST_GROUP_FROZEN, .format = STRATA_F16, .offset = 0, .elems = FIXTURE_FROZEN},
    };
    const struct st_manifest_tensor tensors[] = {
        {.name = "wte.weight", .page = 0, .offset = 0, .elems = 6400},
        {.name = "h.0.\"\x1b[2J", .page = 0, .offset = 6400, .elems = elems - 6400},
        {.name = "h.0.bias", .page = 0, .offset = elems, .elems = FIXTURE_BIASES},
        {.name = "ln_f.weight", .page = 1, .offset = 0, .elems = FIXTURE_FROZEN},
    };
    const struct st_manifest_data data[] = {
        {.path = "book.bin", .bytes = 4096, .header = DIGEST "01", .windows = DIGEST "02", .marks = DIGEST "05"},
        {.path = "/data/dir with space/b.bin", .bytes = UINT64_C(1) << 53, .header = DIGEST "03", .windows = DIGEST "04"},
    };

    m->groups = copied(groups, sizeof(groups));
    m->group_count = 3;
    m->tensors = copied(tensors, sizeof(tensors));
    m->tensor_count = 4;
    m->data = copied(data, sizeof(data));
    m->data_count = 2;
}

static void set_files(struct st_manifest *m)
{
    for (uint32_t i = 0; i < m->file_count; i++)
        m->files[i].bytes = st_stripe_file_bytes(&m->stripe, m->files[i].dir, m->space_bytes[m->files[i].space]);
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
        snprintf(files[i].name, sizeof(files[i].name), "%s.%u", i < 2 ? "base" : "set", i % 2);
    }
    m->files = copied(files, sizeof(files));
    m->file_count = 4;
    set_files(m);
    m->extents_bytes = 824;
    memcpy(m->extents_digest, DIGEST "05", ST_DIGEST_TEXT);
}

struct st_manifest fixture_manifest_of(uint64_t elems)
{
    struct st_manifest m = {
        .version = "0.1.0",
        .run = "0123456789abcdef",
        .step = 100,
        .world = 1,
        .leaves = 3,
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
        .model_files = "",
        .dtype = STRATA_BF16,
        .page_count = 2,
        .data_seed = UINT64_MAX,
        .data_sequences = 5000,
        .data_seq = 1024,
        .data_order = 2,
        .data_date = "2026-11-28",
        .data_position = 823,
        .metrics_bytes = 40999,
        .config = copied("{\"a\": [1, \"b\"]}\n", 17),
    };

    set_train(&m.train);
    set_lists(&m, elems);
    set_storage(&m);
    return m;
}

struct st_manifest fixture_manifest(void)
{
    return fixture_manifest_of(FIXTURE_ELEMS);
}

/* The rows of one plane, at the end of what its space has so far. */
static void add_plane(struct st_extents *e, const struct st_manifest *m, const struct st_manifest_group *g, enum st_plane plane,
                      uint64_t chunk, uint64_t at[ST_SPACE_COUNT])
{
    const uint8_t space = g->kind == ST_GROUP_FROZEN ? ST_SPACE_BASE : ST_SPACE_SET;

    for (uint64_t first = 0; first < g->elems; first += chunk) {
        const uint64_t elems = g->elems - first < chunk ? g->elems - first : chunk;
        struct st_extent_row *row = &e->rows[e->row_count++];

        *row = (struct st_extent_row){.page = g->page,
                                      .group = g->offset > 0,
                                      .plane = (uint8_t)plane,
                                      .space = space,
                                      .format = st_extent_format(plane, g->format, m->moment_format),
                                      .first = first,
                                      .elems = elems,
                                      .offset = at[space],
                                      .bytes = st_plane_bytes(plane, g->format, m->moment_format, elems),
                                      .sum_first = e->sum_count,
                                      .sum_count = (elems - 1) / ST_TILE_ELEMS + 1};
        at[space] += (row->bytes + 63) / 64 * 64; /* no nearer to a block's start than a row must be */
        for (uint64_t i = 0; i < row->sum_count; i++, e->sum_count++)
            e->sums[e->sum_count] = 0x0123456789abcdef * (e->sum_count + 1);
    }
}

struct st_extents fixture_extents_of(const struct st_manifest *m, uint64_t chunk)
{
    uint64_t at[ST_SPACE_COUNT] = {0}, room = 16;
    struct st_extents e = {0};

    for (uint32_t i = 0; i < m->group_count; i++)
        room += m->groups[i].elems / ST_TILE_ELEMS * ST_PLANE_COUNT;
    e.rows = calloc(room, sizeof(*e.rows));
    e.sums = calloc(room, sizeof(*e.sums));
    for (uint32_t i = 0; i < m->group_count && e.rows != NULL && e.sums != NULL; i++)
        for (uint32_t p = 0; p < ST_PLANE_COUNT; p++) {
            const struct st_manifest_group *g = &m->groups[i];

            if (p != ST_PLANE_WEIGHT &&
                (g->kind == ST_GROUP_FROZEN || st_plane_bytes((enum st_plane)p, g->format, m->moment_format, 1) == 0))
                continue;
            add_plane(&e, m, g, (enum st_plane)p, chunk, at);
        }
    return e;
}

struct st_extents fixture_extents(void)
{
    struct st_manifest m = fixture_manifest();
    const struct st_extents e = fixture_extents_of(&m, UINT64_C(1) << 40);

    st_manifest_fini(&m);
    return e;
}

/* --- on disk --- */

unsigned char fixture_byte(enum st_space space, uint64_t at)
{
    return (unsigned char)((at * 2654435761u + at / 4096 + space) >> 7);
}

static unsigned char *image_of(const struct st_manifest *m, enum st_space space)
{
    unsigned char *image = malloc(m->space_bytes[space]);

    if (image == NULL)
        abort();
    for (uint64_t i = 0; i < m->space_bytes[space]; i++)
        image[i] = fixture_byte(space, i);
    return image;
}

static void sum_row(const struct st_manifest *m, struct st_extents *e, const struct st_extent_row *row,
                    const unsigned char *image)
{
    const strata_dtype format = st_manifest_group(m, row->page, row->group)->format;

    for (uint64_t tile = 0; tile < row->sum_count; tile++) {
        const uint64_t end = (tile + 1) * ST_TILE_ELEMS < row->elems ? (tile + 1) * ST_TILE_ELEMS : row->elems;
        const uint64_t from = st_plane_bytes((enum st_plane)row->plane, format, m->moment_format, tile * ST_TILE_ELEMS);

        e->sums[row->sum_first + tile] = st_checksum64(
            image + row->offset + from, st_plane_bytes((enum st_plane)row->plane, format, m->moment_format, end) - from);
    }
}

void fixture_seal(struct st_manifest *m, struct st_extents *e)
{
    uint64_t ends[ST_SPACE_COUNT] = {0};

    for (uint64_t i = 0; i < e->row_count; i++)
        if (e->rows[i].offset + e->rows[i].bytes > ends[e->rows[i].space])
            ends[e->rows[i].space] = e->rows[i].offset + e->rows[i].bytes;
    for (uint32_t space = ST_SPACE_BASE; space < ST_SPACE_COUNT; space++) {
        unsigned char *image;

        m->space_bytes[space] = st_extent_bytes(ends[space]);
        image = image_of(m, (enum st_space)space);
        for (uint64_t i = 0; i < e->row_count; i++)
            if (e->rows[i].space == space)
                sum_row(m, e, &e->rows[i], image);
        free(image);
    }
}

static void write_files(const char *dir, const struct st_manifest *m, enum st_space space)
{
    unsigned char *image = image_of(m, space);
    char path[ST_PATH_MAX];

    for (uint32_t d = 0; d < m->stripe.dir_count; d++) {
        const struct st_manifest_file *f = st_manifest_file(m, space, d);
        FILE *file;

        snprintf(path, sizeof(path), "%s/%s", dir, f->name);
        file = fopen(path, "wb");
        if (file == NULL)
            abort();
        for (uint64_t at = 0; at < m->space_bytes[space];) {
            const struct st_stripe_place place = st_stripe_at(&m->stripe, at);
            const uint64_t left = m->space_bytes[space] - at, bytes = place.bytes < left ? place.bytes : left;

            if (place.dir == d && (fseek(file, (long)place.offset, SEEK_SET) != 0 || fwrite(image + at, 1, bytes, file) != bytes))
                abort();
            at += bytes;
        }
        if (fclose(file) != 0)
            abort();
    }
    free(image);
}

static strata_status put(void *file, const void *part, uint64_t bytes, uint64_t offset)
{
    (void)offset;
    if (fwrite(part, 1, bytes, file) != bytes)
        abort();
    return STRATA_OK;
}

/* What says of the planes' files what they are. */
static void write_rest(const char *dir, struct st_manifest *m, const struct st_extents *e)
{
    char path[ST_PATH_MAX], *text;
    uint64_t bytes;
    FILE *file;

    snprintf(path, sizeof(path), "%s/" ST_EXTENTS_NAME, dir);
    file = fopen(path, "wb");
    if (file == NULL || st_extents_write(e, put, file, m->extents_digest) != STRATA_OK || fclose(file) != 0)
        abort();
    m->extents_bytes = st_extents_bytes(e);
    snprintf(path, sizeof(path), "%s/" ST_MANIFEST_NAME, dir);
    if (st_manifest_text(&text, &bytes, m) != STRATA_OK || (file = fopen(path, "wb")) == NULL ||
        fwrite(text, 1, bytes, file) != bytes || fclose(file) != 0)
        abort();
    free(text);
}

void fixture_write(const char *dir, struct st_manifest *m, struct st_extents *e)
{
    fixture_seal(m, e);
    set_files(m);
    write_files(dir, m, ST_SPACE_BASE);
    write_files(dir, m, ST_SPACE_SET);
    write_rest(dir, m, e);
}

void fixture_write_ranks(const char *dir, struct st_manifest *m, struct st_extents *e, uint32_t ranks)
{
    const uint32_t dirs = m->stripe.dir_count, one = m->file_count;
    struct st_manifest_file *files = calloc((size_t)ranks * one, sizeof(*files));

    fixture_write(dir, m, e);
    for (uint32_t i = 0; files != NULL && i < ranks * one; i++) {
        const struct st_manifest_file *from = &m->files[i % one];
        char path[ST_PATH_MAX], name[ST_PATH_MAX];

        files[i] = *from;
        files[i].dir += i / one * dirs;
        snprintf(files[i].name, sizeof(files[i].name), "rank-%u.%s.%u", i / one, from->space == ST_SPACE_BASE ? "base" : "set",
                 from->dir);
        snprintf(path, sizeof(path), "%s/%s", dir, from->name);
        snprintf(name, sizeof(name), "%s/%s", dir, files[i].name);
        if (link(path, name) != 0)
            abort();
    }
    free(m->files);
    m->files = files;
    m->file_count = ranks * one;
    m->world = ranks;
    for (uint64_t i = 0; i < e->row_count; i++)
        e->rows[i].offset += (ranks - 1 - i % ranks) * m->space_bytes[e->rows[i].space];
    write_rest(dir, m, e);
}

void fixture_checkpoint(const char *save, uint64_t step)
{
    struct st_manifest m = fixture_manifest();
    struct st_extents e = fixture_extents_of(&m, ST_TILE_ELEMS);
    char path[ST_PATH_MAX], name[ST_STORE_NAME_BYTES];

    st_store_name(name, step);
    snprintf(path, sizeof(path), "%s/%s", save, name);
    if (mkdir(path, 0777) != 0)
        abort();
    m.step = step;
    fixture_write(path, &m, &e);
    st_extents_fini(&e);
    st_manifest_fini(&m);
}
