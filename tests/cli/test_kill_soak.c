/* tests/cli/test_kill_soak.c - kill -9 at random instants of runs that save and resume: the next run goes on from the newest
 * checkpoint, none is lost, and the last one has the bits of a run that was never killed.
 *
 *     test_cli_kill_soak [KILLS [SEED]]          kills in each cell
 *
 * The instants are what is tested: here a test sleeps. */
#include "tests/cli/chance.h"
#include "tests/cli/program.h"
#include "tests/cli/workplace.h"
#include "tests/common/test.h"

#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define COUNT(a)       (sizeof(a) / sizeof((a)[0]))
#define KEEP           2
#define STEPS          16
#define WINDOW_MOST_US 10000000u
#define TRAIN          "train --data {w}/good.bin --seq-len 32 --max-steps 16 --machine {w}/machine.json --digest --quiet"
#define NANO           " --model nano"
#define SAVING         " --save-every 1 --keep 2 --resume auto --save "
#define DRIVE                                                                                                                    \
    " --nvme {w}/nvme --set zero_optimization.stage=3 --set zero_optimization.offload_optimizer.device=nvme --set "              \
    "zero_optimization.offload_param.device=nvme --set strata.cache=0 --device-memory 20MiB"

/* Beside this machine's compute its drive is slow, so that a step gains by early updates; some steps of these clip. */
#define EARLY    DRIVE " --machine {w}/slow.json --set strata.update=speculative"
#define AT_TIMES " --set gradient_clipping=4.45"

static long kills = 3;

static const struct cell {
    const char *name, *trains, *options, *save; /* trains: what changes bits; shm: another file system */
} cells[] = {
    {"state in memory", NANO, "", "save"},
    {"all on a drive", NANO, DRIVE, "save"},
    {"two drives", NANO, DRIVE " --nvme {w}/nvme2", "save"},
    {"another file system", NANO, DRIVE, "shm/save"},
    {"updates in backward", NANO AT_TIMES, EARLY, "save"},
    {"adapters", " --model nano-llama --lora {w}/lora.json --set strata.quantization=nf4", DRIVE, "save"},
};

/* --- what a directory of checkpoints holds --- */

struct seen {
    unsigned long newest, checkpoints, others; /* newest: step, 0: none; others: what a dead run left */
};

static struct seen look(const char *save)
{
    struct seen seen = {0};
    DIR *dir = opendir(save);
    unsigned long step;

    for (const struct dirent *entry = dir != NULL ? readdir(dir) : NULL; entry != NULL; entry = readdir(dir))
        if (sscanf(entry->d_name, "step-%lu", &step) == 1) {
            seen.newest = step > seen.newest ? step : seen.newest;
            seen.checkpoints++;
        } else if (strncmp(entry->d_name, ".strata", 7) == 0 || strstr(entry->d_name, ".tmp") != NULL) {
            seen.others++;
        }
    if (dir != NULL)
        closedir(dir);
    return seen;
}

static void remove_save(const struct workplace *w, const char *name)
{
    if (workplace_exists(w, name))
        workplace_remove(w, name);
}

/* --- one cell --- */

struct soak {
    const struct workplace *w;
    const struct cell *cell;
    char command[1024], save[128]; /* save: its path */
    char *never_killed;
    uint32_t window_us;                               /* within which the signal comes; follows the pace of this machine */
    unsigned long killed, unfinished, without, ended; /* kills; of them with something unfinished, without a checkpoint; runs */
};

static void check_end(const struct soak *s, const struct program *p, const char *out)
{
    const struct seen seen = look(s->save);

    if (p->code != 0 || strcmp(out, s->never_killed) != 0)
        fail_msg("%s, after %lu kills: exit code %d\n%s%sexpected\n%s", s->cell->name, s->killed, p->code, p->err, out,
                 s->never_killed);
    if (seen.checkpoints != KEEP || seen.newest != STEPS || seen.others != 0 || workplace_entries(s->w, "nvme") != 0 ||
        workplace_entries(s->w, "nvme2") != 0)
        fail_msg("%s, after %lu kills: %lu checkpoints, the newest of step %lu, %lu other things, %d and %d in the drives",
                 s->cell->name, s->killed, seen.checkpoints, seen.newest, seen.others, workplace_entries(s->w, "nvme"),
                 workplace_entries(s->w, "nvme2"));
}

/* A run that ends before its signal is checked, and the next begins from nothing. */
static void one_kill(struct soak *s)
{
    const struct seen before = look(s->save);
    struct seen after;
    struct program p;

    workplace_start(s->w, &p, s->command);
    chance_sleep_us(s->window_us);
    kill(p.pid, SIGKILL);
    program_wait(&p);
    after = look(s->save);
    if (after.newest < before.newest || strstr(p.err, "error") != NULL || strstr(p.err, "warning") != NULL)
        fail_msg("%s, kill %lu: the newest was of step %lu and is of step %lu\n%s", s->cell->name, s->killed, before.newest,
                 after.newest, p.err);
    if (p.code == 128 + SIGKILL) {
        s->killed++;
        s->unfinished += after.others > 0;
        if (after.newest == before.newest && s->window_us < WINDOW_MOST_US)
            s->window_us += s->window_us / 4;
        s->without += after.newest == 0;
    } else {
        program_free(&p);
        workplace_run(s->w, &p, s->command); /* nothing is left to do: it says the digests of the last checkpoint */
        check_end(s, &p, p.out);
        s->ended++;
        s->window_us -= s->window_us / 4;
        remove_save(s->w, s->cell->save);
    }
    program_free(&p);
}

static void soak(const struct workplace *w, const struct cell *cell)
{
    struct soak s = {.w = w, .cell = cell, .window_us = 300000};
    char plain[512];
    struct program p;

    snprintf(s.save, sizeof(s.save), "%s/%s", w->path, cell->save);
    snprintf(s.command, sizeof(s.command), TRAIN "%s%s" SAVING "%s", cell->trains, cell->options, s.save);
    snprintf(plain, sizeof(plain), TRAIN "%s", cell->trains);
    workplace_run_ok(w, &p, plain);
    s.never_killed = strdup(p.out);
    program_free(&p);
    while (s.killed < (unsigned long)kills)
        one_kill(&s);
    workplace_run(w, &p, s.command);
    check_end(&s, &p, p.out);
    program_free(&p);
    remove_save(w, cell->save);
    free(s.never_killed);
    print_message("%s: %lu kills, %lu of them with something unfinished, %lu before the first checkpoint; %lu runs to the end\n",
                  cell->name, s.killed, s.unfinished, s.without, s.ended + 1);
}

/* {w}/shm, a link to a directory on another file system; false: there is none. */
static bool make_elsewhere(const struct workplace *w, char path[32])
{
    struct stat here, there;
    char link[128];

    snprintf(path, 32, "/dev/shm/strata-test-XXXXXX");
    if (mkdtemp(path) == NULL)
        return false;
    snprintf(link, sizeof(link), "%s/shm", w->path);
    assert_int_equal(symlink(path, link), 0);
    assert_int_equal(stat(path, &there), 0);
    assert_int_equal(stat(w->path, &here), 0);
    return here.st_dev != there.st_dev;
}

/* Else its cell would kill a run like any other. */
static void check_early(const struct workplace *w)
{
    struct program p;

    workplace_run_ok(w, &p, "plan --seq-len 32 --json" NANO EARLY);
    if (strstr(p.out, "\"early_pages\":") == NULL || strstr(p.out, "\"early_pages\":0") != NULL)
        fail_msg("nothing is updated early:\n%s", p.out);
    program_free(&p);
}

TEST(a_killed_run_goes_on)
{
    static const char lora[] = "{\"r\": 4, \"lora_alpha\": 8, \"target_modules\": \"all-linear\"}";
    const struct workplace *w = *state;
    char path[32];
    const bool elsewhere = make_elsewhere(w, path);

    workplace_make_dir(w, "nvme2");
    workplace_write(w, "lora.json", lora, strlen(lora));
    check_early(w);
    for (size_t i = 0; i < COUNT(cells); i++)
        if (elsewhere || strncmp(cells[i].save, "shm", 3) != 0)
            soak(w, &cells[i]);
        else
            print_message("%s: there is none here\n", cells[i].name);
    rmdir(path);
}

TEST_MAIN(argc, argv)
{
    if (argc > 1)
        kills = strtol(argv[1], NULL, 10);
    if (argc > 2)
        chance_seed(strtoull(argv[2], NULL, 10));
    return test_run(workplace_setup, workplace_teardown);
}
