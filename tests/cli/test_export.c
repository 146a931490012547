/* tests/cli/test_export.c - strata export, and a checkpoint as --model: the same bytes and results as of what train --out writes.
 */
#include "tests/cli/program.h"
#include "tests/cli/workplace.h"
#include "tests/common/test.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BASE                                                                                                                     \
    "train --data {w}/good.bin --seq-len 32 --machine {w}/machine.json --quiet --overwrite --keep 3 --save {w}/save "            \
    "--save-every 2 "

static const char *const files[] = {"config.json", "generation_config.json", "model.safetensors", "tokenizer_config.json"};

/* {w}/model has a file beside the weights that a run carries along. */
static int setup(void **state)
{
    static const char text[] = "{\"of\": \"the source\"}\n";

    if (workplace_setup(state) != 0)
        return -1;
    workplace_write(*state, "model/tokenizer_config.json", text, strlen(text));
    return 0;
}

static void assert_same(const struct workplace *w, const char *a, const char *b, bool tokenizer)
{
    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]) - !tokenizer; i++) {
        char name[2][64], *text[2];
        size_t bytes[2] = {0, 1};

        for (int k = 0; k < 2; k++) {
            snprintf(name[k], sizeof(name[k]), "%s/%s", k == 0 ? a : b, files[i]);
            text[k] = workplace_read(w, name[k], &bytes[k]);
        }
        if (bytes[0] != bytes[1] || memcmp(text[0], text[1], bytes[0]) != 0)
            fail_msg("%s and %s differ", name[0], name[1]);
        free(text[0]);
        free(text[1]);
    }
    assert_int_equal(workplace_entries(w, a), workplace_entries(w, b));
}

static void run(const struct workplace *w, const char *command)
{
    struct program p;

    workplace_run_ok(w, &p, command);
    program_free(&p);
}

/* Exit code, and a text of what the program says. */
static void refused(const struct workplace *w, const char *command, int code, const char *err)
{
    struct program p;

    workplace_run(w, &p, command);
    if (p.code != code || strstr(p.err, err) == NULL)
        fail_msg("strata %s\nexit code %d, wanted %d and \"%s\":\n%s", command, p.code, code, err, p.err);
    program_free(&p);
}

/* What a run writes at its end, and what its last checkpoint is exported as. */
static void exports_alike(const struct workplace *w, const char *options, bool tokenizer)
{
    char command[640];

    for (int i = 0; i < 2; i++)
        workplace_remove(w, i == 0 ? "out" : "exported");
    workplace_remove(w, "save");
    snprintf(command, sizeof(command), BASE "--max-steps 3 --out {w}/out %s", options);
    run(w, command);
    run(w, "export {w}/save --out {w}/exported --quiet");
    assert_same(w, "out", "exported", tokenizer);
}

TEST_SETUP(a_presets_export_is_its_output, setup, workplace_teardown)
{
    exports_alike(*state, "--model nano", false);
    exports_alike(*state, "--model nano-llama --set bf16.enabled=false", false);
}

TEST_SETUP(what_is_frozen_lies_elsewhere, setup, workplace_teardown)
{
    exports_alike(*state, "--model {w}/model --set 'strata.freeze=[\"*wte*\",\"*.bias\"]'", true);
    exports_alike(*state,
                  "--model {w}/model --set 'strata.freeze=[\"transformer.h.1.*\"]' --nvme {w}/nvme --set strata.cache=0 --set "
                  "zero_optimization.stage=3 --set zero_optimization.offload_optimizer.device=nvme --set "
                  "zero_optimization.offload_param.device=nvme",
                  true);
}

TEST_SETUP(a_master_beside_the_weights_is_left_out, setup, workplace_teardown)
{
    exports_alike(*state, "--model {w}/model --set fp16.enabled=true --set fp16.initial_scale_power=4", true);
}

/* An earlier checkpoint is the model of that step. */
TEST_SETUP(each_step_is_exported, setup, workplace_teardown)
{
    run(*state, BASE "--model nano --max-steps 4");
    run(*state, BASE "--model nano --max-steps 2 --out {w}/two --save {w}/save-of-two");
    run(*state, "export {w}/save/step-00000002 --out {w}/exported");
    assert_same(*state, "two", "exported", false);
    refused(*state, "export {w}/save --out {w}/exported", 2, "exists already");
    run(*state, "export {w}/save --out {w}/exported --overwrite");
    refused(*state, "export {w}/two --out {w}/x", 2, "two: has no checkpoint\n");
    refused(*state, "export {w}/save", 2, "missing argument: --out DIR");
}

/* What an engine of Python's has saved: a directory of tags, and one of them. */
TEST_SETUP(what_python_has_saved_is_exported_by_python, setup, workplace_teardown)
{
    workplace_make_dir(*state, "runs");
    workplace_make_dir(*state, "runs/tag");
    workplace_write(*state, "runs/latest", "tag", 3);
    workplace_write(*state, "runs/tag/client-0.pt", "", 0);
    refused(*state, "export {w}/runs --out {w}/x", 2, "runs: has no checkpoint of strata's program: ");
    refused(*state, "export {w}/runs/tag --out {w}/x", 2, "exported by python -m strata export");
    refused(*state, "digest {w}/runs", 2, "exported by python -m strata export");
    refused(*state, "generate --prompt-tokens 1 --model {w}/runs/tag", 2, "exported by python -m strata export");
}

/* What a command prints whose options these are; of eval its figures alone, not the time that it took. */
static char *said(const struct workplace *w, const char *verb, const char *model, const char *options)
{
    char command[512];
    struct program p;
    char *out;

    snprintf(command, sizeof(command), "%s --model {w}/%s %s", verb, model, options);
    workplace_run_ok(w, &p, command);
    if (strcmp(verb, "eval") == 0)
        p.out[strcspn(p.out, "\n")] = '\0';
    assert_true(strlen(p.out) > 10);
    out = strdup(p.out);
    program_free(&p);
    assert_non_null(out);
    return out;
}

TEST_SETUP(a_checkpoint_is_a_model, setup, workplace_teardown)
{
    static const char *const commands[][2] = {
        {"eval", "--data {w}/good.heldout.bin --seq-len 32"},
        {"generate", "--prompt 'And God' --max-tokens 12 --seed 3 --quiet"},
        {"train", "--data {w}/good.bin --seq-len 32 --max-steps 2 --quiet --digest --machine {w}/machine.json"},
    };

    exports_alike(*state, "--model nano", false);
    for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++) {
        char *of_output = said(*state, commands[i][0], "out", commands[i][1]);
        char *of_newest = said(*state, commands[i][0], "save", commands[i][1]);
        char *of_step = said(*state, commands[i][0], "save/step-00000003", commands[i][1]);

        assert_string_equal(of_output, of_newest);
        assert_string_equal(of_output, of_step);
        free(of_output);
        free(of_newest);
        free(of_step);
    }
}

static void flip(const struct workplace *w, const char *name, off_t at)
{
    char *path = workplace_expand(w, name);
    const int fd = open(path, O_RDWR | O_CLOEXEC);
    unsigned char byte;

    assert_true(fd >= 0 && pread(fd, &byte, 1, at) == 1);
    byte ^= 4;
    assert_int_equal(pwrite(fd, &byte, 1, at), 1);
    close(fd);
    free(path);
}

/* The weights come first in a set. */
TEST_SETUP(damage_is_found_and_nothing_is_written, setup, workplace_teardown)
{
    run(*state, BASE "--model nano --max-steps 4");
    refused(*state, "export {w}/save --out {w}/deep/exported --fault file.reserve:0:1:-28", 3, "model.safetensors: No space");
    refused(*state, "export {w}/save --out {w}/deep/exported --fault file.write:3:1:-28", 4, "No space");
    assert_false(workplace_exists(*state, "deep"));
    flip(*state, "{w}/save/step-00000004/set.0", 77777);
    refused(*state, "export {w}/save --out {w}/deep/exported", 4, "nothing is written; ");
    refused(*state, "export {w}/save --out {w}/deep/exported", 4, "step-00000002, which is older, opens: strata export");
    assert_false(workplace_exists(*state, "deep"));
    refused(*state, "eval --model {w}/save --data {w}/good.heldout.bin --seq-len 32", 4, "step-00000004/set.0: plane weight");
    flip(*state, "{w}/save/step-00000004/manifest.json", 9);
    refused(*state, "export {w}/save --out {w}/older", 0, "step-00000004 does not open, and an older one is exported");
    refused(*state, "export {w}/save/step-00000004 --out {w}/x", 4, "manifest.json: its checksum is wrong");
    refused(*state, "eval --model {w}/save --data {w}/good.heldout.bin --seq-len 32", 0,
            "step-00000004 does not open, and an older one is used");
    assert_false(workplace_exists(*state, "x"));
}

/* Not even with --overwrite: it may be the one that is read. */
TEST_SETUP(no_output_lies_in_a_checkpoint, setup, workplace_teardown)
{
#define TRAIN "train --model {w}/save --data {w}/good.bin --max-steps 1 --overwrite "
    static const struct {
        const char *command, *option;
    } rows[] = {
        {TRAIN "--metrics {w}/save/step-00000002/set.0", "--metrics"},
        {TRAIN "--out {w}/save/step-00000002", "--out"},
        {TRAIN "--save {w}/save/step-00000002/x", "--save"},
        {TRAIN "--trace {w}/save/step-00000002/model/x", "--trace"},
        {TRAIN "--out {w}/save/step-00000002/model", "--out"},
        {TRAIN "--set tensorboard.enabled=true --set tensorboard.output_path={w}/save/step-00000002", "tensorboard: output_path"},
        {TRAIN "--set csv_monitor.enabled=true --set csv_monitor.output_path={w}/save/step-00000002/x",
         "csv_monitor: output_path"},
        {"export {w}/save --out {w}/save/step-00000002/model --overwrite", "--out"},
        {"import {w}/deepspeed --model nano --config {w}/c.json --out {w}/save/step-00000002/x", "--out"},
        {"tokens {w}/text --out {w}/save/step-00000002/extents.bin --overwrite", "--out"},
        {"tokens {w}/text --heldout 0.5 --out {w}/save/step-00000002/new.bin", "--out"},
        {"tune --nvme {w} --write {w}/save/step-00000002/manifest.json", "--write"},
        {"tune --nvme {w} --out {w}/save/step-00000002/aio.json", "--out"},
    };

    workplace_write(*state, "c.json", "{}", 2);
    workplace_make_dir(*state, "save");
    run(*state, BASE "--model nano --max-steps 2 --metrics {w}/save/metrics.jsonl");
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        char option[64];
        struct program p;

        snprintf(option, sizeof(option), "error: %s: ", rows[i].option);
        workplace_run(*state, &p, rows[i].command);
        if (p.code != 2 || strstr(p.err, option) == NULL || strstr(p.err, "lies in a checkpoint") == NULL)
            fail_msg("strata %s\nexit code %d, no \"%s\":\n%s", rows[i].command, p.code, option, p.err);
        program_free(&p);
    }
    run(*state, "verify {w}/save");
#undef TRAIN
}
