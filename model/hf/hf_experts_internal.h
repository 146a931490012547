/* model/hf/hf_experts_internal.h - stacked experts in files: one tensor has the gates and ups of all experts of a layer, one all
 * downs, two more all biases, as transformers 5 has them in memory; else each expert's are tensors of their own.  Private to
 * model/hf/. */
#ifndef MODEL_HF_HF_EXPERTS_INTERNAL_H
#define MODEL_HF_HF_EXPERTS_INTERNAL_H

#include "model/hf/hf_names_internal.h"
#include "model/hf/safetensors_internal.h"
#include "model/layout.h"

/* Beside the configs of a checkpoint, which has no such files: its model's experts are stacked there. */
#define ST_HF_STACKED_NAME "experts.stacked"

/* Of tensors in mxfp4, which are not read. */
#define ST_HF_MXFP4_REMEDY                                                                                                       \
    "in transformers, from_pretrained(..., quantization_config=Mxfp4Config(dequantize=True)) and save_pretrained() make files "  \
    "in "                                                                                                                        \
    "bf16 of it (docs/models.md)"

enum st_hf_stack_kind {
    ST_HF_STACK_GATE_UP,
    ST_HF_STACK_DOWN,
    ST_HF_STACK_GATE_UP_BIAS,
    ST_HF_STACK_DOWN_BIAS,
    ST_HF_STACK_KINDS
};
struct st_hf_stack {
    uint32_t block;
    enum st_hf_stack_kind kind;
};

/** Whether a file's name is that of a stack. */
bool st_hf_stack_find(struct st_hf_stack *out, const struct st_model_config *config, const char *name);
void st_hf_stack_name(char out[ST_HF_NAME_BYTES], const struct st_model_config *config, struct st_hf_stack stack);
/** [experts, 2 ffn, hidden] and [experts, hidden, ffn], of fused experts [experts, hidden, 2 ffn] and [experts, ffn, hidden];
 *  [experts, 2 ffn] and [experts, hidden].  Returns the rank; 0: the model has no such stacks. */
uint32_t st_hf_stack_shape(uint64_t shape[3], const struct st_model_config *config, enum st_hf_stack_kind kind);
/** Elements of a stack. */
uint64_t st_hf_stack_elems(const struct st_model_config *config, enum st_hf_stack_kind kind);
/** Elements from the start of its stack to an expert's tensor; false: the tensor is no expert's, or in the other stack. */
bool st_hf_stack_place(uint64_t *at, const struct st_model_config *config, enum st_hf_stack_kind kind, const struct st_tensor *t);
/** The name that a router has beside stacks, if it is another one: name is changed to that of the model's tensor, or from it. */
void st_hf_stack_router(char name[ST_HF_NAME_BYTES], const struct st_model_config *config, bool to_file);
/** Find out whether a directory's experts are stacked, by the names of its tensors, unless the family says so: config->stacked.
 */
strata_status st_hf_stack_detect(struct st_model_config *config, const char *dir);

#endif
