/* cli/commands/cmd_digest.c - prints the digest of a directory's weights, or those of a checkpoint. */
#include "cli/commands/commands.h"
#include "core/base/log.h"
#include "core/base/print.h"
#include "core/json/json.h"
#include "strata/model.h"
#include "strata/verify.h"

#include <stdio.h>

struct named {
    char path[4096];
    uint64_t step;
};

static void skipped(void *ctx, const char *path, const char *sentence)
{
    (void)ctx;
    st_log(ST_LOG_NOTICE, "%s does not open, and an older one is read: %s", path, sentence);
}

static void opened(void *ctx, const struct strata_verify_info *info)
{
    struct named *n = ctx;

    snprintf(n->path, sizeof(n->path), "%s", info->path);
    n->step = info->step;
}

static void print_json(const char *dir, const char *weights, const char *state, uint64_t step)
{
    struct st_json_writer w;

    st_json_begin(&w, stdout);
    st_json_object_open(&w, NULL);
    st_json_put_string(&w, "dir", dir);
    st_json_put_string(&w, "weights_digest", weights);
    if (state != NULL) {
        st_json_put_string(&w, "state_digest", state);
        st_json_put_u64(&w, "step", step);
    }
    st_json_object_close(&w);
    st_json_end_line(&w);
}

int cmd_digest(const struct cli_args *args)
{
    struct strata_verify_opts opts = STRATA_VERIFY_OPTS_INIT;
    const char *dir = args->positional.items[0];
    struct named named = {.step = 0};
    char weights[33], state[33];
    bool found = false;
    const bool is_checkpoint = strata_verify_find(dir, &found) == STRATA_OK && found;
    strata_status st;

    opts.skipped = skipped;
    opts.opened = opened;
    opts.ctx = &named;
    st = is_checkpoint ? strata_verify_digest(dir, &opts, weights, state) : strata_directory_digest(dir, weights);
    if (st != STRATA_OK)
        return cli_fail(st);
    if (args->json)
        print_json(is_checkpoint ? named.path : dir, weights, is_checkpoint ? state : NULL, named.step);
    else if (is_checkpoint)
        st_print(stdout, "%s  %s, weights\n%s  %s, state\n", weights, named.path, state, named.path);
    else
        st_print(stdout, "%s  %s\n", weights, dir);
    return 0;
}
