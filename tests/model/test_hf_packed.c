/* tests/model/test_hf_packed.c - directories whose linear weights bitsandbytes has stored in nf4 (tests/golden/nf4, made by
 * tools/make_golden_nf4.py): the values that it dequantises, in any cut, and faults by name. */
#include "core/system/file.h"
#include "model/hf/hf_packed_internal.h"
#include "model/layout.h"
#include "model_fixture.h"
#include <inttypes.h>
#include <stdio.h>

#define PLAIN  "tests/golden/nf4/plain"
#define DOUBLE "tests/golden/nf4/double"

static const struct st_model_batch batch = {.micro_batch = 1, .seq = 16, .grad_accum = 1, .dtype = STRATA_F32};

static struct st_model *model_of(const char *dir)
{
    struct st_model_config config;
    struct st_model *m;

    assert_ok(st_model_config_read(&config, dir));
    assert_true(config.quantised);
    assert_ok(st_model_create(&m, &config, &batch));
    return m;
}

static uint64_t fnv(const void *data, size_t bytes)
{
    uint64_t hash = 0xcbf29ce484222325u;

    for (size_t i = 0; i < bytes; i++)
        hash = (hash ^ ((const unsigned char *)data)[i]) * 0x100000001b3u;
    return hash;
}

static const struct st_tensor *tensor_named(const struct st_model *m, const char *name)
{
    for (uint32_t i = 0; i < st_model_tensor_count(m); i++)
        if (strcmp(st_model_tensor(m, i)->name, name) == 0)
            return st_model_tensor(m, i);
    fail_msg("no tensor %s", name);
    return NULL;
}

/* At once, and in pieces that begin and end anywhere. */
static void check_tensor(const struct st_tensor *t, struct st_weight_source source, uint64_t want)
{
    float *whole = malloc(t->elems * sizeof(*whole)), *part = malloc(t->elems * sizeof(*part));

    assert_true(whole != NULL && part != NULL);
    assert_ok(source.read(source.ctx, t->page, t->offset, t->elems, whole));
    if (fnv(whole, t->elems * sizeof(*whole)) != want)
        fail_msg("%s: not the values of bitsandbytes", t->name);
    for (uint64_t step = 1; step < 20000; step = step * 7 + 1)
        for (uint64_t at = 0, count; at < t->elems; at += count) {
            count = t->elems - at < step ? t->elems - at : step;
            assert_ok(source.read(source.ctx, t->page, t->offset + at, count, part));
            assert_memory_equal(part, whole + at, count * sizeof(*part));
        }
    free(whole);
    free(part);
}

static void check_directory(const char *dir)
{
    struct st_model *m = model_of(dir);
    struct st_hf_reader *r;
    char path[128], name[96];
    uint32_t count = 0;
    uint64_t want;
    FILE *file;

    assert_ok(st_hf_reader_open(&r, m, dir));
    snprintf(path, sizeof(path), "%s/values.txt", dir);
    file = fopen(path, "r");
    assert_non_null(file);
    for (; fscanf(file, "%95s %" SCNx64, name, &want) == 2; count++)
        check_tensor(tensor_named(m, name), st_hf_reader_source(r), want);
    assert_int_equal(count, 7);
    assert_ok(st_hf_reader_check_unchanged(r));
    fclose(file);
    st_hf_reader_close(r);
    st_model_destroy(m);
}

TEST(test_values_are_those_of_bitsandbytes)
{
    check_directory(PLAIN);
    check_directory(DOUBLE);
}

/* --- faults --- */

/* A file of weights in which one text, once there, is another of the same length. */
static void copy_changed(const char *from, const char *text, const char *by)
{
    const size_t length = strlen(text);
    char *bytes;
    uint64_t count, at = 0;
    FILE *file;

    assert_int_equal(strlen(by), length);
    assert_ok(st_file_read_text(&bytes, &count, from, 1u << 20));
    while (at + length <= count && memcmp(bytes + at, text, length) != 0)
        at++;
    assert_true(at + length <= count);
    memcpy(bytes + at, by, length);
    file = fopen(scratch_path("model.safetensors"), "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, count, file), count);
    fclose(file);
    free(bytes);
}

/* A file of weights in which a value of the tensor of that key has other bits. */
static void copy_with_scale(const char *from, const char *key, uint32_t value, uint32_t bits)
{
    char *bytes, *at;
    uint64_t count, header, begin;
    FILE *file;

    assert_ok(st_file_read_text(&bytes, &count, from, 1u << 20));
    memcpy(&header, bytes, sizeof(header));
    at = memmem(bytes, count, key, strlen(key));
    assert_non_null(at);
    at = strstr(at, "\"data_offsets\"");
    assert_non_null(at);
    at = strchr(at, '[');
    assert_non_null(at);
    begin = strtoull(at + 1, NULL, 10);
    memcpy(bytes + sizeof(header) + header + begin + value * sizeof(bits), &bits, sizeof(bits));
    file = fopen(scratch_path("model.safetensors"), "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, count, file), count);
    fclose(file);
    free(bytes);
}

#define UP "model.layers.0.mlp.up_proj.weight"

TEST(test_faults_are_named)
{
    static const struct {
        const char *text, *by, *sentence;
    } rows[] = {
        {"\"" UP ".absmax\"", "\"aaaaaaaaaaaaaaaaaaaaaaa.attn.masked_bias\"", UP ".absmax is missing"},
        {"\"" UP ".quant_map\"", "\"model.layers.0.mlp.xx_proj.weight.quant_map\"", "xx_proj.weight.quant_map has no place"},
        {"\"" UP ".nested_absmax\"", "\"" UP ".nested_abzmax\"", UP ".nested_abzmax has no place"},
        {"\"blocksize\": 64", "\"blocksize\": 32", "\"blocksize\" is not 64"},
        {"\"quant_type\": \"nf4\"", "\"quant_type\": \"fp4\"", "\"quant_type\" is \"fp4\""},
        {"\"nested_blocksize\": 256", "\"nested_blocksize\": 128", "\"nested_blocksize\" is not 256"},
        {"\"nested_offset\"", "\"nested_offzet\"", "\"nested_offset\" is missing"},
        {"[320, 64], \"nested", "[64, 320], \"nested", "not that of the tensor in the model"},
        {"\xbf\xb1\x39\x32\xbf", "\xbe\xb1\x39\x32\xbf", "does not hold the values of nf4"},
    };
    struct st_model *m = model_of(DOUBLE);
    struct st_hf_reader *r = NULL;

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        copy_changed(DOUBLE "/model.safetensors", rows[i].text, rows[i].by);
        assert_refused(st_hf_reader_open(&r, m, scratch_dir), STRATA_E_INPUT, rows[i].sentence);
        assert_null(r);
    }
    st_model_destroy(m);
}

/* Two tensors of the file under each other's name, which have other sizes than the model needs; a part of another dtype. */
TEST(test_parts_of_other_sizes_are_named)
{
    static const struct {
        const char *dir, *end, *says;
    } rows[] = {
        {DOUBLE, "",
         "tensor model.layers.0.self_attn.q_proj.weight has 1024 bytes; model.layers.0.self_attn.q_proj.weight of 4096 elements "
         "needs 2048"},
        {DOUBLE, ".absmax",
         "tensor model.layers.0.self_attn.q_proj.weight.absmax has 32 bytes; model.layers.0.self_attn.q_proj.weight of 4096 "
         "elements needs 64"},
        {PLAIN, ".absmax",
         "tensor model.layers.0.self_attn.q_proj.weight.absmax has 128 bytes; model.layers.0.self_attn.q_proj.weight of 4096 "
         "elements needs 256, in F32"},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct st_model *m = model_of(rows[i].dir);
        struct st_hf_reader *r = NULL;
        char path[128], name[3][128];

        snprintf(path, sizeof(path), "%s/model.safetensors", rows[i].dir);
        for (uint32_t n = 0; n < 3; n++)
            snprintf(name[n], sizeof(name[n]), "\"model.layers.0.self_attn.%c_proj.weight%s\"", "kxq"[n], rows[i].end);
        copy_changed(path, name[0], name[1]);
        copy_changed(scratch_path("model.safetensors"), name[2], name[0]);
        copy_changed(scratch_path("model.safetensors"), name[1], name[2]);
        assert_refused(st_hf_reader_open(&r, m, scratch_dir), STRATA_E_INPUT, rows[i].says);
        assert_null(r);
        st_model_destroy(m);
    }
    {
        struct st_model *m = model_of(PLAIN);
        struct st_hf_reader *r = NULL;

        copy_changed(PLAIN "/model.safetensors", "\"" UP ".quant_map\":{\"dtype\":\"F32\"",
                     "\"" UP ".quant_map\":{\"dtype\":\"I32\"");
        assert_refused(st_hf_reader_open(&r, m, scratch_dir), STRATA_E_INPUT,
                       UP ".quant_map has 64 bytes; " UP " of 20480 elements needs 64, in F32");
        st_model_destroy(m);
    }
}

/* A scale that is no number, or infinite: the first one, one that is read with others before it, the last one. */
TEST(test_values_that_are_no_numbers_are_named)
{
    static const uint32_t bits[] = {0x7fc00000u, 0x7f800000u, 0xff800000u}, blocks[] = {0, 261, 319};
    struct st_model *m = model_of(PLAIN);
    const struct st_tensor *t = tensor_named(m, UP);
    float *values = malloc(t->elems * sizeof(*values));

    assert_non_null(values);
    for (size_t i = 0; i < sizeof(bits) / sizeof(bits[0]); i++) {
        struct st_weight_source source;
        struct st_hf_reader *r;
        char says[160];

        copy_with_scale(PLAIN "/model.safetensors", "\"" UP ".absmax\"", blocks[i], bits[i]);
        snprintf(says, sizeof(says), "tensor " UP " holds values that are not finite (absmax of block %u)", blocks[i]);
        assert_ok(st_hf_reader_open(&r, m, scratch_dir));
        source = st_hf_reader_source(r);
        assert_refused(source.read(source.ctx, t->page, t->offset, t->elems, values), STRATA_E_NUMERICS, says);
        st_hf_reader_close(r);
    }
    free(values);
    st_model_destroy(m);
}

TEST(test_there_is_no_digest)
{
    char hex[33];

    assert_refused(st_hf_digest(PLAIN, hex), STRATA_E_INPUT, "quantised, which have no digest");
}

/* Codes without a state, where config.json says that there may be some, are no weights. */
TEST(test_codes_alone_are_refused)
{
    struct st_model *m = model_of(PLAIN);
    struct st_hf_reader *r = NULL;

    copy_changed(PLAIN "/model.safetensors", "\"" UP ".quant_state.bitsandbytes__nf4\"",
                 "\"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa.attn.masked_bias\"");
    assert_refused(st_hf_reader_open(&r, m, scratch_dir), STRATA_E_INPUT, UP " has shape [10240, 1]");
    st_model_destroy(m);
}

TEST(test_states_of_other_kinds_are_refused)
{
    static const struct {
        const char *json, *sentence;
    } rows[] = {
        {"[]", "not a JSON object"},
        {"{", "quantised weights"},
        {"{}", "\"quant_type\" is \"\""},
        {"{\"quant_type\":\"nf4\"}", "\"blocksize\" is not 64"},
        {"{\"quant_type\":\"nf4\",\"blocksize\":64}", "\"shape\" is not a list of two sizes"},
        {"{\"quant_type\":\"nf4\",\"blocksize\":64,\"shape\":[1,2,3]}", "\"shape\" is not a list of two sizes"},
        {"{\"quant_type\":\"nf4\",\"blocksize\":64,\"shape\":[1,-2]}", "\"shape\" is not a list of two sizes"},
        {"{\"quant_type\":\"nf4\",\"blocksize\":64,\"shape\":[1,2],\"nested_blocksize\":256}", "\"nested_dtype\" is \"\""},
        {"{\"quant_type\":\"nf4\",\"blocksize\":64,\"shape\":[1,2],\"nested_blocksize\":256,\"nested_dtype\":\"float32\"}",
         "\"nested_offset\" is missing"},
    };
    struct st_hf_packed_state out;

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        assert_refused(st_hf_packed_parse(&out, rows[i].json, strlen(rows[i].json), "state"), STRATA_E_INPUT, rows[i].sentence);
}

TEST_GROUP(scratch_create, scratch_remove);
