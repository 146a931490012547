/* tests/core/test_text.c - what a terminal would obey is written out, at every sink that people read; our own text stays. */
#include "core/base/error.h"
#include "core/base/print.h"
#include "core/base/text.h"
#include "tests/common/kept_log.h"
#include "tests/common/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

struct pair {
    const char *in, *out;
};

static const struct pair pairs[] = {
    {"", ""},
    {"plain text, 100 %", "plain text, 100 %"},
    {"caf\xc3\xa9 \xe2\x82\xac \xf0\x9f\x99\x82", "caf\xc3\xa9 \xe2\x82\xac \xf0\x9f\x99\x82"},
    {"\x1b[31mred\x1b[0m", "\\x1b[31mred\\x1b[0m"},
    {"\x1b]0;title\a", "\\x1b]0;title\\x07"},
    {"a\rb\nc\td\be\x7f", "a\\x0db\\x0ac\\x09d\\x08e\\x7f"},
    {"\xc2\x9b"
     "2J",
     "\\u{9b}2J"},
    {"\xc2\x80\xc2\x9f\xc2\xa0", "\\u{80}\\u{9f}\xc2\xa0"},
    {"\x9b"
     "2J\x80\xff",
     "\\x9b2J\\x80\\xff"},
    {"\xe2\x80\xaa\xe2\x80\xae\xe2\x81\xa6\xe2\x81\xa9", "\\u{202a}\\u{202e}\\u{2066}\\u{2069}"},
    {"\xe2\x80\x8e\xe2\x80\x8f\xd8\x9c", "\\u{200e}\\u{200f}\\u{61c}"},
    {"\xe2\x80\x8b\xe2\x80\x8d\xe2\x81\xa0\xef\xbb\xbf", "\\u{200b}\\u{200d}\\u{2060}\\u{feff}"},
    {"\xe2\x80\xa8\xf3\xa0\x81\x81", "\\u{2028}\\u{e0041}"},
    {"\xc0\xaf\xed\xa0\x80\xf4\x90\x80\x80",
     "\\xc0\\xaf\\xed\\xa0\\x80\\xf4\\x90\\x80\\x80"}, /* overlong, surrogate, too large */
    {"cut \xe2\x82", "cut \\xe2\\x82"},
    {"\\x1b stays \\u{202e}", "\\x1b stays \\u{202e}"},
};
#define PAIR_COUNT (sizeof(pairs) / sizeof(pairs[0]))

TEST(text_is_written_out)
{
    for (size_t i = 0; i < PAIR_COUNT; i++) {
        char once[128], twice[128];

        st_text_escape(once, sizeof(once), pairs[i].in);
        assert_string_equal(once, pairs[i].out);
        st_text_escape(twice, sizeof(twice), once);
        assert_string_equal(twice, once);
    }
}

/* One message of a socket is one write. */
TEST(a_line_is_one_write)
{
    char line[64];
    FILE *file;
    int ends[2];

    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends), 0);
    file = fdopen(ends[0], "w");
    assert_non_null(file);
    setvbuf(file, NULL, _IONBF, 0);
    st_print(file, "strata: %s of %u\n", "a\033b", 7u);
    st_print_text(file, "one\ttwo\nthree");
    st_print_over(file, "over\a");
    fclose(file);
    assert_int_equal(read(ends[1], line, sizeof(line)), 20);
    assert_memory_equal(line, "strata: a\\x1bb of 7\n", 20);
    assert_int_equal(read(ends[1], line, sizeof(line)), 8);
    assert_memory_equal(line, "one\ttwo\n", 8);
    assert_int_equal(read(ends[1], line, sizeof(line)), 5);
    assert_memory_equal(line, "three", 5);
    assert_int_equal(read(ends[1], line, sizeof(line)), 12);
    assert_memory_equal(line, "\rover\\x07\033[K", 12);
    assert_int_equal(read(ends[1], line, sizeof(line)), 0);
    close(ends[1]);
}

TEST(cutting_leaves_whole_characters)
{
    char out[16];

    for (size_t bytes = 1; bytes <= sizeof(out); bytes++) {
        memset(out, 'x', sizeof(out));
        st_text_escape(out, bytes, "ab\x1b\xe2\x82\xac\xe2\x80\xae");
        assert_true(strlen(out) < bytes);
        assert_memory_equal("ab\\x1b\xe2\x82\xac\\u{202e}", out, strlen(out));
        assert_true(strlen(out) <= 2 || strlen(out) == 6 || strlen(out) == 9);
    }
}

TEST(errors_and_logs_are_one_safe_line)
{
    for (size_t i = 0; i < PAIR_COUNT; i++) {
        assert_int_equal(st_error(STRATA_E_INPUT, "%s", pairs[i].in), STRATA_E_INPUT);
        assert_string_equal(strata_last_error(), pairs[i].out);
        kept_log_begin(ST_LOG_INFO);
        st_log(ST_LOG_NOTICE, "%s", pairs[i].in);
        kept_log_end();
        assert_string_equal(kept_log.last, pairs[i].out);
    }
    assert_int_equal(st_error(STRATA_E_INPUT, "b\x1b"), STRATA_E_INPUT);
    assert_int_equal(st_error_prefix(STRATA_E_INPUT, "a\xc2\x9b"), STRATA_E_INPUT);
    assert_string_equal(strata_last_error(), "a\\u{9b}: b\\x1b");
}

/* What st_print writes for a format and one argument; the caller frees. */
static char *printed(const char *fmt, const char *argument)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *file = open_memstream(&text, &bytes);

    assert_non_null(file);
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    st_print(file, fmt, argument);
#pragma GCC diagnostic pop
    fclose(file);
    return text;
}

TEST(newlines_are_the_formats_own)
{
    static const struct {
        const char *fmt, *argument, *out;
    } rows[] = {
        {"  dir\t%s\n", "caf\xc3\xa9", "  dir\tcaf\xc3\xa9\n"},
        {"%s\n", "a\nstrata: error: forged", "a\\x0astrata: error: forged\n"},
        {"%s", "a\tb", "a\\x09b"},
        {"a\n%s\n", "b\nc", "a\\x0ab\\x0ac\n"},
        {"%s\n", "\x1b[2J\xe2\x80\xae", "\\x1b[2J\\u{202e}\n"},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        char *text = printed(rows[i].fmt, rows[i].argument);

        assert_string_equal(text, rows[i].out);
        free(text);
    }
}

TEST(long_texts_are_whole)
{
    char *argument = malloc(9000), *text;

    assert_non_null(argument);
    memset(argument, 'x', 8999);
    argument[8998] = '\x1b';
    argument[8999] = '\0';
    text = printed("%s\n", argument);
    assert_int_equal(strlen(text), 8998 + 4 + 1);
    assert_string_equal(text + 8998, "\\x1b\n");
    free(text);
    free(argument);
}

/* A character may come in pieces; what begins none is written out as soon as that is known. */
TEST(bytes_become_characters)
{
    static const struct pair rows[] = {
        {"ab\n\tc", "ab\n\tc"},
        {"\xf0\x9f\x99\x82", "\xf0\x9f\x99\x82"},
        {"\xe2\x80\xae\x1b[0m\x9b", "\\u{202e}\\x1b[0m\\x9b"},
        {"\xe2\x80z\xc3", "\\xe2\\x80z\\xc3"},
        {"\xf0\xf0\x9f\x99\x82\xff", "\\xf0\xf0\x9f\x99\x82\\xff"},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct st_print_bytes b = {.count = 0};
        char *text = NULL;
        size_t bytes = 0;
        FILE *file = open_memstream(&text, &bytes);

        assert_non_null(file);
        for (const char *at = rows[i].in; *at != '\0'; at++)
            st_print_byte(file, &b, *at);
        st_print_bytes_end(file, &b);
        fclose(file);
        assert_string_equal(text, rows[i].out);
        free(text);
    }
}

/* ASCII's letters and nothing beside them. */
TEST(test_letters)
{
    for (int c = -128; c < 128; c++) {
        const bool capital = c >= 'A' && c <= 'Z', small = c >= 'a' && c <= 'z';

        assert_int_equal(st_text_lower((char)c), capital ? c + 32 : c);
        assert_int_equal(st_text_is_word((char)c), capital || small || (c >= '0' && c <= '9'));
    }
    assert_true(st_text_same("GiB", "gIb") && st_text_same("", ""));
    assert_false(st_text_same("GiB", "GiBs") || st_text_same("GiBs", "GiB") || st_text_same("a@", "a`"));
    assert_true(st_text_begins("Meta-Llama", "meta-") && st_text_begins("x", ""));
    assert_false(st_text_begins("me", "meta-") || st_text_begins("", "m"));
}

TEST(a_word_is_one_to_a_shell)
{
    static const struct pair words[] = {
        {"a/b-c.json", "a/b-c.json"}, {"my dir", "'my dir'"}, {"it's", "'it'\\''s'"}, {"", "''"}, {"$x;", "'$x;'"}};
    char out[32];

    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
        assert_string_equal(st_text_shell(out, sizeof(out), words[i].in), words[i].out);
    assert_true(strlen(st_text_shell(out, sizeof(out), "a word that is far too long for a buffer of this size")) < sizeof(out));
}
