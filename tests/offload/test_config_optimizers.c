/* tests/offload/test_config_optimizers.c - Adagrad, Lion and SGD: defaults, "auto", foreign arguments, OneCycle's momentum;
 * the format of moments. */
#include "tests/offload/config_fixture.h"

#define TYPE(name)                    "{\"optimizer\": {\"type\": \"" name "\"}}"
#define PARAMS(name, params)          "{\"optimizer\": {\"type\": \"" name "\", \"params\": {" params "}}}"
#define CYCLE                         "\"scheduler\": {\"type\": \"OneCycle\", \"params\": {\"cycle_min_lr\": 1e-4, \"cycle_max_lr\": 1e-3"
#define CYCLED(name, params, members) "{\"optimizer\": {\"type\": \"" name "\", \"params\": {" params "}}, " CYCLE members "}}}"
#define STRATA(moments)               "{\"strata\": {\"moments\": \"" moments "\"}}"
#define FP32_STATES(value)            "{\"optimizer\": {\"params\": {\"fp32_optimizer_states\": " value "}}}"
#define BF16_STATES(value)            "{\"bf16\": {\"bf16_optimizer_states\": " value "}}"

struct values {
    const char *text;
    enum strata_optimizer optimizer;
    double lr, weight_decay, beta1, beta2, eps, momentum, dampening;
    bool bias_correction, nesterov;
};

static void check_values(const struct values *want)
{
    const struct st_config c = load_good(want->text, NULL);

    if (c.optimizer.type != want->optimizer || c.optimizer.lr != want->lr || c.optimizer.weight_decay != want->weight_decay ||
        c.optimizer.beta1 != want->beta1 || c.optimizer.beta2 != want->beta2 || c.optimizer.eps != want->eps ||
        c.optimizer.momentum != want->momentum || c.optimizer.dampening != want->dampening ||
        c.optimizer.bias_correction != want->bias_correction || c.optimizer.nesterov != want->nesterov)
        fail_msg("%s: type %d lr %g decay %g betas %g %g eps %g momentum %g dampening %g correction %d nesterov %d", want->text,
                 (int)c.optimizer.type, c.optimizer.lr, c.optimizer.weight_decay, c.optimizer.beta1, c.optimizer.beta2,
                 c.optimizer.eps, c.optimizer.momentum, c.optimizer.dampening, c.optimizer.bias_correction, c.optimizer.nesterov);
}

/* Names without regard to case; arguments of other optimizers are 0. */
TEST(each_has_its_defaults_and_takes_its_arguments)
{
    static const struct values rows[] = {
        {TYPE("AdamW"), STRATA_ADAMW, 1e-3, 0, 0.9, 0.999, 1e-8, 0, 0, true, false},
        {TYPE("Adagrad"), STRATA_ADAGRAD, 1e-2, 0, 0, 0, 1e-10, 0, 0, false, false},
        {TYPE("adagrad"), STRATA_ADAGRAD, 1e-2, 0, 0, 0, 1e-10, 0, 0, false, false},
        {TYPE("Lion"), STRATA_LION, 1e-3, 0, 0.9, 0.999, 0, 0, 0, false, false},
        {TYPE("LION"), STRATA_LION, 1e-3, 0, 0.9, 0.999, 0, 0, 0, false, false},
        {TYPE("SGD"), STRATA_SGD, 1e-3, 0, 0, 0, 0, 0, 0, false, false},
        {TYPE("sgd"), STRATA_SGD, 1e-3, 0, 0, 0, 0, 0, 0, false, false},
        {PARAMS("Adagrad", "\"lr\": 0.15, \"eps\": 1e-6, \"weight_decay\": 0.01, \"amsgrad\": false"), STRATA_ADAGRAD, 0.15, 0.01,
         0, 0, 1e-6, 0, 0, false, false},
        {PARAMS("Lion", "\"lr\": 1e-4, \"betas\": [0.95, 0.98], \"weight_decay\": 0.1, \"fp32_optimizer_states\": true"),
         STRATA_LION, 1e-4, 0.1, 0.95, 0.98, 0, 0, 0, false, false},
        {PARAMS("SGD", "\"lr\": 0.1, \"momentum\": 0.9, \"dampening\": 0.5, \"weight_decay\": 5e-4"), STRATA_SGD, 0.1, 5e-4, 0, 0,
         0, 0.9, 0.5, false, false},
        {PARAMS("SGD", "\"momentum\": 0.9, \"nesterov\": true"), STRATA_SGD, 1e-3, 0, 0, 0, 0, 0.9, 0, false, true},
        {PARAMS("Adagrad", "\"lr\": \"auto\", \"eps\": \"auto\", \"weight_decay\": \"auto\""), STRATA_ADAGRAD, 5e-5, 0, 0, 0,
         1e-10, 0, 0, false, false},
        {PARAMS("Lion", "\"lr\": \"auto\", \"betas\": \"auto\", \"weight_decay\": \"auto\""), STRATA_LION, 5e-5, 0, 0.9, 0.999, 0,
         0, 0, false, false},
        {PARAMS("SGD", "\"lr\": \"auto\", \"momentum\": \"auto\", \"dampening\": \"auto\", \"nesterov\": \"auto\", "
                       "\"weight_decay\": \"auto\""),
         STRATA_SGD, 5e-5, 0, 0, 0, 0, 0, 0, false, false},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        check_values(&rows[i]);
}

/* As they stand in tests and recipes of projects that run on DeepSpeed. */
TEST(configs_in_the_wild)
{
    static const struct values rows[] = {
        {"{\"optimizer\": {\"type\": \"SGD\", \"params\": {\"lr\": 3e-5}}, \"scheduler\": {\"type\": \"WarmupLR\", \"params\": "
         "{\"last_batch_iteration\": -1, \"warmup_min_lr\": 0, \"warmup_max_lr\": 3e-5, \"warmup_num_steps\": 100}}}",
         STRATA_SGD, 3e-5, 0, 0, 0, 0, 0, 0, false, false},
        {"{\"train_micro_batch_size_per_gpu\": 1, \"gradient_accumulation_steps\": 1, \"zero_optimization\": {\"stage\": 2}, "
         "\"zero_allow_untested_optimizer\": true, \"fp16\": {\"enabled\": false}, \"bf16\": {\"enabled\": true}, "
         "\"optimizer\": {\"type\": \"SGD\", \"params\": {\"lr\": 0.01}}}",
         STRATA_SGD, 0.01, 0, 0, 0, 0, 0, 0, false, false},
        {"{\"optimizer\": {\"type\": \"Lion\", \"params\": {\"lr\": \"auto\", \"betas\": [0.9, 0.99], \"weight_decay\": "
         "\"auto\"}}, \"zero_optimization\": {\"stage\": 3, \"offload_optimizer\": {\"device\": \"cpu\", \"pin_memory\": true}}}",
         STRATA_LION, 5e-5, 0, 0.9, 0.99, 0, 0, 0, false, false},
        {"{\"optimizer\": {\"type\": \"Adagrad\", \"params\": {\"lr\": 0.015}}, \"zero_optimization\": {\"stage\": 2, "
         "\"cpu_offload\": true}, \"fp16\": {\"enabled\": true}}",
         STRATA_ADAGRAD, 0.015, 0, 0, 0, 1e-10, 0, 0, false, false},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        check_values(&rows[i]);
}

TEST(a_type_on_the_command_line_leaves_the_rate)
{
    const struct st_config c = load_good("{}", "optimizer.type=adagrad");

    assert_int_equal(c.optimizer.type, STRATA_ADAGRAD);
    assert_true(c.optimizer.lr == 5e-5 && c.optimizer.eps == 1e-10 && c.optimizer.beta1 == 0);
}

struct bad_row {
    const char *text, *problem;
};

TEST(what_belongs_to_another_is_refused)
{
    static const struct bad_row rows[] = {
        {PARAMS("Adagrad", "\"betas\": [0.9, 0.99]"),
         "optimizer.params.betas: belongs to AdamW, Adam, Lion, and optimizer.type is Adagrad"},
        {PARAMS("SGD", "\"betas\": \"auto\""), "belongs to AdamW, Adam, Lion, and optimizer.type is SGD"},
        {PARAMS("Lion", "\"eps\": 1e-8"), "optimizer.params.eps: belongs to AdamW, Adam, Adagrad, and optimizer.type is Lion"},
        {PARAMS("Lion", "\"bias_correction\": false"), "belongs to AdamW, Adam, and optimizer.type is Lion"},
        {PARAMS("Lion", "\"adamw_mode\": true"), "adamw_mode: belongs to AdamW, Adam, and"},
        {PARAMS("SGD", "\"torch_adam\": true"), "torch_adam: belongs to AdamW, Adam, and"},
        {PARAMS("SGD", "\"fp32_optimizer_states\": true"), "belongs to AdamW, Adam, Adagrad, Lion, and"},
        {PARAMS("SGD", "\"amsgrad\": false"), "belongs to AdamW, Adam, Adagrad, and optimizer.type is SGD"},
        {PARAMS("Adagrad", "\"amsgrad\": true"), "AMSGrad is not in this version"},
        {PARAMS("Adagrad", "\"max_grad_norm\": 1"), "gradient_clipping"},
        {PARAMS("Adagrad", "\"momentum\": 0.9"), "belongs to SGD, and optimizer.type is Adagrad"},
        {PARAMS("Adam", "\"momentum\": 0.9"), "belongs to SGD, and optimizer.type is Adam"},
        {"{\"optimizer\": {\"params\": {\"nesterov\": false}}}", "belongs to SGD, and optimizer.type is AdamW"},
        {PARAMS("SGD", "\"muon_lr\": 0.9"), "belongs to Muon; this version has AdamW, Adam, Adagrad, Lion and SGD"},
        {PARAMS("SGD", "\"momentum\": 1"), "1 is out of range: 0 to 0.9999999"},
        {PARAMS("SGD", "\"dampening\": -0.5"), "-0.5 is out of range: 0 to 1"},
        {PARAMS("SGD", "\"nesterov\": 1"), "must be true or false"},
        {PARAMS("SGD", "\"nesterov\": true"),
         "optimizer.params.nesterov: needs momentum above 0 and dampening 0, as in PyTorch, not 0 and 0"},
        {PARAMS("SGD", "\"nesterov\": true, \"momentum\": 0.9, \"dampening\": 0.1"), "not 0.9 and 0.1"},
        {PARAMS("Adagrad", "\"eps\": 0"), "0 is out of range"},
        {PARAMS("Lion", "\"lr\": \"fast\""), "must be a number, not \"fast\""},
        {TYPE("Muon"), "Muon: this version has AdamW, Adam, Adagrad, Lion and SGD"},
        {TYPE("Loin"), "did you mean \"Lion\"?"},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        load_bad(rows[i].text, NULL, rows[i].problem);
}

/* What is not known cannot tell which arguments are right: one problem, not one per argument. */
TEST(arguments_of_a_rejected_type_are_not_evaluated)
{
    struct st_config_source *source;
    struct st_config config;

    assert_int_equal(config_load(&config, &source, PARAMS("MuSGD", "\"momentum\": 0.9, \"nesterov\": true"), NULL),
                     STRATA_E_CONFIG);
    assert_int_equal(st_config_problem_count(source), 1);
    assert_int_equal(find_row(source, "optimizer.params.momentum")->verdict, ST_VERDICT_NOTICE);
    st_config_source_free(source);
}

struct row_row {
    const char *text, *path, *value; /* value NULL: there is no such row */
    enum st_config_origin origin;
    const char *reason; /* part of it; NULL: none */
};

TEST(rows_say_what_is_in_force)
{
    static const struct row_row rows[] = {
        {TYPE("Adagrad"), "optimizer.params.eps", "1e-10", ST_ORIGIN_DERIVED, "Adagrad's default"},
        {PARAMS("Adagrad", "\"eps\": \"auto\""), "optimizer.params.eps", "1e-10", ST_ORIGIN_AUTO, NULL},
        {TYPE("Adagrad"), "optimizer.params.lr", "0.01", ST_ORIGIN_DERIVED, "DeepSpeed's default"},
        {TYPE("SGD"), "optimizer.params.lr", "0.001", ST_ORIGIN_DERIVED, "PyTorch's default"},
        {TYPE("Adagrad"), "optimizer.params.betas", NULL, ST_ORIGIN_DEFAULT, NULL},
        {TYPE("Adagrad"), "optimizer.params.weight_decay", "0", ST_ORIGIN_DEFAULT, NULL},
        {PARAMS("Adagrad", "\"weight_decay\": 0.5"), "optimizer.params.weight_decay", "0.5", ST_ORIGIN_FILE,
         "DeepSpeed's CPU kernel uses the raw one"},
        {PARAMS("SGD", "\"weight_decay\": 0.5"), "optimizer.params.weight_decay", "0.5", ST_ORIGIN_FILE, NULL},
        {TYPE("lion"), "optimizer.type", "Lion", ST_ORIGIN_FILE, NULL},
        {TYPE("Lion"), "optimizer.params.betas", "[0.9, 0.999]", ST_ORIGIN_DEFAULT, NULL},
        {TYPE("Lion"), "optimizer.params.adam_w_mode", NULL, ST_ORIGIN_DEFAULT, NULL},
        {TYPE("Lion"), "optimizer.params.momentum", NULL, ST_ORIGIN_DEFAULT, NULL},
        {TYPE("SGD"), "optimizer.params.momentum", "0", ST_ORIGIN_DEFAULT, NULL},
        {"{}", "strata.moments", "fp32", ST_ORIGIN_DEFAULT, NULL},
        {STRATA("8bit"), "strata.moments", "8bit", ST_ORIGIN_FILE, NULL},
        {FP32_STATES("false"), "strata.moments", "bf16", ST_ORIGIN_DERIVED, "from optimizer.params.fp32_optimizer_states"},
        {FP32_STATES("false"), "optimizer.params.fp32_optimizer_states", "false", ST_ORIGIN_FILE, "masters stay exact fp32"},
        {FP32_STATES("true"), "optimizer.params.fp32_optimizer_states", "true", ST_ORIGIN_FILE, NULL},
        {BF16_STATES("true"), "strata.moments", "bf16", ST_ORIGIN_DERIVED, "from bf16.bf16_optimizer_states"},
        {BF16_STATES("true"), "bf16.bf16_optimizer_states", "true", ST_ORIGIN_FILE, "masters stay exact fp32"},
        {BF16_STATES("false"), "strata.moments", "fp32", ST_ORIGIN_DEFAULT, NULL},
        {CYCLED("SGD", "\"momentum\": 0.5", ""), "optimizer.params.momentum", "0.5", ST_ORIGIN_FILE, "DeepSpeed leaves SGD's"},
        {CYCLED("SGD", "\"momentum\": 0.5", ", \"cycle_momentum\": false"), "optimizer.params.momentum", "0.5", ST_ORIGIN_FILE,
         NULL},
        {CYCLED("Lion", "", ""), "optimizer.params.betas", "[0.9, 0.999]", ST_ORIGIN_DEFAULT, "(momentum, 0.99)"},
        {CYCLED("Adagrad", "", ", \"cycle_momentum\": true"), "scheduler.params.cycle_momentum", "false", ST_ORIGIN_DERIVED,
         "Adagrad has no momentum"},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct st_config_source *source;
        const struct st_config_row *row;
        struct st_config config;

        assert_int_equal(config_load(&config, &source, rows[i].text, NULL), STRATA_OK);
        row = find_row(source, rows[i].path);
        if ((row == NULL) != (rows[i].value == NULL))
            fail_msg("%s: %s: row %s", rows[i].text, rows[i].path, row != NULL ? row->value : "missing");
        if (row != NULL && (strcmp(row->value, rows[i].value) != 0 || row->origin != rows[i].origin ||
                            (row->reason == NULL) != (rows[i].reason == NULL)))
            fail_msg("%s: %s: %s, origin %d: %s", rows[i].text, rows[i].path, row->value, (int)row->origin, row->reason);
        if (row != NULL && rows[i].reason != NULL && strstr(row->reason, rows[i].reason) == NULL)
            fail_msg("%s: %s: %s", rows[i].text, rows[i].path, row->reason);
        st_config_source_free(source);
    }
}

TEST(a_momentum_that_reaches_one_is_refused)
{
#define GROWS ", \"decay_step_size\": 1, \"decay_mom_rate\": 1"
    load_bad(CYCLED("SGD", "", GROWS), NULL, "decay_mom_rate: 1 brings momentum to 1 at step ");
    load_bad(CYCLED("Lion", "", GROWS), NULL, "decay_mom_rate: 1 brings beta1 to 1 at step ");
    assert_false(load_good(CYCLED("Adagrad", "", GROWS), NULL).schedule.cycle_momentum);
#undef GROWS
}

struct moments_row {
    const char *text, *override; /* override NULL: none */
    enum st_moment_format moments;
};

TEST(moments_have_a_format)
{
    static const struct moments_row rows[] = {
        {"{}", NULL, ST_MOMENTS_F32},
        {STRATA("fp32"), NULL, ST_MOMENTS_F32},
        {STRATA("bf16"), NULL, ST_MOMENTS_BF16},
        {STRATA("8bit"), NULL, ST_MOMENTS_8BIT},
        {STRATA("auto"), NULL, ST_MOMENTS_F32},
        {"{}", "strata.moments=8bit", ST_MOMENTS_8BIT},
        {STRATA("8bit"), "strata.moments=fp32", ST_MOMENTS_F32},
        {FP32_STATES("false"), NULL, ST_MOMENTS_BF16},
        {FP32_STATES("true"), NULL, ST_MOMENTS_F32},
        {FP32_STATES("\"auto\""), NULL, ST_MOMENTS_F32},
        {FP32_STATES("false"), "strata.moments=auto", ST_MOMENTS_BF16},
        {FP32_STATES("false"), "strata.moments=bf16", ST_MOMENTS_BF16},
        {FP32_STATES("false"), "strata.moments=8bit", ST_MOMENTS_8BIT},
        {FP32_STATES("true"), "strata.moments=fp32", ST_MOMENTS_F32},
        {FP32_STATES("false"), "optimizer.params.fp32_optimizer_states=null", ST_MOMENTS_F32},
        {FP32_STATES("false"), "bf16.bf16_optimizer_states=true", ST_MOMENTS_BF16},
        {PARAMS("Lion", "\"fp32_optimizer_states\": false"), NULL, ST_MOMENTS_BF16},
        {BF16_STATES("true"), NULL, ST_MOMENTS_BF16},
        {BF16_STATES("false"), NULL, ST_MOMENTS_F32},
        {BF16_STATES("false"), "strata.moments=8bit", ST_MOMENTS_8BIT},
        {BF16_STATES("true"), "strata.moments=bf16", ST_MOMENTS_BF16},
        {BF16_STATES("true"), "bf16.enabled=false", ST_MOMENTS_BF16},
        {BF16_STATES("true"), "optimizer.type=SGD", ST_MOMENTS_BF16},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        const struct st_config c = load_good(rows[i].text, rows[i].override);

        if (c.moments != rows[i].moments)
            fail_msg("%s, %s: moments %d", rows[i].text, rows[i].override, (int)c.moments);
    }
}

TEST(formats_that_contradict_are_refused)
{
    static const struct {
        const char *text, *override, *problem;
    } rows[] = {
        {STRATA("int4"), NULL, "strata.moments"},
        {"{}", "strata.moments=8", "strata.moments"},
        {STRATA("fp32"), "optimizer.params.fp32_optimizer_states=false",
         "optimizer.params.fp32_optimizer_states (command line): false, but strata.moments asks for fp32 moments: change one of"},
        {FP32_STATES("true"), "strata.moments=8bit", "true, but strata.moments asks for 8bit moments"},
        {FP32_STATES("true"), "strata.moments=bf16", "true, but strata.moments asks for bf16 moments"},
        {FP32_STATES("true"), "bf16.bf16_optimizer_states=true",
         "optimizer.params.fp32_optimizer_states: true, but bf16.bf16_optimizer_states asks for bf16 moments"},
        {BF16_STATES("true"), "strata.moments=fp32",
         "bf16.bf16_optimizer_states: true, but strata.moments asks for fp32 moments"},
        {BF16_STATES("true"), "strata.moments=8bit", "true, but strata.moments asks for 8bit moments"},
        {BF16_STATES("false"), "strata.moments=bf16", "false, but strata.moments asks for bf16 moments"},
        {BF16_STATES("false"), "optimizer.params.fp32_optimizer_states=false",
         "bf16.bf16_optimizer_states: false, but optimizer.params.fp32_optimizer_states asks for bf16 moments"},
        {PARAMS("SGD", "\"fp32_optimizer_states\": false"), NULL, "belongs to AdamW, Adam, Adagrad, Lion, and"},
        {BF16_STATES("1"), NULL, "must be true or false"},
        {"{\"strata\": {\"moments\": \"8-bit\"}}", NULL, "did you mean \"8bit\"?"},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        load_bad(rows[i].text, rows[i].override, rows[i].problem);
}

struct decay_row {
    const char *text, *override;
    double decay;
    bool all;
};

/* DeepSpeed hands the optimizer of its file every parameter; trainers, whose optimizers no file names, leave biases and norms
 * out. */
TEST(what_is_decayed)
{
    static const struct decay_row rows[] = {
        {"{}", "optimizer.params.weight_decay=0.1", 0.1, false},
        {"{\"optimizer\": {\"params\": {\"weight_decay\": 0.1}}}", NULL, 0.1, false},
        {"{\"optimizer\": {\"type\": \"AdamW\", \"params\": {\"weight_decay\": 0.1}}}", NULL, 0.1, true},
        {"{\"optimizer\": {\"type\": \"Lion\", \"params\": {\"weight_decay\": 0.1}}}", NULL, 0.1, true},
        {"{\"optimizer\": {\"type\": \"AdamW\", \"params\": {\"weight_decay\": \"auto\"}}}", "optimizer.params.weight_decay=0.2",
         0.2, true},
        {"{\"optimizer\": {\"type\": \"AdamW\", \"params\": {\"weight_decay\": 0.1}}}", "strata.decay_all=false", 0.1, false},
        {"{\"optimizer\": {\"type\": \"AdamW\", \"params\": {\"weight_decay\": 0.1}}}", "strata.decay_all=auto", 0.1, false},
        {"{\"optimizer\": {\"type\": \"AdamW\"}}", NULL, 0, false},
        {"{\"optimizer\": {\"type\": \"Adam\", \"params\": {\"torch_adam\": true}}}", NULL, 0.01, true},
        {"{\"optimizer\": {\"type\": \"AdamW\", \"params\": {\"torch_adam\": true, \"weight_decay\": 0}}}", NULL, 0, false},
        {"{\"optimizer\": {\"type\": \"Adam\", \"params\": {\"torch_adam\": true, \"adam_w_mode\": false}}}", NULL, 0, false},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        const struct st_config c = load_good(rows[i].text, rows[i].override);

        if (c.optimizer.weight_decay != rows[i].decay || c.decay_all != rows[i].all)
            fail_msg("%s: weight_decay %g, decay_all %d", rows[i].text, c.optimizer.weight_decay, (int)c.decay_all);
    }
}
