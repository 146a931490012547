/* nvme/method/io_method.h - code shared by the methods; not for users of nvme/method/io.h.
 *
 * How a request advances over short transfers and refusals is decided in one place, so every method agrees. */
#ifndef NVME_METHOD_IO_METHOD_H
#define NVME_METHOD_IO_METHOD_H

#include "nvme/method/io.h"
#include <pthread.h>
#include <stddef.h>

#define ST_IO_ALIGN       4096u      /* O_DIRECT transfers resume at this alignment: an unaligned one is EINVAL */
#define ST_IO_DEPTH_MAX   4096u      /* per io */
#define ST_IO_THREADS_MAX 64u        /* of method threads */
#define ST_IO_BYTES_MAX   (1u << 30) /* per request, and per registered piece of memory */
#define ST_IO_RETRY_MAX   16u        /* refusals of one request before it fails */

extern const struct st_io_ops st_io_uring_ops, st_io_aio_ops, st_io_threads_ops, st_io_fake_ops;

/* The part of a request still to do, from the last aligned byte on, or from the last one of all (`exact`). */
struct st_io_piece {
    char *buf;
    uint64_t offset;
    uint32_t bytes;
};

struct st_io_file {
    int fd; /* -1: no file, or fake's */
    bool used;
    uint32_t busy; /* requests taken and not done */
};

/* The files of an io, by index; used only by the owner, but for the descriptors of requests that it has taken.  What is beyond
 * the first is there once a file takes it, and stays where it is. */
struct st_io_files {
    uint32_t limit;
    struct st_io_file first[ST_IO_FILES_DEFAULT];
    struct st_io_file *more[ST_IO_FILES_MAX / ST_IO_FILES_DEFAULT - 1]; /* as many each */
};

void st_io_files_init(struct st_io_files *files, const struct st_io_opts *opts);
void st_io_files_fini(struct st_io_files *files);

/** Find the first free place; E_INVAL: all are used; E_NOMEM. */
strata_status st_io_files_find(struct st_io_files *files, uint32_t *index);
/** Take the place. */
void st_io_files_put(struct st_io_files *files, uint32_t index, int fd);
/** Give the place back; asserts that none of the file's requests is in flight. */
void st_io_files_remove(struct st_io_files *files, uint32_t index);

static inline struct st_io_file *st_io_file_at(struct st_io_files *files, uint32_t index)
{
    struct st_io_file *const some = index < ST_IO_FILES_DEFAULT ? files->first : files->more[index / ST_IO_FILES_DEFAULT - 1];

    return &some[index % ST_IO_FILES_DEFAULT];
}

static inline int st_io_file_fd(const struct st_io_files *files, uint32_t index)
{
    return index < ST_IO_FILES_DEFAULT ? files->first[index].fd
                                       : files->more[index / ST_IO_FILES_DEFAULT - 1][index % ST_IO_FILES_DEFAULT].fd;
}

/** Reset progress of a request that submit() takes; asserts that it meets the contract. */
void st_io_begin(struct st_io_files *files, struct st_io_req *req);

/** End the request; the method does not use it afterwards. */
void st_io_end(struct st_io_files *files, struct st_io_req *req, strata_status st);

struct st_io_piece st_io_remaining(const struct st_io_req *req);

/** Account one completion of st_io_remaining(), bytes or -errno (fault site "nvme.cqe"), or of a sync ("nvme.fsync").  True:
 *  finished, with *st and its sentence.  False: offer the rest again (never for a sync or a cancelled request). */
bool st_io_advance(struct st_io_req *req, int64_t result, strata_status *st);

/** Status and sentence of a request that ended with `result` (too few bytes moved, or -errno). */
strata_status st_io_request_error(enum st_io_op op, uint64_t offset, uint64_t bytes, int64_t result);

/** Whether a call that was refused `refusals` times in a row, 1 ms apart, counts as refused permanently. */
bool st_io_refused_for_good(int err, uint32_t refusals);

/** E_INVAL unless 1..ST_IO_DEPTH_MAX. */
strata_status st_io_check_depth(uint32_t queue_depth);

/** E_INVAL if more than ST_IO_THREADS_MAX. */
strata_status st_io_check_threads(uint32_t threads);

/** calloc behind the fault site "nvme.alloc". */
strata_status st_io_alloc(void **out, size_t count, size_t bytes);

#endif
