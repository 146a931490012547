/* cli/commands/check_report.c - see check_report.h. */
#include "cli/commands/check_report.h"
#include "cli/options/told.h"
#include "core/base/print.h"
#include "core/base/text.h"
#include "core/base/wrap.h"
#include "core/json/json.h"

#include <stdio.h>
#include <string.h>

#define COLUMNS_AFTER 60u /* columns after the path: value, origin, verdict and the beginning of a reason */

/* What becomes of a key, in the order of the page; the effect is that of a row (strata/config.h), and NULL of those in force. */
static const struct {
    const char *verdict, *effect, *heading;
} groups[] = {
    {"honoured", NULL, NULL},
    {"notice", "changes nothing", "without effect: changes nothing"},
    {"notice", "would change speed", "without effect: would change speed or place"},
    {"notice", "asked for and not done", "without effect: asked for and not done"},
    {"notice", "not looked at", "not looked at: part of what is rejected"},
    {"rejected", NULL, "rejected"},
};
#define GROUP_COUNT (sizeof(groups) / sizeof(groups[0]))

enum group { GROUP_HONOURED = 0, GROUP_UNSEEN = 4, GROUP_REJECTED = 5 };

static struct strata_config_row row_at(const struct strata_config *config, uint32_t index)
{
    struct strata_config_row row = STRATA_CONFIG_ROW_INIT;

    (void)!strata_config_get_row(config, index, &row); /* there is such a row */
    return row;
}

static size_t group_of(const struct strata_config_row *row)
{
    for (size_t i = 0; i < GROUP_COUNT; i++)
        if (strcmp(groups[i].verdict, row->verdict) == 0 &&
            (groups[i].effect == NULL || strcmp(groups[i].effect, row->effect) == 0))
            return i;
    return GROUP_HONOURED;
}

/* Somebody gave it. */
static bool is_given(const struct strata_config_row *row)
{
    return !row->follows && strcmp(row->origin, "default") != 0 && strcmp(row->origin, "derived") != 0;
}

/* What follows from another key is shown where there is something to say of it. */
static bool is_shown(const struct cli_check *c, const struct strata_config_row *row)
{
    return c->all || strcmp(row->verdict, "rejected") == 0 ||
           ((!row->follows || row->reason != NULL) && strcmp(row->origin, "default") != 0);
}

/* --- text --- */

static int path_width(const struct cli_check *c)
{
    size_t width = 0;

    for (uint32_t i = 0; i < strata_config_row_count(c->config); i++) {
        const struct strata_config_row row = row_at(c->config, i);

        if (is_shown(c, &row) && strlen(row.path) > width)
            width = strlen(row.path);
    }
    return (int)width;
}

/* A line for a key, or two if the table is wider than the terminal. */
static void print_row(FILE *file, const struct strata_config_row *row, int width, bool narrow)
{
    const char *before = row->reason != NULL ? ": " : "";
    char reason[CLI_TOLD_BYTES];

    cli_told(reason, sizeof(reason), row->reason != NULL ? row->reason : "");
    if (narrow)
        st_print(file, "%s = %s\n    %s, %s%s%s\n", row->path, row->value, row->origin, row->verdict, before, reason);
    else
        st_print(file, "%-*s  %-14s %-12s  %s%s%s\n", width, row->path, row->value, row->origin, row->verdict, before, reason);
}

static void print_group(FILE *file, const struct cli_check *c, size_t group, int width)
{
    const bool narrow = file != stdout && (size_t)width + COLUMNS_AFTER > st_print_width(stdout);
    bool begun = false;

    for (uint32_t i = 0; i < strata_config_row_count(c->config); i++) {
        const struct strata_config_row row = row_at(c->config, i);

        if (group_of(&row) != group || !is_shown(c, &row))
            continue;
        if (!begun && groups[group].heading != NULL)
            st_print(file, "\n%s:\n", groups[group].heading);
        begun = true;
        print_row(file, &row, width, narrow);
    }
}

static void print_word(FILE *file, const char *word)
{
    char text[4096];

    st_print(file, " %s", st_text_shell(text, sizeof(text), word));
}

/* What a trainer's file says beside the configuration, as a command line. */
static void print_options(FILE *file, const struct strata_recipe *recipe)
{
    const char *name, *value;

    st_print(file, "\noptions of strata train:");
    for (uint32_t i = 0; strata_recipe_option(recipe, i, &name, &value); i++) {
        if (value != NULL && value[0] == '\0')
            continue;
        st_print(file, " --%s", name);
        if (value != NULL)
            print_word(file, value);
    }
    if (strata_recipe_deepspeed(recipe) != NULL) {
        st_print(file, " --config");
        print_word(file, strata_recipe_deepspeed(recipe));
    }
    st_print(file, "\n");
}

void cli_check_print(const struct cli_check *c)
{
    FILE *const file = st_wrap_open(stdout);
    const int width = path_width(c);

    for (size_t i = 0; i < GROUP_COUNT; i++)
        print_group(file, c, i, width);
    if (c->recipe != NULL)
        print_options(file, c->recipe);
    st_wrap_close(file, stdout);
}

/* --- the verdict --- */

/* Given keys of each group. */
static void count_keys(uint32_t counts[GROUP_COUNT], const struct cli_check *c)
{
    memset(counts, 0, GROUP_COUNT * sizeof(counts[0]));
    for (uint32_t i = 0; i < strata_config_row_count(c->config); i++) {
        const struct strata_config_row row = row_at(c->config, i);

        counts[group_of(&row)] += is_given(&row);
    }
}

static uint32_t without_effect(const uint32_t counts[GROUP_COUNT])
{
    uint32_t count = 0;

    for (size_t i = GROUP_HONOURED + 1; i < GROUP_UNSEEN; i++)
        count += counts[i];
    return count;
}

/* " if model, data and number of steps are there". */
static void print_needed(FILE *file, const struct cli_check *c)
{
    for (uint32_t i = 0; i < c->needed_count; i++)
        st_print(file, "%s%s", i == 0 ? " if " : i + 1 < c->needed_count ? ", " : " and ", c->needed[i]);
    st_print(file, "%s", c->needed_count == 0 ? "" : c->needed_count == 1 ? " is there" : " are there");
    st_print(file, "\n");
}

void cli_check_print_verdict(const struct cli_check *c)
{
    FILE *const file = st_wrap_open(stdout);
    uint32_t counts[GROUP_COUNT];
    char refusal[CLI_TOLD_BYTES];

    count_keys(counts, c);
    st_print(file, "\nverdict: %u %s honoured, %u without effect, %u not looked at", counts[GROUP_HONOURED],
             counts[GROUP_HONOURED] == 1 ? "key" : "keys", without_effect(counts), counts[GROUP_UNSEEN] + c->unseen_count);
    for (uint32_t i = 0; i < c->unseen_count; i++)
        st_print(file, "%s%s", i == 0 ? " (" : ", ", c->unseen[i]);
    st_print(file, "%s; ", c->unseen_count > 0 ? ")" : "");
    cli_told(refusal, sizeof(refusal), c->refusal != NULL ? c->refusal : "");
    if (c->refusal == NULL) {
        st_print(file, "training would start");
        print_needed(file, c);
    } else if (c->others > 0) {
        st_print(file, "training would be refused because %s (and %u more)\n", refusal, c->others);
    } else {
        st_print(file, "training would be refused because %s\n", refusal);
    }
    st_wrap_close(file, stdout);
}

/* --- JSON --- */

static void put_told(struct st_json_writer *w, const char *name, const char *sentence)
{
    char told[CLI_TOLD_BYTES];

    if (sentence != NULL)
        cli_told(told, sizeof(told), sentence);
    st_json_put_string(w, name, sentence != NULL ? told : NULL);
}

static void put_row(struct st_json_writer *w, const struct strata_config_row *row)
{
    st_json_object_open(w, NULL);
    st_json_put_string(w, "path", row->path);
    st_json_put_string(w, "value", row->value);
    st_json_put_string(w, "origin", row->origin);
    st_json_put_string(w, "verdict", row->verdict);
    st_json_put_string(w, "effect", row->effect);
    put_told(w, "reason", row->reason);
    st_json_object_close(w);
}

static void put_options(struct st_json_writer *w, const struct strata_recipe *recipe)
{
    const char *name, *value;

    st_json_array_open(w, "options");
    for (uint32_t i = 0; strata_recipe_option(recipe, i, &name, &value); i++) {
        st_json_object_open(w, NULL);
        st_json_put_string(w, "name", name);
        st_json_put_string(w, "value", value);
        st_json_object_close(w);
    }
    st_json_array_close(w);
    st_json_put_string(w, "config", strata_recipe_deepspeed(recipe));
}

static void put_verdict(struct st_json_writer *w, const struct cli_check *c)
{
    uint32_t counts[GROUP_COUNT];

    count_keys(counts, c);
    st_json_object_open(w, "verdict");
    st_json_put_bool(w, "starts", c->refusal == NULL);
    put_told(w, "reason", c->refusal);
    st_json_put_u64(w, "honoured", counts[GROUP_HONOURED]);
    st_json_put_u64(w, "without_effect", without_effect(counts));
    st_json_put_u64(w, "rejected", counts[GROUP_REJECTED]);
    st_json_array_open(w, "not_looked_at");
    for (uint32_t i = 0; i < strata_config_row_count(c->config); i++) {
        const struct strata_config_row row = row_at(c->config, i);

        if (group_of(&row) == GROUP_UNSEEN && is_given(&row))
            st_json_put_string(w, NULL, row.path);
    }
    for (uint32_t i = 0; i < c->unseen_count; i++)
        st_json_put_string(w, NULL, c->unseen[i]);
    st_json_array_close(w);
    st_json_array_open(w, "needs");
    for (uint32_t i = 0; i < c->needed_count && c->refusal == NULL; i++)
        st_json_put_string(w, NULL, c->needed[i]);
    st_json_array_close(w);
    st_json_object_close(w);
}

void cli_check_print_json(const struct cli_check *c)
{
    struct st_json_writer w;

    st_json_begin(&w, stdout);
    st_json_object_open(&w, NULL);
    st_json_put_bool(&w, "valid", c->refusal == NULL);
    st_json_array_open(&w, "values");
    for (uint32_t i = 0; i < strata_config_row_count(c->config); i++) {
        const struct strata_config_row row = row_at(c->config, i);

        put_row(&w, &row);
    }
    st_json_array_close(&w);
    st_json_array_open(&w, "problems");
    for (uint32_t i = 0; strata_config_problem(c->config, i) != NULL; i++)
        put_told(&w, NULL, strata_config_problem(c->config, i));
    st_json_array_close(&w);
    if (c->recipe != NULL)
        put_options(&w, c->recipe);
    put_verdict(&w, c);
    st_json_object_close(&w);
    st_json_end_line(&w);
}
