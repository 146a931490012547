/* tests/model/model_fixture.h - small models for the model tests. */
#ifndef MODEL_FIXTURE_H
#define MODEL_FIXTURE_H

#include <stdlib.h>

#include "core/base/error.h"
#include "model/model.h"
#include "tests/common/assert_status.h"
#include "tests/common/scratch.h"
#include "tests/common/test.h"
#include <string.h>

#define GOLDEN_DIR "tests/golden/gpt2_tiny"

/** A model small enough for every test. */
struct st_model_config tiny_config(void);
struct st_model *tiny_model(strata_dtype dtype);
/** The same of the Llama family: 4 heads of 8, 2 for keys and values, tied. */
struct st_model_config tiny_llama_config(void);
struct st_model *tiny_model_of(const struct st_model_config *config, strata_dtype dtype);

#endif
