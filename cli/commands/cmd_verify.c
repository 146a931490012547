/* cli/commands/cmd_verify.c - reads all of a checkpoint and says whether it is what was written; lists what runs left behind. */
#include "cli/commands/commands.h"
#include "cli/report/progress.h"
#include "core/base/error.h"
#include "core/base/print.h"
#include "core/base/size.h"
#include "core/json/json.h"
#include "strata/verify.h"

#include <stdio.h>

#define SHOWN_MOST 20u /* damages that are printed; all are counted, and listed as JSON */

struct verification {
    const struct cli_args *args;
    struct cli_progress progress;
    struct st_json_writer json;
    char path[4096]; /* of the checkpoint that is read; "": none yet */
    uint32_t skipped;
    uint64_t damages;
    uint32_t stay; /* leftovers that a sweep could not remove */
};

/* --- a checkpoint --- */

static bool watch(void *ctx, const char *what, uint64_t done, uint64_t total)
{
    struct verification *v = ctx;

    return v->args->quiet || cli_progress_watch(&v->progress, what, done, total);
}

static void put_damage(struct st_json_writer *w, const struct strata_damage *d)
{
    st_json_object_open(w, NULL);
    st_json_put_string(w, "file", d->file);
    st_json_put_u64(w, "offset", d->offset);
    st_json_put_string(w, "plane", d->plane);
    st_json_put_string(w, "tensor", d->tensor);
    st_json_put_u64(w, "page", d->page);
    st_json_put_u64(w, "group", d->group);
    st_json_put_u64(w, "first", d->first);
    st_json_put_u64(w, "elems", d->elems);
    st_json_put_string(w, "why", d->why);
    st_json_object_close(w);
}

static void damaged(void *ctx, const struct strata_damage *d)
{
    struct verification *v = ctx;

    if (v->args->json) {
        put_damage(&v->json, d);
    } else if (v->damages++ < SHOWN_MOST) {
        cli_progress_close_line(&v->progress);
        st_print(stdout, "%s, from byte %llu on: %s of %s%s(page %u, group %u, elements %llu to %llu): %s\n", d->file,
                 (unsigned long long)d->offset, d->plane, d->tensor, d->tensor[0] != '\0' ? " " : "", d->page, d->group,
                 (unsigned long long)d->first, (unsigned long long)(d->first + d->elems - 1), d->why);
    }
}

static void skipped(void *ctx, const char *path, const char *sentence)
{
    struct verification *v = ctx;

    v->skipped++;
    if (!v->args->json) {
        st_print(stdout, "%s does not open: %s\n", path, sentence);
        return;
    }
    st_json_object_open(&v->json, NULL);
    st_json_put_string(&v->json, "path", path);
    st_json_put_string(&v->json, "why", sentence);
    st_json_object_close(&v->json);
}

static void opened(void *ctx, const struct strata_verify_info *info)
{
    struct verification *v = ctx;
    char bytes[24];

    snprintf(v->path, sizeof(v->path), "%s", info->path);
    if (!v->args->json) {
        st_print(stdout, "%s: step %llu of run %s, model %s, %s in %llu tiles\n", info->path, (unsigned long long)info->step,
                 info->run, info->model, st_size_text(bytes, info->bytes), (unsigned long long)info->tiles);
        return;
    }
    st_json_array_close(&v->json); /* of those passed over */
    st_json_put_string(&v->json, "path", info->path);
    st_json_put_u64(&v->json, "step", info->step);
    st_json_put_string(&v->json, "run", info->run);
    st_json_put_string(&v->json, "model", info->model);
    st_json_put_string(&v->json, "version", info->version);
    st_json_put_u64(&v->json, "bytes", info->bytes);
    st_json_put_u64(&v->json, "tiles", info->tiles);
    st_json_array_open(&v->json, "damages");
}

/* The sentence so far, and an older checkpoint that opens, if there is one. */
static strata_status offer_older(struct verification *v, const char *path)
{
    char sentence[2048], older[4096];

    snprintf(sentence, sizeof(sentence), "%s", strata_last_error());
    if (strata_verify_older(path, older) != STRATA_OK)
        return st_error(STRATA_E_CORRUPT, "%s; there is no older one that opens", sentence);
    if (v->args->json)
        st_json_put_string(&v->json, "older", older);
    return st_error(STRATA_E_CORRUPT, "%s; %s, which is older, opens: strata verify %s reads all of it", sentence, older, older);
}

static strata_status verify(struct verification *v, const char *path)
{
    struct strata_verify_opts opts = STRATA_VERIFY_OPTS_INIT;
    uint64_t damages = 0;
    strata_status st;

    opts.skipped = skipped;
    opts.opened = opened;
    opts.damaged = damaged;
    opts.progress = watch;
    opts.ctx = v;
    if (v->args->json)
        st_json_array_open(&v->json, "skipped");
    st = strata_verify(path, &opts, &damages);
    cli_progress_work_end(&v->progress);
    if (v->args->json)
        st_json_array_close(&v->json); /* of damages, or still of those passed over */
    else if (damages > SHOWN_MOST)
        st_print(stdout, "and %llu more\n", (unsigned long long)(damages - SHOWN_MOST));
    if (st == STRATA_E_CORRUPT && (v->path[0] != '\0' || v->skipped == 0)) /* else none of a directory opens */
        return offer_older(v, v->path[0] != '\0' ? v->path : path);
    if (st == STRATA_OK && v->skipped > 0)
        return st_error(STRATA_E_CORRUPT, "%s is whole, but %u that %s newer %s not open", v->path, v->skipped,
                        v->skipped == 1 ? "is" : "are", v->skipped == 1 ? "does" : "do");
    if (st == STRATA_OK && !v->args->json)
        st_print_text(stdout, "every checksum is right\n");
    return st;
}

/* --- leftovers --- */

static void leftover(void *ctx, const char *path, bool live)
{
    struct verification *v = ctx;

    v->stay += v->args->sweep && !live;
    if (!v->args->json) {
        st_print(stdout, "%s: %s\n", path,
                 live             ? "of a run that is alive"
                 : v->args->sweep ? "left by a run that died: it stays"
                                  : "left by a run that died: --sweep removes it");
        return;
    }
    st_json_object_open(&v->json, NULL);
    st_json_put_string(&v->json, "path", path);
    st_json_put_bool(&v->json, "live", live);
    st_json_object_close(&v->json);
}

static strata_status list_pool(struct verification *v, const char *dir)
{
    uint32_t removed = 0;
    strata_status st;

    if (v->args->json)
        st_json_array_open(&v->json, "pool");
    st = strata_verify_leftovers(dir, v->args->sweep, leftover, v, &removed);
    if (v->args->json) {
        st_json_array_close(&v->json);
        st_json_put_u64(&v->json, "removed", removed);
    } else if (v->args->sweep && st == STRATA_OK) {
        st_print(stdout, "removed what %u dead run%s left\n", removed, removed == 1 ? "" : "s");
    }
    if (st == STRATA_OK && v->stay > 0)
        return st_error(STRATA_E_IO, "%s: what %u dead run%s left could not be removed", dir, v->stay, v->stay == 1 ? "" : "s");
    return st;
}

int cmd_verify(const struct cli_args *args)
{
    const char *path = args->positional.items[0];
    struct verification v = {.args = args};
    strata_status st;

    cli_progress_init(&v.progress, stderr, args->quiet, 0, 0);
    if (args->json) {
        st_json_begin(&v.json, stdout);
        st_json_object_open(&v.json, NULL);
    }
    st = args->pool || args->sweep ? list_pool(&v, path) : verify(&v, path);
    cli_progress_fini(&v.progress);
    if (args->json) {
        st_json_put_bool(&v.json, "ok", st == STRATA_OK);
        st_json_object_close(&v.json);
        st_json_end_line(&v.json);
    }
    return st == STRATA_OK ? 0 : cli_fail(st);
}
