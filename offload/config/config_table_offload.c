/* config_table_offload.c - rows of the field table: ZeRO, the offload sections, aio, activations, strata.
 *
 * Rows of one section are adjacent, because the effective config is written in this order. */
#include "offload/config/config_table.h"

#define EXCHANGED  "strata plans what ranks exchange: sums in fp32, added in one order, of whole layers"
#define NO_BUCKETS "exchanges are planned page by page, so there are no buckets"
#define PLANNED    "the plan sizes and pins every buffer from the budgets"
#define AHEAD      "state is always read ahead and written behind"
#define ZENFLOW    "part of zenflow"
#define COUNT_MAX  9007199254740992.0 /* 2^53: whole numbers are exact up to here */

static const struct st_choice shape_choices[] = {
    {"none", ST_LR_SHAPE_NONE, ST_VERDICT_HONOURED},
    {"linear", ST_LR_SHAPE_LINEAR, ST_VERDICT_HONOURED},
    {"cosine", ST_LR_SHAPE_COSINE, ST_VERDICT_HONOURED},
    {"constant", ST_LR_SHAPE_CONSTANT, ST_VERDICT_HONOURED},
    {"constant_with_warmup", ST_LR_SHAPE_CONSTANT_WITH_WARMUP, ST_VERDICT_HONOURED},
    {"cosine_with_min_lr", ST_LR_SHAPE_COSINE_WITH_MIN_LR, ST_VERDICT_HONOURED},
    {NULL, 0, ST_VERDICT_HONOURED},
};

static const struct st_choice tier_choices[] = {
    {"none", STRATA_TIER_DEVICE, ST_VERDICT_HONOURED},
    {"cpu", STRATA_TIER_HOST, ST_VERDICT_HONOURED},
    {"nvme", STRATA_TIER_NVME, ST_VERDICT_HONOURED},
    {NULL, 0, ST_VERDICT_HONOURED},
};

static const struct st_choice select_choices[] = {
    {"auto", 0, ST_VERDICT_HONOURED},
    {"step", 1, ST_VERDICT_HONOURED},
    {"epoch", 2, ST_VERDICT_HONOURED},
    {NULL, 0, ST_VERDICT_HONOURED},
};

static const struct st_choice update_choices[] = {
    {"auto", ST_UPDATE_AUTO, ST_VERDICT_HONOURED},
    {"serial", ST_UPDATE_SERIAL, ST_VERDICT_HONOURED},
    {"gated", ST_UPDATE_GATED, ST_VERDICT_HONOURED},
    {"in_backward", ST_UPDATE_IN_BACKWARD, ST_VERDICT_HONOURED},
    {"speculative", ST_UPDATE_SPECULATIVE, ST_VERDICT_HONOURED},
    {NULL, 0, ST_VERDICT_HONOURED},
};

static const struct st_choice compute_choices[] = {
    {"torch", ST_COMPUTE_TORCH, ST_VERDICT_HONOURED},
    {"strata", ST_COMPUTE_STRATA, ST_VERDICT_HONOURED},
    {"auto", ST_COMPUTE_AUTO, ST_VERDICT_HONOURED},
    {NULL, 0, ST_VERDICT_HONOURED},
};

static const struct st_choice accumulation_choices[] = {
    {"auto", ST_ACCUMULATE_AUTO, ST_VERDICT_HONOURED},
    {"vertical", ST_ACCUMULATE_VERTICAL, ST_VERDICT_HONOURED},
    {"horizontal", ST_ACCUMULATE_HORIZONTAL, ST_VERDICT_HONOURED},
    {NULL, 0, ST_VERDICT_HONOURED},
};

static const struct st_choice wire_choices[] = {
    {"fp32", ST_WIRE_F32, ST_VERDICT_HONOURED},
    {"bf16", ST_WIRE_BF16, ST_VERDICT_HONOURED},
    {"fp16", 0, ST_VERDICT_REJECTED},
    {NULL, 0, ST_VERDICT_HONOURED},
};

static const struct st_choice moment_choices[] = {
    {"fp32", ST_MOMENTS_F32, ST_VERDICT_HONOURED},
    {"bf16", ST_MOMENTS_BF16, ST_VERDICT_HONOURED},
    {"8bit", ST_MOMENTS_8BIT, ST_VERDICT_HONOURED},
    {NULL, 0, ST_VERDICT_HONOURED},
};

static const struct st_choice quantization_choices[] = {
    {"none", ST_QUANTIZATION_NONE, ST_VERDICT_HONOURED},
    {"nf4", ST_QUANTIZATION_NF4, ST_VERDICT_HONOURED},
    {"nf4-double", ST_QUANTIZATION_NF4_DOUBLE, ST_VERDICT_HONOURED},
    {NULL, 0, ST_VERDICT_HONOURED},
};

static const struct st_choice activation_choices[] = {
    {"auto", ST_ACT_AUTO, ST_VERDICT_HONOURED},
    {"kept", ST_ACT_KEPT, ST_VERDICT_HONOURED},
    {"recomputed", ST_ACT_RECOMPUTED, ST_VERDICT_HONOURED},
    {NULL, 0, ST_VERDICT_HONOURED},
};

static const struct st_choice activation_tier_choices[] = {
    {"auto", STRATA_TIER_COUNT, ST_VERDICT_HONOURED},
    {"device", STRATA_TIER_DEVICE, ST_VERDICT_HONOURED},
    {"host", STRATA_TIER_HOST, ST_VERDICT_HONOURED},
    {"nvme", STRATA_TIER_NVME, ST_VERDICT_HONOURED},
    {NULL, 0, ST_VERDICT_HONOURED},
};

static const struct st_choice io_choices[] = {
    {"auto", 0, ST_VERDICT_HONOURED}, {"uring", 0, ST_VERDICT_HONOURED}, {"threads", 0, ST_VERDICT_HONOURED},
    {"fake", 0, ST_VERDICT_HONOURED}, {"aio", 0, ST_VERDICT_HONOURED},   {NULL, 0, ST_VERDICT_HONOURED},
};

static const struct st_choice isa_choices[] = {
    {"auto", 0, ST_VERDICT_HONOURED},   {"scalar", 0, ST_VERDICT_HONOURED}, {"avx2", 0, ST_VERDICT_HONOURED},
    {"avx512", 0, ST_VERDICT_HONOURED}, {"neon", 0, ST_VERDICT_HONOURED},   {NULL, 0, ST_VERDICT_HONOURED},
};

static const struct st_choice fetch_choices[] = {
    {"auto", ST_FETCH_AUTO, ST_VERDICT_HONOURED},
    {"bursts", ST_FETCH_BURSTS, ST_VERDICT_HONOURED},
    {"even", ST_FETCH_EVEN, ST_VERDICT_HONOURED},
    {NULL, 0, ST_VERDICT_HONOURED},
};

/* clang-format off */
#define QUANTISED(key_, reason_)                                                                                                 \
    {.path = "zero_optimization." key_, .type = ST_FIELD_BOOL, .fallback = "false", .plain = "false",                            \
     .changes = ST_CHANGES_RESULTS, .verdict = ST_VERDICT_REJECTED, .reason = (reason_), .help = "ZeRO++"}

static const struct st_field zero_rows[] = {
    ST_ROW_SECTION("zero_optimization", "a bare true means stage 1"),
    {.path = "zero_optimization.stage", .type = ST_FIELD_INT, ST_BOUND(U32, zero_stage), .min = 0, .max = 3, .fallback = "0",
     .help = "0 to 3 train alike on one rank; at every stage the offload sections decide where data is stored"},
    {.path = "zero_optimization.sub_group_size", .type = ST_FIELD_INT, ST_BOUND(U64, sub_group_size), .min = 16384,
     .max = COUNT_MAX, .near = 1, .fallback = "1e9", .help = "elements; an upper limit for strata.chunk_size, not its value"},
    ST_ROW_NOTICE("zero_optimization.contiguous_gradients", BOOL, "true", "gradients are always computed into one buffer per layer",
                  "copy gradients into one buffer"),
    ST_ROW_NOTICE("zero_optimization.reduce_scatter", BOOL, "true", EXCHANGED, "reduce-scatter instead of all-reduce"),
    ST_ROW_NOTICE("zero_optimization.reduce_bucket_size", INT, "5e8", NO_BUCKETS " (HF's \"auto\": hidden^2)", "elements"),
    ST_ROW_NOTICE("zero_optimization.use_multi_rank_bucket_allreduce", BOOL, "true", NO_BUCKETS, "combine reductions"),
    ST_ROW_NOTICE("zero_optimization.allgather_partitions", BOOL, "true", EXCHANGED, "all-gather instead of broadcasts"),
    ST_ROW_NOTICE("zero_optimization.allgather_bucket_size", INT, "5e8", NO_BUCKETS, "elements"),
    ST_ROW_NOTICE("zero_optimization.overlap_comm", BOOL, NULL,
                  "transfers and exchanges always overlap with compute", "reduce on a side stream"),
    ST_ROW_NOTICE("zero_optimization.load_from_fp32_weights", BOOL, "true", "masters are exact on every tier and in every file",
                  "restore masters from fp32"),
    ST_ROW_NOTICE("zero_optimization.elastic_checkpoint", BOOL, "false", "DeepSpeed's checkpoints are not written or read here",
                  "old resize path"),
    {.path = "zero_optimization.prefetch_bucket_size", .aliases = "stage3_prefetch_bucket_size", .type = ST_FIELD_INT,
     .fallback = "5e7", .verdict = ST_VERDICT_NOTICE,
     .reason = "the next block is read or gathered ahead, as many as the plan has slots for (HF's \"auto\": 0.9 hidden^2)",
     .help = "elements of look-ahead"},
    {.path = "zero_optimization.param_persistence_threshold", .aliases = "stage3_param_persistence_threshold",
     .type = ST_FIELD_INT, .fallback = "1e5", .verdict = ST_VERDICT_NOTICE,
     .reason = "without offload_param table, head and small pages stay whole, and blocks where they fit, else in slices (HF's "
               "\"auto\": 10 hidden)",
     .help = "elements"},
    {.path = "zero_optimization.model_persistence_threshold", .aliases = "stage3_model_persistence_threshold",
     .type = ST_FIELD_INT, .verdict = ST_VERDICT_NOTICE, .reason = "the plan decides what stays on the device",
     .help = "elements"},
    {.path = "zero_optimization.max_live_parameters", .aliases = "stage3_max_live_parameters", .type = ST_FIELD_INT,
     .fallback = "1e9", .verdict = ST_VERDICT_NOTICE, .reason = "strata.device_memory bounds the device", .help = "elements"},
    {.path = "zero_optimization.max_reuse_distance", .aliases = "stage3_max_reuse_distance", .type = ST_FIELD_INT,
     .fallback = "1e9", .verdict = ST_VERDICT_NOTICE, .reason = "the plan decides what stays on the device", .help = "elements"},
    {.path = "zero_optimization.gather_16bit_weights_on_model_save",
     .aliases = "stage3_gather_16bit_weights_on_model_save gather_fp16_weights_on_model_save "
                "stage3_gather_fp16_weights_on_model_save",
     .type = ST_FIELD_BOOL, .fallback = "false", .verdict = ST_VERDICT_NOTICE,
     .reason = "the result is always a whole Hugging Face directory", .help = "gather weights when saving"},
    {.path = "zero_optimization.module_granularity_threshold", .aliases = "stage3_module_granularity_threshold",
     .type = ST_FIELD_INT, .fallback = "0", .verdict = ST_VERDICT_NOTICE, .reason = "the unit of paging is the layer",
     .help = "treat fine-grained modules as one"},
    {.path = "zero_optimization.use_all_reduce_for_fetch_params", .aliases = "stage3_use_all_reduce_for_fetch_params",
     .type = ST_FIELD_BOOL, .fallback = "false", .verdict = ST_VERDICT_NOTICE, .reason = EXCHANGED, .help = "fetch by all-reduce"},
    {.path = "zero_optimization.allgather_sequential", .aliases = "stage3_allgather_sequential", .type = ST_FIELD_BOOL,
     .fallback = "false", .verdict = ST_VERDICT_NOTICE, .reason = EXCHANGED, .help = "gather one parameter at a time"},
    ST_ROW_NOTICE("zero_optimization.ignore_unused_parameters", BOOL, "true", "the built-in models use every parameter",
                  "parameters without a gradient are no error"),
    ST_ROW_OFF("zero_optimization.legacy_stage1", "removed from DeepSpeed too: set it to false", "old stage 1"),
    ST_ROW_NOTICE("zero_optimization.round_robin_gradients", BOOL, "false", EXCHANGED, "spread gradient copies across ranks"),
    ST_ROW_NOTICE("zero_optimization.zero_hpz_partition_size", INT, "1", EXCHANGED, "node-local second partition"),
    QUANTISED("zero_quantized_weights", "quantised weights would change results: set it to false"),
    QUANTISED("zero_quantized_nontrainable_weights", "quantised weights would change results: set it to false"),
    QUANTISED("zero_quantized_gradients", "quantised gradients would change results: set it to false"),
    ST_ROW_REMOVED("zero_optimization.zeropp_loco_param", OPEN, NULL, "removed in DeepSpeed 0.19; gradients are not quantised here: remove it",
                   "ZeRO++ error compensation"),
    ST_ROW_REMOVED("zero_optimization.mics_shard_size", INT, "-1", "removed in DeepSpeed 0.19; each slice has one owner: remove it",
                   "shard within a group of ranks"),
    ST_ROW_REMOVED("zero_optimization.mics_hierarchical_params_gather", BOOL, "false",
                   "removed in DeepSpeed 0.19; each slice has one owner: remove it", "two-level gather"),
    ST_ROW_NOTICE("zero_optimization.memory_efficient_linear", BOOL, "true", "backward never keeps a gathered weight here",
                  "do not save the gathered weight"),
    ST_ROW_NOTICE("zero_optimization.pipeline_loading_checkpoint", BOOL, "false", EXCHANGED, "load in a pipeline"),
    ST_ROW_NOTICE("zero_optimization.override_module_apply", BOOL, "true", "PyTorch modules are not used here", "module.apply"),
    ST_ROW_NOTICE("zero_optimization.log_trace_cache_warnings", BOOL, "false",
                  "the schedule is compiled once: there is no trace to invalidate", "warn about trace changes"),
    ST_ROW_NOTICE("zero_optimization.enable_sanity_checks", BOOL, "false", "every program is verified before it runs",
                  "extra checks"),
    ST_ROW_NOTICE("zero_optimization.compute_grad_norm", BOOL, "true", "the norm costs no pass of its own here", "keep the global norm"),
    ST_ROW_NOTICE("zero_optimization.parameter_alignment", BOOL, "false", "every tensor is aligned here", "pad between parameters"),
    ST_ROW_NOTICE("zero_optimization.save_muon_momentum_buffer_in_memory", BOOL, "false", "belongs to Muon", "Muon"),
    ST_ROW_SECTION("zero_optimization.leaf_module", "modules fetched whole"),
    ST_ROW_NOTICE("zero_optimization.leaf_module.classes", LIST, NULL, "the unit of paging is the layer", "module classes"),
    ST_ROW_NOTICE("zero_optimization.leaf_module.names", LIST, "[]", "the unit of paging is the layer", "module names"),
    ST_ROW_NOTICE("zero_optimization.leaf_module.name_suffixes", LIST, "[]", "the unit of paging is the layer", "module names"),
    {.path = "zero_optimization.cpu_offload", .type = ST_FIELD_BOOL,
     .help = "deprecated: true means offload_optimizer.device cpu, unless that is given"},
    {.path = "zero_optimization.cpu_offload_param", .type = ST_FIELD_BOOL,
     .help = "deprecated: true means offload_param.device cpu, unless that is given"},
    ST_ROW_NOTICE("zero_optimization.cpu_offload_use_pin_memory", BOOL, NULL, PLANNED, "deprecated"),
    ST_ROW_REJECT("zero_optimization.grad_hooks", BOOL, NULL, "only DeepSpeed's docs know it; DeepSpeed refuses it: remove it",
                  "a relic"),
};

static const struct st_field offload_rows[] = {
    ST_ROW_SECTION("zero_optimization.offload_param", "where weights are stored; also honoured below stage 3, with a notice"),
    {.path = "zero_optimization.offload_param.device", .type = ST_FIELD_CHOICE, ST_BOUND(CHOICE, param_tier),
     .choices = tier_choices, .fallback = "\"none\"", .help = "the slowest tier allowed for weights"},
    {.path = "zero_optimization.offload_param.nvme_path", .type = ST_FIELD_DIRS,
     .help = "directory, comma-separated directories, or a list of them; strata.nvme takes precedence"},
    ST_ROW_NOTICE("zero_optimization.offload_param.buffer_count", INT, "5", PLANNED, "swap-in buffers"),
    ST_ROW_NOTICE("zero_optimization.offload_param.buffer_size", INT, "1e8", PLANNED, "elements per buffer"),
    ST_ROW_NOTICE("zero_optimization.offload_param.max_in_cpu", INT, "1e9",
                  "strata.host_memory and strata.cache bound host memory", "elements kept in RAM"),
    ST_ROW_NOTICE("zero_optimization.offload_param.pin_memory", BOOL, "true", PLANNED, "pin host memory"),
    ST_ROW_SECTION("zero_optimization.offload_optimizer",
                   "where optimizer state is stored; honoured at every stage, also nvme at stages 1 and 2, with a notice"),
    {.path = "zero_optimization.offload_optimizer.device", .type = ST_FIELD_CHOICE, ST_BOUND(CHOICE, optimizer_tier),
     .choices = tier_choices, .fallback = "\"none\"", .help = "the slowest tier allowed for optimizer state"},
    {.path = "zero_optimization.offload_optimizer.nvme_path", .type = ST_FIELD_DIRS,
     .help = "directory, comma-separated directories, or a list of them; strata.nvme takes precedence"},
    ST_ROW_NOTICE("zero_optimization.offload_optimizer.buffer_count", INT, "4", PLANNED, "swap buffers"),
    ST_ROW_NOTICE("zero_optimization.offload_optimizer.buffer_size", INT, NULL,
                  "DeepSpeed has no such key in this section; it is copied around. " PLANNED, "elements per buffer"),
    ST_ROW_NOTICE("zero_optimization.offload_optimizer.pin_memory", BOOL, "true", PLANNED, "pin host memory"),
    ST_ROW_NOTICE("zero_optimization.offload_optimizer.pipeline_read", BOOL, "false", AHEAD, "read ahead"),
    ST_ROW_NOTICE("zero_optimization.offload_optimizer.pipeline_write", BOOL, "false", AHEAD, "write behind"),
    ST_ROW_NOTICE("zero_optimization.offload_optimizer.fast_init", BOOL, "false", "state is always created in place, in bulk",
                  "bulk initialisation"),
    {.path = "zero_optimization.offload_optimizer.ratio", .type = ST_FIELD_REAL, ST_BOUND(F64, update_ratio), .min = 0, .max = 1,
     .fallback = "\"auto\"",
     .help = "the CPU updates this share of the blocks whose state is not on the device; the state of the others crosses the link "
             "and is updated on the device (Twin-Flow, at every stage); auto: from the measured rates; every value gives the same bits"},
    ST_ROW_PLAIN("zero_optimization.offload_optimizer.super_offload", BOOL, "false", "strata.update picks the schedule",
                 "SuperOffload"),
    ST_ROW_NOTICE("zero_optimization.offload_optimizer.cpuadam_cores_perc", REAL, "0.8", "strata.threads sets the number of workers",
                  "SuperOffload: fraction of cores"),
};

static const struct st_field zenflow_rows[] = {
    {.path = "zero_optimization.zenflow", .type = ST_FIELD_OBJECT, .verdict = ST_VERDICT_REJECTED,
     .reason = "ZenFlow updates most weights late, which changes results: remove the section", .help = "stale updates"},
    ST_ROW_REJECT("zero_optimization.zenflow.topk_ratio", REAL, "0.1", ZENFLOW, "fraction updated at once"),
    {.path = "zero_optimization.zenflow.select_strategy", .type = ST_FIELD_CHOICE, .choices = select_choices,
     .fallback = "\"auto\"", .verdict = ST_VERDICT_REJECTED, .reason = ZENFLOW, .help = "when the fraction is chosen"},
    ST_ROW_REJECT("zero_optimization.zenflow.select_interval", INT, NULL, ZENFLOW, "steps"),
    ST_ROW_REJECT("zero_optimization.zenflow.update_interval", INT, NULL, ZENFLOW, "steps"),
    ST_ROW_REJECT("zero_optimization.zenflow.overlap_step", BOOL, "false", ZENFLOW, "update in another process"),
    ST_ROW_REJECT("zero_optimization.zenflow.offload", BOOL, "false", ZENFLOW, "offload the chosen states"),
    ST_ROW_REJECT("zero_optimization.zenflow.auto_ratio", REAL, "0.99", ZENFLOW, "threshold of the automatic interval"),
    ST_ROW_REJECT("zero_optimization.zenflow.full_warm_up_rounds", INT, "0", ZENFLOW, "steps"),
    ST_ROW_REJECT("zero_optimization.zenflow.pt_reserved_cores_perc", REAL, "0.5", ZENFLOW, "fraction of cores"),
    ST_ROW_REJECT("zero_optimization.zenflow.steps_per_epoch", INT, NULL, ZENFLOW, "internal"),
};

static const struct st_field aio_rows[] = {
    ST_ROW_SECTION("aio", "requests to NVMe"),
    {.path = "aio.block_size", .type = ST_FIELD_INT, ST_BOUND(U32, block_bytes), .min = 4096, .max = 67108864,
     .near = 4096, .fallback = "1048576", .help = "bytes per request"},
    {.path = "aio.queue_depth", .type = ST_FIELD_INT, ST_BOUND(COUNT, queue_depth), .min = 1, .max = 4096,
     .near = 1, .fallback = "\"auto\"",
     .help = "requests in flight per directory; auto starts at 32 and adapts to the device; DeepSpeed's default is 8 per thread"},
    ST_ROW_NOTICE("aio.intra_op_parallelism", INT, "1", "one ring keeps queue_depth requests in flight", "threads per handle"),
    ST_ROW_NOTICE("aio.thread_count", INT, "1",
                  "the old name of intra_op_parallelism, which DeepSpeed ignores; one ring keeps queue_depth requests in flight",
                  "threads per handle"),
    ST_ROW_NOTICE("aio.single_submit", BOOL, "false", "requests are always submitted in batches", "submit one by one"),
    ST_ROW_NOTICE("aio.overlap_events", BOOL, "true", "completions are always reaped while other requests run", "keep the queue full"),
    ST_ROW_PLAIN("aio.use_gds", BOOL, "false", "GPUDirect Storage is not used: transfers go through pinned host memory",
                 "cuFile"),
};

static const struct st_field activation_rows[] = {
    ST_ROW_SECTION("activation_checkpointing", "the plan decides layer by layer what is kept or recomputed: strata.activations"),
    ST_ROW_NOTICE("activation_checkpointing.partition_activations", BOOL, "false", EXCHANGED, "split checkpoints over ranks"),
    ST_ROW_NOTICE("activation_checkpointing.contiguous_memory_optimization", BOOL, "false", PLANNED, "copy into one buffer"),
    {.path = "activation_checkpointing.cpu_checkpointing", .type = ST_FIELD_BOOL, .fallback = "false",
     .help = "true means strata.activation_tier host, unless that is given"},
    ST_ROW_NOTICE("activation_checkpointing.number_checkpoints", INT, NULL, "the plan decides, layer by layer", "checkpoints"),
    ST_ROW_NOTICE("activation_checkpointing.synchronize_checkpoint_boundary", BOOL, "false",
                  "the program's dependencies order everything", "synchronise the device"),
    ST_ROW_NOTICE("activation_checkpointing.profile", BOOL, "false", "forward and backward are always timed", "time"),
};

static const struct st_field strata_rows[] = {
    ST_ROW_SECTION("strata", "settings for which DeepSpeed has no key"),
    {.path = "strata.device_memory", .type = ST_FIELD_SIZE, ST_BOUND(SIZE, device_memory), .min = 1, .max = COUNT_MAX,
     .fallback = "\"auto\"", .help = "budget of the device; auto: from the machine"},
    {.path = "strata.host_memory", .type = ST_FIELD_SIZE, ST_BOUND(SIZE, host_memory), .min = 1, .max = COUNT_MAX,
     .fallback = "\"auto\"", .help = "budget of the host arena; auto: 80 % of the machine's free memory"},
    {.path = "strata.cache", .type = ST_FIELD_SIZE, ST_BOUND(SIZE, cache), .min = 0, .max = COUNT_MAX, .fallback = "\"auto\"",
     .help = "spare memory that may hold what is configured for a slower tier; 0: none"},
    {.path = "strata.nvme", .type = ST_FIELD_DIRS, ST_BOUND(DIRS, nvme_dirs),
     .help = "directories for tier nvme; takes precedence over both nvme_path keys; does not turn the tier on"},
    {.path = "strata.save", .type = ST_FIELD_TEXT, ST_BOUND(PATH, save), .changes = ST_CHANGES_NEITHER, .fallback = "\"\"",
     .help = "directory of checkpoints; room for keep + keep_best + 2 sets of what is trained is planned on tier nvme, or here without one; "
             "\"\": none are saved"},
    {.path = "strata.save_every", .type = ST_FIELD_INT, ST_BOUND(U64, save_every), .changes = ST_CHANGES_NEITHER, .min = 0, .max = COUNT_MAX,
     .fallback = "0",
     .help = "steps from one checkpoint to the next; 0: only at the end, and when a signal asks"},
    {.path = "strata.keep", .type = ST_FIELD_INT, ST_BOUND(U32, keep), .changes = ST_CHANGES_NEITHER, .min = 1, .max = STRATA_KEEP_MAX,
     .fallback = "2",
     .help = "the newest checkpoints that are kept; room for each is reserved at the start"},
    {.path = "strata.keep_best", .type = ST_FIELD_INT, ST_BOUND(U32, keep_best), .changes = ST_CHANGES_NEITHER, .min = 0,
     .max = STRATA_KEEP_MAX - 1, .fallback = "0",
     .help = "checkpoints of the lowest evaluation losses that are kept beside those; both together at most 22"},
    {.path = "strata.metrics", .type = ST_FIELD_TEXT, ST_BOUND(PATH, metrics), .changes = ST_CHANGES_NEITHER, .fallback = "\"\"",
     .help = "file of the run's lines of JSON: of an engine of Python's, its train(), and the program's where no option names another; "
             "\"\": none"},
    {.path = "strata.chunk_size", .type = ST_FIELD_SIZE, ST_BOUND(SIZE, chunk_size), .min = 16384, .max = 4294967296.0,
     .fallback = "\"auto\"",
     .help = "elements; at most sub_group_size, rounded down to a multiple of 16384, the tile; auto: 4 Mi, more for models "
             "over 68e9 parameters"},
    {.path = "strata.update", .type = ST_FIELD_CHOICE, ST_BOUND(CHOICE, update), .choices = update_choices,
     .fallback = "\"auto\"",
     .help = "when the optimizer runs: after backward, before a layer's next forward, as soon as a gradient is complete, or "
             "(speculative) gated, and for the layers that gain by it in backward, too, as if the step were not clipped; auto: the "
             "one of the first three predicted to be fastest, in_backward only if nothing needs all gradients first; and speculative "
             "where strata.clip_rate is given and the step predicted with it is 3 % shorter"},
    {.path = "strata.clip_rate", .type = ST_FIELD_REAL, ST_BOUND(F64, clip_rate), .min = 0, .max = 1, .fallback = "\"auto\"",
     .help = "share of the steps that is expected to be clipped or skipped, with which plans of speculative updates are compared; "
             "a run goes by its own norms; auto: not known, none"},
    {.path = "strata.accumulation", .type = ST_FIELD_CHOICE, ST_BOUND(CHOICE, accumulation), .choices = accumulation_choices,
     .fallback = "\"auto\"",
     .help = "vertical: all micro-batches go through a layer before the next layer, so weights cross the link once for all; horizontal: "
             "one after the other, so fewer activations live at once and more are kept; auto: the faster by prediction"},
    {.path = "strata.leaves", .type = ST_FIELD_INT, ST_BOUND(U32, leaves), .changes = ST_CHANGES_RESULTS, .min = 1,
     .max = STRATA_GRAD_ACCUM_MAX, .fallback = "1",
     .help = "groups of equal size that a step's micro-batches are cut into: gradients are added in order within each, then the groups' "
             "sums in a balanced tree; must divide the micro-batches, and with several ranks be their number, the default, times a power of two"},
    {.path = "strata.wire", .type = ST_FIELD_CHOICE, ST_BOUND(CHOICE, wire), .choices = wire_choices, .changes = ST_CHANGES_RESULTS,
     .fallback = "\"fp32\"", .reason = ST_NO_FP16_WIRE,
     .help = "how ranks send each other their sums of gradients, once a step; in bf16 half the bytes, rounded to nearest even and added up in "
             "fp32: the bits of the result then depend on the number of ranks, too"},
    {.path = "strata.compute", .type = ST_FIELD_CHOICE, ST_BOUND(CHOICE, compute), .choices = compute_choices, .changes = ST_CHANGES_NEITHER,
     .fallback = "\"torch\"",
     .help = "Python: what computes a module, PyTorch or, of the families that it knows, strata; auto: strata where it can, and a line says why "
             "not; what is no module strata always computes"},
    {.path = "strata.seq_len", .type = ST_FIELD_INT, ST_BOUND(U32, seq_len), .changes = ST_CHANGES_NEITHER, .min = 0, .max = 4294967295.0,
     .fallback = "0",
     .help = "Python, with strata.compute: the most tokens of a sequence, as many as each is computed with; elsewhere train.seq_len says it"},
    {.path = "strata.boundary_bytes", .type = ST_FIELD_INT, ST_BOUND(U64, boundary_bytes), .min = 0, .max = 1125899906842624.0,
     .fallback = "0",
     .help = "Python, with offload_param: the most bytes that the input of a layer takes, for which the plan then has room, on NVMe as well; 0: "
             "PyTorch keeps these inputs in memory"},
    {.path = "strata.activations", .type = ST_FIELD_CHOICE, ST_BOUND(CHOICE, activations), .choices = activation_choices,
     .fallback = "\"auto\"", .help = "keep what backward needs, or recompute it; auto: layer by layer, by budget"},
    {.path = "strata.activation_tier", .type = ST_FIELD_CHOICE, ST_BOUND(CHOICE, activation_tier),
     .choices = activation_tier_choices, .fallback = "\"auto\"",
     .help = "where activation checkpoints may be stored; nvme needs a directory"},
    {.path = "strata.freeze", .type = ST_FIELD_PATTERNS, ST_BOUND(PATTERNS, freeze), .changes = ST_CHANGES_RESULTS, .fallback = "[]",
     .help = "shell patterns over tensor names, such as \"transformer.wte.*\": these tensors get no gradient and no state"},
    {.path = "strata.lora", .type = ST_FIELD_JSON, ST_BOUND(JSON, lora), .changes = ST_CHANGES_RESULTS,
     .help = "train adapters of linear layers and nothing else: the keys of PEFT's LoraConfig, as in an adapter_config.json ([adapters.md](adapters.md)); "
             "{}: PEFT's defaults; left out: none"},
    {.path = "strata.quantization", .type = ST_FIELD_CHOICE, ST_BOUND(CHOICE, quantization), .choices = quantization_choices,
     .changes = ST_CHANGES_RESULTS, .fallback = "\"none\"",
     .help = "nf4: the linear weights of blocks are rounded to 4 bits when they are loaded, as bitsandbytes rounds them, and stored in "
             "0.5625 bytes each, frozen; training needs strata.lora. nf4-double: with the values of bitsandbytes' double quantisation, "
             "in as many bytes"},
    {.path = "strata.router_aux_loss_coef", .type = ST_FIELD_REAL, ST_BOUND(F64, aux_loss_coef), .changes = ST_CHANGES_RESULTS, .min = 0,
     .max = 1000, .fallback = "\"auto\"",
     .help = "of a model with experts: the loss has their auxiliary loss times this, once for each micro-batch, undivided; 0: it has none; auto: as "
             "config.json says, router_aux_loss_coef if output_router_logits is true"},
    {.path = "strata.output_router_logits", .type = ST_FIELD_BOOL, ST_BOUND(BOOL, output_router_logits), .changes = ST_CHANGES_RESULTS,
     .fallback = "false", .help = "true: the loss has the auxiliary loss with config.json's router_aux_loss_coef, even if output_router_logits is false there"},
    {.path = "strata.decay_all", .type = ST_FIELD_BOOL, ST_BOUND(BOOL, decay_all), .changes = ST_CHANGES_RESULTS, .auto_text = "false",
     .help = "decay biases and norm weights too; left out: true if the file names an optimizer, to which DeepSpeed passes every parameter, "
             "else false, as trainers do"},
    {.path = "strata.moments", .type = ST_FIELD_CHOICE, ST_BOUND(CHOICE, moments), .choices = moment_choices,
     .changes = ST_CHANGES_RESULTS, .fallback = "\"fp32\"",
     .help = "how the optimizer's moments are kept, 4, 2 or 1 1/64 bytes each; bf16 and 8bit are rounded stochastically, the same "
             "way in every run"},
    {.path = "strata.max_skipped", .type = ST_FIELD_INT, ST_BOUND(U32, max_skipped), .changes = ST_CHANGES_RESULTS, .min = 0,
     .max = 4294967295.0,
     .help = "a run ends with exit code 5 after this many steps in a row that were skipped or had a loss that is not finite; left out or auto: "
             "8, with fp16's dynamic scale initial_scale_power + hysteresis + 8, so that the scale can fall far enough; 0: no limit"},
    {.path = "strata.threads", .type = ST_FIELD_INT, ST_BOUND(U32, threads), .min = 0, .max = 256, .fallback = "0",
     .help = "number of workers; 0: one per usable core; on cuda one fewer where there are 4 to 7, and two fewer from 8 on"},
    {.path = "strata.device_deadline", .type = ST_FIELD_INT, ST_BOUND(U32, device_deadline), .min = 1, .max = 86400, .fallback = "300",
     .help = "seconds without progress of one op on the GPU after which it counts as lost and the run ends with exit code 4"},
    {.path = "strata.io_deadline", .type = ST_FIELD_INT, ST_BOUND(U32, io_deadline), .min = 0, .max = 86400, .fallback = "300",
     .help = "seconds without an answer to one request after which a drive is given up and the run ends with exit code 4; a warning after 30 "
             "seconds and each minute says what is outstanding; 0: no deadline"},
    {.path = "strata.comm_deadline", .type = ST_FIELD_INT, ST_BOUND(U32, comm_deadline), .min = 1, .max = 86400, .fallback = "300",
     .help = "seconds for which a rank hears nothing of another before it gives up and the run ends with exit code 4; also how long the first "
             "waits for the last at the start"},
    {.path = "strata.watchdog", .type = ST_FIELD_BOOL, ST_BOUND(BOOL, watchdog), .fallback = "true",
     .help = "end a training run after its step, with what it has learnt and exit code 3, when memory runs out: little is left in its control group "
             "or in the machine, and the tasks there wait for memory, or ever less is left by what is not planned"},
    {.path = "strata.io_method", .type = ST_FIELD_CHOICE, ST_BOUND(NAME, io_method), .choices = io_choices,
     .fallback = "\"auto\"", .help = "auto: uring, else aio, else threads; fake: in memory, for tests"},
    {.path = "strata.isa", .type = ST_FIELD_CHOICE, ST_BOUND(NAME, isa), .choices = isa_choices, .fallback = "\"auto\"",
     .help = "kernels; all give the same bits"},
    {.path = "strata.update_fetch", .type = ST_FIELD_CHOICE, ST_BOUND(CHOICE, update_fetch), .choices = fetch_choices,
     .fallback = "\"auto\"",
     .help = "how the optimizer's kernels fetch their arrays ahead, with the same bits: in bursts of lines or evenly, line by line; auto: as was "
             "faster when the machine was measured, else bursts"},
    ST_ROW_SECTION("strata.lr_scheduler", "the learning rate by transformers' formulas, instead of scheduler"),
    {.path = "strata.lr_scheduler.type", .type = ST_FIELD_CHOICE, ST_BOUND(CHOICE, schedule.shape), .choices = shape_choices,
     .changes = ST_CHANGES_RESULTS, .fallback = "\"none\"",
     .help = "shape of the optimizer's lr over the run, stepped once per optimizer step that was not skipped; linear and cosine end at 0, cosine_with_min_lr at min_lr or min_lr_rate"},
    {.path = "strata.lr_scheduler.warmup_steps", .type = ST_FIELD_INT, ST_BOUND(U64, schedule.shape_warmup), .min = 0, .max = COUNT_MAX,
     .changes = ST_CHANGES_RESULTS, .fallback = "0", .help = "optimizer steps of warm-up from 0; the constant rate has none"},
    {.path = "strata.lr_scheduler.warmup_ratio", .type = ST_FIELD_REAL, ST_BOUND(F64, schedule.shape_warmup_ratio), .min = 0, .max = 1,
     .changes = ST_CHANGES_RESULTS, .fallback = "0",
     .help = "warm-up as a fraction of total_num_steps, rounded up; not used if warmup_steps is above 0"},
    {.path = "strata.lr_scheduler.total_num_steps", .type = ST_FIELD_INT, ST_BOUND(STEPS, schedule.shape_steps), .min = 1, .max = COUNT_MAX,
     .changes = ST_CHANGES_RESULTS, .help = "the step at which linear and cosine end; left out or \"auto\": the steps of the run"},
    {.path = "strata.lr_scheduler.min_lr", .type = ST_FIELD_REAL, ST_BOUND(F64, schedule.shape_min_lr), .min = 0, .max = 1e3,
     .changes = ST_CHANGES_RESULTS, .fallback = "0", .help = "the rate at which cosine_with_min_lr ends"},
    {.path = "strata.lr_scheduler.min_lr_rate", .type = ST_FIELD_REAL, ST_BOUND(F64, schedule.shape_min_rate), .min = 0, .max = 1e3,
     .changes = ST_CHANGES_RESULTS, .fallback = "0", .help = "the same as a fraction of the optimizer's lr; not beside min_lr"},
    ST_ROW_SECTION("strata.limits", "rehearse slower links: no transfer is faster than its limit"),
    {.path = "strata.limits.upload", .type = ST_FIELD_SIZE, ST_BOUND(SIZE, upload_limit), .min = 0, .max = COUNT_MAX,
     .fallback = "0", .help = "rehearse a slower link: bytes per second from host to device; 0: no limit"},
    {.path = "strata.limits.download", .type = ST_FIELD_SIZE, ST_BOUND(SIZE, download_limit), .min = 0, .max = COUNT_MAX,
     .fallback = "0", .help = "rehearse a slower link: bytes per second from device to host; 0: no limit"},
    {.path = "strata.limits.io", .type = ST_FIELD_SIZE, ST_BOUND(SIZE, io_limit), .min = 0, .max = COUNT_MAX, .fallback = "0",
     .help = "rehearse a slower disk: bytes per second, reads and writes together; needs strata.io_method fake; 0: no limit"},
};
/* clang-format on */

const struct st_section st_sections_offload[] = {
    {"zero_optimization", true, ST_CHANGES_SPEED, ST_ROWS(zero_rows)},
    {"zero_optimization: offload", true, ST_CHANGES_SPEED, ST_ROWS(offload_rows)},
    {"zero_optimization: zenflow", true, ST_CHANGES_RESULTS, ST_ROWS(zenflow_rows)},
    {"aio", true, ST_CHANGES_SPEED, ST_ROWS(aio_rows)},
    {"activation_checkpointing", true, ST_CHANGES_SPEED, ST_ROWS(activation_rows)},
    {"strata", false, ST_CHANGES_SPEED, ST_ROWS(strata_rows)},
    {NULL, false, ST_CHANGES_INHERITED, NULL, 0},
};
