/* tests/cli/test_data.c - token files that change or fail while a run reads them: a sentence, never another number. */
#include "tests/cli/program.h"
#include "tests/cli/workplace.h"
#include "tests/common/test.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define HEADER_BYTES 1024

/* More lines than a pipe holds: the run cannot end before its output is read. */
static const char long_run[] = "train --model nano --data {w}/mine.bin --seq-len 32 --max-steps 3000 --machine {w}/machine.json "
                               "--out {w}/out --digest";

static void copy_of_good(const struct workplace *w)
{
    size_t bytes;
    char *good = workplace_read(w, "good.bin", &bytes);

    workplace_write(w, "mine.bin", good, bytes);
    free(good);
}

/* Starts the run, changes the file once a step is done, and expects exit code 2 and a sentence that names the file: this one, or
 * that it changed, where that is seen first. */
static void refused_after(const struct workplace *w, void (*change)(int fd), const char *sentence)
{
    char path[256];
    struct program p;
    int fd;

    copy_of_good(w);
    snprintf(path, sizeof(path), "%s/mine.bin", w->path);
    fd = open(path, O_RDWR | O_CLOEXEC);
    assert_true(fd >= 0);
    workplace_start_piped(w, &p, long_run);
    program_wait_for(&p, "step 1/");
    change(fd);
    program_drain(&p);
    program_wait(&p);
    close(fd);
    if (p.code != 2 || strstr(p.err, "mine.bin") == NULL ||
        (strstr(p.err, sentence) == NULL && strstr(p.err, "changed while it was read") == NULL))
        fail_msg("exit code %d: %s", p.code, p.err);
    assert_false(workplace_exists(w, "out"));
    program_free(&p);
    workplace_remove(w, "mine.bin");
}

static void cut_off(int fd)
{
    assert_int_equal(ftruncate(fd, HEADER_BYTES + 1000), 0);
}

static void overwrite(int fd)
{
    char ones[4096];
    const off_t end = lseek(fd, 0, SEEK_END);

    memset(ones, 0xff, sizeof(ones));
    for (off_t at = HEADER_BYTES; at < end; at += (off_t)sizeof(ones)) {
        const size_t part = end - at < (off_t)sizeof(ones) ? (size_t)(end - at) : sizeof(ones);

        assert_int_equal(pwrite(fd, ones, part, at), part);
    }
}

TEST(a_file_that_shrinks_ends_the_run)
{
    refused_after(*state, cut_off, "is too short");
}

TEST(a_file_that_is_overwritten_ends_the_run)
{
    refused_after(*state, overwrite, "changed while it was read");
}

TEST_GROUP(workplace_setup, workplace_teardown);
