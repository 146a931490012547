/* recipes/recipe_print.c - the generated part of docs/yaml.md. */
#include "recipes/recipe_internal.h"

#include "offload/config/config_print.h"

#include <string.h>

static void put_keys(FILE *file, const struct st_field *row)
{
    fprintf(file, "| `%s`", row->path);
    for (const char *at = row->aliases; at != NULL && *at != '\0'; at += strspn(at, " ")) {
        const size_t length = strcspn(at, " ");

        fprintf(file, ", `%.*s`", (int)length, at);
        at += length;
    }
}

static void put_row(FILE *file, const struct st_field *row)
{
    put_keys(file, row);
    fputs(" | ", file);
    st_print_type(file, row);
    fputs(" | ", file);
    if (row->fallback != NULL)
        fprintf(file, "`%s`", row->fallback);
    fputs(" | ", file);
    st_print_verdict(file, row);
    fputs(" | ", file);
    if (row->to != NULL)
        fprintf(file, "`%s`%s", row->to, row->help != NULL ? ": " : "");
    if (row->help != NULL)
        st_print_cell(file, row->help);
    if (row->reason != NULL) {
        fputs(row->help != NULL ? ". Here: " : "", file);
        st_print_cell(file, row->reason);
    }
    fputs(" |\n", file);
}

static bool is_key(const char *name, size_t bytes, const char *key)
{
    for (size_t i = 0; i < bytes; i++)
        if (name[i] != key[i] && !(name[i] == '_' && key[i] == '-'))
            return false;
    return key[bytes] == '\0';
}

static bool has_key(const struct st_field *row, const char *key)
{
    if (is_key(row->path, strlen(row->path), key))
        return true;
    for (const char *at = row->aliases; at != NULL && *at != '\0'; at += strspn(at, " ")) {
        const size_t length = strcspn(at, " ");

        if (is_key(at, length, key))
            return true;
        at += length;
    }
    return false;
}

bool st_recipe_has_key(const char *trainer, const char *key)
{
    for (const struct st_recipe_trainer *const *t = st_recipe_trainers; *t != NULL; t++)
        for (const struct st_section *s = (*t)->sections; s->title != NULL; s++)
            for (uint32_t k = 0; (trainer == NULL || strcmp(trainer, (*t)->name) == 0) && k < s->count; k++)
                if (has_key(&s->fields[k], key))
                    return true;
    return false;
}

const char *st_recipe_words(const char *key)
{
    for (const struct st_section *s = st_recipe_llama_factory.sections; s->title != NULL; s++)
        for (uint32_t k = 0; k < s->count; k++)
            if (has_key(&s->fields[k], key))
                return s->fields[k].choices == NULL ? s->fields[k].reason : NULL;
    return NULL;
}

/* Rows that two trainers share stand once. */
static bool is_printed(const struct st_recipe_trainer *trainer, const struct st_section *section)
{
    for (const struct st_recipe_trainer *const *t = st_recipe_trainers; *t != trainer; t++)
        for (const struct st_section *s = (*t)->sections; s->title != NULL; s++)
            if (s->fields == section->fields)
                return true;
    return false;
}

void st_recipe_write_markdown(FILE *file)
{
    const char *before = "";

    for (const struct st_recipe_trainer *const *t = st_recipe_trainers; *t != NULL; t++)
        for (const struct st_section *s = (*t)->sections; s->title != NULL; s++) {
            if (is_printed(*t, s))
                continue;
            fprintf(file, "%s## %s\n\n| key | values | default | verdict | meaning |\n|---|---|---|---|---|\n", before, s->title);
            for (uint32_t k = 0; k < s->count; k++)
                put_row(file, &s->fields[k]);
            before = "\n";
        }
}
