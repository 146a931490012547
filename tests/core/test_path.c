/* tests/core/test_path.c - the parts of a path, also of one without a directory, of the root's, and of one that is too long. */
#include "core/system/path.h"
#include "tests/common/assert_status.h"
#include "tests/common/test.h"

#include <string.h>

TEST(a_path_has_a_directory_and_a_name)
{
    static const char *const rows[][4] = {
        /* path, its name, its directory, "x" beside it */
        {"rows.json", "rows.json", ".", "x"},
        {"./rows.json", "rows.json", ".", "./x"},
        {"data/rows.json", "rows.json", "data", "data/x"},
        {"/rows.json", "rows.json", "/", "/x"},
        {"/data/in/rows.json", "rows.json", "/data/in", "/data/in/x"},
        {"data/", "", "data", "data/x"},
    };
    char out[ST_PATH_MAX];

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        assert_string_equal(st_path_name(rows[i][0]), rows[i][1]);
        assert_ok(st_path_dir(out, rows[i][0]));
        assert_string_equal(out, rows[i][2]);
        assert_ok(st_path_beside(out, rows[i][0], "x"));
        assert_string_equal(out, rows[i][3]);
    }
    assert_ok(st_path_join(out, "data", "rows.json"));
    assert_string_equal(out, "data/rows.json");
    assert_int_equal(st_path_length("a/b"), 3);
    assert_int_equal(st_path_length("a/b//"), 3);
    assert_int_equal(st_path_length("//"), 1);
    assert_int_equal(st_path_length(""), 0);
}

TEST(what_does_not_fit_is_refused)
{
    enum { DIR_BYTES = ST_PATH_MAX - 2 };
    char path[ST_PATH_MAX + 1], out[ST_PATH_MAX];

    memset(path, 'd', sizeof(path));
    path[DIR_BYTES] = '\0';
    assert_ok(st_path_copy(out, path));
    assert_string_equal(out, path);
    assert_refused(st_path_join(out, path, "n"), STRATA_E_INVAL, "path too long: ddd");
    path[DIR_BYTES - 1] = '\0';
    assert_ok(st_path_join(out, path, "n"));
    assert_int_equal(strlen(out), ST_PATH_MAX - 1);

    path[DIR_BYTES - 1] = '/';
    path[DIR_BYTES] = 'n';
    path[DIR_BYTES + 1] = '\0';
    assert_ok(st_path_beside(out, path, "m"));
    assert_refused(st_path_beside(out, path, "mn"), STRATA_E_INVAL, "path too long: ddd");
    path[DIR_BYTES + 1] = 'n';
    path[DIR_BYTES + 2] = '\0';
    assert_refused(st_path_copy(out, path), STRATA_E_INVAL, "path too long: ddd");
    assert_ok(st_path_dir(out, path)); /* which is shorter than the path */
    assert_int_equal(strlen(out), DIR_BYTES - 1);
}

TEST(a_name_ends_in_letters_of_any_case)
{
    assert_true(st_path_ends("rows.json", ".json") && st_path_ends("rows.JSON", ".json") && st_path_ends(".json", ".json"));
    assert_false(st_path_ends("json", ".json") || st_path_ends("rows.jsonl", ".json") || st_path_ends("", ".json"));
}
