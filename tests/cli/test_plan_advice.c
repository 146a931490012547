/* tests/cli/test_plan_advice.c - strata plan where nothing is chosen: its file plans the same, nothing that was tried is
 * faster, and its advice fits.  tests/cli/two-blocks is GPT-2 with two of its blocks: as large as its table, planned in a tenth
 * of the time. */
#include "core/json/json.h"
#include "tests/cli/program.h"
#include "tests/cli/workplace.h"
#include "tests/common/json_member.h"
#include "tests/common/test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TWO_BLOCKS  "tests/cli/two-blocks"
#define WIDE_BLOCKS "tests/cli/wide-blocks" /* half the parameters of gpt2-xl in a twelfth of its blocks */

struct question {
    const char *model, *machine, *step;
};

static const struct question quick[] = {
    {TWO_BLOCKS, "--seq-len 256 --machine tests/machines/laptop-8gb.json", "--batch-tokens 1K"},
    {"nano", "--gpu 4090", "--batch-tokens 4K"},
};
/* What people ask; where a machine named without them cannot do it, with the memory or drive that the answer names. */
static const struct question people[] = {
    {"llama-3-8b", "--gpu 4090 --ram 64GB --drive 7GB/s:2TB", ""},
    {"llama-3.1-70b", "--gpu 4090 --ram 64GB --drive gen4:2TB", ""},
    {"qwen2.5-14b", "--gpu 3090 --drive gen4:2TB", ""},
    {"mistral-7b", "--gpu a100-40gb --ram 128GB", ""},
    {"llama-3.2-3b", "--gpu 4060-laptop --ram 32GB --drive gen4:1TB", ""},
    {"gpt2", "--machine tests/machines/laptop-8gb.json", ""},
    {"qwen2.5-14b", "--gpu 3090 --ram 128GB --drive gen4:2TB", "--batch-tokens 96K"},
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

/* Of what is about as fast, drafts included, the largest micro-batches. */
TEST(micro_batches_are_large)
{
    st_json *answer = asked(*state, 0, "plan --model nano --gpu 4090 --batch-tokens 4K --tokens 1B --json");
    const st_json *chosen = st_json_get(answer, "chosen");
    double largest = 0;
    unsigned ties = 0;

    for (const st_json *t = st_json_first(st_json_get(answer, "tried")); t != NULL; t = st_json_next(t)) {
        if (json_number(t, "predicted_seconds") > 1.0025 * json_number(chosen, "predicted_seconds"))
            continue;
        ties += json_number(t, "micro_batch") != json_number(chosen, "micro_batch");
        if (json_number(t, "micro_batch") > largest)
            largest = json_number(t, "micro_batch");
    }
    assert_true(ties > 0 && json_number(chosen, "micro_batch") == largest);
    st_json_free(answer);
}

/* Numbers where DeepSpeed needs numbers, and keys that mean here what they mean there; sections that it does not know it passes
 * over, and one may be ours. */
static void check_file(const struct workplace *w, const st_json *config)
{
    struct program p;
    uint32_t said = 0;
    st_json *root;

    for (const st_json *n = st_json_first(config); n != NULL; n = st_json_next(n))
        assert_true(st_json_type(n) == ST_JSON_NUMBER || st_json_type(n) == ST_JSON_OBJECT);
    assert_true(json_number(config, "train_micro_batch_size_per_gpu") >= 1);
    workplace_run_ok(w, &p, "check {w}/answer.json --json");
    assert_int_equal(st_json_parse(&root, p.out, strlen(p.out), "check"), STRATA_OK);
    for (const st_json *v = st_json_first(st_json_get(root, "values")); v != NULL; v = st_json_next(v)) {
        if (strcmp(json_text(v, "origin"), "file") != 0)
            continue;
        if (strcmp(json_text(v, "verdict"), "honoured") != 0)
            fail_msg("%s is not honoured", json_text(v, "path"));
        said++;
    }
    assert_true(said >= 7 && st_json_first(st_json_get(root, "problems")) == NULL);
    st_json_free(root);
    program_free(&p);
}

static void check_question(const struct workplace *w, const struct question *q)
{
    char command[512];
    st_json *answer, *plan;

    snprintf(command, sizeof(command), "plan --model %s %s %s --tokens 1B --json --write {w}/answer.json --overwrite", q->model,
             q->machine, q->step);
    answer = asked(w, 0, command);
    check_nothing_is_faster(answer);
    check_file(w, st_json_get(answer, "config"));
    snprintf(command, sizeof(command), "plan --model %s %s --config {w}/answer.json --json", q->model, q->machine);
    plan = asked(w, 0, command);
    assert_true(json_number(plan, "predicted_seconds") == json_number(st_json_get(answer, "chosen"), "predicted_seconds"));
    assert_true(json_number(plan, "micro_batch") * json_number(plan, "gradient_accumulation") ==
                json_number(answer, "step_sequences"));
    st_json_free(answer);
    st_json_free(plan);
}

TEST(the_file_plans_the_same)
{
    for (size_t i = 0; i < sizeof(quick) / sizeof(quick[0]); i++)
        check_question(*state, &quick[i]);
}

/* What can be simulated comes before what lacks a rate, and where nothing can be, the answer says that it is a bound. */
TEST(a_missing_rate_is_no_advantage)
{
    static const char begin[] = "{\"device_bytes\": 7e9, \"host_bytes\": 11e9, \"nvme_bytes\": 5e11, \"device_is_host\": false, "
                                "\"upload\": 1e10, \"download\": 1e10, \"update\": 2e9",
                      ask[] = "plan --model mini --seq-len 64 --batch-tokens 1K --machine {w}/box.json --json";
    static const struct {
        const char *rest;
        bool simulated;
    } rows[] = {{", \"matmul_flops\": 2e13}", true}, {", \"read\": 5e9, \"write\": 4e9}", false}};
    const struct workplace *w = *state;

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        char machine[512];
        const char *optimizer;
        st_json *answer;
        const st_json *chosen;

        snprintf(machine, sizeof(machine), "%s%s", begin, rows[i].rest);
        workplace_write(w, "box.json", machine, strlen(machine));
        answer = asked(w, 0, ask);
        chosen = st_json_get(answer, "chosen");
        assert_int_equal(st_json_bool(st_json_get(chosen, "simulated")), rows[i].simulated);
        optimizer = st_json_string(st_json_get(chosen, "optimizer"));
        assert_true(!rows[i].simulated || strcmp(optimizer, "nvme") != 0);
        st_json_free(answer);
    }
}

/* With twice the modules the command would still be given as much of them. */
TEST(memory_that_is_given_stays)
{
    st_json *answer =
        asked(*state, 0,
              "plan --model " TWO_BLOCKS " --seq-len 256 --batch-tokens 1K --gpu 4060-laptop --ram 16GB --drive gen4:1TB "
              "--host-memory 512MiB --json");
    const double chosen = json_number(st_json_get(answer, "chosen"), "predicted_seconds"),
                 changed = json_number(st_json_get(st_json_get(answer, "changed"), "ram"), "predicted_seconds");

    assert_true(fabs(changed / chosen - 1) < 1e-6);
    st_json_free(answer);
}

/* A part more is nothing to lose by: what was chosen works with it, too, whatever the drafts say. */
TEST(no_part_more_makes_a_step_longer)
{
    static const char *const parts[] = {"gpu", "ram", "drive"};
    static const char *const questions[] = {
        "plan --model gpt2 --gpu 4090 --batch-tokens 8K --json",
        "plan --model " TWO_BLOCKS " --seq-len 256 --gpu 4060-laptop --ram 16GB --drive gen3:500GB --batch-tokens 8K --json",
    };

    for (size_t q = 0; q < sizeof(questions) / sizeof(questions[0]); q++) {
        st_json *answer = asked(*state, 0, questions[q]);
        const double chosen = json_number(st_json_get(answer, "chosen"), "predicted_seconds");

        for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
            const st_json *changed = st_json_get(st_json_get(answer, "changed"), parts[i]);

            assert_non_null(changed);
            if (json_number(changed, "predicted_seconds") > chosen)
                fail_msg("%s: with more of %s %g s, not %g", questions[q], parts[i], json_number(changed, "predicted_seconds"),
                         chosen);
        }
        st_json_free(answer);
    }
}

/* The next larger card has a link of half the rate: its row says how long its own step is. */
TEST(a_card_that_is_slower_in_something_is_not_flattered)
{
    static const char ask[] = "plan --model nano --batch-tokens 256 --threads 2 --ram 64GB:8xDDR5-5600 --device-memory 4M --json";
    char command[256];
    st_json *answer, *own;
    double chosen, changed, least;

    snprintf(command, sizeof(command), "%s --gpu 5090", ask);
    answer = asked(*state, 0, command);
    chosen = json_number(st_json_get(answer, "chosen"), "predicted_seconds");
    changed = json_number(st_json_get(st_json_get(answer, "changed"), "gpu"), "predicted_seconds");
    snprintf(command, sizeof(command), "%s --gpu %s", ask, json_text(st_json_get(st_json_get(answer, "changed"), "gpu"), "to"));
    own = asked(*state, 0, command);
    least = json_number(st_json_get(own, "chosen"), "predicted_seconds");
    assert_true(least > 1.02 * chosen);
    if (changed < 0.99 * least)
        fail_msg("%g s, with its own question %g s", changed, least);
    st_json_free(answer);
    st_json_free(own);
}

static void the_files_of_people_plan_the_same(void **state)
{
    for (size_t i = 0; i < sizeof(people) / sizeof(people[0]); i++)
        check_question(*state, &people[i]);
}

TEST(advice_taken_literally_fits)
{
    static const char ask[] =
        "plan --model " TWO_BLOCKS " --seq-len 256 --batch-tokens 1K --gpu 4090 --json --device-memory 256MiB "
        "--host-memory 512MiB";
    static const struct {
        const char *tier, *option, *other;
    } tiers[] = {{"device", "--device-memory", "--host-memory 512MiB"}, {"host", "--host-memory", "--device-memory 256MiB"}};
    const struct workplace *w = *state;
    st_json *answer = asked(w, 3, ask);

    for (size_t i = 0; i < 2; i++) {
        const uint64_t least = (uint64_t)json_number(st_json_get(answer, "least"), tiers[i].tier);
        char command[512];

        assert_true(least > 0 && least % (64u << 20) == 0);
        for (uint64_t less = 0; less < 2; less++) {
            snprintf(command, sizeof(command),
                     "plan --model " TWO_BLOCKS " --seq-len 256 --batch-tokens 1K --gpu 4090 --json %s %lluMiB %s",
                     tiers[i].option, (unsigned long long)((least >> 20) - 64 * less), tiers[i].other);
            st_json_free(asked(w, less == 0 ? 0 : 3, command));
        }
    }
    st_json_free(answer);
}

/* The words between `before` and `after` in a text. */
static void words_of(char *out, size_t bytes, const char *text, const char *before, const char *after)
{
    const char *begin = strstr(text, before), *end = begin != NULL ? strstr(begin + strlen(before), after) : NULL;

    if (end == NULL)
        fail_msg("%s\nlacks: %s...%s", text, before, after);
    else
        snprintf(out, bytes, "%.*s", (int)(end - begin - (ptrdiff_t)strlen(before)), begin + strlen(before));
}

/* Whether the least demanding settings fit a machine, with state where the file says. */
static void check_settings(const struct workplace *w, int code, const char *tier, const char *machine)
{
    char command[384], file[192];

    snprintf(file, sizeof(file),
             "{\"train_micro_batch_size_per_gpu\": 1, \"gradient_clipping\": 1.0, \"bf16\": {\"enabled\": true}, "
             "\"zero_optimization\": {\"stage\": 3, \"offload_optimizer\": {\"device\": \"%s\"}}}",
             tier);
    workplace_write(w, "least.json", file, strlen(file));
    snprintf(command, sizeof(command), "plan --config {w}/least.json --model " WIDE_BLOCKS " --seq-len 64 %s%s --json", machine,
             strcmp(tier, "nvme") == 0 ? " --set zero_optimization.offload_param.device=nvme --nvme /nvme"
                                       : " --set zero_optimization.offload_param.device=cpu");
    st_json_free(asked(w, code, command));
}

/* A card, a memory and drives that are named do, each by itself; a GB less of memory does not. */
TEST(parts_taken_literally_fit)
{
    const struct workplace *w = *state;
    char card[64], memory[64], drive[64], machine[192];
    struct program p;

    workplace_run(
        w, &p, "plan --model " WIDE_BLOCKS " --seq-len 64 --batch-tokens 64 --gpu 4060-laptop --ram 8GB --write {w}/never.json");
    assert_int_equal(p.code, 3);
    assert_non_null(strstr(p.out, "not written: "));
    assert_non_null(strstr(p.err, "error: full training does not fit the machine\n"));
    words_of(card, sizeof(card), p.out, "    with --gpu ", " (");
    words_of(memory, sizeof(memory), p.out, "    with --ram ", "GB (");
    words_of(drive, sizeof(drive), p.out, "    with --drive ", " (");
    snprintf(machine, sizeof(machine), "--gpu %s --ram 8GB", card);
    check_settings(w, 0, "cpu", machine);
    snprintf(machine, sizeof(machine), "--gpu 4060-laptop --ram 8GB --drive %s", drive);
    check_settings(w, 0, "nvme", machine);
    for (int less = 0; less < 2; less++) {
        snprintf(machine, sizeof(machine), "--gpu 4060-laptop --ram %dGB", atoi(memory) - less);
        check_settings(w, less == 0 ? 0 : 3, "cpu", machine);
    }
    program_free(&p);
}

/* Where a budget is given, it is named with the part. */
TEST(a_part_and_its_budget_taken_literally_fit)
{
    const struct workplace *w = *state;
    char memory[64], budget[64], machine[192];
    struct program p;

    workplace_run(w, &p,
                  "plan --model " WIDE_BLOCKS " --seq-len 64 --batch-tokens 64 --gpu 4060-laptop --device-memory 3GiB "
                  "--ram 8GB:2xDDR4-3200 --host-memory 1GiB");
    assert_int_equal(p.code, 3);
    words_of(memory, sizeof(memory), p.out, "    with --ram ", " (");
    words_of(budget, sizeof(budget), p.out, " --ram ", " of it");
    assert_non_null(strstr(memory, "GB:2xDDR4-3200"));
    assert_non_null(strchr(budget, '('));
    assert_non_null(strstr(p.out, " of it for a run as strata.host_memory, --host-memory)"));
    snprintf(machine, sizeof(machine), "--gpu 4060-laptop --device-memory 3GiB --ram %s --host-memory %s", memory,
             strchr(budget, '(') + 1);
    check_settings(w, 0, "cpu", machine);
    program_free(&p);
}

/* Where full training has no room adapters may, and beside nf4 with less; their files plan the same on this machine. */
TEST(adapters_are_offered_where_all_does_not_fit)
{
    static const char machine[] =
        "--model " TWO_BLOCKS " --seq-len 256 --gpu 4090 --device-memory 256MiB --host-memory 256MiB --json";
    static const char *const methods[] = {"lora", "qlora"};
    const struct workplace *w = *state;
    char command[512];
    st_json *answer;
    const st_json *instead;

    snprintf(command, sizeof(command), "plan --batch-tokens 1K %s", machine);
    answer = asked(w, 3, command);
    instead = st_json_first(st_json_get(answer, "instead"));
    for (size_t i = 0; i < 2; i++, instead = st_json_next(instead)) {
        struct st_json_writer writer;
        char *text = NULL;
        size_t bytes = 0;
        FILE *file = open_memstream(&text, &bytes);
        st_json *plan;

        assert_true(instead != NULL && file != NULL);
        assert_string_equal(json_text(instead, "method"), methods[i]);
        st_json_begin(&writer, file);
        st_json_put_node(&writer, NULL, st_json_get(instead, "config"));
        assert_int_equal(fclose(file), 0);
        workplace_write(w, "adapters.json", text, strlen(text));
        snprintf(command, sizeof(command), "plan --config {w}/adapters.json %s", machine);
        plan = asked(w, 0, command);
        assert_true(json_number(plan, "predicted_seconds") == json_number(instead, "predicted_seconds"));
        assert_true(json_number(st_json_get(st_json_get(plan, "tiers"), "device"), "needed") ==
                    json_number(st_json_get(instead, "needed"), "device"));
        assert_true(json_number(plan, "parameters") < 0.05 * json_number(answer, "parameters"));
        st_json_free(plan);
        free(text);
    }
    assert_null(instead);
    st_json_free(answer);
}

/* Together: each is lacking, and no more than that. */
TEST(memories_that_are_advised_together_fit)
{
    static const char ask[] = "plan --model " TWO_BLOCKS " --seq-len 256 --batch-tokens 1K --gpu 4090 --drive gen4:1TB --json";
    const struct workplace *w = *state;
    char command[512];
    st_json *answer;
    const st_json *together;
    uint64_t device, host;

    snprintf(command, sizeof(command), "%s --device-memory 64MiB --host-memory 128MiB", ask);
    answer = asked(w, 3, command);
    together = st_json_get(answer, "least_together");
    device = (uint64_t)json_number(together, "device") >> 20;
    host = (uint64_t)json_number(together, "host") >> 20;
    assert_true(device > 64 && device < 1024 && host > 128 && host < 1024 && json_number(together, "nvme") == 0);
    st_json_free(answer);
    for (uint64_t less = 0; less < 2; less++) {
        snprintf(command, sizeof(command), "%s --device-memory %lluMiB --host-memory %lluMiB", ask, (unsigned long long)device,
                 (unsigned long long)(host - 64 * less));
        st_json_free(asked(w, less == 0 ? 0 : 3, command));
    }
}

/* Of many sequences they take more host memory than there is. */
TEST(checkpoints_of_activations_may_lie_on_drives)
{
    st_json *answer = asked(*state, 0,
                            "plan --model gpt2 --seq-len 256 --batch-tokens 16K --gpu 4060-laptop --drive gen4:1TB "
                            "--device-memory 400MiB --host-memory 700MiB --json");

    assert_string_equal(json_text(st_json_get(answer, "chosen"), "activation_checkpoints"), "nvme");
    assert_string_equal(json_text(st_json_get(st_json_get(answer, "config"), "strata"), "activation_tier"), "nvme");
    st_json_free(answer);
}

TEST(the_text_says_how_long_and_on_what)
{
    struct program p;

    workplace_run_ok(*state, &p, "plan --model nano --gpu 4090 --batch-tokens 2K --max-steps 1000");
    assert_non_null(strstr(p.out, "steps of 2048 tokens"));
    assert_non_null(strstr(p.out, "evaluated on GeForce RTX 4090, 64 GB of memory, no drive"));
    assert_non_null(strstr(p.out, "in 1000 steps"));
    assert_non_null(strstr(p.out, "with one change the step would take"));
    assert_null(strstr(p.out, " endure")); /* nothing is written */
    assert_null(strstr(p.err, "notice"));
    program_free(&p);
    workplace_run_ok(*state, &p, "plan --model nano --gpu 4090 --batch-tokens 256 --tokens 256");
    assert_non_null(strstr(p.out, "tokens in 1 step:"));
    assert_null(strstr(p.out, "of 1 settings"));
    program_free(&p);
    workplace_run_ok(*state, &p,
                     "plan --model nano --gpu 4090 --drive gen4:1TB --device-memory 12M --host-memory 8M --batch-tokens 256 "
                     "--tokens 1B");
    assert_non_null(strstr(p.out, "drives endure 600 TB written for each TB (data sheets of client drives"));
    assert_non_null(strstr(p.out, " of what they endure"));
    program_free(&p);
    workplace_run_ok(*state, &p,
                     "plan --model nano --gpu 4090 --drive gen4:1TB --device-memory 12M --host-memory 8M --batch-tokens 256 "
                     "--tokens 100B");
    assert_non_null(strstr(p.out, " times what they endure\n"));
    program_free(&p);
}

/* As many steps as a run of so many epochs has, the last of each smaller; whoever names data alone means one. */
TEST(data_says_how_long_the_run_is)
{
    static const struct {
        const char *options;
        double epochs, steps;
    } rows[] = {{"", 1, 0}, {"--epochs 2.5", 2.5, 0}, {"--max-steps 9", 0, 9}};

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        char command[256];
        st_json *answer;
        const st_json *chosen;
        double sequences, steps;

        snprintf(command, sizeof(command),
                 "plan --model nano --seq-len 32 --gpu 4090 --batch-tokens 96 --data {w}/good.bin --json %s", rows[i].options);
        answer = asked(*state, 0, command);
        chosen = st_json_get(answer, "chosen");
        sequences = json_number(answer, "data_sequences");
        steps = rows[i].steps > 0 ? rows[i].steps : ceil(rows[i].epochs * ceil(sequences / 3));
        assert_true(sequences > 3 && fmod(sequences, 3) != 0);
        assert_true(json_number(answer, "steps") == steps);
        assert_true(fabs(json_number(chosen, "run_seconds") / (steps * json_number(chosen, "predicted_seconds")) - 1) < 1e-9);
        assert_true(st_json_bool(st_json_get(answer, "named")));
        st_json_free(answer);
    }
}

/* Whoever says nothing of a run asks; a plan is for those who do, and the answer ends with the plan that it recommends. */
TEST(plan_without_settings_asks_and_with_one_plans)
{
    static const struct {
        const char *options;
        bool asks;
    } rows[] = {
        {"--max-steps 9 --threads 2 --host-memory 1GiB --device-memory 1GiB --nvme /nowhere", true},
        {"--ranks 2 --device-memory 1GiB --host-memory 1GiB", true},
        {"--micro-batch 1", false},
        {"--set zero_optimization.stage=0", false},
        {"--config {w}/stage.json", false},
        {"--save {w}/saved", false},
        {"--lr 1e-4", false},
        {"--data {w}/good.bin --out {w}/out", false},
        {"--data {w}/good.bin --epochs 3", true},
        {"--layout packed", false},
        {"--eval-data {w}/good.bin --no-shuffle", false},
    };
    static const char stage[] = "{\"train_micro_batch_size_per_gpu\": 1, \"zero_optimization\": {\"stage\": 0}}";
    const struct workplace *w = *state;

    workplace_write(w, "stage.json", stage, strlen(stage));
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        char command[256];
        struct program p;

        snprintf(command, sizeof(command), "plan --model nano --gpu 4090 --drive gen4:1TB %s", rows[i].options);
        workplace_run_ok(w, &p, command);
        if ((strstr(p.out, "\n  it fits: ") != NULL) != rows[i].asks || strstr(p.out, "\n  budget ") == NULL ||
            strstr(p.out, "machine by names") == NULL)
            fail_msg("strata %s: %s", command, p.out);
        program_free(&p);
    }
}

/* Of several ranks the answer is a stage, too: what one card cannot hold eight share, the lowest stage that fits is named, and
 * the file plans the same for as many. */
TEST(ranks_are_asked_about)
{
    static const char ask[] = "--model gpt2 --seq-len 128 --gpu a100-80gb --device-memory 1200MiB --ranks 8";
    char command[256];
    st_json *answer, *plan;
    double lowest = 3;

    snprintf(command, sizeof(command), "plan %s --batch-tokens 4K --json --write {w}/ranks.json --overwrite", ask);
    answer = asked(*state, 0, command);
    check_nothing_is_faster(answer);
    assert_true(json_number(answer, "ranks") == 8 && json_number(answer, "step_sequences") == 32);
    assert_true(json_number(st_json_get(answer, "chosen"), "stage") >= 1);
    for (const st_json *t = st_json_first(st_json_get(answer, "tried")); t != NULL; t = st_json_next(t))
        lowest = fmin(lowest, json_number(t, "stage"));
    assert_true(lowest >= 1 && json_number(st_json_get(answer, "lowest_stage"), "stage") == lowest);
    snprintf(command, sizeof(command), "plan %s --config {w}/ranks.json --json", ask);
    plan = asked(*state, 0, command);
    assert_true(json_number(plan, "predicted_seconds") == json_number(st_json_get(answer, "chosen"), "predicted_seconds"));
    assert_true(json_number(st_json_get(plan, "world"), "stage") == json_number(st_json_get(answer, "chosen"), "stage"));
    st_json_free(answer);
    st_json_free(plan);
}

/* The rates of this machine are measured, where no other is named. */
TEST(this_machine_is_asked_about)
{
    struct program p;

    workplace_run_ok(*state, &p, "plan --model nano --fault machine.patience:0:0:0");
    assert_null(strstr(p.out, "machine by names"));
    assert_null(strstr(p.out, "one change"));
    assert_non_null(strstr(p.out, "predicted step: "));
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

TEST_MAIN(argc, argv)
{
    const struct CMUnitTest longer[] = {cmocka_unit_test(the_files_of_people_plan_the_same)};

    return argc > 1 ? cmocka_run_group_tests(longer, setup, teardown) : test_run(setup, teardown);
}
