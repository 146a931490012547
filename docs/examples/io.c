/* io.c - strata's asynchronous file I/O: a tensor of odd size is written and read back beside other work, errors are named.
 *
 *     cc io.c $(pkg-config --cflags --libs strata) && ./a.out [FILE] */
#include <strata/strata.h>

#include <stdio.h>
#include <string.h>

#define BYTES  10000001u /* odd on purpose */
#define OFFSET 4711u
#define PIECES 7u

/* All pieces are under way at once; each is waited for by itself. */
static strata_status read_in_pieces(struct strata_io *io, struct strata_io_file *file, unsigned char *out)
{
    const uint64_t piece = BYTES / PIECES + 1;
    struct strata_io_transfer pieces[PIECES] = {0};
    strata_status st, worst = STRATA_OK;

    for (uint32_t i = 0; i < PIECES; i++) {
        const uint64_t at = i * piece, left = BYTES - at;

        pieces[i].file = file;
        pieces[i].offset = OFFSET + at;
        pieces[i].buf = out + at;
        pieces[i].bytes = left < piece ? left : piece;
    }
    if ((st = strata_io_start(io, pieces, PIECES)) != STRATA_OK)
        return st;
    for (uint32_t i = 0; i < PIECES; i++) {
        st = strata_io_wait(io, pieces[i].request, 60, NULL);
        worst = worst == STRATA_OK ? st : worst;
    }
    return worst;
}

static strata_status run(struct strata_io *io, const char *path)
{
    const uint32_t flags = STRATA_IO_READ | STRATA_IO_WRITE | STRATA_IO_CREATE;
    struct strata_io_file *file;
    struct strata_io_result result;
    strata_io_request request;
    void *in, *out;
    char byte;
    strata_status st;

    if ((st = strata_io_buffer_alloc(io, &in, BYTES)) != STRATA_OK || (st = strata_io_buffer_alloc(io, &out, BYTES)) != STRATA_OK)
        return st;
    for (uint32_t i = 0; i < BYTES; i++)
        ((unsigned char *)in)[i] = (unsigned char)(i * 2654435761u >> 24);

    /* A full disk is found here, not in the middle of a run. */
    if ((st = strata_io_open_file(io, &file, path, flags, OFFSET + BYTES)) != STRATA_OK)
        return st;
    printf("%s, %s\n", strata_io_get_method(io), strata_io_file_direct(file) ? "direct" : "through the page cache");
    if ((st = strata_io_write(file, OFFSET, in, BYTES, &request)) != STRATA_OK)
        return st;
    /* ... compute here, and leave `in` alone ... */
    if ((st = strata_io_wait(io, request, 60, &result)) != STRATA_OK)
        return st;
    printf("wrote %llu bytes at offset %u in %.1f ms\n", (unsigned long long)result.bytes_moved, OFFSET, result.seconds * 1e3);
    if ((st = read_in_pieces(io, file, out)) != STRATA_OK)
        return st;
    printf("read them in %u pieces: %s\n", PIECES, memcmp(in, out, BYTES) == 0 ? "equal" : "DIFFERENT");

    /* An error belongs to its request, and says file, operation, place and cause. */
    if ((st = strata_io_read(file, OFFSET + BYTES, &byte, 1, &request)) != STRATA_OK)
        return st;
    if (strata_io_wait(io, request, 60, NULL) != STRATA_E_TRUNC)
        return STRATA_E_INTERNAL;
    printf("as expected: %s\n", strata_last_error());
    if ((st = strata_io_close_file(file)) != STRATA_OK)
        return st;
    return memcmp(in, out, BYTES) == 0 ? STRATA_OK : STRATA_E_CORRUPT;
}

int main(int argc, char **argv)
{
    const char *path = argc > 1 ? argv[1] : "strata-example-io.bin";
    struct strata_io_opts opts = {.opts_size = sizeof(opts)};
    struct strata_io *io;
    strata_status st, closed;

    opts.buffer_bytes = 32u << 20; /* registered with the kernel where it allows so much (ulimit -l) */
    if ((st = strata_io_open(&io, &opts)) != STRATA_OK) {
        fprintf(stderr, "io: %s\n", strata_last_error());
        return strata_status_exit_code(st);
    }
    if ((st = run(io, path)) != STRATA_OK)
        fprintf(stderr, "io: %s\n", strata_last_error());
    if ((closed = strata_io_close(io)) != STRATA_OK && st == STRATA_OK)
        fprintf(stderr, "io: %s\n", strata_last_error());
    remove(path);
    return strata_status_exit_code(st != STRATA_OK ? st : closed);
}
