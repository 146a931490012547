/* nvme/handle/io_handle_event.c - the descriptor of a handle (strata/io.h) that becomes readable when requests end: an eventfd,
 * made when it is asked for. */
#include "nvme/handle/io_handle_internal.h"

#include "core/base/error.h"
#include "core/base/fault.h"

#include <errno.h>
#include <sys/eventfd.h>
#include <unistd.h>

/* Lock held. */
static uint32_t count_untaken(const struct strata_io *io)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < io->record_count; i++)
        count += io->records[i]->used && !io->records[i]->going;
    return count;
}

strata_status strata_io_event_fd(struct strata_io *io, int *fd)
{
    strata_status st = fd != NULL ? st_handle_check(io) : st_error_missing(__func__, "fd");

    if (st != STRATA_OK)
        return st;
    pthread_mutex_lock(&io->lock);
    if (io->event_fd < 0) {
        const int refused = (int)st_fault("nvme.event_fd", 0);

        io->event_fd = refused < 0 ? -1 : eventfd(count_untaken(io), EFD_NONBLOCK | EFD_CLOEXEC);
        if (io->event_fd < 0)
            st = st_error_errno(refused < 0 ? -refused : errno, "eventfd");
    }
    if (st == STRATA_OK)
        *fd = io->event_fd;
    pthread_mutex_unlock(&io->lock);
    return st;
}

/* A count that is full stays readable. */
void st_handle_tell_ended(const struct strata_io *io)
{
    const uint64_t one = 1;

    while (io->event_fd >= 0 && write(io->event_fd, &one, sizeof(one)) < 0 && errno == EINTR)
        ;
}
