/* tests/cli/test_ranks_options.c - ranks that the command line names, not a launcher's variables: the run of one process, a trace
 * of each, warnings under a rank's name; what rank 0 finds wrong with a checkpoint is said to all; data that one process alone
 * reads; and the plan that is printed is the one that runs. */
#include "core/base/size.h"
#include "tests/cli/ranks.h"
#include "tests/common/free_port.h"
#include "tests/common/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define RUN "train --model nano --data {w}/good.bin --seq-len 32 --machine {w}/machine.json --threads 1 --quiet --digest "
#define ON_DISK                                                                                                                  \
    "--set zero_optimization.offload_optimizer.device=nvme --set zero_optimization.stage=1 --set strata.cache=0 --nvme "         \
    "{w}/nvme "

/* Two processes that their options make ranks of one run; all of it on this machine where `local`. */
static void run_two(const struct workplace *w, struct program p[2], const char *options, bool local)
{
    const unsigned port = free_port();
    char command[1024], here[64] = "";

    for (unsigned k = 0; k < 2; k++) {
        if (local)
            snprintf(here, sizeof(here), " --local-rank %u --local-world-size 2", k);
        snprintf(command, sizeof(command), "%s --rank %u --world-size 2 --master-addr 127.0.0.1 --master-port %u%s --comm tcp",
                 options, k, port, here);
        workplace_start(w, &p[k], command);
    }
    for (unsigned k = 0; k < 2; k++)
        program_collect(&p[k]);
}

static void free_two(struct program p[2])
{
    program_free(&p[0]);
    program_free(&p[1]);
}

TEST(options_name_the_ranks)
{
    static const char same[] = RUN ON_DISK "--max-steps 2 --set strata.leaves=2 ";
    const struct workplace *w = *state;
    struct program one, two[2];

    workplace_run_ok(w, &one, RUN "--max-steps 2 --micro-batch 1 --grad-accum 2 --set strata.leaves=2");
    for (int local = 0; local < 2; local++) {
        run_two(w, two, same, local == 1);
        for (unsigned k = 0; k < 2; k++)
            if (two[k].code != 0)
                fail_msg("rank %u: exit code %d: %s", k, two[k].code, two[k].err);
        ranks_must_say(two[0].out, one.out); /* both digests */
        assert_string_equal(two[1].out, "");
        free_two(two);
    }
    program_free(&one);
}

/* Steps of a trace. */
static uint32_t steps_of(const struct workplace *w, const char *name)
{
    size_t bytes;
    char *text = workplace_read(w, name, &bytes);
    uint32_t count = 0;

    for (const char *at = text; (at = strstr(at, "\"cat\":\"step\"")) != NULL; at++)
        count++;
    free(text);
    return count;
}

/* Of metrics there is one file, rank 0's. */
TEST(each_rank_has_a_trace)
{
    const struct workplace *w = *state;
    struct program two[2];

    run_two(w, two, RUN "--max-steps 3 --trace {w}/t.json --metrics {w}/m.jsonl --json", true);
    assert_int_equal(two[0].code, 0);
    assert_int_equal(two[1].code, 0);
    assert_string_equal(two[1].out, "");
    free_two(two);
    assert_int_equal(steps_of(w, "t.json"), 4); /* and what is left to do after the last */
    assert_int_equal(steps_of(w, "t.json.rank1"), 4);
    assert_true(workplace_exists(w, "m.jsonl"));
    assert_false(workplace_exists(w, "m.jsonl.rank1"));
    workplace_remove(w, "t.json");
    workplace_remove(w, "t.json.rank1");
    workplace_remove(w, "m.jsonl");
}

/* Of a rank that is not the first, under its name; its notices are rank 0's, too. */
TEST(a_warning_names_its_rank)
{
    const struct workplace *w = *state;
    struct ranks r = {0};

    ranks_run(w, &r, 2, RUN ON_DISK "--max-steps 1", "--fault nvme.direct");
    ranks_must_say(r.programs[1].err, "strata: rank 1: warning: ");
    ranks_must_say(r.programs[1].err, "no direct I/O here");
    assert_null(strstr(r.programs[0].err, "no direct I/O"));
    assert_null(strstr(r.programs[1].err, "notice"));
    assert_int_equal(r.programs[0].code, 0);
    assert_int_equal(r.programs[1].code, 0);
    ranks_free(&r);
}

TEST(a_pipe_is_one_processs)
{
    static const char *const rows[][2] = {
        {"{w}/good.bin --eval-data {w}/text.txt", "--eval-data "},
        {"{w}/good.bin --eval-data {w}/text.txt", "/text.txt, a pipe, is read by one process, and there are 2: make a "},
        {"-", "--data - is read by one process, and there are 2: make a token file"},
        {"{w}/text.txt", "/text.txt, a pipe, is read by one process, and there are 2: make a "}};
    const struct workplace *w = *state;
    char *path = workplace_expand(w, "{w}/text.txt");

    assert_int_equal(mkfifo(path, 0600), 0);
    free(path);
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct ranks r = {0};
        char command[256];

        snprintf(command, sizeof(command),
                 "train --model nano --data %s --seq-len 32 --machine {w}/machine.json --max-steps 1 --quiet", rows[i][0]);
        ranks_run(w, &r, 2, command, "");
        for (uint32_t k = 0; k < 2; k++) { /* the second may hear of it by the first one's end */
            assert_int_equal(r.programs[k].code, 2);
            ranks_must_say(r.programs[k].err, rows[i][1]);
        }
        ranks_free(&r);
    }
    workplace_remove(w, "text.txt");
}

static void spoil(const struct workplace *w, const char *name, size_t at)
{
    size_t bytes;
    char *text = workplace_read(w, name, &bytes);

    assert_true(at < bytes);
    text[at] ^= 8;
    workplace_write(w, name, text, bytes);
    free(text);
}

/* Each run is refused by all ranks with exit code 4; rank 0 says what it has found, the other that rank 0 did, in one of two
 * ways. */
static void all_refuse(const struct workplace *w, const char *command, const char *first, const char *other)
{
    struct ranks r = {0};

    ranks_run(w, &r, 2, command, "");
    for (uint32_t k = 0; k < 2; k++)
        if (r.programs[k].code != 4)
            fail_msg("%s: rank %u: exit code %d: %s", command, k, r.programs[k].code, r.programs[k].err);
    ranks_must_say(r.programs[0].err, first);
    ranks_must_say(r.programs[1].err, other);
    ranks_free(&r);
}

/* A checkpoint that does not open, then one that opens and is damaged within, with no older one beside it. */
TEST(a_damaged_checkpoint_is_refused_by_all)
{
    const struct workplace *w = *state;
    struct ranks r = {0};

    ranks_run_ok(w, &r, 2, RUN "--max-steps 1 --save {w}/saved");
    ranks_free(&r);
    spoil(w, "saved/step-00000001/set.0", 5000);
    all_refuse(w, RUN "--max-steps 2 --resume {w}/saved", "set.0: checksum mismatch", "error: ");
    all_refuse(w, RUN "--max-steps 2 --save {w}/saved --resume auto", "set.0: checksum mismatch", "error: ");
    spoil(w, "saved/step-00000001/manifest.json", 20);
    all_refuse(w, RUN "--max-steps 2 --resume {w}/saved/step-00000001", "--resume: ", "rank 0");
    all_refuse(w, RUN "--max-steps 2 --save {w}/saved --resume auto", "none of its checkpoints opens", "rank 0");
    workplace_remove(w, "saved");
}

/* What one rank finds first, the others end with, too: a mistake of the command line, and a run that has diverged. */
TEST(a_verdict_ends_all_alike)
{
    static const struct {
        const char *command, *odd, *sentence;
        int code;
    } rows[] = {
        {RUN "--max-steps 1", "--data {w}/nosuch.bin", "nosuch.bin: No such file", 2},
        {RUN "--max-steps 1 --machine {w}/nosuch.json", "", "nosuch.json", 2},
        {RUN "--max-steps 3 --set fp16.enabled=true --set fp16.initial_scale_power=31", "", "no update was made", 5},
    };
    const struct workplace *w = *state;

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct ranks r = {0};

        ranks_run(w, &r, 4, rows[i].command, rows[i].odd);
        for (uint32_t k = 0; k < 4; k++) {
            if (r.programs[k].code != rows[i].code)
                fail_msg("%s: rank %u: exit code %d: %s", rows[i].command, k, r.programs[k].code, r.programs[k].err);
            ranks_must_say(r.programs[k].err, rows[i].sentence);
        }
        ranks_free(&r);
    }
}

/* A plan may be another one once all ranks' rates are known, and what is printed is the one that runs. */
TEST(the_plan_that_runs_is_printed)
{
    static const char key[] = "\"resident\":{\"device\":", then[] = ",\"host\":";
    const struct workplace *w = *state;
    struct program two[2];
    char device[24], host[24], line[128];
    size_t bytes;
    char *metrics, *at;

    run_two(
        w, two,
        "train --model nano --data {w}/good.bin --seq-len 32 --max-steps 1 --machine tests/machines/two-cores.json --threads 1 "
        "--micro-batch 1 --grad-accum 2 --set zero_optimization.stage=3 --set zero_optimization.offload_optimizer.device=nvme "
        "--set zero_optimization.offload_param.device=nvme --nvme {w}/nvme --device-memory 8MiB --host-memory 200MiB --metrics "
        "{w}/m.jsonl",
        true);
    for (unsigned k = 0; k < 2; k++)
        if (two[k].code != 0)
            fail_msg("rank %u: exit code %d: %s", k, two[k].code, two[k].err);
    metrics = workplace_read(w, "m.jsonl", &bytes);
    assert_non_null(at = strstr(metrics, key));
    st_size_text(device, strtoull(at + strlen(key), &at, 10));
    assert_int_equal(strncmp(at, then, strlen(then)), 0);
    st_size_text(host, strtoull(at + strlen(then), NULL, 10));
    snprintf(line, sizeof(line), "\n  needed%31s%13s ", device, host);
    ranks_must_say(two[0].out, line);
    free(metrics);
    free_two(two);
    workplace_remove(w, "m.jsonl");
}

TEST_GROUP(workplace_setup, workplace_teardown);
