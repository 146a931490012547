/* tests/nvme/test_io_handle_limits.c - the public handle (strata/io.h) where the system has less to give than is asked for. */
#include "core/base/fault.h"
#include "io_handle_fixture.h"
#include "tests/common/kept_log.h"
#include "tests/common/scratch.h"
#include "tests/common/test.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

static void limit_files(rlim_t bytes)
{
    struct rlimit limit;

    assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
    limit.rlim_cur = bytes != RLIM_INFINITY ? bytes : limit.rlim_max;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
}

/* Wherever the limit lies in a block, and whatever the write's alignment: the system moves what there is room for, and says why
 * no more only when it is asked again from there.  A full disk is the same case. */
TEST_EACH_HANDLE(a_write_past_a_limit_says_so)
{
    static const struct {
        uint64_t limit, offset, bytes;
    } rows[] = {{12288, 0, 49152}, {10240, 0, 49152},    {10000, 0, 49152},
                {10000, 3, 50001}, {10240, 4099, 16384}, {8192, 8192, 1}};
    const struct handle_variant *v = *state;
    unsigned char *buf = aligned_alloc(4096, 65536), *back = aligned_alloc(4096, 65536);
    struct strata_io *io = handle_open(v);

    if (io == NULL || strcmp(v->method, "fake") == 0) { /* memory has no such limit */
        if (io != NULL)
            assert_int_equal(strata_io_close(io), STRATA_OK);
        free(buf);
        free(back);
        skip();
    }
    signal(SIGXFSZ, SIG_IGN);
    memset(buf, 'x', 65536);
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct strata_io_file *file = handle_open_new(io, "limited", v->flags | STRATA_IO_TRUNCATE, 0);
        struct strata_io_result result;
        strata_io_request request;
        strata_status st;

        limit_files(rows[i].limit);
        assert_int_equal(strata_io_write(file, rows[i].offset, buf, rows[i].bytes, &request), STRATA_OK);
        st = strata_io_wait(io, request, -1, &result);
        limit_files(RLIM_INFINITY);
        if (st != STRATA_E_NOSPC || result.system_error != EFBIG)
            fail_msg("%s, row %zu: %s (errno %d): %s", v->method, i, strata_status_text(st), result.system_error,
                     strata_last_error());
        assert_non_null(strstr(strata_last_error(), "limited: write of "));
        assert_true(strata_io_file_bytes(file) <= rows[i].limit);
        assert_int_equal(strata_io_file_bytes(file), handle_size_on_disk("limited"));
        /* The same without a limit. */
        assert_int_equal(strata_io_write(file, rows[i].offset, buf, rows[i].bytes, &request), STRATA_OK);
        assert_int_equal(strata_io_wait(io, request, -1, NULL), STRATA_OK);
        memset(back, 0, 65536);
        assert_int_equal(strata_io_read(file, rows[i].offset, back, rows[i].bytes, &request), STRATA_OK);
        assert_int_equal(strata_io_wait(io, request, -1, NULL), STRATA_OK);
        assert_memory_equal(back, buf, rows[i].bytes);
        assert_int_equal(handle_size_on_disk("limited"), rows[i].offset + rows[i].bytes);
        assert_int_equal(strata_io_close_file(file), STRATA_OK);
    }
    signal(SIGXFSZ, SIG_DFL);
    assert_int_equal(strata_io_close(io), STRATA_OK);
    free(buf);
    free(back);
}

/* The choice is made with a depth of 1; for the real one a user's locked memory may be too little. */
TEST(automatic_is_what_works_with_this_depth)
{
    const struct strata_io_opts depth = {.opts_size = sizeof(depth), .queue_depth = 512},
                                named = {.opts_size = sizeof(named), .queue_depth = 512, .method = "uring"};
    struct strata_io *io = NULL;
    bool has_ring;

    assert_int_equal(strata_io_open(&io, NULL), STRATA_OK);
    has_ring = strcmp(strata_io_get_method(io), "uring") == 0;
    assert_int_equal(strata_io_close(io), STRATA_OK);
    if (!has_ring)
        skip();
    kept_log_begin(ST_LOG_NOTICE);
    st_fault_arm(&(struct st_fault_spec){.site = "nvme.ring", .after = 1, .count = 1, .result = -ENOMEM});
    assert_int_equal(strata_io_open(&io, &depth), STRATA_OK);
    assert_int_equal(st_fault_disarm(), 1);
    kept_log_end();
    assert_string_not_equal(strata_io_get_method(io), "uring");
    assert_int_equal(kept_log.count, 1);
    assert_non_null(strstr(kept_log.last, "io_uring with queue depth 512"));
    assert_non_null(strstr(kept_log.last, "using I/O method"));
    assert_int_equal(strata_io_close(io), STRATA_OK);
    /* Who names one gets that one or none. */
    st_fault_arm(&(struct st_fault_spec){.site = "nvme.ring", .count = 1, .result = -ENOMEM});
    assert_int_equal(strata_io_open(&io, &named), STRATA_E_NOMEM);
    assert_int_equal(st_fault_disarm(), 1);
}

TEST_GROUP(scratch_create, scratch_remove);
