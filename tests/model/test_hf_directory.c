/* tests/model/test_hf_directory.c - Hugging Face directories: write and read back, digests, shards, foreign spellings, every
 * refusal, and every single failing call leaving nothing behind. */
#include "core/checksum.h"
#include "core/fault.h"
#include "model/layout.h"
#include "model/safetensors.h"
#include "model_fixture.h"
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

/* Page values in the model's dtype: initial weights, cut to 16 bits for bf16. */
static void *page_weights(const struct st_model *m, uint32_t page)
{
    struct st_model_init init = {.model = m, .seed = 3};
    const struct st_weight_source source = st_model_init_source(&init);
    const uint64_t elems = m->workload.pages[page].elems;
    float *values = malloc(elems * sizeof(*values));
    uint16_t *narrow = (uint16_t *)(void *)values;

    assert_non_null(values);
    assert_ok(source.read(source.ctx, page, 0, elems, values));
    for (uint64_t i = 0; i < elems && m->batch.dtype == STRATA_BF16; i++) {
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

static strata_status write_model(const struct st_model *m, const char *dir)
{
    struct st_hf_writer *w;
    strata_status st = st_hf_writer_open(&w, m, dir);

    if (st != STRATA_OK)
        return st;
    if ((st = put_pages(w, m)) != STRATA_OK) {
        st_hf_writer_abort(w);
        return st;
    }
    return st_hf_writer_commit(w);
}

/* Every value of every page, in ranges that cut tensors, equals what was written. */
static void check_read(const struct st_model *m, const char *dir)
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
                else
                    assert_memory_equal(&bits, (float *)want + first + i, sizeof(bits));
            }
        }
        free(want);
    }
    st_hf_reader_close(r);
}

static void test_written_weights_are_read_back(void **state)
{
    static const strata_dtype dtypes[] = {STRATA_F32, STRATA_BF16};
    const int descriptors = descriptor_count();

    (void)state;
    for (size_t i = 0; i < 2; i++) {
        struct st_model *m = tiny_model(dtypes[i]);
        struct st_model_config back, config = tiny_config();
        struct scratch s;
        const char *dir;

        scratch_open(&s);
        dir = scratch_path(&s, "a/b/tiny");
        assert_ok(write_model(m, dir));
        assert_int_equal(entry_count(dir), 3);
        assert_ok(st_model_config_read(&back, dir));
        assert_memory_equal(&back.blocks, &config.blocks, sizeof(config) - offsetof(struct st_model_config, blocks));
        check_read(m, dir);
        assert_ok(write_model(m, dir)); /* over itself */
        assert_int_equal(entry_count(dir), 3);
        check_read(m, dir);
        scratch_close(&s);
        st_model_destroy(m);
    }
    assert_int_equal(descriptor_count(), descriptors);
}

/* XXH3-128 over the pages' groups without padding. */
static void plane_digest(const struct st_model *m, char hex[33])
{
    const uint64_t elem_bytes = strata_dtype_bytes(m->batch.dtype);
    struct st_digest *d;

    assert_ok(st_digest_create(&d));
    for (uint32_t i = 0; i < m->workload.page_count; i++) {
        const struct st_page *p = &m->workload.pages[i];
        unsigned char *weights = page_weights(m, i);

        for (uint32_t g = 0; g < p->group_count; g++)
            st_digest_update(d, weights + p->groups[g].offset * elem_bytes, p->groups[g].elems * elem_bytes);
        free(weights);
    }
    st_digest_hex(d, hex);
    st_digest_destroy(d);
}

static void test_digest_is_the_weight_planes(void **state)
{
    char want[33], got[33], other[33];
    struct st_model *m = tiny_model(STRATA_BF16), *wide = tiny_model(STRATA_F32);
    struct scratch s;

    (void)state;
    scratch_open(&s);
    assert_ok(write_model(m, scratch_path(&s, "bf16")));
    assert_ok(write_model(wide, scratch_path(&s, "f32")));
    plane_digest(m, want);
    assert_ok(st_hf_digest(scratch_path(&s, "bf16"), got));
    assert_string_equal(got, want);
    plane_digest(wide, want);
    assert_ok(st_hf_digest(scratch_path(&s, "f32"), other));
    assert_string_equal(other, want);
    assert_string_not_equal(got, other);
    assert_refused(st_hf_digest(scratch_path(&s, "none"), got), STRATA_E_INPUT, "config.json");
    scratch_close(&s);
    st_model_destroy(m);
    st_model_destroy(wide);
}

/* --- directories that others made --- */

enum spelling { SPELL_FULL, SPELL_BARE };

/* Write tensors first..end-1 of the golden list of m as one safetensors file; `edit` may change header text in place. */
struct foreign {
    uint32_t first, end;
    enum spelling spelling;
    strata_dtype dtype;
    const char *extra_name; /* one more tensor, of extra_shape zeros */
    uint64_t extra_shape[2];
    uint32_t extra_rank;
    const char *skip; /* tensor left out */
    const char *turn; /* tensor written with its dimensions swapped */
};

static uint64_t shape_elems(const uint64_t *shape, uint32_t rank)
{
    return shape[0] * (rank > 1 ? shape[1] : 1);
}

static float tensor_value(uint32_t tensor, uint64_t elem)
{
    return (float)((int)((tensor * 31 + elem) % 255) - 127) * 0.125f; /* exact in all three dtypes */
}

static uint16_t half_of(float value)
{
    uint32_t bits;
    uint16_t sign;

    memcpy(&bits, &value, sizeof(bits));
    sign = (uint16_t)(bits >> 16 & 0x8000);
    return value == 0.0f ? sign : (uint16_t)(sign | ((bits >> 23 & 0xff) - 112) << 10 | (bits >> 13 & 0x3ff));
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

static void write_foreign(const struct st_model *m, const char *path, const struct foreign *x)
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
            st_safetensors_writer_add(w, t->name + (x->spelling == SPELL_BARE ? strlen("transformer.") : 0),
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
        put_value(f, 0.0f, x->dtype);
    assert_int_equal(fclose(f), 0);
}

static void check_values(const struct st_model *m, const char *dir)
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

static struct foreign all_of(const struct st_model *m)
{
    return (struct foreign){.end = m->tensor_count, .dtype = STRATA_F32};
}

static void test_foreign_spellings_and_dtypes(void **state)
{
    static const strata_dtype dtypes[] = {STRATA_F32, STRATA_BF16, STRATA_F16};
    struct st_model *m = tiny_model(STRATA_F32);
    struct scratch s;

    (void)state;
    scratch_open(&s);
    for (uint32_t i = 0; i < 6; i++) {
        struct foreign x = all_of(m);

        x.dtype = dtypes[i % 3];
        x.spelling = i / 3 == 0 ? SPELL_FULL : SPELL_BARE;
        x.extra_name = i % 2 == 0 ? "lm_head.weight" : "h.0.attn.bias";
        x.extra_rank = i % 2 == 0 ? 2 : 1;
        x.extra_shape[0] = i % 2 == 0 ? m->config.vocab : 5;
        x.extra_shape[1] = m->config.hidden;
        write_foreign(m, scratch_path(&s, "model.safetensors"), &x);
        check_values(m, s.dir);
    }
    scratch_close(&s);
    st_model_destroy(m);
}

/* 2 is infinite or not a number, 1 a subnormal, 0 normal: all 65536 halves against their definition. */
static void test_every_half_is_widened_exactly(void **state)
{
    const struct st_model_config config = {"halves", 1, 256, 1, 8, 256, 8, 1e-5f, 0.0f};
    const struct st_model_batch batch = {.micro_batch = 1, .seq = 8, .grad_accum = 1, .dtype = STRATA_F32};
    float *values = malloc(65536 * sizeof(*values));
    struct st_weight_source source;
    struct st_hf_reader *r;
    struct st_model *m;
    struct foreign x;
    struct scratch s;
    uint64_t bytes;
    FILE *f;

    (void)state;
    assert_non_null(values);
    scratch_open(&s);
    assert_ok(st_model_create(&m, &config, &batch));
    x = all_of(m);
    x.dtype = STRATA_F16;
    write_foreign(m, scratch_path(&s, "model.safetensors"), &x);
    f = fopen(scratch_path(&s, "model.safetensors"), "r+b");
    assert_non_null(f);
    assert_int_equal(fread(&bytes, 8, 1, f), 1);
    assert_int_equal(fseek(f, (long)bytes + 8, SEEK_SET), 0); /* the table is first */
    for (uint32_t i = 0; i < 65536; i++)
        fwrite(&(uint16_t){(uint16_t)i}, 2, 1, f);
    fclose(f);
    assert_ok(st_hf_reader_open(&r, m, s.dir));
    source = st_hf_reader_source(r);
    assert_ok(source.read(source.ctx, 0, 0, 65536, values));
    for (uint32_t i = 0; i < 65536; i++) {
        const uint32_t exponent = i >> 10 & 31, mantissa = i & 1023;
        double want = exponent == 0 ? ldexp(mantissa, -24) : ldexp(1024 + mantissa, (int)exponent - 25);

        if (exponent == 31)
            want = mantissa == 0 ? (double)INFINITY : (double)NAN;
        assert_true(isnan(want) ? isnan(values[i]) : fabs((double)values[i]) == want);
        assert_int_equal(signbit(values[i]) != 0, i >> 15);
    }
    st_hf_reader_close(r);
    st_model_destroy(m);
    scratch_close(&s);
    free(values);
}

static void write_index(const char *path, const struct st_model *m, uint32_t cut, const char *second)
{
    FILE *f = fopen(path, "w");

    assert_non_null(f);
    fprintf(f, "{\"metadata\":{\"total_size\":1},\"weight_map\":{");
    for (uint32_t i = 0; i < m->tensor_count; i++)
        fprintf(f, "%s\"%s\":\"%s\"", i > 0 ? "," : "", m->tensors[i].name, i < cut ? "one.safetensors" : second);
    fprintf(f, "}}");
    fclose(f);
}

static void test_shards(void **state)
{
    struct st_model *m = tiny_model(STRATA_F32);
    struct st_hf_reader *r = NULL;
    struct foreign one = all_of(m), two = all_of(m);
    struct scratch s;
    const char *index;

    (void)state;
    scratch_open(&s);
    index = scratch_path(&s, "model.safetensors.index.json");
    one.end = two.first = 9;
    write_foreign(m, scratch_path(&s, "one.safetensors"), &one);
    write_foreign(m, scratch_path(&s, "two.safetensors"), &two);
    write_index(index, m, 9, "two.safetensors");
    check_values(m, s.dir);
    write_index(index, m, 10, "two.safetensors");
    assert_refused(st_hf_reader_open(&r, m, s.dir), STRATA_E_INPUT, "says otherwise");
    write_index(index, m, 9, "three.safetensors");
    assert_refused(st_hf_reader_open(&r, m, s.dir), STRATA_E_INPUT, "three.safetensors: No such file");
    write_index(index, m, 9, "../two.safetensors");
    assert_refused(st_hf_reader_open(&r, m, s.dir), STRATA_E_INPUT, "not a file name");
    one.end = 10; /* one tensor in both */
    write_foreign(m, scratch_path(&s, "one.safetensors"), &one);
    write_index(index, m, 9, "two.safetensors");
    assert_refused(st_hf_reader_open(&r, m, s.dir), STRATA_E_INPUT, "says otherwise");
    one.end = 8; /* one in neither */
    write_foreign(m, scratch_path(&s, "one.safetensors"), &one);
    assert_refused(st_hf_reader_open(&r, m, s.dir), STRATA_E_INPUT, "its shards hold");
    write_file(index, "{}", 2);
    assert_refused(st_hf_reader_open(&r, m, s.dir), STRATA_E_INPUT, "weight_map");
    write_file(index, "{\"weight_map\":{}}", 17);
    assert_refused(st_hf_reader_open(&r, m, s.dir), STRATA_E_INPUT, "empty");
    write_file(index, "{\"weight_map\":{\"a\":1}}", 22);
    assert_refused(st_hf_reader_open(&r, m, s.dir), STRATA_E_INPUT, "not a file name");
    write_file(index, "nonsense", 8);
    assert_refused(st_hf_reader_open(&r, m, s.dir), STRATA_E_INPUT, "safetensors index");
    assert_null(r);
    scratch_close(&s);
    st_model_destroy(m);
}

static void test_faults_name_tensor_and_file(void **state)
{
    struct st_model *m = tiny_model(STRATA_F32);
    const struct {
        struct foreign x;
        const char *part;
    } rows[] = {
        {{.skip = "transformer.h.1.ln_2.bias"}, "tensor transformer.h.1.ln_2.bias is missing"},
        {{.extra_name = "h.2.ln_1.weight", .extra_shape = {24}, .extra_rank = 1}, "h.2.ln_1.weight has no place"},
        {{.extra_name = "ln_f.bias", .extra_shape = {24}, .extra_rank = 1}, "tensor ln_f.bias is there twice"},
        {{.extra_name = "lm_head.weight", .extra_shape = {132, 24}, .extra_rank = 2},
         "shape [132, 24], the model's config wants [131, 24]"},
        {{.turn = "transformer.h.0.mlp.c_fc.weight"}, "c_fc.weight has shape [40, 24], the model's config wants [24, 40]"},
    };
    struct st_hf_reader *r = NULL;
    struct scratch s;
    size_t bytes;
    char *text;

    (void)state;
    scratch_open(&s);
    assert_refused(st_hf_reader_open(&r, m, s.dir), STRATA_E_INPUT, "neither model.safetensors nor");
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct foreign x = rows[i].x;

        x.end = m->tensor_count;
        x.dtype = STRATA_F32;
        write_foreign(m, scratch_path(&s, "model.safetensors"), &x);
        assert_refused(st_hf_reader_open(&r, m, s.dir), STRATA_E_INPUT, rows[i].part);
        assert_non_null(strstr(strata_last_error(), s.dir));
    }
    /* truncated, then a weight in a dtype that no weight has */
    text = read_file(scratch_path(&s, "model.safetensors"), &bytes);
    write_file(scratch_path(&s, "model.safetensors"), text, bytes - 1);
    assert_refused(st_hf_reader_open(&r, m, s.dir), STRATA_E_INPUT, "leave the file");
    memcpy(strstr(text + 8, "\"F32\""), "\"I32\"", 5);
    write_file(scratch_path(&s, "model.safetensors"), text, bytes);
    assert_refused(st_hf_reader_open(&r, m, s.dir), STRATA_E_INPUT, "has dtype I32");
    free(text);
    assert_null(r);
    scratch_close(&s);
    st_model_destroy(m);
}

static void test_abort_leaves_nothing(void **state)
{
    struct st_model *m = tiny_model(STRATA_BF16);
    struct st_hf_writer *w;
    struct scratch s;

    (void)state;
    scratch_open(&s);
    assert_ok(st_hf_writer_open(&w, m, scratch_path(&s, "new/deep")));
    st_hf_writer_abort(w);
    assert_int_equal(entry_count(s.dir), 0);
    assert_ok(st_hf_writer_open(&w, m, s.dir)); /* a directory that was there stays */
    st_hf_writer_abort(w);
    assert_int_equal(entry_count(s.dir), 0);
    write_file(scratch_path(&s, "mine.txt"), "x", 1);
    assert_ok(st_hf_writer_open(&w, m, s.dir));
    assert_refused(st_hf_writer_commit(w), STRATA_E_INTERNAL, "of 3144 values"); /* nothing was put */
    assert_int_equal(entry_count(s.dir), 1);
    st_hf_writer_abort(NULL);
    scratch_close(&s);
    st_model_destroy(m);
}

static void test_misuse_is_refused(void **state)
{
    struct st_model *m = tiny_model(STRATA_BF16);
    const uint16_t values[512] = {0};
    struct st_hf_writer *w = NULL;
    struct scratch s;

    (void)state;
    scratch_open(&s);
    assert_refused(st_hf_writer_open(&w, m, ""), STRATA_E_INVAL, "empty");
    write_file(scratch_path(&s, "file"), "x", 1);
    assert_int_not_equal(st_hf_writer_open(&w, m, scratch_path(&s, "file")), STRATA_OK);
    assert_int_not_equal(st_hf_writer_open(&w, m, scratch_path(&s, "file/below")), STRATA_OK);
    assert_int_equal(entry_count(s.dir), 1);
    assert_ok(st_hf_writer_open(&w, m, s.dir));
    assert_ok(st_hf_writer_put(w, 1, 0, 256, values));
    assert_refused(st_hf_writer_put(w, 1, 128, 128, values), STRATA_E_INTERNAL, "out of order");
    assert_refused(st_hf_writer_put(w, 1, 256, 512, values), STRATA_E_INTERNAL, "out of order");
    assert_refused(st_hf_writer_put(w, 99, 0, 1, values), STRATA_E_INTERNAL, "out of order");
    st_hf_writer_abort(w);
    scratch_close(&s);
    st_model_destroy(m);
}

/* Fail the 1st, 2nd, 3rd ... foreign call until a run passes none. */
static void test_every_single_failure_is_clean(void **state)
{
    struct st_model *m = tiny_model(STRATA_BF16);
    const int descriptors = descriptor_count();
    uint32_t fired = 1, failures = 0;
    char hex[33];

    (void)state;
    for (uint32_t nth = 0; fired > 0; nth++) {
        const struct st_fault_spec fault = {.after = nth, .count = 1, .result = -EIO};
        struct scratch s;
        const char *dir;
        strata_status st;

        scratch_open(&s);
        dir = scratch_path(&s, "out");
        st_fault_arm(&fault);
        st = write_model(m, dir);
        if (st == STRATA_OK)
            st = st_hf_digest(dir, hex);
        fired = st_fault_disarm();
        failures += st != STRATA_OK;
        assert_true(fired > 0 || st == STRATA_OK);
        for (int left = entry_count(dir); left > 0; left = 0)
            assert_int_equal(access(scratch_path(&s, "out/model.safetensors.tmp"), F_OK), -1);
        assert_int_equal(descriptor_count(), descriptors);
        if (st == STRATA_OK)
            check_read(m, dir);
        scratch_close(&s);
    }
    assert_true(failures > 20);
    st_model_destroy(m);
}

static void test_short_transfers_continue(void **state)
{
    struct st_model *m = tiny_model(STRATA_BF16);
    const struct st_fault_spec shorter = {.site = "file.read", .count = 1, .result = -EINTR};
    struct scratch s;

    (void)state;
    scratch_open(&s);
    assert_ok(write_model(m, s.dir));
    st_fault_arm(&shorter);
    check_read(m, s.dir);
    assert_int_equal(st_fault_disarm(), 1);
    scratch_close(&s);
    st_model_destroy(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_written_weights_are_read_back),
        cmocka_unit_test(test_digest_is_the_weight_planes),
        cmocka_unit_test(test_foreign_spellings_and_dtypes),
        cmocka_unit_test(test_every_half_is_widened_exactly),
        cmocka_unit_test(test_shards),
        cmocka_unit_test(test_faults_name_tensor_and_file),
        cmocka_unit_test(test_abort_leaves_nothing),
        cmocka_unit_test(test_misuse_is_refused),
        cmocka_unit_test(test_every_single_failure_is_clean),
        cmocka_unit_test(test_short_transfers_continue),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
