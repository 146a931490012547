/* test_power_cut.c - the power is cut at any instant of a run that saves: each name in its directory leads to a whole checkpoint,
 * those that the run had reported are there, and a resumed run has the bits of one that never ended.
 *
 *     test_cli_power_cut           a sample
 *     test_cli_power_cut --all     a thousand cuts */
#include "tests/cli/disk_model.h"
#include "tests/cli/program.h"
#include "tests/cli/workplace.h"
#include "tests/common/sample.h"
#include "tests/common/scratch.h"
#include "tests/common/test.h"

#include "nvme/swap/swap.h"
#include "offload/checkpoint/store.h"
#include "offload/checkpoint/verify.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CUTS_ALL    1000u
#define CUTS_SAMPLE 20u
#define KEEP        2u
#define STEPS       "6"
#define TRAIN       "train --model nano --data {w}/good.bin --seq-len 32 --machine {w}/machine.json --digest --quiet "
#define DRIVE                                                                                                                    \
    "--nvme {w}/disk/nvme --set zero_optimization.stage=3 --set zero_optimization.offload_optimizer.device=nvme "                \
    "--set zero_optimization.offload_param.device=nvme --set strata.cache=0 --device-memory 20MiB "
#define SAVING "--set strata.io_method=threads --save {w}/disk/a --save-every 1 --keep 2 --max-steps " STEPS " "

/* Runs of which calls are recorded: what is there before, and whether files can have two names. */
static const struct run {
    const char *before, *command;
    bool links;
} runs[] = {
    {NULL, TRAIN DRIVE SAVING, true},
    {TRAIN DRIVE "--save {w}/disk/a --max-steps 3", TRAIN DRIVE SAVING "--resume auto", true}, /* from files that are adopted */
    {NULL, TRAIN DRIVE SAVING, false},
    {NULL, TRAIN SAVING, true},
    {TRAIN "--save {w}/disk/a --max-steps 3", TRAIN SAVING "--overwrite", true}, /* one of its names is taken */
};
#define RUN_COUNT (sizeof(runs) / sizeof(runs[0]))

static char never_ended[160];

static struct disk *record(const struct workplace *w, const struct run *run)
{
    char *disk_path = workplace_expand(w, "{w}/disk"), *records = workplace_expand(w, "{w}/records");
    struct disk *disk;
    struct program p;

    workplace_make_dir(w, "disk");
    workplace_make_dir(w, "disk/nvme");
    if (run->before != NULL) {
        workplace_run_ok(w, &p, run->before);
        program_free(&p);
    }
    disk = disk_open(disk_path);
    assert_int_equal(setenv("STRATA_RECORD", records, 1), 0);
    assert_int_equal(setenv("STRATA_RECORD_DEVICE", disk_path, 1), 0);
    if (!run->links)
        assert_int_equal(setenv("STRATA_RECORD_NO_LINK", "1", 1), 0);
    assert_int_equal(setenv("LD_PRELOAD", FILE_RECORDER, 1), 0);
    workplace_run_ok(w, &p, run->command);
    assert_int_equal(unsetenv("LD_PRELOAD"), 0);
    assert_int_equal(unsetenv("STRATA_RECORD_NO_LINK"), 0);
    program_free(&p);
    disk_take_records(disk, records);
    workplace_remove(w, "records");
    workplace_remove(w, "disk");
    free(disk_path);
    free(records);
    return disk;
}

/* Fails with all that is needed to see it again. */
_Noreturn static void fail_cut(const char *cut, const char *what, const char *more)
{
    print_error("%s\n%s\n%s\n", cut, what, more);
    fail();
    abort();
}

/* All checkpoints that have their name; how many. */
static uint32_t assert_whole(const char *save, const char *cut)
{
    struct st_store_list list = {0};

    if (access(save, F_OK) == 0)
        assert_int_equal(st_store_list(&list, save), STRATA_OK);
    for (uint32_t i = 0; i < list.count; i++) {
        char path[ST_PATH_MAX], name[ST_STORE_NAME_BYTES];
        struct st_checkpoint *ck;
        uint64_t damages;

        st_store_name(name, list.steps[i]);
        assert_int_equal(st_path_join(path, save, name), STRATA_OK);
        if (st_checkpoint_open(&ck, path) != STRATA_OK)
            fail_cut(cut, path, strata_last_error());
        if (st_verify(ck, NULL, NULL, NULL, &damages) != STRATA_OK)
            fail_cut(cut, path, strata_last_error());
        st_checkpoint_close(ck);
    }
    free(list.steps);
    return list.count;
}

/* The run has said of the last `keep` that it had that they are there: `latest` names them, and the line comes after it. */
static void assert_reported(const struct workplace *w, const struct disk *disk, uint32_t at, const char *cut)
{
    char names[KEEP][32], path[64];

    disk_renamed(disk, at, "latest", KEEP, names);
    for (uint32_t i = 0; i < KEEP && names[i][0] != '\0'; i++) {
        snprintf(path, sizeof(path), "cut/a/%.*s", (int)strcspn(names[i], "\n"), names[i]);
        if (!workplace_exists(w, path))
            fail_cut(cut, path, "was reported, and is not there");
    }
}

/* The run goes on, and nothing is left of the one that ended. */
static void assert_goes_on(const struct workplace *w, const char *save, bool swept, const char *cut)
{
    char *drive = workplace_expand(w, "{w}/cut/nvme"), is[160];
    uint32_t entries;

    workplace_digests(w, TRAIN "--save {w}/cut/a --keep 2 --resume auto --max-steps " STEPS, is);
    if (strcmp(is, never_ended) != 0)
        fail_cut(cut, is, never_ended);
    (void)st_swap_sweep(drive);
    entries = (uint32_t)workplace_entries(w, "cut/a") - scratch_entries_with(save, "latest.strata-"); /* of the next writer */
    if (swept && (entries != assert_whole(save, cut) + 1 || workplace_entries(w, "cut/nvme") != 0))
        fail_cut(cut, save, "is not all that is left, with latest");
    free(drive);
}

static void cut_once(const struct workplace *w, struct disk *disk, uint32_t run, uint64_t seed)
{
    uint64_t random = seed;
    const uint32_t at = disk_choose(disk, &random);
    const enum disk_loss loss = (enum disk_loss)(disk_random(&random) % DISK_LOSS_COUNT);
    char *to = workplace_expand(w, "{w}/cut"), *save = workplace_expand(w, "{w}/cut/a"), cut[96];

    snprintf(cut, sizeof(cut), "run %u, seed %llu: cut before call %u of %u, loss %d", run, (unsigned long long)seed, at,
             disk_record_count(disk), (int)loss);
    disk_cut(disk, at, loss, seed, to);
    (void)assert_whole(save, cut);
    assert_reported(w, disk, at, cut);
    assert_goes_on(w, save, loss != DISK_LOSES_ANY, cut);
    workplace_remove(w, "cut");
    free(to);
    free(save);
}

TEST(a_cut_costs_no_checkpoint)
{
    const struct workplace *w = *state;
    const uint32_t cuts = (sample_is_all() ? CUTS_ALL : CUTS_SAMPLE) / RUN_COUNT;

    workplace_digests(w, TRAIN "--max-steps " STEPS, never_ended);
    for (uint32_t run = 0; run < RUN_COUNT; run++) {
        struct disk *disk = record(w, &runs[run]);

        for (uint64_t seed = 0; seed < cuts; seed++)
            cut_once(w, disk, run, seed * RUN_COUNT + run);
        disk_close(disk);
    }
}

TEST_GROUP(workplace_setup, workplace_teardown);
