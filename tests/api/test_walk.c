/* tests/api/test_walk.c - one failure at a time, at each place where the world can fail during a whole run: the call that meets
 * it says so, or the result is right; either way nothing is left behind. */
#include "core/base/fault.h"
#include "tests/api/handles_fixture.h"
#include "tests/common/scratch.h"
#include "tests/common/test.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SITES_MAX 256u

struct outcome {
    strata_status status;
    char weights[33], sentence[512];
};

/* Open, plan, train with the state on disk, evaluate, write. */
static strata_status whole_run(struct run *r, const char *tokens, struct strata_export **out, struct outcome *o)
{
    struct strata_eval eval = STRATA_EVAL_INIT;
    struct strata_step last = STRATA_STEP_INIT;
    const char *text;
    char state[33];
    strata_status st = run_open(r, tokens);

    if (st == STRATA_OK)
        st = strata_config_json(r->config, &text);
    if (st == STRATA_OK)
        st = strata_export_open(out, r->model, scratch_path("out"), NULL);
    if (st == STRATA_OK)
        st = run_start(r);
    if (st == STRATA_OK)
        st = strata_plan_text(r->plan, &text);
    if (st == STRATA_OK)
        st = strata_engine_json(r->engine, 2, &text);
    if (st == STRATA_OK)
        st = run_train(r, 0, 2, &last);
    if (st == STRATA_OK)
        st = strata_engine_step_json(r->engine, &last, &text);
    if (st == STRATA_OK)
        st = strata_engine_eval_data(r->engine, r->data, &eval);
    if (st == STRATA_OK)
        st = strata_engine_digest(r->engine, o->weights, state);
    if (st == STRATA_OK) {
        st = strata_engine_export(r->engine, *out);
        *out = NULL; /* taken */
    }
    return st;
}

static void run_once(struct outcome *o, const char *tokens)
{
    struct strata_export *out = NULL;
    struct run r = {.dir = scratch_dir};

    *o = (struct outcome){0};
    o->status = whole_run(&r, tokens, &out, o);
    snprintf(o->sentence, sizeof(o->sentence), "%s", strata_last_error());
    strata_export_abort(out);
    run_close(&r);
}

/* A file that cannot be removed stays, and the next run removes it. */
static bool keeps_files(const char *site)
{
    return strcmp(site, "nvme.unlink") == 0 || strcmp(site, "owned.unlink") == 0 || strcmp(site, "nvme.users") == 0;
}

/* The token file lies there, and what was written if all went well. */
static void check_left(const struct outcome *o, const char *site)
{
    if (scratch_entries_with(scratch_path("out"), "") > 0 && o->status != STRATA_OK &&
        strstr(o->sentence, "are kept as") == NULL && strstr(o->sentence, "the model is written") == NULL)
        fail_msg("%s: a failed run leaves files in its output directory, and does not say so", site);
    if (scratch_entries(scratch_dir, "out") != 1 && !keeps_files(site))
        fail_msg("%s: %u entries are left beside the tokens", site, scratch_entries(scratch_dir, "out") - 1);
}

static void remove_output(void)
{
    char command[320];

    snprintf(command, sizeof(command), "rm -rf %s", scratch_path("out"));
    assert_int_equal(system(command), 0);
}

/* Names and counts of what a run without a failure passes. */
static uint32_t list_sites(struct st_fault_tally sites[SITES_MAX], struct outcome *clean, const char *tokens)
{
    uint32_t count = 0;

    st_fault_arm(&(struct st_fault_spec){.site = "?"});
    run_once(clean, tokens);
    (void)st_fault_disarm();
    while (count < SITES_MAX && st_fault_tally_at(&sites[count], count))
        count++;
    assert_status(clean->status, STRATA_OK, clean->sentence);
    return count;
}

/* Whether the run went well all the same. */
static bool fail_one(const struct st_fault_tally *site, uint32_t after, int64_t result, const struct outcome *clean,
                     const char *tokens)
{
    struct outcome o;

    st_fault_arm(&(struct st_fault_spec){.site = site->site, .after = after, .count = 1, .result = result});
    run_once(&o, tokens);
    (void)st_fault_disarm();
    if (o.status != STRATA_OK && o.sentence[0] == '\0')
        fail_msg("%s: %s without a sentence", site->site, strata_status_text(o.status));
    if (o.status == STRATA_OK && strcmp(o.weights, clean->weights) != 0)
        fail_msg("%s: other weights", site->site);
    check_left(&o, site->site);
    remove_output();
    return o.status == STRATA_OK;
}

TEST_SETUP(every_place_fails_once, scratch_create, scratch_remove)
{
    static struct st_fault_tally sites[SITES_MAX];
    char tokens[64];
    struct outcome clean;
    uint32_t count, ours = 0, well = 0;

    snprintf(tokens, sizeof(tokens), "%s", run_tokens("a.bin", 200));
    count = list_sites(sites, &clean, tokens);
    check_left(&clean, "no failure");
    remove_output();
    assert_true(count > 30);
    for (uint32_t i = 0; i < count; i++) {
        ours += strncmp(sites[i].site, "api.", 4) == 0;
        well += fail_one(&sites[i], 0, -EIO, &clean, tokens);
        well += fail_one(&sites[i], sites[i].passed - 1, -ENOMEM, &clean, tokens);
    }
    assert_int_equal(ours, 14);            /* each allocation of the door's own */
    assert_true(well > 0 && well < count); /* some are gone around, most end the run */
}

TEST_MAIN(argc, argv)
{
    strata_log_configure(NULL, NULL, STRATA_LOG_NONE);
    return test_run(NULL, NULL);
}
