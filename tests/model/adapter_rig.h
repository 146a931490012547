/* tests/model/adapter_rig.h - the golden adapters (tests/golden/adapters, by tools/make_golden_merge.py) and the models that they
 * are for, as tests of their files open, copy and merge them. */
#ifndef TESTS_MODEL_ADAPTER_RIG_H
#define TESTS_MODEL_ADAPTER_RIG_H

#include "model/adapter/adapter.h"
#include "model/hf/hf_adapter.h"
#include "model/hf/safetensors_internal.h"
#include "model/model.h"

#define FAMILIES "tests/golden/families"
#define ADAPTERS "tests/golden/adapters"

/* Those that have a golden adapter, of whose models some have experts. */
#define FAMILY_COUNT 20
extern const char *const families[FAMILY_COUNT];
/* The directory of the model that a golden adapter is for.  @return path */
const char *model_path(char path[256], const char *name);

/* "dir/name/file", either of the last two left out where it is empty.  @return path */
const char *join_path(char path[256], const char *dir, const char *name, const char *file);
/* In fp32. */
struct st_model *open_model(const char *dir);
strata_status merge_adapter(struct st_model *m, struct st_hf_adapter *a, const char *dir, const char *out);

struct opened {
    char *bytes;
    struct st_safetensors header;
};
void open_tensors(struct opened *o, const char *path);
void close_tensors(struct opened *o);
/* NULL: there is none of this name. */
const struct st_safetensor *find_tensor(const struct opened *o, const char *name);

/* Tensors `first` to end - 1 as a file of their own. */
void put_shard(const struct opened *all, uint32_t first, uint32_t end, const char *path);

/* A copy of an adapter in the scratch directory, whose settings (NULL: its own) and first tensor's name (`old` NULL: its own) may
 * be others.  @return its path */
const char *copy_adapter(const char *name, const char *config, const char *old, const char *new);

#endif
