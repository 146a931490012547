/* tests/model/layout_gaps.h - between the parts of a block's and the head's buffers lie bytes that nothing may write: the test's
 * copy of model/layout.c leaves them. */
#ifndef LAYOUT_GAPS_H
#define LAYOUT_GAPS_H

#include "model/layout.h"
#include "offload/compute.h"

/** Before a call: fills the gaps of its internals and workspace. */
void layout_gaps_fill(const struct st_model *m, const struct st_call *call);
/** Fails if the call wrote into one. */
void layout_gaps_check(const struct st_model *m, const struct st_call *call);

#endif
