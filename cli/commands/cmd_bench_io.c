/* cli/commands/cmd_bench_io.c - strata bench io: collects directories and lists from the command line and calls the bench. */
#include "cli/commands/bench_run.h"
#include "cli/commands/commands.h"
#include "core/base/error.h"
#include "core/base/wrap.h"

#include <stdio.h>

#define DIRS_MAX 8u

struct words {
    const char *items[DIRS_MAX];
    uint32_t count;
};

/* The directories of --nvme, then the plain words after "io". */
static strata_status collect_dirs(struct words *dirs, const struct cli_args *args)
{
    const uint32_t alone = args->positional.count - 1;

    if (args->nvme.count + alone > DIRS_MAX)
        return st_error(STRATA_E_INVAL, "at most %u directories", DIRS_MAX);
    for (uint32_t i = 0; i < args->nvme.count; i++)
        dirs->items[dirs->count++] = args->nvme.items[i];
    for (uint32_t i = 0; i < alone; i++)
        dirs->items[dirs->count++] = args->positional.items[1 + i];
    return STRATA_OK;
}

static void collect_patterns(struct words *patterns, const struct cli_args *args)
{
    if (args->patterns != NULL)
        patterns->items[patterns->count++] = args->patterns;
    if (args->read)
        patterns->items[patterns->count++] = "read";
    if (args->write)
        patterns->items[patterns->count++] = "write";
}

int cmd_bench_io(const struct cli_args *args)
{
    struct words dirs = {.count = 0}, patterns = {.count = 0};
    strata_status st = collect_dirs(&dirs, args);

    collect_patterns(&patterns, args);
    if (st == STRATA_OK) {
        const struct bench_io_opts opts = {
            .json = args->json,
            .dirs = dirs.items,
            .dir_count = dirs.count,
            .patterns = patterns.items,
            .pattern_count = patterns.count,
            .blocks = args->blocks.items,
            .block_count = args->blocks.count,
            .depths = args->depths.items,
            .depth_count = args->depths.count,
            .methods = &args->io_method,
            .method_count = args->io_method != NULL ? 1 : 0,
            .bytes = args->size,
            .seconds = args->seconds,
            .repeats = (uint32_t)args->repeats,
            .unregistered = args->unregistered,
            .poll_device = args->poll_device,
            .poll_kernel = args->poll_kernel,
            .fio = args->fio,
            .hooks = cli_bench_hooks(),
        };
        FILE *wrapped;

        wrapped = args->json || args->fio_job ? stdout : st_wrap_open(stdout);
        st = args->fio_job ? bench_io_fio_job(&opts, wrapped) : bench_io(&opts, wrapped);
        st_wrap_close(wrapped, stdout);
    }
    return cli_bench_end(st);
}
