/* offload/program/program_verify.h - a part of the verifier (program_verify.c) that has a file of its own. */
#ifndef OFFLOAD_PROGRAM_PROGRAM_VERIFY_H
#define OFFLOAD_PROGRAM_PROGRAM_VERIFY_H

#include "offload/program/program.h"

/* Whether the waits alone force the order of every two conflicting accesses of a buffer, over two cycles. */
strata_status st_verify_order(const struct st_program *program);

#endif
