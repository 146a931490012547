/* config_table_other.c - rows of the field table for keys without meaning here: profiler, monitors, checkpoint engines, and keys
 * found in public configs that are not DeepSpeed's. */
#include "offload/config/config_table.h"

#define METRICS   "metrics go to train.metrics FILE.jsonl"
#define PROFILED  "the metrics show time, FLOPs and utilisation"
#define OWN_FILES "strata writes its own files; DeepSpeed's checkpoints are neither written nor read"
#define TRAINER   "an argument of a trainer, not of the engine"

static const struct st_choice tag_choices[] = {
    {"Warn", 0, ST_VERDICT_HONOURED},
    {"Ignore", 1, ST_VERDICT_HONOURED},
    {"Fail", 2, ST_VERDICT_HONOURED},
    {NULL, 0, ST_VERDICT_HONOURED},
};

static const struct st_choice writer_choices[] = {
    {"mock", 0, ST_VERDICT_HONOURED},
    {"python", 1, ST_VERDICT_HONOURED},
    {"fast", 2, ST_VERDICT_HONOURED},
    {NULL, 0, ST_VERDICT_HONOURED},
};

static const struct st_choice parallel_choices[] = {
    {"replica", 0, ST_VERDICT_HONOURED},
    {"socket", 1, ST_VERDICT_HONOURED},
    {"machine", 2, ST_VERDICT_HONOURED},
    {NULL, 0, ST_VERDICT_HONOURED},
};

/* clang-format off */
static const struct st_field monitor_rows[] = {
    ST_ROW_SECTION("flops_profiler", "profiler"),
    ST_ROW_NOTICE("flops_profiler.enabled", BOOL, "false", PROFILED, "profiler"),
    ST_ROW_NOTICE("flops_profiler.recompute_fwd_factor", REAL, "0.0", PROFILED, "profiler"),
    ST_ROW_NOTICE("flops_profiler.profile_step", INT, "1", PROFILED, "profiler"),
    ST_ROW_NOTICE("flops_profiler.module_depth", INT, "-1", PROFILED, "profiler"),
    ST_ROW_NOTICE("flops_profiler.top_modules", INT, "1", PROFILED, "profiler"),
    ST_ROW_NOTICE("flops_profiler.detailed", BOOL, "true", PROFILED, "profiler"),
    ST_ROW_NOTICE("flops_profiler.output_file", TEXT, NULL, PROFILED, "profiler"),
    ST_ROW_SECTION("tensorboard", "monitor"),
    {.path = "tensorboard.enabled", .type = ST_FIELD_BOOL, ST_BOUND(BOOL, tensorboard.enabled), .changes = ST_CHANGES_NEITHER, .fallback = "false",
     .help = "loss, learning rate, norm of gradients and, in fp16, loss scale of each step over the sequences so far, in output_path/job_name: an events file of each attempt"},
    {.path = "tensorboard.output_path", .type = ST_FIELD_TEXT, ST_BOUND(PATH, tensorboard.output_path), .changes = ST_CHANGES_NEITHER, .fallback = "\"\"",
     .help = "directory; \"\": the working directory"},
    {.path = "tensorboard.job_name", .type = ST_FIELD_TEXT, ST_BOUND(PATH, tensorboard.job_name), .changes = ST_CHANGES_NEITHER, .fallback = "\"DeepSpeedJobName\"",
     .help = "directory in it, which is made"},
    ST_ROW_SECTION("csv_monitor", "monitor"),
    {.path = "csv_monitor.enabled", .type = ST_FIELD_BOOL, ST_BOUND(BOOL, csv_monitor.enabled), .changes = ST_CHANGES_NEITHER, .fallback = "false",
     .help = "loss, learning rate, norm of gradients and, in fp16, loss scale of each step over the sequences so far, in output_path/job_name: a file for each"},
    {.path = "csv_monitor.output_path", .type = ST_FIELD_TEXT, ST_BOUND(PATH, csv_monitor.output_path), .changes = ST_CHANGES_NEITHER, .fallback = "\"\"",
     .help = "directory; \"\": the working directory"},
    {.path = "csv_monitor.job_name", .type = ST_FIELD_TEXT, ST_BOUND(PATH, csv_monitor.job_name), .changes = ST_CHANGES_NEITHER, .fallback = "\"DeepSpeedJobName\"",
     .help = "directory in it, which is made"},
    ST_ROW_SECTION("wandb", "monitor"),
    ST_ROW_ASKED("wandb.enabled", BOOL, "false", METRICS, "monitor"),
    ST_ROW_NOTICE("wandb.group", TEXT, NULL, METRICS, "monitor"),
    ST_ROW_NOTICE("wandb.team", TEXT, NULL, METRICS, "monitor"),
    ST_ROW_NOTICE("wandb.project", TEXT, "\"deepspeed\"", METRICS, "monitor"),
    ST_ROW_SECTION("comet", "monitor"),
    ST_ROW_ASKED("comet.enabled", BOOL, "false", METRICS, "monitor"),
    ST_ROW_NOTICE("comet.samples_log_interval", INT, "100", METRICS, "monitor"),
    ST_ROW_NOTICE("comet.project", TEXT, NULL, METRICS, "monitor"),
    ST_ROW_NOTICE("comet.workspace", TEXT, NULL, METRICS, "monitor"),
    ST_ROW_NOTICE("comet.api_key", SECRET, NULL, METRICS, "monitor; never printed"),
    ST_ROW_NOTICE("comet.experiment_name", TEXT, NULL, METRICS, "monitor"),
    ST_ROW_NOTICE("comet.experiment_key", TEXT, NULL, METRICS, "monitor"),
    ST_ROW_NOTICE("comet.online", BOOL, NULL, METRICS, "monitor"),
    ST_ROW_NOTICE("comet.mode", TEXT, NULL, METRICS, "monitor"),
};

static const struct st_field checkpoint_rows[] = {
    ST_ROW_SECTION("checkpoint", "checkpoints"),
    {.path = "checkpoint.tag_validation", .type = ST_FIELD_CHOICE, .choices = tag_choices, .fallback = "\"Warn\"",
     .verdict = ST_VERDICT_NOTICE, .reason = "ranks make a checkpoint together", .help = "compare the tag across ranks"},
    ST_ROW_ASKED("checkpoint.load_universal", BOOL, "false", OWN_FILES, "universal checkpoints"),
    ST_ROW_NOTICE("checkpoint.use_node_local_storage", BOOL, "false",
                  "strata.save names the directory, on a drive of this node or on another", "node-local files"),
    ST_ROW_SECTION("checkpoint.parallel_write", "parallel writing"),
    ST_ROW_NOTICE("checkpoint.parallel_write.pipeline_stage", BOOL, "false", "there are no pipeline stages", "parallel writing"),
    ST_ROW_NOTICE("checkpoint.checkpoint_serialization", BOOL, "true", OWN_FILES, "serialise tensors"),
    ST_ROW_SECTION("checkpoint.writer", "writer of checkpoints"),
    {.path = "checkpoint.writer.type", .type = ST_FIELD_CHOICE, .choices = writer_choices, .fallback = "\"fast\"",
     .verdict = ST_VERDICT_NOTICE, .reason = OWN_FILES, .help = "writer of checkpoints"},
    ST_ROW_NOTICE("checkpoint.writer.decoupled", BOOL, "false", OWN_FILES, "writer of checkpoints"),
    ST_ROW_NOTICE("checkpoint.writer.io_buffer_size", INT, "67108864", OWN_FILES, "bytes"),
    ST_ROW_NOTICE("checkpoint.writer.io_buffer_double", BOOL, "true", OWN_FILES, "writer of checkpoints"),
    ST_ROW_NOTICE("checkpoint.writer.show_statistics", BOOL, "false", OWN_FILES, "writer of checkpoints"),
    {.path = "checkpoint.writer.data_parallel", .type = ST_FIELD_CHOICE, .choices = parallel_choices,
     .verdict = ST_VERDICT_NOTICE, .reason = OWN_FILES, .help = "who writes"},
    ST_ROW_NOTICE("checkpoint.writer.io_multiplier", INT, "1", OWN_FILES, "writer of checkpoints"),
    ST_ROW_REMOVED("nebula", OPEN, NULL, "removed in DeepSpeed 0.19. " OWN_FILES, "a checkpoint engine"),
    {.path = "datastates_ckpt", .type = ST_FIELD_OPEN, .verdict = ST_VERDICT_NOTICE, .reason = OWN_FILES,
     .help = "a checkpoint engine"},
};

static const struct st_field stray_rows[] = {
    ST_ROW_NOTICE("cuda_visible_devices", ANY, NULL, "no key of DeepSpeed's (its launcher's include is): machine.device cuda:N",
                  "DeepSpeed's examples"),
    ST_ROW_NOTICE("low_cpu_mem_usage", BOOL, NULL, TRAINER ": weights are always read straight to their tier",
                  "XTuner's presets"),
    {.path = "moe", .type = ST_FIELD_OPEN, .verdict = ST_VERDICT_NOTICE,
     .reason = "a key of DeepSpeed's inference alone; experts are pages here, as all weights are", .help = "experts"},
    {.path = "comms_config", .type = ST_FIELD_OPEN, .verdict = ST_VERDICT_NOTICE,
     .reason = "no key of DeepSpeed's (comms_logger is)", .help = "LLaMA-Factory's presets"},
    {.path = "monitor_config", .type = ST_FIELD_OPEN, .verdict = ST_VERDICT_NOTICE,
     .reason = "no key of DeepSpeed's (csv_monitor is); " METRICS, .help = "LLaMA-Factory's presets"},
};
/* clang-format on */

const struct st_section st_sections_other[] = {
    {"Profiler and monitors", true, ST_CHANGES_NEITHER, ST_ROWS(monitor_rows)},
    {"Checkpoints", true, ST_CHANGES_NEITHER, ST_ROWS(checkpoint_rows)},
    {"Keys that circulate without being DeepSpeed's", false, ST_CHANGES_NEITHER, ST_ROWS(stray_rows)},
    {NULL, false, ST_CHANGES_INHERITED, NULL, 0},
};
