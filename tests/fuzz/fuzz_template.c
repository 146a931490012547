/* fuzz_template.c - any bytes as a chat template and, after a NUL, as the conversation: no crash, and an end within the limits;
 * what is rendered is UTF-8 and has an origin for every byte; a second rendering is equal. */
#include "core/base/text.h"
#include "model/template/template.h"
#include "tests/fuzz/fuzz.h"

#include <stdlib.h>
#include <string.h>

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
    const uint8_t most = ST_ORIGIN_MESSAGE | ST_ORIGIN_ANSWER | ST_ORIGIN_GENERATION | ST_ORIGIN_EXCLUDED;
    size_t unit;

    check(r->text[r->bytes] == '\0');
    for (size_t at = 0; at < r->bytes; at += unit) {
        unit = st_text_utf8_bytes(r->text + at, r->bytes - at);
        check(unit > 0);
        check(r->origins[at] <= most);
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
          memcmp(once.origins, again.origins, once.bytes) == 0);
    st_rendered_free(&once);
    st_rendered_free(&again);
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
    }
    st_json_free(messages);
    return 0;
}
