/* offload/comm/comm_frames.c - see comm_frames.h. */
#include "offload/comm/comm_frames.h"
#include "offload/comm/comm_internal.h"

#include <assert.h>
#include <string.h>

#define HELLO_MAGIC  UINT64_C(0x316d6f6361727473) /* "stracom1": the version of all frames */
#define GREET_MAGIC  UINT32_C(0x31677473)
#define REPLY_MAGIC  UINT32_C(0x31727473)
#define HEADER_MAGIC UINT32_C(0x31687473)

struct hello_wire {
    uint64_t magic, key, host;
    uint32_t rank, ranks, port, pad;
    char local[16], version[32];
    uint8_t rest[24];
};
struct reply_wire {
    uint32_t magic, type, bytes;
    int32_t status;
};
struct place_wire {
    uint64_t host;
    uint8_t address[16];
    uint32_t scope, family;
    uint32_t port, pad;
    char local[16];
};
struct greet_wire {
    uint32_t magic, kind;
    uint64_t cookie;
    uint32_t rank, pad;
};
struct header_wire {
    uint32_t magic, sequence;
    uint64_t bytes, what_hash;
    char what[40];
};

static_assert(sizeof(struct hello_wire) == ST_HELLO_BYTES, "hello");
static_assert(sizeof(struct reply_wire) == ST_REPLY_BYTES, "reply");
static_assert(sizeof(struct place_wire) == ST_PLACE_BYTES, "place");
static_assert(sizeof(struct greet_wire) == ST_GREET_BYTES, "greet");
static_assert(sizeof(struct header_wire) == ST_HEADER_BYTES, "header");
static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "frames are as they lie in memory");

/* Text of a frame: all of what fits, and zeros. */
static void text_put(char *out, size_t bytes, const char *text)
{
    const size_t length = strnlen(text, bytes - 1);

    memset(out, 0, bytes);
    memcpy(out, text, length);
}

static bool text_get(char *out, size_t bytes, const char *in)
{
    memcpy(out, in, bytes);
    return memchr(in, '\0', bytes) != NULL;
}

void st_hello_put(uint8_t out[ST_HELLO_BYTES], const struct st_hello *hello)
{
    struct hello_wire w = {.magic = HELLO_MAGIC,
                           .key = hello->key,
                           .host = hello->host,
                           .rank = hello->rank,
                           .ranks = hello->ranks,
                           .port = hello->port};

    text_put(w.local, sizeof(w.local), hello->local);
    text_put(w.version, sizeof(w.version), hello->version);
    memcpy(out, &w, sizeof(w));
}

bool st_hello_get(struct st_hello *out, const uint8_t in[ST_HELLO_BYTES])
{
    struct hello_wire w;

    memcpy(&w, in, sizeof(w));
    if (w.magic != HELLO_MAGIC || w.port == 0 || w.port > UINT16_MAX)
        return false;
    *out = (struct st_hello){.rank = w.rank, .ranks = w.ranks, .key = w.key, .host = w.host, .port = (uint16_t)w.port};
    return text_get(out->local, sizeof(out->local), w.local) && text_get(out->version, sizeof(out->version), w.version);
}

void st_reply_put(uint8_t out[ST_REPLY_BYTES], const struct st_reply *reply)
{
    const struct reply_wire w = {
        .magic = REPLY_MAGIC, .type = reply->type, .bytes = reply->bytes, .status = (int32_t)reply->status};

    memcpy(out, &w, sizeof(w));
}

bool st_reply_get(struct st_reply *out, const uint8_t in[ST_REPLY_BYTES])
{
    struct reply_wire w;

    memcpy(&w, in, sizeof(w));
    if (w.magic != REPLY_MAGIC || w.type < ST_REPLY_WAIT || w.type > ST_REPLY_TABLE)
        return false;
    if ((w.type == ST_REPLY_WAIT && w.bytes != 0) || (w.type == ST_REPLY_TABLE && w.bytes > ST_TABLE_BYTES))
        return false;
    if (w.type == ST_REPLY_REFUSED &&
        (w.bytes >= ST_COMM_REASON_BYTES || w.status == STRATA_OK || st_comm_verdict((strata_status)w.status) != w.status))
        return false;
    *out = (struct st_reply){.type = (enum st_reply_type)w.type, .status = (strata_status)w.status, .bytes = w.bytes};
    return true;
}

uint32_t st_table_put(uint8_t *out, uint64_t cookie, const struct st_place *places, uint32_t ranks)
{
    memcpy(out, &cookie, sizeof(cookie));
    for (uint32_t r = 0; r < ranks; r++) {
        struct place_wire w = {
            .host = places[r].host, .scope = places[r].scope, .family = places[r].family, .port = places[r].port};

        memcpy(w.address, places[r].address, sizeof(w.address));
        text_put(w.local, sizeof(w.local), places[r].local);
        memcpy(out + sizeof(cookie) + r * sizeof(w), &w, sizeof(w));
    }
    return (uint32_t)(sizeof(cookie) + ranks * sizeof(struct place_wire));
}

bool st_table_get(uint64_t *cookie, struct st_place *places, uint32_t ranks, const uint8_t *in, uint32_t bytes)
{
    if (bytes != sizeof(*cookie) + ranks * sizeof(struct place_wire))
        return false;
    memcpy(cookie, in, sizeof(*cookie));
    for (uint32_t r = 0; r < ranks; r++) {
        struct place_wire w;

        memcpy(&w, in + sizeof(*cookie) + r * sizeof(w), sizeof(w));
        if (w.port == 0 || w.port > UINT16_MAX || (w.family != 0 && w.family != 4 && w.family != 6))
            return false;
        places[r] = (struct st_place){.host = w.host, .scope = w.scope, .family = (uint8_t)w.family, .port = (uint16_t)w.port};
        memcpy(places[r].address, w.address, sizeof(w.address));
        if (!text_get(places[r].local, sizeof(places[r].local), w.local))
            return false;
    }
    return true;
}

void st_greet_put(uint8_t out[ST_GREET_BYTES], const struct st_greet *greet)
{
    const struct greet_wire w = {.magic = GREET_MAGIC, .kind = greet->kind, .cookie = greet->cookie, .rank = greet->rank};

    memcpy(out, &w, sizeof(w));
}

bool st_greet_get(struct st_greet *out, const uint8_t in[ST_GREET_BYTES])
{
    struct greet_wire w;

    memcpy(&w, in, sizeof(w));
    *out = (struct st_greet){.cookie = w.cookie, .rank = w.rank, .kind = (enum st_greet_kind)w.kind};
    return w.magic == GREET_MAGIC && w.kind >= ST_GREET_CONTROL && w.kind <= ST_GREET_LOCAL;
}

void st_header_put(uint8_t out[ST_HEADER_BYTES], const struct st_header *header)
{
    struct header_wire w = {
        .magic = HEADER_MAGIC, .sequence = header->sequence, .bytes = header->bytes, .what_hash = header->what_hash};

    text_put(w.what, sizeof(w.what), header->what);
    memcpy(out, &w, sizeof(w));
}

bool st_header_get(struct st_header *out, const uint8_t in[ST_HEADER_BYTES])
{
    struct header_wire w;

    memcpy(&w, in, sizeof(w));
    *out = (struct st_header){.bytes = w.bytes, .sequence = w.sequence, .what_hash = w.what_hash};
    return w.magic == HEADER_MAGIC && text_get(out->what, sizeof(out->what), w.what);
}
