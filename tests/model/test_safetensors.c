/* tests/model/test_safetensors.c - headers: what is read, every fault that is refused, and what is written. */
#include "model/hf/safetensors_internal.h"
#include "model_fixture.h"

static strata_status parse(struct st_safetensors *out, const char *json, uint64_t data_bytes)
{
    return st_safetensors_parse(out, json, strlen(json), 8 + strlen(json), data_bytes, "file.safetensors");
}

TEST(test_good_header)
{
    static const char json[] = "{\"__metadata__\":{\"format\":\"pt\"},"
                               "\"b\":{\"dtype\":\"BF16\",\"shape\":[2,3],\"data_offsets\":[4,16]},"
                               "\"empty\":{\"dtype\":\"I64\",\"shape\":[0,7],\"data_offsets\":[4,4]},"
                               "\"a\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]}}   ";
    struct st_safetensors s;
    char text[96];

    assert_ok(parse(&s, json, 16));
    assert_int_equal(s.count, 3);
    assert_string_equal(s.tensors[0].name, "a");
    assert_int_equal(s.tensors[0].rank, 0);
    assert_int_equal(s.tensors[0].dtype, STRATA_F32);
    assert_int_equal(s.tensors[0].begin, 8 + strlen(json));
    assert_string_equal(s.tensors[1].name, "empty");
    assert_int_equal(s.tensors[1].dtype, STRATA_DTYPE_INVALID);
    assert_string_equal(s.tensors[2].name, "b");
    assert_int_equal(s.tensors[2].dtype, STRATA_BF16);
    assert_int_equal(s.tensors[2].end, 8 + strlen(json) + 16);
    assert_string_equal(st_shape_text(text, s.tensors[2].shape, s.tensors[2].rank), "[2, 3]");
    st_safetensors_fini(&s);
}

TEST(test_no_tensors_at_all)
{
    struct st_safetensors s;

    assert_ok(parse(&s, "{}", 0));
    assert_int_equal(s.count, 0);
    st_safetensors_fini(&s);
}

#define ENTRY(dtype, shape, offsets) "{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"

TEST(test_faults_are_refused)
{
    static const struct {
        const char *json;
        uint64_t data_bytes;
        const char *part;
    } rows[] = {
        {"", 0, "does not start with '{'"},
        {" {}", 0, "does not start with '{'"},
        {"{", 0, "safetensors header"},
        {"{} x", 0, "safetensors header"},
        {"{\"a\":1}", 0, "tensor a: not an object"},
        {"{\"a\":{}}", 0, "tensor a: no dtype"},
        {"{\"a\":{\"dtype\":4}}", 0, "no dtype"},
        {"{\"a\":" ENTRY("F31", "[1]", "[0,4]") "}", 4, "unknown dtype \"F31\""},
        {"{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,4]}}", 4, "no shape"},
        {"{\"a\":" ENTRY("F32", "4", "[0,4]") "}", 4, "no shape"},
        {"{\"a\":" ENTRY("F32", "[1.5]", "[0,4]") "}", 4, "not a whole number"},
        {"{\"a\":" ENTRY("F32", "[-1]", "[0,4]") "}", 4, "not a whole number"},
        {"{\"a\":" ENTRY("F32", "[1,1,1,1,1,1,1,1,1]", "[0,4]") "}", 4, "more dimensions"},
        {"{\"a\":" ENTRY("F32", "[9007199254740992,9007199254740992]", "[0,4]") "}", 4, "overflows"},
        {"{\"a\":" ENTRY("F64", "[9007199254740992,1024]", "[0,4]") "}", 4, "overflows"},
        {"{\"a\":" ENTRY("F4", "[1]", "[0,1]") "}", 1, "whole bytes"},
        {"{\"a\":" ENTRY("F32", "[1]", "[0]") "}", 4, "pair of whole numbers"},
        {"{\"a\":" ENTRY("F32", "[1]", "[0,4,4]") "}", 4, "pair of whole numbers"},
        {"{\"a\":" ENTRY("F32", "[1]", "{}") "}", 4, "pair of whole numbers"},
        {"{\"a\":" ENTRY("F32", "[1]", "[-4,0]") "}", 4, "pair of whole numbers"},
        {"{\"a\":" ENTRY("F32", "[1]", "[4,0]") "}", 4, "leave the file"},
        {"{\"a\":" ENTRY("F32", "[1]", "[0,4]") "}", 3, "leave the file"},
        {"{\"a\":" ENTRY("F32", "[2]", "[0,4]") "}", 4, "4 bytes in the file, but its shape and dtype require 8"},
        {"{\"a\":" ENTRY("F32", "[1]", "[4,8]") "}", 8, "there is a gap before it"},
        {"{\"a\":" ENTRY("F32", "[1]", "[0,4]") "}", 8, "4 bytes after the last tensor"},
        {"{\"a\":" ENTRY("F32", "[2]", "[0,8]") ",\"b\":" ENTRY("F32", "[2]", "[4,12]") "}", 12, "overlaps"},
        {"{\"a\":" ENTRY("F32", "[1]", "[0,4]") ",\"a\":" ENTRY("F32", "[1]", "[4,8]") "}", 8, "safetensors header"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4],\"x\":1}}", 4, "unknown key \"x\""},
        {"{\"__metadata__\":1}", 0, "__metadata__ is not an object"},
        {"{\"__metadata__\":{\"n\":1}}", 0, "value of \"n\" is not a string"},
    };
    struct st_safetensors s;

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        assert_refused(parse(&s, rows[i].json, rows[i].data_bytes), STRATA_E_INPUT, rows[i].part);
        assert_non_null(strstr(strata_last_error(), "file.safetensors"));
        if (strstr(strata_last_error(), ": tensor ") != NULL) /* the first is at fault, or the second */
            assert_true(strstr(strata_last_error(), ": tensor a: ") != NULL ||
                        strstr(strata_last_error(), ": tensor b: ") != NULL);
    }
}

TEST(test_length_word)
{
    static const unsigned char huge[] = {0, 0, 0, 0, 1, 0, 0, 0, '{', '}'}, beyond[] = {3, 0, 0, 0, 0, 0, 0, 0, '{', '}'};
    static const unsigned char good[] = {2, 0, 0, 0, 0, 0, 0, 0, '{', '}'};
    struct st_safetensors s;

    assert_refused(st_safetensors_read_memory(&s, good, 7, "f"), STRATA_E_INPUT, "too few");
    assert_refused(st_safetensors_read_memory(&s, huge, sizeof(huge), "f"), STRATA_E_INPUT, "over the format's limit");
    assert_refused(st_safetensors_read_memory(&s, beyond, sizeof(beyond), "f"), STRATA_E_INPUT, "ends inside its header");
    assert_ok(st_safetensors_read_memory(&s, good, sizeof(good), "f"));
    st_safetensors_fini(&s);
}

TEST(test_written_header_is_read_back)
{
    static const uint64_t table[] = {7, 4}, bias[] = {5};
    struct st_safetensors_writer *w;
    struct st_safetensors s;
    unsigned char *header;
    uint64_t bytes;

    assert_ok(st_safetensors_writer_begin(&w, STRATA_BF16));
    st_safetensors_writer_add(w, "table", table, 2);
    st_safetensors_writer_add(w, "bias", bias, 1);
    assert_ok(st_safetensors_writer_end(w, &header, &bytes));
    assert_int_equal(bytes % 8, 0);
    assert_non_null(strstr((const char *)header + 8, "\"__metadata__\":{\"format\":\"pt\"}"));
    header = realloc(header, bytes + 66); /* the buffer follows */
    assert_non_null(header);
    assert_ok(st_safetensors_read_memory(&s, header, bytes + 66, "f"));
    assert_int_equal(s.count, 2);
    assert_string_equal(s.tensors[1].name, "bias");
    assert_int_equal(s.tensors[1].begin, bytes + 56);
    assert_int_equal(s.tensors[1].dtype, STRATA_BF16);
    st_safetensors_fini(&s);
    free(header);
    assert_ok(st_safetensors_writer_begin(&w, STRATA_F32));
    st_safetensors_writer_abort(w);
    st_safetensors_writer_abort(NULL);
}

/* Tensors begin at multiples of 8 bytes, however long the names are. */
TEST(test_written_headers_fill_whole_words)
{
    static const uint64_t shape[] = {3};
    static const char name[] = "a name";

    for (size_t at = 0; at < sizeof(name) - 1; at++)
        for (uint32_t rank = 0; rank < 2; rank++) {
            struct st_safetensors_writer *w;
            struct st_safetensors s;
            unsigned char *header;
            uint64_t bytes;

            assert_ok(st_safetensors_writer_begin(&w, STRATA_F32));
            st_safetensors_writer_add(w, name + at, shape, rank);
            assert_ok(st_safetensors_writer_end(w, &header, &bytes));
            assert_int_equal(bytes % 8, 0);
            header = realloc(header, bytes + 12);
            assert_non_null(header);
            assert_ok(st_safetensors_read_memory(&s, header, bytes + (rank == 0 ? 4 : 12), "f"));
            assert_string_equal(s.tensors[0].name, name + at);
            assert_int_equal(s.tensors[0].begin, bytes);
            st_safetensors_fini(&s);
            free(header);
        }
}
