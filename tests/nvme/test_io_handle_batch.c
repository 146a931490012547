/* tests/nvme/test_io_handle_batch.c - the public handle (strata/io.h): many transfers by one call, and the descriptor that says
 * when requests have ended. */
#include "core/base/fault.h"
#include "io_handle_fixture.h"
#include "tests/common/child.h"
#include "tests/common/scratch.h"
#include "tests/common/test.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PIECES = 300, BYTES = 5003 };

/* Writes of odd pieces, each read again by the same batch. */
TEST_EACH_HANDLE(a_batch_keeps_its_order)
{
    const struct handle_variant *v = *state;
    struct strata_io *io = handle_open(v);
    unsigned char *in = malloc(PIECES * BYTES), *out = calloc(PIECES, BYTES);
    struct strata_io_transfer transfers[2 * PIECES] = {0};
    struct strata_io_counters counters;
    struct strata_io_file *file;

    if (io == NULL) {
        free(in);
        free(out);
        skip();
    }
    file = handle_open_new(io, "batch", v->flags, PIECES * BYTES + 7);
    for (uint32_t i = 0; i < PIECES; i++) {
        memset(in + i * BYTES, (int)(i % 250) + 1, BYTES);
        transfers[2 * i] = (struct strata_io_transfer){file, i * BYTES + 7, in + i * BYTES, BYTES, true, {0}};
        transfers[2 * i + 1] = (struct strata_io_transfer){file, i * BYTES + 7, out + i * BYTES, BYTES, false, {0}};
    }
    assert_int_equal(strata_io_start(io, transfers, 2 * PIECES), STRATA_OK);
    for (uint32_t i = 0; i < 2 * PIECES; i++)
        assert_int_equal(strata_io_wait(io, transfers[i].request, -1, NULL), STRATA_OK);
    assert_memory_equal(in, out, PIECES * BYTES);
    assert_int_equal(strata_io_start(io, NULL, 0), STRATA_OK);
    strata_io_get_counters(io, &counters);
    assert_int_equal(counters.reads, PIECES);
    assert_int_equal(counters.writes, PIECES);
    assert_int_equal(strata_io_close(io), STRATA_OK);
    free(in);
    free(out);
}

static void assert_not_started(struct strata_io *io, struct strata_io_transfer *transfers, uint32_t count, strata_status st,
                               const char *cause)
{
    struct strata_io_counters counters;

    for (uint32_t i = 0; i < count; i++)
        transfers[i].request.bits = 77;
    assert_int_equal(strata_io_start(io, transfers, count), st);
    assert_non_null(strstr(strata_last_error(), cause));
    for (uint32_t i = 0; i < count; i++)
        assert_int_equal(transfers[i].request.bits, 77);
    assert_int_equal(strata_io_wait_all(io, -1), STRATA_OK);
    strata_io_get_counters(io, &counters);
    assert_int_equal(counters.reads + counters.writes + counters.failed, 0);
}

TEST_EACH_HANDLE(a_refused_batch_starts_nothing)
{
    const struct handle_variant *v = *state;
    struct strata_io *io = handle_open(v), *second = io != NULL ? handle_open(v) : NULL;
    struct strata_io_file *file, *foreign;
    struct strata_io_transfer transfers[8];
    char bytes[8] = "1234567";

    if (io == NULL)
        skip();
    file = handle_open_new(io, "refused", v->flags, 8);
    foreign = handle_open_new(second, "foreign", v->flags, 8);
    for (uint32_t i = 0; i < 8; i++)
        transfers[i] = (struct strata_io_transfer){file, i, &bytes[i], 1, true, {0}};
    transfers[6].file = foreign;
    assert_not_started(io, transfers, 8, STRATA_E_INVAL, "foreign");
    transfers[6] = (struct strata_io_transfer){file, INT64_MAX, &bytes[6], 1, true, {0}};
    assert_not_started(io, transfers, 8, STRATA_E_INVAL, "larger than any file");
    transfers[6].file = NULL;
    assert_not_started(io, transfers, 8, STRATA_E_INVAL, "file");
    assert_int_equal(strata_io_start(io, NULL, 1), STRATA_E_INVAL);
    assert_int_equal(strata_io_start(NULL, transfers, 1), STRATA_E_INVAL);
    transfers[6] = (struct strata_io_transfer){file, 6, &bytes[6], 1, true, {0}};
    st_fault_arm(&(struct st_fault_spec){.site = "nvme.alloc", .after = 5, .result = -ENOMEM});
    assert_not_started(io, transfers, 8, STRATA_E_NOMEM, "memory");
    assert_int_equal(st_fault_disarm(), 1);
    assert_int_equal(strata_io_start(io, transfers, 8), STRATA_OK);
    for (uint32_t i = 0; i < 8; i++)
        assert_int_equal(strata_io_wait(io, transfers[i].request, -1, NULL), STRATA_OK);
    assert_int_equal(strata_io_close(second), STRATA_OK);
    assert_int_equal(strata_io_close(io), STRATA_OK);
    if (strcmp(v->method, "fake") != 0)
        handle_assert_file("refused", (unsigned char *)bytes, 8);
}

static uint64_t ends(int fd)
{
    struct pollfd ready = {.fd = fd, .events = POLLIN};
    uint64_t count;

    assert_int_equal(poll(&ready, 1, 10000), 1);
    assert_int_equal(read(fd, &count, sizeof(count)), sizeof(count));
    return count;
}

/* An event loop with nothing but the descriptor sees each request end, those before the descriptor was asked for, too. */
TEST_EACH_HANDLE(the_descriptor_counts_what_ends)
{
    const struct handle_variant *v = *state;
    struct strata_io *io = handle_open(v);
    struct strata_io_transfer transfers[PIECES] = {0};
    static unsigned char in[PIECES];
    struct strata_io_file *file;
    strata_io_request early;
    int fd, again;

    if (io == NULL)
        skip();
    file = handle_open_new(io, "events", v->flags, PIECES);
    assert_int_equal(strata_io_write(file, 0, in, 1, &early), STRATA_OK);
    assert_int_equal(strata_io_wait_all(io, -1), STRATA_OK);
    assert_int_equal(strata_io_event_fd(io, &fd), STRATA_OK);
    assert_int_equal(strata_io_event_fd(io, &again), STRATA_OK);
    assert_int_equal(fd, again);
    assert_int_equal(ends(fd), 1);
    assert_int_equal(strata_io_poll(io, early, NULL), STRATA_OK);
    assert_int_equal(read(fd, &(uint64_t){0}, 8), -1);
    assert_int_equal(errno, EAGAIN);
    for (uint32_t i = 0; i < PIECES; i++)
        transfers[i] = (struct strata_io_transfer){file, i, in + i, 1, i % 2 == 0, {0}};
    assert_int_equal(strata_io_start(io, transfers, PIECES), STRATA_OK);
    assert_int_equal(strata_io_read(file, PIECES, in, 1, NULL), STRATA_OK); /* fails, and counts */
    for (uint64_t seen = 0; seen < PIECES + 1; seen += ends(fd))
        ;
    for (uint32_t i = 0; i < PIECES; i++)
        assert_int_equal(strata_io_poll(io, transfers[i].request, NULL), STRATA_OK);
    assert_int_equal(strata_io_wait_all(io, -1), STRATA_E_TRUNC);
    assert_int_equal(strata_io_close(io), STRATA_OK);
}

TEST(a_descriptor_is_refused)
{
    struct strata_io *io = handle_open_default();
    int fd = 77;
    pid_t pid;

    assert_int_equal(strata_io_event_fd(io, NULL), STRATA_E_INVAL);
    assert_int_equal(strata_io_event_fd(NULL, &fd), STRATA_E_INVAL);
    st_fault_arm(&(struct st_fault_spec){.site = "nvme.event_fd", .result = -EMFILE});
    assert_int_equal(strata_io_event_fd(io, &fd), STRATA_E_IO);
    assert_int_equal(st_fault_disarm(), 1);
    pid = child_fork();
    if (pid == 0)
        _exit(strata_io_event_fd(io, &fd) == STRATA_E_INVAL && strata_io_start(io, NULL, 0) == STRATA_E_INVAL ? 0 : 1);
    assert_int_equal(child_wait(pid), 0);
    assert_int_equal(fd, 77);
    assert_int_equal(strata_io_event_fd(io, &fd), STRATA_OK);
    assert_int_equal(strata_io_close(io), STRATA_OK);
}

TEST_GROUP(scratch_create, scratch_remove);
