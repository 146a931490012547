/* api/door_tokenizer.c - strata/tokenizer.h: text to tokens and back; conversations are in door_chat.c. */
#include "api/handles.h"
#include "core/base/error.h"
#include "core/base/fault.h"
#include "strata/tokenizer.h"

#include <stdlib.h>

struct strata_stream {
    struct strata_tokenizer *tokenizer;
    struct st_decoder *decoder;
    struct st_decoded text; /* what the last call gave */
};

strata_status strata_tokenizer_exists(bool *there, const char *dir)
{
    char files[ST_PATH_MAX];
    strata_status st;

    if (there == NULL || dir == NULL)
        return st_error_missing(__func__, there == NULL ? "there" : "dir");
    st = st_handle_find_files(files, &dir);
    return st == STRATA_OK ? st_tokenizer_exists(there, dir) : st;
}

strata_status strata_tokenizer_open(struct strata_tokenizer **tokenizer, const char *path)
{
    struct strata_tokenizer *t;
    char files[ST_PATH_MAX];
    strata_status st;

    if (tokenizer == NULL || path == NULL)
        return st_error_missing(__func__, tokenizer == NULL ? "tokenizer" : "path");
    if ((st = st_handle_find_files(files, &path)) != STRATA_OK)
        return st;
    t = st_fault_refuses("api.tokenizer") ? NULL : calloc(1, sizeof(*t));
    if (t == NULL)
        return st_nomem(sizeof(*t));
    atomic_init(&t->users, 1);
    st = st_tokenizer_open(&t->tokenizer, path);
    if (st == STRATA_OK)
        st = st_encoder_create(&t->encoder, t->tokenizer);
    if (st != STRATA_OK) {
        strata_tokenizer_close(t);
        return st;
    }
    *tokenizer = t;
    return STRATA_OK;
}

static int32_t id_of(uint32_t id)
{
    return id != ST_TOKEN_NONE ? (int32_t)id : -1;
}

strata_status strata_tokenizer_get_info(const struct strata_tokenizer *tokenizer, struct strata_tokenizer_info *info)
{
    struct strata_tokenizer_info i = {0};

    if (tokenizer == NULL || info == NULL)
        return st_error_missing(__func__, tokenizer == NULL ? "tokenizer" : "info");
    i.vocab = st_tokenizer_vocab(tokenizer->tokenizer);
    i.bos = id_of(st_tokenizer_role(tokenizer->tokenizer, ST_TOKEN_BOS));
    i.eos = id_of(st_tokenizer_role(tokenizer->tokenizer, ST_TOKEN_EOS));
    i.hash = st_tokenizer_hash(tokenizer->tokenizer);
    return st_handle_result(info, &i, sizeof(i), "strata_tokenizer_info");
}

strata_status strata_tokenizer_encode(struct strata_tokenizer *tokenizer, const char *text, size_t bytes,
                                      const struct strata_encode_opts *opts, const int32_t **ids, size_t *count)
{
    struct st_encode_opts how = {0};
    struct strata_encode_opts o;
    strata_status st;

    if (tokenizer == NULL || text == NULL || ids == NULL || count == NULL)
        return st_error_missing(__func__, tokenizer == NULL ? "tokenizer"
                                          : text == NULL    ? "text"
                                          : ids == NULL     ? "ids"
                                                            : "count");
    if ((st = st_handle_opts(&o, sizeof(o), opts, "strata_encode_opts")) != STRATA_OK)
        return st;
    how.add_special = o.add_special;
    how.special_as_text = o.special_as_text;
    tokenizer->encoding.count = 0;
    st = st_encode(tokenizer->encoder, text, bytes, &how, &tokenizer->encoding);
    if (st == STRATA_OK)
        st_handle_ids(&tokenizer->encoding, ids, count);
    return st;
}

void st_handle_ids(const struct st_encoding *encoding, const int32_t **ids, size_t *count)
{
    static const int32_t none;

    *ids = encoding->count > 0 ? (const int32_t *)encoding->ids : &none;
    *count = encoding->count;
}

static void give_text(const struct st_decoded *decoded, const char **text, size_t *bytes)
{
    *text = decoded->count > 0 ? decoded->bytes : "";
    *bytes = decoded->count;
}

strata_status strata_tokenizer_decode(struct strata_tokenizer *tokenizer, const int32_t *ids, size_t count, bool skip_special,
                                      const char **text, size_t *bytes)
{
    strata_status st;

    if (tokenizer == NULL || ids == NULL || text == NULL || bytes == NULL)
        return st_error_missing(__func__, tokenizer == NULL ? "tokenizer"
                                          : ids == NULL     ? "ids"
                                          : text == NULL    ? "text"
                                                            : "bytes");
    tokenizer->decoded.count = 0;
    st = st_decode(tokenizer->tokenizer, (const uint32_t *)ids, count, skip_special, &tokenizer->decoded);
    if (st == STRATA_OK)
        give_text(&tokenizer->decoded, text, bytes);
    return st;
}

void strata_tokenizer_close(struct strata_tokenizer *tokenizer)
{
    if (tokenizer == NULL || atomic_fetch_sub(&tokenizer->users, 1) > 1)
        return;
    st_encoder_destroy(tokenizer->encoder);
    st_tokenizer_close(tokenizer->tokenizer);
    st_encoding_free(&tokenizer->encoding);
    st_decoded_free(&tokenizer->decoded);
    free(tokenizer);
}

/* --- token by token --- */

strata_status strata_stream_open(struct strata_stream **stream, struct strata_tokenizer *tokenizer, bool skip_special)
{
    struct strata_stream *s;
    strata_status st;

    if (stream == NULL || tokenizer == NULL)
        return st_error_missing(__func__, stream == NULL ? "stream" : "tokenizer");
    s = st_fault_refuses("api.stream") ? NULL : calloc(1, sizeof(*s));
    if (s == NULL)
        return st_nomem(sizeof(*s));
    s->tokenizer = tokenizer;
    atomic_fetch_add(&tokenizer->users, 1);
    st = st_decoder_create(&s->decoder, tokenizer->tokenizer, skip_special);
    if (st != STRATA_OK) {
        strata_stream_close(s);
        return st;
    }
    *stream = s;
    return STRATA_OK;
}

strata_status strata_stream_push(struct strata_stream *stream, int32_t id, const char **text, size_t *bytes)
{
    strata_status st;

    if (stream == NULL || text == NULL || bytes == NULL)
        return st_error_missing(__func__, stream == NULL ? "stream" : text == NULL ? "text" : "bytes");
    stream->text.count = 0;
    st = st_decoder_push(stream->decoder, (uint32_t)id, &stream->text);
    if (st == STRATA_OK)
        give_text(&stream->text, text, bytes);
    return st;
}

strata_status strata_stream_finish(struct strata_stream *stream, const char **text, size_t *bytes)
{
    strata_status st;

    if (stream == NULL || text == NULL || bytes == NULL)
        return st_error_missing(__func__, stream == NULL ? "stream" : text == NULL ? "text" : "bytes");
    stream->text.count = 0;
    st = st_decoder_finish(stream->decoder, &stream->text);
    if (st == STRATA_OK)
        give_text(&stream->text, text, bytes);
    return st;
}

void strata_stream_close(struct strata_stream *stream)
{
    if (stream == NULL)
        return;
    st_decoder_destroy(stream->decoder);
    st_decoded_free(&stream->text);
    strata_tokenizer_close(stream->tokenizer);
    free(stream);
}
