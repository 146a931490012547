/* tests/cuda/test_bench_cuda.c - strata bench and strata info --measure on the cuda device, over the emulator: what a GPU must
 * show is measured by the same code.  Rates of the emulator mean nothing; what they say of each other does. */
#include "tests/cli/bench_rows.h"
#include "tests/common/sample.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#define STEP "bench step --model nano --seq-len 32 --steps 1 --device cuda --fault machine.patience:0:0:0 "
#define ON_HOST                                                                                                                  \
    "--set zero_optimization.stage=3 --set zero_optimization.offload_optimizer.device=cpu --set "                                \
    "zero_optimization.offload_param.device=cpu "
#define BESIDE   33554432.0 /* the matmuls' workspace is all that the emulator takes */
#define EMULATED (UINT64_C(1) << 30)

static void links_are_held_against_bare_copies(void **state)
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
static void a_failing_roof_is_an_error(void **state)
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

static void a_link_needs_room_on_the_device(void **state)
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
    const double seconds = number(r, i, "seconds");

    assert_string_equal(text(r, i, "name"), "step");
    assert_close(number(r, i, "mfu"), number(r, i, "model_tflop") / seconds / number(r, i, "ceiling_tflops"));
    assert_close(number(r, i, "step/bound"), seconds * 1e3 / number(r, i, "bound_ms"));
    assert_close(number(r, i, "step/hardware"), seconds * 1e3 / number(r, i, "hardware_ms"));
    assert_true(number(r, i, "device_beside_mb") * 1e6 == BESIDE);
}

/* A step alone; two budgets say the same and more, so that a sample leaves it out. */
static void steps_name_what_they_are_held_against(void **state)
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

static void a_capped_device_is_held_against_the_whole(void **state)
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

static void rates_of_an_asynchronous_device_are_measured(void **state)
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

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(links_are_held_against_bare_copies),
        cmocka_unit_test(a_failing_roof_is_an_error),
        cmocka_unit_test(a_link_needs_room_on_the_device),
        cmocka_unit_test(steps_name_what_they_are_held_against),
        cmocka_unit_test(a_capped_device_is_held_against_the_whole),
        cmocka_unit_test(rates_of_an_asynchronous_device_are_measured),
    };

    sample_init(argc, argv);
    return cmocka_run_group_tests(tests, workplace_setup, workplace_teardown);
}
