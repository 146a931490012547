/* tests/cli/test_walkthrough.c - the commands of docs/fitting.md, run as they stand there: every line of output that follows one
 * comes, and the exit code is the one that is named. */
#include "tests/cli/program.h"
#include "tests/cli/workplace.h"
#include "tests/common/test.h"
#include "tests/common/whole_file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TEXT_MAX       16384
#define COMMANDS_LEAST 8u

/* Words with one space between them: lines are broken otherwise on a page than on a screen. */
static void squeeze(char out[TEXT_MAX], const char *text)
{
    size_t used = 0;

    for (text += strspn(text, " \n"); *text != '\0' && used < TEXT_MAX - 2; text++) {
        const bool space = *text == ' ' || *text == '\n';

        if (!space || out[used - 1] != ' ')
            out[used++] = space ? ' ' : *text;
    }
    out[used] = '\0';
}

/* "    $ strata ...", and what is below it as far as a backslash ends a line; into out, without "$ strata ". */
static const char *take_command(char out[TEXT_MAX], const char *at)
{
    size_t used = 0;

    for (at += strlen("    $ strata ");; at += strspn(at, "\n ")) {
        const size_t length = strcspn(at, "\n");
        const bool more = at[length - 1] == '\\';

        used += (size_t)snprintf(out + used, TEXT_MAX - used, "%.*s", (int)(length - more), at);
        at += length;
        if (!more)
            return *at == '\n' ? at + 1 : at;
    }
}

static unsigned check_line(const char *line, size_t length, const struct program *p, const char *said)
{
    static char wanted[TEXT_MAX];
    char text[512];
    int code;

    snprintf(text, sizeof(text), "%.*s", (int)length, line);
    if (sscanf(text, " (exit code %d)", &code) == 1)
        return code != p->code;
    squeeze(wanted, text);
    if (strcmp(wanted, "...") == 0 || strstr(said, wanted) != NULL)
        return 0;
    fprintf(stderr, "docs/fitting.md says \"%s\", which strata does not\n", wanted);
    return 1;
}

/* Runs one command and holds the block below it against what it says; returns what follows the block. */
static const char *check_command(const struct workplace *w, const char *at, unsigned *faults)
{
    static char command[TEXT_MAX], both[2 * TEXT_MAX], said[TEXT_MAX];
    struct program p;
    const char *drive;

    at = take_command(command, at);
    while ((drive = strstr(command, "/mnt/nvme")) != NULL) /* a directory that is there */
        memcpy(command + (drive - command), "{w}/nvme ", strlen("/mnt/nvme"));
    strcat(command, " --threads 2"); /* as the page says */
    workplace_run(w, &p, command);
    snprintf(both, sizeof(both), "%s\n%s", p.err, p.out);
    squeeze(said, both);
    for (; strncmp(at, "    ", 4) == 0 && strncmp(at, "    $ ", 6) != 0; at += strcspn(at, "\n") + 1)
        *faults += check_line(at, strcspn(at, "\n"), &p, said);
    program_free(&p);
    return at;
}

TEST(fitting_is_as_it_says)
{
    char *doc = read_file("docs/fitting.md", NULL);
    unsigned commands = 0, faults = 0;

    for (const char *at = doc; (at = strstr(at, "    $ strata ")) != NULL; commands++)
        at = check_command(*state, at, &faults);
    free(doc);
    assert_true(commands >= COMMANDS_LEAST);
    assert_int_equal(faults, 0);
}

TEST_GROUP(workplace_setup, workplace_teardown);
