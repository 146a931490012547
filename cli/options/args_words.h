/* cli/options/args_words.h - words of the command line that are a trainer's keys, for args.c only. */
#ifndef CLI_OPTIONS_ARGS_WORDS_H
#define CLI_OPTIONS_ARGS_WORDS_H

#include "cli/options/args_table.h"

/** Whether the words are a whole command line of LLaMA-Factory's: one of them is --stage or --finetuning_type. */
bool cli_words_are_a_run(enum cli_command command, int argc, char **argv);
/** Whether an option is a key of a trainer's.  Options of strata's own come first beside a file, but for a switch with a value;
 *  on a line of LLaMA-Factory's its keys do.
 *
 * @param o     of this name; NULL: there is none
 * @param next  the word behind it; NULL: none */
bool cli_words_want(const struct cli_args *args, const struct cli_option *o, const char *name, const char *next);
/** Keep "--name=value", which stands at `word`. */
strata_status cli_words_take(struct cli_args *args, const char *word, const char *name, const char *value);
/** Whether an option at `word` was kept so. */
bool cli_words_has(const struct cli_args *args, const char *word);
/** Whether a word behind a list of names is "key=value" of a trainer's, and no file of that name. */
bool cli_words_says_key(const struct cli_args *args, const char *text);
/** Beside lr_scheduler_kwargs the option --lr_scheduler_type is a word, too: they belong to it. */
strata_status cli_words_add_schedule(struct cli_args *args);
/** Keep each "key=value" from word `first` on, and leave the others. */
strata_status cli_words_of(struct cli_args *args, uint32_t first);
/** What is wrong with an option that was kept, where there is no trainer's file. */
strata_status cli_words_refuse(const struct cli_args *args);

#endif
