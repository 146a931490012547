/* cli/options/args_values.h - values of options, for args.c only. */
#ifndef CLI_OPTIONS_ARGS_VALUES_H
#define CLI_OPTIONS_ARGS_VALUES_H

#include "cli/options/args_table.h"

/** Both keep what they are given: `item`, and a copy of "path=value", or of `value` where `path` is NULL. */
strata_status cli_list_push(struct cli_list *list, const char *item);
strata_status cli_override_push(struct cli_args *args, const char *path, const char *value);
/** An override with a name that no configuration reads otherwise. */
strata_status cli_name_push(struct cli_args *args, const char *path, const char *text);
/** Puts the value of an option into its place.  E_INVAL: none, no number, or out of the range of its row. */
strata_status cli_value_take(struct cli_args *args, const struct cli_option *o, const char *text);

#endif
