/* tests/common/lost_memory.h - what the code that is linked into a test program takes from malloc and does not free. */
#ifndef TESTS_COMMON_LOST_MEMORY_H
#define TESTS_COMMON_LOST_MEMORY_H

#include <stdint.h>

/** Where memory_lost() begins: blocks that are taken from now on. */
uint64_t memory_mark(void);
/** How many blocks taken since the mark are held; says of the first few where they were taken, behind `name`. */
uint32_t memory_lost(const char *name, uint64_t mark);

#endif
