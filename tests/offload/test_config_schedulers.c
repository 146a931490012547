/* tests/offload/test_config_schedulers.c - what schedulers derive, and the OneCycle whose momentum would reach 1. */
#include "tests/offload/config_fixture.h"

#include <math.h>

#define CYCLE(members)                                                                                                           \
    "{\"optimizer\": {\"params\": {\"lr\": 0.25}}, \"scheduler\": {\"type\": \"OneCycle\", \"params\": {\"cycle_min_lr\": "      \
    "1e-4, "                                                                                                                     \
    "\"cycle_max_lr\": 1e-3" members "}}}"

static strata_status load_for(struct st_config *config, struct st_config_source **source, const char *text, uint64_t max_steps)
{
    const struct st_config_opts opts = {.max_steps = max_steps};

    return st_config_load_text(config, source, text, strlen(text), "t", &opts);
}

TEST(cosine_takes_its_length_from_the_run)
{
    static const char text[] = "{\"scheduler\": {\"type\": \"WarmupCosineLR\", \"params\": {\"warmup_num_steps\": \"auto\"}}}";
    struct st_config_source *source;
    struct st_config c;

    assert_int_equal(load_for(&c, &source, text, 70), STRATA_OK);
    assert_int_equal(c.schedule.type, ST_LR_WARMUP_COSINE);
    assert_int_equal(c.schedule.total_steps, 70);
    assert_int_equal(c.schedule.warmup_steps, 0);
    assert_true(c.schedule.warmup_log && c.schedule.warmup_min_ratio == 0 && c.schedule.cos_min_ratio == 1e-4);
    assert_int_equal(find_row(source, "scheduler.params.total_num_steps")->origin, ST_ORIGIN_DERIVED);
    assert_string_equal(find_row(source, "scheduler.params.cos_min_ratio")->value, "0.0001");
    assert_null(find_row(source, "scheduler.params.cycle_min_lr"));
    assert_null(find_row(source, "scheduler.params.warmup_min_lr"));
    st_config_source_free(source);
}

TEST(one_cycle_has_deepspeeds_defaults)
{
    struct st_config c = load_good(CYCLE(""), NULL);

    assert_int_equal(c.schedule.type, ST_LR_ONE_CYCLE);
    assert_true(c.schedule.cycle_min_lr == 1e-4 && c.schedule.cycle_max_lr == 1e-3 && c.schedule.decay_lr_rate == 0 &&
                c.schedule.decay_mom_rate == 0);
    assert_true(c.schedule.cycle_momentum && c.schedule.cycle_min_mom == 0.8 && c.schedule.cycle_max_mom == 0.9);
    assert_int_equal(c.schedule.cycle_first_step_size, 2000);
    assert_int_equal(c.schedule.cycle_second_step_size, 2000);
    assert_int_equal(c.schedule.cycle_first_stair_count, 0);
    assert_int_equal(c.schedule.decay_step_size, 0);
    assert_int_equal(c.schedule.warmup_steps, 0);
    c = load_good(CYCLE(", \"cycle_first_step_size\": 7, \"cycle_first_stair_count\": 3"), NULL);
    assert_int_equal(c.schedule.cycle_second_step_size, 7);
    assert_int_equal(c.schedule.cycle_second_stair_count, 3);
    c = load_good(CYCLE(", \"cycle_second_step_size\": 0, \"cycle_second_stair_count\": 2"),
                  "scheduler.params.cycle_max_lr=auto");
    assert_int_equal(c.schedule.cycle_second_step_size, 0);
    assert_int_equal(c.schedule.cycle_second_stair_count, 2);
    assert_true(c.schedule.cycle_max_lr == 0.25); /* the optimizer's */
}

TEST(range_test_has_deepspeeds_defaults)
{
    const struct st_config c = load_good("{\"scheduler\": {\"type\": \"LRRangeTest\"}}", NULL);

    assert_int_equal(c.schedule.type, ST_LR_RANGE_TEST);
    assert_true(c.schedule.range_min_lr == 1e-3 && c.schedule.range_step_rate == 1 && !c.schedule.range_staircase);
    assert_int_equal(c.schedule.range_step_size, 2000);
}

/* Arguments of other schedulers leave no trace in the config. */
TEST(without_a_scheduler_nothing_is_left)
{
    const struct st_config plain = load_good("{}", NULL);
    const struct st_config given = load_good(
        "{\"scheduler\": {\"params\": {\"cycle_min_lr\": 1, \"warmup_num_steps\": 5, \"lr_range_test_staircase\": true, "
        "\"warmup_type\": \"linear\"}}}",
        NULL);

    assert_memory_equal(&plain, &given, sizeof(plain));
}

/* A part of the run stands instead of steps that a file says, and alone asks for the schedule that is a warm-up and no more. */
TEST(a_ratio_on_the_line_is_a_warm_up)
{
    struct st_config c = load_good("{}", "strata.lr_scheduler.warmup_ratio=0.25");

    assert_int_equal(c.schedule.shape, ST_LR_SHAPE_CONSTANT_WITH_WARMUP);
    assert_true(c.schedule.shape_warmup_ratio == 0.25);
    c = load_good("{\"strata\": {\"lr_scheduler\": {\"type\": \"cosine\", \"warmup_steps\": 9}}}",
                  "strata.lr_scheduler.warmup_ratio=0.25");
    assert_int_equal(c.schedule.shape, ST_LR_SHAPE_COSINE);
    assert_int_equal(c.schedule.shape_warmup, 0);
    assert_true(c.schedule.shape_warmup_ratio == 0.25);
    c = load_good("{\"strata\": {\"lr_scheduler\": {\"warmup_ratio\": 0.25}}}", NULL);
    assert_int_equal(c.schedule.shape, ST_LR_SHAPE_NONE);
}

/* What a file gives stays; what is left to the run follows it. */
TEST(steps_that_are_told_later_are_the_same)
{
    static const char *const texts[] = {
        "{\"scheduler\": {\"type\": \"WarmupCosineLR\", \"params\": {\"total_num_steps\": \"auto\"}}}",
        "{\"scheduler\": {\"type\": \"WarmupDecayLR\", \"params\": {\"total_num_steps\": 30}}}",
        "{\"scheduler\": {\"type\": \"WarmupDecayLR\"}}",
        "{\"strata\": {\"lr_scheduler\": {\"type\": \"cosine\", \"warmup_ratio\": 0.1}}}",
        "{\"strata\": {\"lr_scheduler\": {\"type\": \"cosine\", \"total_num_steps\": 30}}}",
        "{\"strata\": {\"lr_scheduler\": {\"type\": \"linear\", \"total_num_steps\": \"auto\"}}}",
        "{\"strata\": {\"lr_scheduler\": {\"type\": \"constant\"}}}",
        "{\"scheduler\": {\"type\": \"WarmupLR\"}}",
        "{}",
    };
    const struct st_config_opts later = {.steps_later = true};

    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        struct st_config_source *source;
        struct st_config at_once, told;
        struct st_config_told lengths = {0};

        assert_int_equal(load_for(&at_once, &source, texts[i], 70), STRATA_OK);
        st_config_source_free(source);
        assert_int_equal(st_config_load_text(&told, &source, texts[i], strlen(texts[i]), "t", &later), STRATA_OK);
        st_config_source_free(source);
        assert_int_equal(st_config_set_steps(&told, 50, &lengths), STRATA_OK);
        assert_int_equal(st_config_set_steps(&told, 70, &lengths), STRATA_OK); /* the last one counts */
        assert_memory_equal(&told, &at_once, sizeof(told));
        assert_false(st_config_lacks_steps(&told));
    }
}

struct momentum_row {
    const char *members; /* of OneCycle's params, after the rates */
    uint64_t max_steps;
    const char *problem; /* NULL: none */
};

TEST(momentum_must_stay_below_one)
{
#define SHAPE ", \"cycle_first_step_size\": 4, \"cycle_second_step_size\": 3, \"cycle_max_mom\": 0.95"
    static const struct momentum_row rows[] = {
        {SHAPE ", \"decay_step_size\": 2, \"decay_mom_rate\": 0.05", 10, NULL},
        {SHAPE ", \"decay_step_size\": 2, \"decay_mom_rate\": 0.05", 11, "decay_mom_rate: 0.05 brings beta1 to 1 at step 11"},
        {SHAPE ", \"decay_step_size\": 2, \"decay_mom_rate\": 0.05", 0, "at step 11"},
        {SHAPE ", \"decay_step_size\": 2, \"decay_mom_rate\": 1", 8, NULL},
        {SHAPE ", \"decay_step_size\": 2, \"decay_mom_rate\": 1", 9, "at step 9"},
        {SHAPE ", \"decay_step_size\": 2, \"decay_mom_rate\": 1, \"cycle_momentum\": false", 0, NULL},
        {SHAPE ", \"decay_step_size\": 0, \"decay_mom_rate\": 1", 0, NULL},
        {SHAPE ", \"decay_step_size\": 2, \"decay_mom_rate\": 0", 0, NULL},
        {SHAPE ", \"decay_step_size\": 1099511627776, \"decay_mom_rate\": 1e-300", 0, NULL},
        {SHAPE ", \"decay_step_size\": 1099511627776, \"decay_mom_rate\": 1e-3", 0, "at step 5786"},
        {", \"cycle_max_mom\": 0, \"decay_step_size\": 1, \"decay_mom_rate\": 1", 0, NULL},
    };
#undef SHAPE

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct st_config_source *source;
        struct st_config config;
        char text[512];
        strata_status st;

        snprintf(text, sizeof(text), CYCLE("%s"), rows[i].members);
        st = load_for(&config, &source, text, rows[i].max_steps);
        if (st != (rows[i].problem == NULL ? STRATA_OK : STRATA_E_CONFIG))
            fail_msg("row %zu: %s", i, strata_last_error());
        if (rows[i].problem != NULL && strstr(st_config_problem_at(source, 0), rows[i].problem) == NULL)
            fail_msg("row %zu: %s", i, st_config_problem_at(source, 0));
        st_config_source_free(source);
    }
}

TEST(a_rate_has_one_schedule)
{
    static const char *const texts[] = {
        "{\"scheduler\": {\"type\": \"WarmupLR\"}, \"strata\": {\"lr_scheduler\": {\"type\": \"linear\"}}}",
        "{\"strata\": {\"lr_scheduler\": {\"type\": \"linear\", \"warmup_ratio\": 1.5}}}",
        "{\"strata\": {\"lr_scheduler\": {\"type\": \"polynomial\"}}}",
    };
    static const char *const keys[] = {"strata.lr_scheduler.type", "strata.lr_scheduler.warmup_ratio",
                                       "strata.lr_scheduler.type"};
    struct st_config_source *source;
    struct st_config c;

    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        assert_int_equal(load_for(&c, &source, texts[i], 70), STRATA_E_CONFIG);
        assert_non_null(strstr(strata_last_error(), keys[i]));
        st_config_source_free(source);
    }
}

/* The command line's warm-up is that of the schedule that the file names. */
TEST(a_warmup_of_the_command_line_is_the_schedules)
{
    static const char warmup[] = "scheduler.params.warmup_num_steps=7";
    struct st_config c = load_good("{\"strata\": {\"lr_scheduler\": {\"type\": \"linear\", \"warmup_ratio\": 0.5}}}", warmup);

    assert_int_equal(c.schedule.type, ST_LR_CONSTANT);
    assert_int_equal(c.schedule.shape, ST_LR_SHAPE_LINEAR);
    assert_int_equal(c.schedule.shape_warmup, 7);
    assert_true(c.schedule.shape_warmup_ratio == 0);
    c = load_good("{\"strata\": {\"lr_scheduler\": {\"type\": \"none\"}}}", warmup);
    assert_int_equal(c.schedule.type, ST_LR_WARMUP);
    assert_int_equal(c.schedule.warmup_steps, 7);
    c = load_good("{\"scheduler\": {\"type\": \"WarmupCosineLR\", \"params\": {\"warmup_num_steps\": 3}}}", warmup);
    assert_int_equal(c.schedule.warmup_steps, 7);
}

/* A value that has no effect is told: at each start where the command line gave it, else by its row. */
TEST(what_has_no_effect_is_told)
{
#define DECAY           "{\"scheduler\": {\"type\": \"WarmupDecayLR\"}, \"optimizer\": {\"params\": {\"lr\": 2e-3}}}"
#define SHAPED(members) "{\"strata\": {\"lr_scheduler\": {" members "}}}"
    static const struct {
        const char *text, *override, *path, *reason; /* reason NULL: none */
        enum st_config_verdict verdict;
        bool announced;
    } rows[] = {
        {DECAY, "optimizer.params.lr=1e-5", "optimizer.params.lr", "scheduler.params.warmup_max_lr, 0.001", ST_VERDICT_HONOURED,
         true},
        {DECAY, NULL, "optimizer.params.lr", "scheduler.params.warmup_max_lr, 0.001", ST_VERDICT_HONOURED, false},
        {DECAY, "optimizer.params.lr=1e-3", "optimizer.params.lr", NULL, ST_VERDICT_HONOURED, false},
        {"{\"scheduler\": {\"type\": \"WarmupLR\"}}", "optimizer.params.lr=1e-5", "optimizer.params.lr", NULL,
         ST_VERDICT_HONOURED, false},
        {"{\"scheduler\": {\"type\": \"WarmupLR\", \"params\": {\"warmup_max_lr\": 1}}}", "optimizer.params.lr=1e-5",
         "optimizer.params.lr", "warmup_max_lr, 1,", ST_VERDICT_HONOURED, true},
        {"{\"scheduler\": {\"type\": \"WarmupCosineLR\"}}", "optimizer.params.lr=1e-5", "optimizer.params.lr", NULL,
         ST_VERDICT_HONOURED, false},
        {CYCLE(""), "optimizer.params.lr=1e-5", "optimizer.params.lr", "cycle_max_lr", ST_VERDICT_HONOURED, true},
        {"{\"scheduler\": {\"type\": \"LRRangeTest\"}}", "optimizer.params.lr=1e-5", "optimizer.params.lr",
         "lr_range_test_min_lr", ST_VERDICT_HONOURED, true},
        {SHAPED("\"warmup_steps\": 9"), NULL, "strata.lr_scheduler.warmup_steps", "names no schedule", ST_VERDICT_NOTICE, false},
        {SHAPED("\"warmup_ratio\": 0.1"), NULL, "strata.lr_scheduler.warmup_ratio", "names no schedule", ST_VERDICT_NOTICE,
         false},
        {SHAPED("\"type\": \"constant\", \"warmup_steps\": 9"), NULL, "strata.lr_scheduler.warmup_steps", "constant_with_warmup",
         ST_VERDICT_NOTICE, false},
        {SHAPED("\"type\": \"linear\", \"warmup_steps\": 9"), NULL, "strata.lr_scheduler.warmup_steps", NULL, ST_VERDICT_HONOURED,
         false},
        {SHAPED("\"warmup_steps\": 0"), NULL, "strata.lr_scheduler.warmup_steps", NULL, ST_VERDICT_HONOURED, false},
        {SHAPED("\"total_num_steps\": 9"), NULL, "strata.lr_scheduler.total_num_steps", "names no schedule", ST_VERDICT_NOTICE,
         false},
        {SHAPED("\"type\": \"constant\", \"total_num_steps\": 9"), NULL, "strata.lr_scheduler.total_num_steps", "no end",
         ST_VERDICT_NOTICE, false},
        {SHAPED("\"type\": \"linear\", \"total_num_steps\": 9"), NULL, "strata.lr_scheduler.total_num_steps", NULL,
         ST_VERDICT_HONOURED, false},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        const struct st_config_row *row;
        struct st_config_source *source;
        struct st_config c;

        assert_int_equal(config_load(&c, &source, rows[i].text, rows[i].override), STRATA_OK);
        row = find_row(source, rows[i].path);
        assert_non_null(row);
        if (row->verdict != rows[i].verdict || row->announced != rows[i].announced ||
            (row->reason != NULL) != (rows[i].reason != NULL) ||
            (rows[i].reason != NULL && strstr(row->reason, rows[i].reason) == NULL))
            fail_msg("row %zu: %s", i, row->reason != NULL ? row->reason : "no reason");
        st_config_source_free(source);
    }
}
