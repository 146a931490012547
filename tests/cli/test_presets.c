/* tests/cli/test_presets.c - every file below configs/ trains two steps with --model, --data, --max-steps and --nvme added
 * (and a short sequence), and the presets of one precision end in the same bits, wherever their state lies. */
#include "tests/cli/program.h"
#include "tests/cli/workplace.h"
#include "tests/common/test.h"

#include <fnmatch.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FILES_MAX  64
#define DIGEST_LEN 32
#define LINE                                                                                                                     \
    "train --model nano --data {w}/good.bin --max-steps 2 --nvme {w}/nvme --seq-len 32 --machine {w}/machine.json --metrics "    \
    "{w}/metrics.jsonl --digest --config %s"

struct presets {
    struct workplace workplace;
    char *files[FILES_MAX];
    size_t count;
};

static struct presets presets;

static int take_file(const char *path, const struct stat *info, int kind, struct FTW *ftw)
{
    (void)info;
    (void)ftw;
    if (kind != FTW_F || fnmatch("*.json", path, 0) != 0)
        return 0;
    assert_true(presets.count < FILES_MAX);
    presets.files[presets.count++] = strdup(path);
    return 0;
}

static void run(struct program *p, const char *file)
{
    char command[512];

    snprintf(command, sizeof(command), LINE, file);
    workplace_run(&presets.workplace, p, command);
}

/* The member of that name in the last line of the metrics; "" if it is not there. */
static void last_text(char out[DIGEST_LEN + 1], const char *name)
{
    size_t bytes;
    char *text = workplace_read(&presets.workplace, "metrics.jsonl", &bytes);
    char key[64], *at;

    snprintf(key, sizeof(key), "\"%s\":\"", name);
    at = strstr(text, key);
    snprintf(out, DIGEST_LEN + 1, "%s", at != NULL ? at + strlen(key) : "");
    free(text);
}

/* Trains with one file; its digest of weights and state. */
static void train(const char *file, char digests[2][DIGEST_LEN + 1])
{
    struct program p;

    run(&p, file);
    if (p.code != 0 || strstr(p.out, "done: 2 steps") == NULL)
        fail_msg("%s: exit code %d\n%s%s", file, p.code, p.out, p.err);
    program_free(&p);
    assert_int_equal(workplace_entries(&presets.workplace, "nvme"), 0);
    last_text(digests[0], "weights_digest");
    last_text(digests[1], "state_digest");
    assert_int_equal(strlen(digests[0]), DIGEST_LEN);
    assert_int_equal(strlen(digests[1]), DIGEST_LEN);
    workplace_remove(&presets.workplace, "metrics.jsonl");
}

/* The shapes that XTuner had earlier ask for fp16; what is not a preset has an optimizer of its own. */
static bool is_fp16(const char *file)
{
    return fnmatch("*/deepspeed_zero*_nvme.json", file, 0) == 0;
}

static bool is_preset(const char *file)
{
    return fnmatch("configs/*/*", file, 0) == 0;
}

static void train_all(bool fp16)
{
    char first[2][DIGEST_LEN + 1] = {"", ""};
    size_t trained = 0;

    for (size_t i = 0; i < presets.count; i++) {
        char digests[2][DIGEST_LEN + 1];

        if (is_fp16(presets.files[i]) != fp16)
            continue;
        train(presets.files[i], digests);
        trained++;
        if (!is_preset(presets.files[i]))
            continue;
        if (first[0][0] == '\0')
            memcpy(first, digests, sizeof(first));
        if (memcmp(first, digests, sizeof(first)) != 0)
            fail_msg("%s: weights %s state %s, not %s %s", presets.files[i], digests[0], digests[1], first[0], first[1]);
    }
    assert_true(trained >= (fp16 ? 2u : 5u));
}

TEST(bf16_files_train)
{
    train_all(false);
}

TEST(fp16_files_train)
{
    train_all(true);
}

static int setup(void **state)
{
    (void)state;
    workplace_create(&presets.workplace);
    return nftw("configs", take_file, 8, FTW_PHYS);
}

static int teardown(void **state)
{
    (void)state;
    for (size_t i = 0; i < presets.count; i++)
        free(presets.files[i]);
    workplace_destroy(&presets.workplace);
    return 0;
}

TEST_GROUP(setup, teardown);
