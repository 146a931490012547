/* fuzz_extents.c - any bytes as a checkpoint's extents: no crash; what is accepted is written as the same bytes. */
#include "core/base/checksum.h"
#include "offload/checkpoint/extents.h"
#include "tests/fuzz/fuzz.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static void check(bool holds)
{
    if (!holds)
        abort();
}

/* The checksum is made right, or nothing but its check would be tried. */
static void seal(unsigned char *bytes, size_t size)
{
    struct st_digest *digest;
    char hex[33];

    if (size < ST_EXTENTS_TRAILER)
        return;
    check(st_digest_create(&digest) == STRATA_OK);
    st_digest_update(digest, bytes, size - ST_EXTENTS_TRAILER);
    st_digest_hex(digest, hex);
    st_digest_destroy(digest);
    memcpy(bytes + size - ST_EXTENTS_TRAILER, hex, ST_EXTENTS_TRAILER);
}

static strata_status compare(void *ctx, const void *part, uint64_t bytes, uint64_t offset)
{
    check(memcmp((const unsigned char *)ctx + offset, part, bytes) == 0);
    return STRATA_OK;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const int fd = memfd_create("extents", MFD_CLOEXEC);
    unsigned char *bytes = malloc(size + 1);
    struct st_extents e;
    char digest[33];
    strata_status st;

    check(fd >= 0 && bytes != NULL);
    memcpy(bytes, data, size);
    seal(bytes, size);
    check(write(fd, bytes, size) == (ssize_t)size);
    st = st_extents_read(&e, fd, size, "fuzz", NULL);
    check(st == STRATA_OK || st == STRATA_E_CORRUPT);
    if (st == STRATA_OK) {
        check(st_extents_bytes(&e) == size && st_extents_write(&e, compare, bytes, digest) == STRATA_OK);
        st_extents_fini(&e);
    }
    free(bytes);
    close(fd);
    return 0;
}
