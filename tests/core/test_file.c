/* tests/core/test_file.c - files are read without waiting, and what changes meanwhile is told. */
#include "core/base/fault.h"
#include "core/system/file.h"
#include "tests/common/assert_status.h"
#include "tests/common/kept_log.h"
#include "tests/common/scratch.h"
#include "tests/common/test.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void put_time_back(const char *name)
{
    const struct timespec long_ago[2] = {{.tv_sec = 1000}, {.tv_sec = 1000}};

    assert_int_equal(utimensat(AT_FDCWD, scratch_path(name), long_ago, 0), 0);
}

/* A file of this text that was last written to long ago, open. */
static int open_old(struct st_file_identity *was, const char *name, const char *text)
{
    int fd;

    scratch_put(name, text);
    put_time_back(name);
    assert_int_equal(st_file_open(&fd, was, scratch_path(name), STRATA_E_INPUT), STRATA_OK);
    return fd;
}

TEST_SETUP(what_is_written_while_it_is_read_is_told, scratch_begin, scratch_end)
{
    static const char *const later[] = {"second", "third one", "3rd", ""};
    struct st_file_identity was;
    char byte;
    int fd;

    for (size_t i = 0; i < sizeof(later) / sizeof(later[0]); i++) {
        fd = open_old(&was, "a", "first ");
        assert_int_equal(was.bytes, 6);
        assert_int_equal(st_file_read_at(fd, &byte, 1, 0, "a"), STRATA_OK);
        assert_int_equal(st_file_check_unchanged(fd, &was, "a"), STRATA_OK);
        scratch_put("a", later[i]);
        assert_refused(st_file_check_unchanged(fd, &was, "a"), STRATA_E_INPUT, "a changed while it was read");
        close(fd);
    }
}

/* Of the inode; the file system's clock has ticks. */
TEST_SETUP(a_time_that_was_set_back_hides_nothing, scratch_begin, scratch_end)
{
    struct st_file_identity was, is;
    const int fd = open_old(&was, "a", "first");

    do {
        scratch_put("a", "other");
        put_time_back("a");
        assert_int_equal(st_file_identify(&is, fd, "a"), STRATA_OK);
    } while (is.changed.tv_sec == was.changed.tv_sec && is.changed.tv_nsec == was.changed.tv_nsec);
    assert_int_equal(is.modified.tv_sec, was.modified.tv_sec);
    assert_refused(st_file_check_unchanged(fd, &was, "a"), STRATA_E_INPUT, "changed while it was read");
    close(fd);
}

/* A file that was cut is as long as it is now, wherever the read began. */
TEST_SETUP(a_file_that_was_cut_says_where_it_ends, scratch_begin, scratch_end)
{
    struct st_file_identity was;
    const int fd = open_old(&was, "a", "first");
    char bytes[32];

    assert_refused(st_file_read_at(fd, bytes, 6, 0, "a"), STRATA_E_INPUT,
                   "a is too short: it ends at byte 5, and its header promises 1 bytes at byte 5");
    assert_refused(st_file_read_at(fd, bytes, 8, 100, "a"), STRATA_E_INPUT,
                   "a is too short: it ends at byte 5, and its header promises 8 bytes at byte 100");
    close(fd);
}

/* The open file is what it was. */
TEST_SETUP(replacing_or_removing_is_no_change, scratch_begin, scratch_end)
{
    struct st_file_identity was;
    int fd = open_old(&was, "a", "first"), ends[2];

    scratch_put("b", "other");
    assert_int_equal(rename(scratch_path("b"), scratch_path("a")), 0);
    assert_int_equal(st_file_check_unchanged(fd, &was, "a"), STRATA_OK);
    close(fd);
    fd = open_old(&was, "a", "first");
    assert_int_equal(unlink(scratch_path("a")), 0);
    assert_int_equal(st_file_check_unchanged(fd, &was, "a"), STRATA_OK);
    close(fd);
    assert_int_equal(pipe(ends), 0);
    assert_int_equal(st_file_identify(&was, ends[0], "pipe"), STRATA_OK);
    assert_int_equal(write(ends[1], "x", 1), 1);
    assert_int_equal(st_file_check_unchanged(ends[0], &was, "pipe"), STRATA_OK);
    close(ends[0]);
    close(ends[1]);
}

TEST_SETUP(a_text_that_changed_is_not_returned, scratch_begin, scratch_end)
{
    uint64_t bytes;
    char *text;

    scratch_put("a", "text");
    st_fault_arm(&(struct st_fault_spec){.site = "file.changed", .result = -ESTALE});
    assert_refused(st_file_read_text(&text, &bytes, scratch_path("a"), 100), STRATA_E_INPUT, "changed while it was read");
    assert_int_equal(st_fault_disarm(), 1);
}

TEST_SETUP(a_text_has_a_size_that_it_may_have, scratch_begin, scratch_end)
{
    uint64_t bytes;
    char *text;

    scratch_put("a", "text");
    assert_refused(st_file_read_text(&text, &bytes, scratch_path("a"), 3), STRATA_E_INPUT,
                   "a: 4 bytes, more than the 3 such a file may have");
    assert_int_equal(st_file_read_text(&text, &bytes, scratch_path("a"), 4), STRATA_OK);
    assert_int_equal(bytes, 4);
    free(text);
}

TEST_SETUP(outputs_are_apart_from_inputs, scratch_begin, scratch_end)
{
    scratch_put("a", "text");
    scratch_put("b", "text");
    assert_int_equal(symlink("a", scratch_path("link")), 0);
    assert_int_equal(link(scratch_path("a"), scratch_path("hard")), 0);
    assert_refused(st_file_check_apart(scratch_path("a"), scratch_path("a")), STRATA_E_INPUT,
                   "which this command reads: name another one");
    assert_refused(st_file_check_apart(scratch_path("a"), scratch_path("link")), STRATA_E_INPUT, "is the same file as");
    assert_refused(st_file_check_apart(scratch_path("hard"), scratch_path("a")), STRATA_E_INPUT, "is the same file as");
    assert_int_equal(st_file_check_apart(scratch_path("b"), scratch_path("a")), STRATA_OK);
    assert_int_equal(st_file_check_apart(scratch_path("new"), scratch_path("a")), STRATA_OK);
    assert_int_equal(st_file_check_apart(scratch_path("a"), scratch_path("missing")), STRATA_OK);
    assert_int_equal(st_file_check_apart(scratch_path("a"), scratch_path("a/below")), STRATA_OK); /* is no file */
}

TEST_SETUP(only_what_does_not_exist_is_absent, scratch_begin, scratch_end)
{
    bool there = true;

    assert_int_equal(st_file_find(&there, scratch_path("a")), STRATA_OK);
    assert_false(there);
    assert_int_equal(symlink("loop", scratch_path("loop")), 0);
    assert_int_equal(st_file_find(&there, scratch_path("loop")), STRATA_OK);
    assert_true(there);
    assert_refused(st_file_find(&there, scratch_path("loop/a")), STRATA_E_INPUT, "loop/a: Too many levels");
    scratch_put("file", "text");
    assert_refused(st_file_find(&there, scratch_path("file/a")), STRATA_E_INPUT, "file/a: Not a directory");
}

TEST_SETUP(reading_never_waits, scratch_begin, scratch_end)
{
    struct st_file_identity was;
    uint64_t bytes;
    char *text;
    int fd, writer;

    assert_int_equal(mkfifo(scratch_path("pipe"), 0600), 0);
    assert_refused(st_file_open(&fd, &was, scratch_path("pipe"), STRATA_E_INPUT), STRATA_E_INPUT, "a device or a pipe");
    assert_refused(st_file_read_text(&text, &bytes, scratch_path("pipe"), 100), STRATA_E_INPUT, "a device or a pipe");
    assert_refused(st_file_open(&fd, &was, "/dev/zero", STRATA_E_INPUT), STRATA_E_INPUT, "a device or a pipe");
    assert_refused(st_file_open(&fd, &was, scratch_dir, STRATA_E_INPUT), STRATA_E_INPUT, "a directory");
    assert_refused(st_file_open_stream(&fd, &was, "/dev/zero", STRATA_E_INPUT), STRATA_E_INPUT, "a device or a pipe");
    assert_refused(st_file_open_stream(&fd, &was, scratch_path("pipe"), STRATA_E_INPUT), STRATA_E_INPUT,
                   "pipe: is a pipe that nobody writes to");
    writer = open(scratch_path("pipe"), O_RDWR | O_NONBLOCK | O_CLOEXEC);
    assert_true(writer >= 0);
    assert_int_equal(st_file_open_stream(&fd, &was, scratch_path("pipe"), STRATA_E_INPUT), STRATA_OK);
    close(fd);
    st_fault_arm(&(struct st_fault_spec){.site = "file.pipe", .count = 1, .result = -EMFILE});
    assert_refused(st_file_open_stream(&fd, &was, scratch_path("pipe"), STRATA_E_INPUT), STRATA_E_IO,
                   "pipe: Too many open files");
    assert_int_equal(st_fault_disarm(), 1);
    assert_int_equal(write(writer, "xy", 2), 2);
    assert_int_equal(st_file_open_stream(&fd, &was, scratch_path("pipe"), STRATA_E_INPUT), STRATA_OK);
    assert_int_equal(read(fd, &text, 2), 2);              /* none was taken by looking */
    assert_int_equal(fcntl(fd, F_GETFL) & O_NONBLOCK, 0); /* it waits for a writer that is there */
    close(writer);
    close(fd);
    scratch_put("real", "text");
    assert_int_equal(symlink("real", scratch_path("link")), 0);
    assert_int_equal(st_file_read_text(&text, &bytes, scratch_path("link"), 4), STRATA_OK);
    assert_string_equal(text, "text");
    free(text);
}

static void set_aside(const char *expected)
{
    char to[ST_PATH_MAX];

    assert_int_equal(st_file_set_aside(to, scratch_path("a")), STRATA_OK);
    assert_string_equal(to, expected[0] == '\0' ? "" : scratch_path(expected));
}

/* Nothing that has a name loses it to what is set aside. */
TEST_SETUP(what_is_set_aside_replaces_nothing, scratch_begin, scratch_end)
{
    char path[ST_PATH_MAX], to[ST_PATH_MAX];

    set_aside("");
    scratch_put("a", "first");
    scratch_put("a.2", "another's");
    set_aside("a.1");
    scratch_put("a", "second");
    set_aside("a.3");
    scratch_holds("a.1", "first");
    scratch_holds("a.2", "another's");
    scratch_holds("a.3", "second");
    set_aside("");
    scratch_put("a", "third");
    st_fault_arm(
        &(struct st_fault_spec){.site = "file.aside", .count = 1, .result = -EINVAL}); /* a file system that only links */
    set_aside("a.4");
    assert_int_equal(st_fault_disarm(), 1);
    scratch_put("a", "fourth");
    st_fault_arm(&(struct st_fault_spec){.site = "file.aside", .count = 1, .result = -EIO});
    assert_int_equal(st_file_set_aside(to, scratch_path("a")), STRATA_E_IO);
    assert_int_equal(st_fault_disarm(), 1);
    memset(path, 'x', sizeof(path) - 1);
    path[sizeof(path) - 1] = '\0';
    assert_int_equal(st_file_set_aside(to, path), STRATA_E_INPUT);
}

/* That the kernel has no such file, or does not show it, is no news; that it cannot be looked at is.  That no descriptor is free
 * is told once, as many such files are opened in a row. */
TEST_SETUP(a_file_of_the_kernel_may_be_absent, scratch_begin, scratch_end)
{
    static const struct {
        int64_t result;
        uint32_t said;
    } rows[] = {{-ENOENT, 0}, {-ENOTDIR, 0}, {-EACCES, 0}, {-EPERM, 0}, {-EMFILE, 1}, {-EMFILE, 0}, {-ENFILE, 0}, {-EIO, 1}, {-EIO, 1}};
    int fd;

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        st_fault_arm(&(struct st_fault_spec){.site = "kernel.open", .count = 1, .result = rows[i].result});
        kept_log_begin(ST_LOG_WARN);
        assert_int_equal(st_kernel_file_open(scratch_path("a")), -1);
        kept_log_end();
        assert_int_equal(st_fault_disarm(), 1);
        assert_int_equal(kept_log.count, rows[i].said);
        if (rows[i].said > 0)
            assert_non_null(strstr(kept_log.last, "/a: "));
    }
    scratch_put("a", "text");
    fd = st_kernel_file_open(scratch_path("a"));
    assert_true(fd >= 0);
    close(fd);
}
