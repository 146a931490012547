/* tests/api/test_contract.c - what the door refuses: missing arguments, calls out of order, structs of other sizes. */
#include "api/handles.h"
#include "strata/advise.h"
#include "strata/verify.h"
#include "tests/api/handles_fixture.h"
#include "tests/common/scratch.h"
#include "tests/common/test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- arguments --- */

static bool no_tensor(void *ctx, const struct strata_verify_tensor *tensor, uint64_t first, uint64_t count, const float *values)
{
    (void)ctx, (void)tensor, (void)first, (void)count, (void)values;
    return false;
}

TEST(nothing_is_called_with_null)
{
    int32_t ids[4] = {0};
    char hex[33];
    float logits[1];
    double loss;
    uint64_t seen;
    const char *text, *path = "x";
    struct strata_model_info shape = STRATA_MODEL_INFO_INIT;
    struct strata_plan_info needs = STRATA_PLAN_INFO_INIT;
    struct strata_config_info says = STRATA_CONFIG_INFO_INIT;
    struct strata_engine_info info = STRATA_ENGINE_INFO_INIT;
    struct strata_eval eval = STRATA_EVAL_INIT;
    struct strata_model_opts opts = STRATA_MODEL_OPTS_INIT;
    struct strata_model *model = NULL;
    struct strata_data *data = NULL;
    struct strata_plan *plan = NULL;
    struct strata_engine *engine = NULL;
    struct strata_export *out = NULL;
    struct strata_recipe *recipe = NULL;
    struct strata_advice_opts asked = STRATA_ADVICE_OPTS_INIT;
    struct strata_advice *advice = NULL;
    char older[4096];
    uint32_t removed;
    bool found;

    assert_refused(strata_config_open(NULL, NULL), "config is NULL");
    assert_refused(strata_config_check(NULL, NULL), "config is NULL");
    assert_refused(strata_config_json(NULL, &text), "config is NULL");
    assert_refused(strata_recipe_open(NULL, "a.yaml", false), "recipe is NULL");
    assert_refused(strata_recipe_open(&recipe, NULL, false), "file is NULL");
    assert_false(strata_recipe_option(NULL, 0, &text, &text));
    assert_null(strata_recipe_deepspeed(NULL));
    assert_null(strata_recipe_key_of(NULL, "--model"));
    assert_null(strata_recipe_problem(NULL, 0));
    assert_refused(strata_recipe_open_words(NULL, "a.yaml", NULL, 0, false), "recipe is NULL");
    assert_refused(strata_recipe_open_words(&recipe, NULL, NULL, 1, false), "words is NULL");
    assert_refused(strata_recipe_open_words(&recipe, NULL, &(const char *){NULL}, 1, false), "a word is NULL");
    assert_false(strata_recipe_has_key(NULL, NULL));
    assert_true(strata_recipe_has_key("LLaMA-Factory", "lora-rank") && !strata_recipe_has_key("XTuner", "lora_rank"));
    assert_null(strata_recipe_words(NULL));
    strata_recipe_close(NULL);
    assert_refused(strata_directory_digest(NULL, hex), "dir is NULL");
    assert_refused(strata_verify(NULL, NULL, &seen), "path is NULL");
    assert_refused(strata_verify(path, NULL, NULL), "damages is NULL");
    assert_refused(strata_verify_digest(NULL, NULL, hex, hex), "path is NULL");
    assert_refused(strata_verify_digest(path, NULL, hex, NULL), "state is NULL");
    assert_refused(strata_verify_tensors(NULL, NULL, no_tensor, NULL), "path is NULL");
    assert_refused(strata_verify_tensors(path, NULL, NULL, NULL), "take is NULL");
    assert_refused(strata_verify_find(NULL, &found), "path is NULL");
    assert_refused(strata_verify_find(path, NULL), "found is NULL");
    assert_refused(strata_verify_older(NULL, older), "path is NULL");
    assert_refused(strata_verify_later(NULL, older), "path is NULL");
    assert_refused(strata_verify_leftovers(NULL, false, NULL, NULL, &removed), "dir is NULL");
    assert_refused(strata_verify_leftovers(path, false, NULL, NULL, NULL), "removed is NULL");
    assert_refused(strata_directory_digest("x", NULL), "digest is NULL");
    assert_refused(strata_export_check(NULL, NULL), "dir is NULL");
    assert_refused(strata_model_open(&model, NULL, &opts), "config is NULL");
    assert_refused(strata_model_get_info(NULL, &shape), "model is NULL");
    assert_refused(strata_device_check(NULL), "device is NULL");
    assert_refused(strata_data_open(&data, NULL, &path, 1), "model is NULL");
    assert_refused(strata_data_open_texts(&data, NULL, &path, 1, NULL), "model is NULL");
    assert_refused(strata_data_read(NULL, STRATA_DATA_SHUFFLED, 0, 0, 1, ids, ids, NULL), "data is NULL");
    assert_true(strata_data_count(NULL) == 0 && isnan(strata_data_bits_per_byte(NULL, 1)));
    assert_refused(strata_plan_make(&plan, NULL, NULL), "model is NULL");
    assert_refused(strata_advice_make(NULL, &asked), "advice is NULL");
    assert_refused(strata_advice_make(&advice, NULL), "opts is NULL");
    assert_refused(strata_advice_make(&advice, &asked), "opts.model is NULL");
    assert_refused(strata_advice_print(NULL, stdout), "advice is NULL");
    assert_refused(strata_advice_json(NULL, &text), "advice is NULL");
    assert_true(strata_advice_config(NULL) == NULL && strata_advice_plan(NULL) == NULL);
    strata_advice_destroy(NULL);
    assert_refused(strata_plan_measure(NULL), "plan is NULL");
    assert_refused(strata_plan_get_info(NULL, &needs), "plan is NULL");
    assert_refused(strata_plan_text(NULL, &text), "plan is NULL");
    assert_refused(strata_plan_print_ops(NULL, false, stdout), "plan is NULL");
    assert_refused(strata_plan_write_trace(NULL, stdout), "plan is NULL");
    assert_refused(strata_machine_measure(NULL, NULL), "machine is NULL");
    assert_refused(strata_machine_measure_links(NULL, NULL), "machine is NULL");
    assert_refused(strata_machine_print(NULL, NULL, stdout), "machine is NULL");
    assert_refused(strata_machine_json(NULL, NULL, &text), "machine is NULL");
    assert_refused(strata_machine_write(NULL, path, false), "machine is NULL");
    assert_refused(strata_machine_print_names(false, NULL), "file is NULL");
    assert_refused(strata_machine_print_names(true, NULL), "file is NULL");
    assert_refused(strata_plan_json(NULL, NULL, &text), "plan is NULL");
    assert_refused(strata_engine_create(&engine, NULL, NULL), "plan is NULL");
    assert_refused(strata_engine_load(NULL), "engine is NULL");
    assert_refused(strata_engine_set_lr(NULL, 1), "engine is NULL");
    assert_refused(strata_engine_step(NULL, ids, ids, NULL, NULL), "engine is NULL");
    assert_refused(strata_engine_flush(NULL), "engine is NULL");
    assert_refused(strata_engine_end_training(NULL), "engine is NULL");
    assert_refused(strata_engine_eval(NULL, ids, ids, NULL, &loss, &seen), "engine is NULL");
    assert_refused(strata_engine_eval_data(NULL, data, &eval), "engine is NULL");
    assert_refused(strata_engine_forward(NULL, ids, 1, 0, logits), "engine is NULL");
    assert_refused(strata_engine_check(NULL), "engine is NULL");
    assert_refused(strata_engine_digest(NULL, hex, hex), "engine is NULL");
    assert_refused(strata_engine_get_info(NULL, &info), "engine is NULL");
    assert_refused(strata_engine_json(NULL, 1, &text), "engine is NULL");
    assert_refused(strata_engine_step_json(NULL, NULL, &text), "engine is NULL");
    assert_refused(strata_engine_write_trace(NULL, stderr), "engine is NULL");
    assert_refused(strata_config_get_info(NULL, &says), "config is NULL");
    assert_refused(strata_export_open(&out, NULL, "x", NULL), "model is NULL");
    assert_refused(strata_engine_export(NULL, NULL), "engine is NULL");
    assert_null(model);
    strata_config_close(NULL);
    strata_model_close(NULL);
    strata_data_close(NULL);
    strata_plan_destroy(NULL);
    strata_engine_destroy(NULL);
    strata_export_abort(NULL);
}

/* DeepSpeed's schedulers begin after the first step; of WarmupDecayLR nobody has said how long it is. */
TEST(a_configuration_tells_the_rates_of_any_step)
{
    struct strata_config_rates rates = STRATA_CONFIG_RATES_INIT;
    struct strata_config_opts opts = STRATA_CONFIG_OPTS_INIT;
    struct strata_config *config = NULL;

    opts.text = "{\"train_batch_size\": 1, \"optimizer\": {\"type\": \"Adam\", \"params\": {\"betas\": [0.8, 0.9]}}, "
                "\"scheduler\": {\"type\": \"WarmupLR\", \"params\": {\"warmup_max_lr\": 0.5, \"warmup_num_steps\": 4, "
                "\"warmup_type\": \"linear\"}}}";
    assert_ok(strata_config_open(&config, &opts));
    assert_refused(strata_config_get_rates(NULL, 1, &rates), "config is NULL");
    assert_refused(strata_config_get_rates(config, 1, NULL), "rates is NULL");
    assert_refused(strata_config_get_rates(config, 0, &rates), "counted from 1");
    assert_ok(strata_config_get_rates(config, 4, &rates));
    assert_true(rates.lr == 0.25 && rates.beta1 == 0.8 && rates.beta2 == 0.9);
    assert_ok(strata_config_get_rates(config, UINT64_MAX, &rates));
    assert_true(rates.lr == 0.5);
    strata_config_close(config);
    opts.text = "{\"train_batch_size\": 1, \"scheduler\": {\"type\": \"WarmupDecayLR\"}}";
    assert_ok(strata_config_open(&config, &opts));
    assert_refused(strata_config_get_rates(config, 1, &rates), "max_steps");
    strata_config_close(config);
    opts.text = "{\"train_batch_size\": 0}";
    assert_status(strata_config_check(&config, &opts), STRATA_E_CONFIG, "0 sequences");
    assert_refused(strata_config_get_rates(config, 1, &rates), "has problems");
    strata_config_close(config);
    opts.name = "ds.json";
    assert_status(strata_config_open(&config, &opts), STRATA_E_CONFIG, "ds.json: train_batch_size");
}

static strata_status its_turn(void *ctx)
{
    ++*(int *)ctx;
    return STRATA_OK;
}

/* What the caller says of itself is added to what a launcher says, and may not contradict it. */
TEST(the_caller_knows_its_rank)
{
    static const char *const torch[] = {"RANK=1", "WORLD_SIZE=2", "MASTER_ADDR=n", "MASTER_PORT=7", NULL};
    static const char *const texts[] = {"x", NULL};
    struct strata_comm_opts opts = STRATA_COMM_OPTS_INIT, alone = STRATA_COMM_OPTS_INIT;
    struct strata_comm *comm = NULL;
    int mine = 5, all = 0;

    opts.rank = 1, opts.ranks = 2, opts.local_rank = 1, opts.local_ranks = 2;
    assert_ok(strata_comm_find(&opts, torch));
    assert_true(opts.rank == 1 && opts.ranks == 2 && opts.local_rank == 1 && opts.local_ranks == 2 && opts.port == 7);
    opts = (struct strata_comm_opts)STRATA_COMM_OPTS_INIT;
    opts.rank = 1, opts.ranks = 4;
    assert_refused(strata_comm_find(&opts, torch), "contradict RANK 1 and WORLD_SIZE 2");
    assert_true(opts.ranks == 4 && opts.port == 0);
    alone.ranks = 1;
    assert_ok(strata_comm_open(&comm, &alone));
    assert_refused(strata_comm_gather(comm, &mine, 0, &all, "x"), "bytes is 0");
    assert_refused(strata_comm_gather(comm, NULL, 4, &all, "x"), "mine is NULL");
    assert_refused(strata_comm_gather(comm, &mine, 4, NULL, "x"), "all is NULL");
    assert_refused(strata_comm_gather(comm, &mine, 4, &all, NULL), "what is NULL");
    assert_refused(strata_comm_agree(comm, texts, texts, 2), "one of names is NULL");
    assert_refused(strata_comm_agree(comm, (const char *const[]){"a", "b"}, texts, 2), "one of texts is NULL");
    assert_refused(strata_comm_take_turns(comm, NULL, NULL, "x"), "work is NULL");
    assert_refused(strata_comm_take_turns(comm, its_turn, &all, NULL), "what is NULL");
    assert_int_equal(all, 0);
    assert_ok(strata_comm_take_turns(comm, its_turn, &all, "x"));
    assert_ok(strata_comm_take_turns(NULL, its_turn, &all, "x"));
    assert_int_equal(all, 2);
    strata_comm_close(comm);
}

TEST(no_file_is_called_with_null)
{
    struct strata_io_counters counters = {.outstanding = 1};
    struct strata_io_file *file = NULL;
    struct strata_io *io = NULL;
    strata_io_request request = {0};
    char byte = 0;
    void *buffer;

    assert_refused(strata_io_open(NULL, NULL), "io is NULL");
    assert_refused(strata_io_open_file(NULL, &file, "x", STRATA_IO_READ, 0), "io is NULL");
    assert_refused(strata_io_read(NULL, 0, &byte, 1, &request), "file is NULL");
    assert_refused(strata_io_write(NULL, 0, &byte, 1, &request), "file is NULL");
    assert_refused(strata_io_wait(NULL, request, 0, NULL), "io is NULL");
    assert_refused(strata_io_poll(NULL, request, NULL), "io is NULL");
    assert_refused(strata_io_cancel(NULL, request), "io is NULL");
    assert_refused(strata_io_wait_all(NULL, 0), "io is NULL");
    assert_refused(strata_io_sync_file(NULL), "file is NULL");
    assert_refused(strata_io_buffer_alloc(NULL, &buffer, 1), "io is NULL");
    strata_io_get_counters(NULL, &counters);
    assert_int_equal(counters.outstanding, 0);
    assert_true(strata_io_file_bytes(NULL) == 0 && !strata_io_file_direct(NULL) && !strata_io_get_registered(NULL));
    assert_string_equal(strata_io_get_method(NULL), "");
    assert_ok(strata_io_open(&io, NULL));
    assert_refused(strata_io_open_file(io, NULL, "x", STRATA_IO_READ, 0), "file is NULL");
    assert_refused(strata_io_buffer_alloc(io, NULL, 1), "buffer is NULL");
    strata_io_get_counters(io, NULL);
    assert_ok(strata_io_close(io));
}

TEST(no_optimizer_is_called_with_null)
{
    struct strata_optim_tensor tensor = {0};
    struct strata_optim_config config;
    struct strata_optim *opt = NULL;
    double norm;

    strata_optim_defaults(NULL, STRATA_ADAMW);
    strata_optim_defaults(&config, STRATA_ADAMW);
    config.threads = 1;
    assert_refused(strata_optim_create(NULL, &config), "opt is NULL");
    assert_refused(strata_optim_create(&opt, NULL), "config is NULL");
    assert_refused(strata_optim_step(NULL, &tensor, 1, 1, NULL), "opt is NULL");
    assert_refused(strata_optim_grad_norm(NULL, &tensor, 1, &norm, NULL), "opt is NULL");
    assert_refused(strata_optim_split(NULL, NULL, NULL, NULL, 1), "opt is NULL");
    assert_refused(strata_optim_join(NULL, NULL, NULL, NULL, 1), "opt is NULL");
    assert_refused(strata_optim_set_lr(NULL, 1), "opt is NULL");
    strata_optim_set_step(NULL, 1);
    assert_true(strata_optim_get_step(NULL) == 0 && strata_optim_get_threads(NULL) == 0);
    assert_string_equal(strata_optim_get_isa(NULL), "");
    assert_ok(strata_optim_create(&opt, &config));
    assert_refused(strata_optim_step(opt, NULL, 1, 1, NULL), "tensors is NULL");
    assert_refused(strata_optim_grad_norm(opt, NULL, 1, &norm, NULL), "tensors is NULL");
    assert_refused(strata_optim_grad_norm(opt, &tensor, 1, NULL, NULL), "norm is NULL");
    strata_optim_destroy(opt);
}

/* --- what cannot be used --- */

/* Files and directories that a caller names, and that are not what they should be. */
TEST_SETUP(what_is_named_wrongly_is_input, scratch_create, scratch_remove)
{
    struct strata_machine_opts opts = STRATA_MACHINE_OPTS_INIT;
    struct run swaps = {0};
    char dir[64];
    struct strata_machine *other = NULL;
    struct strata_plan *plan = NULL;

    opts.file = scratch_path("missing.json");
    assert_status(strata_machine_open(&other, &opts), STRATA_E_INPUT, "no machine file");
    opts.file = "/proc/self/cmdline";
    assert_status(strata_machine_open(&other, &opts), STRATA_E_INPUT, "no JSON in a machine file");
    snprintf(dir, sizeof(dir), "%s", scratch_path("missing"));
    swaps.dir = dir;
    assert_ok(run_open(&swaps, run_tokens("a.bin", 200)));
    assert_status(strata_plan_make(&plan, swaps.model, NULL), STRATA_E_INPUT, "no directory for swap files");
    assert_null(other);
    assert_null(plan);
    run_close(&swaps);
}

/* A device is one that models can run on, also of a machine that is not here. */
TEST(a_machine_has_a_device_that_can_be)
{
    static const char *const wrong[] = {"paced", "cuda:9999999999", "cuda:", "cuda:1x", "cudaa"};
    struct strata_machine_opts opts = STRATA_MACHINE_OPTS_INIT;
    struct strata_machine *machine = NULL;

    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++)
        for (int named = 0; named < 2; named++) {
            opts.gpu = named ? "4090" : NULL;
            opts.device = wrong[i];
            assert_refused(strata_machine_open(&machine, &opts), "machine.device: unknown device");
        }
    opts.device = "cuda:7";
    assert_ok(strata_machine_open(&machine, &opts));
    strata_machine_close(machine);
}

/* What a card's name refuses, the machine file of it does. */
TEST_SETUP(a_file_of_a_card_has_its_memory, scratch_create, scratch_remove)
{
    static const char *const budgets[] = {"strata.device_memory=\"100G\"", "strata.host_memory=\"100T\""};
    struct strata_machine_opts opts = STRATA_MACHINE_OPTS_INIT;
    struct strata_machine *machines[2] = {NULL};
    const char *path = scratch_path("card.json");

    opts.gpu = "4090";
    assert_ok(strata_machine_open(&machines[0], &opts));
    assert_ok(strata_machine_write(machines[0], path, false));
    opts = (struct strata_machine_opts)STRATA_MACHINE_OPTS_INIT;
    opts.file = path;
    assert_ok(strata_machine_open(&machines[1], &opts));
    for (size_t b = 0; b < 2; b++)
        for (size_t k = 0; k < 2; k++) {
            struct strata_config_opts asked = STRATA_CONFIG_OPTS_INIT;
            struct strata_model_opts shape = STRATA_MODEL_OPTS_INIT;
            struct strata_config *config;
            struct strata_model *model;
            struct strata_plan *plan = NULL;

            asked.overrides = &budgets[b];
            asked.override_count = 1;
            shape.model = "nano";
            shape.use = STRATA_USE_PLAN;
            assert_ok(strata_config_open(&config, &asked));
            assert_ok(strata_model_open(&model, config, &shape));
            assert_status(strata_plan_make(&plan, model, machines[k]), STRATA_E_CONFIG, budgets[b]);
            assert_memory_equal(strata_last_error(), budgets[b], strcspn(budgets[b], "="));
            assert_non_null(strstr(strata_last_error(), "give less"));
            strata_model_close(model);
            strata_config_close(config);
        }
    strata_machine_close(machines[0]);
    strata_machine_close(machines[1]);
}

static bool ends_measuring(void *ctx, const char *what, uint64_t done, uint64_t total)
{
    (void)done;
    (void)total;
    *(bool *)ctx = strstr(what, "measuring") != NULL;
    return false;
}

TEST(progress_ends_a_measurement)
{
    struct strata_machine *here = NULL;
    bool asked = false;
    struct run r = {.progress = ends_measuring, .progress_ctx = &asked};

    assert_ok(run_open(&r, NULL));
    assert_ok(strata_machine_open(&here, NULL));
    assert_status(strata_machine_measure(here, r.model), STRATA_E_CANCELLED, "measuring");
    assert_true(asked);
    strata_machine_close(here);
    run_close(&r);
}

/* A machine by names can be written and opened again, but not measured; this one is written once it is measured. */
TEST_SETUP(a_machine_tells_what_it_is, scratch_create, scratch_remove)
{
    struct strata_machine_opts opts = STRATA_MACHINE_OPTS_INIT;
    struct strata_machine *named = NULL, *here = NULL, *read = NULL;
    const char *json, *path = scratch_path("machine.json");
    char *written;
    struct run r = {0};

    opts.gpu = "4090";
    assert_ok(strata_machine_open(&named, &opts));
    assert_ok(strata_machine_open(&here, NULL));
    assert_ok(run_open(&r, run_tokens("a.bin", 200)));
    assert_refused(strata_machine_measure(named, r.model), "is not this machine");
    assert_refused(strata_machine_write(here, path, false), "is not measured");
    assert_ok(strata_machine_write(named, path, false));
    assert_status(strata_machine_write(named, path, false), STRATA_E_INPUT, "a machine file that is there");
    assert_ok(strata_machine_write(named, path, true));
    assert_ok(strata_machine_json(named, NULL, &json));
    assert_true(strncmp(json, "{\"machine\":{\"name\":", 19) == 0);
    written = strdup(json);
    opts.gpu = NULL;
    opts.file = path;
    assert_ok(strata_machine_open(&read, &opts));
    assert_ok(strata_machine_json(read, NULL, &json));
    assert_string_equal(json, written);
    assert_ok(strata_machine_json(here, NULL, &json));
    assert_true(strstr(json, "\"usable_cores\":") != NULL && strstr(json, "\"machine\":") == NULL);
    free(written);
    run_close(&r);
    strata_machine_close(read);
    strata_machine_close(here);
    strata_machine_close(named);
}

/* What one refuses, the other does, with the same sentence. */
TEST_SETUP(a_check_of_an_export_says_what_opening_it_does, scratch_create, scratch_remove)
{
    static char too_long[6000];
    const char *const names[] = {"", "/etc/passwd", "/etc/passwd/x", "/proc/self/exe/x", "/dev/null/x/y", too_long};
    struct run r = {0};
    struct strata_export *out = NULL;

    memset(too_long, 'a', sizeof(too_long) - 1);
    assert_ok(run_open(&r, run_tokens("a.bin", 200)));
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        char sentence[512];

        assert_status(strata_export_check(names[i], NULL), STRATA_E_INPUT, names[i]);
        snprintf(sentence, sizeof(sentence), "%s", strata_last_error());
        assert_status(strata_export_open(&out, r.model, names[i], NULL), STRATA_E_INPUT, names[i]);
        assert_string_equal(strata_last_error(), sentence);
    }
    assert_ok(strata_export_check(scratch_path("p/q/r"), NULL));
    assert_ok(strata_export_open(&out, r.model, scratch_path("p/q/r"), NULL));
    strata_export_abort(out);
    assert_int_equal(scratch_entries_with(scratch_dir, "p"), 0);
    run_close(&r);
}

/* The same with the handle there, and the rest not. */
TEST_SETUP(no_argument_is_left_out, scratch_create, scratch_remove)
{
    const struct strata_plan_report_opts no_part = {.opts_size = sizeof(no_part), .parts = 512};
    const char *json;
    struct run r = {0};
    int32_t ids[4 * RUN_SEQ] = {0};
    const char *paths[1] = {NULL};
    double loss;
    bool documents;
    uint64_t seen;
    char hex[33];
    struct strata_config_opts config = STRATA_CONFIG_OPTS_INIT;
    struct strata_model_opts opts = STRATA_MODEL_OPTS_INIT;
    struct strata_config *other = NULL;

    config.override_count = 1;
    assert_refused(strata_config_open(&other, &config), "override 0 of a configuration is NULL");
    config.overrides = paths;
    assert_refused(strata_config_open(&other, &config), "override 0 of a configuration is NULL");
    config = (struct strata_config_opts)STRATA_CONFIG_OPTS_INIT;
    config.file = config.text = "{}";
    assert_refused(strata_config_open(&other, &config), "one of them must be NULL");
    assert_null(other);
    assert_ok(run_open(&r, run_tokens("a.bin", 400)));
    assert_refused(strata_config_json(r.config, NULL), "json is NULL");
    assert_refused(strata_model_open(NULL, r.config, &opts), "model is NULL");
    assert_refused(strata_model_open(&r.model, r.config, NULL), "opts is NULL");
    assert_refused(strata_model_open(&r.model, r.config, &opts), "no model is named");
    opts.model = "nano";
    opts.use = (enum strata_use)9;
    assert_refused(strata_model_open(&r.model, r.config, &opts), "use 9");
    opts.use = STRATA_USE_GENERATE;
    assert_refused(strata_model_open(&r.model, r.config, &opts), "prompt_tokens");
    assert_refused(strata_model_get_info(r.model, NULL), "info is NULL");
    assert_refused(strata_data_open(NULL, r.model, paths, 1), "data is NULL");
    assert_refused(strata_data_open(&r.data, r.model, NULL, 1), "paths is NULL");
    assert_refused(strata_data_open(&r.data, r.model, paths, 1), "one of paths is NULL");
    assert_refused(strata_data_open(&r.data, r.model, paths, 0), "count is 0");
    assert_refused(strata_data_documents(NULL, 1, &documents), "paths is NULL");
    assert_refused(strata_data_documents(paths, 1, NULL), "documents is NULL");
    assert_refused(strata_data_documents(paths, 0, &documents), "count is 0");
    assert_refused(strata_data_documents(paths, 1, &documents), "one of paths is NULL");
    assert_refused(strata_data_open_texts(NULL, r.model, paths, 1, NULL), "data is NULL");
    assert_refused(strata_data_open_texts(&r.data, r.model, NULL, 1, NULL), "paths is NULL");
    assert_refused(strata_data_open_texts(&r.data, r.model, paths, 1, NULL), "one of paths is NULL");
    assert_refused(strata_data_open_texts(&r.data, r.model, paths, 0, NULL), "count is 0");
    assert_refused(strata_data_read(r.data, STRATA_DATA_SHUFFLED, 0, 0, 1, NULL, ids, NULL), "tokens is NULL");
    assert_refused(strata_data_read(r.data, STRATA_DATA_SHUFFLED, 0, 0, 1, ids, NULL, NULL), "targets is NULL");
    assert_refused(strata_data_read(r.data, (enum strata_data_order)7, 0, 0, 1, ids, ids, NULL), "7 is not an order");
    assert_ok(run_start(&r));
    assert_refused(strata_plan_make(NULL, r.model, NULL), "plan is NULL");
    assert_refused(strata_plan_get_info(r.plan, NULL), "info is NULL");
    assert_refused(strata_plan_text(r.plan, NULL), "text is NULL");
    assert_refused(strata_plan_json(r.plan, NULL, NULL), "json is NULL");
    assert_refused(strata_plan_json(r.plan, &no_part, &json), "parts 512 has an unknown bit");
    assert_refused(strata_plan_print(r.plan, NULL, NULL), "file is NULL");
    assert_refused(strata_engine_create(NULL, r.plan, NULL), "engine is NULL");
    assert_refused(strata_engine_step(r.engine, NULL, ids, NULL, NULL), "tokens is NULL");
    assert_refused(strata_engine_step(r.engine, ids, NULL, NULL, NULL), "targets is NULL");
    assert_refused(strata_engine_eval(r.engine, ids, ids, NULL, NULL, &seen), "loss_sum is NULL");
    assert_refused(strata_engine_eval(r.engine, ids, ids, NULL, &loss, NULL), "targets_seen is NULL");
    assert_refused(strata_engine_eval_data(r.engine, NULL, NULL), "data is NULL");
    assert_refused(strata_engine_eval_data(r.engine, r.data, NULL), "result is NULL");
    assert_refused(strata_engine_digest(r.engine, NULL, hex), "weights is NULL");
    assert_refused(strata_engine_digest(r.engine, hex, NULL), "state is NULL");
    assert_refused(strata_engine_get_info(r.engine, NULL), "info is NULL");
    assert_refused(strata_engine_export(r.engine, NULL), "out is NULL");
    assert_refused(strata_export_open(NULL, r.model, "x", NULL), "out is NULL");
    run_close(&r);
}

/* --- order --- */

TEST_SETUP(calls_out_of_order_are_refused, scratch_create, scratch_remove)
{
    struct strata_eval eval = STRATA_EVAL_INIT;
    struct strata_engine *second = NULL;
    struct strata_export *out = NULL;
    struct run r = {0}, other = {0};
    int32_t ids[4 * RUN_SEQ] = {0};
    char hex[33];

    assert_ok(run_open(&r, run_tokens("a.bin", 400)));
    assert_ok(run_open(&other, NULL));
    assert_ok(strata_plan_make(&r.plan, r.model, NULL));
    assert_ok(strata_engine_create(&r.engine, r.plan, NULL));
    assert_refused(strata_engine_step(r.engine, ids, ids, NULL, NULL), "strata_engine_load() comes first");
    assert_refused(strata_engine_flush(r.engine), "strata_engine_load() comes first");
    assert_refused(strata_engine_eval_data(r.engine, r.data, &eval), "strata_engine_load() comes first");
    assert_refused(strata_engine_digest(r.engine, hex, hex), "strata_engine_load() comes first");
    assert_ok(strata_export_open(&out, r.model, scratch_path("out"), NULL));
    assert_refused(strata_engine_export(r.engine, out), "strata_engine_load() comes first"); /* `out` is taken */
    assert_refused(strata_engine_create(&second, r.plan, NULL), "the model has an engine");
    assert_refused(strata_plan_measure(r.plan), "the plan has an engine");
    assert_null(second);
    assert_ok(strata_engine_load(r.engine));
    assert_ok(strata_engine_step(r.engine, ids, ids, NULL, NULL));
    assert_refused(strata_engine_forward(r.engine, ids, 1, 0, (float[256]){0}), "another use");
    assert_ok(strata_export_open(&out, other.model, scratch_path("other"), NULL));
    assert_refused(strata_engine_export(r.engine, out), "another model");
    strata_engine_destroy(r.engine);
    assert_ok(strata_engine_create(&r.engine, r.plan, NULL)); /* the next one begins anew */
    assert_refused(strata_engine_step(r.engine, ids, ids, NULL, NULL), "strata_engine_load() comes first");
    run_close(&r);
    run_close(&other);
}

TEST(a_use_allows_what_it_is_for)
{
    struct run plans = {.use = STRATA_USE_PLAN}, evaluates = {.use = STRATA_USE_EVAL};
    int32_t ids[4 * RUN_SEQ] = {0};
    double loss;
    uint64_t seen;

    assert_ok(run_open(&plans, NULL));
    assert_ok(strata_plan_make(&plans.plan, plans.model, NULL));
    assert_refused(strata_engine_create(&plans.engine, plans.plan, NULL), "only for planning");
    assert_ok(run_open(&evaluates, NULL));
    assert_ok(run_start(&evaluates));
    assert_refused(strata_engine_step(evaluates.engine, ids, ids, NULL, NULL), "another use");
    assert_refused(strata_engine_save(evaluates.engine, NULL), "strata_engine_save: the model was opened for another use");
    assert_refused(strata_engine_save_when(evaluates.engine, NULL), "another use than training");
    assert_ok(strata_engine_eval(evaluates.engine, ids, ids, NULL, &loss, &seen));
    assert_true(seen == 4 * RUN_SEQ && loss > 0);
    ids[3] = 256;
    assert_status(strata_engine_eval(evaluates.engine, ids, ids, NULL, &loss, &seen), STRATA_E_INPUT, "a token outside");
    ids[3] = 0;
    assert_ok(strata_engine_eval(evaluates.engine, ids, ids, NULL, &loss, &seen)); /* nothing had run */
    run_close(&plans);
    run_close(&evaluates);
}

/* --- a plan --- */

TEST(a_plan_says_what_it_needs_and_lacks)
{
    struct run fits = {0}, lacks = {.text = "{\"bf16\": {\"enabled\": true}, \"strata\": {\"device_memory\": 1000000}}"};
    struct strata_plan_info needs = STRATA_PLAN_INFO_INIT;
    static const char *const whole[] = {"\"written\":", "\"evaluated_by\":", "\"schedules\":", "\"one_more\":"};
    struct strata_plan_report_opts brief = STRATA_PLAN_REPORT_OPTS_INIT;
    const char *text, *again, *json;

    assert_ok(run_open(&fits, NULL));
    assert_ok(strata_plan_make(&fits.plan, fits.model, NULL));
    assert_ok(strata_plan_get_info(fits.plan, &needs));
    assert_true(needs.fits && needs.needed_bytes[STRATA_TIER_DEVICE] > 0 && needs.memory_bytes > needs.needed_bytes[0]);
    assert_true(needs.needed_bytes[STRATA_TIER_DEVICE] <= needs.capacity_bytes[STRATA_TIER_DEVICE]);
    assert_true(needs.schedule_bound_seconds == 0);
    assert_ok(strata_plan_text(fits.plan, &text));
    assert_ok(strata_plan_text(fits.plan, &again));
    assert_ptr_equal(text, again);
    assert_non_null(strstr(text, "needed"));
    assert_null(strstr(text, "lacking"));
    assert_ok(strata_plan_measure(fits.plan));
    assert_ok(strata_plan_get_info(fits.plan, &needs));
    assert_true(needs.schedule_bound_seconds >= needs.hardware_bound_seconds && needs.hardware_bound_seconds > 0);
    assert_ok(strata_plan_text(fits.plan, &text));
    assert_non_null(strstr(text, "shortest step"));
    brief.parts = STRATA_PLAN_BRIEF;
    assert_ok(strata_plan_json(fits.plan, NULL, &json));
    for (size_t i = 0; i < sizeof(whole) / sizeof(whole[0]); i++)
        assert_non_null(strstr(json, whole[i]));
    assert_ok(strata_plan_json(fits.plan, &brief, &json));
    for (size_t i = 0; i < sizeof(whole) / sizeof(whole[0]); i++)
        assert_null(strstr(json, whole[i]));

    assert_ok(run_open(&lacks, NULL));
    assert_status(strata_plan_make(&lacks.plan, lacks.model, NULL), STRATA_E_NOFIT, "a device of a megabyte");
    assert_non_null(lacks.plan);
    assert_ok(strata_plan_get_info(lacks.plan, &needs));
    assert_true(!needs.fits && needs.needed_bytes[STRATA_TIER_DEVICE] > 1000000);
    assert_ok(strata_plan_text(lacks.plan, &text));
    assert_non_null(strstr(text, "lacking"));
    assert_ok(strata_plan_json(lacks.plan, NULL, &json));
    assert_non_null(strstr(json, "\"fits\":false"));
    assert_refused(strata_plan_measure(lacks.plan), "does not fit");
    assert_refused(strata_engine_create(&lacks.engine, lacks.plan, NULL), "does not fit");
    run_close(&fits);
    run_close(&lacks);
}

/* Budgets beyond what any machine has hold it: no engine tries to take what is not there. */
TEST(a_plan_for_more_memory_than_there_is_does_not_fit)
{
    struct run r = {.preset = "gpt2-xl",
                    .text = "{\"bf16\": {\"enabled\": true}, \"train_micro_batch_size_per_gpu\": 1000000,"
                            " \"strata\": {\"threads\": 1, \"device_memory\": \"4096TiB\", \"host_memory\": \"4096TiB\"}}"};
    struct strata_plan_info needs = STRATA_PLAN_INFO_INIT;
    const char *json;

    assert_ok(run_open(&r, NULL));
    assert_status(strata_plan_make(&r.plan, r.model, NULL), STRATA_E_NOFIT, "a plan of many terabytes");
    assert_non_null(strstr(strata_last_error(), "the plan takes "));
    assert_non_null(r.plan);
    assert_ok(strata_plan_get_info(r.plan, &needs));
    assert_true(!needs.fits && needs.needed_bytes[STRATA_TIER_DEVICE] <= needs.capacity_bytes[STRATA_TIER_DEVICE]);
    assert_ok(strata_plan_json(r.plan, NULL, &json));
    assert_non_null(strstr(json, "\"fits\":false"));
    assert_refused(strata_plan_measure(r.plan), "does not fit");
    assert_refused(strata_engine_create(&r.engine, r.plan, NULL), "does not fit");
    run_close(&r);
}

/* --- structs that grow --- */

struct sized {
    size_t size;
    uint32_t a;
    uint64_t b;
};

/* Of ranks that are not there one has what it would take if it were: of this machine's memory its part, less what is its own. */
TEST(a_planned_rank_has_what_one_here_takes)
{
    const uint64_t device = UINT64_C(1) << 27;
    struct strata_config_opts config = STRATA_CONFIG_OPTS_INIT;
    struct strata_model_opts opts = STRATA_MODEL_OPTS_INIT;
    struct strata_machine_opts two = STRATA_MACHINE_OPTS_INIT;
    struct strata_machine *machine;
    struct run r = {.use = STRATA_USE_PLAN};

    config.text = "{\"bf16\": {\"enabled\": true}, \"strata\": {\"device_memory\": 134217728, \"threads\": 3}}";
    config.ranks = two.ranks = 2;
    opts.model = "nano";
    opts.use = STRATA_USE_PLAN;
    opts.seq_len = RUN_SEQ;
    assert_ok(strata_config_open(&r.config, &config));
    assert_ok(strata_model_open(&r.model, r.config, &opts));
    assert_ok(strata_machine_open(&machine, &two));
    assert_ok(strata_plan_make(&r.plan, r.model, machine));
    strata_machine_close(machine);
    assert_true(r.plan->facts.machine.capacity.bytes[STRATA_TIER_DEVICE] == device);
    assert_true(r.plan->facts.machine.capacity.bytes[STRATA_TIER_HOST] ==
                st_machine_host_budget(st_machine_available(r.plan->on->topology) / 2, device));
    assert_int_equal(r.plan->facts.machine.capacity.workers, 3);
    run_close(&r);
}

/* Programs put arguments of their own in the place of what these name. */
TEST(an_error_has_its_key_and_remedy)
{
    struct strata_config_opts config = STRATA_CONFIG_OPTS_INIT;
    struct strata_model_opts opts = STRATA_MODEL_OPTS_INIT;
    struct strata_machine_opts here = STRATA_MACHINE_OPTS_INIT;
    struct strata_machine *machine;
    struct run r = {.use = STRATA_USE_PLAN};

    config.text = "{\"strata\": {\"keep\": 0}}";
    assert_int_equal(strata_config_open(&r.config, &config), STRATA_E_CONFIG);
    assert_string_equal(strata_error_key(), "strata.keep");
    config.text = "{\"bf16\": {\"enabled\": true}, \"strata\": {\"device_memory\": 4096, \"host_memory\": 134217728}}";
    assert_ok(strata_config_open(&r.config, &config));
    opts.model = "nano";
    opts.use = STRATA_USE_PLAN;
    opts.seq_len = 1 << 20;
    assert_int_equal(strata_model_open(&r.model, r.config, &opts), STRATA_E_INVAL);
    assert_string_equal(strata_error_key(), "model.seq_len");
    assert_string_equal(strata_error_remedy(), "lower model.seq_len");
    opts.seq_len = RUN_SEQ;
    assert_ok(strata_model_open(&r.model, r.config, &opts));
    assert_ok(strata_machine_open(&machine, &here));
    assert_int_equal(strata_plan_make(&r.plan, r.model, machine), STRATA_E_NOFIT);
    strata_machine_close(machine);
    assert_string_equal(strata_error_key(), "strata.device_memory");
    assert_non_null(strstr(strata_error_remedy(), "raise strata.device_memory"));
    run_close(&r);
}

/* Where nothing fits, that is advice, too; the file that is advised makes the plan that is advised. */
TEST(advice_is_a_configuration_and_its_plan)
{
    static const char *const little[] = {"strata.device_memory=64MiB", "strata.host_memory=64MiB", "strata.nvme=[\"/a\"]"};
    struct strata_model_opts model = STRATA_MODEL_OPTS_INIT;
    struct strata_machine_opts card = STRATA_MACHINE_OPTS_INIT;
    struct strata_advice_opts asked = STRATA_ADVICE_OPTS_INIT;
    struct strata_config_opts config = STRATA_CONFIG_OPTS_INIT;
    struct strata_advice *advice = NULL;
    struct run r = {.use = STRATA_USE_PLAN};
    const char *json;

    card.gpu = "4090";
    model.model = "nano";
    model.use = STRATA_USE_PLAN;
    assert_ok(strata_machine_open(&asked.machine, &card));
    asked.model = &model;
    asked.batch_tokens = 4096;
    asked.tokens = 1e9;
    assert_ok(strata_advice_make(&advice, &asked));
    config.text = strata_advice_config(advice);
    assert_ok(strata_config_open(&r.config, &config));
    assert_ok(strata_model_open(&r.model, r.config, &model));
    assert_ok(strata_plan_make(&r.plan, r.model, asked.machine));
    assert_memory_equal(r.plan->facts.plan->program.needed, strata_advice_plan(advice)->facts.plan->program.needed,
                        sizeof(r.plan->facts.plan->program.needed));
    assert_ok(strata_advice_json(advice, &json));
    assert_non_null(strstr(json, "\"fits\":true,"));
    run_close(&r);
    strata_advice_destroy(advice);

    model.model = "gpt2-xl";
    asked.overrides = little;
    asked.override_count = 3;
    assert_int_equal(strata_advice_make(&advice, &asked), STRATA_E_NOFIT);
    assert_true(strata_advice_config(advice) == NULL && strata_advice_plan(advice) == NULL);
    assert_ok(strata_advice_json(advice, &json));
    assert_non_null(strstr(json, "\"least_together\":"));
    strata_advice_destroy(advice);
    strata_machine_close(asked.machine);
}

TEST(options_of_another_size)
{
    struct sized whole, from = {.size = sizeof(from), .a = 1, .b = 2};

    assert_ok(st_handle_opts(&whole, sizeof(whole), &from, "opts"));
    assert_true(whole.a == 1 && whole.b == 2);
    assert_ok(st_handle_opts(&whole, sizeof(whole), NULL, "opts"));
    assert_true(whole.a == 0 && whole.b == 0);
    for (size_t size = 0; size < 2 * sizeof(from); size++) {
        from.size = size;
        if (size != sizeof(from))
            assert_refused(st_handle_opts(&whole, sizeof(whole), &from, "opts"), "sizeof(struct opts)");
    }
    from.size = SIZE_MAX;
    assert_refused(st_handle_opts(&whole, sizeof(whole), &from, "opts"), "sizeof(struct opts)");
}

TEST(results_of_another_size)
{
    const struct sized from = {.a = 1, .b = 2};
    struct sized to[2] = {{.size = sizeof(to[0])}, {.size = 77, .a = 77}};

    assert_ok(st_handle_result(to, &from, sizeof(from), "result"));
    assert_true(to[0].size == sizeof(to[0]) && to[0].a == 1 && to[0].b == 2);
    assert_refused(st_handle_result(&to[1], &from, sizeof(from), "result"), "sizeof(struct result)");
    assert_true(to[1].size == 77 && to[1].a == 77);
}

/* What a refused step would have said stays as it was. */
TEST(a_refused_step_says_nothing)
{
    int32_t ids[4 * RUN_SEQ] = {0};
    struct strata_step step = STRATA_STEP_INIT;
    struct run r = {0};

    assert_ok(run_open(&r, NULL));
    assert_ok(run_start(&r));
    assert_ok(strata_engine_step(r.engine, ids, ids, NULL, &step));
    step.loss = 77;
    step.tokens = 77;
    ids[0] = -1;
    assert_status(strata_engine_step(r.engine, ids, ids, NULL, &step), STRATA_E_INPUT, "a token below the vocabulary");
    assert_true(step.loss == 77 && step.tokens == 77);
    run_close(&r);
}

/* Every public struct says its size, and one that does not is refused before anything runs. */
TEST_SETUP(sizes_are_looked_at, scratch_create, scratch_remove)
{
    struct strata_config_opts config = {0};
    struct strata_model_opts model = {0};
    struct strata_engine_opts engine = {0};
    struct strata_export_opts export = {0};
    struct strata_model_info shape = {0};
    struct strata_plan_info needs = {0};
    struct strata_engine_info info = {0};
    struct strata_step step = {0};
    struct strata_eval eval = {0};
    int32_t ids[4 * RUN_SEQ] = {0};
    struct strata_export *out = NULL;
    struct run r = {0};

    assert_refused(strata_config_open(&r.config, &config), "strata_config_opts");
    assert_ok(run_open(&r, run_tokens("a.bin", 400)));
    assert_refused(strata_model_open(&r.model, r.config, &model), "strata_model_opts");
    assert_refused(strata_model_get_info(r.model, &shape), "strata_model_info");
    assert_ok(strata_plan_make(&r.plan, r.model, NULL));
    assert_refused(strata_plan_get_info(r.plan, &needs), "strata_plan_info");
    assert_refused(strata_engine_create(&r.engine, r.plan, &engine), "strata_engine_opts");
    assert_refused(strata_export_open(&out, r.model, scratch_path("out"), &export), "strata_export_opts");
    assert_ok(strata_engine_create(&r.engine, r.plan, NULL));
    assert_ok(strata_engine_load(r.engine));
    assert_refused(strata_engine_step(r.engine, ids, ids, NULL, &step), "strata_step");
    assert_refused(strata_engine_eval_data(r.engine, r.data, &eval), "strata_eval");
    assert_refused(strata_engine_get_info(r.engine, &info), "strata_engine_info");
    info.info_size = sizeof(info);
    assert_ok(strata_engine_get_info(r.engine, &info));
    assert_true(info.steps == 0 && info.workers == 2 && strcmp(info.device, "cpu") == 0); /* no step has run */
    assert_string_equal(info.io_method, "none");
    run_close(&r);
}

TEST_MAIN(argc, argv)
{
    strata_log_configure(NULL, NULL, STRATA_LOG_WARN);
    return test_run(NULL, NULL);
}
