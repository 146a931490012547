/* core/system/kernel_text.c - see kernel_text.h. */
#include "core/system/kernel_text.h"
#include "core/base/fault.h"
#include "core/system/file.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int st_kernel_text_open(const char *dir, const char *name)
{
    char path[PATH_MAX];

    if (snprintf(path, sizeof(path), "%s/%s", dir, name) >= (int)sizeof(path))
        return -1;
    return st_kernel_file_open(path);
}

bool st_kernel_text_read(int fd, char text[ST_KERNEL_TEXT_MAX])
{
    size_t length = 0;
    ssize_t got = -1;

    text[0] = '\0';
    if (fd < 0)
        return false;
    while (length < ST_KERNEL_TEXT_MAX - 1 && !st_fault_refuses("kernel.read") &&
           (got = pread(fd, text + length, ST_KERNEL_TEXT_MAX - 1 - length, (off_t)length)) > 0)
        length += (size_t)got;
    text[length] = '\0';
    return got >= 0 && length > 0;
}

uint64_t st_kernel_text_number(const char *text, const char *row, const char *key)
{
    const size_t length = strlen(row);
    char *end;

    for (const char *line = text; line != NULL; line = strchr(line, '\n') != NULL ? strchr(line, '\n') + 1 : NULL) {
        const char *at, *stop = line + strcspn(line, "\n");
        uint64_t value;

        if (strncmp(line, row, length) != 0)
            continue;
        at = strstr(line + length, key);
        if (at == NULL || at >= stop)
            return ST_KERNEL_UNKNOWN;
        at += strlen(key);
        value = strtoull(at, &end, 10);
        return end == at || end > stop ? ST_KERNEL_UNKNOWN : value;
    }
    return ST_KERNEL_UNKNOWN;
}
