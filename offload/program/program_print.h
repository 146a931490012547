/* offload/program/program_print.h - a program as people read it, and as other programs do: one line an op. */
#ifndef OFFLOAD_PROGRAM_PROGRAM_PRINT_H
#define OFFLOAD_PROGRAM_PROGRAM_PRINT_H

#include "offload/program/program.h"

#include <stdio.h>

/** Columns: number, lane, phases (p prologue, b body, e epilogue, v eval; of a run that saves s save), kind, bytes, the indices
 * that the kind has, operands as role=tier:buffer (`*`: the op writes it), and the ops that it waits for (`'`: of the previous
 * cycle). */
void st_program_print(const struct st_program *program, FILE *file);

/** One JSON object a line, with the same fields. */
void st_program_put(const struct st_program *program, FILE *file);

#endif
