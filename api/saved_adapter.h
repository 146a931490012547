/* api/saved_adapter.h - the adapter in a checkpoint of a run that trained one. */
#ifndef API_SAVED_ADAPTER_H
#define API_SAVED_ADAPTER_H

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

#endif
