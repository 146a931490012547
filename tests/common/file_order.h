/* tests/common/file_order.h - in which order files reach the disk and their names.
 *
 * A program that links this calls fsync, renameat, renameat2 and linkat of its own: they note the call and make it. */
#ifndef TESTS_COMMON_FILE_ORDER_H
#define TESTS_COMMON_FILE_ORDER_H

/** Forgets the calls so far. */
void file_order_begin(void);
/** The calls that succeeded since, as "sync a, name a, sync .": a new file goes by the name that it is to have. */
const char *file_order_text(void);

#endif
