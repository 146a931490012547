/* tests/cli/test_saved_adapters.c - checkpoints of runs that train adapters: the frozen base is written once and linked into
 * each, a set holds adapters and their state alone, and a run goes on from it anywhere. */
#include "tests/cli/program.h"
#include "tests/cli/ranks.h"
#include "tests/cli/workplace.h"
#include "tests/common/test.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define TRAIN  "train --data {w}/good.bin --seq-len 32 --machine {w}/machine.json --lora {w}/lora.json --digest --quiet "
#define SAVING "--save {w}/save --save-every 1 --keep 2 --resume auto "
#define DRIVE                                                                                                                    \
    "--nvme {w}/nvme --set zero_optimization.stage=3 --set zero_optimization.offload_optimizer.device=nvme "                     \
    "--set zero_optimization.offload_param.device=nvme --set strata.cache=0 --device-memory 20MiB "

/* The linear weights of a block are 786,432 of nano and 737,280 of nano-llama; adapters of rank 2 take 12 bytes a value, in all.
 */
static const struct {
    const char *options;
    off_t base_least, set_most;
} cases[] = {
    {"--model nano ", 1572864, 400000},
    {"--model nano " DRIVE, 1572864, 400000},
    {"--model nano-llama --set strata.quantization=nf4 ", 414720, 400000},
    {"--model nano-llama --set strata.quantization=nf4 " DRIVE, 414720, 400000},
};

static int setup(void **state)
{
    static const char lora[] = "{\"r\": 2, \"lora_alpha\": 4, \"target_modules\": \"all-linear\"}";

    if (workplace_setup(state) != 0)
        return -1;
    workplace_write(*state, "lora.json", lora, strlen(lora));
    return 0;
}

static struct stat stat_of(const struct workplace *w, const char *name)
{
    char *path = workplace_expand(w, name);
    struct stat info;

    assert_int_equal(stat(path, &info), 0);
    free(path);
    return info;
}

static void command_of(char out[1024], size_t i, const char *more)
{
    snprintf(out, 1024, TRAIN "%s%s", cases[i].options, more);
}

TEST(the_base_is_written_once)
{
    const struct workplace *w = *state;

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct stat bases[2], set;
        char command[1024];
        struct program p;

        command_of(command, i, SAVING "--max-steps 3");
        workplace_run_ok(w, &p, command);
        program_free(&p);
        bases[0] = stat_of(w, "{w}/save/step-00000002/base.0");
        bases[1] = stat_of(w, "{w}/save/step-00000003/base.0");
        set = stat_of(w, "{w}/save/step-00000003/set.0");
        assert_int_equal(bases[0].st_ino, bases[1].st_ino);
        if (bases[0].st_size < cases[i].base_least || set.st_size > cases[i].set_most)
            fail_msg("%s: the base has %lld bytes, the set %lld", command, (long long)bases[0].st_size, (long long)set.st_size);
        workplace_remove(w, "save");
    }
}

/* From memory to a drive and back: the bits of a run that never ended. */
TEST(a_run_goes_on_anywhere)
{
    const struct workplace *w = *state;

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char command[1024], whole[160], resumed[160];
        struct program p;

        command_of(command, i, "--max-steps 4");
        workplace_digests(w, command, whole);
        command_of(command, i, SAVING "--max-steps 2");
        workplace_run_ok(w, &p, command);
        program_free(&p);
        command_of(command, i ^ 1, SAVING "--max-steps 4");
        workplace_digests(w, command, resumed);
        assert_string_equal(resumed, whole);
        workplace_run_ok(w, &p, "verify {w}/save");
        program_free(&p);
        workplace_remove(w, "save");
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

/* A byte of the base, and one of an adapter: verify names the place, and no run goes on from it. */
TEST(damage_is_found)
{
    static const char *const files[] = {"base.0", "set.0"};
    const struct workplace *w = *state;

    for (size_t i = 0; i < 4; i++) {
        char command[1024], name[64];
        struct program p;

        command_of(command, i / 2 * 2, SAVING "--max-steps 2");
        workplace_run_ok(w, &p, command);
        program_free(&p);
        snprintf(name, sizeof(name), "{w}/save/step-00000002/%s", files[i % 2]);
        flip(w, name, i % 2 == 0 ? 100000 : 100);
        workplace_run(w, &p, "verify {w}/save/step-00000002");
        if (p.code != 4 || strstr(p.out, files[i % 2]) == NULL)
            fail_msg("%s: exit code %d\n%s%s", files[i % 2], p.code, p.out, p.err);
        program_free(&p);
        command_of(command, i / 2 * 2, "--max-steps 3 --resume {w}/save/step-00000002");
        workplace_run(w, &p, command);
        assert_int_equal(p.code, 4);
        program_free(&p);
        workplace_remove(w, "save");
    }
}

/* A checkpoint knows the weights that its adapter was trained beside, however it stores them. */
TEST(an_adapter_is_merged_into_its_own_base)
{
    static const struct {
        const char *model, *options;
    } runs[] = {
        {"nano", ""},
        {"nano", "--set strata.quantization=nf4"},
        {"nano-llama", "--set bf16.enabled=false"},
        {"nano-llama", "--set bf16.enabled=false --set fp16.enabled=true"},
        {"nano-llama", "--set strata.quantization=nf4"},
        {"nano-llama", "--set strata.quantization=nf4-double"},
    };
    const struct workplace *w = *state;

    for (size_t i = 0; i < sizeof(runs) / sizeof(runs[0]); i++) {
        char command[1024];
        struct program p;

        for (unsigned seed = 1; seed <= 2; seed++) {
            snprintf(command, sizeof(command),
                     "train --data {w}/good.bin --seq-len 32 --machine {w}/machine.json --quiet --max-steps 1 --set "
                     "bf16.enabled=false "
                     "--model %s --seed %u --out {w}/base%u --overwrite",
                     runs[i].model, seed, seed);
            workplace_run_ok(w, &p, command);
            program_free(&p);
        }
        snprintf(command, sizeof(command), TRAIN "--model {w}/base1 --max-steps 1 --save {w}/save %s", runs[i].options);
        workplace_run_ok(w, &p, command);
        program_free(&p);
        workplace_run_ok(w, &p, "export --merge {w}/save --out {w}/merged");
        program_free(&p);
        workplace_run(w, &p, "export --merge {w}/save --model {w}/base2 --out {w}/merged2");
        if (p.code != 2 || strstr(p.err, "base2: tensor ") == NULL ||
            strstr(p.err, " differs from the one that the adapter of ") == NULL || workplace_exists(w, "merged2"))
            fail_msg("%s: exit code %d\n%s", command, p.code, p.err);
        program_free(&p);
        workplace_remove(w, "save");
        workplace_remove(w, "merged");
    }
}

/* The values of a tensor in a file of safetensors change sign, all that have one. */
static void negate(const struct workplace *w, const char *name, const char *tensor)
{
    unsigned long begin, end;
    size_t bytes;
    char *file = workplace_read(w, name, &bytes), *at;
    uint64_t header;

    memcpy(&header, file, sizeof(header));
    assert_true(header < bytes);
    at = memmem(file, header, tensor, strlen(tensor));
    assert_non_null(at);
    at = memmem(at, header, "\"F32\"", 5);
    assert_non_null(at);
    at = memmem(at, header, "\"data_offsets\":[", 16);
    assert_true(at != NULL && sscanf(at + 16, "%lu,%lu", &begin, &end) == 2 && end <= bytes - 8 - header && begin < end);
    for (unsigned long i = begin; i < end; i += sizeof(float))
        file[8 + header + i + 3] = (char)((unsigned char)file[8 + header + i + 3] ^ 0x80);
    workplace_write(w, name, file, bytes);
    free(file);
}

/* Weights that differ in one quantised matrix alone are others, too. */
TEST(one_matrix_of_another_base_is_told)
{
    static const struct {
        const char *model, *tensor;
    } rows[] = {{"nano", "h.1.mlp.c_fc.weight"}, {"nano-llama", "layers.1.mlp.up_proj.weight"}};
    const struct workplace *w = *state;

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        char command[1024], sentence[128];
        struct program p;

        snprintf(command, sizeof(command),
                 "train --data {w}/good.bin --seq-len 32 --machine {w}/machine.json --quiet --max-steps 1 --set "
                 "bf16.enabled=false --model %s --out {w}/base --overwrite",
                 rows[i].model);
        workplace_run_ok(w, &p, command);
        program_free(&p);
        workplace_run_ok(w, &p, TRAIN "--model {w}/base --max-steps 1 --save {w}/save --set strata.quantization=nf4");
        program_free(&p);
        workplace_run_ok(w, &p, "export --merge {w}/save --out {w}/merged");
        program_free(&p);
        workplace_remove(w, "merged");
        negate(w, "base/model.safetensors", rows[i].tensor);
        workplace_run(w, &p, "export --merge {w}/save --out {w}/merged");
        snprintf(sentence, sizeof(sentence), "%s differs from the one that the adapter of ", rows[i].tensor);
        if (p.code != 2 || strstr(p.err, sentence) == NULL || workplace_exists(w, "merged"))
            fail_msg("%s: exit code %d\n%s", rows[i].model, p.code, p.err);
        program_free(&p);
        workplace_remove(w, "save");
        workplace_remove(w, "base");
    }
}

/* GPT-2's matrices lie the other way round in nf4: a checkpoint is loaded as its run stored them, and goes on so. */
TEST(matrices_of_gpt2_stay_turned)
{
    static const char run[] = TRAIN "--model nano --set strata.quantization=nf4 ";
    const struct workplace *w = *state;
    char command[1024], whole[160], parts[160];
    struct program p;

    snprintf(command, sizeof(command), "%s --max-steps 4 --device-memory 20MiB", run);
    workplace_digests(w, command, whole);
    snprintf(command, sizeof(command), "%s --max-steps 2 --save {w}/save " DRIVE, run);
    workplace_run_ok(w, &p, command);
    program_free(&p);
    snprintf(command, sizeof(command), "%s --max-steps 4 --resume {w}/save", run);
    workplace_digests(w, command, parts);
    assert_string_equal(whole, parts);
    workplace_run_ok(w, &p, "eval --model {w}/save --data {w}/good.bin --seq-len 32 --set strata.quantization=nf4");
    program_free(&p);
    workplace_run(w, &p, "eval --model {w}/save --data {w}/good.bin --seq-len 32 --set strata.quantization=none");
    if (p.code != 2 || strstr(p.err, "its run stored matrices in nf4") == NULL)
        fail_msg("exit code %d\n%s", p.code, p.err);
    program_free(&p);
    workplace_remove(w, "save");
}

/* Saved by two ranks, whose batch is of both: one process exports, merges, evaluates and goes on from it. */
TEST(what_ranks_saved_is_read_by_one)
{
    static const char *const commands[] = {
        "export {w}/save --out {w}/adapter --quiet",
        "export {w}/save --merge --model {w}/base --out {w}/merged --quiet",
        "eval --model {w}/save --data {w}/good.bin --seq-len 32",
        TRAIN "--model {w}/base --max-steps 3 --resume {w}/save --grad-accum 2",
    };
    const struct workplace *w = *state;
    struct ranks r = {0};
    struct program p;

    workplace_run_ok(
        w, &p,
        "train --model nano --data {w}/good.bin --seq-len 32 --machine {w}/machine.json --max-steps 1 --quiet --out {w}/base");
    program_free(&p);
    ranks_run_ok(w, &r, 2, TRAIN "--model {w}/base --threads 1 --set train_batch_size=2 --max-steps 2 --save {w}/save");
    ranks_free(&r);
    for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++) {
        workplace_run_ok(w, &p, commands[i]);
        program_free(&p);
    }
    workplace_remove(w, "merged");
}

/* Weights of such a checkpoint are read with the adapter that they were saved with, and no other; and a run without one has none
 * to merge. */
TEST(a_saved_adapter_stays_with_its_weights)
{
#define EVAL "eval --model {w}/save --data {w}/good.bin --seq-len 32 "
    static const struct {
        const char *command, *sentence;
        int code;
    } rows[] = {
        {EVAL, "", 0},
        {EVAL "--set 'strata.lora={\"r\": 2, \"lora_alpha\": 4, \"target_modules\": \"all-linear\"}'", "", 0},
        {EVAL "--set 'strata.lora={\"r\": 2, \"lora_alpha\": 8, \"target_modules\": \"all-linear\"}'",
         "has an adapter already, with other settings than strata.lora", 2},
        {EVAL "--adapter tests/golden/adapters/gpt2_exact",
         "has an adapter already: merge that with strata export (--merge), or leave --adapter tests/golden/adapters/gpt2_exact "
         "out",
         2},
        {"export --merge {w}/plain --model {w}/base --out {w}/merged",
         "its run trained no adapter (strata.lora, --lora): export it without --merge", 2},
    };
    const struct workplace *w = *state;
    struct program p;

    workplace_remove(w, "save");
    workplace_remove(w, "base");
    workplace_run_ok(w, &p, TRAIN "--model nano --max-steps 1 --save {w}/save");
    program_free(&p);
    workplace_run_ok(w, &p,
                     "train --model nano --data {w}/good.bin --seq-len 32 --machine {w}/machine.json --max-steps 1 --quiet "
                     "--out {w}/base --save {w}/plain");
    program_free(&p);
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        workplace_run(w, &p, rows[i].command);
        if (p.code != rows[i].code || strstr(p.err, rows[i].sentence) == NULL)
            fail_msg("%s: exit code %d\n%s", rows[i].command, p.code, p.err);
        program_free(&p);
    }
    assert_false(workplace_exists(w, "merged"));
    workplace_remove(w, "save");
    workplace_remove(w, "plain");
    workplace_remove(w, "base");
#undef EVAL
}

TEST_GROUP(setup, workplace_teardown);
