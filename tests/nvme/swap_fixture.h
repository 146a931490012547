/* tests/nvme/swap_fixture.h - transfers that are waited for, and mounts that nobody else sees. */
#ifndef TESTS_NVME_SWAP_FIXTURE_H
#define TESTS_NVME_SWAP_FIXTURE_H

#include "nvme/swap/swap.h"

#include <stdbool.h>

/** Moves `bytes` at the start of the space and waits: what submitting said, or how the transfer ended. */
strata_status swap_move(struct st_swap *swap, enum st_io_op op, void *buf, uint64_t bytes);
/** Gives this process mounts of its own: false, with a message, where it may not have them. */
bool swap_private_mounts(void);

#endif
