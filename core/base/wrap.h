/* core/base/wrap.h - tables and explanations on a terminal: lines that are too wide are wrapped between words and aligned.  All
 * rows of a table are cut at the same columns. */
#ifndef CORE_BASE_WRAP_H
#define CORE_BASE_WRAP_H

#include <stdio.h>

/** A stream whose lines end up in `to`, wrapped to its width if it is a terminal; otherwise `to` itself.  A continuation line
 * starts where the second column does (after the first gap of two spaces), or is indented by four columns.  A command
 * ("  strata ...") is broken with backslashes, so that it can be copied.  A line is written when it is complete. */
FILE *st_wrap_open(FILE *to);
/** Writes what is left.  @param wrapped  of st_wrap_open(to) */
void st_wrap_close(FILE *wrapped, FILE *to);

/** st_print through such a stream: a sentence, or a few lines. */
void st_wrap_print(FILE *to, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#endif
