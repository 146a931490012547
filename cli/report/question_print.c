/* cli/report/question_print.c - see question_print.h. */
#include "cli/report/question_print.h"
#include "core/base/print.h"
#include "core/base/size.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

/* What makers of drives for desktops promise per byte of capacity; those for servers promise more. */
#define WRITES_ENDURED 600.0
#define TIER_WORDS                                                                                                               \
    {                                                                                                                            \
        "device", "host", "nvme"                                                                                                 \
    }

static const char *const change_keys[ST_CHANGE_COUNT] = {
    [ST_CHANGE_GPU] = "gpu", [ST_CHANGE_RAM] = "ram", [ST_CHANGE_DRIVE] = "drive"};

static double batch_of(const struct st_answer *a)
{
    return (double)a->sequences * a->seq;
}

/* Seconds of the whole run; NaN: not known. */
static double run_seconds(const struct cli_asked *asked, const struct st_tried *t)
{
    const double steps = ceil(asked->tokens / batch_of(asked->answer));

    return steps > 0 && t->seconds > 0 ? steps * t->seconds : (double)NAN;
}

/* The part of what the drives endure that a run uses up; NaN: not known. */
static double worn(const struct cli_asked *asked)
{
    const double bytes = (double)asked->answer->capacity[STRATA_TIER_NVME];

    return bytes > 0 ? asked->endurance.run_bytes / (bytes * WRITES_ENDURED) : (double)NAN;
}

/* --- text --- */

static void print_settings(const struct st_tried *t, FILE *file)
{
    st_print(file, "optimizer %s, weights %s, %s%u x %u sequences", st_question_tier(t->tiers.optimizer),
             st_question_tier(t->tiers.param), t->tiers.checkpoints == STRATA_TIER_NVME ? "activation checkpoints nvme, " : "",
             t->grad_accum, t->micro_batch);
}

static void print_length(const struct cli_asked *asked, const struct st_tried *best, FILE *file)
{
    const double seconds = run_seconds(asked, best), written = asked->endurance.run_bytes;
    char tokens[24];

    if (isfinite(seconds))
        st_print(file, "  the run: %s tokens in %.0f steps: %.1f hours (%.1f days)\n",
                 st_count_text(tokens, (uint64_t)asked->tokens), ceil(asked->tokens / batch_of(asked->answer)), seconds / 3600,
                 seconds / 86400);
    if (isfinite(written) && written > 0 && isfinite(worn(asked)))
        st_print(file, "  drives: %.3g TB written, %.2g %% of what they typically endure (%.0f TB for each TB)\n",
                 written * 1e-12, 100 * worn(asked), WRITES_ENDURED);
}

static void print_best(const struct cli_asked *asked, FILE *file)
{
    const struct st_answer *a = asked->answer;
    const struct st_tried *best = &a->tried[a->best];
    char text[24];

    st_print_text(file, "  it fits: ");
    print_settings(best, file);
    st_print_text(file, "\n");
    if (best->seconds > 0)
        st_print(file, "  predicted step: %s, %.0f tokens a second; fastest of %u settings that fit\n",
                 st_seconds_text(text, best->seconds), batch_of(a) / best->seconds, a->tried_count);
    else
        st_print_text(file, "  the step is not predicted: rates of this machine are not known\n");
    print_length(asked, best, file);
}

static void print_least(const struct st_answer *a, FILE *file)
{
    static const char *const words[] = TIER_WORDS;
    bool one = false;
    char size[24];

    st_print_text(file, "  it does not fit, whatever lies where\n");
    for (int t = 0; t < STRATA_TIER_COUNT; t++) {
        if (a->least[t] == 0)
            continue;
        st_print(file, "    with %s (%" PRIu64 "MiB) of %s it would, the rest as it is\n", st_size_text(size, a->least[t]),
                 a->least[t] >> 20, words[t]);
        one = true;
    }
    for (int t = 0; t < STRATA_TIER_COUNT && !one; t++)
        if (a->together[t] != 0)
            st_print(file, "    it needs at least %s (%" PRIu64 "MiB) of %s\n", st_size_text(size, a->together[t]),
                     a->together[t] >> 20, words[t]);
}

static bool same_settings(const struct st_tried *a, const struct st_tried *b)
{
    return a->tiers.optimizer == b->tiers.optimizer && a->tiers.param == b->tiers.param &&
           a->tiers.checkpoints == b->tiers.checkpoints && a->micro_batch == b->micro_batch;
}

static void print_changes(const struct st_answer *a, FILE *file)
{
    const struct st_tried *now = a->plan != NULL ? &a->tried[a->best] : NULL;
    char text[24];
    bool head = false;

    for (int c = 0; c < ST_CHANGE_COUNT; c++) {
        const struct st_changed *change = &a->changed[c];

        if (!change->fits)
            continue;
        if (!head)
            st_print_text(file, now != NULL ? "  one more would make it:\n" : "  it would also fit with one of:\n");
        head = true;
        st_print(file, "    %-40s %9s a step", change->what, st_seconds_text(text, change->best.seconds));
        if (now != NULL)
            st_print(file, "  %+6.1f %%", 100 * (change->best.seconds / now->seconds - 1));
        if (now == NULL || !same_settings(now, &change->best)) {
            st_print_text(file, "  with ");
            print_settings(&change->best, file);
        }
        st_print_text(file, "\n");
    }
}

void cli_question_print(const struct cli_asked *asked, FILE *file)
{
    const struct st_answer *a = asked->answer;
    char params[24];

    st_print(file, "%s: %s parameters; steps of %.0f tokens in sequences of %u; judged on %s\n", a->model,
             st_count_text(params, a->params), batch_of(a), a->seq, a->machine[0] != '\0' ? a->machine : "this machine");
    st_print_text(file, "  assumed: bf16, AdamW with fp32 state, gradients clipped at 1\n");
    if (a->plan != NULL)
        print_best(asked, file);
    else
        print_least(a, file);
    print_changes(a, file);
    if (asked->written != NULL)
        st_print(file, "  written: %s; give it as --config with the same words for the machine\n", asked->written);
    else if (a->config != NULL)
        st_print_text(file, "  --write FILE.json writes the configuration\n");
}

/* --- JSON --- */

static void put_settings(const struct st_tried *t, struct st_json_writer *w)
{
    st_json_put_string(w, "optimizer", st_question_tier(t->tiers.optimizer));
    st_json_put_string(w, "param", st_question_tier(t->tiers.param));
    st_json_put_string(w, "activation_checkpoints", t->tiers.checkpoints == STRATA_TIER_NVME ? "nvme" : "auto");
    st_json_put_u64(w, "micro_batch", t->micro_batch);
    st_json_put_u64(w, "gradient_accumulation", t->grad_accum);
    st_json_put_double(w, "predicted_seconds", t->seconds > 0 ? t->seconds : (double)NAN);
}

static void put_bytes(struct st_json_writer *w, const char *key, const uint64_t bytes[STRATA_TIER_COUNT])
{
    static const char *const words[] = TIER_WORDS;

    st_json_object_open(w, key);
    for (int t = 0; t < STRATA_TIER_COUNT; t++)
        st_json_put_u64(w, words[t], bytes[t]);
    st_json_object_close(w);
}

/* The file's members; it is on lines of its own, and this is one. */
static void put_config(const struct st_answer *a, struct st_json_writer *w)
{
    st_json *root = NULL;

    if (st_json_parse(&root, a->config, strlen(a->config), "the configuration") == STRATA_OK)
        st_json_put_node(w, "config", root);
    st_json_free(root);
}

static void put_best(const struct cli_asked *asked, struct st_json_writer *w)
{
    const struct st_answer *a = asked->answer;
    const struct st_tried *best = &a->tried[a->best];

    put_config(a, w);
    st_json_object_open(w, "chosen");
    put_settings(best, w);
    st_json_put_double(w, "tokens_per_second", best->seconds > 0 ? batch_of(a) / best->seconds : (double)NAN);
    st_json_put_double(w, "run_seconds", run_seconds(asked, best));
    st_json_put_double(w, "wear", worn(asked));
    st_json_object_close(w);
    cli_endurance_put(&asked->endurance, w);
    st_json_array_open(w, "tried");
    for (uint32_t i = 0; i < a->tried_count; i++) {
        st_json_object_open(w, NULL);
        put_settings(&a->tried[i], w);
        st_json_put_bool(w, "draft", !a->tried[i].chosen);
        st_json_object_close(w);
    }
    st_json_array_close(w);
}

void cli_question_put(const struct cli_asked *asked, struct st_json_writer *w)
{
    const struct st_answer *a = asked->answer;

    st_json_object_open(w, NULL);
    st_json_put_bool(w, "fits", a->plan != NULL);
    st_json_put_string(w, "model", a->model);
    st_json_put_u64(w, "parameters", a->params);
    st_json_put_string(w, "machine", a->machine);
    st_json_put_u64(w, "sequence_length", a->seq);
    st_json_put_u64(w, "step_sequences", a->sequences);
    st_json_put_double(w, "tokens", asked->tokens > 0 ? asked->tokens : (double)NAN);
    put_bytes(w, "capacity", a->capacity);
    if (a->plan != NULL) {
        put_best(asked, w);
    } else {
        put_bytes(w, "least", a->least);
        put_bytes(w, "least_together", a->together);
    }
    st_json_object_open(w, "changed");
    for (int c = 0; c < ST_CHANGE_COUNT; c++) {
        if (!a->changed[c].fits)
            continue;
        st_json_object_open(w, change_keys[c]);
        st_json_put_string(w, "to", a->changed[c].what);
        put_settings(&a->changed[c].best, w);
        st_json_object_close(w);
    }
    st_json_object_close(w);
    st_json_object_close(w);
}
