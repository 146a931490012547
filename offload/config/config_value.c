/* config_value.c - checks, stores and prints one value of one field. */
#include "offload/config/config_source.h"

#include "core/base/number.h"
#include "core/base/size.h"
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define SHOW_BYTES 96 /* of a value inside a message */

bool st_value_is_auto(const st_json *node)
{
    return st_json_type(node) == ST_JSON_STRING && strcmp(st_json_string(node), "auto") == 0;
}

/* Appends as much as fits. */
static void append(char *buf, size_t bytes, const char *text)
{
    const size_t used = strlen(buf);

    snprintf(buf + used, bytes - used, "%s", text);
}

static void show_array(char *buf, size_t bytes, const st_json *node)
{
    char item[SHOW_BYTES];

    for (const st_json *n = st_json_first(node); n != NULL && strlen(buf) + 1 < bytes; n = st_json_next(n)) {
        if (st_json_type(n) == ST_JSON_ARRAY)
            snprintf(item, sizeof(item), "[...]");
        else
            st_value_show(item, sizeof(item), n);
        append(buf, bytes, item);
        if (st_json_next(n) != NULL)
            append(buf, bytes, ", ");
    }
}

void st_value_show(char *buf, size_t bytes, const st_json *node)
{
    char number[32];

    switch (st_json_type(node)) {
    case ST_JSON_NULL:
        snprintf(buf, bytes, "null");
        break;
    case ST_JSON_BOOL:
        snprintf(buf, bytes, "%s", st_json_bool(node) ? "true" : "false");
        break;
    case ST_JSON_NUMBER:
        st_json_double_text(number, st_json_number(node));
        snprintf(buf, bytes, "%s", isinf(st_json_number(node)) ? st_json_number(node) > 0 ? "Infinity" : "-Infinity" : number);
        break;
    case ST_JSON_STRING:
        snprintf(buf, bytes, "%s", st_json_string(node));
        break;
    case ST_JSON_ARRAY:
        snprintf(buf, bytes, "[");
        show_array(buf, bytes, node);
        append(buf, bytes, "]");
        break;
    case ST_JSON_OBJECT:
        snprintf(buf, bytes, "{...}");
        break;
    }
}

/* A number that JSON writes like this. */
static bool is_json_number(const char *text)
{
    st_json *node;
    bool is;

    if (st_json_parse(&node, text, strlen(text), "value") != STRATA_OK)
        return false;
    is = st_json_type(node) == ST_JSON_NUMBER;
    st_json_free(node);
    return is;
}

/* "is X, not Y", with a hint for the most common mistakes.  On the command line, what is no JSON is a string without quotes. */
static const char *wrong_type(struct st_config_source *src, const st_json *node, const char *wanted)
{
    char shown[SHOW_BYTES], number_text[32];
    double number;
    char *end;

    st_value_show(shown, sizeof(shown), node);
    if (st_json_type(node) != ST_JSON_STRING)
        return st_source_keep(src, "must be %s, not %s", wanted, shown);
    if (is_json_number(shown) || strcmp(shown, "true") == 0 || strcmp(shown, "false") == 0)
        return st_source_keep(src, "must be %s, but \"%s\" is a string: write it without quotes", wanted, shown);
    number = st_number_read(shown, &end);
    if (end != shown && *end == '\0' && isfinite(number)) {
        st_json_double_text(number_text, number);
        return st_source_keep(src, "must be %s, not \"%s\": write %s", wanted, shown, number_text);
    }
    return st_source_keep(src, "must be %s, not \"%s\"", wanted, shown);
}

static const char *check_range(struct st_config_source *src, const struct st_field *field, double value)
{
    char shown[32], low[32], high[32];

    if ((field->min == 0 && field->max == 0) || (value >= field->min && value <= field->max))
        return NULL;
    st_json_double_text(shown, value);
    st_json_double_text(low, field->min);
    st_json_double_text(high, field->max);
    return st_source_keep(src, "%s is out of range: %s to %s", shown, low, high);
}

static const char *check_number(struct st_config_source *src, const struct st_field *field, const st_json *node)
{
    const bool whole = field->type != ST_FIELD_REAL && field->type != ST_FIELD_PAIR;
    double value;

    if (st_json_type(node) != ST_JSON_NUMBER)
        return wrong_type(src, node, whole ? "a whole number" : "a number");
    value = st_json_number(node);
    if (!isfinite(value))
        return "must be a finite number";
    if (whole && floor(value) != value)
        return wrong_type(src, node, "a whole number");
    return check_range(src, field, value);
}

static const char *check_size(struct st_config_source *src, const struct st_field *field, const st_json *node)
{
    uint64_t bytes;

    if (st_json_type(node) == ST_JSON_NUMBER)
        return check_number(src, field, node);
    if (st_json_type(node) != ST_JSON_STRING || st_size_parse(st_json_string(node), &bytes) != 0)
        return wrong_type(src, node, "a size, such as \"200MiB\", \"24G\", a number of bytes or \"auto\"");
    if (bytes > (uint64_t)field->max) /* which a double may round to the largest that is allowed */
        return st_source_keep(src, "\"%.64s\" is out of range: %.0f at most", st_json_string(node), field->max);
    return check_range(src, field, (double)bytes);
}

static void list_choices(char *buf, size_t bytes, const struct st_choice *choices)
{
    buf[0] = '\0';
    for (const struct st_choice *c = choices; c->text != NULL; c++) {
        if (c->verdict != ST_VERDICT_HONOURED)
            continue;
        if (buf[0] != '\0')
            append(buf, bytes, ", ");
        append(buf, bytes, c->text);
    }
}

static const char *check_choice(struct st_config_source *src, const struct st_field *field, const st_json *node)
{
    const char *nearest;
    char list[256], shown[SHOW_BYTES];

    list_choices(list, sizeof(list), field->choices);
    st_value_show(shown, sizeof(shown), node);
    if (st_json_type(node) != ST_JSON_STRING)
        return st_source_keep(src, "must be one of %s (a string), not %s", list, shown);
    if (st_choice_find(field->choices, st_json_string(node)) != NULL)
        return NULL;
    nearest = st_choice_nearest(field->choices, st_json_string(node));
    if (nearest != NULL)
        return st_source_keep(src, "must be one of %s, not \"%s\": did you mean \"%s\"?", list, shown, nearest);
    return st_source_keep(src, "must be one of %s, not \"%s\"", list, shown);
}

static const char *check_pair(struct st_config_source *src, const struct st_field *field, const st_json *node)
{
    const st_json *first, *second;
    const char *wrong;

    if (st_json_type(node) != ST_JSON_ARRAY)
        return wrong_type(src, node, "a list of two numbers");
    first = st_json_first(node);
    second = first != NULL ? st_json_next(first) : NULL;
    if (second == NULL || st_json_next(second) != NULL)
        return wrong_type(src, node, "a list of two numbers");
    wrong = check_number(src, field, first);
    return wrong != NULL ? wrong : check_number(src, field, second);
}

static const char *check_dirs(struct st_config_source *src, const st_json *node)
{
    if (st_json_type(node) == ST_JSON_STRING)
        return NULL;
    if (st_json_type(node) != ST_JSON_ARRAY)
        return wrong_type(src, node, "a directory, a comma-separated string or a list of strings");
    for (const st_json *n = st_json_first(node); n != NULL; n = st_json_next(n))
        if (st_json_type(n) != ST_JSON_STRING)
            return wrong_type(src, node, "a list of strings");
    return NULL;
}

static const char *check_text(struct st_config_source *src, const struct st_field *field, const st_json *node)
{
    if (st_json_type(node) != ST_JSON_STRING)
        return wrong_type(src, node, "a string");
    if (field->bind == ST_BIND_PATH && strlen(st_json_string(node)) >= ST_CONFIG_PATH_MAX)
        return st_source_keep(src, "a directory's name has %zu bytes, and at most %d are allowed", strlen(st_json_string(node)),
                              ST_CONFIG_PATH_MAX - 1);
    return NULL;
}

/* One pattern or a list of them; the config has room for each. */
static const char *check_patterns(struct st_config_source *src, const st_json *node)
{
    const bool list = st_json_type(node) == ST_JSON_ARRAY;
    uint32_t count = 0;

    for (const st_json *n = list ? st_json_first(node) : node; n != NULL; n = list ? st_json_next(n) : NULL) {
        if (st_json_type(n) != ST_JSON_STRING)
            return wrong_type(src, node, "a shell pattern or a list of them (strings)");
        if (st_json_string(n)[0] == '\0')
            return "a pattern is empty: it would match nothing";
        if (strlen(st_json_string(n)) >= ST_CONFIG_PATTERN_MAX)
            return st_source_keep(src, "a pattern has %zu bytes, and at most %d are allowed", strlen(st_json_string(n)),
                                  ST_CONFIG_PATTERN_MAX - 1);
        if (++count > ST_CONFIG_FREEZE_MAX)
            return st_source_keep(
                src, "lists more than %d patterns, the most that are allowed: \"*\" and \"[0-9]\" match many names with one",
                ST_CONFIG_FREEZE_MAX);
    }
    return NULL;
}

const char *st_value_check(struct st_config_source *src, const struct st_field *field, const st_json *node)
{
    switch (field->type) {
    case ST_FIELD_OBJECT:
    case ST_FIELD_OPEN:
        return st_json_type(node) == ST_JSON_OBJECT ? NULL : wrong_type(src, node, "a section: { ... }");
    case ST_FIELD_BOOL:
        return st_json_type(node) == ST_JSON_BOOL ? NULL : wrong_type(src, node, "true or false");
    case ST_FIELD_INT:
    case ST_FIELD_REAL:
        return check_number(src, field, node);
    case ST_FIELD_SIZE:
        return check_size(src, field, node);
    case ST_FIELD_TEXT:
    case ST_FIELD_SECRET:
        return check_text(src, field, node);
    case ST_FIELD_CHOICE:
        return check_choice(src, field, node);
    case ST_FIELD_PAIR:
        return check_pair(src, field, node);
    case ST_FIELD_DIRS:
        return check_dirs(src, node);
    case ST_FIELD_PATTERNS:
        return check_patterns(src, node);
    case ST_FIELD_LIST:
        return st_json_type(node) == ST_JSON_ARRAY ||
                       (st_json_type(node) == ST_JSON_STRING && field->verdict == ST_VERDICT_NOTICE)
                   ? NULL
                   : wrong_type(src, node, "a list");
    case ST_FIELD_JSON:
        return st_json_type(node) == ST_JSON_OBJECT ? st_object_check(src, node) : wrong_type(src, node, "an object: { ... }");
    case ST_FIELD_ANY:
        break;
    }
    return NULL;
}

bool st_value_is_plain(const struct st_field *field, const st_json *node)
{
    char shown[SHOW_BYTES];
    char *end;

    if (field->plain == NULL)
        return false;
    if (st_json_type(node) == ST_JSON_NUMBER)
        return st_number_read(field->plain, &end) == st_json_number(node) && end != field->plain;
    st_value_show(shown, sizeof(shown), node);
    return strcmp(shown, field->plain) == 0;
}

/* Counts the "enabled" keys of a section and of everything inside it: the false ones, which "auto" is, and the true ones. */
static void count_switches(const st_json *object, uint32_t counts[2])
{
    for (const st_json *n = st_json_first(object); n != NULL; n = st_json_next(n)) {
        if (st_json_type(n) == ST_JSON_OBJECT)
            count_switches(n, counts);
        else if (st_json_type(n) == ST_JSON_BOOL && strcmp(st_json_name(n), "enabled") == 0)
            counts[st_json_bool(n)]++;
        else if (st_value_is_auto(n) && strcmp(st_json_name(n), "enabled") == 0)
            counts[false]++;
    }
}

bool st_value_is_off(const struct st_field *field, const st_json *node)
{
    uint32_t counts[2] = {0, 0};

    if (st_value_is_plain(field, node))
        return true;
    switch (st_json_type(node)) {
    case ST_JSON_BOOL:
        return !st_json_bool(node);
    case ST_JSON_NUMBER:
        return st_json_number(node) == 0;
    case ST_JSON_STRING:
        return st_json_string(node)[0] == '\0';
    case ST_JSON_ARRAY:
        return st_json_first(node) == NULL;
    case ST_JSON_OBJECT:
        count_switches(node, counts);
        return st_json_first(node) == NULL || (counts[true] == 0 && counts[false] > 0);
    case ST_JSON_NULL:
        break;
    }
    return true;
}

static uint64_t size_of_node(const st_json *node)
{
    uint64_t bytes = ST_AUTO_BYTES;

    if (st_json_type(node) == ST_JSON_NUMBER)
        return (uint64_t)st_json_number(node);
    if (!st_value_is_auto(node))
        (void)st_size_parse(st_json_string(node), &bytes); /* checked before */
    return bytes;
}

static void store_betas(struct st_config *config, const st_json *node)
{
    config->optimizer.beta1 = st_json_number(st_json_first(node));
    config->optimizer.beta2 = st_json_number(st_json_next(st_json_first(node)));
}

static void store_patterns(struct st_config *config, const st_json *node)
{
    const bool list = st_json_type(node) == ST_JSON_ARRAY;

    for (const st_json *n = list ? st_json_first(node) : node; n != NULL; n = list ? st_json_next(n) : NULL)
        snprintf(config->freeze[config->freeze_count++], ST_CONFIG_PATTERN_MAX, "%s", st_json_string(n));
}

void st_value_clear(struct st_config *config, const struct st_field *field)
{
    static const size_t bytes[ST_BIND_JSON + 1] = {
        [ST_BIND_U32] = sizeof(uint32_t),    [ST_BIND_COUNT] = sizeof(uint32_t),   [ST_BIND_U64] = sizeof(uint64_t),
        [ST_BIND_STEPS] = sizeof(uint64_t),  [ST_BIND_SIZE] = sizeof(uint64_t),    [ST_BIND_F64] = sizeof(double),
        [ST_BIND_BOOL] = sizeof(bool),       [ST_BIND_BETAS] = 2 * sizeof(double), [ST_BIND_PATH] = ST_CONFIG_PATH_MAX,
        [ST_BIND_JSON] = ST_CONFIG_JSON_MAX,
    };
    _Static_assert(offsetof(struct st_config, optimizer.beta2) == offsetof(struct st_config, optimizer.beta1) + sizeof(double),
                   "betas are a pair");

    memset((char *)config + field->offset, 0, bytes[field->bind]);
}

void st_value_store(struct st_config *config, const struct st_field *field, const st_json *node)
{
    void *at = (char *)config + field->offset;
    const struct st_choice *choice = field->type == ST_FIELD_CHOICE ? st_choice_find(field->choices, st_json_string(node)) : NULL;

    switch (field->bind) {
    case ST_BIND_NONE:
    case ST_BIND_F16: /* st_config_resolve stores these */
    case ST_BIND_BF16:
    case ST_BIND_ADAM_W_MODE:
    case ST_BIND_DIRS:
        break;
    case ST_BIND_U32:
        *(uint32_t *)at = (uint32_t)st_json_number(node);
        break;
    case ST_BIND_COUNT:
        *(uint32_t *)at = st_value_is_auto(node) ? 0 : (uint32_t)st_json_number(node);
        break;
    case ST_BIND_U64:
    case ST_BIND_STEPS:
        *(uint64_t *)at = (uint64_t)st_json_number(node);
        break;
    case ST_BIND_SIZE:
        *(uint64_t *)at = size_of_node(node);
        break;
    case ST_BIND_F64:
        *(double *)at = st_value_is_auto(node) ? (double)NAN : st_json_number(node);
        break;
    case ST_BIND_BOOL:
        *(bool *)at = choice != NULL ? choice->value != 0 : st_json_bool(node);
        break;
    case ST_BIND_CHOICE:
        memcpy(at, &choice->value, sizeof(choice->value));
        break;
    case ST_BIND_NAME:
        memset(at, 0, sizeof(config->isa));
        snprintf(at, sizeof(config->isa), "%s", choice->text);
        break;
    case ST_BIND_PATH:
        memset(at, 0, ST_CONFIG_PATH_MAX);
        snprintf(at, ST_CONFIG_PATH_MAX, "%s", st_json_string(node));
        break;
    case ST_BIND_BETAS:
        store_betas(config, node);
        break;
    case ST_BIND_PATTERNS:
        store_patterns(config, node);
        break;
    case ST_BIND_JSON:
        st_object_store(at, node);
        break;
    }
}

/* Reduces a bound value to one of a few kinds, for both printers. */
struct plain_value {
    enum { PLAIN_AUTO, PLAIN_WHOLE, PLAIN_REAL, PLAIN_BOOL, PLAIN_TEXT, PLAIN_JSON, PLAIN_PAIR, PLAIN_LIST } kind;
    uint64_t whole;
    double real;
    bool yes;
    const char *text;     /* of a list: its first item */
    size_t count, stride; /* of a list */
};

static int choice_value(const struct st_config *config, const struct st_field *field)
{
    const void *at = (const char *)config + field->offset;
    int value;

    if (field->bind == ST_BIND_BOOL)
        return *(const bool *)at;
    memcpy(&value, at, sizeof(value));
    return value;
}

static struct plain_value load(const struct st_config *config, const struct st_field *field)
{
    const void *at = (const char *)config + field->offset;
    struct plain_value v = {.kind = PLAIN_AUTO};

    switch (field->bind) {
    case ST_BIND_NONE:
        break;
    case ST_BIND_U32:
    case ST_BIND_COUNT:
        v = (struct plain_value){.kind = PLAIN_WHOLE, .whole = *(const uint32_t *)at};
        if (v.whole == 0 && field->bind == ST_BIND_COUNT)
            v.kind = PLAIN_AUTO;
        break;
    case ST_BIND_U64:
    case ST_BIND_STEPS:
    case ST_BIND_SIZE:
        v = (struct plain_value){.kind = PLAIN_WHOLE, .whole = *(const uint64_t *)at};
        if (v.whole == (field->bind == ST_BIND_STEPS ? 0 : ST_AUTO_BYTES))
            v.kind = PLAIN_AUTO;
        break;
    case ST_BIND_F64:
        v = (struct plain_value){.kind = PLAIN_REAL, .real = *(const double *)at};
        if (isnan(v.real))
            v.kind = PLAIN_AUTO;
        break;
    case ST_BIND_BOOL:
    case ST_BIND_CHOICE:
        if (field->choices != NULL)
            v = (struct plain_value){.kind = PLAIN_TEXT, .text = st_choice_text(field->choices, choice_value(config, field))};
        else
            v = (struct plain_value){.kind = PLAIN_BOOL, .yes = *(const bool *)at};
        break;
    case ST_BIND_NAME:
    case ST_BIND_PATH:
        v = (struct plain_value){.kind = PLAIN_TEXT, .text = at};
        break;
    case ST_BIND_JSON:
        v = (struct plain_value){.kind = PLAIN_JSON, .text = at};
        break;
    case ST_BIND_F16:
        v = (struct plain_value){.kind = PLAIN_BOOL, .yes = config->dtype == STRATA_F16};
        break;
    case ST_BIND_BF16:
        v = (struct plain_value){.kind = PLAIN_BOOL, .yes = config->dtype == STRATA_BF16};
        break;
    case ST_BIND_ADAM_W_MODE:
        v = (struct plain_value){.kind = PLAIN_BOOL, .yes = config->optimizer.type == STRATA_ADAMW};
        break;
    case ST_BIND_BETAS:
        v = (struct plain_value){.kind = PLAIN_PAIR};
        break;
    case ST_BIND_DIRS:
        v = (struct plain_value){.kind = PLAIN_LIST, .text = at, .count = config->nvme_dir_count, .stride = ST_CONFIG_PATH_MAX};
        break;
    case ST_BIND_PATTERNS:
        v = (struct plain_value){.kind = PLAIN_LIST, .text = at, .count = config->freeze_count, .stride = ST_CONFIG_PATTERN_MAX};
        break;
    }
    if (v.kind == PLAIN_TEXT && v.text == NULL)
        v.text = "none"; /* an lr_type without a scheduler */
    return v;
}

static void list_text(char *buf, size_t bytes, const struct plain_value *v)
{
    snprintf(buf, bytes, "%s", v->count == 0 ? "none" : "");
    for (size_t i = 0; i < v->count; i++) {
        append(buf, bytes, i > 0 ? "," : "");
        append(buf, bytes, v->text + i * v->stride);
    }
}

void st_value_text(char *buf, size_t bytes, const struct st_config *config, const struct st_field *field)
{
    const struct plain_value v = load(config, field);
    char number[32], second[32];

    switch (v.kind) {
    case PLAIN_AUTO:
        snprintf(buf, bytes, "auto");
        break;
    case PLAIN_WHOLE:
        snprintf(buf, bytes, "%" PRIu64, v.whole);
        break;
    case PLAIN_REAL:
        st_json_double_text(number, v.real);
        snprintf(buf, bytes, "%s", number);
        break;
    case PLAIN_BOOL:
        snprintf(buf, bytes, "%s", v.yes ? "true" : "false");
        break;
    case PLAIN_TEXT:
    case PLAIN_JSON:
        snprintf(buf, bytes, "%s", v.text[0] != '\0' ? v.text : "none");
        break;
    case PLAIN_PAIR:
        st_json_double_text(number, config->optimizer.beta1);
        st_json_double_text(second, config->optimizer.beta2);
        snprintf(buf, bytes, "[%s, %s]", number, second);
        break;
    case PLAIN_LIST:
        list_text(buf, bytes, &v);
        break;
    }
}

void st_value_put(struct st_json_writer *w, const struct st_config *config, const struct st_field *field)
{
    const struct plain_value v = load(config, field);
    const char *key = st_field_leaf(field->path);

    switch (v.kind) {
    case PLAIN_AUTO:
        st_json_put_string(w, key, "auto");
        break;
    case PLAIN_WHOLE:
        st_json_put_u64(w, key, v.whole);
        break;
    case PLAIN_REAL:
        st_json_put_double(w, key, v.real);
        break;
    case PLAIN_BOOL:
        st_json_put_bool(w, key, v.yes);
        break;
    case PLAIN_TEXT:
        st_json_put_string(w, key, v.text);
        break;
    case PLAIN_JSON:
        st_json_put_text(w, key, v.text);
        break;
    case PLAIN_PAIR:
        st_json_array_open(w, key);
        st_json_put_double(w, NULL, config->optimizer.beta1);
        st_json_put_double(w, NULL, config->optimizer.beta2);
        st_json_array_close(w);
        break;
    case PLAIN_LIST:
        st_json_array_open(w, key);
        for (size_t i = 0; i < v.count; i++)
            st_json_put_string(w, NULL, v.text + i * v.stride);
        st_json_array_close(w);
        break;
    }
}
