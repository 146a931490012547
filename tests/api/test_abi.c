/* tests/api/test_abi.c - strata_abi() has what the headers declare; that sizes, offsets and types are the compiler's is asserted
 * where the text is made. */
#include "core/json/json.h"
#include "strata/strata.h"
#include "tests/common/test.h"
#include "tests/common/whole_file.h"

#include <glob.h>
#include <stdlib.h>
#include <string.h>

static st_json *read_abi(void)
{
    st_json *abi;

    assert_int_equal(st_json_parse(&abi, strata_abi(), strlen(strata_abi()), "abi"), STRATA_OK);
    return abi;
}

static uint32_t count_of(const st_json *n)
{
    uint32_t count = 0;

    for (const st_json *child = st_json_first(n); child != NULL; child = st_json_next(child))
        count++;
    return count;
}

/* Checks that functions declared in a header are in the text; returns their number. */
static uint32_t check_header(const char *path, const st_json *functions)
{
    char *text = read_file(path, NULL), name[64];
    uint32_t count = 0;

    for (const char *at = text; (at = strstr(at, "\nSTRATA_API ")) != NULL; count++) {
        const char *open = strchr(++at, '('), *begin = open;

        while (begin[-1] != ' ' && begin[-1] != '*')
            begin--;
        snprintf(name, sizeof(name), "%.*s", (int)(open - begin), begin);
        if (st_json_get(functions, name) == NULL)
            fail_msg("%s: %s is not in the text", path, name);
    }
    free(text);
    return count;
}

TEST(every_function_is_there_and_no_other)
{
    st_json *abi = read_abi();
    const st_json *functions = st_json_get(abi, "functions");
    uint32_t count = 0;
    glob_t headers;

    assert_int_equal(glob("include/strata/*.h", 0, NULL, &headers), 0);
    for (size_t i = 0; i < headers.gl_pathc; i++)
        count += check_header(headers.gl_pathv[i], functions);
    globfree(&headers);
    assert_true(count > 100);
    assert_int_equal(count_of(functions), count);
    st_json_free(abi);
}

/* What a type is called without const and stars. */
static void check_type(const st_json *abi, const char *type)
{
    static const char *const plain[] = {"void", "char",    "bool",     "int",     "unsigned", "float",   "double",   "size_t",
                                        "FILE", "int16_t", "uint16_t", "int32_t", "uint32_t", "int64_t", "uint64_t", NULL};
    char word[96];

    type += strncmp(type, "const ", 6) == 0 ? 6 : 0;
    snprintf(word, sizeof(word), "%.*s", (int)strcspn(type, "*"), type);
    for (size_t i = 0; plain[i] != NULL; i++)
        if (strcmp(word, plain[i]) == 0)
            return;
    if (strncmp(word, "enum ", 5) == 0 && st_json_get(st_json_get(abi, "enums"), word + 5) != NULL)
        return;
    if (strncmp(word, "callback ", 9) == 0 && st_json_get(st_json_get(abi, "callbacks"), word + 9) != NULL)
        return;
    if (strncmp(word, "struct ", 7) == 0 && st_json_get(st_json_get(abi, "structs"), word + 7) != NULL)
        return;
    for (const st_json *handle = st_json_first(st_json_get(abi, "handles")); handle != NULL; handle = st_json_next(handle))
        if (strncmp(word, "struct ", 7) == 0 && strcmp(word + 7, st_json_string(handle)) == 0)
            return;
    fail_msg("type \"%s\" is not explained", type);
}

static void check_types(const st_json *abi, const st_json *rows)
{
    for (const st_json *row = st_json_first(rows); row != NULL; row = st_json_next(row))
        check_type(abi, st_json_string(st_json_get(row, "type")));
}

TEST(every_type_is_explained)
{
    static const char *const kinds[] = {"functions", "callbacks"};
    st_json *abi = read_abi();

    for (size_t i = 0; i < 2; i++)
        for (const st_json *f = st_json_first(st_json_get(abi, kinds[i])); f != NULL; f = st_json_next(f)) {
            check_type(abi, st_json_string(st_json_get(f, "returns")));
            check_types(abi, st_json_get(f, "params"));
        }
    for (const st_json *s = st_json_first(st_json_get(abi, "structs")); s != NULL; s = st_json_next(s))
        check_types(abi, st_json_get(s, "members"));
    st_json_free(abi);
}

static double number_of(const st_json *abi, const char *kind, const char *of, const char *what)
{
    const st_json *found = st_json_get(st_json_get(abi, kind), of);

    found = what != NULL ? st_json_get(found, what) : found;
    assert_non_null(found);
    return st_json_number(found);
}

TEST(a_sample_is_as_the_headers_say)
{
    st_json *abi = read_abi();
    const st_json *step = st_json_get(st_json_get(abi, "structs"), "strata_step"), *member;

    assert_true(number_of(abi, "constants", "STRATA_OPTIM_PACK", NULL) == STRATA_OPTIM_PACK);
    assert_true(number_of(abi, "constants", "STRATA_REPETITION_LEAST", NULL) == STRATA_REPETITION_LEAST);
    assert_true(number_of(abi, "enums", "strata_status", "STRATA_E_INTERNAL") == STRATA_E_INTERNAL);
    assert_true(number_of(abi, "enums", "strata_plan_part", "STRATA_PLAN_ALL") == STRATA_PLAN_ALL);
    assert_true(number_of(abi, "structs", "strata_step", "bytes") == sizeof(struct strata_step));
    assert_string_equal(st_json_string(st_json_get(step, "size_member")), "step_size");
    for (member = st_json_first(st_json_get(step, "members"));
         strcmp(st_json_string(st_json_get(member, "name")), "busy_ms") != 0; member = st_json_next(member))
        assert_non_null(member);
    assert_string_equal(st_json_string(st_json_get(member, "type")), "double");
    assert_true(st_json_number(st_json_get(member, "offset")) == offsetof(struct strata_step, busy_ms));
    assert_true(st_json_number(st_json_get(member, "bytes")) == STRATA_LANE_COUNT * sizeof(double));
    assert_true(st_json_number(st_json_get(member, "count")) == STRATA_LANE_COUNT);
    st_json_free(abi);
}

TEST_GROUP(NULL, NULL);
