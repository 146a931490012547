/* tests/offload/test_config_table.c - the field table against the list of DeepSpeed's keys, against docs/config.md, and
 * against itself.  With `--write docs/config.md` it rewrites the generated part of that file instead. */
#include "offload/config/config_source.h"
#include "tests/common/test.h"
#include "tests/common/whole_file.h"

#include <stdlib.h>
#include <string.h>

#define KEYS_FILE "tests/offload/deepspeed_keys.txt"
#define DOCS_FILE "docs/config.md"
#define DOCS_MARK "<!-- Below: generated from the field table. -->\n"
#define KEYS_MAX  1000
#define KEY_BYTES 160

#define NEWEST " 0.19.8" /* the version whose keys are today's */

/* One line of the file: a key, and whether the newest version takes it. */
struct key {
    char path[KEY_BYTES];
    bool today;
};

static struct key keys[KEYS_MAX];
static size_t key_count;

static int read_keys(void **state)
{
    FILE *file = fopen(KEYS_FILE, "r");
    char line[KEY_BYTES + 64];

    (void)state;
    while (file != NULL && fgets(line, sizeof(line), file) != NULL) {
        struct key *key = &keys[key_count];

        line[strcspn(line, "\n")] = '\0';
        if (line[0] == '\0' || line[0] == '#')
            continue;
        key->today = strstr(line, NEWEST) != NULL;
        if (snprintf(key->path, sizeof(key->path), "%.*s", (int)strcspn(line, " "), line) >= KEY_BYTES || ++key_count == KEYS_MAX)
            return -1;
    }
    return file != NULL ? fclose(file) : -1;
}

/* The row that evaluates a key: its own, or the nearest section that takes any member; NULL: none does. */
static const struct st_field *row_of(const char *path)
{
    const struct st_field *f = NULL;

    for (const char *at = path; *at != '\0'; at += at[0] == '.') {
        const size_t len = strcspn(at, ".");
        const struct st_field *section = f;
        char name[KEY_BYTES];

        snprintf(name, sizeof(name), "%.*s", (int)len, at);
        if ((f = st_field_child(section, name)) == NULL)
            return section != NULL && section->type == ST_FIELD_OPEN ? section : NULL;
        at += len;
    }
    return f;
}

TEST(every_key_of_deepspeed_has_a_verdict)
{
    assert_true(key_count > 400);
    for (size_t i = 0; i < key_count; i++)
        if (row_of(keys[i].path) == NULL)
            fail_msg("%s has no row", keys[i].path);
}

static bool is_listed(const char *path)
{
    for (size_t i = 0; i < key_count; i++)
        if (strcmp(keys[i].path, path) == 0)
            return true;
    return false;
}

/* Not in the parser's sources, and met nevertheless. */
static bool is_known_otherwise(const char *path)
{
    static const char *const paths[] = {
        "optimizer.params.momentum",
        "optimizer.params.dampening",
        "optimizer.params.nesterov", /* torch.optim.SGD's */
        "optimizer.params.muon_lr",
        "optimizer.params.adam_lr",
        "optimizer.params.ns_method",                          /* Muon's */
        "zero_optimization.grad_hooks",                        /* of the documentation alone */
        "zero_optimization.offload_optimizer.buffer_size",     /* copied from offload_param's */
        "zero_optimization.gather_fp16_weights_on_model_save", /* its other spelling with stage3_ is there */
        "quantize_training",                                   /* known to 0.19 in order to be refused */
    };

    for (size_t i = 0; i < sizeof(paths) / sizeof(paths[0]); i++)
        if (strcmp(paths[i], path) == 0)
            return true;
    return false;
}

static void check_listed(const struct st_field *f)
{
    const char *at = f->aliases;

    if (!is_listed(f->path) && !is_known_otherwise(f->path))
        fail_msg("%s: no version of DeepSpeed has it", f->path);
    while (at != NULL && *at != '\0') {
        const size_t len = strcspn(at, " ");
        char path[KEY_BYTES];

        snprintf(path, sizeof(path), "%.*s%.*s", (int)(st_field_leaf(f->path) - f->path), f->path, (int)len, at);
        if (!is_listed(path) && !is_known_otherwise(path))
            fail_msg("%s: no version of DeepSpeed has it", path);
        at += len + (at[len] == ' ');
    }
}

TEST(every_row_is_a_key_of_deepspeed)
{
    const struct st_section *s;

    for (uint32_t i = 0; (s = st_section_at(i)) != NULL; i++)
        for (uint32_t k = 0; s->deepspeed && k < s->count; k++)
            check_listed(&s->fields[k]);
}

/* What the newest version does not take is removed, or an old name; and what is called removed is so. */
TEST(removed_is_what_the_newest_version_lacks)
{
    for (size_t i = 0; i < key_count; i++) {
        const struct st_field *f = row_of(keys[i].path);
        const bool renamed = strcmp(f->path, "aio.thread_count") == 0 || strcmp(f->path, "seq_parallel_comm_data_type") == 0;

        if (keys[i].today ? f->verdict == ST_VERDICT_REMOVED : f->verdict != ST_VERDICT_REMOVED && !renamed)
            fail_msg("%s: verdict %d", keys[i].path, (int)f->verdict);
    }
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

TEST(rows_are_consistent)
{
    struct st_config_source *src = st_source_create(false);
    const struct st_field *f;

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

TEST(docs_are_up_to_date)
{
    size_t bytes;
    char *wanted = generated(&bytes), *docs = read_file(DOCS_FILE, NULL);
    const char *mark = strstr(docs, DOCS_MARK);

    assert_non_null(mark);
    if (strcmp(mark + strlen(DOCS_MARK), wanted) != 0)
        fail_msg("%s is older than the field table: run this test with --write %s", DOCS_FILE, DOCS_FILE);
    free(wanted);
    free(docs);
}

/* Keeps what stands above the mark. */
static int write_docs(const char *path)
{
    char *docs = read_file(DOCS_FILE, NULL);
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

TEST_MAIN(argc, argv)
{
    if (argc == 3 && strcmp(argv[1], "--write") == 0)
        return write_docs(argv[2]);
    return test_run(read_keys, NULL);
}
