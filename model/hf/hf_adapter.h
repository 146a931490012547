/* model/hf/hf_adapter.h - files of adapters: reading PEFT's, writing what PEFT reads, and merging them into a model's own files.
 *
 * A directory of an adapter has adapter_config.json and adapter_model.safetensors, which holds what is trained: A and B of each
 * adapted layer, "base_model.model.<module>.lora_A.weight" [r, in] and "... .lora_B.weight" [out, r], and the tensors of
 * modules_to_save, "base_model.model.<tensor>".  Adapters of a stack of experts are one A [experts * r, in], expert by expert,
 * and one B [out, r * experts], in whose rows the experts' first columns come first.  Their names are those of the module; that
 * of gates and ups, if downs have adapters, too, is "<module>.base_layer". */
#ifndef MODEL_HF_HF_ADAPTER_H
#define MODEL_HF_HF_ADAPTER_H

#include "model/adapter/adapter.h"
#include "model/model.h"

/* A tensor of an adapter. */
struct st_hf_adapted {
    char name[128]; /* in the model and, if it is no expert's of a stack, in the file */
    uint32_t rank;  /* 1 or 2 */
    uint64_t shape[2];
    const struct st_tensor *tensor; /* of the model: it is adapted, or replaced */
    bool b, saved;                  /* saved: it replaces the model's; else b: B, which follows its A, and A */
    float scale;
    uint32_t experts;               /* that share one tensor of the file; 0: it is one of its own */
    bool wrapped;                   /* base_layer is in that's name */
    const struct st_family *router; /* whose router it is, and which has another name in the file: that of transformers 5 */
};

/** The tensor of the file: its name, and its shape. */
void st_hf_adapted_in_file(char name[128], uint64_t shape[2], const struct st_hf_adapted *t);

/** The tensors of the adapters that `spec` gives a model, in the model's order.
 *  @param m  with or without the adapters' own tensors; borrowed by the list
 *  @param out  [*count], freed by the caller
 *  E_CONFIG: the settings do not fit the model; E_NOMEM. */
strata_status st_hf_adapted_list(struct st_hf_adapted **out, uint32_t *count, const struct st_model *m,
                                 const struct st_adapter_spec *spec);

uint64_t st_hf_adapted_elems(const struct st_hf_adapted *t);
/** E_NUMERICS, naming the tensor, if a value is NaN or infinite. */
strata_status st_hf_adapted_check_finite(const struct st_hf_adapted *t, const float *values, uint64_t count);

/* Where values of an adapter's tensors come from. */
struct st_adapter_values {
    void *ctx;
    /* [first, first + count) of a tensor, as fp32 */
    strata_status (*read)(void *ctx, const struct st_hf_adapted *tensor, uint64_t first, uint64_t count, float *out);
};

struct st_hf_adapter;
/** Open a directory: its settings, and its file, which must hold the tensors that they mean and no other, as F32, BF16 or F16.
 *  Names may have the adapter's own within them, as PEFT's in memory.
 *  @param m  outlives it
 *  E_CONFIG, E_INPUT: names file and tensor; E_NOMEM, E_IO. */
strata_status st_hf_adapter_open(struct st_hf_adapter **out, const struct st_model *m, const char *dir);
void st_hf_adapter_close(struct st_hf_adapter *a);                                                 /* NULL is fine */
const struct st_adapter_spec *st_hf_adapter_spec(const struct st_hf_adapter *a);                   /* borrowed */
const struct st_hf_adapted *st_hf_adapter_tensors(const struct st_hf_adapter *a, uint32_t *count); /* borrowed */
/** How many tensors of the file adapt what a model of more than text has beside its text model: they are not used. */
uint32_t st_hf_adapter_beside(const struct st_hf_adapter *a);
struct st_adapter_values st_hf_adapter_values(struct st_hf_adapter *a);
/** Say so if the name of the model that the adapter was trained on (base_model_name_or_path) is clearly not that of this one: its
 *  weights may differ, which nothing in an adapter's files tells.
 *  @param model  a directory, or a preset's name */
void st_hf_adapter_note_base(const struct st_hf_adapter *a, const char *model);
/** E_INPUT: the file was written to since it was opened. */
strata_status st_hf_adapter_check_unchanged(const struct st_hf_adapter *a);

/* Initial values of a model whose adapters come from a directory: the adapters' tensors, and the weights that they replace. */
struct st_hf_adapted_source {
    const struct st_model *m;
    struct st_weight_source base; /* of all others */
    struct st_hf_adapter *files;
    uint32_t last; /* of their tensors, the one that was read */
};
struct st_weight_source st_hf_adapted_source(struct st_hf_adapted_source *s);

/* A directory that is written. */
struct st_hf_adapter_output {
    const struct st_model *model;
    const struct st_adapter_spec *spec; /* its object's keys are written, and what PEFT needs beside them */
    const char *base;                   /* base_model_name_or_path: what the adapter was trained beside */
    const char *dir;
    bool overwrite;
};
struct st_hf_adapter_writer;
/** Whether an adapter can be written to `dir`: E_INPUT if it holds one and `overwrite` is false.  Creates nothing. */
strata_status st_hf_adapter_output_check(const char *dir, bool overwrite);
/** Create both files under new names, and allocate the space of the weights, which are fp32. */
strata_status st_hf_adapter_writer_open(struct st_hf_adapter_writer **out, const struct st_hf_adapter_output *output);
const struct st_hf_adapted *st_hf_adapter_writer_tensors(const struct st_hf_adapter_writer *w, uint32_t *count); /* borrowed */
/** Write [first, first + count) of a tensor, by its number in the list, in any order. */
strata_status st_hf_adapter_writer_put(struct st_hf_adapter_writer *w, uint32_t tensor, uint64_t first, uint64_t count,
                                       const float *values);
/** Write a range of a page that lies in one group, in the group's format; frozen values are left out.  The model has the
 *  adapters' own tensors.  E_NUMERICS: a value is NaN or infinite. */
strata_status st_hf_adapter_writer_put_page(struct st_hf_adapter_writer *w, uint32_t page, uint64_t first, uint64_t count,
                                            const void *weight);
/** fsync, rename; frees w. */
strata_status st_hf_adapter_writer_commit(struct st_hf_adapter_writer *w);
void st_hf_adapter_writer_abort(struct st_hf_adapter_writer *w); /* removes what was created; frees w; NULL is fine */

/** Called with the bytes written so far; false: end with E_CANCELLED. */
typedef bool st_hf_merge_fn(void *ctx, uint64_t done, uint64_t total);

struct st_hf_merge {
    const struct st_model *model;
    const char *dir;                     /* of its weights as they are published */
    const struct st_hf_adapted *tensors; /* [count], as st_hf_adapted_list() made them */
    uint32_t count;
    struct st_adapter_values values;
    const struct st_hf_instead *instead; /* NULL: nothing */
    const char *out;
    bool overwrite;
    st_hf_merge_fn *progress; /* may be NULL */
    void *ctx;
};

/** Write the model of `dir` with adapters added to its weights: round_even(fp32(W) + scale B A), in the dtype that each tensor is
 *  stored in, and modules_to_save in place of the tensors that they replace.  All other tensors, and files but for `instead`,
 *  are copied byte for byte; there are as many shards as before.
 *  E_INPUT: an output that exists; E_NUMERICS: a merged weight is not finite, the tensor is named; E_NOFIT: no room; E_NOMEM,
 * E_NOSPC, E_IO, E_CANCELLED; after a failure nothing stays. */
strata_status st_hf_merge(const struct st_hf_merge *merge);

#endif
