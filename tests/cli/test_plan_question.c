/* tests/cli/test_plan_question.c - strata plan --tokens: its file plans the same, nothing that was tried is faster, and its
 * advice fits. */
#include "core/json/json.h"
#include "tests/cli/program.h"
#include "tests/cli/workplace.h"
#include "tests/common/json_member.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

struct question {
    const char *model, *machine, *step;
};

static const struct question quick[] = {
    {"gpt2", "--seq-len 256 --machine tests/machines/laptop-8gb.json", "--batch-tokens 1K"},
    {"nano", "--gpu 4090", "--batch-tokens 4K"},
};
static const struct question people[] = {
    {"gpt2", "--machine tests/machines/laptop-8gb.json", ""},
    {"qwen3-0.6b", "--machine tests/machines/laptop-8gb.json", ""},
    {"llama-3-8b", "--gpu 4090 --ram 64GB --drive 7GB/s:2TB", ""},
    {"qwen2.5-14b", "--gpu 3090 --ram 128GB --drive gen4:2TB", ""},
    {"llama-3.1-70b", "--gpu 4090 --ram 512GB --drive gen4:2TBx2", ""},
};

static st_json *asked(const struct workplace *w, int code, const char *command)
{
    struct program p;
    st_json *root;

    workplace_run(w, &p, command);
    if (p.code != code)
        fail_msg("strata %s: code %d: %s", command, p.code, p.err);
    assert_int_equal(st_json_parse(&root, p.out, strlen(p.out), "answer"), STRATA_OK);
    program_free(&p);
    return root;
}

static void check_nothing_is_faster(const st_json *answer)
{
    const double chosen = json_number(st_json_get(answer, "chosen"), "predicted_seconds");

    assert_true(chosen > 0);
    for (const st_json *t = st_json_first(st_json_get(answer, "tried")); t != NULL; t = st_json_next(t))
        assert_true(json_number(t, "predicted_seconds") >= 0.995 * chosen);
}

/* DeepSpeed must know every number; sections that it does not know it passes over. */
static void check_file(const st_json *config)
{
    for (const st_json *n = st_json_first(config); n != NULL; n = st_json_next(n))
        assert_true(st_json_type(n) == ST_JSON_NUMBER || st_json_type(n) == ST_JSON_OBJECT);
    assert_true(json_number(config, "train_micro_batch_size_per_gpu") >= 1);
}

static void check_question(const struct workplace *w, const struct question *q)
{
    char command[512];
    st_json *answer, *plan;

    snprintf(command, sizeof(command), "plan --model %s %s %s --tokens 1B --json --write {w}/answer.json --overwrite", q->model,
             q->machine, q->step);
    answer = asked(w, 0, command);
    check_nothing_is_faster(answer);
    check_file(st_json_get(answer, "config"));
    snprintf(command, sizeof(command), "plan --model %s %s --config {w}/answer.json --json", q->model, q->machine);
    plan = asked(w, 0, command);
    assert_true(json_number(plan, "predicted_seconds") == json_number(st_json_get(answer, "chosen"), "predicted_seconds"));
    assert_true(json_number(plan, "micro_batch") * json_number(plan, "gradient_accumulation") ==
                json_number(answer, "step_sequences"));
    st_json_free(answer);
    st_json_free(plan);
}

static void the_file_plans_the_same(void **state)
{
    for (size_t i = 0; i < sizeof(quick) / sizeof(quick[0]); i++)
        check_question(*state, &quick[i]);
}

static void the_files_of_people_plan_the_same(void **state)
{
    for (size_t i = 0; i < sizeof(people) / sizeof(people[0]); i++)
        check_question(*state, &people[i]);
}

static void advice_taken_literally_fits(void **state)
{
    static const char ask[] = "plan --model llama-1b --batch-tokens 4K --gpu 4090 --ram 64GB --json --device-memory 1GiB "
                              "--host-memory 4GiB";
    static const struct {
        const char *tier, *option, *other;
    } tiers[] = {{"device", "--device-memory", "--host-memory 4GiB"}, {"host", "--host-memory", "--device-memory 1GiB"}};
    const struct workplace *w = *state;
    st_json *answer = asked(w, 3, ask);

    for (size_t i = 0; i < 2; i++) {
        const uint64_t least = (uint64_t)json_number(st_json_get(answer, "least"), tiers[i].tier);
        char command[512];

        assert_true(least > 0 && least % (64u << 20) == 0);
        for (uint64_t less = 0; less < 2; less++) {
            snprintf(command, sizeof(command),
                     "plan --model llama-1b --batch-tokens 4K --gpu 4090 --ram 64GB --json %s %lluMiB %s", tiers[i].option,
                     (unsigned long long)((least >> 20) - 64 * less), tiers[i].other);
            st_json_free(asked(w, less == 0 ? 0 : 3, command));
        }
    }
    st_json_free(answer);
}

static void the_text_says_how_long_and_on_what(void **state)
{
    struct program p;

    workplace_run_ok(*state, &p, "plan --model nano --gpu 4090 --max-steps 1000");
    assert_null(strstr(p.out, "it fits")); /* not asked */
    program_free(&p);
    workplace_run_ok(*state, &p, "plan --model nano --gpu 4090 --batch-tokens 2K --max-steps 1000");
    assert_non_null(strstr(p.out, "steps of 2048 tokens"));
    assert_non_null(strstr(p.out, "judged on GeForce RTX 4090"));
    assert_non_null(strstr(p.out, "in 1000 steps"));
    assert_non_null(strstr(p.out, "one more would make it"));
    assert_null(strstr(p.err, "notice"));
    program_free(&p);
}

static int setup(void **state)
{
    static struct workplace w;

    workplace_create(&w);
    *state = &w;
    return 0;
}

static int teardown(void **state)
{
    workplace_destroy(*state);
    return 0;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_file_plans_the_same),
        cmocka_unit_test(advice_taken_literally_fits),
        cmocka_unit_test(the_text_says_how_long_and_on_what),
    };
    const struct CMUnitTest longer[] = {cmocka_unit_test(the_files_of_people_plan_the_same)};

    (void)argv;
    return argc > 1 ? cmocka_run_group_tests(longer, setup, teardown) : cmocka_run_group_tests(tests, setup, teardown);
}
