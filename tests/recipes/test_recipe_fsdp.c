/* test_recipe_fsdp.c - FSDP in trainers' files and in the variables of Accelerate's launcher: stage, tiers, checkpointing. */
#include "core/base/error.h"
#include "core/yaml/yaml.h"
#include "recipes/recipe_internal.h"
#include "tests/common/fault_walk.h"
#include "tests/common/scratch.h"
#include "tests/common/test.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define NAMES_MAX 12
#define FSDP      "ACCELERATE_USE_FSDP=true"
#define SIZES     "ACCELERATE_USE_PARALLELISM_CONFIG=true"
#define PAR       "PARALLELISM_CONFIG_"

/* What a configuration has become. */
struct placed {
    uint32_t stage;
    bool cpu; /* both tiers */
    strata_dtype dtype;
    bool recomputed;
};

static struct st_config c;
static struct st_config_source *source;

static int close_source(void **state)
{
    (void)state;
    st_config_source_free(source);
    source = NULL;
    return 0;
}

static strata_status load(const struct st_config_opts *opts, const struct strata_recipe *recipe, const char *const *variables)
{
    st_config_source_free(source);
    source = NULL;
    memset(&c, 0, sizeof(c));
    return st_recipe_config(&c, &source, opts, recipe, variables);
}

static void expect_placed(const char *what, const struct placed *want)
{
    const bool optimizer = c.optimizer_tier == STRATA_TIER_HOST, param = c.param_tier == STRATA_TIER_HOST;

    if (c.zero_stage != want->stage || optimizer != want->cpu || param != want->cpu || c.dtype != want->dtype ||
        (c.activations == ST_ACT_RECOMPUTED) != want->recomputed)
        fail_msg("%s: stage %u, cpu %d %d, dtype %d, activations %d", what, c.zero_stage, optimizer, param, (int)c.dtype,
                 (int)c.activations);
}

static const char *reason_of(const char *path)
{
    for (uint32_t i = 0; i < st_config_row_count(source); i++)
        if (strcmp(st_config_row_at(source, i)->path, path) == 0)
            return st_config_row_at(source, i)->reason;
    return NULL;
}

/* Files as trainers write them. */
TEST(golden_files_are_placed)
{
    static const struct {
        const char *name;
        bool whole_run;
        struct placed placed;
    } files[] = {
        {"fsdp1.yaml", false, {3, true, STRATA_BF16, true}},  {"fsdp2.yaml", false, {2, false, STRATA_BF16, false}},
        {"factory.yaml", true, {3, true, STRATA_BF16, true}}, {"trainer.yaml", true, {2, false, STRATA_F16, false}},
        {"xtuner.json", true, {3, true, STRATA_BF16, true}},
    };

    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
        struct st_config_opts opts = {.max_steps = 100};
        struct strata_recipe *recipe = NULL;
        char path[128];

        snprintf(path, sizeof(path), "tests/golden/recipes/fsdp/%s", files[i].name);
        if (files[i].whole_run)
            assert_int_equal(st_recipe_open(&recipe, &(struct st_recipe_input){.path = path}), STRATA_OK);
        else
            opts.file = path;
        if (load(&opts, recipe, NULL) != STRATA_OK)
            fail_msg("%s: %s", path, strata_last_error());
        expect_placed(path, &files[i].placed);
        st_recipe_close(recipe);
    }
}

struct row {
    const char *text;
    uint32_t stage;
    bool cpu;
};

static struct strata_recipe *read_text(const struct st_recipe_trainer *trainer, const char *before, const char *text)
{
    struct strata_recipe *r = NULL;
    st_json *root = NULL;
    char whole[1024];

    snprintf(whole, sizeof(whole), "%s%s\n", before, text);
    if (st_yaml_parse(&root, whole, strlen(whole), "r.yaml") != STRATA_OK)
        fail_msg("%s", strata_last_error());
    assert_int_equal(st_recipe_read(&r, trainer, root, &(struct st_recipe_input){.path = "r.yaml"}), STRATA_OK);
    return r;
}

static void expect_rows(const struct st_recipe_trainer *trainer, const char *before, const struct row *rows, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        struct strata_recipe *r = read_text(trainer, before, rows[i].text);
        const struct st_config_opts opts = {.max_steps = 100};

        if (load(&opts, r, NULL) != STRATA_OK)
            fail_msg("%s: %s", rows[i].text, strata_last_error());
        expect_placed(rows[i].text, &(struct placed){rows[i].stage, rows[i].cpu, c.dtype, c.activations == ST_ACT_RECOMPUTED});
        st_recipe_close(r);
    }
}

#define EXPECT_ROWS(trainer, before, rows) expect_rows(trainer, before, rows, sizeof(rows) / sizeof((rows)[0]))
#define TYPE                               "distributed_type: FSDP\nfsdp_config: {"
#define LF                                 "model_name_or_path: m\nstage: pt\nfinetuning_type: full\noutput_dir: out\n"

TEST(strategies_are_stages)
{
    static const struct row accelerate[] = {
        {"distributed_type: FSDP", 3, false},
        {"fsdp_config: {fsdp_sharding_strategy: SHARD_GRAD_OP}", 2, false},
        {TYPE "}", 3, false},
        {TYPE "fsdp_sharding_strategy: FULL_SHARD}", 3, false},
        {TYPE "fsdp_sharding_strategy: shard_grad_op}", 2, false},
        {TYPE "sharding_strategy: NO_SHARD}", 0, false},
        {TYPE "fsdp_sharding_strategy: HYBRID_SHARD}", 3, false},
        {TYPE "fsdp_sharding_strategy: HYBRID_SHARD_ZERO2}", 2, false},
        {TYPE "fsdp_sharding_strategy: 1}", 3, false},
        {TYPE "fsdp_sharding_strategy: 2}", 2, false},
        {TYPE "fsdp_sharding_strategy: '3'}", 0, false},
        {TYPE "fsdp_sharding_strategy: 4}", 3, false},
        {TYPE "fsdp_sharding_strategy: 5}", 2, false},
        {TYPE "fsdp_sharding_strategy: _HYBRID_SHARD_ZERO2}", 2, false},
        /* with 1 a strategy counts, and none is FULL_SHARD; 2 has true and false */
        {TYPE "fsdp_version: 1, fsdp_reshard_after_forward: SHARD_GRAD_OP}", 3, false},
        {TYPE "fsdp_reshard_after_forward: some}", 3, false},
        {TYPE "fsdp_reshard_after_forward: FULL_SHARD, fsdp_sharding_strategy: SHARD_GRAD_OP}", 2, false},
        {TYPE "fsdp_version: 2, fsdp_reshard_after_forward: 'off'}", 2, false},
        {TYPE "fsdp_version: 2, fsdp_reshard_after_forward: 1}", 3, false},
        {TYPE "fsdp_backward_prefetch: 1, fsdp_state_dict_type: sharded_state_dict, fsdp_use_orig_params: 'yes'}", 3, false},
        {TYPE "cpu_offload: true}", 3, false}, /* its key is offload_params */
        {TYPE "fsdp_reshard_after_forward: false}", 3, false},
        {TYPE "fsdp_version: 2}", 3, false},
        {TYPE "fsdp_version: '2', fsdp_reshard_after_forward: true}", 3, false},
        {TYPE "version: 2, reshard_after_forward: false}", 2, false},
        {TYPE "fsdp_version: 2, fsdp_sharding_strategy: SHARD_GRAD_OP}", 3, false},
        {TYPE "fsdp_offload_params: 'True'}", 3, true},
        {TYPE "fsdp_sharding_strategy: 2, offload_params: true}", 2, true},
        {"distributed_type: MULTI_GPU\nfsdp_config: {fsdp_sharding_strategy: 1, fsdp_offload_params: true}", 0, false},
        {"distributed_type: DEEPSPEED\ndeepspeed_config: {zero_stage: 1}\nfsdp_config: {fsdp_offload_params: true}", 1, false},
    };
    static const struct row factory[] = {
        {"fsdp: full_shard", 3, false},
        {"fsdp: FULL_SHARD auto_wrap", 3, false},
        {"fsdp: shard_grad_op offload", 2, true},
        {"fsdp: hybrid_shard auto_wrap", 3, false},
        {"fsdp: hybrid_shard_zero2", 2, false},
        {"fsdp: no_shard", 0, false},
        {"fsdp: offload auto_wrap", 3, true},
        {"fsdp: true", 3, false},
        {"fsdp: 'true'\nfsdp_config: {reshard_after_forward: false, cpu_offload: true}", 2, true},
        {"fsdp: full_shard\nfsdp_config: {fsdp_version: 1, reshard_after_forward: shard_grad_op}", 3, false},
        {"fsdp: no_shard\nfsdp_config: {version: 1}", 0, false},
        {"fsdp: true\nfsdp_config: {version: 1, sharding_strategy: SHARD_GRAD_OP}", 3, false},
        {"fsdp: full_shard shard_grad_op", 3, false}, /* the first */
        {"fsdp: [shard_grad_op, full_shard, offload]", 2, true},
        {"fsdp: full_shard\nfsdp_config: {fsdp_offload_params: true, activation_checkpointing_offload: true}", 3, false},
        {"fsdp: offload\nfsdp_config: {cpu_offload: false}", 3, false},
        {"fsdp: [full_shard, offload]", 3, true},
        {"fsdp: []\nfsdp_config: {cpu_offload: true}", 0, false},
        {"fsdp: false", 0, false},
        {"fsdp: ''", 0, false},
        {"fsdp_config: {min_num_params: 0, xla: false}", 0, false},
    };
    static const struct row xtuner[] = {
        {"fsdp_config: {}", 3, false},
        {"fsdp_config: {reshard_after_forward: false}", 2, false},
        {"fsdp_config: {cpu_offload: true, hsdp_sharding_size: 4}", 3, true},
        {"", 0, false},
    };

    EXPECT_ROWS(&st_recipe_accelerate, "", accelerate);
    EXPECT_ROWS(&st_recipe_llama_factory, LF, factory);
    EXPECT_ROWS(&st_recipe_xtuner, "load_from: m\n", xtuner);
}

struct bad_row {
    const char *text, *problem;
};

static void expect_problems(const struct st_recipe_trainer *trainer, const char *before, const struct bad_row *rows, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        struct strata_recipe *r = read_text(trainer, before, rows[i].text);
        const char *problem = st_recipe_problem_at(r, 0);

        if (problem == NULL || strstr(problem, rows[i].problem) == NULL)
            fail_msg("%s: %s, not %s", rows[i].text, problem, rows[i].problem);
        st_recipe_close(r);
    }
}

TEST(what_cannot_be_is_refused)
{
    static const struct bad_row accelerate[] = {
        {TYPE "fsdp_sharding_strategy: 6}", "r.yaml:2: fsdp_config.fsdp_sharding_strategy: must be FULL_SHARD"},
        {TYPE "fsdp_sharding_strategy: [FULL_SHARD]}", "or 1 to 5, not [FULL_SHARD]"},
        {TYPE "fsdp_version: 3}", "fsdp_config.fsdp_version: must be 1 or 2, not 3"},
        {TYPE "fsdp_version: 2, fsdp_reshard_after_forward: maybe}",
         "fsdp_reshard_after_forward: must be true or false with fsdp_version 2, not maybe"},
        {TYPE "fsdp_version: 2, fsdp_reshard_after_forward: FULL_SHARD}", "with fsdp_version 2, not FULL_SHARD"},
        {TYPE "fsdp_auto_wrap_policy: SIZE_BASED}",
         "fsdp_auto_wrap_policy: must be one of TRANSFORMER_BASED_WRAP, SIZE_BASED_WRAP, NO_WRAP, not \"SIZE_BASED\""},
        {TYPE "backward_prefetch: BACKWARD}", "backward_prefetch: must be one of BACKWARD_PRE"},
        {TYPE "fsdp_state_dict_type: WHOLE}", "fsdp_state_dict_type: must be one of FULL_STATE_DICT"},
        {TYPE "fsdp_forward_prefetch: maybe}", "fsdp_forward_prefetch: must be one of false"},
        {TYPE "fsdp_version: 2, fsdp_activation_checkpointing_offload: true}",
         "needs fsdp_version 2 and fsdp_activation_checkpointing true"},
        {TYPE "fsdp_activation_checkpointing: true, activation_checkpointing_offload: true}", "needs fsdp_version 2 and"},
        {TYPE "fsdp_ignored_modules: lm_head}", "fsdp_config.fsdp_ignored_modules: modules that are not shared"},
        {TYPE "fsdp_offload_params: 3}", "fsdp_config.fsdp_offload_params: must be true or false"},
        {TYPE "offload_params: true, fsdp_offload_params: true}", "is the same key as fsdp_config.offload_params"},
        {TYPE "fsdp_offload_param: true}", "the nearest is fsdp_config.fsdp_offload_params"},
        {"distributed_type: FSDP\nfsdp_config: /nowhere/fsdp.json", "fsdp_config: /nowhere/fsdp.json: No such file"},
        {"distributed_type: MULTI_XPU", "distributed_type: MULTI_XPU: Intel's GPUs are not in this version"},
        {"distributed_type: MULTI_NPU", "MULTI_NPU: Ascend's NPUs are not"},
        {"distributed_type: XLA", "XLA: TPUs are not"},
        {"distributed_type: TPU", "TPU: TPUs are not"},
        {"distributed_type: TP", "TP: matrices are not split"},
        {"distributed_type: MULTI_HPU", "MULTI_HPU: such devices are not"},
        {"distributed_type: MULTI_GPU\nmixed_precision: fp8", "mixed_precision: fp8: 8-bit matmuls"},
        {"distributed_type: MULTI_GPU\nnum_processes: 4\ngpu_ids: 0,1",
         "gpu_ids: names 2, and num_processes asks for 4 on a machine: make them equal"},
        {"distributed_type: MULTI_GPU\nnum_processes: 4\nnum_machines: 2\ngpu_ids: [0, 1, 2]", "gpu_ids: names 3, and"},
        {"distributed_type: 'NO'\nnum_processes: 2\ngpu_ids: 0", "gpu_ids: names 1, and num_processes asks for 2"},
        {TYPE "}\nparallelism_config: {parallelism_config_tp_size: 2}",
         "parallelism_config.parallelism_config_tp_size: 2 ranks would train the same rows: set it to 1"},
        {TYPE "}\nparallelism_config: {cp_size: 8}", "cp_size: 8 ranks would train the same rows"},
        {TYPE "}\nparallelism_config: {sp_size: 4}", "sp_size: 4 ranks would train the same rows"},
        {TYPE "}\nparallelism_config: {tp_size: 0}", "tp_size: 0 is out of range"},
        {TYPE "}\nnum_processes: 8\nparallelism_config: {dp_replicate_size: 2, dp_shard_size: 2}",
         "dp_shard_size: dp_replicate_size 2 x dp_shard_size 2 is 4, and num_processes is 8: make them equal"},
        {TYPE "}\nnum_processes: 8\nparallelism_config: {dp_replicate_size: 2}", "dp_replicate_size 2 x dp_shard_size 1 is 2"},
    };
    static const struct bad_row factory[] = {
        {"fsdp: full_shards", "r.yaml:5: fsdp: \"full_shards\" is unknown"},
        {"fsdp: [full_shard, 3]", "fsdp: must be true, false, words or a list of them"},
        {"fsdp: 3", "fsdp: must be true, false"},
        {"fsdp: true\nfsdp_config: {xla: true}", "fsdp_config.xla: TPUs are not"},
        {"fsdp: true\nfsdp_config: {version: 3}", "must be 1 or 2, not 3"},
        {"fsdp: true\nfsdp_config: {version: 1, reshard_after_forward: true}", "must be a name of fsdp_sharding_strategy"},
        {"fsdp: true\nfsdp_config: {reshard_after_forward: shard_grad_op}", "must be true or false"},
    };
    static const struct bad_row xtuner[] = {
        {"fsdp_config: {tp_size: 2}", "fsdp_config.tp_size: matrices are not split"},
        {"fsdp_config: {ep_size: 2}", "fsdp_config.ep_size: experts are not split"},
        {"fsdp_config: {param_dtype: float32}", "fsdp_config.param_dtype: float32: XTuner's files train in bf16"},
        {"fsdp_config: {fp32_lm_head: true}", "fsdp_config.fp32_lm_head: "},
    };

    expect_problems(&st_recipe_accelerate, "", accelerate, sizeof(accelerate) / sizeof(accelerate[0]));
    expect_problems(&st_recipe_llama_factory, LF, factory, sizeof(factory) / sizeof(factory[0]));
    expect_problems(&st_recipe_xtuner, "load_from: m\n", xtuner, sizeof(xtuner) / sizeof(xtuner[0]));
}

/* Sizes of 1, and as many ids as there are processes, are as it is here. */
TEST(sizes_that_agree_pass)
{
    static const struct row rows[] = {
        {TYPE "}\nnum_processes: 4\nparallelism_config: {tp_size: 1, cp_size: 1, sp_size: 1, cp_backend: torch}", 3, false},
        {TYPE "}\nnum_processes: 4\nparallelism_config: {dp_replicate_size: 2, dp_shard_size: 2}", 3, false},
        {TYPE "}\nparallelism_config: {dp_shard_size: 16}", 3, false},
        {"distributed_type: MULTI_GPU\nnum_processes: 4\ngpu_ids: all", 0, false},
        {"distributed_type: MULTI_GPU\nnum_processes: 4\nnum_machines: 2\ngpu_ids: 2,3", 0, false},
        {"distributed_type: 'NO'\nnum_processes: 1\ngpu_ids: 3", 0, false},
        {"distributed_type: MULTI_GPU\nnum_processes: -1\ngpu_ids: 0,1", 0, false},
    };

    EXPECT_ROWS(&st_recipe_accelerate, "", rows);
}

/* What has no effect says why; what is placed otherwise is told at each start. */
TEST(keys_say_what_became_of_them)
{
    static const struct {
        const char *text, *path, *reason;
    } rows[] = {
        {TYPE "fsdp_version: 2, fsdp_sharding_strategy: NO_SHARD}", "fsdp_config.fsdp_sharding_strategy",
         "not used: fsdp_version 2"},
        {TYPE "fsdp_reshard_after_forward: true}", "fsdp_config.fsdp_reshard_after_forward",
         "not used, as there: fsdp_version 1 has"},
        {TYPE "fsdp_sharding_strategy: HYBRID_SHARD}", "fsdp_config.fsdp_sharding_strategy", "split over all ranks"},
        {TYPE "backward_prefetch: BACKWARD_PRE}", "fsdp_config.backward_prefetch", "the plan decides when parts are gathered"},
        {TYPE "fsdp_activation_checkpointing: true}", "fsdp_config.fsdp_activation_checkpointing",
         "strata.activations = \"recomputed\""},
        {TYPE "}\nnum_processes: 4", "num_processes", "the launcher says which ranks there are"},
        {"distributed_type: MULTI_GPU\nfsdp_config: {fsdp_offload_params: true}", "fsdp_config.fsdp_offload_params",
         "not used: distributed_type is not FSDP"},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct strata_recipe *r = read_text(&st_recipe_accelerate, "", rows[i].text);
        const struct st_config_opts opts = {0};
        const char *reason;

        assert_int_equal(load(&opts, r, NULL), STRATA_OK);
        reason = reason_of(rows[i].path);
        if (reason == NULL || strstr(reason, rows[i].reason) == NULL)
            fail_msg("%s: %s, not %s", rows[i].text, reason, rows[i].reason);
        st_recipe_close(r);
    }
}

struct launched {
    const char *file; /* NULL: none is given */
    const char *variables[NAMES_MAX];
};

static strata_status launch(const struct launched *l)
{
    const struct st_config_opts opts = {.file = l->file != NULL ? scratch_path("ds.json") : NULL};

    if (l->file != NULL)
        scratch_put("ds.json", l->file);
    return load(&opts, NULL, l->variables);
}

TEST_SETUP(the_launchers_variables, scratch_create, scratch_remove)
{
    static const struct {
        struct launched launched;
        struct placed placed;
    } rows[] = {
        {{NULL, {FSDP}}, {3, false, STRATA_F32, false}},
        /* as the launcher sets them, whatever the version is */
        {{NULL,
          {FSDP, "FSDP_VERSION=1", "FSDP_SHARDING_STRATEGY=FULL_SHARD", "FSDP_RESHARD_AFTER_FORWARD=true",
           "FSDP_OFFLOAD_PARAMS=false", "FSDP_MIN_NUM_PARAMS=100000000", "FSDP_ACTIVATION_CHECKPOINTING=false"}},
         {3, false, STRATA_F32, false}},
        {{NULL, {FSDP, "FSDP_VERSION=2", "FSDP_SHARDING_STRATEGY=FULL_SHARD", "FSDP_RESHARD_AFTER_FORWARD=false"}},
         {2, false, STRATA_F32, false}},
        {{NULL, {FSDP, "FSDP_SHARDING_STRATEGY=3", "FSDP_OFFLOAD_PARAMS=true", "ACCELERATE_MIXED_PRECISION=bf16"}},
         {0, true, STRATA_BF16, false}},
        {{NULL, {FSDP, "FSDP_VERSION=2", "FSDP_ACTIVATION_CHECKPOINTING=true", "FSDP_ACTIVATION_CHECKPOINTING_OFFLOAD=true"}},
         {3, false, STRATA_F32, true}},
        {{NULL, {"ACCELERATE_USE_FSDP=false", "FSDP_SHARDING_STRATEGY=2"}}, {0, false, STRATA_F32, false}},
        /* what nobody asked for is the file's to say */
        {{"{\"zero_optimization\": {\"stage\": 1}, \"train_batch_size\": 1}", {FSDP, "FSDP_SHARDING_STRATEGY=FULL_SHARD"}},
         {1, false, STRATA_F32, false}},
        {{NULL, {FSDP, "FSDP_VERSION=2", SIZES, PAR "DP_SHARD_SIZE=2", PAR "TP_SIZE=1", "WORLD_SIZE=2"}},
         {3, false, STRATA_F32, false}},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct placed want = rows[i].placed;

        if (launch(&rows[i].launched) != STRATA_OK)
            fail_msg("row %zu: %s", i, strata_last_error());
        if (want.dtype == STRATA_F32)
            want.dtype = c.dtype; /* none is named */
        expect_placed(rows[i].launched.variables[0], &want);
    }
    assert_int_equal(launch(&(struct launched){.variables = {FSDP}}), STRATA_OK);
    assert_non_null(strstr(reason_of("ACCELERATE_USE_FSDP"), "zero_optimization.stage 3")); /* nothing else says it */
    assert_int_equal(launch(&(struct launched){.variables = {FSDP, "ACCELERATE_GRADIENT_ACCUMULATION_STEPS=4"}}), STRATA_OK);
    assert_int_equal(c.grad_accum, 4); /* it is read with FSDP, too */
}

TEST_SETUP(bad_variables_are_named, scratch_create, scratch_remove)
{
    static const struct {
        struct launched launched;
        const char *sentence;
    } rows[] = {
        {{NULL, {FSDP, "FSDP_SHARDING_STRATEGY=SOME"}}, "environment: FSDP_SHARDING_STRATEGY: must be FULL_SHARD"},
        {{NULL, {FSDP, "FSDP_IGNORED_MODULES=lm_head"}}, "environment: FSDP_IGNORED_MODULES: modules that are not shared"},
        {{"{\"zero_optimization\": {\"stage\": 1}, \"train_batch_size\": 1}", {FSDP, "FSDP_SHARDING_STRATEGY=SHARD_GRAD_OP"}},
         "FSDP_SHARDING_STRATEGY asks for zero_optimization.stage = 2, and it is 1 in /"},
        {{NULL, {FSDP, SIZES, PAR "TP_SIZE=2", "WORLD_SIZE=2"}},
         "environment: " PAR "TP_SIZE: 2 ranks would train the same rows"},
        {{NULL, {FSDP, SIZES, PAR "CP_SIZE=2"}}, PAR "CP_SIZE: 2 ranks"},
        {{NULL, {FSDP, SIZES, PAR "SP_SIZE=2"}}, PAR "SP_SIZE: 2 ranks"},
        {{NULL, {FSDP, SIZES, PAR "DP_SHARD_SIZE=2", "WORLD_SIZE=4"}},
         PAR "DP_SHARD_SIZE: dp_replicate_size 1 x dp_shard_size 2 is 2, and WORLD_SIZE is 4"},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        if (launch(&rows[i].launched) != STRATA_E_CONFIG || strstr(strata_last_error(), rows[i].sentence) == NULL)
            fail_msg("not \"%s\": %s", rows[i].sentence, strata_last_error());
}

TEST(single_failure_walk)
{
    struct fault_walk walk = {.result = -EIO};

    while (fault_walk_next(&walk)) {
        struct strata_recipe *r = NULL;
        const strata_status st = st_recipe_open(&r, &(struct st_recipe_input){.path = "tests/golden/recipes/fsdp/factory.yaml"});

        fault_walk_end(&walk, st);
        assert_int_equal(r != NULL, st == STRATA_OK);
        st_recipe_close(r);
    }
    assert_true(walk.runs >= 50);
}

TEST_GROUP(NULL, close_source);
