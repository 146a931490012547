/* manifest.json: what is written comes back to the bit, and nothing else is taken. */
#include "offload/checkpoint/manifest.h"
#include "tests/common/assert_status.h"
#include "tests/common/fault_walk.h"
#include "tests/common/scratch.h"
#include "tests/common/test.h"
#include "tests/common/whole_file.h"
#include "tests/offload/checkpoint_fixture.h"

#include "core/base/checksum.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char *text_of(const struct st_manifest *m, uint64_t *bytes)
{
    char *text = NULL;

    assert_ok(st_manifest_text(&text, bytes, m));
    assert_int_equal(strlen(text), *bytes);
    return text;
}

static void assert_lists_equal(const struct st_manifest *a, const struct st_manifest *b)
{
    assert_int_equal(a->group_count, b->group_count);
    for (uint32_t i = 0; i < a->group_count; i++)
        assert_memory_equal(&a->groups[i], &b->groups[i], sizeof(a->groups[i]));
    assert_int_equal(a->tensor_count, b->tensor_count);
    for (uint32_t i = 0; i < a->tensor_count; i++)
        assert_memory_equal(&a->tensors[i], &b->tensors[i], sizeof(a->tensors[i]));
    assert_int_equal(a->data_count, b->data_count);
    for (uint32_t i = 0; i < a->data_count; i++)
        assert_memory_equal(&a->data[i], &b->data[i], sizeof(a->data[i]));
    assert_int_equal(a->file_count, b->file_count);
    for (uint32_t i = 0; i < a->file_count; i++)
        assert_memory_equal(&a->files[i], &b->files[i], sizeof(a->files[i]));
    assert_string_equal(a->config, b->config);
}

/* Everything but what the pointers lead to, bit for bit: both were zeroed before they were filled. */
TEST(comes_back_to_the_bit)
{
    struct st_manifest m = fixture_manifest(), back, flat[2];
    char *text, *again;
    uint64_t bytes, again_bytes;

    text = text_of(&m, &bytes);
    memset(&back, 0xa5, sizeof(back)); /* nothing of what was there stays */
    assert_ok(st_manifest_parse(&back, text, bytes, "m"));
    assert_lists_equal(&m, &back);
    flat[0] = m;
    flat[1] = back;
    for (uint32_t i = 0; i < 2; i++) {
        flat[i].groups = NULL;
        flat[i].tensors = NULL;
        flat[i].data = NULL;
        flat[i].files = NULL;
        flat[i].config = NULL;
    }
    assert_memory_equal(&flat[0].train, &flat[1].train, sizeof(m.train));
    assert_memory_equal(&flat[0].stripe, &flat[1].stripe, sizeof(m.stripe));
    assert_memory_equal(&flat[0], &flat[1], sizeof(m));
    again = text_of(&back, &again_bytes);
    assert_string_equal(again, text);
    free(again);
    free(text);
    st_manifest_fini(&m);
    st_manifest_fini(&back);
}

/* One bit of each byte, and every byte as another one in turn: the checksum, and after it the form of the end. */
TEST(every_flipped_byte_is_found)
{
    struct st_manifest m = fixture_manifest(), back;
    uint64_t bytes;
    char *text = text_of(&m, &bytes);

    for (uint64_t i = 0; i < bytes; i++)
        for (int flip = 1; flip < 256; flip *= 2) {
            text[i] = (char)(text[i] ^ flip);
            assert_int_equal(st_manifest_parse(&back, text, bytes, "m"), STRATA_E_CORRUPT);
            text[i] = (char)(text[i] ^ flip);
        }
    for (uint64_t cut = 0; cut < bytes; cut++)
        assert_int_equal(st_manifest_parse(&back, text, cut, "m"), STRATA_E_CORRUPT);
    free(text);
    st_manifest_fini(&m);
}

/* The text with `from` replaced, and the checksum of that. */
static strata_status parse_with(const char *text, const char *from, const char *to)
{
    const char *at = strstr(text, from), *key = ",\"checksum\":\"";
    struct st_manifest back;
    struct st_digest *digest;
    char *changed, hex[33];
    size_t bytes;
    strata_status st;

    assert_non_null(at);
    assert_true(asprintf(&changed, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from)) > 0);
    bytes = strlen(changed);
    assert_ok(st_digest_create(&digest));
    st_digest_update(digest, changed, (size_t)(strstr(changed, key) - changed));
    st_digest_hex(digest, hex);
    st_digest_destroy(digest);
    memcpy(strstr(changed, key) + strlen(key), hex, 32);
    st = st_manifest_parse(&back, changed, bytes, "m");
    if (st == STRATA_OK)
        st_manifest_fini(&back);
    free(changed);
    return st;
}

static const struct {
    const char *from, *to, *says;
} impossible[] = {
    {"\"format_version\":1", "\"format_version\":2", "format version 2, this strata reads 1"},
    {"\"format_version\":1,", "\"format_version\":1,\"more\":1,", "does not know"},
    {"\"world\":1", "\"world\":0", "impossible number of processes"},
    {"\"leaves\":3", "\"leaves\":0", "impossible value"},
    {"\"world\":1", "\"worlds\":1", "world is missing"},
    {"\"run\":{", "\"runs\":{", "run is missing"},
    {"\"machine\":{", "\"machines\":{", "machine is missing"},
    {"\"groups\":[", "\"group\":[", "groups is missing"},
    {"\"tensors\":[", "\"tensor\":[", "tensors is missing"},
    {"\"stripe\":\"", "\"stripes\":\"", "stripe is missing"},
    {"\"config\":\"", "\"configs\":\"", "config is missing"},
    {"{\"name\":\"base.1\",\"space\":\"base\",\"directory\":1,\"bytes\":0},", "", "files are not all that storage says"},
    {"\"world\":1", "\"world\":4294967296", "impossible value"},
    {"\"step\":100", "\"step\":-1", "impossible value"},
    {"\"step\":100", "\"step\":1.5", "impossible value"},
    {"\"moments\":2", "\"moments\":3", "impossible value"},
    {"\"moment_format\":\"8bit\"", "\"moment_format\":\"9bit\"", "impossible value"},
    {"\"dynamic\":true", "\"dynamic\":1", "impossible value"},
    {"\"dynamic\":true,", "\"dynamic\":true,\"x\":1,", "does not know"},
    {"\"id\":\"0123456789abcdef\"", "\"id\":\"0123456789abcde\"", "impossible value"},
    {"\"id\":\"0123456789abcdef\"", "\"id\":\"../../../../../a\"", "impossible value"},
    {"0x1.0000000000000p+16", "0x1.0000000000000p+1025", "impossible value"},
    {"0x1.0000000000000p+16", "0x1.p+16", "impossible value"},
    {"0x1.0000000000000p+16", "65536", "impossible value"},
    {"\"last_overflow\":-1", "\"last_overflow\":-2", "impossible value"},
    {"\"0xffffffffffffffff\"", "\"0x1ffffffffffffffff\"", "impossible value"},
    {"\"page\":0,\"kind\":\"decay\"", "\"page\":1,\"kind\":\"decay\"", "groups are none of a model's pages"},
    {"\"page\":1,\"kind\":\"frozen\"", "\"page\":2,\"kind\":\"frozen\"", "groups are none of a model's pages"},
    {"\"pages\":2", "\"pages\":3", "groups are not those of all pages"},
    {"\"offset\":70016,\"elems\":128}", "\"offset\":69888,\"elems\":128}", "groups are none of a model's pages"},
    {"\"offset\":0,\"elems\":6400", "\"offset\":0,\"elems\":70017", "tensors are not in the groups"},
    {"\"offset\":0,\"elems\":6400", "\"offset\":0,\"elems\":9007199254740992", "tensors are not in the groups"},
    {"\"name\":\"set.1\"", "\"name\":\"../set.1\"", "files do not hold"},
    {"\"name\":\"set.1\"", "\"name\":\"set.0\"", "files has a name twice"},
    {"\"name\":\"set.1\"", "\"name\":\"\"", "files do not hold"},
    {"\"directory\":1,", "\"directory\":2,", "files do not hold"},
    {"\"directory\":1,", "\"directory\":0,", "files do not hold"},
    {"\"set_bytes\":847872", "\"set_bytes\":843776", "files do not hold"},
    {"\"set_bytes\":847872", "\"set_bytes\":1", "impossible size"},
    {"\"base_bytes\":8192", "\"base_bytes\":0", "files do not hold"},
    {"\"stripe\":\"", "\"stripe\":\"9", "impossible value"},
    {"\"stripe\":\"", "\"stripe\":\"3", "impossible value"},
    {"\"block_bytes\":65536", "\"block_bytes\":0", "impossible value"},
    {"\"block_bytes\":65536", "\"block_bytes\":65537", "impossible value"},
};

TEST(what_cannot_be_is_refused)
{
    struct st_manifest m = fixture_manifest();
    uint64_t bytes;
    char *text = text_of(&m, &bytes);

    assert_ok(parse_with(text, "\"step\":100", "\"step\":101"));
    for (size_t i = 0; i < sizeof(impossible) / sizeof(impossible[0]); i++)
        assert_refused(parse_with(text, impossible[i].from, impossible[i].to), STRATA_E_CORRUPT, impossible[i].says);
    free(text);
    st_manifest_fini(&m);
}

/* Data is often cut in thousands of files. */
TEST(many_token_files_have_an_account)
{
    const uint32_t count = 5000;
    struct st_manifest m = fixture_manifest(), back;
    struct st_manifest_data *data = calloc(count, sizeof(*data));
    uint64_t bytes;
    char *text;

    assert_non_null(data);
    for (uint32_t i = 0; i < count; i++) {
        data[i] = m.data[i % m.data_count];
        memset(data[i].path, 0, sizeof(data[i].path));
        snprintf(data[i].path, sizeof(data[i].path), "part-%u.bin", i);
    }
    free(m.data);
    m.data = data;
    m.data_count = count;
    text = text_of(&m, &bytes);
    assert_ok(st_manifest_parse(&back, text, bytes, "m"));
    assert_int_equal(back.data_count, count);
    for (uint32_t i = 0; i < count; i++)
        assert_memory_equal(&back.data[i], &data[i], sizeof(data[i]));
    st_manifest_fini(&back);
    free(text);
    st_manifest_fini(&m);
}

/* A list of more objects is refused before memory is taken for it. */
TEST(lists_are_bounded)
{
    const uint32_t count = ST_MANIFEST_DATA_MAX + 1;
    struct st_manifest m = fixture_manifest();
    uint64_t bytes;
    char *text = text_of(&m, &bytes), *many = malloc(3 * (size_t)count + 32), *at = many;

    assert_non_null(many);
    at += sprintf(at, "\"data_files\":[");
    for (uint32_t i = 0; i < count; i++)
        at += sprintf(at, "{},");
    assert_refused(parse_with(text, "\"data_files\":[", many), STRATA_E_CORRUPT, "data_files is too long");
    free(many);
    free(text);
    st_manifest_fini(&m);
}

TEST(a_manifest_that_cannot_be_is_not_written)
{
    struct st_manifest m = fixture_manifest();
    char *text = NULL;
    uint64_t bytes;

    m.page_count = 3;
    assert_refused(st_manifest_text(&text, &bytes, &m), STRATA_E_INVAL, "not those of all pages");
    assert_null(text);
    st_manifest_fini(&m);
}

TEST(groups_and_files_are_found)
{
    struct st_manifest m = fixture_manifest();

    assert_ptr_equal(st_manifest_group(&m, 0, 1), &m.groups[1]);
    assert_null(st_manifest_group(&m, 0, 2));
    assert_ptr_equal(st_manifest_group(&m, 1, 0), &m.groups[2]);
    assert_null(st_manifest_group(&m, 1, 1));
    assert_null(st_manifest_group(&m, 2, 0));
    assert_null(st_manifest_group(&m, 1, UINT32_MAX));
    assert_ptr_equal(st_manifest_file(&m, ST_SPACE_SET, 1), &m.files[3]);
    assert_null(st_manifest_file(&m, ST_SPACE_SCRATCH, 0));
    st_manifest_fini(&m);
}

TEST(every_failure_has_a_sentence)
{
    struct fault_walk walk = {.result = -ENOMEM};
    struct st_manifest m = fixture_manifest(), back = {0};
    strata_status st;

    while (fault_walk_next(&walk)) {
        uint64_t bytes;
        char *text = NULL;

        st = st_manifest_text(&text, &bytes, &m);
        if (st == STRATA_OK && (st = st_manifest_parse(&back, text, bytes, "m")) == STRATA_OK)
            st_manifest_fini(&back);
        fault_walk_end(&walk, st);
        free(text);
    }
    assert_true(walk.failed >= 8);
    st_manifest_fini(&m);
}

TEST_SETUP(a_file_is_read, scratch_begin, scratch_end)
{
    struct st_manifest m = fixture_manifest(), back;
    uint64_t bytes;
    char *text = text_of(&m, &bytes);

    write_file(scratch_path("manifest.json"), text, bytes);
    assert_ok(st_manifest_read(&back, scratch_path("manifest.json")));
    assert_int_equal(back.step, 100);
    st_manifest_fini(&back);
    write_file(scratch_path("manifest.json"), text, bytes - 1);
    assert_refused(st_manifest_read(&back, scratch_path("manifest.json")), STRATA_E_CORRUPT,
                   "manifest.json: its checksum is wrong");
    assert_refused(st_manifest_read(&back, scratch_path("none.json")), STRATA_E_INPUT, "none.json");
    free(text);
    st_manifest_fini(&m);
}
