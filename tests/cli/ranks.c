/* tests/cli/ranks.c - see ranks.h. */
#include "tests/cli/ranks.h"
#include "tests/common/free_port.h"
#include "tests/common/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *const names[] = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"};
#define NAMES (sizeof(names) / sizeof(names[0]))

static void put(const char *name, unsigned number)
{
    char text[16];

    snprintf(text, sizeof(text), "%u", number);
    setenv(name, text, 1);
}

/* sets: the processors of each rank; NULL: those of this process. */
static void start(const struct workplace *w, struct ranks *r, uint32_t count, const char *command, const char *odd, bool piped,
                  const cpu_set_t *sets)
{
    const bool variable = odd[0] >= 'A' && odd[0] <= 'Z';
    cpu_set_t all;
    char line[2048], name[64] = "";

    assert_true(count <= RANKS_MAX);
    assert_int_equal(sched_getaffinity(0, sizeof(all), &all), 0);
    r->count = count;
    put("WORLD_SIZE", count);
    put("LOCAL_WORLD_SIZE", count);
    put("MASTER_PORT", free_port());
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    for (uint32_t i = 0; i < count; i++) {
        put("RANK", i);
        put("LOCAL_RANK", i);
        snprintf(line, sizeof(line), "%s %s", command, i + 1 == count && !variable ? odd : "");
        if (i + 1 == count && variable) {
            snprintf(name, sizeof(name), "%.*s", (int)strcspn(odd, "="), odd);
            setenv(name, odd + strcspn(odd, "=") + 1, 1);
        }
        if (sets != NULL)
            assert_int_equal(sched_setaffinity(0, sizeof(sets[i]), &sets[i]), 0);
        if (i == 0 && piped)
            workplace_start_piped(w, &r->programs[i], line);
        else
            workplace_start(w, &r->programs[i], line);
    }
    if (sets != NULL)
        assert_int_equal(sched_setaffinity(0, sizeof(all), &all), 0);
    for (size_t i = 0; i < NAMES; i++)
        unsetenv(names[i]);
    if (variable)
        unsetenv(name);
}

void ranks_start_piped(const struct workplace *w, struct ranks *r, uint32_t count, const char *command, const char *odd)
{
    start(w, r, count, command, odd, true, NULL);
}

void ranks_wait(struct ranks *r)
{
    program_drain(&r->programs[0]);
    for (uint32_t i = 0; i < r->count; i++)
        program_wait(&r->programs[i]);
}

void ranks_run(const struct workplace *w, struct ranks *r, uint32_t count, const char *command, const char *odd)
{
    start(w, r, count, command, odd, false, NULL);
    for (uint32_t i = 0; i < count; i++)
        program_collect(&r->programs[i]);
}

static void must_be_ok(const struct ranks *r, const char *command)
{
    for (uint32_t i = 0; i < r->count; i++)
        if (r->programs[i].code != 0)
            fail_msg("rank %u of \"%s\": exit code %d: %s", i, command, r->programs[i].code, r->programs[i].err);
}

void ranks_run_bound(const struct workplace *w, struct ranks *r, uint32_t count, const char *command, const cpu_set_t *sets)
{
    start(w, r, count, command, "", false, sets);
    for (uint32_t i = 0; i < count; i++)
        program_collect(&r->programs[i]);
    must_be_ok(r, command);
}

void ranks_run_ok(const struct workplace *w, struct ranks *r, uint32_t count, const char *command)
{
    ranks_run(w, r, count, command, "");
    must_be_ok(r, command);
}

void ranks_free(struct ranks *r)
{
    for (uint32_t i = 0; i < r->count; i++)
        program_free(&r->programs[i]);
}

void ranks_must_say(const char *text, const char *part)
{
    if (strstr(text, part) == NULL)
        fail_msg("\"%s\" lacks \"%s\"", text, part);
}
