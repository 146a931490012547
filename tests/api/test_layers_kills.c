/* tests/api/test_layers_kills.c - kill -9 at random instants of a run of layers that saves after each step: the next run goes on
 * from the newest checkpoint, none is lost, and the last one has the bits of a run that was never killed.
 *
 *     test_api layers_kills [KILLS [SEED]]        kills in each cell
 *
 * The instants are what is tested: here a test sleeps. */
#include "strata/checkpoint.h"
#include "tests/api/handles_fixture.h"
#include "tests/api/layers_net.h"
#include "tests/cli/chance.h"
#include "tests/common/scratch.h"
#include "tests/common/test.h"
#include "tests/common/whole_file.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define STEPS          12u
#define WINDOW_MOST_US 10000000u

static long kills = 8;
static char save_name[32]; /* directory of checkpoints, another after each run that has ended */

static const struct cell {
    const char *name;
    bool nvme, reports; /* reports: gradients, in place of adding them */
} cells[] = {{"memory", false, false}, {"drive", true, true}};

/* --- a run, in a process of its own --- */

static struct strata_checkpoint *open_newest(void)
{
    struct strata_checkpoint *saved = NULL;

    return strata_checkpoint_open(&saved, scratch_path(save_name)) == STRATA_OK ? saved : NULL;
}

/* From where it stands to its last step, with a save beside each. */
static strata_status train(struct net *n)
{
    struct strata_engine_info info = STRATA_ENGINE_INFO_INIT;
    struct strata_saved saved = STRATA_SAVED_INIT;
    struct strata_checkpoint *from = open_newest();
    strata_status st = from != NULL ? strata_engine_resume(n->engine, from, NULL) : STRATA_OK;

    strata_checkpoint_close(from);
    if (st == STRATA_OK)
        st = strata_engine_get_info(n->engine, &info);
    for (uint64_t step = info.steps; step < STEPS && st == STRATA_OK; step++)
        if ((st = net_step(n, step)) == STRATA_OK)
            st = strata_engine_save(n->engine, NULL);
    return st == STRATA_OK ? strata_engine_saved(n->engine, true, &saved) : st;
}

static int run(const struct cell *cell)
{
    char save[160], drive[160], digest[80];
    const char *overrides[] = {save,
                               "strata.keep=2",
                               drive,
                               "zero_optimization.offload_optimizer.device=nvme",
                               "zero_optimization.offload_param.device=nvme",
                               "strata.cache=0"};
    const struct net_opts o = {.overrides = overrides,
                               .override_count = cell->nvme ? 6 : 2,
                               .grad_dtype = cell->reports ? STRATA_F32 : STRATA_DTYPE_INVALID};
    struct net n;
    strata_status st;

    snprintf(save, sizeof(save), "strata.save=%s", scratch_path(save_name));
    snprintf(drive, sizeof(drive), "strata.nvme=[\"%s\"]", scratch_path("nvme"));
    if ((st = net_start(&n, &o)) != STRATA_OK || (st = train(&n)) != STRATA_OK) {
        fprintf(stderr, "%s: %s: %s\n", cell->name, strata_status_text(st), strata_last_error());
        return 1;
    }
    scratch_put("digest", net_digest(&n, digest));
    net_close(&n);
    return 0;
}

static pid_t begin(const struct cell *cell)
{
    pid_t pid;

    fflush(NULL);
    pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        alarm(60);
        _exit(run(cell));
    }
    return pid;
}

/* --- kills --- */

static uint64_t newest(void)
{
    struct strata_checkpoint_info info = STRATA_CHECKPOINT_INFO_INIT;
    struct strata_checkpoint *saved = open_newest();

    if (saved == NULL)
        return 0;
    assert_ok(strata_checkpoint_get_info(saved, &info));
    strata_checkpoint_close(saved);
    return info.steps;
}

/* The text is freed by the caller. */
static char *end_well(pid_t pid)
{
    int status;

    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    assert_int_equal(newest(), STEPS);
    assert_int_equal(scratch_entries_with(scratch_path("nvme"), "strata"), 0);
    return read_file(scratch_path("digest"), NULL);
}

static void begin_again(const struct cell *cell)
{
    static uint32_t round;

    snprintf(save_name, sizeof(save_name), "%s.%u", cell->name, round++);
}

static void soak(const struct cell *cell)
{
    uint32_t window_us = 40000, ended = 0;
    char *digest, *here;

    begin_again(cell);
    digest = end_well(begin(cell));
    begin_again(cell);
    for (long killed = 0; killed < kills;) {
        const uint64_t before = newest();
        const pid_t pid = begin(cell);
        int status;

        chance_sleep_us(window_us);
        kill(pid, SIGKILL);
        assert_int_equal(waitpid(pid, &status, 0), pid);
        if (newest() < before)
            fail_msg("%s, kill %ld: the newest was of step %lu and is of step %lu", cell->name, killed, (unsigned long)before,
                     (unsigned long)newest());
        if (WIFSIGNALED(status)) {
            killed++;
            if (newest() == before && window_us < WINDOW_MOST_US)
                window_us += window_us / 4;
            continue;
        }
        assert_int_equal(WEXITSTATUS(status), 0);
        begin_again(cell);
        window_us -= window_us / 4;
        ended++;
    }
    here = end_well(begin(cell));
    assert_string_equal(here, digest);
    free(digest);
    free(here);
    print_message("%s: %ld kills, %u runs to the end\n", cell->name, kills, ended + 1);
}

TEST(a_killed_run_of_layers_goes_on)
{
    scratch_put("nvme/.keep", "");
    for (size_t i = 0; i < sizeof(cells) / sizeof(cells[0]); i++)
        soak(&cells[i]);
}

TEST_MAIN(argc, argv)
{
    if (argc > 1)
        kills = strtol(argv[1], NULL, 10);
    if (argc > 2)
        chance_seed(strtoull(argv[2], NULL, 10));
    strata_log_configure(NULL, NULL, STRATA_LOG_ERROR);
    return test_run(scratch_create, scratch_remove);
}
