/* text/data/rows/tokenize.c - see tokenize.h.  Rows are read one by one; where some are held out or sampled, they are counted in
 * a first pass. */
#include "text/data/rows/tokenize.h"

#include "core/base/error.h"
#include "core/base/fault.h"
#include "core/base/log.h"
#include "core/base/rng.h"
#include "text/data/rows/row_reader.h"
#include "text/data/rows/tokenize_internal.h"
#include "text/data/texts.h"
#include "text/data/token_meta.h"
#include "text/data/tokens.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STREAM_SAMPLES UINT64_C(0x73616d70) /* of random numbers: rows taken of a data set */
#define PROGRESS_ROWS  64u
#define GUESS_ROWS     64u /* the first rows, one of which must tell a file's format */

/* One file of rows or text. */
struct source {
    const char *path;
    const struct st_row_shape *shape; /* NULL: by the first row */
    bool plain;                       /* a text, whole */
    uint64_t rows, samples;           /* rows that it has, 0: not counted; how many of them are taken, 0: all */
    bool counted;                     /* row by row, in this state: */
    struct st_file_identity was;
};

/* Whether row `row` of a source is one of those that are taken. */
static bool is_sampled(const struct st_tokenizing *j, const struct source *s, uint64_t row)
{
    if (s->samples == 0 || s->samples >= s->rows)
        return true;
    return row < s->rows && /* else the file grows, which the end of it will say */
           st_rng_permute(row, s->rows, j->opts->seed, STREAM_SAMPLES) < s->samples;
}

static uint64_t rows_taken(const struct st_tokenizing *j, const struct source *s)
{
    const uint64_t sampled = s->samples > 0 && s->samples < s->rows ? s->samples : s->rows;

    return j->opts->max_samples > 0 && j->opts->max_samples < sampled ? j->opts->max_samples : sampled;
}

static strata_status count_rows(struct source *s)
{
    struct st_rows *rows;
    strata_status st;

    s->rows = 1;
    if (s->plain)
        return STRATA_OK;
    if ((st = st_rows_open(&rows, s->path)) != STRATA_OK)
        return st;
    s->counted = true;
    s->was = *st_rows_identity(rows);
    st = st_rows_again(rows)
             ? st_rows_count(rows, &s->rows)
             : st_error(STRATA_E_INPUT, "rows of %s cannot be held out or sampled: they are read once; use a file",
                        strcmp(s->path, "-") == 0 ? "standard input" : s->path);
    st_rows_close(rows);
    return st;
}

static strata_status plan_rows(struct st_tokenizing *j, struct source *sources, uint32_t count)
{
    const double size = j->opts->val_size;
    strata_status st = STRATA_OK;

    for (uint32_t i = 0; i < count && st == STRATA_OK; i++) {
        if (size > 0 || sources[i].samples > 0)
            st = count_rows(&sources[i]);
        j->rows_all += rows_taken(j, &sources[i]);
    }
    if (st != STRATA_OK || size <= 0)
        return st;
    j->rows_aside = (uint64_t)(size < 1 ? ceil(size * (double)j->rows_all) : size);
    return j->rows_aside < j->rows_all
               ? STRATA_OK
               : st_error_key(st_error(STRATA_E_INPUT, "texts.val_size %g of %llu rows leaves none to train", size,
                                       (unsigned long long)j->rows_all),
                              "texts.val_size");
}

/* The rows of one source. */
struct pass {
    struct st_tokenizing *j;
    const struct source *s;
    struct st_rows *rows;
    struct st_row_shape guessed;
    const struct st_row_shape *shape; /* NULL, or ST_ROWS_AUTO: no row has shown it yet */
    uint32_t lacking;                 /* columns that no row had */
    uint64_t seen, taken, bad;        /* bad: of those taken, not readable */
    char first[512];                  /* why the first of these is not */
};

static bool has_shape(const struct pass *p)
{
    return p->shape != NULL && p->shape->format != ST_ROWS_AUTO;
}

/* Not a row, but the file is something else than it was taken for. */
static strata_status none_readable(const struct pass *p)
{
    return st_error(STRATA_E_INPUT, "%s: none of %llu rows can be read; %s", p->s->path, (unsigned long long)p->bad, p->first);
}

/* A row that cannot be read, for the reason that the last error says: it is left out, where that is allowed. */
static strata_status leave_out(struct pass *p, strata_status st)
{
    if (st != STRATA_E_INPUT || p->j->opts->strict)
        return st;
    if (p->bad++ == 0)
        snprintf(p->first, sizeof(p->first), "%s", strata_last_error());
    st_tokenize_drop(p->j, ST_ROW_BAD, NULL, strata_last_error());
    return has_shape(p) || p->bad < GUESS_ROWS ? STRATA_OK : none_readable(p);
}

static strata_status find_shape(struct pass *p, const st_json *tree)
{
    strata_status st;

    if (has_shape(p))
        return STRATA_OK;
    st = st_row_shape_guess(&p->guessed, tree, st_rows_place(p->rows));
    if (st == STRATA_OK)
        p->shape = &p->guessed;
    return st;
}

static strata_status read_row(struct pass *p, struct st_sample *s, enum st_row_odd *odd, const st_json *tree)
{
    const char *place = st_rows_place(p->rows);
    strata_status st = st_row_check_odd(p->shape, tree, st_rows_odd(p->rows), place);

    if (st == STRATA_OK)
        st = st_row_read(s, odd, p->shape, tree, place);
    if (st != STRATA_OK)
        return st;
    st_row_note_columns(&p->j->report->unread, p->shape, tree);
    for (uint32_t i = 0; i < ST_ROW_UNREAD_OWN && s->unread[i] != NULL; i++)
        st_row_note_column(&p->j->report->unread, s->unread[i]);
    return STRATA_OK;
}

static strata_status put_row(struct pass *p, uint64_t row, const struct st_sample *s, enum st_row_odd odd)
{
    const char *place = st_rows_place(p->rows);

    if (odd != ST_ROW_FINE) {
        st_tokenize_drop(p->j, odd, place, odd == ST_ROW_TURNS || odd == ST_ROW_NO_ANSWER ? strata_last_error() : NULL);
        return STRATA_OK;
    }
    if (s->completes && s->text != NULL)
        return st_tokenize_completion(p->j, row, s, place);
    return s->text != NULL ? st_tokenize_text(p->j, row, s->text, strlen(s->text), place)
                           : st_tokenize_dialog(p->j, row, s, place);
}

/* What a column says of all rows is no matter of one. */
static strata_status one_row(struct pass *p, uint64_t row, const st_json *tree)
{
    static const struct st_row_shape none = {0};
    const strata_status found = find_shape(p, tree),
                        refused = st_row_check_columns(p->shape != NULL ? p->shape : &none, tree, st_rows_place(p->rows));
    enum st_row_odd odd = ST_ROW_FINE;
    struct st_sample s = {0};
    strata_status st = found;

    if (refused != STRATA_OK)
        return refused;
    if (st == STRATA_OK)
        st = read_row(p, &s, &odd, tree);
    st = st == STRATA_OK ? put_row(p, row, &s, odd) : leave_out(p, st);
    st_sample_free(&s);
    return st;
}

static void tell_progress(struct st_tokenizing *j)
{
    if (j->opts->progress == NULL || j->report->rows % PROGRESS_ROWS != 0)
        return;
    for (uint32_t i = 0; i < 2; i++)
        j->report->parts[i].tokens = j->writers[i] == NULL ? 0 : st_token_writer_tokens(j->writers[i]);
    j->opts->progress(j->opts->context, j->report);
}

/* A name that is misspelled is of no column, and all that it should bring would be left out of every row. */
static strata_status check_columns(const struct pass *p)
{
    const struct source *s = p->s;
    const char *name = s->shape != NULL && s->shape->named && p->taken > 0 ? st_row_column_lacking(s->shape, p->lacking) : NULL;

    return name == NULL ? STRATA_OK
                        : st_error(STRATA_E_INPUT, "%s: no row has the column \"%s\", which \"columns\" of its data set names",
                                   s->path, name);
}

/* The file's next row; *ended: there is none. */
static strata_status next_row(struct pass *p, uint64_t index, bool *ended)
{
    const bool sampled = is_sampled(p->j, p->s, index);
    st_json *tree;
    strata_status st = st_rows_next(p->rows, &tree);

    *ended = st == STRATA_OK && tree == NULL;
    if (*ended || (st != STRATA_OK && !st_rows_goes_on(p->rows)))
        return st;
    p->seen++;
    if (tree != NULL && p->shape != NULL)
        p->lacking = st_row_columns_lacking(p->shape, tree, p->lacking);
    if (sampled) {
        p->taken++;
        p->j->report->rows++;
        st = tree != NULL ? one_row(p, p->j->report->rows - 1, tree) : leave_out(p, st);
    }
    st_json_free(tree);
    return sampled ? st : STRATA_OK;
}

/* A notice for a file of which nothing is left: among many it would go unseen. */
static void note_rowless(struct st_tokenize_report *r, const char *path)
{
    if (r->rowless++ == 0)
        snprintf(r->no_rows, sizeof(r->no_rows), "%s", strcmp(path, "-") == 0 ? "standard input" : path);
}

static strata_status read_rows(struct st_tokenizing *j, const struct source *s, struct st_rows *rows)
{
    struct pass p = {.j = j, .s = s, .rows = rows, .shape = s->shape, .lacking = ST_ROW_COLUMNS_ALL};
    bool ended = false;

    for (uint64_t i = 0; j->opts->max_samples == 0 || p.taken < j->opts->max_samples; i++) {
        const strata_status st = next_row(&p, i, &ended);

        if (st != STRATA_OK)
            return st;
        if (ended)
            break;
        tell_progress(j);
    }
    if (p.bad > 0 && p.bad == p.taken)
        return none_readable(&p);
    if (p.seen == 0)
        note_rowless(j->report, s->path);
    return ended ? check_columns(&p) : STRATA_OK;
}

static strata_status read_source(struct st_tokenizing *j, const struct source *s)
{
    struct st_rows *rows;
    strata_status st;

    if (s->plain)
        return st_tokenize_file(j, j->report->rows++, s->path);
    if ((st = st_rows_open(&rows, s->path)) != STRATA_OK)
        return st;
    if (s->counted)
        st = st_rows_check_same(rows, &s->was);
    if (st == STRATA_OK)
        st = read_rows(j, s, rows);
    if (st == STRATA_OK && st_rows_beside(rows))
        st_log(ST_LOG_NOTICE, "%s: rows are those of its \"data\"; what stands beside it is not read", s->path);
    st_rows_close(rows);
    return st;
}

static void note_unread(const struct st_row_unread *u)
{
    for (uint32_t i = 0; i < u->count; i++)
        st_log(ST_LOG_NOTICE, "column \"%s\" is in %llu rows and is not read", u->columns[i].name,
               (unsigned long long)u->columns[i].rows);
    if (u->others > 0)
        st_log(ST_LOG_NOTICE, "other columns hold something %llu times and are not read", (unsigned long long)u->others);
}

void st_tokenize_note(const struct st_tokenize_report *r)
{
    typedef unsigned long long ull;

    if (r->replaced > 0)
        st_log(ST_LOG_NOTICE, "%llu times, bytes that are not UTF-8 became U+FFFD", (ull)r->replaced);
    if (r->answers.unended > 0)
        st_log(ST_LOG_NOTICE,
               "%llu of %llu answers end without a special token of this tokenizer: the model will not learn to end them",
               (ull)r->answers.unended, (ull)r->answers.answers);
    if (r->answers.calls > 0)
        st_log(ST_LOG_NOTICE,
               "%llu answers call tools, and the template (%s) does not write it: the model will not learn these calls",
               (ull)r->answers.calls, r->template);
    if (r->answers.thoughtless > 0)
        st_log(ST_LOG_NOTICE, "%llu answers are trained without their thoughts, which the template (%s) leaves out there",
               (ull)r->answers.thoughtless, r->template);
    if (r->answers.unwritten > 0)
        st_log(ST_LOG_NOTICE, "%llu answers are empty, or the template (%s) writes nothing of them: they are not trained",
               (ull)r->answers.unwritten, r->template);
    if (r->answers.guessed > 0)
        st_log(ST_LOG_NOTICE,
               "the template does not say where %llu answers begin: they count from the last special token (see strata tokens "
               "tokens.show); the first: %s",
               (ull)r->answers.guessed, r->guessed);
    if (r->answers.unseen > 0)
        st_log(ST_LOG_NOTICE, "of %llu messages of users, systems and tools the template (%s) writes nothing; the first: %s",
               (ull)r->answers.unseen, r->template, r->unseen);
    if (r->toolless > 0)
        st_log(ST_LOG_NOTICE, "%llu conversations have tools, and the template (%s) writes none: the model will not see them",
               (ull)r->toolless, r->template);
    if (r->overruled > 0)
        st_log(ST_LOG_NOTICE,
               "%llu answers that their rows exclude (loss false, weight 0) are trained, as texts.train_on_prompt asks",
               (ull)r->overruled);
    if (r->functions > 0)
        st_log(ST_LOG_NOTICE,
               "%llu calls of functions are written as answers, without the marks that a model's own format has around them",
               (ull)r->functions);
    if (r->merged > 0)
        st_log(ST_LOG_NOTICE,
               "%llu rows: one token joins prompt and completion, and is trained: let completions begin with the space",
               (ull)r->merged);
    note_unread(&r->unread);
    if (r->rowless > 0)
        st_log(ST_LOG_NOTICE, "%llu files have no rows; the first: %s", (ull)r->rowless, r->no_rows);
    if (r->endless)
        st_log(ST_LOG_NOTICE, "no file beside the tokenizer names the token that ends a text (eos_token): documents have none");
}

void st_tokenize_note_dropped(const struct st_tokenize_report *r)
{
    for (unsigned odd = ST_ROW_FINE + 1; odd < ST_ROW_ODDS; odd++)
        if (r->dropped[odd] > 0)
            st_log(ST_LOG_NOTICE, "%llu rows are left out: %s; the first: %s", (unsigned long long)r->dropped[odd],
                   st_row_odd_text((enum st_row_odd)odd), r->first[odd]);
}

/* Says the commonest reason. */
static strata_status nothing_left(const struct st_tokenizing *j)
{
    const struct st_tokenize_report *r = j->report;
    enum st_row_odd most = ST_ROW_FINE;

    for (unsigned odd = ST_ROW_FINE + 1; odd < ST_ROW_ODDS; odd++)
        if (r->dropped[odd] > r->dropped[most])
            most = (enum st_row_odd)odd;
    if (most == ST_ROW_FINE)
        return st_error(STRATA_E_INPUT, "%s: has no rows", r->rowless > 0 ? r->no_rows : "the data");
    return st_error(STRATA_E_INPUT, "none of %llu rows can be trained; %llu: %s: %s", (unsigned long long)r->rows,
                    (unsigned long long)r->dropped[most], st_row_odd_text(most), r->first[most]);
}

static strata_status finish(struct st_tokenizing *j)
{
    struct st_tokenize_report *r = j->report;
    struct st_token_writer *writers[2] = {j->writers[0], j->writers[1]};
    uint64_t source_bytes[2];

    if (r->parts[0].documents + r->parts[1].documents == 0)
        return nothing_left(j);
    for (uint32_t i = 0; i < 2; i++) {
        if (r->dialogs || j->text_cut)
            r->parts[i].source_bytes = 0;
        source_bytes[i] = r->parts[i].source_bytes;
        r->parts[i].tokens = writers[i] == NULL ? 0 : st_token_writer_tokens(writers[i]);
        if (writers[i] != NULL && r->parts[i].documents == 0)
            return st_error_remedy(
                st_error(STRATA_E_INPUT, "all rows that are %s are dropped", i == 0 ? "left to train" : "held out"),
                "texts.val_size", "another texts.seed or texts.val_size may help");
    }
    if (j->dialog != NULL) {
        snprintf(r->template, sizeof(r->template), "%s", st_dialog_template_name(j->dialog));
        r->dated = st_dialog_uses_date(j->dialog);
    }
    r->endless = !r->dialogs && st_tokenizer_role(j->tokenizer, ST_TOKEN_EOS) == ST_TOKEN_NONE;
    j->writers[0] = j->writers[1] = NULL;
    return st_token_writer_finish(writers, source_bytes);
}

static void close_all(struct st_tokenizing *j)
{
    for (uint32_t i = 0; i < 2; i++)
        st_token_writer_abort(j->writers[i]);
    st_dialog_ids_free(&j->ids);
    st_encoding_free(&j->text);
    st_decoded_free(&j->decoded);
    st_dialog_close(j->dialog);
    st_encoder_destroy(j->encoder);
    st_tokenizer_close(j->tokenizer);
}

static strata_status check_source(const struct st_tokenizing *j, const struct source *s)
{
    strata_status st = st_texts_check_kind(s->path);

    if (st != STRATA_OK || j->opts->origin != NULL) /* its name is a digest of the inputs */
        return st;
    st = st_token_writer_check_apart(j->opts->out, s->path);
    if (st == STRATA_OK && j->report->heldout[0] != '\0')
        st = st_token_writer_check_apart(j->report->heldout, s->path);
    return st;
}

static strata_status run(struct st_tokenizing *j, struct source *sources, uint32_t count)
{
    strata_status st = j->opts->val_size > 0 ? st_tokens_heldout_path(j->report->heldout, j->opts->out) : STRATA_OK;

    for (uint32_t i = 0; i < count && st == STRATA_OK; i++)
        st = check_source(j, &sources[i]);
    if (st == STRATA_OK)
        st = plan_rows(j, sources, count);
    if (st == STRATA_OK)
        st = st_tokenizer_open(&j->tokenizer, j->opts->tokenizer);
    if (st == STRATA_OK)
        st = st_encoder_create(&j->encoder, j->tokenizer);
    for (uint32_t i = 0; i < count && st == STRATA_OK; i++)
        st = read_source(j, &sources[i]);
    return st == STRATA_OK ? finish(j) : st;
}

/* A data set that is a text has nothing but its text. */
static strata_status check_text_set(const struct st_dataset *d, const struct st_tokenize_opts *opts, const char *name)
{
    if (d->shape.format != ST_ROWS_TEXT)
        return st_error(STRATA_E_INPUT, "%s: \"%s\": %s is a text: its \"columns\" are {\"prompt\": \"text\"}",
                        opts->dataset_info, name, d->path);
    if (d->num_samples > 0)
        return st_error(STRATA_E_INPUT, "%s: \"%s\": num_samples: %s is a text, one document: make rows of it (.jsonl)",
                        opts->dataset_info, name, d->path);
    st_log(ST_LOG_NOTICE, "%s is one document; LLaMA-Factory makes one of each of its lines", d->path);
    return STRATA_OK;
}

/* A data set's file is a source like the inputs. */
static strata_status add_dataset(struct source *s, struct st_dataset *dataset, const struct st_tokenize_opts *opts,
                                 const char *name)
{
    strata_status st = st_dataset_open(dataset, opts->dataset_info, name);

    *s = (struct source){.path = dataset->path, .shape = &dataset->shape, .samples = dataset->num_samples};
    if (st != STRATA_OK || st_texts_are_rows(dataset->path))
        return st;
    s->plain = st_path_ends(dataset->path, ".txt");
    if (s->plain)
        return check_text_set(dataset, opts, name);
    st = st_texts_check_kind(dataset->path);
    return st != STRATA_OK ? st
                           : st_error(STRATA_E_INPUT, "%s: \"%s\": file_name: %s is neither .json, .jsonl nor .txt",
                                      opts->dataset_info, name, dataset->path);
}

strata_status st_tokenize(const struct st_tokenize_opts *opts, struct st_tokenize_report *report)
{
    const struct st_row_shape shape = st_row_shape_of(opts->format);
    struct source *sources =
        st_fault("tokenize.alloc", 0) < 0 ? NULL : calloc(opts->input_count + opts->dataset_count + 1u, sizeof(*sources));
    struct st_dataset *datasets = st_fault("tokenize.alloc", 0) < 0 ? NULL : calloc(opts->dataset_count + 1u, sizeof(*datasets));
    struct st_tokenizing j = {.opts = opts, .report = report};
    uint32_t count = opts->input_count;
    strata_status st = STRATA_OK;

    *report = (struct st_tokenize_report){0};
    if (sources == NULL || datasets == NULL)
        st = st_nomem(0);
    for (uint32_t i = 0; i < opts->input_count && st == STRATA_OK; i++) {
        const bool named = opts->format != ST_ROWS_AUTO, rows = named && opts->format != ST_ROWS_TEXT;

        sources[i] = (struct source){.path = opts->inputs[i], .shape = named ? &shape : NULL};
        sources[i].plain = !rows && !st_texts_are_rows(opts->inputs[i]);
    }
    for (uint32_t i = 0; i < opts->dataset_count && st == STRATA_OK; i++)
        st = add_dataset(&sources[count++], &datasets[i], opts, opts->datasets[i]);
    if (st == STRATA_OK)
        st = run(&j, sources, count);
    close_all(&j);
    for (uint32_t i = 0; i < opts->dataset_count && datasets != NULL; i++)
        st_dataset_close(&datasets[i]);
    free(datasets);
    free(sources);
    return st;
}
