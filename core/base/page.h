/* core/base/page.h - tables and explanations on a terminal: lines wider than it go on below, cut between words and aligned.  Rows
 * of a table are cut at the same columns. */
#ifndef CORE_BASE_PAGE_H
#define CORE_BASE_PAGE_H

#include <stdio.h>

/** A stream whose lines end up in `to`, wrapped to its width where it is a terminal; elsewhere `to` itself.  What goes on below
 *  starts where the line's second column does (after its first gap of two spaces), or four columns in.  Lines arrive when they
 * are complete. */
FILE *st_page_open(FILE *to);
/** Hands over what is left.  @param page  of st_page_open(to) */
void st_page_close(FILE *page, FILE *to);

/** st_print on a page of its own: a sentence, or a few lines. */
void st_page_print(FILE *to, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#endif
