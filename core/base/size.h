/* core/base/size.h - sizes as people write them. "24G" and "24GiB" are 24 * 2^30, "24GB" is 24e9, a plain number is bytes.  Also
 * counts and times as people say them. */
#ifndef CORE_BASE_SIZE_H
#define CORE_BASE_SIZE_H

#include <stdint.h>

#define ST_AUTO_BYTES UINT64_MAX /* a size that is "auto" */

/** 0 and *out, or -1 on bad syntax, a negative value or overflow. */
int st_size_parse(const char *text, uint64_t *out);
/** "1.50 GiB", "612 KiB", "17 B" into buf[16+]; returns buf. */
const char *st_size_text(char buf[24], uint64_t bytes);

/** "14.8 billion", "124 million", "612 thousand", "17" into buf[16+]; returns buf. */
const char *st_count_text(char buf[24], uint64_t count);
/** "2213 s", "1.2 s", "812 ms", "37.5 us" into buf; below 10^20 seconds; returns buf. */
const char *st_seconds_text(char buf[24], double seconds);

#endif
