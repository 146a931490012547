/* config_other.c - what another source says beside DeepSpeed's file: taken where that leaves it open, compared where it does not.
 */
#include "core/base/text.h"
#include "offload/config/config_source.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define BATCH        "train_batch_size"
#define MICRO        "train_micro_batch_size_per_gpu"
#define ACCUMULATION "gradient_accumulation_steps"

/* The row of a path; NULL: there is none. */
static const struct st_field *find_field(const char *path)
{
    const struct st_field *f;

    for (uint32_t i = 0; (f = st_field_at(i)) != NULL; i++)
        if (strcmp(f->path, path) == 0)
            return f;
    return NULL;
}

static bool says(struct st_config_source *src, const char *path)
{
    const struct st_field *field = path != NULL ? find_field(path) : NULL;

    return field != NULL && src->fields[st_field_index(field)].node != NULL &&
           !st_value_is_auto(src->fields[st_field_index(field)].node);
}

/* DeepSpeed's file itself. */
static bool file_says(struct st_config_source *src, const char *path)
{
    return says(src, path) && src->fields[st_field_index(find_field(path))].place == NULL;
}

/* As a value is compared, and told: an object by its keys. */
static void whole_text(struct st_config_source *src, char text[ST_CONFIG_JSON_MAX], const st_json *node)
{
    if (st_json_type(node) != ST_JSON_OBJECT) {
        st_value_show(text, ST_CONFIG_JSON_MAX, node);
        return;
    }
    st_object_store(text, node);
    src->failed = src->failed || text[0] == '\0';
}

/* Where a recipe says a value. */
static const char *place_in(struct st_config_source *src, const struct st_config_other *other, const struct st_config_said *value)
{
    if (value->on_line)
        return "on the command line";
    if (value->line > 0)
        return st_source_keep(src, "in %s:%" PRIu32, other->path, value->line);
    return st_source_keep(src, "in %s", other->path);
}

/* Where the value in force comes from. */
static const char *place_of(struct st_config_source *src, const struct st_field_state *state)
{
    if (state->place != NULL)
        return state->place;
    if (state->origin == ST_ORIGIN_COMMAND_LINE || src->file == NULL)
        return "on the command line";
    if (st_json_line(state->node) > 0)
        return st_source_keep(src, "in %s:%" PRIu32, src->file, st_json_line(state->node));
    return st_source_keep(src, "in %s", src->file);
}

static void take_from_other(struct st_config_source *src, const struct st_field *field, const st_json *node,
                            enum st_config_origin origin, const char *place)
{
    src->fields[st_field_index(field)] = (struct st_field_state){0}; /* it may be "auto" there */
    st_source_take(src, field, node, field->path, origin);
    src->fields[st_field_index(field)].place = place;
}

/* A batch that the recipe says by its parts: the file's whole follows from them. */
static void leave_batch(struct st_config_source *src, const struct st_config_said *value)
{
    struct st_field_state *whole = st_source_state(src, BATCH);
    char there[ST_CONFIG_JSON_MAX];

    if (!value->over || !file_says(src, BATCH) || (strcmp(value->to, MICRO) != 0 && strcmp(value->to, ACCUMULATION) != 0))
        return;
    whole_text(src, there, whole->node);
    st_source_add_stray(src, &(struct st_config_row){.path = BATCH,
                                                     .value = st_source_keep(src, "%s", there),
                                                     .origin = ST_ORIGIN_FILE,
                                                     .verdict = ST_VERDICT_NOTICE,
                                                     .reason = st_source_keep(src, "follows from %s, which counts", value->from),
                                                     .changes = ST_CHANGES_NEITHER});
    *whole = (struct st_field_state){0};
}

/* What is asked twice differs: both places are named. */
static void tell_difference(struct st_config_source *src, const struct st_config_other *other, const struct st_config_said *value,
                            const char *here, const char *there)
{
    const struct st_field_state *state = &src->fields[st_field_index(find_field(value->to))];
    const bool file = state->place == NULL && state->origin != ST_ORIGIN_COMMAND_LINE;
    char at[16] = "";

    if (value->line > 0 && !value->on_line)
        snprintf(at, sizeof(at), ":%" PRIu32, value->line);
    st_source_problem(src, "%s%s: %s%s asks for %s = %.100s, and it is %.100s %s: make them equal%s",
                      value->on_line ? "command line" : other->path, at, other->spelling(other->of, value->from),
                      value->weak ? ", left out," : "", value->to, here, there, place_of(src, state),
                      file ? ", or write \"auto\" there" : "");
}

/* The command line says it, which counts over all files. */
static bool is_overridden(const struct st_config_source *src, const char *path)
{
    const size_t length = strlen(path);

    for (uint32_t i = 0; i < src->override_count; i++)
        if (strncmp(src->overrides[i], path, length) == 0 && src->overrides[i][length] == '=')
            return true;
    return false;
}

static void take_said(struct st_config_source *src, const struct st_config_other *from, const struct st_config_said *value,
                      enum st_config_origin origin)
{
    const struct st_field *field = find_field(value->to);
    const st_json *node = st_source_parse(src, value->text);
    char there[ST_CONFIG_JSON_MAX], here[ST_CONFIG_JSON_MAX];
    const char *place, *before;

    if (node == NULL) {
        if (!src->failed)
            st_source_problem(src, "%s: %s: %s cannot be made of it: %.100s", from->path, value->from, value->to, value->text);
        return;
    }
    if (field == NULL) {
        st_source_problem(src, "%s: %s: %s is not in this version", from->path, value->from, value->to);
        return;
    }
    leave_batch(src, value);
    if (!says(src, field->path)) {
        take_from_other(src, field, node, origin, place_in(src, from, value));
        return;
    }
    whole_text(src, there, src->fields[st_field_index(field)].node);
    whole_text(src, here, node);
    if (src->failed || st_text_same(there, here))
        return;
    if (!value->over && origin == ST_ORIGIN_FILE && is_overridden(src, field->path))
        return;
    if (!value->over) {
        tell_difference(src, from, value, here, there);
        return;
    }
    place = place_in(src, from, value);
    before = place_of(src, &src->fields[st_field_index(field)]);
    take_from_other(src, field, node, origin, place);
    st_source_announce(
        src, field->path,
        value->weak
            ? st_source_keep(src, "%s: %.100s counts, and %.100s %s does not", value->from, here, there, before)
            : st_source_keep(src, "%s %s counts, %.100s, and %.100s %s does not", value->from, place, here, there, before));
}

void st_source_take_other(struct st_config_source *src, const struct st_config_other *other)
{
    src->has_file = true;
    src->has_length |= other->has_length;
    for (uint32_t i = 0; i < other->count; i++) {
        const struct st_config_said *value = &other->values[i];

        if (value->to[0] != '-' && !file_says(src, value->unless))
            take_said(src, other, value, ST_ORIGIN_FILE);
    }
}

void st_source_take_environment(struct st_config_source *src, const struct st_config_other *environment)
{
    const bool alone = !src->has_file;

    src->has_file = true;
    for (uint32_t i = 0; i < environment->count; i++) {
        const struct st_config_said *value = &environment->values[i];

        if (!value->weak || (alone && !says(src, value->to)))
            take_said(src, environment, value, ST_ORIGIN_ENVIRONMENT);
    }
}
