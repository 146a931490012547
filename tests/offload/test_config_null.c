/* A key whose value is null is a key that was left out, whatever stands beside it: of every key of the table, in a file and on
 * the command line. */
#include "core/json/json_build.h"
#include "offload/config/config_table.h"
#include "tests/common/json_member.h"
#include "tests/offload/config_fixture.h"

#include <stdio.h>

/* What a configuration comes to: its values, and a line of each row. */
static char *outcome(const char *text, const char *override)
{
    struct st_config_source *source;
    struct st_config config;
    char *out = NULL;
    size_t bytes = 0;
    FILE *file = open_memstream(&out, &bytes);
    const strata_status st = config_load(&config, &source, text, override);

    assert_non_null(file);
    fprintf(file, "%d\n", (int)st);
    if (st == STRATA_OK)
        st_config_write_json(&config, file);
    for (uint32_t i = 0; i < st_config_row_count(source); i++) {
        const struct st_config_row *row = st_config_row_at(source, i);

        fprintf(file, "%s=%s: %d %d %s\n", row->path, row->value, (int)row->origin, (int)row->verdict,
                row->reason != NULL ? row->reason : "");
    }
    for (uint32_t i = 0; i < st_config_problem_count(source); i++)
        fprintf(file, "%s\n", st_config_problem_at(source, i));
    st_config_source_free(source);
    assert_int_equal(fclose(file), 0);
    return out;
}

static const st_json *member_at(const st_json *n, const char *path)
{
    char key[128];

    for (; n != NULL && *path != '\0'; path += strcspn(path, "."), path += *path == '.') {
        snprintf(key, sizeof(key), "%.*s", (int)strcspn(path, "."), path);
        n = st_json_type(n) == ST_JSON_OBJECT ? st_json_get(n, key) : NULL;
    }
    return n;
}

/* The object with null at a path, or without `leaf` with no more than the sections that lead there. */
static st_json *with_null(const st_json *object, const char *path, bool leaf)
{
    const size_t length = strcspn(path, ".");
    const bool last = path[length] == '\0';
    const char *rest = last ? NULL : path + length + 1;
    st_json *made = st_json_new_object();
    char key[128];
    bool found = false;

    snprintf(key, sizeof(key), "%.*s", (int)length, path);
    for (const st_json *n = object != NULL ? st_json_first(object) : NULL; n != NULL; n = st_json_next(n)) {
        const bool here = strcmp(st_json_name(n), key) == 0;

        found = found || here;
        assert_true(st_json_add(made, st_json_name(n), here && !last ? with_null(n, rest, leaf) : st_json_new_copy(n)));
    }
    if (!found && !last)
        assert_true(st_json_add(made, key, with_null(NULL, rest, leaf)));
    else if (!found && leaf)
        assert_true(st_json_add(made, key, st_json_new_null()));
    return made;
}

static char *text_of(st_json *tree)
{
    char *text = json_whole(tree);

    st_json_free(tree);
    return text;
}

/* Fails with what differs first. */
static void assert_same(const char *have, const char *want, const char *of)
{
    size_t at = 0;

    while (have[at] != '\0' && have[at] == want[at])
        at++;
    while (at > 0 && want[at - 1] != '\n' && want[at - 1] != ',')
        at--;
    if (strcmp(have, want) != 0)
        fail_msg("%s: %.200s\nwithout null: %.200s", of, have + at, want + at);
}

static const char *const bases[] = {
    "{}",
    "{\"optimizer\": {\"type\": \"AdamW\", \"params\": {}}, \"train_batch_size\": 8}",
    "{\"optimizer\": {\"type\": \"Adagrad\"}, \"scheduler\": {\"type\": \"WarmupDecayLR\", \"params\": {\"total_num_steps\": "
    "9}}}",
    "{\"optimizer\": {\"type\": \"Lion\", \"params\": {\"lr\": \"auto\"}}, \"scheduler\": {\"type\": \"OneCycle\", \"params\": "
    "{\"cycle_min_lr\": 0.1, \"cycle_max_lr\": 1}}, \"fp16\": {\"enabled\": true}}",
    "{\"bf16\": {\"enabled\": \"auto\"}, \"zero_optimization\": {\"stage\": 3, \"offload_optimizer\": {\"device\": \"nvme\", "
    "\"nvme_path\": \"/a\"}, \"offload_param\": {\"device\": \"cpu\"}}, \"strata\": {\"save\": \"/b\", \"lora\": {\"r\": 4}}}",
};

TEST(null_is_no_value)
{
    const struct st_field *f;

    for (size_t b = 0; b < sizeof(bases) / sizeof(bases[0]); b++) {
        st_json *base;

        assert_int_equal(st_json_parse(&base, bases[b], strlen(bases[b]), "base"), STRATA_OK);
        for (uint32_t i = 0; (f = st_field_at(i)) != NULL; i++) {
            char override[256], *in_file, *without, *want, *file, *line;

            if (member_at(base, f->path) != NULL)
                continue;
            snprintf(override, sizeof(override), "%s=null", f->path);
            in_file = text_of(with_null(base, f->path, true));
            without = text_of(with_null(base, f->path, false));
            want = outcome(without, NULL);
            file = outcome(in_file, NULL);
            line = outcome(without, override);
            assert_same(file, want, in_file);
            assert_same(line, want, override);
            free(in_file);
            free(without);
            free(want);
            free(file);
            free(line);
        }
        st_json_free(base);
    }
}

/* Where the file has a value, the null of the command line takes it away; one of the file takes nothing away. */
TEST(null_on_the_line_takes_a_value_away)
{
    char *want = outcome("{\"optimizer\": {\"type\": \"AdamW\", \"params\": {}}}", NULL),
         *have = outcome("{\"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 0.5}}}", "optimizer.params.lr=null");

    assert_string_equal(have, want);
    free(want);
    free(have);
}
