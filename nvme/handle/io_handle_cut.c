/* nvme/handle/io_handle_cut.c - parts of requests, and which requests wait for which.
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

/* --- parts --- */

static char *user_of(const struct st_hreq *req)
{
    return req->buf + (req->at - req->offset);
}

/* The largest part that a bounce buffer takes of an unaligned read. */
static uint64_t small(const struct st_hreq *req)
{
    return least(SMALL_BYTES, req->file->io->bounce_bytes);
}

uint64_t st_handle_in_place(const struct st_hreq *req)
{
    if (!req->file->direct)
        return least(req->end - req->at, req->file->io->turn_bytes);
    if (req->at % BLOCK != 0 || (uintptr_t)user_of(req) % req->file->memory_align != 0)
        return 0;
    if (req->op == ST_IO_READ && req->end % BLOCK != 0 && up(req->end) - req->at <= small(req))
        return 0;
    return least(down(req->end) - req->at, req->file->io->turn_bytes);
}

void st_handle_cut(struct st_hreq *req, struct st_transfer *transfer, uint64_t bytes)
{
    transfer->offset = req->at;
    transfer->bytes = bytes;
    transfer->buf = user_of(req);
    transfer->done = st_handle_part_done;
    req->at += bytes;
}

/* Fills in the part [from, from + bytes) of the file; the caller asked for [at, to) of it. */
static void put_part(struct st_hreq *req, struct st_hbounce *bounce, uint64_t from, uint64_t bytes, uint64_t to)
{
    bounce->fetching = false;
    bounce->user = user_of(req);
    bounce->user_bytes = (uint32_t)(to - req->at);
    bounce->into = (uint32_t)(req->at - from);
    bounce->transfer.op = req->op;
    bounce->transfer.volume = req->file->volume;
    bounce->transfer.offset = from;
    bounce->transfer.bytes = bytes;
    bounce->transfer.bytes_least = req->op == ST_IO_READ ? (uint32_t)(to - from) : 0;
    req->at = to;
}

/* Unaligned blocks, or a block that is read in part; a small read in one piece. */
static void cut_read(struct st_hreq *req, struct st_hbounce *bounce)
{
    const uint64_t from = down(req->at), blocks = least(down(req->end) - from, req->file->io->bounce_bytes);
    uint64_t bytes = up(req->end) - from;

    if (bytes > small(req))
        bytes = req->at != from || blocks == 0 ? BLOCK : blocks;
    put_part(req, bounce, from, bytes, least(req->end, from + bytes));
}

/* Cuts a block that is written in part: its old contents are read first, unless none of them stay. */
static void cut_part(struct st_hreq *req, struct st_hbounce *bounce)
{
    const uint64_t from = down(req->at), to = least(req->end, from + BLOCK);
    const uint64_t there = req->bytes_at_start > from ? least(BLOCK, req->bytes_at_start - from) : 0;
    const bool keeps = there > 0 && (req->at > from || to < from + there);

    put_part(req, bounce, from, BLOCK, to);
    if (!keeps) {
        memset(bounce->memory, 0, BLOCK);
        memcpy(bounce->memory + bounce->into, bounce->user, bounce->user_bytes);
        return;
    }
    bounce->fetching = true;
    bounce->transfer.op = ST_IO_READ;
    bounce->transfer.bytes_least = (uint32_t)there;
}

void st_handle_merge(struct st_hbounce *bounce)
{
    const uint32_t there = bounce->transfer.bytes_least;

    assert(bounce->fetching);
    bounce->fetching = false;
    memset(bounce->memory + there, 0, BLOCK - there); /* beyond the end */
    memcpy(bounce->memory + bounce->into, bounce->user, bounce->user_bytes);
    bounce->transfer.op = ST_IO_WRITE;
    bounce->transfer.bytes_least = 0;
}

void st_handle_cut_bounced(struct st_hreq *req, struct st_hbounce *bounce)
{
    const uint64_t bytes = least(down(req->end) - req->at, req->file->io->bounce_bytes);

    if (req->op == ST_IO_READ) {
        cut_read(req, bounce);
    } else if (req->at % BLOCK != 0 || req->end - req->at < BLOCK) {
        cut_part(req, bounce);
    } else {
        put_part(req, bounce, req->at, bytes, req->at + bytes);
        memcpy(bounce->memory, bounce->user, bounce->user_bytes);
    }
}
