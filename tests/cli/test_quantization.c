/* tests/cli/test_quantization.c - a model whose linear weights are stored in NF4: evaluated and continued, wherever it lies; and
 * adapters beside it, which go on from a checkpoint as if nothing had happened. */
#include "tests/cli/program.h"
#include "tests/cli/workplace.h"
#include "tests/common/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static double loss_of(const struct workplace *w, const char *model, const char *quantization, const char *options)
{
    struct program p;
    char line[512];
    const char *at;
    double loss;

    snprintf(line, sizeof(line),
             "eval --model %s --data {w}/good.bin --seq-len 32 --json --set "
             "strata.quantization=%s %s",
             model, quantization, options);
    workplace_run_ok(w, &p, line);
    at = strstr(p.out, "\"loss\":");
    assert_non_null(at);
    loss = strtod(at + strlen("\"loss\":"), NULL);
    program_free(&p);
    return loss;
}

TEST(losses_change_little_and_never_with_the_place)
{
    const struct workplace *w = *state;
    const double none = loss_of(w, "nano-llama", "none", ""), nf4 = loss_of(w, "nano-llama", "nf4", ""),
                 twice = loss_of(w, "nano-llama", "nf4-double", "");

    assert_true(nf4 != none && twice != none && twice != nf4);
    assert_true(nf4 > 0.98 * none && nf4 < 1.02 * none && twice > 0.98 * none && twice < 1.02 * none);
    assert_true(loss_of(w, "nano-llama", "nf4", "--device-memory 2M") == nf4);
    assert_true(loss_of(w, "nano-llama", "nf4-double", "--device-memory 2M") == twice);
}

TEST(a_prompt_is_continued)
{
    struct program p;

    workplace_run_ok(*state, &p,
                     "generate --model nano-llama --prompt-tokens 1,2,3 --max-tokens 4 --json --set "
                     "strata.quantization=nf4");
    assert_non_null(strstr(p.out, "\"tokens\":"));
    program_free(&p);
}

static void train(const struct workplace *w, const char *options)
{
    struct program p;
    char line[512];

    snprintf(line, sizeof(line),
             "train --model nano-llama --data {w}/good.bin --seq-len 32 --max-steps 4 --machine {w}/machine.json --set "
             "strata.quantization=nf4-double --set 'strata.lora={\"r\":4,\"target_modules\":\"all-linear\"}' %s",
             options);
    workplace_run_ok(w, &p, line);
    program_free(&p);
}

static void same_adapters(const struct workplace *w, const char *a, const char *b)
{
    const char *const dirs[] = {a, b};
    size_t bytes[2];
    char *text[2];

    for (size_t i = 0; i < 2; i++) {
        char path[64];

        snprintf(path, sizeof(path), "%s/adapter_model.safetensors", dirs[i]);
        text[i] = workplace_read(w, path, &bytes[i]);
    }
    assert_int_equal(bytes[0], bytes[1]);
    assert_memory_equal(text[0], text[1], bytes[0]);
    free(text[0]);
    free(text[1]);
}

/* What a checkpoint holds has been quantised: it is not quantised twice again. */
TEST(adapters_go_on_beside_nf4)
{
    const struct workplace *w = *state;

    train(w, "--out {w}/whole --save {w}/saved --set strata.save_every=2");
    train(w, "--out {w}/small --device-memory 3M");
    train(w, "--out {w}/resumed --resume {w}/saved/step-00000002");
    same_adapters(w, "whole", "small");
    same_adapters(w, "whole", "resumed");
    assert_true(loss_of(w, "{w}/saved/step-00000004", "nf4-double", "") ==
                loss_of(w, "nano-llama", "nf4-double", "--adapter {w}/whole"));
}

TEST_GROUP(workplace_setup, workplace_teardown);
