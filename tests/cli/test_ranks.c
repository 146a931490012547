/* tests/cli/test_ranks.c - several processes train one model: the bits of one, one voice, one end, and mistakes of launching. */
#include "tests/cli/ranks.h"
#include "tests/common/golden.h"
#include "tests/common/test.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define RUN "train --model nano --data {w}/good.bin --seq-len 32 --machine {w}/machine.json --threads 1 "
#define ON_DISK                                                                                                                  \
    "--set zero_optimization.stage=3 --set zero_optimization.offload_optimizer.device=nvme "                                     \
    "--set zero_optimization.offload_param.device=nvme --set strata.cache=0 --nvme {w}/nvme "
#define LEAVES  "--grad-accum 2 --set strata.leaves=2 "
#define ENDLESS RUN "--max-steps 1000000 " ON_DISK

/* The line that begins so, up to its end; "" if there is none. */
static const char *line_of(const char *text, const char *begin, char line[128])
{
    const char *at = strstr(text, begin);

    snprintf(line, 128, "%.*s", at != NULL ? (int)strcspn(at, "\n") : 0, at != NULL ? at : "");
    return line;
}

static void same_digests(const char *one, const char *other)
{
    char a[128], b[128];

    assert_string_not_equal(line_of(one, "weights_digest", a), "");
    assert_string_equal(a, line_of(other, "weights_digest", b));
    assert_string_equal(line_of(one, "state_digest", a), line_of(other, "state_digest", b));
}

static uint32_t count_of(const char *text, const char *part)
{
    uint32_t count = 0;

    for (; (text = strstr(text, part)) != NULL; text++)
        count++;
    return count;
}

/* Rank 0 speaks and writes; evaluations, skipped or not, epochs and results are those of one rank. */
TEST(two_ranks_are_one_run)
{
    static const char same[] = RUN ON_DISK "--epochs 0.04 --digest --eval-data {w}/good.heldout.bin --eval-every 2 ";
    const struct workplace *w = *state;
    struct ranks r = {0};
    struct program one;
    char command[1024], loss[128], other[128];
    size_t bytes;
    char *lines;

    snprintf(command, sizeof(command), "%s" LEAVES, same);
    workplace_run_ok(w, &one, command);
    snprintf(command, sizeof(command), "%s--metrics {w}/m.jsonl --out {w}/out", same);
    ranks_run_ok(w, &r, 2, command);
    same_digests(r.programs[0].out, one.out);
    ranks_must_say(r.programs[0].out, "2 ranks (torch's variables), 2 on this machine, by tcp");
    assert_string_equal(line_of(one.out, "eval after step 2", loss), line_of(r.programs[0].out, "eval after step 2", other));
    assert_string_not_equal(loss, "");
    assert_string_equal(r.programs[1].out, "");
    assert_string_equal(r.programs[1].err, "");
    lines = workplace_read(w, "m.jsonl", &bytes);
    assert_int_equal(count_of(lines, "{\"run\":"), 1);
    assert_int_equal(count_of(lines, "{\"summary\":"), 1);
    assert_int_equal(workplace_entries(w, "nvme"), 0);
    free(lines);
    ranks_free(&r);
    program_free(&one);
    workplace_run_ok(w, &one, "eval --model {w}/out --data {w}/good.heldout.bin --seq-len 32");
    program_free(&one);
    workplace_remove(w, "out");
    workplace_remove(w, "m.jsonl");
}

/* Moments that are rounded at random: each element by the same bits, whichever rank has it. */
TEST(rounded_moments_are_those_of_one_rank)
{
    static const char *const formats[] = {"bf16", "8bit"};
    const struct workplace *w = *state;

    for (size_t i = 0; i < sizeof(formats) / sizeof(formats[0]); i++) {
        struct ranks r = {0};
        struct program one;
        char command[1024];

        snprintf(command, sizeof(command), RUN ON_DISK "--max-steps 3 --quiet --digest --set strata.moments=%s ", formats[i]);
        ranks_run_ok(w, &r, 2, command);
        strcat(command, LEAVES);
        workplace_run_ok(w, &one, command);
        same_digests(r.programs[0].out, one.out);
        ranks_free(&r);
        program_free(&one);
    }
}

/* Sums that are rounded for the wire are half as many bytes, and give other bits. */
TEST(the_wire_may_be_narrow)
{
    static const char run[] = RUN ON_DISK "--max-steps 2 --quiet --digest ";
    const struct workplace *w = *state;
    struct ranks exact = {0}, asked = {0}, deepspeed = {0};
    char command[1024], a[128], b[128];

    ranks_run_ok(w, &exact, 2, run);
    snprintf(command, sizeof(command), "%s--set strata.wire=bf16", run);
    ranks_run_ok(w, &asked, 2, command);
    snprintf(command, sizeof(command), "%s--set communication_data_type=bf16 --set strata.accumulation=horizontal", run);
    ranks_run_ok(w, &deepspeed, 2, command);
    same_digests(asked.programs[0].out, deepspeed.programs[0].out);
    assert_string_not_equal(line_of(exact.programs[0].out, "weights_digest", a),
                            line_of(asked.programs[0].out, "weights_digest", b));
    ranks_free(&exact);
    ranks_free(&asked);
    ranks_free(&deepspeed);
}

/* JSON up to a member, with all digits of its figures. */
static const char *up_to(const char *out, const char *member, char text[1024])
{
    const char *end = strstr(out, member);

    assert_non_null(end);
    snprintf(text, 1024, "%.*s", (int)(end - out), out);
    return text;
}

/* Windows are divided, and their number is not a multiple of the ranks'; losses add up in one order. */
TEST(evaluations_of_ranks_are_those_of_one)
{
    static const char same[] = "eval --model nano --data {w}/good.bin --seq-len 16 --json ";
    static const struct {
        uint32_t ranks;
        const char *place;
    } rows[] = {{2, ""}, {4, ON_DISK}};
    const struct workplace *w = *state;
    char one[1024], other[1024], command[512];
    struct program p;

    workplace_run_ok(w, &p, same);
    up_to(p.out, "\"complete\":true", one);
    program_free(&p);
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct ranks r = {0};

        snprintf(command, sizeof(command), "%s%s", same, rows[i].place);
        ranks_run_ok(w, &r, rows[i].ranks, command);
        assert_string_equal(one, up_to(r.programs[0].out, "\"complete\":true", other));
        assert_string_equal(r.programs[1].out, "");
        assert_string_equal(r.programs[1].err, "");
        ranks_free(&r);
    }
    workplace_run_ok(w, &p, "eval --model nano --data {w}/good.bin --seq-len 16 --json --set gradient_accumulation_steps=3");
    assert_string_equal(one, up_to(p.out, "\"complete\":true", other));
    program_free(&p);
}

/* Likeliest and drawn tokens, with weights in shards, and a prompt that takes more than one pass. */
TEST(generations_of_ranks_are_those_of_one)
{
    static const char *const choices[] = {"", "--temperature 0.9 --top-k 40"};
    const struct workplace *w = *state;
    char command[1024], prompt[2 * 300 + 1] = "7", a[1024], b[1024];

    for (size_t i = 0; i < 150; i++)
        strcat(prompt, i % 2 == 0 ? ",9" : ",3");
    for (size_t i = 0; i < sizeof(choices) / sizeof(choices[0]); i++) {
        struct ranks r = {0};
        struct program one;

        snprintf(command, sizeof(command), "generate --model nano --prompt-tokens %s --max-tokens 12 --json --quiet %s", prompt,
                 choices[i]);
        workplace_run_ok(w, &one, command);
        strcat(command, " " ON_DISK);
        ranks_run_ok(w, &r, 2, command);
        assert_string_equal(up_to(one.out, "\"prompt_seconds\"", a), up_to(r.programs[0].out, "\"prompt_seconds\"", b));
        assert_string_equal(r.programs[1].out, "");
        assert_string_equal(r.programs[1].err, "");
        ranks_free(&r);
        program_free(&one);
    }
}

/* Ranks exchange slices of the experts that were chosen, and of no others. */
TEST(ranks_have_the_chosen_experts)
{
    static const char *const dirs[] = {GOLDEN_EXPERTS};
    const struct workplace *w = *state;

    for (size_t i = 0; i < sizeof(dirs) / sizeof(dirs[0]); i++) {
        char command[1024], a[1024], b[1024];
        struct ranks r = {0};
        struct program one;

        snprintf(command, sizeof(command), "generate --model %s --prompt-tokens 3,17,44 --max-tokens 12 --json --quiet ",
                 dirs[i]);
        workplace_run_ok(w, &one, command);
        strcat(command, ON_DISK);
        ranks_run_ok(w, &r, 2, command);
        assert_string_equal(up_to(one.out, "\"prompt_seconds\"", a), up_to(r.programs[0].out, "\"prompt_seconds\"", b));
        ranks_free(&r);
        program_free(&one);
    }
}

/* A checkpoint of two ranks is gone on from by one, and by two. */
TEST(checkpoints_are_of_no_number_of_ranks)
{
    const struct workplace *w = *state;
    struct ranks r = {0}, again = {0};
    struct program one;

    ranks_run_ok(w, &r, 2, RUN "--max-steps 2 --quiet --save {w}/saved");
    ranks_free(&r);
    workplace_run_ok(w, &one, "verify {w}/saved");
    program_free(&one);
    workplace_run_ok(w, &one, RUN "--max-steps 4 --quiet --digest " LEAVES "--resume {w}/saved");
    assert_null(strstr(one.err, "from here on")); /* two micro-batches in place of one each of two ranks */
    ranks_run_ok(w, &r, 2, RUN "--max-steps 4 --quiet --digest " ON_DISK "--resume {w}/saved");
    same_digests(r.programs[0].out, one.out);
    ranks_run_ok(w, &again, 2, RUN "--max-steps 4 --quiet --digest");
    same_digests(again.programs[0].out, one.out);
    ranks_free(&again);
    ranks_free(&r);
    program_free(&one);
    workplace_remove(w, "saved");
}

/* One that fails is one line, of rank 0, which says whose failure it was. */
TEST(a_save_that_fails_is_said_once)
{
    const struct workplace *w = *state;
    struct ranks r = {0};

    ranks_run(w, &r, 2, RUN ON_DISK "--max-steps 4 --quiet --save {w}/saved --save-every 2", "--fault nvme.fsync:0:1");
    for (uint32_t k = 0; k < 2; k++)
        if (r.programs[k].code != 0)
            fail_msg("rank %u: exit code %d: %s", k, r.programs[k].code, r.programs[k].err);
    assert_int_equal(count_of(r.programs[0].err, "no checkpoint was made: rank 1: "), 1);
    assert_null(strstr(r.programs[1].err, "no checkpoint was made"));
    assert_true(workplace_exists(w, "saved/step-00000004"));
    ranks_free(&r);
    workplace_remove(w, "saved");
}

/* Rank 1 would find a newer checkpoint than rank 0: all go on from the one that rank 0 has found. */
TEST(rank_0_chooses_the_checkpoint)
{
    const struct workplace *w = *state;
    struct ranks r = {0}, whole = {0};
    char *link = workplace_expand(w, "{w}/early/step-00000002"), *to = workplace_expand(w, "{w}/saved/step-00000002");

    ranks_run_ok(w, &whole, 2, RUN "--max-steps 4 --quiet --digest --save {w}/saved --save-every 2");
    workplace_make_dir(w, "early");
    assert_int_equal(symlink(to, link), 0);
    ranks_run(w, &r, 2, RUN "--max-steps 4 --quiet --digest --resume {w}/early", "--resume {w}/saved");
    same_digests(r.programs[0].out, whole.programs[0].out);
    assert_int_equal(r.programs[1].code, 0);
    ranks_free(&r);
    ranks_run(w, &r, 2, RUN "--max-steps 5 --quiet --resume {w}/saved", "--resume {w}/early");
    ranks_must_say(r.programs[1].err, "rank 0 resumes from a checkpoint that this rank does not see (");
    assert_int_equal(r.programs[1].code, 2);
    ranks_free(&r);
    ranks_free(&whole);
    workplace_remove(w, "early");
    workplace_remove(w, "saved");
    free(link);
    free(to);
}

/* Links of each pair, and together, go into the machine file that rank 0 writes. */
TEST(links_are_measured)
{
    const struct workplace *w = *state;
    struct ranks r = {0};
    struct program p;
    size_t bytes;
    char *file;

    ranks_run_ok(w, &r, 3, "info --measure --model nano --seq-len 8 --json --out {w}/links.json");
    assert_int_equal(count_of(r.programs[0].out, "\"other\":"), 3);
    ranks_must_say(r.programs[0].out, "{\"rank\":1,\"other\":2,\"bytes_per_second\":");
    for (uint32_t k = 1; k < 3; k++) {
        assert_string_equal(r.programs[k].out, "");
        assert_string_equal(r.programs[k].err, "");
    }
    file = workplace_read(w, "links.json", &bytes);
    ranks_must_say(file, "\"link_node\":");
    ranks_must_say(file, "\"latency_node\":");
    assert_null(strstr(file, "link_nodes"));
    free(file);
    ranks_free(&r);
    workplace_run_ok(w, &p, "plan --model nano --ranks 3 --machine {w}/links.json");
    program_free(&p);
    workplace_remove(w, "links.json");
}

/* Of texts one rank makes the tokens, and the other finds them. */
TEST(one_rank_makes_tokens)
{
    const struct workplace *w = *state;
    char text[4096];
    struct ranks r = {0};

    memset(text, 'a', sizeof(text));
    workplace_write(w, "book.txt", text, sizeof(text));
    ranks_run_ok(w, &r, 2,
                 "train --model nano --data {w}/book.txt --seq-len 32 --machine {w}/machine.json --max-steps 1 --out {w}/out");
    assert_int_equal(workplace_entries(w, "out.tokens"), 2);
    assert_int_equal(count_of(r.programs[0].err, "tokens kept for the next run"), 1);
    assert_string_equal(r.programs[1].err, "");
    ranks_free(&r);
    workplace_remove(w, "out");
    workplace_remove(w, "out.tokens");
    workplace_remove(w, "book.txt");
}

/* --- one end --- */

static void start_endless(const struct workplace *w, struct ranks *r, const char *options)
{
    char command[1024];

    snprintf(command, sizeof(command), ENDLESS "%s", options);
    ranks_start_piped(w, r, 2, command, "");
    program_wait_for(&r->programs[0], "step 1/");
}

/* Whichever rank has got it: all end after the same step, and the run is saved. */
TEST(a_signal_to_one_ends_all)
{
    static const struct {
        uint32_t rank;
        int number, code;
        const char *name;
    } cases[] = {{0, SIGINT, 130, "Ctrl-C"}, {1, SIGTERM, 143, "SIGTERM"}};
    const struct workplace *w = *state;

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct ranks r = {0};
        struct program p;
        char said[64];

        start_endless(w, &r, "--save {w}/saved");
        assert_int_equal(kill(r.programs[cases[i].rank].pid, cases[i].number), 0);
        ranks_wait(&r);
        assert_int_equal(r.programs[0].code, cases[i].code);
        assert_int_equal(r.programs[1].code, cases[i].code);
        snprintf(said, sizeof(said), "ended by %s after ", cases[i].name);
        ranks_must_say(r.programs[0].err, said);
        assert_string_equal(r.programs[1].err, "");
        assert_int_equal(workplace_entries(w, "nvme"), 0);
        ranks_free(&r);
        workplace_run_ok(w, &p, "verify {w}/saved");
        program_free(&p);
        workplace_remove(w, "saved");
    }
}

/* deepspeed's launcher: the terminal's SIGINT to all, then SIGTERM to each in turn. */
TEST(signals_of_a_launcher_save_once)
{
    const struct workplace *w = *state;
    struct ranks r = {0};
    struct program p;

    start_endless(w, &r, "--save {w}/saved");
    for (uint32_t i = 0; i < 2; i++)
        assert_int_equal(kill(r.programs[i].pid, SIGINT), 0);
    for (uint32_t i = 0; i < 2; i++)
        assert_int_equal(kill(r.programs[i].pid, SIGTERM), 0);
    ranks_wait(&r);
    ranks_must_say(r.programs[0].err, ": the run ends after this step and saves; SIGQUIT ends it now");
    ranks_must_say(r.programs[0].err, ", --resume goes on from ");
    assert_true(r.programs[0].code == 130 || r.programs[0].code == 143); /* the one whose thread came first */
    assert_int_equal(r.programs[1].code, r.programs[0].code);
    ranks_free(&r);
    workplace_run_ok(w, &p, "verify {w}/saved");
    program_free(&p);
    workplace_remove(w, "saved");
}

TEST(sigusr1_to_one_saves_all)
{
    const struct workplace *w = *state;
    struct ranks r = {0};

    start_endless(w, &r, "--save {w}/saved");
    assert_int_equal(kill(r.programs[1].pid, SIGUSR1), 0);
    program_wait_for(&r.programs[0], "checkpoint of step ");
    assert_int_equal(kill(r.programs[1].pid, SIGTERM), 0);
    ranks_wait(&r);
    assert_int_equal(r.programs[0].code, 143);
    ranks_free(&r);
    workplace_remove(w, "saved");
}

/* The one that is left says who is gone, removes its own files, and a later run those of the dead. */
TEST(a_killed_rank_ends_the_other)
{
    const struct workplace *w = *state;

    for (uint32_t dead = 0; dead < 2; dead++) {
        struct ranks r = {0};
        struct program *left = &r.programs[1 - dead], p;
        char said[32];

        start_endless(w, &r, "");
        assert_int_equal(kill(r.programs[dead].pid, SIGKILL), 0);
        ranks_wait(&r);
        assert_int_equal(r.programs[dead].code, 128 + SIGKILL);
        assert_int_equal(left->code, 4);
        snprintf(said, sizeof(said), "rank %u ", dead);
        ranks_must_say(left->err, said);
        ranks_must_say(left->err, dead == 0 ? "strata: rank 1: error: " : "strata: error: ");
        ranks_free(&r);
        workplace_run_ok(w, &p, RUN ON_DISK "--max-steps 1 --quiet");
        program_free(&p);
        assert_int_equal(workplace_entries(w, "nvme"), 0);
    }
}

/* A rank that fails says why, and the other says that it did: at the start, while it loads, in a step, before the first token. */
TEST(a_rank_that_fails_tells_the_other)
{
    static const struct {
        const char *command, *fault;
        int code; /* of the rank that fails */
    } rows[] = {
        {RUN "--max-steps 1000 --quiet " ON_DISK, "api.engine", 3},
        {RUN "--max-steps 1000 --quiet " ON_DISK, "nvme.fallocate:0:1:-28", 3},
        {RUN "--max-steps 1000 --quiet " ON_DISK, "nvme.cqe:3:1", 4},
        {RUN "--max-steps 1000 --quiet " ON_DISK, "nvme.cqe:600:1", 4},
        {"eval --model nano --data {w}/good.bin --seq-len 32 " ON_DISK, "api.eval", 3},
        {"generate --model nano --prompt a --quiet " ON_DISK, "generation.alloc", 3},
        {"info --measure --model nano --seq-len 8 ", "comm.links", 3},
    };
    const struct workplace *w = *state;

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct ranks r = {0};
        char fault[64];

        snprintf(fault, sizeof(fault), "--fault %s", rows[i].fault);
        ranks_run(w, &r, 2, rows[i].command, fault);
        if (r.programs[1].code != rows[i].code || r.programs[0].code != 4)
            fail_msg("%s: exit codes %d and %d: %s%s", fault, r.programs[0].code, r.programs[1].code, r.programs[0].err,
                     r.programs[1].err);
        ranks_must_say(r.programs[1].err, "strata: rank 1: error: ");
        ranks_must_say(r.programs[0].err, "rank 1");
        assert_int_equal(workplace_entries(w, "nvme"), 0);
        ranks_free(&r);
    }
}

/* --- mistakes --- */

TEST(what_differs_ends_both)
{
    static const struct {
        const char *odd, *said;
    } rows[] = {
        {"--seed 9", "--seed differs among the ranks: rank 0 has 0, rank 1 has 9"},
        {"--lr 0.5", "optimizer.params.lr (--lr) differs"},
        {"--set zero_optimization.stage=1", "zero_optimization.stage differs"},
        {"--seq-len 16", "--seq-len differs"},
        {"--model nano-llama", "the model's family differs among the ranks: rank 0 has gpt2, rank 1 has llama"},
        {"--data {w}/good.heldout.bin", "the number of token files differs"},
        {"--max-steps 2", "--max-steps differs among the ranks: rank 0 has 1, rank 1 has 2"},
        {"--eval-data {w}/good.heldout.bin", "--eval-data differs among the ranks: rank 0 has none, rank 1 has one"},
        {"--out {w}/odd", "--out differs among the ranks: rank 0 has none, rank 1 has one"},
        {"--digest", "--digest differs"},
#ifdef __x86_64__
        {"DNNL_MAX_CPU_ISA=SSE41",
         "the matmul library and its instruction set (DNNL_MAX_CPU_ISA lowers it) differs among the ranks"},
#endif
    };
    const struct workplace *w = *state;

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct ranks r = {0};

        ranks_run(w, &r, 2, RUN "--max-steps 1", rows[i].odd);
        for (uint32_t k = 0; k < 2; k++) {
            ranks_must_say(r.programs[k].err, rows[i].said);
            assert_int_equal(r.programs[k].code, 2);
        }
        ranks_must_say(r.programs[1].err, "strata: rank 1: error: ");
        ranks_free(&r);
    }
}

/* What is to be continued, and by whom. */
TEST(prompts_of_ranks_are_one)
{
    static const struct {
        const char *same, *odd, *said;
    } rows[] = {
        {"generate --model nano --prompt a ", "--prompt b", "the prompt differs among the ranks: rank 0 has 1 tokens"},
        {"generate --model nano --prompt a ", "--max-tokens 2",
         "--max-tokens differs among the ranks: rank 0 has 0, rank 1 has 2"},
        {"generate --model nano --prompt-file - ", "", "--prompt-file - is read by one process, and there are 2"},
        {"generate --model nano --chat ", "", "--chat talks with one process, and there are 2"},
    };
    const struct workplace *w = *state;

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct ranks r = {0};

        ranks_run(w, &r, 2, rows[i].same, rows[i].odd);
        for (uint32_t k = 0; k < 2; k++) {
            ranks_must_say(r.programs[k].err, rows[i].said);
            assert_int_equal(r.programs[k].code, 2);
        }
        ranks_free(&r);
    }
}

/* All plan with the least that a rank has; the others say whose it is. */
TEST(what_one_lacks_is_named)
{
    const struct workplace *w = *state;
    struct ranks r = {0};

    ranks_run(w, &r, 2, RUN "--max-steps 1 --host-memory 1GiB", "--device-memory 4KiB");
    for (uint32_t k = 0; k < 2; k++) {
        ranks_must_say(r.programs[k].err, "4.00 KiB allowed");
        assert_int_equal(r.programs[k].code, 3);
    }
    ranks_must_say(r.programs[0].err, "rank 1 has no more, this one has ");
    assert_null(strstr(r.programs[1].err, "has no more"));
    ranks_free(&r);
}

TEST(mistakes_of_launching)
{
    static const struct {
        const char *variables[3], *command, *said;
    } rows[] = {
        {{"RANK=0"}, RUN "--max-steps 1", "RANK is 0, but WORLD_SIZE is not given"},
        {{"RANK=2", "WORLD_SIZE=2"}, RUN "--max-steps 1", "RANK is 2, but WORLD_SIZE is 2"},
        {{"RANK=0", "WORLD_SIZE=2"},
         RUN "--max-steps 1 --rank 1 --world-size 2",
         "--rank 1 and --world-size 2 contradict RANK 0"},
        {{NULL}, RUN "--max-steps 1 --rank 1", "--rank N and --world-size N go together"},
        {{NULL}, RUN "--max-steps 1 --local-world-size 1", "--local-world-size needs --local-rank"},
        {{NULL}, RUN "--max-steps 1 --rank 0 --world-size 2 --comm pigeons", "ranks cannot meet by \"pigeons\""},
        {{NULL}, RUN "--max-steps 1 --rank 0 --world-size 2000", "--world-size: 2000 is too large: at most 1024"},
        {{"RANK=0", "WORLD_SIZE=2", "LOCAL_WORLD_SIZE=1"}, RUN "--max-steps 1", "set MASTER_ADDR and MASTER_PORT"},
        {{"RANK=1", "WORLD_SIZE=2"},
         "export {w}/saved --out {w}/out",
         "rank 1: error: strata export is one process, and there are 2"},
        {{"RANK=0", "WORLD_SIZE=2"}, "tokens {w}/file --out {w}/t.bin", "strata tokens is one process"},
    };
    const struct workplace *w = *state;

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct program p;

        for (size_t v = 0; v < 3 && rows[i].variables[v] != NULL; v++)
            putenv((char *)(uintptr_t)rows[i].variables[v]);
        workplace_run(w, &p, rows[i].command);
        unsetenv("RANK");
        unsetenv("WORLD_SIZE");
        unsetenv("LOCAL_WORLD_SIZE");
        assert_int_equal(p.code, 2);
        ranks_must_say(p.err, rows[i].said);
        program_free(&p);
    }
}

/* deepspeed puts its option before the command. */
TEST(the_local_rank_may_come_first)
{
    const struct workplace *w = *state;
    struct program p;

    workplace_run_ok(w, &p, "--local_rank=0 " RUN "--max-steps 1 --quiet");
    program_free(&p);
    workplace_run_ok(w, &p, "check --local_rank=0 {w}/config.json");
    program_free(&p);
}

static int setup(void **state)
{
    static const char empty[] = "{}";

    workplace_setup(state);
    workplace_write(*state, "config.json", empty, strlen(empty));
    return 0;
}

TEST_GROUP(setup, workplace_teardown);
