/* tests/core/test_size.c - a table of sizes, and back. */
#include "core/base/size.h"
#include "tests/common/test.h"

TEST(test_good)
{
    static const struct {
        const char *text;
        uint64_t bytes;
    } rows[] = {
        {"0", 0},
        {"1", 1},
        {"17B", 17},
        {"24G", UINT64_C(24) << 30},
        {"24GiB", UINT64_C(24) << 30},
        {"24GB", UINT64_C(24000000000)},
        {"24g", UINT64_C(24) << 30},
        {"24gib", UINT64_C(24) << 30},
        {"200MiB", UINT64_C(200) << 20},
        {"200 MiB", UINT64_C(200) << 20},
        {"1100MiB", UINT64_C(1100) << 20},
        {"4k", 4096},
        {"4KB", 4000},
        {"1.5GiB", UINT64_C(3) << 29},
        {"0.5T", UINT64_C(1) << 39},
        {"1.001MB", 1001000},
        {"2.0", 2},
        {"15P", UINT64_C(15) << 50},
        {"18446744073709551615", UINT64_MAX},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        uint64_t bytes = 12345;

        assert_int_equal(st_size_parse(rows[i].text, &bytes), 0);
        assert_true(bytes == rows[i].bytes);
    }
}

TEST(test_bad)
{
    static const char *const rows[] = {
        "",      " ",    "G",       "-1",   "+1",        "1.",  "1.G", ".5G",   "1.5",    "1.5B",
        "1GiBs", "1 Gi", "1GG",     "1e9",  "0x10",      "12Q", "1,5", "24 G ", "16384P", "18446744073709551616",
        "nan",   "inf",  "1.5.5GB", "1 2G", "16777216T",
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        uint64_t bytes = 12345;

        assert_int_equal(st_size_parse(rows[i], &bytes), -1);
        assert_int_equal(bytes, 12345);
    }
}

TEST(test_text)
{
    char buf[24];

    assert_string_equal(st_size_text(buf, 0), "0 B");
    assert_string_equal(st_size_text(buf, 17), "17 B");
    assert_string_equal(st_size_text(buf, 1023), "1023 B");
    assert_string_equal(st_size_text(buf, 1024), "1.00 KiB");
    assert_string_equal(st_size_text(buf, 10234), "9.99 KiB");
    assert_string_equal(st_size_text(buf, 10235), "10.0 KiB"); /* rounded first: three digits all the way */
    assert_string_equal(st_size_text(buf, 102348), "99.9 KiB");
    assert_string_equal(st_size_text(buf, 102349), "100 KiB");
    assert_string_equal(st_size_text(buf, 612 * 1024), "612 KiB");
    assert_string_equal(st_size_text(buf, 50 * 1024 * 1024 + 104858), "50.1 MiB");
    assert_string_equal(st_size_text(buf, UINT64_C(3) << 29), "1.50 GiB");
    assert_string_equal(st_size_text(buf, UINT64_MAX), "16.0 EiB");
}

TEST(counts_are_words)
{
    char buf[24];

    assert_string_equal(st_count_text(buf, 0), "0");
    assert_string_equal(st_count_text(buf, 999), "999");
    assert_string_equal(st_count_text(buf, 1000), "1.00 thousand");
    assert_string_equal(st_count_text(buf, 9994), "9.99 thousand");
    assert_string_equal(st_count_text(buf, 9996), "10.0 thousand");
    assert_string_equal(st_count_text(buf, 82360), "82.4 thousand");
    assert_string_equal(st_count_text(buf, 99960), "100 thousand");
    assert_string_equal(st_count_text(buf, 999499), "999 thousand");
    assert_string_equal(st_count_text(buf, 999500), "1.00 million");
    assert_string_equal(st_count_text(buf, 124439808), "124 million");
    assert_string_equal(st_count_text(buf, UINT64_C(14770033664)), "14.8 billion");
    assert_string_equal(st_count_text(buf, UINT64_MAX), "18446744 trillion");
}

TEST(seconds_have_three_digits_or_are_whole)
{
    static const struct {
        double seconds;
        const char *text;
    } rows[] = {{0, "0 us"},         {37.46e-6, "37.5 us"}, {999.4e-6, "999 us"}, {999.6e-6, "1 ms"}, {0.812, "812 ms"},
                {0.99949, "999 ms"}, {0.9996, "1 s"},       {1.204, "1.2 s"},     {12.345, "12.3 s"}, {999.4, "999 s"},
                {999.5, "1000 s"},   {2212.6, "2213 s"},    {1e6, "1000000 s"}};
    char buf[24];

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        assert_string_equal(st_seconds_text(buf, rows[i].seconds), rows[i].text);
}
