/* fuzz_manifest.c - any bytes as a checkpoint's manifest: no crash; what is accepted is written as text that reads back the
 * same. */
#include "core/base/checksum.h"
#include "offload/checkpoint/manifest.h"
#include "tests/fuzz/fuzz.h"

#include <stdlib.h>
#include <string.h>

#define KEY ",\"checksum\":\""

static void check(bool holds)
{
    if (!holds)
        abort();
}

/* The checksum is made right, or nothing but its check would be tried. */
static void seal(char *text, size_t size)
{
    const size_t tail = sizeof(KEY) - 1 + 32 + 3;
    struct st_digest *digest;
    char hex[33];

    if (size < tail)
        return;
    check(st_digest_create(&digest) == STRATA_OK);
    st_digest_update(digest, text, size - tail);
    st_digest_hex(digest, hex);
    st_digest_destroy(digest);
    memcpy(text + size - tail, KEY, sizeof(KEY) - 1);
    memcpy(text + size - 35, hex, 32);
    memcpy(text + size - 3, "\"}\n", 3);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text = malloc(size + 1), *once, *twice;
    struct st_manifest m, again;
    uint64_t once_bytes, twice_bytes;
    strata_status st;

    check(text != NULL);
    memcpy(text, data, size);
    text[size] = '\0';
    seal(text, size);
    st = st_manifest_parse(&m, text, size, "fuzz");
    check(st == STRATA_OK || st == STRATA_E_CORRUPT);
    if (st == STRATA_OK) {
        check(st_manifest_text(&once, &once_bytes, &m) == STRATA_OK);
        check(st_manifest_parse(&again, once, once_bytes, "fuzz") == STRATA_OK);
        check(st_manifest_text(&twice, &twice_bytes, &again) == STRATA_OK);
        check(once_bytes == twice_bytes && memcmp(once, twice, once_bytes) == 0);
        st_manifest_fini(&again);
        st_manifest_fini(&m);
        free(twice);
        free(once);
    }
    free(text);
    return 0;
}
