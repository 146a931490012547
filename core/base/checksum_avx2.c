/* core/base/checksum_avx2.c - XXH3 on 32-byte vectors.  Only this file gets -mavx2; picked by checksum.c. */
#include "core/base/checksum_internal.h"

const struct st_checksum_set st_checksum_avx2 = {checksum_hash64, checksum_update};
