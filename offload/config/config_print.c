/* config_print.c - prints the effective config as JSON, and the field table as Markdown. */
#include "offload/config/config_print.h"
#include "offload/config/config_source.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Closes and opens objects until the writer is in the section of `path`.  `open` is the section it is in. */
static void move_to_section(struct st_json_writer *w, char *open, size_t bytes, const char *path)
{
    const char *leaf = st_field_leaf(path);
    const size_t section_len = leaf > path ? (size_t)(leaf - path - 1) : 0;

    while (open[0] != '\0' && !(strncmp(path, open, strlen(open)) == 0 && path[strlen(open)] == '.')) {
        char *dot = strrchr(open, '.');

        st_json_object_close(w);
        *(dot != NULL ? dot : open) = '\0';
    }
    while (strlen(open) < section_len) {
        const size_t from = open[0] != '\0' ? strlen(open) + 1 : 0;
        const size_t to = from + strcspn(path + from, ".");
        char name[64];

        snprintf(name, sizeof(name), "%.*s", (int)(to - from), path + from);
        st_json_object_open(w, name);
        snprintf(open, bytes, "%.*s", (int)to, path);
    }
}

static bool is_written(const struct st_config *config, const struct st_field *field)
{
    if (field->bind == ST_BIND_NONE)
        return false;
    if (config->dtype == STRATA_DTYPE_INVALID && (field->bind == ST_BIND_F16 || field->bind == ST_BIND_BF16))
        return false; /* writing either key would decide the dtype, which is still open */
    if (!st_field_applies(field, config) || (st_field_inside(field, "scheduler") && config->schedule.type == ST_LR_CONSTANT))
        return false;
    if ((st_field_inside(field, "tensorboard") && !config->tensorboard.enabled) ||
        (st_field_inside(field, "csv_monitor") && !config->csv_monitor.enabled))
        return false;
    if (config->save[0] == '\0' && (strcmp(field->path, "strata.save") == 0 || strcmp(field->path, "strata.save_every") == 0 ||
                                    strcmp(field->path, "strata.keep") == 0 || strcmp(field->path, "strata.keep_best") == 0))
        return false; /* without the directory the others would be told that they are not used */
    if ((config->compute == ST_COMPUTE_TORCH && strcmp(field->path, "strata.compute") == 0) ||
        (config->seq_len == 0 && strcmp(field->path, "strata.seq_len") == 0) ||
        (config->boundary_bytes == 0 && strcmp(field->path, "strata.boundary_bytes") == 0))
        return false; /* Python's alone: the program's runs have them only where the file does */
    if (config->metrics[0] == '\0' && strcmp(field->path, "strata.metrics") == 0)
        return false;
    if (field->bind == ST_BIND_JSON && config->lora[0] == '\0')
        return false;
    return field->bind != ST_BIND_DIRS || config->nvme_dir_count > 0;
}

void st_config_write_json(const struct st_config *config, FILE *file)
{
    struct st_json_writer w;
    const struct st_field *f;
    char open[128] = "";

    st_json_begin(&w, file);
    st_json_object_open(&w, NULL);
    for (uint32_t i = 0; (f = st_field_at(i)) != NULL; i++) {
        if (!is_written(config, f))
            continue;
        move_to_section(&w, open, sizeof(open), f->path);
        st_value_put(&w, config, f);
    }
    move_to_section(&w, open, sizeof(open), "");
    st_json_object_close(&w);
}

/* What a rank's machine may need otherwise than another's: where its drives are, how much it may take, how long it waits. */
static bool is_local(const struct st_field *field)
{
    static const char *const paths[] = {"strata.device_memory",   "strata.host_memory", "strata.nvme",          "strata.threads",
                                        "strata.device_deadline", "strata.io_deadline", "strata.comm_deadline", "strata.watchdog",
                                        "strata.io_method",       "strata.isa",         "strata.update_fetch",  "aio.queue_depth",
                                        "steps_per_print"};

    for (size_t i = 0; i < sizeof(paths) / sizeof(paths[0]); i++)
        if (strcmp(field->path, paths[i]) == 0)
            return true;
    return st_field_inside(field, "strata.limits");
}

const char *st_config_common(const struct st_config *config, uint32_t index, char *value)
{
    const struct st_field *f;

    for (uint32_t i = 0; (f = st_field_at(i)) != NULL; i++)
        if (f->bind != ST_BIND_NONE && !is_local(f) && index-- == 0) {
            st_value_text(value, ST_CONFIG_VALUE_MAX, config, f);
            return f->path;
        }
    return NULL;
}

void st_print_cell(FILE *file, const char *text)
{
    for (; *text != '\0'; text++) {
        if (*text == '|')
            fputc('\\', file);
        fputc(*text, file);
    }
}

static void put_choices(FILE *file, const struct st_field *field)
{
    const char *separator = "";

    for (const struct st_choice *c = field->choices; c->text != NULL; c++) {
        if (c->verdict == ST_VERDICT_REJECTED)
            continue;
        fprintf(file, "%s%s", separator, c->text);
        separator = ", ";
    }
}

void st_print_type(FILE *file, const struct st_field *field)
{
    static const char *const names[] = {
        [ST_FIELD_OBJECT] = "section",        [ST_FIELD_OPEN] = "section, any members",
        [ST_FIELD_BOOL] = "boolean",          [ST_FIELD_INT] = "integer",
        [ST_FIELD_REAL] = "number",           [ST_FIELD_SIZE] = "size",
        [ST_FIELD_TEXT] = "string",           [ST_FIELD_SECRET] = "string",
        [ST_FIELD_PAIR] = "[number, number]", [ST_FIELD_DIRS] = "directories",
        [ST_FIELD_PATTERNS] = "patterns",     [ST_FIELD_LIST] = "list",
        [ST_FIELD_JSON] = "object",           [ST_FIELD_ANY] = "any",
    };
    char low[32], high[32];

    if (field->type == ST_FIELD_CHOICE) {
        put_choices(file, field);
        return;
    }
    fputs(names[field->type], file);
    if (field->type == ST_FIELD_DIRS)
        fprintf(file, ", at most %d", ST_CONFIG_DIRS_MAX);
    if (field->type == ST_FIELD_PATTERNS)
        fprintf(file, ", at most %d of %d bytes", ST_CONFIG_FREEZE_MAX, ST_CONFIG_PATTERN_MAX - 1);
    if (field->min == 0 && field->max == 0)
        return;
    st_json_double_text(low, field->min);
    st_json_double_text(high, field->max);
    fprintf(file, ", %s to %s", low, high);
    if (field->near > 1)
        fprintf(file, " in steps of %.0f", field->near);
    if (field->near > 0)
        fputs("; others become the nearest", file);
}

void st_print_verdict(FILE *file, const struct st_field *field)
{
    static const char *const names[] = {"honoured", "notice", "rejected", "removed"};
    const char *separator = "; rejected: ";

    fputs(names[field->is_told ? ST_VERDICT_NOTICE : field->verdict], file);
    if (field->verdict == ST_VERDICT_REMOVED || (field->verdict == ST_VERDICT_REJECTED && field->type == ST_FIELD_OPEN))
        fputs(" unless off or empty", file);
    else if (field->plain != NULL && field->verdict == ST_VERDICT_REJECTED)
        fprintf(file, " unless %s", field->plain);
    else if (field->plain != NULL)
        fprintf(file, "; %s is honoured", field->plain);
    for (const struct st_choice *c = field->choices; c != NULL && c->text != NULL; c++) {
        if (c->verdict != ST_VERDICT_REJECTED)
            continue;
        fprintf(file, "%s%s", separator, c->text);
        separator = ", ";
    }
}

static void put_names(FILE *file, const struct st_field *field)
{
    const char *at = field->aliases;

    fprintf(file, "`%s`", field->path);
    while (at != NULL && *at != '\0') {
        const size_t len = strcspn(at, " ");

        fprintf(file, ", `%.*s`", (int)len, at);
        at += len + (at[len] == ' ');
    }
}

/* The optimizers or schedulers that take an argument, if not all of them do. */
static void put_takers(FILE *file, const struct st_field *field)
{
    const uint32_t bits = field->optimizers != 0 ? field->optimizers : field->lr_types;
    const struct st_choice *takers = st_field_known(field->optimizers != 0 ? "optimizer.type" : "scheduler.type")->choices;
    const char *separator = ". Of ";

    for (const struct st_choice *c = takers; c->text != NULL; c++) {
        if (c->verdict != ST_VERDICT_HONOURED || (bits >> c->value & 1) == 0)
            continue;
        fprintf(file, "%s%s", separator, c->text);
        separator = ", ";
    }
}

static void put_changes(FILE *file, const struct st_field *field)
{
    static const char *const names[] = {[ST_CHANGES_INHERITED] = "",
                                        [ST_CHANGES_RESULTS] = "results",
                                        [ST_CHANGES_SPEED] = "speed or place",
                                        [ST_CHANGES_OUTPUT] = "output",
                                        [ST_CHANGES_NEITHER] = "neither"};

    fputs(field->type == ST_FIELD_OBJECT ? "" : names[st_field_changes(field)], file);
}

static void put_field(FILE *file, const struct st_field *field)
{
    fputs("| ", file);
    put_names(file, field);
    fputs(" | ", file);
    st_print_type(file, field);
    fputs(" | ", file);
    if (field->fallback != NULL)
        fprintf(file, "`%s`", field->fallback);
    if (field->auto_text != NULL)
        fprintf(file, "; auto: `%s`", field->auto_text);
    fputs(" | ", file);
    st_print_verdict(file, field);
    fputs(" | ", file);
    put_changes(file, field);
    fputs(" | ", file);
    st_print_cell(file, field->help);
    put_takers(file, field);
    if (field->reason != NULL) {
        fputs(". Here: ", file);
        st_print_cell(file, field->reason);
    }
    fputs(" |\n", file);
}

void st_config_write_markdown(FILE *file)
{
    const struct st_section *s;

    for (uint32_t i = 0; (s = st_section_at(i)) != NULL; i++) {
        fprintf(file,
                "%s## %s\n\n| key, other names | values | default | verdict | changes | meaning |\n|---|---|---|---|---|---|\n",
                i > 0 ? "\n" : "", s->title);
        for (uint32_t k = 0; k < s->count; k++)
            put_field(file, &s->fields[k]);
    }
}
