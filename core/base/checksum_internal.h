/* core/base/checksum_internal.h - XXH3 compiled once per instruction set; included only by checksum.c and checksum_avx2.c.
 *
 * The compiler flags of the including file select the code.  XXH3 is defined by its result, so every variant gives the same bits
 * and may continue a stream that another one began. */
#ifndef CORE_BASE_CHECKSUM_INTERNAL_H
#define CORE_BASE_CHECKSUM_INTERNAL_H

#include <stddef.h>
#include <stdint.h>

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wundef"
#pragma GCC diagnostic ignored "-Wconversion"
#pragma GCC diagnostic ignored "-Wshadow"
#pragma GCC diagnostic ignored "-Wstrict-prototypes"
#define XXH_INLINE_ALL
#include <xxhash.h>
#pragma GCC diagnostic pop

struct st_checksum_set {
    uint64_t (*hash64)(const void *data, size_t bytes);
    void (*update)(XXH3_state_t *state, const void *data, size_t bytes);
};

extern const struct st_checksum_set st_checksum_base, st_checksum_avx2;

static inline uint64_t checksum_hash64(const void *data, size_t bytes)
{
    return XXH3_64bits(data, bytes);
}

static inline void checksum_update(XXH3_state_t *state, const void *data, size_t bytes)
{
    (void)XXH3_128bits_update(state, data, bytes);
}

#endif
