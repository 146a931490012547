/* tests/cli/test_json_docs.c - docs/json.md against what is printed: every key that comes is documented, every documented one
 * comes, those that may be left out in one run at least. */
#include "core/json/json.h"
#include "tests/cli/program.h"
#include "tests/cli/workplace.h"
#include "tests/common/test.h"
#include "tests/common/whole_file.h"
#include "tests/offload/checkpoint_fixture.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PATTERNS_MAX 256
#define PATH_BYTES   160

/* One section's keys. */
struct section {
    const char *name;
    struct pattern {
        char text[PATH_BYTES];
        bool optional, seen;
    } pattern[PATTERNS_MAX];
    uint32_t count;
};

static char *doc;

/* --- the document --- */

/* Text up to its brace, each of what stands in it, the rest. */
static void add_patterns(struct section *s, const char *text, bool optional)
{
    const char *open = strchr(text, '{'), *close = open != NULL ? strchr(open, '}') : NULL;

    if (open == NULL) {
        assert_true(s->count < PATTERNS_MAX && strlen(text) < PATH_BYTES);
        strcpy(s->pattern[s->count].text, text);
        s->pattern[s->count++].optional = optional;
        return;
    }
    assert_non_null(close);
    for (const char *word = open + 1; word < close; word += strcspn(word, ",}") + 1) {
        char one[PATH_BYTES];

        snprintf(one, sizeof(one), "%.*s%.*s%s", (int)(open - text), text, (int)strcspn(word, ",}"), word, close + 1);
        add_patterns(s, one, optional);
    }
}

/* The first cell of a row: keys in backticks, ? after those that may be left out. */
static void add_row(struct section *s, const char *row)
{
    const char *end = strstr(row + 1, " | ");

    assert_non_null(end);
    for (const char *at = strchr(row, '`'); at != NULL && at < end; at = strchr(at, '`')) {
        const char *close = strchr(++at, '`');
        char text[PATH_BYTES * 2];

        assert_true(close != NULL && close < end);
        snprintf(text, sizeof(text), "%.*s", (int)(close - at), at);
        add_patterns(s, text, close[1] == '?');
        at = close + 1;
    }
}

static void section_read(struct section *s, const char *name)
{
    char heading[64];
    const char *line;

    memset(s, 0, sizeof(*s));
    s->name = name;
    snprintf(heading, sizeof(heading), "\n## %s\n", name);
    line = strstr(doc, heading);
    if (line == NULL)
        fail_msg("docs/json.md has no section %s", name);
    for (line += strlen(heading); *line != '\0' && strncmp(line, "## ", 3) != 0; line += strcspn(line, "\n") + 1)
        if (strncmp(line, "| `", 3) == 0)
            add_row(s, line);
    assert_true(s->count > 0);
}

/* * is a name, ** all that follows. */
static bool matches(const char *pattern, const char *path)
{
    for (; *pattern != '\0'; pattern++, path++) {
        if (strcmp(pattern, "**") == 0)
            return true;
        if (*pattern == '*') {
            path += strcspn(path, ".") - 1;
            continue;
        }
        if (*pattern != *path)
            return false;
    }
    return *path == '\0';
}

static bool is_documented(struct section *s, const char *path);

/* prefix.@section: the keys of another section below prefix. */
static bool is_included(const char *pattern, const char *path)
{
    const char *at = strchr(pattern, '@');
    static struct section other; /* as large as a stack should not be */

    if (at == NULL || strncmp(path, pattern, (size_t)(at - pattern)) != 0)
        return false;
    section_read(&other, at + 1);
    return is_documented(&other, path + (at - pattern));
}

static bool is_documented(struct section *s, const char *path)
{
    for (uint32_t i = 0; i < s->count; i++) {
        struct pattern *p = &s->pattern[i];

        if (!matches(p->text, path) && !is_included(p->text, path))
            continue;
        p->seen = true;
        return true;
    }
    return false;
}

/* An array without elements: there are keys of its elements. */
static bool is_array(const struct section *s, const char *path)
{
    for (uint32_t i = 0; i < s->count; i++)
        if (strncmp(s->pattern[i].text, path, strlen(path)) == 0 && strncmp(s->pattern[i].text + strlen(path), "[]", 2) == 0)
            return true;
    return false;
}

/* --- what is printed --- */

static unsigned check_value(struct section *s, const st_json *value, const char *path)
{
    const enum st_json_type type = st_json_type(value);
    unsigned faults = 0;
    char below[PATH_BYTES];

    if (type == ST_JSON_ARRAY && st_json_first(value) != NULL) {
        snprintf(below, sizeof(below), "%s[]", path);
        for (const st_json *child = st_json_first(value); child != NULL; child = st_json_next(child))
            faults += check_value(s, child, below);
        return faults;
    }
    if (type == ST_JSON_OBJECT) {
        for (const st_json *child = st_json_first(value); child != NULL; child = st_json_next(child)) {
            assert_true(snprintf(below, sizeof(below), "%s%s%s", path, path[0] != '\0' ? "." : "", st_json_name(child)) <
                        (int)sizeof(below));
            faults += check_value(s, child, below);
        }
        return faults;
    }
    if ((type == ST_JSON_ARRAY && is_array(s, path)) || is_documented(s, path))
        return 0;
    fprintf(stderr, "%s prints %s, which docs/json.md does not know\n", s->name, path);
    return 1;
}

static unsigned check_lines(struct section *s, char *text)
{
    unsigned faults = 0, lines = 0;
    char *rest = NULL;

    for (char *line = strtok_r(text, "\n", &rest); line != NULL; line = strtok_r(NULL, "\n", &rest)) {
        st_json *root = NULL;

        assert_int_equal(st_json_parse(&root, line, strlen(line), s->name), STRATA_OK);
        faults += check_value(s, root, "");
        st_json_free(root);
        lines++;
    }
    assert_true(lines > 0);
    return faults;
}

/* Keys that none of the runs can print: a GPU's, those of several ranks, and of a checkpoint that cannot be read. */
static bool is_out_of_reach(const struct pattern *p)
{
    return p->optional &&
           (strncmp(p->text, "gpus[]", 6) == 0 || strncmp(p->text, "skipped[]", 9) == 0 || strncmp(p->text, "links[]", 7) == 0);
}

TEST(every_key_is_documented_and_comes)
{
    static const struct {
        const char *section, *command; /* several of one section stand together */
    } runs[] = {
        {"train",
         "train --model nano --data {w}/good.bin --seq-len 128 --max-steps 2 --json --digest --eval-data {w}/good.heldout.bin "
         "--machine {w}/machine.json --threads 2"},
        {"train",
         "train --model tests/golden/experts/qwen3_moe --data tests/golden/experts/qwen3_moe/tokens.bin --seq-len 32 --max-steps 1 "
         "--set strata.router_aux_loss_coef=0.25 --json"},
        {"train",
         "train --model nano --data {w}/good.bin --seq-len 32 --max-steps 2 --json --nvme {w}/nvme --host-memory 3M --device-memory 6M "
         "--set strata.update=speculative --set zero_optimization.stage=3 --set zero_optimization.offload_optimizer.device=nvme --set "
         "zero_optimization.offload_param.device=nvme"},
        {"plan", "plan --model nano --seq-len 32 --micro-batch 1 --json"},
        {"plan", "plan --model nano --seq-len 32 --micro-batch 1 --json --gpu h100 --drive gen4:2TB"},
        {"plan", "plan --model gpt2 --grad-accum 4 --max-steps 3 --json --machine tests/machines/laptop-8gb.json"},
        {"plan", "plan --model nano --seq-len 32 --json --save {w}/checkpoints --machine tests/machines/laptop-8gb.json"},
        {"plan", "plan --model gpt2 --ranks 16 --scale --json --machine tests/machines/h100-node8.json"},
        {"plan", "plan --model gpt2-xl --micro-batch 1 --json --host-memory 1G --machine tests/machines/laptop-8gb.json"},
        {"plan",
         "plan --model gpt2 --json --grad-accum 4 --set strata.accumulation=horizontal --set zero_optimization.stage=3 --set "
         "zero_optimization.offload_optimizer.device=cpu --device-memory 700MiB --machine tests/machines/laptop-8gb.json"},
        {"plan",
         "plan --model gpt2 --json --grad-accum 4 --set strata.update=speculative --set zero_optimization.stage=3 --set "
         "zero_optimization.offload_optimizer.device=nvme --set zero_optimization.offload_param.device=cpu --nvme /mnt/nvme "
         "--device-memory 1G --host-memory 1G --machine tests/machines/card-24gb.json"},
        {"plan advice", "plan --model nano --gpu 4090 --ranks 2 --batch-tokens 4K --json"},
        {"plan advice", "plan --model nano --seq-len 32 --json --tokens 1M --batch-tokens 64 --gpu h100 --drive gen4:2TB"},
        {"plan advice", "plan --model gpt2-xl --json --batch-tokens 1K --gpu 4090 --device-memory 64M --host-memory 64M"},
        {"plan advice", "plan --model tests/cli/two-blocks --json --seq-len 256 --batch-tokens 1K --gpu 4090 --device-memory "
                        "256M --host-memory 256M"},
        {"plan hardware", "plan --gpu list --json"},
        {"eval", "eval --model {w}/model --data {w}/good.heldout.bin --seq-len 128 --json"},
        {"eval", "eval --model tests/golden/families/llama_linear --data tests/golden/families/llama_linear/tokens.bin --seq-len "
                 "32 --json "
                 "--adapter one=tests/golden/adapters/llama_linear"},
        {"generate", "generate --model {w}/model --prompt x --max-tokens 3 --json"},
        {"generate", "generate --model {w}/model --prompt-tokens 1,2,3 --max-tokens 3 --json"},
        {"generate", "generate --model tests/golden/chat/qwen --chat --prompt x --max-tokens 3 --json"},
        {"tokens", "tokens {w}/text --out {w}/new.bin --heldout 0.5 --json"},
        {"tokens", "tokens {w}/text --out {w}/other.bin --json"},
        {"tokens",
         "tokens tests/fuzz/corpus/rows/messages.jsonl --tokenizer tests/golden/tokenizers/qwen2.json --template chatml "
         "--out {w}/talks.bin --json"},
        {"tokens",
         "tokens tests/fuzz/corpus/rows/completion.jsonl --tokenizer tests/golden/tokenizers/qwen2.json --template chatml "
         "--out {w}/completions.bin --json"},
        {"info", "info --json --nvme {w}/nvme"},
        {"info", "info --json --measure --model nano --seq-len 32 --out {w}/measured.json --fault machine.patience:0:0:0"},
        {"check", "check configs/zero3_nvme.json --json"},
        {"check", "check {w}/missing.json --json"},
        {"check", "check tests/fuzz/corpus/yaml/lora_sft.yaml --json"},
        {"digest", "digest {w}/model --json"},
        {"digest", "digest {w}/save/step-00000001 --json"},
        {"export", "export {w}/saved --out {w}/exported --json"},
        {"verify", "verify {w}/save/step-00000001 --json"},
        {"verify", "verify {w}/save/step-00000002 --json"},
        {"verify", "verify {w}/save --json"},
        {"verify", "verify {w}/save --pool --json"},
        {"bench optim", "bench optim --params 4K --layout split --repeats 1 --json"},
        {"bench link", "bench link --bytes 64K --repeats 1 --json"},
        {"bench update", "bench update --params 64K --repeats 1 --json"},
        {"bench step", "bench step --model nano --seq-len 32 --simulate --machine tests/machines/two-cores.json --json"},
        {"bench step", "bench step --model nano --seq-len 32 --only --steps 1 --ops --json --fault machine.patience:0:0:0"},
        {"bench io", "bench io {w}/nvme --size 4M --seconds 0.01 --repeats 1 --pattern read --json"},
    };
    static struct section section;
    const size_t count = sizeof(runs) / sizeof(runs[0]);
    unsigned faults = 0;

    for (size_t i = 0; i < count; i++) {
        struct program p;

        if (i == 0 || strcmp(runs[i].section, runs[i - 1].section) != 0)
            section_read(&section, runs[i].section);
        workplace_run(*state, &p, runs[i].command);
        if (p.out[0] == '\0')
            fail_msg("strata %s: %s", runs[i].command, p.err);
        faults += check_lines(&section, p.out);
        program_free(&p);
        if (i + 1 < count && strcmp(runs[i].section, runs[i + 1].section) == 0)
            continue;
        for (uint32_t k = 0; k < section.count; k++) {
            if (section.pattern[k].seen || is_out_of_reach(&section.pattern[k]))
                continue;
            fprintf(stderr, "%s did not print %s, which docs/json.md promises\n", section.name, section.pattern[k].text);
            faults++;
        }
    }
    assert_int_equal(faults, 0);
}

/* The machine file that info wrote above has the keys of its section; each that is always there is. */
TEST(machine_files_are_documented)
{
    static struct section section;
    char *text;
    size_t bytes;

    text = workplace_read(*state, "measured.json", &bytes);
    section_read(&section, "machine");
    assert_int_equal(check_lines(&section, text), 0);
    for (uint32_t k = 0; k < section.count; k++)
        assert_true(section.pattern[k].seen || section.pattern[k].optional);
    free(text);
}

static void flip_first(const struct workplace *w, const char *name)
{
    char *path = workplace_expand(w, name), *bytes;
    size_t size;

    bytes = read_file(path, &size);
    bytes[0] = (char)~bytes[0];
    write_file(path, bytes, size);
    free(bytes);
    free(path);
}

static int setup(void **state)
{
    struct program p;
    char *save;

    doc = read_file("docs/json.md", NULL);
    if (workplace_setup(state) != 0)
        return -1;
    workplace_make_dir(*state, "save"); /* three checkpoints, of which one is whole, and what one run left */
    workplace_make_dir(*state, "save/.strata-save-0123456789abcdef");
    save = workplace_expand(*state, "{w}/save");
    for (uint64_t step = 1; step <= 3; step++)
        fixture_checkpoint(save, step);
    free(save);
    workplace_write(*state, "save/step-00000002/set.0", "", 0);
    flip_first(*state, "{w}/save/step-00000003/set.0");
    workplace_run_ok(*state, &p, "train --model nano --data {w}/good.bin --seq-len 32 --max-steps 1 --quiet --save {w}/saved");
    program_free(&p);
    return 0;
}

static int teardown(void **state)
{
    free(doc);
    return workplace_teardown(state);
}

TEST_GROUP(setup, teardown);
