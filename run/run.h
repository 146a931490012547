/* run/run.h - a training run: what saving, resuming and its ranks need to know of it. */
#ifndef RUN_RUN_H
#define RUN_RUN_H

#include "model/layers.h"
#include "model/model.h"
#include "offload/config/config.h"
#include "offload/engine/engine.h"

struct st_checkpointer;
struct st_resume_volumes;

/* All but what it owns is borrowed, and outlives it. */
struct st_run {
    const struct st_config *config;
    const struct st_model *model;        /* NULL: */
    const struct st_layers *layers;      /* of others; they have no small files */
    const char *directory;               /* that the model came from; NULL: a preset */
    const struct st_hf_instead *instead; /* what checkpoints have beside the weights in place of the directory's */
    const struct st_program *program;    /* this and what follows: NULL before there is an engine */
    struct st_engine *engine;
    struct st_checkpointer *checkpointer; /* owned; NULL: the configuration names no directory */
    struct st_resume_volumes *resumed;    /* owned; the checkpoint that the engine adopted; NULL: none */
};

static inline const struct st_workload *st_run_workload(const struct st_run *run)
{
    return run->layers != NULL ? &run->layers->workload : st_model_workload(run->model);
}
static inline uint32_t st_run_tensor_count(const struct st_run *run)
{
    return run->layers != NULL ? run->layers->tensor_count : st_model_tensor_count(run->model);
}
static inline const struct st_tensor *st_run_tensor(const struct st_run *run, uint32_t i)
{
    return run->layers != NULL ? &run->layers->tensors[i] : st_model_tensor(run->model, i);
}

/* A token file, by digests: of its header, of samples, and of where documents begin and which tokens are trained. */
struct st_run_file {
    const char *path; /* borrowed; as it was named */
    uint64_t bytes;
    char header[33], windows[33];
    char marks[33]; /* "": nothing says so */
};

/* What a run trains on. */
struct st_run_data {
    struct st_run_file *files; /* [file_count] */
    uint32_t file_count;       /* 0: nothing is said of the data */
    uint32_t seq;              /* tokens of a sequence */
    uint64_t sequences;        /* of all files */
    uint64_t seed;             /* of their order, */
    uint32_t order;            /* and enum strata_data_order */
    char date[11];             /* what the chat template took for today, YYYY-MM-DD; "": it did not ask, or nobody knows */
};

#endif
