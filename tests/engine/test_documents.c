/* test_documents.c - documents packed into sequences, with borders, train like documents in rows of their own. */
#include "tests/api/handles_fixture.h"
#include "tests/common/scratch.h"
#include "tests/common/test.h"
#include "text/data/token_writer.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DOCUMENTS = 8 };
static const uint32_t lengths[DOCUMENTS] = {9, 7, 16, 3, 12, 4, 11, 5}; /* of sequences of RUN_SEQ: packed into 5 */

#define CONFIG(batch, more)                                                                                                      \
    "{\"train_micro_batch_size_per_gpu\": " batch                                                                                \
    ", \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 1e-2}}, \"strata\": {\"threads\": 2" more "}}"
#define ADAPTERS ", \"lora\": {\"r\": 4, \"target_modules\": \"all-linear\"}"

static const char *write_documents(const char *name, enum st_token_layout layout)
{
    const struct st_token_writer_opts opts = {.vocab = 256, .layout = layout, .masked = true};
    const char *path = scratch_path(name);
    struct st_token_writer *w;

    assert_ok(st_token_writer_create(&w, path, &opts));
    for (uint32_t d = 0; d < DOCUMENTS; d++) {
        uint32_t ids[RUN_SEQ];
        uint8_t trained[RUN_SEQ];

        for (uint32_t i = 0; i < lengths[d]; i++) {
            ids[i] = (i * i * 5 + 31 * d + 7 * i) % 256;
            trained[i] = (i + d) % 4 != 0;
        }
        assert_ok(st_token_writer_put(w, ids, trained, lengths[d]));
    }
    assert_ok(st_token_writer_finish((struct st_token_writer *[2]){w, NULL}, (const uint64_t[2]){0}));
    return path;
}

/* What one step on all of the data, and an evaluation before and after it, say. */
struct outcome {
    struct strata_eval before, after;
    struct strata_step step;
};

static struct outcome train_on(const char *preset, const char *path, const char *text, uint32_t sequences)
{
    struct run r = {.preset = preset, .text = text};
    struct strata_model_opts opts = STRATA_MODEL_OPTS_INIT;
    struct outcome o = {STRATA_EVAL_INIT, STRATA_EVAL_INIT, STRATA_STEP_INIT};
    const size_t elems = (size_t)sequences * RUN_SEQ;
    int32_t *ids = calloc(3 * elems, sizeof(*ids));

    assert_non_null(ids);
    assert_ok(run_configure(&r));
    opts.model = preset;
    opts.seq_len = RUN_SEQ;
    assert_ok(strata_data_documents(&path, 1, &opts.documents));
    assert_ok(strata_model_open(&r.model, r.config, &opts));
    assert_ok(strata_data_open(&r.data, r.model, &path, 1));
    assert_int_equal(strata_data_count(r.data), sequences);
    assert_ok(run_start(&r));
    assert_ok(strata_engine_eval_data(r.engine, r.data, &o.before));
    assert_ok(strata_data_read(r.data, STRATA_DATA_IN_ORDER, 0, 0, sequences, ids, ids + elems, ids + 2 * elems));
    assert_ok(strata_engine_step(r.engine, ids, ids + elems, opts.documents ? ids + 2 * elems : NULL, &o.step));
    assert_ok(strata_engine_eval_data(r.engine, r.data, &o.after));
    run_close(&r);
    free(ids);
    return o;
}

static void assert_near(double a, double b, double most)
{
    if (!(fabs(a - b) <= most * fabs(b)))
        fail_msg("%.9g and %.9g differ by more than %g of them", a, b, most);
}

/* Rotary and learned positions, all weights and adapters; documents that saw each other, or went on counting, would be far off.
 */
TEST(packed_is_unpacked)
{
    static const struct {
        const char *preset, *rows, *packed;
    } runs[] = {{"nano", CONFIG("8", ""), CONFIG("5", "")},
                {"nano-llama", CONFIG("8", ""), CONFIG("5", "")},
                {"nano", CONFIG("8", ADAPTERS), CONFIG("5", ADAPTERS)},
                {"nano-llama", CONFIG("8", ADAPTERS), CONFIG("5", ADAPTERS)}};

    scratch_open();
    for (uint32_t i = 0; i < sizeof(runs) / sizeof(runs[0]); i++) {
        char rows_name[16], packed_name[16];
        struct outcome rows, packed;

        snprintf(rows_name, sizeof(rows_name), "rows%u.bin", i);
        snprintf(packed_name, sizeof(packed_name), "packed%u.bin", i);
        rows = train_on(runs[i].preset, write_documents(rows_name, ST_LAYOUT_ROWS), runs[i].rows, DOCUMENTS);
        packed = train_on(runs[i].preset, write_documents(packed_name, ST_LAYOUT_PACKED), runs[i].packed, 5);
        assert_int_equal(rows.before.targets, packed.before.targets);
        assert_near(packed.before.loss, rows.before.loss, 1e-6);
        assert_near(packed.step.grad_norm, rows.step.grad_norm, 1e-5);
        assert_near(packed.after.loss, rows.after.loss, 1e-5);
        assert_true(rows.after.loss < rows.before.loss);
    }
    scratch_close();
}

/* Data with borders, which a model without them does not open, is no other way read as if there were none. */
TEST(borders_are_not_left_out)
{
    struct run packs = {.text = CONFIG("5", "")}, joins = {.text = CONFIG("5", "")};
    struct strata_model_opts opts = STRATA_MODEL_OPTS_INIT;
    struct strata_eval eval = STRATA_EVAL_INIT;
    int32_t ids[2 * RUN_SEQ];
    const char *path;

    scratch_open();
    path = write_documents("packed.bin", ST_LAYOUT_PACKED);
    assert_status(run_open(&joins, path), STRATA_E_INPUT, "data with borders");
    assert_ok(run_start(&joins));
    assert_ok(run_configure(&packs));
    opts.model = "nano";
    opts.seq_len = RUN_SEQ;
    opts.documents = true;
    assert_ok(strata_model_open(&packs.model, packs.config, &opts));
    assert_ok(strata_data_open(&packs.data, packs.model, &path, 1));
    assert_refused(strata_data_read(packs.data, STRATA_DATA_IN_ORDER, 0, 0, 1, ids, ids + RUN_SEQ, NULL), "several documents");
    assert_refused(strata_engine_eval_data(joins.engine, packs.data, &eval), "several documents");
    assert_int_equal(eval.sequences, 0);
    run_close(&joins);
    run_close(&packs);
    scratch_close();
}

/* Documents that are whole sequences give the same bits with and without positions. */
TEST(whole_sequences_are_the_same_bits)
{
    char digests[2][33], states[2][33];

    scratch_open();
    for (uint32_t documents = 0; documents < 2; documents++) {
        struct run r = {0};
        struct strata_model_opts opts = STRATA_MODEL_OPTS_INIT;
        int32_t ids[4 * RUN_SEQ], positions[4 * RUN_SEQ];

        for (int32_t i = 0; i < 4 * RUN_SEQ; i++) {
            ids[i] = i * i % 251;
            positions[i] = i % RUN_SEQ;
        }
        assert_ok(run_configure(&r));
        opts.model = "nano";
        opts.seq_len = RUN_SEQ;
        opts.documents = documents == 1;
        assert_ok(strata_model_open(&r.model, r.config, &opts));
        assert_ok(run_start(&r));
        for (uint32_t step = 0; step < 3; step++)
            assert_ok(strata_engine_step(r.engine, ids, ids, documents == 1 && step > 0 ? positions : NULL, NULL));
        assert_ok(strata_engine_digest(r.engine, digests[documents], states[documents]));
        run_close(&r);
    }
    assert_string_equal(digests[0], digests[1]);
    assert_string_equal(states[0], states[1]);
    scratch_close();
}

TEST(borders_ask_for_a_model_that_knows_them)
{
    struct run r = {0};
    const char *path, *none = "/none.bin";
    int32_t ids[4 * RUN_SEQ] = {0}, positions[4 * RUN_SEQ] = {0};
    struct strata_model_opts opts = STRATA_MODEL_OPTS_INIT;
    bool documents = true;

    scratch_open();
    path = write_documents("packed.bin", ST_LAYOUT_PACKED);
    assert_status(run_open(&r, path), STRATA_E_INPUT, "documents for a model without");
    assert_ok(run_start(&r));
    assert_refused(strata_engine_step(r.engine, ids, ids, positions, NULL), "was not opened with strata_model_opts.documents");
    run_close(&r);
    assert_ok(run_configure(&r));
    opts.model = "nano";
    opts.seq_len = RUN_SEQ;
    opts.documents = true;
    assert_ok(strata_model_open(&r.model, r.config, &opts));
    assert_ok(run_start(&r));
    for (int32_t i = 0; i < 4 * RUN_SEQ; i++)
        positions[i] = i % RUN_SEQ;
    for (int32_t wrong = -1; wrong < 9; wrong++) { /* the sixth goes on with 5, or begins with 0 */
        char sentence[96];

        positions[RUN_SEQ + 5] = wrong;
        if (wrong == 0 || wrong == 5)
            continue;
        snprintf(sentence, sizeof(sentence), "position 5 of sequence 1 is %d: it can be 0, where a document begins, or 5", wrong);
        assert_status(strata_engine_step(r.engine, ids, ids, positions, NULL), STRATA_E_INPUT, "a position out of order");
        assert_non_null(strstr(strata_last_error(), sentence));
    }
    positions[RUN_SEQ + 5] = 5;
    positions[2 * RUN_SEQ] = RUN_SEQ; /* no sequence goes on with the one before */
    assert_status(strata_engine_step(r.engine, ids, ids, positions, NULL), STRATA_E_INPUT, "a sequence that goes on");
    assert_non_null(strstr(strata_last_error(), "position 0 of sequence 2 is"));
    assert_ok(strata_engine_step(r.engine, ids, ids, NULL, NULL));
    run_close(&r);
    assert_ok(strata_data_documents(&none, 1, &documents));
    assert_false(documents);
    scratch_close();
}

/* Of several files one with borders is enough, wherever it stands. */
TEST(borders_of_any_file_count)
{
    char packed[512], plain[512];

    scratch_open();
    snprintf(packed, sizeof(packed), "%s", write_documents("packed.bin", ST_LAYOUT_PACKED));
    snprintf(plain, sizeof(plain), "%s", write_documents("plain.bin", ST_LAYOUT_CONCATENATED));
    for (uint32_t at = 0; at <= 3; at++) {
        const char *paths[3] = {plain, plain, plain};
        bool documents = at == 3;

        if (at < 3)
            paths[at] = packed;
        assert_ok(strata_data_documents(paths, 3, &documents));
        assert_int_equal(documents, at < 3);
    }
    scratch_close();
}
