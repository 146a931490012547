/* core/system/kernel_text.h - the small text files of /proc and the control groups, read again and again by one descriptor. */
#ifndef CORE_SYSTEM_KERNEL_TEXT_H
#define CORE_SYSTEM_KERNEL_TEXT_H

#include <stdbool.h>
#include <stdint.h>

#define ST_KERNEL_TEXT_MAX 16384u /* /proc/vmstat has about 4 KiB */
#define ST_KERNEL_UNKNOWN  UINT64_MAX

/** Open DIR/NAME; -1 if it is not there (core/system/file.h, st_kernel_file_open()). */
int st_kernel_text_open(const char *dir, const char *name);
/** Read the file from its start, cut at the buffer's end; false, and "", if there is nothing to read.  fd -1: nothing. */
bool st_kernel_text_read(int fd, char text[ST_KERNEL_TEXT_MAX]);
/** The number that follows `key` in the line that begins with `row`; ST_KERNEL_UNKNOWN: there is none. */
uint64_t st_kernel_text_number(const char *text, const char *row, const char *key);

#endif
