/* tests/cli/test_rates_kept.c - a run says that it has measured, and the next one that it has not: with the same weights. */
#include "tests/cli/program.h"
#include "tests/cli/workplace.h"
#include "tests/common/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define TRAIN    "train --model nano --data {w}/good.bin --seq-len 32 --max-steps 2 --quiet --digest"
#define QUICK    TRAIN " --fault machine.patience:0:0:-5" /* measures once each */
#define MEASURED "the rates of this machine were measured in "
#define KEPT     "are kept for an hour: "
#define USED     "the rates of this machine were measured within the last "

static struct workplace *place;

static int setup(void **state)
{
    char *cache;

    if (workplace_setup(state) != 0)
        return -1;
    place = *state;
    cache = workplace_expand(place, "{w}/caches");
    (void)unsetenv("STRATA_CACHE");
    (void)setenv("XDG_CACHE_HOME", cache, 1);
    free(cache);
    return 0;
}

/* What it says in place of figures, with the digests that it ends with. */
static void says(const char *command, const char *part, const char *other, char digests[160])
{
    struct program p;

    workplace_run_ok(place, &p, command);
    if (part != NULL)
        assert_non_null(strstr(p.err, part));
    if (other != NULL)
        assert_null(strstr(p.err, other));
    snprintf(digests, 160, "%s", p.out);
    program_free(&p);
}

TEST(rates_are_measured_once_and_change_nothing)
{
    char first[160], second[160], third[160];
    struct program p;
    struct stat info;
    char *file;

    workplace_run_ok(place, &p, QUICK);
    assert_non_null(strstr(p.err, MEASURED));
    assert_non_null(strstr(p.err, KEPT));
    file = strstr(p.err, KEPT) + strlen(KEPT);
    file[strcspn(file, "\n")] = '\0';
    assert_int_equal(strncmp(file, place->path, strlen(place->path)), 0);
    assert_int_equal(stat(file, &info), 0);
    assert_int_equal(info.st_mode & 0777, 0600);
    snprintf(first, sizeof(first), "%s", p.out);
    says(QUICK, USED, MEASURED, second);
    assert_string_equal(first, second);
    assert_int_equal(truncate(file, 100), 0); /* damaged: measured again */
    says(QUICK, MEASURED, USED, third);
    assert_string_equal(first, third);
    says(QUICK " --threads 1", MEASURED, USED, third);
    says(TRAIN " --machine {w}/machine.json", NULL, "the rates of this machine", third);
    assert_string_equal(first, third);
    program_free(&p);
}

/* The run goes on without. */
TEST(a_cache_that_cannot_be_written_is_told)
{
    char digests[160], *file = workplace_expand(place, "{w}/file/below");

    (void)setenv("STRATA_CACHE", file, 1);
    says(QUICK, "the rates of this machine are not kept: ", USED, digests);
    says(QUICK, MEASURED, KEPT, digests);
    (void)setenv("STRATA_CACHE", "", 1);
    says(QUICK, MEASURED, KEPT, digests);
    says(QUICK, MEASURED, USED, digests);
    free(file);
}

TEST_GROUP(setup, workplace_teardown);
