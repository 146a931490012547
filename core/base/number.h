/* core/base/number.h - numbers of files and of other data, as text: with a point, whatever the locale of the program says.
 *
 * A program that calls setlocale() changes printf() and strtod() for the whole process: 0.02 becomes 0,02 in half of the world.
 * Sentences for people may follow it; what is read back, by this library or by others, must not. */
#ifndef CORE_BASE_NUMBER_H
#define CORE_BASE_NUMBER_H

#include <locale.h>
#include <stddef.h>

/** strtod() and snprintf() of the C locale. */
double st_number_read(const char *text, char **end);
int st_number_print(char *buf, size_t bytes, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/** For foreign code that reads or writes numbers: the calling thread has the C locale until the end. */
locale_t st_number_begin(void);
void st_number_end(locale_t before);

#endif
