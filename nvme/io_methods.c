/* nvme/io_methods.c - the table of methods, the choice among them, and how a request advances.
 *
 * Stateless; any thread. */
#include "nvme/io_method.h"

#include "core/error.h"
#include "core/fault.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

const struct st_io_ops *const st_io_methods[] = {
    &st_io_uring_ops,
    &st_io_threads_ops,
    &st_io_fake_ops,
    NULL,
};

static bool opens(const struct st_io_ops *ops, strata_status *st)
{
    struct st_io *io;

    *st = ops->open(&io, &(struct st_io_opts){.queue_depth = 1});
    if (*st != STRATA_OK)
        return false;
    ops->close(io);
    return true;
}

const struct st_io_ops *st_io_find(const char *name, const char **why)
{
    const char *reason = "";
    strata_status st;

    if (why != NULL)
        *why = reason;
    if (name != NULL && strcmp(name, "auto") != 0) {
        for (size_t i = 0; st_io_methods[i] != NULL; i++)
            if (strcmp(st_io_methods[i]->name, name) == 0)
                return st_io_methods[i];
        return NULL;
    }
    if (opens(&st_io_uring_ops, &st))
        return &st_io_uring_ops;
    reason = st == STRATA_E_NOSYS
                 ? "io_uring is refused by the kernel (kernel.io_uring_disabled) or by a container's seccomp profile"
                 : "io_uring could not be set up (memory or RLIMIT_MEMLOCK: see ulimit -l)";
    if (why != NULL)
        *why = reason;
    return &st_io_threads_ops;
}

void st_io_begin(struct st_io_req *req, uint32_t file_count)
{
    assert(req->op == ST_IO_READ || req->op == ST_IO_WRITE);
    assert(req->file < file_count);
    assert(req->bytes > 0 && req->bytes <= ST_IO_BYTES_MAX);
    assert(req->done != NULL);
    req->bytes_done = 0;
    req->retry_count = 0;
    req->result = 0;
    req->next = NULL;
}

struct st_io_piece st_io_remaining(const struct st_io_req *req)
{
    const uint32_t from = req->bytes_done & ~(ST_IO_ALIGN - 1);

    return (struct st_io_piece){(char *)req->buf + from, req->offset + from, req->bytes - from};
}

static bool is_transient(int64_t result)
{
    return result == -EAGAIN || result == -EINTR;
}

bool st_io_advance(struct st_io_req *req, int64_t result, strata_status *st)
{
    const uint32_t from = req->bytes_done & ~(ST_IO_ALIGN - 1);

    result = st_fault("nvme.cqe", result);
    req->result = result;
    if (result >= (int64_t)(req->bytes - from)) {
        req->bytes_done = req->bytes;
        *st = STRATA_OK;
        return true;
    }
    if (result >= (int64_t)ST_IO_ALIGN) {
        req->bytes_done = from + (uint32_t)result;
        return false;
    }
    /* No whole block was moved: a refusal, the end of the file inside a block, or an error. */
    if ((result > 0 || is_transient(result)) && req->retry_count < ST_IO_RETRY_MAX) {
        req->retry_count++;
        return false;
    }
    *st = st_io_request_error(req->op, req->offset, req->bytes, result);
    return true;
}

static strata_status status_of_result(enum st_io_op op, int64_t result)
{
    if (result >= 0)
        return op == ST_IO_READ ? STRATA_E_TRUNC : STRATA_E_IO;
    switch (-result) {
    case ENOSPC:
    case EDQUOT:
        return STRATA_E_NOSPC;
    case ENOMEM:
        return STRATA_E_NOMEM;
    default:
        return STRATA_E_IO;
    }
}

strata_status st_io_request_error(enum st_io_op op, uint64_t offset, uint64_t bytes, int64_t result)
{
    const char *verb = op == ST_IO_READ ? "read" : "write";
    const strata_status st = status_of_result(op, result);
    char reason[128];

    if (st == STRATA_E_TRUNC)
        return st_error(st, "%s of %" PRIu64 " bytes at offset %" PRIu64 ": the file ends before that (was it changed?)", verb,
                        bytes, offset);
    if (result >= 0)
        return st_error(st, "%s of %" PRIu64 " bytes at offset %" PRIu64 ": the system took nothing", verb, bytes, offset);
    return st_error(st, "%s of %" PRIu64 " bytes at offset %" PRIu64 ": %s%s", verb, bytes, offset,
                    strerror_r((int)-result, reason, sizeof(reason)),
                    st == STRATA_E_NOSPC ? ": free space on the disk"
                    : st == STRATA_E_IO  ? ": the kernel's log (dmesg) says what the device reported"
                                         : "");
}

strata_status st_io_check_depth(uint32_t queue_depth)
{
    if (queue_depth == 0 || queue_depth > ST_IO_DEPTH_MAX)
        return st_error(STRATA_E_INVAL, "queue depth %" PRIu32 " is outside 1..%u", queue_depth, ST_IO_DEPTH_MAX);
    return STRATA_OK;
}

strata_status st_io_alloc(void **out, const char *what, size_t count, size_t bytes)
{
    void *memory = st_fault("nvme.alloc", 0) < 0 ? NULL : calloc(count, bytes);

    if (memory == NULL)
        return st_error(STRATA_E_NOMEM, "%s: no memory for %zu x %zu bytes", what, count, bytes);
    *out = memory;
    return STRATA_OK;
}
