/* tests/offload/test_config_presets.c - every file below configs/ loads without a problem, and what becomes of chosen keys. */
#include "tests/common/scratch.h"
#include "tests/offload/config_fixture.h"

#include <fnmatch.h>
#include <ftw.h>
#include <unistd.h>

#define FILES_MAX 64
#define STEPS     10

static char *files[FILES_MAX];
static size_t file_count;

static int take_file(const char *path, const struct stat *info, int kind, struct FTW *ftw)
{
    (void)info;
    (void)ftw;
    if (kind != FTW_F || fnmatch("*.json", path, 0) != 0)
        return 0;
    assert_true(file_count < FILES_MAX);
    files[file_count++] = strdup(path);
    return 0;
}

static int find_files(void **state)
{
    (void)state;
    return nftw("configs", take_file, 8, FTW_PHYS);
}

static int free_files(void **state)
{
    (void)state;
    for (size_t i = 0; i < file_count; i++)
        free(files[i]);
    return 0;
}

static void load_file(struct st_config *config, struct st_config_source **source, const char *path)
{
    const char *const nvme = "strata.nvme=/swap"; /* as --nvme gives it */
    const struct st_config_opts opts = {.file = path, .overrides = &nvme, .override_count = 1, .max_steps = STEPS};

    if (st_config_load(config, source, &opts) != STRATA_OK)
        fail_msg("%s", strata_last_error());
}

/* What a file says is in force as it stands there, or there is a reason. */
static void check_rows(const char *path, const struct st_config_source *source)
{
    for (uint32_t i = 0; i < st_config_row_count(source); i++) {
        const struct st_config_row *row = st_config_row_at(source, i);

        if (row->verdict == ST_VERDICT_REJECTED || (row->verdict == ST_VERDICT_NOTICE && row->reason == NULL))
            fail_msg("%s: %s", path, row->path);
    }
}

TEST(every_file_loads)
{
    assert_true(file_count >= 20);
    for (size_t i = 0; i < file_count; i++) {
        struct st_config_source *source;
        struct st_config c;

        load_file(&c, &source, files[i]);
        assert_int_equal(st_config_problem_count(source), 0);
        check_rows(files[i], source);
        assert_int_equal(c.train_batch, c.micro_batch * c.grad_accum);
        if (strstr(files[i], "nvme") != NULL)
            assert_int_equal(c.optimizer_tier, STRATA_TIER_NVME);
        if (fnmatch("*/deepspeed_zero*.json", files[i], 0) == 0 || fnmatch("*/ds_z*.json", files[i], 0) == 0)
            assert_true(c.optimizer.lr == 5e-5 && c.gradient_clipping == 1 && c.train_batch == 1 &&
                        c.schedule.type == ST_LR_CONSTANT);
        st_config_source_free(source);
    }
}

struct preset_row {
    const char *file;
    uint32_t stage;
    strata_dtype dtype;
    strata_tier optimizer, param;
};

TEST(presets_say_where_things_lie)
{
    static const struct preset_row rows[] = {
        {"configs/xtuner/deepspeed_zero0.json", 0, STRATA_BF16, STRATA_TIER_DEVICE, STRATA_TIER_DEVICE},
        {"configs/xtuner/deepspeed_zero1.json", 1, STRATA_BF16, STRATA_TIER_DEVICE, STRATA_TIER_DEVICE},
        {"configs/xtuner/deepspeed_zero2.json", 2, STRATA_BF16, STRATA_TIER_DEVICE, STRATA_TIER_DEVICE},
        {"configs/xtuner/deepspeed_zero2_offload.json", 2, STRATA_BF16, STRATA_TIER_HOST, STRATA_TIER_DEVICE},
        {"configs/xtuner/deepspeed_zero2_nvme.json", 2, STRATA_F16, STRATA_TIER_NVME, STRATA_TIER_DEVICE},
        {"configs/xtuner/deepspeed_zero3.json", 3, STRATA_BF16, STRATA_TIER_DEVICE, STRATA_TIER_DEVICE},
        {"configs/xtuner/deepspeed_zero3_offload.json", 3, STRATA_BF16, STRATA_TIER_HOST, STRATA_TIER_HOST},
        {"configs/xtuner/deepspeed_zero3_nvme.json", 3, STRATA_F16, STRATA_TIER_NVME, STRATA_TIER_NVME},
        {"configs/llamafactory/ds_z0_config.json", 0, STRATA_BF16, STRATA_TIER_DEVICE, STRATA_TIER_DEVICE},
        {"configs/llamafactory/ds_z2_config.json", 2, STRATA_BF16, STRATA_TIER_DEVICE, STRATA_TIER_DEVICE},
        {"configs/llamafactory/ds_z2_offload_config.json", 2, STRATA_BF16, STRATA_TIER_HOST, STRATA_TIER_DEVICE},
        {"configs/llamafactory/ds_z2_nvme_config.json", 2, STRATA_BF16, STRATA_TIER_NVME, STRATA_TIER_DEVICE},
        {"configs/llamafactory/ds_z3_config.json", 3, STRATA_BF16, STRATA_TIER_DEVICE, STRATA_TIER_DEVICE},
        {"configs/llamafactory/ds_z3_offload_config.json", 3, STRATA_BF16, STRATA_TIER_HOST, STRATA_TIER_HOST},
        {"configs/llamafactory/ds_z3_nvme_config.json", 3, STRATA_BF16, STRATA_TIER_NVME, STRATA_TIER_NVME},
        {"configs/zero2_cpu.json", 2, STRATA_BF16, STRATA_TIER_HOST, STRATA_TIER_DEVICE},
        {"configs/zero3_cpu.json", 3, STRATA_BF16, STRATA_TIER_HOST, STRATA_TIER_HOST},
        {"configs/zero3_nvme.json", 3, STRATA_BF16, STRATA_TIER_NVME, STRATA_TIER_NVME},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct st_config_source *source;
        struct st_config c;

        load_file(&c, &source, rows[i].file);
        if (c.zero_stage != rows[i].stage || c.dtype != rows[i].dtype || c.optimizer_tier != rows[i].optimizer ||
            c.param_tier != rows[i].param)
            fail_msg("%s: stage %u dtype %d optimizer %d param %d", rows[i].file, c.zero_stage, (int)c.dtype,
                     (int)c.optimizer_tier, (int)c.param_tier);
        st_config_source_free(source);
    }
}

struct key_row {
    const char *file, *path;
    enum st_config_origin origin;
    enum st_config_verdict verdict;
    const char *value, *reason; /* reason: part of it; NULL: none */
};

TEST(keys_have_origins_and_verdicts)
{
#define X "configs/xtuner/deepspeed_"
#define L "configs/llamafactory/ds_"
    static const struct key_row rows[] = {
        {X "zero0.json", "fp16.enabled", ST_ORIGIN_AUTO, ST_VERDICT_HONOURED, "false", NULL},
        {X "zero0.json", "bf16.enabled", ST_ORIGIN_AUTO, ST_VERDICT_HONOURED, "true", NULL},
        {X "zero0.json", "fp16.initial_scale_power", ST_ORIGIN_FILE, ST_VERDICT_NOTICE, "16", "not train in fp16"},
        {X "zero2_nvme.json", "fp16.enabled", ST_ORIGIN_FILE, ST_VERDICT_HONOURED, "true", NULL},
        {X "zero2_nvme.json", "bf16.enabled", ST_ORIGIN_DERIVED, ST_VERDICT_HONOURED, "false", "fp16 is on"},
        {X "zero2_nvme.json", "fp16.initial_scale_power", ST_ORIGIN_FILE, ST_VERDICT_HONOURED, "16", NULL},
        {X "zero2_nvme.json", "fp16.hysteresis", ST_ORIGIN_DEFAULT, ST_VERDICT_HONOURED, "2", NULL},
        {X "zero2_nvme.json", "zero_optimization.reduce_bucket_size", ST_ORIGIN_FILE, ST_VERDICT_NOTICE, "100000000",
         "buckets"},
        {X "zero2_offload.json", "zero_force_ds_cpu_optimizer", ST_ORIGIN_FILE, ST_VERDICT_NOTICE, "false", "no client"},
        {X "zero2_offload.json", "zero_allow_untested_optimizer", ST_ORIGIN_FILE, ST_VERDICT_NOTICE, "true", "no list"},
        {X "zero3_nvme.json", "low_cpu_mem_usage", ST_ORIGIN_FILE, ST_VERDICT_NOTICE, "false", "trainer"},
        {X "zero3_nvme.json", "aio.block_size", ST_ORIGIN_FILE, ST_VERDICT_HONOURED, "1048576", NULL},
        {X "zero3_nvme.json", "strata.nvme", ST_ORIGIN_COMMAND_LINE, ST_VERDICT_HONOURED, "/swap", NULL},
        {X "zero3_offload.json", "gradient_clipping", ST_ORIGIN_AUTO, ST_VERDICT_HONOURED, "1", NULL},
        {L "z0_config.json", "comms_config.verbose", ST_ORIGIN_FILE, ST_VERDICT_NOTICE, "false", "no key of DeepSpeed's"},
        {L "z0_config.json", "monitor_config.csv_monitor", ST_ORIGIN_FILE, ST_VERDICT_NOTICE, "{...}", "train.metrics"},
        {L "z2_config.json", "train_batch_size", ST_ORIGIN_AUTO, ST_VERDICT_HONOURED, "1", NULL},
        {L "z2_config.json", "fp16.loss_scale", ST_ORIGIN_FILE, ST_VERDICT_NOTICE, "0", "not train in fp16"},
        {L "z3_config.json", "zero_optimization.reduce_bucket_size", ST_ORIGIN_AUTO, ST_VERDICT_NOTICE, "auto", "hidden^2"},
        {L "z3_config.json", "optimizer.type", ST_ORIGIN_DEFAULT, ST_VERDICT_HONOURED, "AdamW", NULL},
    };
#undef X
#undef L

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct st_config_source *source;
        const struct st_config_row *row;
        struct st_config c;

        load_file(&c, &source, rows[i].file);
        row = find_row(source, rows[i].path);
        if (row == NULL || row->origin != rows[i].origin || row->verdict != rows[i].verdict ||
            strcmp(row->value, rows[i].value) != 0)
            fail_msg("%s: %s: value %s origin %d verdict %d", rows[i].file, rows[i].path, row != NULL ? row->value : "none",
                     row != NULL ? (int)row->origin : -1, row != NULL ? (int)row->verdict : -1);
        if (rows[i].reason == NULL ? row->reason != NULL : strstr(row->reason, rows[i].reason) == NULL)
            fail_msg("%s: %s: %s", rows[i].file, rows[i].path, row->reason);
        st_config_source_free(source);
    }
}

/* One preset, both ways: fp16 as it stands, bf16 by two words on the command line. */
TEST(precision_is_two_words)
{
    static const char *const words[] = {"fp16.enabled=false", "bf16.enabled=true", "strata.nvme=/swap"};
    const struct st_config_opts opts = {
        .file = "configs/xtuner/deepspeed_zero3_nvme.json", .overrides = words, .override_count = 3};
    struct st_config_source *source;
    struct st_config c;

    assert_int_equal(st_config_load(&c, &source, &opts), STRATA_OK);
    assert_int_equal(c.dtype, STRATA_BF16);
    assert_true(c.scaling.scale == 1);
    st_config_source_free(source);
    load_file(&c, &source, opts.file);
    assert_true(c.dtype == STRATA_F16 && c.scaling.scale == 0 && c.check_grad_overflow && c.scaling.min_scale == 1);
    assert_int_equal(c.scaling.initial_power, 16);
    assert_int_equal(c.scaling.window, 1000);
    st_config_source_free(source);
}

/* XTuner's words for --deepspeed: the files, unless one of that name is there. */
TEST(xtuners_names_are_files)
{
    static const char *const names[] = {"deepspeed_zero1", "deepspeed_zero2", "deepspeed_zero2_offload", "deepspeed_zero3",
                                        "deepspeed_zero3_offload"};
    struct st_config_source *source;
    struct st_config c, named;
    char path[128], *here = getcwd(NULL, 0);

    assert_non_null(here);
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        snprintf(path, sizeof(path), "configs/xtuner/%s.json", names[i]);
        memset(&c, 0, sizeof(c));
        memset(&named, 0, sizeof(named));
        load_file(&c, &source, path);
        st_config_source_free(source);
        load_file(&named, &source, names[i]);
        st_config_source_free(source);
        assert_memory_equal(&c, &named, sizeof(c));
    }
    scratch_open();
    scratch_put("deepspeed_zero3", "{\"zero_optimization\": {\"stage\": 1}}");
    assert_int_equal(chdir(scratch_dir), 0);
    load_file(&c, &source, "deepspeed_zero3");
    st_config_source_free(source);
    assert_int_equal(c.zero_stage, 1);
    load_file(&c, &source, "deepspeed_zero2");
    st_config_source_free(source);
    assert_int_equal(c.zero_stage, 2);
    assert_int_equal(chdir(here), 0);
    scratch_close();
    free(here);
}

TEST_GROUP(find_files, free_files);
