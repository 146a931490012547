/* tests/engine/agree.h - runs that must agree bit for bit, and a directory for their swap files. */
#ifndef TESTS_ENGINE_AGREE_H
#define TESTS_ENGINE_AGREE_H

#include "rig.h"

#include <stddef.h>

/** Run the cells, which differ in where things lie and in what order they happen: losses, weights and state have the same bits,
 * and what moved is what was planned.  Returns the first one's result; fails the test otherwise, with the cell. */
struct rig_result rig_agree(const struct rig_cell *cells, size_t count, uint32_t steps, const char *nvme_dir);

/** Group setup and teardown: a temporary directory, rig_dir(), that must be empty at the end. */
int rig_dir_make(void **state);
int rig_dir_remove(void **state);
const char *rig_dir(void);

#endif
