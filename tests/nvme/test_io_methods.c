/* tests/nvme/test_io_methods.c - what is particular to a method: the choice among them, the fake's order, an older kernel's ring.
 */
#include "core/fault.h"
#include "io_fixture.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

static void fake_order_is_the_seed_s(void **state)
{
    uint32_t first[BLOCKS_MAX];
    const uint64_t seeds[] = {5, 5, 6};

    (void)state;
    for (uint32_t i = 0; i < 3; i++) {
        struct io_fixture f;
        struct st_io *plain;
        bool in_order = true;

        assert_int_equal(io_fixture_open(&f, st_io_find("fake", NULL), 32, BLOCK, 32), STRATA_OK);
        plain = f.io;
        assert_int_equal(f.ops->open(&f.io, &(struct st_io_opts){.queue_depth = 32, .fake_seed = seeds[i]}), STRATA_OK);
        assert_int_equal(f.ops->add_file(f.io, -1, 32 * BLOCK, &f.file), STRATA_OK);
        assert_int_equal(io_fixture_write_all(&f), STRATA_OK);
        for (uint32_t k = 0; k < 32; k++)
            in_order = in_order && f.order[k] == k;
        assert_false(in_order);
        if (i == 0)
            memcpy(first, f.order, sizeof(first));
        assert_int_equal(memcmp(first, f.order, 32 * sizeof(first[0])) == 0, seeds[i] == seeds[0]);
        f.ops->close(plain);
        io_fixture_close(&f);
    }
}

static void fake_latency_keeps_the_data(void **state)
{
    struct io_fixture f;

    (void)state;
    assert_int_equal(io_fixture_open(&f, st_io_find("fake", NULL), 32, BLOCK, 8), STRATA_OK);
    f.ops->close(f.io);
    assert_int_equal(
        f.ops->open(
            &f.io,
            &(struct st_io_opts){.queue_depth = 8, .fake_seed = 1, .fake_latency_us = 200, .fake_bytes_per_second = 1u << 30}),
        STRATA_OK);
    assert_int_equal(f.ops->add_file(f.io, -1, 32 * BLOCK, &f.file), STRATA_OK);
    assert_int_equal(io_fixture_write_all(&f), STRATA_OK);
    assert_int_equal(io_fixture_read_all(&f), STRATA_OK);
    io_fixture_assert_data(&f);
    io_fixture_close(&f);
}

static void fake_is_full_where_it_ends(void **state)
{
    struct io_fixture f;

    (void)state;
    assert_int_equal(io_fixture_open_sized(&f, st_io_find("fake", NULL), 4, BLOCK, 4, 3 * BLOCK), STRATA_OK);
    assert_int_equal(io_fixture_write_all(&f), STRATA_E_NOSPC);
    assert_int_equal(f.status[2], STRATA_OK);
    assert_int_equal(f.status[3], STRATA_E_NOSPC);
    io_fixture_close(&f);
}

static void methods_are_found_by_name(void **state)
{
    const char *why;

    (void)state;
    for (size_t i = 0; st_io_methods[i] != NULL; i++)
        assert_ptr_equal(st_io_find(st_io_methods[i]->name, &why), st_io_methods[i]);
    assert_null(st_io_find("carrier pigeon", &why));
    assert_string_not_equal(st_io_find("auto", &why)->name, "fake");
    assert_ptr_equal(st_io_find(NULL, NULL), st_io_find("auto", NULL));
}

static void auto_passes_over_a_refused_ring(void **state)
{
    static const int64_t errors[] = {-ENOSYS, -EPERM, -ENOMEM};
    static const char *const reasons[] = {"seccomp", "seccomp", "ulimit -l"};
    const char *why;

    (void)state;
    for (size_t i = 0; i < 3; i++) {
        st_fault_arm(&(struct st_fault_spec){.site = "nvme.ring", .result = errors[i]});
        assert_string_equal(st_io_find("auto", &why)->name, "threads");
        st_fault_disarm();
        assert_non_null(strstr(why, reasons[i]));
    }
}

/* An older kernel: no deferred task work, no file table. */
static void uring_works_without_the_extras(void **state)
{
    static const char *const sites[] = {"nvme.ring", "nvme.files", "nvme.enter"};
    static const int64_t results[] = {-EINVAL, -EINVAL, -EBUSY};
    const char *why;

    (void)state;
    if (strcmp(st_io_find("auto", &why)->name, "uring") != 0) {
        print_message("uring: not tested on this machine: %s\n", why);
        skip();
    }
    for (size_t i = 0; i < 3; i++) {
        struct io_fixture f;

        st_fault_arm(&(struct st_fault_spec){.site = sites[i], .count = 1, .result = results[i]});
        assert_int_equal(io_fixture_open(&f, st_io_find("uring", NULL), 16, BLOCK, 4), STRATA_OK);
        assert_int_equal(io_fixture_write_all(&f), STRATA_OK);
        assert_int_equal(io_fixture_read_all(&f), STRATA_OK);
        assert_int_equal(st_fault_disarm(), 1);
        io_fixture_assert_data(&f);
        io_fixture_close(&f);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fake_order_is_the_seed_s),        cmocka_unit_test(fake_latency_keeps_the_data),
        cmocka_unit_test(fake_is_full_where_it_ends),      cmocka_unit_test(methods_are_found_by_name),
        cmocka_unit_test(auto_passes_over_a_refused_ring), cmocka_unit_test(uring_works_without_the_extras),
    };

    return cmocka_run_group_tests_name("io methods", tests, NULL, NULL);
}
