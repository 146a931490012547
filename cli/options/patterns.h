/* cli/options/patterns.h - names of data that stand for several files, as a shell's: data/part-*.jsonl, in quotes. */
#ifndef CLI_OPTIONS_PATTERNS_H
#define CLI_OPTIONS_PATTERNS_H

#include "cli/options/args.h"

/** Put into the place of each pattern (*, ?, [...]) in --data, in --eval-data and among the words of tokens the files that it
 *  matches, in the order of their bytes.  What is the name of a file is no pattern.
 *  E_INPUT: none matches, several do where one is meant, or a directory cannot be read.  E_INVAL: "**".  E_NOMEM. */
strata_status cli_patterns_expand(struct cli_args *args);

#endif
