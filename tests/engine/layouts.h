/* layouts.h - whole runs of a small model by one and by several ranks, which are threads: the same bits for one number of leaves,
 * wherever state and weights lie, at every stage of ZeRO, in both orders of accumulation, and as many bytes moved as planned. */
#ifndef TESTS_ENGINE_LAYOUTS_H
#define TESTS_ENGINE_LAYOUTS_H

#include "rig.h"

/** A model that layouts_check() trains; more of the cell may be set, but for what a layout decides. */
struct rig_cell layouts_model(strata_dtype dtype, bool llama);
/** Trains it by one rank, then in every `step`th layout of several ranks from number `first` on, in the test's scratch_dir. */
void layouts_check(const struct rig_cell *model, uint32_t first, uint32_t step);
/** Trains it by one rank, then in every layout that has blocks in slices on the device. */
void layouts_check_slices(const struct rig_cell *model);
/** With sums that ranks exchange in bf16: for each number of ranks up to ranks_most the same bits in its first `most` layouts. */
void layouts_check_rounded(const struct rig_cell *model, uint32_t ranks_most, uint32_t most);
/** With steps whose weights overflow: all ranks say how many. */
void layouts_check_overflow(const struct rig_cell *model);
/** Trains a model of six micro-batches by 1, 3 and 6 ranks. */
void layouts_check_odd(const struct rig_cell *model);
/** Trains it, clipped, at every stage and tier in either order by 1, 2 and 4 ranks: how many runs. */
uint32_t layouts_product(const struct rig_cell *model);

#endif
