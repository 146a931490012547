/* tests/cli/test_model_kinds.c - what is given as a model or as data and is another thing: every command names it, and says what
 * to do. */
#include "tests/cli/program.h"
#include "tests/cli/workplace.h"
#include "tests/common/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ADAPTER "{\"peft_type\": \"LORA\", \"r\": 4, \"base_model_name_or_path\": \"org/base\"}"

static void put(const struct workplace *w, const char *name, const char *text)
{
    workplace_write(w, name, text, strlen(text));
}

/* The command with the name in the place of @. */
static void must_say(const struct workplace *w, const char *command, const char *name, const char *wanted)
{
    const int before = (int)strcspn(command, "@");
    char line[512];
    struct program p;

    snprintf(line, sizeof(line), "%.*s%s%s", before, command, name, command + before + 1);
    workplace_run(w, &p, line);
    if (p.code != 2 || strstr(p.err, wanted) == NULL)
        fail_msg("%s: exit code %d, not 2 with \"%s\":\n%s", line, p.code, wanted, p.err);
    program_free(&p);
}

TEST(models_that_are_none)
{
    static const char *const commands[] = {
        "train --model {w}/@ --data {w}/good.bin --max-steps 1 --seq-len 32 --machine {w}/machine.json",
        "eval --model {w}/@ --data {w}/good.bin --seq-len 32",
        "generate --model {w}/@ --prompt x",
        "generate --model {w}/@ --chat --prompt x",
        "plan --model {w}/@ --seq-len 32",
    };
    static const struct {
        const char *name, *wanted;
    } rows[] = {
        {"m.gguf", "m.gguf: GGUF is not read: "},
        {"guff", "guff: GGUF is not read: "},
        {"adapter", "adapter: an adapter of org/base: name that with --model, this with --adapter"},
        {"adapter/adapter_config.json", "settings of an adapter: name its base with --model"},
        {"nameless", "nameless: an adapter of another model: "},
        {"meta", "meta: has params.json, not config.json"},
        {"w.safetensors", "w.safetensors: a file of weights: name its directory"},
        {"w.bin", "w.bin: weights: name their directory"},
        {"rows.parquet", "rows.parquet: a table of data, not a model: give it to --data as .jsonl"},
        {"rows.csv", "rows.csv: a table of data, not a model"},
        {"chats.jsonl", "chats.jsonl: data, not a model: give it to --data"},
        {"file", "file is not a directory"},
    };
    const struct workplace *w = *state;

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        for (size_t c = 0; c < sizeof(commands) / sizeof(commands[0]); c++)
            must_say(w, commands[c], rows[i].name, rows[i].wanted);
}

/* A file in the working directory has no slash in its name, which would make it a preset. */
TEST(files_here_are_no_presets)
{
    struct program p;

    workplace_run(*state, &p, "plan --model README.md");
    assert_int_equal(p.code, 2);
    assert_non_null(strstr(p.err, "--model README.md is not a directory"));
    program_free(&p);
    workplace_run(*state, &p, "plan --model nonsuch");
    assert_non_null(strstr(p.err, "no model preset \"nonsuch\""));
    program_free(&p);
}

TEST(names_of_the_hub_are_fetched)
{
    must_say(*state, "generate --chat --prompt x --model @", "some-org/some-model",
             "nothing is downloaded: fetch it with \"hf download some-org/some-model\"");
}

TEST(data_that_is_none)
{
    static const char *const commands[] = {
        "train --model nano --data {w}/@ --max-steps 1 --seq-len 32 --machine {w}/machine.json",
        "train --model nano --data {w}/good.bin --eval-data {w}/@ --max-steps 1 --seq-len 32 --machine {w}/machine.json",
        "eval --model nano --data {w}/@ --seq-len 32",
        "tokens {w}/@ --out {w}/x.bin",
    };
    const struct workplace *w = *state;

    for (size_t c = 0; c < sizeof(commands) / sizeof(commands[0]); c++) {
        must_say(w, commands[c], "rows.parquet", "rows.parquet: .parquet is not read: convert it with ");
        must_say(w, commands[c], "tables", "its parquet files are not read: python -c \"from datasets import *; load_dataset('");
        must_say(w, commands[c], "kept", "its arrow files are not read: python -c \"from datasets import *; load_from_disk('");
        must_say(w, commands[c], "rows.csv", "rows.csv: .csv is not read: convert it with ");
        must_say(w, commands[c], "rows.jsonl.gz", "rows.jsonl.gz: it is compressed: unpack it first");
    }
}

static int setup(void **state)
{
    static const char *const files[] = {"m.gguf",   "w.safetensors", "w.bin",        "rows.parquet",
                                        "rows.csv", "chats.jsonl",   "rows.jsonl.gz"};
    static const char *const dirs[] = {"guff", "adapter", "nameless", "meta", "tables", "tables/data", "kept", "kept/train"};
    const int rc = workplace_setup(state);
    const struct workplace *w = *state;

    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++)
        put(w, files[i], "GGUF");
    for (size_t i = 0; i < sizeof(dirs) / sizeof(dirs[0]); i++)
        workplace_make_dir(w, dirs[i]);
    put(w, "guff/q4.gguf", "GGUF");
    put(w, "adapter/adapter_config.json", ADAPTER);
    put(w, "nameless/adapter_config.json", "{}");
    put(w, "meta/params.json", "{}");
    put(w, "tables/data/train-00000-of-00001.parquet", "PAR1");
    put(w, "kept/train/data-00000-of-00001.arrow", "ARROW1");
    return rc;
}

TEST_GROUP(setup, workplace_teardown);
