/* tfevents.c - see tfevents.h. */
#include "core/trace/tfevents.h"

#include <assert.h>
#include <string.h>

#define POLYNOMIAL 0x82f63b78u /* reflected */

uint32_t st_crc32c(const void *data, size_t bytes)
{
    const unsigned char *at = data;
    uint32_t crc = UINT32_MAX;

    for (size_t i = 0; i < bytes; i++) {
        crc ^= at[i];
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (POLYNOMIAL & (0u - (crc & 1u)));
    }
    return ~crc;
}

/* --- messages --- */

struct message {
    unsigned char bytes[ST_TF_RECORD_BYTES];
    size_t count;
};

/* How a field is encoded, as its key says. */
enum wire { VARINT = 0, FIXED64 = 1, COUNTED = 2, FIXED32 = 5 };

static void put_fixed(struct message *m, uint64_t value, size_t bytes)
{
    assert(m->count + bytes <= sizeof(m->bytes));
    for (size_t i = 0; i < bytes; i++)
        m->bytes[m->count++] = (unsigned char)(value >> 8 * i);
}

static void put_varint(struct message *m, uint64_t value)
{
    for (; value >= 0x80; value >>= 7)
        put_fixed(m, (value & 0x7f) | 0x80, 1);
    put_fixed(m, value, 1);
}

static void put_key(struct message *m, uint32_t field, enum wire wire)
{
    put_varint(m, field << 3 | (uint32_t)wire);
}

static void put_counted(struct message *m, uint32_t field, const void *data, size_t bytes)
{
    put_key(m, field, COUNTED);
    put_varint(m, bytes);
    assert(m->count + bytes <= sizeof(m->bytes));
    memcpy(m->bytes + m->count, data, bytes);
    m->count += bytes;
}

/* Event: wall_time 1, step 2, file_version 3, summary 5, session_log 7. */
static void begin_event(struct message *m, double seconds)
{
    uint64_t bits;

    memcpy(&bits, &seconds, sizeof(bits));
    m->count = 0;
    put_key(m, 1, FIXED64);
    put_fixed(m, bits, 8);
}

static void put_step(struct message *m, uint64_t step)
{
    put_key(m, 2, VARINT);
    put_varint(m, step);
}

/* --- records --- */

static uint32_t masked(const void *data, size_t bytes)
{
    const uint32_t crc = st_crc32c(data, bytes);

    return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

static size_t frame(unsigned char out[ST_TF_RECORD_BYTES], const struct message *m)
{
    struct message record = {.count = 0};

    assert(m->count + 16 <= ST_TF_RECORD_BYTES);
    put_fixed(&record, m->count, 8);
    put_fixed(&record, masked(record.bytes, 8), 4);
    memcpy(record.bytes + record.count, m->bytes, m->count);
    record.count += m->count;
    put_fixed(&record, masked(m->bytes, m->count), 4);
    memcpy(out, record.bytes, record.count);
    return record.count;
}

size_t st_tf_version(unsigned char out[ST_TF_RECORD_BYTES], double seconds)
{
    static const char version[] = "brain.Event:2";
    struct message m;

    begin_event(&m, seconds);
    put_counted(&m, 3, version, sizeof(version) - 1);
    return frame(out, &m);
}

/* SessionLog: status 1, of which START is 1. */
size_t st_tf_restart(unsigned char out[ST_TF_RECORD_BYTES], double seconds, uint64_t step)
{
    struct message m, log = {.count = 0};

    put_key(&log, 1, VARINT);
    put_varint(&log, 1);
    begin_event(&m, seconds);
    put_step(&m, step);
    put_counted(&m, 7, log.bytes, log.count);
    return frame(out, &m);
}

/* Summary: value 1; Summary.Value: tag 1, simple_value 2. */
size_t st_tf_scalar(unsigned char out[ST_TF_RECORD_BYTES], double seconds, uint64_t step, const char *tag, float value)
{
    struct message m, scalar = {.count = 0}, summary = {.count = 0};
    uint32_t bits;

    assert(strlen(tag) <= ST_TF_TAG_MAX);
    memcpy(&bits, &value, sizeof(bits));
    put_counted(&scalar, 1, tag, strlen(tag));
    put_key(&scalar, 2, FIXED32);
    put_fixed(&scalar, bits, 4);
    put_counted(&summary, 1, scalar.bytes, scalar.count);
    begin_event(&m, seconds);
    put_step(&m, step);
    put_counted(&m, 5, summary.bytes, summary.count);
    return frame(out, &m);
}
