/* recipes/recipe_words.c - words of the command line over a trainer's file: "key=value", as OmegaConf takes them, and "--key=value",
 * whose value is text where it is no YAML.
 *
 * "a.b=1" is member b of a; a value without text is null, as if the key were left out; mappings are merged. */
#include "recipes/recipe_internal.h"

#include "core/base/error.h"
#include "core/base/log.h"
#include "core/base/text.h"
#include "core/json/json_build.h"
#include "core/yaml/yaml.h"

#include <stdio.h>
#include <string.h>

#define KEY_BYTES 128
#define PARTS_MAX 8u
#define LINE      "command line: "

/* The bytes of a key: words of letters, digits, _ and - with dots between them; 0: it is none. */
static size_t key_length(const char *text)
{
    size_t length = 0, parts = 1;

    for (; text[length] != '=' && text[length] != '\0'; length++) {
        const char c = text[length];
        const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';

        if (!letter && (length == 0 || text[length - 1] == '.' || !((c >= '0' && c <= '9') || c == '-' || c == '.')))
            return 0;
        parts += c == '.';
    }
    return length < KEY_BYTES && parts <= PARTS_MAX && length > 0 && text[length - 1] != '.' ? length : 0;
}

/* The value's text, and the key: that of "--a-b=1" is a_b.  NULL: it is no such word. */
static const char *split(char key[KEY_BYTES], const char *word, bool *option)
{
    const char *at = word;
    size_t length;

    *option = strncmp(word, "--", 2) == 0;
    at += *option ? 2 : 0;
    length = key_length(at);
    if (length == 0 || at[length] != '=')
        return NULL;
    memcpy(key, at, length);
    key[length] = '\0';
    for (char *c = key; *option && *c != '\0'; c++)
        *c = *c == '-' ? '_' : *c;
    return at + length + 1;
}

static strata_status parse_value(st_json **out, const char *key, const char *text, bool option)
{
    char name[KEY_BYTES + sizeof(LINE)];
    strata_status st;

    snprintf(name, sizeof(name), LINE "%s", key);
    st = st_yaml_parse(out, text, strlen(text), name);
    if (st != STRATA_E_CONFIG || !option)
        return st;
    *out = st_json_new_string(text);
    return *out != NULL ? STRATA_OK : st_nomem(0);
}

static bool is_object(const st_json *node)
{
    return node != NULL && st_json_type(node) == ST_JSON_OBJECT;
}

/* As deep as YAML may be. */
static bool merge(st_json *into, const char *name, const st_json *value)
{
    st_json *old = st_json_member(into, name);
    bool whole = true;

    if (!is_object(old) || !is_object(value))
        return st_json_put(into, name, st_json_new_copy(value));
    for (const st_json *n = st_json_first(value); whole && n != NULL; n = st_json_next(n))
        whole = merge(old, st_json_name(n), n);
    return whole;
}

/* The mapping that holds the last part of the key, made where it is missing; NULL: no memory. */
static st_json *holder(st_json *root, char *key, const char **last)
{
    for (char *dot; (dot = strchr(key, '.')) != NULL; key = dot + 1) {
        *dot = '\0';
        if (!is_object(st_json_member(root, key)) && !st_json_put(root, key, st_json_new_object()))
            return NULL;
        root = st_json_member(root, key);
    }
    *last = key;
    return root;
}

void st_recipe_tell_repeats(const char *const *words, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        char key[KEY_BYTES], other[KEY_BYTES];
        const char *value, *last = NULL, *next;
        bool option, first = true;

        if ((value = split(key, words[i], &option)) == NULL)
            continue;
        for (uint32_t k = 0; k < count && first; k++)
            if (k != i && (next = split(other, words[k], &option)) != NULL && strcmp(key, other) == 0) {
                first = k > i;
                last = next;
            }
        if (first && last != NULL && strcmp(value, last) != 0)
            st_log(ST_LOG_NOTICE, LINE "%s is given twice: %s counts, not %s", key, last, value);
    }
}

strata_status st_recipe_merge(st_json *root, const char *word)
{
    char key[KEY_BYTES];
    const char *last = NULL, *text;
    st_json *value = NULL, *object;
    bool option, whole;
    strata_status st;

    if ((text = split(key, word, &option)) == NULL)
        return st_error(STRATA_E_CONFIG, LINE "%.80s: no KEY=VALUE, where a key is of letters, digits, _ and dots", word);
    if (!st_text_is_utf8(text))
        return st_error(STRATA_E_CONFIG, LINE "%s: the value is not UTF-8", key);
    st = parse_value(&value, key, text, option);
    if (st != STRATA_OK)
        return st;
    object = holder(root, key, &last);
    whole = object != NULL && merge(object, last, value);
    st_json_free(value);
    return whole ? STRATA_OK : st_nomem(0);
}

/* Whether `key` is `section` or lies in it. */
static bool is_within(const char *key, const char *section)
{
    const size_t length = strlen(section);

    return strncmp(section, key, length) == 0 && (key[length] == '\0' || key[length] == '.');
}

bool st_recipe_word_says(const char *word, const char *key, bool whole)
{
    char said[KEY_BYTES];
    bool option;

    return split(said, word, &option) != NULL && (is_within(key, said) || (whole && is_within(said, key)));
}
