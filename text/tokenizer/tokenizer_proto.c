/* text/tokenizer/tokenizer_proto.c - tokenizer.model: a SentencePiece model of type BPE, where there is no tokenizer.json.
 *
 * The file is a protobuf message; only what is needed of it is read, by a reader that never leaves its bytes.  SentencePiece
 * joins the two neighbours whose joined text is the piece with the best score, the leftmost among equals: so each way to split a
 * piece into two pieces is a merge, ranked by the piece's score.  Where `legacy` is not false, each stretch between special
 * tokens gets a space in front, as transformers does it. */
#include "text/tokenizer/tokenizer_internal.h"

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/system/file.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FILE_BYTES_MAX  (64u << 20)
#define PIECE_BYTES_MAX 512u

enum piece_type { NORMAL = 1, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE };

struct piece {
    float score;
    uint32_t type, rank;
};

struct model {
    const char *path;
    struct piece *pieces; /* [count] by id */
    size_t count, capacity;
    uint64_t type; /* of the model: 2 is BPE */
    bool byte_fallback, suffix, dummy_prefix, squeeze, escape, charsmap;
    int64_t roles[ST_TOKEN_ROLES]; /* ids; negative: none */
};

/* A message of protocol buffers, from the next field on. */
struct bytes {
    const unsigned char *at, *end;
};

struct field {
    uint64_t number, value; /* value: of a varint, or the bits of a fixed32 */
    struct bytes body;      /* of a length-delimited field */
    unsigned wire;
};

static bool read_varint(struct bytes *b, uint64_t *out)
{
    *out = 0;
    for (unsigned shift = 0; shift < 64 && b->at < b->end; shift += 7) {
        const unsigned char byte = *b->at++;

        *out |= (uint64_t)(byte & 0x7f) << shift;
        if (byte < 0x80)
            return true;
    }
    return false;
}

/* The next field; false: the end, or *bad. */
static bool next_field(struct bytes *b, struct field *out, bool *bad)
{
    uint64_t key, bytes = 0;

    *bad = false;
    if (b->at == b->end)
        return false;
    *bad = true;
    *out = (struct field){0};
    if (!read_varint(b, &key))
        return false;
    out->number = key >> 3;
    out->wire = key & 7;
    if (out->wire == 0) {
        if (!read_varint(b, &out->value))
            return false;
    } else if (out->wire == 2) {
        if (!read_varint(b, &bytes) || bytes > (uint64_t)(b->end - b->at))
            return false;
        out->body = (struct bytes){b->at, b->at + bytes};
    } else if (out->wire == 1 || out->wire == 5) {
        bytes = out->wire == 1 ? 8 : 4;
        if (bytes > (uint64_t)(b->end - b->at))
            return false;
        for (unsigned i = 0; i < bytes; i++)
            out->value |= (uint64_t)b->at[i] << 8 * i;
    } else {
        return false;
    }
    b->at += bytes;
    *bad = false;
    return true;
}

static strata_status broken(const struct model *m)
{
    return st_error(STRATA_E_INPUT, "%s: is no SentencePiece model, or is cut off", m->path);
}

static strata_status add_piece(struct st_tokenizer *t, struct model *m, const struct bytes *text, const struct piece *piece)
{
    const struct st_place at = {.file = m->path};
    const uint32_t id = (uint32_t)m->count;
    const size_t bytes = (size_t)(text->end - text->at);

    if (piece->type == USER_DEFINED || piece->type == UNUSED || piece->type < NORMAL || piece->type > BYTE)
        return st_place_fault(&at, NULL,
                              "piece %u is of type %u (user-defined, unused or unknown): not supported; save it as a "
                              "tokenizer.json with transformers",
                              id, piece->type);
    if (bytes == 0 || bytes > PIECE_BYTES_MAX || memchr(text->at, '\0', bytes) != NULL || isnan(piece->score))
        return st_place_fault(&at, NULL, "piece %u must have 1 to %u bytes, none of them 0, and a score", id, PIECE_BYTES_MAX);
    for (size_t i = 0, length; i < bytes; i += length)
        if ((length = st_text_utf8_bytes((const char *)text->at + i, bytes - i)) == 0)
            return st_place_fault(&at, NULL, "piece %u is not UTF-8", id);
    if (id >= ST_TOKENIZER_VOCAB_MAX)
        return st_place_fault(&at, NULL, "more than %u pieces", ST_TOKENIZER_VOCAB_MAX);
    if (!st_tokenizer_grow(&m->pieces, &m->capacity, m->count + 1, sizeof(m->pieces[0])))
        return st_nomem(0);
    m->pieces[m->count++] = *piece;
    return st_tokenizer_add_token(&t->bpe.vocab, &at, NULL, (const char *)text->at, bytes, id);
}

static strata_status read_piece(struct st_tokenizer *t, struct model *m, struct bytes b)
{
    struct piece piece = {.type = NORMAL};
    struct bytes text = {b.at, b.at};
    struct field f;
    bool bad;

    while (next_field(&b, &f, &bad)) {
        const uint32_t bits = (uint32_t)f.value;

        if (f.number == 1 && f.wire == 2)
            text = f.body;
        else if (f.number == 2 && f.wire == 5)
            memcpy(&piece.score, &bits, sizeof(bits));
        else if (f.number == 3 && f.wire == 0)
            piece.type = f.value > BYTE ? BYTE + 1 : bits;
    }
    return bad ? broken(m) : add_piece(t, m, &text, &piece);
}

static strata_status read_trainer(struct model *m, struct bytes b)
{
    static const enum st_token_role roles[] = {ST_TOKEN_UNK, ST_TOKEN_BOS, ST_TOKEN_EOS, ST_TOKEN_PAD}; /* fields 40 to 43 */
    struct field f;
    bool bad;

    while (next_field(&b, &f, &bad)) {
        if (f.number == 3)
            m->type = f.value;
        else if (f.number == 24)
            m->suffix = f.value != 0;
        else if (f.number == 35)
            m->byte_fallback = f.value != 0;
        else if (f.number >= 40 && f.number <= 43)
            m->roles[roles[f.number - 40]] = (int64_t)f.value;
    }
    return bad ? broken(m) : STRATA_OK;
}

static strata_status read_normalizer(struct model *m, struct bytes b)
{
    struct field f;
    bool bad;

    while (next_field(&b, &f, &bad)) {
        if (f.number == 2)
            m->charsmap = f.body.at != f.body.end;
        else if (f.number == 3)
            m->dummy_prefix = f.value != 0;
        else if (f.number == 4)
            m->squeeze = f.value != 0;
        else if (f.number == 5)
            m->escape = f.value != 0;
    }
    return bad ? broken(m) : STRATA_OK;
}

static strata_status read_message(struct st_tokenizer *t, struct model *m, struct bytes b)
{
    struct field f;
    bool bad;
    strata_status st = STRATA_OK;

    while (st == STRATA_OK && next_field(&b, &f, &bad)) {
        if (f.wire != 2)
            continue;
        if (f.number == 1)
            st = read_piece(t, m, f.body);
        else if (f.number == 2)
            st = read_trainer(m, f.body);
        else if (f.number == 3)
            st = read_normalizer(m, f.body);
    }
    return st == STRATA_OK && (bad || m->count == 0) ? broken(m) : st;
}

static strata_status check_kind(const struct model *m)
{
    const struct {
        bool wrong;
        const char *field, *what;
    } rows[] = {
        {m->type != 2, "trainer_spec.model_type", "must be BPE"},
        {m->suffix, "trainer_spec.treat_whitespace_as_suffix", "must be false"},
        {m->charsmap, "normalizer_spec.precompiled_charsmap", "must be empty (the identity)"},
        {m->squeeze, "normalizer_spec.remove_extra_whitespaces", "must be false"},
        {!m->escape, "normalizer_spec.escape_whitespaces", "must be true"},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        if (rows[i].wrong)
            return st_error(STRATA_E_INPUT, "%s: %s %s; save it as a tokenizer.json with transformers", m->path, rows[i].field,
                            rows[i].what);
    return STRATA_OK;
}

static int by_score(const void *a, const void *b, void *context)
{
    const struct model *m = context;
    const float x = m->pieces[*(const uint32_t *)a].score, y = m->pieces[*(const uint32_t *)b].score;

    return (x < y) - (x > y);
}

/* Ranks: pieces of one score share one. */
static strata_status rank_pieces(struct model *m)
{
    uint32_t *order = st_tokenizer_alloc(m->count, sizeof(order[0])), rank = 0;

    if (order == NULL)
        return st_nomem(0);
    for (uint32_t i = 0; i < m->count; i++)
        order[i] = i;
    qsort_r(order, m->count, sizeof(order[0]), by_score, m);
    for (size_t i = 0; i < m->count; i++) {
        if (i > 0 && m->pieces[order[i]].score != m->pieces[order[i - 1]].score)
            rank++;
        m->pieces[order[i]].rank = rank;
    }
    free(order);
    return STRATA_OK;
}

/* A piece that merges can make or use. */
static uint32_t find_normal(const struct st_tokenizer *t, const struct model *m, const char *text, size_t bytes)
{
    const uint32_t id = st_vocab_find(&t->bpe.vocab, text, bytes);

    return id != ST_TOKEN_NONE && m->pieces[id].type == NORMAL ? id : ST_TOKEN_NONE;
}

/* All ways to split each piece in two; counted first (put false), then put.  E_INPUT: a character is no piece. */
static strata_status split_pieces(struct st_tokenizer *t, const struct model *m, bool put, size_t *count)
{
    const struct st_place at = {.file = m->path};

    for (uint32_t id = 0; id < m->count; id++) {
        size_t bytes, length;
        const char *text = st_vocab_text(&t->bpe.vocab, id, &bytes);

        if (m->pieces[id].type != NORMAL)
            continue;
        for (size_t i = 0; i < bytes; i += length) {
            struct st_merge merge = {.rank = m->pieces[id].rank, .id = id};

            (void)st_utf8_at(text + i, &length);
            if (find_normal(t, m, text + i, length) == ST_TOKEN_NONE)
                return st_place_fault(&at, NULL, "piece %u has a character that has no piece", id);
            merge.left = i == 0 ? ST_TOKEN_NONE : find_normal(t, m, text, i);
            merge.right = i == 0 ? ST_TOKEN_NONE : find_normal(t, m, text + i, bytes - i);
            if (merge.left == ST_TOKEN_NONE || merge.right == ST_TOKEN_NONE)
                continue;
            ++*count;
            if (put)
                st_merges_put(&t->bpe.merges, &merge);
        }
    }
    return STRATA_OK;
}

static strata_status add_merges(struct st_tokenizer *t, struct model *m)
{
    size_t count = 0;
    strata_status st;

    if ((st = rank_pieces(m)) != STRATA_OK || (st = split_pieces(t, m, false, &count)) != STRATA_OK)
        return st;
    if (!st_merges_reserve(&t->bpe.merges, count))
        return st_nomem(0);
    return split_pieces(t, m, true, &count);
}

/* Control pieces are tokens where a text has them, as in transformers. */
static strata_status add_controls(struct st_tokenizer *t, const struct model *m)
{
    const struct st_place at = {.file = m->path};
    strata_status st = STRATA_OK;
    size_t bytes;

    for (uint32_t id = 0; id < m->count && st == STRATA_OK; id++)
        if (m->pieces[id].type == CONTROL || m->pieces[id].type == UNKNOWN) {
            const char *text = st_vocab_text(&t->bpe.vocab, id, &bytes);

            if (m->pieces[id].type == UNKNOWN)
                t->bpe.unk = id;
            st = st_tokenizer_put_added(t, &at, &(struct st_added){.bytes = bytes, .id = id, .special = true}, text);
        }
    return st;
}

static strata_status add_parts(struct st_tokenizer *t, const struct model *m, const st_json *config)
{
    static const char decoder[] =
        "\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Replace\",\"pattern\":{\"String\":"
        "\"\u2581\"},\"content\":\" \"},{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"},{\"type\":\"Strip\","
        "\"content\":\" \",\"start\":%d,\"stop\":0}]}";
    static const char before[] = "\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[%s{\"type\":\"Replace\",\"pattern\":"
                                 "{\"String\":\" \"},\"content\":\"\u2581\"}]},";
    static const char first[] =
        "\"pre_tokenizer\":{\"type\":\"Metaspace\",\"replacement\":\"\u2581\",\"prepend_scheme\":\"first\","
        "\"split\":false},";
    const struct st_place at = {.file = "tokenizer_config.json", .node = config};
    bool legacy = true, bos = true, eos = false;
    char parts[1024], normalizer[512];
    strata_status st;

    if (config != NULL && ((st = st_place_bool(&legacy, &at, "legacy")) != STRATA_OK ||
                           (st = st_place_bool(&bos, &at, "add_bos_token")) != STRATA_OK ||
                           (st = st_place_bool(&eos, &at, "add_eos_token")) != STRATA_OK))
        return st;
    snprintf(normalizer, sizeof(normalizer), before, m->dummy_prefix ? "{\"type\":\"Prepend\",\"prepend\":\"\u2581\"}," : "");
    snprintf(parts, sizeof(parts), "{%s", m->dummy_prefix && !legacy ? first : normalizer);
    snprintf(parts + strlen(parts), sizeof(parts) - strlen(parts), decoder, m->dummy_prefix);
    snprintf(parts + strlen(parts), sizeof(parts) - strlen(parts), "}");
    for (unsigned role = 0; role < ST_TOKEN_ROLES; role++)
        if (m->roles[role] >= 0 && (uint64_t)m->roles[role] < m->count)
            t->roles[role] = (uint32_t)m->roles[role];
    if (bos && t->roles[ST_TOKEN_BOS] != ST_TOKEN_NONE)
        t->prefix[t->prefix_count++] = t->roles[ST_TOKEN_BOS];
    if (eos && t->roles[ST_TOKEN_EOS] != ST_TOKEN_NONE)
        t->suffix[t->suffix_count++] = t->roles[ST_TOKEN_EOS];
    return st_tokenizer_parse_parts(t, parts, m->path);
}

strata_status st_tokenizer_read_proto(struct st_tokenizer *t, const char *path)
{
    struct model m = {.path = path, .type = 1, .dummy_prefix = true, .squeeze = true, .escape = true, .roles = {1, 2, 0, -1}};
    st_json *config = NULL;
    char *text;
    uint64_t bytes;
    strata_status st = st_file_read_text(&text, &bytes, path, FILE_BYTES_MAX);

    if (st != STRATA_OK)
        return st;
    st = read_message(t, &m, (struct bytes){(unsigned char *)text, (unsigned char *)text + bytes});
    free(text);
    t->bpe.byte_fallback = m.byte_fallback;
    t->bpe.fuse_unk = true;
    if (st == STRATA_OK && (st = check_kind(&m)) == STRATA_OK && (st = add_merges(t, &m)) == STRATA_OK &&
        (st = add_controls(t, &m)) == STRATA_OK)
        st = st_tokenizer_beside(&config, path, "tokenizer_config.json");
    if (st == STRATA_OK)
        st = add_parts(t, &m, config);
    st_json_free(config);
    free(m.pieces);
    return st;
}
