/* cli/commands/cmd_bench.c - strata bench NAME: checks the options against those that the bench takes, sets up signals, and calls
 * the bench. */
#include "cli/commands/bench_run.h"
#include "cli/commands/commands.h"
#include "core/base/error.h"
#include "core/base/word.h"
#include "core/base/wrap.h"

#include <stdio.h>
#include <string.h>

/* Options that not every bench takes. */
enum {
    TAKES_PARAMS = 1,
    TAKES_BYTES = 2,
    TAKES_NVME = 4,
    TAKES_IO_METHOD = 8,
    TAKES_ISA = 16,
    TAKES_LAYOUT = 32,
    TAKES_DEVICE = 64
};

struct bench_command {
    const char *name;
    strata_status (*run)(const struct bench_opts *opts, FILE *out);
    unsigned takes;
};

static const struct bench_command benches[] = {
    {"optim", bench_optim, TAKES_PARAMS | TAKES_ISA | TAKES_LAYOUT},
    {"link", bench_link, TAKES_BYTES | TAKES_DEVICE},
    {"update", bench_update, TAKES_PARAMS | TAKES_NVME | TAKES_IO_METHOD | TAKES_ISA},
};
#define BENCH_COUNT (sizeof(benches) / sizeof(benches[0]))

static strata_status find_bench(const struct bench_command **out, const char *name)
{
    const struct bench_command *nearest = NULL;
    uint32_t edits_least = st_word_edits_most(name) + 1;

    for (size_t i = 0; i < BENCH_COUNT; i++) {
        const uint32_t edits = st_word_edits(name, benches[i].name);

        if (strcmp(name, benches[i].name) == 0) {
            *out = &benches[i];
            return STRATA_OK;
        }
        if (edits < edits_least) {
            edits_least = edits;
            nearest = &benches[i];
        }
    }
    if (nearest != NULL)
        return st_error(STRATA_E_INVAL, "unknown bench \"%s\": did you mean %s?", name, nearest->name);
    return st_error(STRATA_E_INVAL, "unknown bench \"%s\": strata bench --help lists them", name);
}

static strata_status check_options(const struct bench_command *bench, const struct cli_args *args)
{
    const struct {
        unsigned bit;
        bool given;
        const char *name;
    } options[] = {
        {TAKES_PARAMS, args->params.count > 0, "--params"},
        {TAKES_BYTES, args->bytes != 0, "--bytes"},
        {TAKES_NVME, args->nvme.count > 0, "--nvme"},
        {TAKES_IO_METHOD, args->io_method != NULL, "--io-method"},
        {TAKES_ISA, args->isa != NULL, "--isa"},
        {TAKES_LAYOUT, args->layouts.count > 0, "--layout"},
        {TAKES_NVME, args->likes.count > 0, "--like"},
        {TAKES_DEVICE, strcmp(args->device, "cpu") != 0, "--device"},
    };

    for (size_t i = 0; i < sizeof(options) / sizeof(options[0]); i++)
        if (options[i].given && (bench->takes & options[i].bit) == 0)
            return st_error(STRATA_E_INVAL, "bench %s does not take %s: strata bench --help says which does", bench->name,
                            options[i].name);
    if (args->params.count > 1 && bench->run == bench_update)
        return st_error(STRATA_E_INVAL, "bench %s takes one number of parameters: run it once for each", bench->name);
    if (args->nvme.count > 1)
        return st_error(STRATA_E_INVAL, "bench %s takes one directory: run it once for each", bench->name);
    if (args->io_method != NULL && args->nvme.count == 0)
        return st_error(STRATA_E_INVAL, "--io-method needs --nvme DIR");
    return STRATA_OK;
}

static int run(const struct bench_command *bench, const struct cli_args *args)
{
    const struct bench_opts opts = {
        .json = args->json,
        .threads = (uint32_t)args->threads,
        .repeats = (uint32_t)args->repeats,
        .params = args->params.count > 0 ? args->params.items[0] : 0,
        .sizes = args->params.items,
        .size_count = args->params.count,
        .layouts = args->layouts.items,
        .layout_count = args->layouts.count,
        .bytes = args->bytes,
        .device = args->device,
        .isa = args->isa,
        .dirs = args->nvme.items,
        .dir_count = args->nvme.count,
        .likes = args->likes.items,
        .like_count = args->likes.count,
        .io_method = args->io_method,
        .hooks = cli_bench_hooks(),
    };
    strata_status st;
    FILE *wrapped;

    wrapped = opts.json ? stdout : st_wrap_open(stdout);
    st = bench->run(&opts, wrapped);
    st_wrap_close(wrapped, stdout);
    return cli_bench_end(st);
}

int cmd_bench(const struct cli_args *args)
{
    const struct bench_command *bench = NULL;
    strata_status st = find_bench(&bench, args->positional.items[0]);

    if (st == STRATA_OK)
        st = check_options(bench, args);
    return st == STRATA_OK ? run(bench, args) : cli_fail(st);
}
