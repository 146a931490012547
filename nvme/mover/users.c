/* nvme/mover/users.c - see users.h.
 *
 * A file is removed only while all its slots are locked.  A process that had opened it before finds no free slot, or gets a slot
 * in a file that no longer has a name, and starts again. */
#include "nvme/mover/users.h"

#include "core/base/fault.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#define JOIN_TRIES 16u

static struct flock range(short type, uint32_t first, uint32_t count)
{
    return (struct flock){.l_type = type, .l_whence = SEEK_SET, .l_start = first, .l_len = count};
}

static bool lock_slots(int fd, short type, uint32_t first, uint32_t count)
{
    struct flock lock = range(type, first, count);

    return !st_fault_refuses("nvme.users") && fcntl(fd, F_OFD_SETLK, &lock) == 0;
}

/* Whether another holds one of these slots. */
static bool is_held(int fd, uint32_t first, uint32_t count)
{
    struct flock lock = range(F_WRLCK, first, count);

    return !st_fault_refuses("nvme.users") && fcntl(fd, F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}

/* True for an empty regular file, which holds nobody's data. */
static bool is_ours(int fd)
{
    struct stat info;

    return !st_fault_refuses("nvme.users") && fstat(fd, &info) == 0 && S_ISREG(info.st_mode) && info.st_size == 0;
}

static bool has_name(int fd)
{
    struct stat info;

    return !st_fault_refuses("nvme.users") && fstat(fd, &info) == 0 && info.st_nlink > 0;
}

/* Descriptor, or -1. */
static int open_file(int dir_fd, int flags)
{
    int fd;

    if (st_fault("nvme.users", 0) < 0)
        return -1;
    fd = openat(dir_fd, ST_USERS_FILE_NAME, flags | O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0666);
    if (fd >= 0 && !is_ours(fd)) {
        close(fd);
        fd = -1;
    }
    return fd;
}

/* 0; EAGAIN: no slot is free, or another process is removing the file; any other error: such locks do not work here. */
static int take_slot(int fd)
{
    int err = EAGAIN;

    for (uint32_t slot = 0; slot < ST_USERS_SLOTS && err == EAGAIN; slot++)
        err = lock_slots(fd, F_WRLCK, slot, 1) ? 0 : errno == EACCES ? EAGAIN : errno;
    return err;
}

void st_users_join_at(struct st_users *users, int dir_fd)
{
    *users = (struct st_users){.fd = -1, .dir_fd = dir_fd};
    for (uint32_t i = 0; i < JOIN_TRIES; i++) {
        const int fd = open_file(dir_fd, O_CREAT);
        const int err = fd >= 0 ? take_slot(fd) : 0;

        if (fd < 0)
            return;
        if (err == 0 && has_name(fd)) {
            users->fd = fd;
            return;
        }
        if (err != 0 && err != EAGAIN) { /* then no other process can use it either */
            (void)unlinkat(dir_fd, ST_USERS_FILE_NAME, 0);
            close(fd);
            return;
        }
        close(fd);
        sched_yield();
    }
}

/* Releases the slot first: if two leave at once, the later one finds no slot held and removes the file. */
bool st_users_unlink(const struct st_users *users)
{
    if (users->fd < 0)
        return false;
    (void)lock_slots(users->fd, F_UNLCK, 0, ST_USERS_SLOTS);
    return lock_slots(users->fd, F_WRLCK, 0, ST_USERS_SLOTS) && has_name(users->fd) && is_ours(users->fd) &&
           unlinkat(users->dir_fd, ST_USERS_FILE_NAME, 0) == 0;
}

void st_users_leave(struct st_users *users)
{
    if (users->fd < 0)
        return;
    (void)st_users_unlink(users);
    close(users->fd);
    users->fd = -1;
}

void st_users_sweep_at(int dir_fd)
{
    struct st_users users = {.fd = open_file(dir_fd, 0), .dir_fd = dir_fd};

    st_users_leave(&users);
}

uint32_t st_users_holders(const struct st_users *users)
{
    uint32_t holders = 1;

    if (users->fd < 0 || !is_held(users->fd, 0, ST_USERS_SLOTS))
        return 1;
    for (uint32_t slot = 0; slot < ST_USERS_SLOTS; slot++)
        holders += is_held(users->fd, slot, 1);
    return holders;
}

uint32_t st_users_part(uint32_t queue_depth, uint32_t holders)
{
    return queue_depth > holders ? queue_depth / holders : 1;
}
