/* tests/cli/test_outputs.c - what programs read: metrics lines, plan --json, eval --json, and that they agree. */
#include "core/json/json.h"
#include "strata/types.h"
#include "tests/cli/program.h"
#include "tests/cli/workplace.h"
#include "tests/common/json_member.h"
#include "tests/common/test.h"
#include "tests/common/whole_file.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NVME_RUN                                                                                                                 \
    "train --model nano --data {w}/good.bin --seq-len 32 --micro-batch 2 --grad-accum 3 --max-steps 6 --machine "                \
    "{w}/machine.json --set zero_optimization.offload_optimizer.device=nvme --set strata.cache=0 --nvme {w}/nvme "
#define RUN             NVME_RUN "--threads 2 --seed 5 --set strata.isa=scalar --set strata.io_method=threads "
#define STEPS           6u
#define TOKENS_PER_STEP (32u * 2 * 3)

static st_json *parse(const char *text, size_t bytes)
{
    st_json *root = NULL;

    assert_int_equal(st_json_parse(&root, text, bytes, "output"), STRATA_OK);
    return root;
}

/* "a.b" from the root. */
static const st_json *at(const st_json *node, const char *path)
{
    char text[128], *rest = text;

    strncpy(text, path, sizeof(text) - 1);
    text[sizeof(text) - 1] = '\0';
    for (char *key = strsep(&rest, "."); key != NULL; key = strsep(&rest, ".")) {
        node = st_json_get(node, key);
        if (node == NULL)
            fail_msg("no key %s", path);
    }
    return node;
}

static double number(const st_json *root, const char *path)
{
    const st_json *node = at(root, path);

    assert_int_equal(st_json_type(node), ST_JSON_NUMBER);
    return st_json_number(node);
}

/* cmocka compares floats; these are doubles. */
static void assert_near(double have, double want, double most)
{
    if (!(fabs(have - want) <= most))
        fail_msg("%.17g is not %.17g", have, want);
}

/* Calls `check` for every line; returns their count. */
static unsigned each_line(const char *text, void (*check)(const st_json *line, unsigned index, void *ctx), void *ctx)
{
    unsigned count = 0;

    for (const char *line = text; *line != '\0'; count++) {
        const size_t bytes = strcspn(line, "\n");
        st_json *root = parse(line, bytes);

        assert_int_equal(line[bytes], '\n');
        check(root, count, ctx);
        st_json_free(root);
        line += bytes + 1;
    }
    return count;
}

static void check_header(const st_json *line)
{
    static const char *const keys[] = {
        "run.version",          "run.config.train_batch_size", "run.plan.fits",        "run.plan.traffic.read",
        "run.plan.written.run", "run.machine.matmul_flops",    "run.engine.io_method", "run.seed"};

    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++)
        assert_non_null(at(line, keys[i]));
    assert_near(number(line, "run.config.train_batch_size"), 6, 0);
    assert_string_equal(json_text(at(line, "run.origins"), "strata.isa"), "command line");
    assert_string_equal(json_text(at(line, "run.origins"), "train_batch_size"), "derived");
    assert_null(st_json_get(at(line, "run.origins"), "optimizer.params.eps")); /* the default */
    assert_string_equal(st_json_string(at(line, "run.engine.device")), "cpu");
    assert_string_equal(st_json_string(at(line, "run.engine.isa")), "scalar");
    assert_string_equal(st_json_string(at(line, "run.engine.io_method")), "threads");
    assert_false(st_json_bool(at(line, "run.engine.io_registered")));
    assert_near(number(line, "run.engine.workers"), 2, 0);
    assert_near(number(line, "run.max_steps"), STEPS, 0);
    assert_near(number(line, "run.sequence_length"), 32, 0);
    assert_near(number(line, "run.seed"), 5, 0);
}

static void check_step(const st_json *line, unsigned index)
{
    static const char *const keys[] = {"loss",
                                       "bits_per_byte",
                                       "grad_norm",
                                       "lr",
                                       "loss_scale",
                                       "skipped",
                                       "tokens_per_second",
                                       "mfu",
                                       "step_seconds",
                                       "hardware_bound_seconds",
                                       "schedule_bound_seconds",
                                       "busy_ms.compute",
                                       "busy_ms.read_state",
                                       "stall_ms.compute",
                                       "stall_ms.write",
                                       "bytes.upload",
                                       "bytes.download",
                                       "resident.device",
                                       "resident.host",
                                       "resident.nvme",
                                       "pressure.major_faults",
                                       "pressure.swap_bytes",
                                       "pressure.psi_some_ms",
                                       "pressure.psi_full_ms"};
    const double parts = number(line, "time_ms.forward") + number(line, "time_ms.backward") + number(line, "time_ms.stall") +
                         number(line, "time_ms.other");

    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++)
        assert_non_null(at(line, keys[i]));
    assert_near(number(line, "step"), index, 0);
    assert_near(number(line, "tokens"), TOKENS_PER_STEP, 0);
    assert_near(number(line, "tokens_total"), (double)index * TOKENS_PER_STEP, 0);
    assert_near(number(line, "bits_per_byte"), number(line, "loss") / log(2), 1e-9); /* a byte is a token */
    assert_near(parts, number(line, "step_seconds") * 1e3, 1e-3 * parts);
    assert_int_equal(st_json_get(line, "eval_loss") != NULL, index == 3 || index == 6);
}

struct seen {
    double plan_read, plan_write, plan_run, eval_loss;
    char weights_digest[33];
};

static void check_metrics(const st_json *line, unsigned index, void *ctx)
{
    struct seen *seen = ctx;

    if (index == 0) {
        check_header(line);
        seen->plan_read = number(line, "run.plan.traffic.read");
        seen->plan_write = number(line, "run.plan.traffic.write");
        seen->plan_run = number(line, "run.plan.written.run");
        return;
    }
    if (index <= STEPS) {
        check_step(line, index);
        if (index == 3 || index == 5 || index == 6) { /* steady: neither the first two nor the one after an evaluation */
            assert_near(number(line, "bytes.read"), seen->plan_read, 0);
            assert_near(number(line, "bytes.write"), seen->plan_write, 0);
        }
        return;
    }
    assert_near(number(line, "summary.steps"), STEPS, 0);
    assert_near(number(line, "summary.skipped_steps"), 0, 0);
    assert_near(number(line, "summary.tokens_total"), STEPS * TOKENS_PER_STEP, 0);
    assert_true(number(line, "summary.peak_rss_bytes") > 0);
    assert_true(number(line, "summary.step_seconds") > 0);
    assert_near(number(line, "summary.bytes.read"), seen->plan_read, 0);
    assert_near(number(line, "summary.written.run"), seen->plan_run, 0); /* the first step and the last flush as well */
    assert_true(number(line, "summary.written.day") > seen->plan_run);
    assert_non_null(at(line, "summary.time_ms.stall"));
    assert_non_null(at(line, "summary.pressure_total.major_faults"));
    assert_true(number(line, "summary.pressure_total.pressed_steps") <= STEPS);
    assert_true(number(line, "summary.bound_fraction") > 0);
    assert_int_equal(st_json_type(at(line, "summary.bound_by")), ST_JSON_STRING);
    assert_string_equal(st_json_string(at(line, "summary.status")), "ok");
    assert_int_equal(strlen(st_json_string(at(line, "summary.state_digest"))), 32);
    strncpy(seen->weights_digest, st_json_string(at(line, "summary.weights_digest")), 32);
    seen->eval_loss = number(line, "summary.eval_loss");
}

/* What was asked for, and what the drives' directory refused: each under its own key. */
TEST(the_header_has_what_the_run_was_asked_for)
{
    static const char *const refused[] = {"nvme.register", "nvme.direct"};
    const struct workplace *w = *state;

    for (size_t i = 0; i < 2; i++) {
        char command[512], *text;
        struct program p;
        size_t bytes;

        snprintf(
            command, sizeof(command),
            "train --model nano --data {w}/good.bin --seq-len 32 --seed 7 --max-steps 2 --threads 1 --machine {w}/machine.json "
            "--quiet --metrics {w}/asked.jsonl --nvme {w}/nvme --set zero_optimization.offload_optimizer.device=nvme --fault %s",
            refused[i]);
        workplace_run_ok(w, &p, command);
        program_free(&p);
        text = workplace_read(w, "asked.jsonl", &bytes);
        assert_non_null(strstr(text, "{\"run\":{\"id\":null,\"version\":\"" STRATA_VERSION_STRING
                                     "\",\"model\":\"nano\",\"seed\":7,\"sequence_length\":32,\"max_steps\":2,\"config\":{"));
        assert_non_null(strstr(text, i == 0 ? "\"io_registered\":false," : "\"io_direct\":false,"));
        assert_non_null(strstr(text, "\"workers\":1}}}\n"));
        free(text);
        workplace_remove(w, "asked.jsonl");
    }
}

TEST(metrics_model_and_eval_agree)
{
    const struct workplace *w = *state;
    struct seen seen = {0};
    struct program p;
    size_t bytes;
    char *metrics;
    st_json *root;

    workplace_run_ok(w, &p, RUN "--metrics {w}/m.jsonl --digest --out {w}/out --eval-data {w}/good.heldout.bin --eval-every 3");
    metrics = workplace_read(w, "m.jsonl", &bytes);
    assert_int_equal(each_line(metrics, check_metrics, &seen), STEPS + 2);
    assert_non_null(strstr(p.out, seen.weights_digest));
    assert_non_null(strstr(p.out, "step 6/6"));
    assert_non_null(strstr(p.out, "done: 6 steps (0 skipped)"));
    assert_non_null(strstr(p.out, "\n  bound by      "));
    assert_non_null(strstr(p.out, "\n  pressure      "));
    program_free(&p);

    workplace_run_ok(w, &p, "digest {w}/out");
    assert_int_equal(strncmp(p.out, seen.weights_digest, 32), 0);
    program_free(&p);

    workplace_run_ok(w, &p, "eval --model {w}/out --data {w}/good.heldout.bin --seq-len 32 --micro-batch 5 --json");
    root = parse(p.out, strlen(p.out));
    assert_near(number(root, "loss"), seen.eval_loss, 1e-9);
    assert_near(number(root, "perplexity"), exp(seen.eval_loss), 1e-6);
    assert_true(number(root, "tokens") > 0);
    st_json_free(root);
    program_free(&p);
    free(metrics);
    workplace_remove(w, "m.jsonl");
    workplace_remove(w, "out");
    assert_int_equal(workplace_entries(w, "nvme"), 0);
}

static void check_stdout_line(const st_json *line, unsigned index, void *ctx)
{
    (void)ctx;
    if (index == 0)
        check_header(line);
    else if (index > STEPS)
        assert_non_null(at(line, "summary.steps"));
}

TEST(json_train_keeps_standard_output_clean)
{
    const struct workplace *w = *state;
    struct program p;

    workplace_run_ok(w, &p, RUN "--json");
    assert_int_equal(each_line(p.out, check_stdout_line, NULL), STEPS + 2);
    assert_non_null(strstr(p.err, "step 1/6"));
    program_free(&p);
    workplace_run_ok(w, &p, RUN "--quiet");
    assert_string_equal(p.out, "");
    program_free(&p);
}

TEST(plan_json_has_its_stable_keys)
{
    static const char *const numbers[] = {"tiers.device.capacity",
                                          "tiers.device.needed",
                                          "tiers.host.capacity",
                                          "tiers.host.needed",
                                          "tiers.nvme.capacity",
                                          "tiers.nvme.needed",
                                          "rss_bytes_max",
                                          "traffic.upload",
                                          "traffic.download",
                                          "traffic.read",
                                          "traffic.write",
                                          "written.step",
                                          "written.run",
                                          "written.day",
                                          "hardware_bound_seconds",
                                          "schedule_bound_seconds",
                                          "predicted_seconds",
                                          "ops",
                                          "traffic_by_phase.eval.upload",
                                          "placement.chunks"};
    const struct workplace *w = *state;
    struct program p;
    st_json *root;

    workplace_run_ok(w, &p,
                     "plan --model nano --seq-len 32 --max-steps 100 --machine {w}/machine.json --nvme {w}/nvme --set "
                     "strata.cache=0 --json --set "
                     "zero_optimization.offload_optimizer.device=nvme");
    root = parse(p.out, strlen(p.out));
    assert_true(st_json_bool(at(root, "fits")));
    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++)
        number(root, numbers[i]);
    assert_int_equal(st_json_type(at(root, "bound_by")), ST_JSON_STRING);
    assert_int_equal(st_json_type(at(root, "items")), ST_JSON_ARRAY);
    assert_near(number(root, "written.step"), number(root, "traffic.write"), 0);
    assert_near(number(root, "written.day"), number(root, "traffic.write") / number(root, "predicted_seconds") * 86400,
                1e-6 * number(root, "written.day"));
    assert_near(number(root, "written.run"),
                99 * number(root, "traffic.write") + number(root, "traffic_by_phase.first.write") +
                    number(root, "traffic_by_phase.flush.write"),
                0);
    st_json_free(root);
    program_free(&p);
}

/* The figures themselves are checked where they are JSON. */
TEST(a_run_says_what_it_writes_and_its_plan_in_short)
{
    const struct workplace *w = *state;
    struct program p;
    const char *line;
    char text[160];

    workplace_run_ok(w, &p, RUN);
    line = strstr(p.out, "  nvme writes   ");
    assert_non_null(line);
    snprintf(text, sizeof(text), "%.*s", (int)strcspn(line, "\n"), line);
    assert_non_null(strstr(text, " a step, "));
    assert_non_null(strstr(text, " by the run, "));
    assert_non_null(strstr(text, " a day at this pace; a drive's data sheet says"));
    assert_non_null(strstr(p.out, " logits, activation checkpoints on "));
    assert_null(strstr(p.out, "\n  state: "));
    assert_null(strstr(p.out, "\n  slots: "));
    program_free(&p);
    workplace_run_ok(w, &p, "plan --model nano --micro-batch 1");
    assert_non_null(strstr(p.out, "\n  state: "));
    assert_non_null(strstr(p.out, "\n  slots: "));
    program_free(&p);
}

/* Once, and by rank 0; a run that keeps its weights says nothing. */
TEST(a_run_that_keeps_nothing_says_so)
{
    static const struct {
        const char *options;
        bool kept;
    } rows[] = {{"", false},
                {"--metrics {w}/m.jsonl --digest", false},
                {"--out {w}/kept", true},
                {"--save {w}/kept", true},
                {"--set strata.save={w}/kept", true}};
    static const char notice[] = "notice: neither --out DIR nor --save DIR is given: what this run learns is lost when it ends\n";
    const struct workplace *w = *state;
    struct program p;

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        char command[1024];
        const char *said;

        snprintf(command, sizeof(command), RUN "--quiet %s", rows[i].options);
        workplace_run_ok(w, &p, command);
        said = strstr(p.err, notice);
        if ((said == NULL) != rows[i].kept || (said != NULL && strstr(said + 1, notice) != NULL))
            fail_msg("%s: %s", command, p.err);
        program_free(&p);
        workplace_remove(w, "kept");
        workplace_remove(w, "m.jsonl");
    }
}

TEST(plan_says_which_rates_there_are)
{
    const struct workplace *w = *state;
    struct program p;
    st_json *root;

    workplace_run_ok(w, &p, "plan --model nano --micro-batch 1 --json");
    root = parse(p.out, strlen(p.out));
    assert_int_equal(st_json_type(at(root, "schedule_bound_seconds")), ST_JSON_NULL);
    assert_int_equal(st_json_type(at(root, "bound_by")), ST_JSON_NULL);
    st_json_free(root);
    program_free(&p);
    workplace_run_ok(w, &p, "plan --model nano --micro-batch 1");
    assert_non_null(strstr(p.out, "shortest step: unknown"));
    program_free(&p);
    workplace_run_ok(w, &p, "plan --model nano --seq-len 32 --micro-batch 1 --machine tests/machines/card-24gb.json");
    assert_non_null(strstr(p.out, "passes over its memory, at 920 GB/s: "));
    program_free(&p);
}

/* The file's capacities stand for a machine that is not here. */
TEST(plan_for_another_machine)
{
    static const char machine[] = "{\"name\":\"big\",\"device_bytes\":85899345920,\"host_bytes\":2e12,\"nvme_bytes\":8e12}";
    const struct workplace *w = *state;
    struct program p;
    st_json *root;

    workplace_write(w, "big.json", machine, strlen(machine));
    workplace_run_ok(w, &p,
                     "plan --model gpt2-xl --machine {w}/big.json --nvme /nowhere --json --set "
                     "zero_optimization.offload_optimizer.device=nvme");
    root = parse(p.out, strlen(p.out));
    assert_near(number(root, "tiers.device.capacity"), 85899345920.0, 0);
    assert_near(number(root, "tiers.host.capacity"), 2e12, 0);
    assert_near(number(root, "tiers.nvme.capacity"), 8e12, 0);
    st_json_free(root);
    program_free(&p);
    workplace_remove(w, "big.json");
}

TEST(info_and_check_speak_json)
{
    const struct workplace *w = *state;
    struct program p;
    st_json *root;

    workplace_run_ok(w, &p, "info --json --nvme {w}/nvme");
    root = parse(p.out, strlen(p.out));
    assert_true(number(root, "cpu.usable_cores") >= 1);
    if (strncmp(st_json_string(at(root, "gpu")), "none: ", 6) != 0) /* else it says why */
        assert_non_null(st_json_first(at(root, "gpus")));
    assert_non_null(st_json_first(at(root, "io_methods")));
    assert_true(number(st_json_first(at(root, "nvme")), "free_bytes") > 0);
    st_json_free(root);
    program_free(&p);
    workplace_write(w, "config.json", "{\"gradient_clipping\":0.5}", 25);
    workplace_run_ok(w, &p, "check {w}/config.json --json --set strata.cache=0");
    root = parse(p.out, strlen(p.out));
    assert_true(st_json_bool(at(root, "valid")));
    assert_null(st_json_first(at(root, "problems")));
    assert_non_null(strstr(p.out, "\"origin\":\"command line\""));
    assert_non_null(strstr(p.out, "\"origin\":\"file\""));
    st_json_free(root);
    program_free(&p);
    workplace_remove(w, "config.json");
}

/* A measured file is one that a run accepts. */
TEST(measured_rates_can_be_read_back)
{
    const struct workplace *w = *state;
    struct program p;
    st_json *root;

    workplace_run_ok(
        w, &p,
        "info --measure --model nano --seq-len 32 --nvme {w}/nvme --out {w}/measured.json --json --fault machine.patience:0:0:0");
    root = parse(p.out, strlen(p.out));
    assert_true(number(root, "machine.matmul_flops") > 0);
    assert_true(number(root, "machine.block_flops") > 0);
    assert_true(number(root, "machine.head_flops") > 0);
    assert_true(number(root, "machine.upload") > 0);
    assert_true(number(root, "machine.download") > 0);
    assert_true(number(root, "machine.update") > 0);
    assert_true(number(root, "machine.checksum") > 0);
    assert_true(number(root, "machine.read") > 0);
    assert_true(number(root, "machine.write") > 0);
    st_json_free(root);
    program_free(&p);
    assert_int_equal(workplace_entries(w, "nvme"), 0);
    workplace_run_ok(w, &p, "plan --model nano --micro-batch 1 --machine {w}/measured.json --json");
    root = parse(p.out, strlen(p.out));
    assert_true(number(root, "schedule_bound_seconds") > 0);
    st_json_free(root);
    program_free(&p);
    workplace_remove(w, "measured.json");
}

/* What a launcher sets for every program is not obeyed, and that is said unless the number of workers is asked for. */
TEST(openmp_threads_are_noted)
{
    static const struct {
        const char *value, *threads;
        bool noted;
    } rows[] = {{"999", "", true}, {"999", "--threads 2", false}, {"many", "", false}, {NULL, "", false}};
    const struct workplace *w = *state;

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct program p;
        char command[512];

        if (rows[i].value != NULL)
            setenv("OMP_NUM_THREADS", rows[i].value, 1);
        else
            unsetenv("OMP_NUM_THREADS");
        snprintf(command, sizeof(command), "%s %s", NVME_RUN, rows[i].threads);
        workplace_run_ok(w, &p, command);
        if ((strstr(p.err, "OMP_NUM_THREADS 999 is ignored: ") != NULL) != rows[i].noted ||
            (strstr(p.err, "is ignored: ") != NULL) != rows[i].noted)
            fail_msg("OMP_NUM_THREADS %s %s: %s", rows[i].value, rows[i].threads, p.err);
        program_free(&p);
    }
}

/* --- --out --- */

static void assert_same_file(const struct workplace *w, const char *name, const char *golden)
{
    size_t bytes, want_bytes;
    char *have = workplace_read(w, name, &bytes), *want = read_file(golden, &want_bytes);

    assert_int_equal(bytes, want_bytes);
    assert_memory_equal(have, want, bytes);
    free(want);
    free(have);
}

/* XXH3-128 of the weights of a directory; owned by the caller. */
static char *digest_of(const struct workplace *w, const char *command)
{
    struct program p;
    char *hex;

    workplace_run_ok(w, &p, command);
    hex = strndup(p.out, 32);
    program_free(&p);
    return hex;
}

/* A step that changes nothing writes what was read: weights, config, and what lay beside them. */
TEST(a_model_that_was_read_is_written_as_it_was)
{
    const struct workplace *w = *state;
    char *before, *after;
    struct program p;

    workplace_run_ok(w, &p,
                     "train --model tests/golden/llama_tiny_untied --data tests/golden/llama_tiny_untied/tokens.bin --seq-len 32 "
                     "--max-steps 1 --lr 0 --set bf16.enabled=false --machine {w}/machine.json --quiet --out {w}/kept");
    program_free(&p);
    assert_same_file(w, "kept/config.json", "tests/golden/llama_tiny_untied/config.json");
    assert_same_file(w, "kept/golden.json", "tests/golden/llama_tiny_untied/golden.json");
    assert_false(workplace_exists(w, "kept/tokens.bin"));
    before = digest_of(w, "digest tests/golden/llama_tiny_untied");
    after = digest_of(w, "digest {w}/kept");
    assert_string_equal(before, after);
    free(before);
    free(after);
    workplace_remove(w, "kept");
    workplace_run_ok(w, &p,
                     "train --model {w}/model --data {w}/good.bin --seq-len 32 --max-steps 1 --lr 0 --machine {w}/machine.json "
                     "--quiet --out {w}/kept");
    program_free(&p);
    before = digest_of(w, "digest {w}/model"); /* bf16 keeps its bits */
    after = digest_of(w, "digest {w}/kept");
    assert_string_equal(before, after);
    free(before);
    free(after);
    workplace_remove(w, "kept");
}

TEST_GROUP(workplace_setup, workplace_teardown);
