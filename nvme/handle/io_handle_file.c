/* nvme/handle/io_handle_file.c - files of a handle: opening, reserving space, direct or buffered mode, exact size, closing.
 *
 * Any thread opens a file, and closes it once no request is left. */
#include "nvme/handle/io_handle_internal.h"

#include "core/base/error.h"
#include "core/base/fault.h"
#include "core/base/log.h"
#include "core/base/size.h"
#include "core/system/cleanup.h"
#include "nvme/method/direct.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define FLAGS_BOTH (STRATA_IO_READ | STRATA_IO_WRITE)
#define FLAGS_ALL  (FLAGS_BOTH | STRATA_IO_CREATE | STRATA_IO_TRUNCATE | STRATA_IO_BUFFERED | STRATA_IO_UNNAMED)

/* --- opening --- */

static bool is_fake(const struct strata_io *io)
{
    return io->ops == &st_io_fake_ops;
}

static strata_status check_flags(const struct strata_io *io, const char *path, uint32_t flags, uint64_t bytes)
{
    const bool write = (flags & STRATA_IO_WRITE) != 0;

    if (path == NULL || path[0] == '\0' || strlen(path) >= PATH_MAX)
        return st_error(STRATA_E_INVAL, "open file: a path of 1 to %d characters is needed", PATH_MAX - 1);
    if ((flags & ~(uint32_t)FLAGS_ALL) != 0 || (flags & (STRATA_IO_READ | STRATA_IO_WRITE)) == 0)
        return st_error(STRATA_E_INVAL, "%s: flags 0x%" PRIx32 ": give STRATA_IO_READ or STRATA_IO_WRITE, and no unknown flag",
                        path, flags);
    if (!write && ((flags & (STRATA_IO_CREATE | STRATA_IO_TRUNCATE)) != 0 || (bytes > 0 && !is_fake(io))))
        return st_error(STRATA_E_INVAL, "%s: a file that is not opened for WRITE is not created, truncated or given a size",
                        path);
    if ((flags & STRATA_IO_UNNAMED) != 0 && (flags & ~(uint32_t)STRATA_IO_BUFFERED) != (STRATA_IO_UNNAMED | FLAGS_BOTH))
        return st_error(STRATA_E_INVAL, "%s: a file without a name is opened for READ and WRITE, and is new", path);
    if (bytes > INT64_MAX)
        return st_error(STRATA_E_INVAL, "%s: %" PRIu64 " bytes are more than a file can hold", path, bytes);
    return STRATA_OK;
}

/* Where the file system has no files without names, one loses its name at once; a signal that ends the process waits for that. */
static int open_unnamed(const char *dir)
{
    char path[PATH_MAX + 16];
    int fd = st_fault_refuses("nvme.unnamed") ? -1 : open(dir, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);

    if (fd >= 0 || (errno != EOPNOTSUPP && errno != EISDIR))
        return fd;
    snprintf(path, sizeof(path), "%s/.strata-XXXXXX", dir);
    st_cleanup_hold();
    fd = mkostemp(path, O_CLOEXEC);
    if (fd >= 0)
        (void)unlink(path);
    st_cleanup_release();
    return fd;
}

/* O_NONBLOCK: if the path is a pipe, open() must not block; the pipe is refused afterwards. */
static int open_path(const char *path, uint32_t flags, bool *created)
{
    const int mode = (flags & STRATA_IO_WRITE) != 0 ? O_RDWR : O_RDONLY;
    int fd = (int)st_fault("nvme.open", 0);

    *created = false;
    if (fd < 0) {
        errno = -fd;
        return -1;
    }
    if ((flags & STRATA_IO_UNNAMED) != 0)
        return open_unnamed(path);
    if ((flags & STRATA_IO_CREATE) != 0) {
        fd = open(path, mode | O_CREAT | O_EXCL | O_CLOEXEC | O_NONBLOCK, 0666);
        *created = fd >= 0;
        if (fd >= 0 || errno != EEXIST)
            return fd;
    }
    return open(path, mode | O_CLOEXEC | O_NONBLOCK);
}

static strata_status check_regular(struct strata_io_file *file)
{
    struct stat info;

    if (st_fault_refuses("nvme.stat") || fstat(file->fd, &info) < 0)
        return st_error_errno(errno, "%s: cannot be looked at", file->path);
    if (S_ISDIR(info.st_mode))
        return st_error(STRATA_E_INPUT, "%s: a directory, where a file is needed", file->path);
    if (!S_ISREG(info.st_mode))
        return st_error(STRATA_E_INPUT, "%s: not a regular file", file->path);
    file->bytes = (uint64_t)info.st_size;
    file->device = info.st_dev;
    file->inode = info.st_ino;
    return STRATA_OK;
}

/* Each open file has a size and an order of requests of its own, so one that is written must not be open twice. */
static bool collide(const struct strata_io_file *a, const struct strata_io_file *b)
{
    return a->fd >= 0 && b->fd >= 0 && a->device == b->device && a->inode == b->inode &&
           ((a->flags | b->flags) & STRATA_IO_WRITE) != 0;
}

/* Into the handle's list, before anything of the file is changed. */
static strata_status enter(struct strata_io_file *file)
{
    struct strata_io *io = file->io;
    const struct strata_io_file *other;

    pthread_mutex_lock(&io->lock);
    for (other = io->files; other != NULL && !collide(other, file); other = other->next)
        ;
    if (other == NULL) {
        file->next = io->files;
        io->files = file;
    }
    pthread_mutex_unlock(&io->lock);
    return other == NULL
               ? STRATA_OK
               : st_error(
                     STRATA_E_INVAL,
                     "%s: is open in this handle already, which a file that is written may be once: use that one, or close it",
                     file->path);
}

/* A file that has not entered is fine. */
static void leave(struct strata_io_file *file)
{
    struct strata_io_file **link = &file->io->files;

    pthread_mutex_lock(&file->io->lock);
    while (*link != NULL && *link != file)
        link = &(*link)->next;
    if (*link != NULL)
        *link = file->next;
    pthread_mutex_unlock(&file->io->lock);
}

static strata_status reserve(struct strata_io_file *file, uint64_t bytes)
{
    const int fd = file->fd;
    char text[24];
    uint32_t interrupted = 0;
    int err = (int)-st_fault("nvme.fallocate", 0);

    if (err == 0)
        do
            err = posix_fallocate(fd, 0, (off_t)bytes);
        while (st_again(-err, &interrupted));
    if (err == 0) {
        file->bytes = bytes > file->bytes ? bytes : file->bytes;
        return STRATA_OK;
    }
    if (st_fault_refuses("nvme.cut_back") ||
        ftruncate(fd, (off_t)file->bytes) < 0) /* back to the old size; an error here must not hide the cause */
        st_log(ST_LOG_WARN, "%s: could not be cut back to %" PRIu64 " bytes", file->path, file->bytes);
    return st_error_errno(err, "%s: cannot reserve %s", file->path, st_size_text(text, bytes));
}

/* The mover takes it as a space over one file, however far it goes. */
static strata_status bind(struct strata_io_file *file)
{
    struct st_volume_file only = {.path = file->path, .fd = file->fd};
    struct st_stripe stripe;

    st_stripe_init(&stripe, 1, NULL, ST_IO_ALIGN);
    return st_mover_add(file->io->mover,
                        &(struct st_volume_opts){.stripe = &stripe,
                                                 .files = &only,
                                                 .bytes = (file->bytes + ST_IO_ALIGN - 1) & ~(uint64_t)(ST_IO_ALIGN - 1),
                                                 .loose = true},
                        &file->volume);
}

static strata_status prepare(struct strata_io_file *file, uint64_t bytes)
{
    const int fd = file->fd;
    const int access_mode = (file->flags & STRATA_IO_WRITE) != 0 ? O_RDWR : O_RDONLY;
    struct st_direct direct = {.works = false};
    strata_status st;

    if ((st = check_regular(file)) != STRATA_OK || (st = enter(file)) != STRATA_OK)
        return st;
    if (st_fault_refuses("nvme.flags") || fcntl(fd, F_SETFL, access_mode) < 0)
        return st_error_errno(errno, "%s: its flags cannot be set", file->path);
    if ((file->flags & STRATA_IO_TRUNCATE) != 0 && (st_fault_refuses("nvme.truncate") || ftruncate(fd, 0) < 0))
        return st_error_errno(errno, "%s: cannot be truncated", file->path);
    if ((file->flags & STRATA_IO_TRUNCATE) != 0)
        file->bytes = 0;
    if (bytes > 0 && (st = reserve(file, bytes)) != STRATA_OK)
        return st;
    if ((file->flags & STRATA_IO_BUFFERED) == 0)
        st_direct_enable(&direct, fd);
    file->direct = direct.works;
    file->memory_align = direct.memory_align;
    return bind(file);
}

static strata_status open_real(struct strata_io_file *file, uint64_t bytes)
{
    bool created;
    const int fd = open_path(file->path, file->flags, &created);
    strata_status st;

    if (fd < 0)
        return st_error_errno(errno, "%s: cannot be opened", file->path);
    file->fd = fd;
    if ((st = prepare(file, bytes)) == STRATA_OK)
        return STRATA_OK;
    leave(file);
    close(fd);
    if (created)
        (void)unlink(file->path); /* the earlier failure is the one to report */
    return st;
}

/* Uses memory in place of a file, in whole blocks so that the direct path is exercised. */
static strata_status open_fake(struct strata_io_file *file, uint64_t bytes)
{
    strata_status st;

    file->bytes = bytes;
    file->direct = (file->flags & STRATA_IO_BUFFERED) == 0;
    file->memory_align = ST_IO_ALIGN;
    st = bind(file);
    return st == STRATA_OK ? enter(file) : st;
}

strata_status strata_io_open_file(struct strata_io *io, struct strata_io_file **out, const char *path, uint32_t flags,
                                  uint64_t bytes)
{
    struct strata_io_file *file;
    strata_status st;

    if (out == NULL)
        return st_error_missing(__func__, "file");
    if ((st = st_handle_check(io)) != STRATA_OK || (st = check_flags(io, path, flags, bytes)) != STRATA_OK)
        return st;
    if ((st = st_io_alloc((void **)&file, 1, sizeof(*file))) != STRATA_OK)
        return st;
    file->io = io;
    file->flags = flags;
    snprintf(file->path, sizeof(file->path), "%s", path);
    file->fd = -1;
    if ((st = is_fake(io) ? open_fake(file, bytes) : open_real(file, bytes)) != STRATA_OK) {
        free(file);
        return st;
    }
    *out = file;
    return STRATA_OK;
}

/* --- in use --- */

strata_status st_handle_file_settle(struct strata_io_file *file, const struct st_hreq *req, uint64_t *bytes, int *err)
{
    const bool whole = req->result.status == STRATA_OK && !req->stopped;
    const uint64_t keep = req->end > *bytes ? req->end : *bytes;
    int64_t there;

    *bytes = whole ? keep : *bytes;
    if (file->fd < 0 || (!req->pads && (whole || !req->extends)))
        return STRATA_OK;
    if ((there = st_handle_file_look(file)) < 0) {
        *err = (int)-there;
        return st_error_errno(*err, "%s: the file's size cannot be seen", file->path);
    }
    if (req->pads && (uint64_t)there > keep) { /* no other running request goes beyond req->end (st_handle_claim) */
        *err = st_fault_refuses("nvme.truncate") || ftruncate(file->fd, (off_t)keep) < 0 ? errno : 0;
        if (*err != 0)
            return st_error_errno(*err, "%s: the file could not be cut to its size of %" PRIu64 " bytes", file->path, keep);
        there = (int64_t)keep;
    }
    if (!whole && (uint64_t)there > *bytes) /* as far as the write got */
        *bytes = (uint64_t)there;
    return STRATA_OK;
}

int64_t st_handle_file_look(const struct strata_io_file *file)
{
    struct stat info;

    if (file->fd < 0)
        return 0;
    return st_fault("nvme.look", fstat(file->fd, &info) < 0 ? -errno : info.st_size);
}

uint64_t strata_io_file_bytes(const struct strata_io_file *file)
{
    uint64_t bytes;

    if (file == NULL || !st_handle_is_own(file->io))
        return 0;
    pthread_mutex_lock(&file->io->lock);
    bytes = file->bytes;
    pthread_mutex_unlock(&file->io->lock);
    return bytes;
}

bool strata_io_file_direct(const struct strata_io_file *file)
{
    return file != NULL && file->direct && !is_fake(file->io);
}

static void wait_for_requests(struct strata_io_file *file)
{
    while (file->outstanding > 0)
        (void)st_handle_wait_ended(file->io, 0);
}

strata_status strata_io_sync_file(struct strata_io_file *file)
{
    strata_status st;
    int rc;

    if (file == NULL)
        return st_error_missing(__func__, "file");
    if ((st = st_handle_check(file->io)) != STRATA_OK)
        return st;
    pthread_mutex_lock(&file->io->lock);
    wait_for_requests(file);
    pthread_mutex_unlock(&file->io->lock);
    rc = (int)st_fault("nvme.sync", 0);
    if (rc == 0 && file->fd >= 0 && fdatasync(file->fd) < 0)
        rc = -errno;
    return rc < 0 ? st_error_errno(-rc, "%s: cannot be made durable", file->path) : STRATA_OK;
}

/* --- closing --- */

strata_status strata_io_close_file(struct strata_io_file *file)
{
    strata_status st;
    int rc;

    if (file == NULL)
        return STRATA_OK;
    if ((st = st_handle_check(file->io)) != STRATA_OK)
        return st;
    pthread_mutex_lock(&file->io->lock);
    wait_for_requests(file);
    pthread_mutex_unlock(&file->io->lock);
    leave(file);
    st_mover_remove(file->io->mover, file->volume);
    rc = file->fd >= 0 ? (int)st_fault("nvme.close", 0) : 0;
    if (file->fd >= 0 && close(file->fd) < 0)
        rc = -errno;
    if (rc < 0 && rc != -EINTR)
        st = st_error_errno(-rc, "%s: closing it", file->path);
    free(file);
    return st;
}
