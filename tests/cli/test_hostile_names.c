/* tests/cli/test_hostile_names.c - names that a terminal would obey, in arguments and in every kind of file: what is printed
 * holds them written out, and says them. */
#include "tests/cli/program.h"
#include "tests/cli/terminal.h"
#include "tests/cli/workplace.h"
#include "tests/common/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* An escape sequence, a C1 control, a raw C1 byte, an override, a line of its own. */
#define EVIL      "e\x1b[2J\xc2\x9b\x9b\xe2\x80\xae\nzz"
#define EVIL_JSON "e\\u001b[2J\\u009b\xe2\x80\xaev"
#define SHOWN     "e\\x1b[2J\\u{9b}"

/* Any byte or character that a terminal obeys; a line begins as ours do. */
static const char *find_hidden(const char *text)
{
    static const char *const sequences[] = {"\xe2\x80\xae", "\x7f", "\nzz"};

    for (const char *at = text; *at != '\0'; at++) {
        const unsigned char c = (unsigned char)*at;

        if ((c < 0x20 && c != '\n') || (c >= 0x80 && c < 0xa0 && (unsigned char)at[-1] < 0x80))
            return at;
        if (c == 0xc2 && (unsigned char)at[1] < 0xa0)
            return at;
        for (size_t i = 0; i < sizeof(sequences) / sizeof(sequences[0]); i++)
            if (strncmp(at, sequences[i], strlen(sequences[i])) == 0)
                return at;
    }
    return NULL;
}

static void check(const char *what, const struct program *p)
{
    char *both = NULL;

    assert_true(asprintf(&both, "%s\n%s", p->err, p->out != NULL ? p->out : "") > 0);
    if (find_hidden(both) != NULL || strstr(both, SHOWN) == NULL)
        fprintf(stderr, "%s: exit code %d: %s\n", what, p->code, both);
    assert_null(find_hidden(both));
    assert_non_null(strstr(both, SHOWN));
    free(both);
}

TEST(arguments)
{
    static const char *const commands[] = {
        "e" EVIL,
        "train --" EVIL " 1",
        "train " EVIL,
        "train --model " EVIL " --data {w}/good.bin --max-steps 1",
        "train --model {w}/" EVIL " --data {w}/good.bin --max-steps 1",
        "train --model nano --data {w}/" EVIL " --max-steps 1",
        "train --model nano --data {w}/good.bin --max-steps " EVIL,
        "train --model nano --data {w}/good.bin --max-steps 1 --device " EVIL,
        "train --model nano --data {w}/good.bin --max-steps 1 --out {w}/" EVIL "/" EVIL,
        "train --model nano --data {w}/good.bin --max-steps 1 --seq-len 32 --machine {w}/machine.json --metrics {w}/" EVIL "/m",
        "train --model nano --data {w}/good.bin --max-steps 1 --seq-len 32 --machine {w}/machine.json --quiet --nvme {w}/" EVIL
        " --set zero_optimization.offload_optimizer.device=nvme",
        "train --model nano --data {w}/good.bin --max-steps 1 --set " EVIL "=1",
        "train --model nano --data {w}/good.bin --max-steps 1 --set optimizer.type=" EVIL,
        "train --model nano --data {w}/good.bin --max-steps 1 --config {w}/" EVIL,
        "plan --model nano --machine {w}/" EVIL,
        "tokens {w}/" EVIL " --out {w}/x.bin",
        "tokens {w}/text --out {w}/" EVIL "/x.bin",
        "tokens {w}/text --out {w}/x.bin --tokenizer " EVIL,
        "generate --model {w}/model --prompt-file {w}/" EVIL,
        "generate --model {w}/model --prompt-tokens " EVIL,
        "digest {w}/" EVIL,
        "check {w}/" EVIL,
        "bench " EVIL,
        "bench io {w}/" EVIL,
        "tune --nvme {w}/" EVIL,
        "info --nvme {w}/" EVIL,
        "info --json --nvme {w}/" EVIL,
    };
    struct program p;

    for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++) {
        workplace_run(*state, &p, commands[i]);
        if (strstr(commands[i], "--json") != NULL)
            assert_null(find_hidden(p.out));
        else
            check(commands[i], &p);
        program_free(&p);
    }
}

/* The sentence about a file of this text, and with "{w}/x" in its place in the command. */
static void check_file(const struct workplace *w, const char *name, const char *text, const char *command)
{
    struct program p;

    workplace_write(w, name, text, strlen(text));
    workplace_run(w, &p, command);
    check(text, &p);
    program_free(&p);
    workplace_remove(w, name);
}

TEST(configurations)
{
    static const char *const texts[] = {
        "{\"" EVIL_JSON "\": 1}",
        "{\"optimizer\": {\"type\": \"" EVIL_JSON "\"}}",
        "{\"fp16\": {\"" EVIL_JSON "\": 1}, \"other" EVIL_JSON "\": 2}",
        "{\"" EVIL_JSON "\": 1, \"" EVIL_JSON "\": 1}",
        "{\"bf16\": {\"enabled\": \"" EVIL_JSON "\"}}",
    };
    struct program p;

    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        check_file(*state, "config.json", texts[i], "check {w}/config.json");
        check_file(*state, "config.json", texts[i],
                   "train --model nano --data {w}/good.bin --max-steps 1 --config {w}/config.json");
        check_file(*state, "config.json", texts[i], "check {w}/config.json --allow-unknown");
    }
    workplace_write(*state, "config.json", texts[0], strlen(texts[0]));
    workplace_run(*state, &p, "check {w}/config.json --json");
    assert_null(find_hidden(p.out));
    assert_non_null(strstr(p.out, "\\u009b"));
    program_free(&p);
    workplace_remove(*state, "config.json");
}

TEST(machine_files)
{
    check_file(*state, "m.json", "{\"" EVIL_JSON "\": 1}", "plan --model nano --machine {w}/m.json");
}

/* model/ under another name, with this file's text. */
static void check_model(const struct workplace *w, const char *file, const char *text, size_t bytes)
{
    static const char *const files[] = {"config.json", "model.safetensors"};
    struct program p;
    char to[64];

    workplace_make_dir(w, "hostile");
    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
        char from[64], *whole;
        size_t whole_bytes;

        snprintf(from, sizeof(from), "model/%s", files[i]);
        snprintf(to, sizeof(to), "hostile/%s", files[i]);
        whole = workplace_read(w, from, &whole_bytes);
        if (i == 0 || strstr(file, "index") == NULL)
            workplace_write(w, to, whole, whole_bytes);
        free(whole);
    }
    snprintf(to, sizeof(to), "hostile/%s", file);
    workplace_write(w, to, text, bytes);
    workplace_run(w, &p, "digest {w}/hostile");
    check(file, &p);
    program_free(&p);
    workplace_remove(w, "hostile");
}

/* The same bytes with `to` in place of `from`, as long. */
static void patch(char *text, size_t bytes, const char *from, const char *to)
{
    char *at = memmem(text, bytes, from, strlen(from));

    assert_non_null(at);
    assert_int_equal(strlen(from), strlen(to));
    memcpy(at, to, strlen(to));
}

TEST(models)
{
    static const char type[] = "{\"model_type\": \"" EVIL_JSON "\"}";
    static const char shard[] = "{\"weight_map\": {\"transformer.wte.weight\": \"" EVIL_JSON ".safetensors\"}}";
    static const char tensor[] = "{\"weight_map\": {\"" EVIL_JSON "\": 3}}";
    size_t bytes;
    char *weights = workplace_read(*state, "model/model.safetensors", &bytes);

    check_model(*state, "config.json", type, strlen(type));
    check_model(*state, "model.safetensors.index.json", shard, strlen(shard));
    check_model(*state, "model.safetensors.index.json", tensor, strlen(tensor));
    patch(weights, bytes, "transformer.h.0.ln_1.weight", "e\\u001b[2J\\u009b\xe2\x80\xaevabcdefg");
    check_model(*state, "model.safetensors", weights, bytes);
    free(weights);
}

/* A model's own words: as they are in a pipe, written out on a terminal. */
TEST(generated_text)
{
    static const char command[] = "generate --model nano --prompt a --max-tokens 60 --temperature 5 --quiet --threads 1";
    struct program piped, shown;
    bool any = false;

    workplace_run_ok(*state, &piped, command);
    terminal_run(*state, &shown, command, 80, "xterm", false);
    assert_int_equal(shown.code, 0);
    for (const char *at = piped.out; *at != '\0'; at++)
        any = any || ((unsigned char)*at < 0x20 && *at != '\n' && *at != '\t');
    assert_true(any);
    for (const char *at = shown.out; *at != '\0'; at++)
        assert_true((unsigned char)*at >= 0x20 || *at == '\n' || *at == '\t');
    program_free(&piped);
    program_free(&shown);
}

/* A configuration, which has all directories' names, is UTF-8. */
TEST(directories_that_a_configuration_cannot_name)
{
    struct program p;

    workplace_run(*state, &p, "plan --model nano --nvme nv\xff");
    assert_int_equal(p.code, 2);
    assert_non_null(strstr(p.err, "--nvme nv\\xff: the name is not UTF-8"));
    program_free(&p);
    workplace_run(*state, &p, "plan --model nano --set strata.nvme=nv\xff");
    assert_int_equal(p.code, 2);
    assert_non_null(
        strstr(p.err, "strata.nvme (--nvme) nv\\xff: the name is not UTF-8, as a configuration is: give a link to it"));
    program_free(&p);
}

/* Nor can what names its model again. */
TEST(models_that_nothing_can_name)
{
    static const char *const commands[] = {
        "train --model {w}/m\xff --data {w}/good.bin --seq-len 32 --max-steps 1 --save {w}/saved",
        "train --model {w}/m\xff --data {w}/good.bin --seq-len 32 --max-steps 1 --lora {w}/lora.json --out {w}/saved",
    };
    static const char lora[] = "{\"r\": 4, \"target_modules\": \"all-linear\"}";
    char *model = workplace_expand(*state, "{w}/model"), *name = workplace_expand(*state, "{w}/m\xff");
    char *saved = workplace_expand(*state, "{w}/saved");
    struct program p;

    workplace_write(*state, "lora.json", lora, strlen(lora));
    assert_int_equal(symlink(model, name), 0);
    for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++) {
        workplace_run(*state, &p, commands[i]);
        assert_int_equal(p.code, 2);
        assert_non_null(strstr(p.err, "m\\xff: the name is not UTF-8"));
        program_free(&p);
        assert_int_not_equal(access(saved, F_OK), 0);
    }
    workplace_run_ok(*state, &p, "train --model {w}/m\xff --data {w}/good.bin --seq-len 32 --max-steps 1 --quiet");
    program_free(&p);
    assert_int_equal(unlink(name), 0);
    free(model);
    free(name);
    free(saved);
}

TEST_GROUP(workplace_setup, workplace_teardown);
