/* cli/commands/unsaved.h - what a run has written to --out whose last checkpoint could not be made: SAVE/unsaved.json.
 *
 * Without it a job that is submitted again would take the model for another run's, since no checkpoint is of its step. */
#ifndef CLI_COMMANDS_UNSAVED_H
#define CLI_COMMANDS_UNSAVED_H

#include "strata/status.h"

#include <stdbool.h>
#include <stdint.h>

#define CLI_UNSAVED "unsaved.json"

struct cli_unsaved {
    bool there;
    uint64_t step, steps;        /* done, and of the run as it was asked for */
    char run[33];                /* name of the run; below, digests: */
    char weights[33], state[33]; /* as the engine says them, and */
    char out[33];                /* of what --out holds */
};

/** What a run has left in the directory; not there where it cannot be read, or says something else. */
void cli_unsaved_read(struct cli_unsaved *u, const char *save);
/** Write it, in place of one that is there.  E_INPUT: a file that no run wrote has the name. */
strata_status cli_unsaved_write(const struct cli_unsaved *u, const char *save);
/** A later checkpoint stands for it; a file that no run wrote stays, and one that cannot be removed stays, and is compared. */
void cli_unsaved_remove(const char *save);

/** Digest of the weights in `out`, or of its adapter's file. */
strata_status cli_unsaved_digest(char digest[33], const char *out, bool adapter);

#endif
