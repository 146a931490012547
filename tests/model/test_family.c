/* test_family.c - what docs/models.md says of the families is what their rows in model/family.c say. */
#include "model/family.h"
#include "model_fixture.h"
#include "tests/common/whole_file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DOCS_FILE "docs/models.md"

static int load(void **state)
{
    *state = read_file(DOCS_FILE, NULL);
    return 0;
}

static int unload(void **state)
{
    free(*state);
    return 0;
}

static const char *norms_of(const struct st_family *f)
{
    const bool before = f->tensors[ST_ROLE_NORM1_WEIGHT] != NULL, after = f->tensors[ST_ROLE_POST1_WEIGHT] != NULL;

    if (f->defaults.norm == ST_NORM_LAYERNORM)
        return "LayerNorm before each half";
    if (f->defaults.norm == ST_NORM_RMSNORM_FROM_1)
        return before && after ? "RMSNorm before and after, weights 1 + w" : "?";
    return before && after ? "RMSNorm before and after" : before ? "RMSNorm before" : "RMSNorm after";
}

static const char *layers_of(const struct st_family *f)
{
    switch (f->windows) {
    case ST_WINDOW_NONE:
        return "all alike";
    case ST_WINDOW_ALL:
    case ST_WINDOW_SWITCH:
        return "all slide, if there is a window";
    case ST_WINDOW_FROM:
    case ST_WINDOW_UNTIL:
        return "some slide";
    case ST_WINDOW_NO_ROPE:
        return "some are not rotated, some slide";
    case ST_WINDOW_PERIOD:
        break;
    }
    return f->window_period == 2 ? "every other one slides" : f->window_period == 6 ? "five of six slide" : "?";
}

/* The columns between the name and what is told in words. */
static void columns_of(char *out, size_t bytes, const struct st_family *f)
{
    static const char *const qk[] = {
        [ST_QK_NORM_NONE] = "", [ST_QK_NORM_HEAD] = "of each head ", [ST_QK_NORM_ALL] = "of all heads together "};
    static const char *const halves[] = {[ST_ACTIVATION_GELU] = "gelu (tanh or exact)",
                                         [ST_ACTIVATION_SWIGLU] = "gated silu",
                                         [ST_ACTIVATION_GELU_EXACT] = "?",
                                         [ST_ACTIVATION_GEGLU] = "gated gelu",
                                         [ST_ACTIVATION_GEGLU_EXACT] = "?"};

    snprintf(out, bytes, " | %s | %s| %s | %s | ", norms_of(f), qk[f->defaults.qk_norm], halves[f->defaults.activation],
             layers_of(f));
}

/* What the words must say of biases; "": nothing. */
static const char *biases_of(const struct st_family *f)
{
    if (f->defaults.biases == ST_BIAS_ALL)
        return "biases everywhere";
    if (f->defaults.biases == ST_BIAS_QKV)
        return "biases of q, k, v";
    if ((f->keys & ST_KEY_MLP_BIAS) != 0)
        return "biases of attention and feed-forward";
    return (f->keys & ST_KEY_ATTENTION_BIAS) != 0 ? "biases of attention" : "";
}

TEST(the_table_has_a_row_for_each_family)
{
    const char *docs = *state;

    for (enum st_model_family i = 0; i < ST_FAMILY_COUNT; i++) {
        const struct st_family *f = st_family_of(i);
        char begin[64], columns[256], row[512] = "";
        const char *at, *biases = biases_of(f), *said;

        snprintf(begin, sizeof(begin), "\n| `%s`", f->model_type);
        columns_of(columns, sizeof(columns), f);
        at = strstr(docs, begin);
        if (at != NULL)
            snprintf(row, sizeof(row), "%.*s", (int)strcspn(at + 1, "\n"), at + 1);
        if (strstr(row, " | ") == NULL || strncmp(strstr(row, " | "), columns, strlen(columns)) != 0)
            fail_msg("%s: the row of %s is <%s>; model/family.c says <%s>", DOCS_FILE, f->model_type, row, columns);
        said = strstr(row, "biases");
        if ((said != NULL) != (*biases != '\0') ||
            (said != NULL && (strncmp(said, biases, strlen(biases)) != 0 || strchr(" ;|", said[strlen(biases)]) == NULL ||
                              strncmp(said + strlen(biases), " and", 4) == 0)))
            fail_msg("%s: the row of %s is <%s>; model/family.c says \"%s\"", DOCS_FILE, f->model_type, row, biases);
    }
}

/* No row is of a family that is not there. */
TEST(each_row_is_a_family)
{
    const char *at = strstr(*state, "| model_type | norms of a block"), *end;
    uint32_t count = 0;

    assert_non_null(at);
    end = strstr(at, "\n\n");
    assert_non_null(end);
    for (; (at = strstr(at, "\n| `")) != NULL && at < end; at++) {
        char name[64];

        snprintf(name, sizeof(name), "%.*s", (int)strcspn(at + 4, "`"), at + 4);
        if (st_family_named(name) == NULL)
            fail_msg("%s: model/family.c has no %s", DOCS_FILE, name);
        count++;
    }
    assert_int_equal(count, ST_FAMILY_COUNT);
}

TEST(end_tokens_are_the_families)
{
    const char *at = strstr(*state, "in a `config.json` that of the family (");
    char list[256];

    assert_non_null(at);
    at = strchr(at, '(');
    snprintf(list, sizeof(list), "%.*s", (int)strcspn(at, ")") + 1, at);
    for (enum st_model_family i = 0; i < ST_FAMILY_COUNT; i++) {
        const struct st_family *f = st_family_of(i);
        char token[24];
        const char *said;

        snprintf(token, sizeof(token), " %u", f->end_token);
        said = f->end_token != 0 ? strstr(list, token) : list;
        if (said == NULL || (f->end_token != 0 && strchr(",)", said[strlen(token)]) == NULL))
            fail_msg("%s: the end token of %s is%s: not in %s", DOCS_FILE, f->model_type, token, list);
        if (f->end_token == 0 && strstr(list, f->model_type) != NULL)
            fail_msg("%s: %s has no end token of its own: %s", DOCS_FILE, f->model_type, list);
    }
}

TEST_GROUP(load, unload);
