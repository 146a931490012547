/* test_ranks_faults - two ranks in a failing world: what fails on one of them ends both, each with a sentence, the other one's
 * naming that rank and what it was at; nobody hangs, nothing is left, and a run that ends well has the right bits. */
#include "rig.h"
#include "tests/common/test.h"

#include "core/base/error.h"
#include "core/base/fault.h"
#include "tests/common/fault_walk.h"
#include "tests/common/lost_memory.h"
#include "tests/common/sample.h"
#include "tests/common/scratch.h"
#include "tests/offload/comm_fixture.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#define RANKS       2u
#define STEPS       2u
#define DEADLINE_NS UINT64_C(60000000000)

struct scene {
    const char *kind; /* of comm, as in comm_fixture.h */
    struct rig_cell cells[RANKS];
    struct st_model *models[RANKS];
    struct st_plan *plans[RANKS];
    struct rig_result got[RANKS], want;
    pthread_barrier_t open;
    uint32_t in_ops;            /* runs that ended for another rank's sake in an op */
    struct st_fault_spec fault; /* armed when the ranks have met */
};

static strata_status train(struct st_comm *comm, struct cf_world *world)
{
    struct scene *s = world->ctx;
    const uint32_t r = comm->world.rank;
    struct rig_cell cell = s->cells[r];

    cell.comm = comm;
    pthread_barrier_wait(&s->open);
    if (r == 0 && s->fault.result != 0)
        st_fault_arm(&s->fault);
    pthread_barrier_wait(&s->open);
    return rig_train(&s->got[r], s->models[r], s->plans[r], &cell, STEPS, scratch_dir);
}

static void run(struct scene *s, struct cf_world *world)
{
    *world = (struct cf_world){.kind = s->kind, .ranks = RANKS, .deadline_ns = DEADLINE_NS, .body = train, .ctx = s};
    cf_run(world);
}

/* Everything on NVMe with as little memory as can be, also checkpoints; pages updated in the stream, where there is room. */
static void begin(struct scene *s, const char *kind, const char *io_method)
{
    struct cf_world world;

    *s = (struct scene){.kind = kind};
    pthread_barrier_init(&s->open, NULL, RANKS);
    for (uint32_t r = 0; r < RANKS; r++) {
        struct rig_cell *c = &s->cells[r];

        *c = rig_swapped();
        c->act_tier = STRATA_TIER_NVME;
        c->io_method = io_method;
        c->streamed = 1;
        c->fake_latency_us = 1;
        c->threads = 1;
        c->ranks = RANKS;
        c->rank = r;
        c->stage = 3;
        assert_int_equal(rig_model(&s->models[r], c), STRATA_OK);
        assert_int_equal(rig_plan(&s->plans[r], s->models[r], c), STRATA_OK);
    }
    run(s, &world);
    cf_assert_ok(&world);
    s->want = s->got[0];
}

static void end(struct scene *s)
{
    for (uint32_t r = 0; r < RANKS; r++) {
        st_plan_destroy(s->plans[r]);
        st_model_destroy(s->models[r]);
    }
    pthread_barrier_destroy(&s->open);
}

static void has_its_bits(const struct scene *s, uint32_t r)
{
    assert_string_equal(s->got[r].weights, s->want.weights);
    assert_string_equal(s->got[r].state, s->want.state);
    assert_memory_equal(s->got[r].losses, s->want.losses, sizeof(s->want.losses));
}

/* --- walks --- */

struct walk {
    const char *site; /* NULL: any */
    int64_t result;
    uint32_t dense; /* so many passages fail each in its run, later ones in growing strides */
    bool fatal;     /* both ranks end by it, */
    bool may_spare; /* or neither: it met bytes that hold nothing, since this rank has no elements there */
};

/* Whether rank r's sentence says that it ends for the other one's sake. */
static bool names_the_other(const struct cf_world *world, uint32_t r)
{
    char name[16];

    snprintf(name, sizeof(name), "rank %u", !r);
    return strncmp(world->error[r], name, strlen(name)) == 0;
}

static void judge(struct scene *s, const struct walk *walk, const struct cf_world *world, uint32_t nth)
{
    const char *site = walk->site != NULL ? walk->site : "any site";

    if (walk->may_spare && world->status[0] == STRATA_OK && world->status[1] == STRATA_OK)
        return;
    for (uint32_t r = 0; r < RANKS; r++) {
        if (world->status[r] == STRATA_OK && walk->fatal)
            fail_msg("%s, passage %u of %s: rank %u goes on, the other: %s", s->kind, nth, site, r, world->error[!r]);
        if (world->status[r] != STRATA_OK && world->error[r][0] == '\0')
            fail_msg("%s, passage %u of %s: rank %u: status %d, '%s'", s->kind, nth, site, r, world->status[r], world->error[r]);
    }
    for (uint32_t r = 0; r < RANKS; r++)
        s->in_ops += names_the_other(world, r) && strstr(world->error[r], " failed (during ") != NULL;
    if (walk->fatal && !names_the_other(world, 0) && !names_the_other(world, 1))
        fail_msg("%s, passage %u of %s: no rank names the other one: '%s' and '%s'", s->kind, nth, site, world->error[0],
                 world->error[1]);
}

static strata_status worse_of(const struct cf_world *world)
{
    const uint32_t r = world->status[0] == STRATA_OK;

    return world->status[r] == STRATA_OK ? STRATA_OK : st_error(world->status[r], "%s", world->error[r]);
}

static uint32_t walk_over(struct scene *s, const struct walk *walk)
{
    struct fault_walk faults = {.site = walk->site, .result = walk->result};

    while (fault_walk_next(&faults)) {
        const uint64_t mark = memory_mark();
        struct cf_world world;

        (void)st_fault_disarm();
        s->fault = (struct st_fault_spec){.site = walk->site, .after = faults.after, .count = 1, .result = walk->result};
        run(s, &world);
        fault_walk_end(&faults, worse_of(&world));
        if (faults.fired)
            judge(s, walk, &world, faults.after);
        for (uint32_t r = 0; r < RANKS; r++)
            if (world.status[r] == STRATA_OK)
                has_its_bits(s, r);
        if (walk->site == NULL) /* where removing a file was what failed, the next run's sweep takes it */
            (void)st_swap_sweep(scratch_dir);
        assert_int_equal(memory_lost(s->kind, mark), 0);
        assert_int_equal(scratch_entries(scratch_dir, NULL), 0);
        if (faults.after >= walk->dense)
            faults.after += sample_is_all() ? faults.after / 32 : faults.after;
    }
    return faults.failed;
}

static uint32_t dense(uint32_t sample)
{
    return sample_is_all() ? 16 * sample : sample;
}

/* Transfers that fail, bytes that come back flipped, by kind of op. */
TEST(what_fails_on_one_ends_both)
{
    static const char *const sites[] = {"nvme.cqe", "engine.corrupt_state", "engine.corrupt_weight", "engine.corrupt_grad",
                                        "engine.corrupt_act"};
    struct scene s;

    begin(&s, "threads", "fake");
    for (size_t i = 0; i < sizeof(sites) / sizeof(sites[0]); i++) {
        const struct walk walk = {.site = sites[i], .result = -EIO, .dense = dense(2), .fatal = true, .may_spare = i > 0};
        uint32_t failed;

        s.in_ops = 0;
        failed = walk_over(&s, &walk);
        print_message("%s: %u failed runs, %u of them in an op\n", sites[i], failed, s.in_ops);
        assert_true(s.in_ops > 0);
    }
    end(&s);
}

/* Rank 1 alone has calls that can be refused: copies, compute and updates. */
TEST(a_device_that_refuses_one_call_ends_both)
{
    const struct walk walk = {.site = "device.call", .result = -EIO, .dense = dense(2), .fatal = true};
    struct scene s;

    begin(&s, "threads", "fake");
    s.cells[1].timed = true;
    print_message("%u calls refused\n", walk_over(&s, &walk));
    assert_true(s.in_ops > 0);
    end(&s);
}

/* Over sockets, too, whose own calls are sites like any other; in full also over shared memory, where a lost call costs a second.
 */
TEST(every_single_failure_ends_well)
{
    static const char *const kinds[] = {"threads", "tcp", "shared"}, *const sites[] = {"comm.send", "comm.receive", "comm.poll"};
    const struct walk any = {.result = -ENOMEM, .dense = dense(4)};

    for (size_t k = 0; k < (sample_is_all() ? 3 : 2); k++) {
        struct scene s;

        begin(&s, kinds[k], "uring");
        print_message("%s: %u failed runs\n", kinds[k], walk_over(&s, &any));
        for (size_t i = 0; i < sizeof(sites) / sizeof(sites[0]) && k > 0; i++) {
            const struct walk one = {.site = sites[i], .result = -EIO, .dense = dense(1)};

            print_message("%s, %s: %u failed runs\n", kinds[k], sites[i], walk_over(&s, &one));
        }
        end(&s);
    }
}

TEST_GROUP(scratch_create, scratch_remove);
