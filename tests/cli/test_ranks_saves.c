/* tests/cli/test_ranks_saves.c - what would fail at every save of a run of several ranks does not wait for the first one; what
 * the ranks find out about one another's drives does not keep them from saving; what runs that save nothing leave behind; and
 * what is rank 0's for all: --out, and mistakes in texts. */
#include "tests/cli/ranks.h"
#include "tests/common/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RUN "train --model nano --data {w}/good.bin --seq-len 32 --threads 1 --quiet --set zero_optimization.stage=2 "
#define ON_DRIVES                                                                                                                \
    "--max-steps 2 --set strata.nvme=[\"{w}/nvme\",\"{w}/nvme2\"] --set zero_optimization.offload_optimizer.device=nvme "        \
    "--set strata.cache=0 --save {w}/saved "

static void all_end_with(const struct ranks *r, int code)
{
    for (uint32_t k = 0; k < r->count; k++)
        if (r->programs[k].code != code)
            fail_msg("rank %u: exit code %d, not %d: %s", k, r->programs[k].code, code, r->programs[k].err);
}

static void write_machine(const struct workplace *w, const char *name, const char *rates)
{
    char text[512];

    snprintf(
        text, sizeof(text),
        "{\"name\":\"test\",\"matmul_flops\":1e11,\"upload\":1e10,\"download\":1e10,\"read\":1e9,\"write\":1e9,\"mixed\":1e9,"
        "\"update\":1e9,\"dir_rates\":%s}",
        rates);
    workplace_write(w, name, text, strlen(text));
}

static void verify(const struct workplace *w)
{
    struct program p;

    workplace_run_ok(w, &p, "verify {w}/saved");
    program_free(&p);
    workplace_remove(w, "saved");
}

/* Each rank measures its drives by itself, and no two measurements are alike: the lowest count, for parts that are. */
TEST(drives_that_ranks_see_otherwise_are_dealt_out_alike)
{
    static const char *const others[] = {"[3e8,1e8]", "[1e8,1e8,1e8]"};
    const struct workplace *w = *state;
    struct ranks r = {0};

    workplace_make_dir(w, "nvme2");
    write_machine(w, "first.json", "[1e8,3e8]");
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
        write_machine(w, "second.json", others[i]);
        ranks_run(w, &r, 2, RUN ON_DRIVES "--machine {w}/first.json", "--machine {w}/second.json");
        all_end_with(&r, 0);
        assert_null(strstr(r.programs[0].err, "no checkpoint was made"));
        ranks_free(&r);
        verify(w);
    }
    workplace_remove(w, "nvme2");
}

/* As where SAVE lies on the drive of one machine, which the others see over the network: only there files are linked, for which
 * the plan has more sets. */
TEST(drives_of_one_rank_may_be_those_of_the_checkpoints)
{
    const struct workplace *w = *state;
    struct ranks r = {0};

    workplace_make_dir(w, "nvme2");
    ranks_run(w, &r, 2, RUN ON_DRIVES "--machine {w}/machine.json", "--fault api.save_stat:0:1:-2");
    all_end_with(&r, 0);
    assert_null(strstr(r.programs[0].err, "no checkpoint was made"));
    ranks_free(&r);
    verify(w);
    workplace_remove(w, "nvme2");
}

/* The number of directories is the command line's, and no rank can make up for it. */
TEST(unlike_numbers_of_drives_are_refused_at_the_start)
{
    const struct workplace *w = *state;
    struct ranks r = {0};

    workplace_make_dir(w, "nvme2");
    ranks_run(w, &r, 2, RUN ON_DRIVES "--machine {w}/machine.json", "--set strata.nvme=[\"{w}/nvme\"]");
    all_end_with(&r, 2);
    ranks_must_say(r.programs[0].err, "error: rank 1 stripes its swap otherwise than rank 0");
    assert_null(strstr(r.programs[0].err, "the run goes on"));
    assert_false(workplace_exists(w, "saved"));
    assert_int_equal(workplace_entries(w, "nvme"), 0);
    ranks_free(&r);
    workplace_remove(w, "nvme2");
}

/* As on two machines whose --save is each one's own. */
TEST(a_directory_that_is_not_shared_is_refused_at_the_start)
{
    const struct workplace *w = *state;
    struct ranks r = {0};

    ranks_run(w, &r, 2, RUN "--machine {w}/machine.json --max-steps 2 --save {w}/saved", "--fault run.save_seen:0:1:-2");
    all_end_with(&r, 2);
    for (uint32_t k = 0; k < 2; k++)
        ranks_must_say(r.programs[k].err, "it must be on a file system that all ranks share");
    assert_false(workplace_exists(w, "saved"));
    ranks_free(&r);
}

/* A run that diverges before it has saved: fp16's scale is too large for three steps. */
TEST(a_run_that_saves_nothing_leaves_no_directory)
{
    static const char diverges[] = RUN "--machine {w}/machine.json --max-steps 3 --set fp16.enabled=true --set "
                                       "fp16.initial_scale_power=31 --save {w}/saved ";
    const struct workplace *w = *state;
    struct ranks r = {0};
    struct program one;

    workplace_run(w, &one, diverges);
    assert_int_equal(one.code, 5);
    assert_false(workplace_exists(w, "saved"));
    program_free(&one);
    ranks_run(w, &r, 2, diverges, "");
    all_end_with(&r, 5);
    assert_false(workplace_exists(w, "saved"));
    ranks_free(&r);
    workplace_make_dir(w, "saved"); /* the user's own */
    workplace_run(w, &one, diverges);
    assert_int_equal(one.code, 5);
    assert_true(workplace_exists(w, "saved"));
    program_free(&one);
    workplace_remove(w, "saved");
}

/* A rank that knows of it first ends no call of those that still hear of it: that would be another failure, and another rank's.
 */
TEST(a_last_save_that_fails_is_said_once)
{
    static const char sentence[] = "no checkpoint was made: rank 0: ";
    const struct workplace *w = *state;
    struct ranks r = {0};

    for (int i = 0; i < 5; i++) {
        const char *said;

        ranks_run(w, &r, 2, RUN "--machine {w}/machine.json --max-steps 1 --save {w}/saved --fault nvme.link:0:0",
                  "--fault none"); /* of two the last one counts */
        all_end_with(&r, 4);
        said = strstr(r.programs[0].err, sentence);
        assert_non_null(said);
        assert_null(strstr(said + 1, sentence));
        assert_null(strstr(r.programs[0].err, "rank 1"));
        ranks_free(&r);
    }
}

/* What any rank copies is of the checkpoint. */
TEST(what_is_copied_is_that_of_all_ranks)
{
    static const char run[] =
        "train --model nano --data {w}/good.bin --seq-len 32 --threads 1 --machine {w}/machine.json --max-steps 1 "
        "--set zero_optimization.stage=2 --save {w}/saved ";
    const struct workplace *w = *state;
    struct ranks r = {0};

    ranks_run(w, &r, 2, run, "--fault nvme.link:0:0:-18");
    all_end_with(&r, 0);
    ranks_must_say(r.programs[0].out, " MiB copied)");
    ranks_free(&r);
    verify(w);
}

/* Sums that are rounded for the wire (strata.wire) are others for each number of ranks. */
TEST(a_narrow_wire_is_of_a_number_of_ranks)
{
    static const char run[] =
        RUN "--machine {w}/machine.json --max-steps 2 --set strata.wire=bf16 --resume auto --save {w}/saved";
    const struct workplace *w = *state;
    struct ranks r = {0};
    struct program one;

    for (int again = 0; again < 2; again++) {
        ranks_run_ok(w, &r, 2, run);
        assert_null(strstr(r.programs[0].err, "from here on"));
        ranks_free(&r);
    }
    workplace_run_ok(w, &one,
                     RUN "--machine {w}/machine.json --max-steps 3 --set strata.wire=bf16 --set strata.leaves=2 --grad-accum 2 "
                         "--resume {w}/saved");
    ranks_must_say(one.err, "over 1 rank now, in ");
    program_free(&one);
    workplace_remove(w, "saved");
}

/* Names may mean something else on each machine, and rank 0 alone writes. */
TEST(what_other_ranks_have_under_the_name_of_out_does_not_count)
{
    static const char half[] = RUN "--machine {w}/machine.json --max-steps 2 --save {w}/saved";
    static const char whole[] = RUN "--machine {w}/machine.json --max-steps 4 --save {w}/saved --resume auto --out {w}/out";
    const struct workplace *w = *state;
    struct ranks r = {0};

    ranks_run_ok(w, &r, 2, half);
    ranks_free(&r);
    for (int again = 0; again < 2; again++) {
        ranks_run(w, &r, 2, whole, "--out {w}/model");
        all_end_with(&r, 0);
        ranks_free(&r);
        assert_true(workplace_exists(w, "out/model.safetensors"));
    }
    ranks_run(w, &r, 2, RUN "--machine {w}/machine.json --max-steps 4 --save {w}/saved --resume auto --out {w}/model",
              "--out {w}/out");
    all_end_with(&r, 2);
    ranks_must_say(r.programs[0].err, "holds another model than that of ");
    ranks_free(&r);
    workplace_remove(w, "out");
    workplace_remove(w, "saved");
}

/* What a run of several ranks prints is said once. */
TEST(that_nothing_is_left_to_do_is_said_by_rank_0)
{
    static const char run[] = RUN "--machine {w}/machine.json --max-steps 2 --save {w}/saved --resume auto --out {w}/out";
    const struct workplace *w = *state;
    struct ranks r = {0};

    ranks_run_ok(w, &r, 2, run);
    ranks_free(&r);
    ranks_run_ok(w, &r, 2, run);
    ranks_must_say(r.programs[0].out, "nothing is left to do");
    assert_string_equal(r.programs[1].out, "");
    assert_string_equal(r.programs[1].err, "");
    ranks_free(&r);
    workplace_remove(w, "out");
    workplace_remove(w, "saved");
}

/* Rank 0 makes the tokens of texts, and what it finds wrong is no failure of its machine's. */
TEST(a_mistake_in_texts_is_one_of_all_ranks)
{
    const struct workplace *w = *state;
    struct ranks r = {0};

    workplace_write(w, "empty.txt", "", 0);
    ranks_run(w, &r, 3, "train --model nano --data {w}/empty.txt --max-steps 1 --quiet --threads 1 --out {w}/out", "");
    all_end_with(&r, 2);
    ranks_must_say(r.programs[0].err, "empty.txt: the text is empty");
    assert_false(workplace_exists(w, "out"));
    ranks_free(&r);
    workplace_remove(w, "out.tokens");
}

TEST_GROUP(workplace_setup, workplace_teardown);
