/* strata/io.h - asynchronous reads and writes of files, any size at any offset, at the speed of the drive.
 *
 *     struct strata_io *io;
 *     struct strata_io_file *file;
 *     strata_io_request request;
 *
 *     strata_io_open(&io, NULL);
 *     strata_io_open_file(io, &file, "/nvme/state", STRATA_IO_READ | STRATA_IO_WRITE | STRATA_IO_CREATE, 1 << 30);
 *     strata_io_write(file, 4711, data, bytes, &request);
 *     ... compute ...
 *     if (strata_io_wait(io, request, -1, NULL) != STRATA_OK)
 *         fprintf(stderr, "%s\n", strata_last_error());
 *     strata_io_close_file(file);
 *     strata_io_close(io);
 *
 * Files are read and written past the page cache (O_DIRECT) if they allow it.  Offsets, sizes and addresses may still be
 * arbitrary: the library handles those that are not aligned to blocks, and a file ends exactly, to the byte, where its furthest
 * write ends.
 *
 * Order   Requests that overlap in a file, one of them a write, take effect in the order in which they were started.  Others run
 *         at the same time, reads together with writes, in any number; requests beyond the queue depth wait inside.  "Overlap"
 *         counts whole blocks of 4096 bytes, and a read past the end waits for writes that move the end.
 * Errors  A request has one status, which is handed out once, to the thread that waits for that request; the sentence in that
 *         thread's strata_last_error() names file, operation, offset and cause.
 * Memory  A buffer belongs to its request from start to end: do not touch it until strata_io_wait() or _poll() has returned its
 *         status.  Buffers of strata_io_buffer_alloc() are the fastest, but any memory works.
 * Thread  Every function, from any thread.  One internal thread does the I/O; waiting threads use no processor time.
 * fork    The I/O thread stays with the parent.  In the child every call on the handle, closing included, returns STRATA_E_INVAL
 *         and says so, or zeros where it returns no status; exec or exit releases what the handle holds.  The child must open
 *         its own handle.
 *
 * Guide: docs/io.md.  Example: docs/examples/io.c. */
#ifndef STRATA_IO_H
#define STRATA_IO_H

#include "strata/status.h"
#include "strata/types.h"
#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

struct strata_io;      /**< a handle: a queue and the thread that serves it */
struct strata_io_file; /**< a file, opened through a handle */

/** A request in progress, or one whose status was not taken yet.  A stale or zero request gives STRATA_E_INVAL, never a crash. */
typedef struct strata_io_request {
    uint64_t bits;
} strata_io_request;

/** Options of a handle.  `struct strata_io_opts opts = {sizeof(opts)};`, then set the members that matter: 0 and NULL mean the
 *  default. */
struct strata_io_opts {
    size_t opts_size;     /**< sizeof(struct strata_io_opts) */
    const char *method;   /**< "uring", "aio", "threads"; NULL or "auto": the best that works here; "fake": memory in place of
                             files, for tests.  Borrowed during the call */
    uint32_t queue_depth; /**< blocks in flight, 1..4096; 0: 32 */
    uint32_t block_bytes; /**< larger requests are cut into blocks of this size, in flight together; a multiple of 4096, at most 1
                             GiB; 0: 1 MiB */
    uint64_t buffer_bytes; /**< memory set aside and registered with the kernel for strata_io_buffer_alloc(); 0: none */
    uint32_t threads;      /**< of method "threads", 1..64, and never more than queue_depth; 0: 8.  Others ignore it */
};

/** How a file is opened: any combination, or-ed together. */
enum strata_io_flags {
    STRATA_IO_READ = 1,
    STRATA_IO_WRITE = 2,
    STRATA_IO_CREATE = 4,    /**< create it if it does not exist, mode 0666 less the umask; needs WRITE */
    STRATA_IO_TRUNCATE = 8,  /**< discard its contents; needs WRITE */
    STRATA_IO_BUFFERED = 16, /**< use the page cache even if direct I/O works */
    STRATA_IO_UNNAMED = 32,  /**< a new file without a name in the directory `path`: it is gone when it is closed, or the process
                                ends in whatever way; needs READ and WRITE, without CREATE and TRUNCATE */
};

/** Details of a request's result, beyond its status. */
struct strata_io_result {
    strata_status status;
    int system_error;       /**< errno of the transfer that failed; 0: none failed, or not by a system error */
    uint64_t failed_offset; /**< offset in the file where it failed, in bytes */
    uint64_t bytes_moved;   /**< of the request; all of them with STRATA_OK */
    double seconds;         /**< from start to end, or to now if it has not ended */
};

/** What a handle has done since it was opened, counted in requests as started and bytes as requested. */
struct strata_io_counters {
    uint64_t reads, writes;             /**< requests that succeeded */
    uint64_t bytes_read, bytes_written; /**< of theirs */
    uint64_t failed, cancelled;         /**< requests that did not succeed */
    uint64_t bytes_bounced;             /**< copied an extra time because address or offset was not aligned */
    uint64_t blocks_merged;             /**< read first because a write covered only part of them */
    uint64_t outstanding;               /**< requests that have not ended by now */
};

/**
 * Open a handle and start its thread.
 *
 * @param io    out, returned: the caller closes it
 * @param opts  copied; NULL: all defaults
 *
 * @return STRATA_E_INVAL  an option outside its range, an unknown method, or another opts_size
 *         STRATA_E_NOSYS  this machine lacks the named method
 *         STRATA_E_NOMEM  no memory, or no thread from the system
 *         STRATA_E_IO     the method could not be set up (descriptors: ulimit -n)
 *
 * Cost  buffer_bytes of memory, resident.  If the kernel refuses to register it (ulimit -l), a notice is printed and transfers
 *       continue without registration.
 */
STRATA_API strata_status strata_io_open(struct strata_io **io, const struct strata_io_opts *opts);

/**
 * Finish all started requests, close the files and buffers that are still open, end the thread and free everything.
 *
 * @param io  taken, whatever is returned (in a forked child: not touched).  NULL is fine.  No other call on it may be in progress
 *
 * @return the first failure of a request or of closing a file whose status was not taken; STRATA_OK if there was none
 */
STRATA_API strata_status strata_io_close(struct strata_io *io);

/**
 * Open a regular file.  A file that is written must be open in one handle at a time, and there once: the same file again, by
 * whatever path, is refused if either is opened for WRITE.
 *
 * @param file   out, returned: closed by strata_io_close_file() or by strata_io_close()
 * @param path   copied
 * @param flags  of enum strata_io_flags; READ or WRITE at least
 * @param bytes  make it at least this long and allocate the space, so that a full disk is found now; 0: leave its size
 *
 * @return STRATA_E_INVAL  flags that do not go together, bytes without WRITE, or a file that is open in this handle already
 *         STRATA_E_INPUT  no such file or directory, a directory where a file is needed, a device, no permission
 *         STRATA_E_NOSPC  the space cannot be reserved; a file that this call created is removed again
 *         STRATA_E_IO, STRATA_E_NOMEM
 *
 * If direct I/O does not work, the file goes through the page cache: see strata_io_file_direct().
 */
STRATA_API strata_status strata_io_open_file(struct strata_io *io, struct strata_io_file **file, const char *path, uint32_t flags,
                                             uint64_t bytes);

/** Wait for the file's requests, then close it; start no others meanwhile.  Their statuses stay until they are taken.
 *
 *  @param file  taken, whatever is returned.  NULL is fine
 *
 *  @return STRATA_E_IO and the like: the error of closing */
STRATA_API strata_status strata_io_close_file(struct strata_io_file *file);

/** Wait until no request of the file is outstanding, then until everything written would survive a loss of power (fdatasync).
 *
 *  @return STRATA_E_IO and the like: some of it might not survive */
STRATA_API strata_status strata_io_sync_file(struct strata_io_file *file);

/** Size of the file in bytes, after the writes that have ended; 0 of NULL, and in a forked child. */
STRATA_API uint64_t strata_io_file_bytes(const struct strata_io_file *file);

/** Whether the file is read and written past the page cache; false of NULL. */
STRATA_API bool strata_io_file_direct(const struct strata_io_file *file);

/**
 * Start a read; does not wait.
 *
 * @param offset   of the first byte in the file
 * @param buf      [bytes] out; borrowed until the request has ended
 * @param bytes    any number, 0 included
 * @param request  out; NULL: no one waits for this request, and strata_io_wait_all() reports its failure
 *
 * @return STRATA_OK: the request ends exactly once, with its own status.  Otherwise nothing was started:
 *         STRATA_E_INVAL  a file not opened for it, or a range beyond 2^63 - 1
 *         STRATA_E_NOMEM  no memory for another request
 *
 * The request ends with STRATA_OK: every byte is there.  Otherwise the contents of buf are undefined:
 *         STRATA_E_TRUNC      the file ends before offset + bytes
 *         STRATA_E_IO         the sentence has the drive's error, strata_io_result its errno
 *         STRATA_E_CANCELLED  see strata_io_cancel()
 *         STRATA_E_NOMEM, STRATA_E_NOSYS  the system had no memory for it, or cannot do it
 *
 * Cost  no allocation once as many requests have been outstanding before.  Reads directly into buf where address and offset are
 *       aligned as the drive requires (4096 bytes always suffice); other parts are copied once.
 */
STRATA_API strata_status strata_io_read(struct strata_io_file *file, uint64_t offset, void *buf, uint64_t bytes,
                                        strata_io_request *request);

/**
 * Start a write; does not wait.  As strata_io_read(), and:
 *
 * @param buf  [bytes] in; borrowed until the request has ended
 *
 * The request ends with STRATA_OK: the drive has taken every byte (see strata_io_sync_file() for power cuts), and the file has
 * grown to offset + bytes if it was shorter.  Otherwise any part of the range may have been written, and nothing outside it:
 *         STRATA_E_NOSPC  no space left, or a quota, or a file larger than allowed
 *
 * Cost  blocks of 4096 bytes that the range covers only in part are read first.  A write that ends inside the file's last block,
 *       or inside a block after it, excludes all others from there on; if the space is reserved at opening, this is rare.
 */
STRATA_API strata_status strata_io_write(struct strata_io_file *file, uint64_t offset, const void *buf, uint64_t bytes,
                                         strata_io_request *request);

/** A transfer of strata_io_start(). */
struct strata_io_transfer {
    struct strata_io_file *file; /**< of the handle */
    uint64_t offset;             /**< of the first byte in the file */
    void *buf;                   /**< [bytes] a write only reads it; borrowed until the request has ended */
    uint64_t bytes;              /**< any number, 0 included */
    bool write;
    strata_io_request request; /**< out */
};

/**
 * Start many transfers at once, as strata_io_read() and strata_io_write() would one by one in this order: all of them or none,
 * and the I/O thread is woken once.
 *
 * @param transfers  [count] borrowed during the call; what `buf` points to until the request has ended
 *
 * @return STRATA_OK: each request ends exactly once, with its own status.  Otherwise nothing was started, and no `request` was
 *         written:
 *         STRATA_E_INVAL  an argument is NULL, or a transfer is of another handle's file, or one that strata_io_read() or
 *                         strata_io_write() would refuse: the sentence names the first such file
 *         STRATA_E_NOMEM  no memory for so many requests
 */
STRATA_API strata_status strata_io_start(struct strata_io *io, struct strata_io_transfer *transfers, uint32_t count);

/**
 * A descriptor that poll(), epoll and event loops such as Python's can wait for: it is readable when requests have ended since it
 * was read the last time.  A read of 8 bytes gives their number as a uint64_t and makes it unreadable, or fails with EAGAIN when
 * there are none.  Read it first, then ask strata_io_poll(), so that no end is missed; requests that had ended before the first
 * call of this function, and whose status was not taken, count, too.
 *
 * @param fd  out, borrowed: the same for each call, until strata_io_close().  A child of fork() that reads it takes events of its
 *            parent's; exec closes it
 *
 * @return STRATA_E_INVAL  an argument is NULL
 *         STRATA_E_IO, STRATA_E_NOMEM  the system gives no descriptor (ulimit -n)
 *
 * Cost  from the first call on, one more system call on the I/O thread for each request that ends.
 */
STRATA_API strata_status strata_io_event_fd(struct strata_io *io, int *fd);

/**
 * Wait for a request and take its status; after that the request no longer exists.
 *
 * @param seconds  how long to wait at most; negative: no limit
 * @param result   out, or NULL; always written, except with STRATA_E_INVAL
 *
 * @return the request's own status, with its sentence; or
 *         STRATA_E_BUSY   the time ran out and the request is still in progress: wait again.  The sentence names the oldest
 *                         request of the handle that has not ended: file, offset, bytes, age.  No request has this as its own
 *                         status
 *         STRATA_E_INVAL  not in progress: its status was taken, or it was never started here
 */
STRATA_API strata_status strata_io_wait(struct strata_io *io, strata_io_request request, double seconds,
                                        struct strata_io_result *result);

/** Take a request's status if it has ended; STRATA_E_BUSY, without a sentence, if it has not.  Otherwise as strata_io_wait(). */
STRATA_API strata_status strata_io_poll(struct strata_io *io, strata_io_request request, struct strata_io_result *result);

/**
 * Ask that a request end early.  strata_io_wait() still takes its status: STRATA_E_CANCELLED if a part of it was left out,
 * otherwise the status that it would have had anyway.  A transfer that the drive is working on cannot be stopped.
 *
 * @return STRATA_E_INVAL  not in progress
 */
STRATA_API strata_status strata_io_cancel(struct strata_io *io, strata_io_request request);

/**
 * Wait until every request that was started before this call has ended.
 *
 * @param seconds  how long to wait at most; negative: no limit
 *
 * @return STRATA_OK, also if there is nothing to wait for.  STRATA_E_BUSY: the time ran out, as in strata_io_wait().  Otherwise
 * the first failure since the last such call among requests that were started without `request`.  Requests started with one keep
 *   their status for the thread that waits for them.
 */
STRATA_API strata_status strata_io_wait_all(struct strata_io *io, double seconds);

/**
 * Memory for transfers: aligned to 4096 bytes; buffers of 2 MiB or more are aligned to 2 MiB and in huge pages if the system has
 * them.  The memory is touched.
 *
 * It comes from the handle's buffer_bytes, which are registered with the kernel, and when those are used up from other memory.
 *
 * @param buffer  out, returned: freed by strata_io_buffer_free(), or by strata_io_close()
 *
 * @return STRATA_E_INVAL  bytes is 0
 *         STRATA_E_NOMEM
 */
STRATA_API strata_status strata_io_buffer_alloc(struct strata_io *io, void **buffer, uint64_t bytes);

/** Free a buffer that no request uses; NULL is fine.  STRATA_E_INVAL: not one of this handle's; nothing was freed. */
STRATA_API strata_status strata_io_buffer_free(struct strata_io *io, void *buffer);

/** Get the counters so far; zeros if io is NULL, and in a forked child. */
STRATA_API void strata_io_get_counters(struct strata_io *io, struct strata_io_counters *counters);

/** Name of the method in use, static; whether the buffer_bytes are registered with the kernel.  NULL: "" and false. */
STRATA_API const char *strata_io_get_method(const struct strata_io *io);
STRATA_API bool strata_io_get_registered(const struct strata_io *io);

#ifdef __cplusplus
}
#endif
#endif
