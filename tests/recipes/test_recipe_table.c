/* tests/recipes/test_recipe_table.c - trainers' tables against themselves and docs/yaml.md.  With `--write docs/yaml.md` it
 * rewrites the generated part of that file instead. */
#include "recipes/recipe_internal.h"
#include "tests/common/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DOCS_FILE "docs/yaml.md"
#define DOCS_MARK "<!-- Below: generated from the tables of trainers' keys. -->\n"

static const struct st_recipe_trainer *const trainers[] = {&st_recipe_trl, &st_recipe_llama_factory_v1, &st_recipe_llama_factory,
                                                           &st_recipe_xtuner, &st_recipe_accelerate};

static const struct st_field *row_at(const struct st_recipe_trainer *t, uint32_t i)
{
    for (const struct st_section *s = t->sections; s->title != NULL; s++) {
        if (i < s->count)
            return &s->fields[i];
        i -= s->count;
    }
    return NULL;
}

static bool names(const struct st_field *row, const char *key)
{
    char list[1024];

    snprintf(list, sizeof(list), " %s %s ", row->path, row->aliases != NULL ? row->aliases : "");
    return strstr(list, key) != NULL;
}

TEST(rows_are_consistent)
{
    for (size_t t = 0; t < sizeof(trainers) / sizeof(trainers[0]); t++) {
        const struct st_field *row, *other;

        for (uint32_t i = 0; (row = row_at(trainers[t], i)) != NULL; i++) {
            char key[128];
            uint32_t holders = 0;

            snprintf(key, sizeof(key), " %s ", row->path);
            for (uint32_t k = 0; (other = row_at(trainers[t], k)) != NULL; k++)
                holders += names(other, key);
            if (holders != 1)
                fail_msg("%s: %u rows of %s", row->path, holders, trainers[t]->name);
            if (row->help == NULL && row->reason == NULL)
                fail_msg("%s: nothing is said of it", row->path);
            if (row->type == ST_FIELD_CHOICE && row->reason == NULL)
                for (const struct st_choice *c = row->choices; c->text != NULL; c++)
                    if (c->verdict == ST_VERDICT_REJECTED)
                        fail_msg("%s: %s is rejected without a reason", row->path, c->text);
            if (row->to != NULL && row->to[0] != '-')
                (void)st_field_known(row->to);
        }
    }
}

/* The number of keys. */
static uint32_t expect_rows(const struct st_recipe_trainer *trainer, const char *path)
{
    FILE *file = fopen(path, "r");
    char key[128];
    uint32_t keys = 0;

    assert_non_null(file);
    while (fscanf(file, " %127s", key) == 1) {
        const struct st_field *row;
        char word[132];
        bool found = false;

        snprintf(word, sizeof(word), " %s ", key);
        for (uint32_t i = 0; !found && (row = row_at(trainer, i)) != NULL; i++)
            found = names(row, word);
        if (!found)
            fail_msg("%s has no row", key);
        keys++;
    }
    fclose(file);
    return keys;
}

/* Every key that a trainer's parser takes has a row. */
TEST(every_key_has_a_row)
{
    assert_true(expect_rows(&st_recipe_llama_factory, "tests/offload/llama_factory_keys.txt") > 300);
    assert_true(expect_rows(&st_recipe_llama_factory_v1, "tests/offload/llama_factory_v1_keys.txt") > 70);
    assert_true(expect_rows(&st_recipe_trl, "tests/offload/trl_keys.txt") > 150);
}

static char *generated(size_t *bytes)
{
    char *text = NULL;
    FILE *file = open_memstream(&text, bytes);

    assert_non_null(file);
    st_recipe_write_markdown(file);
    assert_int_equal(fclose(file), 0);
    return text;
}

static char *read_file(const char *path)
{
    char *text = calloc(1, 1 << 20);
    FILE *file = fopen(path, "r");

    assert_non_null(text);
    assert_non_null(file);
    text[fread(text, 1, (1 << 20) - 1, file)] = '\0';
    fclose(file);
    return text;
}

TEST(docs_are_up_to_date)
{
    size_t bytes;
    char *wanted = generated(&bytes), *docs = read_file(DOCS_FILE);
    const char *mark = strstr(docs, DOCS_MARK);

    assert_non_null(mark);
    if (strcmp(mark + strlen(DOCS_MARK), wanted) != 0)
        fail_msg("%s is older than the tables: run this test with --write %s", DOCS_FILE, DOCS_FILE);
    free(wanted);
    free(docs);
}

static int write_docs(const char *path)
{
    char *docs = read_file(DOCS_FILE), *mark = strstr(docs, DOCS_MARK);
    FILE *file = mark != NULL ? fopen(path, "w") : NULL;

    if (file == NULL) {
        free(docs);
        return 1;
    }
    fwrite(docs, 1, (size_t)(mark - docs) + strlen(DOCS_MARK), file);
    st_recipe_write_markdown(file);
    free(docs);
    return fclose(file) == 0 ? 0 : 1;
}

TEST_MAIN(argc, argv)
{
    if (argc == 3 && strcmp(argv[1], "--write") == 0)
        return write_docs(argv[2]);
    return test_run(NULL, NULL);
}
