/* model/data/tokens_text.c - turns text into token files, by a tokenizer or one token per byte; every n-th block may be held out.
 *
 * By bytes, all texts are one.  A tokenizer gets each text as a document: what its post-processor puts around one, and an end
 * token. What is held out is a text of its own then, cut at the ends of lines. */
#include "core/base/error.h"
#include "core/base/fault.h"
#include "core/system/ending.h"
#include "core/system/file.h"
#include "model/data/texts.h"
#include "model/data/tokens.h"
#include "model/tokenizer/tokenizer.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define BLOCK_BYTES 16384u
#define BYTE_VOCAB  256u
#define TOKENS_MAX  INT32_MAX /* the header's count is an int32 */
#define PUT_TOKENS  4096u

struct output {
    struct st_new_file file;
    uint64_t tokens, source_bytes, replaced;
    uint32_t token_bytes;
    bool open;
    bool inside;                /* a document has begun */
    struct st_encoder *encoder; /* NULL: by bytes */
    struct st_encoding ids;
};

struct job {
    const struct st_tokenizer *tokenizer; /* NULL: by bytes */
    struct output train, heldout;
    uint64_t every; /* the last of each `every` blocks is held out; 0: none */
    uint64_t block; /* blocks done */
    uint32_t fill;  /* bytes in `bytes` */
    char bytes[BLOCK_BYTES];
};

static uint32_t vocab_of(const struct job *j)
{
    return j->tokenizer != NULL ? st_tokenizer_vocab(j->tokenizer) : BYTE_VOCAB;
}

/* Opens an output, which must not be one of the texts. */
static strata_status output_open(struct job *j, struct output *o, const char *path, const struct st_texts *texts, bool overwrite)
{
    strata_status st = STRATA_OK;

    for (uint32_t i = 0; i < texts->count && st == STRATA_OK; i++)
        st = st_file_check_apart(path, texts->paths[i]);
    if (st == STRATA_OK)
        st = st_new_file_create(&o->file, path, overwrite ? ST_NEW_FILE_OVERWRITE : 0);
    o->open = st == STRATA_OK;
    o->token_bytes = vocab_of(j) > UINT16_MAX + 1u ? 4 : 2;
    if (st == STRATA_OK && j->tokenizer != NULL)
        st = st_encoder_create(&o->encoder, j->tokenizer);
    return st;
}

static void put_number(unsigned char *out, uint32_t bytes, uint32_t value)
{
    for (uint32_t b = 0; b < bytes; b++)
        out[b] = (unsigned char)(value >> (8 * b));
}

/* At most PUT_TOKENS. */
static strata_status write_tokens(struct output *o, const unsigned char *words, uint32_t count)
{
    const uint64_t at = ST_TOKEN_HEADER_BYTES + o->token_bytes * o->tokens;

    if (o->tokens + count > TOKENS_MAX)
        return st_error(STRATA_E_INPUT, "%s: over %d tokens; a token file holds no more: split the text", o->file.path,
                        TOKENS_MAX);
    o->tokens += count;
    return st_new_file_write_at(&o->file, words, o->token_bytes * (uint64_t)count, at);
}

/* One token per byte, or the ids that the encoder has given out. */
static strata_status put_tokens(struct output *o, const unsigned char *bytes, size_t count)
{
    unsigned char words[4 * PUT_TOKENS];
    strata_status st = STRATA_OK;

    for (size_t at = 0; at < count && st == STRATA_OK; at += PUT_TOKENS) {
        const uint32_t part = (uint32_t)(count - at < PUT_TOKENS ? count - at : PUT_TOKENS);

        for (uint32_t i = 0; i < part; i++)
            put_number(words + o->token_bytes * i, o->token_bytes, bytes != NULL ? bytes[at + i] : o->ids.ids[at + i]);
        st = write_tokens(o, words, part);
    }
    return st;
}

static strata_status put_ids(struct output *o)
{
    const strata_status st = put_tokens(o, NULL, o->ids.count);

    o->ids.count = 0;
    return st;
}

static strata_status output_put(struct output *o, const char *text, size_t bytes)
{
    strata_status st;

    o->source_bytes += bytes;
    if (o->encoder == NULL)
        return put_tokens(o, (const unsigned char *)text, bytes);
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

static strata_status output_header(const struct job *j, struct output *o)
{
    unsigned char header[ST_TOKEN_HEADER_BYTES];

    st_token_header_write(
        header, &(struct st_token_header){
                    .token_bytes = o->token_bytes, .vocab = vocab_of(j), .count = o->tokens, .source_bytes = o->source_bytes});
    return st_new_file_write_at(&o->file, header, sizeof(header), 0);
}

static void output_close(struct output *o)
{
    if (o->open)
        st_new_file_abort(&o->file); /* nothing after commit */
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

/* A file that replaced another stays, since the old one cannot be restored; so does one that cannot be removed: it is complete.
 */
static void take_back(const struct st_new_file *f)
{
    if (!f->overwrite && !st_fault_refuses("tokens.take_back"))
        (void)unlink(f->path);
}

/* Both files are one data set: they are on the disk before the first takes its name, and a signal finds neither or both. */
static strata_status name_both(struct job *j)
{
    strata_status st;

    if ((st = st_new_file_sync(&j->heldout.file)) != STRATA_OK || (st = st_new_file_sync(&j->train.file)) != STRATA_OK)
        return st;
    st_ending_hold();
    if ((st = st_new_file_publish(&j->heldout.file)) == STRATA_OK && (st = st_new_file_publish(&j->train.file)) != STRATA_OK)
        take_back(&j->heldout.file);
    if (st == STRATA_OK)
        st = st_new_file_commit(&j->heldout.file);
    if (st == STRATA_OK)
        st = st_new_file_commit(&j->train.file);
    st_ending_release();
    return st;
}

strata_status st_tokens_heldout_path(char out[ST_PATH_MAX], const char *path)
{
    const char *base = strrchr(path, '/'), *dot;
    size_t stem;
    int length;

    base = base != NULL ? base + 1 : path;
    dot = strrchr(base, '.');
    stem = dot != NULL && dot != base ? (size_t)(dot - path) : strlen(path);
    length = snprintf(out, ST_PATH_MAX, "%.*s.heldout%s", (int)stem, path, path + stem);
    return length > 0 && length < ST_PATH_MAX ? STRATA_OK : st_error(STRATA_E_INVAL, "path too long: %s", path);
}

static strata_status start(struct job *j, const struct st_texts *texts, const char *out, double heldout, bool overwrite,
                           char heldout_path[ST_PATH_MAX])
{
    strata_status st;

    if (!(heldout == 0.0 || (heldout > 1e-6 && heldout <= 0.5)))
        return st_error(STRATA_E_INVAL, "a held-out part of %g: it must be 0, or above 0 and at most 0.5", heldout);
    heldout_path[0] = '\0';
    if (heldout > 0.0) {
        j->every = (uint64_t)llround(1.0 / heldout);
        if ((st = st_tokens_heldout_path(heldout_path, out)) != STRATA_OK ||
            (st = output_open(j, &j->heldout, heldout_path, texts, overwrite)) != STRATA_OK)
            return st;
    }
    return output_open(j, &j->train, out, texts, overwrite);
}

static strata_status finish(struct job *j)
{
    strata_status st;

    if (j->fill > 0 && (st = block_done(j, true)) != STRATA_OK)
        return st;
    if (j->train.tokens == 0)
        return st_error(STRATA_E_INPUT, "%s: the text is empty", j->train.file.path);
    if (j->every > 0 && j->heldout.tokens == 0)
        return st_error(STRATA_E_INPUT,
                        "%s: the text is too short to set every %lluth block of %u bytes aside: give more text, or no --heldout",
                        j->train.file.path, (unsigned long long)j->every, BLOCK_BYTES);
    if ((st = output_header(j, &j->train)) != STRATA_OK || (j->every > 0 && (st = output_header(j, &j->heldout)) != STRATA_OK))
        return st;
    return j->every > 0 ? name_both(j) : st_new_file_commit(&j->train.file);
}

strata_status st_tokens_from_text(const struct st_tokenizer *tokenizer, const char *const *texts, uint32_t count, const char *out,
                                  double heldout, bool overwrite, struct st_tokens_report *report)
{
    struct job j = {.tokenizer = tokenizer};
    const struct st_texts all = {.paths = texts, .count = count, .part = take_part, .end = end_text, .context = &j};
    char heldout_path[ST_PATH_MAX];
    strata_status st = start(&j, &all, out, heldout, overwrite, heldout_path);

    if (st == STRATA_OK)
        st = st_texts_read(&all);
    if (st == STRATA_OK)
        st = finish(&j);
    if (st == STRATA_OK && report != NULL) {
        *report = (struct st_tokens_report){
            .tokens = j.train.tokens,
            .source_bytes = j.train.source_bytes,
            .heldout_tokens = j.heldout.tokens,
            .heldout_bytes = j.heldout.source_bytes,
            .replaced = j.train.replaced + j.heldout.replaced,
        };
        memcpy(report->heldout_path, heldout_path, sizeof(report->heldout_path));
    }
    output_close(&j.train);
    output_close(&j.heldout);
    return st;
}
