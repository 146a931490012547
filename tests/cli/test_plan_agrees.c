/* tests/cli/test_plan_agrees.c - what a plan says of a run is what the run does: one that goes on from a checkpoint, one that
 * saves, one of several ranks, one of a machine of which a rate is not known. */
#include "core/json/json.h"
#include "tests/cli/program.h"
#include "tests/cli/ranks.h"
#include "tests/cli/workplace.h"
#include "tests/common/json_member.h"
#include "tests/common/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RUN  "--model nano --data {w}/good.bin --seq-len 32 --machine {w}/machine.json --device-memory 64M --host-memory 64M "
#define CARD "--machine {w}/card.json "
#define DAY  86400.0

/* The first line of what it says, or all of it. */
static st_json *json_of(const struct workplace *w, const char *command)
{
    struct program p;
    st_json *root;

    workplace_run_ok(w, &p, command);
    p.out[strcspn(p.out, "\n")] = '\0';
    assert_int_equal(st_json_parse(&root, p.out, strlen(p.out), "line"), STRATA_OK);
    program_free(&p);
    return root;
}

static char *text_of(const struct workplace *w, const char *command)
{
    struct program p;
    char *text;

    workplace_run_ok(w, &p, command);
    text = p.out;
    p.out = NULL;
    program_free(&p);
    return text;
}

/* tests/machines/card-24gb.json without a rate. */
static void put_card(const struct workplace *w, const char *without)
{
    char text[4096], *line;
    FILE *file = fopen("tests/machines/card-24gb.json", "r");
    size_t bytes;

    assert_non_null(file);
    bytes = fread(text, 1, sizeof(text) - 1, file);
    fclose(file);
    text[bytes] = '\0';
    line = without != NULL ? strstr(text, without) : NULL;
    if (line != NULL)
        memmove(line - 1, strchr(line, '\n'), strlen(strchr(line, '\n')) + 1);
    workplace_write(w, "card.json", text, strlen(text));
}

/* Its batch, and the sets that checkpoints take. */
TEST(a_run_that_goes_on_is_planned_as_it_runs)
{
    static const char *const tiers[] = {"device", "host", "nvme"};
    const struct workplace *w = *state;
    st_json *plan, *run;
    const st_json *ran;
    char *text;

    text = text_of(w, "train " RUN "--micro-batch 4 --max-steps 4 --save {w}/saved --save-every 2 --quiet");
    free(text);
    plan = json_of(w, "plan " RUN "--max-steps 8 --save {w}/saved --resume {w}/saved --json");
    run = json_of(w, "train " RUN "--max-steps 8 --save {w}/saved --resume {w}/saved --json --quiet");
    ran = st_json_get(st_json_get(run, "run"), "plan");
    assert_non_null(ran);
    for (size_t i = 0; i < 3; i++)
        assert_true(json_number(st_json_get(st_json_get(plan, "tiers"), tiers[i]), "needed") ==
                    json_number(st_json_get(st_json_get(ran, "tiers"), tiers[i]), "needed"));
    st_json_free(plan);
    st_json_free(run);
    /* checkpoints in another directory take no place in this one */
    plan = json_of(w, "plan " RUN "--max-steps 9 --save {w}/saved --resume {w}/saved --json");
    run = json_of(w, "plan " RUN "--max-steps 9 --save {w}/elsewhere --resume {w}/saved --json");
    assert_true(2 * json_number(st_json_get(st_json_get(plan, "tiers"), "nvme"), "needed") ==
                json_number(st_json_get(st_json_get(run, "tiers"), "nvme"), "needed"));
    st_json_free(plan);
    st_json_free(run);
    text = text_of(w, "plan " RUN "--max-steps 9 --save {w}/saved --resume auto");
    assert_non_null(strstr(text, "a step is 4 x 1 sequences of 32 tokens"));
    free(text);
    text = text_of(w, "plan " RUN "--max-steps 9 --save {w}/saved");
    assert_non_null(strstr(text, "a step is 1 x 1 sequences of 32 tokens"));
    free(text);
}

/* The budget of its device and its workers are a rank's own, on the host's cores, too, whose memory and drives they divide. */
TEST(a_rank_is_planned_as_it_runs)
{
    static const char *const tiers[] = {"device", "host", "nvme"}, *const figures[] = {"capacity", "needed", "minimum"};
    static const char options[] = "--model nano --seq-len 32 --machine {w}/machine.json --device-memory 8M --host-memory 24M "
                                  "--threads 3 --nvme {w}/nvme --json --set zero_optimization.stage=3 "
                                  "--set zero_optimization.offload_optimizer.device=cpu --set strata.io_method=fake ";
    const struct workplace *w = *state;
    char command[1024];
    struct ranks r;
    st_json *plan, *run;
    const st_json *ran;

    snprintf(command, sizeof(command), "plan --ranks 2 %s", options);
    plan = json_of(w, command);
    snprintf(command, sizeof(command), "train --data {w}/good.bin --max-steps 1 --quiet %s", options);
    ranks_run_ok(w, &r, 2, command);
    r.programs[0].out[strcspn(r.programs[0].out, "\n")] = '\0';
    assert_int_equal(st_json_parse(&run, r.programs[0].out, strlen(r.programs[0].out), "line"), STRATA_OK);
    ran = st_json_get(st_json_get(run, "run"), "plan");
    assert_non_null(ran);
    assert_true(json_number(st_json_get(st_json_get(plan, "tiers"), "device"), "capacity") == 8 << 20);
    for (size_t i = 0; i < 9; i++) {
        const double planned = json_number(st_json_get(st_json_get(plan, "tiers"), tiers[i / 3]), figures[i % 3]),
                     taken = json_number(st_json_get(st_json_get(ran, "tiers"), tiers[i / 3]), figures[i % 3]);

        if (planned != taken)
            fail_msg("%s %s: %.0f planned, %.0f taken", tiers[i / 3], figures[i % 3], planned, taken);
    }
    assert_true(json_number(plan, "fixed_bytes") == json_number(ran, "fixed_bytes"));
    st_json_free(plan);
    st_json_free(run);
    ranks_free(&r);
}

/* The line at its end tells of this program's steps and of the run's apart. */
TEST(the_end_of_a_resumed_run_counts_its_own_tokens)
{
    const struct workplace *w = *state;
    char *text = text_of(w, "train " RUN "--max-steps 3 --save {w}/short");

    assert_non_null(strstr(text, "tokens in "));
    assert_non_null(strstr(text, " 96 tokens in "));
    assert_null(strstr(text, "of the run so far"));
    free(text);
    text = text_of(w, "train " RUN "--max-steps 5 --save {w}/short --resume auto");
    assert_non_null(strstr(text, "done: 2 steps (0 skipped), 64 tokens in "));
    assert_non_null(strstr(text, "; of the run so far "));
    assert_non_null(strstr(text, " 160 tokens\n"));
    free(text);
}

/* Saving takes time, in which a run writes no more than the drive can. */
TEST(no_more_is_written_a_day_than_the_drive_can)
{
    const struct workplace *w = *state;
    st_json *plan;

    put_card(w, NULL);
    plan = json_of(w, "plan --model gpt2 " CARD "--save {w}/never --nvme {w}/nvme --max-steps 100 --save-every 2 --json "
                      "--set zero_optimization.offload_optimizer.device=cpu --set zero_optimization.offload_param.device=cpu");
    assert_true(json_number(st_json_get(plan, "written"), "day") > 0);
    assert_true(json_number(st_json_get(plan, "written"), "day") <= 8.6e9 * DAY);
    st_json_free(plan);
}

/* A rate that a bound needs is missing: none is printed, and nobody is told to give what was given. */
TEST(a_missing_rate_is_no_bound)
{
    const struct workplace *w = *state;
    char *text;

    put_card(w, "\"matmul_flops\"");
    text = text_of(w, "plan --model gpt2 " CARD "--grad-accum 1");
    assert_non_null(strstr(text, "a rate that it needs is missing in the machine file"));
    assert_null(strstr(text, "--machine FILE,"));
    assert_null(strstr(text, "a run measures them first"));
    free(text);
}

/* Short sequences make so many micro-batches of one that no step of them is planned: larger ones are asked what would fit. */
TEST(short_sequences_are_told_what_would_fit)
{
    const struct workplace *w = *state;
    struct program p;

    workplace_run(w, &p, "plan --model smollm2-135m --gpu 3060 --ram 4GB --device-memory 256M --seq-len 32 --batch-tokens 512K");
    assert_int_equal(p.code, 3);
    assert_non_null(strstr(p.out, "of the device's memory ("));
    program_free(&p);
}

/* Directories may be a list, as in a configuration. */
TEST(a_question_takes_directories_as_a_configuration_does)
{
    static const struct {
        const char *value, *written;
    } rows[] = {
        {"[\"/a\",\"/b\"]", "\"nvme_path\":\"/a,/b\""}, {"/a,/b", "\"nvme_path\":\"/a,/b\""}, {"\"/a\"", "\"nvme_path\":\"/a\""},
        {"null", "\"nvme_path\":\"/local_nvme\""},      {"7", "\"nvme_path\":\"7\""},
    };
    const struct workplace *w = *state;
    struct program p;

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        char command[512], *text;
        size_t bytes;

        snprintf(command, sizeof(command),
                 "plan --model nano --gpu 4090 --drive gen4:1TB --device-memory 12M --host-memory 8M --batch-tokens 256 "
                 "--set 'strata.nvme=%s' --write {w}/written.json --overwrite",
                 rows[i].value);
        text = text_of(w, command);
        free(text);
        text = workplace_read(w, "written.json", &bytes);
        if (strstr(text, rows[i].written) == NULL)
            fail_msg("%s: %s", rows[i].value, text);
        free(text);
    }
    workplace_run(w, &p, "plan --model nano --gpu 4090 --set 'strata.nvme=[1]'");
    assert_int_equal(p.code, 2);
    assert_non_null(strstr(p.err, "strata.nvme (command line): must be a list of strings, not [1]"));
    program_free(&p);
}

/* The configuration's own schedule is the one that a plan by the same rates chooses, here one of each. */
TEST(a_bench_takes_the_schedule_of_the_plan)
{
    static const char *const runs[][2] = {{"", "gated"}, {"--seq-len 256 --set strata.cache=0 ", "serial"}};
    const struct workplace *w = *state;

    put_card(w, NULL);
    for (size_t i = 0; i < 2; i++) {
        char command[512];
        st_json *plan, *bench;

        snprintf(command, sizeof(command),
                 "plan --model gpt2 " CARD "%s--set zero_optimization.offload_optimizer.device=cpu --json", runs[i][0]);
        plan = json_of(w, command);
        snprintf(command, sizeof(command),
                 "bench step --model gpt2 " CARD
                 "%s--set zero_optimization.offload_optimizer.device=cpu --json --simulate --only",
                 runs[i][0]);
        bench = json_of(w, command);
        assert_string_equal(st_json_string(st_json_get(st_json_get(plan, "placement"), "update")), runs[i][1]);
        assert_string_equal(st_json_string(st_json_get(bench, "variant")), runs[i][1]);
        st_json_free(plan);
        st_json_free(bench);
    }
}

TEST_GROUP(workplace_setup, workplace_teardown);
