/* tests/nvme/io_handle_fixture.h - handles (strata/io.h) of every method, and files in the scratch directory. */
#ifndef TESTS_NVME_IO_HANDLE_FIXTURE_H
#define TESTS_NVME_IO_HANDLE_FIXTURE_H

#include "strata/strata.h"
#include "tests/common/test.h"

struct handle_variant {
    const char *method;
    uint32_t flags, depth, block_bytes;
    uint64_t buffer_bytes;
    uint32_t threads;
};

#define HANDLE_VARIANTS 8u
extern struct handle_variant handle_variants[HANDLE_VARIANTS];

#define HANDLE_ENTRY(name, i)                                                                                                    \
    TEST_ENTRY(name##_##i, cmocka_unit_test_prestate(name, &handle_variants[i]), NULL, NULL, NULL)
/** A test that runs once with each variant as its state. */
#define TEST_EACH_HANDLE(name)                                                                                                   \
    static void name(void **state);                                                                                              \
    HANDLE_ENTRY(name, 0);                                                                                                       \
    HANDLE_ENTRY(name, 1);                                                                                                       \
    HANDLE_ENTRY(name, 2);                                                                                                       \
    HANDLE_ENTRY(name, 3);                                                                                                       \
    HANDLE_ENTRY(name, 4);                                                                                                       \
    HANDLE_ENTRY(name, 5);                                                                                                       \
    HANDLE_ENTRY(name, 6);                                                                                                       \
    HANDLE_ENTRY(name, 7);                                                                                                       \
    static void name(void **state)

struct strata_io_opts handle_options(const struct handle_variant *v);
/** NULL: not on this machine, with a message. */
struct strata_io *handle_open(const struct handle_variant *v);
struct strata_io *handle_open_default(void);
/** A file of the scratch directory, to read and write, made where it is not there. */
struct strata_io_file *handle_open_new(struct strata_io *io, const char *name, uint32_t flags, uint64_t bytes);
uint64_t handle_size_on_disk(const char *name);
/** Fails unless the file holds these bytes and no more. */
void handle_assert_file(const char *name, const unsigned char *want, uint64_t bytes);

#endif
