/* run/checkpoint_adapter.h - the adapter in a checkpoint of a run that trained one. */
#ifndef RUN_CHECKPOINT_ADAPTER_H
#define RUN_CHECKPOINT_ADAPTER_H

#include "model/hf/hf_adapter.h"
#include "offload/checkpoint/checkpoint.h"

/** The adapter's settings in the configuration that a checkpoint keeps; NULL: its run trained none.  E_CORRUPT, E_NOMEM. */
strata_status st_checkpoint_adapter_spec(struct st_adapter_spec **out, const struct st_checkpoint *ck);

struct st_checkpoint_adapter;
/** @param ck  borrowed until close.  E_CORRUPT, E_NOMEM, E_IO. */
strata_status st_checkpoint_adapter_open(struct st_checkpoint_adapter **out, const struct st_checkpoint *ck);
void st_checkpoint_adapter_close(struct st_checkpoint_adapter *a); /* NULL is fine */
/** Values by the tensors' names, each tile of them compared with its checksum.  E_CORRUPT: a tensor is not there. */
struct st_adapter_values st_checkpoint_adapter_values(struct st_checkpoint_adapter *a);

#endif
