/* tests/core/test_tfevents.c - records of event files against those that TensorBoard's own writer makes of the same events. */
#include "core/trace/tfevents.h"
#include "tests/common/test.h"

#include <string.h>

TEST(the_checksum_has_its_known_answer)
{
    assert_int_equal(st_crc32c("123456789", 9), 0xe3069283u);
    assert_int_equal(st_crc32c("", 0), 0);
}

/* tensorboard 2.21: RecordWriter.write(Event(...).SerializeToString()). */
TEST(records_are_tensorboards)
{
    static const char version[] = "\x18\x00\x00\x00\x00\x00\x00\x00\xa3\x7f\x4b\x22\x09\x00\x00\x00\x00\x00\x00\xf8\x3f\x1a\x0d"
                                  "brain.Event:2"
                                  "\x2a\x28\x64\x6c";
    static const char restart[] =
        "\x10\x00\x00\x00\x00\x00\x00\x00\x95\xfb\xfe\x18\x09\x00\x00\x00\x00\x00\x00\xf8\x3f\x10\xad\x02"
        "\x3a\x02\x08\x01\xd1\x79\x49\xd4";
    static const char scalar[] =
        "\x27\x00\x00\x00\x00\x00\x00\x00\xbb\xe1\xb1\x46\x09\x00\x00\x00\x00\x00\x00\xf8\x3f\x10\xac\x02"
        "\x2a\x19\x0a\x17\x0a\x10"
        "Train/Samples/lr"
        "\x15\x00\x00\x80\x3e\xd5\x8d\x22\xaf";
    unsigned char out[ST_TF_RECORD_BYTES];

    assert_int_equal(st_tf_version(out, 1.5), sizeof(version) - 1);
    assert_memory_equal(out, version, sizeof(version) - 1);
    assert_int_equal(st_tf_restart(out, 1.5, 301), sizeof(restart) - 1);
    assert_memory_equal(out, restart, sizeof(restart) - 1);
    assert_int_equal(st_tf_scalar(out, 1.5, 300, "Train/Samples/lr", 0.25f), sizeof(scalar) - 1);
    assert_memory_equal(out, scalar, sizeof(scalar) - 1);
}

/* A number as a protocol buffer's reader takes it. */
static uint64_t read_varint(const unsigned char **at)
{
    uint64_t value = 0;
    unsigned shift = 0;

    do
        value |= (uint64_t)(**at & 0x7f) << shift;
    while (shift += 7, (*(*at)++ & 0x80) != 0);
    return value;
}

/* A record's step, and that its lengths are those of its parts, down to the tag. */
static void assert_record(const unsigned char *record, size_t bytes, uint64_t step, size_t tag_bytes)
{
    const unsigned char *at = record + 12, *end = record + bytes - 4;
    uint64_t length;

    assert_int_equal(record[0] | record[1] << 8, bytes - 16);
    assert_int_equal(*at, 0x09);
    at += 1 + 8;
    assert_int_equal(*at++, 0x10);
    assert_true(read_varint(&at) == step);
    assert_int_equal(*at++, 0x2a);
    length = read_varint(&at);
    assert_int_equal(length, end - at);
    assert_int_equal(*at++, 0x0a);
    length = read_varint(&at);
    assert_int_equal(length, end - at);
    assert_int_equal(*at++, 0x0a);
    assert_int_equal(read_varint(&at), tag_bytes);
    at += tag_bytes;
    assert_int_equal(*at, 0x15);
    assert_int_equal(end - at, 5);
}

/* Steps on both sides of each length that a number has, and tags that make a message pass 127 bytes. */
TEST(numbers_of_every_length_are_whole)
{
    unsigned char out[ST_TF_RECORD_BYTES];
    char tag[ST_TF_TAG_MAX + 1];

    for (unsigned shift = 7; shift < 64; shift += 7)
        for (uint64_t step = (UINT64_C(1) << shift) - 1; step <= (UINT64_C(1) << shift) + 1; step++)
            assert_record(out, st_tf_scalar(out, 1.5, step, "a", 1), step, 1);
    assert_record(out, st_tf_scalar(out, 1.5, UINT64_MAX, "a", 1), UINT64_MAX, 1);
    for (size_t length = 1; length <= ST_TF_TAG_MAX; length++) {
        memset(tag, 'x', length);
        tag[length] = '\0';
        assert_record(out, st_tf_scalar(out, 1.5, 300, tag, 1), 300, length);
    }
}

TEST(the_longest_record_fits)
{
    unsigned char out[ST_TF_RECORD_BYTES];
    char tag[ST_TF_TAG_MAX + 1];

    memset(tag, 'x', ST_TF_TAG_MAX);
    tag[ST_TF_TAG_MAX] = '\0';
    assert_true(st_tf_scalar(out, 1e9, UINT64_MAX, tag, 1.0f) <= sizeof(out));
}
