/* test_import.c - a run that was taken apart as tools/import_deepspeed.py takes one apart goes on with the same bits; what cannot
 * be a run's is refused by name, and leaves nothing. */
#include "offload/checkpoint/checkpoint.h"
#include "program.h"
#include "strata/checkpoint.h"
#include "strata/engine.h"
#include "tests/common/test.h"
#include "workplace.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CONFIG                                                                                                                   \
    "{\"train_batch_size\": 2, \"train_micro_batch_size_per_gpu\": 2, \"dataloader_drop_last\": true, "                          \
    "\"bf16\": {\"enabled\": false}, \"optimizer\": "                                                                            \
    "{\"type\": \"AdamW\", \"params\": {\"lr\": 1e-3, \"weight_decay\": 0.1}}}"
#define TRAIN                                                                                                                    \
    "train --model mini --data {w}/good.bin --seq-len 32 --machine {w}/machine.json --digest --config {w}/run.json --quiet "
#define IMPORT_TO "import {w}/parts --model {w}/hf --config {w}/run.json --quiet --out "
#define IMPORT    IMPORT_TO "{w}/b "
#define STATE                                                                                                                    \
    "{\"format\": 1, \"source\": \"DeepSpeed\", \"steps\": 3, \"skipped_steps\": 0, \"samples\": 6, \"loss_scaler\": null}"

/* The file of one state: the weights' header and, in its order, a moment. */
struct parts {
    char *text;
    size_t bytes, data; /* where the values begin */
};

/* Where the header says that a tensor's values begin. */
static size_t place_of(const struct parts *p, const char *name)
{
    char key[128];
    const char *at;
    unsigned long begin;

    snprintf(key, sizeof(key), "\"%s\":", name);
    assert_non_null(at = strstr(p->text + 8, key));
    assert_non_null(at = strstr(at, "\"data_offsets\":"));
    assert_int_equal(sscanf(at, "\"data_offsets\": [%lu", &begin), 1);
    return p->data + begin;
}

/* Group of a page that has an element, and the element in it. */
static uint32_t group_of(const struct st_manifest *m, uint32_t page, uint64_t *element)
{
    uint32_t g = 0;

    for (const struct st_manifest_group *next; (next = st_manifest_group(m, page, g + 1)) != NULL && *element >= next->offset;
         g++)
        ;
    *element -= st_manifest_group(m, page, g)->offset;
    return g;
}

/* Copies a tensor's part of a plane out of the checkpoint's one file. */
static void copy_part(unsigned char *to, const struct st_checkpoint *ck, const char *set, const struct st_manifest_tensor *t,
                      enum st_plane plane)
{
    uint64_t first = t->offset, count;
    const uint32_t group = group_of(&ck->manifest, t->page, &first);
    const struct st_extent_row *row = st_checkpoint_rows(ck, t->page, group, plane, first, t->elems, &count);

    for (uint64_t done = 0; done < t->elems; row++) {
        const uint64_t at = first + done - row->first, left = row->elems - at,
                       here = left < t->elems - done ? left : t->elems - done;

        memcpy(to + done * 4, set + row->offset + at * 4, here * 4);
        done += here;
    }
}

static void write_moment(const struct workplace *w, const struct st_checkpoint *ck, const struct parts *header,
                         enum st_plane plane, const char *dir)
{
    struct parts p = {.bytes = header->bytes, .data = header->data, .text = malloc(header->bytes)};
    char name[64], *planes = workplace_read(w, "a/step-00000003/set.0", NULL);
    size_t place = 0;

    assert_non_null(p.text);
    memcpy(p.text, header->text, header->bytes);
    for (uint32_t i = 0; i < ck->manifest.tensor_count; i++) {
        const struct st_manifest_tensor *t = &ck->manifest.tensors[i];

        place = i > 0 && strcmp(t->name, t[-1].name) == 0 ? place : place_of(header, t->name);
        copy_part((unsigned char *)p.text + place, ck, planes, t, plane);
        place += t->elems * 4;
    }
    snprintf(name, sizeof(name), "parts/%s", dir);
    workplace_make_dir(w, name);
    strcat(name, "/model.safetensors");
    workplace_write(w, name, p.text, p.bytes);
    free(planes);
    free(p.text);
}

/* parts/: of the run's third step. */
static int take_apart(void **state)
{
    const struct workplace *w;
    struct st_checkpoint *ck;
    struct parts header;
    struct program p;
    char path[ST_PATH_MAX];

    workplace_setup(state);
    w = *state;
    workplace_write(w, "run.json", CONFIG, strlen(CONFIG));
    workplace_run_ok(w, &p, TRAIN "--max-steps 3 --save {w}/a");
    program_free(&p);
    workplace_run_ok(w, &p, "export {w}/a --out {w}/hf --quiet");
    program_free(&p);
    workplace_make_dir(w, "parts");
    workplace_make_dir(w, "parts/fp32");
    header.text = workplace_read(w, "hf/model.safetensors", &header.bytes);
    memcpy(&header.data, header.text, sizeof(header.data));
    header.data += 8;
    workplace_write(w, "parts/fp32/model.safetensors", header.text, header.bytes);
    snprintf(path, sizeof(path), "%s/a/step-00000003", w->path);
    assert_int_equal(st_checkpoint_open(&ck, path), STRATA_OK);
    assert_int_equal(ck->manifest.train.sequences, 6);
    write_moment(w, ck, &header, ST_PLANE_MOMENT1, "exp_avg");
    write_moment(w, ck, &header, ST_PLANE_MOMENT2, "exp_avg_sq");
    workplace_write(w, "parts/state.json", STATE, strlen(STATE));
    st_checkpoint_close(ck);
    free(header.text);
    return 0;
}

TEST(an_imported_run_has_the_same_bits)
{
    const struct workplace *w = *state;
    char was[160], is[160];
    struct program p;

    workplace_run_ok(w, &p, IMPORT);
    program_free(&p);
    workplace_run_ok(w, &p, "verify {w}/b/step-00000003");
    program_free(&p);
    workplace_digests(w, TRAIN "--max-steps 6 --resume {w}/a", was);
    workplace_digests(w, TRAIN "--max-steps 6 --resume {w}/b", is);
    assert_string_equal(is, was);
    workplace_digests(w, TRAIN "--max-steps 6 --save {w}/b --resume auto", is);
    assert_string_equal(is, was);
    workplace_remove(w, "b");
}

/* In each precision and format of moments, and with weights that are not trained. */
TEST(every_format_goes_on)
{
    const struct workplace *w = *state;
    static const char *const how[] = {
        "--set bf16.enabled=true",
        "--set fp16.enabled=true",
        "--set bf16.enabled=true --set strata.moments=8bit",
        "--set bf16.enabled=true --set strata.moments=bf16",
        "--set 'strata.freeze=[\"transformer.h.0.*\",\"transformer.wpe.*\"]' --set bf16.enabled=true",
    };
    char command[512];
    struct program p;

    for (size_t i = 0; i < sizeof(how) / sizeof(how[0]); i++) {
        snprintf(command, sizeof(command), IMPORT "%s", how[i]);
        workplace_run_ok(w, &p, command);
        program_free(&p);
        workplace_run_ok(w, &p, "verify {w}/b");
        program_free(&p);
        snprintf(command, sizeof(command), TRAIN "%s --max-steps 4 --resume {w}/b", how[i]);
        workplace_run_ok(w, &p, command);
        program_free(&p);
        workplace_remove(w, "b");
    }
}

/* --- adapters --- */

#define LORA "tests/golden/deepspeed_lora/" /* tools/make_golden_deepspeed.py */

/* A plane of each trained tensor is what the file of parts has. */
static void compare_plane(const struct workplace *w, const struct st_checkpoint *ck, enum st_plane plane, const char *dir)
{
    char name[96], *set = workplace_read(w, "lora/step-00000003/set.0", NULL);
    unsigned char *values;
    struct parts p;
    uint32_t compared = 0;
    FILE *file;

    snprintf(name, sizeof(name), LORA "parts/%s/model.safetensors", dir);
    assert_non_null(file = fopen(name, "rb"));
    assert_int_equal(fseek(file, 0, SEEK_END), 0);
    p.bytes = (size_t)ftell(file);
    assert_non_null(p.text = calloc(1, p.bytes + 1));
    rewind(file);
    assert_int_equal(fread(p.text, 1, p.bytes, file), p.bytes);
    fclose(file);
    memcpy(&p.data, p.text, sizeof(p.data));
    p.data += 8;
    for (uint32_t i = 0; i < ck->manifest.tensor_count; i++) {
        const struct st_manifest_tensor *t = &ck->manifest.tensors[i];

        if (strstr(t->name, ".lora_") == NULL && strcmp(t->name, "lm_head.weight") != 0)
            continue;
        assert_non_null(values = malloc(t->elems * 4));
        copy_part(values, ck, set, t, plane);
        assert_memory_equal(values, p.text + place_of(&p, t->name), t->elems * 4);
        free(values);
        compared++;
    }
    assert_int_equal(compared, 3);
    free(p.text);
    free(set);
}

/* What the two merged models are, by `strata digest`. */
static void same_models(const struct workplace *w)
{
    struct program one, other;

    workplace_run_ok(w, &one, "digest {w}/one");
    workplace_run_ok(w, &other, "digest {w}/other");
    assert_true(strlen(one.out) > 32);
    assert_memory_equal(one.out, other.out, 32);
    program_free(&one);
    program_free(&other);
}

/* Tokens of a vocabulary of 32. */
static void write_few(const struct workplace *w)
{
    static struct {
        uint32_t header[256];
        uint16_t tokens[600];
    } file = {.header = {20240520, 1, 600}};

    for (size_t i = 0; i < 600; i++)
        file.tokens[i] = (uint16_t)(i * i % 31);
    workplace_write(w, "few.bin", &file, sizeof(file));
}

/* A run of DeepSpeed that trained adapters beside frozen weights: A, B and what modules_to_save names, their moments and the
 * step, are what the run had; the frozen weights are the model's; and it goes on. */
TEST(a_run_that_trained_adapters_goes_on)
{
    static const struct {
        enum st_plane plane;
        const char *dir;
    } planes[] = {{ST_PLANE_WEIGHT, "fp32"}, {ST_PLANE_MOMENT1, "exp_avg"}, {ST_PLANE_MOMENT2, "exp_avg_sq"}};
    const struct workplace *w = *state;
    struct st_checkpoint *ck;
    struct program p;
    char path[ST_PATH_MAX];

    write_few(w);
    workplace_run_ok(w, &p, "import " LORA "parts --model " LORA "base --config {w}/run.json --out {w}/lora --quiet");
    program_free(&p);
    workplace_run_ok(w, &p, "verify {w}/lora");
    program_free(&p);
    snprintf(path, sizeof(path), "%s/lora/step-00000003", w->path);
    assert_int_equal(st_checkpoint_open(&ck, path), STRATA_OK);
    assert_int_equal(ck->manifest.train.steps_applied, 3);
    assert_int_equal(ck->manifest.train.sequences, 6);
    for (size_t i = 0; i < sizeof(planes) / sizeof(planes[0]); i++)
        compare_plane(w, ck, planes[i].plane, planes[i].dir);
    st_checkpoint_close(ck);
    workplace_run_ok(w, &p, "export {w}/lora --out {w}/exported --quiet");
    program_free(&p);
    workplace_run_ok(w, &p, "export --merge --model " LORA "base --adapter {w}/exported --out {w}/one --quiet");
    program_free(&p);
    workplace_run_ok(w, &p, "export --merge --model " LORA "base --adapter " LORA "adapter --out {w}/other --quiet"); /* PEFT's */
    program_free(&p);
    same_models(w);
    workplace_run_ok(w, &p,
                     "train --model " LORA "base --adapter " LORA
                     "adapter --data {w}/few.bin --seq-len 16 --machine {w}/machine.json "
                     "--config {w}/run.json --quiet --max-steps 5 --resume {w}/lora --save {w}/lora");
    program_free(&p);
    assert_true(workplace_exists(w, "lora/step-00000005"));
}

/* --- who watches --- */

struct watcher {
    uint64_t stop_at; /* ends the import there; 0: never */
    uint64_t calls, done, total;
};

static bool watch(void *ctx, const char *what, uint64_t done, uint64_t total)
{
    struct watcher *w = ctx;

    assert_string_equal(what, "importing");
    assert_true(w->calls == 0 ? done == 0 : done > w->done && total == w->total);
    w->calls++;
    w->done = done;
    w->total = total;
    return w->stop_at == 0 || done < w->stop_at;
}

/* The model's progress function hears of every value once, and may end the import: then nothing stays. */
TEST(an_import_is_watched_and_ended)
{
    const struct workplace *w = *state;
    struct watcher seen = {0};
    struct strata_config_opts config_opts = STRATA_CONFIG_OPTS_INIT;
    struct strata_model_opts model_opts = STRATA_MODEL_OPTS_INIT;
    struct strata_model_info info = STRATA_MODEL_INFO_INIT;
    struct strata_config *config;
    struct strata_model *model;
    char hf[96], parts[96], save[96], path[4096];

    snprintf(hf, sizeof(hf), "%s/hf", w->path);
    snprintf(parts, sizeof(parts), "%s/parts", w->path);
    snprintf(save, sizeof(save), "%s/b", w->path);
    config_opts.text = CONFIG;
    model_opts.model = hf;
    model_opts.use = STRATA_USE_PLAN;
    model_opts.progress = watch;
    model_opts.progress_ctx = &seen;
    assert_int_equal(strata_config_open(&config, &config_opts), STRATA_OK);
    assert_int_equal(strata_model_open(&model, config, &model_opts), STRATA_OK);
    assert_int_equal(strata_model_get_info(model, &info), STRATA_OK);
    assert_int_equal(strata_import(model, parts, save, NULL, path), STRATA_OK);
    assert_true(seen.calls > 2 && seen.done == seen.total && seen.total == info.params);
    workplace_remove(w, "b");
    seen = (struct watcher){.stop_at = info.params / 2};
    assert_int_equal(strata_import(model, parts, save, NULL, path), STRATA_E_CANCELLED);
    assert_true(seen.done >= seen.stop_at && seen.done < seen.total); /* at once */
    assert_false(workplace_exists(w, "b"));
    strata_model_close(model);
    strata_config_close(config);
}

/* --- what is refused --- */

static void expect_refusal(const struct workplace *w, const char *command, int code, const char *sentence)
{
    struct program p;

    workplace_run(w, &p, command);
    if (p.code != code || strstr(p.err, sentence) == NULL)
        fail_msg("%s: exit code %d\n%s\nexpected %d, %s", command, p.code, p.err, code, sentence);
    program_free(&p);
    assert_false(workplace_exists(w, "b")); /* nothing stays */
}

/* Puts `to` in the place of a text of the same length in a file's header, and asks; then the file is as it was. */
static void with_header(const struct workplace *w, const char *name, const char *from, const char *to, const char *sentence)
{
    size_t bytes;
    char *text = workplace_read(w, name, &bytes), *at = strstr(text + 8, from);

    assert_int_equal(strlen(from), strlen(to));
    assert_non_null(at);
    memcpy(at, to, strlen(to));
    workplace_write(w, name, text, bytes);
    expect_refusal(w, IMPORT, 2, sentence);
    memcpy(at, from, strlen(from));
    workplace_write(w, name, text, bytes);
    free(text);
}

TEST(tensors_are_refused_by_name)
{
    const struct workplace *w = *state;

    with_header(w, "parts/exp_avg/model.safetensors", "\"transformer.h.1.ln_1.bias\"", "\"transformer.h.1.ln_9.bias\"",
                "parts/exp_avg/model.safetensors: tensor transformer.h.1.ln_9.bias has no place");
    with_header(w, "parts/exp_avg_sq/model.safetensors", "\"transformer.h.1.ln_1.bias\"", "\"transformer.h.1.attn.bias\"",
                "parts/exp_avg_sq: tensor transformer.h.1.ln_1.bias is missing"); /* a buffer's name */
    with_header(w, "parts/fp32/model.safetensors", "\"shape\":[1536,384]", "\"shape\":[384,1536]", "has shape [384, 1536]");
}

static void with_value(const struct workplace *w, const char *name, uint32_t value, const char *sentence)
{
    size_t bytes;
    char *text = workplace_read(w, name, &bytes);
    uint32_t was;

    memcpy(&was, text + bytes - 4, 4);
    memcpy(text + bytes - 4, &value, 4);
    workplace_write(w, name, text, bytes);
    expect_refusal(w, IMPORT, 2, sentence);
    memcpy(text + bytes - 4, &was, 4);
    workplace_write(w, name, text, bytes);
    free(text);
}

TEST(values_are_refused_by_name)
{
    const struct workplace *w = *state;

    with_value(w, "parts/fp32/model.safetensors", 0x7f800000u, "fp32 of tensor transformer.");
    with_value(w, "parts/exp_avg/model.safetensors", 0x7fc00000u, "exp_avg of tensor transformer.");
    with_value(w, "parts/exp_avg_sq/model.safetensors", 0xbf800000u, "exp_avg_sq of tensor transformer.");
}

TEST(states_are_refused)
{
    const struct workplace *w = *state;
    static const char *const states[][2] = {
        {"{", "state.json"},
        {"{\"format\": 2}", "\"format\" is no such number"},
        {"{\"format\": 1, \"steps\": 1e300}", "\"steps\" is no such number"},
        {"{\"format\": 1, \"steps\": 0, \"skipped_steps\": 0, \"samples\": 0}", "\"steps\" is 0"},
        {"{\"format\": 1, \"steps\": 3, \"skipped_steps\": 0}", "\"samples\" is no such number"},
    };

    for (size_t i = 0; i < sizeof(states) / sizeof(states[0]); i++) {
        workplace_write(w, "parts/state.json", states[i][0], strlen(states[i][0]));
        expect_refusal(w, IMPORT, 2, states[i][1]);
    }
    workplace_write(w, "parts/state.json", STATE, strlen(STATE));
    expect_refusal(w, IMPORT "--set optimizer.type=Lion", 2, "the moments of Adam and AdamW");
    expect_refusal(w, "import {w}/parts --model nano --config {w}/run.json --out {w}/b", 2, "is a preset");
    expect_refusal(w, "import {w}/parts --model {w}/a --config {w}/run.json --out {w}/b", 2, "is a checkpoint");
    expect_refusal(w, "import {w}/nowhere --model {w}/hf --config {w}/run.json --out {w}/b", 2, "nowhere");
}

TEST(scales_are_taken_and_refused)
{
#define SCALE(members) "{\"format\": 1, \"steps\": 3, \"skipped_steps\": 1, \"samples\": 8, \"loss_scaler\": {" members "}}"
    const struct workplace *w = *state;
    static const char good[] = SCALE("\"scale\": 256, \"iteration\": 4, \"last_overflow\": 1, \"hysteresis_left\": 1");
    static const char *const bad[][2] = {
        {SCALE("\"scale\": 0, \"iteration\": 4, \"last_overflow\": 1, \"hysteresis_left\": 1"), "is no scale"},
        {SCALE("\"scale\": 256, \"iteration\": 4, \"last_overflow\": -3, \"hysteresis_left\": 1"), "is no step"},
        {SCALE("\"scale\": 256, \"iteration\": 4, \"last_overflow\": 1, \"hysteresis_left\": 99"), "is no such number"},
        {SCALE("\"scale\": 256, \"last_overflow\": 1, \"hysteresis_left\": 1"), "is no such number"},
    };
    struct st_checkpoint *ck;
    struct program p;
    char path[ST_PATH_MAX];

    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        workplace_write(w, "parts/state.json", bad[i][0], strlen(bad[i][0]));
        expect_refusal(w, IMPORT "--set fp16.enabled=true", 2, bad[i][1]);
    }
    workplace_write(w, "parts/state.json", good, strlen(good));
    workplace_run_ok(w, &p, IMPORT "--set fp16.enabled=true");
    assert_non_null(strstr(p.out, "/b/step-00000004: the run after 4 steps and 8 sequences; "));
    program_free(&p);
    snprintf(path, sizeof(path), "%s/b/step-00000004", w->path); /* the skipped one counts */
    assert_int_equal(st_checkpoint_open(&ck, path), STRATA_OK);
    assert_true(ck->manifest.train.scaler.scale == 256);
    assert_int_equal(ck->manifest.train.scaler.iteration, 4);
    assert_int_equal(ck->manifest.train.scaler.last_overflow, 1);
    st_checkpoint_close(ck);
    workplace_remove(w, "b");
    workplace_write(w, "parts/state.json", STATE, strlen(STATE));
#undef SCALE
}

/* A checkpoint that is there stays; nothing stays of one that could not be made. */
TEST(failures_leave_what_was)
{
    const struct workplace *w = *state;
    static const char *const sites[] = {"make.rows", "make.sums", "make.values", "commit.mkdir", "store.rename", "file.write:2"};
    char command[512];
    struct program p;

    for (size_t i = 0; i < sizeof(sites) / sizeof(sites[0]); i++) {
        snprintf(command, sizeof(command), IMPORT "--fault %s", sites[i]);
        workplace_run(w, &p, command);
        if (p.code == 0 || workplace_exists(w, "b"))
            fail_msg("%s: exit code %d, %d entries\n%s", command, p.code, workplace_entries(w, "b"), p.err);
        program_free(&p);
    }
    for (int read = 0; read < 8; read++) { /* of every file, whichever is read */
        snprintf(command, sizeof(command), IMPORT "--fault file.read:%d:1:-5", read);
        expect_refusal(w, command, 4, "Input/output error");
    }
    expect_refusal(w, IMPORT "--fault file.reserve:0:1:-28", 3, "No space");
    expect_refusal(w, IMPORT "--fault file.write:2:1:-28", 4, "No space");
    workplace_run_ok(w, &p, IMPORT);
    program_free(&p);
    workplace_run(w, &p, IMPORT);
    assert_int_equal(p.code, 2);
    assert_non_null(strstr(p.err, "exists already"));
    program_free(&p);
    workplace_run_ok(w, &p, IMPORT "--overwrite");
    assert_non_null(strstr(p.out, "b/step-00000003: the run after 3 steps and 6 sequences"));
    program_free(&p);
    workplace_remove(w, "b");
    workplace_make_dir(w, "b");
    workplace_make_dir(w, "b/latest"); /* which is for people */
    workplace_run_ok(w, &p, IMPORT);
    assert_non_null(strstr(p.err, "b/latest: is a directory, not a file; the checkpoint of step 3 is whole"));
    assert_non_null(strstr(p.out, "b/step-00000003: the run after 3 steps and 6 sequences"));
    program_free(&p);
    workplace_remove(w, "b");
}

/* A directory has the checkpoints of one run, and they lie in no input: before the parts are read, and nothing changes. */
TEST(another_runs_directory_is_refused)
{
    const struct workplace *w = *state;
    struct program p;

    workplace_make_dir(w, "c");
    workplace_make_dir(w, "c/step-00000020");
    workplace_run(w, &p, IMPORT_TO "{w}/c --overwrite");
    if (p.code != 2 || strstr(p.err, "later steps already (step-00000020)") == NULL || strstr(p.err, "with --out") == NULL)
        fail_msg("exit code %d\n%s", p.code, p.err);
    program_free(&p);
    workplace_make_dir(w, "c/step-00000003");
    workplace_remove(w, "c/step-00000020");
    workplace_run(w, &p, IMPORT_TO "{w}/c");
    if (p.code != 2 || strstr(p.err, "step-00000003 exists already, and is kept: replace it with --overwrite") == NULL)
        fail_msg("exit code %d\n%s", p.code, p.err);
    program_free(&p);
    assert_int_equal(workplace_entries(w, "c"), 1);
    workplace_remove(w, "c");
    expect_refusal(w, IMPORT_TO "{w}/parts", 2, "parts is the same directory as ");
    expect_refusal(w, IMPORT_TO "{w}/hf/", 2, "hf/ is the same directory as ");
}

TEST_GROUP(take_apart, workplace_teardown);
