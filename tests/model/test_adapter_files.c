/* tests/model/test_adapter_files.c - directories of adapters: PEFT's are read, what does not fit is named, and what is written
 * reads back. */
#include "adapter_rig.h"
#include "core/base/fault.h"
#include "core/system/file.h"
#include "kernels/kernels.h"
#include "model/layout.h"
#include "model_fixture.h"
#include "tests/common/file_order.h"
#include "tests/common/kept_log.h"
#include "tests/common/whole_file.h"

#include <errno.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

/* --- files that do not fit --- */

static void refuse(struct st_model *m, const char *dir, strata_status want, const char *says)
{
    struct st_hf_adapter *a;

    assert_int_equal(st_hf_adapter_open(&a, m, dir), want);
    if (strstr(strata_last_error(), says) == NULL)
        fail_msg("%s\nis not in: %s", says, strata_last_error());
}

TEST_SETUP(test_what_does_not_fit_is_named, scratch_begin, scratch_end)
{
    static const char name[] = "qwen2_layers", first[] = "layers.0.self_attn.q_proj.lora_A";
    char path[256];
    struct opened all;
    struct st_model *m = open_model(join_path(path, FAMILIES, name, ""));

    refuse(m, copy_adapter(name, NULL, first, "layers.9.self_attn.q_proj.lora_A"), STRATA_E_INPUT,
           "layers.9.self_attn.q_proj.lora_A.weight has no place in an adapter as its adapter_config.json describes it");
    refuse(m, copy_adapter(name, "{\"r\":4,\"target_modules\":[\"q_proj\",\"v_proj\",\"k_proj\"]}", NULL, NULL), STRATA_E_INPUT,
           "tensor base_model.model.model.layers.0.self_attn.k_proj.lora_A.weight is missing");
    open_tensors(&all, join_path(path, ADAPTERS, name, ST_ADAPTER_WEIGHTS_NAME));
    for (uint32_t left_out = 0; left_out < all.header.count; left_out += all.header.count - 1) { /* the first, the last */
        char says[256];

        (void)copy_adapter(name, NULL, NULL, NULL);
        put_shard(&all, left_out == 0, all.header.count - (left_out != 0),
                  join_path(path, scratch_path("adapter"), "", ST_ADAPTER_WEIGHTS_NAME));
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

#define WRAPPED "tests/golden/wrappers/gemma3"

/* The golden adapter of a model of more than text, with `new` for `old` in all names, and its first tensor once more as `extra`.
 */
static const char *put_renamed(const char *old, const char *new, const char *extra)
{
    char path[256], *config = read_file(WRAPPED "/adapter/" ST_ADAPTER_CONFIG_NAME, NULL);
    struct st_safetensors_writer *w;
    struct opened was;
    unsigned char *header;
    uint64_t bytes;
    FILE *file;

    scratch_put("adapter/" ST_ADAPTER_CONFIG_NAME, config);
    free(config);
    open_tensors(&was, WRAPPED "/adapter/" ST_ADAPTER_WEIGHTS_NAME);
    assert_ok(st_safetensors_writer_begin(&w, STRATA_F32));
    for (uint32_t i = 0; i < was.header.count; i++) {
        const struct st_safetensor *t = &was.header.tensors[i];
        const char *at = strstr(t->name, old);
        char name[256];

        snprintf(name, sizeof(name), "%.*s%s%s", at != NULL ? (int)(at - t->name) : 0, t->name, at != NULL ? new : "",
                 at != NULL ? at + strlen(old) : t->name);
        st_safetensors_writer_add(w, name, t->shape, t->rank);
    }
    if (extra != NULL)
        st_safetensors_writer_add(w, extra, was.header.tensors[0].shape, was.header.tensors[0].rank);
    assert_ok(st_safetensors_writer_end(w, &header, &bytes));
    file = fopen(join_path(path, scratch_path("adapter"), "", ST_ADAPTER_WEIGHTS_NAME), "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(header, 1, bytes, file), bytes);
    free(header);
    for (uint32_t i = 0; i < was.header.count + (extra != NULL); i++) {
        const struct st_safetensor *t = &was.header.tensors[i < was.header.count ? i : 0];

        assert_int_equal(fwrite(was.bytes + t->begin, 1, t->end - t->begin, file), t->end - t->begin);
    }
    assert_int_equal(fclose(file), 0);
    close_tensors(&was);
    return scratch_path("adapter");
}

static void expect_same_values(struct st_hf_adapter *a, struct st_hf_adapter *b)
{
    const struct st_adapter_values from[] = {st_hf_adapter_values(a), st_hf_adapter_values(b)};
    const struct st_hf_adapted *tensors;
    float values[2][64];
    uint32_t count;

    tensors = st_hf_adapter_tensors(a, &count);
    assert_true(count > 0);
    for (uint32_t i = 0; i < count; i++) {
        const uint64_t elems = st_hf_adapted_elems(&tensors[i]);

        assert_true(elems <= 64);
        for (uint32_t k = 0; k < 2; k++)
            assert_ok(from[k].read(from[k].ctx, &tensors[i], 0, elems, values[k]));
        assert_memory_equal(values[0], values[1], elems * sizeof(float));
    }
}

/* As PEFT has them in memory, whatever the adapter is called, and of older transformers. */
TEST_SETUP(test_names_of_others_are_read, scratch_begin, scratch_end)
{
    static const char *const names[][2] = {{".weight", ".default.weight"},
                                           {"lora_B.weight", "lora_B.mine.weight"},
                                           {"model.language_model.layers", "language_model.model.layers"},
                                           {"model.language_model.layers.1", "model.layers.1"}};
    static const char beside[] = "base_model.model.model.vision_tower.encoder.layers.0.self_attn.q_proj.lora_A.weight";
    struct st_model *m = open_model(WRAPPED);
    struct st_hf_adapter *a, *b;

    assert_ok(st_hf_adapter_open(&a, m, WRAPPED "/adapter"));
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        assert_ok(st_hf_adapter_open(&b, m, put_renamed(names[i][0], names[i][1], NULL)));
        expect_same_values(a, b);
        assert_int_equal(st_hf_adapter_beside(b), 0);
        st_hf_adapter_close(b);
    }
    assert_ok(st_hf_adapter_open(&b, m, put_renamed("none", "", beside)));
    expect_same_values(a, b);
    assert_int_equal(st_hf_adapter_beside(b), 1);
    st_hf_adapter_close(b);
    refuse(m, put_renamed("none", "", "base_model.model.model.language_model.layers.0.mlp.down_proj.lora_A.default.weight"),
           STRATA_E_INPUT, "down_proj.lora_A.weight: save only one adapter");
    st_hf_adapter_close(a);
    st_model_destroy(m);
}

/* What ZeRO-3 saves of a parameter that lies on other ranks. */
TEST_SETUP(test_stand_ins_of_zero_3_are_named, scratch_begin, scratch_end)
{
    static const char name[] = "qwen2_layers";
    static const uint64_t none[] = {0};
    char path[256];
    struct st_model *m = open_model(join_path(path, FAMILIES, name, ""));
    struct st_safetensors_writer *w;
    struct opened was;
    unsigned char *header;
    uint64_t bytes;

    (void)copy_adapter(name, NULL, NULL, NULL);
    open_tensors(&was, join_path(path, ADAPTERS, name, ST_ADAPTER_WEIGHTS_NAME));
    assert_ok(st_safetensors_writer_begin(&w, STRATA_F32));
    for (uint32_t i = 0; i < was.header.count; i++)
        st_safetensors_writer_add(w, was.header.tensors[i].name, none, 1);
    assert_ok(st_safetensors_writer_end(w, &header, &bytes));
    write_file(join_path(path, scratch_path("adapter"), "", ST_ADAPTER_WEIGHTS_NAME), header, bytes);
    refuse(m, scratch_path("adapter"), STRATA_E_INPUT, "has shape [0], ZeRO-3's placeholder");
    free(header);
    close_tensors(&was);
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

    open_tensors(&was, join_path(path, ADAPTERS, name, ST_ADAPTER_WEIGHTS_NAME));
    assert_ok(st_safetensors_writer_begin(&w, dtype));
    for (uint32_t i = 0; i < was.header.count; i++)
        st_safetensors_writer_add(w, was.header.tensors[i].name, was.header.tensors[i].shape, was.header.tensors[i].rank);
    assert_ok(st_safetensors_writer_end(w, &text, &bytes));
    file = fopen(join_path(path, scratch_path("adapter"), "", ST_ADAPTER_WEIGHTS_NAME), "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(text, 1, bytes, file), bytes);
    for (uint32_t i = 0; i < was.header.count; i++)
        for (uint64_t at = was.header.tensors[i].begin; at < was.header.tensors[i].end; at += 4)
            assert_int_equal(fwrite(&half, 2, 1, file), 1);
    assert_int_equal(fclose(file), 0);
    free(text);
    close_tensors(&was);
}

TEST_SETUP(test_16_bits_are_read, scratch_begin, scratch_end)
{
    static const struct {
        strata_dtype dtype;
        uint16_t half;
    } rows[] = {{STRATA_BF16, 0x3f00}, {STRATA_F16, 0x3800}};
    static const char name[] = "qwen2_layers";
    char path[256];
    struct st_model *m = open_model(join_path(path, FAMILIES, name, ""));

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

TEST_SETUP(test_all_is_on_the_disk_before_the_first_name, scratch_begin, scratch_end)
{
    static const char *const adapter[] = {ST_ADAPTER_CONFIG_NAME, ST_ADAPTER_WEIGHTS_NAME};
    static const char *const model[] = {"config.json", "model.safetensors"};
    struct st_model *m = open_model(FAMILIES "/qwen2_layers");
    struct st_hf_adapter *a;

    assert_ok(st_hf_adapter_open(&a, m, ADAPTERS "/qwen2_layers"));
    file_order_begin();
    write_copy(m, a, scratch_path("adapter"));
    assert_all_synced_before_names(adapter, 2);
    file_order_begin();
    assert_ok(merge_adapter(m, a, FAMILIES "/qwen2_layers", scratch_path("merged")));
    assert_all_synced_before_names(model, 2);
    st_hf_adapter_close(a);
    st_model_destroy(m);
}

/* --- of which model --- */

/* A notice says it where the names of the base and of the model have nothing in common; DIR is a scratch directory. */
TEST_SETUP(test_another_base_is_noted, scratch_begin, scratch_end)
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

    weights = read_file(ADAPTERS "/qwen2_layers/" ST_ADAPTER_WEIGHTS_NAME, &bytes);
    scratch_put("adapter/" ST_ADAPTER_CONFIG_NAME, "{}");
    write_file(join_path(path, scratch_path("adapter"), "", ST_ADAPTER_WEIGHTS_NAME), weights, bytes);
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
TEST_SETUP(test_what_is_written_reads_back, scratch_begin, scratch_end)
{
    char path[256], out[256];

    for (size_t i = 0; i < FAMILY_COUNT; i++) {
        struct st_model *m = open_model(model_path(path, families[i]));
        struct st_hf_adapter *a, *again;
        struct opened was, is;
        st_json *root;

        assert_ok(st_hf_adapter_open(&a, m, join_path(path, ADAPTERS, families[i], "")));
        assert_ok(st_hf_adapter_output_check(join_path(out, scratch_dir, families[i], "adapter"), false));
        write_copy(m, a, out);
        assert_int_equal(st_hf_adapter_output_check(out, false), STRATA_E_INPUT);
        assert_ok(st_hf_adapter_output_check(out, true));
        assert_ok(st_hf_adapter_open(&again, m, out));
        open_tensors(&was, join_path(path, ADAPTERS, families[i], ST_ADAPTER_WEIGHTS_NAME));
        open_tensors(&is, join_path(path, out, "", ST_ADAPTER_WEIGHTS_NAME));
        assert_int_equal(was.header.count, is.header.count);
        for (uint32_t t = 0; t < was.header.count; t++) {
            const struct st_safetensor *x = &was.header.tensors[t], *y = find_tensor(&is, x->name);

            assert_non_null(y);
            if (x->dtype == STRATA_F32)
                assert_memory_equal(was.bytes + x->begin, is.bytes + y->begin, x->end - x->begin);
        }
        assert_ok(st_json_parse_file(&root, join_path(path, out, "", ST_ADAPTER_CONFIG_NAME), 1 << 20));
        assert_string_equal(st_json_string(st_json_get(root, "base_model_name_or_path")), "the/base"); /* not as it was read */
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
TEST_SETUP(test_pages_are_written_in_each_format, scratch_begin, scratch_end)
{
    static const char dir[] = FAMILIES "/qwen2_layers", text[] = "{\"r\":3,\"target_modules\":\"all-linear\","
                                                                 "\"modules_to_save\":[\"norm\"]}";
    static const strata_dtype dtypes[] = {STRATA_F32, STRATA_BF16, STRATA_F16};
    const struct st_kernels *k = st_kernels_pick("scalar");
    struct st_model *plain = open_model(dir);
    struct st_adapter_spec *spec;

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

/* Values that are no numbers, anywhere in a page of any format, end what would be written. */
TEST_SETUP(test_a_diverged_run_writes_no_adapter, scratch_begin, scratch_end)
{
    static const char dir[] = FAMILIES "/qwen2_layers", text[] = "{\"r\":3,\"target_modules\":\"all-linear\"}";
    static const uint32_t bad[] = {0x7fc00000u, 0x7f800000u, 0xff800000u};
    const struct st_model_batch batch = {.micro_batch = 1, .seq = 1, .grad_accum = 1, .dtype = STRATA_BF16};
    struct st_model_batch adapted = batch;
    struct st_hf_adapter_output output = {.base = "x", .dir = scratch_path("diverged")};
    struct st_model_config config = {0};
    struct st_adapter_spec *spec;
    struct st_model *m;

    assert_ok(st_adapter_spec_parse(&spec, text, strlen(text), "here"));
    assert_ok(st_model_config_read(&config, dir));
    adapted.adapter = output.spec = spec;
    assert_ok(st_model_create(&m, &config, &adapted));
    output.model = m;
    for (uint32_t p = 0; p < m->workload.page_count; p++) {
        const struct st_page *page = &m->workload.pages[p];

        for (const struct st_group *g = page->groups; g < page->groups + page->group_count; g++)
            for (uint32_t b = 0; g->kind != ST_GROUP_FROZEN && b < 3; b++) {
                float *values = calloc(g->elems, sizeof(*values));
                struct st_hf_adapter_writer *w;

                assert_non_null(values);
                assert_int_equal(g->format, STRATA_F32);
                memcpy(&values[g->elems - 1], &bad[b], sizeof(bad[b]));
                assert_ok(st_hf_adapter_writer_open(&w, &output));
                if (g->elems > 1)
                    assert_ok(st_hf_adapter_writer_put_page(w, p, g->offset, g->elems - 1, values));
                assert_refused(st_hf_adapter_writer_put_page(w, p, g->offset + g->elems - 1, 1, values + g->elems - 1),
                               STRATA_E_NUMERICS, "is not finite: the run that trained it has diverged; nothing is written");
                st_hf_adapter_writer_abort(w);
                free(values);
                assert_int_equal(scratch_entries_with(output.dir, ST_ADAPTER_WEIGHTS_NAME), 0);
            }
    }
    st_adapter_spec_destroy(spec);
    st_model_destroy(m);
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
TEST_SETUP(test_settings_are_whole, scratch_begin, scratch_end)
{
    struct st_model *m = tiny_model(STRATA_F32);
    struct st_adapter_spec *spec;
    struct st_hf_adapter_output output = {.model = m, .base = "nano", .dir = scratch_path("written")};
    struct st_hf_adapter_writer *w;

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
TEST_SETUP(test_a_directory_has_one_writer, scratch_begin, scratch_end)
{
    struct st_model *m = open_model(FAMILIES "/qwen2_layers");
    struct st_hf_adapter *a;
    struct st_hf_adapter_output output = {.model = m, .base = "x", .dir = scratch_path("out")};
    struct st_hf_adapter_writer *adapter, *second;
    struct st_hf_writer *model;
    char link[256];

    assert_ok(st_hf_adapter_open(&a, m, ADAPTERS "/qwen2_layers"));
    output.spec = st_hf_adapter_spec(a);
    snprintf(link, sizeof(link), "%s", scratch_path("link"));
    assert_int_equal(symlink("out", link), 0);

    assert_ok(st_hf_adapter_writer_open(&adapter, &output));
    assert_refused(st_hf_writer_open(&model, m, link, NULL, NULL, true), STRATA_E_INPUT,
                   "link: another run writes a model or an adapter");
    assert_refused(merge_adapter(m, a, FAMILIES "/qwen2_layers", link), STRATA_E_INPUT, "link: another run writes");
    assert_int_equal(scratch_entries_with(scratch_path("out"), ".strata-"), 2); /* the adapter's own new files */
    st_hf_adapter_writer_abort(adapter);

    assert_ok(st_hf_writer_open(&model, m, scratch_path("out"), NULL, NULL, false));
    assert_refused(st_hf_adapter_writer_open(&second, &output), STRATA_E_INPUT, "out: another run writes");
    assert_refused(merge_adapter(m, a, FAMILIES "/qwen2_layers", link), STRATA_E_INPUT, "is the name of two outputs");
    st_hf_writer_abort(model);
    assert_ok(merge_adapter(m, a, FAMILIES "/qwen2_layers", scratch_path("out")));
    assert_refused(st_hf_adapter_writer_open(&second, &output), STRATA_E_INPUT, "out holds a model (config.json)");
    st_hf_adapter_close(a);
    st_model_destroy(m);
}

/* Space that is lacking at the start is a request that does not fit, in every writer. */
TEST_SETUP(test_no_room_at_the_start_does_not_fit, scratch_begin, scratch_end)
{
    struct st_model *m = open_model(FAMILIES "/qwen2_layers");
    struct st_hf_adapter *a;
    struct st_hf_adapter_output output = {.model = m, .base = "x", .dir = scratch_path("out")};
    struct st_hf_adapter_writer *adapter;
    struct st_hf_writer *model;

    assert_ok(st_hf_adapter_open(&a, m, ADAPTERS "/qwen2_layers"));
    output.spec = st_hf_adapter_spec(a);
    st_fault_arm(&(struct st_fault_spec){.site = "file.reserve", .result = -ENOSPC});
    assert_refused(st_hf_adapter_writer_open(&adapter, &output), STRATA_E_NOFIT, "out/adapter_model.safetensors: No space");
    assert_refused(st_hf_writer_open(&model, m, scratch_path("out"), NULL, NULL, false), STRATA_E_NOFIT, "No space");
    assert_refused(merge_adapter(m, a, FAMILIES "/qwen2_layers", scratch_path("out")), STRATA_E_NOFIT, "No space");
    assert_int_equal(st_fault_disarm(), 3);
    assert_int_equal(scratch_entries_with(scratch_dir, "out"), 0);
    st_hf_adapter_close(a);
    st_model_destroy(m);
}

/* Files are for PEFT: settings that it would take for others are refused, and nothing is left. */
TEST_SETUP(test_an_adapter_that_peft_reads_otherwise_is_not_written, scratch_begin, scratch_end)
{
    static const char text[] = "{\"use_rslora\":true,\"target_modules\":[\"w1\",\"w2\",\"w3\"]}";
    struct st_model *m = open_model("tests/golden/experts/mixtral");
    struct st_hf_adapter_output output = {.model = m, .base = "x", .dir = scratch_path("out")};
    struct st_hf_adapter_writer *w;
    struct st_adapter_spec *spec;

    assert_ok(st_adapter_spec_parse(&spec, text, strlen(text), "run.json: strata.lora"));
    output.spec = spec;
    assert_refused(st_hf_adapter_writer_open(&w, &output), STRATA_E_CONFIG,
                   "run.json: strata.lora: PEFT beside transformers 5 would not read the adapter");
    assert_non_null(strstr(strata_last_error(), "gate_up_proj adds by 4 in place of 2.82843: name experts in target_parameters"));
    assert_int_equal(access(output.dir, F_OK), -1);
    st_adapter_spec_destroy(spec);
    st_model_destroy(m);
}

/* A router that is saved whole has the name of transformers 5 in the file, and is read by that of transformers 4, too. */
TEST_SETUP(test_a_saved_router_is_named_as_peft_names_it, scratch_begin, scratch_end)
{
    static const char text[] = "{\"target_modules\":[\"q_proj\"],\"modules_to_save\":[\"gate\"]}";
    static char own[2][96] = {"base_model.model.model.layers.0.block_sparse_moe.gate.weight",
                              "base_model.model.model.layers.1.block_sparse_moe.gate.weight"};
    static const char theirs[] = "base_model.model.model.layers.0.mlp.gate.weight";
    struct st_model *m = open_model("tests/golden/experts/mixtral");
    struct st_hf_adapter_output output = {.model = m, .base = "x", .dir = scratch_path("out")};
    const struct st_hf_adapted *tensors;
    struct st_hf_adapter_writer *w;
    struct st_adapter_spec *spec;
    struct st_hf_adapter *a;
    struct opened all;
    char path[256], *kept[8];
    uint32_t count;

    assert_ok(st_adapter_spec_parse(&spec, text, strlen(text), "here"));
    output.spec = spec;
    assert_ok(st_hf_adapter_writer_open(&w, &output));
    tensors = st_hf_adapter_writer_tensors(w, &count);
    for (uint32_t i = 0; i < count; i++) {
        float *v = calloc(st_hf_adapted_elems(&tensors[i]), sizeof(*v));

        assert_ok(st_hf_adapter_writer_put(w, i, 0, st_hf_adapted_elems(&tensors[i]), v));
        free(v);
    }
    assert_ok(st_hf_adapter_writer_commit(w));
    join_path(path, output.dir, "", ST_ADAPTER_WEIGHTS_NAME);
    open_tensors(&all, path);
    assert_non_null(find_tensor(&all, theirs));
    assert_null(find_tensor(&all, own[0]));
    assert_true(all.header.count <= sizeof(kept) / sizeof(kept[0]));
    assert_ok(st_hf_adapter_open(&a, m, output.dir));
    st_hf_adapter_close(a);
    for (uint32_t i = 0; i < all.header.count; i++) {
        const char *name = strstr(all.header.tensors[i].name, ".mlp.gate.weight");

        kept[i] = all.header.tensors[i].name;
        if (name != NULL)
            all.header.tensors[i].name = own[name[-1] - '0'];
    }
    put_shard(&all, 0, all.header.count, path);
    for (uint32_t i = 0; i < all.header.count; i++)
        all.header.tensors[i].name = kept[i];
    assert_ok(st_hf_adapter_open(&a, m, output.dir));
    st_hf_adapter_close(a);
    close_tensors(&all);
    st_adapter_spec_destroy(spec);
    st_model_destroy(m);
}
