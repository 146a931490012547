/* nvme/handle/io_handle_buffer.c - buffers for transfers: first fit in the handle's registered region, else mapped one by one.
 *
 * Any thread; the lock guards the list.  A list is enough: buffers are few, large and long-lived. */
#include "nvme/handle/io_handle_internal.h"

#include "core/base/error.h"

#include <inttypes.h>
#include <stdlib.h>

#define HUGE_BYTES (UINT64_C(2) << 20)

static uint64_t round_up(uint64_t bytes, uint64_t align)
{
    return (bytes + align - 1) & ~(align - 1);
}

/* Finds a gap of the region that holds `bytes`; lock held.  The list is sorted by address and includes buffers outside the
 * region. */
static char *find_gap(const struct strata_io *io, uint64_t bytes)
{
    const uint64_t align = bytes >= HUGE_BYTES ? HUGE_BYTES : ST_IO_ALIGN;
    uint64_t at = 0;

    for (const struct st_hbuffer *b = io->buffers; b != NULL; b = b->next) {
        uint64_t begin;

        if (b->own.base != NULL)
            continue;
        begin = (uint64_t)(b->base - (char *)io->region.base);
        if (at <= begin && bytes <= begin - at)
            return (char *)io->region.base + at;
        at = round_up(begin + b->bytes, align);
    }
    return at <= io->region.bytes && bytes <= io->region.bytes - at ? (char *)io->region.base + at : NULL;
}

static void insert(struct strata_io *io, struct st_hbuffer *buffer)
{
    struct st_hbuffer **link = &io->buffers;

    while (*link != NULL && (uintptr_t)(*link)->base < (uintptr_t)buffer->base)
        link = &(*link)->next;
    buffer->next = *link;
    *link = buffer;
}

strata_status strata_io_buffer_alloc(struct strata_io *io, void **out, uint64_t bytes)
{
    struct st_hbuffer *buffer;
    strata_status st;

    if ((st = st_handle_check(io)) != STRATA_OK)
        return st;
    if (out == NULL)
        return st_error_missing(__func__, "buffer");
    if (bytes == 0 || bytes > UINT64_MAX / 2)
        return st_error(STRATA_E_INVAL, "a buffer of %" PRIu64 " bytes", bytes);
    if ((st = st_io_alloc((void **)&buffer, 1, sizeof(*buffer))) != STRATA_OK)
        return st;
    buffer->bytes = round_up(bytes, ST_IO_ALIGN);
    pthread_mutex_lock(&io->lock);
    if ((buffer->base = find_gap(io, buffer->bytes)) != NULL)
        insert(io, buffer);
    pthread_mutex_unlock(&io->lock);
    if (buffer->base == NULL) {
        if ((st = st_arena_create(&buffer->own, "I/O buffer", buffer->bytes, NULL)) != STRATA_OK) {
            free(buffer);
            return st;
        }
        buffer->base = (char *)buffer->own.base;
        pthread_mutex_lock(&io->lock);
        insert(io, buffer);
        pthread_mutex_unlock(&io->lock);
    }
    *out = buffer->base;
    return STRATA_OK;
}

strata_status strata_io_buffer_free(struct strata_io *io, void *base)
{
    struct st_hbuffer **link, *found;
    strata_status st;

    if (base == NULL)
        return STRATA_OK;
    if ((st = st_handle_check(io)) != STRATA_OK)
        return st;
    pthread_mutex_lock(&io->lock);
    for (link = &io->buffers; *link != NULL && (*link)->base != base; link = &(*link)->next)
        ;
    if ((found = *link) != NULL)
        *link = found->next;
    pthread_mutex_unlock(&io->lock);
    if (found == NULL)
        return st_error(STRATA_E_INVAL, "%p is not a buffer of this handle", base);
    st_arena_destroy(&found->own);
    free(found);
    return STRATA_OK;
}

void st_handle_free_buffers(struct strata_io *io)
{
    while (io->buffers != NULL) {
        struct st_hbuffer *next = io->buffers->next;

        st_arena_destroy(&io->buffers->own);
        free(io->buffers);
        io->buffers = next;
    }
}
