/* tests/core/test_config_table.c - the field table against the list of DeepSpeed's keys, against docs/config.md, and
 * against itself.  With `--write docs/config.md` it rewrites the generated part of that file instead. */
#include "core/config_source.h"

#include <stdlib.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#define KEYS_FILE "tests/core/deepspeed_keys.txt"
#define DOCS_FILE "docs/config.md"
#define DOCS_MARK "<!-- Below: generated from the field table. -->\n"
#define NAMES_MAX 600

/* Paths, sorted. */
struct names {
    char *items[NAMES_MAX];
    size_t count;
};

static int compare(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static void names_add(struct names *names, const char *path)
{
    assert_true(names->count < NAMES_MAX);
    names->items[names->count] = strdup(path);
    assert_non_null(names->items[names->count++]);
}

static void names_free(struct names *names)
{
    for (size_t i = 0; i < names->count; i++)
        free(names->items[i]);
}

static void read_keys(struct names *names)
{
    FILE *file = fopen(KEYS_FILE, "r");
    char line[256];

    assert_non_null(file);
    while (fgets(line, sizeof(line), file) != NULL) {
        line[strcspn(line, "\n")] = '\0';
        if (line[0] != '\0' && line[0] != '#')
            names_add(names, line);
    }
    fclose(file);
    qsort(names->items, names->count, sizeof(names->items[0]), compare);
}

static void add_with_aliases(struct names *names, const struct st_field *f)
{
    const char *at = f->aliases;

    names_add(names, f->path);
    while (at != NULL && *at != '\0') {
        const size_t len = strcspn(at, " ");
        char path[256];

        snprintf(path, sizeof(path), "%.*s%.*s", (int)(st_field_leaf(f->path) - f->path), f->path, (int)len, at);
        names_add(names, path);
        at += len + (at[len] == ' ');
    }
}

static void every_key_of_deepspeed_has_a_row_and_no_other(void **state)
{
    struct names listed = {0}, rows = {0};
    const struct st_section *s;

    (void)state;
    read_keys(&listed);
    for (uint32_t i = 0; (s = st_section_at(i)) != NULL; i++)
        for (uint32_t k = 0; s->deepspeed && k < s->count; k++)
            add_with_aliases(&rows, &s->fields[k]);
    qsort(rows.items, rows.count, sizeof(rows.items[0]), compare);
    for (size_t i = 0; i < listed.count && i < rows.count; i++)
        assert_string_equal(listed.items[i], rows.items[i]);
    assert_int_equal(listed.count, rows.count);
    names_free(&listed);
    names_free(&rows);
}

static void check_place(const struct st_field *f)
{
    const char *leaf = st_field_leaf(f->path);
    char parent[256];

    if (leaf == f->path) {
        assert_ptr_equal(st_field_child(NULL, leaf), f);
        return;
    }
    snprintf(parent, sizeof(parent), "%.*s", (int)(leaf - f->path - 1), f->path);
    assert_true(st_field_known(parent)->type == ST_FIELD_OBJECT || st_field_known(parent)->type == ST_FIELD_OPEN);
    assert_ptr_equal(st_field_child(st_field_known(parent), leaf), f);
}

static void check_text(struct st_config_source *src, const struct st_field *f, const char *text)
{
    st_json *node;
    const char *wrong;

    if (text == NULL)
        return;
    assert_int_equal(st_json_parse(&node, text, strlen(text), f->path), STRATA_OK);
    wrong = st_value_is_auto(node) ? NULL : st_value_check(src, f, node);
    if (wrong != NULL)
        fail_msg("%s: default %s %s", f->path, text, wrong);
    st_json_free(node);
}

static void rows_are_consistent(void **state)
{
    struct st_config_source *src = st_source_create(false);
    const struct st_field *f;

    (void)state;
    assert_non_null(src);
    for (uint32_t i = 0; (f = st_field_at(i)) != NULL; i++) {
        assert_int_equal(st_field_index(f), i);
        check_place(f);
        assert_non_null(f->help);
        if (f->verdict != ST_VERDICT_HONOURED)
            assert_non_null(f->reason);
        for (const struct st_choice *c = f->choices; c != NULL && c->text != NULL; c++)
            assert_true(c->verdict == ST_VERDICT_HONOURED || f->reason != NULL);
        assert_true((f->type == ST_FIELD_CHOICE) == (f->choices != NULL));
        if (f->bind != ST_BIND_NONE)
            assert_int_equal(f->verdict, ST_VERDICT_HONOURED);
        if (f->mutes != NULL)
            assert_true(st_field_index(st_field_known(f->mutes)) > i);
        check_text(src, f, f->fallback);
        check_text(src, f, f->auto_text);
    }
    st_config_source_free(src);
}

static char *generated(size_t *bytes)
{
    char *text = NULL;
    FILE *file = open_memstream(&text, bytes);

    assert_non_null(file);
    st_config_write_markdown(file);
    assert_int_equal(fclose(file), 0);
    return text;
}

static char *read_docs(void)
{
    FILE *file = fopen(DOCS_FILE, "r");
    char *text = calloc(1, 1 << 18);

    assert_non_null(file);
    assert_non_null(text);
    assert_true(fread(text, 1, (1 << 18) - 1, file) > 0);
    fclose(file);
    return text;
}

static void docs_are_up_to_date(void **state)
{
    size_t bytes;
    char *wanted = generated(&bytes), *docs = read_docs();
    const char *mark = strstr(docs, DOCS_MARK);

    (void)state;
    assert_non_null(mark);
    if (strcmp(mark + strlen(DOCS_MARK), wanted) != 0)
        fail_msg("%s is older than the field table: run this test with --write %s", DOCS_FILE, DOCS_FILE);
    free(wanted);
    free(docs);
}

/* Keeps what stands above the mark. */
static int write_docs(const char *path)
{
    char *docs = read_docs();
    char *mark = strstr(docs, DOCS_MARK);
    FILE *file = mark != NULL ? fopen(path, "w") : NULL;

    if (file == NULL) {
        free(docs);
        return 1;
    }
    fwrite(docs, 1, (size_t)(mark - docs) + strlen(DOCS_MARK), file);
    st_config_write_markdown(file);
    free(docs);
    return fclose(file) == 0 ? 0 : 1;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_key_of_deepspeed_has_a_row_and_no_other),
        cmocka_unit_test(rows_are_consistent),
        cmocka_unit_test(docs_are_up_to_date),
    };

    if (argc == 3 && strcmp(argv[1], "--write") == 0)
        return write_docs(argv[2]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
