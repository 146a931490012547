/* tests/model/test_hf_source.c - what lies beside the weights of a directory goes into the one that is written: config.json with
 * another dtype alone, the rest byte by byte; what does not go along, and every failure. */
#include "core/base/fault.h"
#include "hf_rig.h"
#include "tests/common/fault_walk.h"
#include "tests/common/kept_log.h"
#include "tests/common/whole_file.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

/* A config.json of tiny_config() in no order of ours, with keys that nobody knows; %s is where a dtype stands. */
#define CONFIG                                                                                                                   \
    "{\n  \"my_key\": {\"b\": [1, 2.50, null], \"a\": \"\\u00e9\"},\n  \"n_layer\": 2, \"n_embd\": 24,\n  \"n_head\": 3,\n"      \
    "  \"n_inner\": 40,\"vocab_size\": 131, \"n_positions\": 16,\n  \"eos_token_id\": [2,5,7], \"pad_token_id\": 9,\n"           \
    "  \"initializer_range\": 0.05, \"auto_map\": {}%s,\n  \"reorder_and_upcast_attn\": true, \"model_type\": \"gpt2\"\n}\n"

static bool is_there(const char *name)
{
    struct stat info;

    return lstat(scratch_path(name), &info) == 0;
}

/* from/: a config, a tokenizer, a licence, a link to a template, and what does not go along. */
static void make_source(void)
{
    char config[1024];

    assert_int_equal(mkdir(scratch_path("from"), 0700), 0);
    assert_int_equal(mkdir(scratch_path("from/folder"), 0700), 0);
    assert_int_equal(mkdir(scratch_path("from/folder.json"), 0700), 0);
    snprintf(config, sizeof(config), CONFIG, ", \"torch_dtype\": \"float32\"");
    scratch_put("from/config.json", config);
    scratch_put("from/generation_config.json", "{ \"eos_token_id\": [2, 5], \"temperature\": 0.6 }");
    scratch_put("from/tokenizer.json", "{\"vocab\": {}}");
    scratch_put("from/LICENSE", "");
    scratch_put("template", "{{ messages }}");
    assert_int_equal(symlink("../template", scratch_path("from/chat_template.jinja")), 0);
    assert_int_equal(mkfifo(scratch_path("from/pipe"), 0600), 0);
    scratch_put("from/folder/vocab.txt", "x");
}

static void put_all(struct st_hf_writer *w, const struct st_model *m)
{
    for (uint32_t page = 0; page < m->workload.page_count; page++) {
        void *weights = page_weights(m, page);

        assert_ok(st_hf_writer_put(w, page, 0, m->workload.pages[page].elems, weights));
        free(weights);
    }
}

static void write_out(const struct st_model *m, const char *to)
{
    char source[256];

    snprintf(source, sizeof(source), "%s", scratch_path("from"));
    assert_ok(write_model_from(m, scratch_path(to), source));
}

TEST(test_small_files_go_along)
{
    static const char *const stay[] = {
        "UPPER.BIN",      "64.tflite",    "rust_model.ot", "model.safetensors",
        "a.safetensors",  "b.bin",        "c.pt",          "d.pth",
        "e.h5",           "f.msgpack",    "g.gguf",        "h.onnx",
        ".gitattributes", "x.index.json", "y.tmp",         "model.safetensors.strata-0123456789abcdef"};
    struct st_model *m = tiny_model(STRATA_F32);
    char name[64], config[1024];
    struct stat info;

    scratch_open();
    make_source();
    for (size_t i = 0; i < sizeof(stay) / sizeof(stay[0]); i++) {
        snprintf(name, sizeof(name), "from/%s", stay[i]);
        scratch_put(name, "old");
    }
    scratch_put("from/large", "");
    assert_int_equal(truncate(scratch_path("from/large"), (64 << 20) + 1), 0);
    scratch_put("from/just", "");
    assert_int_equal(truncate(scratch_path("from/just"), (2 << 20) + 3), 0);
    write_out(m, "to");
    snprintf(config, sizeof(config), CONFIG, ", \"torch_dtype\": \"float32\"");
    scratch_holds("to/config.json", config);
    scratch_holds("to/generation_config.json", "{ \"eos_token_id\": [2, 5], \"temperature\": 0.6 }");
    scratch_holds("to/tokenizer.json", "{\"vocab\": {}}");
    scratch_holds("to/LICENSE", "");
    scratch_holds("to/chat_template.jinja", "{{ messages }}");
    assert_int_equal(lstat(scratch_path("to/chat_template.jinja"), &info), 0);
    assert_true(S_ISREG(info.st_mode));
    assert_int_equal(stat(scratch_path("to/just"), &info), 0);
    assert_int_equal(info.st_size, (2 << 20) + 3);
    assert_int_equal(scratch_entries(scratch_path("to"), NULL), 7); /* with the weights */
    check_read(m, scratch_path("to"));
    scratch_close();
    st_model_destroy(m);
}

/* transformers' other chat templates: a model trained on them would lose them without a word. */
TEST(test_a_folder_of_templates_is_told)
{
    struct st_model *m = tiny_model(STRATA_F32);

    scratch_open();
    make_source();
    assert_int_equal(mkdir(scratch_path("from/additional_chat_templates"), 0700), 0);
    kept_log_begin(ST_LOG_NOTICE);
    write_out(m, "to");
    kept_log_end();
    assert_int_equal(kept_log.count, 1);
    assert_non_null(strstr(kept_log.last, "from/additional_chat_templates is a folder: not copied"));
    scratch_close();
    st_model_destroy(m);
}

/* As with cp: less what the umask takes, and never set-user-ID. */
TEST(test_copies_keep_their_permissions)
{
    static const struct {
        const char *name;
        mode_t mode, copied;
    } rows[] = {
        {"run.sh", 0755, 0750}, {"secret", 0600, 0600}, {"fixed", 0444, 0440}, {"tool", 04755, 0750}, {"notes", 0664, 0640},
    };
    struct st_model *m = tiny_model(STRATA_F32);
    const mode_t mask = umask(027);
    struct stat info;
    char name[64];

    scratch_open();
    make_source();
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        snprintf(name, sizeof(name), "from/%s", rows[i].name);
        scratch_put(name, "x");
        assert_int_equal(chmod(scratch_path(name), rows[i].mode), 0);
    }
    write_out(m, "to");
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        snprintf(name, sizeof(name), "to/%s", rows[i].name);
        assert_int_equal(stat(scratch_path(name), &info), 0);
        assert_int_equal(info.st_mode & 07777, rows[i].copied);
    }
    assert_int_equal(stat(scratch_path("to/config.json"), &info), 0);
    assert_int_equal(info.st_mode & 07777, 0640);
    scratch_close();
    umask(mask);
    st_model_destroy(m);
}

TEST(test_config_changes_in_its_dtype_alone)
{
    static const struct {
        strata_dtype dtype;
        const char *before, *after;
    } rows[] = {
        {STRATA_F32, ", \"torch_dtype\": \"float32\"", ", \"torch_dtype\": \"float32\""},
        {STRATA_F32, "", ""},
        {STRATA_F32, ", \"torch_dtype\":\"bfloat16\"", ", \"torch_dtype\":\"float32\""},
        {STRATA_BF16, ", \"torch_dtype\" : \"float32\"", ", \"torch_dtype\" : \"bfloat16\""},
        {STRATA_BF16, ", \"torch_dtype\": \"torch.bfloat16\"", ", \"torch_dtype\": \"torch.bfloat16\""},
        {STRATA_F16, ", \"dtype\": \"float32\"", ", \"dtype\": \"float16\""},
        {STRATA_F16, ", \"dtype\": \"float32\", \"torch_dtype\": null", ", \"dtype\": \"float16\", \"torch_dtype\": \"float16\""},
        {STRATA_BF16, ", \"x\": {\"dtype\": \"float32\"}, \"dtype\": \"bfloat16\"",
         ", \"x\": {\"dtype\": \"float32\"}, \"dtype\": \"bfloat16\""},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct st_model *m = tiny_model(rows[i].dtype);
        char before[1024], after[1024];

        scratch_open();
        make_source();
        snprintf(before, sizeof(before), CONFIG, rows[i].before);
        snprintf(after, sizeof(after), CONFIG, rows[i].after);
        scratch_put("from/config.json", before);
        write_out(m, "to");
        scratch_holds("to/config.json", after);
        scratch_close();
        st_model_destroy(m);
    }
}

/* A dtype that is not said is fp32; another one is said behind everything else. */
TEST(test_dtype_is_added)
{
    struct st_model *m = tiny_model(STRATA_BF16);
    char config[1024];
    size_t bytes;
    char *have;

    scratch_open();
    make_source();
    snprintf(config, sizeof(config), CONFIG, "");
    scratch_put("from/config.json", config);
    write_out(m, "to");
    have = read_file(scratch_path("to/config.json"), &bytes);
    assert_memory_equal(have, config, strlen(config) - 3);
    assert_string_equal(have + strlen(config) - 3, ",\n  \"torch_dtype\": \"bfloat16\"\n}\n");
    free(have);
    scratch_close();
    st_model_destroy(m);
}

/* Whoever made a file in the way of a copy keeps it; what the run itself made before is there already. */
TEST(test_files_of_others_stay)
{
    struct st_model *m = tiny_model(STRATA_F32);

    scratch_open();
    make_source();
    assert_int_equal(mkdir(scratch_path("to"), 0700), 0);
    scratch_put("to/LICENSE", "mine");
    write_out(m, "to");
    scratch_holds("to/LICENSE", "mine");
    assert_true(is_there("to/tokenizer.json"));
    write_out(m, "to"); /* over itself */
    scratch_holds("to/LICENSE", "mine");
    scratch_holds("to/chat_template.jinja", "{{ messages }}");
    write_out(m, "from"); /* over the source */
    scratch_holds("from/tokenizer.json", "{\"vocab\": {}}");
    check_read(m, scratch_path("from"));
    scratch_close();
    st_model_destroy(m);
}

/* Bytes `at` and at 0 of the source's file are 'x', those of the other one's may be others. */
static void put_large(const char *name, off_t bytes, off_t at, char byte)
{
    const int fd = open(scratch_path(name), O_WRONLY | O_CREAT | O_TRUNC, 0600);

    assert_true(fd >= 0 && ftruncate(fd, bytes) == 0);
    assert_int_equal(pwrite(fd, "x", 1, 0) + pwrite(fd, &byte, 1, at), 2);
    close(fd);
}

/* A file that stays is told of where it is another one, wherever they differ; they are read in parts of 1 MiB. */
TEST(test_files_that_differ_are_told)
{
    static const struct {
        off_t bytes, at;
        char byte;
    } rows[] = {{(2 << 20) + 3, (1 << 20) + 5, 'x'},
                {(2 << 20) + 3, (1 << 20) + 5, 'y'},
                {(2 << 20) + 3, (2 << 20) + 2, 'y'},
                {(2 << 20) + 3, 1, 'y'},
                {(2 << 20) + 2, 1, 'x'},
                {(2 << 20) + 3, 1, 'x'}};
    struct st_model *m = tiny_model(STRATA_F32);

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        const bool same = rows[i].byte == 'x' && rows[i].bytes == (2 << 20) + 3;

        scratch_open();
        make_source();
        put_large("from/words", (2 << 20) + 3, rows[i].at, 'x');
        assert_int_equal(mkdir(scratch_path("to"), 0700), 0);
        put_large("to/words", rows[i].bytes, rows[i].at, rows[i].byte);
        kept_log_begin(ST_LOG_NOTICE);
        write_out(m, "to");
        kept_log_end();
        if ((strstr(kept_log.last, "from/words and stays as it is") == NULL) != same)
            fail_msg("row %zu: \"%s\"", i, kept_log.last);
        scratch_close();
    }
    st_model_destroy(m);
}

/* Where it exists it alone counts: one of the model that was there must not stay. */
TEST(test_generation_config_is_the_sources_or_none)
{
    struct st_model *m = tiny_model(STRATA_F32);

    scratch_open();
    make_source();
    assert_int_equal(mkdir(scratch_path("to"), 0700), 0);
    scratch_put("to/generation_config.json", "{\"eos_token_id\": 1}");
    write_out(m, "to");
    scratch_holds("to/generation_config.json", "{ \"eos_token_id\": [2, 5], \"temperature\": 0.6 }");
    assert_int_equal(unlink(scratch_path("from/generation_config.json")), 0);
    write_out(m, "to");
    assert_false(is_there("to/generation_config.json"));
    scratch_close();
    st_model_destroy(m);
}

/* Of a configuration that names no dtype, the weights' own; what cannot be read is no fp32. */
TEST(test_a_dtype_is_read_or_refused)
{
    struct st_model *m = tiny_model(STRATA_BF16);
    strata_dtype dtype;

    scratch_open();
    assert_ok(write_new_model(m, scratch_path("out")));
    assert_int_equal(unlink(scratch_path("out/config.json")), 0);
    scratch_put("out/config.json", "{}");
    for (uint32_t i = 0; i < 2; i++) {
        struct fault_walk walk = {.result = -EIO};

        while (fault_walk_next(&walk)) {
            strata_status st;

            dtype = STRATA_DTYPE_INVALID;
            st = st_hf_stored_dtype(&dtype, scratch_path("out"));
            fault_walk_end(&walk, st);
            if (st == STRATA_OK)
                assert_int_equal(dtype, i == 0 ? STRATA_BF16 : STRATA_DTYPE_INVALID);
        }
        assert_true(walk.failed > 2);
        (void)unlink(scratch_path("out/model.safetensors")); /* then without weights */
    }
    scratch_close();
    st_model_destroy(m);
}

/* Either spelling, with or without "torch."; "dtype" is the newer one; of neither the first tensor's is taken. */
TEST(test_a_dtype_has_two_spellings)
{
    static const struct {
        const char *config;
        strata_dtype dtype;
    } rows[] = {
        {"{\"torch_dtype\": \"float16\"}", STRATA_F16},
        {"{\"dtype\": \"float16\"}", STRATA_F16},
        {"{\"torch_dtype\": \"torch.float32\"}", STRATA_F32},
        {"{\"dtype\": \"torch.bfloat16\"}", STRATA_BF16},
        {"{\"dtype\": \"float32\", \"torch_dtype\": \"float16\"}", STRATA_F32},
        {"{\"dtype\": null, \"torch_dtype\": \"float16\"}", STRATA_F16},
        {"{\"dtype\": null}", STRATA_BF16},
        {"{}", STRATA_BF16},
    };
    struct st_model *m = tiny_model(STRATA_BF16);
    strata_dtype dtype;

    scratch_open();
    assert_ok(write_new_model(m, scratch_path("out")));
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        scratch_put("out/config.json", rows[i].config);
        assert_ok(st_hf_stored_dtype(&dtype, scratch_path("out")));
        assert_int_equal(dtype, rows[i].dtype);
    }
    for (int swap = 0; swap < 2; swap++) { /* of several the first in the file */
        static const char json[] = "{\"b\":{\"dtype\":\"%s\",\"shape\":[2],\"data_offsets\":[4,%d]},"
                                   "\"a\":{\"dtype\":\"%s\",\"shape\":[%d],\"data_offsets\":[0,4]}}";
        char file[256] = {0};
        const int bytes = snprintf(file + 8, sizeof(file) - 8, json, swap != 0 ? "F16" : "F32", swap != 0 ? 8 : 12,
                                   swap != 0 ? "F32" : "F16", swap != 0 ? 1 : 2);

        file[0] = (char)bytes;
        write_file(scratch_path("out/model.safetensors"), file, 8 + (size_t)bytes + (swap != 0 ? 8 : 12));
        scratch_put("out/config.json", "{}");
        assert_ok(st_hf_stored_dtype(&dtype, scratch_path("out")));
        assert_int_equal(dtype, swap != 0 ? STRATA_F32 : STRATA_F16);
    }
    assert_int_equal(unlink(scratch_path("out/model.safetensors")), 0);
    for (int swap = 0; swap < 2; swap++) { /* of several files the first that the index names */
        for (int shard = 0; shard < 2; shard++) {
            static const char json[] = "{\"t%d\":{\"dtype\":\"%s\",\"shape\":[2],\"data_offsets\":[0,4]}}";
            char file[256] = {0};
            const int bytes = snprintf(file + 8, sizeof(file) - 8, json, shard, shard == 0 ? "F16" : "BF16");

            file[0] = (char)bytes;
            write_file(scratch_path(shard == 0 ? "out/a.safetensors" : "out/b.safetensors"), file, 8 + (size_t)bytes + 4);
        }
        scratch_put("out/model.safetensors.index.json",
                    swap != 0 ? "{\"weight_map\":{\"t1\":\"b.safetensors\",\"t0\":\"a.safetensors\"}}"
                              : "{\"weight_map\":{\"t0\":\"a.safetensors\",\"t1\":\"b.safetensors\"}}");
        assert_ok(st_hf_stored_dtype(&dtype, scratch_path("out")));
        assert_int_equal(dtype, swap != 0 ? STRATA_BF16 : STRATA_F16);
    }
    scratch_put("out/model.safetensors.index.json", "{\"weight_map\":{\"t0\":\"c.safetensors\"}}");
    assert_refused(st_hf_stored_dtype(&dtype, scratch_path("out")), STRATA_E_INPUT, "c.safetensors");
    scratch_put("out/model.safetensors.index.json", "{\"weight_map\":7}");
    assert_refused(st_hf_stored_dtype(&dtype, scratch_path("out")), STRATA_E_INPUT, "weight_map");
    assert_int_equal(unlink(scratch_path("out/model.safetensors.index.json")), 0);
    assert_ok(st_hf_stored_dtype(&dtype, scratch_path("out"))); /* nothing says it */
    assert_int_equal(dtype, STRATA_DTYPE_INVALID);
    scratch_put("out/config.json", "{\"torch_dtype\": \"float64\"}");
    assert_refused(st_hf_stored_dtype(&dtype, scratch_path("out")), STRATA_E_INPUT, "\"torch_dtype\" is \"float64\"");
    scratch_close();
    st_model_destroy(m);
}

TEST(test_what_cannot_be_read_is_known_at_the_start)
{
    struct st_model *m = tiny_model(STRATA_F32);
    struct st_hf_writer *w = NULL;
    char source[256];
    bool said = false;

    scratch_open();
    make_source();
    snprintf(source, sizeof(source), "%s", scratch_path("from"));
    for (uint32_t i = 0; !said; i++) { /* an output's error must not be taken to be of the output */
        assert_true(i < 3);
        st_fault_arm(&(struct st_fault_spec){.site = "hf.opendir", .after = i, .count = 1, .result = -EMFILE});
        assert_refused(st_hf_writer_open(&w, m, scratch_path("to"), source, NULL, false), STRATA_E_IO, "Too many open files");
        assert_int_equal(st_fault_disarm(), 1);
        said = strncmp(strata_last_error(), "reading what is copied from the model: ", 39) == 0 &&
               strstr(strata_last_error(), "/from: Too many") != NULL;
    }
    assert_int_equal(unlink(scratch_path("template")), 0);
    assert_refused(st_hf_writer_open(&w, m, scratch_path("to"), source, NULL, false), STRATA_E_INPUT,
                   "from/chat_template.jinja: No such file or directory: it is in the model's directory");
    assert_false(is_there("to"));
    assert_int_equal(unlink(scratch_path("from/chat_template.jinja")), 0);
    scratch_put("from/config.json", "{\"dtyp\\u0065\": \"bfloat16\"}");
    assert_refused(st_hf_writer_open(&w, m, scratch_path("to"), source, NULL, false), STRATA_E_INPUT, "from/config.json:1:");
    assert_int_equal(unlink(scratch_path("from/config.json")), 0);
    assert_refused(st_hf_writer_open(&w, m, scratch_path("to"), source, NULL, false), STRATA_E_INPUT,
                   "from/config.json: No such file");
    assert_false(is_there("to"));
    assert_null(w);
    scratch_close();
    st_model_destroy(m);
}

/* The tokenizer that a run was told to use belongs to what it writes: all of it, and nothing of the source's. */
TEST(test_another_tokenizer_goes_along)
{
    struct st_model *m = tiny_model(STRATA_F32);
    char source[256], dir[256], file[256];

    scratch_open();
    make_source();
    scratch_put("from/vocab.json", "of the source");
    assert_int_equal(mkdir(scratch_path("other"), 0700), 0);
    scratch_put("other/tokenizer.model", "pieces");
    scratch_put("other/special_tokens_map.json", "{}");
    scratch_put("other/notes", "not of a tokenizer");
    scratch_put("other/my.json", "{\"model\": {}}");
    snprintf(source, sizeof(source), "%s", scratch_path("from"));
    snprintf(dir, sizeof(dir), "%s", scratch_path("other"));
    snprintf(file, sizeof(file), "%s", scratch_path("other/my.json"));

    assert_ok(
        st_hf_write_small(m, scratch_path("."), source, &(struct st_hf_instead){.tokenizer = dir})); /* whose own files stay */
    scratch_holds("tokenizer.model", "pieces");
    scratch_holds("special_tokens_map.json", "{}");
    scratch_holds("LICENSE", "");
    assert_false(is_there("tokenizer.json") || is_there("vocab.json") || is_there("chat_template.jinja") || is_there("notes"));

    assert_int_equal(mkdir(scratch_path("file"), 0700), 0);
    assert_ok(st_hf_write_small(m, scratch_path("file"), source, &(struct st_hf_instead){.tokenizer = file}));
    scratch_holds("file/tokenizer.json", "{\"model\": {}}");
    scratch_holds("file/special_tokens_map.json", "{}");
    assert_false(is_there("file/tokenizer.model") || is_there("file/my.json"));

    assert_int_equal(mkdir(scratch_path("preset"), 0700), 0);
    assert_ok(st_hf_write_small(m, scratch_path("preset"), NULL, &(struct st_hf_instead){.tokenizer = dir}));
    scratch_holds("preset/tokenizer.model", "pieces");
    assert_int_equal(scratch_entries(scratch_path("preset"), NULL), 4); /* with two configs */
    assert_refused(st_hf_write_small(m, scratch_path("preset"), NULL, &(struct st_hf_instead){.tokenizer = "/nowhere"}),
                   STRATA_E_INPUT, "/nowhere: No such file");
    scratch_close();
    st_model_destroy(m);
}

/* A model is read with the tokenizer in its directory: nothing stays there of the one before it. */
TEST(test_a_tokenizer_is_replaced_whole)
{
    struct st_model *m = tiny_model(STRATA_F32);
    struct st_hf_writer *w;
    char other[256], from[256], to[256];

    scratch_open();
    make_source();
    assert_int_equal(mkdir(scratch_path("other"), 0700), 0);
    scratch_put("other/tokenizer.model", "pieces");
    scratch_put("other/tokenizer_config.json", "{}");
    snprintf(other, sizeof(other), "%s", scratch_path("other"));
    snprintf(from, sizeof(from), "%s", scratch_path("from"));
    snprintf(to, sizeof(to), "%s", scratch_path("to"));

    assert_int_equal(mkdir(to, 0700), 0);
    scratch_put("to/tokenizer_config.json", "{\"of\": \"another\"}");
    assert_refused(st_hf_writer_open(&w, m, to, NULL, &(struct st_hf_instead){.tokenizer = other}, false), STRATA_E_INPUT,
                   "to/tokenizer_config.json: is of another tokenizer than the model's");
    scratch_put("to/tokenizer_config.json", "{}"); /* the same */
    scratch_put("to/vocab.json", "{}");
    assert_refused(st_hf_writer_open(&w, m, to, NULL, &(struct st_hf_instead){.tokenizer = other}, false), STRATA_E_INPUT,
                   "to/vocab.json: is of another tokenizer");
    assert_int_equal(scratch_entries(to, NULL), 2);

    scratch_put("to/tokenizer.model", "others");
    scratch_put("to/README.md", "mine");
    write_out(m, "to"); /* with the source's own */
    scratch_holds("to/tokenizer.json", "{\"vocab\": {}}");
    scratch_holds("to/chat_template.jinja", "{{ messages }}");
    scratch_holds("to/README.md", "mine");
    assert_false(is_there("to/tokenizer.model") || is_there("to/vocab.json") || is_there("to/tokenizer_config.json"));

    for (int i = 0; i < 2; i++) { /* with one that is named: over another model, and over the source */
        assert_ok(st_hf_writer_open(&w, m, i == 0 ? to : from, from, &(struct st_hf_instead){.tokenizer = other}, true));
        scratch_holds("from/tokenizer.json", "{\"vocab\": {}}"); /* until the new model is whole */
        put_all(w, m);
        assert_ok(st_hf_writer_commit(w));
        scratch_holds(i == 0 ? "to/tokenizer.model" : "from/tokenizer.model", "pieces");
        scratch_holds(i == 0 ? "to/tokenizer_config.json" : "from/tokenizer_config.json", "{}");
        assert_false(is_there(i == 0 ? "to/tokenizer.json" : "from/tokenizer.json"));
        assert_false(is_there(i == 0 ? "to/chat_template.jinja" : "from/chat_template.jinja"));
    }
    scratch_holds("template", "{{ messages }}"); /* a link goes, not what it leads to */

    scratch_put("to/tokenizer.model", "others");
    assert_ok(write_model(m, to)); /* a preset has none of its own */
    scratch_holds("to/tokenizer.model", "others");
    scratch_close();
    st_model_destroy(m);
}

/* What lay there at the start is written, whatever becomes of the source. */
TEST(test_writer_needs_no_source_after_it_began)
{
    struct st_model *m = tiny_model(STRATA_F32);
    struct st_hf_writer *w;
    char source[256];

    scratch_open();
    make_source();
    snprintf(source, sizeof(source), "%s", scratch_path("from"));
    assert_ok(st_hf_writer_open(&w, m, scratch_path("to"), source, NULL, false));
    assert_int_equal(rename(scratch_path("from"), scratch_path("gone")), 0);
    assert_int_equal(unlink(scratch_path("gone/tokenizer.json")), 0);
    put_all(w, m);
    assert_ok(st_hf_writer_commit(w));
    scratch_holds("to/tokenizer.json", "{\"vocab\": {}}");
    assert_true(is_there("to/config.json"));
    scratch_close();
    st_model_destroy(m);
}

/* No temporary file stays, and weights that have their name are whole. */
TEST(test_every_single_failure_is_clean)
{
    struct st_model *m = tiny_model(STRATA_BF16);
    struct fault_walk walk = {.result = -EIO};
    uint32_t written_all_the_same = 0;

    while (fault_walk_next(&walk)) {
        char source[256], to[256];
        strata_status st;

        scratch_open();
        make_source();
        snprintf(source, sizeof(source), "%s", scratch_path("from"));
        snprintf(to, sizeof(to), "%s", scratch_path("to"));
        st = write_model_from(m, to, source);
        fault_walk_end(&walk, st);
        assert_int_equal(scratch_entries_with(to, ".tmp"), 0);
        if (is_there("to/model.safetensors"))
            check_read(m, to);
        if (st != STRATA_OK &&
            strstr(strata_last_error(), "the model is written, but not all files that belong with it: ") != NULL) {
            assert_true(is_there("to/model.safetensors") && is_there("to/config.json"));
            written_all_the_same++;
        }
        scratch_close();
    }
    assert_true(walk.failed > 30 && written_all_the_same > 5);
    st_model_destroy(m);
}
