/* tests/cli/test_bench_io.c - strata bench io and strata tune at tiny sizes: rows and keys, ds_io's names, fio's job, wrong
 * arguments, what --write changes, and that nothing stays in the directory after the end, a failure or a signal. */
#include "cli/commands/config_edit.h"
#include "core/base/fault.h"
#include "core/json/json.h"
#include "tests/cli/program.h"
#include "tests/cli/workplace.h"
#include "tests/common/json_member.h"
#include "tests/common/test.h"

#include <dirent.h>
#include <math.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define TINY     "--size 2M --seconds 0.002 --repeats 2 "
#define ROWS_MAX 64u

struct rows {
    struct program p;
    st_json *row[ROWS_MAX];
    uint32_t count;
};

static const char *text(const struct rows *r, uint32_t i, const char *key)
{
    assert_non_null(st_json_get(r->row[i], key));
    return st_json_string(st_json_get(r->row[i], key));
}

static void run_rows(const struct workplace *w, struct rows *r, const char *command)
{
    char *save = NULL;

    *r = (struct rows){0};
    workplace_run_ok(w, &r->p, command);
    for (char *line = strtok_r(r->p.out, "\n", &save); line != NULL; line = strtok_r(NULL, "\n", &save)) {
        assert_true(r->count < ROWS_MAX);
        assert_int_equal(st_json_parse(&r->row[r->count++], line, strlen(line), "row"), STRATA_OK);
    }
    assert_int_equal(workplace_entries(w, "nvme"), 0);
}

static void free_rows(struct rows *r)
{
    for (uint32_t i = 0; i < r->count; i++)
        st_json_free(r->row[i]);
    program_free(&r->p);
}

static void fails(const struct workplace *w, const char *command, const char *said)
{
    struct program p;

    workplace_run(w, &p, command);
    assert_int_equal(p.code, 2);
    if (strstr(p.err, said) == NULL)
        fail_msg("no \"%s\" in: %s", said, p.err);
    assert_int_equal(workplace_entries(w, "nvme"), 0);
    program_free(&p);
}

static void assert_close(double a, double b)
{
    assert_true(fabs(a - b) <= 1e-6 * fabs(b));
}

/* --- rows --- */

#define BUCKET 0.04 /* fio's percentiles are the middles of its buckets: they may lie beyond the largest value */

static void check_row(const st_json *row)
{
    const st_json *latency = st_json_get(row, "clat_ns"),
                  *percentile = latency != NULL ? st_json_get(latency, "percentile") : NULL;
    const double p50 = percentile != NULL ? json_number(percentile, "50.000000") : NAN;
    const double p99 = percentile != NULL ? json_number(percentile, "99.000000") : NAN;

    assert_true(json_number(row, "seconds") > 0 && json_number(row, "bytes") > 0);
    assert_close(json_number(row, "bw_bytes"), json_number(row, "gb_per_s") * 1e9);
    assert_close(json_number(row, "iops"), json_number(row, "bw_bytes") / json_number(row, "bs"));
    assert_close(json_number(row, "ratio"), json_number(row, "gb_per_s") / json_number(row, "roof_gb_per_s"));
    assert_true(json_number(row, "ratio") > 0 && json_number(row, "ratio") <= 1);
    assert_true(json_number(row, "gb_per_s_least") <= json_number(row, "gb_per_s") * (1 + 1e-9));
    assert_true(json_number(row, "gb_per_s_most") >= json_number(row, "gb_per_s") * (1 - 1e-9));
    assert_true(p50 > 0 && p50 <= p99 * (1 + 1e-9) && p99 <= json_number(latency, "max") * (1 + BUCKET));
    assert_true(json_number(latency, "mean") > 0);
    assert_true(json_number(row, "usr_cpu") >= 0 && json_number(row, "sys_cpu") >= 0 &&
                json_number(row, "cpu_seconds_per_gb") >= 0);
}

TEST(every_pattern_has_a_row)
{
    static const char *const names[] = {"read", "write", "rw", "randread", "randwrite", "randrw", "optimizer"};
    struct rows r;

    run_rows(*state, &r, "bench io {w}/nvme --json --block 64K --depth 3 " TINY);
    assert_int_equal(r.count, sizeof(names) / sizeof(names[0]));
    for (uint32_t i = 0; i < r.count; i++) {
        assert_string_equal(text(&r, i, "name"), names[i]);
        check_row(r.row[i]);
        assert_true(json_number(r.row[i], "bs") == 65536 && json_number(r.row[i], "iodepth") == 3 &&
                    json_number(r.row[i], "repeats") == 2);
    }
    free_rows(&r);
}

/* Lists multiply; methods that this machine lacks are left out with a line. */
TEST(lists_multiply)
{
    struct rows r;
    uint32_t threads = 0;

    run_rows(*state, &r,
             "bench io --nvme {w}/nvme --json --pattern read,optimizer --block 4K,128K --depth 1,4 "
             "--io-method threads,uring,aio " TINY);
    assert_true(r.count >= 8 && r.count <= 24);
    for (uint32_t i = 0; i < r.count; i++) {
        check_row(r.row[i]);
        threads += strcmp(text(&r, i, "variant"), "threads") == 0;
    }
    assert_int_equal(threads, 8);
    free_rows(&r);
}

TEST(several_directories_and_every_switch)
{
    struct rows r;

    run_rows(*state, &r,
             "bench io {w}/nvme {w} --json --pattern randrw --block 16K --depth 4 --unregistered --poll-kernel " TINY);
    assert_int_equal(r.count, 1);
    assert_true(json_number(r.row[0], "dirs") == 2);
    assert_false(st_json_bool(st_json_get(r.row[0], "registered")));
    free_rows(&r);
    run_rows(*state, &r, "bench io {w}/nvme --json --pattern read --block 16K --depth 4 --poll-device " TINY);
    check_row(r.row[0]);
    free_rows(&r);
}

TEST(ds_ios_names_are_taken)
{
    struct rows r;

    run_rows(*state, &r,
             "bench io --json --read --folder {w}/nvme --io_size 2M --block_size 128K --queue_depth 2 --loops 1 "
             "--io_parallel 4 --single_submit --engine aio_handle --seconds 0.002");
    assert_int_equal(r.count, 1);
    assert_string_equal(text(&r, 0, "name"), "read");
    assert_true(json_number(r.row[0], "bs") == 131072 && json_number(r.row[0], "iodepth") == 2 &&
                json_number(r.row[0], "size") == 2097152 && json_number(r.row[0], "repeats") == 1);
    free_rows(&r);
    run_rows(*state, &r, "bench io --json --read --write --nvme_dir {w}/nvme --block_size 128K --queue_depth 2 " TINY);
    assert_int_equal(r.count, 2);
    assert_string_equal(text(&r, 1, "name"), "write");
    free_rows(&r);
}

TEST(the_table_has_a_heading_and_rows)
{
    struct program p;

    workplace_run_ok(*state, &p, "bench io {w}/nvme --pattern write --block 64K --depth 2 " TINY);
    assert_non_null(strstr(p.out, "p99 us"));
    assert_non_null(strstr(p.out, "\nwrite "));
    assert_null(strstr(p.out, "of fio"));
    program_free(&p);
}

TEST(wrong_arguments_say_what_is_wrong)
{
    fails(*state, "bench io", "missing argument: DIR");
    fails(*state, "bench io {w}/missing " TINY, "there is no such directory");
    fails(*state, "bench io {w}/file " TINY, "is not a directory");
    fails(*state, "bench io {w}/nvme --pattern reed", "--pattern \"reed\" is unknown: read, write");
    fails(*state, "bench io {w}/nvme --io-method sync", "--io-method \"sync\" is unknown");
    fails(*state, "bench io {w}/nvme --io-method fake", "--io-method \"fake\" is unknown");
    fails(*state, "bench io {w}/nvme --block 5000", "no multiple of 4096");
    fails(*state, "bench io {w}/nvme --block 128M", "no multiple of 4096 up to 64 MiB");
    fails(*state, "bench io {w}/nvme --block 1M,x", "--block: \"x\" is not a size");
    fails(*state, "bench io {w}/nvme --depth 0", "--depth: 0 is too small");
    fails(*state, "bench io {w}/nvme --depth 8,2000", "--depth: 2000 is too large");
    fails(*state, "bench io {w}/nvme --depth 1.5", "is not a whole number");
    fails(*state, "bench io {w}/nvme --size 1M", "at least two requests");
    fails(*state, "bench io {w}/nvme --params 3", "unknown option --params");
    fails(*state, "bench io {w}/nvme --paterns read", "did you mean --pattern");
    fails(*state, "tune", "missing argument: --nvme DIR");
    fails(*state, "tune {w}/missing", "there is no such directory");
    fails(*state, "tune {w}/nvme --io-method fake", "is unknown");
    fails(*state, "tune {w}/nvme --size 1M", "at least 2 MiB");
    fails(*state, "tune {w}/nvme --out {w}/a --write {w}/b", "give one of them");
    fails(*state, "tune {w}/nvme --write {w}/b", "no such file to change");
}

/* --- fio --- */

TEST(the_job_file_says_the_same)
{
    static const char *const lines[] = {"[rw-io_uring-262144-8]",
                                        "[rw-libaio-262144-8]",
                                        "bs=262144\n",
                                        "iodepth=8\n",
                                        "rw=rw\n",
                                        "rwmixread=50\n",
                                        "direct=1\n",
                                        "size=4194304\n",
                                        "registerfiles=1\nfixedbufs=1\n",
                                        "runtime=2000ms\n",
                                        "/nvme/strata-bench-io\n"};
    const struct workplace *w = *state;
    struct program p;

    workplace_run_ok(w, &p, "bench io {w}/nvme --fio-job --pattern rw,optimizer --block 256K --depth 8 --size 4M --seconds 2");
    for (size_t i = 0; i < sizeof(lines) / sizeof(lines[0]); i++)
        if (strstr(p.out, lines[i]) == NULL)
            fail_msg("no \"%s\" in: %s", lines[i], p.out);
    assert_null(strstr(p.out, "optimizer"));
    assert_int_equal(workplace_entries(w, "nvme"), 0);
    program_free(&p);
}

/* To fio, depth and size are those of all files together. */
TEST(the_job_file_counts_directories)
{
    static const char *const lines[] = {"[randread-io_uring-65536-3]", "iodepth=6\n", "size=8388608\n",
                                        "file_service_type=roundrobin\n"};
    const struct workplace *w = *state;
    char *names = workplace_expand(w, "filename={w}/nvme/strata-bench-io:{w}/strata-bench-io\n");
    struct program p;

    workplace_run_ok(w, &p, "bench io {w}/nvme {w} --fio-job --pattern randread --block 64K --depth 3 --size 4M");
    for (size_t i = 0; i < sizeof(lines) / sizeof(lines[0]); i++)
        if (strstr(p.out, lines[i]) == NULL)
            fail_msg("no \"%s\" in: %s", lines[i], p.out);
    assert_non_null(strstr(p.out, names));
    program_free(&p);
    free(names);
}

TEST(without_fio_it_says_how_to_get_it)
{
    char *const path = strdup(getenv("PATH") != NULL ? getenv("PATH") : "");

    assert_int_equal(setenv("PATH", "/nonexistent", 1), 0);
    fails(*state, "bench io {w}/nvme --fio " TINY, "apt-get install fio");
    assert_int_equal(setenv("PATH", path, 1), 0);
    free(path);
}

static bool fio_is_there(void)
{
    return system("fio --version >/dev/null 2>&1") == 0;
}

/* The largest rate among rows of the pattern: of all of them, or of fio's with the depth. */
static double best_rate(const struct rows *r, const char *pattern, bool fio, double depth)
{
    double best = 0;

    for (uint32_t i = 0; i < r->count; i++) {
        const double rate = json_number(r->row[i], "gb_per_s");

        if (strcmp(text(r, i, "name"), pattern) == 0 && rate > best &&
            (!fio || (memcmp(text(r, i, "variant"), "fio_", 4) == 0 && json_number(r->row[i], "iodepth") == depth)))
            best = rate;
    }
    return best;
}

/* A row is compared with the best one of its pattern, and with what fio does at its depth. */
TEST(rows_are_compared_with_their_like)
{
    struct rows r;

    if (!fio_is_there())
        skip();
    run_rows(*state, &r,
             "bench io {w}/nvme --json --fio --pattern randwrite,randread --block 64K --depth 4,1 --size 4M --seconds 0.05 "
             "--repeats 1");
    for (uint32_t i = 0; i < r.count; i++) {
        const char *pattern = text(&r, i, "name");
        const double rate = json_number(r.row[i], "gb_per_s");

        assert_true(fabs(json_number(r.row[i], "ratio") - rate / best_rate(&r, pattern, false, 0)) < 1e-9);
        if (memcmp(text(&r, i, "variant"), "fio_", 4) != 0)
            assert_true(fabs(json_number(r.row[i], "fio_ratio") -
                             rate / best_rate(&r, pattern, true, json_number(r.row[i], "iodepth"))) < 1e-9);
    }
    free_rows(&r);
}

TEST(fio_runs_beside)
{
    struct rows r;

    if (!fio_is_there())
        skip();
    run_rows(*state, &r,
             "bench io {w}/nvme --json --fio --pattern randrw --block 64K --depth 4 --size 4M --seconds 0.05 --repeats 1");
    assert_true(r.count >= 2 && r.count <= 3);
    assert_true(json_number(r.row[0], "fio_ratio") > 0);
    for (uint32_t i = 0; i < r.count; i++) {
        check_row(r.row[i]);
        if (i > 0) {
            assert_memory_equal(text(&r, i, "variant"), "fio_", 4);
            assert_int_equal(st_json_type(st_json_get(r.row[i], "fio_ratio")), ST_JSON_NULL);
        }
    }
    free_rows(&r);
}

/* --- the end --- */

/* True while the program has a file of the directory open. */
static bool has_file_open(const struct program *p, const char *directory)
{
    char name[64], target[4096];
    bool found = false;
    DIR *dir;

    snprintf(name, sizeof(name), "/proc/%d/fd", (int)p->pid);
    dir = opendir(name);
    for (const struct dirent *entry; dir != NULL && !found && (entry = readdir(dir)) != NULL;) {
        const ssize_t length = readlinkat(dirfd(dir), entry->d_name, target, sizeof(target));

        found = length > (ssize_t)strlen(directory) && strncmp(target, directory, strlen(directory)) == 0;
    }
    if (dir != NULL)
        closedir(dir);
    return found;
}

/* The table comes at the end alone: an open file says that the run has begun. */
TEST(a_signal_leaves_nothing)
{
    static const struct {
        const char *command;
        int number, code;
    } cases[] = {
        {"bench io {w}/nvme --size 8M --seconds 3600 --repeats 1000", SIGINT, 130},
        {"bench io {w}/nvme --size 8M --seconds 3600 --repeats 1000 --io-method threads", SIGTERM, 143},
        {"tune {w}/nvme --size 8M --seconds 60", SIGINT, 130},
    };
    char *directory = workplace_expand(*state, "{w}/nvme/");

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct program p;

        workplace_start_piped(*state, &p, cases[i].command);
        while (!has_file_open(&p, directory))
            sched_yield();
        assert_int_equal(kill(p.pid, cases[i].number), 0);
        program_drain(&p);
        program_wait(&p);
        assert_int_equal(p.code, cases[i].code);
        assert_non_null(strstr(p.err, "ended by"));
        assert_int_equal(workplace_entries(*state, "nvme"), 0);
        program_free(&p);
    }
    free(directory);
}

/* --- tune --- */

static void check_section(const char *text_of_config)
{
    st_json *root = NULL;
    const st_json *aio;

    assert_int_equal(st_json_parse(&root, text_of_config, strlen(text_of_config), "tuned"), STRATA_OK);
    aio = st_json_get(root, "aio");
    assert_non_null(aio);
    assert_true(json_number(aio, "block_size") >= 131072 && json_number(aio, "queue_depth") >= 1 &&
                json_number(aio, "intra_op_parallelism") == 1);
    assert_false(st_json_bool(st_json_get(aio, "single_submit")));
    assert_true(st_json_bool(st_json_get(aio, "overlap_events")));
    st_json_free(root);
}

TEST(tune_prints_a_section_that_check_accepts)
{
    const struct workplace *w = *state;
    struct program p;
    char *written;
    size_t bytes;

    workplace_run_ok(w, &p, "tune --nvme {w}/nvme --size 4M --seconds 0.002 --out {w}/tuned.json");
    check_section(p.out);
    assert_non_null(strstr(p.err, "  <-\n"));
    assert_non_null(strstr(p.err, "taken: "));
    written = workplace_read(w, "tuned.json", &bytes);
    assert_string_equal(written, p.out);
    free(written);
    program_free(&p);
    assert_int_equal(workplace_entries(w, "nvme"), 0);
    workplace_run_ok(w, &p, "check {w}/tuned.json");
    program_free(&p);
    workplace_remove(w, "tuned.json");
}

TEST(tune_changes_one_section_of_a_file)
{
    static const char before[] =
        "{\n  \"bf16\": {\"enabled\": true},\n  \"aio\": {\"block_size\": 4096},\n  \"steps_per_print\": 7\n}\n";
    const struct workplace *w = *state;
    struct program p;
    char *after;
    size_t bytes;

    workplace_write(w, "run.json", before, sizeof(before) - 1);
    workplace_run_ok(w, &p, "tune {w}/nvme --size 4M --seconds 0.002 --io-method threads --write {w}/run.json");
    assert_non_null(strstr(p.err, "depth      threads     1.00 MiB      1   1.00 MiB"));
    assert_non_null(strstr(p.err, "taken: "));
    assert_non_null(strstr(p.err, "by threads: set strata.io_method to \"threads\" as well"));
    assert_non_null(strstr(p.err, "written to "));
    program_free(&p);
    after = workplace_read(w, "run.json", &bytes);
    check_section(after);
    assert_memory_equal(after, before, (size_t)(strstr(before, "{\"block_size\"") - before));
    assert_string_equal(strstr(after, ",\n  \"steps_per_print\""), strstr(before, ",\n  \"steps_per_print\""));
    free(after);
    workplace_remove(w, "run.json");
}

/* --- the text of a configuration --- */

TEST(bad_files_are_left_alone)
{
    static const char *const bad[] = {"", "[]", "3", "{\"a\":1,}", "{\"a\":1,\"a\":2}", "{\"a\":1} x"};
    const struct workplace *w = *state;
    char *path = workplace_expand(w, "{w}/bad.json");

    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        size_t bytes;
        char *kept;

        workplace_write(w, "bad.json", bad[i], strlen(bad[i]));
        assert_int_equal(cli_config_edit_file(path, "aio", "{}"), STRATA_E_CONFIG);
        kept = workplace_read(w, "bad.json", &bytes);
        assert_string_equal(kept, bad[i]);
        free(kept);
    }
    workplace_remove(w, "bad.json");
    assert_int_not_equal(cli_config_edit_file(path, "aio", "{}"), STRATA_OK);
    free(path);
}

/* Each failure leaves the file as it was, with nothing beside it. */
TEST(failures_leave_the_file_alone)
{
    static const char before[] = "{\n  \"a\": 1\n}\n";
    static const char *const sites[] = {"config.realpath", "config.mode", "file.create",
                                        "file.write",      "file.sync",   "file.rename"};
    const struct workplace *w = *state;
    char *path = workplace_expand(w, "{w}/kept.json"), *kept;
    size_t bytes;
    int entries;

    workplace_write(w, "kept.json", before, sizeof(before) - 1);
    entries = workplace_entries(w, ".");
    for (size_t i = 0; i < sizeof(sites) / sizeof(sites[0]); i++) {
        st_fault_arm(&(struct st_fault_spec){.site = sites[i], .result = -5});
        assert_int_not_equal(cli_config_edit_file(path, "aio", "{}"), STRATA_OK);
        assert_true(st_fault_disarm() > 0);
        assert_non_null(strstr(strata_last_error(), "kept.json"));
        kept = workplace_read(w, "kept.json", &bytes);
        assert_string_equal(kept, before);
        free(kept);
        assert_int_equal(workplace_entries(w, "."), entries);
    }
    workplace_write(w, "kept.json", "{}\0{}", 5);
    assert_int_equal(cli_config_edit_file(path, "aio", "{}"), STRATA_E_INPUT);
    assert_non_null(strstr(strata_last_error(), "kept.json: cannot be read as text"));
    kept = workplace_read(w, "kept.json", &bytes);
    assert_int_equal(bytes, 5);
    free(kept);
    workplace_remove(w, "kept.json");
    free(path);
}

TEST(links_and_modes_are_kept)
{
    const struct workplace *w = *state;
    char *path = workplace_expand(w, "{w}/real.json"), *link = workplace_expand(w, "{w}/link.json");
    struct stat info;

    workplace_write(w, "real.json", "{}", 2);
    assert_int_equal(chmod(path, 0640), 0);
    assert_int_equal(symlink("real.json", link), 0);
    assert_int_equal(cli_config_edit_file(link, "aio", "{\"queue_depth\": 3}"), STRATA_OK);
    assert_int_equal(lstat(link, &info), 0);
    assert_true(S_ISLNK(info.st_mode));
    assert_int_equal(lstat(path, &info), 0);
    assert_true(S_ISREG(info.st_mode) && (info.st_mode & 07777) == 0640 && info.st_size > 10);
    workplace_remove(w, "link.json");
    workplace_remove(w, "real.json");
    free(path);
    free(link);
}

/* --- info --- */

TEST(info_tells_of_the_device)
{
    static const char *const keys[] = {"direct_works", "registers", "device", "advice"};
    static const char *const device_keys[] = {"name", "model", "rotational", "scheduler", "nr_requests", "max_sectors_kb"};
    struct rows r;
    const st_json *dir;

    run_rows(*state, &r, "info --nvme {w}/nvme --json");
    dir = st_json_first(st_json_get(r.row[0], "nvme"));
    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++)
        assert_non_null(st_json_get(dir, keys[i]));
    for (size_t i = 0; i < sizeof(device_keys) / sizeof(device_keys[0]); i++)
        assert_non_null(st_json_get(st_json_get(dir, "device"), device_keys[i]));
    free_rows(&r);
}

TEST_GROUP(workplace_setup, workplace_teardown);
