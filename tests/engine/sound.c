/* sound.c - see sound.h. */
#include "sound.h"
#include "tests/common/test.h"

#include "core/base/error.h"
#include "tests/common/fault_walk.h"
#include "tests/common/sample.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct rig_cell sound_cell(const char *io_method, bool paced)
{
    struct rig_cell cell = rig_swapped();

    cell.act_tier = STRATA_TIER_NVME;
    cell.io_method = io_method;
    cell.streamed = 1; /* where a device has room for that */
    cell.fake_latency_us = 1;
    cell.paced = paced;
    return cell;
}

const char *const sound_methods[SOUND_METHODS] = {"uring", "threads", "fake"};

void sound_begin(struct sound *s, const struct rig_cell *cell, uint32_t steps)
{
    *s = (struct sound){.cell = *cell, .steps = steps, .dir = "/tmp/strata-sound-XXXXXX"};
    assert_non_null(mkdtemp(s->dir));
    assert_int_equal(rig_model(&s->model, cell), STRATA_OK);
    assert_int_equal(rig_plan(&s->plan, s->model, cell), STRATA_OK);
    assert_int_equal(rig_train(&s->want, s->model, s->plan, cell, steps, s->dir), STRATA_OK);
}

void sound_begin_with(struct sound *s, const char *io_method, bool paced)
{
    const struct rig_cell cell = sound_cell(io_method, paced);

    sound_begin(s, &cell, SOUND_STEPS);
}

void sound_end(struct sound *s)
{
    st_plan_destroy(s->plan);
    st_model_destroy(s->model);
    if (rmdir(s->dir) != 0)
        fail_msg("%s is not empty: %s", s->dir, strerror(errno));
}

/* A directory that is not empty is not removed. */
void sound_is_empty(const struct sound *s)
{
    if (rmdir(s->dir) != 0 || mkdir(s->dir, 0700) != 0)
        fail_msg("%s is not empty: %s", s->dir, strerror(errno));
}

static void has_its_bits(const struct sound *s, const struct rig_result *got)
{
    assert_string_equal(got->weights, s->want.weights);
    assert_string_equal(got->state, s->want.state);
    assert_memory_equal(got->losses, s->want.losses, sizeof(got->losses));
}

void sound_again(const struct sound *s)
{
    struct rig_result got;

    assert_int_equal(rig_train(&got, s->model, s->plan, &s->cell, s->steps, s->dir), STRATA_OK);
    has_its_bits(s, &got);
    sound_is_empty(s);
}

static void judge(const struct sound_walk *walk, uint32_t nth, strata_status st)
{
    if (st == STRATA_OK && walk->fatal)
        fail_msg("passage %u of %s failed, the run did not", nth, walk->site);
    if (st != STRATA_OK && walk->expected != STRATA_OK && st != walk->expected)
        fail_msg("passage %u of %s: status %d, %s", nth, walk->site, st, strata_last_error());
    if (st != STRATA_OK && walk->failed != NULL)
        walk->failed(strata_last_error(), walk->ctx);
}

uint32_t sound_walk(const struct sound *s, const struct sound_walk *walk)
{
    struct fault_walk faults = {.site = walk->site, .result = walk->result};

    while (fault_walk_next(&faults)) {
        struct rig_result got;
        const strata_status st = rig_train(&got, s->model, s->plan, &s->cell, s->steps, s->dir);

        fault_walk_end(&faults, st);
        if (faults.fired)
            judge(walk, faults.after, st);
        if (st == STRATA_OK)
            has_its_bits(s, &got);
        /* Where removing the swap files was what failed, the next run's sweep takes them. */
        if (walk->site == NULL)
            (void)st_swap_sweep(s->dir);
        sound_is_empty(s);
        if (faults.after >= walk->dense)
            faults.after += faults.after / (sample_is_all() ? 8 : 4);
    }
    assert_true(faults.failed > 0);
    return faults.failed;
}

/* Whose bytes are read, and what is said of a flip in them.  Reads end in an order of their own: number N of all may be of one
 * kind now and of another in the next run, so each kind is walked by itself. */
struct kind {
    const char *site, *said;
};

static void says_its_kind(const char *why, void *ctx)
{
    const struct kind *kind = ctx;

    assert_non_null(strstr(why, "checksum mismatch"));
    assert_non_null(strstr(why, kind->said));
}

static void walk_flips(const struct sound *s, bool acts)
{
    struct kind kinds[] = {{"engine.corrupt", "plane "}, /* outside of steps */
                           {"engine.corrupt_state", "plane master"},
                           {"engine.corrupt_weight", "plane weight"},
                           {"engine.corrupt_grad", "the gradient of page"},
                           {"engine.corrupt_act", "activation checkpoint"}};

    for (size_t i = 0; i < (acts ? 5 : 4); i++) { /* checkpoints where they are read */
        const struct sound_walk walk = {.site = kinds[i].site,
                                        .result = -1,
                                        .dense = sample_is_all() ? UINT32_MAX : 8,
                                        .expected = STRATA_E_CORRUPT,
                                        .fatal = true,
                                        .failed = says_its_kind,
                                        .ctx = &kinds[i]};

        print_message("%s: %u flips found\n", kinds[i].site, sound_walk(s, &walk));
    }
}

uint32_t sound_flips(bool paced)
{
    static const enum rig_budget devices[] = {RIG_SMALLEST, RIG_MIDWAY};
    uint32_t streamed = 0;

    for (size_t i = 0; i < 2; i++) {
        struct rig_cell cell = sound_cell("fake", paced);
        struct sound s;

        cell.device = devices[i];
        sound_begin(&s, &cell, SOUND_STEPS);
        walk_flips(&s, devices[i] == RIG_SMALLEST);
        for (uint32_t p = 0; p < s.plan->program.workload.page_count; p++)
            streamed += s.plan->program.pages[p].state == ST_WHERE_STREAMED;
        sound_again(&s);
        sound_end(&s);
    }
    return streamed;
}

void sound_completions(bool paced, uint32_t dense)
{
    const struct sound_walk walk = {.site = "nvme.cqe", .result = -EIO, .dense = dense, .expected = STRATA_E_IO};

    for (size_t i = 0; i < SOUND_METHODS; i++) {
        struct sound s;

        sound_begin_with(&s, sound_methods[i], paced);
        print_message("%s: %u failed runs\n", sound_methods[i], sound_walk(&s, &walk));
        sound_again(&s);
        sound_end(&s);
    }
}

void sound_single_failures(bool paced)
{
    static const struct sound_walk walk = {.result = -ENOMEM, .dense = 64};
    struct sound s;

    sound_begin_with(&s, "uring", paced);
    print_message("%u failed runs\n", sound_walk(&s, &walk));
    sound_end(&s);
}
