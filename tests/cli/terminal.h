/* tests/cli/terminal.h - the program on a terminal of so many columns. */
#ifndef TESTS_CLI_TERMINAL_H
#define TESTS_CLI_TERMINAL_H

#include "tests/cli/program.h"

struct workplace; /* tests/cli/workplace.h */

/** Run strata with this command line, expanded and cut as workplace_run() does, to its end: standard output, and standard error
 *  where `err_too`, on a new terminal.  p->out is all that arrived there, p->err the rest.
 *  @param kind  TERM, such as "xterm" or "dumb" */
void terminal_run(const struct workplace *w, struct program *p, const char *command, unsigned columns, const char *kind,
                  bool err_too);

/** What a screen shows of it: rewritten lines as they stood last, control sequences obeyed; owned by the caller. */
char *terminal_screen(const char *text);

/** Columns of the widest line of what a screen shows.  A line of a single word does not count: words, such as paths and names of
 *  errors, are not broken, so that they can be copied. */
size_t terminal_widest(const char *screen);

#endif
