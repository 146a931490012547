/* cli/commands/rank_lines.h - what a rank prints, line by line, with its number before each. */
#ifndef CLI_COMMANDS_RANK_LINES_H
#define CLI_COMMANDS_RANK_LINES_H

#include "cli/commands/rank_output.h"
#include "strata/status.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CLI_RANK_LINE_BYTES 4096 /* a longer line comes in parts */

struct cli_rank_lines {
    uint32_t rank;
    struct cli_rank_output *to; /* borrowed */
    int from;                   /* read end of a pipe that does not block; -1: it has ended */
    size_t bytes;
    char text[CLI_RANK_LINE_BYTES]; /* the line that is not whole yet */
};

/** Open a pipe.  @param end  out: its write end, for the rank; the caller closes it.  E_IO: none is left */
strata_status cli_rank_lines_open(struct cli_rank_lines *l, uint32_t rank, struct cli_rank_output *to, int *end);
/** Whether there is room for what may be read. */
bool cli_rank_lines_may_read(const struct cli_rank_lines *l);
/** Print what has come and has room, as far as lines are whole; at the end of the pipe the rest, too.
 *  @param last  the rank has ended: once the pipe is empty, that is its end */
void cli_rank_lines_read(struct cli_rank_lines *l, bool last);
/** Print the rest. */
void cli_rank_lines_close(struct cli_rank_lines *l);

#endif
