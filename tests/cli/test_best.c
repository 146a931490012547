/* tests/cli/test_best.c - checkpoints of the lowest evaluation losses stay, and a run ends when its losses do not fall: also one
 * that goes on, and one of several ranks. */
#include "core/json/json.h"
#include "tests/cli/ranks.h"
#include "tests/common/test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RUN                                                                                                                      \
    "train --model nano --data {w}/good.bin --eval-data {w}/good.heldout.bin --seq-len 32 --threads 1 --machine "                \
    "{w}/machine.json "                                                                                                          \
    "--eval-every 2 "
#define STILL RUN "--lr 0 --max-steps 40 --early-stop 3 --save {w}/saved "

/* The steps of checkpoints that are there, of the first 40. */
static void assert_steps(const struct workplace *w, const char *want)
{
    char have[256] = "", name[64];

    for (unsigned step = 0; step <= 40; step++) {
        snprintf(name, sizeof(name), "saved/step-%08u", step);
        if (workplace_exists(w, name))
            snprintf(have + strlen(have), sizeof(have) - strlen(have), "%s%u", have[0] != '\0' ? " " : "", step);
    }
    assert_string_equal(have, want);
}

static void clear(const struct workplace *w)
{
    workplace_remove(w, "saved");
    workplace_remove(w, "out");
    workplace_remove(w, "m.jsonl");
}

/* With a rate of 0 no loss is lower than the first. */
TEST(a_run_that_learns_nothing_ends)
{
    const struct workplace *w = *state;
    struct program p;
    char *metrics;
    size_t bytes;

    workplace_run_ok(w, &p, STILL "--keep 1 --keep-best 2 --out {w}/out --metrics {w}/m.jsonl");
    assert_non_null(strstr(p.out, "\n--early-stop 3: ends after step 8, as 3 evaluations had no lower loss than "));
    assert_non_null(strstr(p.out, " after step 2, last "));
    assert_non_null(strstr(p.out, "ended early: 3 in a row without a lower one\n"));
    program_free(&p);
    assert_steps(w, "2 4 8"); /* of equal losses the first two */
    metrics = workplace_read(w, "m.jsonl", &bytes);
    assert_non_null(strstr(metrics, "\"best_eval_step\":2,"));
    assert_non_null(strstr(metrics, "\"last_eval_step\":8,\"ended_early\":true"));
    free(metrics);
    workplace_run_ok(w, &p, STILL "--keep 1 --keep-best 2 --out {w}/out --metrics {w}/m.jsonl --resume auto");
    assert_non_null(strstr(p.out, "nothing is left to do"));
    program_free(&p);
    clear(w);
}

/* The evaluations before it count. */
TEST(one_that_goes_on_ends_there_too)
{
    const struct workplace *w = *state;
    struct program p;

    workplace_run_ok(w, &p, RUN "--lr 0 --max-steps 6 --early-stop 3 --save {w}/saved --quiet");
    program_free(&p);
    workplace_run_ok(w, &p, STILL "--resume auto");
    assert_non_null(strstr(p.out, "\n--early-stop 3: ends after step 8, "));
    program_free(&p);
    workplace_run_ok(w, &p, STILL "--resume auto --out {w}/out"); /* which was not asked for then */
    assert_null(strstr(p.out, "\nstep "));
    assert_non_null(strstr(p.out, "\n--early-stop 3: ends after step 8, "));
    assert_true(workplace_exists(w, "out/model.safetensors"));
    program_free(&p);
    clear(w);
}

/* Losses of other data are compared, and that is said. */
TEST(other_evaluations_are_told)
{
#define OVER                                                                                                                     \
    "train --model nano --data {w}/good.bin --seq-len 32 --threads 1 --machine {w}/machine.json --save {w}/saved --quiet "
    const struct workplace *w = *state;
    struct program p;

    workplace_run_ok(w, &p, OVER "--eval-every 1 --eval-data {w}/good.heldout.bin --max-steps 1");
    program_free(&p);
    workplace_run_ok(w, &p, OVER "--eval-every 1 --eval-data {w}/good.bin --max-steps 2 --resume auto");
    assert_non_null(strstr(p.err, "notice: this evaluation is over "));
    program_free(&p);
    workplace_run_ok(w, &p, OVER "--eval-every 1 --eval-data {w}/good.bin --max-steps 3 --resume auto");
    assert_null(strstr(p.err, "this evaluation is over "));
    program_free(&p);
    clear(w);
#undef OVER
}

/* What is learnt at first is forgotten at a rate that is far too high. */
TEST(the_best_outlive_what_comes_after)
{
    const struct workplace *w = *state;
    struct program p;

    workplace_run_ok(w, &p, RUN "--lr 1e-3 --max-steps 8 --keep 1 --keep-best 2 --save {w}/saved --quiet");
    program_free(&p);
    assert_steps(w, "6 8");
    workplace_run_ok(w, &p, RUN "--lr 0.3 --max-steps 13 --save-every 1 --keep 2 --keep-best 2 --save {w}/saved --resume auto");
    assert_non_null(strstr(p.out, " after step 8, last "));
    program_free(&p);
    assert_steps(w, "6 8 12 13");
    clear(w);
}

TEST(all_ranks_end)
{
    const struct workplace *w = *state;
    struct ranks r = {0};

    ranks_run_ok(w, &r, 2, STILL "--keep 1 --keep-best 1 --set zero_optimization.stage=2");
    ranks_must_say(r.programs[0].out, "--early-stop 3: ends after step 8");
    ranks_free(&r);
    assert_steps(w, "2 8");
    clear(w);
}

static double number(const st_json *object, const char *key)
{
    const st_json *n = st_json_get(object, key);

    assert_non_null(n);
    return st_json_number(n);
}

TEST(lines_have_the_mean)
{
    const struct workplace *w = *state;
    double losses[25], sum;
    unsigned count = 0;
    struct program p;
    size_t bytes;
    char *metrics;

    workplace_run_ok(w, &p, RUN "--max-steps 24 --verbose --metrics {w}/m.jsonl");
    assert_non_null(strstr(p.out, " | mean loss "));
    program_free(&p);
    metrics = workplace_read(w, "m.jsonl", &bytes);
    for (char *line = strtok(metrics, "\n"); line != NULL; line = strtok(NULL, "\n")) {
        st_json *root;

        assert_int_equal(st_json_parse(&root, line, strlen(line), "m"), 0);
        if (st_json_get(root, "step") != NULL) {
            const unsigned from = count >= 19 ? count - 19 : 0;

            losses[count++] = number(root, "loss");
            sum = 0;
            for (unsigned i = from; i < count; i++)
                sum += losses[i];
            assert_true(fabs(number(root, "loss_mean20") - sum / (count - from)) < 1e-9);
        }
        st_json_free(root);
    }
    assert_int_equal(count, 24);
    free(metrics);
    clear(w);
}

TEST(what_is_needed_is_said)
{
    static const struct {
        const char *line, *wanted;
    } rows[] = {
        {RUN "--max-steps 4 --keep-best 2", "strata.keep_best (command line): needs strata.save (--save)"},
        {RUN "--max-steps 4 --save {w}/saved --keep 20 --keep-best 3", "with strata.keep (--keep) 20: together at most 22"},
        {"train --model nano --data {w}/good.bin --max-steps 4 --save {w}/saved --keep-best 1",
         "--keep-best needs --eval-every N"},
        {"train --model nano --data {w}/good.bin --max-steps 4 --early-stop 1", "--early-stop needs --eval-every N"},
        {"train --model nano --data {w}/good.bin --max-steps 4 --early-stop 1 --eval-every 2",
         "--eval-every needs --eval-data FILE"},
        {RUN "--max-steps 4 --early-stop 0", "--early-stop: 0 is too small"},
    };
    const struct workplace *w = *state;

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct program p;

        workplace_run(w, &p, rows[i].line);
        if (p.code != 2 || strstr(p.err, rows[i].wanted) == NULL)
            fail_msg("%s: exit code %d: %s", rows[i].line, p.code, p.err);
        program_free(&p);
    }
}

TEST_GROUP(workplace_setup, workplace_teardown);
