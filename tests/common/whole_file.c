/* tests/common/whole_file.c - see whole_file.h. */
#include "tests/common/test.h"
#include "tests/common/whole_file.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static FILE *open_file(const char *path, const char *mode)
{
    FILE *file = fopen(path, mode);

    if (file == NULL)
        fail_msg("%s: %s", path, strerror(errno));
    return file;
}

void write_file(const char *path, const void *data, size_t bytes)
{
    FILE *file = open_file(path, "we");
    const size_t written = fwrite(data, 1, bytes, file);

    if (fclose(file) != 0 || written != bytes)
        fail_msg("%s: %zu of %zu bytes could be written: %s", path, written, bytes, strerror(errno));
}

char *read_file(const char *path, size_t *bytes)
{
    FILE *file = open_file(path, "re");
    struct stat info;
    size_t size;
    char *data;

    assert_int_equal(fstat(fileno(file), &info), 0);
    size = (size_t)info.st_size;
    data = calloc(1, size + 1);
    assert_non_null(data);
    if (fread(data, 1, size, file) != size)
        fail_msg("%s: fewer than its %zu bytes could be read", path, size);
    fclose(file);
    if (bytes != NULL)
        *bytes = size;
    return data;
}
