/* tests/cli/test_wrappers.c - models of more than text, of which the text model is used, and scaled positions: transformers'
 * losses (tests/golden/wrappers and rope, by tools/make_golden_wrappers.py), and what is written of the rest. */
#include "core/json/json.h"
#include "tests/cli/program.h"
#include "tests/cli/workplace.h"
#include "tests/common/test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WRAPPERS "tests/golden/wrappers"
#define TOKENS   "tests/golden/families/llama_linear/tokens.bin"
#define TRAIN                                                                                                                    \
    "train --model " WRAPPERS "/gemma3 --data " TOKENS " --seq-len 32 --quiet --machine {w}/machine.json --set "                 \
    "bf16.enabled=true "

static double number_in(const st_json *object, const char *key)
{
    const st_json *n = st_json_get(object, key);

    assert_non_null(n);
    return st_json_number(n);
}

static void expect_loss(const struct workplace *w, const char *command, double want)
{
    struct program p;
    const char *at;
    double loss;

    workplace_run_ok(w, &p, command);
    at = strstr(p.out, "loss ");
    assert_non_null(at);
    loss = strtod(at + 5, NULL);
    if (!(fabs(loss - want) <= 1e-6 * want))
        fail_msg("%s: loss %.7f, transformers has %.7f", command, loss, want);
    program_free(&p);
}

TEST(their_text_models_have_transformers_losses)
{
    static const char *const names[] = {"gemma3",          "llava",    "llava_next", "llava_next_video", "vipllava",
                                        "llava_onevision", "got_ocr2", "internvl",   "mistral3",         "idefics3",
                                        "smolvlm",         "qwen2_vl", "qwen2_5_vl", "qwen3_vl"};
    char path[128], command[256];

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        st_json *golden;

        snprintf(path, sizeof(path), WRAPPERS "/%s/golden.json", names[i]);
        assert_int_equal(st_json_parse_file(&golden, path, 1 << 20), 0);
        snprintf(command, sizeof(command), "eval --model " WRAPPERS "/%s --data " TOKENS " --seq-len 32 --set bf16.enabled=false",
                 names[i]);
        expect_loss(*state, command, number_in(golden, "loss"));
        if (st_json_get(golden, "adapted") != NULL) {
            snprintf(path, sizeof(path), " --adapter " WRAPPERS "/%s/adapter", names[i]);
            strcat(command, path);
            expect_loss(*state, command, number_in(golden, "adapted"));
        }
        st_json_free(golden);
    }
}

/* Files leave max_position_embeddings at what the model was first trained for. */
TEST(scaled_positions_reach_over_the_original_context)
{
    static const char *const names[] = {"yarn", "yarn5", "linear", "dynamic"};
    const struct workplace *w = *state;
    FILE *weights = fopen("tests/golden/families/qwen2_layers/model.safetensors", "rb");
    static char bytes[1 << 20];
    const size_t count = weights != NULL ? fread(bytes, 1, sizeof(bytes), weights) : 0;
    char path[128], command[256];
    st_json *golden;

    assert_true(count > 0 && fclose(weights) == 0);
    assert_int_equal(st_json_parse_file(&golden, "tests/golden/rope/golden.json", 1 << 20), 0);
    workplace_make_dir(w, "rope");
    workplace_write(w, "rope/model.safetensors", bytes, count);
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        const st_json *row = st_json_get(golden, names[i]);
        FILE *config;
        char text[4096];
        size_t length;

        snprintf(path, sizeof(path), "tests/golden/rope/%s.json", names[i]);
        config = fopen(path, "rb");
        assert_non_null(config);
        length = fread(text, 1, sizeof(text), config);
        assert_int_equal(fclose(config), 0);
        workplace_write(w, "rope/config.json", text, length);
        snprintf(command, sizeof(command), "eval --model {w}/rope --data " TOKENS " --seq-len %d --set bf16.enabled=false",
                 (int)number_in(row, "seq"));
        expect_loss(w, command, number_in(row, "loss"));
    }
    st_json_free(golden);
}

static void refused(const struct workplace *w, const char *command, const char *says)
{
    struct program p;

    workplace_run(w, &p, command);
    if (p.code == 0 || strstr(p.err, says) == NULL)
        fail_msg("strata %s: exit code %d: %s", command, p.code, p.err);
    program_free(&p);
}

/* The last one written was dynamic. */
TEST(lengths_that_scaling_does_not_reach_name_its_key)
{
    refused(*state, "eval --model {w}/rope --data " TOKENS " --seq-len 129",
            "128 (\"max_position_embeddings\": beyond it \"dynamic\" rotary scaling is not supported)");
}

static void same(const struct workplace *w, const char *a, const char *b)
{
    size_t bytes[2];
    char *text[2] = {workplace_read(w, a, &bytes[0]), workplace_read(w, b, &bytes[1])};

    if (bytes[0] != bytes[1] || memcmp(text[0], text[1], bytes[0]) != 0)
        fail_msg("%s and %s differ", a, b);
    free(text[0]);
    free(text[1]);
}

static void run(const struct workplace *w, const char *command)
{
    struct program p;

    workplace_run_ok(w, &p, command);
    program_free(&p);
}

/* A run, one that goes on from a checkpoint, an export, and a run from a checkpoint write the same file: text model and the rest.
 */
TEST(what_is_written_holds_all_of_the_model)
{
    const struct workplace *w = *state;
    struct program p;

    workplace_run_ok(w, &p, TRAIN "--max-steps 2 --out {w}/whole --save {w}/ck --save-every 1");
    assert_non_null(strstr(p.err, "gemma3: only its text model is used; 34 other tensors"));
    program_free(&p);
    run(w, "export {w}/ck --out {w}/exported");
    same(w, "whole/model.safetensors", "exported/model.safetensors");
    same(w, "whole/config.json", "exported/config.json");
    run(w, TRAIN "--max-steps 1 --out {w}/half --save {w}/ck2");
    run(w, TRAIN "--max-steps 2 --out {w}/resumed --save {w}/ck2 --resume auto");
    same(w, "whole/model.safetensors", "resumed/model.safetensors");
    run(w, "train --model {w}/ck --data " TOKENS " --seq-len 32 --quiet --machine {w}/machine.json --max-steps 1 --lr 0 --set "
           "bf16.enabled=true --out {w}/again");
    same(w, "whole/model.safetensors", "again/model.safetensors");
    run(w, "generate --model {w}/whole --prompt-tokens 5,6,7 --max-tokens 4");
    run(w, "digest {w}/whole");
}

TEST(adapters_are_named_as_in_peft)
{
    const struct workplace *w = *state;
    struct program p;
    size_t bytes;
    char *text;

    workplace_run_ok(w, &p,
                     TRAIN "--max-steps 1 --out {w}/adapter --save {w}/ck3 "
                           "--set 'strata.lora={\"r\":2,\"target_modules\":[\"q_proj\",\"fc1\"]}'");
    assert_non_null(
        strstr(p.err, "names in the adapter's settings that fit no module of the text model of gemma3, and are not used: 1"));
    program_free(&p);
    text = workplace_read(w, "adapter/adapter_model.safetensors", &bytes);
    assert_non_null(memmem(text, bytes, "base_model.model.model.language_model.layers.0.self_attn.q_proj.lora_A.weight", 76));
    free(text);
    assert_false(workplace_exists(w, "ck3/step-1/model/beside.safetensors"));
    run(w, "export --merge --model " WRAPPERS "/gemma3 --adapter {w}/adapter --out {w}/merged");
    run(w, "export --merge --model " WRAPPERS "/gemma3 --adapter {w}/ck3 --out {w}/merged2");
    same(w, "merged/model.safetensors", "merged2/model.safetensors");
    workplace_run_ok(w, &p, "eval --model {w}/merged --data " TOKENS " --seq-len 32");
    program_free(&p);
}

TEST_GROUP(workplace_setup, workplace_teardown);
