/* fuzz_comm_frames.c - any bytes as what ranks say on their sockets: no crash; what is accepted is written as bytes that read
 * back the same.  The first byte chooses the frame. */
#include "offload/comm/comm_frames.h"
#include "tests/fuzz/fuzz.h"

#include <stdlib.h>
#include <string.h>

#define RANKS 3u

static void check(bool holds)
{
    if (!holds)
        abort();
}

static void try_hello(const uint8_t *in)
{
    uint8_t again[ST_HELLO_BYTES];
    struct st_hello a, b;

    if (!st_hello_get(&a, in))
        return;
    st_hello_put(again, &a);
    check(st_hello_get(&b, again));
    check(a.rank == b.rank && a.ranks == b.ranks && a.key == b.key && a.host == b.host && a.port == b.port);
    check(strcmp(a.local, b.local) == 0 && strcmp(a.version, b.version) == 0);
}

static void try_reply(const uint8_t *in)
{
    uint8_t again[ST_REPLY_BYTES];
    struct st_reply a;

    if (!st_reply_get(&a, in))
        return;
    check(a.bytes <= ST_TABLE_BYTES && (a.type != ST_REPLY_REFUSED || a.bytes < ST_COMM_REASON_BYTES));
    st_reply_put(again, &a);
    check(memcmp(in, again, sizeof(again)) == 0);
}

static void try_table(const uint8_t *in, uint32_t bytes)
{
    uint8_t again[8 + RANKS * ST_PLACE_BYTES];
    struct st_place a[RANKS], b[RANKS];
    uint64_t cookie, same;

    if (!st_table_get(&cookie, a, RANKS, in, bytes))
        return;
    check(st_table_put(again, cookie, a, RANKS) == sizeof(again));
    check(st_table_get(&same, b, RANKS, again, sizeof(again)) && same == cookie);
    for (uint32_t r = 0; r < RANKS; r++)
        check(a[r].host == b[r].host && a[r].family == b[r].family && a[r].port == b[r].port && a[r].scope == b[r].scope &&
              memcmp(a[r].address, b[r].address, 16) == 0 && strcmp(a[r].local, b[r].local) == 0);
}

static void try_greet(const uint8_t *in)
{
    uint8_t again[ST_GREET_BYTES];
    struct st_greet a, b;

    if (!st_greet_get(&a, in))
        return;
    st_greet_put(again, &a);
    check(st_greet_get(&b, again) && a.cookie == b.cookie && a.rank == b.rank && a.kind == b.kind);
}

static void try_header(const uint8_t *in)
{
    uint8_t again[ST_HEADER_BYTES];
    struct st_header a, b;

    if (!st_header_get(&a, in))
        return;
    st_header_put(again, &a);
    check(st_header_get(&b, again) && a.bytes == b.bytes && a.sequence == b.sequence && a.what_hash == b.what_hash);
    check(strcmp(a.what, b.what) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint8_t *frame;
    const uint32_t bytes = size < 4096 ? (uint32_t)size : 4096;

    if (size < 1)
        return 0;
    frame = calloc(1, 4096 + ST_HELLO_BYTES); /* short inputs end in zeros */
    check(frame != NULL);
    memcpy(frame, data + 1, bytes - 1);
    switch (data[0] % 5) {
    case 0:
        try_hello(frame);
        break;
    case 1:
        try_reply(frame);
        break;
    case 2:
        try_table(frame, bytes - 1);
        break;
    case 3:
        try_greet(frame);
        break;
    default:
        try_header(frame);
        break;
    }
    free(frame);
    return 0;
}
