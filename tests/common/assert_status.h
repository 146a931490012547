/* tests/common/assert_status.h - what a call returned, and what was said of it. */
#ifndef TESTS_COMMON_ASSERT_STATUS_H
#define TESTS_COMMON_ASSERT_STATUS_H

#include "strata/status.h"

/** Fails with the last error's sentence. */
#define assert_ok(st) assert_ok_at((st), __FILE__, __LINE__)
void assert_ok_at(strata_status st, const char *file, int line);

/** The status, and a last error that contains `part`. */
#define assert_refused(st, want, part) assert_refused_at((st), (want), (part), __FILE__, __LINE__)
void assert_refused_at(strata_status st, strata_status want, const char *part, const char *file, int line);

#endif
