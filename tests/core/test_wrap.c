/* tests/core/test_wrap.c - what becomes of lines on a terminal of forty columns, exactly; elsewhere nothing. */
#include "core/base/print.h"
#include "core/base/wrap.h"
#include "tests/common/test.h"

#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#define COLUMNS 40

/* What arrives at a terminal when `text` is printed on it, wrapped. */
static void paged(char out[2048], const char *text)
{
    const struct winsize size = {.ws_row = 24, .ws_col = COLUMNS};
    const int end = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
    struct termios settings;
    FILE *to, *wrapped;
    size_t used = 0;

    assert_true(end >= 0 && grantpt(end) == 0 && unlockpt(end) == 0);
    to = fopen(ptsname(end), "r+e");
    assert_non_null(to);
    assert_int_equal(tcgetattr(fileno(to), &settings), 0);
    cfmakeraw(&settings);
    assert_int_equal(tcsetattr(fileno(to), TCSANOW, &settings), 0);
    assert_int_equal(ioctl(end, TIOCSWINSZ, &size), 0);
    wrapped = st_wrap_open(to);
    assert_ptr_not_equal(wrapped, to);
    assert_ptr_equal(st_wrap_open(wrapped), wrapped); /* wrapping twice is wrapping once */
    st_print_text(wrapped, text);
    st_wrap_close(wrapped, to);
    fclose(to);
    for (ssize_t got; (got = read(end, out + used, 2047 - used)) > 0;) /* the end is an error: nobody holds the other one */
        used += (size_t)got;
    out[used] = '\0';
    close(end);
}

TEST(lines_are_cut_between_words)
{
    static const struct {
        const char *in, *out;
    } rows[] = {
        {"short\nlines\n", "short\nlines\n"},
        {"exactly forty columns are not cut at all\n", "exactly forty columns are not cut at all\n"},
        {"one word more than forty columns are cut, twice if need be, between words\n",
         "one word more than forty columns are\n    cut, twice if need be, between words\n"},
        {"  memory        peak 32.3 MiB, planned at most 110 MiB\n",
         "  memory        peak 32.3 MiB, planned\n                at most 110 MiB\n"},
        {"  bytes: upload 512 B, download 128 B, read 0 B\n", "  bytes: upload 512 B, download 128 B,\n      read 0 B\n"},
        {"  bytes: upload 512 KiB, download of 12345 B\n", "  bytes: upload 512 KiB, download of\n      12345 B\n"},
        {"Sentences at the margin go on at the margin.  Two spaces part them.\n",
         "Sentences at the margin go on at the\nmargin.  Two spaces part them.\n"},
        {"an-absurdly-long-word-that-fits-on-no-line-of-this-terminal stays\n",
         "an-absurdly-long-word-that-fits-on-no-line-of-this-terminal\n    stays\n"},
        {"\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9 are ten columns, not twenty ones\n",
         "\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9 are ten columns, not twenty\n    "
         "ones\n"},
        {"  few  gaps  make  no row of a table of an indented line\n",
         "  few  gaps  make  no row of a table of\n       an indented line\n"},
        {"  strata train --model nano --data book.txt --quiet\n",
         "  strata train --model nano \\\n      --data book.txt --quiet\n"},
        {"  strata export runs/llama-2/step-00000100 --out m\n", "  strata export \\\n      runs/llama-2/step-00000100 --out m\n"},
        {"no newline at the end", "no newline at the end"},
    };
    char out[2048];

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        paged(out, rows[i].in);
        assert_string_equal(out, rows[i].out);
    }
}

/* A unit has up to four letters, a comma counted; a longer word may begin a line. */
TEST(numbers_stay_with_their_units)
{
    static const struct {
        const char *unit;
        bool stays;
    } rows[] = {{"B", true},    {"B,", true},   {"ms", true},     {"KiB", true},
                {"KiB,", true}, {"GB/s", true}, {"GB/s,", false}, {"tokens", false}};
    char text[128], wanted[128], out[2048];

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        snprintf(text, sizeof(text), "a-word-of-thirty-eight-letters-stands! 1 %s more\n", rows[i].unit);
        snprintf(wanted, sizeof(wanted), "a-word-of-thirty-eight-letters-stands!%s1%s%s more\n", rows[i].stays ? "\n    " : " ",
                 rows[i].stays ? " " : "\n    ", rows[i].unit);
        paged(out, text);
        assert_string_equal(out, wanted);
    }
}

TEST(rows_of_a_table_are_cut_at_one_column)
{
    char out[2048];

    paged(out, "name       GB/s      roof      ratio      bytes      seconds\n"
               "read      1.250      2.50        0.5       1024        0.125\n"
               "w             -         -          -          7            -\n");
    assert_string_equal(out, "name       GB/s      roof      ratio\n          bytes      seconds\n"
                             "read      1.250      2.50        0.5\n           1024        0.125\n"
                             "w             -         -          -\n              7            -\n");
    paged(out, "  read      1.25      2.50        0.5       1024   0.125\n"); /* wherever they begin */
    assert_string_equal(out, "  read      1.25      2.50        0.5\n           1024   0.125\n");
}

TEST(elsewhere_lines_stay)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *file = open_memstream(&text, &bytes);

    assert_non_null(file);
    assert_ptr_equal(st_wrap_open(file), file);
    st_wrap_close(file, file);
    fclose(file);
    free(text);
}
