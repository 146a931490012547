/* tests/common/whole_file.h - files at a stroke; the test fails, with the path, where one cannot be had. */
#ifndef TESTS_COMMON_WHOLE_FILE_H
#define TESTS_COMMON_WHOLE_FILE_H

#include <stddef.h>

void write_file(const char *path, const void *data, size_t bytes);
/** NUL-terminated, owned by the caller.
 *  @param bytes  NULL: nobody wants to know */
char *read_file(const char *path, size_t *bytes);

#endif
