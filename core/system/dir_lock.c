/* core/system/dir_lock.c - see core/system/dir_lock.h. */
#include "core/system/dir_lock.h"
#include "core/base/error.h"
#include "core/base/fault.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

strata_status st_dir_lock(int *fd, const char *dir)
{
    uint32_t interrupted = 0;
    int64_t res;

    *fd = st_fault_refuses("dir.open") ? -1 : open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (*fd < 0)
        return st_error_errno(errno, "%s: cannot be locked", dir);
    do
        res = st_fault("dir.lock", st_result(flock(*fd, LOCK_EX | LOCK_NB)));
    while (st_again(res, &interrupted));
    if (res != -EWOULDBLOCK)
        return STRATA_OK;
    st_dir_unlock(fd);
    return st_error(STRATA_E_INPUT,
                    "%s: another run writes a model, an adapter or a tokenizer there now: wait for its end, or name another "
                    "directory",
                    dir);
}

void st_dir_unlock(int *fd)
{
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}
