/* run/checkpoint_adapter.h - the adapter in a checkpoint of a run that trained one. */
#ifndef RUN_CHECKPOINT_ADAPTER_H
#define RUN_CHECKPOINT_ADAPTER_H

#include "model/hf/hf_adapter.h"
#include "offload/checkpoint/checkpoint.h"

/** The adapter's settings in the configuration that a checkpoint keeps; NULL: its run trained none.  E_CORRUPT, E_NOMEM. */
strata_status st_saved_adapter_spec(struct st_adapter_spec **out, const struct st_checkpoint *ck);

struct st_saved_adapter;
/** @param ck  borrowed until close.  E_CORRUPT, E_NOMEM, E_IO. */
strata_status st_saved_adapter_open(struct st_saved_adapter **out, const struct st_checkpoint *ck);
void st_saved_adapter_close(struct st_saved_adapter *a); /* NULL is fine */
/** Values by the tensors' names, each tile of them compared with its checksum.  E_CORRUPT: a tensor is not there. */
struct st_adapter_values st_saved_adapter_values(struct st_saved_adapter *a);

/** Whether matrices of the run are stored in NF4. */
bool st_saved_has_nf4(const struct st_checkpoint *ck);
/** Whether a directory holds the weights that a checkpoint's adapter was trained beside: the beginning of each of its frozen
 *  tensors is compared.
 *  @param model  of the directory, without adapters, in fp32
 *  @return E_INPUT: one differs, and is named; E_CORRUPT, E_NOMEM, E_IO */
strata_status st_saved_base_check(const struct st_checkpoint *ck, const struct st_model *model, const char *dir);

/* The weights that an adapter was trained beside. */
struct st_saved_base {
    char name[ST_PATH_MAX]; /* a directory or a preset's name, or a checkpoint */
    bool is_checkpoint;     /* whose weights are in no directory yet */
};
/** Find them from what a run began with: a checkpoint of an adapter holds the very weights that its own run began with, any other
 *  one weights of its own.  A checkpoint that is damaged or gone is not followed.
 *  @param model  a preset's name, or a directory, which may be that of a checkpoint's small files
 *  @return E_INVAL: a name is too long; E_NOMEM, E_IO */
strata_status st_saved_base_find(struct st_saved_base *out, const char *model);
/** What a manifest says that its run began with: a directory, or a preset's name. */
const char *st_saved_began_with(const struct st_manifest *m);

#endif
