/* tests/cli/test_kill_walk.c - the process is killed at each fault site that a run passes which saves, prunes and resumes; the
 * next run goes on, to the bits of one that was never killed, and nothing is left.
 *
 *     test_cli_kill_walk [PASSES]
 *
 * Of each site so many passes are taken, from the first to the last, each with a run of its own to the end; 0: every one.
 * Default: one of each site that writes or names files, and a run to the end after some kills. */
#include "tests/cli/program.h"
#include "tests/cli/sites.h"
#include "tests/cli/workplace.h"
#include "tests/common/test.h"

#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define WAIT_SECONDS 120
#define CHAIN        4 /* kills before a run to the end */
#define COUNT(a)     (sizeof(a) / sizeof((a)[0]))
#define TRAIN                                                                                                                    \
    "train --model nano --data {w}/good.bin --seq-len 32 --max-steps 4 --machine {w}/machine.json --digest --quiet "             \
    "--set strata.watchdog=false"
#define SAVING " --save {w}/save --save-every 1 --keep 1 --resume auto"
#define DRIVE                                                                                                                    \
    " --nvme {w}/nvme --set zero_optimization.stage=3 --set zero_optimization.offload_optimizer.device=nvme --set "              \
    "zero_optimization.offload_param.device=nvme --set strata.cache=0 --device-memory 20MiB"

static unsigned long passes_asked = ULONG_MAX;

static const struct cell {
    const char *name, *trains, *options; /* trains: what changes bits */
    bool begun;                          /* the killed run resumes from one that was killed before */
} cells[] = {
    {"on a drive, resumed", TRAIN, DRIVE, true},
    {"in memory, resumed", TRAIN, "", true},
    {"on a drive, begun", TRAIN, DRIVE, false},
    {"updates in backward", TRAIN " --set gradient_clipping=10.5", /* the first two steps clip */
     DRIVE " --machine {w}/slow.json --set strata.update=speculative", true},
};

struct walk {
    const struct workplace *w;
    const struct cell *cell;
    char *never_killed;
    unsigned long sites, kills, unreached, since; /* since: kills after the last run to the end */
    char last[128];                               /* fault */
};

static void run(const struct walk *walk, struct program *p, const char *fault)
{
    char command[1024];

    assert_true(snprintf(command, sizeof(command), "%s" SAVING "%s --fault %s", walk->cell->trains, walk->cell->options, fault) <
                (int)sizeof(command));
    alarm(WAIT_SECONDS);
    workplace_run(walk->w, p, command);
    alarm(0);
}

static void forget(const struct workplace *w)
{
    if (workplace_exists(w, "save"))
        workplace_remove(w, "save");
}

/* Two checkpoints were made, and of the third something is there. */
static void prepare(const struct walk *walk)
{
    struct program p;

    if (!walk->cell->begun || workplace_exists(walk->w, "save"))
        return;
    run(walk, &p, "commit.mkdir:2:1:kill");
    assert_int_equal(p.code, 128 + SIGKILL);
    program_free(&p);
}

static void check_end(struct walk *walk, const struct program *p)
{
    if (p->code != 0 || strcmp(p->out, walk->never_killed) != 0 || workplace_entries(walk->w, "save") != 2 ||
        workplace_entries(walk->w, "nvme") != 0)
        fail_msg("%s, killed at %s: exit code %d, %d entries in --save, %d on the drive\n%s%s", walk->cell->name, walk->last,
                 p->code, workplace_entries(walk->w, "save"), workplace_entries(walk->w, "nvme"), p->err, p->out);
    walk->since = 0;
    forget(walk->w);
}

static void run_to_the_end(struct walk *walk)
{
    struct program p;

    run(walk, &p, "?");
    check_end(walk, &p);
    program_free(&p);
}

static void kill_at(struct walk *walk, const char *site, unsigned long pass)
{
    struct program p;

    prepare(walk);
    snprintf(walk->last, sizeof(walk->last), "%.63s:%lu:1:kill", site, pass);
    run(walk, &p, walk->last);
    if (p.code == 128 + SIGKILL) {
        walk->kills++;
        if (++walk->since == (passes_asked == ULONG_MAX ? CHAIN : 1))
            run_to_the_end(walk);
    } else {
        walk->unreached++;
        check_end(walk, &p);
    }
    program_free(&p);
}

static bool writes_or_names(const char *site)
{
    static const char *const prefixes[] = {"store.",      "commit.",     "owned.mkdir", "owned.lock",  "owned.unlink",
                                           "tree.unlink", "nvme.fsync",  "nvme.link",   "nvme.unlink", "nvme.fallocate",
                                           "nvme.cqe",    "nvme.files",  "run.volumes", "file.create", "file.links",
                                           "file.sync",   "file.rename", "file.write",  "engine.sums", "manifest.stream"};

    for (size_t i = 0; i < COUNT(prefixes); i++)
        if (strncmp(site, prefixes[i], strlen(prefixes[i])) == 0)
            return true;
    return false;
}

static void walk_site(struct walk *walk, const struct site *site)
{
    const unsigned long all = site->passed, wanted = passes_asked == 0 || passes_asked > all ? all : passes_asked;

    if (passes_asked == ULONG_MAX) {
        if (writes_or_names(site->name))
            kill_at(walk, site->name, all / 2);
        return;
    }
    for (unsigned long k = 0; k < wanted; k++)
        kill_at(walk, site->name, wanted > 1 ? sites_pass(site, k, wanted) : all / 2);
}

static void walk_cell(const struct workplace *w, const struct cell *cell)
{
    static struct site sites[SITES_MAX];
    struct walk walk = {.w = w, .cell = cell};
    struct program p;

    workplace_run_ok(w, &p, cell->trains);
    walk.never_killed = strdup(p.out);
    program_free(&p);
    prepare(&walk);
    run(&walk, &p, "?");
    walk.sites = sites_read(sites, p.err);
    check_end(&walk, &p);
    program_free(&p);
    for (unsigned long i = 0; i < walk.sites; i++)
        walk_site(&walk, &sites[i]);
    if (walk.since > 0)
        run_to_the_end(&walk);
    print_message("%s: %lu sites, %lu kills, %lu not reached\n", cell->name, walk.sites, walk.kills, walk.unreached);
    assert_true(walk.kills > walk.unreached);
    free(walk.never_killed);
}

TEST(a_run_killed_at_a_site_goes_on)
{
    const size_t count = passes_asked == ULONG_MAX ? 1 : COUNT(cells);

    for (size_t i = 0; i < count; i++)
        walk_cell(*state, &cells[i]);
}

TEST_MAIN(argc, argv)
{
    if (argc > 1)
        passes_asked = strtoul(argv[1], NULL, 10);
    return test_run(workplace_setup, workplace_teardown);
}
