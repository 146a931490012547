/* nvme/method/direct.h - whether a file can be read and written past the page cache. */
#ifndef NVME_METHOD_DIRECT_H
#define NVME_METHOD_DIRECT_H

#include <stdbool.h>
#include <stdint.h>

struct st_direct {
    bool works;                          /* O_DIRECT is on now, in blocks of 4096 bytes */
    bool told;                           /* the file system said so (statx); otherwise a trial read decided */
    uint32_t memory_align, offset_align; /* bytes; 4096 if the file system does not say, 0 if direct I/O does not work */
};

/** Switch a regular file to direct I/O if that works; otherwise its flags stay.  `fd` must be open for reading. */
void st_direct_enable(struct st_direct *out, int fd);

#endif
