/* token_meta.c - see token_meta.h.  The file: a header of 96 bytes, the documents' first tokens (u64 each), a bit per token (if
 * there is a mask), and the XXH3-128 of all before it as 32 hex digits.  Numbers are little-endian. */
#include "text/data/token_meta.h"

#include "core/base/checksum.h"
#include "core/base/error.h"
#include "core/base/fault.h"
#include "core/system/file.h"
#include "text/data/token_meta_internal.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PART_BYTES (1u << 20)

const char *st_token_layout_name(enum st_token_layout layout)
{
    static const char *const names[] = {"concatenated", "packed", "rows"};

    return names[layout];
}

static uint64_t number_at(const unsigned char *bytes, uint32_t width)
{
    uint64_t n = 0;

    for (uint32_t i = width; i > 0; i--)
        n = n << 8 | bytes[i - 1];
    return n;
}

static strata_status damaged(const struct st_token_meta *m, const char *what)
{
    return st_error(STRATA_E_INPUT, "%s: %s: make both files again with strata tokens, or remove this one", m->path, what);
}

static uint64_t mask_at(const struct st_token_meta *m)
{
    return ST_TOKEN_META_HEADER + 8 * m->documents;
}

static strata_status parse_header(struct st_token_meta *m, const unsigned char *h, uint64_t file_bytes)
{
    uint64_t flags, layout, bytes;

    if (file_bytes < ST_TOKEN_META_HEADER || memcmp(h, ST_TOKEN_META_MAGIC, 8) != 0)
        return damaged(m, "not what strata writes beside a token file");
    if (number_at(h + 8, 4) != ST_TOKEN_META_VERSION)
        return damaged(m, "of another version");
    layout = number_at(h + 12, 4);
    m->tokens = number_at(h + 16, 8);
    m->documents = number_at(h + 24, 8);
    m->tokenizer = number_at(h + 32, 8);
    flags = number_at(h + 40, 4);
    m->has_mask = (flags & ST_TOKEN_META_HAS_MASK) != 0;
    m->header_sum = (uint32_t)number_at(h + ST_TOKEN_META_HEADER_AT, 4);
    for (uint32_t i = 0; i < 16; i++)
        snprintf(m->inputs + 2 * i, 3, "%02x", h[ST_TOKEN_META_INPUTS_AT + i]);
    memcpy(m->tokens_digest, h + ST_TOKEN_META_DIGEST_AT, 32);
    if (layout >= ST_LAYOUT_COUNT || flags > ST_TOKEN_META_HAS_MASK || m->tokens > INT32_MAX || m->documents > m->tokens ||
        m->documents == 0)
        return damaged(m, "numbers in its header are impossible");
    m->layout = (enum st_token_layout)layout;
    bytes = mask_at(m) + (m->has_mask ? (m->tokens + 7) / 8 : 0) + ST_TOKEN_META_TRAILER;
    return bytes == file_bytes ? STRATA_OK : damaged(m, "its size is not what its header promises");
}

static strata_status check_starts(const struct st_token_meta *m)
{
    for (uint64_t i = 0; i < m->documents; i++)
        if (m->starts[i] >= m->starts[i + 1] || (i == 0 && m->starts[0] != 0))
            return damaged(m, "its documents are out of order");
    return STRATA_OK;
}

/* Reads all of the file, part by part, for its checksum, and keeps the starts. */
static strata_status read_all(struct st_token_meta *m, struct st_digest *digest, struct st_digest *marks, unsigned char *part,
                              uint64_t file_bytes)
{
    const uint64_t end = file_bytes - ST_TOKEN_META_TRAILER, starts_end = mask_at(m);
    char wanted[33] = "", hex[33];
    strata_status st = STRATA_OK;

    for (uint64_t at = 0; at < end && st == STRATA_OK;) {
        const uint64_t edge = at < ST_TOKEN_META_HEADER ? ST_TOKEN_META_HEADER : at < starts_end ? starts_end : end;
        const uint64_t bytes = edge - at < PART_BYTES ? edge - at : PART_BYTES;

        st = st_file_read_at(m->fd, part, bytes, at, m->path);
        if (st != STRATA_OK)
            break;
        st_digest_update(digest, part, bytes);
        if (at >= ST_TOKEN_META_HEADER)
            st_digest_update(marks, part, bytes);
        for (uint64_t i = 0; at >= ST_TOKEN_META_HEADER && at < starts_end && i < bytes; i += 8)
            m->starts[(at + i - ST_TOKEN_META_HEADER) / 8] = number_at(part + i, 8);
        at += bytes;
    }
    if (st == STRATA_OK)
        st = st_file_read_at(m->fd, wanted, ST_TOKEN_META_TRAILER, end, m->path);
    if (st != STRATA_OK)
        return st;
    st_digest_hex(digest, hex);
    st_digest_hex(marks, m->marks_digest);
    return strcmp(hex, wanted) == 0 ? check_starts(m) : damaged(m, "its checksum is wrong");
}

static strata_status load(struct st_token_meta *m, uint64_t file_bytes)
{
    unsigned char *part = st_fault("token_meta.alloc", 0) < 0 ? NULL : malloc(PART_BYTES);
    struct st_digest *digest = NULL, *marks = NULL;
    strata_status st;

    m->starts = st_fault("token_meta.alloc", 0) < 0 ? NULL : calloc(m->documents + 1, sizeof(*m->starts));
    if (part == NULL || m->starts == NULL) {
        free(part);
        return st_nomem(0);
    }
    m->starts[m->documents] = m->tokens;
    st = st_digest_create(&digest);
    if (st == STRATA_OK)
        st = st_digest_create(&marks);
    if (st == STRATA_OK)
        st = read_all(m, digest, marks, part, file_bytes);
    st_digest_destroy(digest);
    st_digest_destroy(marks);
    free(part);
    return st;
}

/* Opens the file and reads its header.  *out NULL: there is none. */
static strata_status open_header(struct st_token_meta **out, const char *path, uint64_t *file_bytes)
{
    struct st_token_meta *m = st_fault("token_meta.alloc", 0) < 0 ? NULL : calloc(1, sizeof(*m));
    unsigned char header[ST_TOKEN_META_HEADER] = {0};
    struct st_file_identity identity;
    strata_status st;

    *out = NULL;
    if (m == NULL || asprintf(&m->path, "%s%s", path, ST_TOKEN_META_SUFFIX) < 0) {
        free(m);
        return st_nomem(0);
    }
    m->fd = -1;
    if ((st_fault_refuses("token_meta.access") || access(m->path, F_OK) != 0) && errno == ENOENT) {
        st_token_meta_close(m);
        return STRATA_OK;
    }
    st = st_file_open(&m->fd, &identity, m->path, STRATA_E_INPUT);
    if (st == STRATA_OK) {
        *file_bytes = identity.bytes;
        st = st_file_read_at(m->fd, header, identity.bytes < sizeof(header) ? identity.bytes : sizeof(header), 0, m->path);
    }
    if (st == STRATA_OK)
        st = parse_header(m, header, identity.bytes);
    if (st != STRATA_OK) {
        st_token_meta_close(m);
        return st;
    }
    *out = m;
    return STRATA_OK;
}

strata_status st_token_meta_open(struct st_token_meta **out, const char *path, uint64_t tokens)
{
    struct st_token_meta *m;
    uint64_t file_bytes;
    strata_status st = open_header(&m, path, &file_bytes);

    *out = NULL;
    if (st != STRATA_OK || m == NULL)
        return st;
    if (m->tokens != tokens)
        st = st_error(STRATA_E_INPUT,
                      "%s is for %llu tokens, %s has %llu: make both files again with strata tokens, or remove the first",
                      m->path, (unsigned long long)m->tokens, path, (unsigned long long)tokens);
    if (st == STRATA_OK)
        st = load(m, file_bytes);
    if (st != STRATA_OK) {
        st_token_meta_close(m);
        return st;
    }
    *out = m;
    return STRATA_OK;
}

strata_status st_token_meta_layout(enum st_token_layout *out, const char *path)
{
    struct st_token_meta *m;
    uint64_t file_bytes;
    const strata_status st = open_header(&m, path, &file_bytes);

    if (st != STRATA_OK)
        return st;
    *out = m == NULL ? ST_LAYOUT_CONCATENATED : m->layout;
    st_token_meta_close(m);
    return STRATA_OK;
}

void st_token_meta_close(struct st_token_meta *m)
{
    if (m == NULL)
        return;
    if (m->fd >= 0)
        close(m->fd);
    free(m->starts);
    free(m->path);
    free(m);
}

#define MASK_BYTES 512u

/* The mask from token `at` on, whose bit is number at % 8; *part: how many of `count` tokens have one here. */
static strata_status read_mask(const struct st_token_meta *m, uint64_t at, uint64_t count, unsigned char bits[MASK_BYTES],
                               uint32_t *part)
{
    const uint32_t most = (uint32_t)(8 * MASK_BYTES - at % 8);

    *part = count < most ? (uint32_t)count : most;
    return st_file_read_at(m->fd, bits, (at % 8 + *part + 7) / 8, mask_at(m) + at / 8, m->path);
}

static bool bit(const unsigned char *bits, uint64_t i)
{
    return (bits[i / 8] >> (i % 8) & 1) != 0;
}

strata_status st_token_meta_mask(const struct st_token_meta *m, uint64_t first, uint32_t count, int32_t *targets)
{
    unsigned char bits[MASK_BYTES];

    for (uint32_t done = 0, part; m->has_mask && done < count; done += part) {
        const uint64_t at = first + done;
        const strata_status st = read_mask(m, at, count - done, bits, &part);

        if (st != STRATA_OK)
            return st;
        for (uint32_t i = 0; i < part; i++)
            if (!bit(bits, at % 8 + i))
                targets[done + i] = -1;
    }
    return STRATA_OK;
}

strata_status st_token_meta_trains(const struct st_token_meta *m, uint64_t first, uint64_t count, bool *any)
{
    unsigned char bits[MASK_BYTES];
    uint32_t part;

    *any = !m->has_mask && count > 0;
    for (uint64_t done = 0; m->has_mask && !*any && done < count; done += part) {
        const uint64_t at = first + done;
        const strata_status st = read_mask(m, at, count - done, bits, &part);

        if (st != STRATA_OK)
            return st;
        for (uint32_t i = 0; i < part; i++)
            *any |= bit(bits, at % 8 + i);
    }
    return STRATA_OK;
}
