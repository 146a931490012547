/* token_writer.c - see token_writer.h.  Ids go to the disk in blocks; documents' starts and the mask wait in memory for the end.
 */
#include "text/data/token_writer.h"

#include "core/base/checksum.h"
#include "core/base/error.h"
#include "core/base/fault.h"
#include "core/system/file.h"
#include "text/data/token_meta_internal.h"
#include "text/data/tokens.h"
#include "text/data/tokens_file_internal.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BLOCK_BYTES 65536u
#define TOKENS_MAX  INT32_MAX /* the header's count is an int32 */

struct st_token_writer {
    struct st_new_file bin, meta;
    bool bin_open, meta_open;
    struct st_token_writer_opts opts;
    uint32_t width;                      /* bytes of an id */
    uint64_t tokens, documents, written; /* written: bytes of ids on their way to the disk */
    uint64_t *starts;
    uint64_t starts_room;
    unsigned char *mask;
    uint64_t mask_room; /* bytes */
    struct st_digest *digest;
    uint32_t fill;
    unsigned char block[BLOCK_BYTES];
};

strata_status st_token_writer_check_apart(const char *path, const char *input)
{
    char name[ST_PATH_MAX];
    strata_status st = st_tokens_meta_path(name, path);

    if (st == STRATA_OK && (st = st_file_check_apart(path, input)) == STRATA_OK)
        st = st_file_check_apart(name, input);
    return st;
}

/* X.bin.meta of another X.bin: beside this one it would be taken for its own.  It goes last: a new X.bin with the old one is
 * refused, the old one without it would be trained differently. */
static strata_status remove_other_meta(const struct st_token_writer *w)
{
    char name[ST_PATH_MAX];
    const strata_status st = st_tokens_meta_path(name, w->bin.path);

    if (st != STRATA_OK)
        return st;
    if ((st_fault_refuses("token_writer.unlink") || unlink(name) != 0) && errno != ENOENT)
        return st_error_errno(errno, "%s: it belongs to the file that was replaced, and cannot be removed", name);
    return STRATA_OK;
}

strata_status st_token_writer_create(struct st_token_writer **out, const char *path, const struct st_token_writer_opts *opts)
{
    struct st_token_writer *w = st_fault("token_writer.alloc", 0) < 0 ? NULL : calloc(1, sizeof(*w));
    const unsigned flags = opts->origin != NULL ? ST_NEW_FILE_OVERWRITE | ST_NEW_FILE_PARENTS
                           : opts->overwrite    ? ST_NEW_FILE_OVERWRITE
                                                : 0;
    char name[ST_PATH_MAX];
    strata_status st;

    if (w == NULL)
        return st_nomem(sizeof(*w));
    w->opts = *opts;
    w->width = opts->vocab > 65536 ? 4 : 2;
    st = st_digest_create(&w->digest);
    if (st == STRATA_OK && (st = st_tokens_meta_path(name, path)) == STRATA_OK &&
        (st = st_new_file_create(&w->bin, path, flags)) == STRATA_OK) {
        w->bin_open = true;
        st = opts->bare ? st_new_file_check(name, opts->overwrite) : st_new_file_create(&w->meta, name, flags);
        w->meta_open = st == STRATA_OK && !opts->bare;
    }
    if (opts->origin != NULL)
        opts->origin->refused = st != STRATA_OK;
    if (st != STRATA_OK) {
        st_token_writer_abort(w);
        return st;
    }
    *out = w;
    return STRATA_OK;
}

/* Room for one more start, and for the mask of `tokens` tokens. */
static strata_status make_room(struct st_token_writer *w, uint64_t tokens)
{
    if (!w->opts.bare && w->documents == w->starts_room) {
        const uint64_t room = w->starts_room == 0 ? 1024 : 2 * w->starts_room;
        uint64_t *grown = st_fault("token_writer.alloc", 0) < 0 ? NULL : realloc(w->starts, room * sizeof(*grown));

        if (grown == NULL)
            return st_nomem(room * sizeof(*grown));
        w->starts = grown;
        w->starts_room = room;
    }
    if (w->opts.masked && (tokens + 7) / 8 > w->mask_room) {
        const uint64_t twice = 2 * w->mask_room, needed = (tokens + 7) / 8, room = twice > needed ? twice : needed + 4096;
        unsigned char *grown = st_fault("token_writer.alloc", 0) < 0 ? NULL : realloc(w->mask, room);

        if (grown == NULL)
            return st_nomem(room);
        memset(grown + w->mask_room, 0, room - w->mask_room);
        w->mask = grown;
        w->mask_room = room;
    }
    return STRATA_OK;
}

static strata_status flush(struct st_token_writer *w)
{
    const strata_status st = st_new_file_write_at(&w->bin, w->block, w->fill, ST_TOKEN_HEADER_BYTES + w->written);

    st_digest_update(w->digest, w->block, w->fill);
    w->written += w->fill;
    w->fill = 0;
    return st;
}

strata_status st_token_writer_more(struct st_token_writer *w, const uint32_t *ids, const uint8_t *trained, uint64_t count)
{
    strata_status st;

    if (count > TOKENS_MAX - w->tokens)
        return st_error(STRATA_E_INPUT, "%s: over %d tokens; a token file holds no more: split the text", w->bin.path,
                        TOKENS_MAX);
    st = make_room(w, w->tokens + count);
    for (uint64_t i = 0; i < count && st == STRATA_OK; i++) {
        for (uint32_t b = 0; b < w->width; b++)
            w->block[w->fill++] = (unsigned char)(ids[i] >> (8 * b));
        if (w->opts.masked && (trained == NULL || trained[i]))
            w->mask[(w->tokens + i) / 8] |= (unsigned char)(1u << ((w->tokens + i) % 8));
        if (w->fill == BLOCK_BYTES)
            st = flush(w);
    }
    w->tokens += st == STRATA_OK ? count : 0;
    return st;
}

strata_status st_token_writer_put(struct st_token_writer *w, const uint32_t *ids, const uint8_t *trained, uint64_t count)
{
    const uint64_t start = w->tokens;
    strata_status st;

    if (count == 0)
        return STRATA_OK;
    if ((st = st_token_writer_more(w, ids, trained, count)) != STRATA_OK)
        return st;
    if (!w->opts.bare)
        w->starts[w->documents] = start;
    w->documents++;
    return STRATA_OK;
}

uint64_t st_token_writer_tokens(const struct st_token_writer *w)
{
    return w->tokens;
}

static void put_number(unsigned char *out, uint64_t value, uint32_t width)
{
    for (uint32_t b = 0; b < width; b++)
        out[b] = (unsigned char)(value >> (8 * b));
}

/* One part of the meta file at *at, into its checksum too. */
static strata_status put_part(struct st_token_writer *w, struct st_digest *digest, const void *part, uint64_t bytes, uint64_t *at)
{
    const strata_status st = st_new_file_write_at(&w->meta, part, bytes, *at);

    st_digest_update(digest, part, bytes);
    *at += bytes;
    return st;
}

static strata_status write_starts(struct st_token_writer *w, struct st_digest *digest, uint64_t *at)
{
    strata_status st = STRATA_OK;

    for (uint64_t i = 0; i < w->documents && st == STRATA_OK;) {
        uint32_t fill = 0;

        for (; i < w->documents && fill < BLOCK_BYTES; i++, fill += 8)
            put_number(w->block + fill, w->starts[i], 8);
        st = put_part(w, digest, w->block, fill, at);
    }
    return st;
}

/* 32 hex digits as 16 bytes. */
static void put_digest(unsigned char *out, const char hex[33])
{
    for (uint32_t i = 0; i < 16; i++) {
        const char digits[3] = {hex[2 * i], hex[2 * i + 1]};

        out[i] = (unsigned char)strtoul(digits, NULL, 16);
    }
}

static strata_status write_meta(struct st_token_writer *w, struct st_digest *digest,
                                const unsigned char bin[ST_TOKEN_HEADER_BYTES])
{
    unsigned char header[ST_TOKEN_META_HEADER] = {0};
    char hex[33];
    uint64_t at = 0;
    strata_status st;

    memcpy(header, ST_TOKEN_META_MAGIC, 8);
    put_number(header + 8, ST_TOKEN_META_VERSION, 4);
    put_number(header + 12, w->opts.layout, 4);
    put_number(header + 16, w->tokens, 8);
    put_number(header + 24, w->documents, 8);
    put_number(header + 32, w->opts.tokenizer, 8);
    put_number(header + 40, w->opts.masked ? ST_TOKEN_META_HAS_MASK : 0, 4);
    st_digest_hex(w->digest, hex);
    memcpy(header + ST_TOKEN_META_DIGEST_AT, hex, 32);
    if (w->opts.origin != NULL) {
        put_number(header + ST_TOKEN_META_HEADER_AT, (uint32_t)st_checksum64(bin, ST_TOKEN_HEADER_BYTES), 4);
        put_digest(header + ST_TOKEN_META_INPUTS_AT, w->opts.origin->inputs);
    }
    st = put_part(w, digest, header, sizeof(header), &at);
    if (st == STRATA_OK)
        st = write_starts(w, digest, &at);
    if (st == STRATA_OK && w->opts.masked)
        st = put_part(w, digest, w->mask, (w->tokens + 7) / 8, &at);
    if (st != STRATA_OK)
        return st;
    st_digest_hex(digest, hex);
    return st_new_file_write_at(&w->meta, hex, ST_TOKEN_META_TRAILER, at);
}

static strata_status complete(struct st_token_writer *w, uint64_t source_bytes)
{
    struct st_digest *digest;
    unsigned char header[ST_TOKEN_HEADER_BYTES];
    strata_status st;

    if (w->tokens == 0)
        return st_error(STRATA_E_INPUT, "%s: there is no text", w->bin.path);
    st_token_header_write(header,
                          &(struct st_token_header){
                              .token_bytes = w->width, .vocab = w->opts.vocab, .count = w->tokens, .source_bytes = source_bytes});
    if ((st = flush(w)) != STRATA_OK || (st = st_new_file_write_at(&w->bin, header, sizeof(header), 0)) != STRATA_OK ||
        w->opts.bare || (st = st_digest_create(&digest)) != STRATA_OK)
        return st;
    st = write_meta(w, digest, header);
    st_digest_destroy(digest);
    return st;
}

strata_status st_token_writer_finish(struct st_token_writer *const w[2], const uint64_t source_bytes[2])
{
    const uint32_t count = w[1] != NULL ? 2 : 1;
    struct st_new_file *files[4];
    uint32_t file_count = 0;
    strata_status st = STRATA_OK;

    for (uint32_t i = 0; i < count && st == STRATA_OK; i++) {
        if (!w[i]->opts.bare)
            files[file_count++] = &w[i]->meta;
        files[file_count++] = &w[i]->bin;
        st = complete(w[i], source_bytes[i]);
    }
    if (st == STRATA_OK && w[0]->opts.origin != NULL)
        st = w[0]->opts.origin->confirm(w[0]->opts.origin->context);
    if (st == STRATA_OK) /* without --overwrite no good file is replaced; old meta beside new ids fails its checksum */
        st = st_new_file_commit_all(files, file_count, !w[0]->opts.overwrite);
    for (uint32_t i = 0; i < count && st == STRATA_OK; i++)
        if (w[i]->opts.bare && w[i]->opts.overwrite)
            st = remove_other_meta(w[i]);
    for (uint32_t i = 0; i < count; i++) {
        if (st == STRATA_OK)
            w[i]->bin_open = w[i]->meta_open = false;
        st_token_writer_abort(w[i]);
    }
    return st;
}

void st_token_writer_abort(struct st_token_writer *w)
{
    if (w == NULL)
        return;
    if (w->meta_open)
        st_new_file_abort(&w->meta);
    if (w->bin_open)
        st_new_file_abort(&w->bin); /* which has made the directory */
    st_digest_destroy(w->digest);
    free(w->starts);
    free(w->mask);
    free(w);
}
