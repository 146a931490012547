/* tests/core/test_json_fuzz.c - seeded mutations of good texts: nothing crashes, what is accepted is a sound tree, and what is
 * JSON is Hjson.
 *
 *     test_core_json_fuzz [ROUNDS [SEED]]      more of it
 */
#include "core/base/rng.h"
#include "core/json/json.h"
#include "tests/common/test.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define TEXT_BYTES_MAX 512

static uint64_t fuzz_rounds = 20000, fuzz_seed = 1;

static const char *const seeds[] = {
    "{\"train_batch_size\": 5e8, \"zero_optimization\": {\"stage\": 3, \"offload_optimizer\": {\"device\": \"nvme\"}}}",
    "[1, -2.5e-3, true, false, null, \"a\\u00e9\\ud83d\\ude00\\n\", [], {}, [[[[1]]]]]",
    "{\"a\": {\"a\": {\"a\": [{\"b\": 1, \"c\": 2}]}}, \"b\": \"h\xc3\xa9 \xe2\x82\xac\"}",
    "  {\"k\":\"v\"}\r\n",
    "# x\n{a: 'b\"c', /* d */ \"e\": [1,\n 2\n-Infinity,],}",
};

static const char tokens[] = "{}[]:,\"\\u0019eE+-. tfnN/\n\xc3\xff'#*";

/* A random number below n, from a counter. */
static size_t below(uint64_t *counter, uint64_t round, size_t n)
{
    return (size_t)(st_rng_u64(fuzz_seed, round, (*counter)++) % n);
}

static size_t mutate(char *text, size_t bytes, uint64_t round, uint64_t *counter)
{
    size_t at = bytes > 0 ? below(counter, round, bytes) : 0, length;

    switch (below(counter, round, 5)) {
    case 0: /* overwrite */
        if (bytes > 0)
            text[at] = tokens[below(counter, round, sizeof(tokens) - 1)];
        return bytes;
    case 1: /* insert */
        if (bytes == TEXT_BYTES_MAX)
            return bytes;
        memmove(text + at + 1, text + at, bytes - at);
        text[at] = tokens[below(counter, round, sizeof(tokens) - 1)];
        return bytes + 1;
    case 2: /* remove a run */
        length = 1 + below(counter, round, 8);
        length = length < bytes - at ? length : bytes - at;
        memmove(text + at, text + at + length, bytes - at - length);
        return bytes - length;
    case 3: /* double a run */
        length = 1 + below(counter, round, 40);
        length = length < bytes - at ? length : bytes - at;
        if (bytes + length > TEXT_BYTES_MAX)
            return bytes;
        memmove(text + at + length, text + at, bytes - at);
        return bytes + length;
    default: /* any byte */
        if (bytes > 0)
            text[at] = (char)below(counter, round, 256);
        return bytes;
    }
}

/* Every node has a type, names where it should, finite numbers, and is found again by its name. */
static void check_tree(const st_json *node, unsigned depth)
{
    enum st_json_type type = st_json_type(node);
    uint64_t whole;

    assert_true(depth <= 64);
    if (type == ST_JSON_NUMBER) {
        assert_true(!isnan(st_json_number(node)));
        if (st_json_u64(node, &whole))
            assert_true((double)whole == st_json_number(node));
    }
    if (type == ST_JSON_STRING)
        assert_non_null(st_json_string(node));
    if (type != ST_JSON_OBJECT && type != ST_JSON_ARRAY)
        return;
    for (const st_json *child = st_json_first(node); child != NULL; child = st_json_next(child)) {
        if (type == ST_JSON_OBJECT)
            assert_ptr_equal(st_json_get(node, st_json_name(child)), child);
        check_tree(child, depth + 1);
    }
}

/* Of JSON, a text that has braces or brackets around it. */
static bool is_braced(const char *text, size_t bytes, bool is_json)
{
    size_t at = 0;

    while (at < bytes && strchr(" \t\r\n", text[at]) != NULL)
        at++;
    return is_json && (text[at] == '{' || text[at] == '[');
}

static bool run_round(uint64_t round)
{
    uint64_t counter = 0;
    const char *seed = seeds[below(&counter, round, sizeof(seeds) / sizeof(seeds[0]))];
    size_t bytes = strlen(seed), changes = 1 + below(&counter, round, 4);
    char text[TEXT_BYTES_MAX], *exact;
    st_json *root = NULL;
    bool accepted;

    memcpy(text, seed, bytes);
    for (size_t i = 0; i < changes; i++)
        bytes = mutate(text, bytes, round, &counter);
    exact = malloc(bytes > 0 ? bytes : 1); /* of the very size, so that a sanitizer sees any read past it */
    assert_non_null(exact);
    memcpy(exact, text, bytes);
    accepted = st_json_parse(&root, exact, bytes, "fuzz") == STRATA_OK;
    assert_int_equal(root != NULL, accepted);
    if (accepted)
        check_tree(root, 0);
    else
        assert_true(strncmp(strata_last_error(), "fuzz:", 5) == 0);
    st_json_free(root);
    root = NULL;
    if (st_hjson_parse(&root, exact, bytes, "fuzz") == STRATA_OK)
        check_tree(root, 0);
    else
        assert_true(root == NULL && !is_braced(exact, bytes, accepted) && strncmp(strata_last_error(), "fuzz:", 5) == 0);
    st_json_free(root);
    free(exact);
    return accepted;
}

TEST(test_mutations)
{
    uint64_t accepted = 0;

    for (uint64_t round = 0; round < fuzz_rounds; round++)
        accepted += run_round(round);
    print_message("seed %llu: %llu of %llu mutations accepted\n", (unsigned long long)fuzz_seed, (unsigned long long)accepted,
                  (unsigned long long)fuzz_rounds);
    assert_true(accepted > fuzz_rounds / 100 && accepted < fuzz_rounds / 2);
}

TEST_MAIN(argc, argv)
{
    if (argc > 1)
        fuzz_rounds = strtoull(argv[1], NULL, 10);
    if (argc > 2)
        fuzz_seed = strtoull(argv[2], NULL, 10);
    return test_run(NULL, NULL);
}
