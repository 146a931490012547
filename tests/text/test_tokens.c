/* tests/text/test_tokens.c - token files: made, checked, walked in windows; every refusal. */
#include "core/base/fault.h"
#include "text/data/tokens.h"
#include "tests/text/text_fixture.h"
#include "tests/common/fault_walk.h"
#include "tests/common/kept_log.h"
#include "tests/common/whole_file.h"
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

static void put_word(unsigned char *header, uint32_t i, uint32_t value)
{
    for (uint32_t b = 0; b < 4; b++)
        header[4 * i + b] = (unsigned char)(value >> (8 * b));
}

/* tokens[i] = i % modulo */
static void write_tokens(const char *path, uint32_t token_bytes, uint32_t count, uint32_t modulo, uint32_t source_bytes)
{
    const size_t bytes = 1024 + (size_t)count * token_bytes;
    unsigned char *file = calloc(1, bytes);

    assert_non_null(file);
    put_word(file, 0, token_bytes == 2 ? 20240520 : 20240801);
    put_word(file, 1, token_bytes == 2 ? 1 : 7);
    put_word(file, 2, count);
    put_word(file, 3, modulo);
    put_word(file, 4, source_bytes);
    for (uint32_t i = 0; i < count; i++) {
        const uint32_t token = i % modulo;

        memcpy(file + 1024 + (size_t)i * token_bytes, &token, token_bytes); /* little-endian */
    }
    write_file(path, file, bytes);
    free(file);
}

static void change_word(const char *path, uint32_t i, uint32_t value)
{
    size_t bytes;
    char *text = read_file(path, &bytes);

    put_word((unsigned char *)text, i, value);
    write_file(path, text, bytes);
    free(text);
}

TEST(test_windows_in_order_cross_no_file)
{
    const char *paths[2];
    int32_t tokens[8], targets[8];
    struct st_token_set *set;

    scratch_open();
    paths[0] = scratch_path("a.bin");
    paths[1] = scratch_path("b.bin");
    write_tokens(paths[0], 2, 26, 1000, 52); /* 3 windows of 9, one token left */
    write_tokens(paths[1], 4, 17, 7, 51);    /* 2 windows */
    assert_ok(st_token_set_open(&set, paths, 2, 1000, 8));
    assert_int_equal(st_token_set_windows(set), 5);
    assert_true(st_token_set_bytes_per_token(set) == (52.0 + 51.0) / (26.0 + 17.0));
    for (uint64_t position = 0; position < 10; position++) {
        const uint32_t window = (uint32_t)(position % 5), first = window < 3 ? 8 * window : 8 * (window - 3);
        const uint32_t modulo = window < 3 ? 1000 : 7;

        assert_ok(st_token_set_window(set, position, 9, false, tokens, targets, NULL));
        for (uint32_t i = 0; i < 8; i++) {
            assert_int_equal(tokens[i], (first + i) % modulo);
            assert_int_equal(targets[i], (first + i + 1) % modulo);
        }
    }
    st_token_set_close(set);
    scratch_close();
}

static struct st_token_identity identity_of(const char *path)
{
    struct st_token_identity identity;
    struct st_token_set *set;

    assert_ok(st_token_set_open(&set, &path, 1, 1000, 8));
    assert_int_equal(st_token_set_files(set), 1);
    assert_ok(st_token_set_identify(set, 0, &identity));
    identity.path = NULL;
    st_token_set_close(set);
    return identity;
}

/* A vocabulary of less than half the model's is another tokenizer's: said, and read all the same. */
TEST(test_a_small_vocabulary_is_noted)
{
    static const struct {
        uint32_t file, model;
        bool noted;
    } rows[] = {{50, 100, false}, {49, 100, true}, {99, 100, false}, {100, 100, false}, {0, 100, false}};
    const char *path;

    scratch_open();
    path = scratch_path("a.bin");
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct st_token_set *set;

        write_tokens(path, 2, 26, 20, 0);
        change_word(path, 3, rows[i].file);
        kept_log_begin(ST_LOG_NOTICE);
        assert_ok(st_token_set_open(&set, &path, 1, rows[i].model, 8));
        kept_log_end();
        assert_int_equal(kept_log.count, rows[i].noted);
        if (rows[i].noted)
            assert_non_null(strstr(kept_log.last, "has a vocabulary of 49 tokens, the model has 100"));
        st_token_set_close(set);
    }
    scratch_close();
}

/* A copy is the same data; another token, its first or its last, another count or another header is not. */
TEST(test_identity_is_of_the_contents)
{
    struct st_token_identity a, b;
    const char *one, *two;
    size_t bytes;
    char *text;

    scratch_open();
    one = scratch_path("a.bin");
    two = scratch_path("b.bin");
    for (uint32_t count = 2000; count <= 50000; count += 48000) {
        write_tokens(one, 2, count, 997, 9999);
        write_tokens(two, 2, count, 997, 9999);
        a = identity_of(one);
        b = identity_of(two);
        assert_memory_equal(a.header, b.header, 33);
        assert_memory_equal(a.windows, b.windows, 33);
        assert_int_equal(a.bytes, 1024 + 2 * count);
        for (uint32_t end = 0; end < 2; end++) {
            text = read_file(one, &bytes);
            text[end == 0 ? 1024 : bytes - 2] ^= 1;
            write_file(two, text, bytes);
            free(text);
            b = identity_of(two);
            assert_memory_equal(a.header, b.header, 33);
            assert_memory_not_equal(a.windows, b.windows, 33);
        }
        write_tokens(two, 2, count, 997, 9998);
        b = identity_of(two);
        assert_memory_not_equal(a.header, b.header, 33);
        write_tokens(two, 2, count + 1, 997, 9999);
        b = identity_of(two);
        assert_memory_not_equal(a.header, b.header, 33);
    }
    scratch_close();
}

TEST(test_window_of_one_token)
{
    const char *path;
    int32_t token, target;
    struct st_token_set *set;

    scratch_open();
    path = scratch_path("a.bin");
    for (uint32_t token_bytes = 2; token_bytes <= 4; token_bytes += 2) {
        write_tokens(path, token_bytes, 5, 5, 0);
        assert_ok(st_token_set_open(&set, &path, 1, 5, 1));
        assert_int_equal(st_token_set_windows(set), 4);
        assert_true(st_token_set_bytes_per_token(set) == 0.0);
        assert_ok(st_token_set_window(set, 3, 0, false, &token, &target, NULL));
        assert_int_equal(token, 3);
        assert_int_equal(target, 4);
        st_token_set_close(set);
    }
    scratch_close();
}

/* Every epoch visits every window once; epochs and seeds differ; the same position is the same window. */
TEST(test_shuffle_is_a_permutation_per_epoch)
{
    enum { WINDOWS = 50 };
    const char *path;
    int32_t tokens[4], targets[4], first_order[WINDOWS], differs = 0, seed_differs = 0;
    struct st_token_set *set;

    scratch_open();
    path = scratch_path("a.bin");
    write_tokens(path, 2, 4 * WINDOWS + 1, 60000, 0);
    assert_ok(st_token_set_open(&set, &path, 1, 60000, 4));
    for (uint64_t epoch = 0; epoch < 3; epoch++) {
        bool seen[WINDOWS] = {false};

        for (uint64_t i = 0; i < WINDOWS; i++) {
            assert_ok(st_token_set_window(set, epoch * WINDOWS + i, 11, true, tokens, targets, NULL));
            assert_int_equal(tokens[0] % 4, 0);
            assert_false(seen[tokens[0] / 4]);
            seen[tokens[0] / 4] = true;
            if (epoch == 0)
                first_order[i] = tokens[0];
            differs += tokens[0] != first_order[i];
            assert_ok(st_token_set_window(set, epoch * WINDOWS + i, 12, true, targets, tokens, NULL));
            seed_differs += targets[0] != first_order[i];
        }
    }
    assert_true(differs > WINDOWS && seed_differs > WINDOWS);
    st_token_set_close(set);
    scratch_close();
}

TEST(test_bad_files_are_refused)
{
    struct st_token_file *f = NULL;
    struct st_token_set *set = NULL;
    const char *path;
    char *text;
    size_t bytes;

    scratch_open();
    path = scratch_path("a.bin");
    assert_refused(st_token_file_open(&f, path, 10), STRATA_E_INPUT, "a.bin: No such file");
    assert_refused(st_token_file_open(&f, scratch_dir, 10), STRATA_E_INPUT, "is a directory");
    write_file(path, "", 0);
    assert_refused(st_token_file_open(&f, path, 10), STRATA_E_INPUT, "0 bytes are too few");
    write_tokens(path, 2, 100, 50, 0);
    text = read_file(path, &bytes);
    write_file(path, text, bytes - 1);
    assert_refused(st_token_file_open(&f, path, 100), STRATA_E_INPUT, "its header promises 100 tokens");
    text[0]++;
    write_file(path, text, bytes);
    assert_refused(st_token_file_open(&f, path, 100), STRATA_E_INPUT, "not a token file");
    text[0]--;
    text[4] = 7; /* version of the other kind */
    write_file(path, text, bytes);
    assert_refused(st_token_file_open(&f, path, 100), STRATA_E_INPUT, "not a token file");
    text[4] = 1;
    text[11] = (char)0x80; /* a negative count */
    write_file(path, text, bytes);
    assert_refused(st_token_file_open(&f, path, 100), STRATA_E_INPUT, "its header promises");
    free(text);
    write_tokens(path, 2, 100, 50, 0);
    change_word(path, 3, 0);
    assert_refused(st_token_file_open(&f, path, 49), STRATA_E_INPUT, "token 49 is id 49, and the model has rows for 49 tokens");
    assert_refused(st_token_set_open(&set, &path, 1, 50, 100), STRATA_E_INPUT, "100 tokens are fewer than one window of 101");
    assert_refused(st_token_set_open(&set, &path, 0, 50, 10), STRATA_E_INVAL, "no token files");
    assert_refused(st_token_set_open(&set, &path, ST_TOKEN_SET_FILES_MAX + 1, 50, 10), STRATA_E_INVAL,
                   "65537 token files: at most 65536 are read");
    assert_refused(st_token_set_open(&set, &path, 1, 50, 0), STRATA_E_INVAL, "sequence length");
    write_tokens(path, 4, 1000000, 70001, 0);
    change_word(path, 3, 0);
    assert_refused(st_token_file_open(&f, path, 70000), STRATA_E_INPUT,
                   "token 70000 is id 70000, and the model has rows for 70000");
    assert_null(f);
    assert_null(set);
    change_word(path, 3, 70001);
    assert_ok(st_token_file_open(&f, path, 0)); /* not checked */
    assert_int_equal(st_token_file_count(f), 1000000);
    assert_int_equal(st_token_file_vocab(f), 70001);
    st_token_file_close(f);
    scratch_close();
}

/* A vocabulary beyond the model's or below the tokens, and source bytes that no text could have. */
TEST(test_headers_that_contradict_are_refused)
{
    static const struct {
        uint32_t low, high;
        const char *part; /* NULL: good */
    } sources[] = {
        {0, 0, NULL},
        {13, 0, NULL},                               /* 100 tokens: 8 a byte */
        {6400, 0, NULL},                             /* 64 bytes a token */
        {11, 0, "100 tokens from 11 bytes of text"}, /* 9 tokens a byte */
        {6401, 0, "100 tokens from 6401 bytes of text"},
        {100, 1, "100 tokens from 4294967396 bytes of text"},
        {UINT32_MAX, UINT32_MAX, "from 18446744073709551615 bytes"},
    };
    struct st_token_file *f = NULL;
    const char *path;

    scratch_open();
    path = scratch_path("a.bin");
    for (uint32_t token_bytes = 2; token_bytes <= 4; token_bytes += 2) {
        write_tokens(path, token_bytes, 100, 50, 0);
        assert_refused(st_token_file_open(&f, path, 49), STRATA_E_INPUT,
                       "a.bin: token 49 is id 49, and the model has rows for 49 tokens: make the file without it");
        change_word(path, 3, 50257); /* those that occur decide */
        assert_ok(st_token_file_open(&f, path, 50));
        st_token_file_close(f);
        change_word(path, 3, 49);
        assert_refused(st_token_file_open(&f, path, 256), STRATA_E_INPUT,
                       "token 49 is 49, the vocabulary in its header ends at 48");
        change_word(path, 3, 0);
        for (size_t i = 0; i < sizeof(sources) / sizeof(sources[0]); i++) {
            change_word(path, 4, sources[i].low);
            change_word(path, 5, sources[i].high);
            if (sources[i].part != NULL) {
                assert_refused(st_token_file_open(&f, path, 256), STRATA_E_INPUT, sources[i].part);
                continue;
            }
            assert_ok(st_token_file_open(&f, path, 256));
            st_token_file_close(f);
        }
    }
    scratch_close();
}

TEST(test_a_file_that_changes_is_noticed)
{
    const struct timespec long_ago[2] = {{.tv_sec = 1000}, {.tv_sec = 1000}};
    int32_t tokens[8], targets[8];
    struct st_token_set *set;
    const char *path;

    scratch_open();
    path = scratch_path("a.bin");
    write_tokens(path, 2, 100, 50, 0);
    assert_int_equal(utimensat(AT_FDCWD, path, long_ago, 0), 0);
    assert_ok(st_token_set_open(&set, &path, 1, 50, 8));
    assert_ok(st_token_set_window(set, 0, 0, false, tokens, targets, NULL));
    write_tokens(path, 2, 100, 40, 0); /* of the vocabulary, too */
    assert_refused(st_token_set_window(set, 0, 0, false, tokens, targets, NULL), STRATA_E_INPUT,
                   "a.bin changed while it was read");
    write_tokens(path, 2, 100, 60, 0);
    assert_refused(st_token_set_window(set, 6, 0, false, tokens, targets, NULL), STRATA_E_INPUT, "is outside the vocabulary");
    assert_int_equal(truncate(path, 1100), 0);
    assert_refused(st_token_set_window(set, 9, 0, false, tokens, targets, NULL), STRATA_E_INPUT,
                   "it ends at byte 1100, and its header promises");
    st_token_set_close(set);
    scratch_close();
}

/* Every token of a window is looked at again, the last target, which is no input, too. */
TEST(test_each_token_of_a_window_is_checked)
{
    for (uint32_t token_bytes = 2; token_bytes <= 4; token_bytes += 2)
        for (uint32_t at = 0; at <= 8; at++) {
            const int32_t wrong = 50;
            int32_t tokens[8], targets[8];
            struct st_token_set *set;
            const char *path;
            int fd;

            scratch_open();
            path = scratch_path("a.bin");
            write_tokens(path, token_bytes, 100, 50, 0);
            assert_ok(st_token_set_open(&set, &path, 1, 50, 8));
            assert_true((fd = open(path, O_WRONLY)) >= 0);
            assert_int_equal(pwrite(fd, &wrong, token_bytes, ST_TOKEN_HEADER_BYTES + (16 + at) * token_bytes), token_bytes);
            close(fd);
            assert_refused(st_token_set_window(set, 2, 0, false, tokens, targets, NULL), STRATA_E_INPUT,
                           "is outside the vocabulary");
            st_token_set_close(set);
            scratch_close();
        }
}

/* --- the byte tokenizer --- */

static char *make_text(size_t bytes)
{
    char *text = malloc(bytes);

    assert_non_null(text);
    for (size_t i = 0; i < bytes; i++)
        text[i] = (char)(i * 7 + i / 16384 * 31);
    return text;
}

/* Tokens of a file against bytes. */
static void check_tokens(const char *path, const char *want, size_t count)
{
    size_t bytes;
    char *file = read_file(path, &bytes);
    struct st_token_file *f;

    assert_ok(st_token_file_open(&f, path, 256));
    assert_int_equal(st_token_file_count(f), count);
    assert_int_equal(st_token_file_source_bytes(f), count);
    assert_int_equal(st_token_file_vocab(f), 256);
    assert_int_equal(bytes, 1024 + 2 * count);
    for (size_t i = 0; i < count; i++) {
        assert_int_equal(file[1024 + 2 * i], want[i]);
        assert_int_equal(file[1024 + 2 * i + 1], 0);
    }
    st_token_file_close(f);
    free(file);
}

TEST(test_bytes_become_tokens)
{
    enum { FIRST = 20000, BYTES = 21 * 16384 + 5 };
    struct st_tokens_report report;
    const char *texts[2], *out, *heldout;
    char *text = make_text(BYTES), *train = malloc(BYTES), *aside = malloc(BYTES);
    size_t train_bytes = 0, aside_bytes = 0;

    scratch_open();
    texts[0] = scratch_path("1.txt");
    texts[1] = scratch_path("2.txt");
    out = scratch_path("x.y/out.bin");
    assert_int_not_equal(st_tokens_from_text(NULL, texts, 2, out, 0.0, true, &report), STRATA_OK);
    out = scratch_path("out.bin");
    heldout = scratch_path("out.heldout.bin");
    write_file(texts[0], text, FIRST); /* blocks are cut across the files */
    write_file(texts[1], text + FIRST, BYTES - FIRST);
    assert_ok(st_tokens_from_text(NULL, texts, 2, out, 0.0, true, &report));
    assert_int_equal(report.tokens, BYTES);
    assert_int_equal(report.heldout_tokens, 0);
    assert_string_equal(report.heldout_path, "");
    check_tokens(out, text, BYTES);
    assert_ok(st_tokens_from_text(NULL, texts, 2, out, 0.1, true, &report));
    for (size_t at = 0; at < BYTES; at += 16384) {
        const size_t bytes = BYTES - at < 16384 ? BYTES - at : 16384;

        if (at / 16384 % 10 == 9) {
            memcpy(aside + aside_bytes, text + at, bytes);
            aside_bytes += bytes;
        } else {
            memcpy(train + train_bytes, text + at, bytes);
            train_bytes += bytes;
        }
    }
    assert_int_equal(aside_bytes, 2 * 16384);
    assert_int_equal(report.heldout_bytes, aside_bytes);
    assert_string_equal(report.heldout_path, heldout);
    check_tokens(out, train, train_bytes);
    check_tokens(heldout, aside, aside_bytes);
    assert_int_equal(scratch_entries(scratch_dir, NULL), 4);
    scratch_close();
    free(text);
    free(train);
    free(aside);
}

TEST(test_heldout_names)
{
    static const char *const rows[][2] = {
        {"kjv.bin", "kjv.heldout.bin"}, {"kjv", "kjv.heldout"}, {".kjv", ".kjv.heldout"}, {"a.b.bin", "a.b.heldout.bin"}};
    struct st_tokens_report report;
    char *text = make_text(40000);
    const char *source;

    scratch_open();
    source = scratch_path("text");
    write_file(source, text, 40000);
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        assert_ok(st_tokens_from_text(NULL, &source, 1, scratch_path(rows[i][0]), 0.5, true, &report));
        assert_string_equal(report.heldout_path, scratch_path(rows[i][1]));
        source = scratch_path("text");
    }
    scratch_close();
    free(text);
}

TEST(test_bad_texts_are_refused)
{
    struct st_tokens_report report;
    const char *source, *out;
    char *text = make_text(100000);

    scratch_open();
    source = scratch_path("text");
    out = scratch_path("out.bin");
    assert_refused(st_tokens_from_text(NULL, &source, 1, out, 0.0, true, &report), STRATA_E_INPUT, "text: No such file");
    write_file(source, "", 0);
    assert_refused(st_tokens_from_text(NULL, &source, 1, out, 0.0, true, &report), STRATA_E_INPUT, "text: the text is empty");
    write_file(source, text, 100000);
    assert_refused(st_tokens_from_text(NULL, &source, 1, out, 0.1, true, &report), STRATA_E_INPUT, "too few to set");
    assert_refused(st_tokens_from_text(NULL, &source, 1, out, 0.6, true, &report), STRATA_E_INVAL, "held-out part of 0.6");
    assert_refused(st_tokens_from_text(NULL, &source, 1, out, -0.1, true, &report), STRATA_E_INVAL, "held-out part of -0.1");
    source = scratch_dir;
    assert_refused(st_tokens_from_text(NULL, &source, 1, out, 0.0, true, &report), STRATA_E_INPUT, "is a directory");
    assert_int_equal(scratch_entries(scratch_dir, NULL), 1);
    scratch_close();
    free(text);
}

/* A text that ends before its size, and one on standard input that somebody writes to. */
TEST(test_texts_that_change_are_refused)
{
    char *text = make_text(40000);
    const int saved = dup(STDIN_FILENO);
    const char *source;
    int fd;

    scratch_open();
    source = scratch_path("text");
    write_file(source, text, 40000);
    st_fault_arm(&(struct st_fault_spec){.site = "tokens.read", .after = 1, .result = 0});
    assert_refused(st_tokens_from_text(NULL, &source, 1, scratch_path("out.bin"), 0.0, true, NULL), STRATA_E_INPUT,
                   "text has 40000 bytes, but ended after 16384");
    st_fault_disarm();
    fd = open(source, O_RDONLY | O_CLOEXEC);
    assert_int_equal(dup2(fd, STDIN_FILENO), STDIN_FILENO);
    close(fd);
    source = "-";
    st_fault_arm(&(struct st_fault_spec){.site = "file.changed", .result = -ESTALE});
    assert_refused(st_tokens_from_text(NULL, &source, 1, scratch_path("out.bin"), 0.0, true, NULL), STRATA_E_INPUT,
                   "standard input changed while it was read");
    st_fault_disarm();
    assert_int_equal(lseek(STDIN_FILENO, 100, SEEK_SET), 100); /* somebody read the beginning */
    assert_ok(st_tokens_from_text(NULL, &source, 1, scratch_path("out.bin"), 0.0, true, NULL));
    check_tokens(scratch_path("out.bin"), text + 100, 39900);
    dup2(saved, STDIN_FILENO);
    close(saved);
    scratch_close();
    free(text);
}

static int64_t scratch_bytes(const char *name)
{
    struct stat info;

    return stat(scratch_path(name), &info) == 0 ? (int64_t)info.st_size : -1;
}

/* What was there before stays whole: neither file is replaced where one of the two cannot be written. */
TEST(test_a_full_disk_replaces_neither_file)
{
    char *text = make_text(50000);
    const char *source;

    for (uint32_t nth = 0; nth < 2; nth++) {
        scratch_open();
        source = scratch_path("text");
        write_file(source, text, 50000);
        write_file(scratch_path("out.bin"), "old", 3);
        write_file(scratch_path("out.heldout.bin"), "old", 3);
        st_fault_arm(&(struct st_fault_spec){.site = "file.sync", .after = nth, .result = -ENOSPC});
        assert_refused(st_tokens_from_text(NULL, &source, 1, scratch_path("out.bin"), 0.5, true, NULL), STRATA_E_NOSPC,
                       "No space");
        st_fault_disarm();
        assert_int_equal(scratch_bytes("out.bin"), 3);
        assert_int_equal(scratch_bytes("out.heldout.bin"), 3);
        assert_int_equal(scratch_entries(scratch_dir, NULL), 3);
        scratch_close();
    }
    free(text);
}

/* One that has its name already gives it back. */
TEST(test_a_second_name_that_cannot_be_had_leaves_neither_file)
{
    char *text = make_text(50000);
    const char *source;

    scratch_open();
    source = scratch_path("text");
    write_file(source, text, 50000);
    st_fault_arm(&(struct st_fault_spec){.site = "file.rename", .after = 1, .result = -EIO});
    assert_refused(st_tokens_from_text(NULL, &source, 1, scratch_path("out.bin"), 0.5, false, NULL), STRATA_E_IO, "completing");
    assert_int_equal(st_fault_disarm(), 1);
    assert_int_equal(scratch_entries(scratch_dir, NULL), 1);
    scratch_close();
    free(text);
}

TEST(test_every_single_failure_is_clean)
{
    struct fault_walk walk = {.result = -EIO};
    char *text = make_text(50000);

    while (fault_walk_next(&walk)) {
        int32_t tokens[16], targets[16];
        const char *source, *out;
        struct st_token_set *set;
        strata_status st;

        scratch_open();
        source = scratch_path("text");
        out = scratch_path("out.bin");
        write_file(source, text, 50000);
        st = st_tokens_from_text(NULL, &source, 1, out, 0.5, true, NULL);
        if (st == STRATA_OK && (st = st_token_set_open(&set, &out, 1, 256, 16)) == STRATA_OK) {
            st = st_token_set_window(set, 3, 1, true, tokens, targets, NULL);
            st_token_set_close(set);
        }
        fault_walk_end(&walk, st);
        assert_int_equal(scratch_entries_with(scratch_dir, ".tmp"), 0);
        scratch_close();
    }
    assert_true(walk.failed > 10);
    free(text);
}
