/* tests/model/adapter_rig.c - see adapter_rig.h. */
#include "adapter_rig.h"
#include "model_fixture.h"
#include "tests/common/whole_file.h"

#include <stdio.h>

const char *const families[FAMILY_COUNT] = {
    "gemma2_caps",    "gemma3_local",     "gpt2_exact",       "llama_linear", "mistral_window", "olmo2",         "phi3_long",
    "qwen2_layers",   "qwen3_bias",       "smollm3_yarn",     "mixtral",      "olmoe",          "qwen2_moe",     "qwen3_moe",
    "mixtral_params", "qwen2_moe_params", "qwen3_moe_params", "olmoe_params", "gpt_oss",        "gpt_oss_params"};

const char *join_path(char path[256], const char *dir, const char *name, const char *file)
{
    assert_true(snprintf(path, 256, "%s%s%s%s%s", dir, name[0] != '\0' ? "/" : "", name, file[0] != '\0' ? "/" : "", file) < 256);
    return path;
}

const char *model_path(char path[256], const char *name)
{
    static const struct {
        const char *adapter, *model;
    } sparse[] = {{"mixtral", "mixtral"},
                  {"olmoe", "olmoe"},
                  {"qwen2_moe", "qwen2_moe"},
                  {"qwen3_moe", "qwen3_moe"},
                  {"mixtral_params", "mixtral"},
                  {"qwen2_moe_params", "qwen2_moe"},
                  {"qwen3_moe_params", "qwen3_moe_one"},
                  {"olmoe_params", "olmoe"},
                  {"gpt_oss", "gpt_oss"},
                  {"gpt_oss_params", "gpt_oss_one"}};

    for (size_t i = 0; i < sizeof(sparse) / sizeof(sparse[0]); i++)
        if (strcmp(sparse[i].adapter, name) == 0)
            return join_path(path, "tests/golden/experts", sparse[i].model, "");
    return join_path(path, FAMILIES, name, "");
}

struct st_model *open_model(const char *dir)
{
    const struct st_model_batch batch = {.micro_batch = 1, .seq = 1, .grad_accum = 1, .dtype = STRATA_F32};
    struct st_model_config config = {0};
    struct st_model *m;

    assert_ok(st_model_config_read(&config, dir));
    assert_ok(st_model_create(&m, &config, &batch));
    return m;
}

strata_status merge_adapter(struct st_model *m, struct st_hf_adapter *a, const char *dir, const char *out)
{
    struct st_hf_merge how = {.model = m, .dir = dir, .values = st_hf_adapter_values(a), .out = out};

    how.tensors = st_hf_adapter_tensors(a, &how.count);
    return st_hf_merge(&how);
}

void open_tensors(struct opened *o, const char *path)
{
    size_t bytes;

    o->bytes = read_file(path, &bytes);
    assert_ok(st_safetensors_read_memory(&o->header, o->bytes, bytes, path));
}

void close_tensors(struct opened *o)
{
    st_safetensors_fini(&o->header);
    free(o->bytes);
}

const struct st_safetensor *find_tensor(const struct opened *o, const char *name)
{
    for (uint32_t i = 0; i < o->header.count; i++)
        if (strcmp(o->header.tensors[i].name, name) == 0)
            return &o->header.tensors[i];
    return NULL;
}

const char *copy_adapter(const char *name, const char *config, const char *old, const char *new)
{
    char path[256], *text = read_file(join_path(path, ADAPTERS, name, ST_ADAPTER_CONFIG_NAME), NULL), *at;
    size_t bytes;
    char *weights = read_file(join_path(path, ADAPTERS, name, ST_ADAPTER_WEIGHTS_NAME), &bytes);

    scratch_put("adapter/" ST_ADAPTER_CONFIG_NAME, config != NULL ? config : text);
    if (old != NULL) {
        at = memmem(weights, bytes, old, strlen(old));
        assert_non_null(at);
        assert_int_equal(strlen(old), strlen(new));
        memcpy(at, new, strlen(new));
    }
    write_file(join_path(path, scratch_path("adapter"), "", ST_ADAPTER_WEIGHTS_NAME), weights, bytes);
    free(text);
    free(weights);
    return scratch_path("adapter");
}

void put_shard(const struct opened *all, uint32_t first, uint32_t end, const char *path)
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
