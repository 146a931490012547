/* cli/options/args_values.c - values of options: read, checked against the table's ranges, put into fields or into the
 * configuration. */
#include "cli/options/args_values.h"
#include "cli/options/name.h"
#include "core/base/error.h"
#include "core/base/size.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

strata_status cli_list_push(struct cli_list *list, const char *item)
{
    const char **items = realloc(list->items, (list->count + 1) * sizeof(*items));

    if (items == NULL)
        return st_nomem((list->count + 1) * sizeof(*items));
    list->items = items;
    items[list->count++] = item;
    return STRATA_OK;
}

strata_status cli_override_push(struct cli_args *args, const char *path, const char *value)
{
    char *text = NULL;
    strata_status st;

    if (asprintf(&text, "%s%s%s", path != NULL ? path : "", path != NULL ? "=" : "", value) < 0)
        return st_nomem(0);
    st = cli_list_push(&args->overrides, text);
    if (st != STRATA_OK)
        free(text);
    return st;
}

static bool number_parse(const char *text, double *out)
{
    char *end;

    errno = 0;
    *out = strtod(text, &end);
    return end != text && *end == '\0' && errno == 0 && isfinite(*out);
}

static strata_status number_check(const struct cli_option *o, const char *text, bool whole, double *out)
{
    if (!number_parse(text, out) || (whole && *out != floor(*out)))
        return st_error(STRATA_E_INVAL, "--%s: \"%s\" is not a %snumber", o->names[0], text, whole ? "whole " : "");
    if (*out < o->least)
        return st_error(STRATA_E_INVAL, "--%s: %s is too small: at least %.10g", o->names[0], text, o->least);
    if (*out > o->most)
        return st_error(STRATA_E_INVAL, "--%s: %s is too large: at most %.10g", o->names[0], text, o->most);
    return STRATA_OK;
}

/* Where steps are counted a number below 1 is a part of the run, as Trainer's are, and "epoch" the end of each.  False: neither.
 */
static bool part_take(struct cli_args *args, const struct cli_option *o, const char *text)
{
    const struct {
        const char *name;
        double *part;
        bool *epochs;
    } parts[] = {{"save-every", &args->save_part, &args->save_epochs},
                 {"eval-every", &args->eval_part, &args->eval_epochs},
                 {"logging-steps", &args->print_part, NULL}};
    double value;

    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++)
        if (strcmp(o->names[0], parts[i].name) == 0) {
            *parts[i].part = number_parse(text, &value) && value > 0 && value < 1 ? value : 0;
            if (parts[i].epochs != NULL)
                *parts[i].epochs = strcmp(text, "epoch") == 0;
            return *parts[i].part > 0 || (parts[i].epochs != NULL && *parts[i].epochs);
        }
    return false;
}

static strata_status number_take(struct cli_args *args, const struct cli_option *o, const char *text)
{
    const bool whole = o->kind == VALUE_COUNT;
    double value;
    strata_status st;

    if (part_take(args, o, text))
        return STRATA_OK;
    if ((st = number_check(o, text, whole, &value)) != STRATA_OK)
        return st;
    if (o->offset == NO_OFFSET)
        return cli_override_push(args, o->key, text);
    if (whole)
        *(uint64_t *)(void *)((char *)args + o->offset) = (uint64_t)value;
    else
        *(double *)(void *)((char *)args + o->offset) = value;
    return STRATA_OK;
}

static strata_status size_parse(const struct cli_option *o, const char *text, uint64_t *out)
{
    const bool counts = strcmp(o->value, "N") == 0 || strcmp(o->value, "N,...") == 0;

    if (st_size_parse(text, out) != 0 && counts)
        return st_error(STRATA_E_INVAL, "--%s: \"%s\" is not a whole number below 2^64: write 131072 or 128K", o->names[0], text);
    if (st_size_parse(text, out) != 0)
        return st_error(STRATA_E_INVAL, "--%s: \"%s\" is not a size: write 24G or 24GiB for 24 * 2^30 bytes, 24GB for 24 * 10^9",
                        o->names[0], text);
    if (*out == 0)
        return st_error(STRATA_E_INVAL, "--%s: %s is too small: at least 1%s", o->names[0], text,
                        strcmp(o->value, "SIZE") == 0 ? " byte" : "");
    return STRATA_OK;
}

static strata_status item_parse(const struct cli_option *o, const char *text, uint64_t *out)
{
    double value;
    strata_status st;

    if (o->kind == VALUE_SIZES)
        return size_parse(o, text, out);
    if ((st = number_check(o, text, true, &value)) == STRATA_OK)
        *out = (uint64_t)value;
    return st;
}

static strata_status sizes_take(struct cli_sizes *sizes, const struct cli_option *o, const char *text)
{
    char word[CLI_WORD_MAX];
    strata_status st;

    do {
        const size_t length = strcspn(text, ",");

        if (sizes->count == CLI_SIZES_MAX)
            return st_error(STRATA_E_INVAL, "--%s: more than %u %s", o->names[0], CLI_SIZES_MAX,
                            o->kind == VALUE_SIZES ? "sizes" : "numbers");
        snprintf(word, sizeof(word), "%.*s", (int)(length < CLI_WORD_MAX ? length : CLI_WORD_MAX), text);
        if ((st = item_parse(o, word, &sizes->items[sizes->count])) != STRATA_OK)
            return st;
        sizes->count++;
        text += length;
    } while (*text++ == ',');
    return STRATA_OK;
}

static strata_status size_take(struct cli_args *args, const struct cli_option *o, const char *text)
{
    uint64_t bytes;
    const strata_status st = size_parse(o, text, &bytes);

    if (st != STRATA_OK)
        return st;
    if (o->offset == NO_OFFSET)
        return cli_override_push(args, o->key, text);
    *(uint64_t *)(void *)((char *)args + o->offset) = bytes;
    return STRATA_OK;
}

static strata_status set_take(struct cli_args *args, const char *text)
{
    const char *equals = strchr(text, '=');

    if (equals == NULL || equals == text)
        return st_error(STRATA_E_INVAL, "--set: \"%s\" is not PATH=VALUE: for example strata.cache=0", text);
    return cli_override_push(args, NULL, text);
}

/* A name that a configuration would read otherwise is written so that it is a name. */
strata_status cli_name_push(struct cli_args *args, const char *path, const char *text)
{
    char *name = NULL;
    strata_status st;

    if (asprintf(&name, "%s%s", cli_name_reads_otherwise(text) ? "./" : "", text) < 0)
        return st_nomem(0);
    st = cli_override_push(args, path, name);
    free(name);
    return st;
}

/* The second would replace the first, and a user may mean both. */
static strata_status once_take(const char **taken, const struct cli_option *o, const char *text)
{
    if (*taken != NULL)
        return st_error(STRATA_E_INVAL, "--%s %s: --%s %s is given already, and a machine has one kind%s", o->names[0], text,
                        o->names[0], *taken, strcmp(o->names[0], "gpu") == 0 ? " (--ranks N: of N such cards)" : "");
    *taken = text;
    return STRATA_OK;
}

strata_status cli_value_take(struct cli_args *args, const struct cli_option *o, const char *text)
{
    char *at = (char *)args + (o->offset != NO_OFFSET ? o->offset : 0);

    if (*text == '\0')
        return st_error(STRATA_E_INVAL, "--%s needs a value: %s", o->names[0], cli_option_value(o, args->command));
    switch (o->kind) {
    case VALUE_TEXT:
        if (o->offset == NO_OFFSET)
            return cli_name_push(args, o->key, text);
        *(const char **)(void *)at = text;
        return STRATA_OK;
    case VALUE_ONCE:
        return once_take((const char **)(void *)at, o, text);
    case VALUE_LIST:
        return cli_list_push((struct cli_list *)(void *)at, text);
    case VALUE_COUNT:
    case VALUE_REAL:
        return number_take(args, o, text);
    case VALUE_SIZE:
        return size_take(args, o, text);
    case VALUE_SIZES:
    case VALUE_COUNTS:
        return sizes_take((struct cli_sizes *)(void *)at, o, text);
    case VALUE_SET:
        return set_take(args, text);
    case VALUE_FLAG:
    case VALUE_IGNORED:
    case VALUE_ELSEWHERE:
        break;
    }
    return STRATA_OK;
}
