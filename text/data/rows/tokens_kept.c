/* tokens_kept.c - see tokens_kept.h. */
#include "text/data/rows/tokens_kept.h"

#include "core/base/checksum.h"
#include "core/base/error.h"
#include "core/base/fault.h"
#include "core/base/log.h"
#include "strata/strata.h"
#include "text/data/rows/dataset_info.h"
#include "text/data/token_meta.h"
#include "text/data/token_writer.h"
#include "text/data/tokens.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define PART_BYTES   (1u << 20)
#define RULES        3u          /* grows when the same text gives other ids, masks or documents */
#define BUILT_IN     "built-in " /* how the names of templates that are not files begin */
#define BESIDE_COUNT (sizeof(beside) / sizeof(beside[0]))

/* What is read beside the tokenizer's own file, if it is there. */
static const char *const beside[] = {"tokenizer_config.json", "special_tokens_map.json", "merges.txt",
                                     "chat_template.jinja",   "generation_config.json",  "config.json",
                                     ST_DIALOG_TOOLS_NAME};

struct st_kept {
    const struct st_tokenize_opts *opts;
    char *tokenizer;            /* its file; NULL: one token per byte */
    char template[ST_PATH_MAX]; /* its file, or which built-in one; "": there is none, or nothing asks for one */
    uint64_t template_hash;     /* of a built-in one */
    bool dated;                 /* it asks for the date */
    uint32_t rows;              /* of the model, where the tokenizer has more tokens: those that occur must be below it; else 0 */
    struct st_token_origin origin;
    char state[33]; /* digest of which files were read, and when they were written */
    char path[ST_PATH_MAX];
    unsigned char part[PART_BYTES];
};

/* Two digests that are taken together: of contents, and of the files that have them. */
struct taking {
    struct st_kept *k;
    struct st_digest *contents, *state;
};

static void put(struct st_digest *digest, const void *bytes, uint64_t count)
{
    st_digest_update(digest, &count, sizeof(count)); /* two parts never look like one, or like two others */
    st_digest_update(digest, bytes, count);
}

static void put_text(const struct taking *t, const char *text)
{
    put(t->contents, text, strlen(text));
}

static void put_state(const struct taking *t, const struct st_file_identity *f)
{
    const uint64_t numbers[] = {f->device, f->inode, f->bytes, (uint64_t)f->modified.tv_sec, (uint64_t)f->modified.tv_nsec};

    put(t->state, numbers, sizeof(numbers));
}

static strata_status put_file(const struct taking *t, const char *path)
{
    struct st_file_identity identity;
    int fd;
    strata_status st = st_file_open(&fd, &identity, path, STRATA_E_INPUT);

    if (st != STRATA_OK)
        return st;
    put_state(t, &identity);
    st_digest_update(t->contents, &identity.bytes, sizeof(identity.bytes));
    for (uint64_t at = 0; at < identity.bytes && st == STRATA_OK; at += PART_BYTES) {
        const uint64_t bytes = identity.bytes - at < PART_BYTES ? identity.bytes - at : PART_BYTES;

        st = st_file_read_at(fd, t->k->part, bytes, at, path);
        st_digest_update(t->contents, t->k->part, bytes);
    }
    if (st == STRATA_OK)
        st = st_file_check_unchanged(fd, &identity, path);
    close(fd);
    return st;
}

/* A file beside the tokenizer's; its absence is part of the key, too. */
static strata_status put_beside(const struct taking *t, const char *name)
{
    char path[ST_PATH_MAX];
    bool there;
    strata_status st = st_path_beside(path, t->k->tokenizer, name);

    if (st != STRATA_OK || (st = st_file_find(&there, path)) != STRATA_OK)
        return st;
    put_text(t, there ? name : "");
    return there ? put_file(t, path) : STRATA_OK;
}

static strata_status put_template(const struct taking *t)
{
    const struct st_kept *k = t->k;
    const struct st_date *date = &k->opts->date;
    const int day[3] = {date->year, date->month, date->day};

    put(t->contents, day, k->dated ? sizeof(day) : 0);
    if (k->template[0] == '\0' || strncmp(k->template, BUILT_IN, strlen(BUILT_IN)) == 0) {
        put_text(t, k->template);
        put(t->contents, &k->template_hash, sizeof(k->template_hash));
        return STRATA_OK;
    }
    return put_file(t, k->template);
}

static strata_status put_dataset(const struct taking *t, const char *name)
{
    struct st_dataset dataset = {0};
    strata_status st = st_dataset_open(&dataset, t->k->opts->dataset_info, name);

    put_text(t, name);
    if (st == STRATA_OK)
        st = put_file(t, dataset.path);
    st_dataset_close(&dataset);
    return st;
}

static strata_status put_all(const struct taking *t)
{
    const struct st_tokenize_opts *o = t->k->opts;
    const uint64_t numbers[] = {RULES,
                                o->format,
                                o->layout != NULL ? *o->layout + 1u : 0,
                                o->seq_len,
                                o->max_samples,
                                o->seed,
                                t->k->rows,
                                (o->train_on_prompt ? 1u : 0) + (o->last_answer_only ? 2u : 0) + (o->turn_ends ? 4u : 0) +
                                    (o->strict ? 8u : 0) + (o->as_trl ? 16u : 0)};
    strata_status st = STRATA_OK;

    put_text(t, "strata tokens");
    put_text(t, strata_version());
    put(t->contents, numbers, sizeof(numbers));
    put_text(t, t->k->tokenizer == NULL ? "bytes" : "tokenizer");
    if (t->k->tokenizer != NULL)
        st = put_file(t, t->k->tokenizer);
    for (size_t i = 0; i < BESIDE_COUNT && t->k->tokenizer != NULL && st == STRATA_OK; i++)
        st = put_beside(t, beside[i]);
    put_text(t, o->kwargs != NULL ? o->kwargs : "");
    if (st == STRATA_OK)
        st = put_template(t);
    for (uint32_t i = 0; i < o->input_count && st == STRATA_OK; i++) {
        const char *path = o->inputs[i], *dot = strrchr(path, '.');

        put_text(t, dot != NULL && strchr(dot, '/') == NULL ? dot : ""); /* a name's end says what its rows are */
        st = put_file(t, path);
    }
    if (o->dataset_count > 0 && st == STRATA_OK)
        st = put_file(t, o->dataset_info);
    for (uint32_t i = 0; i < o->dataset_count && st == STRATA_OK; i++)
        st = put_dataset(t, o->datasets[i]);
    return st;
}

static strata_status take(struct st_kept *k, char key[33], char state[33])
{
    struct taking t = {.k = k};
    strata_status st = st_digest_create(&t.contents);

    if (st == STRATA_OK)
        st = st_digest_create(&t.state);
    if (st == STRATA_OK)
        st = put_all(&t);
    if (st == STRATA_OK) {
        st_digest_hex(t.contents, key);
        st_digest_hex(t.state, state);
    }
    st_digest_destroy(t.contents);
    st_digest_destroy(t.state);
    return st;
}

/* After everything has been read: were the inputs those of the key? */
static strata_status confirm(void *context)
{
    struct st_kept *k = context;
    char key[33], state[33];
    const strata_status st = take(k, key, state);

    if (st != STRATA_OK)
        return st;
    if (strcmp(key, k->origin.inputs) == 0 && strcmp(state, k->state) == 0)
        return STRATA_OK;
    return st_error(STRATA_E_INPUT, "%s%s: a text, or a file of the tokenizer, changed while tokens were made of it: run again",
                    k->opts->input_count > 0 ? k->opts->inputs[0] : k->opts->datasets[0],
                    k->opts->input_count + k->opts->dataset_count > 1 ? " and the others" : "");
}

/* Which template conversations would have, and whether it asks for the date.  Rows of texts need none: one that is missing or bad
 * is told when a conversation asks for it. */
static strata_status find_template(struct st_kept *k, const struct st_tokenizer *tokenizer)
{
    const struct st_dialog_opts opts = {.template = k->opts->template, .kwargs = k->opts->kwargs, .date = k->opts->date};
    struct st_dialog *dialog = NULL;
    const strata_status st = st_dialog_open(&dialog, tokenizer, &opts);

    if (st == STRATA_OK) {
        snprintf(k->template, sizeof(k->template), "%s", st_dialog_template_name(dialog));
        k->template_hash = st_dialog_template_hash(dialog);
        k->dated = st_dialog_uses_date(dialog);
        st_dialog_close(dialog);
    }
    return st == STRATA_E_NOMEM || st == STRATA_E_IO ? st : STRATA_OK;
}

static strata_status find_tokenizer(struct st_kept *k)
{
    struct st_tokenizer *tokenizer;
    strata_status st;

    if (k->opts->tokenizer == NULL)
        return STRATA_OK;
    if ((st = st_tokenizer_open(&tokenizer, k->opts->tokenizer)) != STRATA_OK)
        return st;
    k->rows = st_tokenizer_vocab(tokenizer) > k->opts->vocab ? k->opts->vocab : 0;
    k->tokenizer = st_fault("kept.alloc", 0) < 0 ? NULL : strdup(st_tokenizer_path(tokenizer));
    st = k->tokenizer != NULL ? find_template(k, tokenizer) : st_nomem(0);
    st_tokenizer_close(tokenizer);
    return st;
}

/* Whether all inputs can be read again. */
static bool can_be_read_again(const struct st_tokenize_opts *opts)
{
    struct stat info;

    for (uint32_t i = 0; i < opts->input_count; i++)
        if (strcmp(opts->inputs[i], "-") == 0 || st_fault_refuses("kept.stat") || stat(opts->inputs[i], &info) != 0 ||
            !S_ISREG(info.st_mode))
            return false;
    return true;
}

strata_status st_kept_open(struct st_kept **out, const char *dir, const struct st_tokenize_opts *opts)
{
    struct st_kept *k;
    char name[64];
    strata_status st;

    *out = NULL;
    if (!can_be_read_again(opts))
        return STRATA_OK;
    k = st_fault("kept.alloc", 0) < 0 ? NULL : calloc(1, sizeof(*k));
    if (k == NULL)
        return st_nomem(sizeof(*k));
    k->opts = opts;
    k->origin.confirm = confirm;
    k->origin.context = k;
    st = find_tokenizer(k);
    if (st == STRATA_OK)
        st = take(k, k->origin.inputs, k->state);
    snprintf(name, sizeof(name), "%s.bin", k->origin.inputs);
    if (st == STRATA_OK)
        st = st_path_join(k->path, dir, name);
    if (st != STRATA_OK) {
        st_kept_close(k);
        return st;
    }
    *out = k;
    return STRATA_OK;
}

void st_kept_close(struct st_kept *k)
{
    if (k == NULL)
        return;
    free(k->tokenizer);
    free(k);
}

bool st_kept_dated(const struct st_kept *k)
{
    return k->dated;
}

const char *st_kept_path(const struct st_kept *k)
{
    return k->path;
}

struct st_token_origin *st_kept_origin(struct st_kept *k)
{
    return &k->origin;
}

strata_status st_kept_find(bool *there, const struct st_kept *k)
{
    struct st_token_file *file;
    strata_status st = st_file_find(there, k->path);

    if (st != STRATA_OK || !*there) {
        *there = false;
        return st == STRATA_E_INPUT ? STRATA_OK : st; /* a directory that cannot be searched: writing will say so */
    }
    st = st_token_file_open(&file, k->path, 0);
    *there = st == STRATA_OK && strcmp(st_token_file_inputs(file), k->origin.inputs) == 0;
    if (st == STRATA_OK && !*there)
        (void)st_error(STRATA_E_INPUT, "%s: does not say that it was made of what its name says", k->path);
    if (st == STRATA_OK)
        st_token_file_close(file);
    if (!*there && (st == STRATA_OK || st == STRATA_E_INPUT)) {
        st_log(ST_LOG_WARN, "%s; now it is made again", strata_last_error());
        return STRATA_OK;
    }
    return st;
}
