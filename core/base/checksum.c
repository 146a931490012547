/* core/base/checksum.c - XXH3 for storage and digests: the base variant, and the choice.  Any thread; a digest has one user. */
#include "core/base/checksum.h"

#include "core/base/checksum_internal.h"
#include "core/base/cpu.h"
#include "core/base/error.h"
#include "core/base/fault.h"

#include <stdio.h>
#include <stdlib.h>

const struct st_checksum_set st_checksum_base = {checksum_hash64, checksum_update};

struct st_digest {
    XXH3_state_t state;
};

static const struct st_checksum_set *checksum_set(void)
{
#if defined(__x86_64__)
    if ((st_cpu_features() & ST_CPU_AVX2_FMA) != 0)
        return &st_checksum_avx2;
#endif
    return &st_checksum_base;
}

uint64_t st_checksum64(const void *data, size_t bytes)
{
    return checksum_set()->hash64(data, bytes);
}

strata_status st_digest_create(struct st_digest **out)
{
    struct st_digest *d = aligned_alloc(64, sizeof(*d)); /* XXH3_state_t holds 64-byte aligned lanes */

    if (d == NULL || st_fault("digest.alloc", 0) < 0) {
        free(d);
        return st_nomem(sizeof(*d));
    }
    (void)XXH3_128bits_reset(&d->state);
    *out = d;
    return STRATA_OK;
}

void st_digest_destroy(struct st_digest *d)
{
    free(d);
}

void st_digest_update(struct st_digest *d, const void *data, size_t bytes)
{
    checksum_set()->update(&d->state, data, bytes);
}

void st_digest_hex(const struct st_digest *d, char hex[33])
{
    XXH128_hash_t hash = XXH3_128bits_digest(&d->state);

    snprintf(hex, 33, "%016llx%016llx", (unsigned long long)hash.high64, (unsigned long long)hash.low64);
}
