/* tests/nvme/io_fixture.h - one io with one file, and requests that cover it block by block. */
#ifndef TESTS_NVME_IO_FIXTURE_H
#define TESTS_NVME_IO_FIXTURE_H

#include "nvme/method/io.h"
#include <stddef.h>

#define BLOCK      4096u
#define BLOCKS_MAX 64u

struct io_fixture {
    const struct st_io_ops *ops;
    struct st_io *io;
    int fd;
    uint32_t file;
    uint32_t block_bytes, block_count;
    unsigned char *buf, *want; /* [block_count * block_bytes] */
    struct st_io_req reqs[BLOCKS_MAX];
    strata_status status[BLOCKS_MAX];
    uint32_t done_of[BLOCKS_MAX]; /* calls of done() per request since the last start */
    uint32_t order[BLOCKS_MAX];   /* requests in the order of completion */
    uint32_t submit_count, done_count;
    strata_status worst;
    char sentence[512]; /* of the last failure */
    uint32_t resubmit;  /* done() submits its request again so often */
};

/** Options of the ios that fixtures open from now on; queue_depth and fake_seed are theirs. */
void io_fixture_set_options(const struct st_io_opts *opts);
struct st_io_opts io_fixture_options(uint32_t depth);
/** A file of `file_bytes`, an io with it, and random bytes in want[]; what was made so far is freed by close in any case. */
strata_status io_fixture_open_sized(struct io_fixture *f, const struct st_io_ops *ops, uint32_t blocks, uint32_t block_bytes,
                                    uint32_t depth, uint64_t file_bytes);
strata_status io_fixture_open(struct io_fixture *f, const struct st_io_ops *ops, uint32_t blocks, uint32_t block_bytes,
                              uint32_t depth);
void io_fixture_close(struct io_fixture *f);
/** Forget what requests did so far. */
void io_fixture_clear(struct io_fixture *f);
/** Request `index`, ready to submit; a sync moves none of its block's bytes. */
struct st_io_req *io_fixture_prepare(struct io_fixture *f, uint32_t index, enum st_io_op op);
/** Every block once, reaping where the queue is full.  The worst status of a request, or what submit() said. */
strata_status io_fixture_run_all(struct io_fixture *f, enum st_io_op op);
strata_status io_fixture_write_all(struct io_fixture *f); /* want[] */
strata_status io_fixture_read_all(struct io_fixture *f);  /* into buf[] */
void io_fixture_assert_data(const struct io_fixture *f);  /* buf[] is want[] */
void io_fixture_assert_reads(struct io_fixture *f);       /* read_all() gives want[] */
void io_fixture_assert_works(struct io_fixture *f);       /* write_all(), and read_all() gives it back */
/** What a sync of the file says, or submit(). */
strata_status io_fixture_sync(struct io_fixture *f);
/** Submits request `index`, prepared afresh or as it is, which must be taken. */
struct st_io_req *io_fixture_start(struct io_fixture *f, uint32_t index, enum st_io_op op);
void io_fixture_submit(struct io_fixture *f, struct st_io_req *req);
/** Reaps until so many requests have ended since the last clear. */
void io_fixture_reap(struct io_fixture *f, uint32_t done_count);
/** An unlinked file; direct I/O where it works. */
int io_temporary_file(uint64_t bytes);

/** Run the tests of `file` once for each variant whose method this machine has; fixtures open that one meanwhile, and tests take
 * its method by io_method_of().  How many failed. */
int io_run_variants(const char *file);
const struct st_io_ops *io_method_of(void **state);

#endif
