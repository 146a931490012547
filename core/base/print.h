/* core/base/print.h - what the program says to people goes to a FILE through here, fit to be shown (core/base/text.h). */
#ifndef CORE_BASE_PRINT_H
#define CORE_BASE_PRINT_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

/* A line of up to 4 KiB is one write, also on a stream without a buffer. */

/** printf whose newlines and tabs are the format's own: in an argument they are written out, as other controls are.
 *  @return characters printed */
int st_print(FILE *file, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/** Arguments as an array: for functions that take a format themselves. */
int st_vprint(FILE *file, const char *fmt, va_list args) __attribute__((format(printf, 2, 0)));

/** Text of several lines that we composed: newlines and tabs stay. */
void st_print_text(FILE *file, const char *text);

/** One byte of a text that comes in pieces: what is not a whole character yet waits in held. */
struct st_print_bytes {
    char held[4];
    size_t count;
};
/** Newlines and tabs stay; a byte that begins no character is written out. */
void st_print_byte(FILE *file, struct st_print_bytes *b, char byte);
/** What is left at the end. */
void st_print_bytes_end(FILE *file, struct st_print_bytes *b);

/** Writes what is buffered.  @return 0, or the errno value of why something that was printed is not there */
int st_print_flush(FILE *file);

/** True if lines can be rewritten there: a terminal, and not a dumb one. */
bool st_print_rewrites(FILE *file);
/** Columns of the terminal; 80 where it does not tell. */
size_t st_print_width(FILE *file);
/** Put `line`, cut to the width, in place of the terminal's current line; "" clears it.  No newline. */
void st_print_over(FILE *file, const char *line);

#endif
