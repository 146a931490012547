/* cli/commands/cmd_export.c - writes a checkpoint's weights as a Hugging Face directory. */
#include "cli/commands/commands.h"
#include "cli/options/output.h"
#include "cli/report/progress.h"
#include "core/base/error.h"
#include "core/base/log.h"
#include "core/base/print.h"
#include "core/base/size.h"
#include "core/json/json.h"
#include "strata/adapter.h"
#include "strata/verify.h"

#include <stdio.h>

struct exporting {
    const struct cli_args *args;
    struct cli_progress progress;
    char path[4096]; /* of the checkpoint; "": none was opened */
    uint64_t step, bytes;
};

static void skipped(void *ctx, const char *path, const char *sentence)
{
    (void)ctx;
    st_log(ST_LOG_NOTICE, "%s does not open, and an older one is exported: %s", path, sentence);
}

static void opened(void *ctx, const struct strata_verify_info *info)
{
    struct exporting *e = ctx;

    snprintf(e->path, sizeof(e->path), "%s", info->path);
    e->step = info->step;
}

static bool watch(void *ctx, const char *what, uint64_t done, uint64_t total)
{
    struct exporting *e = ctx;

    e->bytes = total;
    return cli_progress_watch(&e->progress, what, done, total);
}

/* The sentence so far, and an older checkpoint that opens, if there is one. */
static strata_status offer_older(const char *path, const char *out)
{
    char sentence[2048], older[4096];

    snprintf(sentence, sizeof(sentence), "%s", strata_last_error());
    if (strata_verify_older(path, older) != STRATA_OK)
        return st_error(STRATA_E_CORRUPT, "%s; nothing is written", sentence);
    return st_error(STRATA_E_CORRUPT, "%s; nothing is written; %s, which is older, opens: strata export %s --out %s", sentence,
                    older, older, out);
}

static strata_status export_to(struct exporting *e, const char *path, const char *out)
{
    struct strata_export_opts how = STRATA_EXPORT_OPTS_INIT;
    struct strata_verify_opts opts = STRATA_VERIFY_OPTS_INIT;
    strata_status st = cli_output_check_dir("--out", out, e->args);

    how.overwrite = e->args->overwrite;
    opts.skipped = skipped;
    opts.opened = opened;
    opts.progress = watch;
    opts.ctx = e;
    if (st != STRATA_OK)
        return st;
    st = strata_verify_export(path, out, &how, &opts);
    cli_progress_work_end(&e->progress);
    return st == STRATA_E_CORRUPT && e->path[0] != '\0' ? offer_older(e->path, out) : st;
}

/* An adapter and the weights that it was trained beside. */
static strata_status merge_to(struct exporting *e, const struct cli_args *args)
{
    struct strata_merge_opts opts = STRATA_MERGE_OPTS_INIT;
    strata_status st = cli_output_check_dir("--out", args->out, args);

    if (st != STRATA_OK)
        return st;
    opts.adapter = args->adapter != NULL ? args->adapter : args->positional.items[0];
    opts.model = args->model;
    opts.out = args->out;
    opts.overwrite = args->overwrite;
    opts.progress = watch;
    opts.progress_ctx = e;
    snprintf(e->path, sizeof(e->path), "%s", opts.adapter);
    st = strata_adapter_merge(&opts);
    cli_progress_work_end(&e->progress);
    return st;
}

static void print_json(const struct exporting *e, const char *out)
{
    struct st_json_writer w;

    st_json_begin(&w, stdout);
    st_json_object_open(&w, NULL);
    st_json_put_string(&w, "path", e->path);
    if (!e->args->merge)
        st_json_put_u64(&w, "step", e->step);
    st_json_put_string(&w, "out", out);
    st_json_put_u64(&w, "bytes", e->bytes);
    st_json_object_close(&w);
    st_json_end_line(&w);
}

int cmd_export(const struct cli_args *args)
{
    struct exporting e = {.args = args};
    char bytes[24];
    strata_status st;

    cli_progress_init(&e.progress, stderr, args->quiet, 0, 0);
    st = args->merge ? merge_to(&e, args) : export_to(&e, args->positional.items[0], args->out);
    cli_progress_fini(&e.progress);
    if (st != STRATA_OK)
        return cli_fail(st);
    if (args->json)
        print_json(&e, args->out);
    else if (args->merge)
        st_print(stdout, "%s: %s of files, weights with the adapter of %s added\n", args->out, st_size_text(bytes, e.bytes),
                 e.path);
    else
        st_print(stdout, "%s: %s of weights, those of %s after %llu steps\n", args->out, st_size_text(bytes, e.bytes), e.path,
                 (unsigned long long)e.step);
    return 0;
}
