/* config.c - reads a config: takes the keys, evaluates each one, resolves them together, and collects every problem. */
#include "offload/config/config_source.h"

#include "core/base/error.h"
#include "core/system/file.h"
#include <string.h>

/* The section whose rejection makes it pointless to judge this key, or NULL. */
static const struct st_field *muted_by(struct st_config_source *src, const struct st_field *field)
{
    const struct st_field *f;

    for (uint32_t i = 0; (f = st_field_at(i)) != NULL && f != field; i++) {
        const char *section = f->mutes != NULL ? f->mutes : f->type == ST_FIELD_OBJECT ? f->path : NULL;

        if (section != NULL && src->fields[i].verdict == ST_VERDICT_REJECTED && st_field_inside(field, section))
            return f;
    }
    return NULL;
}

static enum st_config_verdict verdict_of(const struct st_field *field, const st_json *node)
{
    const struct st_choice *choice;

    if (field->type == ST_FIELD_CHOICE && (choice = st_choice_find(field->choices, st_json_string(node))) != NULL &&
        choice->verdict == ST_VERDICT_REJECTED)
        return ST_VERDICT_REJECTED;
    if (field->verdict == ST_VERDICT_REMOVED || (field->verdict == ST_VERDICT_REJECTED && field->type == ST_FIELD_OPEN))
        return st_value_is_off(field, node) ? ST_VERDICT_NOTICE : ST_VERDICT_REJECTED;
    return st_value_is_plain(field, node) ? ST_VERDICT_HONOURED : field->verdict;
}

static void judge(struct st_config_source *src, const struct st_field *field, struct st_field_state *state)
{
    const struct st_field *muter = muted_by(src, field);
    const char *wrong;
    char shown[64];

    if (muter != NULL) {
        state->verdict = ST_VERDICT_NOTICE;
        state->unjudged = true;
        state->reason = st_source_keep(src, "not evaluated: %s is rejected", muter->path);
        return;
    }
    if (st_value_is_auto(state->node)) {
        state->origin = ST_ORIGIN_AUTO;
        state->verdict = field->verdict == ST_VERDICT_NOTICE ? ST_VERDICT_NOTICE : ST_VERDICT_HONOURED;
        state->reason = field->verdict == ST_VERDICT_NOTICE ? field->reason : NULL;
        return;
    }
    if (st_value_is_idle(src, field, state->node))
        return; /* which the section's rule says */
    state->node = st_value_take(src, field, state->node);
    if (st_value_is_auto(state->node))
        return;
    wrong = st_value_check(src, field, state->node);
    if (wrong != NULL) {
        st_source_reject(src, field->path, wrong);
        return;
    }
    switch (verdict_of(field, state->node)) {
    case ST_VERDICT_HONOURED:
        state->usable = true;
        break;
    case ST_VERDICT_NOTICE:
        state->usable = true;
        state->verdict = ST_VERDICT_NOTICE;
        state->reason = field->reason;
        break;
    case ST_VERDICT_REMOVED: /* occurs only in the table, never as the verdict on a value */
    case ST_VERDICT_REJECTED:
        st_value_show(shown, sizeof(shown), state->node);
        st_source_reject(src, field->path,
                         st_json_type(state->node) == ST_JSON_OBJECT ? field->reason
                                                                     : st_source_keep(src, "%s: %s", shown, field->reason));
        break;
    }
}

static void judge_all(struct st_config_source *src)
{
    const struct st_field *f;

    for (uint32_t i = 0; (f = st_field_at(i)) != NULL; i++)
        if (src->fields[i].node != NULL)
            judge(src, f, &src->fields[i]);
}

/* Whether a problem is the command line's or the environment's, which no file has. */
static bool is_of_no_file(const char *problem)
{
    static const char *const begins[] = {"command line: ", "environment: "}, *const holds[] = {" (command line): ",
                                                                                               " (environment): "};
    const char *first = strstr(problem, ": ");

    for (size_t i = 0; i < sizeof(begins) / sizeof(begins[0]); i++) {
        const char *at = strstr(problem, holds[i]);

        if (strncmp(problem, begins[i], strlen(begins[i])) == 0 || (at != NULL && first > at))
            return true;
    }
    return false;
}

/* One sentence for all problems: the first one, and how many others there are. */
static strata_status problems_error(const struct st_config_source *src, const char *name)
{
    const uint32_t count = st_config_problem_count(src);
    const char *first = st_config_problem_at(src, 0);
    const bool named = strncmp(first, name, strlen(name)) == 0 || is_of_no_file(first); /* as a recipe's are */

    strata_status st;

    if (count == 1)
        st = st_error(STRATA_E_CONFIG, "%s%s%s", named ? "" : name, named ? "" : ": ", first);
    else
        st = st_error(STRATA_E_CONFIG, "%s%s%s (and %u more)", named ? "" : name, named ? "" : ": ", first, count - 1);
    return src->first_key != NULL ? st_error_key(st, src->first_key) : st;
}

/* What another source says, with its remarks. */
static void take_other(struct st_config_source *src, const struct st_config_other *other)
{
    other->tell(other->of, src);
    st_source_take_other(src, other);
}

strata_status st_config_make(struct st_config *config, struct st_config_source **source, const struct st_config_inputs *in,
                             const struct st_config_opts *opts)
{
    struct st_config_source *src = st_source_create(opts->allow_unknown);
    struct st_config resolved;

    if (src == NULL) {
        st_json_free(in->root);
        return st_nomem(0);
    }
    src->overrides = opts->overrides;
    src->override_count = opts->override_count;
    if (in->root != NULL)
        st_source_take_file(src, in->root, in->file);
    for (uint32_t i = 0; i < in->other_count; i++)
        take_other(src, &in->others[i]);
    for (uint32_t i = 0; i < opts->override_count; i++)
        st_source_take_override(src, opts->overrides[i]);
    if (in->environment != NULL) {
        in->environment->tell(in->environment->of, src);
        st_source_take_environment(src, in->environment);
    }
    judge_all(src);
    st_source_judge_arguments(src);
    st_config_resolve(src, &resolved, opts);
    st_source_build_rows(src, &resolved);
    if (src->failed) {
        st_config_source_free(src);
        return st_nomem(0);
    }
    *source = src;
    if (src->problems.count > 0)
        return problems_error(src, in->name);
    *config = resolved;
    return STRATA_OK;
}

strata_status st_config_unread(struct st_config_source **source, strata_status st)
{
    struct st_config_source *src;

    if (st != STRATA_E_CONFIG)
        return st;
    src = st_source_create(false);
    if (src == NULL)
        return st_nomem(0);
    st_source_problem(src, "%s", strata_last_error());
    if (src->failed) {
        st_config_source_free(src);
        return st_nomem(0);
    }
    *source = src;
    return st_error(st, "%s", st_config_problem_at(src, 0));
}

strata_status st_config_parse_file(st_json **root, const char *path)
{
    const char *preset = st_config_preset(path);

    bool there = true;

    if (preset != NULL)
        return st_hjson_parse(root, preset, strlen(preset), path);
    if (strncmp(path, "deepspeed_zero", strlen("deepspeed_zero")) == 0 && strpbrk(path, "./") == NULL &&
        st_file_find(&there, path) == STRATA_OK && !there)
        return st_error(STRATA_E_CONFIG,
                        "%s: no such file; XTuner's names are deepspeed_zero1, deepspeed_zero2, deepspeed_zero2_offload, "
                        "deepspeed_zero3 and deepspeed_zero3_offload",
                        path);
    return st_source_parse_file(root, path);
}

strata_status st_config_load(struct st_config *config, struct st_config_source **source, const struct st_config_opts *opts)
{
    struct st_config_inputs in = {.name = opts->file != NULL ? opts->file : "config", .file = opts->file};
    strata_status st = STRATA_OK;

    *source = NULL;
    if (in.file != NULL)
        st = st_config_parse_file(&in.root, in.file);
    return st == STRATA_OK ? st_config_make(config, source, &in, opts) : st_config_unread(source, st);
}

strata_status st_config_load_text(struct st_config *config, struct st_config_source **source, const char *text, size_t bytes,
                                  const char *name, const struct st_config_opts *opts)
{
    struct st_config_inputs in = {.name = name, .file = name};
    const strata_status st = st_hjson_parse(&in.root, text, bytes, name);

    *source = NULL;
    return st == STRATA_OK ? st_config_make(config, source, &in, opts) : st_config_unread(source, st);
}
