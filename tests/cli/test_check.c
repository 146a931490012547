/* tests/cli/test_check.c - strata check: origins and verdicts as text and JSON, every problem at once, a run's own options. */
#include "core/json/json.h"
#include "tests/cli/program.h"
#include "tests/common/scratch.h"
#include "tests/common/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GOOD                                                                                                                     \
    "{\"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": \"auto\", \"weight_decay\": 0.1}}, \"scheduler\": {\"type\": "   \
    "\"WarmupDecayLR\", \"params\": {\"warmup_num_steps\": \"auto\", \"total_num_steps\": \"auto\"}}, \"train_batch_size\": "    \
    "\"auto\", \"zero_optimization\": {\"stage\": 3, \"overlap_comm\": true, \"offload_optimizer\": {\"device\": \"nvme\"}}}"
#define BAD                                                                                                                      \
    "{\"fp16\": {\"enabled\": true}, \"bf16\": {\"enabled\": true}, \"strata\": {\"update\": \"in_backward\"}, \"stepps\": 1, "  \
    "\"optimizer\": {\"params\": {\"lr\": \"big\"}}}"

static void check(struct program *p, const char *text, const char *options)
{
    const char *words[WORDS_MAX], *redirect;
    char line[512];

    scratch_put("config.json", text);
    snprintf(line, sizeof(line), "check %s %s", scratch_path("config.json"), options);
    program_split(line, words, &redirect);
    program_run(p, words, redirect);
}

static st_json *parse(const struct program *p)
{
    st_json *root = NULL;

    assert_int_equal(st_json_parse(&root, p->out, strlen(p->out), "output"), STRATA_OK);
    return root;
}

/* The value of a key; NULL: it is not listed. */
static const st_json *value_of(const st_json *root, const char *key)
{
    for (const st_json *v = st_json_first(st_json_get(root, "values")); v != NULL; v = st_json_next(v))
        if (strcmp(st_json_string(st_json_get(v, "path")), key) == 0)
            return v;
    return NULL;
}

struct value_row {
    const char *path, *value, *origin, *verdict;
};

TEST(every_value_has_its_origin_and_verdict)
{
    static const struct value_row rows[] = {
        {"optimizer.params.lr", "0.0001", "command line", "honoured"},
        {"optimizer.params.weight_decay", "0.1", "file", "honoured"},
        {"optimizer.params.eps", "1e-08", "default", "honoured"},
        {"train_micro_batch_size_per_gpu", "4", "command line", "honoured"},
        {"gradient_accumulation_steps", "2", "command line", "honoured"},
        {"train_batch_size", "8", "derived", "honoured"},
        {"scheduler.type", "WarmupDecayLR", "file", "honoured"},
        {"scheduler.params.warmup_num_steps", "10", "command line", "honoured"},
        {"scheduler.params.warmup_max_lr", "0.001", "default", "honoured"},
        {"scheduler.params.total_num_steps", "500", "derived", "honoured"},
        {"gradient_clipping", "1", "default", "honoured"},
        {"zero_optimization.overlap_comm", "true", "file", "notice"},
        {"zero_optimization.offload_optimizer.device", "nvme", "file", "honoured"},
        {"strata.nvme", "/a,/b", "command line", "honoured"},
        {"strata.cache", "0", "command line", "honoured"},
        {"strata.device_memory", "1073741824", "command line", "honoured"},
        {"strata.threads", "3", "command line", "honoured"},
        {"strata.update", "auto", "default", "honoured"},
    };
    struct program p;
    st_json *root;

    check(&p, GOOD,
          "--json --lr 1e-4 --micro-batch 4 --grad-accum 2 --warmup-steps 10 --steps 500 --nvme /a /b --set strata.cache=0 "
          "--device-memory 1GiB --threads 3 --local_rank=0");
    assert_int_equal(p.code, 0);
    assert_string_equal(p.err, "");
    root = parse(&p);
    assert_true(st_json_bool(st_json_get(root, "valid")));
    assert_null(st_json_first(st_json_get(root, "problems")));
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        const st_json *v = value_of(root, rows[i].path);

        if (v == NULL)
            fail_msg("%s is not listed", rows[i].path);
        assert_string_equal(st_json_string(st_json_get(v, "value")), rows[i].value);
        assert_string_equal(st_json_string(st_json_get(v, "origin")), rows[i].origin);
        assert_string_equal(st_json_string(st_json_get(v, "verdict")), rows[i].verdict);
    }
    st_json_free(root);
    program_free(&p);
}

TEST(auto_is_an_origin)
{
    struct program p;
    st_json *root;

    check(&p, GOOD, "--json --nvme /a");
    root = parse(&p);
    assert_string_equal(st_json_string(st_json_get(value_of(root, "optimizer.params.lr"), "origin")), "auto");
    assert_string_equal(st_json_string(st_json_get(value_of(root, "optimizer.params.lr"), "value")), "5e-05");
    assert_string_equal(st_json_string(st_json_get(value_of(root, "scheduler.params.total_num_steps"), "value")), "auto");
    st_json_free(root);
    program_free(&p);
}

TEST(text_has_a_line_for_each)
{
    struct program p;

    check(&p, GOOD, "--nvme /a --set gradient_clipping=0.5");
    assert_int_equal(p.code, 0);
    assert_non_null(strstr(p.out, "\ngradient_clipping "));
    assert_non_null(strstr(p.out, " 0.5            command line  honoured\n"));
    assert_non_null(strstr(p.out, "notice: transfers and exchanges always overlap"));
    program_free(&p);
}

TEST(all_problems_are_told_at_once)
{
    static const char *const problems[] = {"bf16.enabled: fp16.enabled is true too", "strata.update: in_backward",
                                           "stepps: unknown", "optimizer.params.lr: must be a number",
                                           "train_batch_size 7 is not"};
    struct program p;
    st_json *root;
    size_t listed = 0;

    check(&p, BAD, "--json --set train_batch_size=7 --micro-batch 2");
    assert_int_equal(p.code, 2);
    root = parse(&p);
    assert_false(st_json_bool(st_json_get(root, "valid")));
    for (const st_json *n = st_json_first(st_json_get(root, "problems")); n != NULL; n = st_json_next(n))
        listed++;
    for (size_t i = 0; i < sizeof(problems) / sizeof(problems[0]); i++) {
        if (strstr(p.err, problems[i]) == NULL)
            fail_msg("no \"%s\" in\n%s", problems[i], p.err);
    }
    assert_true(listed >= sizeof(problems) / sizeof(problems[0]));
    assert_string_equal(st_json_string(st_json_get(value_of(root, "strata.update"), "verdict")), "rejected");
    st_json_free(root);
    program_free(&p);
}

/* A sentence that begins with the file's name is not given it again. */
TEST(problems_name_the_file_once)
{
    static const char *const texts[] = {BAD, "{\"a\": }"};

    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        size_t problems = 0, names = 0;
        struct program p;

        check(&p, texts[i], "--set train_batch_size=7 --micro-batch 2");
        assert_int_equal(p.code, 2);
        for (const char *at = p.err; (at = strstr(at, "strata: error: ")) != NULL; at++)
            problems++;
        for (const char *at = p.err; (at = strstr(at, "/config.json")) != NULL; at++)
            names++;
        assert_true(problems > (i == 0 ? 4 : 0));
        assert_int_equal(names, problems);
        program_free(&p);
    }
}

/* Keys without effect stand by what that means, what nobody gave is left out, and the last line is the verdict. */
TEST(keys_are_grouped_and_evaluated)
{
    static const char text[] = "{\"fp16\": {\"enabled\": false, \"loss_scale\": 128}, \"bf16\": {\"enabled\": true}, "
                               "\"zero_optimization\": {\"overlap_comm\": true}, \"wandb\": {\"enabled\": true}, "
                               "\"comet\": {\"enabled\": false}, \"_comment\": \"mine\"}";
    static const char *const order[] = {
        "bf16.enabled",
        "\nwithout effect: changes nothing:\n",
        "fp16.loss_scale",
        "comet.enabled",
        "_comment",
        "\nwithout effect: would change speed or place:\n",
        "zero_optimization.overlap_comm",
        "\nwithout effect: asked for and not done:\n",
        "wandb.enabled",
        "\nverdict: 2 keys honoured, 5 without effect, 4 not looked at (model, data, number of steps, memory); training "
        "would start if model, data and number of steps are there\n"};
    struct program p;
    const char *at;

    check(&p, text, "");
    assert_int_equal(p.code, 0);
    at = p.out;
    for (size_t i = 0; i < sizeof(order) / sizeof(order[0]); i++)
        if ((at = strstr(at, order[i])) == NULL)
            fail_msg("no \"%s\" there in\n%s", order[i], p.out);
    assert_string_equal(at, order[sizeof(order) / sizeof(order[0]) - 1]);
    assert_null(strstr(p.out, "gradient_accumulation_steps"));
    program_free(&p);
    check(&p, text, "--all");
    assert_non_null(strstr(p.out, "\ngradient_accumulation_steps "));
    program_free(&p);
}

TEST(what_is_refused_is_the_verdict)
{
    struct program p;
    st_json *root;
    const st_json *verdict;

    check(&p, "{\"zero_optimization\": {\"zenflow\": {\"topk_ratio\": 0.1}}, \"stepps\": 1}", "");
    assert_int_equal(p.code, 2);
    assert_non_null(strstr(p.out, "\nrejected:\n"));
    assert_non_null(strstr(p.out, "; training would be refused because "));
    assert_non_null(strstr(p.out, " (and 1 more)\n"));
    program_free(&p);
    check(&p, "{\"stepps\": 1, \"wandb\": {\"enabled\": true}}", "--json");
    root = parse(&p);
    verdict = st_json_get(root, "verdict");
    assert_false(st_json_bool(st_json_get(verdict, "starts")));
    assert_non_null(strstr(st_json_string(st_json_get(verdict, "reason")), "stepps: unknown key"));
    assert_true(st_json_number(st_json_get(verdict, "without_effect")) == 1);
    assert_true(st_json_number(st_json_get(verdict, "rejected")) == 1);
    assert_string_equal(st_json_string(st_json_first(st_json_get(verdict, "not_looked_at"))), "model");
    assert_string_equal(st_json_string(st_json_get(value_of(root, "wandb.enabled"), "effect")), "asked for and not done");
    st_json_free(root);
    program_free(&p);
}

/* The file may be named as in a run, too. */
TEST(config_is_named_as_in_a_run)
{
    static const char *const names[] = {"--config", "--deepspeed", "--deepspeed_config"};

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        const char *words[] = {"check", names[i], "configs/zero2_cpu.json", NULL, NULL};
        struct program p;

        program_run(&p, words, NULL);
        assert_int_equal(p.code, 0);
        assert_non_null(strstr(p.out, "zero_optimization.stage"));
        program_free(&p);
        words[3] = "configs/zero3_cpu.json";
        program_run(&p, words, NULL);
        assert_int_equal(p.code, 2);
        program_free(&p);
    }
}

/* Under a launcher its ranks are counted, and rank 0 speaks. */
TEST(ranks_of_a_launcher_are_counted)
{
    static const char two[] =
        "{\"train_batch_size\": 4, \"train_micro_batch_size_per_gpu\": 1, \"gradient_accumulation_steps\": 2}";
    static const char *const names[] = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"};
    struct program p;

    check(&p, two, "");
    assert_int_equal(p.code, 2);
    assert_non_null(strstr(p.err, "(one rank)"));
    program_free(&p);
    for (int rank = 0; rank < 2; rank++) {
        char number[2] = {(char)('0' + rank), '\0'};

        for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
            assert_int_equal(setenv(names[i], i % 2 == 0 ? number : "2", 1), 0);
        check(&p, two, "");
        assert_int_equal(p.code, 0);
        assert_int_equal(strlen(p.out) > 0, rank == 0);
        program_free(&p);
        check(&p, BAD, "");
        assert_int_equal(p.code, 2);
        assert_int_equal(strlen(p.err) > 0, rank == 0);
        program_free(&p);
    }
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        unsetenv(names[i]);
}

/* Without a file its variables are the configuration. */
TEST(a_launchers_variables_are_a_configuration)
{
    static const char *const words[WORDS_MAX] = {"check"};
    struct program p;

    program_run(&p, words, NULL);
    assert_int_equal(p.code, 2);
    assert_non_null(strstr(p.err, "CONFIG.json, the configuration to check"));
    program_free(&p);
    setenv("ACCELERATE_MIXED_PRECISION", "fp16", 1);
    setenv("ACCELERATE_USE_FSDP", "true", 1);
    setenv("FSDP_SHARDING_STRATEGY", "SHARD_GRAD_OP", 1);
    program_run(&p, words, NULL);
    assert_int_equal(p.code, 0);
    assert_non_null(strstr(p.out, "FSDP_SHARDING_STRATEGY "));
    assert_non_null(strstr(p.out, "environment   honoured: zero_optimization.stage = 2"));
    program_free(&p);
    unsetenv("ACCELERATE_MIXED_PRECISION");
    unsetenv("ACCELERATE_USE_FSDP");
    unsetenv("FSDP_SHARDING_STRATEGY");
}

TEST_GROUP(scratch_create, scratch_remove);
