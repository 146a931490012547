/* rig.h - one training run of a small GPT-2, Llama or model with experts through plan, program and engine, described by the axes
 * of the exactness matrix. */
#ifndef TESTS_ENGINE_RIG_H
#define TESTS_ENGINE_RIG_H

#include "model/model.h"
#include "offload/config/config_options.h"
#include "offload/device/paced/device_paced.h"
#include "offload/plan/plan.h"

/* SMALLEST: of a run whose weights and state may leave the device; LEAST: of this run. */
enum rig_budget { RIG_ALL, RIG_SMALLEST, RIG_MIDWAY, RIG_LEAST };
/* Of two of the three blocks, beside a norm that is trained; of all, with dropout, beside weights in nf4. */
enum rig_adapters { RIG_NO_ADAPTERS, RIG_LORA, RIG_LORA_NF4 };
enum rig_clip { RIG_CLIP_NEVER, RIG_CLIP_SOMETIMES, RIG_CLIP_ALWAYS };

#define RIG_STEPS_MAX  8u
#define RIG_TOKENS_MAX 256u /* of a step of at most 8 micro-batches */
#define RIG_TEXT       320

struct rig_cell {
    bool llama;           /* grouped heads, rotary, SwiGLU, untied head; else GPT-2 */
    bool sparse;          /* of blocks but the first six experts, of which a token goes through two */
    bool fused;           /* sparse: as in gpt_oss, of all blocks: gate and up in one matrix, biases, sinks */
    float aux_loss_coef;  /* sparse: of the experts' auxiliary loss; 0: there is none */
    uint64_t slice_elems; /* sparse: the most of a page of experts, but one is always there; 0: all of them */
    enum rig_budget device, host;
    uint64_t device_more; /* beside RIG_LEAST */
    strata_tier optimizer, param;
    enum st_update_policy update;
    uint32_t early; /* of ST_EARLY_PARTS of the pages; 0: none */
    uint32_t drops; /* bit i: what was updated early before step i is made again, whatever the norm says */
    uint32_t lates; /* bit i: step i makes no update early */
    bool ruled;     /* which steps do is the engine's choice */
    uint32_t grad_accum;
    uint32_t leaves; /* 0: 1 */
    enum st_accumulation accumulation;
    enum st_wire wire;
    enum st_activation_mode activations;
    strata_tier act_tier; /* of checkpoints; COUNT: auto */
    const char *io_method, *isa;
    uint32_t threads;
    enum rig_clip clip;
    strata_dtype dtype;
    enum strata_optimizer rule; /* 0: AdamW */
    double lr;                  /* 0: 1e-2 */
    enum st_moment_format moments;
    uint32_t streamed;        /* halves of the blocks with state off the device that are updated there: 0, 1, 2 */
    uint64_t cache;           /* ST_AUTO_BYTES or 0 */
    uint32_t ffn;             /* 0: 512 */
    uint64_t chunk_elems;     /* 0: a tile */
    uint64_t part_bytes;      /* of what a save brings down at a time; 0: the default */
    uint32_t sets;            /* of a run that saves; 0: it saves nothing */
    uint32_t flush_after;     /* flush (and evaluate) after this step; 0: never */
    uint32_t fake_latency_us; /* 0: 200 */
    const char *freeze;       /* a pattern of tensor names that are not trained; NULL: none */
    enum rig_adapters adapters;
    uint32_t dir_count;          /* 0: the directory of a run itself; else its subdirectories drive-0, drive-1, ... */
    const double *dir_rates;     /* [dir_count]; NULL: equal */
    uint32_t experts;            /* paced: slices of experts, made up, of each block but the first; 0: none */
    bool paced;                  /* on the paced device, with its gradients, at its own pace of some microseconds an op */
    bool timed;                  /* each call of the device passes the site device.call */
    bool cuda;                   /* on the cuda device */
    uint64_t deadline_ns;        /* cuda; 0: the device's own */
    uint32_t ranks, rank;        /* of a world; 0: one rank */
    uint32_t stage;              /* ZeRO's */
    struct st_comm *comm;        /* of a rank */
    struct st_comm *device_comm; /* by which its device exchanges; NULL: comm */
    /* rig_run_ranks() opens device_comm by it, on the rank's thread. */
    strata_status (*open_device_comm)(struct st_comm **out, struct st_comm *host);
};

struct rig_result {
    bool planned; /* false: refused with E_NOFIT */
    double losses[RIG_STEPS_MAX], norms[RIG_STEPS_MAX];
    uint32_t skipped;                   /* updates left out: fp16 overflow */
    uint32_t early_pages, kept, redone; /* updated early; steps whose early updates were kept, or made again */
    uint32_t late;                      /* steps that made none early */
    uint64_t redone_bytes, wasted_bytes;
    uint32_t clipped;                                   /* steps whose norm was over the threshold */
    uint64_t requests;                                  /* of the steps: rig_train() asks for bit `rank` before it evaluates */
    uint64_t tokens, overflowed, steps_done, sequences; /* of all ranks; overflowed: weights */
    char weights[33], state[33];
    struct st_traffic planned_bytes, moved_bytes; /* over all cycles */
    uint64_t estimated_comm;                      /* of planned_bytes.comm: rows, which depend on the tokens */
    uint64_t needed[STRATA_TIER_COUNT];
    uint32_t sliced; /* pages that live on the device in slices */
};

/** Everything on a fake NVMe with as little memory as can be, gated updates, two threads. */
struct rig_cell rig_swapped(void);
/** The model of the rig: many table slices, several chunks a page. */
void rig_model_config(struct st_model_config *out, const struct rig_cell *cell);
void rig_config(struct st_config *out, const struct rig_cell *cell, const char *nvme_dir);
strata_status rig_model(struct st_model **out, const struct rig_cell *cell);
/** Plan with the cell's budgets: the smallest are found by asking the planner itself. */
strata_status rig_plan(struct st_plan **out, const struct st_model *model, const struct rig_cell *cell);

/* An engine and what it borrows. */
struct rig_engine {
    struct st_engine *engine;
    struct st_op_times *op_times; /* NULL: its calls are not timed */
    struct st_paced_model paced;
};
/** An engine with the cell's weights loaded.  After an error, too: rig_engine_stop(). */
strata_status rig_engine_start(struct rig_engine *out, struct st_model *model, const struct st_plan *plan,
                               const struct rig_cell *cell, const char *nvme_dir);
void rig_engine_stop(struct rig_engine *rig);
/** Tokens and targets of step number `step`: [RIG_TOKENS_MAX] or less of each. */
void rig_tokens(int32_t *tokens, int32_t *targets, const struct rig_cell *cell, uint32_t step);

/** Run `steps` steps on an existing plan (verified or not) and fill the result. */
strata_status rig_train(struct rig_result *out, struct st_model *model, const struct st_plan *plan, const struct rig_cell *cell,
                        uint32_t steps, const char *nvme_dir);
/** Run `steps` steps, then hand the weights to `sink`. */
strata_status rig_export(struct st_model *model, const struct st_plan *plan, const struct rig_cell *cell, uint32_t steps,
                         const char *nvme_dir, st_engine_sink_fn *sink, void *ctx);
/** All of it.  A refusal (E_NOFIT) is STRATA_OK with planned false. */
strata_status rig_run(struct rig_result *out, const struct rig_cell *cell, uint32_t steps, const char *nvme_dir);
/** The same by cell->ranks threads, each a rank with a directory of its own: out [ranks]. */
strata_status rig_run_ranks(struct rig_result *out, const struct rig_cell *cell, uint32_t steps, const char *nvme_dir);
/** One line that names a cell. */
const char *rig_cell_text(char buf[RIG_TEXT], const struct rig_cell *cell);

#endif
