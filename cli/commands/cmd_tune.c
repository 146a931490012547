/* cli/commands/cmd_tune.c - strata tune: searches request size and depth, and prints or writes the result as DeepSpeed's "aio"
 * section. */
#include "cli/commands/bench_run.h"
#include "cli/commands/commands.h"
#include "cli/commands/config_edit.h"
#include "cli/options/output.h"
#include "core/base/error.h"
#include "core/base/fault.h"
#include "core/base/print.h"
#include "core/base/wrap.h"
#include "core/yaml/yaml.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <unistd.h>

#define DIRS_MAX      8u
#define SECTION_BYTES 512u

static strata_status collect_dirs(const char *dirs[DIRS_MAX], uint32_t *count, const struct cli_args *args)
{
    if (args->nvme.count + args->positional.count > DIRS_MAX)
        return st_error(STRATA_E_INVAL, "at most %u directories", DIRS_MAX);
    for (uint32_t i = 0; i < args->nvme.count; i++)
        dirs[(*count)++] = args->nvme.items[i];
    for (uint32_t i = 0; i < args->positional.count; i++)
        dirs[(*count)++] = args->positional.items[i];
    return STRATA_OK;
}

static strata_status check_text(const char *path)
{
    const strata_status st = cli_config_edit_check(path, "aio");

    if ((st != STRATA_E_CONFIG && st != STRATA_E_INPUT) || !st_yaml_is_name(path))
        return st;
    return st_error(STRATA_E_INVAL, "--write %s: only JSON files can be changed: without --write the section is printed", path);
}

/* Checks the output before spending a minute on measuring. */
static strata_status begin(struct st_new_file *out, const struct cli_args *args)
{
    if (args->out != NULL && args->write_config != NULL)
        return st_error(STRATA_E_INVAL, "--out writes a new file, --write changes one: give one of them");
    if (args->write_config != NULL && (st_fault_refuses("tune.access") || access(args->write_config, R_OK) != 0) &&
        errno != ENOENT)
        return st_error_errno(errno, "--write %s", args->write_config);
    if (args->write_config != NULL && access(args->write_config, R_OK) != 0)
        return st_error(STRATA_E_INVAL, "--write %s: no such file to change: --out makes one", args->write_config);
    if (args->write_config != NULL) {
        const strata_status st = cli_output_check_place("--write", args->write_config);

        return st == STRATA_OK ? check_text(args->write_config) : st;
    }
    return cli_output_create(out, "--out", args->out, args);
}

/* Writes only DeepSpeed's own keys, so that the file stays a valid DeepSpeed configuration. */
static void section_text(char text[SECTION_BYTES], const struct bench_tuned *tuned)
{
    snprintf(
        text, SECTION_BYTES,
        "{\n        \"block_size\": %" PRIu32 ",\n        \"queue_depth\": %" PRIu32
        ",\n        \"intra_op_parallelism\": 1,\n        \"single_submit\": false,\n        \"overlap_events\": true\n    }",
        tuned->block_bytes, tuned->queue_depth);
}

static strata_status deliver(struct st_new_file *out, const struct bench_tuned *tuned, const struct cli_args *args)
{
    char section[SECTION_BYTES], whole[SECTION_BYTES + 64];
    strata_status st = STRATA_OK;

    section_text(section, tuned);
    snprintf(whole, sizeof(whole), "{\n    \"aio\": %s\n}\n", section);
    if (args->write_config != NULL)
        st = cli_config_edit_file(args->write_config, "aio", section);
    else if (args->out != NULL)
        st = cli_config_write_file(out, whole);
    if (st != STRATA_OK)
        return st;
    if (!tuned->method_is_auto)
        st_print(stderr, "by %s: set strata.io_method to \"%s\" as well\n", tuned->method, tuned->method);
    if (args->write_config != NULL || args->out != NULL)
        st_print(stderr, "written to %s\n", args->write_config != NULL ? args->write_config : args->out);
    st_print_text(stdout, whole);
    return STRATA_OK;
}

int cmd_tune(const struct cli_args *args)
{
    const char *dirs[DIRS_MAX];
    struct bench_tune_opts opts = {
        .dirs = dirs, .method = args->io_method, .bytes = args->size, .seconds = args->seconds, .hooks = cli_bench_hooks()};
    struct bench_tuned tuned = {0};
    FILE *wrapped;
    struct st_new_file out = {.fd = -1};
    strata_status st = begin(&out, args);

    if (st == STRATA_OK)
        st = collect_dirs(dirs, &opts.dir_count, args);
    if (st == STRATA_OK) {
        wrapped = st_wrap_open(stderr);
        st = bench_tune(&tuned, &opts, wrapped);
        st_wrap_close(wrapped, stderr);
    }
    if (st == STRATA_OK)
        st = deliver(&out, &tuned, args);
    st_new_file_abort(&out);
    return cli_bench_end(st);
}
