/* text/data/tokens_file.c - one token file: header, size and a scan of every token when it is opened. */
#include "core/base/checksum.h"
#include "core/base/error.h"
#include "core/system/file.h"
#include "text/data/tokens_file_internal.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAGIC_U16   20240520u
#define VERSION_U16 1u
#define MAGIC_U32   20240801u
#define VERSION_U32 7u
#define SCAN_BYTES  (1u << 20)

#define SOURCE_BYTES_MOST  64u /* of text per token; today's tokenizers have about 4 */
#define SOURCE_TOKENS_MOST 8u  /* per byte of text; begin and end tokens stand for no bytes */

struct st_token_file {
    int fd;
    char path[ST_PATH_MAX], name[ST_PATH_MAX]; /* name: in messages */
    struct st_file_identity identity;
    struct st_token_header header;
    uint32_t header_sum;        /* low bits of its checksum */
    struct st_token_meta *meta; /* NULL: there is none */
};

static uint32_t header_word(const unsigned char *header, uint32_t i)
{
    const unsigned char *b = header + 4 * (size_t)i;

    return (uint32_t)b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24;
}

/* A wrong number of source bytes would give a wrong number of bits per byte. */
static strata_status check_source(const struct st_token_header *h, const char *name)
{
    if (h->source_bytes == 0 ||
        (h->source_bytes <= h->count * SOURCE_BYTES_MOST && h->source_bytes >= h->count / SOURCE_TOKENS_MOST))
        return STRATA_OK;
    return st_error(STRATA_E_INPUT,
                    "%s: header words 4 and 5: %llu tokens from %llu bytes of text, beyond %u bytes a token or %u tokens a byte: "
                    "correct them, or write 0",
                    name, (unsigned long long)h->count, (unsigned long long)h->source_bytes, SOURCE_BYTES_MOST,
                    SOURCE_TOKENS_MOST);
}

strata_status st_token_header_parse(struct st_token_header *out, const void *header, uint64_t bytes, uint64_t file_bytes,
                                    const char *name)
{
    struct st_token_header h = {0};
    uint64_t want;
    strata_status st;

    if (bytes < ST_TOKEN_HEADER_BYTES || file_bytes < ST_TOKEN_HEADER_BYTES)
        return st_error(STRATA_E_INPUT, "%s: %llu bytes are too few for a token file: make one with strata tokens", name,
                        (unsigned long long)file_bytes);
    if (header_word(header, 0) == MAGIC_U16 && header_word(header, 1) == VERSION_U16)
        h.token_bytes = 2;
    else if (header_word(header, 0) == MAGIC_U32 && header_word(header, 1) == VERSION_U32)
        h.token_bytes = 4;
    else
        return st_error(STRATA_E_INPUT, "%s: not a token file (magic %u, version %u): make one with strata tokens", name,
                        header_word(header, 0), header_word(header, 1));
    h.count = header_word(header, 2);
    h.vocab = header_word(header, 3);
    h.source_bytes = header_word(header, 4) | (uint64_t)header_word(header, 5) << 32;
    want = ST_TOKEN_HEADER_BYTES + h.count * h.token_bytes;
    if (h.count > INT32_MAX || file_bytes != want)
        return st_error(STRATA_E_INPUT, "%s: %llu bytes, but its header promises %llu tokens, which is %llu bytes", name,
                        (unsigned long long)file_bytes, (unsigned long long)h.count, (unsigned long long)want);
    if ((st = check_source(&h, name)) != STRATA_OK)
        return st;
    *out = h;
    return STRATA_OK;
}

void st_token_header_write(unsigned char out[ST_TOKEN_HEADER_BYTES], const struct st_token_header *header)
{
    const bool wide = header->token_bytes == 4;
    const uint32_t words[] = {wide ? MAGIC_U32 : MAGIC_U16,   wide ? VERSION_U32 : VERSION_U16,
                              (uint32_t)header->count,        header->vocab,
                              (uint32_t)header->source_bytes, (uint32_t)(header->source_bytes >> 32)};

    memset(out, 0, ST_TOKEN_HEADER_BYTES);
    for (uint32_t i = 0; i < 4 * sizeof(words) / sizeof(words[0]); i++)
        out[i] = (unsigned char)(words[i / 4] >> (8 * (i % 4)));
}

static uint32_t token_at(const unsigned char *bytes, uint64_t i, uint32_t token_bytes)
{
    uint32_t wide;
    uint16_t narrow;

    if (token_bytes == 4) {
        memcpy(&wide, bytes + 4 * i, sizeof(wide));
        return wide;
    }
    memcpy(&narrow, bytes + 2 * i, sizeof(narrow));
    return narrow;
}

static uint32_t largest_u16(const uint16_t *tokens, uint64_t count)
{
    uint16_t largest = 0;

    for (uint64_t i = 0; i < count; i++)
        largest = tokens[i] > largest ? tokens[i] : largest;
    return largest;
}

static uint32_t largest_u32(const uint32_t *tokens, uint64_t count)
{
    uint32_t largest = 0;

    for (uint64_t i = 0; i < count; i++)
        largest = tokens[i] > largest ? tokens[i] : largest;
    return largest;
}

/* " of document 3" for token number `at`, from 1; "" where the file does not say. */
static const char *document_of(const struct st_token_file *f, uint64_t at, char text[48])
{
    uint64_t low = 0, high = f->meta != NULL ? f->meta->documents : 0;

    text[0] = '\0';
    while (high > low + 1) {
        const uint64_t middle = low + (high - low) / 2;

        *(f->meta->starts[middle] <= at ? &low : &high) = middle;
    }
    if (high > 0)
        snprintf(text, 48, " (document %llu)", (unsigned long long)low + 1);
    return text;
}

static strata_status token_error(const struct st_token_file *f, uint64_t at, uint32_t token, uint32_t vocab)
{
    const uint32_t own = f->header.vocab;
    char document[48];

    if (own != 0 && token >= own)
        return st_error(STRATA_E_INPUT, "%s: token %llu is %u, the vocabulary in its header ends at %u: the file is damaged",
                        f->name, (unsigned long long)at, token, own - 1);
    return st_error(STRATA_E_INPUT, "%s: token %llu%s is id %u, and the model has rows for %u tokens: make the file without it",
                    f->name, (unsigned long long)at, document_of(f, at, document), token, vocab);
}

/* A tokenizer may have more tokens than the model has rows: those that occur decide. */
static strata_status check_tokens(const struct st_token_file *f, const void *tokens, uint64_t first, uint64_t count,
                                  uint32_t vocab)
{
    const uint32_t token_bytes = f->header.token_bytes, own = f->header.vocab, end = own != 0 && own < vocab ? own : vocab;
    const uint32_t largest = token_bytes == 2 ? largest_u16(tokens, count) : largest_u32(tokens, count);

    if (largest < end)
        return STRATA_OK;
    for (uint64_t i = 0; i < count; i++) {
        const uint32_t token = token_at(tokens, i, token_bytes);

        if (token >= end)
            return token_error(f, first + i, token, vocab);
    }
    return STRATA_OK;
}

/* What lies beside the file may be of an older one with as many tokens. */
static strata_status check_digest(const struct st_token_file *f, const struct st_digest *digest)
{
    char hex[33];

    if (f->meta == NULL)
        return STRATA_OK;
    st_digest_hex(digest, hex);
    if (strcmp(hex, f->meta->tokens_digest) == 0 && (f->meta->header_sum == 0 || f->meta->header_sum == f->header_sum))
        return STRATA_OK;
    return st_error(STRATA_E_INPUT,
                    "%s is not for the tokens in %s: make both files again with strata tokens, or remove the first",
                    f->meta->path, f->name);
}

static strata_status scan(const struct st_token_file *f, struct st_digest *digest, uint32_t vocab)
{
    const uint64_t step = SCAN_BYTES / f->header.token_bytes;
    void *buf = malloc(SCAN_BYTES);
    strata_status st = buf != NULL ? STRATA_OK : st_nomem(SCAN_BYTES);

    for (uint64_t at = 0; at < f->header.count && st == STRATA_OK; at += step) {
        const uint64_t count = f->header.count - at < step ? f->header.count - at : step;

        st = st_token_file_read(f, at, count, buf);
        if (st == STRATA_OK)
            st = check_tokens(f, buf, at, count, vocab);
        if (st == STRATA_OK && f->meta != NULL)
            st_digest_update(digest, buf, count * f->header.token_bytes);
    }
    free(buf);
    return st == STRATA_OK ? check_digest(f, digest) : st;
}

/* Reads the file beside it, then every token once. */
static strata_status check_contents(struct st_token_file *f, uint32_t vocab)
{
    struct st_digest *digest = NULL;
    strata_status st = st_token_meta_open(&f->meta, f->path, f->header.count);

    if (st == STRATA_OK && f->meta != NULL)
        st = st_digest_create(&digest);
    if (st == STRATA_OK && (vocab > 0 || f->meta != NULL))
        st = scan(f, digest, vocab > 0 ? vocab : UINT32_MAX);
    st_digest_destroy(digest);
    return st;
}

strata_status st_token_file_read(const struct st_token_file *f, uint64_t first, uint64_t count, void *out)
{
    const uint64_t bytes = f->header.token_bytes;

    return st_file_read_at(f->fd, out, count * bytes, ST_TOKEN_HEADER_BYTES + first * bytes, f->name);
}

strata_status st_token_file_check_unchanged(const struct st_token_file *f)
{
    return st_file_check_unchanged(f->fd, &f->identity, f->name);
}

static strata_status read_header(struct st_token_file *f)
{
    unsigned char header[ST_TOKEN_HEADER_BYTES] = {0};
    const uint64_t file_bytes = f->identity.bytes;
    const uint64_t bytes = file_bytes < sizeof(header) ? file_bytes : sizeof(header);
    const strata_status st = st_file_read_at(f->fd, header, bytes, 0, f->name);

    f->header_sum = (uint32_t)st_checksum64(header, sizeof(header));
    return st == STRATA_OK ? st_token_header_parse(&f->header, header, bytes, file_bytes, f->name) : st;
}

strata_status st_token_file_open_as(struct st_token_file **out, const char *path, const char *name, uint32_t vocab)
{
    struct st_token_file *f = calloc(1, sizeof(*f));
    strata_status st;

    if (f == NULL)
        return st_nomem(sizeof(*f));
    f->fd = -1;
    snprintf(f->name, sizeof(f->name), "%s", name);
    if ((st = st_path_copy(f->path, path)) == STRATA_OK &&
        (st = st_file_open(&f->fd, &f->identity, path, STRATA_E_INPUT)) == STRATA_OK && (st = read_header(f)) == STRATA_OK)
        st = check_contents(f, vocab);
    if (st == STRATA_OK)
        st = st_token_file_check_unchanged(f);
    if (st != STRATA_OK) {
        st_token_file_close(f);
        return st;
    }
    *out = f;
    return STRATA_OK;
}

strata_status st_token_file_open(struct st_token_file **out, const char *path, uint32_t vocab)
{
    return st_token_file_open_as(out, path, path, vocab);
}

void st_token_file_close(struct st_token_file *f)
{
    if (f == NULL)
        return;
    if (f->fd >= 0)
        close(f->fd);
    st_token_meta_close(f->meta);
    free(f);
}

uint64_t st_token_file_count(const struct st_token_file *f)
{
    return f->header.count;
}

uint64_t st_token_file_source_bytes(const struct st_token_file *f)
{
    return f->header.source_bytes;
}

uint32_t st_token_file_vocab(const struct st_token_file *f)
{
    return f->header.vocab;
}

const char *st_token_file_inputs(const struct st_token_file *f)
{
    return f->meta != NULL ? f->meta->inputs : "";
}

uint32_t st_token_file_token_bytes(const struct st_token_file *f)
{
    return f->header.token_bytes;
}

const struct st_token_meta *st_token_file_meta(const struct st_token_file *f)
{
    return f->meta;
}

const char *st_token_file_path(const struct st_token_file *f)
{
    return f->path;
}

const char *st_token_file_name(const struct st_token_file *f)
{
    return f->name;
}
