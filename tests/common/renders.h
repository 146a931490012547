/* tests/common/renders.h - what a chat template makes of no messages. */
#ifndef TESTS_COMMON_RENDERS_H
#define TESTS_COMMON_RENDERS_H

#include "core/json/json.h"
#include "tests/common/test.h"
#include "text/template/template.h"
#include "tests/common/assert_status.h"

#include <string.h>

static inline void assert_renders_alone(const char *template, const char *text)
{
    struct st_template *t;
    struct st_rendered rendered;
    st_json *messages = NULL;

    assert_ok(st_json_parse(&messages, "[]", 2, "messages"));
    assert_ok(st_template_open(&t, template, strlen(template), "template"));
    assert_ok(st_template_render(&rendered, t, &(struct st_template_input){.messages = messages}));
    assert_string_equal(rendered.text, text);
    st_rendered_free(&rendered);
    st_template_close(t);
    st_json_free(messages);
}

#endif
