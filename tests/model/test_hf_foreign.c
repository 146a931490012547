/* tests/model/test_hf_foreign.c - directories that others made: spellings, dtypes, shards, every refusal. */
#include "hf_rig.h"
#include "tests/common/whole_file.h"
#include <math.h>
#include <stdio.h>
#include <unistd.h>

/* Every spelling in every dtype, with a head that is tied or a buffer of five elements beside the model's own
 * tensors; the model is taken. */
static void check_spellings(struct st_model *m, const char *buffer)
{
    static const strata_dtype dtypes[] = {STRATA_F32, STRATA_BF16, STRATA_F16};

    scratch_open();
    for (uint32_t i = 0; i < 6; i++) {
        struct foreign x = all_of(m);

        x.dtype = dtypes[i % 3];
        x.spelling = i / 3 == 0 ? SPELL_FULL : SPELL_BARE;
        x.extra_name = i % 2 == 0 ? "lm_head.weight" : buffer;
        x.extra_rank = i % 2 == 0 ? 2 : 1;
        x.extra_shape[0] = i % 2 == 0 ? m->config.vocab : 5;
        x.extra_shape[1] = m->config.hidden;
        x.extra_is_first = true;
        write_foreign(m, scratch_path("model.safetensors"), &x);
        check_values(m, scratch_dir);
    }
    scratch_close();
    st_model_destroy(m);
}

TEST(test_foreign_spellings_and_dtypes)
{
    check_spellings(tiny_model(STRATA_F32), "h.0.attn.bias");
}

/* Old files hold frequencies; LlamaModel's own lack the prefix; a tied head may be there. */
TEST(test_llama_spellings)
{
    const struct st_model_config config = tiny_llama_config();

    check_spellings(tiny_model_of(&config, STRATA_F32), "model.layers.0.self_attn.rotary_emb.inv_freq");
}

TEST(test_llama_faults)
{
    struct st_model_config config = tiny_llama_config();
    struct st_model *tied = tiny_model_of(&config, STRATA_F32), *untied;
    struct st_hf_reader *r = NULL;
    struct foreign x = all_of(tied);

    config.untied = true;
    untied = tiny_model_of(&config, STRATA_F32);
    scratch_open();
    write_foreign(tied, scratch_path("model.safetensors"), &x);
    assert_refused(st_hf_reader_open(&r, untied, scratch_dir), STRATA_E_INPUT, "tensor lm_head.weight is missing");
    x.extra_name = "model.layers.0.self_attn.q_proj.bias";
    x.extra_rank = 1;
    x.extra_shape[0] = 32;
    write_foreign(tied, scratch_path("model.safetensors"), &x);
    assert_refused(st_hf_reader_open(&r, tied, scratch_dir), STRATA_E_INPUT,
                   "q_proj.bias has no place in a model of this config");
    assert_null(r);
    scratch_close();
    st_model_destroy(tied);
    st_model_destroy(untied);
}

/* The versions of transformers differ in which of two matrices counts: there must be but one. */
TEST(test_a_tied_head_is_the_table)
{
    static const uint32_t parts[] = {0, 3, 7}; /* sevenths before the last byte */
    const struct st_model_config config = tiny_llama_config();
    struct st_model *m = tiny_model_of(&config, STRATA_F32);
    const long bytes = (long)(m->tensors[0].elems * sizeof(float));
    struct st_hf_reader *r = NULL;
    struct foreign x = all_of(m);

    scratch_open();
    x.extra_name = "lm_head.weight";
    x.extra_rank = 2;
    memcpy(x.extra_shape, m->tensors[0].shape, sizeof(x.extra_shape));
    x.extra_is_first = true;
    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
        FILE *f;

        write_foreign(m, scratch_path("model.safetensors"), &x);
        check_values(m, scratch_dir);
        f = fopen(scratch_path("model.safetensors"), "r+b");
        assert_non_null(f);
        assert_int_equal(fseek(f, -1 - (bytes - 1) / 7 * (long)parts[i], SEEK_END), 0); /* the head is last */
        assert_int_equal(fputc(0x77, f), 0x77);
        assert_int_equal(fclose(f), 0);
        assert_refused(st_hf_reader_open(&r, m, scratch_dir), STRATA_E_INPUT,
                       "tensor lm_head.weight differs from model.embed_tokens.weight, to which config.json ties it");
        assert_null(r);
    }
    scratch_close();
    st_model_destroy(m);
}

/* 2 is infinite or not a number, 1 a subnormal, 0 normal: all 65536 halves against their definition. */
TEST(test_every_half_is_widened_exactly)
{
    const struct st_model_config config = {
        .name = "halves", .blocks = 1, .hidden = 256, .heads = 1, .ffn = 8, .vocab = 256, .context = 8, .norm_eps = 1e-5f};
    const struct st_model_batch batch = {.micro_batch = 1, .seq = 8, .grad_accum = 1, .dtype = STRATA_F32};
    float *values = malloc(65536 * sizeof(*values));
    struct st_weight_source source;
    struct st_hf_reader *r;
    struct st_model *m;
    struct foreign x;
    uint64_t bytes;
    FILE *f;

    assert_non_null(values);
    scratch_open();
    assert_ok(st_model_create(&m, &config, &batch));
    x = all_of(m);
    x.dtype = STRATA_F16;
    write_foreign(m, scratch_path("model.safetensors"), &x);
    f = fopen(scratch_path("model.safetensors"), "r+b");
    assert_non_null(f);
    assert_int_equal(fread(&bytes, 8, 1, f), 1);
    assert_int_equal(fseek(f, (long)bytes + 8, SEEK_SET), 0); /* the table is first */
    for (uint32_t i = 0; i < 65536; i++)
        fwrite(&(uint16_t){(uint16_t)i}, 2, 1, f);
    fclose(f);
    assert_ok(st_hf_reader_open(&r, m, scratch_dir));
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
    scratch_close();
    free(values);
}

/* Writers keep one of two names of the same matrix, and count both in an index. */
TEST(test_a_tied_head_has_one_matrix)
{
    struct st_model_config config = tiny_llama_config();
    struct st_model *m = tiny_model_of(&config, STRATA_F32), *untied;
    struct st_hf_reader *r = NULL;
    struct foreign x = all_of(m);
    FILE *f;

    scratch_open();
    x.skip = m->tensors[0].name;
    x.extra_name = "lm_head.weight";
    x.extra_rank = 2;
    memcpy(x.extra_shape, m->tensors[0].shape, sizeof(x.extra_shape));
    x.extra_is_first = true;
    write_foreign(m, scratch_path("model.safetensors"), &x);
    check_values(m, scratch_dir);

    x = all_of(m);
    write_foreign(m, scratch_path("one.safetensors"), &x);
    assert_int_equal(unlink(scratch_path("model.safetensors")), 0);
    f = fopen(scratch_path("model.safetensors.index.json"), "w");
    assert_non_null(f);
    fprintf(f, "{\"weight_map\":{\"lm_head.weight\":\"one.safetensors\"");
    for (uint32_t i = 0; i < m->tensor_count; i++)
        fprintf(f, ",\"%s\":\"one.safetensors\"", m->tensors[i].name);
    fprintf(f, "}}");
    assert_int_equal(fclose(f), 0);
    check_values(m, scratch_dir);
    config.untied = true;
    untied = tiny_model_of(&config, STRATA_F32);
    assert_refused(st_hf_reader_open(&r, untied, scratch_dir), STRATA_E_INPUT,
                   "names tensor lm_head.weight in one.safetensors, which does not hold it");
    assert_int_equal(rename(scratch_path("one.safetensors"), scratch_path("model.safetensors")), 0);
    assert_refused(st_hf_reader_open(&r, untied, scratch_dir), STRATA_E_INPUT,
                   "tensor lm_head.weight is missing: if the head is the table, set \"tie_word_embeddings\" to true");
    scratch_close();
    st_model_destroy(m);
    st_model_destroy(untied);
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

TEST(test_shards)
{
    struct st_model *m = tiny_model(STRATA_F32);
    struct st_hf_reader *r = NULL;
    struct foreign one = all_of(m), two = all_of(m);
    static const char *const names[] = {"", ".", "..", "/one.safetensors", "../one.safetensors", "one.safetensors/"};
    const char *index;

    scratch_open();
    index = scratch_path("model.safetensors.index.json");
    one.end = two.first = 9;
    write_foreign(m, scratch_path("one.safetensors"), &one);
    write_foreign(m, scratch_path("two.safetensors"), &two);
    write_index(index, m, 9, "two.safetensors");
    check_values(m, scratch_dir);
    write_index(index, m, 10, "two.safetensors");
    assert_refused(st_hf_reader_open(&r, m, scratch_dir), STRATA_E_INPUT, "says otherwise");
    write_index(index, m, 9, "three.safetensors");
    assert_refused(st_hf_reader_open(&r, m, scratch_dir), STRATA_E_INPUT, "three.safetensors: No such file");
    write_index(index, m, 9, "../two.safetensors");
    assert_refused(st_hf_reader_open(&r, m, scratch_dir), STRATA_E_INPUT, "not a file name");
    one.end = 10; /* one tensor in both */
    write_foreign(m, scratch_path("one.safetensors"), &one);
    write_index(index, m, 9, "two.safetensors");
    assert_refused(st_hf_reader_open(&r, m, scratch_dir), STRATA_E_INPUT, "says otherwise");
    one.end = 8; /* one in neither */
    write_foreign(m, scratch_path("one.safetensors"), &one);
    assert_refused(st_hf_reader_open(&r, m, scratch_dir), STRATA_E_INPUT, "which does not hold it");
    write_file(index, "{}", 2);
    assert_refused(st_hf_reader_open(&r, m, scratch_dir), STRATA_E_INPUT, "weight_map");
    write_file(index, "{\"weight_map\":{}}", 17);
    assert_refused(st_hf_reader_open(&r, m, scratch_dir), STRATA_E_INPUT, "empty");
    for (uint32_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) { /* what no file beside it can be called */
        char text[64];

        snprintf(text, sizeof(text), "{\"weight_map\":{\"a\":\"%s\"}}", names[i]);
        write_file(index, text, strlen(text));
        assert_refused(st_hf_reader_open(&r, m, scratch_dir), STRATA_E_INPUT, "is not a file name");
    }
    write_file(index, "{\"weight_map\":{\"a\":1}}", 22);
    assert_refused(st_hf_reader_open(&r, m, scratch_dir), STRATA_E_INPUT, "not a file name");
    write_file(index, "nonsense", 8);
    assert_refused(st_hf_reader_open(&r, m, scratch_dir), STRATA_E_INPUT, "safetensors index");
    assert_null(r);
    scratch_close();
    st_model_destroy(m);
}

TEST(test_faults_name_tensor_and_file)
{
    struct st_model *m = tiny_model(STRATA_F32);
    const struct {
        struct foreign x;
        const char *part;
    } rows[] = {
        {{.skip = "transformer.h.1.ln_2.bias"}, "tensor transformer.h.1.ln_2.bias is missing"},
        {{.extra_name = "h.2.ln_1.weight", .extra_shape = {24}, .extra_rank = 1}, "h.2.ln_1.weight has no place"},
        {{.extra_name = "ln_f.bias", .extra_shape = {24}, .extra_rank = 1}, "tensor ln_f.bias occurs twice"},
        {{.extra_name = "lm_head.weight", .extra_shape = {132, 24}, .extra_rank = 2},
         "shape [132, 24], the model's config wants [131, 24]"},
        {{.skip = "transformer.h.0.ln_1.bias", .extra_name = "h.0.ln_1.bias", .extra_shape = {0}, .extra_rank = 1},
         "h.0.ln_1.bias has shape [0], ZeRO-3's placeholder: save with stage3_gather_16bit_weights_on_model_save true"},
        {{.skip = "transformer.h.0.mlp.c_fc.weight", .extra_name = "h.0.mlp.c_fc.weight", .extra_shape = {1}, .extra_rank = 1},
         "has shape [1], ZeRO-3's placeholder"},
        {{.turn = "transformer.h.0.mlp.c_fc.weight"}, "c_fc.weight has shape [40, 24], the model's config wants [24, 40]"},
    };
    struct st_hf_reader *r = NULL;
    size_t bytes;
    char *text;

    scratch_open();
    assert_refused(st_hf_reader_open(&r, m, scratch_dir), STRATA_E_INPUT, "neither model.safetensors nor");
    assert_int_equal(symlink("model.safetensors", scratch_path("model.safetensors")), 0);
    assert_refused(st_hf_reader_open(&r, m, scratch_dir), STRATA_E_INPUT, "model.safetensors: Too many levels");
    assert_int_equal(unlink(scratch_path("model.safetensors")), 0);
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct foreign x = rows[i].x;

        x.end = m->tensor_count;
        x.dtype = STRATA_F32;
        write_foreign(m, scratch_path("model.safetensors"), &x);
        assert_refused(st_hf_reader_open(&r, m, scratch_dir), STRATA_E_INPUT, rows[i].part);
        assert_non_null(strstr(strata_last_error(), scratch_dir));
    }
    /* truncated, then a weight in a dtype that no weight has */
    text = read_file(scratch_path("model.safetensors"), &bytes);
    write_file(scratch_path("model.safetensors"), text, bytes - 1);
    assert_refused(st_hf_reader_open(&r, m, scratch_dir), STRATA_E_INPUT, "leave the file");
    memcpy(strstr(text + 8, "\"F32\""), "\"I32\"", 5);
    write_file(scratch_path("model.safetensors"), text, bytes);
    assert_refused(st_hf_reader_open(&r, m, scratch_dir), STRATA_E_INPUT, "has dtype I32");
    free(text);
    assert_null(r);
    scratch_close();
    st_model_destroy(m);
}

/* A copy of a directory with a tensor of another name, which is as long. */
static void rename_tensor(const char *dir, const char *old, const char *new)
{
    char path[256], *bytes, *at;
    size_t size;

    assert_int_equal(strlen(old), strlen(new));
    snprintf(path, sizeof(path), "%s/model.safetensors", dir);
    bytes = read_file(path, &size);
    at = memmem(bytes, size, old, strlen(old));
    assert_non_null(at);
    memcpy(at, new, strlen(new));
    write_file(scratch_path("model.safetensors"), bytes, size);
    free(bytes);
}

/* What a file has for experts is what errors call by name. */
TEST_SETUP(test_faults_of_stacked_experts_name_the_stack, scratch_begin, scratch_end)
{
    static const char dir[] = "tests/golden/experts/gpt_oss";
    static const struct {
        const char *old, *new, *says;
    } rows[] = {
        {"model.layers.1.mlp.experts.down_proj\"", "xxxxxxxxxxxxxxxx.rotary_emb.inv_freq\"",
         "tensor model.layers.1.mlp.experts.down_proj is missing"},
        {"model.layers.0.mlp.experts.gate_up_proj\"", "model.layers.0.mlp..gate_up_proj_blocks\"",
         "gate_up_proj_blocks is in mxfp4, which is not read: with its \"quantization_config\" in config.json, in transformers, "
         "from_pretrained("},
    };
    const struct st_model_batch batch = {.micro_batch = 1, .seq = 1, .grad_accum = 1, .dtype = STRATA_F32};
    struct st_model_config config = {0};
    struct st_hf_reader *r;
    struct st_model *m;

    assert_ok(st_model_config_read(&config, dir));
    assert_ok(st_model_create(&m, &config, &batch));
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        rename_tensor(dir, rows[i].old, rows[i].new);
        assert_refused(st_hf_reader_open(&r, m, scratch_dir), STRATA_E_INPUT, rows[i].says);
    }
    st_model_destroy(m);
}
