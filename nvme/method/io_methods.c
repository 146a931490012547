/* nvme/method/io_methods.c - the table of methods, the choice among them, and how a request advances.
 *
 * Stateless; any thread. */
#include "nvme/method/io_method.h"

#include "core/base/error.h"
#include "core/base/fault.h"
#include "core/base/log.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#define NS_PER_SECOND 1000000000u
#define REFUSALS_MAX  2000u
#define REFUSALS_FEW  20u

const struct st_io_ops *const st_io_methods[] = {
    &st_io_uring_ops, &st_io_aio_ops, &st_io_threads_ops, &st_io_fake_ops, NULL,
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

static const struct st_io_ops *find_named(const char *name)
{
    for (size_t i = 0; st_io_methods[i] != NULL; i++)
        if (strcmp(st_io_methods[i]->name, name) == 0)
            return st_io_methods[i];
    return NULL;
}

/* The first method whose open() works; *why says why earlier ones did not. */
static const struct st_io_ops *find_best(const char **why)
{
    strata_status ring, aio;

    *why = "";
    if (opens(&st_io_uring_ops, &ring))
        return &st_io_uring_ops;
    if (opens(&st_io_aio_ops, &aio)) {
        *why = ring == STRATA_E_NOSYS
                   ? "io_uring is refused by the kernel (kernel.io_uring_disabled) or by a container's seccomp profile"
                   : "io_uring could not be set up (memory or descriptors: see ulimit -l and -n)";
        return &st_io_aio_ops;
    }
    if (ring == STRATA_E_NOSYS)
        *why = aio == STRATA_E_NOSYS
                   ? "io_uring is refused by the kernel (kernel.io_uring_disabled) or by a container's seccomp profile, and so "
                     "is aio"
                   : "io_uring is refused by the kernel (kernel.io_uring_disabled) or by a container's seccomp profile, and aio "
                     "could not be set up (sysctl fs.aio-max-nr, or ulimit -n)";
    else
        *why =
            aio == STRATA_E_NOSYS
                ? "io_uring could not be set up (memory or descriptors: see ulimit -l and -n), and aio is refused by the kernel"
                : "io_uring could not be set up (memory or descriptors: see ulimit -l and -n), nor aio (sysctl fs.aio-max-nr)";
    return &st_io_threads_ops;
}

bool st_io_is_auto(const char *name)
{
    return name == NULL || strcmp(name, "auto") == 0;
}

const struct st_io_ops *st_io_find(const char *name, const char **why)
{
    const char *reason = "";
    const struct st_io_ops *ops = st_io_is_auto(name) ? find_best(&reason) : find_named(name);

    if (why != NULL)
        *why = reason;
    return ops;
}

const struct st_io_ops *st_io_next(const struct st_io_ops *ops, strata_status st)
{
    size_t at = 0;

    while (st_io_methods[at] != ops)
        at++;
    ops = st_io_methods[at + 1];
    if (st == STRATA_E_INVAL || st == STRATA_E_INPUT || ops == &st_io_fake_ops)
        return NULL;
    st_log(ST_LOG_NOTICE, "%s: using I/O method %s", strata_last_error(), ops->name);
    return ops;
}

static void clear_files(struct st_io_file files[ST_IO_FILES_DEFAULT])
{
    for (uint32_t i = 0; i < ST_IO_FILES_DEFAULT; i++)
        files[i] = (struct st_io_file){.fd = -1};
}

void st_io_files_init(struct st_io_files *files, const struct st_io_opts *opts)
{
    assert(opts->files <= ST_IO_FILES_MAX);
    memset(files, 0, sizeof(*files));
    files->limit = opts->files > 0 ? opts->files : ST_IO_FILES_DEFAULT;
    clear_files(files->first);
}

void st_io_files_fini(struct st_io_files *files)
{
    for (uint32_t i = 0; i < sizeof(files->more) / sizeof(files->more[0]); i++)
        free(files->more[i]);
}

strata_status st_io_files_find(struct st_io_files *files, uint32_t *index)
{
    strata_status st = STRATA_OK;

    for (uint32_t i = 0; i < files->limit; i++) {
        if (i >= ST_IO_FILES_DEFAULT && files->more[i / ST_IO_FILES_DEFAULT - 1] == NULL) {
            struct st_io_file **const more = &files->more[i / ST_IO_FILES_DEFAULT - 1];

            if ((st = st_io_alloc((void **)more, ST_IO_FILES_DEFAULT, sizeof(**more))) != STRATA_OK)
                return st;
            clear_files(*more);
        }
        if (st_io_file_at(files, i)->used)
            continue;
        *index = i;
        return STRATA_OK;
    }
    return st_error(STRATA_E_INVAL, "an io takes at most %u files", files->limit);
}

void st_io_files_put(struct st_io_files *files, uint32_t index, int fd)
{
    assert(!st_io_file_at(files, index)->used);
    *st_io_file_at(files, index) = (struct st_io_file){.fd = fd, .used = true};
}

void st_io_files_remove(struct st_io_files *files, uint32_t index)
{
    assert(index < files->limit && st_io_file_at(files, index)->used);
    assert(st_io_file_at(files, index)->busy == 0);
    *st_io_file_at(files, index) = (struct st_io_file){.fd = -1};
}

void st_io_begin(struct st_io_files *files, struct st_io_req *req)
{
    assert(req->op == ST_IO_READ || req->op == ST_IO_WRITE || req->op == ST_IO_SYNC);
    assert(req->file < files->limit && st_io_file_at(files, req->file)->used);
    assert((req->bytes > 0) == (req->op != ST_IO_SYNC) && req->bytes <= ST_IO_BYTES_MAX);
    assert(req->bytes_least <= req->bytes && (req->bytes_least == 0 || req->op == ST_IO_READ));
    assert(req->done != NULL);
    st_io_file_at(files, req->file)->busy++;
    req->bytes_done = 0;
    req->retry_count = 0;
    req->cancelled = req->exact = false;
    req->result = 0;
    req->next = NULL;
}

void st_io_end(struct st_io_files *files, struct st_io_req *req, strata_status st)
{
    assert(st_io_file_at(files, req->file)->busy > 0);
    st_io_file_at(files, req->file)->busy--;
    req->done(req, st);
}

static uint32_t goes_on_from(const struct st_io_req *req)
{
    return req->exact ? req->bytes_done : req->bytes_done & ~(ST_IO_ALIGN - 1);
}

struct st_io_piece st_io_remaining(const struct st_io_req *req)
{
    const uint32_t from = goes_on_from(req);

    void *const buf = from > 0 ? (char *)req->buf + from : req->buf; /* a flush has none, and a null pointer must not be moved */

    return (struct st_io_piece){buf, req->offset + from, req->bytes - from};
}

static bool is_transient(int64_t result)
{
    return result == -EAGAIN || result == -EINTR;
}

/* A sync has no second completion. */
static strata_status end_sync(struct st_io_req *req, int64_t result)
{
    result = st_fault("nvme.fsync", result);
    if (req->cancelled && is_transient(result))
        result = -ECANCELED;
    req->result = result;
    return result >= 0 ? STRATA_OK : st_io_request_error(req->op, req->offset, req->bytes, result);
}

/* Whether a limit on the size of files (ulimit -f) ends before the request does. */
static bool is_beyond_limit(const struct st_io_req *req)
{
    struct rlimit limit;

    return getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY && req->offset + req->bytes > limit.rlim_cur;
}

/* The system moves what there is room for and says what it lacks only of a transfer that begins there, which has to begin inside
 * a block if that is where the room ends. */
static int64_t cause_of(const struct st_io_req *req, int64_t result)
{
    if (req->op != ST_IO_WRITE)
        return result;
    if (result == -EINVAL && req->exact) /* a file that takes only whole blocks */
        result = 0;
    return (result == -EINVAL || result >= 0) && is_beyond_limit(req) ? -EFBIG : result;
}

static bool advance_transfer(struct st_io_req *req, int64_t result, strata_status *st)
{
    const uint32_t from = goes_on_from(req), left = req->bytes - from;
    const uint32_t enough = req->bytes_least > 0 ? req->bytes_least : req->bytes;

    result = st_fault("nvme.cqe", result);
    req->result = result;
    if (result >= 0 && from + result >= (int64_t)enough) {
        req->bytes_done = from + (result < (int64_t)left ? (uint32_t)result : left);
        *st = STRATA_OK;
        return true;
    }
    if (req->cancelled && (result >= 0 || is_transient(result)))
        result = -ECANCELED;
    if (result >= (int64_t)ST_IO_ALIGN) {
        req->bytes_done = from + (uint32_t)result;
        return false;
    }
    /* No whole block was moved: a refusal, the end of the file within a block, or an error. */
    if ((result > 0 || is_transient(result)) && req->retry_count < ST_IO_RETRY_MAX) {
        if (result > 0 && req->retry_count > 0 && req->op == ST_IO_WRITE) {
            req->exact = true;
            req->bytes_done = from + (uint32_t)result;
        }
        req->retry_count++;
        return false;
    }
    req->result = result = cause_of(req, result);
    *st = st_io_request_error(req->op, req->offset, req->bytes, result);
    return true;
}

bool st_io_advance(struct st_io_req *req, int64_t result, strata_status *st)
{
    if (req->op != ST_IO_SYNC)
        return advance_transfer(req, result, st);
    *st = end_sync(req, result);
    return true;
}

static strata_status status_of_result(enum st_io_op op, int64_t result)
{
    if (result >= 0)
        return op == ST_IO_READ ? STRATA_E_TRUNC : STRATA_E_IO;
    switch (-result) {
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
        return STRATA_E_NOSPC;
    case ENOMEM:
        return STRATA_E_NOMEM;
    case ECANCELED:
        return STRATA_E_CANCELLED;
    default:
        return STRATA_E_IO;
    }
}

strata_status st_io_request_error(enum st_io_op op, uint64_t offset, uint64_t bytes, int64_t result)
{
    const char *verb = op == ST_IO_READ ? "read" : "write";
    const strata_status st = status_of_result(op, result);
    const char *remedy = st == STRATA_E_NOSPC ? result != -EFBIG ? ": free space on the disk" : ""
                         : st == STRATA_E_IO  ? ": the kernel's log (dmesg) says what the device reported"
                                              : "";
    char reason[ST_ERRNO_BYTES];

    if (op == ST_IO_SYNC)
        return st_error(st, "fsync: %s: what was written may not be on the drive%s", st_errno_text((int)-result, reason), remedy);
    if (st == STRATA_E_TRUNC)
        return st_error(st, "%s of %" PRIu64 " bytes at offset %" PRIu64 ": the file ends before that (was it changed?)", verb,
                        bytes, offset);
    if (result >= 0)
        return st_error(st, "%s of %" PRIu64 " bytes at offset %" PRIu64 ": the system moved nothing", verb, bytes, offset);
    return st_error(st, "%s of %" PRIu64 " bytes at offset %" PRIu64 ": %s%s", verb, bytes, offset,
                    st_errno_text((int)-result, reason), remedy);
}

/* A lack of room or memory may be temporary; a call that is forbidden or unknown stays so. */
bool st_io_refused_for_good(int err, uint32_t refusals)
{
    return refusals > (err == EAGAIN || err == EBUSY || err == ENOMEM ? REFUSALS_MAX : REFUSALS_FEW);
}

strata_status st_io_check_depth(uint32_t queue_depth)
{
    if (queue_depth == 0 || queue_depth > ST_IO_DEPTH_MAX)
        return st_error(STRATA_E_INVAL, "queue depth %" PRIu32 " is outside 1..%u", queue_depth, ST_IO_DEPTH_MAX);
    return STRATA_OK;
}

strata_status st_io_check_threads(uint32_t threads)
{
    if (threads > ST_IO_THREADS_MAX)
        return st_error(STRATA_E_INVAL, "%" PRIu32 " I/O threads are more than %u", threads, ST_IO_THREADS_MAX);
    return STRATA_OK;
}

strata_status st_io_alloc(void **out, size_t count, size_t bytes)
{
    void *memory = st_fault("nvme.alloc", 0) < 0 ? NULL : calloc(count, bytes);

    if (memory == NULL)
        return st_nomem(count * bytes);
    *out = memory;
    return STRATA_OK;
}
