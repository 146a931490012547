/* tests/cli/test_bad_input.c - a table of things that go wrong: exit code, sentence, and nothing left behind.
 *
 * Rows are in bad_input.tsv.  After each, the swap directory is empty, --out is absent, the working directory holds what it
 * held, and a run that was refused (2 or 3) has not created its metrics file. */
#include "tests/cli/program.h"
#include "tests/cli/workplace.h"
#include "tests/common/test.h"

#include <regex.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COLUMNS     5
#define ROWS_LEAST  60u
#define COMMAND_MAX 2048u

struct row {
    char *field[COLUMNS]; /* exit, flags, command, config, pattern */
    unsigned line;
};

struct macro {
    const char *name, *text;
};

static const struct macro macros[] = {
    {"{train}", "{steps} --out {w}/out"},
    {"{steps}",
     "train --model nano --data {w}/good.bin --seq-len 32 --max-steps 2 --machine {w}/machine.json --metrics {w}/m.jsonl"},
    {"{nvme}", "--set zero_optimization.offload_optimizer.device=nvme --set strata.cache=0 --nvme {w}/nvme"},
};

/* Owned by the caller. */
static char *expand_macros(const char *command)
{
    char *text = strdup(command);

    for (size_t i = 0; i < sizeof(macros) / sizeof(macros[0]); i++) {
        char *at = strstr(text, macros[i].name), *longer;

        if (at == NULL)
            continue;
        longer = malloc(COMMAND_MAX);
        assert_non_null(longer);
        assert_true(snprintf(longer, COMMAND_MAX, "%.*s%s%s", (int)(at - text), text, macros[i].text,
                             at + strlen(macros[i].name)) < (int)COMMAND_MAX);
        free(text);
        text = longer;
    }
    return text;
}

static bool row_has(const struct row *row, const char *flag)
{
    return strstr(row->field[1], flag) != NULL;
}

static bool matches(const char *pattern, const char *text)
{
    regex_t regex;
    bool found;

    assert_int_equal(regcomp(&regex, pattern, REG_EXTENDED | REG_NOSUB), 0);
    found = regexec(&regex, text, 0, NULL, 0) == 0;
    regfree(&regex);
    return found;
}

static unsigned complain(const struct row *row, const char *what)
{
    fprintf(stderr, "bad_input.tsv:%u: %s: strata %s\n", row->line, what, row->field[2]);
    return 1;
}

static unsigned check_output(const struct row *row, const struct program *p)
{
    const size_t bytes = strlen(p->out) + strlen(p->err) + 2;
    char *both = malloc(bytes);
    unsigned faults = 0;

    assert_non_null(both);
    snprintf(both, bytes, "%s\n%s", p->err, p->out);
    if (p->code != atoi(row->field[0]))
        faults += complain(row, "exit code");
    if (!matches(row->field[4], both))
        faults += complain(row, "sentence");
    if (p->code != 0 && strlen(row->field[2]) > 0 && strstr(p->err, "strata: error: ") == NULL)
        faults += complain(row, "no error line");
    if (faults > 0)
        fprintf(stderr, "  exit code %d, expected %s, /%s/\n%s", p->code, row->field[0], row->field[4], both);
    free(both);
    return faults;
}

static unsigned check_leftovers(const struct row *row, const struct workplace *w, int entries)
{
    unsigned faults = 0;

    if (workplace_entries(w, "nvme") != 0)
        faults += complain(row, "nvme directory not empty");
    if (w->mounted && workplace_entries(w, "full") != 0)
        faults += complain(row, "full disk not empty");
    if (workplace_exists(w, "out"))
        faults += complain(row, "--out exists");
    if (workplace_exists(w, "m.jsonl") && !row_has(row, "metrics"))
        faults += complain(row, "metrics file exists");
    workplace_remove(w, "m.jsonl");
    workplace_remove(w, "out");
    if (workplace_entries(w, ".") != entries)
        faults += complain(row, "something was left in the working directory");
    return faults;
}

static unsigned run_row(const struct row *row, const struct workplace *w)
{
    char *command = expand_macros(row->field[2]);
    const bool config = strcmp(row->field[3], "-") != 0;
    struct program p;
    unsigned faults;
    int entries;

    if (config)
        workplace_write(w, "config.json", row->field[3], strlen(row->field[3]));
    entries = workplace_entries(w, ".");
    workplace_run(w, &p, command);
    faults = check_output(row, &p) + check_leftovers(row, w, entries);
    if (config)
        workplace_remove(w, "config.json");
    program_free(&p);
    free(command);
    return faults;
}

/* Cut a line at its tabs. */
static bool parse_row(struct row *row, char *line, unsigned number)
{
    line[strcspn(line, "\n")] = '\0';
    if (line[0] == '#' || line[0] == '\0')
        return false;
    row->line = number;
    for (int i = 0; i < COLUMNS; i++) {
        row->field[i] = strsep(&line, "\t");
        assert_non_null(row->field[i]);
    }
    assert_null(line);
    return true;
}

TEST(bad_input_is_refused_cleanly)
{
    const struct workplace *w = *state;
    FILE *file = fopen("tests/cli/bad_input.tsv", "re");
    unsigned rows = 0, skipped = 0, faults = 0, number = 0;
    size_t capacity = 0;
    char *line = NULL;
    struct row row;

    assert_non_null(file);
    while (getline(&line, &capacity, file) > 0) {
        if (!parse_row(&row, line, ++number))
            continue;
        if (row_has(&row, "mount") && !w->mounted) {
            skipped++;
            fprintf(stderr, "skipped: bad_input.tsv:%u: %s\n", row.line, w->not_mounted);
            continue;
        }
        rows++;
        faults += run_row(&row, w);
    }
    free(line);
    fclose(file);
    printf("%u rows run, %u skipped, %u faults\n", rows, skipped, faults);
    assert_true(rows >= ROWS_LEAST);
    assert_int_equal(faults, 0);
}

static int setup(void **state)
{
    const int failed = workplace_setup(state);

    workplace_damage(*state);
    workplace_mount(*state);
    return failed;
}

TEST_GROUP(setup, workplace_teardown);
