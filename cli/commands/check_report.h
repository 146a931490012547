/* cli/commands/check_report.h - what strata check prints: keys by what becomes of them, and a verdict. */
#ifndef CLI_COMMANDS_CHECK_REPORT_H
#define CLI_COMMANDS_CHECK_REPORT_H

#include "strata/config.h"
#include "strata/recipe.h"

#include <stdbool.h>
#include <stdint.h>

#define CLI_CHECK_UNSEEN_MAX 16u

/* Strings are borrowed. */
struct cli_check {
    const struct strata_config *config;       /* NULL: it could not be read at all */
    const struct strata_recipe *recipe;       /* NULL: none */
    bool all;                                 /* values that nobody gave, too */
    const char *unseen[CLI_CHECK_UNSEEN_MAX]; /* [unseen_count] parts of a run that were not looked at */
    uint32_t unseen_count;
    const char *needed[CLI_CHECK_UNSEEN_MAX]; /* [needed_count] those that a run needs, and that are not there */
    uint32_t needed_count;
    const char *refusal; /* why a run would be refused: the first problem; NULL: it would start */
    uint32_t others;     /* further problems */
};

/** The keys, and of a trainer's file the options that it becomes. */
void cli_check_print(const struct cli_check *c);
/** One line. */
void cli_check_print_verdict(const struct cli_check *c);
/** All of it as JSON. */
void cli_check_print_json(const struct cli_check *c);

#endif
