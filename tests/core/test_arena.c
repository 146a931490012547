/* tests/core/test_arena.c - aligned, zeroed, resident once, given back whole. */
#include "core/system/arena.h"
#include "tests/common/test.h"

#include "core/base/fault.h"
#include "core/system/workers.h"
#include "core/trace/stats.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define MIB (UINT64_C(1) << 20)

static void check_arena(uint64_t bytes, struct st_workers *workers)
{
    uint64_t rounded = (bytes + 4095) / 4096 * 4096;
    struct st_arena arena;

    assert_int_equal(st_arena_create(&arena, "test", bytes, workers), STRATA_OK);
    assert_int_equal((uintptr_t)arena.base % (2 * MIB), 0);
    assert_int_equal(arena.bytes, rounded);
    for (uint64_t i = 0; i < rounded; i += 1021)
        assert_int_equal(arena.base[i], 0);
    memset(arena.base, 0xa5, rounded);
    st_arena_destroy(&arena);
    assert_null(arena.base);
    st_arena_destroy(&arena);
}

TEST(test_sizes)
{
    static const uint64_t sizes[] = {1, 4095, 4096, 4097, 2 * MIB - 1, 2 * MIB, 2 * MIB + 1, 5 * MIB};
    struct st_workers *workers;

    assert_int_equal(st_workers_create(&workers, 3, NULL), STRATA_OK);
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        check_arena(sizes[i], NULL);
        check_arena(sizes[i], workers);
    }
    st_workers_destroy(workers);
}

TEST(test_nothing)
{
    struct st_arena arena = {.bytes = 1};

    assert_int_equal(st_arena_create(&arena, "test", 0, NULL), STRATA_OK);
    assert_null(arena.base);
    assert_int_equal(arena.bytes, 0);
    st_arena_destroy(&arena);
}

static void assert_resident(const struct st_arena *arena)
{
    size_t pages = (size_t)(arena->bytes / 4096);
    unsigned char *resident = malloc(pages);

    assert_non_null(resident);
    assert_int_equal(mincore(arena->base, arena->bytes, resident), 0);
    for (size_t i = 0; i < pages; i++)
        assert_int_equal(resident[i] & 1, 1);
    free(resident);
}

/* All of it is resident after creation, and counts once. */
TEST(test_resident_once)
{
    const uint64_t bytes = 65 * MIB + 4096;
    struct st_workers *workers;
    struct st_arena arena;
    uint64_t before, made, used, gone;

    assert_int_equal(st_workers_create(&workers, 2, NULL), STRATA_OK);
    before = st_stats_rss_bytes();
    assert_int_equal(st_arena_create(&arena, "test", bytes, workers), STRATA_OK);
    made = st_stats_rss_bytes();
    assert_resident(&arena);
    memset(arena.base, 1, bytes);
    used = st_stats_rss_bytes();
    st_arena_destroy(&arena);
    gone = st_stats_rss_bytes();
    st_workers_destroy(workers);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) /* their shadow memory is resident, too */
    /* The kernel counts pages per thread and adds them up in batches: allow a little. */
    assert_true(made - before >= bytes - MIB && made - before <= bytes + MIB);
    assert_true(used <= made + MIB);
    assert_true(gone <= before + MIB);
#else
    assert_true(before > 0 && made > 0 && used > 0 && gone > 0);
#endif
}

TEST(test_refused)
{
    struct st_arena arena = {0};

    assert_int_equal(st_arena_create(&arena, "host", UINT64_MAX - 5, NULL), STRATA_E_NOMEM);
    assert_int_equal(st_arena_create(&arena, "host", UINT64_C(1) << 62, NULL), STRATA_E_NOMEM);
    st_fault_arm(&(struct st_fault_spec){.site = "arena.mmap", .result = -ENOMEM});
    assert_int_equal(st_arena_create(&arena, "host", 4096, NULL), STRATA_E_NOMEM);
    assert_int_equal(st_fault_disarm(), 1);
    assert_non_null(strstr(strata_last_error(), "host arena: 4.00 KiB"));
    assert_null(arena.base);
}
