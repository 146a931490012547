/* tests/api/test_tokenizer.c - strata/tokenizer.h: what it gives, what it refuses, and each place where memory may be missing. */
#include "core/base/fault.h"
#include "strata/strata.h"
#include "tests/api/handles_fixture.h"
#include "tests/common/scratch.h"
#include "tests/common/test.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FILE_OF(name) "tests/golden/tokenizers/" name ".json"

static const char text[] = "Hello, caf\xc3\xa9 \xf0\x9f\x98\x80!";

TEST(nothing_is_called_with_null)
{
    struct strata_tokenizer_info info = STRATA_TOKENIZER_INFO_INIT;
    struct strata_tokenizer *t = NULL;
    struct strata_stream *s = NULL;
    struct strata_chat *c = NULL;
    const int32_t *ids, id = 0;
    const char *got;
    size_t count;
    bool there;

    assert_refused(strata_tokenizer_exists(NULL, "x"), "there is NULL");
    assert_refused(strata_tokenizer_exists(&there, NULL), "dir is NULL");
    assert_refused(strata_tokenizer_open(NULL, "x"), "tokenizer is NULL");
    assert_refused(strata_tokenizer_open(&t, NULL), "path is NULL");
    assert_refused(strata_tokenizer_get_info(NULL, &info), "tokenizer is NULL");
    assert_refused(strata_tokenizer_encode(NULL, text, 1, NULL, &ids, &count), "tokenizer is NULL");
    assert_refused(strata_tokenizer_decode(NULL, &id, 1, false, &got, &count), "tokenizer is NULL");
    assert_refused(strata_stream_open(&s, NULL, false), "tokenizer is NULL");
    assert_refused(strata_stream_push(NULL, 1, &got, &count), "stream is NULL");
    assert_refused(strata_stream_finish(NULL, &got, &count), "stream is NULL");
    assert_refused(strata_chat_open(&c, NULL, NULL), "tokenizer is NULL");
    assert_refused(strata_chat_add(NULL, "user", "x"), "chat is NULL");
    assert_refused(strata_chat_tokens(NULL, &ids, &count), "chat is NULL");
    assert_int_equal(strata_chat_end(NULL), -1);
    strata_tokenizer_close(NULL);
    strata_stream_close(NULL);
    strata_chat_close(NULL);
    assert_true(t == NULL && s == NULL && c == NULL);
}

TEST(no_argument_is_left_out)
{
    struct strata_chat_opts opts = STRATA_CHAT_OPTS_INIT;
    struct strata_encode_opts how = STRATA_ENCODE_OPTS_INIT;
    struct strata_tokenizer *t;
    struct strata_stream *s;
    struct strata_chat *c;
    const int32_t *ids, id = 0;
    const char *got;
    size_t count;

    assert_ok(strata_tokenizer_open(&t, FILE_OF("qwen2")));
    assert_refused(strata_tokenizer_get_info(t, NULL), "info is NULL");
    assert_refused(strata_tokenizer_encode(t, NULL, 1, NULL, &ids, &count), "text is NULL");
    assert_refused(strata_tokenizer_encode(t, text, 1, NULL, NULL, &count), "ids is NULL");
    assert_refused(strata_tokenizer_encode(t, text, 1, NULL, &ids, NULL), "count is NULL");
    how.opts_size = 0;
    assert_refused(strata_tokenizer_encode(t, text, 1, &how, &ids, &count), "strata_encode_opts");
    assert_refused(strata_tokenizer_decode(t, NULL, 1, false, &got, &count), "ids is NULL");
    assert_refused(strata_tokenizer_decode(t, &id, 1, false, NULL, &count), "text is NULL");
    assert_refused(strata_tokenizer_decode(t, &id, 1, false, &got, NULL), "bytes is NULL");
    assert_refused(strata_stream_open(NULL, t, false), "stream is NULL");
    assert_ok(strata_stream_open(&s, t, false));
    assert_refused(strata_stream_push(s, 1, NULL, &count), "text is NULL");
    assert_refused(strata_stream_finish(s, &got, NULL), "bytes is NULL");
    strata_stream_close(s);
    assert_refused(strata_chat_open(NULL, t, NULL), "chat is NULL");
    opts.opts_size = 0;
    assert_refused(strata_chat_open(&c, t, &opts), "strata_chat_opts");
    opts = (struct strata_chat_opts)STRATA_CHAT_OPTS_INIT;
    opts.chat_template = "chatml";
    assert_ok(strata_chat_open(&c, t, &opts));
    assert_refused(strata_chat_add(c, NULL, "x"), "role is NULL");
    assert_refused(strata_chat_add(c, "user", NULL), "content is NULL");
    assert_refused(strata_chat_tokens(c, NULL, &count), "ids is NULL");
    assert_refused(strata_chat_tokens(c, &ids, NULL), "count is NULL");
    strata_chat_close(c);
    strata_tokenizer_close(t);
}

/* Handles may be closed in any order. */
TEST(a_text_comes_back)
{
    struct strata_tokenizer_info info = STRATA_TOKENIZER_INFO_INIT;
    struct strata_tokenizer *t;
    struct strata_stream *s;
    const int32_t *ids;
    const char *got;
    char *whole = NULL;
    size_t count, bytes;
    FILE *file;

    assert_ok(strata_tokenizer_open(&t, FILE_OF("qwen2")));
    assert_ok(strata_tokenizer_get_info(t, &info));
    assert_true(info.vocab == 424 && info.bos == -1 && info.eos == -1 && info.hash != 0);
    assert_ok(strata_tokenizer_encode(t, "", 0, NULL, &ids, &count));
    assert_true(count == 0 && ids != NULL);
    assert_ok(strata_tokenizer_decode(t, ids, 0, false, &got, &count));
    assert_true(count == 0 && got != NULL);
    assert_ok(strata_tokenizer_encode(t, text, sizeof(text) - 1, NULL, &ids, &count));
    assert_ok(strata_tokenizer_decode(t, ids, count, false, &got, &bytes));
    assert_true(bytes == sizeof(text) - 1 && memcmp(got, text, bytes) == 0);
    assert_ok(strata_stream_open(&s, t, false));
    file = open_memstream(&whole, &bytes);
    for (size_t i = 0; i <= count; i++) {
        size_t part;

        assert_ok(i < count ? strata_stream_push(s, ids[i], &got, &part) : strata_stream_finish(s, &got, &part));
        fwrite(got, 1, part, file);
    }
    fclose(file);
    strata_tokenizer_close(t);
    assert_true(bytes == sizeof(text) - 1 && memcmp(whole, text, bytes) == 0);
    strata_stream_close(s);
    free(whole);
}

TEST(special_tokens_are_tokens_where_wanted)
{
    struct strata_encode_opts opts = STRATA_ENCODE_OPTS_INIT;
    struct strata_tokenizer *t;
    const int32_t *ids;
    size_t count;

    assert_ok(strata_tokenizer_open(&t, FILE_OF("llama2")));
    assert_ok(strata_tokenizer_encode(t, "</s>", 4, NULL, &ids, &count));
    assert_true(count == 1 && ids[0] == 2);
    opts.add_special = true;
    assert_ok(strata_tokenizer_encode(t, "</s>", 4, &opts, &ids, &count));
    assert_true(count == 2 && ids[0] == 1 && ids[1] == 2);
    opts.special_as_text = true;
    assert_ok(strata_tokenizer_encode(t, "</s>", 4, &opts, &ids, &count));
    assert_true(count > 2 && ids[0] == 1);
    strata_tokenizer_close(t);
}

/* --- conversations --- */

static void check_text(struct strata_tokenizer *t, struct strata_chat *c, const char *expected)
{
    const int32_t *ids;
    const char *got;
    size_t count, bytes;

    assert_ok(strata_chat_tokens(c, &ids, &count));
    assert_ok(strata_tokenizer_decode(t, ids, count, false, &got, &bytes));
    assert_int_equal(bytes, strlen(expected));
    assert_memory_equal(got, expected, bytes);
}

TEST(a_conversation_is_written)
{
    struct strata_chat_opts opts = STRATA_CHAT_OPTS_INIT;
    struct strata_tokenizer *t;
    struct strata_chat *c;
    const int32_t *ids;
    size_t count;

    assert_ok(strata_tokenizer_open(&t, FILE_OF("qwen2")));
    opts.chat_template = "chatml";
    assert_ok(strata_chat_open(&c, t, &opts));
    assert_int_equal(strata_chat_end(c), 422);
    assert_ok(strata_chat_add(c, "system", "S"));
    assert_ok(strata_chat_add(c, "user", "\"a\\\n\xff"));
    check_text(t, c, "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\n\"a\\\n\xef\xbf\xbd<|im_end|>\n<|im_start|>assistant\n");
    assert_ok(strata_chat_tokens(c, &ids, &count));
    assert_int_equal(ids[0], 421);
    assert_true(count > 10 && ids[count - 1] < 420);
    assert_ok(strata_chat_add(c, "assistant", "b"));
    check_text(t, c,
               "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\n\"a\\\n\xef\xbf\xbd<|im_end|>\n<|im_start|>assistant\n"
               "b<|im_end|>\n<|im_start|>assistant\n");
    strata_tokenizer_close(t);
    assert_ok(strata_chat_tokens(c, &ids, &count));
    strata_chat_close(c);
}

/* {scratch}/dir with the tokenizer and what a test adds. */
static void write_in(const char *name, const char *contents)
{
    char path[256];
    FILE *file;

    assert_true(snprintf(path, sizeof(path), "%s/%s", scratch_dir, name) < (int)sizeof(path));
    file = fopen(path, "w");
    assert_non_null(file);
    fputs(contents, file);
    assert_int_equal(fclose(file), 0);
}

static void copy_tokenizer(const char *name)
{
    char command[512];

    snprintf(command, sizeof(command), "cp %s %s/tokenizer.json", name, scratch_dir);
    assert_int_equal(system(command), 0);
}

TEST_SETUP(the_directory_brings_its_template, scratch_create, scratch_remove)
{
    static const struct {
        const char *config, *jinja, *text;
    } rows[] = {
        {"{\"chat_template\":\"one{{ eos_token }}\",\"eos_token\":\"<|im_end|>\"}", NULL, "one<|im_end|>"},
        {"{\"chat_template\":[{\"name\":\"tool_use\",\"template\":\"no\"},{\"name\":\"default\",\"template\":\"two\"}]}", NULL,
         "two"},
        {"{\"chat_template\":\"one\",\"bos_token\":{\"content\":\"<|im_start|>\"}}",
         "{{ bos_token }}{{ strftime_now('%d.%m.%Y') }}", "<|im_start|>03.02.2026"},
    };
    struct strata_chat_opts opts = STRATA_CHAT_OPTS_INIT;
    struct strata_chat *c;
    bool there = true;

    assert_ok(strata_tokenizer_exists(&there, scratch_dir));
    assert_false(there);
    copy_tokenizer(FILE_OF("qwen2"));
    assert_ok(strata_tokenizer_exists(&there, scratch_dir));
    assert_true(there);
    opts.date = "2026-02-03";
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct strata_tokenizer *t;

        write_in("tokenizer_config.json", rows[i].config);
        if (rows[i].jinja != NULL)
            write_in("chat_template.jinja", rows[i].jinja);
        assert_ok(strata_tokenizer_open(&t, scratch_dir));
        assert_ok(strata_chat_open(&c, t, &opts));
        check_text(t, c, rows[i].text);
        assert_int_equal(strata_chat_end(c), -1);
        strata_chat_close(c);
        strata_tokenizer_close(t);
    }
}

TEST_SETUP(templates_and_dates_are_checked, scratch_create, scratch_remove)
{
    static const char *const dates[] = {"",           "2026-2-3",   "2026-02-30", "2026-13-01",
                                        "2026-00-10", "0000-01-01", "2026- 1-01", "2026-02-03x"};
    struct strata_chat_opts opts = STRATA_CHAT_OPTS_INIT;
    struct strata_tokenizer *t;
    struct strata_chat *c = NULL;

    copy_tokenizer(FILE_OF("llama2"));
    write_in("tokenizer_config.json", "{\"bos_token\":\"<s>\",\"eos_token\":\"</s>\"}");
    assert_ok(strata_tokenizer_open(&t, scratch_dir));
    assert_status(strata_chat_open(&c, t, NULL), STRATA_E_INPUT, "no template");
    assert_non_null(strstr(strata_last_error(), "no chat template beside it (chat_template.jinja"));
    assert_non_null(strstr(strata_last_error(), "chatml"));
    opts.chat_template = "chatlm";
    assert_status(strata_chat_open(&c, t, &opts), STRATA_E_INPUT, "no such template");
    assert_non_null(strstr(strata_last_error(), "chatlm: neither a file nor one of alpaca, "));
    opts.chat_template = scratch_dir;
    assert_status(strata_chat_open(&c, t, &opts), STRATA_E_INPUT, "a directory");
    write_in("bad.jinja", "{% if %}");
    opts.chat_template = scratch_path("bad.jinja");
    assert_status(strata_chat_open(&c, t, &opts), STRATA_E_CONFIG, "not valid");
    assert_non_null(strstr(strata_last_error(), "line 1"));
    opts.chat_template = "llama2";
    for (size_t i = 0; i < sizeof(dates) / sizeof(dates[0]); i++) {
        opts.date = dates[i];
        assert_refused(strata_chat_open(&c, t, &opts), "is not a date");
    }
    assert_null(c);
    opts.date = "2024-02-29";
    assert_ok(strata_chat_open(&c, t, &opts));
    assert_int_equal(strata_chat_end(c), 2);
    strata_chat_close(c);
    strata_tokenizer_close(t);
}

/* --- failures --- */

/* A text there and back, and a conversation; the status of the first call that failed. */
static strata_status all_of_it(void)
{
    struct strata_tokenizer *t = NULL;
    struct strata_stream *s = NULL;
    struct strata_chat *c = NULL;
    const int32_t *ids = NULL;
    const char *got;
    size_t count = 0, bytes;
    strata_status st = strata_tokenizer_open(&t, "tests/golden/chat/llama");

    if (st == STRATA_OK)
        st = strata_tokenizer_encode(t, text, sizeof(text) - 1, NULL, &ids, &count);
    if (st == STRATA_OK)
        st = strata_tokenizer_decode(t, ids, count, false, &got, &bytes);
    if (st == STRATA_OK)
        st = strata_stream_open(&s, t, true);
    for (size_t i = 0; i < count && st == STRATA_OK; i++)
        st = strata_stream_push(s, ids[i], &got, &bytes);
    if (st == STRATA_OK)
        st = strata_chat_open(&c, t, NULL);
    if (st == STRATA_OK)
        st = strata_chat_add(c, "user", text);
    if (st == STRATA_OK)
        st = strata_chat_tokens(c, &ids, &count);
    strata_chat_close(c);
    strata_stream_close(s);
    strata_tokenizer_close(t);
    return st;
}

TEST(every_place_fails_once)
{
    static struct st_fault_tally sites[64];
    uint32_t count = 0, ours = 0, refused = 0;

    st_fault_arm(&(struct st_fault_spec){.site = "?"});
    assert_ok(all_of_it());
    (void)st_fault_disarm();
    while (count < 64 && st_fault_tally_at(&sites[count], count))
        count++;
    for (uint32_t i = 0; i < count; i++) {
        ours += strncmp(sites[i].site, "api.", 4) == 0;
        for (uint32_t after = 0; after < sites[i].passed; after += sites[i].passed / 4 + 1) {
            strata_status st;

            st_fault_arm(&(struct st_fault_spec){.site = sites[i].site, .after = after, .count = 1, .result = -ENOMEM});
            st = all_of_it();
            (void)st_fault_disarm();
            refused += st != STRATA_OK;
            if (st != STRATA_OK && strata_last_error()[0] == '\0')
                fail_msg("%s: no sentence", sites[i].site);
        }
    }
    assert_true(refused > count / 2);
    assert_int_equal(ours, 6); /* tokenizer, stream, chat, add, json, text */
}

TEST_MAIN(argc, argv)
{
    strata_log_configure(NULL, NULL, STRATA_LOG_NONE);
    return test_run(NULL, NULL);
}
