/* cli/commands/rank_output.h - standard output or standard error of a process that must not wait for whoever reads them.
 *
 * What is printed into `stream` waits in a buffer, and goes when there is room: a pipe that nobody reads, or a terminal that is
 * stopped, blocks nothing here.  The buffer is bounded: who prints asks first. */
#ifndef CLI_COMMANDS_RANK_OUTPUT_H
#define CLI_COMMANDS_RANK_OUTPUT_H

#include "strata/status.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#define CLI_RANK_OUTPUT_BYTES 65536u

struct cli_rank_output {
    FILE *stream;
    int fd;
    bool own;          /* fd was opened here, and does not block */
    bool lost;         /* what is printed goes nowhere */
    int err;           /* why it could not be written; 0: it could */
    uint64_t since_ns; /* how long it has waited: when bytes last went, or the first of them came */
    size_t bytes;
    char text[CLI_RANK_OUTPUT_BYTES];
};

/** @param to  what was printed into it has been written.  E_NOMEM */
strata_status cli_rank_output_open(struct cli_rank_output *out, FILE *to);
/** Whether everything of `raw` bytes, made safe to print, fits, each of them with the number of its rank. */
bool cli_rank_output_has_room(const struct cli_rank_output *out, size_t raw);
/** Write whole lines, once poll() has found that fd takes them.  Of one that takes no more the rest is lost. */
void cli_rank_output_write(struct cli_rank_output *out);
/** What waits and what comes is lost. */
void cli_rank_output_drop(struct cli_rank_output *out);
/** Does nothing for one that was not opened. */
void cli_rank_output_close(struct cli_rank_output *out);

#endif
