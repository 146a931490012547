/* text/data/tokens_text.c - turns text into token files, by a tokenizer or one token per byte; every n-th block may be held out.
 *
 * By bytes, all texts are one.  A tokenizer gets each text as a document: what its post-processor puts around one, and an end
 * token. What is held out is another text then, cut at the ends of lines. */
#include "core/base/error.h"
#include "core/system/file.h"
#include "text/data/texts.h"
#include "text/data/token_writer.h"
#include "text/data/tokens.h"
#include "text/tokenizer/tokenizer.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

#define BLOCK_BYTES 16384u
#define BYTE_VOCAB  256u
#define PUT_TOKENS  4096u

struct output {
    const char *path;
    struct st_token_writer *writer;
    uint64_t source_bytes, replaced;
    bool inside;                /* a document has begun */
    struct st_encoder *encoder; /* NULL: by bytes */
    struct st_encoding ids;
};

struct job {
    const struct st_tokenizer *tokenizer; /* NULL: by bytes */
    struct st_token_origin *origin;       /* NULL: not to be kept */
    struct output train, heldout;
    uint64_t every; /* the last of each `every` blocks is held out; 0: none */
    uint64_t block; /* blocks done */
    uint32_t fill;  /* bytes in `bytes` */
    char bytes[BLOCK_BYTES];
};

/* Opens an output, which must not be one of the texts; a kept one is named by a digest of them. */
static strata_status output_open(struct job *j, struct output *o, const char *path, const struct st_texts *texts, bool overwrite)
{
    const struct st_token_writer_opts opts = {.vocab = j->tokenizer != NULL ? st_tokenizer_vocab(j->tokenizer) : BYTE_VOCAB,
                                              .bare = j->origin == NULL,
                                              .overwrite = overwrite,
                                              .origin = j->origin};
    strata_status st = STRATA_OK;

    o->path = path;
    for (uint32_t i = 0; i < texts->count && j->origin == NULL && st == STRATA_OK; i++)
        st = st_token_writer_check_apart(path, texts->paths[i]);
    if (st == STRATA_OK)
        st = st_token_writer_create(&o->writer, path, &opts);
    if (st == STRATA_OK && j->tokenizer != NULL)
        st = st_encoder_create(&o->encoder, j->tokenizer);
    return st;
}

/* One token per byte; all are one document. */
static strata_status put_bytes(struct output *o, const unsigned char *bytes, size_t count)
{
    uint32_t ids[PUT_TOKENS];
    strata_status st = STRATA_OK;

    for (size_t at = 0; at < count && st == STRATA_OK; at += PUT_TOKENS) {
        const uint32_t part = (uint32_t)(count - at < PUT_TOKENS ? count - at : PUT_TOKENS);

        for (uint32_t i = 0; i < part; i++)
            ids[i] = bytes[at + i];
        st = st_token_writer_tokens(o->writer) == 0 ? st_token_writer_put(o->writer, ids, NULL, part)
                                                    : st_token_writer_more(o->writer, ids, NULL, part);
    }
    return st;
}

/* The ids that the encoder has given out. */
static strata_status put_ids(struct output *o)
{
    const strata_status st = st_token_writer_put(o->writer, o->ids.ids, NULL, o->ids.count);

    o->ids.count = 0;
    return st;
}

static strata_status output_put(struct output *o, const char *text, size_t bytes)
{
    strata_status st;

    o->source_bytes += bytes;
    if (o->encoder == NULL)
        return put_bytes(o, (const unsigned char *)text, bytes);
    if (!o->inside)
        st_encode_begin(o->encoder, &(struct st_encode_opts){.add_special = true});
    o->inside = true;
    st = st_encode_feed(o->encoder, text, bytes, &o->ids);
    return st == STRATA_OK ? put_ids(o) : st;
}

/* The end of a document: one end token, whether or not the post-processor adds it. */
static strata_status output_end(const struct job *j, struct output *o)
{
    const uint32_t eos = j->tokenizer != NULL ? st_tokenizer_role(j->tokenizer, ST_TOKEN_EOS) : ST_TOKEN_NONE;
    strata_status st;

    if (!o->inside)
        return STRATA_OK;
    o->inside = false;
    if ((st = st_encode_finish(o->encoder, &o->ids)) != STRATA_OK)
        return st;
    o->replaced += st_encoder_replaced(o->encoder);
    if (eos != ST_TOKEN_NONE && (o->ids.count == 0 || o->ids.ids[o->ids.count - 1] != eos) &&
        (st = st_encoding_add(&o->ids, eos)) != STRATA_OK)
        return st;
    return put_ids(o);
}

static void output_close(struct output *o)
{
    st_token_writer_abort(o->writer);
    st_encoder_destroy(o->encoder);
    st_encoding_free(&o->ids);
}

/* Where a block ends: a tokenizer's at the end of a line, or of a character. */
static uint32_t block_end(const struct job *j, bool last)
{
    const char *newline = j->tokenizer != NULL && !last ? memrchr(j->bytes, '\n', j->fill) : NULL;
    uint32_t end = j->fill;

    if (newline != NULL)
        return (uint32_t)(newline - j->bytes) + 1;
    for (unsigned i = 0; j->tokenizer != NULL && !last && i < 3 && end > 1 && ((unsigned char)j->bytes[end - 1] & 0xc0) == 0x80;
         i++)
        end--;
    return j->tokenizer != NULL && !last && end > 1 && (unsigned char)j->bytes[end - 1] >= 0xc0 ? end - 1 : end;
}

static strata_status block_done(struct job *j, bool last)
{
    const bool aside = j->every > 0 && j->block % j->every == j->every - 1;
    const uint32_t end = block_end(j, last);
    const strata_status st = output_put(aside ? &j->heldout : &j->train, j->bytes, end);

    memmove(j->bytes, j->bytes + end, j->fill - end);
    j->fill -= end;
    j->block++;
    return st;
}

static strata_status take_part(void *context, const char *text, size_t bytes)
{
    struct job *j = context;
    strata_status st = STRATA_OK;

    while (bytes > 0 && st == STRATA_OK) {
        const size_t room = BLOCK_BYTES - j->fill, part = bytes < room ? bytes : room;

        memcpy(j->bytes + j->fill, text, part);
        j->fill += (uint32_t)part;
        text += part;
        bytes -= part;
        if (j->fill == BLOCK_BYTES)
            st = block_done(j, false);
    }
    return st;
}

/* By bytes, the next text goes on in the same block. */
static strata_status end_text(void *context)
{
    struct job *j = context;
    strata_status st = STRATA_OK;

    if (j->tokenizer == NULL)
        return STRATA_OK;
    if (j->fill > 0)
        st = block_done(j, true);
    if (st == STRATA_OK)
        st = output_end(j, &j->train);
    return st == STRATA_OK ? output_end(j, &j->heldout) : st;
}

strata_status st_tokens_heldout_path(char out[ST_PATH_MAX], const char *path)
{
    const char *base = st_path_name(path), *dot = strrchr(base, '.');
    size_t stem;
    int length;

    stem = dot != NULL && dot != base ? (size_t)(dot - path) : strlen(path);
    length = snprintf(out, ST_PATH_MAX, "%.*s.heldout%s", (int)stem, path, path + stem);
    return length > 0 && length < ST_PATH_MAX ? STRATA_OK : st_error(STRATA_E_INVAL, "path too long: %s", path);
}

strata_status st_tokens_meta_path(char out[ST_PATH_MAX], const char *path)
{
    return snprintf(out, ST_PATH_MAX, "%s" ST_TOKEN_META_SUFFIX, path) < ST_PATH_MAX
               ? STRATA_OK
               : st_error(STRATA_E_INPUT, "path too long: %s", path);
}

static strata_status start(struct job *j, const struct st_texts *texts, const char *out, double heldout, bool overwrite,
                           char heldout_path[ST_PATH_MAX])
{
    strata_status st;

    if (!(heldout == 0.0 || (heldout > 1e-6 && heldout <= 0.5)))
        return st_error(STRATA_E_INVAL, "a held-out part of %g: it must be 0, or above 0 and at most 0.5", heldout);
    if (heldout > 0.0) {
        j->every = (uint64_t)llround(1.0 / heldout);
        if ((st = st_tokens_heldout_path(heldout_path, out)) != STRATA_OK ||
            (st = output_open(j, &j->heldout, heldout_path, texts, overwrite)) != STRATA_OK)
            return st;
    }
    return output_open(j, &j->train, out, texts, overwrite);
}

/* Both files are one data set: they get their names together. */
static strata_status finish(struct job *j, const struct st_texts *texts, struct st_tokens_report *r)
{
    struct st_token_writer *const writers[2] = {j->train.writer, j->heldout.writer};
    char name[ST_PATH_MAX];
    strata_status st;

    if (j->fill > 0 && (st = block_done(j, true)) != STRATA_OK)
        return st;
    r->tokens = st_token_writer_tokens(j->train.writer);
    r->heldout_tokens = j->every > 0 ? st_token_writer_tokens(j->heldout.writer) : 0;
    r->source_bytes = j->train.source_bytes;
    r->heldout_bytes = j->heldout.source_bytes;
    r->replaced = j->train.replaced + j->heldout.replaced;
    st_texts_name(name, sizeof(name), texts->paths, texts->count);
    if (r->tokens == 0)
        return st_error(STRATA_E_INPUT, "%s: the text is empty", name);
    if (j->every > 0 && r->heldout_tokens == 0)
        return st_error_remedy(st_error(STRATA_E_INPUT, "%s: %llu bytes are too few to set every %lluth block of %u bytes aside",
                                        name, (unsigned long long)r->source_bytes, (unsigned long long)j->every, BLOCK_BYTES),
                               "tokens.heldout", "give more text, or no tokens.heldout");
    j->train.writer = j->heldout.writer = NULL;
    return st_token_writer_finish(writers, (const uint64_t[]){r->source_bytes, r->heldout_bytes});
}

static strata_status run(struct job *j, const char *const *texts, uint32_t count, const char *out, double heldout, bool overwrite,
                         struct st_tokens_report *report)
{
    const struct st_texts all = {
        .paths = texts, .count = count, .part = take_part, .end = end_text, .context = j, .keep_mark = j->tokenizer == NULL};
    struct st_tokens_report r = {0};
    strata_status st = start(j, &all, out, heldout, overwrite, r.heldout_path);

    if (st == STRATA_OK)
        st = st_texts_read(&all);
    if (st == STRATA_OK)
        st = finish(j, &all, &r);
    if (st == STRATA_OK && report != NULL)
        *report = r;
    output_close(&j->train);
    output_close(&j->heldout);
    return st;
}

strata_status st_tokens_from_text(const struct st_tokenizer *tokenizer, const char *const *texts, uint32_t count, const char *out,
                                  double heldout, bool overwrite, struct st_tokens_report *report)
{
    struct job j = {.tokenizer = tokenizer};

    return run(&j, texts, count, out, heldout, overwrite, report);
}

strata_status st_tokens_from_bytes(const char *const *texts, uint32_t count, const char *out, struct st_token_origin *origin)
{
    struct job j = {.origin = origin};

    return run(&j, texts, count, out, 0, false, NULL);
}
