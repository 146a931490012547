/* tests/nvme/soak_io.c - the public handle under mixed traffic for long: every byte read is what was last written there.
 *
 *     soak_io [DIR [GIGABYTES [METHOD [FILE_MEBIBYTES]]]]    defaults: /tmp 100 auto 1024
 *
 * Two threads share one handle and four files.  Each owns every other of the 1 MB records of each file, whose borders lie on odd
 * bytes, so that neighbours share blocks.  A record is written with a new version of its content and checked by checksum when it
 * is read; half of the requests are reads, sizes and places inside a record are random, many are outstanding.  Ends with a
 * line of totals, 1 at the first wrong byte or failed request.  Seeded: a run repeats itself but for the timing. */
#include "core/base/checksum.h"
#include "core/base/rng.h"
#include "core/system/clock.h"
#include "strata/strata.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define FILES        4u
#define THREADS      2u
#define DEPTH        24u      /* requests outstanding per thread */
#define RECORD_BYTES 1000003u /* prime */

/* Content of a record: version v of record r is a function of both; the whole of it is known without keeping it. */
struct record {
    uint64_t version; /* 0: never written, zeros */
    bool busy;
};

struct request {
    strata_io_request id;
    struct record *record;
    uint64_t offset_in_record, bytes, record_index;
    bool write;
    unsigned char *memory, *buf; /* buf: inside memory */
};

struct soak {
    struct strata_io *io;
    struct strata_io_file *files[FILES];
    uint64_t records_per_file, bytes_wanted;
    struct record *records; /* [FILES * records_per_file]; each one thread's */
    atomic_uint_fast64_t bytes_read, bytes_written;
    atomic_bool failed;
};

struct worker {
    pthread_t thread;
    struct soak *soak;
    uint32_t index;
    uint64_t drawn;
    struct request requests[DEPTH];
    uint32_t head, count; /* ring */
    unsigned char *want;
};

static uint64_t draw(struct worker *w, uint64_t limit)
{
    return st_rng_u64(1, w->index, w->drawn++) % limit;
}

static uint64_t mix(uint64_t x)
{
    x = (x ^ x >> 31) * UINT64_C(0x9e3779b97f4a7c15);
    return x ^ x >> 29;
}

static void content(unsigned char *out, uint64_t record, uint64_t version, uint64_t from, uint64_t bytes)
{
    const uint64_t key = mix(record + 1) ^ mix(~version);

    if (version == 0) {
        memset(out, 0, bytes);
        return;
    }
    for (uint64_t i = 0; i < bytes;) {
        const uint64_t word = mix(key + (from + i) / 8);
        const uint64_t skip = (from + i) % 8, left = bytes - i, count = 8 - skip < left ? 8 - skip : left;

        memcpy(out + i, (const unsigned char *)&word + skip, count);
        i += count;
    }
}

static void complain(struct soak *s, const char *what)
{
    if (!atomic_exchange(&s->failed, true))
        fprintf(stderr, "soak_io: %s\n", what);
}

static void finish_one(struct worker *w)
{
    struct request *r = &w->requests[w->head];
    char text[160];

    w->head = (w->head + 1) % DEPTH;
    w->count--;
    if (strata_io_wait(w->soak->io, r->id, -1, NULL) != STRATA_OK) {
        complain(w->soak, strata_last_error());
    } else if (r->write) {
        atomic_fetch_add(&w->soak->bytes_written, r->bytes);
    } else {
        content(w->want, r->record_index, r->record->version, r->offset_in_record, r->bytes);
        if (st_checksum64(r->buf, r->bytes) != st_checksum64(w->want, r->bytes)) {
            snprintf(text, sizeof(text), "record %llu, version %llu, bytes %llu at %llu are wrong",
                     (unsigned long long)r->record_index, (unsigned long long)r->record->version, (unsigned long long)r->bytes,
                     (unsigned long long)r->offset_in_record);
            complain(w->soak, text);
        }
        atomic_fetch_add(&w->soak->bytes_read, r->bytes);
    }
    r->record->busy = false;
}

static bool start_one(struct worker *w)
{
    struct soak *s = w->soak;
    struct request *r = &w->requests[(w->head + w->count) % DEPTH];
    const uint64_t own = draw(w, FILES * s->records_per_file / THREADS);
    const uint64_t index = own * THREADS + w->index;
    const uint64_t base = index % s->records_per_file * RECORD_BYTES;
    struct strata_io_file *file = s->files[index / s->records_per_file];

    if (s->records[index].busy)
        return false;
    r->record = &s->records[index];
    r->record->busy = true;
    r->record_index = index;
    r->write = draw(w, 2) == 0;
    r->offset_in_record = r->write || draw(w, 4) > 0 ? 0 : draw(w, RECORD_BYTES);
    /* Half of them lie in memory as in the file, so that whole blocks go straight; the others are copied. */
    r->buf = r->memory + (draw(w, 2) == 0 ? (base + r->offset_in_record) % 4096 : draw(w, 4096));
    if (r->write) { /* whole, so that one version holds for all of it */
        r->record->version = draw(w, UINT64_MAX - 1) + 1;
        r->bytes = RECORD_BYTES;
        content(r->buf, index, r->record->version, 0, r->bytes);
        return strata_io_write(file, base, r->buf, r->bytes, &r->id) == STRATA_OK;
    }
    r->bytes = r->offset_in_record == 0 ? RECORD_BYTES : 1 + draw(w, RECORD_BYTES - r->offset_in_record);
    return strata_io_read(file, base + r->offset_in_record, r->buf, r->bytes, &r->id) == STRATA_OK;
}

static void *work(void *arg)
{
    struct worker *w = arg;
    struct soak *s = w->soak;

    while (!atomic_load(&s->failed) && atomic_load(&s->bytes_read) + atomic_load(&s->bytes_written) < s->bytes_wanted) {
        if (w->count == DEPTH || !start_one(w)) {
            if (w->count == 0)
                complain(s, strata_last_error());
            else
                finish_one(w);
        } else {
            w->count++;
        }
    }
    while (w->count > 0)
        finish_one(w);
    return NULL;
}

static bool prepare_worker(struct soak *s, struct worker *w, uint32_t index)
{
    w->soak = s;
    w->index = index;
    w->want = malloc(RECORD_BYTES);
    for (uint32_t i = 0; i < DEPTH; i++) {
        void *buf;

        if (strata_io_buffer_alloc(s->io, &buf, RECORD_BYTES + 4096) != STRATA_OK)
            return false;
        w->requests[i].memory = buf;
    }
    return w->want != NULL;
}

static void print_totals(struct soak *s, double seconds)
{
    struct strata_io_counters c;
    const double gigabytes = (double)(s->bytes_read + s->bytes_written) * 1e-9;

    strata_io_get_counters(s->io, &c);
    printf("soak_io: %s, %s: %.1f GB read, %.1f GB written, all checked, in %.0f s (%.2f GB/s); %llu requests, %llu failed, "
           "%.1f GB bounced, %llu blocks merged\n",
           strata_io_get_method(s->io), strata_io_file_direct(s->files[0]) ? "direct" : "buffered", (double)s->bytes_read * 1e-9,
           (double)s->bytes_written * 1e-9, seconds, gigabytes / seconds, (unsigned long long)(c.reads + c.writes + c.failed),
           (unsigned long long)c.failed, (double)c.bytes_bounced * 1e-9, (unsigned long long)c.blocks_merged);
}

static strata_status open_all(struct soak *s, const char *dir, const char *method)
{
    const struct strata_io_opts opts = {sizeof(opts), .method = method,
                                        .buffer_bytes = (uint64_t)THREADS * DEPTH * (RECORD_BYTES + 8192)};
    strata_status st = strata_io_open(&s->io, &opts);

    for (uint32_t i = 0; st == STRATA_OK && i < FILES; i++) {
        char path[4096];

        snprintf(path, sizeof(path), "%s/strata-soak-%ld-%u", dir, (long)getpid(), (unsigned)i);
        st = strata_io_open_file(s->io, &s->files[i], path, STRATA_IO_READ | STRATA_IO_WRITE | STRATA_IO_CREATE,
                                 s->records_per_file * RECORD_BYTES);
        if (st == STRATA_OK)
            unlink(path); /* nothing is left behind, whatever happens */
    }
    return st;
}

int main(int argc, char **argv)
{
    static struct soak s;
    static struct worker workers[THREADS];
    const double gigabytes = argc > 2 ? strtod(argv[2], NULL) : 100;
    const uint64_t mebibytes = argc > 4 ? strtoull(argv[4], NULL, 10) : 1024;
    uint64_t start_ns;
    strata_status st;

    s.bytes_wanted = (uint64_t)(gigabytes * 1e9);
    s.records_per_file = (mebibytes << 20) / RECORD_BYTES / THREADS * THREADS;
    if (s.records_per_file == 0 || !(gigabytes > 0)) {
        fprintf(stderr, "soak_io [DIR [GIGABYTES [METHOD [FILE_MEBIBYTES]]]]: at least 2 MiB per file, and a size\n");
        return 2;
    }
    s.records = calloc(FILES * s.records_per_file, sizeof(*s.records));
    if (s.records == NULL || (st = open_all(&s, argc > 1 ? argv[1] : "/tmp", argc > 3 ? argv[3] : NULL)) != STRATA_OK) {
        fprintf(stderr, "soak_io: %s\n", strata_last_error());
        return 1;
    }
    start_ns = st_clock_ns();
    for (uint32_t i = 0; i < THREADS; i++)
        if (!prepare_worker(&s, &workers[i], i) || pthread_create(&workers[i].thread, NULL, work, &workers[i]) != 0) {
            fprintf(stderr, "soak_io: no memory or no thread\n");
            return 1;
        }
    for (uint32_t i = 0; i < THREADS; i++) {
        pthread_join(workers[i].thread, NULL);
        free(workers[i].want);
    }
    print_totals(&s, (double)(st_clock_ns() - start_ns) * 1e-9);
    if (strata_io_close(s.io) != STRATA_OK)
        complain(&s, strata_last_error());
    free(s.records);
    return s.failed ? 1 : 0;
}
