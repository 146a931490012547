/* core/base/print.h - everything the program prints for people goes to a FILE through here and is made safe to print
 * (core/base/text.h). */
#ifndef CORE_BASE_PRINT_H
#define CORE_BASE_PRINT_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

/* A line of up to 4 KiB is one write, even on an unbuffered stream. */

/** printf that keeps the newlines and tabs of the format; in an argument they are escaped like other control characters.
 *  @return characters printed */
int st_print(FILE *file, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/** st_print for a sentence that names keys (core/base/error.h): a program may have it told in its own words, which it sets once
 * at its start.  Newlines and tabs of arguments stay, too. */
void st_print_keyed(FILE *file, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
typedef void st_print_tell_fn(char *out, size_t bytes, const char *sentence);
void st_print_keys_by(st_print_tell_fn *tell);

/** The same with a va_list, for functions that take a format themselves. */
int st_vprint(FILE *file, const char *fmt, va_list args) __attribute__((format(printf, 2, 0)));

/** Text of several lines that the program composed itself: newlines and tabs stay. */
void st_print_text(FILE *file, const char *text);

/** A text that arrives byte by byte: the bytes of an incomplete character wait in `held`. */
struct st_print_bytes {
    char held[4];
    size_t count;
};
/** Newlines and tabs stay; a byte that cannot begin a character is escaped. */
void st_print_byte(FILE *file, struct st_print_bytes *b, char byte);
/** Prints what is still held at the end. */
void st_print_bytes_end(FILE *file, struct st_print_bytes *b);

/** Writes what is buffered.  @return 0, or the errno value of the failure that kept something printed from being written */
int st_print_flush(FILE *file);

/** True if a person's terminal: not the pseudo-terminal in which OpenMPI's mpirun collects what its ranks print. */
bool st_print_is_terminal(FILE *file);
/** True if lines can be rewritten in place: a terminal, and not a dumb one. */
bool st_print_rewrites(FILE *file);
/** Begin or end text that stands out, green, where `file` is such a terminal and NO_COLOR is not set; else nothing. */
void st_print_mark(FILE *file, bool on);
/** Columns of the terminal; 80 if it does not say. */
size_t st_print_width(FILE *file);
/** Put `line`, cut to the width, in place of the terminal's current line; "" clears it.  No newline. */
void st_print_over(FILE *file, const char *line);

#endif
