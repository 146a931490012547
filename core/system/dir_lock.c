/* core/system/dir_lock.c - see core/system/dir_lock.h. */
#include "core/system/dir_lock.h"
#include "core/base/error.h"
#include "core/base/fault.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

strata_status st_dir_lock(struct st_dir_lock *lock, const char *dir)
{
    const int fd = st_fault_refuses("dir.open") ? -1 : open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    uint32_t interrupted = 0;
    int64_t res;

    *lock = ST_DIR_LOCK_NONE;
    if (fd < 0)
        return st_error_errno(errno, "%s: cannot be locked", dir);
    do
        res = st_fault("dir.lock", st_result(flock(fd, LOCK_EX | LOCK_NB)));
    while (st_again(res, &interrupted));
    if (res != -EWOULDBLOCK) {
        *lock = (struct st_dir_lock){.fd = fd, .pid = getpid()};
        return STRATA_OK;
    }
    close(fd);
    return st_error(STRATA_E_INPUT,
                    "%s: another run writes a model or an adapter there now: wait for its end, or name another directory", dir);
}

void st_dir_unlock(struct st_dir_lock *lock)
{
    if (lock->fd >= 0 && lock->pid == getpid() && !st_fault_refuses("dir.unlock"))
        (void)flock(lock->fd, LOCK_UN); /* closing does not end it while a child of fork() has the descriptor, too */
    if (lock->fd >= 0)
        close(lock->fd);
    *lock = ST_DIR_LOCK_NONE;
}
