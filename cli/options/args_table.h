/* cli/options/args_table.h - the options of all commands: one row each, and functions to find rows. */
#ifndef CLI_OPTIONS_ARGS_TABLE_H
#define CLI_OPTIONS_ARGS_TABLE_H

#include "cli/options/args.h"

#include <stddef.h>

#define CLI_NAMES_MAX 4
#define CLI_WORD_MAX  64 /* bytes of an option's name, and of a number among several */

/* Commands that share options: config, model and budgets. */
#define RUNS   (CLI_CMD_TRAIN | CLI_CMD_PLAN | CLI_CMD_EVAL)
#define LOADS  (RUNS | CLI_CMD_GENERATE)
#define TRAINS (CLI_CMD_TRAIN | CLI_CMD_PLAN)
#define RANKED (CLI_CMD_TRAIN | CLI_CMD_EVAL | CLI_CMD_GENERATE | CLI_CMD_INFO) /* several processes may be one run */
/* ... and check, which resolves them, too. */
#define CONFIGURES (LOADS | CLI_CMD_CHECK)
#define NO_OFFSET  SIZE_MAX /* offset of an option that sets no field */

enum value_kind {
    VALUE_FLAG,     /* none; sets a bool, or true in the config */
    VALUE_TEXT,     /* one word */
    VALUE_ONCE,     /* one word, no second time */
    VALUE_LIST,     /* one or more words */
    VALUE_COUNT,    /* whole number in least..most */
    VALUE_REAL,     /* number in least..most */
    VALUE_SIZE,     /* size, at least 1 byte */
    VALUE_SIZES,    /* sizes separated by commas */
    VALUE_COUNTS,   /* whole numbers in least..most separated by commas */
    VALUE_SET,      /* PATH=VALUE */
    VALUE_IGNORED,  /* one word, dropped */
    VALUE_ELSEWHERE /* an option of other programs: `value` says what does it here */
};

/* A number or a word goes to a field (offset), or without one to the config (key). */
struct cli_option {
    const char *names[CLI_NAMES_MAX]; /* without the dashes; NULL: a heading, or words of the option above for these commands */
    uint32_t commands;
    enum value_kind kind;
    size_t offset;
    const char *key; /* what sentences of the library call it: a key of the configuration, or members of its options, by blanks */
    double least, most;
    const char *value; /* name of the value in help */
    const char *help;  /* NULL: hidden */
};

/** Find the option of this name that the command takes; NULL: none. */
const struct cli_option *cli_option_find(enum cli_command command, const char *name);
/** The first of these options of the command to which the command line gives another value than 0, none and false.
 *  @param names  [count], borrowed  @return NULL: it gives none */
const char *cli_option_given(enum cli_command command, const char *const *names, size_t count, const struct cli_args *args);
/** The name of an option's value in the help of a command; NULL: it takes none. */
const char *cli_option_value(const struct cli_option *o, enum cli_command command);
/** Find the first option of a key that `text` begins with.  @param length  out: bytes of the key */
const struct cli_option *cli_option_of_key(const char *text, size_t *length);
/** Whether its key is one of the configuration, which people may write, too. */
bool cli_option_is_key(const struct cli_option *o);
/** E_INVAL, with the nearest name that the command takes. */
strata_status cli_option_unknown(enum cli_command command, const char *name);

#endif
