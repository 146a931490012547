/* tests/model/test_adapter_merge.c - merged weights are PEFT's, what is not adapted stays byte for byte, and nothing is merged
 * that is no number. */
#include "adapter_rig.h"
#include "model_fixture.h"
#include "tests/common/whole_file.h"

#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

/* Neighbouring values are one apart; both zeros are the same. */
static int64_t order_of(const unsigned char *at, strata_dtype dtype)
{
    uint32_t bits = 0;
    int64_t magnitude;

    memcpy(&bits, at, strata_dtype_bytes(dtype));
    magnitude = dtype == STRATA_F32 ? bits & 0x7fffffffu : bits & 0x7fffu;
    return (dtype == STRATA_F32 ? bits >> 31 : bits >> 15) != 0 ? -magnitude : magnitude;
}

/* @return values that differ, all by one */
static uint64_t compare(const char *name, const unsigned char *a, const unsigned char *b, uint64_t count, strata_dtype dtype)
{
    const uint64_t bytes = strata_dtype_bytes(dtype);
    uint64_t differ = 0;

    for (uint64_t i = 0; i < count; i++) {
        const int64_t ulps = order_of(a + i * bytes, dtype) - order_of(b + i * bytes, dtype);

        if (ulps < -1 || ulps > 1)
            fail_msg("%s: value %llu is %lld values away", name, (unsigned long long)i, (long long)ulps);
        differ += ulps != 0;
    }
    return differ;
}

static void check_family(const char *name)
{
    char dir[256], adapter[256], path[256];
    struct opened was, is, peft;
    struct st_hf_adapter *a;
    struct st_model *m = open_model(model_path(dir, name));
    uint64_t differ = 0, values = 0;
    uint32_t changed = 0;

    assert_ok(st_hf_adapter_open(&a, m, join_path(adapter, ADAPTERS, name, "")));
    assert_ok(merge_adapter(m, a, dir, scratch_path(name)));
    open_tensors(&was, join_path(path, dir, "", "model.safetensors"));
    open_tensors(&is, join_path(path, scratch_path(name), "", "model.safetensors"));
    open_tensors(&peft, join_path(path, adapter, "", "merged.safetensors"));
    assert_int_equal(was.header.count, is.header.count);
    for (uint32_t i = 0; i < was.header.count; i++) {
        const struct st_safetensor *t = &was.header.tensors[i], *want = find_tensor(&peft, t->name);
        const uint64_t bytes = t->end - t->begin;
        const unsigned char *have = (const unsigned char *)is.bytes + t->begin;

        assert_string_equal(t->name, is.header.tensors[i].name);
        if (want == NULL) {
            assert_memory_equal(have, was.bytes + t->begin, bytes);
            continue;
        }
        assert_int_equal(want->dtype, t->dtype);
        assert_memory_not_equal(have, was.bytes + t->begin, bytes);
        differ += compare(t->name, have, (const unsigned char *)peft.bytes + want->begin, bytes / strata_dtype_bytes(t->dtype),
                          t->dtype);
        values += bytes / strata_dtype_bytes(t->dtype);
        changed++;
    }
    print_message("%s: %u tensors, %llu of %llu values one apart\n", name, changed, (unsigned long long)differ,
                  (unsigned long long)values);
    assert_true(changed == peft.header.count ||
                (changed + 1 == peft.header.count && find_tensor(&peft, "lm_head.weight") != NULL));
    close_tensors(&was);
    close_tensors(&is);
    close_tensors(&peft);
    st_hf_adapter_close(a);
    st_model_destroy(m);
}

static void same_file(const char *dir, const char *other, const char *name)
{
    char path[256];
    size_t bytes, other_bytes;
    char *text = read_file(join_path(path, dir, "", name), &bytes),
         *other_text = read_file(join_path(path, other, "", name), &other_bytes);

    assert_int_equal(bytes, other_bytes);
    assert_memory_equal(text, other_text, bytes);
    free(text);
    free(other_text);
}

TEST_SETUP(test_merged_weights_are_pefts, scratch_begin, scratch_end)
{
    char dir[256];

    for (size_t i = 0; i < FAMILY_COUNT; i++) {
        check_family(families[i]);
        same_file(model_path(dir, families[i]), scratch_path(families[i]), "config.json");
        same_file(dir, scratch_path(families[i]), "config_ds.json"); /* as other small files */
    }
}

/* --- shards, and an output that is there --- */

/* Of two files: the first `cut` tensors, and the others. */
static void put_index(const struct opened *all, uint32_t cut, const char *path)
{
    FILE *file = fopen(path, "wb");

    assert_non_null(file);
    fprintf(file, "{\"metadata\": {}, \"weight_map\": {");
    for (uint32_t i = 0; i < all->header.count; i++)
        fprintf(file, "%s\"%s\": \"model-0000%d-of-00002.safetensors\"", i > 0 ? ", " : "", all->header.tensors[i].name,
                i < cut ? 1 : 2);
    fprintf(file, "}}");
    assert_int_equal(fclose(file), 0);
}

TEST_SETUP(test_shards_stay_shards, scratch_begin, scratch_end)
{
    static const char name[] = "llama_linear";
    char dir[256], adapter[256], path[256], *config;
    struct opened all, one, two, whole;
    struct st_hf_adapter *a;
    struct st_model *m;
    const uint32_t cut = 5;

    config = read_file(join_path(path, FAMILIES, name, "config.json"), NULL);
    scratch_put("sharded/config.json", config);
    free(config);
    snprintf(dir, sizeof(dir), "%s", scratch_path("sharded"));
    open_tensors(&all, join_path(path, FAMILIES, name, "model.safetensors"));
    put_shard(&all, 0, cut, join_path(path, dir, "", "model-00001-of-00002.safetensors"));
    put_shard(&all, cut, all.header.count, join_path(path, dir, "", "model-00002-of-00002.safetensors"));
    put_index(&all, cut, join_path(path, dir, "", "model.safetensors.index.json"));
    m = open_model(dir);
    assert_ok(st_hf_adapter_open(&a, m, join_path(adapter, ADAPTERS, name, "")));
    assert_ok(merge_adapter(m, a, dir, scratch_path("out")));
    same_file(dir, scratch_path("out"), "model.safetensors.index.json");
    assert_int_equal(scratch_entries(scratch_path("out"), NULL), 4);
    assert_ok(merge_adapter(m, a, join_path(path, FAMILIES, name, ""), scratch_path("whole")));
    open_tensors(&whole, join_path(path, scratch_path("whole"), "", "model.safetensors"));
    open_tensors(&one, join_path(path, scratch_path("out"), "", "model-00001-of-00002.safetensors"));
    open_tensors(&two, join_path(path, scratch_path("out"), "", "model-00002-of-00002.safetensors"));
    for (uint32_t i = 0; i < whole.header.count; i++) {
        const struct st_safetensor *t = &whole.header.tensors[i], *have = find_tensor(&one, t->name);
        const struct opened *from = have != NULL ? &one : &two;

        have = have != NULL ? have : find_tensor(&two, t->name);
        assert_non_null(have);
        assert_memory_equal(from->bytes + have->begin, whole.bytes + t->begin, t->end - t->begin);
    }
    assert_int_equal(merge_adapter(m, a, dir, scratch_path("out")), STRATA_E_INPUT);
    assert_non_null(strstr(strata_last_error(), "exists already"));

    /* An index of one file is one, too. */
    put_shard(&all, 0, all.header.count, join_path(path, dir, "", "model-00001-of-00002.safetensors"));
    put_index(&all, all.header.count, join_path(path, dir, "", "model.safetensors.index.json"));
    assert_int_equal(unlink(join_path(path, dir, "", "model-00002-of-00002.safetensors")), 0);
    assert_ok(merge_adapter(m, a, dir, scratch_path("single")));
    same_file(dir, scratch_path("single"), "model.safetensors.index.json");
    assert_int_equal(scratch_entries(scratch_path("single"), NULL), 3);
    close_tensors(&all);
    close_tensors(&one);
    close_tensors(&two);
    close_tensors(&whole);
    st_hf_adapter_close(a);
    st_model_destroy(m);
}

/* What lies in the directory once the value at a byte of its weights is no number. */
static void refuse_merge_without(struct st_model *m, const char *name, const char *dir, uint64_t at)
{
    char path[256], out[256];
    size_t bytes;
    char *weights = read_file(join_path(path, dir, "", ST_ADAPTER_WEIGHTS_NAME), &bytes), *bad = malloc(bytes);
    struct st_hf_adapter *a;

    assert_non_null(bad);
    memcpy(bad, weights, bytes);
    memset(bad + at, 0xff, 4);
    write_file(path, bad, bytes);
    assert_ok(st_hf_adapter_open(&a, m, dir));
    assert_int_equal(merge_adapter(m, a, join_path(out, FAMILIES, name, ""), scratch_path("out")), STRATA_E_NUMERICS);
    assert_non_null(strstr(strata_last_error(), "adapter/" ST_ADAPTER_WEIGHTS_NAME ": tensor "));
    assert_non_null(strstr(strata_last_error(), ".weight is not finite"));
    assert_int_equal(scratch_entries(scratch_dir, "adapter"), 0);
    st_hf_adapter_close(a);
    write_file(path, weights, bytes);
    free(weights);
    free(bad);
}

/* Not a number in A or B, wherever: the merged weights would not be numbers either. */
TEST_SETUP(test_values_that_are_no_numbers_are_not_merged, scratch_begin, scratch_end)
{
    static const char name[] = "qwen2_layers";
    char path[256], dir[256];
    struct st_model *m = open_model(join_path(path, FAMILIES, name, ""));
    struct opened o;

    snprintf(dir, sizeof(dir), "%s", copy_adapter(name, NULL, NULL, NULL));
    open_tensors(&o, join_path(path, dir, "", ST_ADAPTER_WEIGHTS_NAME));
    for (uint32_t i = 0; i < 2; i++) {
        const struct st_safetensor *t = &o.header.tensors[i == 0 ? 0 : o.header.count - 1];

        refuse_merge_without(m, name, dir, t->begin);
        refuse_merge_without(m, name, dir, (t->begin + t->end) / 8 * 4);
        refuse_merge_without(m, name, dir, t->end - 4);
    }
    close_tensors(&o);
    st_model_destroy(m);
}

/* The model in fp16 instead of bf16: the same bits, which are values below 2 there, too. */
static void put_fp16_model(const char *name, const char *dir)
{
    static const char dtype[] = "\"BF16\"", other[] = "\"F16\" ";
    char path[256], *text = read_file(join_path(path, FAMILIES, name, "config.json"), NULL);
    size_t bytes;

    scratch_put("fp16/config.json", text);
    free(text);
    text = read_file(join_path(path, FAMILIES, name, "model.safetensors"), &bytes);
    for (char *at = text; (at = memmem(at, bytes - (size_t)(at - text), dtype, sizeof(dtype) - 1)) != NULL;)
        memcpy(at, other, sizeof(other) - 1);
    write_file(join_path(path, dir, "", "model.safetensors"), text, bytes);
    free(text);
}

/* Finite values of an adapter may make sums that the model's dtype does not have. */
TEST_SETUP(test_sums_past_fp16_are_not_written, scratch_begin, scratch_end)
{
    static const char name[] = "qwen2_layers";
    const float large = 1e7f;
    char dir[256], adapter[256], path[256], *weights;
    struct st_hf_adapter *a;
    struct st_model *m;
    struct opened o;
    size_t bytes;

    snprintf(dir, sizeof(dir), "%s", scratch_path("fp16"));
    put_fp16_model(name, dir);
    m = open_model(dir);
    snprintf(adapter, sizeof(adapter), "%s", copy_adapter(name, NULL, NULL, NULL));
    assert_ok(st_hf_adapter_open(&a, m, adapter));
    assert_ok(merge_adapter(m, a, dir, scratch_path("small")));
    st_hf_adapter_close(a);

    open_tensors(&o, join_path(path, adapter, "", ST_ADAPTER_WEIGHTS_NAME));
    weights = read_file(path, &bytes);
    memcpy(weights + o.header.tensors[0].begin, &large, sizeof(large));
    write_file(path, weights, bytes);
    assert_ok(st_hf_adapter_open(&a, m, adapter));
    assert_refused(merge_adapter(m, a, dir, scratch_path("large")), STRATA_E_NUMERICS,
                   "is not finite in fp16 once the adapter is added: nothing is written");
    assert_int_equal(access(scratch_path("large"), F_OK), -1);
    free(weights);
    close_tensors(&o);
    st_hf_adapter_close(a);
    st_model_destroy(m);
}
