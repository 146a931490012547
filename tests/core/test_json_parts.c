/* tests/core/test_json_parts.c - a text whose large members are read in parts says what it says as a tree: the same members in
 * the same order, the same faults at the same places. */
#include "core/json/json_parts.h"
#include "tests/common/test.h"

#include "core/base/error.h"
#include "core/base/fault.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* {"a":{"v":{"k0":..., ...},"x":[1]},"l":[..., ...],"z":true}, with so many members and elements. */
static char *make_text(uint32_t count)
{
    char *text = NULL;
    size_t bytes;
    FILE *file = open_memstream(&text, &bytes);

    assert_non_null(file);
    fputs("{\"a\" : {\"v\":{", file);
    for (uint32_t i = 0; i < count; i++)
        fprintf(file, "%s\"k%u\\\"}]\" :\n%u", i > 0 ? ", " : "\n", i, i);
    fputs("}, \"x\":[1]},\n\"l\": [", file);
    for (uint32_t i = 0; i < count; i++)
        fprintf(file, i % 3 == 0 ? "%s[\"%u\", {\"]\": 1}]" : i % 3 == 1 ? "%s \"%u,\\\\\" " : "%s\n%u", i > 0 ? "," : "", i);
    fputs(" ], \"z\":true}", file);
    assert_int_equal(fclose(file), 0);
    return text;
}

static char *text_of(const st_json *node)
{
    struct st_json_writer w;
    char *text = NULL;
    size_t bytes;
    FILE *file = open_memstream(&text, &bytes);

    assert_non_null(file);
    st_json_begin(&w, file);
    st_json_put_node(&w, NULL, node);
    assert_int_equal(fclose(file), 0);
    return text;
}

/* The parts one after the other, against the member of the whole tree. */
static void check_parts(struct st_json_large *large, const st_json *whole)
{
    const st_json *want = st_json_first(whole);
    uint64_t left = st_json_count_left(large);
    st_json *part;

    while (assert_int_equal(st_json_next_part(&part, large), STRATA_OK), part != NULL) {
        assert_int_equal(st_json_type(part), st_json_type(whole));
        assert_non_null(st_json_first(part));
        for (const st_json *have = st_json_first(part); have != NULL; have = st_json_next(have), left--) {
            char *a = text_of(have), *b = text_of(want);

            assert_string_equal(a, b);
            if (st_json_name(want) != NULL)
                assert_string_equal(st_json_name(have), st_json_name(want));
            want = st_json_next(want);
            free(a);
            free(b);
        }
        st_json_free(part);
        assert_int_equal(st_json_count_left(large), left);
    }
    assert_null(want);
    assert_int_equal(left, 0);
}

TEST(parts_are_the_whole)
{
    static const uint32_t counts[] = {1, 2, 4095, 4096, 4097, 8192, 9000};

    for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++) {
        struct st_json_large large[] = {{.key = "l"}, {.key = "a.v"}};
        char *text = make_text(counts[i]);
        st_json *whole, *rest;
        char *left;

        assert_int_equal(st_json_parse(&whole, text, strlen(text), "t"), STRATA_OK);
        assert_int_equal(st_json_parse_large(&rest, large, 2, text, strlen(text), "t"), STRATA_OK);
        left = text_of(rest);
        assert_string_equal(left, "{\"a\":{\"v\":{},\"x\":[1]},\"l\":[],\"z\":true}");
        free(left);
        check_parts(&large[0], st_json_get(whole, "l"));
        check_parts(&large[1], st_json_get(st_json_get(whole, "a"), "v"));
        st_json_free(rest);
        st_json_free(whole);
        free(text);
    }
}

/* What is empty, no list, not there, or written otherwise stays in the tree. */
TEST(other_members_stay)
{
    static const char *const texts[] = {"{\"a\":{\"v\":{ }}}",
                                        "{\"a\":{\"v\":[\n]}}",
                                        "{\"a\":{\"v\":\"[1]\"}}",
                                        "{\"a\":{}}",
                                        "{\"a\":[{\"v\":1}]}",
                                        "{\"a\":{\"\\u0076\":[1,2]}}",
                                        "{\"v\":[1]}",
                                        "[1,2]",
                                        "{\"a\":null}",
                                        "3"};

    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        struct st_json_large large = {.key = "a.v"};
        char text[64], *have, *want;
        st_json *whole, *rest, *part;

        snprintf(text, sizeof(text), "%s", texts[i]);
        assert_int_equal(st_json_parse(&whole, texts[i], strlen(texts[i]), "t"), STRATA_OK);
        assert_int_equal(st_json_parse_large(&rest, &large, 1, text, strlen(text), "t"), STRATA_OK);
        assert_int_equal(st_json_count_left(&large), 0);
        assert_int_equal(st_json_next_part(&part, &large), STRATA_OK);
        assert_null(part);
        have = text_of(rest);
        want = text_of(whole);
        assert_string_equal(have, want);
        free(have);
        free(want);
        st_json_free(rest);
        st_json_free(whole);
    }
}

TEST(faults_have_their_place)
{
    static const struct {
        const char *text, *says;
    } rows[] = {
        {"{\"a\":{\"v\":[1,\n2,,3]}}", "t:2:3: a value is missing"},
        {"{\"a\":{\"v\":[1]\n},\"a\":2}", "t:2:3: duplicate key \"a\""},
        {"{\"a\":{\"v\":[1],\"b\":0,\n\"b\":1}}", "t:2:1: duplicate key \"b\""},
    };
    struct st_json_large large = {.key = "a.v"};
    st_json *tree = NULL;
    char text[64];

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        snprintf(text, sizeof(text), "%s", rows[i].text);
        assert_int_equal(st_json_parse_large(&tree, &large, 1, text, strlen(text), "t"), STRATA_E_CONFIG);
        assert_string_equal(strata_last_error(), rows[i].says);
    }
    snprintf(text, sizeof(text), "{\n \"a\":{\"v\":{\"x\":1,\n\"y\":2,  \"x\":3}}}");
    assert_int_equal(st_json_parse_large(&tree, &large, 1, text, strlen(text), "t"), STRATA_OK);
    st_json_free(tree);
    assert_int_equal(st_json_next_part(&tree, &large), STRATA_E_CONFIG);
    assert_string_equal(strata_last_error(), "t:3:9: duplicate key \"x\"");
}

/* In a later part, too, which begins within a line. */
TEST(a_later_part_knows_its_place)
{
    struct st_json_large large = {.key = "l"};
    st_json *tree, *part;
    char *text = NULL;
    size_t bytes;
    FILE *file = open_memstream(&text, &bytes);

    assert_non_null(file);
    fputs("{\"l\":[0", file);
    for (uint32_t i = 0; i < 4999; i++)
        fputs("\n,0", file);
    fputs(", {\"x\":1,\"x\":2}]}", file);
    assert_int_equal(fclose(file), 0);
    assert_int_equal(st_json_parse_large(&tree, &large, 1, text, bytes, "t"), STRATA_OK);
    st_json_free(tree);
    assert_int_equal(st_json_next_part(&part, &large), STRATA_OK);
    st_json_free(part);
    assert_int_equal(st_json_next_part(&part, &large), STRATA_E_CONFIG);
    assert_string_equal(strata_last_error(), "t:5000:12: duplicate key \"x\"");
    free(text);
}

TEST(refused_memory_is_said)
{
    struct st_json_large large = {.key = "l"};
    char *text = make_text(3);
    st_json *tree;

    st_fault_arm(&(struct st_fault_spec){.site = "json.alloc", .count = 1, .result = -1});
    assert_int_equal(st_json_parse_large(&tree, &large, 1, text, strlen(text), "t"), STRATA_E_NOMEM);
    assert_int_equal(st_fault_disarm(), 1);
    free(text);
}
