/* nvme/method/direct.h - whether a file can be read and written past the page cache. */
#ifndef NVME_METHOD_DIRECT_H
#define NVME_METHOD_DIRECT_H

#include <stdbool.h>
#include <stdint.h>

struct st_direct {
    bool works;                          /* O_DIRECT is on now, in blocks of 4096 bytes */
    bool told;                           /* by the file system (statx); else found out by a trial read */
    uint32_t memory_align, offset_align; /* bytes; 4096 where it is not told, 0 where there is none */
};

/** Switch a regular file to direct I/O where that works; else its flags stay.  Opened for reading, at least. */
void st_direct_enable(struct st_direct *out, int fd);

#endif
