/* tests/cli/test_bench_step.c - strata bench step with a tiny model: predicted, paced and on the processor; budgets in turns.
 * What rates are means nothing here: each is of one repeat. */
#include "tests/cli/bench_rows.h"
#include "tests/common/test.h"

#include <math.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#define STEP     "bench step --model nano --seq-len 32 --fault machine.patience:0:0:0 "
#define REHEARSE "--machine tests/machines/two-cores.json "
#define ON_NVME  "--set zero_optimization.offload_optimizer.device=nvme --set strata.cache=0 --nvme {w}/nvme "
/* A rehearsal measures updates and drives here, and these rates would choose which processor updates what. */
#define BY_HOST "--set zero_optimization.offload_optimizer.ratio=1 "

/* Those that a row always has come first, then bytes; the rest is the device's own. */
static const char *const step_keys[] = {
    "predicted_ms",     "bound_ms",     "step/bound",     "hardware_ms",   "stall_ms",     "upload_mb",
    "down_mb",          "read_mb",      "write_mb",       "step/hardware", "mfu",          "model_tflop",
    "ceiling_tflops",   "ceiling_size", "upload/link",    "download/link", "practicality", "device_mb",
    "device_beside_mb", "peak_rss_mb",  "planned_rss_mb", "early_pages",   "redone",       "bound_by"};
#define ALWAYS_KEYS 9u
#define STEP_KEYS   (sizeof(step_keys) / sizeof(step_keys[0]))

/* Milliseconds are the row's seconds, the ratio is that of bound and step, and only a run can stall. */
static void check_step(const struct rows *r, uint32_t i, const char *variant, bool ran)
{
    const double ms = number(r, i, "seconds") * 1e3;
    const st_json *n = st_json_first(r->row[i]);

    for (size_t k = 0; k < COMMON_KEYS; k++)
        n = st_json_next(n);
    for (size_t k = 0; k < STEP_KEYS; k++, n = st_json_next(n)) {
        assert_non_null(n);
        assert_string_equal(st_json_name(n), step_keys[k]);
        if (k < ALWAYS_KEYS && (ran || strcmp(step_keys[k], "stall_ms") != 0))
            assert_true(isfinite(number(r, i, step_keys[k])) && number(r, i, step_keys[k]) >= 0);
    }
    assert_null(n);
    assert_string_equal(text(r, i, "name"), ran ? "step" : "step (predicted)");
    assert_string_equal(text(r, i, "variant"), variant);
    assert_true(text(r, i, "bound_by")[0] != '\0');
    assert_close(number(r, i, "step/bound"), ms / number(r, i, "bound_ms"));
    assert_close(number(r, i, "ratio"), number(r, i, "bound_ms") / ms);
    assert_true(number(r, i, "bound_ms") >= number(r, i, "hardware_ms"));
    assert_int_equal(isnan(number(r, i, "stall_ms")), !ran);
    assert_close(number(r, i, "step/hardware"), ms / number(r, i, "hardware_ms"));
    assert_true(number(r, i, "planned_rss_mb") > 0 && number(r, i, "device_mb") > 0);
    assert_true(number(r, i, "model_tflop") > 0);
    if (ran)
        return;
    assert_close(number(r, i, "predicted_ms"), ms);
    assert_true(number(r, i, "ratio") <= 1 + 1e-9); /* with the rates it predicts from, no schedule beats its bound */
}

static void check_steps(const struct rows *r, const char *const *variants, uint32_t count, bool ran)
{
    assert_int_equal(r->count, count);
    for (uint32_t i = 0; i < count; i++)
        check_step(r, i, variants[i], ran);
}

static bool same_bytes(const struct rows *a, const struct rows *b, uint32_t i)
{
    for (const char *const *key = step_keys + 5; key < step_keys + 9; key++)
        if (number(a, i, *key) != number(b, i, *key))
            return false;
    return true;
}

/* A machine whose drive reads and writes by turns faster than at once, as one may under load: gradients lie on it then, too. */
static void write_by_turns(const struct workplace *w, const char *name)
{
    char text[2048];
    FILE *file = fopen("tests/machines/two-cores.json", "r");
    char *mixed;

    assert_non_null(file);
    text[fread(text, 1, sizeof(text) - 1, file)] = '\0';
    fclose(file);
    mixed = strstr(text, "\"mixed\": 1e9");
    assert_non_null(mixed);
    memcpy(mixed, "\"mixed\": 1e8", strlen("\"mixed\": 1e8"));
    workplace_write(w, name, text, strlen(text));
}

/* The configuration's own first, then every other update in every order. */
TEST(simulated_steps_have_a_row_per_schedule)
{
    static const char *const all[] = {"in_backward vertical", "in_backward horizontal", "gated vertical",
                                      "gated horizontal",     "serial vertical",        "serial horizontal"};
    static const char *const own_last[] = {"serial horizontal", "gated vertical", "gated horizontal", "serial vertical"};
    static const char *const clipped[] = {"gated", "serial"};
    const struct workplace *w = *state;
    struct rows r;

    run_rows(w, &r,
             STEP REHEARSE ON_NVME "--simulate --json --grad-accum 2 --set gradient_clipping=0 --set strata.update=in_backward "
                                   "--set strata.accumulation=vertical --set bf16.check_grad_overflow=false");
    check_steps(&r, all, 6, false);
    for (uint32_t i = 0; i < 6; i++)
        assert_true(number(&r, i, "read_mb") > 0 && number(&r, i, "read_mb") == number(&r, i, "write_mb"));
    assert_true(number(&r, 1, "upload_mb") >= number(&r, 0, "upload_mb"));
    free_rows(&r);
    run_rows(w, &r,
             STEP REHEARSE "--simulate --json --grad-accum 2 --set strata.update=serial --set strata.accumulation=horizontal");
    check_steps(&r, own_last, 4, false);
    free_rows(&r);
    run_rows(w, &r, STEP REHEARSE "--simulate --json --set strata.update=gated");
    check_steps(&r, clipped, 2, false);
    free_rows(&r);
    run_rows(w, &r, STEP REHEARSE "--simulate --json --only --set strata.update=serial");
    check_steps(&r, clipped + 1, 1, false);
    free_rows(&r);
    assert_int_equal(workplace_entries(w, "nvme"), 0);
}

/* A rehearsed step moves to the byte what the simulated one would; the drive's rates, which it measures here, choose which. */
TEST(paced_steps_run_and_leave_nothing)
{
    static const char *const variants[] = {"gated", "serial"};
    const struct workplace *w = *state;
    struct rows simulated, by_turns, ran;

    write_by_turns(w, "by-turns.json");
    run_rows(w, &simulated, STEP REHEARSE ON_NVME BY_HOST "--simulate --json --set strata.update=gated");
    run_rows(w, &by_turns, STEP "--machine {w}/by-turns.json " ON_NVME BY_HOST "--simulate --json --set strata.update=gated");
    run_rows(w, &ran, STEP REHEARSE ON_NVME BY_HOST "--device paced --steps 1 --json --set strata.update=gated");
    check_steps(&ran, variants, 2, true);
    for (uint32_t i = 0; i < 2; i++) {
        assert_true(number(&ran, i, "read_mb") > 0);
        assert_false(same_bytes(&simulated, &by_turns, i));
        assert_true(same_bytes(&simulated, &ran, i) || same_bytes(&by_turns, &ran, i));
    }
    assert_int_equal(workplace_entries(w, "nvme"), 0);
    free_rows(&simulated);
    free_rows(&by_turns);
    free_rows(&ran);
}

TEST(paced_steps_take_a_load)
{
    static const char *const variants[] = {"gated"};
    struct rows r;

    run_rows(*state, &r, STEP REHEARSE ON_NVME "--device paced --load 2 --only --steps 1 --json --set strata.update=gated");
    check_steps(&r, variants, 1, true);
    assert_int_equal(workplace_entries(*state, "nvme"), 0);
    free_rows(&r);
}

/* Model FLOPs by the ceiling and the step's time; only a device that multiplies has one. */
static void check_ceiling(const struct rows *r, uint32_t i)
{
    assert_true(number(r, i, "ceiling_tflops") > 0 && number(r, i, "ceiling_size") >= 64);
    assert_close(number(r, i, "mfu"), number(r, i, "model_tflop") / number(r, i, "seconds") / number(r, i, "ceiling_tflops"));
    assert_true(number(r, i, "upload/link") > 0 && number(r, i, "download/link") > 0);
    assert_true(number(r, i, "peak_rss_mb") > 0);
}

TEST(cpu_steps_run_on_this_machine)
{
    static const char *const variants[] = {"serial vertical"};
    struct rows r;

    run_rows(*state, &r, STEP "--device cpu --only --set strata.update=serial --grad-accum 2 --steps 1 --json");
    check_steps(&r, variants, 1, true);
    check_ceiling(&r, 0);
    /* 6 FLOPs per parameter and 12 per layer, value of the hidden state and position, for each of 32 tokens, twice. */
    assert_close(number(&r, 0, "model_tflop"), (6.0 * 858880 + 12.0 * 4 * 128 * 32) * 2 * 32 * 1e-12);
    assert_true(isnan(number(&r, 0, "practicality")) && isnan(number(&r, 0, "device_beside_mb")));
    free_rows(&r);
}

/* --- the device's ops --- */

#define BLOCKS 4u
#define HIDDEN 128.0
#define TOKENS 32.0

/* Rows of ops follow the step's, the longest first; returns their end. */
static uint32_t check_ops(const struct rows *r, uint32_t first, double step_ms)
{
    uint32_t i = first;

    for (double before = INFINITY; i < r->count && strcmp(text(r, i, "name"), "op") == 0; i++) {
        const double ms = number(r, i, "ms"), calls = number(r, i, "calls");

        assert_true(ms <= before && calls >= 1);
        assert_close(number(r, i, "seconds") * calls * 1e3, ms);
        assert_close(number(r, i, "share"), ms / step_ms);
        before = ms;
    }
    return i;
}

static double sum_of(const struct rows *r, uint32_t end, const char *lane)
{
    double ms = 0;

    for (uint32_t i = 1; i < end; i++)
        if (strcmp(text(r, i, "lane"), lane) == 0)
            ms += number(r, i, "ms");
    return ms;
}

/* The products of a step without recompute: three for each matrix of the blocks and the head, 2 FLOPs for each value and token.
 */
static void check_products(const struct rows *r, uint32_t end)
{
    double flops = 0;
    uint32_t wide = 0;

    for (uint32_t i = 1; i < end; i++) {
        if (strcmp(text(r, i, "op"), "matmul") != 0)
            continue;
        flops += number(r, i, "tflops") * 1e12 * number(r, i, "ms") * 1e-3;
        if (strcmp(text(r, i, "shape"), "32 x 384 x 128 bf16 nn bias") != 0)
            continue;
        wide++;
        assert_true(number(r, i, "calls") == BLOCKS && number(r, i, "bytes") == 2 * (32 * 128 + 128 * 384 + 32 * 384 + 384));
    }
    assert_int_equal(wide, 1);
    assert_close(flops, 6 * TOKENS * (BLOCKS * 12 * HIDDEN * HIDDEN + 256 * HIDDEN));
}

TEST(ops_add_up_to_the_lanes)
{
    static const char *const lanes[] = {"compute", "upload", "download", "update_device"};
    struct rows r;
    uint32_t sums;

    run_rows(*state, &r, STEP "--device cpu --only --set strata.update=serial --steps 2 --ops --json");
    check_step(&r, 0, "serial", true);
    sums = check_ops(&r, 1, number(&r, r.count - 1, "step_ms"));
    assert_int_equal(sums, r.count - 1);
    assert_string_equal(text(&r, sums, "name"), "ops");
    for (size_t i = 0; i < sizeof(lanes) / sizeof(lanes[0]); i++) {
        const double ops_ms = st_json_number(st_json_get(st_json_get(r.row[sums], "ops_ms"), lanes[i]));
        const double busy_ms = st_json_number(st_json_get(st_json_get(r.row[sums], "busy_ms"), lanes[i]));

        assert_close(ops_ms, sum_of(&r, sums, lanes[i]));
        assert_true(ops_ms <= busy_ms && (ops_ms > 0) == (busy_ms > 0));
    }
    check_products(&r, sums);
    free_rows(&r);
}

TEST(what_computes_nothing_has_no_ops)
{
    fails(*state, STEP REHEARSE "--simulate --ops", "--ops times what a device computes, and --simulate computes nothing");
    fails(*state, STEP REHEARSE "--device paced --ops", "--ops times what a device computes, and --device paced waits");
}

/* --- two schedules, and steps that are dropped --- */

/* Steps at equal distances are dropped, and the next one makes their updates again; of a gated schedule nothing is. */
TEST(schedules_take_turns)
{
    static const char *const variants[] = {"gated", "speculative"};
    static const char paced[] = STEP REHEARSE ON_NVME BY_HOST "--device paced --json --set strata.update=gated ";
    static const char simulate[] = STEP "--machine tests/machines/laptop-8gb.json " ON_NVME BY_HOST
                                        "--simulate --json --only --set strata.update=speculative ";
    char command[512];
    struct rows r, simulated;

    snprintf(command, sizeof(command), "%s--beside speculative --steps 8 --clip-rate 0.25", paced);
    run_rows(*state, &r, command);
    check_steps(&r, variants, 2, true);
    assert_true(number(&r, 0, "early_pages") == 0 && number(&r, 0, "redone") == 0);
    assert_true(number(&r, 1, "redone") == (number(&r, 1, "early_pages") > 0 ? 2 : 0)); /* by rates that it measures here */
    free_rows(&r);
    run_rows(*state, &r, simulate);
    snprintf(command, sizeof(command), "%s--clip-rate 0.5", simulate);
    run_rows(*state, &simulated, command);
    check_steps(&simulated, variants + 1, 1, false);
    assert_true(number(&simulated, 0, "early_pages") > 0 && number(&simulated, 0, "seconds") > number(&r, 0, "seconds"));
    free_rows(&r);
    free_rows(&simulated);
    snprintf(command, sizeof(command), "%s--beside later", paced);
    fails(*state, command, "--beside: no update is called \"later\"");
    snprintf(command, sizeof(command), "%s--beside in_backward", paced);
    fails(*state, command, "--beside in_backward: clipping");
    snprintf(command, sizeof(command), "%s--beside serial --device-memory 8MiB 16MiB", paced);
    fails(*state, command, "leave one out");
    snprintf(command, sizeof(command), "%s--clip-rate 0.05 --steps 8", paced);
    fails(*state, command, "ask for at least 11 --steps");
    assert_int_equal(workplace_entries(*state, "nvme"), 0);
}

/* --- budgets --- */

#define ON_HOST                                                                                                                  \
    "--set zero_optimization.stage=3 --set zero_optimization.offload_optimizer.device=cpu "                                      \
    "--set zero_optimization.offload_param.device=cpu "

/* One row each, in their order, and the largest is what the others are held against. */
TEST(budgets_take_turns)
{
    static const char *const names[] = {"6MiB", "64MiB", "8MiB"};
    struct rows r;

    run_rows(*state, &r, STEP REHEARSE ON_HOST "--device paced --device-memory 6MiB 64MiB --device-memory=8MiB --steps 3 --json");
    check_steps(&r, names, 3, true);
    for (uint32_t i = 0; i < 3; i++) {
        assert_true(isnan(number(&r, i, "mfu")) && isnan(number(&r, i, "ceiling_tflops"))); /* it does not multiply */
        assert_close(number(&r, i, "practicality"), number(&r, 1, "seconds") / number(&r, i, "seconds"));
    }
    assert_true(number(&r, 0, "device_mb") <= 6.3 && number(&r, 1, "device_mb") > number(&r, 2, "device_mb"));
    assert_true(number(&r, 0, "upload_mb") > number(&r, 1, "upload_mb"));
    free_rows(&r);
}

TEST(budgets_are_sizes)
{
    static const char *const names[] = {"6MiB", "all"};
    struct rows r;

    run_rows(*state, &r, STEP REHEARSE ON_HOST "--device-memory 6MiB all --simulate --json");
    check_steps(&r, names, 2, false);
    assert_true(number(&r, 0, "practicality") <= 1 && number(&r, 1, "practicality") == 1);
    free_rows(&r);
    fails(*state, STEP "--device-memory 12Q", "--device-memory: \"12Q\" is not a size");
    fails(*state, STEP "--device-memory 0", "--device-memory: 0 is too small");
    fails(*state, STEP "--device-memory 1M 2M 3M 4M 5M 6M 7M 8M 9M", "--device-memory: more than 8 budgets");
}

/* The first directories are those of the disk's probes: one before all, one before the first schedule. */
TEST(signals_leave_no_swap_files)
{
    static const char command[] = STEP REHEARSE ON_NVME "--device paced --steps 1000 --json";

    all_signals(*state, command, 3);
    ends_by(*state, command, 1, (const int[2]){SIGINT, 0}, 130);
}

TEST_GROUP(workplace_setup, workplace_teardown);
