/* tests/model/test_adapter_peft.c - which modules have adapters, with which rank and scale, is what PEFT makes of the same keys:
 * adapters_golden.json, by tools/make_golden_adapters.py. */
#include "model/adapter/adapter.h"
#include "model/family.h"
#include "model_fixture.h"
#include "tests/common/whole_file.h"

#define GOLDEN      "tests/model/adapters_golden.json"
#define MODULES_MAX 128u

struct family {
    const char *name;
    struct st_adapter_module modules[MODULES_MAX];
    uint32_t count;
};

static enum st_adapter_module_kind kind_of(const char *text)
{
    static const char *const kinds[] = {[ST_ADAPTER_LINEAR] = "linear",
                                        [ST_ADAPTER_NORM] = "norm",
                                        [ST_ADAPTER_EMBEDDING] = "embedding",
                                        [ST_ADAPTER_HEAD] = "head"};
    enum st_adapter_module_kind kind = ST_ADAPTER_LINEAR;

    while (strcmp(kinds[kind], text) != 0)
        assert_in_range(++kind, ST_ADAPTER_LINEAR, ST_ADAPTER_HEAD);
    return kind;
}

static void read_family(struct family *f, const st_json *node)
{
    f->name = st_json_string(st_json_get(node, "family"));
    f->count = 0;
    for (const st_json *m = st_json_first(st_json_get(node, "modules")); m != NULL; m = st_json_next(m)) {
        struct st_adapter_module *module = &f->modules[f->count++];

        assert_true(f->count <= MODULES_MAX);
        *module = (struct st_adapter_module){.kind = kind_of(st_json_string(st_json_get(m, "kind"))),
                                             .tied = st_json_bool(st_json_get(m, "tied"))};
        snprintf(module->path, sizeof(module->path), "%s", st_json_string(st_json_get(m, "path")));
    }
}

static void check_module(const struct family *f, const struct st_adapter_module *module, const st_json *want)
{
    const bool adapted = want != NULL && st_json_type(want) == ST_JSON_ARRAY;
    const double rank = adapted ? st_json_number(st_json_first(want)) : 0;
    const double scale = adapted ? st_json_number(st_json_next(st_json_first(want))) : 0;

    if (module->r != rank || (double)module->scale != scale || module->saved != (want != NULL && !adapted))
        fail_msg("%s: %s has rank %u, scale %.9g, saved %d", f->name, module->path, module->r, (double)module->scale,
                 module->saved);
}

static void check_case(struct family *f, const st_json *node)
{
    const st_json *want = st_json_get(node, "modules");
    struct st_adapter_spec *spec = NULL;
    strata_status st = st_adapter_spec_read(&spec, st_json_get(node, "settings"), "settings");

    if (st == STRATA_OK)
        st = st_adapter_resolve(spec, f->modules, f->count, st_family_named(f->name)->adapter_targets, NULL);
    st_adapter_spec_destroy(spec);
    if (st_json_type(want) == ST_JSON_STRING) {
        assert_int_equal(st, STRATA_E_CONFIG);
        return;
    }
    assert_ok(st);
    for (uint32_t i = 0; i < f->count; i++)
        check_module(f, &f->modules[i], st_json_get(want, f->modules[i].path));
}

TEST(test_as_peft)
{
    struct family f;
    st_json *root;
    uint32_t families = 0, dense = 0;

    assert_ok(st_json_parse_file(&root, GOLDEN, 1 << 20));
    for (const st_json *node = st_json_first(root); node != NULL; node = st_json_next(node)) {
        uint32_t number = 0;

        read_family(&f, node);
        for (const st_json *c = st_json_first(st_json_get(node, "cases")); c != NULL; c = st_json_next(c)) {
            print_message("%s %u\n", f.name, number++);
            check_case(&f, c);
        }
        assert_true(number >= 30);
        families++;
    }
    for (enum st_model_family i = 0; i < ST_FAMILY_COUNT; i++)
        dense += st_family_of(i)->experts == NULL;
    assert_int_equal(families, dense);
    st_json_free(root);
}
