/* cli/options/args_words.c - LLaMA-Factory's ways to say its keys: key=value behind a file, --key value with or without one. */
#include "cli/options/args_words.h"
#include "cli/options/args_values.h"
#include "core/base/error.h"
#include "core/base/text.h"
#include "core/system/file.h"
#include "strata/recipe.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TAKERS    (TRAINS | CLI_CMD_CHECK)
#define KEY_SIGNS "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-"

bool cli_words_are_a_run(enum cli_command command, int argc, char **argv)
{
    static const char *const marks[] = {"--stage", "--finetuning_type", "--finetuning-type"};

    for (int i = 2; i < argc && (command & TAKERS) != 0; i++)
        for (size_t k = 0; k < sizeof(marks) / sizeof(marks[0]); k++)
            if (strncmp(argv[i], marks[k], strlen(marks[k])) == 0 &&
                (argv[i][strlen(marks[k])] == '\0' || argv[i][strlen(marks[k])] == '='))
                return true;
    return false;
}

static bool is_switched(const char *text)
{
    return text != NULL && (st_text_same(text, "true") || st_text_same(text, "false"));
}

bool cli_words_want(const struct cli_args *args, const struct cli_option *o, const char *name, const char *next)
{
    if ((args->command & TAKERS) == 0)
        return false;
    if (o == NULL || o->kind == VALUE_ELSEWHERE)
        return args->is_a_run || strata_recipe_has_key(NULL, name);
    if (!strata_recipe_has_key("LLaMA-Factory", name))
        return false;
    if (o->kind == VALUE_FLAG && is_switched(next))
        return true;
    return args->is_a_run && strata_recipe_words(name) == NULL; /* else its key has no effect, and the option may have one */
}

static strata_status push(struct cli_args *args, char *text)
{
    const strata_status st = text != NULL ? cli_list_push(&args->words, text) : st_nomem(0);

    if (st != STRATA_OK)
        free(text);
    return st;
}

strata_status cli_words_take(struct cli_args *args, const char *word, const char *name, const char *value)
{
    const strata_status st = cli_list_push(&args->word_options, word);
    char *text = NULL;

    if (st != STRATA_OK)
        return st;
    if (asprintf(&text, "--%s=%s", name, value) < 0)
        text = NULL;
    return push(args, text);
}

bool cli_words_has(const struct cli_args *args, const char *word)
{
    for (uint32_t i = 0; i < args->word_options.count; i++)
        if (args->word_options.items[i] == word)
            return true;
    return false;
}

/* "key=value", and no name of a directory. */
static bool is_word(const char *text)
{
    return text[0] != '=' && text[strspn(text, KEY_SIGNS)] == '=';
}

bool cli_words_says_key(const struct cli_args *args, const char *text)
{
    char key[CLI_WORD_MAX];
    bool there = false;

    if ((args->command & TAKERS) == 0 || !is_word(text))
        return false;
    snprintf(key, sizeof(key), "%.*s", (int)strcspn(text, "="), text);
    return strata_recipe_has_key(NULL, key) && st_file_find(&there, text) == STRATA_OK && !there;
}

strata_status cli_words_add_schedule(struct cli_args *args)
{
    static const char path[] = "strata.lr_scheduler.type=";
    const char *type = NULL;
    char *text = NULL;

    for (uint32_t i = 0; i < args->overrides.count; i++)
        if (strncmp(args->overrides.items[i], path, strlen(path)) == 0)
            type = args->overrides.items[i] + strlen(path);
    for (uint32_t i = 0; i < args->words.count && type != NULL; i++)
        if (strstr(args->words.items[i], "lr_scheduler_kwargs") != NULL) {
            if (asprintf(&text, "--lr_scheduler_type=%s", type) < 0)
                text = NULL;
            return push(args, text);
        }
    return STRATA_OK;
}

strata_status cli_words_of(struct cli_args *args, uint32_t first)
{
    struct cli_list *list = &args->positional;
    const uint32_t count = list->count;
    strata_status st = STRATA_OK;

    list->count = first;
    for (uint32_t i = first; st == STRATA_OK && i < count; i++)
        if (is_word(list->items[i]))
            st = push(args, strdup(list->items[i]));
        else
            list->items[list->count++] = list->items[i];
    return st;
}

strata_status cli_words_refuse(const struct cli_args *args)
{
    char name[CLI_WORD_MAX];
    const struct cli_option *o;

    if (args->word_options.count == 0)
        return STRATA_OK;
    snprintf(name, sizeof(name), "%.*s", (int)strcspn(args->word_options.items[0] + 2, "="), args->word_options.items[0] + 2);
    o = cli_option_find(args->command, name);
    if (o == NULL)
        return cli_option_unknown(args->command, name);
    if (o->kind == VALUE_FLAG)
        return st_error(STRATA_E_INVAL, "--%s takes no value", name);
    return st_error(STRATA_E_INVAL, "--%s is no option here: %s", name, o->value);
}
