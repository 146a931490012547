/* test_faults - an engine in a failing world: an error is reported once, with its cause, and nothing is left behind.
 *
 * Every I/O method; fail the Nth passage of any fault site for N = 0, 1, 2 ... until a whole run passes none.  A run that ends
 * well must have the right bits. */
#include "rig.h"

#include "core/fault.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define STEPS 2u

static char nvme_dir[] = "/tmp/strata-faults-XXXXXX";

static struct rig_cell cell_for(const char *method)
{
    return (struct rig_cell){.device = RIG_SMALLEST,
                             .host = RIG_SMALLEST,
                             .optimizer = STRATA_TIER_NVME,
                             .param = STRATA_TIER_NVME,
                             .update = ST_UPDATE_GATED,
                             .grad_accum = 1,
                             .activations = ST_ACT_RECOMPUTED,
                             .act_tier = STRATA_TIER_NVME,
                             .io_method = method,
                             .isa = "auto",
                             .threads = 2,
                             .clip = RIG_CLIP_SOMETIMES,
                             .dtype = STRATA_BF16,
                             .fake_latency_us = 1};
}

static void directory_is_empty(void)
{
    if (rmdir(nvme_dir) != 0)
        fail_msg("%s is not empty: %s", nvme_dir, strerror(errno));
    memcpy(strrchr(nvme_dir, '-') + 1, "XXXXXX", 6);
    assert_non_null(mkdtemp(nvme_dir));
}

struct sound {
    struct st_model *model;
    struct st_plan *plan;
    struct rig_cell cell;
    struct rig_result want;
};

static void sound_run(struct sound *s, const char *method)
{
    s->cell = cell_for(method);
    assert_int_equal(rig_model(&s->model, &s->cell), STRATA_OK);
    assert_int_equal(rig_plan(&s->plan, s->model, &s->cell), STRATA_OK);
    assert_int_equal(rig_train(&s->want, s->model, s->plan, &s->cell, STEPS, nvme_dir), STRATA_OK);
}

static void sound_end(struct sound *s)
{
    st_plan_destroy(s->plan);
    st_model_destroy(s->model);
    directory_is_empty();
}

/* Completions fail one by one: the error names the cause, or was absorbed and the bits are right. */
static void every_failed_completion_is_reported(void **state)
{
    static const char *const methods[] = {"uring", "threads", "fake"};

    (void)state;
    for (size_t i = 0; i < 3; i++) {
        struct sound s;
        uint32_t fired = 1, runs = 0;

        sound_run(&s, methods[i]);
        /* Every completion of a small run, then in growing strides through the rest. */
        for (uint32_t nth = 0; fired > 0; nth += nth < 40 ? 1 : nth / 8) {
            struct rig_result got;
            strata_status st;

            st_fault_arm(&(struct st_fault_spec){.site = "nvme.cqe", .after = nth, .count = 1, .result = -EIO});
            st = rig_train(&got, s.model, s.plan, &s.cell, STEPS, nvme_dir);
            fired = st_fault_disarm();
            runs++;
            if (fired == 0)
                assert_int_equal(st, STRATA_OK);
            else if (st != STRATA_OK)
                assert_int_equal(st, STRATA_E_IO);
            if (st == STRATA_OK)
                assert_string_equal(got.weights, s.want.weights);
            directory_is_empty();
        }
        print_message("%s: %u runs\n", methods[i], runs);
        sound_end(&s);
    }
}

/* A transient refusal and a short transfer are nobody's business but the method's. */
static void benign_faults_are_absorbed(void **state)
{
    static const char *const methods[] = {"uring", "threads", "fake"};
    static const int64_t results[] = {-EAGAIN, 4096};

    (void)state;
    for (size_t i = 0; i < 3; i++) {
        struct sound s;

        sound_run(&s, methods[i]);
        for (size_t r = 0; r < 2; r++) {
            struct rig_result got;
            strata_status st;

            st_fault_arm(&(struct st_fault_spec){.site = "nvme.cqe", .after = 11, .count = 5, .result = results[r]});
            st = rig_train(&got, s.model, s.plan, &s.cell, STEPS, nvme_dir);
            assert_int_equal(st_fault_disarm(), 5);
            assert_int_equal(st, STRATA_OK);
            assert_string_equal(got.weights, s.want.weights);
            assert_string_equal(got.state, s.want.state);
        }
        sound_end(&s);
    }
}

/* One flipped byte in any extent read during a run is found by its checksum, before it is used. */
static void a_flipped_byte_is_found(void **state)
{
    struct sound s;
    uint32_t fired = 1, found = 0;

    (void)state;
    sound_run(&s, "fake");
    for (uint32_t nth = 0; fired > 0; nth++) {
        struct rig_result got;
        strata_status st;

        st_fault_arm(&(struct st_fault_spec){.site = "engine.corrupt", .after = nth, .count = 1, .result = -1});
        st = rig_train(&got, s.model, s.plan, &s.cell, STEPS, nvme_dir);
        fired = st_fault_disarm();
        assert_int_equal(st, fired > 0 ? STRATA_E_CORRUPT : STRATA_OK);
        if (fired > 0)
            assert_non_null(strstr(strata_last_error(), "checksum mismatch"));
        found += fired;
    }
    print_message("%u reads, each flip found\n", found);
    sound_end(&s);
}

static void every_single_failure_is_clean(void **state)
{
    struct sound s;
    uint32_t fired = 1, runs = 0;

    (void)state;
    sound_run(&s, "uring");
    for (uint32_t nth = 0; fired > 0; nth += nth < 64 ? 1 : nth / 8) {
        struct rig_result got;
        strata_status st;

        st_fault_arm(&(struct st_fault_spec){.after = nth, .count = 1, .result = -ENOMEM});
        st = rig_train(&got, s.model, s.plan, &s.cell, STEPS, nvme_dir);
        fired = st_fault_disarm();
        runs++;
        if (fired == 0)
            assert_int_equal(st, STRATA_OK);
        if (st == STRATA_OK)
            assert_string_equal(got.weights, s.want.weights);
        else
            assert_true(strata_last_error()[0] != '\0');
        /* Where removing the swap files was what failed, the next run's sweep takes them. */
        (void)st_swap_sweep(nvme_dir);
        directory_is_empty();
    }
    print_message("%u runs\n", runs);
    sound_end(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(benign_faults_are_absorbed),
        cmocka_unit_test(a_flipped_byte_is_found),
        cmocka_unit_test(every_failed_completion_is_reported),
        cmocka_unit_test(every_single_failure_is_clean),
    };
    int failed;

    if (mkdtemp(nvme_dir) == NULL)
        return 1;
    failed = cmocka_run_group_tests_name("faults", tests, NULL, NULL);
    (void)rmdir(nvme_dir);
    return failed;
}
