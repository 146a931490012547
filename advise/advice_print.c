/* advise/advice_print.c - advice as text and as JSON. */
#include "advise/advisor.h"
#include "advise/plan_report.h"
#include "core/base/print.h"
#include "core/base/size.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#define MINUTE 60.0
#define HOUR   (60 * MINUTE)
#define DAY    (24 * HOUR)
#define TIER_WORDS                                                                                                               \
    {                                                                                                                            \
        "device", "host", "nvme"                                                                                                 \
    }

static const char *const change_keys[ST_CHANGE_COUNT] = {
    [ST_CHANGE_GPU] = "gpu", [ST_CHANGE_RAM] = "ram", [ST_CHANGE_DRIVE] = "drive"};

static double batch_of(const struct st_advice *a)
{
    return (double)a->sequences * a->seq;
}

static double steps_of(const struct st_advice *a)
{
    return a->steps > 0 ? a->steps : ceil(a->tokens / batch_of(a));
}

/* Of an epoch, the last of which is smaller; 0: no data is named. */
static double epoch_steps(const struct st_advice *a)
{
    return ceil((double)a->data_sequences / a->sequences);
}

/* Seconds of the whole run; NaN: not known. */
static double run_seconds(const struct st_advice *a, const struct st_tried *t)
{
    const double steps = steps_of(a);

    return steps > 0 && t->seconds > 0 ? steps * t->seconds : (double)NAN;
}

/* Bytes of all drives: that are built in, as far as the first to wear out lets them count, or, where only that is known, that a
 * run may take. */
static double drive_bytes(const struct st_advice *a)
{
    return a->named ? st_hardware_drive_bytes(&a->hardware) : (double)a->capacity[STRATA_TIER_NVME];
}

/* The part of what the drives endure that a run uses up; NaN: not known. */
static double worn(const struct st_advice *a)
{
    const double bytes = drive_bytes(a);

    return bytes > 0 ? a->written.run_bytes / (bytes * st_hardware_writes_endured()) : (double)NAN;
}

/* --- text --- */

/* DeepSpeed's "none" would read as no weights. */
static const char *place_of(strata_tier tier)
{
    return tier == STRATA_TIER_DEVICE ? "device" : st_advisor_tier(tier);
}

static void print_settings(const struct st_advice *a, const struct st_tried *t, FILE *file)
{
    if (a->ranks > 1)
        st_print(file, "ZeRO stage %u, ", t->tiers.stage);
    if (t->tiers.optimizer == STRATA_TIER_DEVICE && t->tiers.param == STRATA_TIER_DEVICE)
        st_print_text(file, "all on the device, ");
    else
        st_print(file, "optimizer %s, weights %s, ", place_of(t->tiers.optimizer), place_of(t->tiers.param));
    st_print(file, "%smicro-batch %u, accumulation %u",
             t->tiers.checkpoints == STRATA_TIER_NVME ? "activation checkpoints nvme, " : "", t->micro_batch, t->grad_accum);
    if (a->ranks > 1)
        st_print_text(file, " on each rank");
}

/* Ranks need not share more than they must. */
static void print_lowest(const struct st_advice *a, FILE *file)
{
    const struct st_tried *best = &a->tried[a->best], *lowest = &a->tried[a->lowest];
    char text[24];

    if (a->ranks <= 1)
        return;
    if (lowest->tiers.stage == best->tiers.stage) {
        st_print_text(file, best->tiers.stage > 0 ? "  no lower stage fits\n" : "  no higher stage is needed\n");
        return;
    }
    st_print_text(file, "  the lowest stage that fits: ");
    print_settings(a, lowest, file);
    if (lowest->seconds > 0)
        st_print(file, ", about %s a step", st_seconds_text(text, lowest->seconds));
    st_print_text(file, "\n");
}

/* With three digits, or whole where they would be a thousand or more. */
static void print_rounded(double value, const char *unit, FILE *file)
{
    st_print(file, value < 999.5 ? "%.3g%s" : "%.0f%s", value, unit);
}

static void print_days(double seconds, FILE *file)
{
    st_print_text(file, " (");
    print_rounded(seconds / DAY, " days)", file);
}

static void print_data(const struct st_advice *a, FILE *file)
{
    const double epoch = epoch_steps(a);

    if (a->data_sequences == 0)
        return;
    st_print(file, "  the data: %" PRIu64 " sequence%s of %u tokens, %.0f step%s an epoch", a->data_sequences,
             a->data_sequences == 1 ? "" : "s", a->seq, epoch, epoch > 1 ? "s" : "");
    if (a->steps > 0)
        st_print(file, "; %.3g epoch%s", a->steps / epoch, a->steps == epoch ? "" : "s");
    st_print_text(file, "\n");
}

/* What is known of its parts is known from data sheets, and from what other such cards attain. */
static void print_unmeasured(const struct st_advice *a, FILE *file)
{
    if (a->named)
        st_print_text(file, "  predicted for the parts that are named, not measured: no GPU has run it yet\n");
}

static void print_length(const struct st_advice *a, const struct st_tried *best, FILE *file)
{
    const double seconds = run_seconds(a, best), written = a->written.run_bytes, steps = steps_of(a);
    char tokens[24];

    if (isfinite(seconds)) {
        st_print(file, "  the run: %s token%s in %.0f step%s: %s", st_count_text(tokens, (uint64_t)a->tokens),
                 a->tokens == 1 ? "" : "s", steps, steps > 1 ? "s" : "", best->bounded ? "at least " : "");
        if (seconds < HOUR)
            print_rounded(seconds / MINUTE, " minutes", file);
        else
            print_rounded(seconds / HOUR, " hours", file);
        if (seconds >= 2 * DAY)
            print_days(seconds, file);
        st_print_text(file, "\n");
    }
    if (!isfinite(written) || written <= 0 || !isfinite(worn(a)))
        return;
    st_print_text(file, "  drives: ");
    print_rounded(written * 1e-12, " TB written, ", file);
    if (worn(a) < 1)
        st_print(file, "%.2g %% of what they endure", 100 * worn(a));
    else
        print_rounded(worn(a), " times what they endure", file);
    st_print_text(file, "\n");
}

static void print_best(const struct st_advice *a, FILE *file)
{
    const struct st_tried *best = &a->tried[a->best];
    char text[24];

    st_print_text(file, "  it fits: ");
    print_settings(a, best, file);
    st_print_text(file, "\n");
    if (best->seconds > 0)
        st_print(file, "  predicted step: %s%s, %.*f tokens a second%s; ", best->bounded ? "at least " : "",
                 st_seconds_text(text, best->seconds), batch_of(a) / best->seconds < 10 ? 1 : 0, batch_of(a) / best->seconds,
                 best->bounded ? " at most" : "");
    else
        st_print_text(file, "  the step is not predicted: rates of this machine are not known\n");
    if (best->seconds > 0 && a->tried_count == 1)
        st_print_text(file, "the only setting that fits\n");
    else if (best->seconds > 0)
        st_print(file, "%s of %u settings that fit\n", best->lacks ? "the lowest bound" : "fastest", a->tried_count);
    if (best->seconds > 0 && best->bounded)
        st_print(file, "    that is the schedule's bound, since %s\n",
                 best->lacks ? "the machine lacks a rate that the simulation needs" : "a program this long is not simulated");
    print_lowest(a, file);
    print_length(a, best, file);
}

/* So much of a tier.  What a named machine's parts do not have takes another part, and the budget, where one is given. */
static void print_tier(const struct st_advice *a, strata_tier tier, uint64_t bytes, FILE *file)
{
    static const char *const words[] = {"the device's memory", "host memory", "drives"}, *const keys[] = {
                                                                                             " as strata.device_memory",
                                                                                             " as strata.host_memory", ""};
    struct st_machine machine = {0};
    char size[24], part[80];

    st_size_text(size, bytes);
    if (a->named)
        st_hardware_machine(&machine, &a->hardware);
    if (!a->named || bytes <= machine.capacity.bytes[tier])
        st_print_keyed(file, "%s of %s (%" PRIu64 "MiB%s)", size, words[tier], bytes >> 20, keys[tier]);
    else if (!st_hardware_enough(part, sizeof(part), &a->hardware, tier, bytes))
        st_print(file, "%s of %s (no part by name has it)", size, words[tier]);
    else if (a->given[tier])
        st_print_keyed(file, "%s (%" PRIu64 "MiB of it for a run%s)", part, bytes >> 20, keys[tier]);
    else
        st_print_keyed(file, "%s (%s of it for a run)", part, size);
}

/* One sentence: what of which tiers would do, a machine's for all its ranks; tiers of 0 bytes stay as they are. */
static void print_enough(const struct st_advice *a, const uint64_t bytes[STRATA_TIER_COUNT], FILE *file)
{
    const char *before = "    with ";

    for (int t = 0; t < STRATA_TIER_COUNT; t++) {
        if (bytes[t] == 0)
            continue;
        st_print_text(file, before);
        print_tier(a, (strata_tier)t, t == STRATA_TIER_DEVICE || a->ranks <= 1 ? bytes[t] : bytes[t] * a->here, file);
        before = " and ";
    }
    st_print_text(file, " it would, the rest as it is\n");
}

static void print_least(const struct st_advice *a, FILE *file)
{
    uint32_t several = 0;
    bool alone = false;

    st_print_text(file, "  it does not fit, whatever lies where\n");
    for (int t = 0; t < STRATA_TIER_COUNT; t++) {
        uint64_t one[STRATA_TIER_COUNT] = {0};

        several += a->together[t] != 0;
        one[t] = a->least[t];
        if (one[t] != 0)
            print_enough(a, one, file);
        alone = alone || one[t] != 0;
    }
    if (several > 1 || (several == 1 && !alone))
        print_enough(a, a->together, file);
}

/* What its file has beside the batch and the optimizer: the tiers and the adapters, which stand at its end. */
static void print_sections(const char *config, FILE *file)
{
    const char *at = strstr(config, "  \"zero_optimization\"");

    for (size_t length; at != NULL && *at != '\0' && *at != '}'; at += length + (at[length] != '\0')) {
        length = strcspn(at, "\n");
        st_print(file, "    %.*s\n", (int)length, at);
    }
}

static void print_instead(const struct st_advice *a, FILE *file)
{
    static const char *const names[ST_METHOD_COUNT] = {
        [ST_METHOD_LORA] = "adapters (LoRA)", [ST_METHOD_LORA_NF4] = "adapters beside weights in nf4 (QLoRA)"};
    bool head = false;
    char text[24];

    for (int m = 0; m < ST_METHOD_COUNT; m++) {
        const struct st_instead *i = &a->instead[m];
        const char *before = ": ";

        if (!i->fits)
            continue;
        if (!head)
            st_print_text(file, "  what fits here instead of full training:\n");
        head = true;
        st_print(file, "    %s", names[m]);
        for (int t = 0; t < STRATA_TIER_COUNT; t++) {
            static const char *const of[] = {"the device", "host memory", "drives"};

            if (i->needed[t] == 0)
                continue;
            st_print(file, "%s%s of %s", before, st_size_text(text, i->needed[t]), of[t]);
            before = ", ";
        }
        if (i->best.seconds > 0)
            st_print(file, "; %s%s a step", i->best.bounded ? "at least " : "", st_seconds_text(text, i->best.seconds));
        st_print_text(file, " with ");
        print_settings(a, &i->best, file);
        st_print_text(file, "\n");
        print_sections(i->config, file);
    }
    if (head)
        st_print_text(file, "    these lines belong in the configuration\n");
}

static bool same_settings(const struct st_tried *a, const struct st_tried *b)
{
    return a->tiers.optimizer == b->tiers.optimizer && a->tiers.param == b->tiers.param &&
           a->tiers.checkpoints == b->tiers.checkpoints && a->micro_batch == b->micro_batch;
}

static void print_changes(const struct st_advice *a, FILE *file)
{
    static const char *const instead[ST_CHANGE_COUNT] = {
        [ST_CHANGE_GPU] = "another card: ", [ST_CHANGE_RAM] = "more memory: ", [ST_CHANGE_DRIVE] = "more drives: "};
    const struct st_tried *now = a->config != NULL ? &a->tried[a->best] : NULL;
    char text[24];
    bool head = false;

    for (int c = 0; c < ST_CHANGE_COUNT; c++) {
        const struct st_changed *change = &a->changed[c];

        if (!change->fits)
            continue;
        if (!head)
            st_print_text(file, now != NULL ? "  with one change the step would take:\n" : "  it would also fit with one of:\n");
        head = true;
        st_print(file, "    %s%-*s %9s", instead[c], 44 - (int)strlen(instead[c]), change->what,
                 st_seconds_text(text, change->best.seconds));
        if (now != NULL)
            st_print(file, "  %+6.1f %%", 100 * (change->best.seconds / now->seconds - 1));
        if (now == NULL || !same_settings(now, &change->best)) {
            st_print_text(file, "  with ");
            print_settings(a, &change->best, file);
        }
        st_print_text(file, "\n");
    }
}

void st_advice_print(const struct st_advice *a, FILE *file)
{
    char params[24];

    st_print(file, "%s: %s parameters; steps of %.0f tokens in sequences of %u; evaluated on %s", a->model,
             st_count_text(params, a->params), batch_of(a), a->seq, a->machine[0] != '\0' ? a->machine : "this machine");
    if (a->ranks > 1)
        st_print(file, "; %u ranks, %u on a node", a->ranks, a->here);
    st_print_text(file, "\n");
    st_print(file, "  assumed: %s, AdamW with fp32 state, gradients clipped at 1", a->fp16 ? "fp16" : "bf16");
    if (a->config != NULL && a->written.run_bytes > 0)
        st_print(file, "; drives endure %.0f TB written for each TB (%s)", st_hardware_writes_endured(),
                 st_hardware_endurance_source());
    st_print_text(file, "\n");
    print_unmeasured(a, file);
    print_data(a, file);
    if (a->config != NULL)
        print_best(a, file);
    else
        print_least(a, file);
    print_instead(a, file);
    print_changes(a, file);
}

/* --- JSON --- */

static void put_settings(const struct st_tried *t, struct st_json_writer *w)
{
    st_json_put_string(w, "optimizer", st_advisor_tier(t->tiers.optimizer));
    st_json_put_string(w, "param", st_advisor_tier(t->tiers.param));
    st_json_put_u64(w, "stage", t->tiers.stage);
    st_json_put_string(w, "activation_checkpoints", t->tiers.checkpoints == STRATA_TIER_NVME ? "nvme" : "auto");
    st_json_put_u64(w, "micro_batch", t->micro_batch);
    st_json_put_u64(w, "gradient_accumulation", t->grad_accum);
    st_json_put_double(w, "predicted_seconds", t->seconds > 0 ? t->seconds : (double)NAN);
    st_json_put_bool(w, "simulated", t->seconds > 0 && !t->bounded);
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
static void put_config(const char *config, struct st_json_writer *w)
{
    st_json *root = NULL;

    if (st_json_parse(&root, config, strlen(config), "the configuration") == STRATA_OK)
        st_json_put_node(w, "config", root);
    st_json_free(root);
}

static void put_best(const struct st_advice *a, struct st_json_writer *w)
{
    const struct st_tried *best = &a->tried[a->best];

    put_config(a->config, w);
    st_json_object_open(w, "plan");
    st_plan_put(a->plan_of, w);
    st_json_object_close(w);
    st_json_object_open(w, "chosen");
    put_settings(best, w);
    st_json_put_double(w, "tokens_per_second", best->seconds > 0 ? batch_of(a) / best->seconds : (double)NAN);
    st_json_put_double(w, "run_seconds", run_seconds(a, best));
    st_json_put_double(w, "wear", worn(a));
    st_json_object_close(w);
    if (a->ranks > 1) {
        st_json_object_open(w, "lowest_stage");
        put_settings(&a->tried[a->lowest], w);
        st_json_object_close(w);
    }
    st_written_put(&a->written, w);
    st_json_array_open(w, "tried");
    for (uint32_t i = 0; i < a->tried_count; i++) {
        st_json_object_open(w, NULL);
        put_settings(&a->tried[i], w);
        st_json_put_bool(w, "draft", !a->tried[i].chosen);
        st_json_object_close(w);
    }
    st_json_array_close(w);
}

static void put_instead(const struct st_advice *a, struct st_json_writer *w)
{
    static const char *const names[ST_METHOD_COUNT] = {[ST_METHOD_LORA] = "lora", [ST_METHOD_LORA_NF4] = "qlora"};

    st_json_array_open(w, "instead");
    for (int m = 0; m < ST_METHOD_COUNT; m++) {
        const struct st_instead *i = &a->instead[m];

        if (!i->fits)
            continue;
        st_json_object_open(w, NULL);
        st_json_put_string(w, "method", names[m]);
        put_bytes(w, "needed", i->needed);
        put_settings(&i->best, w);
        put_config(i->config, w);
        st_json_object_close(w);
    }
    st_json_array_close(w);
}

void st_advice_put(const struct st_advice *a, struct st_json_writer *w)
{

    st_json_object_open(w, NULL);
    st_json_put_bool(w, "fits", a->config != NULL);
    st_json_put_string(w, "model", a->model);
    st_json_put_u64(w, "parameters", a->params);
    st_json_put_string(w, "machine", a->machine);
    st_json_put_u64(w, "sequence_length", a->seq);
    st_json_put_u64(w, "step_sequences", a->sequences);
    st_json_put_u64(w, "ranks", a->ranks > 1 ? a->ranks : 1);
    st_json_put_double(w, "tokens", a->tokens > 0 ? a->tokens : (double)NAN);
    st_json_put_double(w, "steps", steps_of(a) > 0 ? steps_of(a) : (double)NAN);
    st_json_put_double(w, "data_sequences", a->data_sequences > 0 ? (double)a->data_sequences : (double)NAN);
    st_json_put_bool(w, "named", a->named);
    put_bytes(w, "capacity", a->capacity);
    if (a->config != NULL) {
        put_best(a, w);
    } else {
        put_bytes(w, "least", a->least);
        put_bytes(w, "least_together", a->together);
        put_instead(a, w);
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
