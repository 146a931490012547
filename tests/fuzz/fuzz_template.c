/* fuzz_template.c - any bytes as a chat template and, after a NUL, as the conversation: no crash, and an end within the limits;
 * what is rendered is UTF-8 and has an origin for every byte; a second rendering is equal; what is trained are tokens of answers.
 */
#include "core/base/text.h"
#include "text/data/dialog/dialog.h"
#include "text/template/template.h"
#include "tests/fuzz/fuzz.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char usual[] =
    "[{\"role\":\"system\",\"content\":\"be kind\"},{\"role\":\"user\",\"content\":\"h\\u00e9 you\\n\"},"
    "{\"role\":\"assistant\",\"content\":\"<think>x</think> yes\"},{\"role\":\"user\",\"content\":\"2\"}]";

static void check(bool holds)
{
    if (!holds)
        abort();
}

static void check_rendered(const struct st_rendered *r)
{
    const uint32_t bits = ST_ORIGIN_FIELD | ST_ORIGIN_GENERATION | ST_ORIGIN_EXCLUDED;
    size_t unit;

    check(r->text[r->bytes] == '\0');
    for (size_t at = 0; at < r->bytes; at += unit) {
        unit = st_text_utf8_bytes(r->text + at, r->bytes - at);
        check(unit > 0);
        check((r->origins[at] & ((1u << ST_ORIGIN_BITS) - 1) & ~bits) == 0);
        check(((r->origins[at] & ST_ORIGIN_FIELD) == 0) == (st_origin_message(r->origins[at]) == 0));
        check(r->has_generation || (r->origins[at] & ST_ORIGIN_GENERATION) == 0);
    }
}

static void render(const struct st_template *t, const st_json *messages)
{
    static const struct st_template_variable specials[] = {{"bos_token", "<s>"}, {"eos_token", "</s>"}};
    const struct st_template_input input = {
        .messages = messages, .specials = specials, .special_count = 2, .add_generation_prompt = true, .steps_max = 200000};
    struct st_rendered once, again;
    const strata_status st = st_template_render(&once, t, &input);

    check(st == STRATA_OK || st == STRATA_E_INPUT || st == STRATA_E_NOSYS);
    check(st_template_render(&again, t, &input) == st);
    if (st != STRATA_OK)
        return;
    check_rendered(&once);
    check(once.bytes == again.bytes && memcmp(once.text, again.text, once.bytes) == 0 &&
          memcmp(once.origins, again.origins, once.bytes * sizeof(*once.origins)) == 0);
    st_rendered_free(&once);
    st_rendered_free(&again);
}

static void put_file(const char *path, const char *text, size_t bytes)
{
    FILE *file = fopen(path, "wb");

    check(file != NULL && fwrite(text, 1, bytes, file) == bytes && fclose(file) == 0);
}

/* Of single characters and a few special tokens. */
static struct st_tokenizer *open_tokenizer(const char *dir)
{
    static const char text[] = "{\"model\": {\"type\": \"BPE\", \"unk_token\": \"?\", \"vocab\": {\"?\": 0, \" \": 1, \"a\": 2, "
                               "\"x\": 3, \"\\n\": 4, \"<\": 5, "
                               "\">\": 6, \" x\": 7}, \"merges\": [[\" \", \"x\"]]}, \"added_tokens\": [{\"id\": 8, \"content\": \"</s>\", "
                               "\"special\": true}, {\"id\": 9, "
                               "\"content\": \"<think>\", \"special\": false}]}";
    struct st_tokenizer *t;
    char path[64];

    snprintf(path, sizeof(path), "%s/tokenizer.json", dir);
    put_file(path, text, sizeof(text) - 1);
    check(st_tokenizer_open(&t, dir) == STRATA_OK);
    unlink(path);
    return t;
}

static void mask(const char *text, size_t bytes, const st_json *messages)
{
    static struct st_tokenizer *tokenizer;
    char dir[] = "/tmp/fuzz-template-XXXXXX", path[64];
    struct st_dialog_ids ids = {0};
    struct st_dialog *d;
    uint64_t answers = 0;

    check(mkdtemp(dir) != NULL);
    if (tokenizer == NULL)
        tokenizer = open_tokenizer(dir);
    snprintf(path, sizeof(path), "%s/t.jinja", dir);
    put_file(path, text, bytes);
    if (st_dialog_open(&d, tokenizer, &(struct st_dialog_opts){.template = path}) == STRATA_OK) {
        if (st_dialog_encode(d, messages, NULL, false, &ids) == STRATA_OK) {
            for (const st_json *m = st_json_first(messages); m != NULL; m = st_json_next(m))
                answers++;
            for (size_t i = 0; i < ids.encoding.count; i++)
                check(ids.trained[i] <= 1);
            check(ids.counts.unwritten + ids.counts.thoughtless <= answers && ids.counts.guessed <= answers);
        }
        st_dialog_close(d);
    }
    st_dialog_ids_free(&ids);
    unlink(path);
    rmdir(dir);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *text = (const char *)data, *end = size > 0 ? memchr(text, '\0', size) : NULL;
    const size_t bytes = end == NULL ? size : (size_t)(end - text);
    const char *talk = end == NULL ? usual : end + 1;
    const size_t talk_bytes = end == NULL ? sizeof(usual) - 1 : size - bytes - 1;
    struct st_template *t;
    st_json *messages;
    strata_status st;

    if (st_json_parse(&messages, talk, talk_bytes, "talk") != STRATA_OK)
        return 0;
    st = st_template_open(&t, text, bytes, "fuzz");
    check(st == STRATA_OK || st == STRATA_E_CONFIG);
    if (st == STRATA_OK) {
        render(t, messages);
        st_template_close(t);
        mask(text, bytes, messages);
    }
    st_json_free(messages);
    return 0;
}
