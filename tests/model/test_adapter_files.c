/* tests/model/test_adapter_files.c - directories of adapters: PEFT's are read, merged weights are PEFT's (tests/golden/adapters,
 * by tools/make_golden_merge.py), what is not adapted stays byte for byte, and what is written reads back. */
#include "core/base/fault.h"
#include "core/system/file.h"
#include "kernels/kernels.h"
#include "model/adapter/adapter.h"
#include "model/hf/hf_adapter.h"
#include "model/hf/safetensors_internal.h"
#include "model/layout.h"
#include "model/tokenizer/train.h"
#include "model_fixture.h"
#include "tests/common/file_order.h"
#include "tests/common/kept_log.h"
#include "tests/common/whole_file.h"

#include <errno.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#define FAMILIES "tests/golden/families"
#define ADAPTERS "tests/golden/adapters"

static const char *const names[] = {"gemma2_caps", "gemma3_local", "gpt2_exact",   "llama_linear", "mistral_window",
                                    "olmo2",       "phi3_long",    "qwen2_layers", "qwen3_bias",   "smollm3_yarn"};
#define NAMES (sizeof(names) / sizeof(names[0]))

static const char *join(char path[256], const char *dir, const char *name, const char *file)
{
    assert_true(snprintf(path, 256, "%s%s%s%s%s", dir, name[0] != '\0' ? "/" : "", name, file[0] != '\0' ? "/" : "", file) < 256);
    return path;
}

static struct st_model *open_model(const char *dir)
{
    const struct st_model_batch batch = {.micro_batch = 1, .seq = 1, .grad_accum = 1, .dtype = STRATA_F32};
    struct st_model_config config = {0};
    struct st_model *m;

    assert_ok(st_model_config_read(&config, dir));
    assert_ok(st_model_create(&m, &config, &batch));
    return m;
}

static strata_status merge(struct st_model *m, struct st_hf_adapter *a, const char *dir, const char *out)
{
    struct st_hf_merge how = {.model = m, .dir = dir, .values = st_hf_adapter_values(a), .out = out};

    how.tensors = st_hf_adapter_tensors(a, &how.count);
    return st_hf_merge(&how);
}

/* --- against PEFT --- */

struct opened {
    char *bytes;
    struct st_safetensors header;
};

static void open_tensors(struct opened *o, const char *path)
{
    size_t bytes;

    o->bytes = read_file(path, &bytes);
    assert_ok(st_safetensors_read_memory(&o->header, o->bytes, bytes, path));
}

static void close_tensors(struct opened *o)
{
    st_safetensors_fini(&o->header);
    free(o->bytes);
}

static const struct st_safetensor *find(const struct opened *o, const char *name)
{
    for (uint32_t i = 0; i < o->header.count; i++)
        if (strcmp(o->header.tensors[i].name, name) == 0)
            return &o->header.tensors[i];
    return NULL;
}

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
    struct st_model *m = open_model(join(dir, FAMILIES, name, ""));
    uint64_t differ = 0, values = 0;
    uint32_t changed = 0;

    assert_ok(st_hf_adapter_open(&a, m, join(adapter, ADAPTERS, name, "")));
    assert_ok(merge(m, a, dir, scratch_path(name)));
    open_tensors(&was, join(path, dir, "", "model.safetensors"));
    open_tensors(&is, join(path, scratch_path(name), "", "model.safetensors"));
    open_tensors(&peft, join(path, adapter, "", "merged.safetensors"));
    assert_int_equal(was.header.count, is.header.count);
    for (uint32_t i = 0; i < was.header.count; i++) {
        const struct st_safetensor *t = &was.header.tensors[i], *want = find(&peft, t->name);
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
    assert_true(changed == peft.header.count || (changed + 1 == peft.header.count && find(&peft, "lm_head.weight") != NULL));
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
    char *text = read_file(join(path, dir, "", name), &bytes), *other_text = read_file(join(path, other, "", name), &other_bytes);

    assert_int_equal(bytes, other_bytes);
    assert_memory_equal(text, other_text, bytes);
    free(text);
    free(other_text);
}

static void test_merged_weights_are_pefts(void **state)
{
    char dir[256];

    (void)state;
    for (size_t i = 0; i < NAMES; i++) {
        check_family(names[i]);
        same_file(join(dir, FAMILIES, names[i], ""), scratch_path(names[i]), "config.json");
        same_file(dir, scratch_path(names[i]), "config5.json"); /* as other small files */
    }
}

/* --- shards, and an output that is there --- */

/* The family's weights as two files: the first `cut` tensors, and the others. */
static void put_shard(const struct opened *all, uint32_t first, uint32_t end, const char *path)
{
    struct st_safetensors_writer *w;
    unsigned char *text;
    uint64_t bytes;
    FILE *file = fopen(path, "wb");

    assert_non_null(file);
    assert_ok(st_safetensors_writer_begin(&w, all->header.tensors[first].dtype));
    for (uint32_t i = first; i < end; i++)
        st_safetensors_writer_add(w, all->header.tensors[i].name, all->header.tensors[i].shape, all->header.tensors[i].rank);
    assert_ok(st_safetensors_writer_end(w, &text, &bytes));
    assert_int_equal(fwrite(text, 1, bytes, file), bytes);
    for (uint32_t i = first; i < end; i++) {
        const struct st_safetensor *t = &all->header.tensors[i];

        assert_int_equal(fwrite(all->bytes + t->begin, 1, t->end - t->begin, file), t->end - t->begin);
    }
    assert_int_equal(fclose(file), 0);
    free(text);
}

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

static void test_shards_stay_shards(void **state)
{
    static const char name[] = "llama_linear";
    char dir[256], adapter[256], path[256], *config;
    struct opened all, one, two, whole;
    struct st_hf_adapter *a;
    struct st_model *m;
    const uint32_t cut = 5;

    (void)state;
    config = read_file(join(path, FAMILIES, name, "config.json"), NULL);
    scratch_put("sharded/config.json", config);
    free(config);
    snprintf(dir, sizeof(dir), "%s", scratch_path("sharded"));
    open_tensors(&all, join(path, FAMILIES, name, "model.safetensors"));
    put_shard(&all, 0, cut, join(path, dir, "", "model-00001-of-00002.safetensors"));
    put_shard(&all, cut, all.header.count, join(path, dir, "", "model-00002-of-00002.safetensors"));
    put_index(&all, cut, join(path, dir, "", "model.safetensors.index.json"));
    m = open_model(dir);
    assert_ok(st_hf_adapter_open(&a, m, join(adapter, ADAPTERS, name, "")));
    assert_ok(merge(m, a, dir, scratch_path("out")));
    same_file(dir, scratch_path("out"), "model.safetensors.index.json");
    assert_int_equal(scratch_entries(scratch_path("out"), NULL), 4);
    assert_ok(merge(m, a, join(path, FAMILIES, name, ""), scratch_path("whole")));
    open_tensors(&whole, join(path, scratch_path("whole"), "", "model.safetensors"));
    open_tensors(&one, join(path, scratch_path("out"), "", "model-00001-of-00002.safetensors"));
    open_tensors(&two, join(path, scratch_path("out"), "", "model-00002-of-00002.safetensors"));
    for (uint32_t i = 0; i < whole.header.count; i++) {
        const struct st_safetensor *t = &whole.header.tensors[i], *have = find(&one, t->name);
        const struct opened *from = have != NULL ? &one : &two;

        have = have != NULL ? have : find(&two, t->name);
        assert_non_null(have);
        assert_memory_equal(from->bytes + have->begin, whole.bytes + t->begin, t->end - t->begin);
    }
    assert_int_equal(merge(m, a, dir, scratch_path("out")), STRATA_E_INPUT);
    assert_non_null(strstr(strata_last_error(), "exists already"));

    /* An index of one file is one, too. */
    put_shard(&all, 0, all.header.count, join(path, dir, "", "model-00001-of-00002.safetensors"));
    put_index(&all, all.header.count, join(path, dir, "", "model.safetensors.index.json"));
    assert_int_equal(unlink(join(path, dir, "", "model-00002-of-00002.safetensors")), 0);
    assert_ok(merge(m, a, dir, scratch_path("single")));
    same_file(dir, scratch_path("single"), "model.safetensors.index.json");
    assert_int_equal(scratch_entries(scratch_path("single"), NULL), 3);
    close_tensors(&all);
    close_tensors(&one);
    close_tensors(&two);
    close_tensors(&whole);
    st_hf_adapter_close(a);
    st_model_destroy(m);
}

/* --- files that do not fit --- */

/* A copy of an adapter, whose settings and first tensor's name may be others. */
static const char *copy_adapter(const char *name, const char *config, const char *old, const char *new)
{
    char path[256], *text = read_file(join(path, ADAPTERS, name, ST_ADAPTER_CONFIG_NAME), NULL), *at;
    size_t bytes;
    char *weights = read_file(join(path, ADAPTERS, name, ST_ADAPTER_WEIGHTS_NAME), &bytes);

    scratch_put("adapter/" ST_ADAPTER_CONFIG_NAME, config != NULL ? config : text);
    if (old != NULL) {
        at = memmem(weights, bytes, old, strlen(old));
        assert_non_null(at);
        assert_int_equal(strlen(old), strlen(new));
        memcpy(at, new, strlen(new));
    }
    write_file(join(path, scratch_path("adapter"), "", ST_ADAPTER_WEIGHTS_NAME), weights, bytes);
    free(text);
    free(weights);
    return scratch_path("adapter");
}

static void refuse(struct st_model *m, const char *dir, strata_status want, const char *says)
{
    struct st_hf_adapter *a;

    assert_int_equal(st_hf_adapter_open(&a, m, dir), want);
    if (strstr(strata_last_error(), says) == NULL)
        fail_msg("%s\nis not in: %s", says, strata_last_error());
}

static void test_what_does_not_fit_is_named(void **state)
{
    static const char name[] = "qwen2_layers", first[] = "layers.0.self_attn.q_proj.lora_A";
    char path[256];
    struct opened all;
    struct st_model *m = open_model(join(path, FAMILIES, name, ""));

    (void)state;
    refuse(m, copy_adapter(name, NULL, first, "layers.9.self_attn.q_proj.lora_A"), STRATA_E_INPUT,
           "layers.9.self_attn.q_proj.lora_A.weight has no place in an adapter as its adapter_config.json describes it");
    refuse(m, copy_adapter(name, "{\"r\":4,\"target_modules\":[\"q_proj\",\"v_proj\",\"k_proj\"]}", NULL, NULL), STRATA_E_INPUT,
           "tensor base_model.model.model.layers.0.self_attn.k_proj.lora_A.weight is missing");
    open_tensors(&all, join(path, ADAPTERS, name, ST_ADAPTER_WEIGHTS_NAME));
    for (uint32_t left_out = 0; left_out < all.header.count; left_out += all.header.count - 1) { /* the first, the last */
        char says[256];

        (void)copy_adapter(name, NULL, NULL, NULL);
        put_shard(&all, left_out == 0, all.header.count - (left_out != 0),
                  join(path, scratch_path("adapter"), "", ST_ADAPTER_WEIGHTS_NAME));
        snprintf(says, sizeof(says), "tensor %s is missing", all.header.tensors[left_out].name);
        refuse(m, scratch_path("adapter"), STRATA_E_INPUT, says);
    }
    close_tensors(&all);
    refuse(m, copy_adapter(name, "{\"r\":5}", NULL, NULL), STRATA_E_INPUT,
           "has shape [4, 32], the model and adapter_config.json want [5, 32]");
    refuse(m, copy_adapter(name, "{\"r\":4,\"target_modules\":[\"c_attn\"]}", NULL, NULL), STRATA_E_CONFIG,
           "\"c_attn\" fits no module of the model");
    refuse(m, copy_adapter(name, NULL, "\"F32\"", "\"I32\""), STRATA_E_INPUT, "has dtype I32; F32, BF16 and F16 are read");
    scratch_put("pickle/" ST_ADAPTER_CONFIG_NAME, "{}");
    scratch_put("pickle/adapter_model.bin", "PK");
    refuse(m, scratch_path("pickle"), STRATA_E_INPUT,
           "a pickle of PyTorch's, which is not read: load it in PEFT and save it again");
    scratch_put("none/" ST_ADAPTER_CONFIG_NAME, "{}");
    refuse(m, scratch_path("none"), STRATA_E_INPUT, "none/adapter_model.safetensors");
    refuse(m, scratch_path("absent"), STRATA_E_INPUT, "absent/adapter_config.json");
    st_model_destroy(m);
}

/* The same tensors in 16 bits, all of them 0.5. */
static void put_halves(const char *name, strata_dtype dtype, uint16_t half)
{
    char path[256];
    struct st_safetensors_writer *w;
    struct opened was;
    unsigned char *text;
    uint64_t bytes;
    FILE *file;

    open_tensors(&was, join(path, ADAPTERS, name, ST_ADAPTER_WEIGHTS_NAME));
    assert_ok(st_safetensors_writer_begin(&w, dtype));
    for (uint32_t i = 0; i < was.header.count; i++)
        st_safetensors_writer_add(w, was.header.tensors[i].name, was.header.tensors[i].shape, was.header.tensors[i].rank);
    assert_ok(st_safetensors_writer_end(w, &text, &bytes));
    file = fopen(join(path, scratch_path("adapter"), "", ST_ADAPTER_WEIGHTS_NAME), "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(text, 1, bytes, file), bytes);
    for (uint32_t i = 0; i < was.header.count; i++)
        for (uint64_t at = was.header.tensors[i].begin; at < was.header.tensors[i].end; at += 4)
            assert_int_equal(fwrite(&half, 2, 1, file), 1);
    assert_int_equal(fclose(file), 0);
    free(text);
    close_tensors(&was);
}

static void test_16_bits_are_read(void **state)
{
    static const struct {
        strata_dtype dtype;
        uint16_t half;
    } rows[] = {{STRATA_BF16, 0x3f00}, {STRATA_F16, 0x3800}};
    static const char name[] = "qwen2_layers";
    char path[256];
    struct st_model *m = open_model(join(path, FAMILIES, name, ""));

    (void)state;
    (void)copy_adapter(name, NULL, NULL, NULL);
    for (size_t r = 0; r < sizeof(rows) / sizeof(rows[0]); r++) {
        const struct st_hf_adapted *tensors;
        struct st_adapter_values values;
        struct st_hf_adapter *a;
        uint32_t count;
        float two[2];

        put_halves(name, rows[r].dtype, rows[r].half);
        assert_ok(st_hf_adapter_open(&a, m, scratch_path("adapter")));
        tensors = st_hf_adapter_tensors(a, &count);
        values = st_hf_adapter_values(a);
        for (uint32_t i = 0; i < count; i++) {
            assert_ok(values.read(values.ctx, &tensors[i], st_hf_adapted_elems(&tensors[i]) - 2, 2, two));
            assert_true(two[0] == 0.5f && two[1] == 0.5f);
        }
        st_hf_adapter_close(a);
    }
    st_model_destroy(m);
}

/* What lies in the directory once the value at a byte of its weights is no number. */
static void refuse_merge_without(struct st_model *m, const char *name, const char *dir, uint64_t at)
{
    char path[256], out[256];
    size_t bytes;
    char *weights = read_file(join(path, dir, "", ST_ADAPTER_WEIGHTS_NAME), &bytes), *bad = malloc(bytes);
    struct st_hf_adapter *a;

    assert_non_null(bad);
    memcpy(bad, weights, bytes);
    memset(bad + at, 0xff, 4);
    write_file(path, bad, bytes);
    assert_ok(st_hf_adapter_open(&a, m, dir));
    assert_int_equal(merge(m, a, join(out, FAMILIES, name, ""), scratch_path("out")), STRATA_E_NUMERICS);
    assert_non_null(strstr(strata_last_error(), "adapter/" ST_ADAPTER_WEIGHTS_NAME ": tensor "));
    assert_non_null(strstr(strata_last_error(), ".weight is not finite"));
    assert_int_equal(scratch_entries(scratch_dir, "adapter"), 0);
    st_hf_adapter_close(a);
    write_file(path, weights, bytes);
    free(weights);
    free(bad);
}

/* Not a number in A or B, wherever: the merged weights would not be numbers either. */
static void test_values_that_are_no_numbers_are_not_merged(void **state)
{
    static const char name[] = "qwen2_layers";
    char path[256], dir[256];
    struct st_model *m = open_model(join(path, FAMILIES, name, ""));
    struct opened o;

    (void)state;
    snprintf(dir, sizeof(dir), "%s", copy_adapter(name, NULL, NULL, NULL));
    open_tensors(&o, join(path, dir, "", ST_ADAPTER_WEIGHTS_NAME));
    for (uint32_t i = 0; i < 2; i++) {
        const struct st_safetensor *t = &o.header.tensors[i == 0 ? 0 : o.header.count - 1];

        refuse_merge_without(m, name, dir, t->begin);
        refuse_merge_without(m, name, dir, (t->begin + t->end) / 8 * 4);
        refuse_merge_without(m, name, dir, t->end - 4);
    }
    close_tensors(&o);
    st_model_destroy(m);
}

/* --- order --- */

static void write_copy(struct st_model *m, struct st_hf_adapter *a, const char *out);

/* Of the calls that were noted: each file is on the disk before any has its name, and is named once. */
static void assert_all_synced_before_names(const char *const *files, uint32_t count)
{
    const char *calls = file_order_text(), *first = strstr(calls, "name ");
    char call[128];

    assert_non_null(first);
    for (uint32_t i = 0; i < count; i++) {
        const char *at;

        snprintf(call, sizeof(call), "sync %s,", files[i]);
        at = strstr(calls, call);
        if (at == NULL || at > first)
            fail_msg("%s is not synced before the first name: %s", files[i], calls);
        snprintf(call, sizeof(call), "name %s,", files[i]);
        if (strstr(calls, call) == NULL || strstr(strstr(calls, call) + 1, call) != NULL)
            fail_msg("%s is not named once: %s", files[i], calls);
    }
}

static void test_all_is_on_the_disk_before_the_first_name(void **state)
{
    static const char *const adapter[] = {ST_ADAPTER_CONFIG_NAME, ST_ADAPTER_WEIGHTS_NAME};
    static const char *const model[] = {"config.json", "model.safetensors"};
    struct st_model *m = open_model(FAMILIES "/qwen2_layers");
    struct st_hf_adapter *a;

    (void)state;
    assert_ok(st_hf_adapter_open(&a, m, ADAPTERS "/qwen2_layers"));
    file_order_begin();
    write_copy(m, a, scratch_path("adapter"));
    assert_all_synced_before_names(adapter, 2);
    file_order_begin();
    assert_ok(merge(m, a, FAMILIES "/qwen2_layers", scratch_path("merged")));
    assert_all_synced_before_names(model, 2);
    st_hf_adapter_close(a);
    st_model_destroy(m);
}

/* --- of which model --- */

/* A notice says it where the names of the base and of the model have nothing in common; DIR is a scratch directory. */
static void test_another_base_is_noted(void **state)
{
    static const struct {
        const char *base, *model;
        bool noted;
    } rows[] = {
        {"meta-llama/Llama-2-7b-hf", "llama-2-7b", false},
        {"llama-2-7b", "models/Llama-2-7b-hf/", false},
        {"meta-llama/Llama-2-7b-hf", "models/llama-2-13b", true},
        {"Llama-2-7b-hf", "cache/models--meta-llama--Llama-2-7b-hf/snapshots/0123", false},
        {"Llama-2-7b-hf", "cache/models--meta-llama--Llama-2-13b-hf/snapshots/0123", true},
        {"org/Base", "named", false}, /* as its config.json says */
        {"org/Other", "named", true},
        {"", "named", false},
    };
    struct st_model *m = open_model(FAMILIES "/qwen2_layers");
    char path[256], *weights;
    size_t bytes;

    (void)state;
    weights = read_file(ADAPTERS "/qwen2_layers/" ST_ADAPTER_WEIGHTS_NAME, &bytes);
    scratch_put("adapter/" ST_ADAPTER_CONFIG_NAME, "{}");
    write_file(join(path, scratch_path("adapter"), "", ST_ADAPTER_WEIGHTS_NAME), weights, bytes);
    free(weights);
    scratch_put("named/config.json", "{\"_name_or_path\": \"org/base-1\"}");
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct st_hf_adapter *a;
        char config[512];

        snprintf(config, sizeof(config),
                 "{\"r\":4,\"target_modules\":[\"q_proj\",\"v_proj\"],\"base_model_name_or_path\":\"%s\"}", rows[i].base);
        scratch_put("adapter/" ST_ADAPTER_CONFIG_NAME, config);
        assert_ok(st_hf_adapter_open(&a, m, scratch_path("adapter")));
        kept_log_begin(ST_LOG_NOTICE);
        st_hf_adapter_note_base(a, strcmp(rows[i].model, "named") == 0 ? scratch_path("named") : rows[i].model);
        kept_log_end();
        if ((kept_log.count > 0) != rows[i].noted)
            fail_msg("%s used with %s: \"%s\"", rows[i].base, rows[i].model, kept_log.count > 0 ? kept_log.last : "");
        if (rows[i].noted)
            assert_non_null(strstr(kept_log.last, rows[i].base));
        st_hf_adapter_close(a);
    }
    st_model_destroy(m);
}

/* --- writing --- */

static void write_copy(struct st_model *m, struct st_hf_adapter *a, const char *out)
{
    const struct st_adapter_values values = st_hf_adapter_values(a);
    const struct st_hf_adapter_output output = {.model = m, .spec = st_hf_adapter_spec(a), .base = "the/base", .dir = out};
    struct st_hf_adapter_writer *w;
    const struct st_hf_adapted *tensors;
    uint32_t count;

    assert_ok(st_hf_adapter_writer_open(&w, &output));
    tensors = st_hf_adapter_writer_tensors(w, &count);
    for (uint32_t i = count; i-- > 0;) {
        const uint64_t elems = tensors[i].shape[0] * (tensors[i].rank == 2 ? tensors[i].shape[1] : 1), half = elems / 2;
        float *v = malloc(elems * sizeof(*v));

        assert_ok(values.read(values.ctx, &tensors[i], 0, elems, v));
        assert_ok(st_hf_adapter_writer_put(w, i, 0, half, v));
        assert_ok(st_hf_adapter_writer_put(w, i, half, elems - half, v + half));
        free(v);
    }
    assert_ok(st_hf_adapter_writer_commit(w));
}

/* What was read is written with the same tensors, and keys that PEFT reads. */
static void test_what_is_written_reads_back(void **state)
{
    char path[256], out[256];

    (void)state;
    for (size_t i = 0; i < NAMES; i++) {
        struct st_model *m = open_model(join(path, FAMILIES, names[i], ""));
        struct st_hf_adapter *a, *again;
        struct opened was, is;
        st_json *root;

        assert_ok(st_hf_adapter_open(&a, m, join(path, ADAPTERS, names[i], "")));
        assert_ok(st_hf_adapter_output_check(join(out, scratch_dir, names[i], "adapter"), false));
        write_copy(m, a, out);
        assert_int_equal(st_hf_adapter_output_check(out, false), STRATA_E_INPUT);
        assert_ok(st_hf_adapter_output_check(out, true));
        assert_ok(st_hf_adapter_open(&again, m, out));
        open_tensors(&was, join(path, ADAPTERS, names[i], ST_ADAPTER_WEIGHTS_NAME));
        open_tensors(&is, join(path, out, "", ST_ADAPTER_WEIGHTS_NAME));
        assert_int_equal(was.header.count, is.header.count);
        for (uint32_t t = 0; t < was.header.count; t++) {
            const struct st_safetensor *x = &was.header.tensors[t], *y = find(&is, x->name);

            assert_non_null(y);
            if (x->dtype == STRATA_F32)
                assert_memory_equal(was.bytes + x->begin, is.bytes + y->begin, x->end - x->begin);
        }
        assert_ok(st_json_parse_file(&root, join(path, out, "", ST_ADAPTER_CONFIG_NAME), 1 << 20));
        assert_string_equal(st_json_string(st_json_get(root, "base_model_name_or_path")), names[i]); /* as it was read */
        assert_string_equal(st_json_string(st_json_get(root, "peft_type")), "LORA");
        assert_non_null(st_json_get(root, "megatron_core")); /* keys that say nothing here, and null ones, stay as well */
        assert_non_null(st_json_get(root, "revision"));
        st_json_free(root);
        close_tensors(&was);
        close_tensors(&is);
        st_hf_adapter_close(a);
        st_hf_adapter_close(again);
        st_model_destroy(m);
    }
}

/* A value that every format holds, of an element of a page. */
static float page_value(uint32_t page, uint64_t elem)
{
    return (float)((page * 31 + elem) % 251);
}

/* Pages of a run, in the format of their groups (adapters', fp32, and that of the run), cut anywhere: what is trained is written
 * in fp32, each element at its place. */
static void test_pages_are_written_in_each_format(void **state)
{
    static const char dir[] = FAMILIES "/qwen2_layers", text[] = "{\"r\":3,\"target_modules\":\"all-linear\","
                                                                 "\"modules_to_save\":[\"norm\"]}";
    static const strata_dtype dtypes[] = {STRATA_F32, STRATA_BF16, STRATA_F16};
    const struct st_kernels *k = st_kernels_pick("scalar");
    struct st_model *plain = open_model(dir);
    struct st_adapter_spec *spec;

    (void)state;
    assert_ok(st_adapter_spec_parse(&spec, text, strlen(text), "here"));
    for (uint32_t d = 0; d < 3; d++) {
        const struct st_model_batch batch = {.micro_batch = 1, .seq = 1, .grad_accum = 1, .dtype = dtypes[d], .adapter = spec};
        struct st_hf_adapter_output output = {.spec = spec, .base = "x", .dir = scratch_path("pages"), .overwrite = true};
        struct st_hf_adapter_writer *w;
        struct st_model_config config = {0};
        struct st_adapter_values values;
        struct st_hf_adapter *a;
        struct st_model *m;
        uint32_t count;

        assert_ok(st_model_config_read(&config, dir));
        assert_ok(st_model_create(&m, &config, &batch));
        output.model = m;
        assert_ok(st_hf_adapter_writer_open(&w, &output));
        for (uint32_t p = 0; p < m->workload.page_count; p++) {
            const struct st_page *page = &m->workload.pages[p];

            for (const struct st_group *g = page->groups; g < page->groups + page->group_count; g++)
                for (uint64_t first = 0, n; g->kind != ST_GROUP_FROZEN && first < g->elems; first += n) {
                    float wide[100];
                    uint16_t narrow[100];

                    n = g->elems - first < 100 ? g->elems - first : 100;
                    for (uint64_t i = 0; i < n; i++)
                        wide[i] = page_value(p, g->offset + first + i);
                    if (g->format == STRATA_BF16)
                        k->f32_to_bf16(narrow, wide, n);
                    else if (g->format == STRATA_F16)
                        k->f32_to_f16(narrow, wide, n);
                    assert_ok(st_hf_adapter_writer_put_page(w, p, g->offset + first, n,
                                                            g->format == STRATA_F32 ? (const void *)wide : narrow));
                }
        }
        assert_ok(st_hf_adapter_writer_commit(w));
        assert_ok(st_hf_adapter_open(&a, plain, output.dir));
        values = st_hf_adapter_values(a);
        for (uint32_t i = 0; i < m->tensor_count; i++) {
            const struct st_tensor *t = &m->tensors[i];
            const struct st_hf_adapted *list = st_hf_adapter_tensors(a, &count), *at = NULL;
            float *v = malloc(t->elems * sizeof(*v));

            for (uint32_t n = 0; n < count && at == NULL; n++)
                at = strcmp(list[n].saved ? list[n].tensor->name : list[n].name, t->name) == 0 ? &list[n] : NULL;
            if ((at != NULL) != !t->frozen)
                fail_msg("%s is %s", t->name, t->frozen ? "written" : "not written");
            assert_ok(at != NULL ? values.read(values.ctx, at, 0, t->elems, v) : STRATA_OK);
            for (uint64_t e = 0; at != NULL && e < t->elems; e++)
                assert_true(v[e] == page_value(t->page, t->offset + e));
            free(v);
        }
        st_hf_adapter_close(a);
        st_model_destroy(m);
    }
    st_adapter_spec_destroy(spec);
    st_model_destroy(plain);
}

/* Each key has one value: null, where PEFT's own file has it, is not kept beside the one that is written. */
static void check_nulls_are_replaced(struct st_model *m)
{
    static const char nulls[] = "{\"peft_type\":null,\"task_type\":null,\"bias\":null,\"base_model_name_or_path\":null,\"r\":2,"
                                "\"lora_alpha\":null,\"target_modules\":null,\"fan_in_fan_out\":null,\"inference_mode\":null}";
    struct st_hf_adapter_output output = {.model = m, .base = "nano", .dir = scratch_path("nulls")};
    struct st_hf_adapter_writer *w;
    struct st_adapter_spec *spec;
    char *one, *other;

    assert_ok(st_adapter_spec_parse(&spec, nulls, sizeof(nulls) - 1, "here"));
    output.spec = spec;
    assert_ok(st_hf_adapter_writer_open(&w, &output));
    assert_ok(st_hf_adapter_writer_commit(w));
    one = read_file(scratch_path("written/" ST_ADAPTER_CONFIG_NAME), NULL);
    other = read_file(scratch_path("nulls/" ST_ADAPTER_CONFIG_NAME), NULL);
    assert_string_equal(one, other);
    free(one);
    free(other);
    st_adapter_spec_destroy(spec);
}

/* Of an object that says nothing PEFT gets everything that it would not know otherwise. */
static void test_settings_are_whole(void **state)
{
    struct st_model *m = tiny_model(STRATA_F32);
    struct st_adapter_spec *spec;
    struct st_hf_adapter_output output = {.model = m, .base = "nano", .dir = scratch_path("written")};
    struct st_hf_adapter_writer *w;

    (void)state;
    assert_ok(st_adapter_spec_parse(&spec, "{\"r\":2}", 7, "here"));
    output.spec = spec;
    assert_ok(st_hf_adapter_writer_open(&w, &output));
    assert_ok(st_hf_adapter_writer_commit(w));
    scratch_holds("written/" ST_ADAPTER_CONFIG_NAME,
                  "{\"peft_type\":\"LORA\",\"task_type\":\"CAUSAL_LM\",\"bias\":\"none\",\"base_model_name_or_path\":\"nano\","
                  "\"lora_alpha\":8,\"target_modules\":[\"c_attn\"],\"fan_in_fan_out\":true,\"inference_mode\":true,\"r\":2}\n");
    check_nulls_are_replaced(m);
    assert_ok(st_hf_adapter_writer_open(
        &w, &(struct st_hf_adapter_output){.model = m, .base = "nano", .spec = spec, .dir = scratch_path("gone/deep")}));
    st_hf_adapter_writer_abort(w);
    assert_int_equal(scratch_entries_with(scratch_dir, "gone"), 0);
    st_adapter_spec_destroy(spec);
    st_model_destroy(m);
}

/* While one of them is written, whichever it is, no other one is begun there, though no file has its name yet. */
static void test_a_directory_has_one_writer(void **state)
{
    struct st_model *m = open_model(FAMILIES "/qwen2_layers");
    struct st_hf_adapter *a;
    struct st_hf_adapter_output output = {.model = m, .base = "x", .dir = scratch_path("out")};
    struct st_hf_adapter_writer *adapter, *second;
    struct st_hf_writer *model;
    struct st_train_report report;
    struct st_train *t;
    char link[256];

    (void)state;
    assert_ok(st_hf_adapter_open(&a, m, ADAPTERS "/qwen2_layers"));
    assert_ok(st_train_create(&t));
    assert_ok(st_train_feed(t, "text", 4));
    assert_ok(st_train_end_text(t));
    output.spec = st_hf_adapter_spec(a);
    snprintf(link, sizeof(link), "%s", scratch_path("link"));
    assert_int_equal(symlink("out", link), 0);

    assert_ok(st_hf_adapter_writer_open(&adapter, &output));
    assert_refused(st_hf_writer_open(&model, m, link, NULL, NULL, true), STRATA_E_INPUT,
                   "link: another run writes a model, an adapter");
    assert_refused(merge(m, a, FAMILIES "/qwen2_layers", link), STRATA_E_INPUT, "link: another run writes");
    assert_refused(st_train_write(t, 300, link, true, &report), STRATA_E_INPUT, "link: another run writes");
    assert_int_equal(scratch_entries_with(scratch_path("out"), ".strata-"), 2); /* the adapter's own new files */
    st_hf_adapter_writer_abort(adapter);

    assert_ok(st_hf_writer_open(&model, m, scratch_path("out"), NULL, NULL, false));
    assert_refused(st_hf_adapter_writer_open(&second, &output), STRATA_E_INPUT, "out: another run writes");
    assert_refused(merge(m, a, FAMILIES "/qwen2_layers", link), STRATA_E_INPUT, "is the name of two outputs");
    st_hf_writer_abort(model);
    assert_ok(merge(m, a, FAMILIES "/qwen2_layers", scratch_path("out")));
    assert_refused(st_hf_adapter_writer_open(&second, &output), STRATA_E_INPUT, "out holds a model (config.json)");
    st_train_destroy(t);
    st_hf_adapter_close(a);
    st_model_destroy(m);
}

/* Space that is lacking at the start is a request that does not fit, in every writer. */
static void test_no_room_at_the_start_does_not_fit(void **state)
{
    struct st_model *m = open_model(FAMILIES "/qwen2_layers");
    struct st_hf_adapter *a;
    struct st_hf_adapter_output output = {.model = m, .base = "x", .dir = scratch_path("out")};
    struct st_hf_adapter_writer *adapter;
    struct st_hf_writer *model;

    (void)state;
    assert_ok(st_hf_adapter_open(&a, m, ADAPTERS "/qwen2_layers"));
    output.spec = st_hf_adapter_spec(a);
    st_fault_arm(&(struct st_fault_spec){.site = "file.reserve", .result = -ENOSPC});
    assert_refused(st_hf_adapter_writer_open(&adapter, &output), STRATA_E_NOFIT, "out/adapter_model.safetensors: No space");
    assert_refused(st_hf_writer_open(&model, m, scratch_path("out"), NULL, NULL, false), STRATA_E_NOFIT, "No space");
    assert_refused(merge(m, a, FAMILIES "/qwen2_layers", scratch_path("out")), STRATA_E_NOFIT, "No space");
    assert_int_equal(st_fault_disarm(), 3);
    assert_int_equal(scratch_entries_with(scratch_dir, "out"), 0);
    st_hf_adapter_close(a);
    st_model_destroy(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_merged_weights_are_pefts, scratch_begin, scratch_end),
        cmocka_unit_test_setup_teardown(test_shards_stay_shards, scratch_begin, scratch_end),
        cmocka_unit_test_setup_teardown(test_what_does_not_fit_is_named, scratch_begin, scratch_end),
        cmocka_unit_test_setup_teardown(test_16_bits_are_read, scratch_begin, scratch_end),
        cmocka_unit_test_setup_teardown(test_values_that_are_no_numbers_are_not_merged, scratch_begin, scratch_end),
        cmocka_unit_test_setup_teardown(test_all_is_on_the_disk_before_the_first_name, scratch_begin, scratch_end),
        cmocka_unit_test_setup_teardown(test_another_base_is_noted, scratch_begin, scratch_end),
        cmocka_unit_test_setup_teardown(test_what_is_written_reads_back, scratch_begin, scratch_end),
        cmocka_unit_test_setup_teardown(test_pages_are_written_in_each_format, scratch_begin, scratch_end),
        cmocka_unit_test_setup_teardown(test_settings_are_whole, scratch_begin, scratch_end),
        cmocka_unit_test_setup_teardown(test_a_directory_has_one_writer, scratch_begin, scratch_end),
        cmocka_unit_test_setup_teardown(test_no_room_at_the_start_does_not_fit, scratch_begin, scratch_end),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
