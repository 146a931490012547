/* tests/common/scratch.h - a directory of the test program's own, made before its tests, or in each, and gone after. */
#ifndef TESTS_COMMON_SCRATCH_H
#define TESTS_COMMON_SCRATCH_H

#include <stdint.h>

extern char scratch_dir[32];

/** Setup and teardown, of a group or of each test; the latter removes whatever the directory holds. */
int scratch_create(void **state);
int scratch_remove(void **state);
/** A teardown that fails where the directory holds anything. */
int scratch_remove_empty(void **state);
/** Of each test, which may leave no descriptor open. */
int scratch_begin(void **state);
int scratch_end(void **state);
/** The same within a test, which fails where they do. */
void scratch_open(void);
void scratch_close(void);
/** Path of `name` in the directory, this thread's for its next seven calls. */
const char *scratch_path(const char *name);
/** Writes a file of the directory, making the folders in between. */
void scratch_put(const char *name, const char *text);
/** Fails where this is not all that the file holds. */
void scratch_holds(const char *name, const char *text);
/** Entries of a directory but for ".", ".." and `except` (NULL: no other). */
uint32_t scratch_entries(const char *dir, const char *except);
/** Entries whose name has `part` in it; 0 where there is no such directory. */
uint32_t scratch_entries_with(const char *dir, const char *part);

#endif
