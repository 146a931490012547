/* tests/engine/chosen.h - which experts the rows of a generation's call have chosen, by the ids that the router leaves. */
#ifndef TESTS_ENGINE_CHOSEN_H
#define TESTS_ENGINE_CHOSEN_H

#include "model/model.h"

/** Whether a page is a slice of experts. */
bool chosen_is_slice(const struct st_model *m, uint32_t page);
/** Whether one of `rows` rows has chosen an expert of the layer's slice. @param internals  of the layer, after the call */
bool chosen_has(const struct st_model *m, uint32_t slice, const void *internals, uint32_t rows);

#endif
