/* config.c - reads a config: takes the keys, judges each one, resolves them together, and collects every problem. */
#include "offload/config/config_source_internal.h"

#include "core/base/error.h"
#include <ctype.h>
#include <string.h>

#define FILE_BYTES_MAX ((size_t)1 << 20)
#define STRICT_HINT                                                                                                              \
    " (configs are strict JSON: the comments, trailing commas and bare keys that DeepSpeed's hjson accepts are errors)"

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
        state->reason = st_source_keep(src, "not judged: %s is rejected", muter->path);
        return;
    }
    if (st_value_is_auto(state->node)) {
        state->origin = ST_ORIGIN_AUTO;
        state->verdict = field->verdict == ST_VERDICT_NOTICE ? ST_VERDICT_NOTICE : ST_VERDICT_HONOURED;
        state->reason = field->verdict == ST_VERDICT_NOTICE ? field->reason : NULL;
        return;
    }
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

/* One sentence for all problems: the first one, and how many others there are. */
static strata_status problems_error(const struct st_config_source *src, const char *name)
{
    const uint32_t count = st_config_problem_count(src);

    if (count == 1)
        return st_error(STRATA_E_CONFIG, "%s: %s", name, st_config_problem_at(src, 0));
    return st_error(STRATA_E_CONFIG, "%s: %s (and %u more)", name, st_config_problem_at(src, 0), count - 1);
}

/* Takes ownership of `root`; NULL: no file. */
static strata_status load_tree(struct st_config *config, struct st_config_source **source, st_json *root, const char *name,
                               const struct st_config_opts *opts)
{
    struct st_config_source *src = st_source_create(opts->allow_unknown);
    struct st_config resolved;

    if (src == NULL) {
        st_json_free(root);
        return st_error(STRATA_E_NOMEM, "%s: no memory to read a config", name);
    }
    if (root != NULL)
        st_source_take_file(src, root);
    for (uint32_t i = 0; i < opts->override_count; i++)
        st_source_take_override(src, opts->overrides[i]);
    judge_all(src);
    st_config_resolve(src, &resolved, opts);
    st_source_build_rows(src, &resolved);
    if (src->failed) {
        st_config_source_free(src);
        return st_error(STRATA_E_NOMEM, "%s: no memory to read a config", name);
    }
    *source = src;
    if (src->problems.count > 0)
        return problems_error(src, name);
    *config = resolved;
    return STRATA_OK;
}

/* True if the parser's message is "name:line:column: ...", about the form of the text; false for missing files and duplicate
 * keys. */
static bool is_about_form(const char *sentence, const char *name)
{
    const size_t len = strlen(name);

    return strncmp(sentence, name, len) == 0 && sentence[len] == ':' && isdigit((unsigned char)sentence[len + 1]) &&
           strstr(sentence, "duplicate key") == NULL;
}

/* The text is not JSON: the parser's sentence is the only problem. */
static strata_status syntax_error(struct st_config_source **source, strata_status st, const char *name)
{
    struct st_config_source *src;

    if (st != STRATA_E_CONFIG)
        return st;
    src = st_source_create(false);
    if (src == NULL)
        return st_error(STRATA_E_NOMEM, "%s: no memory to read a config", name);
    st_source_problem(src, "%s%s", strata_last_error(), is_about_form(strata_last_error(), name) ? STRICT_HINT : "");
    if (src->failed) {
        st_config_source_free(src);
        return st_error(STRATA_E_NOMEM, "%s: no memory to read a config", name);
    }
    *source = src;
    return st_error(st, "%s", st_config_problem_at(src, 0));
}

strata_status st_config_load(struct st_config *config, struct st_config_source **source, const struct st_config_opts *opts)
{
    st_json *root = NULL;
    strata_status st;

    *source = NULL;
    if (opts->file == NULL)
        return load_tree(config, source, NULL, "config", opts);
    st = st_json_parse_file(&root, opts->file, FILE_BYTES_MAX);
    if (st != STRATA_OK)
        return syntax_error(source, st, opts->file);
    return load_tree(config, source, root, opts->file, opts);
}

strata_status st_config_load_text(struct st_config *config, struct st_config_source **source, const char *text, size_t bytes,
                                  const char *name, const struct st_config_opts *opts)
{
    st_json *root = NULL;
    strata_status st;

    *source = NULL;
    st = st_json_parse(&root, text, bytes, name);
    if (st != STRATA_OK)
        return syntax_error(source, st, name);
    return load_tree(config, source, root, name, opts);
}
