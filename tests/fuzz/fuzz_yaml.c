/* fuzz_yaml.c - any bytes as YAML: no crash; what is accepted is a tree within the limits, whose values have lines, and that JSON
 * can hold. */
#include "core/json/json_build.h"
#include "core/yaml/yaml.h"
#include "tests/fuzz/fuzz.h"

#include <math.h>
#include <stdlib.h>

static void check(bool holds)
{
    if (!holds)
        abort();
}

static void check_tree(const st_json *node)
{
    for (const st_json *n = st_json_first(node); n != NULL; n = st_json_next(n)) {
        check(st_json_line(n) > 0);
        check(st_json_type(n) != ST_JSON_NUMBER || isfinite(st_json_number(n)));
        check(st_json_type(node) != ST_JSON_OBJECT || st_json_get(node, st_json_name(n)) == n);
        check_tree(n);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    st_json *root = NULL;
    const strata_status st = st_yaml_parse(&root, (const char *)data, size, "fuzz");

    check(st == STRATA_OK || st == STRATA_E_CONFIG);
    check((root != NULL) == (st == STRATA_OK));
    if (root == NULL)
        return 0;
    check(st_json_count(root) <= ST_YAML_VALUES_MAX && st_json_depth(root) <= ST_YAML_DEPTH_MAX);
    check_tree(root);
    st_json_free(root);
    return 0;
}
