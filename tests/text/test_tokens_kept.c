/* tests/text/test_tokens_kept.c - tokens that are kept: found only if they are whole, and made of what is there now. */
#include "core/base/log.h"
#include "text/data/rows/tokens_kept.h"
#include "text/data/tokens.h"
#include "tests/text/text_fixture.h"
#include "tests/common/fault_walk.h"
#include "tests/common/whole_file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#define ROW(user, answer)                                                                                                        \
    "{\"messages\": [{\"role\": \"user\", \"content\": \"" user "\"}, {\"role\": \"assistant\", \"content\": \"" answer "\"}]}"  \
    "\n"

static const char *inputs[2];

/* A tokenizer, a text and conversations. */
static void put_all(void)
{
    char *text = read_file("tests/golden/tokenizers/qwen2.json", NULL);

    scratch_put("model/tokenizer.json", text);
    scratch_put("model/tokenizer_config.json", "{\"eos_token\": \"<|endoftext|>\"}");
    scratch_put("a.jsonl", ROW("2+2?", "4") ROW("3+3?", "6"));
    scratch_put("b.jsonl", ROW("4+4?", "8"));
    scratch_put("template", "{{ strftime_now('%Y') }}{% for m in messages %}{{ m.content }};{% endfor %}");
    free(text);
    st_log_configure(NULL, NULL, ST_LOG_ERROR);
}

static struct st_tokenize_opts opts_of(uint32_t count)
{
    static char paths[3][256];

    snprintf(paths[0], sizeof(paths[0]), "%s", scratch_path("a.jsonl"));
    snprintf(paths[1], sizeof(paths[1]), "%s", scratch_path("b.jsonl"));
    snprintf(paths[2], sizeof(paths[2]), "%s", scratch_path("model"));
    inputs[0] = paths[0];
    inputs[1] = paths[1];
    return (struct st_tokenize_opts){
        .inputs = inputs, .input_count = count, .tokenizer = paths[2], .template = "chatml", .date = {2026, 2, 3}};
}

static strata_status make(const struct st_tokenize_opts *opts)
{
    struct st_tokenize_opts how = *opts;
    struct st_tokenize_report report;
    struct st_kept *k;
    strata_status st = st_kept_open(&k, scratch_path("kept"), opts);

    if (st != STRATA_OK || k == NULL)
        return st;
    how.out = st_kept_path(k);
    how.origin = st_kept_origin(k);
    st = how.tokenizer != NULL ? st_tokenize(&how, &report)
                               : st_tokens_from_bytes(how.inputs, how.input_count, how.out, how.origin);
    st_kept_close(k);
    return st;
}

static bool is_there(const struct st_tokenize_opts *opts)
{
    struct st_kept *k;
    bool there;

    assert_ok(st_kept_open(&k, scratch_path("kept"), opts));
    assert_non_null(k);
    assert_ok(st_kept_find(&there, k));
    st_kept_close(k);
    return there;
}

TEST(what_is_kept_is_found_again)
{
    struct st_tokenize_opts opts;
    const struct timespec long_ago[2] = {{1, 0}, {1, 0}};

    scratch_open();
    put_all();
    opts = opts_of(2);
    assert_false(is_there(&opts));
    assert_int_equal(scratch_entries_with(scratch_dir, "kept"), 0);
    assert_ok(make(&opts));
    assert_true(is_there(&opts));
    assert_int_equal(scratch_entries(scratch_path("kept"), NULL), 2);
    assert_int_equal(utimensat(AT_FDCWD, inputs[0], long_ago, 0), 0); /* the same bytes */
    assert_int_equal(rename(scratch_path("model"), scratch_path("moved")), 0);
    opts.tokenizer = scratch_path("moved/tokenizer.json");
    assert_true(is_there(&opts));
    opts = opts_of(2);
    opts.tokenizer = NULL; /* bytes */
    assert_false(is_there(&opts));
    assert_ok(make(&opts));
    assert_true(is_there(&opts));
    assert_int_equal(scratch_entries(scratch_path("kept"), NULL), 4);
    scratch_close();
}

/* Each of these gives other tokens, or could. */
TEST(anything_that_decides_is_part_of_the_key)
{
    static const struct {
        const char *file, *text; /* written; NULL: removed */
    } changes[] = {
        {"a.jsonl", ROW("2+2?", "5") ROW("3+3?", "6")}, /* as long as it was */
        {"b.jsonl", ROW("4+4?", "8") "\n"},
        {"model/tokenizer_config.json", "{\"eos_token\": \"<|im_end|>\"}"},
        {"model/tokenizer_config.json", NULL},
        {"model/special_tokens_map.json", "{}"},
        {"model/special_tokens_map.json", ""},
        {"model/chat_template.jinja", "{{ messages[0].content }}"},
        {"model/merges.txt", "a b"},
        {"model/generation_config.json", "{}"},
        {"model/config.json", "{}"},
        {"model/additional_chat_templates/tool_use.jinja", "x"},
    };
    struct st_tokenize_opts opts, other;
    char *tokenizer;
    size_t bytes;

    scratch_open();
    put_all();
    assert_int_equal(mkdir(scratch_path("model/additional_chat_templates"), 0700), 0);
    opts = opts_of(2);
    assert_ok(make(&opts));
    for (size_t i = 0; i < sizeof(changes) / sizeof(changes[0]); i++) {
        char *was = access(scratch_path(changes[i].file), F_OK) == 0 ? read_file(scratch_path(changes[i].file), NULL) : NULL;
        struct st_kept *k;
        bool there = false;

        if (changes[i].text != NULL)
            scratch_put(changes[i].file, changes[i].text);
        else
            assert_int_equal(unlink(scratch_path(changes[i].file)), 0);
        if (st_kept_open(&k, scratch_path("kept"), &opts) == STRATA_OK) {
            assert_ok(st_kept_find(&there, k));
            st_kept_close(k);
        }
        if (there)
            fail_msg("change %zu, of %s: the tokens of before are found", i, changes[i].file);
        if (was != NULL)
            scratch_put(changes[i].file, was);
        else
            assert_int_equal(unlink(scratch_path(changes[i].file)), 0);
        free(was);
        assert_true(is_there(&opts));
    }
    tokenizer = read_file(scratch_path("model/tokenizer.json"), &bytes);
    tokenizer[bytes] = ' '; /* in the place of the NUL; it means nothing, and is told apart all the same */
    write_file(scratch_path("model/tokenizer.json"), tokenizer, bytes + 1);
    assert_false(is_there(&opts));
    write_file(scratch_path("model/tokenizer.json"), tokenizer, bytes);
    assert_true(is_there(&opts));
    free(tokenizer);
    other = opts_of(1);
    assert_false(is_there(&other));
    inputs[0] = scratch_path("b.jsonl");
    inputs[1] = scratch_path("a.jsonl");
    other.input_count = 2;
    assert_false(is_there(&other));
    opts = opts_of(2);
    opts.template = "llama3";
    assert_false(is_there(&opts));
    opts.template = NULL;
    assert_false(is_there(&opts));
    opts = opts_of(2);
    opts.seq_len = 12; /* rows are cut there */
    assert_false(is_there(&opts));
    scratch_close();
}

/* Options that give other tokens have other names, each of them and together; those that do not have the same. */
TEST(each_option_is_part_of_the_key)
{
    static const enum st_token_layout rows = ST_LAYOUT_ROWS, packed = ST_LAYOUT_PACKED, joined = ST_LAYOUT_CONCATENATED;
    struct st_tokenize_opts all[20];
    char names[20][256];
    uint32_t count = 0;

    scratch_open();
    put_all();
    all[count++] = opts_of(2);
    all[count] = opts_of(2), all[count++].format = ST_ROWS_MESSAGES;
    all[count] = opts_of(2), all[count++].layout = &rows;
    all[count] = opts_of(2), all[count++].layout = &packed;
    all[count] = opts_of(2), all[count++].layout = &joined;
    all[count] = opts_of(2), all[count++].seq_len = 12;
    all[count] = opts_of(2), all[count++].seq_len = 13;
    all[count] = opts_of(2), all[count++].max_samples = 1;
    all[count] = opts_of(2), all[count++].seed = 1;
    all[count] = opts_of(2), all[count++].train_on_prompt = true;
    all[count] = opts_of(2), all[count++].last_answer_only = true;
    all[count] = opts_of(2), all[count++].turn_ends = true;
    all[count] = opts_of(2), all[count++].as_trl = true;
    all[count] = all[count - 1], all[count++].last_answer_only = true;
    all[count] = opts_of(2), all[count++].vocab = 3; /* of a model with fewer rows than there are tokens */
    for (uint32_t i = 0; i < 4; i++) { /* a template that asks for the date: 3-5 2026, and one of another day, month and year */
        all[count] = opts_of(2);
        all[count].template = scratch_path("template");
        all[count].date.day += i == 1;
        all[count].date.month += i == 2;
        all[count].date.year += i == 3;
        count++;
    }
    for (uint32_t i = 0; i < count; i++) {
        char template[256];
        struct st_kept *k;

        if (i >= count - 4) {
            snprintf(template, sizeof(template), "%s", scratch_path("template"));
            all[i].template = template;
        }
        assert_ok(st_kept_open(&k, scratch_path("kept"), &all[i]));
        snprintf(names[i], sizeof(names[i]), "%s", st_kept_path(k));
        st_kept_close(k);
        for (uint32_t j = 0; j < i; j++)
            if (strcmp(names[i], names[j]) == 0)
                fail_msg("options %u and %u have one name", j, i);
        if (i == 0) { /* without a date in the template the day is no matter */
            struct st_tokenize_opts later = all[0];

            later.date.day++;
            later.vocab = 1u << 30; /* nor is it how many rows there are beyond them */
            assert_ok(st_kept_open(&k, scratch_path("kept"), &later));
            assert_string_equal(st_kept_path(k), names[0]);
            st_kept_close(k);
        }
    }
    scratch_close();
}

/* Files' names in the text of a program: "NAME.json" and the like. */
static const char *next_name(const char *at, char name[64])
{
    static const char *const ends[] = {".json", ".txt", ".jinja", ".model"};

    for (; (at = strchr(at, '"')) != NULL; at++) {
        const size_t length = strspn(at + 1, "abcdefghijklmnopqrstuvwxyz_.");

        if (at[length + 1] != '"' || length >= 64)
            continue;
        snprintf(name, 64, "%.*s", (int)length, at + 1);
        for (size_t i = 0; i < sizeof(ends) / sizeof(ends[0]); i++)
            if (length > strlen(ends[i]) && strcmp(name + length - strlen(ends[i]), ends[i]) == 0)
                return at + length + 2;
    }
    return NULL;
}

#define DATA_SET                                                                                                                 \
    "{\"file_name\": \"b.jsonl\", \"formatting\": \"sharegpt\", \"columns\": {\"messages\": \"messages\"}, \"tags\": "           \
    "{\"role_tag\": \"role\", \"content_tag\": \"content\", \"user_tag\": \"user\", \"assistant_tag\": \"assistant\"}}"

/* The file of a data set counts, as its name and its description do. */
TEST(a_data_set_that_changes_is_read_again)
{
    static const char *const names[] = {"first"}, *const other[] = {"second"};
    struct st_tokenize_opts opts;

    scratch_open();
    put_all();
    opts = opts_of(0);
    scratch_put("info.json", "{\"first\": " DATA_SET ", \"second\": " DATA_SET "}");
    opts.dataset_info = strdup(scratch_path("info.json"));
    opts.datasets = names;
    opts.dataset_count = 1;
    assert_ok(make(&opts));
    assert_true(is_there(&opts));
    opts.datasets = other;
    assert_false(is_there(&opts));
    opts.datasets = names;
    scratch_put("b.jsonl", ROW("4+4?", "9"));
    assert_false(is_there(&opts));
    put_all();
    assert_true(is_there(&opts));
    scratch_put("info.json", "{\"first\": " DATA_SET "}");
    assert_false(is_there(&opts));
    free((void *)opts.dataset_info);
    scratch_close();
}

/* What the tokenizer and the templates may read is what the key counts: a file that is new to them must be named in both. */
TEST(all_files_that_are_read_are_counted)
{
    static const char *const dirs[] = {"text/tokenizer", "text/data/dialog"};
    static const char own[] = "\"tokenizer.json\" \"tokenizer.model\" \"vocab.json\""; /* st_tokenizer_path() names it */
    char *counted = read_file("text/data/rows/tokens_kept.c", NULL);
    uint32_t names = 0;

    for (size_t d = 0; d < sizeof(dirs) / sizeof(dirs[0]); d++) {
        DIR *dir = opendir(dirs[d]);
        const struct dirent *entry;

        assert_non_null(dir);
        while ((entry = readdir(dir)) != NULL) {
            char path[512], name[64], quoted[80], *text;

            if (strstr(entry->d_name, ".c") == NULL)
                continue;
            snprintf(path, sizeof(path), "%s/%s", dirs[d], entry->d_name);
            text = read_file(path, NULL);
            for (const char *at = text; (at = next_name(at, name)) != NULL; names++) {
                snprintf(quoted, sizeof(quoted), "\"%s\"", name);
                if (strstr(counted, quoted) == NULL && strstr(own, quoted) == NULL)
                    fail_msg("%s reads %s, which is no part of the key of tokens that are kept (tokens_kept.c)", path, name);
            }
            free(text);
        }
        closedir(dir);
    }
    assert_true(names > 8);
    free(counted);
}

/* The date counts where the template asks for it, and nowhere else. */
TEST(the_date_counts_where_it_is_asked_for)
{
    struct st_tokenize_opts opts;

    scratch_open();
    put_all();
    opts = opts_of(1);
    assert_ok(make(&opts));
    opts.date.day++;
    assert_true(is_there(&opts));
    opts.template = scratch_path("template");
    assert_false(is_there(&opts));
    assert_ok(make(&opts));
    assert_true(is_there(&opts));
    opts.date.day++;
    assert_false(is_there(&opts));
    opts.date.day--;
    scratch_put("template", "{{ strftime_now('%y') }}{% for m in messages %}{{ m.content }};{% endfor %}");
    opts.template = scratch_path("template");
    assert_false(is_there(&opts));
    scratch_close();
}

/* Every byte of both files. */
TEST(damage_is_found)
{
    static const char *const ends[] = {"", ".meta"};
    struct st_tokenize_opts opts;
    struct st_kept *k;
    char path[ST_PATH_MAX];
    bool there;

    scratch_open();
    put_all();
    opts = opts_of(1);
    assert_ok(make(&opts));
    assert_ok(st_kept_open(&k, scratch_path("kept"), &opts));
    for (size_t e = 0; e < sizeof(ends) / sizeof(ends[0]); e++) {
        size_t bytes;
        char *text;

        snprintf(path, sizeof(path), "%s%s", st_kept_path(k), ends[e]);
        text = read_file(path, &bytes);
        for (size_t i = 0; i < bytes; i++) {
            text[i] ^= 4;
            write_file(path, text, bytes);
            assert_ok(st_kept_find(&there, k));
            if (there)
                fail_msg("byte %zu of %s: not found", i, path);
            text[i] ^= 4;
        }
        write_file(path, text, bytes - 1);
        assert_ok(st_kept_find(&there, k));
        assert_false(there);
        write_file(path, text, bytes);
        assert_ok(st_kept_find(&there, k));
        assert_true(there);
        free(text);
    }
    st_kept_close(k);
    scratch_close();
}

/* One of the two files, as a power cut may leave them; another run's under this name; and a name that is taken. */
TEST(other_files_are_no_tokens)
{
    struct st_tokenize_opts opts, other;
    char mine[ST_PATH_MAX + 8], theirs[ST_PATH_MAX], meta[ST_PATH_MAX + 8];
    struct st_new_file held;
    struct st_kept *k;

    scratch_open();
    put_all();
    opts = opts_of(1);
    other = opts_of(2);
    assert_ok(make(&opts));
    assert_ok(st_kept_open(&k, scratch_path("kept"), &opts));
    snprintf(mine, sizeof(mine), "%s", st_kept_path(k));
    snprintf(meta, sizeof(meta), "%s.meta", st_kept_path(k));
    st_kept_close(k);
    assert_int_equal(unlink(mine), 0);
    assert_false(is_there(&opts));
    assert_ok(make(&opts)); /* in the place of the half that is there */
    assert_true(is_there(&opts));
    assert_int_equal(unlink(meta), 0);
    assert_false(is_there(&opts));
    assert_ok(make(&opts));

    assert_ok(st_kept_open(&k, scratch_path("kept"), &other));
    snprintf(theirs, sizeof(theirs), "%s", st_kept_path(k));
    assert_int_equal(rename(mine, theirs), 0);
    snprintf(mine, sizeof(mine), "%s.meta", theirs);
    assert_int_equal(rename(meta, mine), 0);
    assert_false(is_there(&other));

    assert_int_equal(unlink(theirs), 0);
    assert_ok(st_new_file_create(&held, theirs, 0)); /* as another run that is making it */
    other.out = theirs;
    other.origin = st_kept_origin(k);
    assert_int_equal(st_tokenize(&other, &(struct st_tokenize_report){0}), STRATA_E_INPUT);
    assert_true(other.origin->refused);
    st_new_file_abort(&held);
    st_kept_close(k);
    scratch_close();
}

/* What was read is not what the key says. */
TEST(texts_that_change_meanwhile_are_refused)
{
    static const struct {
        const char *file, *text;
    } changes[] = {
        {"a.jsonl", ROW("2+2?", "5") ROW("3+3?", "6")}, /* as long as it was */
        {"model/tokenizer_config.json", "{}"},
        {"template", "{{ strftime_now('%y') }}{% for m in messages %}{{ m.content }};{% endfor %}"},
    };

    for (size_t i = 0; i < sizeof(changes) / sizeof(changes[0]); i++) {
        struct st_tokenize_opts opts, now;
        struct st_tokenize_report report;
        struct st_kept *k;

        scratch_open();
        put_all();
        opts = opts_of(1);
        opts.template = scratch_path("template");
        assert_ok(st_kept_open(&k, scratch_path("kept"), &opts));
        now = opts;
        now.out = st_kept_path(k);
        now.origin = st_kept_origin(k);
        scratch_put(changes[i].file, changes[i].text);
        if (st_tokenize(&now, &report) != STRATA_E_INPUT ||
            strstr(strata_last_error(), "changed while tokens were made of it: run again") == NULL)
            fail_msg("%s: %s", changes[i].file, strata_last_error());
        assert_int_equal(scratch_entries_with(scratch_dir, "kept"), 0);
        st_kept_close(k);
        scratch_close();
    }
}

TEST(what_is_read_once_is_not_kept)
{
    struct st_tokenize_opts opts;
    struct st_kept *k;

    scratch_open();
    put_all();
    opts = opts_of(2);
    inputs[1] = "-";
    assert_ok(st_kept_open(&k, scratch_path("kept"), &opts));
    assert_null(k);
    inputs[1] = scratch_path("pipe.jsonl");
    assert_int_equal(mkfifo(inputs[1], 0600), 0);
    assert_ok(st_kept_open(&k, scratch_path("kept"), &opts));
    assert_null(k);
    scratch_close();
}

/* By bytes: what tokenizers and templates do about failures is tested where they are. */
TEST(every_failure_leaves_both_files_or_none)
{
    struct fault_walk walk = {.result = -EIO};
    struct st_tokenize_opts opts;
    char path[ST_PATH_MAX], meta[ST_PATH_MAX + 8];
    struct st_kept *k;

    scratch_open();
    put_all();
    opts = opts_of(1);
    opts.tokenizer = NULL;
    assert_ok(st_kept_open(&k, scratch_path("kept"), &opts));
    snprintf(path, sizeof(path), "%s", st_kept_path(k));
    snprintf(meta, sizeof(meta), "%s.meta", path);
    st_kept_close(k);
    while (fault_walk_next(&walk)) {
        bool there = false;
        strata_status st = make(&opts);
        uint32_t files;

        if (st == STRATA_OK && (st = st_kept_open(&k, scratch_path("kept"), &opts)) == STRATA_OK && k != NULL)
            st = st_kept_find(&there, k);
        fault_walk_end(&walk, st);
        st_kept_close(k);
        k = NULL;
        files = scratch_entries_with(scratch_dir, "kept") == 0 ? 0 : scratch_entries(scratch_path("kept"), NULL);
        assert_true(files == 0 || (files == 2 && access(path, F_OK) == 0 && access(meta, F_OK) == 0));
        if (files == 2 && !is_there(&opts))
            fail_msg("after a failure the tokens are there, but not found");
        (void)unlink(path);
        (void)unlink(meta);
        (void)rmdir(scratch_path("kept"));
    }
    assert_true(walk.failed > 40);
    scratch_close();
}
