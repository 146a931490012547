/* comm_mpi_stream.c - the parts of one direction as one stream of bytes, in chunks.  See offload/comm/comm_mpi_internal.h. */
#include "offload/comm/comm_mpi_internal.h"

#include <string.h>

void st_mpi_stream_begin(struct mpi_stream *s, const struct st_comm_part *parts, uint32_t count)
{
    s->next = st_comm_cursor_at(parts, count);
    s->bytes = st_comm_bytes(parts, count);
    s->posted = s->done = 0;
}

/* `bytes` bytes of the stream to (true) or from `memory`; NULL: they are skipped. */
static void carry(struct st_comm_cursor *at, unsigned char *memory, uint64_t bytes, bool to_memory)
{
    while (bytes > 0) {
        uint64_t run;
        unsigned char *data = st_comm_cursor_run(at, &run);

        run = run < bytes ? run : bytes;
        if (memory != NULL) {
            memcpy(to_memory ? memory : data, to_memory ? data : memory, run);
            memory += run;
        }
        st_comm_cursor_skip(at, run);
        bytes -= run;
    }
}

void st_mpi_stream_take(struct mpi_stream *s, unsigned char *to)
{
    carry(&s->next, to, s->bytes, true);
    s->posted = s->done = s->bytes;
}

void st_mpi_stream_put(struct mpi_stream *s, unsigned char *from)
{
    carry(&s->next, from, s->bytes, false);
    s->posted = s->done = s->bytes;
}

/* Cuts the next chunk off.  @return where it lies, or the buffer */
static void *cut(struct mpi_stream *s, struct mpi_chunk *chunk, uint32_t bytes_most)
{
    const uint64_t left = s->bytes - s->posted;
    uint64_t run;
    void *data = st_comm_cursor_run(&s->next, &run);

    chunk->from = s->next;
    chunk->bytes = left < bytes_most ? (uint32_t)left : bytes_most;
    chunk->staged = chunk->bytes > run;
    s->posted += chunk->bytes;
    carry(&s->next, NULL, chunk->bytes, false);
    return chunk->staged ? chunk->buffer : data;
}

void *st_mpi_chunk_out(struct mpi_stream *s, struct mpi_chunk *chunk, uint32_t bytes_most)
{
    void *data = cut(s, chunk, bytes_most);
    struct st_comm_cursor from = chunk->from;

    if (chunk->staged)
        carry(&from, chunk->buffer, chunk->bytes, true);
    return data;
}

void *st_mpi_chunk_in(struct mpi_stream *s, struct mpi_chunk *chunk, uint32_t bytes_most)
{
    return cut(s, chunk, bytes_most);
}

void st_mpi_chunk_landed(const struct mpi_chunk *chunk)
{
    struct st_comm_cursor from = chunk->from;

    if (chunk->staged)
        carry(&from, chunk->buffer, chunk->bytes, false);
}
