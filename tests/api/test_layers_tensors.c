/* tests/api/test_layers_tensors.c - tensors by name: what is read is what was written or loaded, wherever it is. */
#include "tests/api/handles_fixture.h"
#include "tests/api/layers_net.h"
#include "tests/common/scratch.h"
#include "tests/common/test.h"

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define W NET_WIDTH

/* --- values --- */

static void check_facts(const struct net *n)
{
    uint32_t index;

    assert_int_equal(strata_engine_tensor_count(n->engine), NET_TENSORS);
    for (uint32_t i = 0; i < NET_TENSORS; i++) {
        assert_int_equal(n->info[i].index, i);
        assert_int_equal(n->info[i].weight_at % 64, 0);
        assert_int_equal(n->info[i].sum_at % 16, 0);
        assert_ok(strata_engine_find_tensor(n->engine, n->info[i].name, &index));
        assert_int_equal(index, i);
    }
    assert_int_equal(n->info[3].group, STRATA_FROZEN);
    assert_string_equal(n->info[3].layer, "block.0");
    assert_int_equal(n->info[1].shape[1], W);
}

/* All planes of all tensors, by their values as fp32. */
struct values {
    float all[NET_TENSORS][3][W * W];
};

static struct values *read_all(const struct net *n)
{
    struct values *v = calloc(1, sizeof(*v));

    assert_non_null(v);
    for (uint32_t t = 0; t < NET_TENSORS; t++)
        for (uint32_t p = 0; p < (n->info[t].group == STRATA_FROZEN ? 1u : 3u); p++) {
            const uint64_t elems = n->info[t].elems, cut = elems / 3;

            /* in two parts, the later one first */
            assert_ok(
                strata_engine_read_tensor(n->engine, t, (enum strata_plane)p, cut, elems - cut, STRATA_F32, v->all[t][p] + cut));
            assert_ok(strata_engine_read_tensor(n->engine, t, (enum strata_plane)p, 0, cut, STRATA_F32, v->all[t][p]));
        }
    return v;
}

/* What one engine has, written into another of another placement, whose steps go on as the first one's. */
static void move(const struct net_opts *from, const struct net_opts *to)
{
    struct strata_load_opts zeros = STRATA_LOAD_OPTS_INIT;
    struct net a, b;
    struct values *v, *w;

    assert_ok(net_start(&a, from));
    check_facts(&a);
    assert_ok(net_step(&a, 0));
    assert_ok(net_step(&a, 1));
    v = read_all(&a);
    assert_ok(net_start(&b, to));
    assert_ok(strata_engine_load_layers(b.engine, &zeros));
    for (uint32_t t = 0; t < NET_TENSORS; t++)
        for (uint32_t p = 0; p < (b.info[t].group == STRATA_FROZEN ? 1u : 3u); p++) {
            const uint64_t elems = b.info[t].elems, cut = elems / 2;

            assert_ok(strata_engine_write_tensor(b.engine, t, (enum strata_plane)p, 0, cut, STRATA_F32, v->all[t][p]));
            assert_ok(
                strata_engine_write_tensor(b.engine, t, (enum strata_plane)p, cut, elems - cut, STRATA_F32, v->all[t][p] + cut));
        }
    w = read_all(&b);
    assert_memory_equal(v, w, sizeof(*v));
    {
        char here[80], there[80];

        assert_string_equal(net_digest(&a, here), net_digest(&b, there));
    }
    free(v);
    free(w);
    net_close(&a);
    net_close(&b);
}

TEST(values_move_between_engines)
{
    static const char *const precisions[] = {"bf16.enabled=false", "bf16.enabled=true", "fp16.enabled=true"};
    char dirs[160];

    snprintf(dirs, sizeof(dirs), "strata.nvme=[\"%s\"]", scratch_path("drive"));
    scratch_put("drive/.keep", "");
    for (uint32_t p = 0; p < 3; p++) {
        const char *plain[] = {precisions[p]};
        const char *nvme[] = {precisions[p], "zero_optimization.offload_param.device=nvme",
                              "zero_optimization.offload_optimizer.device=nvme", "strata.cache=0", dirs};
        const char *host[] = {precisions[p], "zero_optimization.offload_param.device=cpu",
                              "zero_optimization.offload_optimizer.device=cpu"};
        const struct net_opts here = {.overrides = plain, .override_count = 1}, drive = {.overrides = nvme, .override_count = 5},
                              memory = {.overrides = host, .override_count = 3};

        move(&here, &drive);
        move(&drive, &memory);
        move(&memory, &here);
    }
}

/* As the tensor is stored, or rounded to nearest even. */
TEST(values_are_rounded)
{
    const char *bf16[] = {"bf16.enabled=true"};
    struct net_opts o = {.overrides = bf16, .override_count = 1};
    const float in[4] = {1.00390625f, 1.01171875f, -3.0f, 1e-3f};
    const uint16_t rounded[4] = {0x3f80, 0x3f82, 0xc040, 0x3a83};
    uint16_t out[4];
    float back[4];
    struct net n;

    assert_ok(net_start(&n, &o));
    assert_ok(strata_engine_write_tensor(n.engine, 2, STRATA_PLANE_WEIGHT, 8, 4, STRATA_F32, in)); /* an fp32 bias */
    assert_ok(strata_engine_read_tensor(n.engine, 2, STRATA_PLANE_WEIGHT, 8, 4, STRATA_BF16, out));
    assert_memory_equal(out, rounded, sizeof(out));
    assert_ok(strata_engine_read_tensor(n.engine, 2, STRATA_PLANE_WEIGHT, 8, 4, STRATA_F32, back));
    assert_memory_equal(back, in, sizeof(in));
    assert_ok(strata_engine_write_tensor(n.engine, 1, STRATA_PLANE_WEIGHT, 3, 4, STRATA_F32, in)); /* bf16 with its low half */
    assert_ok(strata_engine_read_tensor(n.engine, 1, STRATA_PLANE_WEIGHT, 3, 4, STRATA_F32, back));
    assert_memory_equal(back, in, sizeof(in));
    assert_ok(strata_engine_write_tensor(n.engine, 1, STRATA_PLANE_WEIGHT, 3, 4, STRATA_BF16, rounded));
    assert_ok(strata_engine_read_tensor(n.engine, 1, STRATA_PLANE_WEIGHT, 3, 4, STRATA_BF16, out));
    assert_memory_equal(out, rounded, sizeof(out));
    net_close(&n);
}

/* A code has 4 bits behind the point: what it stands for, and what is rounded to it again, lie so near. */
static bool is_near(float a, float b, float most)
{
    return fabsf(a - b) <= fabsf(b) / 8 + most / 256;
}

/* In packs with scales: any part is read, and only blocks of 256 that a part touches are written. */
TEST(moments_of_8_bits_have_values)
{
    static const char nvme_all[] = "zero_optimization.offload_param.device=nvme";
    static const char nvme_state[] = "zero_optimization.offload_optimizer.device=nvme";
    static float first[2][W * W], all[W * W], part[W * W];
    char dirs[160];
    const char *overrides[] = {"strata.moments=8bit", nvme_all, nvme_state, "strata.cache=0", dirs};

    snprintf(dirs, sizeof(dirs), "strata.nvme=[\"%s\"]", scratch_path("drive"));
    scratch_put("drive/.keep", "");
    for (uint32_t i = 0; i < 2; i++) {
        struct net_opts o = {.overrides = overrides, .override_count = i == 0 ? 1 : 5};
        struct net n;

        assert_ok(net_start(&n, &o));
        for (uint64_t step = 0; step < 3; step++)
            assert_ok(net_step(&n, step));
        for (uint32_t m = 0; m < 2; m++) {
            const enum strata_plane plane = m == 0 ? STRATA_PLANE_MOMENT1 : STRATA_PLANE_MOMENT2;
            float most = 0, in[60];

            assert_ok(strata_engine_read_tensor(n.engine, 1, plane, 0, W * W, STRATA_F32, all));
            if (i == 0)
                memcpy(first[m], all, sizeof(all));
            assert_memory_equal(all, first[m], sizeof(all)); /* wherever they are */
            for (uint32_t k = 0; k < W * W; k++)
                most = fmaxf(most, fabsf(all[k]));
            assert_true(most > 0);
            assert_ok(strata_engine_read_tensor(n.engine, 1, plane, 300, 700, STRATA_F32, part));
            assert_memory_equal(part, all + 300, 700 * sizeof(float));
            for (uint32_t k = 0; k < 60; k++)
                in[k] = most * (float)(k + 1) / 60;
            assert_ok(strata_engine_write_tensor(n.engine, 1, plane, 500, 60, STRATA_F32, in)); /* of two blocks */
            assert_ok(strata_engine_read_tensor(n.engine, 1, plane, 0, W * W, STRATA_F32, part));
            for (uint32_t k = 0; k < W * W; k++)
                if (k >= 500 && k < 560            ? !is_near(part[k], in[k - 500], most)
                    : k / 256 == 1 || k / 256 == 2 ? !is_near(part[k], all[k], most)
                                                   : part[k] != all[k])
                    fail_msg("moment %u, element %u: %g, was %g", m + 1, k, (double)part[k], (double)all[k]);
        }
        assert_ok(net_step(&n, 3));
        net_close(&n);
    }
}

/* On NVMe the masters are no longer written back: the weights are there, wherever the state is. */
TEST(weights_are_there_after_the_end_of_training)
{
    static const char nvme_all[] = "zero_optimization.offload_param.device=nvme";
    static const char nvme_state[] = "zero_optimization.offload_optimizer.device=nvme";
    char dirs[160];
    const char *overrides[] = {"bf16.enabled=true", nvme_all, nvme_state, "strata.cache=0", dirs};
    float before[2][W], after[2][W];

    snprintf(dirs, sizeof(dirs), "strata.nvme=[\"%s\"]", scratch_path("drive"));
    scratch_put("drive/.keep", "");
    for (uint32_t i = 0; i < 2; i++) {
        struct net_opts o = {.overrides = overrides, .override_count = i == 0 ? 1 : 5};
        struct net n;

        assert_ok(net_start(&n, &o));
        assert_ok(net_step(&n, 0));
        assert_ok(strata_engine_end_training(n.engine));
        assert_ok(strata_engine_read_tensor(n.engine, 1, STRATA_PLANE_WEIGHT, 0, W, STRATA_F32, after[i]));
        assert_refused(strata_engine_read_tensor(n.engine, 1, STRATA_PLANE_MOMENT1, 0, W, STRATA_F32, after[i]), "weights alone");
        assert_refused(strata_engine_write_tensor(n.engine, 1, STRATA_PLANE_WEIGHT, 0, W, STRATA_F32, after[i]), "end_training");
        net_close(&n);
        assert_ok(net_start(&n, &o));
        assert_ok(net_step(&n, 0));
        assert_ok(strata_engine_read_tensor(n.engine, 1, STRATA_PLANE_WEIGHT, 0, W, STRATA_F32, before[i]));
        net_close(&n);
        for (uint32_t k = 0; k < W; k++)
            assert_true(fabsf(after[i][k] - before[i][k]) <= 0x1p-8f * fabsf(before[i][k])); /* a bf16's */
    }
    assert_memory_equal(after[0], after[1], sizeof(after[0]));
    assert_true(memcmp(after[0], before[0], sizeof(after[0])) != 0);
}

TEST(wrong_parts_are_refused)
{
    struct strata_tensor_info info = STRATA_TENSOR_INFO_INIT;
    float v[4] = {0};
    uint32_t index;
    struct net n;

    assert_ok(net_start(&n, NULL));
    assert_refused(strata_engine_get_tensor(n.engine, NET_TENSORS, &info), "11");
    assert_refused(strata_engine_find_tensor(n.engine, "block.9.weight", &index), "block.9.weight");
    assert_refused(strata_engine_read_tensor(n.engine, NET_TENSORS, STRATA_PLANE_WEIGHT, 0, 1, STRATA_F32, v), "11");
    assert_refused(strata_engine_read_tensor(n.engine, 1, STRATA_PLANE_WEIGHT, 0, 0, STRATA_F32, v), "empty");
    assert_refused(strata_engine_read_tensor(n.engine, 1, STRATA_PLANE_WEIGHT, W * W, 1, STRATA_F32, v), "outside");
    assert_refused(strata_engine_read_tensor(n.engine, 1, STRATA_PLANE_WEIGHT, 1, UINT64_MAX, STRATA_F32, v), "outside");
    assert_refused(strata_engine_read_tensor(n.engine, 1, STRATA_PLANE_WEIGHT, 0, 1, STRATA_NF4, v), "dtype");
    assert_refused(strata_engine_read_tensor(n.engine, 1, STRATA_PLANE_WEIGHT, 0, 1, STRATA_F32, (char *)v + 1), "misaligned");
    assert_refused(strata_engine_read_tensor(n.engine, 1, STRATA_PLANE_WEIGHT, 0, 1, STRATA_F32, NULL), "values");
    assert_refused(strata_engine_read_tensor(n.engine, 1, (enum strata_plane)3, 0, 1, STRATA_F32, v), "plane");
    assert_refused(strata_engine_write_tensor(n.engine, 3, STRATA_PLANE_MOMENT1, 0, 1, STRATA_F32, v), "block.0.scale");
    net_close(&n);
}

/* --- models of strata's own --- */

TEST(a_decoder_has_tensors_by_name)
{
    struct run r = {0};
    struct strata_tensor_info info = STRATA_TENSOR_INFO_INIT;
    float was[4], is[4];
    uint32_t index;

    assert_ok(run_open(&r, run_tokens("a.bin", 1201)));
    assert_ok(run_start(&r));
    assert_ok(strata_engine_find_tensor(r.engine, "transformer.h.1.attn.c_attn.weight", &index));
    assert_ok(strata_engine_get_tensor(r.engine, index, &info));
    assert_int_equal(info.rank, 2);
    assert_ok(strata_engine_read_tensor(r.engine, index, STRATA_PLANE_WEIGHT, 5, 4, STRATA_F32, was));
    assert_ok(run_train(&r, 0, 1, NULL));
    assert_ok(strata_engine_read_tensor(r.engine, index, STRATA_PLANE_WEIGHT, 5, 4, STRATA_F32, is));
    assert_true(memcmp(was, is, sizeof(was)) != 0);
    assert_ok(strata_engine_write_tensor(r.engine, index, STRATA_PLANE_WEIGHT, 5, 4, STRATA_F32, was));
    assert_ok(strata_engine_read_tensor(r.engine, index, STRATA_PLANE_WEIGHT, 5, 4, STRATA_F32, is));
    assert_memory_equal(was, is, sizeof(was));
    assert_ok(strata_engine_find_tensor(r.engine, "transformer.wte.weight", &index)); /* cut into pages by rows */
    assert_ok(strata_engine_get_tensor(r.engine, index, &info));
    {
        float *all = malloc(info.elems * sizeof(*all));

        assert_non_null(all);
        assert_ok(strata_engine_read_tensor(r.engine, index, STRATA_PLANE_WEIGHT, 0, info.elems, STRATA_F32, all));
        assert_ok(strata_engine_read_tensor(r.engine, index, STRATA_PLANE_WEIGHT, info.elems - 4, 4, STRATA_F32, is));
        assert_memory_equal(all + info.elems - 4, is, sizeof(is));
        free(all);
    }
    assert_refused(strata_engine_begin(r.engine, NULL, NULL), "strata_engine_step");
    assert_refused(strata_engine_load_layers(r.engine, NULL), "strata_engine_load");
    run_close(&r);
}

TEST(a_model_of_layers_is_no_decoder)
{
    struct strata_sampling sampling = STRATA_SAMPLING_INIT;
    struct strata_export *out = NULL;
    struct strata_data *data = NULL;
    const char *tokens = run_tokens("a.bin", 1201);
    int32_t ids[8] = {0};
    struct net n;

    assert_ok(net_start(&n, NULL));
    assert_refused(strata_data_open(&data, n.model, &tokens, 1), "layers");
    assert_refused(strata_data_open_texts(&data, n.model, &tokens, 1, NULL), "layers");
    assert_refused(strata_model_sampling(n.model, &sampling, NULL), "layers");
    assert_refused(strata_export_open(&out, n.model, scratch_path("out"), NULL), "layers");
    assert_refused(strata_engine_step(n.engine, ids, ids, NULL, NULL), "layers");
    net_close(&n);
}

/* --- files --- */

/* A safetensors file of some of the net's tensors, under names with a prefix. */
static void put_file(const char *name, const char *prefix, uint32_t first, uint32_t end, const char *more)
{
    static float values[NET_WIDTH * NET_WIDTH];
    const char *path = scratch_path(name);
    char header[4096] = "{", entry[256];
    uint64_t at = 0, length;
    struct net n;
    FILE *file;

    assert_ok(net_start(&n, NULL));
    for (uint32_t t = first; t < end; t++) {
        const struct strata_tensor_info *i = &n.info[t];

        if (i->rank == 2)
            snprintf(entry, sizeof(entry), "%s\"%s%s\":{\"dtype\":\"F32\",\"shape\":[%u,%u],\"data_offsets\":[%u,%u]}",
                     t > first ? "," : "", prefix, i->name, (unsigned)i->shape[0], (unsigned)i->shape[1], (unsigned)at,
                     (unsigned)(at + 4 * i->elems));
        else
            snprintf(entry, sizeof(entry), "%s\"%s%s\":{\"dtype\":\"F32\",\"shape\":[%u],\"data_offsets\":[%u,%u]}",
                     t > first ? "," : "", prefix, i->name, (unsigned)i->shape[0], (unsigned)at, (unsigned)(at + 4 * i->elems));
        strcat(header, entry);
        at += 4 * i->elems;
    }
    if (more != NULL) {
        snprintf(entry, sizeof(entry), ",\"%s\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[%u,%u]}", more, (unsigned)at,
                 (unsigned)at);
        strcat(header, entry);
    }
    strcat(header, "}");
    length = strlen(header);
    file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(&length, 8, 1, file), 1);
    assert_int_equal(fwrite(header, length, 1, file), 1);
    for (uint32_t t = first; t < end; t++) {
        assert_ok(net_fill(NULL, t, 0, n.info[t].elems, values));
        assert_int_equal(fwrite(values, 4 * n.info[t].elems, 1, file), 1);
    }
    assert_int_equal(fclose(file), 0);
    net_close(&n);
}

static void refused(struct net *n, const struct strata_load_opts *o, const char *part)
{
    const strata_status st = strata_engine_load_layers(n->engine, o);

    if (st != STRATA_E_INPUT || strstr(strata_last_error(), part) == NULL)
        fail_msg("%s: \"%s\", not E_INPUT and \"%s\"", strata_status_text(st), strata_last_error(), part);
}

TEST(weights_come_from_files)
{
    struct strata_load_opts o = STRATA_LOAD_OPTS_INIT;
    char first[64], second[64], prefixed[64], odd[64], digest[80], here[80];
    const char *both[2] = {first, second}, *twice[2] = {first, first}, *one[1] = {prefixed}, *strange[1] = {odd},
               *none[1] = {"/nowhere.safetensors"};
    uint32_t missing = 9, unexpected = 9;
    struct net n;

    put_file("first.safetensors", "", 0, 4, NULL);
    put_file("second.safetensors", "", 4, NET_TENSORS, NULL);
    put_file("prefixed.safetensors", "model.", 0, NET_TENSORS, NULL);
    put_file("odd.safetensors", "", 0, NET_TENSORS, "rope.inv_freq");
    snprintf(first, sizeof(first), "%s", scratch_path("first.safetensors"));
    snprintf(second, sizeof(second), "%s", scratch_path("second.safetensors"));
    snprintf(prefixed, sizeof(prefixed), "%s", scratch_path("prefixed.safetensors"));
    snprintf(odd, sizeof(odd), "%s", scratch_path("odd.safetensors"));
    assert_ok(net_start(&n, NULL));
    net_digest(&n, digest);
    o.files = both;
    o.file_count = 2;
    o.missing = &missing;
    o.unexpected = &unexpected;
    assert_ok(strata_engine_load_layers(n.engine, &o));
    assert_string_equal(net_digest(&n, here), digest);
    assert_true(missing == 0 && unexpected == 0);
    o.file_count = 1;
    refused(&n, &o, "7 of the model's 11 tensors are missing, the first is block.1.weight");
    o.allow_missing = true;
    o.fill = net_fill;
    assert_ok(strata_engine_load_layers(n.engine, &o));
    assert_string_equal(net_digest(&n, here), digest);
    assert_int_equal(missing, 7);
    o.files = twice;
    o.file_count = 2;
    refused(&n, &o, "twice");
    o.files = one;
    o.file_count = 1;
    o.allow_missing = false;
    refused(&n, &o, "missing");
    o.prefix = "model.";
    assert_ok(strata_engine_load_layers(n.engine, &o));
    assert_string_equal(net_digest(&n, here), digest);
    o.prefix = NULL;
    o.files = strange;
    refused(&n, &o, "1 tensors are unexpected, the first is rope.inv_freq");
    o.allow_unexpected = true;
    assert_ok(strata_engine_load_layers(n.engine, &o));
    assert_int_equal(unexpected, 1);
    o.files = none;
    refused(&n, &o, "/nowhere.safetensors");
    net_close(&n);
}

/* --- models that cannot be --- */

static strata_status fail_in_bias(void *ctx, uint32_t tensor, uint64_t first, uint64_t elems, float *values)
{
    return tensor == 5 ? STRATA_E_IO : net_fill(ctx, tensor, first, elems, values);
}

/* Only a status comes back: the sentence names what was asked for. */
TEST(a_fill_that_fails_is_named)
{
    struct strata_load_opts o = STRATA_LOAD_OPTS_INIT;
    struct net n;

    assert_ok(net_start(&n, NULL));
    o.fill = fail_in_bias;
    assert_status(strata_engine_load_layers(n.engine, &o), STRATA_E_IO, "a fill that fails");
    if (strstr(strata_last_error(), "fill: block.1.bias, elements 0 to 41: I/O error") == NULL)
        fail_msg("%s", strata_last_error());
    net_close(&n);
}

/* Of what a model of layers has: no adapters, no length of sequences. */
TEST(what_does_not_fit_is_told_in_its_words)
{
    const char *small[] = {"strata.host_memory=2K", "strata.device_memory=64M"};
    struct net_opts o = {.overrides = small, .override_count = 2, .caller_host_bytes = UINT64_C(1) << 30};
    struct net n;

    assert_status(net_open(&n, &o), STRATA_E_NOFIT, "2 KiB");
    if (strstr(strata_last_error(), "or lower caller_host_bytes, which is 1.00 GiB") == NULL ||
        strstr(strata_last_error(), "adapters") != NULL || strstr(strata_last_error(), "seq_len") != NULL)
        fail_msg("%s", strata_last_error());
    net_close(&n);
}

TEST(wrong_layers_are_refused)
{
    const struct strata_layer_tensor good = {.name = "a", .rank = 1, .shape = {4}};
    struct strata_layer_tensor t = good, pair[2] = {good, good};
    struct strata_layer l = {.name = "l", .tensors = &t, .tensor_count = 1}, two[2];
    struct strata_layers_opts o = STRATA_LAYERS_OPTS_INIT;
    struct strata_config_opts c = STRATA_CONFIG_OPTS_INIT;
    struct strata_config *config = NULL;
    struct strata_model *m = NULL;

    c.text = net_config;
    assert_ok(strata_config_open(&config, &c));
    o.layers = &l;
    assert_refused(strata_layers_open(&m, config, &o), "layers");
    o.layer_count = 1;
    t.name = NULL;
    assert_refused(strata_layers_open(&m, config, &o), "no name");
    t = good;
    t.shape[0] = 0;
    assert_refused(strata_layers_open(&m, config, &o), "tensor a has shape 0");
    t = good;
    t.rank = 2;
    t.shape[1] = UINT64_C(1) << 47;
    assert_refused(strata_layers_open(&m, config, &o),
                   "shape 4x140737488355328: dimensions are 1 or more, elements at most 2^48");
    t = good;
    t.rank = 9;
    assert_refused(strata_layers_open(&m, config, &o), "tensor a has rank 9: at most 8");
    t = good;
    l.boundary_bytes = (UINT64_C(1) << 50) + 1;
    assert_refused(strata_layers_open(&m, config, &o), "boundary_bytes 1125899906842625: at most 2^50");
    l.boundary_bytes = 0;
    l.forward_flops = -1;
    assert_refused(strata_layers_open(&m, config, &o), "forward_flops -1");
    l.forward_flops = 0;
    t = good;
    t.group = 1;
    assert_refused(strata_layers_open(&m, config, &o), "parameter group 1");
    t = good;
    t.dtype = STRATA_BF16;
    assert_refused(strata_layers_open(&m, config, &o), "bf16");
    t = good;
    t.group = STRATA_FROZEN;
    assert_refused(strata_layers_open(&m, config, &o), "nothing to train");
    t = good;
    l.tensor_count = 0;
    assert_refused(strata_layers_open(&m, config, &o), "layer l has no tensor");
    l.tensor_count = 1;
    l.resident = true;
    l.boundary_bytes = 8;
    assert_refused(strata_layers_open(&m, config, &o), "resident");
    l.resident = false;
    l.boundary_bytes = 0;
    l.tensors = pair;
    l.tensor_count = 2;
    assert_refused(strata_layers_open(&m, config, &o), "two tensors are called a");
    l.tensor_count = 1;
    two[0] = two[1] = l;
    o.layers = two;
    o.layer_count = 2;
    assert_refused(strata_layers_open(&m, config, &o), "two layers are called l");
    o.layers = &l;
    o.layer_count = 1;
    o.use = STRATA_USE_GENERATE;
    assert_refused(strata_layers_open(&m, config, &o), "use");
    strata_config_close(config);
}

TEST_MAIN(argc, argv)
{
    strata_log_configure(NULL, NULL, STRATA_LOG_ERROR);
    return test_run(scratch_create, scratch_remove);
}
