/* tests/nvme/test_io_methods.c - what is particular to a method: the choice among them, the fake's order, an older kernel's ring.
 */
#include "core/base/fault.h"
#include "io_fixture.h"
#include "nvme/method/io_method.h"
#include "tests/common/test.h"

#include <errno.h>
#include <string.h>

TEST(fake_order_is_the_seed_s)
{
    uint32_t first[BLOCKS_MAX];
    const uint64_t seeds[] = {5, 5, 6};

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

TEST(fake_latency_keeps_the_data)
{
    struct io_fixture f;

    assert_int_equal(io_fixture_open(&f, st_io_find("fake", NULL), 32, BLOCK, 8), STRATA_OK);
    f.ops->close(f.io);
    assert_int_equal(
        f.ops->open(
            &f.io,
            &(struct st_io_opts){.queue_depth = 8, .fake_seed = 1, .fake_latency_us = 200, .fake_bytes_per_second = 1u << 30}),
        STRATA_OK);
    assert_int_equal(f.ops->add_file(f.io, -1, 32 * BLOCK, &f.file), STRATA_OK);
    io_fixture_assert_works(&f);
    io_fixture_close(&f);
}

/* The last block has room for its half: a write there leaves nothing, a read brings that half. */
TEST(fake_is_full_where_it_ends)
{
    static const unsigned char nothing[BLOCK / 2];
    struct io_fixture f;

    assert_int_equal(io_fixture_open_sized(&f, st_io_find("fake", NULL), 4, BLOCK, 4, 3 * BLOCK + BLOCK / 2), STRATA_OK);
    assert_int_equal(io_fixture_write_all(&f), STRATA_E_NOSPC);
    assert_int_equal(f.status[2], STRATA_OK);
    assert_int_equal(f.status[3], STRATA_E_NOSPC);
    assert_int_equal(io_fixture_read_all(&f), STRATA_E_TRUNC);
    assert_memory_equal(f.buf, f.want, 3 * BLOCK);
    assert_memory_equal(f.buf + 3 * BLOCK, nothing, BLOCK / 2);
    io_fixture_close(&f);
}

/* A full disk: the system moves what there is room for, and says what it lacks of a transfer that begins there alone, which need
 * not be at a block of the request. */
TEST(a_write_goes_on_where_the_room_ends)
{
    static const struct {
        uint64_t offset, room;
        uint32_t align; /* of the transfers that the file takes */
        int64_t result;
    } rows[] = {{3, 65536, 1, -ENOSPC}, {0, 65536, 4096, -ENOSPC}, {0, 65536 + 1024, 512, -ENOSPC}, {0, 65536 + 1024, 4096, 0}};
    static char memory[200000];

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct st_io_req req = {.op = ST_IO_WRITE, .bytes = sizeof(memory), .offset = rows[i].offset, .buf = memory};
        strata_status st = STRATA_OK;
        uint32_t calls = 0;
        int64_t moved;

        do {
            const struct st_io_piece piece = st_io_remaining(&req);
            const uint64_t left = rows[i].room - (piece.offset < rows[i].room ? piece.offset : rows[i].room);

            assert_int_equal(piece.buf - memory, piece.offset - rows[i].offset);
            assert_int_equal(piece.offset + piece.bytes, rows[i].offset + sizeof(memory));
            moved = piece.offset % rows[i].align != 0 ? -EINVAL : left == 0 ? -ENOSPC : (int64_t)left;
            calls++;
        } while (!st_io_advance(&req, moved, &st));
        assert_int_equal(req.result, rows[i].result);
        assert_int_equal(st, rows[i].result < 0 ? STRATA_E_NOSPC : STRATA_E_IO);
        assert_true(calls <= 5);
    }
}

TEST(methods_are_found_by_name)
{
    const char *why;

    for (size_t i = 0; st_io_methods[i] != NULL; i++)
        assert_ptr_equal(st_io_find(st_io_methods[i]->name, &why), st_io_methods[i]);
    assert_null(st_io_find("carrier pigeon", &why));
    assert_string_not_equal(st_io_find("auto", &why)->name, "fake");
    assert_ptr_equal(st_io_find(NULL, NULL), st_io_find("auto", NULL));
    assert_string_equal(st_io_next(st_io_find("uring", NULL), STRATA_E_NOMEM)->name, "aio");
    assert_string_equal(st_io_next(st_io_find("aio", NULL), STRATA_E_IO)->name, "threads");
    assert_null(st_io_next(st_io_find("threads", NULL), STRATA_E_NOMEM));
    assert_null(st_io_next(st_io_find("uring", NULL), STRATA_E_INVAL)); /* which any method would refuse */
}

/* Of its own: 8 or as many as asked for, and no more than can be at work. */
TEST(threads_are_as_many_as_asked_for)
{
    static const struct {
        uint32_t depth, threads, want;
    } rows[] = {{1, 0, 1}, {64, 0, 8}, {64, 3, 3}, {64, 64, 64}, {5, 64, 5}};
    const struct st_io_ops *ops = st_io_find("threads", NULL);
    struct st_io *io;

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        const struct st_io_opts opts = {.queue_depth = rows[i].depth, .threads = rows[i].threads};
        struct st_io_opts effective;

        assert_int_equal(ops->open(&io, &opts), STRATA_OK);
        ops->effective(io, &effective);
        assert_int_equal(effective.threads, rows[i].want);
        ops->close(io);
    }
    assert_int_equal(ops->open(&io, &(struct st_io_opts){.queue_depth = 64, .threads = 65}), STRATA_E_INVAL);
    assert_non_null(strstr(strata_last_error(), "65 I/O threads"));
}

static const struct st_io_ops *aio_or_skip(void)
{
    const struct st_io_ops *ops = st_io_find("aio", NULL);
    struct st_io *io;

    if (ops->open(&io, &(struct st_io_opts){.queue_depth = 1}) != STRATA_OK) {
        print_message("aio: not tested on this machine: %s\n", strata_last_error());
        skip();
    }
    ops->close(io);
    return ops;
}

/* What a method says that it works with: the depth as opened, buffers that nothing registers, and who starts transfers. */
TEST(aio_tells_what_it_works_with)
{
    const struct st_io_ops *ops = aio_or_skip();
    struct io_fixture f;

    for (uint32_t in_reap = 0; in_reap < 2; in_reap++) {
        struct st_io_opts effective = {.queue_depth = 99, .threads = 98, .poll_kernel = true, .poll_device = true};

        io_fixture_set_options(&(struct st_io_opts){.start_in_reap = in_reap != 0});
        assert_int_equal(io_fixture_open(&f, ops, 16, BLOCK, 7), STRATA_OK);
        ops->effective(f.io, &effective);
        assert_int_equal(effective.queue_depth, 7);
        assert_int_equal(effective.start_in_reap, in_reap);
        assert_true(effective.unregistered);
        assert_false(effective.poll_kernel || effective.poll_device || effective.threads > 0);
        io_fixture_close(&f);
    }
    io_fixture_set_options(&(struct st_io_opts){0});
}

/* A place that the kernel keeps is not used again, and said. */
TEST(a_place_that_is_not_given_back_is_left)
{
    struct io_fixture f;
    uint32_t index;

    if (strcmp(st_io_find("auto", NULL)->name, "uring") != 0)
        skip();
    assert_int_equal(io_fixture_open(&f, st_io_find("uring", NULL), 4, BLOCK, 4), STRATA_OK);
    st_fault_arm(&(struct st_fault_spec){.site = "nvme.files", .count = 1, .result = -ENOMEM});
    f.ops->remove_file(f.io, f.file);
    assert_int_equal(st_fault_disarm(), 1);
    for (uint32_t i = 1; i < ST_IO_FILES_DEFAULT; i++) {
        assert_int_equal(f.ops->add_file(f.io, f.fd, 4 * BLOCK, &index), STRATA_OK);
        assert_int_not_equal(index, f.file);
    }
    assert_int_equal(f.ops->add_file(f.io, f.fd, 4 * BLOCK, &index), STRATA_E_INVAL);
    f.file = ST_IO_FILES_DEFAULT - 1;
    io_fixture_assert_works(&f);
    io_fixture_close(&f);
}

TEST(auto_passes_over_a_refused_ring)
{
    static const int64_t errors[] = {-ENOSYS, -EPERM, -ENOMEM};
    static const char *const reasons[] = {"seccomp", "seccomp", "ulimit -l"};
    const char *why;

    for (size_t i = 0; i < 3; i++) {
        st_fault_arm(&(struct st_fault_spec){.site = "nvme.ring", .result = errors[i]});
        assert_string_equal(st_io_find("auto", &why)->name, "aio");
        st_fault_disarm();
        assert_non_null(strstr(why, reasons[i]));
    }
}

/* Nor is aio there: its eventfd fails, and so does the ring's. */
TEST(auto_passes_over_refused_aio)
{
    const char *why;

    st_fault_arm(&(struct st_fault_spec){.site = "nvme.eventfd", .result = -EMFILE});
    assert_string_equal(st_io_find("auto", &why)->name, "threads");
    st_fault_disarm();
    assert_non_null(strstr(why, "ulimit -l"));
    assert_non_null(strstr(why, "fs.aio-max-nr"));
}

TEST(aio_says_what_is_missing)
{
    static const struct {
        const char *site;
        int64_t result;
        strata_status st;
        const char *text;
    } rows[] = {
        {"nvme.context", -ENOSYS, STRATA_E_NOSYS, "threads"},
        {"nvme.context", -EAGAIN, STRATA_E_NOMEM, "fs.aio-max-nr"},
        {"nvme.wake", -EINVAL, STRATA_E_NOSYS, "4.18"},
        {"nvme.eventfd", -EMFILE, STRATA_E_IO, "ulimit -n"},
    };
    const struct st_io_ops *ops = st_io_find("aio", NULL);

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct st_io *io;

        st_fault_arm(&(struct st_fault_spec){.site = rows[i].site, .result = rows[i].result});
        assert_int_equal(ops->open(&io, &(struct st_io_opts){.queue_depth = 1}), rows[i].st);
        st_fault_disarm();
        assert_non_null(strstr(strata_last_error(), rows[i].text));
    }
}

/* Each time that a wake is taken the next one is prepared for: one that came once is not found again and again by a thread that
 * should sleep. */
TEST(aio_takes_a_wake_once)
{
    const struct st_fault_spec refused = {.site = "nvme.wake", .count = 1, .result = -EAGAIN};
    const struct st_io_ops *ops = aio_or_skip();
    struct io_fixture f;

    assert_int_equal(io_fixture_open(&f, ops, 4, BLOCK, 4), STRATA_OK);
    ops->wake(f.io);
    do {
        st_fault_arm(&refused);
        assert_int_equal(ops->reap(f.io, 0), STRATA_OK);
    } while (st_fault_disarm() == 0);
    st_fault_arm(&refused);
    io_fixture_assert_works(&f);
    assert_int_equal(st_fault_disarm(), 0);
    io_fixture_close(&f);
}

/* A kernel that refuses the thread, then the polled ring; and a device that does not poll, where that is so. */
TEST(refused_polls_are_gone_without)
{
    struct io_fixture f;
    struct st_io_opts effective;
    const char *why;

    if (strcmp(st_io_find("auto", &why)->name, "uring") != 0) {
        print_message("uring: not tested on this machine: %s\n", why);
        skip();
    }
    io_fixture_set_options(&(struct st_io_opts){.poll_device = true, .poll_kernel = true, .unregistered = true});
    for (uint32_t refused = 0; refused < 3; refused++) {
        st_fault_arm(&(struct st_fault_spec){.site = "nvme.ring", .count = refused > 0 ? refused : 1, .result = -ENOMEM});
        if (refused == 0)
            st_fault_disarm();
        assert_int_equal(io_fixture_open(&f, st_io_find("uring", NULL), 16, BLOCK, 4), STRATA_OK);
        assert_int_equal(st_fault_disarm(), refused);
        f.ops->effective(f.io, &effective);
        assert_int_equal(effective.poll_kernel, refused == 0);
        assert_int_equal(effective.poll_device, refused < 2);
        assert_true(effective.unregistered);
        io_fixture_assert_works(&f);
        io_fixture_close(&f);
    }
    io_fixture_set_options(&(struct st_io_opts){0});
}

/* An older kernel: no deferred task work, no file table. */
TEST(uring_works_without_the_extras)
{
    static const char *const sites[] = {"nvme.ring", "nvme.files", "nvme.enter"};
    static const int64_t results[] = {-EINVAL, -EINVAL, -EBUSY};
    const char *why;

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
