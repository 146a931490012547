/* recipes/trainer.c - rules between the keys of transformers' Trainer, which LLaMA-Factory and TRL share. */
#include "recipes/trainer_internal.h"

#include "core/base/text.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define SAVE_STEPS "500" /* Trainer's save_steps and logging_steps */
#define BETAS      "optimizer.params.betas"
#define EPS        "optimizer.params.eps"
#define SCHEDULE   "strata.lr_scheduler."
#define ELSEWHERE  "output_dir is left out: checkpoints are in DIR.checkpoints of --out DIR, or where --save says"
#define KEEPS      "without save_total_limit Trainer keeps all checkpoints; here the newest 2 stay, or those of --keep N (1 to 22)"

bool st_trainer_is(struct strata_recipe *r, const char *key, const char *text)
{
    return strcmp(st_recipe_text(r, key), text) == 0;
}

/* --- model --- */

/* A revision is that of the hub's names; a directory has none, as there. */
static void put_model(struct strata_recipe *r, const char *name)
{
    const char *revision = st_recipe_text(r, "model_revision");
    bool there = false;

    if (revision[0] == '\0' || st_trainer_is(r, "model_revision", "main") || (st_file_find(&there, name) == STRATA_OK && there) ||
        strchr(name, '/') == NULL)
        st_recipe_put(r, "model_name_or_path", "--model", "%s", name);
    else
        st_recipe_put(r, "model_name_or_path", "--model", "%s@%s", name, revision);
}

void st_trainer_resolve_model(struct strata_recipe *r)
{
    if (!st_recipe_given(r, "model_name_or_path"))
        return;
    if (st_trainer_is(r, "model_name_or_path", ""))
        st_recipe_reject(r, "model_name_or_path", ST_RECIPE_EMPTY);
    else
        put_model(r, st_recipe_beside(r, st_recipe_text(r, "model_name_or_path")));
}

void st_trainer_resolve_precision(struct strata_recipe *r, bool adapter, const char *pure)
{
    const bool fp16 = st_recipe_on(r, "fp16");
    const bool bf16 = st_recipe_on(r, "bf16") && (st_recipe_given(r, "bf16") || !fp16);

    if (fp16 && (bf16 || pure != NULL)) {
        st_recipe_reject(r, "fp16", "bf16 is true, too: set one of them to false");
    } else if (fp16) {
        st_recipe_put(r, "fp16", "fp16.enabled", "true");
        st_recipe_put(r, "fp16", "bf16.enabled", "false");
    } else if (bf16 || pure != NULL) {
        st_recipe_put(r, bf16 ? "bf16" : pure, "bf16.enabled", "true");
        if (pure != NULL)
            st_recipe_announce(r, pure, ST_TRAINER_EXACT);
    } else if (!adapter) {
        st_recipe_put(r, "bf16", "bf16.enabled", "false"); /* trained weights are cast to fp32 there */
    } else if (st_recipe_given(r, "bf16") || st_recipe_given(r, "fp16")) {
        st_recipe_note(r, st_recipe_given(r, "bf16") ? "bf16" : "fp16", ST_TRAINER_STORED);
    }
}

/* A text, or a list of texts; NULL: neither, which is reported.  ModelConfig makes a text of a list of one. */
const char *st_trainer_names(struct strata_recipe *r, const char *key, bool one_is_text)
{
    const st_json *node = st_recipe_node(r, key), *first;
    bool texts = true;

    if (node == NULL)
        return NULL;
    if (st_json_type(node) == ST_JSON_STRING)
        return one_is_text ? st_recipe_json(r, node) : st_recipe_list(r, key);
    first = st_json_type(node) == ST_JSON_ARRAY ? st_json_first(node) : NULL;
    for (const st_json *n = first; n != NULL; n = st_json_next(n))
        texts &= st_json_type(n) == ST_JSON_STRING;
    if (first != NULL && texts)
        return st_recipe_json(r, one_is_text && st_json_next(first) == NULL ? first : node);
    st_recipe_reject(r, key, "must be a name, or a list of names");
    return NULL;
}

/* --- output --- */

void st_trainer_put_steps(struct strata_recipe *r, const char *key, const char *option, const char *path)
{
    const double steps = st_recipe_number(r, key);

    if (steps > 0 && steps < 1)
        st_recipe_put(r, key, option, "%s", st_recipe_real(r, steps));
    else if (steps < 1 || steps != (double)(uint64_t)steps)
        st_recipe_reject(r, key, "must be a whole number of steps, or a part of the run between 0 and 1");
    else if (path != NULL)
        st_recipe_put_unless(r, key, strcmp(path, "steps_per_print") == 0 ? path : NULL, path, "%.0f", steps);
    else
        st_recipe_put(r, key, option, "%.0f", steps);
}

void st_trainer_put_save(struct strata_recipe *r, const char *key)
{
    const char *dir = st_recipe_text(r, "output_dir");
    size_t length = strlen(dir);

    while (length > 1 && dir[length - 1] == '/')
        length--;
    if (length == 0) /* beside the output that is named elsewhere */
        st_recipe_note(r, key, ELSEWHERE);
    st_recipe_put(r, key, "--save", length > 0 ? "%.*s.checkpoints" : "", (int)length, dir);
}

void st_trainer_resolve_limit(struct strata_recipe *r, const char *key)
{
    const double limit = st_recipe_number(r, "save_total_limit");

    if (limit > STRATA_KEEP_MAX)
        st_recipe_reject(r, "save_total_limit",
                         st_source_keep(r->src, "%.0f: room for each is reserved at the start, for %u at most: set it to %u",
                                        limit, STRATA_KEEP_MAX, STRATA_KEEP_MAX));
    else if (limit >= 1)
        st_recipe_put(r, "save_total_limit", "strata.keep", "%.0f", limit);
    else if (key != NULL)
        st_recipe_announce(r, key, st_recipe_text(r, "output_dir")[0] == '\0' ? ELSEWHERE "; " KEEPS : KEEPS);
}

/* Checkpoints are asked for by save_steps, or by a strategy. */
static void resolve_saves(struct strata_recipe *r)
{
    const bool epochs = st_trainer_is(r, "save_strategy", "epoch"), never = st_trainer_is(r, "save_strategy", "no");
    const bool steps = st_recipe_given(r, "save_steps"), saves = !never && (steps || st_recipe_given(r, "save_strategy"));
    const char *key = epochs ? "save_strategy" : "save_steps";

    if (steps && (epochs || never))
        st_recipe_idle(r, "save_steps", epochs ? "not used: save_strategy is epoch" : "not used: save_strategy is no");
    if (saves)
        st_trainer_put_save(r, key);
    st_trainer_resolve_limit(r, saves ? key : NULL);
    if (!saves)
        return;
    if (epochs)
        st_recipe_put(r, "save_strategy", "--save-every", "epoch");
    else if (!steps)
        st_recipe_put(r, "save_steps", "strata.save_every", SAVE_STEPS);
    else if (st_recipe_number(r, "save_steps") == 0) /* only at the end */
        st_recipe_put(r, "save_steps", "strata.save_every", "0");
    else
        st_trainer_put_steps(r, "save_steps", "--save-every", "strata.save_every");
}

static void resolve_resume(struct strata_recipe *r)
{
    const st_json *from = st_recipe_given(r, "resume_from_checkpoint") ? st_recipe_node(r, "resume_from_checkpoint") : NULL;

    if (from == NULL || (st_json_type(from) == ST_JSON_BOOL && !st_json_bool(from)))
        return;
    if (st_json_type(from) == ST_JSON_BOOL)
        st_recipe_put(r, "resume_from_checkpoint", "--resume", "auto");
    else if (st_json_type(from) == ST_JSON_STRING)
        st_recipe_put(r, "resume_from_checkpoint", "--resume", "%s", st_json_string(from));
    else
        st_recipe_reject(r, "resume_from_checkpoint", "must be true, false or a directory");
}

/* The loss decides, so that another metric would end a run elsewhere. */
static void resolve_best(struct strata_recipe *r, bool stops)
{
    const char *metric = st_recipe_text(r, "metric_for_best_model"), *other = NULL;

    if (metric[0] != '\0' && strcmp(metric, "loss") != 0 && strcmp(metric, "eval_loss") != 0)
        other = "metric_for_best_model";
    else if (st_recipe_on(r, "greater_is_better"))
        other = "greater_is_better";
    if (other != NULL)
        (stops ? st_recipe_reject : st_recipe_note)(r, other, "the lowest eval_loss is the best here: leave it out");
}

/* eval_steps 0 is as if it were left out, as there. */
static void resolve_evaluations(struct strata_recipe *r, const char *unheld)
{
    const bool epochs = st_trainer_is(r, "eval_strategy", "epoch"), steps = st_trainer_is(r, "eval_strategy", "steps");

    if (!steps && st_recipe_given(r, "eval_steps"))
        st_recipe_idle(r, "eval_steps", epochs ? "not used: eval_strategy is epoch" : "not used: eval_strategy is not steps");
    if (!steps && !epochs)
        return;
    if (unheld != NULL)
        st_recipe_idle(r, "eval_strategy", unheld);
    else if (epochs)
        st_recipe_put(r, "eval_strategy", "--eval-every", "epoch");
    else if (st_recipe_number(r, "eval_steps") > 0)
        st_trainer_put_steps(r, "eval_steps", "--eval-every", NULL);
    else if (st_recipe_given(r, "logging_steps"))
        st_recipe_put(r, "eval_strategy", "--eval-every", "%s", st_recipe_real(r, st_recipe_number(r, "logging_steps")));
    else
        st_recipe_put(r, "eval_strategy", "--eval-every", SAVE_STEPS);
}

static void resolve_output(struct strata_recipe *r, bool stops, const char *unheld)
{
    resolve_best(r, stops);
    resolve_saves(r);
    resolve_resume(r);
    if (st_recipe_given(r, "logging_steps"))
        st_trainer_put_steps(r, "logging_steps", "--logging-steps", "steps_per_print");
    resolve_evaluations(r, unheld);
}

/* --- training --- */

static void resolve_seed(struct strata_recipe *r)
{
    if (st_recipe_given(r, "data_seed") && st_recipe_number(r, "data_seed") != st_recipe_number(r, "seed"))
        st_recipe_reject(r, "data_seed", "seed decides about the order, too: make it equal to seed, or leave it out");
}

void st_trainer_resolve_length(struct strata_recipe *r)
{
    if (st_recipe_number(r, "max_steps") > 0) {
        st_recipe_put(r, "max_steps", "--max-steps", "%.0f", st_recipe_number(r, "max_steps"));
        st_recipe_note(r, "max_steps", "steps are whole, from one epoch into the next");
        if (st_recipe_given(r, "num_train_epochs"))
            st_recipe_idle(r, "num_train_epochs", "not used: max_steps is above 0");
    } else {
        st_recipe_put(r, "num_train_epochs", "--epochs", "%s", st_recipe_real(r, st_recipe_number(r, "num_train_epochs")));
    }
}

/* What DeepSpeed's file names stands instead. */
static void resolve_optimizer(struct strata_recipe *r)
{
    static const char *const types[] = {"AdamW", "AdamW", "SGD", "Adagrad", "Lion"};
    const int optim = st_recipe_choice(r, "optim", ST_OPTIM_ADAMW);

    st_recipe_put_unless(r, "optim", "optimizer.type", "optimizer.type", "\"%s\"", types[optim]);
    st_recipe_put_unless(r, "weight_decay", "optimizer.type", "strata.decay_all", "false");
    if (optim == ST_OPTIM_ADAMW_8BIT) {
        st_recipe_put(r, "optim", "strata.moments", "\"8bit\"");
        st_recipe_announce(r, "optim", "moments of 8 bits in strata's code, not bitsandbytes'");
    }
    if (optim == ST_OPTIM_ADAMW || optim == ST_OPTIM_ADAMW_8BIT || optim == ST_OPTIM_LION)
        st_recipe_put(r, "adam_beta1", BETAS, "[%s,%s]", st_recipe_real(r, st_recipe_number(r, "adam_beta1")),
                      st_recipe_real(r, st_recipe_number(r, "adam_beta2")));
    if (optim == ST_OPTIM_ADAMW || optim == ST_OPTIM_ADAMW_8BIT)
        st_recipe_put(r, "adam_epsilon", EPS, "%s", st_recipe_real(r, st_recipe_number(r, "adam_epsilon")));
}

/* Where cosine_with_min_lr ends; the other schedules take none of these arguments. */
static void resolve_least(struct strata_recipe *r)
{
    static const char *const keys[][2] = {{"lr_scheduler_kwargs.min_lr", SCHEDULE "min_lr"},
                                          {"lr_scheduler_kwargs.min_lr_rate", SCHEDULE "min_lr_rate"}};
    const bool taken = st_trainer_is(r, "lr_scheduler_type", "cosine_with_min_lr");
    uint32_t given = 0;

    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
        if (!st_recipe_given(r, keys[i][0]))
            continue;
        if (!taken)
            st_recipe_reject(r, keys[i][0], "belongs to lr_scheduler_type cosine_with_min_lr, as there");
        else if (given++ > 0)
            st_recipe_reject(r, keys[i][0], "excludes min_lr, as there");
        else
            st_recipe_put_unless(r, keys[i][0], "scheduler.type", keys[i][1], "%s",
                                 st_recipe_real(r, st_recipe_number(r, keys[i][0])));
    }
    if (taken && given == 0)
        st_recipe_reject(r, "lr_scheduler_type",
                         "cosine_with_min_lr: lr_scheduler_kwargs must have min_lr or min_lr_rate, as there");
}

static void resolve_schedule(struct strata_recipe *r)
{
    const double steps = st_recipe_number(r, "warmup_steps");
    const double ratio = steps > 0 && steps < 1 ? steps : st_recipe_number(r, "warmup_ratio"); /* below 1: transformers 5 */

    if (st_recipe_text(r, "lr_scheduler_type")[0] != '\0') /* else it is refused */
        st_recipe_put_unless(r, "lr_scheduler_type", "scheduler.type", SCHEDULE "type", "\"%s\"",
                             st_recipe_text(r, "lr_scheduler_type"));
    resolve_least(r);
    if (steps >= 1)
        st_recipe_put(r, "warmup_steps", SCHEDULE "warmup_steps", "%.0f", floor(steps));
    else if (ratio > 0)
        st_recipe_put(r, steps > 0 ? "warmup_steps" : "warmup_ratio", SCHEDULE "warmup_ratio", "%s", st_recipe_real(r, ratio));
}

/* --- ranks --- */

/* Take one of Trainer's words (the first strategy counts); false: it is not one. */
static bool take_word(struct strata_recipe *r, struct st_recipe_fsdp *fsdp, const char *word)
{
    struct st_recipe_fsdp taken = *fsdp;
    const bool strategy = strspn(word, "12345_") == 0 && st_recipe_fsdp_take(&taken, word),
               offload = st_text_same(word, "offload");

    if (strategy && fsdp->named)
        st_recipe_announce(r, "fsdp", st_source_keep(r->src, "%.64s is not used: the first strategy counts, as there", word));
    else if (strategy)
        *fsdp = taken;
    fsdp->offload |= offload;
    return strategy || offload || word[0] == '\0' || st_text_same(word, "auto_wrap") || st_text_same(word, "true");
}

static bool take_words(struct strata_recipe *r, struct st_recipe_fsdp *fsdp, const char *text)
{
    while (*text != '\0') {
        const size_t length = strcspn(text, " ,");
        const char *word = st_source_keep(r->src, "%.*s", (int)length, text);

        if (!take_word(r, fsdp, word)) {
            st_recipe_reject(r, "fsdp",
                             st_source_keep(r->src,
                                            "\"%.64s\" is unknown: full_shard, shard_grad_op, no_shard, hybrid_shard, "
                                            "hybrid_shard_zero2, offload or auto_wrap",
                                            word));
            return false;
        }
        text += length + (text[length] != '\0');
    }
    return true;
}

static bool take_fsdp(struct strata_recipe *r, struct st_recipe_fsdp *fsdp, const st_json *node)
{
    bool taken = true;

    switch (st_json_type(node)) {
    case ST_JSON_BOOL:
        return st_json_bool(node);
    case ST_JSON_STRING:
        return !st_text_same(st_json_string(node), "false") && st_json_string(node)[0] != '\0' &&
               take_words(r, fsdp, st_json_string(node));
    case ST_JSON_ARRAY:
        for (const st_json *n = st_json_first(node); taken && n != NULL; n = st_json_next(n))
            taken = st_json_type(n) == ST_JSON_STRING && take_words(r, fsdp, st_json_string(n));
        if (taken)
            return st_json_first(node) != NULL;
        break;
    default:
        break;
    }
    if (st_recipe_given(r, "fsdp"))
        st_recipe_reject(r, "fsdp", "must be true, false, words or a list of them");
    return false;
}

/* The defaults are those of transformers 5; before, fsdp_version was 1, whose names mean the same. */
static void resolve_fsdp(struct strata_recipe *r)
{
    struct st_recipe_fsdp fsdp = {.key = "fsdp", .version = 2, .stage = 3, .of_trainer = true};

    if (st_recipe_given(r, "fsdp") && take_fsdp(r, &fsdp, st_recipe_node(r, "fsdp")))
        st_recipe_fsdp(r, fsdp);
    else
        st_recipe_fsdp_leave(r, "not used: fsdp is off");
}

void st_trainer_resolve(struct strata_recipe *r, bool stops, const char *unheld)
{
    resolve_output(r, stops, unheld);
    resolve_seed(r);
    st_trainer_resolve_length(r);
    resolve_optimizer(r);
    resolve_schedule(r);
    resolve_fsdp(r);
    if (st_recipe_given(r, "deepspeed"))
        snprintf(r->deepspeed, sizeof(r->deepspeed), "%s", st_recipe_beside(r, st_recipe_text(r, "deepspeed")));
}
