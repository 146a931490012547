/* tests/model/hf_rig.c - see hf_rig.h. */
#include "hf_rig.h"
#include "model/hf/safetensors_internal.h"
#include <stdio.h>

void *page_weights(const struct st_model *m, uint32_t page)
{
    struct st_model_init init = {.model = m, .seed = 3};
    const struct st_weight_source source = st_model_init_source(&init);
    const uint64_t elems = m->workload.pages[page].elems;
    float *values = malloc(elems * sizeof(*values));
    uint16_t *narrow = (uint16_t *)(void *)values;

    assert_non_null(values);
    assert_ok(source.read(source.ctx, page, 0, elems, values));
    for (uint64_t i = 0; i < elems && m->batch.dtype != STRATA_F32; i++) {
        uint32_t bits;

        memcpy(&bits, values + i, sizeof(bits));
        bits >>= 16;
        memcpy(narrow + i, &bits, sizeof(*narrow));
    }
    return values;
}

/* Pages backwards, in uneven ranges. */
static strata_status put_pages(struct st_hf_writer *w, const struct st_model *m)
{
    const uint64_t elem_bytes = strata_dtype_bytes(m->batch.dtype);
    strata_status st = STRATA_OK;

    for (uint32_t page = m->workload.page_count; page-- > 0 && st == STRATA_OK;) {
        const uint64_t elems = m->workload.pages[page].elems;
        unsigned char *weights = page_weights(m, page);

        for (uint64_t first = 0; first < elems && st == STRATA_OK; first += 1000) {
            const uint64_t count = elems - first < 1000 ? elems - first : 1000;

            st = st_hf_writer_put(w, page, first, count, weights + first * elem_bytes);
        }
        free(weights);
    }
    return st;
}

static strata_status write_to(const struct st_model *m, const char *dir, const char *source, bool overwrite)
{
    struct st_hf_writer *w;
    strata_status st = st_hf_writer_open(&w, m, dir, source, NULL, overwrite);

    if (st != STRATA_OK)
        return st;
    if ((st = put_pages(w, m)) != STRATA_OK) {
        st_hf_writer_abort(w);
        return st;
    }
    return st_hf_writer_commit(w);
}

strata_status write_model_from(const struct st_model *m, const char *dir, const char *source)
{
    return write_to(m, dir, source, true);
}

strata_status write_new_model(const struct st_model *m, const char *dir)
{
    return write_to(m, dir, NULL, false);
}

strata_status write_model(const struct st_model *m, const char *dir)
{
    return write_model_from(m, dir, NULL);
}

static uint16_t half_of(float value)
{
    uint32_t bits;
    uint16_t sign;

    memcpy(&bits, &value, sizeof(bits));
    sign = (uint16_t)(bits >> 16 & 0x8000);
    return value == 0.0f ? sign : (uint16_t)(sign | ((bits >> 23 & 0xff) - 112) << 10 | (bits >> 13 & 0x3ff));
}

void check_read(const struct st_model *m, const char *dir)
{
    struct st_hf_reader *r;
    struct st_weight_source source;

    assert_ok(st_hf_reader_open(&r, m, dir));
    source = st_hf_reader_source(r);
    for (uint32_t page = 0; page < m->workload.page_count; page++) {
        const uint64_t elems = m->workload.pages[page].elems;
        void *want = page_weights(m, page);
        float part[777];

        for (uint64_t first = 0; first < elems; first += 777) {
            const uint64_t count = elems - first < 777 ? elems - first : 777;

            assert_ok(source.read(source.ctx, page, first, count, part));
            for (uint64_t i = 0; i < count; i++) {
                uint32_t bits;

                memcpy(&bits, part + i, sizeof(bits));
                if (m->batch.dtype == STRATA_BF16)
                    assert_int_equal(bits, (uint32_t)((uint16_t *)want)[first + i] << 16);
                else if (m->batch.dtype == STRATA_F16)
                    assert_true(part[i] == 0.0f || half_of(part[i]) == ((uint16_t *)want)[first + i]);
                else
                    assert_memory_equal(&bits, (float *)want + first + i, sizeof(bits));
            }
        }
        free(want);
    }
    st_hf_reader_close(r);
}

static uint64_t shape_elems(const uint64_t *shape, uint32_t rank)
{
    return shape[0] * (rank > 1 ? shape[1] : 1);
}

static float tensor_value(uint32_t tensor, uint64_t elem)
{
    return (float)((int)((tensor * 31 + elem) % 255) - 127) * 0.125f; /* exact in all three dtypes */
}

static void put_value(FILE *f, float value, strata_dtype dtype)
{
    uint32_t bits;
    uint16_t narrow;

    memcpy(&bits, &value, sizeof(bits));
    narrow = dtype == STRATA_F16 ? half_of(value) : (uint16_t)(bits >> 16);
    if (dtype == STRATA_F32)
        fwrite(&bits, sizeof(bits), 1, f);
    else
        fwrite(&narrow, sizeof(narrow), 1, f);
}

static bool skipped(const struct foreign *x, const struct st_tensor *t)
{
    return x->skip != NULL && strcmp(x->skip, t->name) == 0;
}

void write_foreign(const struct st_model *m, const char *path, const struct foreign *x)
{
    struct st_safetensors_writer *w;
    unsigned char *header;
    uint64_t bytes;
    FILE *f = fopen(path, "wb");

    assert_non_null(f);
    assert_ok(st_safetensors_writer_begin(&w, x->dtype));
    for (uint32_t i = x->first; i < x->end; i++) {
        const struct st_tensor *t = &m->tensors[i];
        const uint64_t turned[2] = {t->shape[1], t->shape[0]};

        if (!skipped(x, t))
            st_safetensors_writer_add(w, t->name + (x->spelling == SPELL_BARE ? (size_t)(strchr(t->name, '.') + 1 - t->name) : 0),
                                      x->turn != NULL && strcmp(x->turn, t->name) == 0 ? turned : t->shape, t->rank);
    }
    if (x->extra_name != NULL)
        st_safetensors_writer_add(w, x->extra_name, x->extra_shape, x->extra_rank);
    assert_ok(st_safetensors_writer_end(w, &header, &bytes));
    fwrite(header, 1, bytes, f);
    free(header);
    for (uint32_t i = x->first; i < x->end; i++) {
        for (uint64_t e = 0; e < m->tensors[i].elems && !skipped(x, &m->tensors[i]); e++)
            put_value(f, tensor_value(i, e), x->dtype);
    }
    for (uint64_t e = 0; x->extra_name != NULL && e < shape_elems(x->extra_shape, x->extra_rank); e++)
        put_value(f, x->extra_is_first ? tensor_value(0, e) : 0.0f, x->dtype);
    assert_int_equal(fclose(f), 0);
}

void check_values(const struct st_model *m, const char *dir)
{
    struct st_hf_reader *r;
    struct st_weight_source source;

    assert_ok(st_hf_reader_open(&r, m, dir));
    source = st_hf_reader_source(r);
    for (uint32_t i = 0; i < m->tensor_count; i++) {
        const struct st_tensor *t = &m->tensors[i];
        float *values = malloc(t->elems * sizeof(*values));

        assert_int_equal(t->page_count, 1);
        assert_ok(source.read(source.ctx, t->page, t->offset, t->elems, values));
        for (uint64_t e = 0; e < t->elems; e++)
            assert_true(values[e] == tensor_value(i, e));
        free(values);
    }
    st_hf_reader_close(r);
}

struct foreign all_of(const struct st_model *m)
{
    return (struct foreign){.end = m->tensor_count, .dtype = STRATA_F32};
}
