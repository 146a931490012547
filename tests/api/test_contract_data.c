/* tests/api/test_contract_data.c - what the door promises of data, configurations and names. */
#include "api/handles.h"
#include "core/base/checksum.h"
#include "tests/api/handles_fixture.h"
#include "tests/common/kept_log.h"
#include "tests/common/scratch.h"
#include "tests/common/test.h"
#include "tests/common/whole_file.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

TEST_SETUP(data_ends_in_order_and_never_shuffled, scratch_create, scratch_remove)
{
    int32_t tokens[3 * RUN_SEQ], targets[3 * RUN_SEQ];
    struct run r = {0}, longer = {.text = "{\"bf16\": {\"enabled\": true}}"};
    struct strata_eval eval = STRATA_EVAL_INIT;
    struct strata_model_opts opts = STRATA_MODEL_OPTS_INIT;

    assert_ok(run_open(&r, run_tokens("a.bin", 2 * RUN_SEQ + 1)));
    assert_int_equal(strata_data_count(r.data), 2);
    assert_ok(strata_data_read(r.data, STRATA_DATA_IN_ORDER, 0, 0, 3, tokens, targets, NULL));
    assert_memory_equal(tokens + 1, targets, (RUN_SEQ - 1) * sizeof(*tokens));
    for (int i = 0; i < RUN_SEQ; i++)
        assert_true(tokens[2 * RUN_SEQ + i] == 0 && targets[2 * RUN_SEQ + i] == STRATA_TARGET_PADDING);
    assert_ok(strata_data_read(r.data, STRATA_DATA_SHUFFLED, 1, 1000000, 3, tokens, targets, NULL));
    assert_true(targets[2 * RUN_SEQ] >= 0);

    assert_ok(run_configure(&longer));
    opts.model = "nano";
    opts.seq_len = 2 * RUN_SEQ;
    assert_ok(strata_model_open(&longer.model, longer.config, &opts));
    assert_ok(run_start(&longer));
    assert_refused(strata_engine_eval_data(longer.engine, r.data, &eval), "open the data with this model");
    run_close(&r);
    run_close(&longer);
}

static void assert_input(strata_status st, const char *part)
{
    assert_int_equal(st, STRATA_E_INPUT);
    assert_non_null(strstr(strata_last_error(), part));
}

/* As transformers' models take a batch, and as a loss takes it; what no model can take is named. */
TEST_SETUP(batches_of_64_bits, scratch_create, scratch_remove)
{
    static const int64_t ids[6] = {1, 2, 3, 4, 5, 6}, labels[6] = {-100, 2, -100, 4, -100, 6};
    static const int32_t own[6] = {2, 3, -1, 5, 6, -1}, moved[6] = {2, -1, -1, -1, 6, -1}, same[6] = {-1, 2, -1, 4, -1, 6};
    int64_t wrong[6];
    int32_t tokens[6], targets[6];
    struct run r = {0};

    assert_ok(run_open(&r, run_tokens("a.bin", 2 * RUN_SEQ + 1)));
    assert_ok(strata_data_from_int64(r.model, ids, NULL, false, 2, 3, tokens, targets));
    for (int i = 0; i < 6; i++)
        assert_int_equal(tokens[i], ids[i]);
    assert_memory_equal(targets, own, sizeof(own));
    assert_ok(strata_data_from_int64(r.model, ids, labels, false, 2, 3, tokens, targets));
    assert_memory_equal(targets, moved, sizeof(moved));
    assert_ok(strata_data_from_int64(r.model, ids, labels, true, 2, 3, tokens, targets));
    assert_memory_equal(targets, same, sizeof(same));
    assert_ok(strata_data_from_int64(r.model, ids, NULL, true, 2, 3, tokens, targets));
    assert_memory_equal(targets, own, sizeof(own));
    memcpy(wrong, ids, sizeof(wrong));
    wrong[4] = ((int64_t)1 << 32) + 5;
    assert_input(strata_data_from_int64(r.model, wrong, NULL, false, 2, 3, tokens, NULL), "token 1 of sequence 1 is 4294967301");
    wrong[4] = -100;
    assert_input(strata_data_from_int64(r.model, wrong, NULL, false, 2, 3, tokens, NULL), "is -100");
    wrong[4] = -1;
    assert_input(strata_data_from_int64(r.model, ids, wrong, true, 2, 3, tokens, targets), "label 1 of sequence 1 is -1");
    assert_ok(strata_data_from_int64(r.model, ids, wrong, true, 2, 3, tokens, NULL));
    assert_refused(strata_data_from_int64(NULL, ids, NULL, true, 2, 3, tokens, NULL), "model");
    assert_refused(strata_data_from_int64(r.model, ids, NULL, true, 2, 3, NULL, NULL), "tokens");
    run_close(&r);
}

static void put_digest(char out[32], const void *bytes, size_t count)
{
    struct st_digest *d;
    char hex[33];

    assert_ok(st_digest_create(&d));
    st_digest_update(d, bytes, count);
    st_digest_hex(d, hex);
    st_digest_destroy(d);
    memcpy(out, hex, 32);
}

enum { CONCATENATED, PACKED, ROWS }; /* of docs/data.md, as all that follows */

/* Two documents, of 3 tokens and of `longest`. */
static void write_documents(const char *path, const char *meta_path, uint32_t layout, uint32_t longest)
{
    const uint32_t head[4] = {20240520, 1, 3 + longest, 96}, version[2] = {1, layout};
    const uint64_t counts[2] = {3 + longest, 2}, starts[2] = {0, 3};
    char file[1024 + 2 * 100] = {0}, meta[96 + sizeof(starts) + 32] = "STRATAMD";

    assert_true(longest < 97);
    memcpy(file, head, sizeof(head));
    write_file(path, file, 1024 + 2 * (size_t)counts[0]);
    memcpy(meta + 8, version, sizeof(version));
    memcpy(meta + 16, counts, sizeof(counts));
    put_digest(meta + 64, file + 1024, 2 * (size_t)counts[0]);
    memcpy(meta + 96, starts, sizeof(starts));
    put_digest(meta + sizeof(meta) - 32, meta, sizeof(meta) - 32);
    write_file(meta_path, meta, sizeof(meta));
}

/* Documents that the short factors of a model with longrope are for, in sequences that are longer. */
TEST_SETUP(rotary_factors_of_long_sequences_are_told, scratch_create, scratch_remove)
{
    static const struct {
        uint32_t layout, seq, longest;
        bool told;
    } rows[] = {{PACKED, 40, 16, true},  {ROWS, 17, 9, true},   {PACKED, 16, 16, false},
                {PACKED, 40, 17, false}, {ROWS, 16, 64, false}, {CONCATENATED, 40, 64, false}};
    struct run r = {.text = "{\"bf16\": {\"enabled\": false}}"};
    struct strata_model_opts opts = STRATA_MODEL_OPTS_INIT;

    assert_ok(run_configure(&r));
    opts.model = "tests/golden/families/phi3_long"; /* the short ones are for 16 tokens */
    opts.documents = true;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        const char *path = scratch_path("d.bin");

        write_documents(path, scratch_path("d.bin.meta"), rows[i].layout, rows[i].longest);
        opts.seq_len = rows[i].seq;
        assert_ok(strata_model_open(&r.model, r.config, &opts));
        kept_log_begin(ST_LOG_NOTICE);
        assert_ok(strata_data_open(&r.data, r.model, &path, 1));
        kept_log_end();
        assert_int_equal(strstr(kept_log.last, "long RoPE factors") != NULL && kept_log.count > 0, rows[i].told);
        strata_data_close(r.data);
        strata_model_close(r.model);
        r.data = NULL;
        r.model = NULL;
    }
    run_close(&r);
}

/* Which of `count` sequences this one is. */
static uint32_t find_sequence(const struct run *r, uint32_t count, const int32_t *tokens, const int32_t *targets)
{
    int32_t same[RUN_SEQ], next[RUN_SEQ];

    for (uint32_t w = 0; w < count; w++) {
        assert_ok(strata_data_read(r->data, STRATA_DATA_IN_ORDER, 0, w, 1, same, next, NULL));
        if (memcmp(same, tokens, sizeof(same)) == 0 && memcmp(next, targets, sizeof(next)) == 0)
            return w;
    }
    return count;
}

/* Of five sequences read two by two a pass is three calls, each sequence once, in an order of its own. */
TEST_SETUP(epochs_end_with_a_call_of_their_own, scratch_create, scratch_remove)
{
    enum { SEQUENCES = 5, PASS = 6, PASSES = 4 };
    int32_t tokens[2 * RUN_SEQ], targets[2 * RUN_SEQ];
    uint32_t found[PASSES][PASS], moved = 0;
    struct run r = {0};

    assert_ok(run_open(&r, run_tokens("a.bin", SEQUENCES * RUN_SEQ + 1)));
    assert_int_equal(strata_data_count(r.data), SEQUENCES);
    for (uint32_t at = 0; at < PASSES * PASS; at += 2) {
        assert_ok(strata_data_read(r.data, STRATA_DATA_EPOCHS, 3, at, 2, tokens, targets, NULL));
        for (uint32_t i = 0; i < 2; i++)
            found[at / PASS][at % PASS + i] = find_sequence(&r, SEQUENCES, tokens + i * RUN_SEQ, targets + i * RUN_SEQ);
        if (at % PASS == 4)
            for (uint32_t i = RUN_SEQ; i < 2 * RUN_SEQ; i++)
                assert_true(tokens[i] == 0 && targets[i] == STRATA_TARGET_PADDING);
    }
    for (uint32_t pass = 0; pass < PASSES; pass++) {
        uint32_t seen = 0;

        for (uint32_t i = 0; i < SEQUENCES; i++) {
            seen |= 1u << found[pass][i];
            moved += found[pass][i] != found[0][i];
        }
        assert_int_equal(seen, (1u << SEQUENCES) - 1);
        assert_int_equal(found[pass][SEQUENCES], SEQUENCES); /* none */
    }
    assert_true(moved > 0);
    run_close(&r);
}

/* The same five as the file has them: pass after pass, or with a call of its own at the end of each. */
TEST_SETUP(orders_of_the_file_repeat_it, scratch_create, scratch_remove)
{
    enum { SEQUENCES = 5, CALLS = 6 };
    static const uint32_t cycle[CALLS * 2] = {0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 0, 1},
                                        epochs[CALLS * 2] = {0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5};
    int32_t tokens[2 * RUN_SEQ], targets[2 * RUN_SEQ];
    struct run r = {0};

    assert_ok(run_open(&r, run_tokens("a.bin", SEQUENCES * RUN_SEQ + 1)));
    for (uint32_t at = 0; at < CALLS * 2; at++) {
        const uint32_t i = at % 2;

        assert_ok(strata_data_read(r.data, STRATA_DATA_CYCLE, 3, at - i, 2, tokens, targets, NULL));
        assert_int_equal(find_sequence(&r, SEQUENCES, tokens + i * RUN_SEQ, targets + i * RUN_SEQ), cycle[at]);
        assert_ok(strata_data_read(r.data, STRATA_DATA_EPOCHS_IN_ORDER, 3, at - i, 2, tokens, targets, NULL));
        assert_int_equal(find_sequence(&r, SEQUENCES, tokens + i * RUN_SEQ, targets + i * RUN_SEQ), epochs[at]);
    }
    assert_status(strata_data_read(r.data, (enum strata_data_order)5, 3, 0, 2, tokens, targets, NULL), STRATA_E_INVAL,
                  "5 is not an order");
    run_close(&r);
}

TEST(steps_may_be_told_later)
{
    struct strata_config_opts opts = STRATA_CONFIG_OPTS_INIT;
    struct strata_model_opts model_opts = STRATA_MODEL_OPTS_INIT;
    struct run r = {0};

    opts.text = "{\"bf16\": {\"enabled\": true}, \"scheduler\": {\"type\": \"OneCycle\", \"params\": {\"cycle_min_lr\": 0, "
                "\"cycle_max_lr\": 1, \"cycle_first_step_size\": 4, \"decay_step_size\": 1, \"decay_mom_rate\": 0.1}}}";
    assert_int_equal(strata_config_open(&r.config, &opts), STRATA_E_CONFIG);
    assert_non_null(strstr(strata_last_error(), "at step 11"));
    opts.forward_only = true; /* no step is made */
    assert_ok(strata_config_open(&r.config, &opts));
    strata_config_close(r.config);
    opts.forward_only = false;
    opts.steps_later = true;
    assert_ok(strata_config_open(&r.config, &opts));
    model_opts.model = "nano";
    assert_ok(strata_model_open(&r.model, r.config, &model_opts));
    assert_refused(strata_model_set_steps(NULL, 3), "model is NULL");
    assert_refused(strata_model_set_steps(r.model, 0), "at least one");
    assert_int_equal(strata_model_set_steps(r.model, 11), STRATA_E_CONFIG);
    assert_non_null(strstr(strata_last_error(), "decay_mom_rate: 0.1 brings beta1 to 1 at step 11"));
    assert_ok(strata_model_set_steps(r.model, 10));
    run_close(&r);
}

/* A recipe's options are told one by one, and what it says of the configuration stands beside DeepSpeed's keys. */
TEST(a_recipe_is_options_and_a_configuration)
{
    struct strata_config_opts opts = STRATA_CONFIG_OPTS_INIT;
    struct strata_config *config = NULL;
    struct strata_recipe *recipe = NULL;
    const char *name, *value, *json;
    bool model = false, flag = false;

    assert_ok(strata_recipe_open(&recipe, "tests/golden/recipes/full_prompt.yaml", false));
    assert_null(strata_recipe_deepspeed(recipe));
    assert_null(strata_recipe_key_of(recipe, NULL));
    assert_null(strata_recipe_key_of(recipe, "--nonesuch"));
    assert_non_null(strata_recipe_key_of(recipe, "--model"));
    for (uint32_t i = 0; strata_recipe_option(recipe, i, &name, &value); i++) {
        model = model || (strcmp(name, "model") == 0 && strcmp(value, "tests/golden/recipes/tiny") == 0);
        flag = flag || (strcmp(name, "train-on-prompt") == 0 && value == NULL);
    }
    assert_true(model && flag);
    opts.recipe = recipe;
    assert_ok(strata_config_open(&config, &opts));
    assert_ok(strata_config_json(config, &json));
    assert_non_null(strstr(json, "\"constant_with_warmup\""));
    strata_config_close(config);
    config = NULL;
    opts.text = "{}";
    assert_refused(strata_config_open(&config, &opts), "a text of a configuration and a recipe are given");
    strata_recipe_close(recipe);
    recipe = NULL;
    assert_int_equal(strata_recipe_open(&recipe, "tests/golden/recipes/golden.json", false), STRATA_E_CONFIG);
    assert_null(recipe);
}

/* Texts: what excludes what, and what is missing. */
TEST_SETUP(options_of_texts_are_checked, scratch_create, scratch_remove)
{
    struct strata_texts_opts opts = STRATA_TEXTS_OPTS_INIT;
    static const char *const sets[] = {"alpaca"};
    struct strata_data *data = NULL, *heldout = NULL;
    struct run r = {0};

    assert_ok(run_open(&r, run_tokens("a.bin", 400)));
    assert_refused(strata_data_open_texts(&data, r.model, NULL, 0, &opts), "count is 0");
    opts.datasets = sets;
    opts.dataset_count = 1;
    assert_refused(strata_data_open_texts(&data, r.model, NULL, 0, &opts), "texts.datasets alpaca needs texts.dataset_info");
    opts.dataset_info = "tests/golden/recipes/data/dataset_info.json";
    opts.train_on_prompt = opts.mask_history = true;
    assert_refused(strata_data_open_texts(&data, r.model, NULL, 0, &opts), "exclude each other");
    opts.mask_history = false;
    opts.layout = "tiles";
    assert_refused(strata_data_open_texts(&data, r.model, NULL, 0, &opts), "texts.layout tiles");
    opts.layout = "rows";
    opts.val_size = 1.5;
    opts.heldout = &heldout;
    assert_refused(strata_data_open_texts(&data, r.model, NULL, 0, &opts), "texts.val_size 1.5");
    opts.val_size = 0.5;
    opts.heldout = NULL;
    assert_refused(strata_data_open_texts(&data, r.model, NULL, 0, &opts), "heldout is NULL");
    assert_null(data);
    run_close(&r);
}

TEST(a_name_says_the_kind)
{
    static const struct {
        const char *name;
        enum strata_data_kind kind;
    } names[] = {{"-", STRATA_KIND_TEXT},          {"a.txt", STRATA_KIND_TEXT},    {"a.jsonl", STRATA_KIND_ROWS},
                 {"a.json", STRATA_KIND_ROWS},     {"a.ndjson", STRATA_KIND_ROWS}, {"a.bin", STRATA_KIND_TOKENS},
                 {"a.txt.bin", STRATA_KIND_TOKENS}};
    enum strata_data_kind kind;

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        assert_ok(strata_data_kind_of(names[i].name, &kind));
        assert_int_equal(kind, names[i].kind);
    }
    assert_status(strata_data_kind_of("a.parquet", &kind), STRATA_E_INPUT, "a table");
    assert_status(strata_data_kind_of("a.jsonl.gz", &kind), STRATA_E_INPUT, "compressed");
    assert_refused(strata_data_kind_of(NULL, &kind), "path is NULL");
    assert_refused(strata_data_kind_of("a", NULL), "kind is NULL");
}

TEST(another_output_is_apart_from_a_model)
{
    assert_ok(strata_export_check_apart("out", "out/metrics.jsonl"));
    assert_status(strata_export_check_apart(".", "./model.safetensors"), STRATA_E_INPUT, "it would be read as weights");
    assert_refused(strata_export_check_apart(NULL, "x"), "dir is NULL");
    assert_refused(strata_export_check_apart("x", NULL), "path is NULL");
}

TEST_SETUP(rows_held_out_are_a_part_or_a_number, scratch_create, scratch_remove)
{
    static const double sizes[] = {-1, NAN, INFINITY, 1e300, 1.5};
    struct strata_texts_opts opts = STRATA_TEXTS_OPTS_INIT;
    struct strata_data *heldout = NULL;
    const char *text = "a.txt";
    struct run r = {0};

    assert_ok(run_open(&r, run_tokens("a.bin", 4 * RUN_SEQ + 1)));
    strata_data_close(r.data);
    r.data = NULL;
    opts.heldout = &heldout;
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        opts.val_size = sizes[i];
        assert_refused(strata_data_open_texts(&r.data, r.model, &text, 1, &opts), "texts.val_size");
    }
    assert_true(r.data == NULL && heldout == NULL);
    run_close(&r);
}

TEST_SETUP(documents_need_a_tokenizer, scratch_create, scratch_remove)
{
    static const struct strata_texts_opts given[] = {
        {.opts_size = sizeof(given[0]), .chat_template = "chatml"},
        {.opts_size = sizeof(given[0]), .date = "2026-07-31"},
        {.opts_size = sizeof(given[0]), .layout = "packed"},
        {.opts_size = sizeof(given[0]), .max_samples = 1},
        {.opts_size = sizeof(given[0]), .train_on_prompt = true},
        {.opts_size = sizeof(given[0]), .mask_history = true},
        {.opts_size = sizeof(given[0]), .turn_ends = true},
        {.opts_size = sizeof(given[0]), .strict = true},
        {.opts_size = sizeof(given[0]), .as_trl = true},
    };
    static const char *const names[] = {"texts.chat_template ",   "texts.date ",         "texts.layout ",    "texts.max_samples ",
                                        "texts.train_on_prompt ", "texts.mask_history ", "texts.turn_ends ", "texts.strict ",
                                        "texts.as_trl "};
    static const char *const sets[] = {"alpaca"};
    struct strata_texts_opts opts = STRATA_TEXTS_OPTS_INIT;
    struct strata_data *heldout = NULL;
    const char *text = "tests/fuzz/corpus/rows/messages.jsonl";
    struct run r = {0};

    assert_ok(run_open(&r, run_tokens("a.bin", 4 * RUN_SEQ + 1)));
    strata_data_close(r.data);
    r.data = NULL;
    for (size_t i = 0; i < sizeof(given) / sizeof(given[0]); i++)
        assert_refused(strata_data_open_texts(&r.data, r.model, &text, 1, &given[i]), names[i]);
    opts.val_size = 0.5;
    opts.heldout = &heldout;
    assert_refused(strata_data_open_texts(&r.data, r.model, &text, 1, &opts), "texts.val_size is for documents");
    opts.datasets = sets;
    opts.dataset_count = 1;
    opts.dataset_info = "tests/golden/recipes/data/dataset_info.json";
    assert_refused(strata_data_open_texts(&r.data, r.model, NULL, 0, &opts), "texts.datasets is for documents");
    assert_true(r.data == NULL && heldout == NULL);
    run_close(&r);
}

static char logged[8][256];
static uint32_t log_count;

static void take_line(void *ctx, enum strata_log_level level, const char *line)
{
    assert_ptr_equal(ctx, logged);
    if (log_count < 8)
        snprintf(logged[log_count++], sizeof(logged[0]), "%d %s", (int)level, line);
}

TEST(a_configuration_is_checked_and_dumped)
{
    struct strata_config_opts opts = STRATA_CONFIG_OPTS_INIT;
    struct strata_config *config = NULL, *copy = NULL;
    const char *json, *same;

    log_count = 0;
    strata_log_configure(take_line, logged, STRATA_LOG_NOTICE);
    opts.text = "{\"zero_optimization\": {\"stagee\": 3}, \"gradient_clipping\": -1}";
    assert_status(strata_config_open(&config, &opts), STRATA_E_CONFIG, "two problems");
    assert_null(config);
    assert_int_equal(log_count, 1);
    assert_true(logged[0][0] == '0' + STRATA_LOG_ERROR);
    opts.text = "{\"gradient_clipping\": 0.5, \"zero_optimization\": {\"overlap_comm\": true}}";
    assert_ok(strata_config_open(&config, &opts));
    assert_non_null(strstr(logged[log_count - 1], "zero_optimization.overlap_comm"));
    strata_log_configure(NULL, NULL, STRATA_LOG_NONE);
    assert_ok(strata_config_json(config, &json));
    assert_non_null(strstr(json, "0.5"));
    opts.text = json;
    assert_ok(strata_config_open(&copy, &opts));
    assert_ok(strata_config_json(copy, &same));
    assert_string_equal(json, same);
    opts.text = NULL;
    opts.file = "no such file";
    assert_status(strata_config_open(&copy, &opts), STRATA_E_CONFIG, "no such file");
    strata_config_close(copy);
    strata_config_close(config);
    strata_log_configure(NULL, NULL, STRATA_LOG_WARN);
}

/* One that no run would take has rows and problems, and makes nothing. */
TEST(a_configuration_is_read_for_its_own_sake)
{
    struct strata_config_opts opts = STRATA_CONFIG_OPTS_INIT;
    struct strata_config_row row = STRATA_CONFIG_ROW_INIT;
    struct strata_model_opts model_opts = STRATA_MODEL_OPTS_INIT;
    const char *const overrides[] = {"gradient_clipping=0.5"};
    struct strata_config *config = NULL;
    struct strata_model *model = NULL;
    const char *json;
    bool found = false;

    log_count = 0;
    strata_log_configure(take_line, logged, STRATA_LOG_DEBUG);
    opts.text = "{\"zero_optimization\": {\"stagee\": 3}, \"fp16\": {\"enabled\": \"perhaps\"}}";
    opts.overrides = overrides;
    opts.override_count = 1;
    assert_status(strata_config_check(&config, &opts), STRATA_E_CONFIG, "two problems");
    assert_int_equal(log_count, 0);
    strata_log_configure(NULL, NULL, STRATA_LOG_WARN);
    assert_non_null(config);
    assert_non_null(strstr(strata_config_problem(config, 0), "stagee"));
    assert_non_null(strata_config_problem(config, 1));
    assert_null(strata_config_problem(config, 2));
    for (uint32_t i = 0; i < strata_config_row_count(config); i++) {
        assert_ok(strata_config_get_row(config, i, &row));
        assert_true(row.path != NULL && row.origin != NULL && row.verdict != NULL);
        if (strcmp(row.path, "gradient_clipping") != 0)
            continue;
        found = true;
        assert_string_equal(row.value, "0.5");
        assert_string_equal(row.origin, "command line");
        assert_string_equal(row.verdict, "honoured");
    }
    assert_true(found);
    assert_refused(strata_config_get_row(config, strata_config_row_count(config), &row), "row");
    row.row_size = offsetof(struct strata_config_row, effect);
    assert_refused(strata_config_get_row(config, 0, &row), "strata_config_row");
    model_opts.model = "nano";
    assert_refused(strata_model_open(&model, config, &model_opts), "has problems");
    assert_refused(strata_config_json(config, &json), "has problems");
    strata_config_close(config);
    config = NULL;
    opts.text = "no JSON";
    assert_status(strata_config_check(&config, &opts), STRATA_E_CONFIG, "no JSON");
    strata_config_close(config);
    assert_true(strata_config_row_count(NULL) == 0 && strata_config_problem(NULL, 0) == NULL);
}

TEST(names_are_listed)
{
    uint32_t count = 0;

    for (; strata_preset_name(count) != NULL; count++)
        assert_true(strlen(strata_preset_name(count)) > 0);
    assert_true(count > 3);
    assert_string_equal(strata_lane_name(0), "compute");
    for (count = 0; strata_lane_name(count) != NULL; count++)
        assert_true(count < STRATA_LANE_COUNT);
    assert_ok(strata_device_check("cpu"));
    assert_refused(strata_device_check("tpu"), "unknown device \"tpu\"");
    assert_refused(strata_device_check("paced"), "unknown device \"paced\"");
}

TEST_MAIN(argc, argv)
{
    strata_log_configure(NULL, NULL, STRATA_LOG_WARN);
    return test_run(NULL, NULL);
}
