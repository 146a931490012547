/* nvme/handle/io_handle_cut.c - pieces of requests, and which requests wait for which.
 *
 * A direct file moves whole blocks between the drive and aligned memory.  Blocks that a request covers only in part, and data at
 * an unaligned address, go through a bounce buffer; a block that is written in part is first read into it.  The last block of a
 * file is read as far as the file goes.  Only the I/O thread runs this code. */
#include "nvme/handle/io_handle_internal.h"

#include <assert.h>
#include <string.h>

#define BLOCK       ((uint64_t)ST_IO_ALIGN)
#define SMALL_BYTES (64u * 1024u) /* an unaligned read up to this size is one transfer and one copy */

static uint64_t down(uint64_t at)
{
    return at & ~(BLOCK - 1);
}

static uint64_t up(uint64_t at)
{
    return (at + BLOCK - 1) & ~(BLOCK - 1);
}

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

void st_handle_list_push(struct st_hlist *list, struct st_hreq *req)
{
    req->behind = NULL;
    req->before = list->last;
    if (list->last != NULL)
        list->last->behind = req;
    else
        list->first = req;
    list->last = req;
}

void st_handle_list_remove(struct st_hlist *list, struct st_hreq *req)
{
    if (req->before != NULL)
        req->before->behind = req->behind;
    else
        list->first = req->behind;
    if (req->behind != NULL)
        req->behind->before = req->before;
    else
        list->last = req->before;
}

/* --- order --- */

void st_handle_claim(struct st_hreq *req)
{
    const uint64_t bytes = req->file->bytes;
    const bool direct = req->file->direct;

    req->bytes_at_start = bytes;
    req->extends = req->end > bytes;
    req->pads = req->op == ST_IO_WRITE && direct && req->end % BLOCK != 0 && up(req->end) > bytes;
    req->claim_begin = direct ? down(req->offset) : req->offset;
    req->claim_end = direct ? up(req->end) : req->end;
    if (req->pads) /* until the file is cut to size after its last block, no other write may go beyond it */
        req->claim_end = UINT64_MAX;
}

bool st_handle_conflict(const struct st_hreq *a, const struct st_hreq *b)
{
    if (a->op == ST_IO_READ && b->op == ST_IO_READ)
        return false;
    /* A read past the end may still succeed if a write moves the end first, so it waits. */
    if (a->op != b->op && a->extends && b->extends)
        return true;
    return a->claim_begin < b->claim_end && b->claim_begin < a->claim_end;
}

/* --- pieces --- */

static bool is_aligned(const struct st_hreq *req)
{
    return (uintptr_t)(req->buf + (req->at - req->offset)) % req->file->memory_align == 0;
}

/* Fills in the piece [from, from + bytes) of the file; the caller asked for [at, to) of it. */
static void put_piece(struct st_hreq *req, struct st_hslot *slot, uint64_t from, uint64_t bytes, uint64_t to, bool bounced)
{
    slot->request = req;
    slot->bounced = bounced;
    slot->fetching = false;
    slot->user = req->buf + (req->at - req->offset);
    slot->user_bytes = (uint32_t)(to - req->at);
    slot->into = (uint32_t)(req->at - from);
    slot->req.op = req->op;
    slot->req.offset = from;
    slot->req.bytes = (uint32_t)bytes;
    slot->req.bytes_least = bounced && req->op == ST_IO_READ ? (uint32_t)(to - from) : 0;
    slot->req.buf = bounced ? slot->bounce : slot->user;
    req->at = to;
}

/* Cuts whole blocks from an aligned offset on, up to `limit`, without a copy if the address is aligned. */
static void cut_blocks(struct st_hreq *req, struct st_hslot *slot, uint64_t limit, uint32_t block_bytes, uint32_t bounce_bytes)
{
    const bool bounced = !is_aligned(req);
    const uint64_t bytes = least(limit - req->at, bounced ? bounce_bytes : block_bytes);

    put_piece(req, slot, req->at, bytes, req->at + bytes, bounced);
    if (bounced && req->op == ST_IO_WRITE)
        memcpy(slot->bounce, slot->user, slot->user_bytes);
}

static void cut_read(struct st_hreq *req, struct st_hslot *slot, uint32_t block_bytes, uint32_t bounce_bytes)
{
    const bool odd = req->at % BLOCK != 0 || req->end % BLOCK != 0 || !is_aligned(req);
    const uint64_t from = down(req->at);

    if (odd && up(req->end) - from <= least(SMALL_BYTES, bounce_bytes))
        put_piece(req, slot, from, up(req->end) - from, req->end, true);
    else if (req->at != from || req->end - req->at < BLOCK)
        put_piece(req, slot, from, BLOCK, least(req->end, from + BLOCK), true);
    else
        cut_blocks(req, slot, down(req->end), block_bytes, bounce_bytes);
}

/* Cuts a block that is written in part: its old contents are read first, unless none of them stay. */
static void cut_part(struct st_hreq *req, struct st_hslot *slot)
{
    const uint64_t from = down(req->at), to = least(req->end, from + BLOCK);
    const uint64_t there = req->bytes_at_start > from ? least(BLOCK, req->bytes_at_start - from) : 0;
    const bool keeps = there > 0 && (req->at > from || to < from + there);

    put_piece(req, slot, from, BLOCK, to, true);
    if (!keeps) {
        memset(slot->bounce, 0, BLOCK);
        memcpy(slot->bounce + slot->into, slot->user, slot->user_bytes);
        return;
    }
    slot->fetching = true;
    slot->req.op = ST_IO_READ;
    slot->req.bytes_least = (uint32_t)there;
}

void st_handle_merge(struct st_hslot *slot)
{
    assert(slot->fetching);
    slot->fetching = false;
    memset(slot->bounce + slot->req.bytes_least, 0, BLOCK - slot->req.bytes_least); /* beyond the end */
    memcpy(slot->bounce + slot->into, slot->user, slot->user_bytes);
    slot->req.op = ST_IO_WRITE;
    slot->req.bytes_least = 0;
}

void st_handle_cut(struct st_hreq *req, struct st_hslot *slot, uint32_t block_bytes, uint32_t bounce_bytes)
{
    assert(req->at < req->end);
    if (!req->file->direct) {
        const uint64_t bytes = least(req->end - req->at, block_bytes);

        put_piece(req, slot, req->at, bytes, req->at + bytes, false);
    } else if (req->op == ST_IO_READ) {
        cut_read(req, slot, block_bytes, bounce_bytes);
    } else if (req->at % BLOCK != 0 || req->end - req->at < BLOCK) {
        cut_part(req, slot);
    } else {
        cut_blocks(req, slot, down(req->end), block_bytes, bounce_bytes);
    }
}
