/* run/adapter_base.h - the weights that an adapter in a checkpoint was trained beside: found by name, and compared. */
#ifndef RUN_ADAPTER_BASE_H
#define RUN_ADAPTER_BASE_H

#include "core/system/path.h"
#include "model/model.h"
#include "offload/checkpoint/checkpoint.h"

/** Whether a directory holds the weights that a checkpoint's adapter was trained beside: the beginning of each of its frozen
 *  tensors is compared.
 *  @param model  of the directory, without adapters, in fp32
 *  @return E_INPUT: one differs, and is named; E_CORRUPT, E_NOMEM, E_IO */
strata_status st_adapter_base_check(const struct st_checkpoint *ck, const struct st_model *model, const char *dir);

/* The weights that an adapter was trained beside. */
struct st_adapter_base {
    char name[ST_PATH_MAX]; /* a directory or a preset's name, or a checkpoint */
    bool is_checkpoint;     /* whose weights are in no directory yet */
};
/** Find them from what a run began with: a checkpoint of an adapter holds the very weights that its own run began with, any other
 *  one its own weights.  A checkpoint that is damaged or gone is not followed.
 *  @param model  a preset's name, or a directory, which may be that of a checkpoint's small files
 *  @return E_INVAL: a name is too long; E_NOMEM, E_IO */
strata_status st_adapter_base_find(struct st_adapter_base *out, const char *model);

#endif
