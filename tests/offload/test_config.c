/* tests/offload/test_config.c - reading configs: defaults, "auto", rules between keys, overrides, round trips, failures. */
#include "tests/offload/config_fixture.h"

#include "offload/config/config_options.h"
#include "offload/config/config_source.h"
#include "tests/common/fault_walk.h"

#include <errno.h>
#include <math.h>

#define OVERRIDES_MAX 4

/* Without a file. */
static struct st_config load_ours(const char *override)
{
    const struct st_config_opts opts = {.overrides = &override, .override_count = override != NULL ? 1 : 0};
    struct st_config_source *source;
    struct st_config config;

    assert_int_equal(st_config_load(&config, &source, &opts), STRATA_OK);
    st_config_source_free(source);
    return config;
}

TEST(defaults)
{
    const struct st_config c = load_ours(NULL);

    assert_int_equal(c.train_batch, 1);
    assert_int_equal(c.micro_batch, 1);
    assert_int_equal(c.grad_accum, 1);
    assert_int_equal(c.dtype, STRATA_BF16);
    assert_true(c.gradient_clipping == 1 && c.check_grad_overflow);
    assert_int_equal(c.optimizer.type, STRATA_ADAMW);
    assert_true(c.optimizer.lr == 5e-5 && c.optimizer.beta1 == 0.9 && c.optimizer.beta2 == 0.999 && c.optimizer.eps == 1e-8 &&
                c.optimizer.weight_decay == 0);
    assert_true(c.optimizer.bias_correction && !c.decay_all);
    assert_int_equal(c.schedule.type, ST_LR_CONSTANT);
    assert_int_equal(c.zero_stage, 0);
    assert_int_equal(c.optimizer_tier, STRATA_TIER_DEVICE);
    assert_int_equal(c.param_tier, STRATA_TIER_DEVICE);
    assert_int_equal(c.nvme_dir_count, 0);
    assert_int_equal(c.sub_group_size, 1000000000);
    assert_true(isnan(c.update_ratio));
    assert_int_equal(c.accumulation, ST_ACCUMULATE_AUTO);
    assert_int_equal(c.block_bytes, 1 << 20);
    assert_int_equal(c.queue_depth, 0);
    assert_true(c.device_memory == ST_AUTO_BYTES && c.host_memory == ST_AUTO_BYTES && c.cache == ST_AUTO_BYTES);
    assert_true(c.chunk_size == ST_AUTO_BYTES);
    assert_int_equal(c.update, ST_UPDATE_AUTO);
    assert_int_equal(c.activations, ST_ACT_AUTO);
    assert_int_equal(c.activation_tier, STRATA_TIER_COUNT);
    assert_int_equal(c.threads, 0);
    assert_string_equal(c.io_method, "auto");
    assert_string_equal(c.isa, "auto");
    assert_int_equal(c.steps_per_print, 0);
}

TEST(all_problems_are_reported_at_once)
{
    static const char text[] = "{\"amp\": {\"enabled\": true}, \"optimizer\": {\"type\": \"Lamb\", \"params\": {\"lr\": \"x\", "
                               "\"max_coeff\": 1, \"_\": 2}}, "
                               "\"train_batch_size\": 3, \"train_micro_batch_size_per_gpu\": 2, \"what\": 1}";
    struct st_config_source *source;
    struct st_config config = {.threads = 77};

    assert_int_equal(config_load(&config, &source, text, NULL), STRATA_E_CONFIG);
    assert_int_equal(config.threads, 77);                 /* outputs are written on success only */
    assert_int_equal(st_config_problem_count(source), 4); /* params of a rejected optimizer are not evaluated */
    assert_non_null(strstr(strata_last_error(), "(and 3 more)"));
    assert_non_null(strstr(strata_last_error(), "t: "));
    assert_int_equal(find_row(source, "optimizer.params.lr")->verdict, ST_VERDICT_NOTICE);
    st_config_source_free(source);
}

TEST(unknown_keys_can_be_allowed)
{
    const char *override = "zero_optimization.stge=2";
    const struct st_config_opts opts = {.overrides = &override, .override_count = 1, .allow_unknown = true};
    struct st_config_source *source;
    struct st_config config;

    assert_int_equal(st_config_load_text(&config, &source, "{\"stepps\": 1}", 13, "t", &opts), STRATA_OK);
    assert_int_equal(find_row(source, "stepps")->verdict, ST_VERDICT_NOTICE);
    assert_int_equal(find_row(source, "zero_optimization.stge")->origin, ST_ORIGIN_COMMAND_LINE);
    st_config_source_free(source);
}

TEST(auto_is_the_default_everywhere)
{
    static const char text[] =
        "{\"train_batch_size\": \"auto\", \"optimizer\": {\"type\": \"auto\", \"params\": {\"lr\": \"auto\", \"betas\": "
        "\"auto\"}},"
        "\"scheduler\": {\"type\": \"WarmupDecayLR\", \"params\": {\"warmup_num_steps\": \"auto\", \"warmup_max_lr\": \"auto\", "
        "\"total_num_steps\": \"auto\"}}, \"fp16\": {\"enabled\": \"auto\"}, \"bf16\": {\"enabled\": \"auto\"}, "
        "\"zero_optimization\": {\"stage\": \"auto\", \"sub_group_size\": \"auto\", \"offload_optimizer\": {\"ratio\": "
        "\"auto\"}}, "
        "\"gradient_clipping\": \"auto\", "
        "\"aio\": \"auto\", \"strata\": {\"cache\": \"auto\", \"update\": \"auto\", \"activation_tier\": \"auto\"}}";
    struct st_config_source *source;
    const struct st_config_opts opts = {.max_steps = 500};
    struct st_config c;

    assert_int_equal(st_config_load_text(&c, &source, text, strlen(text), "t", &opts), STRATA_OK);
    assert_true(c.optimizer.lr == 5e-5 && c.optimizer.beta2 == 0.999 && c.gradient_clipping == 1);
    assert_int_equal(c.dtype, STRATA_BF16);
    assert_int_equal(c.schedule.warmup_steps, 0);
    assert_true(isnan(c.schedule.warmup_max_lr) && isnan(c.update_ratio));
    assert_int_equal(c.schedule.total_steps, 500);
    assert_int_equal(c.activation_tier, STRATA_TIER_COUNT);
    assert_int_equal(find_row(source, "optimizer.params.lr")->origin, ST_ORIGIN_AUTO);
    assert_string_equal(find_row(source, "optimizer.params.lr")->value, "5e-05");
    assert_int_equal(find_row(source, "scheduler.params.total_num_steps")->origin, ST_ORIGIN_DERIVED);
    assert_int_equal(find_row(source, "zero_optimization.stage")->origin, ST_ORIGIN_AUTO);
    assert_int_equal(find_row(source, "aio.queue_depth")->origin, ST_ORIGIN_DEFAULT);
    st_config_source_free(source);
}

TEST(numbers_and_sizes)
{
    const struct st_config c =
        load_good("{\"zero_optimization\": {\"sub_group_size\": 5e8}, \"train_batch_size\": 8.0, \"strata\": {\"device_memory\": "
                  "\"200MiB\", \"host_memory\": 1e9, \"cache\": 0, \"chunk_size\": 5e6, \"isa\": \"AVX2\"}}",
                  NULL);

    assert_int_equal(c.sub_group_size, 500000000);
    assert_int_equal(c.train_batch, 8);
    assert_int_equal(c.device_memory, 200u << 20);
    assert_int_equal(c.host_memory, 1000000000);
    assert_int_equal(c.cache, 0);
    assert_int_equal(c.chunk_size, 5000000 / 16384 * 16384);
    assert_string_equal(c.isa, "avx2");
    assert_true(load_good("{\"zero_optimization\": {\"offload_optimizer\": {\"ratio\": 0.25}}}", NULL).update_ratio == 0.25);
    assert_true(load_good("{\"zero_optimization\": {\"sub_group_size\": 40000}}", NULL).chunk_size == ST_AUTO_BYTES);
    assert_int_equal(load_good("{\"zero_optimization\": {\"sub_group_size\": 40000}}", "strata.chunk_size=50000").chunk_size,
                     32768);
}

/* Left out of a file, or named in none: no precision, so that nothing is cast. */
TEST(precision)
{
    static const char *const stored[] = {"{}", "{\"bf16\": {}}", "{\"fp16\": {\"enabled\": false}}", "{\"bf16\": null}"};

    assert_int_equal(load_good("{\"bf16\": {\"enabled\": false}}", NULL).dtype, STRATA_F32);
    assert_int_equal(load_good("{\"bf16\": {\"enabled\": true}, \"fp16\": {\"enabled\": false}}", NULL).dtype, STRATA_BF16);
    for (size_t i = 0; i < sizeof(stored) / sizeof(stored[0]); i++)
        assert_int_equal(load_good(stored[i], NULL).dtype, STRATA_DTYPE_INVALID);
    assert_int_equal(load_good("{\"fp16\": {\"enabled\": false}, \"bf16\": {\"enabled\": \"auto\"}}", NULL).dtype, STRATA_BF16);
    assert_int_equal(load_good("{\"bf16\": null, \"fp16\": {\"enabled\": \"auto\"}}", NULL).dtype, STRATA_BF16);
    assert_int_equal(load_good("{\"bf16\": {\"enabled\": true}}", "bfloat16.enabled=false").dtype, STRATA_F32);
    assert_int_equal(load_ours("fp16.enabled=false").dtype, STRATA_BF16);
    assert_int_equal(load_ours("bf16.enabled=false").dtype, STRATA_F32);
}

static struct st_config load_auto(const struct st_field *field)
{
    char override[160];

    snprintf(override, sizeof(override), "%s=auto", field->path);
    return load_ours(override);
}

static bool same_text(const struct st_field *field, const struct st_config *a, const struct st_config *b)
{
    char first[ST_CONFIG_DIRS_MAX * ST_CONFIG_PATH_MAX], second[sizeof(first)];

    st_value_text(first, sizeof(first), a, field);
    st_value_text(second, sizeof(second), b, field);
    return strcmp(first, second) == 0;
}

/* "auto" is ours everywhere; left out of a file, a key of speed or place is "auto", and one that changes results is DeepSpeed's.
 */
TEST(absent_keys)
{
    const struct st_config none = load_ours(NULL), empty = load_good("{}", NULL);
    const struct st_field *f;
    uint32_t differ = 0;

    for (uint32_t i = 0; (f = st_field_at(i)) != NULL; i++) {
        struct st_config with_auto;

        if (f->bind == ST_BIND_NONE || !st_field_applies(f, &none))
            continue;
        with_auto = load_auto(f);
        if (!same_text(f, &none, &with_auto) || (st_field_changes(f) != ST_CHANGES_RESULTS && !same_text(f, &none, &empty)))
            fail_msg("%s", f->path);
        differ += !same_text(f, &none, &empty);
    }
    assert_int_equal(differ, 1); /* bf16.enabled: of the others, ours are DeepSpeed's */
}

/* A dynamic scale may halve all the way down, and use up its hysteresis, before a step counts. */
TEST(skipped_steps_have_a_limit)
{
    assert_int_equal(load_ours(NULL).max_skipped, 8);
    assert_int_equal(load_good("{\"strata\": {\"max_skipped\": \"auto\"}}", NULL).max_skipped, 8);
    assert_int_equal(load_good("{\"strata\": {\"max_skipped\": 0}}", NULL).max_skipped, 0);
    assert_int_equal(load_ours("fp16.enabled=true").max_skipped, 16 + 2 + 8);
    assert_int_equal(load_good("{\"fp16\": {\"enabled\": true, \"loss_scale\": 128}}", NULL).max_skipped, 8);
    assert_int_equal(load_good("{\"fp16\": {\"enabled\": true, \"hysteresis\": 4294967295}}", NULL).max_skipped, UINT32_MAX);
    assert_int_equal(load_good("{\"fp16\": {\"enabled\": true}, \"strata\": {\"max_skipped\": 3}}", NULL).max_skipped, 3);
}

/* Either key says how sums travel, and both say it afterwards; where both are given they must agree. */
TEST(the_wire_has_two_names)
{
    static const char *const dtypes[] = {"fp32", "bf16"};

    assert_int_equal(load_ours(NULL).wire, ST_WIRE_F32);
    for (int w = -1; w < 2; w++)
        for (int c = -1; c < 2; c++) {
            char text[256], wire[64] = "", communication[64] = "";
            struct st_config_source *source;
            struct st_config config;
            const int wanted = w >= 0 ? w : c >= 0 ? c : ST_WIRE_F32;
            strata_status st;

            if (w >= 0)
                snprintf(wire, sizeof(wire), ", \"strata\": {\"wire\": \"%s\"}", dtypes[w]);
            if (c >= 0)
                snprintf(communication, sizeof(communication), ", \"communication_data_type\": \"%s\"", dtypes[c]);
            snprintf(text, sizeof(text), "{\"train_batch_size\": 1%s%s}", wire, communication);
            st = config_load(&config, &source, text, NULL);
            st_config_source_free(source);
            assert_int_equal(st, w >= 0 && c >= 0 && w != c ? STRATA_E_CONFIG : STRATA_OK);
            if (st == STRATA_OK && ((int)config.wire != wanted || (int)config.communication != wanted))
                fail_msg("%s: %d and %d", text, (int)config.wire, (int)config.communication);
        }
}

TEST(absent_clipping_is_announced)
{
    static const char *const texts[] = {"{}", "{\"gradient_clipping\": null}", "{\"gradient_clipping\": 1}",
                                        "{\"gradient_clipping\": \"auto\"}"};

    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        struct st_config_source *source;
        struct st_config config;

        assert_int_equal(config_load(&config, &source, texts[i], NULL), STRATA_OK);
        assert_true(config.gradient_clipping == 1);
        assert_int_equal(find_row(source, "gradient_clipping")->announced, i < 2);
        st_config_source_free(source);
    }
}

TEST(optimizer_modes)
{
    struct st_config c;

    assert_int_equal(load_good("{\"optimizer\": {\"type\": \"Adam\"}}", NULL).optimizer.type, STRATA_ADAMW);
    assert_int_equal(
        load_good("{\"optimizer\": {\"type\": \"adam\", \"params\": {\"adam_w_mode\": false}}}", NULL).optimizer.type,
        STRATA_ADAM);
    assert_int_equal(
        load_good("{\"optimizer\": {\"type\": \"AdamW\", \"params\": {\"adam_w_mode\": false}}}", NULL).optimizer.type,
        STRATA_ADAMW);
    assert_true(load_good("{\"optimizer\": {\"type\": \"AdamW\"}}", NULL).optimizer.lr == 1e-3);
    assert_true(load_good("{\"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": \"auto\"}}}", NULL).optimizer.lr == 5e-5);
    c = load_good("{\"optimizer\": {\"params\": {\"lr\": 3e-4, \"betas\": [0.8, 0.95], \"eps\": 1e-6, \"weight_decay\": 0.1, "
                  "\"bias_correction\": false}}}",
                  NULL);
    assert_true(c.optimizer.lr == 3e-4 && c.optimizer.beta1 == 0.8 && c.optimizer.beta2 == 0.95 && c.optimizer.eps == 1e-6 &&
                c.optimizer.weight_decay == 0.1);
    assert_false(c.optimizer.bias_correction);
}

TEST(schedules)
{
    struct st_config c;

    c = load_good("{\"scheduler\": {\"type\": \"WarmupLR\", \"params\": {\"warmup_min_lr\": 1e-5, \"warmup_type\": \"linear\"}}}",
                  NULL);
    assert_int_equal(c.schedule.type, ST_LR_WARMUP);
    assert_true(c.schedule.warmup_min_lr == 1e-5 && isnan(c.schedule.warmup_max_lr) && !c.schedule.warmup_log);
    assert_int_equal(c.schedule.warmup_steps, 1000);
    c = load_good("{\"scheduler\": {\"type\": \"WarmupDecayLR\", \"params\": {\"total_num_steps\": 10}}}", NULL);
    assert_int_equal(c.schedule.type, ST_LR_WARMUP_DECAY);
    assert_true(c.schedule.warmup_max_lr == 1e-3 && c.schedule.warmup_log);
    assert_int_equal(c.schedule.total_steps, 10);
    c = load_good("{\"scheduler\": {\"type\": \"WarmupLR\"}}", "scheduler=null");
    assert_int_equal(c.schedule.type, ST_LR_CONSTANT);
    c = load_good("{}", "scheduler.params.warmup_num_steps=20");
    assert_int_equal(c.schedule.type, ST_LR_WARMUP);
    assert_int_equal(c.schedule.warmup_steps, 20);
    c = load_good("{\"scheduler\": {\"params\": {\"warmup_num_steps\": 20}}}", NULL);
    assert_int_equal(c.schedule.type, ST_LR_CONSTANT);
    assert_int_equal(c.schedule.warmup_steps, 0);
}

TEST(tiers_and_directories)
{
    struct st_config c;

    assert_int_equal(load_good("{\"zero_optimization\": true}", NULL).zero_stage, 1);
    assert_int_equal(load_good("{\"zero_optimization\": false}", NULL).zero_stage, 0);
    assert_int_equal(load_good("{\"zero_optimization\": {\"cpu_offload\": true}}", NULL).optimizer_tier, STRATA_TIER_HOST);
    assert_int_equal(
        load_good("{\"zero_optimization\": {\"cpu_offload\": true, \"offload_optimizer\": {\"device\": \"none\"}}}", NULL)
            .optimizer_tier,
        STRATA_TIER_DEVICE);
    assert_int_equal(load_good("{\"zero_optimization\": {\"cpu_offload_param\": true}}", NULL).param_tier, STRATA_TIER_HOST);
    c = load_good(
        "{\"zero_optimization\": {\"stage\": 3, \"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": \"/a , /b \"}, "
        "\"offload_param\": {\"device\": \"nvme\", \"nvme_path\": [\"/b\", \" /c,d \"]}}}",
        NULL);
    assert_int_equal(c.optimizer_tier, STRATA_TIER_NVME);
    assert_int_equal(c.param_tier, STRATA_TIER_NVME);
    assert_int_equal(c.nvme_dir_count, 3);
    assert_string_equal(c.nvme_dirs[0], "/a");
    assert_string_equal(c.nvme_dirs[1], "/b");
    assert_string_equal(c.nvme_dirs[2], " /c,d ");
    c = load_good("{\"zero_optimization\": {\"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": \"/a\"}}}",
                  "strata.nvme=/x");
    assert_int_equal(c.nvme_dir_count, 1);
    assert_string_equal(c.nvme_dirs[0], "/x");
    c = load_good("{\"zero_optimization\": {\"offload_optimizer\": {\"device\": \"cpu\", \"nvme_path\": \"/a\"}}}", NULL);
    assert_int_equal(c.nvme_dir_count, 0);
    c = load_good("{\"activation_checkpointing\": {\"cpu_checkpointing\": true}}", NULL);
    assert_int_equal(c.activation_tier, STRATA_TIER_HOST);
    c = load_good("{\"activation_checkpointing\": {\"cpu_checkpointing\": true}}", "strata.activation_tier=device");
    assert_int_equal(c.activation_tier, STRATA_TIER_DEVICE);
}

TEST(overrides_win_and_keep_their_origin)
{
    static const char *const overrides[] = {"optimizer.params.lr=1e-4", "strata.device_memory=1GiB",
                                            "strata.nvme=[\"/a\",\"/b\"]",
                                            "zero_optimization.offload_optimizer={\"device\":\"nvme\"}"};
    static const char text[] = "{\"optimizer\": {\"params\": {\"lr\": 1}}}";
    const struct st_config_opts opts = {.overrides = overrides, .override_count = OVERRIDES_MAX};
    struct st_config_source *source;
    struct st_config c;

    assert_int_equal(st_config_load_text(&c, &source, text, strlen(text), "t", &opts), STRATA_OK);
    assert_true(c.optimizer.lr == 1e-4);
    assert_int_equal(c.device_memory, 1 << 30);
    assert_int_equal(c.nvme_dir_count, 2);
    assert_int_equal(c.optimizer_tier, STRATA_TIER_NVME);
    assert_int_equal(find_row(source, "optimizer.params.lr")->origin, ST_ORIGIN_COMMAND_LINE);
    assert_int_equal(find_row(source, "zero_optimization.offload_optimizer.device")->origin, ST_ORIGIN_COMMAND_LINE);
    assert_int_equal(find_row(source, "strata.cache")->origin, ST_ORIGIN_DEFAULT);
    st_config_source_free(source);
    assert_string_equal(load_good("{}", "strata.nvme=123").nvme_dirs[0], "123");
    assert_true(load_good("{\"strata\": {\"cache\": 5}}", "strata.cache=null").cache == ST_AUTO_BYTES);
}

/* Where checkpoints go, how often and how many; a name that is a number stays a name. */
TEST(checkpoints_are_configured)
{
    struct st_config c = load_good("{}", NULL);
    struct st_policy policy;
    char text[ST_CONFIG_PATH_MAX + 64];

    st_config_policy(&policy, &c);
    assert_true(c.save[0] == '\0' && c.save_every == 0 && c.keep == 2 && policy.sets == 0);
    c = load_good("{\"strata\": {\"save\": \"/ck\", \"save_every\": 10, \"keep\": 5}}", NULL);
    st_config_policy(&policy, &c);
    assert_string_equal(c.save, "/ck");
    assert_true(c.save_every == 10 && c.keep == 5);
    assert_int_equal(policy.sets, st_sets_of_keep(5));
    assert_string_equal(load_good("{}", "strata.save=123").save, "123");
    assert_string_equal(load_good("{\"strata\": {\"save\": \"/ck\"}}", "strata.save=").save, "");
    snprintf(text, sizeof(text), "{\"strata\": {\"save\": \"%0*d\"}}", ST_CONFIG_PATH_MAX - 1, 7);
    assert_int_equal(strlen(load_good(text, NULL).save), ST_CONFIG_PATH_MAX - 1);
}

/* Without a tier on NVMe what is saved lies in the checkpoints' directory; with one, where the tier is. */
TEST(sets_lie_with_the_tier_or_the_checkpoints)
{
    static const char disk[] = "{\"zero_optimization\": {\"stage\": 3, \"offload_optimizer\": {\"device\": \"nvme\"}}, "
                               "\"strata\": {\"nvme\": \"/a,/b\", \"save\": \"/ck\"}}";
    const struct st_config on_disk = load_good(disk, NULL),
                           in_memory = load_good("{\"strata\": {\"nvme\": \"/a,/b\", \"save\": \"/ck\"}}", NULL);
    struct st_engine_opts engine;
    struct st_machine_opts machine;

    st_config_engine_opts(&engine, &on_disk);
    assert_int_equal(engine.nvme.dir_count, 2);
    assert_string_equal(engine.nvme.dirs[0], "/a");
    st_config_engine_opts(&engine, &in_memory);
    assert_int_equal(engine.nvme.dir_count, 1);
    assert_string_equal(engine.nvme.dirs[0], "/ck");
    st_config_machine_opts(&machine, &in_memory);
    assert_int_equal(machine.nvme.dir_count, 1);
    assert_string_equal(machine.nvme.dirs[0], "/ck");
}

static char *write_json(const struct st_config *config)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *file = open_memstream(&text, &bytes);

    assert_non_null(file);
    st_config_write_json(config, file);
    assert_int_equal(fclose(file), 0);
    return text;
}

TEST(round_trips)
{
    static const char *const texts[] = {
        "{}",
        "{\"optimizer\": {\"type\": \"Adam\", \"params\": {\"adam_w_mode\": false, \"lr\": 0.1, \"betas\": [0.1, 0.2]}}}",
        "{\"optimizer\": {\"type\": \"adagrad\", \"params\": {\"lr\": \"auto\", \"weight_decay\": 0.1}}}",
        "{\"optimizer\": {\"type\": \"Adagrad\"}, \"scheduler\": {\"type\": \"OneCycle\", \"params\": {\"cycle_min_lr\": 0.1, "
        "\"cycle_max_lr\": 1}}}",
        "{\"optimizer\": {\"type\": \"Lion\", \"params\": {\"betas\": [0.95, 0.98], \"weight_decay\": 0.1}}}",
        "{\"optimizer\": {\"type\": \"SGD\", \"params\": {\"momentum\": 0.9, \"dampening\": 0.1}}}",
        "{\"optimizer\": {\"type\": \"SGD\", \"params\": {\"momentum\": 0.9, \"nesterov\": true, \"lr\": 0.1}}}",
        "{\"bf16\": {\"enabled\": false, \"check_grad_overflow\": false}, \"gradient_clipping\": 0.3}",
        "{\"train_batch_size\": 32, \"train_micro_batch_size_per_gpu\": 4, \"steps_per_print\": 7}",
        "{\"scheduler\": {\"type\": \"WarmupLR\", \"params\": {\"warmup_num_steps\": 7}}}",
        "{\"scheduler\": {\"type\": \"WarmupDecayLR\", \"params\": {\"warmup_type\": \"linear\", \"warmup_max_lr\": \"auto\"}}}",
        "{\"scheduler\": {\"type\": \"WarmupDecayLR\", \"params\": {\"total_num_steps\": 99}}}",
        "{\"zero_optimization\": {\"stage\": 3, \"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": \"/a,/b\"}, "
        "\"offload_param\": {\"device\": \"cpu\"}, \"sub_group_size\": 1e6}, \"aio\": {\"block_size\": 8192, \"queue_depth\": "
        "3}}",
        "{\"aio\": {\"queue_depth\": \"auto\"}}",
        "{\"fp16\": {\"enabled\": true, \"loss_scale\": 128, \"hysteresis\": 3}}",
        "{\"fp16\": {\"enabled\": true, \"initial_scale_power\": 8, \"loss_scale_window\": 2, \"consecutive_hysteresis\": true, "
        "\"min_loss_scale\": 0.25}, \"bf16\": {\"check_grad_overflow\": false}}",
        "{\"fp16\": {\"hysteresis\": 7}}",
        "{\"scheduler\": {\"type\": \"WarmupCosineLR\", \"params\": {\"warmup_min_ratio\": 0.1, \"total_num_steps\": 9}}}",
        "{\"scheduler\": {\"type\": \"WarmupCosineLR\"}}",
        "{\"scheduler\": {\"type\": \"OneCycle\", \"params\": {\"cycle_min_lr\": \"auto\", \"cycle_max_lr\": \"auto\", "
        "\"cycle_first_step_size\": 4, \"cycle_first_stair_count\": 2}}}",
        "{\"scheduler\": {\"type\": \"OneCycle\", \"params\": {\"cycle_min_lr\": 0.1, \"cycle_max_lr\": 1, "
        "\"cycle_momentum\": false, \"decay_step_size\": 3, \"decay_lr_rate\": 0.5}}}",
        "{\"scheduler\": {\"type\": \"LRRangeTest\", \"params\": {\"lr_range_test_staircase\": true}}}",
        "{\"scheduler\": {\"params\": {\"cos_min_ratio\": 0.5, \"cycle_momentum\": true}}}",
        "{\"strata\": {\"update\": \"in_backward\", \"accumulation\": \"horizontal\", \"activation_tier\": \"nvme\", \"nvme\": "
        "\"/a\", \"isa\": \"avx512\", \"freeze\": [\"a,b\", \"*.bias\"]}, \"gradient_clipping\": 0}",
        "{\"strata\": {\"lora\": {\"r\": 16, \"lora_alpha\": 32.0, \"lora_dropout\": 0.05, \"target_modules\": [\"q_proj\", "
        "\"\\u00e9\"], "
        "\"rank_pattern\": {\"a|b\": 4}, \"task_type\": null}}}",
        "{\"strata\": {\"lora\": {}}}",
        "{\"strata\": {\"compute\": \"auto\", \"seq_len\": 128, \"boundary_bytes\": 5120}}",
        "{\"strata\": {\"device_memory\": \"1.5GiB\", \"host_memory\": 7, \"cache\": 0, \"nvme\": [\"/a,b\", \"\\u00e9\\\"\"], "
        "\"chunk_size\": 32768, \"update\": \"serial\", \"activations\": \"recomputed\", \"activation_tier\": \"host\", "
        "\"save\": \"/\\u00e9\\\"\", \"save_every\": 7, \"keep\": 1, \"decay_all\": true, \"threads\": 3, \"io_method\": "
        "\"fake\", \"isa\": \"scalar\", \"limits\": {\"upload\": \"2GB\", "
        "\"download\": 1e9, \"io\": 500000000}}}",
    };

    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        const struct st_config first = load_good(texts[i], NULL);
        char *text = write_json(&first);
        const struct st_config second = load_good(text, NULL);
        char *again = write_json(&second);

        assert_string_equal(text, again);
        assert_memory_equal(&first, &second, sizeof(first));
        free(text);
        free(again);
    }
}

TEST(missing_files)
{
    struct st_config_source *source;
    struct st_config c;

    assert_int_equal(st_config_load(&c, &source, &(struct st_config_opts){.file = "configs/none.json"}), STRATA_E_CONFIG);
    assert_int_equal(st_config_problem_count(source), 1);
    assert_non_null(strstr(strata_last_error(), "configs/none.json"));
    assert_null(strstr(strata_last_error(), "strict JSON"));
    st_config_source_free(source);
    assert_int_equal(st_config_load(&c, &source, &(struct st_config_opts){0}), STRATA_OK);
    assert_int_equal(c.micro_batch, 1);
    st_config_source_free(source);
}

/* Sentences are fit to be shown; values stay as they are, for who prints them to see to it. */
TEST(hostile_texts_are_printable)
{
    struct st_config_source *source;
    struct st_config config;

    assert_int_equal(config_load(&config, &source, "{\"a\\u001b[2J\": \"\\n\"}", NULL), STRATA_E_CONFIG);
    assert_string_equal(st_config_problem_at(source, 0), "a\\x1b[2J: unknown key; config.allow_unknown ignores it");
    assert_string_equal(find_row(source, "a\x1b[2J")->value, "\n");
    st_config_source_free(source);
    assert_int_equal(config_load(&config, &source, "{\"comet\": {\"api_key\": \"secret\"}}", NULL), STRATA_OK);
    assert_string_equal(find_row(source, "comet.api_key")->value, "(hidden)");
    st_config_source_free(source);
}

TEST(every_single_failure_is_clean)
{
    static const char text[] = "{\"zero_optimization\": true, \"what\": 1, \"bf16\": {\"enabled\": 1}}";
    static const char *const sites[] = {"config.alloc", "json.alloc", "json.parse"};

    for (size_t s = 0; s < sizeof(sites) / sizeof(sites[0]); s++) {
        struct fault_walk walk = {.site = sites[s], .result = -ENOMEM};

        while (fault_walk_next(&walk)) {
            struct st_config_source *source = NULL;
            struct st_config config;
            strata_status st = config_load(&config, &source, text, "optimizer.params.lr=fast");

            fault_walk_end(&walk, st == STRATA_E_CONFIG ? STRATA_OK : st); /* whose problems are in the source */
            assert_int_equal(st, walk.fired ? STRATA_E_NOMEM : STRATA_E_CONFIG);
            assert_true((source == NULL) == walk.fired);
            st_config_source_free(source);
        }
    }
}
