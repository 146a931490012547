/* tests/cuda/test_bench_cuda.c - strata bench and strata info --measure on the cuda device, over the emulator: what a GPU must
 * show is measured by the same code.  Rates of the emulator mean nothing; what they say of each other does. */
#include "tests/cli/bench_rows.h"
#include "tests/cli/trace_calls.h"
#include "tests/common/json_member.h"
#include "tests/common/sample.h"
#include "tests/common/test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STEP "bench step --model nano --seq-len 32 --steps 1 --device cuda --fault machine.patience:0:0:0 "
#define ON_HOST                                                                                                                  \
    "--set zero_optimization.stage=3 --set zero_optimization.offload_optimizer.device=cpu --set "                                \
    "zero_optimization.offload_param.device=cpu "
#define BESIDE   33554432.0 /* the matmuls' workspace is all that the emulator takes, but for */
#define ROUNDED  4096.0     /* what an arena is rounded up by */
#define EMULATED (UINT64_C(1) << 30)

TEST(links_are_held_against_bare_copies)
{
    static const char *const names[] = {"upload", "download", "both"};
    struct rows r;

    run_rows(*state, &r, "bench link --device cuda:0 --bytes 300001 --repeats 2 --json");
    assert_int_equal(r.count, 3);
    for (uint32_t i = 0; i < r.count; i++) {
        assert_string_equal(text(&r, i, "name"), names[i]);
        assert_string_equal(text(&r, i, "variant"), "cuda:0");
        assert_true(number(&r, i, "bytes") == (i == 2 ? 600002 : 300001));
        assert_true(number(&r, i, "roof_gb_per_s") > 0);
    }
    free_rows(&r);
    fails(*state, "bench link --device cuda:7 --bytes 4K", "this machine has 1 GPU");
}

/* Each of the roof's calls in turn: streams, both memories, copies. */
TEST(a_failing_roof_is_an_error)
{
    for (uint32_t call = 0; call < 8; call++) {
        struct program p;
        char command[96];

        snprintf(command, sizeof(command), "bench link --device cuda --bytes 4K --repeats 1 --fault cuda.link:%u:1", call);
        workplace_run(*state, &p, command);
        assert_int_equal(p.code, 1);
        assert_non_null(strstr(p.err, "cuda: "));
        assert_string_equal(p.out, "");
        program_free(&p);
    }
}

TEST(a_link_needs_room_on_the_device)
{
    struct program p;

    workplace_run(*state, &p, "bench link --device cuda --bytes 600MiB --repeats 1");
    assert_true(p.code == 3);
    assert_non_null(strstr(p.err, "cuda:"));
    assert_string_equal(p.out, "");
    program_free(&p);
}

static void check_step(const struct rows *r, uint32_t i)
{
    const double seconds = number(r, i, "seconds"), beside = number(r, i, "device_beside_mb") * 1e6;

    assert_string_equal(text(r, i, "name"), "step");
    assert_close(number(r, i, "mfu"), number(r, i, "model_tflop") / seconds / number(r, i, "ceiling_tflops"));
    assert_close(number(r, i, "step/bound"), seconds * 1e3 / number(r, i, "bound_ms"));
    assert_close(number(r, i, "step/hardware"), seconds * 1e3 / number(r, i, "hardware_ms"));
    assert_true(beside >= BESIDE && beside < BESIDE + ROUNDED);
}

/* A step alone; two budgets say the same and more, so that a sample leaves it out. */
TEST(steps_name_what_they_are_held_against)
{
    struct rows r;

    if (!sample_is_all())
        return;
    run_rows(*state, &r, STEP "--only --json");
    assert_int_equal(r.count, 1);
    check_step(&r, 0);
    assert_true(isnan(number(&r, 0, "practicality")));
    free_rows(&r);
}

TEST(a_capped_device_is_held_against_the_whole)
{
    struct rows r;

    run_rows(*state, &r, STEP ON_HOST "--device-memory 6MiB all --json");
    assert_int_equal(r.count, 2);
    check_step(&r, 0);
    check_step(&r, 1);
    assert_string_equal(text(&r, 0, "variant"), "6MiB");
    assert_string_equal(text(&r, 1, "variant"), "all");
    assert_close(number(&r, 0, "practicality"), number(&r, 1, "seconds") / number(&r, 0, "seconds"));
    assert_true(number(&r, 1, "practicality") == 1);
    assert_true(number(&r, 0, "device_mb") <= 6.3 && number(&r, 1, "device_mb") > number(&r, 0, "device_mb"));
    assert_true(number(&r, 0, "upload_mb") > 1 && number(&r, 0, "upload/link") > 0 && number(&r, 0, "download/link") > 0);
    free_rows(&r);
}

/* By the emulator's events.  Products of a step without recompute: as test_bench_step.c counts them. */
TEST(ops_are_timed_by_events)
{
    double flops = 0, ms = 0;
    uint32_t i;
    struct rows r;

    run_rows(*state, &r, STEP "--only --ops --json");
    for (i = 1; i < r.count && strcmp(text(&r, i, "name"), "op") == 0; i++) {
        assert_true(number(&r, i, "calls") >= 1 && number(&r, i, "ms") > 0);
        ms += strcmp(text(&r, i, "lane"), "compute") == 0 ? number(&r, i, "ms") : 0;
        if (strcmp(text(&r, i, "op"), "matmul") == 0)
            flops += number(&r, i, "tflops") * 1e12 * number(&r, i, "ms") * 1e-3;
    }
    assert_int_equal(i, r.count - 1);
    assert_close(flops, 6 * 32.0 * (4 * 12 * 128 * 128 + 256 * 128));
    assert_close(ms, json_number(st_json_get(r.row[i], "ops_ms"), "compute"));
    assert_true(ms <= json_number(st_json_get(r.row[i], "busy_ms"), "compute"));
    free_rows(&r);
}

#define TRAIN                                                                                                                    \
    "train --model nano --data {w}/good.bin --seq-len 16 --max-steps 3 --machine {w}/machine.json --quiet --digest --device "    \
    "cuda --device-memory 6MiB " ON_HOST

/* Streamed through a small device: all lanes have calls, and the times between their queues' events are those of the trace. */
TEST(calls_lie_within_the_ops_of_the_program)
{
    const struct workplace *w = *state;
    struct program timed, plain;
    uint32_t calls[3];
    st_json *trace;

    workplace_run_ok(w, &timed, TRAIN "--trace {w}/t.json --ops");
    workplace_run_ok(w, &plain, TRAIN);
    assert_string_equal(strstr(timed.out, "weights_digest"), strstr(plain.out, "weights_digest"));
    trace = trace_parse(w, "t.json");
    trace_check_calls(trace, calls, 3);
    assert_true(calls[0] > 100 && calls[1] >= calls[0] && calls[2] == calls[1]);
    st_json_free(trace);
    program_free(&timed);
    program_free(&plain);
    workplace_remove(w, "t.json");
}

/* The event of a call cannot be made, recorded or read: the run ends, and says so. */
TEST(events_that_fail_end_the_run)
{
    static const char *const faults[] = {"cuda.event:600:1", "cuda.record:60:1", "cuda.elapsed:60:1"};

    for (size_t i = 0; i < sizeof(faults) / sizeof(faults[0]); i++) {
        struct program p;
        char command[512];

        snprintf(command, sizeof(command), TRAIN "--trace {w}/t.json --overwrite --ops --fault %s", faults[i]);
        workplace_run(*state, &p, command);
        assert_int_equal(p.code, 1);
        assert_non_null(strstr(p.err, "cuda: "));
        program_free(&p);
    }
    workplace_remove(*state, "t.json");
}

/* The bound of the only step, on a machine whose rates bind nothing. */
static double bound_of_a_run(const struct workplace *w, const char *fault, struct program *p)
{
    static const char machine[] = "{\"name\":\"fast\",\"device_is_host\":false,\"matmul_flops\":1e18,\"memory\":1e15,"
                                  "\"upload\":1e15,\"download\":1e15,\"update\":1e15}";
    const char *key = "\"schedule_bound_seconds\":", *at;
    char command[512];

    workplace_write(w, "fast.json", machine, strlen(machine));
    snprintf(command, sizeof(command),
             "train --model nano --data {w}/good.bin --seq-len 32 --max-steps 1 --machine {w}/fast.json --quiet --json --device "
             "cuda --device-memory 6MiB " ON_HOST "%s",
             fault);
    workplace_run(w, p, command);
    assert_int_equal(p->code, 0);
    workplace_remove(w, "fast.json");
    at = strstr(p->out, key);
    assert_non_null(at);
    return strtod(at + strlen(key), NULL);
}

/* It is known once the engine exists; from then on bounds count the staged copies of 1.5 MiB each way. */
TEST(bounds_count_memory_that_is_not_pinned)
{
    struct program pinned, staged;

    assert_true(bound_of_a_run(*state, "", &pinned) < 1e-7);
    assert_true(bound_of_a_run(*state, "--fault cuda.register:0:0:-1", &staged) > 1e-6);
    assert_null(strstr(pinned.err, "of host memory are not pinned"));
    assert_non_null(strstr(staged.err, "of host memory are not pinned: copies at "));
    program_free(&pinned);
    program_free(&staged);
}

TEST(rates_of_an_asynchronous_device_are_measured)
{
    static const char *const rates[] = {"matmul_flops", "block_flops", "memory", "upload", "download", "update", "checksum"};
    struct program p;
    st_json *root = NULL;
    const st_json *machine;

    workplace_run_ok(*state, &p, "info --measure --device cuda --model nano --seq-len 32 --json --fault machine.patience:0:0:0");
    assert_int_equal(st_json_parse(&root, p.out, strlen(p.out), "info"), STRATA_OK);
    machine = st_json_get(root, "machine");
    assert_non_null(machine);
    for (size_t i = 0; i < sizeof(rates) / sizeof(rates[0]); i++)
        assert_true(st_json_number(st_json_get(machine, rates[i])) > 0);
    assert_false(st_json_bool(st_json_get(machine, "device_is_host")));
    assert_true(st_json_number(st_json_get(machine, "device_bytes")) < (double)EMULATED);
    assert_null(strstr(p.err, "could not be measured"));
    st_json_free(root);
    program_free(&p);
}

TEST_GROUP(workplace_setup, workplace_teardown);
