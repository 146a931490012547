/* checkpoints.c - see checkpoints.h. */
#include "cli/commands/checkpoints.h"

#include "cli/cli_signals.h"
#include "cli/commands/unsaved.h"
#include "cli/options/output.h"
#include "core/base/error.h"
#include "core/base/log.h"
#include "core/base/size.h"
#include "core/system/file.h"
#include "core/system/path.h"
#include "strata/verify.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* The level of a warning that all ranks have: rank 0 gives it. */
static enum st_log_level for_all(const struct cli_checkpoints *s)
{
    return s->ranks->who.rank == 0 ? ST_LOG_WARN : ST_LOG_INFO;
}

/* --- before the run --- */

static bool is_auto(const struct cli_args *args)
{
    return strcmp(args->resume, "auto") == 0;
}

/* The sentence so far, and an older checkpoint that opens, if there is one. */
static strata_status offer_older(const char *path)
{
    char sentence[2048], older[4096];

    snprintf(sentence, sizeof(sentence), "%s", strata_last_error());
    if (strata_verify_older(path, older) != STRATA_OK)
        return st_error(STRATA_E_CORRUPT, "%s", sentence);
    return st_error(STRATA_E_CORRUPT, "%s; %s, which is older, opens: --resume %s goes on from there", sentence, older, older);
}

/* What rank 0 has found, for all: a directory may change between two looks. */
struct choice {
    int32_t status;
    char name[256]; /* of a checkpoint in the directory that was named; "": that is one itself */
    char sentence[1024];
};

static const char *named(const struct cli_checkpoints *s)
{
    return is_auto(s->args) ? s->dir : s->args->resume;
}

/* Opens a checkpoint, or the newest of a directory. */
static strata_status open_saved(struct cli_checkpoints *s, const char *path)
{
    struct strata_checkpoint *from;
    const strata_status st = strata_checkpoint_open(&from, path);

    if (st != STRATA_OK)
        return st;
    strata_checkpoint_close(s->from);
    s->from = from;
    return strata_checkpoint_get_info(s->from, &s->was);
}

/* Opens what rank 0 has. */
static strata_status follow(struct cli_checkpoints *s, const struct choice *c, const char *dir)
{
    char path[4096];
    strata_status st;

    if (c->status != STRATA_OK)
        return st_error((strata_status)c->status, "rank 0: %s", c->sentence);
    if ((size_t)snprintf(path, sizeof(path), "%s%s%s", dir, c->name[0] != '\0' ? "/" : "", c->name) >= sizeof(path))
        return st_error(STRATA_E_INVAL, "%s: the name is too long", dir);
    if ((st = open_saved(s, path)) != STRATA_E_INPUT)
        return st;
    snprintf(path, sizeof(path), "%s", strata_last_error());
    return st_error(STRATA_E_CONFIG, "rank 0 resumes from a checkpoint that this rank does not see (all ranks must share it): %s",
                    path);
}

/* What has become of rank 0's look into `dir`; the other ranks have not looked. */
static strata_status agree(struct cli_checkpoints *s, strata_status st, const char *dir)
{
    const size_t length = strlen(dir);
    struct choice c = {.status = (int32_t)st};
    strata_status told;

    if (s->ranks->who.ranks == 1)
        return st;
    if (st != STRATA_OK)
        snprintf(c.sentence, sizeof(c.sentence), "%s", strata_last_error());
    else if (s->from != NULL && strncmp(s->was.path, dir, length) == 0)
        snprintf(c.name, sizeof(c.name), "%s", s->was.path + length + strspn(s->was.path + length, "/"));
    told = cli_ranks_of_first(s->ranks, &c, sizeof(c), "the checkpoint that rank 0 has found");
    if (told == STRATA_OK && s->ranks->who.rank != 0)
        return follow(s, &c, dir);
    return st != STRATA_OK ? st_error(st, "%s", c.sentence) : told;
}

/* When a checkpoint was made; false: it is not there. */
static bool made_at(struct timespec *out, const char *checkpoint)
{
    char path[ST_PATH_MAX];
    struct st_file_identity manifest;
    int fd;

    if (st_path_join(path, checkpoint, "manifest.json") != STRATA_OK ||
        st_file_open(&fd, &manifest, path, STRATA_E_INPUT) != STRATA_OK)
        return false;
    close(fd);
    *out = manifest.modified;
    return true;
}

/* A run that went back has made SAVE's newest checkpoint, and those of later steps are of the attempt that it left: which of
 * them is wanted only the user knows.  `latest` may also be that of a run that was killed before it wrote the next name. */
static void tell_of_latest(const struct cli_checkpoints *s)
{
    const char *taken = st_path_name(s->was.path);
    char path[ST_PATH_MAX], other[ST_PATH_MAX], *latest;
    struct timespec before, after;
    uint64_t bytes;

    if (st_path_join(path, s->dir, "latest") != STRATA_OK || st_file_read_text(&latest, &bytes, path, 256) != STRATA_OK)
        return; /* it is for people */
    latest[strcspn(latest, "\n")] = '\0';
    if (strcmp(latest, taken) < 0 && latest[0] != '\0' && st_path_join(other, s->dir, latest) == STRATA_OK &&
        made_at(&before, s->was.path) && made_at(&after, other) &&
        (after.tv_sec > before.tv_sec || (after.tv_sec == before.tv_sec && after.tv_nsec > before.tv_nsec)))
        st_log(
            ST_LOG_WARN,
            "--resume auto takes %s, with the most steps, but %s names %s, made later: --resume %s --overwrite goes on from that",
            s->was.path, path, latest, other);
    free(latest);
}

/* Where --overwrite has begun another run in the directory, its last checkpoint is wanted, not that of the most steps. */
static strata_status take_last_run(struct cli_checkpoints *s)
{
    char taken[4096], later[4096];
    strata_status st;

    if (strcmp(s->was.path, named(s)) == 0) /* it was named itself */
        return STRATA_OK;
    if ((st = strata_verify_later(s->was.path, later)) != STRATA_OK)
        return st == STRATA_E_NOMEM || st == STRATA_E_IO ? st : STRATA_OK;
    snprintf(taken, sizeof(taken), "%s", s->was.path);
    if ((st = open_saved(s, later)) == STRATA_OK)
        st_log(ST_LOG_WARN,
               "--resume goes on from %s, made last; %s is of an earlier run: --resume %s --overwrite goes on from that", later,
               taken, taken);
    return st;
}

/* --resume auto of a directory without checkpoints begins the run: what is submitted again and again has one command line. */
static strata_status find(struct cli_checkpoints *s)
{
    const struct cli_args *args = s->args;
    strata_status st = STRATA_OK;

    if (args->resume == NULL)
        return STRATA_OK;
    if (is_auto(args) && s->dir[0] == '\0')
        return st_error(STRATA_E_INVAL, "--resume auto needs --save DIR, whose newest checkpoint it takes");
    if (s->ranks->who.rank == 0)
        st = open_saved(s, named(s));
    if (s->ranks->who.rank == 0 && st == STRATA_OK)
        st = take_last_run(s);
    st = agree(s, st, named(s));
    if (st == STRATA_E_INPUT && is_auto(args)) {
        st_log(ST_LOG_NOTICE, "--resume auto: %s: starting a new run", strata_last_error());
        return STRATA_OK;
    }
    if (st == STRATA_E_CORRUPT)
        st = offer_older(named(s));
    if (st == STRATA_OK && is_auto(args) && s->ranks->who.rank == 0)
        tell_of_latest(s);
    return st == STRATA_OK ? STRATA_OK : st_error_prefix(st, "--resume");
}

uint64_t cli_checkpoints_steps(const struct cli_checkpoints *s)
{
    return s->from != NULL ? s->was.steps + s->was.skipped_steps : 0;
}

/* What the run writes is not SAVE, which may not be there yet, and has no name that a checkpoint takes. */
static strata_status check_apart(const struct cli_checkpoints *s, const char *option, const char *path)
{
    char dir[ST_PATH_MAX], name[ST_PATH_MAX];

    if (path == NULL)
        return STRATA_OK;
    if (st_new_file_is_dir(path, s->dir))
        return st_error(STRATA_E_INPUT, "%s %s is the directory of --save: name another", option, path);
    snprintf(name, sizeof(name), "%.*s", (int)st_path_length(path), path);
    if ((!strata_save_takes(st_path_name(name)) && strcmp(st_path_name(name), CLI_UNSAVED) != 0) ||
        st_path_dir(dir, name) != STRATA_OK || !st_file_is_same(dir, s->dir))
        return STRATA_OK;
    return st_error(STRATA_E_INPUT, "%s %s is a name that checkpoints of --save take: name another", option, path);
}

/* A run does not begin to save into a directory that it reads, where a loader of that would find checkpoints among its files. */
static strata_status check_inputs(const struct cli_checkpoints *s)
{
    const struct {
        const char *dir, *file; /* that it is read by; NULL: any */
    } inputs[] = {{s->args->model, "config.json"}, {s->args->adapter, "adapter_config.json"}, {s->args->tokenizer, NULL}};
    strata_status st = STRATA_OK;

    for (size_t i = 0; i < sizeof(inputs) / sizeof(inputs[0]) && s->from == NULL && st == STRATA_OK; i++) {
        char path[ST_PATH_MAX];
        bool there = true;

        if (inputs[i].dir == NULL || !st_file_is_same(inputs[i].dir, s->dir))
            continue;
        if (inputs[i].file != NULL && (st = st_path_join(path, s->dir, inputs[i].file)) == STRATA_OK)
            st = st_file_find(&there, path);
        if (st == STRATA_OK && there)
            st = st_error(STRATA_E_INPUT, "--save %s is the same directory as %s, which this command reads: name another", s->dir,
                          inputs[i].dir);
    }
    return st;
}

strata_status cli_checkpoints_find(struct cli_checkpoints *s, const struct cli_args *args, struct cli_ranks *ranks,
                                   const char *dir)
{
    s->args = args;
    s->ranks = ranks;
    s->was = (struct strata_checkpoint_info)STRATA_CHECKPOINT_INFO_INIT;
    if ((size_t)snprintf(s->dir, sizeof(s->dir), "%s", dir) < sizeof(s->dir))
        return find(s);
    return st_error(STRATA_E_INVAL, "--save: the directory's name is longer than %zu bytes", sizeof(s->dir) - 1);
}

strata_status cli_checkpoints_prepare(struct cli_checkpoints *s, const struct cli_args *args, struct cli_ranks *ranks,
                                      const char *dir, uint64_t every)
{
    strata_status st = cli_checkpoints_find(s, args, ranks, dir);

    s->every = every;
    if (st == STRATA_OK && s->dir[0] == '\0' && args->save_epochs)
        st_log(ST_LOG_NOTICE, "--save-every epoch: not used: --save names no directory, so nothing is saved");
    else if (st == STRATA_OK && s->dir[0] == '\0' && args->save_part > 0)
        st_log(ST_LOG_NOTICE, "--save-every %g: not used: --save names no directory, so nothing is saved", args->save_part);
    if (s->dir[0] == '\0' || st != STRATA_OK)
        return st;
    cli_signals_saves();
    if (args->out != NULL && st_new_file_is_dir(args->out, s->dir))
        return st_error(STRATA_E_INVAL, "--out and --save name the same directory: give the model another");
    if ((st = check_apart(s, "--out", args->out)) != STRATA_OK ||
        (st = check_apart(s, "--metrics", args->metrics)) != STRATA_OK ||
        (st = check_apart(s, "--trace", args->trace)) != STRATA_OK || (st = check_inputs(s)) != STRATA_OK)
        return st;
    st = cli_output_check_save("--save", s->dir);
    return st == STRATA_OK ? strata_save_check(s->dir, cli_checkpoints_steps(s), cli_checkpoints_replace(s)) : st;
}

strata_status cli_checkpoints_keep_step(const struct cli_checkpoints *s, struct cli_run *run)
{
    if (s->from == NULL)
        return STRATA_OK;
    return cli_run_configure_again(run, s->was.step_sequences, s->was.leaves);
}

bool cli_checkpoints_goes_on(const struct cli_checkpoints *s)
{
    return s->from != NULL && is_auto(s->args);
}

bool cli_checkpoints_begins(const struct cli_checkpoints *s)
{
    return s->from == NULL && s->args->resume != NULL;
}

bool cli_checkpoints_lacks_lines(const struct cli_checkpoints *s)
{
    return cli_checkpoints_begins(s) || (cli_checkpoints_goes_on(s) && s->was.metrics_bytes == 0);
}

bool cli_checkpoints_replace(const struct cli_checkpoints *s)
{
    return s->args->overwrite || cli_checkpoints_goes_on(s);
}

uint32_t cli_checkpoints_kept(const struct cli_checkpoints *s)
{
    char dir[4096];

    if (s->from == NULL || (size_t)snprintf(dir, sizeof(dir), "%s/..", s->was.path) >= sizeof(dir))
        return 0;
    return st_file_is_same(dir, s->dir) ? s->was.kept : 0;
}

/* The same run's, since the names of another one may be among them. */
static strata_status open_of_run(struct cli_checkpoints *s, const char *path)
{
    struct strata_checkpoint_info info = STRATA_CHECKPOINT_INFO_INIT;
    struct strata_checkpoint *from;
    strata_status st = strata_checkpoint_open(&from, path);

    if (st != STRATA_OK)
        return st;
    st = strata_checkpoint_get_info(from, &info);
    if (st == STRATA_OK && strcmp(info.run, s->was.run) != 0)
        st = st_error(STRATA_E_INPUT, "%s is of another run", path);
    strata_checkpoint_close(from);
    return st == STRATA_OK ? open_saved(s, path) : st;
}

/* What is damaged within shows when it is read: an older one takes its place.  False: there is none; the sentence stays. */
static bool take_older(struct cli_checkpoints *s)
{
    char sentence[2048], older[4096];
    strata_status st = STRATA_OK;

    snprintf(sentence, sizeof(sentence), "%s", strata_last_error());
    if (s->ranks->who.rank == 0 && (st = strata_verify_older(s->was.path, older)) == STRATA_OK)
        st = open_of_run(s, older);
    if (agree(s, st, s->dir) != STRATA_OK) {
        (void)st_error(STRATA_E_CORRUPT, "%s", sentence);
        return false;
    }
    st_log(for_all(s), "%s: taking %s, which is older", sentence, s->was.path);
    return true;
}

/* Between the first look and this one, since which no other run saves there, one may have begun and ended. */
static strata_status check_names_again(const struct cli_checkpoints *s)
{
    if (s->dir[0] == '\0' || s->ranks->who.rank != 0)
        return STRATA_OK;
    return strata_save_check(s->dir, cli_checkpoints_steps(s), cli_checkpoints_replace(s));
}

static void tell_of_saved(void *progress, const struct strata_saved *saved)
{
    char copied[64] = "", size[24];

    if (saved->copied_bytes > 0)
        snprintf(copied, sizeof(copied), ", %s copied", st_size_text(size, saved->copied_bytes));
    cli_progress_note(progress, "checkpoint of step %" PRIu64 " in %s (%.1f s, %.2f s of them before the next step%s)",
                      saved->steps, saved->path, saved->seconds, saved->stopped, copied);
}

strata_status cli_checkpoints_load(struct cli_checkpoints *s, struct cli_run *run, struct strata_training **training,
                                   struct strata_training_opts *opts)
{
    strata_status st = check_names_again(s);

    if (st != STRATA_OK)
        return st;
    opts->save_every = s->every;
    opts->saved = tell_of_saved;
    opts->ctx = run->progress;
    do {
        opts->from = s->from;
        st = strata_training_open(training, run->engine, opts);
    } while (st == STRATA_E_CORRUPT && s->from != NULL && is_auto(s->args) && take_older(s));
    if (run->progress != NULL)
        cli_progress_work_end(run->progress);
    if (st == STRATA_E_CORRUPT && s->from != NULL)
        st = offer_older(s->was.path);
    if (st == STRATA_OK && s->from != NULL)
        cli_progress_note(run->progress, "resumed from %s, after step %" PRIu64, s->was.path, cli_checkpoints_steps(s));
    return st;
}

/* --- at its end --- */

/* Every rank knows it by now: none leaves, which would be a failure of its own to those that still hear of it, before all have.
 */
strata_status cli_checkpoints_status(const struct cli_checkpoints *s, const struct strata_training_info *run)
{
    char none = 0;

    if (!run->save_failed)
        return STRATA_OK;
    (void)!cli_ranks_of_first(s->ranks, &none, sizeof(none), "the end of saving");
    return st_error(STRATA_E_IO, "the last checkpoint could not be made: %s", run->save_sentence);
}

void cli_checkpoints_close(struct cli_checkpoints *s)
{
    strata_checkpoint_close(s->from);
    s->from = NULL;
}
