/* tests/api/test_tokens.c - strata/tokens.h: token files of texts and rows, what is told of them, what is refused. */
#include "core/base/fault.h"
#include "strata/strata.h"
#include "tests/api/handles_fixture.h"
#include "tests/common/scratch.h"
#include "tests/common/test.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define TOKENIZER "tests/golden/chat/qwen"

static const char *const texts[] = {"docs/tour.md"};

TEST(nothing_is_called_with_null)
{
    struct strata_tokens_opts opts = STRATA_TOKENS_OPTS_INIT, wrong = {0};
    struct strata_tokens *t = NULL;
    const char *const none = NULL;
    const char *json;
    char name[8];

    assert_refused(strata_tokens_write(NULL, "x", texts, 1, &opts), "tokens is NULL");
    assert_refused(strata_tokens_write(&t, NULL, texts, 1, &opts), "out is NULL");
    assert_refused(strata_tokens_write(&t, "x", texts, 1, &opts), "tokenizer is NULL");
    assert_refused(strata_tokens_write(&t, "x", texts, 1, &wrong), "strata_tokens_opts");
    opts.tokenizer = "byte";
    assert_refused(strata_tokens_write(&t, "x", texts, 0, &opts), "count is 0");
    assert_refused(strata_tokens_write(&t, "x", NULL, 1, &opts), "paths is NULL");
    assert_refused(strata_tokens_write(&t, "x", &none, 1, &opts), "one of paths is NULL");
    assert_refused(strata_tokens_print(NULL, stdout), "tokens is NULL");
    assert_refused(strata_tokens_json(NULL, &json), "tokens is NULL");
    assert_refused(strata_tokens_name(NULL, 8, "x", 0), "name is NULL");
    assert_refused(strata_tokens_name(name, sizeof(name), NULL, 0), "out is NULL");
    assert_refused(strata_tokens_name(name, sizeof(name), "x", 4), "no file 4");
    assert_refused(strata_tokens_name(name, sizeof(name), "a.tokens", 0), "has 8 bytes");
    assert_ok(strata_tokens_name(name, sizeof(name), "x", 1));
    assert_string_equal(name, "x.meta");
    strata_tokens_close(NULL);
    assert_null(t);
}

TEST_SETUP(each_byte_is_a_token, scratch_create, scratch_remove)
{
    struct strata_tokens_opts opts = STRATA_TOKENS_OPTS_INIT;
    struct strata_tokens *t;
    const char *json;
    char out[320];

    snprintf(out, sizeof(out), "%s", scratch_path("a.bin"));
    opts.tokenizer = "byte";
    assert_ok(strata_tokens_write(&t, out, texts, 1, &opts));
    assert_ok(strata_tokens_json(t, &json));
    assert_non_null(strstr(json, "\"heldout\":null,\"heldout_tokens\":0,"));
    assert_null(strchr(json, '\n'));
    assert_refused(strata_tokens_json(t, NULL), "json is NULL");
    assert_refused(strata_tokens_print(t, NULL), "file is NULL");
    st_fault_arm(&(struct st_fault_spec){.site = "api.tokens_json", .result = -ENOMEM});
    assert_status(strata_tokens_json(t, &json), STRATA_E_NOMEM, "api.tokens_json");
    (void)st_fault_disarm();
    strata_tokens_close(t);
    t = NULL;
    assert_status(strata_tokens_write(&t, out, texts, 1, &opts), STRATA_E_INPUT, "it is there");
    st_fault_arm(&(struct st_fault_spec){.site = "api.tokens", .result = -ENOMEM});
    assert_status(strata_tokens_write(&t, out, texts, 1, &opts), STRATA_E_NOMEM, "api.tokens");
    (void)st_fault_disarm();
    assert_null(t);
}

struct told {
    uint32_t runs, ends;
    uint64_t trained;
};

static void shown(void *ctx, const struct strata_shown_run *run)
{
    struct told *told = ctx;

    told->runs++;
    told->trained += run->trained ? run->count : 0;
}

static void progress(void *ctx, uint64_t rows, uint64_t tokens)
{
    struct told *told = ctx;

    told->ends += rows == 0;
    assert_true(rows > 0 || tokens == 0);
}

TEST_SETUP(rows_are_documents, scratch_create, scratch_remove)
{
    static const char rows[] = "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"},"
                               "{\"role\":\"assistant\",\"content\":\"hello there\"}]}\n";
    struct strata_tokens_opts opts = STRATA_TOKENS_OPTS_INIT;
    struct strata_tokens *t = NULL;
    struct told told = {0};
    char path[320], out[320], *const in[] = {path}, wanted[64];
    const char *json;

    scratch_put("rows.jsonl", rows);
    snprintf(path, sizeof(path), "%s", scratch_path("rows.jsonl"));
    snprintf(out, sizeof(out), "%s", scratch_path("rows.bin"));
    opts.tokenizer = TOKENIZER;
    opts.show = 1;
    opts.shown = shown;
    opts.progress = progress;
    opts.ctx = &told;
    opts.layout = "none";
    assert_refused(strata_tokens_write(&t, out, (const char *const *)in, 1, &opts), "none");
    opts.layout = "rows";
    assert_ok(strata_tokens_write(&t, out, (const char *const *)in, 1, &opts));
    assert_true(told.runs == 3 && told.ends == 1 && told.trained > 0);
    assert_ok(strata_tokens_json(t, &json));
    snprintf(wanted, sizeof(wanted), "\"documents\":1,\"trained\":%u", (unsigned)told.trained);
    assert_non_null(strstr(json, wanted));
    assert_non_null(strstr(json, "\"layout\":\"rows\""));
    strata_tokens_close(t);
}

TEST_MAIN(argc, argv)
{
    strata_log_configure(NULL, NULL, STRATA_LOG_NONE);
    return test_run(NULL, NULL);
}
