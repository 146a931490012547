/* cli/options/told.h - the library's sentences as this program says them: what it calls by keys, people here give by options. */
#ifndef CLI_OPTIONS_TOLD_H
#define CLI_OPTIONS_TOLD_H

#include "core/base/log.h"

#include <stddef.h>
#include <stdio.h>

#define CLI_TOLD_BYTES 2048 /* enough for a sentence of the library with its options */

/** A key of the configuration is followed by its option where it comes first: "strata.save (--save)"; not so with a value, as
 *  somebody has written it, nor where the option is a switch, which has one value.  A member of the library's options, which
 *  nobody sees here, is replaced: "machine.device" by "--device".  @param out  [bytes], not `sentence` itself */
void cli_told(char *out, size_t bytes, const char *sentence);

/** "strata: ", `prefix` and the sentence as it is told, as a line for people. */
void cli_told_print(FILE *to, const char *prefix, const char *sentence);

/** The sink of the program's log: standard error. */
void cli_told_log(void *ctx, enum st_log_level level, const char *line);

#endif
