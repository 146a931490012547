/* tests/api/handles_fixture.h - a small run through the library's door, opened step by step. */
#ifndef TESTS_API_HANDLES_FIXTURE_H
#define TESTS_API_HANDLES_FIXTURE_H

#include "strata/strata.h"

#define RUN_SEQ   16
#define RUN_STEPS 4

#define assert_ok(call) assert_status(call, STRATA_OK, #call)
void assert_status(strata_status st, strata_status expected, const char *call);
/** E_INVAL, with a sentence that has this in it. */
void assert_refused(strata_status st, const char *part);

/* What a run opens; all zeros: nothing.  Closing takes any of it, in any order. */
struct run {
    const char *preset, *text; /* NULL: "nano", and a configuration of two micro-batches of two sequences */
    const char *dir;           /* NVMe directory for state; NULL: all in memory */
    enum strata_use use;
    uint32_t prompt_tokens, cache_tokens;
    strata_progress_fn *progress;
    void *progress_ctx;
    struct strata_config *config;
    struct strata_model *model;
    struct strata_model_info shape;
    struct strata_data *data;
    struct strata_plan *plan;
    struct strata_engine *engine;
};

/** A token file of the scratch directory with this many tokens. */
const char *run_tokens(const char *name, uint32_t count);
strata_status run_configure(struct run *r);
strata_status run_open(struct run *r, const char *tokens); /* config, model, data */
strata_status run_start(struct run *r);                    /* plan, engine, weights */
/** Steps first.. of the data in its shuffled order. */
strata_status run_train(struct run *r, uint64_t first, uint64_t count, struct strata_step *last);
void run_close(struct run *r);

#endif
