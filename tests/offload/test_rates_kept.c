/* tests/offload/test_rates_kept.c - a measurement is taken again for an hour, if nothing that it depends on has changed. */
#include "core/base/fault.h"
#include "core/system/topology.h"
#include "offload/machine/rates_kept.h"
#include "tests/common/assert_status.h"
#include "tests/common/scratch.h"
#include "tests/common/test.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define WHAT (ST_MEASURE_ALL & ~ST_MEASURE_DISK)

static const struct st_rates rates = {
    .matmul_flops = 3e9, .upload = 5e9, .download = 7e9, .update = 2e8, .checksum = 9e9, .handover = 1e-5};

/* What a measurement is of. */
struct asked {
    struct st_page pages[2];
    struct st_workload workload;
    struct st_machine machine;
    struct st_machine_opts opts;
    unsigned what;
};

static struct st_topology *topology;

static int setup(void **state)
{
    assert_int_equal(st_topology_load(&topology, NULL), STRATA_OK);
    return scratch_create(state);
}

static int teardown(void **state)
{
    st_topology_destroy(topology);
    return scratch_remove(state);
}

static void ask(struct asked *a)
{
    *a = (struct asked){
        .machine.name = "a machine",
        .opts = {.topology = topology, .device = "cpu", .isa = "auto", .nvme = {.dirs = {scratch_dir}, .method = "auto"}},
        .what = WHAT};
    a->workload = (struct st_workload){.name = "probe", .seq = 32, .micro_batch = 1, .params = 65536, .page_count = 2};
    a->workload.pages = a->pages;
}

static struct st_rates_kept name_of(const struct asked *a)
{
    struct st_rates_kept kept;

    assert_int_equal(st_rates_kept_name(&kept, scratch_path("cache"), &a->machine, &a->workload, &a->opts, a->what), STRATA_OK);
    return kept;
}

static void write_rates(const struct st_rates_kept *kept)
{
    bool written = false;

    assert_int_equal(st_rates_kept_write(kept, &rates, &written), STRATA_OK);
    assert_true(written);
}

static bool is_kept(const struct st_rates_kept *kept)
{
    struct st_rates found = {0};
    uint64_t age = UINT64_MAX;

    if (!st_rates_kept_read(kept, &found, &age))
        return false;
    assert_memory_equal(&found, &rates, sizeof(rates));
    assert_true(age < ST_RATES_KEPT_SECONDS);
    return true;
}

static void set_age(const char *path, time_t seconds)
{
    const struct timespec times[2] = {{.tv_nsec = UTIME_OMIT}, {.tv_sec = time(NULL) - seconds}};

    assert_int_equal(utimensat(AT_FDCWD, path, times, 0), 0);
}

TEST_SETUP(rates_are_there_for_an_hour, setup, teardown)
{
    struct st_rates_kept kept;
    struct stat info;
    struct asked a;

    ask(&a);
    kept = name_of(&a);
    assert_false(is_kept(&kept));
    write_rates(&kept);
    assert_true(is_kept(&kept));
    assert_int_equal(stat(kept.path, &info), 0);
    assert_int_equal(info.st_mode & 0777, 0600);
    set_age(kept.path, ST_RATES_KEPT_SECONDS - 60);
    assert_true(is_kept(&kept));
    set_age(kept.path, ST_RATES_KEPT_SECONDS);
    assert_false(is_kept(&kept));
    set_age(kept.path, -60); /* the clock was put back */
    assert_false(is_kept(&kept));
}

/* Each of these is another measurement. */
TEST_SETUP(another_measurement_has_another_file, setup, teardown)
{
    struct asked first, a;
    struct st_rates_kept kept, other;

    ask(&first);
    kept = name_of(&first);
    write_rates(&kept);
    for (int i = 0; i <= 12; i++) {
        ask(&a);
        switch (i) {
        case 1:
            snprintf(a.machine.name, sizeof(a.machine.name), "another one");
            break;
        case 2:
            a.opts.device = "cuda:1";
            break;
        case 3:
            a.opts.isa = "scalar";
            break;
        case 4:
            a.opts.threads = 1 + st_topology_core_count(topology);
            break;
        case 5:
            a.opts.host_memory = 1 << 30;
            break;
        case 6:
            a.opts.moments = (enum st_moment_format)1;
            break;
        case 7:
            a.what = ST_MEASURE_ALL;
            break;
        case 8:
            a.workload.seq = 64;
            break;
        case 9:
            a.workload.micro_batch = 2;
            break;
        case 10:
            a.pages[1].elems = 128;
            break;
        case 11:
            a.workload.dtype = STRATA_F32;
            break;
        case 12:
            a.opts.device_memory = 1 << 30;
            break;
        default:
            break;
        }
        other = name_of(&a);
        assert_int_equal(is_kept(&other), i == 0);
    }
    ask(&first);
    first.what = ST_MEASURE_ALL;
    first.opts.nvme.dir_count = 1;
    kept = name_of(&first);
    ask(&a);
    a.what = ST_MEASURE_ALL;
    a.opts.nvme = (struct st_nvme_opts){.dirs = {"/"}, .dir_count = 1, .method = "auto"};
    other = name_of(&a);
    assert_string_not_equal(kept.path, other.path);
}

static void put_byte(const char *path, off_t at)
{
    const int fd = open(path, O_RDWR | O_CLOEXEC);
    unsigned char byte;

    assert_true(fd >= 0 && pread(fd, &byte, 1, at) == 1);
    byte ^= 1;
    assert_int_equal(pwrite(fd, &byte, 1, at), 1);
    close(fd);
}

/* A flipped bit anywhere, a part, a link that leads nowhere, a file that others may write to. */
TEST_SETUP(what_is_not_whole_and_ours_is_not_there, setup, teardown)
{
    struct st_rates_kept kept;
    struct stat info;
    struct asked a;

    ask(&a);
    kept = name_of(&a);
    write_rates(&kept);
    assert_int_equal(stat(kept.path, &info), 0);
    for (off_t at = 0; at < info.st_size; at++) {
        put_byte(kept.path, at);
        assert_false(is_kept(&kept));
        put_byte(kept.path, at);
    }
    assert_true(is_kept(&kept));
    assert_int_equal(chmod(kept.path, 0602), 0);
    assert_false(is_kept(&kept));
    assert_int_equal(chmod(kept.path, 0600), 0);
    assert_int_equal(truncate(kept.path, info.st_size - 1), 0);
    assert_false(is_kept(&kept));
    write_rates(&kept);
    assert_true(is_kept(&kept));
    assert_int_equal(unlink(kept.path), 0);
    assert_int_equal(symlink("nowhere", kept.path), 0);
    assert_false(is_kept(&kept));
    assert_int_equal(unlink(kept.path), 0);
}

TEST_SETUP(rates_that_lack_one_are_not_kept, setup, teardown)
{
    struct st_rates lacking = rates;
    struct st_rates_kept kept;
    bool written = true;
    struct asked a;

    ask(&a);
    kept = name_of(&a);
    lacking.update = 0;
    assert_int_equal(st_rates_kept_write(&kept, &lacking, &written), STRATA_OK);
    assert_false(written);
    a.what = ST_MEASURE_ALL; /* of drives nothing is known */
    kept = name_of(&a);
    assert_int_equal(st_rates_kept_write(&kept, &rates, &written), STRATA_OK);
    assert_false(written);
    assert_int_equal(scratch_entries(scratch_dir, NULL), 0);
}

TEST_SETUP(old_ones_go_and_nothing_else, setup, teardown)
{
    struct st_rates_kept kept, old;
    struct asked a;

    ask(&a);
    kept = name_of(&a);
    a.workload.seq = 64;
    old = name_of(&a);
    write_rates(&old);
    set_age(old.path, ST_RATES_KEPT_SECONDS + 1);
    scratch_put("cache/rates-of-mine", "");
    set_age(scratch_path("cache/rates-of-mine"), 2 * ST_RATES_KEPT_SECONDS);
    write_rates(&kept);
    assert_int_equal(access(old.path, F_OK), -1);
    assert_int_equal(scratch_entries(scratch_path("cache"), NULL), 2);
}

/* It is read, or it is not; it is written, or nothing is. */
TEST_SETUP(every_failure_leaves_nothing, setup, teardown)
{
    struct st_rates_kept kept;
    uint32_t fired = 1;
    struct asked a;

    ask(&a);
    for (uint32_t after = 0; fired > 0; after++) {
        struct st_rates found;
        bool written = false;
        strata_status st;
        uint64_t age;

        st_fault_arm(&(struct st_fault_spec){.after = after, .count = 1, .result = -EIO});
        kept = name_of(&a);
        st = st_rates_kept_write(&kept, &rates, &written);
        if (st == STRATA_OK && st_rates_kept_read(&kept, &found, &age))
            assert_memory_equal(&found, &rates, sizeof(rates));
        fired = st_fault_disarm();
        assert_true(written == (st == STRATA_OK) || fired > 0);
        (void)unlink(kept.path);
        assert_int_equal(scratch_entries_with(scratch_path("cache"), "tmp"), 0);
    }
}
