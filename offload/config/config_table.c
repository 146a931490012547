/* config_table.c - finds rows of the field table: by number, by path, by name of a member, by similarity. */
#include "core/base/text.h"
#include "core/base/word.h"
#include "offload/config/config_table.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#define NAME_MAX_LEN 64 /* longer names are not compared */

static const struct st_section *const section_lists[] = {st_sections_train, st_sections_offload, st_sections_other};

const struct st_section *st_section_at(uint32_t i)
{
    for (size_t list = 0; list < sizeof(section_lists) / sizeof(section_lists[0]); list++)
        for (const struct st_section *s = section_lists[list]; s->title != NULL; s++)
            if (i-- == 0)
                return s;
    return NULL;
}

uint32_t st_field_count(void)
{
    const struct st_section *s;
    uint32_t count = 0;

    for (uint32_t i = 0; (s = st_section_at(i)) != NULL; i++)
        count += s->count;
    return count;
}

const struct st_field *st_field_at(uint32_t i)
{
    for (size_t list = 0; list < sizeof(section_lists) / sizeof(section_lists[0]); list++)
        for (const struct st_section *s = section_lists[list]; s->title != NULL; s++) {
            if (i < s->count)
                return &s->fields[i];
            i -= s->count;
        }
    return NULL;
}

uint32_t st_field_index(const struct st_field *field)
{
    const struct st_section *s;
    uint32_t first = 0;

    for (uint32_t k = 0; (s = st_section_at(k)) != NULL; k++) {
        if (field >= s->fields && field < s->fields + s->count)
            return first + (uint32_t)(field - s->fields);
        first += s->count;
    }
    assert(false && "a row of the table");
    return 0;
}

const struct st_field *st_field_known(const char *path)
{
    const struct st_field *f;

    for (uint32_t i = 0; (f = st_field_at(i)) != NULL; i++)
        if (strcmp(f->path, path) == 0)
            return f;
    assert(false && "a path of the table");
    return NULL;
}

const char *st_field_leaf(const char *path)
{
    const char *dot = strrchr(path, '.');

    return dot != NULL ? dot + 1 : path;
}

bool st_field_inside(const struct st_field *field, const char *path)
{
    const size_t len = strlen(path);

    return strncmp(field->path, path, len) == 0 && field->path[len] == '.';
}

static const struct st_section *section_of(const struct st_field *field)
{
    const struct st_section *s;

    for (uint32_t k = 0; (s = st_section_at(k)) != NULL; k++)
        if (field >= s->fields && field < s->fields + s->count)
            return s;
    return NULL;
}

enum st_changes st_field_changes(const struct st_field *field)
{
    const struct st_field *f, *nearest = field;

    if (field->changes != ST_CHANGES_INHERITED)
        return field->changes;
    for (uint32_t i = 0; (f = st_field_at(i)) != NULL; i++)
        if (f->changes != ST_CHANGES_INHERITED && st_field_inside(field, f->path) &&
            (nearest == field || strlen(f->path) > strlen(nearest->path)))
            nearest = f;
    return nearest != field ? nearest->changes : section_of(field)->changes;
}

bool st_field_applies(const struct st_field *field, const struct st_config *config)
{
    if (field->lr_types != 0)
        return (field->lr_types >> config->schedule.type & 1) != 0;
    if (field->optimizers != 0)
        return (field->optimizers >> config->optimizer.type & 1) != 0;
    return config->dtype == STRATA_F16 || !st_field_inside(field, "fp16") || field->bind == ST_BIND_F16;
}

/* A member of the section itself, not of a section inside it. */
static bool is_member(const struct st_field *section, const struct st_field *field)
{
    if (section == NULL)
        return strchr(field->path, '.') == NULL;
    return st_field_inside(field, section->path) && strchr(field->path + strlen(section->path) + 1, '.') == NULL;
}

/* Next name of a field: its leaf, then its aliases.  *at starts NULL; false past the end. */
static bool next_name(const struct st_field *field, const char **at, char name[NAME_MAX_LEN])
{
    const char *from = *at == NULL ? st_field_leaf(field->path) : *at;
    const size_t len = strcspn(from, " ");

    if (*at != NULL && len == 0)
        return false;
    snprintf(name, NAME_MAX_LEN, "%.*s", (int)len, from);
    if (*at == NULL)
        *at = field->aliases != NULL ? field->aliases : "";
    else
        *at = from + len + (from[len] == ' ');
    return true;
}

const struct st_field *st_field_child(const struct st_field *section, const char *key)
{
    const struct st_field *f;

    for (uint32_t i = 0; (f = st_field_at(i)) != NULL; i++) {
        const char *at = NULL;
        char name[NAME_MAX_LEN];

        if (!is_member(section, f))
            continue;
        while (next_name(f, &at, name))
            if (strcmp(name, key) == 0)
                return f;
    }
    return NULL;
}

/* The largest distance that counts as near: a third of the letters, and at least 2. */
static uint32_t near_limit(const char *key)
{
    const uint32_t third = (uint32_t)strlen(key) / 3;

    return third > 2 ? third : 2;
}

bool st_field_nearest(char *buf, size_t bytes, const struct st_field *section, const char *key)
{
    const struct st_field *f;
    uint32_t best = UINT32_MAX;

    if (strlen(key) >= NAME_MAX_LEN)
        return false;
    for (uint32_t i = 0; (f = st_field_at(i)) != NULL; i++) {
        const char *at = NULL;
        char name[NAME_MAX_LEN];

        while (next_name(f, &at, name)) {
            const uint32_t distance = st_word_edits(key, name);
            const uint32_t score = 2 * distance + !is_member(section, f); /* prefers a match in the same section */

            if (distance > near_limit(key) || 2 * distance > strlen(key) || score >= best)
                continue;
            best = score;
            snprintf(buf, bytes, "%.*s%s", (int)(st_field_leaf(f->path) - f->path), f->path, name);
        }
    }
    return best != UINT32_MAX;
}

const char *st_choice_nearest(const struct st_choice *choices, const char *text)
{
    const char *nearest = NULL;
    uint32_t best = near_limit("") + 1;

    if (strlen(text) >= NAME_MAX_LEN)
        return NULL;
    for (const struct st_choice *c = choices; c->text != NULL; c++) {
        const uint32_t distance = st_word_edits(text, c->text);

        if (c->verdict == ST_VERDICT_HONOURED && distance < best && distance < strlen(text)) {
            best = distance;
            nearest = c->text;
        }
    }
    return nearest;
}

const struct st_choice *st_choice_find(const struct st_choice *choices, const char *text)
{
    for (const struct st_choice *c = choices; c->text != NULL; c++)
        if (st_text_same(c->text, text))
            return c;
    return NULL;
}

const char *st_choice_text(const struct st_choice *choices, int value)
{
    for (const struct st_choice *c = choices; c->text != NULL; c++)
        if (c->value == value && c->verdict == ST_VERDICT_HONOURED)
            return c->text;
    return NULL;
}
