/* core/base/checksum.h - XXH3 (xxhash): 64-bit for storage, 128-bit streaming for digests. */
#ifndef CORE_BASE_CHECKSUM_H
#define CORE_BASE_CHECKSUM_H

#include "strata/status.h"
#include <stddef.h>
#include <stdint.h>

uint64_t st_checksum64(const void *data, size_t bytes);

struct st_digest; /* streaming XXH3-128 */
strata_status st_digest_create(struct st_digest **out);
void st_digest_destroy(struct st_digest *d);
void st_digest_update(struct st_digest *d, const void *data, size_t bytes);
/** 32 lower-case hex digits and a NUL. */
void st_digest_hex(const struct st_digest *d, char hex[33]);

#endif
