/* advise/plan_report.c - prints a plan as text and as JSON. */
#include "advise/plan_report.h"
#include "advise/predict.h"
#include "core/base/print.h"
#include "core/base/size.h"
#include "core/base/wrap.h"
#include "offload/checkpoint/manifest.h"

#include <math.h>
#include <string.h>

#define LABEL_COLUMNS 26 /* width of the labels in the table of tiers */
#define CELL_MOST     12
#define CELL_LEAST    8 /* "1023 MiB" */

static const char *const phase_names[ST_PHASE_COUNT] = {"first", "steady", "flush", "eval"};
static const enum st_phase phases[ST_PHASE_COUNT] = {ST_PHASE_PROLOGUE, ST_PHASE_BODY, ST_PHASE_EPILOGUE, ST_PHASE_EVAL};

const char *st_tier_name(strata_tier tier)
{
    static const char *const names[STRATA_TIER_COUNT] = {"device", "host", "nvme"};

    return tier < STRATA_TIER_COUNT ? names[tier] : "auto";
}

static const struct st_traffic *traffic_of(const struct st_figures *figures, enum st_phase phase)
{
    return &figures->traffic[st_phase_index(phase)];
}

/* --- text --- */

/* Parameters that are trained, or all, and the formats that they are stored in: "6.74 billion in bf16 and nf4". */
static const char *params_text(char buf[64], const struct st_workload *w, bool trained, const char *noun)
{
    const char *joint = " in ";
    bool stored[STRATA_NF4 + 1] = {false};
    uint64_t params = 0;
    char count[24];
    int length;

    for (uint32_t p = 0; p < w->page_count; p++)
        for (uint32_t i = 0; i < w->pages[p].group_count; i++) {
            const struct st_group *g = &w->pages[p].groups[i];

            if (trained && g->kind == ST_GROUP_FROZEN)
                continue;
            params += g->elems;
            stored[g->format] = true;
        }
    length = snprintf(buf, 64, "%s%s", st_count_text(count, params), noun);
    for (strata_dtype format = STRATA_F32; format <= STRATA_NF4; format++) {
        if (!stored[format])
            continue;
        length += snprintf(buf + length, 64 - (size_t)length, "%s%s", joint, strata_dtype_name(format));
        joint = " and ";
    }
    return buf;
}

/* "2 x 1 x 4 sequences of 1024 tokens": ranks, where there are several, accumulation, micro-batch. */
static const char *step_text(char buf[80], const struct st_plan *plan)
{
    const struct st_workload *w = &plan->program.workload;
    char ranks[24] = "";

    if (plan->program.ranks > 1)
        snprintf(ranks, sizeof(ranks), "%u x ", plan->program.ranks);
    snprintf(buf, 80, "%s%u x %u sequences of %u tokens", ranks, w->grad_accum, w->micro_batch, w->seq);
    return buf;
}

static void print_model(const struct st_plan *plan, FILE *file)
{
    const struct st_workload *w = &plan->program.workload;
    char all[64], trained[64], step[80], leaves[32] = "", frozen[96] = "", experts[40] = "";
    uint64_t params = 0;

    for (uint32_t p = 0; p < w->page_count; p++)
        params += w->pages[p].params;
    if (plan->program.leaves > 1)
        snprintf(leaves, sizeof(leaves), " in %u leaves", plan->program.leaves);
    if (w->params < params)
        snprintf(frozen, sizeof(frozen), ", of which %s are trained", params_text(trained, w, true, ""));
    if (st_experts_count(w) > 0)
        snprintf(experts, sizeof(experts), ", %u slices of experts", st_experts_count(w));
    st_print(file, "%s: %s%s, %u blocks%s; a step is %s%s\n", w->name, params_text(all, w, false, " parameters"), frozen,
             st_block_count(w), experts, step_text(step, plan), leaves);
}

static uint32_t nodes_of(const struct st_program *program, const struct st_machine *m)
{
    return (program->ranks + st_node_ranks(&m->rates, program->ranks) - 1) / st_node_ranks(&m->rates, program->ranks);
}

static void print_world(const struct st_case *of, FILE *file)
{
    const struct st_program *program = &of->plan->program;
    const uint32_t nodes = nodes_of(program, &of->machine);

    if (program->ranks > 1)
        st_print(file, "  rank %u of %u, on %u %s: ZeRO stage %u; all below is this rank's part\n", program->rank, program->ranks,
                 nodes, nodes == 1 ? "node" : "nodes", program->stage);
}

/* A label and a cell for each tier; on a narrow terminal they are closer together, on a narrower one the label has a line of its
 * own. */
struct tier_table {
    FILE *file;
    int cell;
    bool apart; /* the label is on a line apart from its cells */
};

static struct tier_table tier_table_of(FILE *file, size_t width)
{
    const int fitting = ((int)width - LABEL_COLUMNS) / STRATA_TIER_COUNT - 1;

    if (fitting < CELL_LEAST)
        return (struct tier_table){file, CELL_MOST, true};
    return (struct tier_table){file, fitting < CELL_MOST ? fitting : CELL_MOST, false};
}

static void print_label(const struct tier_table *t, const char *label)
{
    if (!t->apart)
        st_print(t->file, "  %-*s", LABEL_COLUMNS - 2, label);
    else if (*label != '\0')
        st_print(t->file, "  %s\n", label);
}

static void print_size_row(const struct tier_table *t, const char *label, const uint64_t bytes[STRATA_TIER_COUNT])
{
    char text[24];

    print_label(t, label);
    for (int tier = 0; tier < STRATA_TIER_COUNT; tier++)
        st_print(t->file, " %*s", t->cell, bytes[tier] != 0 ? st_size_text(text, bytes[tier]) : "-");
    st_print(t->file, "\n");
}

static void print_tier_names(const struct tier_table *t)
{
    print_label(t, "");
    for (int tier = 0; tier < STRATA_TIER_COUNT; tier++)
        st_print(t->file, " %*s", t->cell, st_tier_name((strata_tier)tier));
    st_print(t->file, "\n");
}

static void print_lacking(const struct st_plan *plan, const struct tier_table *table)
{
    uint64_t lacking[STRATA_TIER_COUNT];

    for (int t = 0; t < STRATA_TIER_COUNT; t++)
        lacking[t] = plan->program.needed[t] > plan->capacity.bytes[t] ? plan->program.needed[t] - plan->capacity.bytes[t] : 0;
    print_size_row(table, "lacking", lacking);
}

/* Prints all items of one name, a column per tier, at the place of the first one. */
static void print_item(const struct st_plan *plan, uint32_t item, const struct tier_table *table)
{
    const char *name = plan->items[item].name;
    uint64_t bytes[STRATA_TIER_COUNT] = {0};
    char label[64];

    for (uint32_t i = 0; i < plan->item_count; i++) {
        if (strcmp(plan->items[i].name, name) != 0)
            continue;
        if (i < item)
            return;
        bytes[plan->items[i].tier] += plan->items[i].bytes;
    }
    if (bytes[STRATA_TIER_DEVICE] + bytes[STRATA_TIER_HOST] + bytes[STRATA_TIER_NVME] == 0)
        return;
    snprintf(label, sizeof(label), "  %.60s", name);
    print_size_row(table, label, bytes);
}

static void print_tiers(const struct st_plan *plan, bool full, const struct tier_table *table)
{
    const uint64_t callers[STRATA_TIER_COUNT] = {plan->policy.caller_bytes[STRATA_TIER_DEVICE],
                                                 plan->policy.caller_bytes[STRATA_TIER_HOST]};

    print_tier_names(table);
    print_size_row(table, "budget", plan->capacity.bytes);
    if (st_program_called(&plan->program))
        print_size_row(table, "beside it, the caller's", callers);
    print_size_row(table, plan->fits ? "needed" : "needed at least", plan->program.needed);
    if (!plan->fits) {
        print_lacking(plan, table);
        return;
    }
    if (!full)
        return;
    print_size_row(table, "smallest possible", plan->minimum);
    for (uint32_t i = 0; i < plan->item_count; i++)
        print_item(plan, i, table);
}

static void print_memory(const struct st_plan *plan, FILE *file)
{
    char rss[24], fixed[24], gpu[24], beside[24];

    st_print(file, "  memory of the process: at most %s = host + %s%s fixed part\n", st_size_text(rss, plan->rss_bytes_max),
             plan->capacity.device_is_host ? "device + " : "", st_size_text(fixed, plan->fixed_bytes));
    if (plan->capacity.device_beside > 0)
        st_print(file, "  memory of the GPU: at most %s = device + %s for driver, libraries and kernels\n",
                 st_size_text(gpu, plan->program.needed[STRATA_TIER_DEVICE] + plan->capacity.device_beside),
                 st_size_text(beside, plan->capacity.device_beside));
}

static void print_traffic(const char *label, const struct st_traffic *t, FILE *file)
{
    char upload[24], download[24], read[24], write[24], comm[24];

    st_print(file, "  %s: upload %s, download %s, read %s, write %s", label, st_size_text(upload, t->upload),
             st_size_text(download, t->download), st_size_text(read, t->read), st_size_text(write, t->write));
    if (t->comm > 0)
        st_print(file, ", comm %s", st_size_text(comm, t->comm));
    st_print_text(file, "\n");
}

static void print_comm(const struct st_program *program, const struct st_traffic *steady, FILE *file)
{
    char comm[24], zero[24];

    if (program->ranks == 1 || program->forward_only)
        return;
    st_print(file, "  comm of a step: %s come to each rank, sums of gradients in %s; by ZeRO-%u as its paper counts, %s would\n",
             st_size_text(comm, steady->comm), program->wire_bf16 ? "bf16" : "fp32 (strata.wire)", program->stage,
             st_size_text(zero, (uint64_t)st_zero_comm_bytes(program)));
}

static void print_all_traffic(const struct st_plan *plan, const struct st_figures *figures, FILE *file)
{
    static const char *const labels[ST_PHASE_COUNT] = {"bytes of the first step", "bytes of a steady step", "bytes of a flush",
                                                       "bytes of an evaluation batch"};
    const struct st_traffic *steady = traffic_of(figures, ST_PHASE_BODY);

    for (size_t i = 0; i < ST_PHASE_COUNT; i++)
        print_traffic(labels[i], traffic_of(figures, phases[i]), file);
    print_comm(&plan->program, steady, file);
    if (steady->read + steady->write > 0)
        st_print(file, "  nvme moves %.2f bytes per parameter and step, without padding\n",
                 (double)figures->parameter_bytes_nvme * st_program_cuts(&plan->program) / (double)plan->program.workload.params);
}

const char *st_update_name(enum st_update_policy update)
{
    return update == ST_UPDATE_SERIAL        ? "serial"
           : update == ST_UPDATE_GATED       ? "gated"
           : update == ST_UPDATE_SPECULATIVE ? "speculative"
                                             : "in_backward";
}

static const char *update_text(const struct st_policy *policy)
{
    if (policy->early != 0)
        return "speculative update";
    return policy->update == ST_UPDATE_SERIAL  ? "serial update"
           : policy->update == ST_UPDATE_GATED ? "gated update"
                                               : "update in backward";
}

static uint32_t streamed_pages(const struct st_plan *plan)
{
    uint32_t count = 0;

    for (uint32_t p = 0; p < plan->program.workload.page_count; p++)
        count += plan->program.pages[p].state == ST_WHERE_STREAMED;
    return count;
}

/* Whose weights stay on the device whole. */
static uint32_t resident_pages(const struct st_program *program)
{
    uint32_t count = 0;

    for (uint32_t p = 0; p < program->workload.page_count; p++)
        count += program->pages[p].weights == ST_WHERE_DEVICE;
    return count;
}

static uint32_t sliced_pages(const struct st_plan *plan)
{
    uint32_t count = 0;

    for (uint32_t p = 0; p < plan->program.workload.page_count; p++)
        count += st_page_sliced(&plan->program.pages[p]);
    return count;
}

static void print_decisions(const struct st_plan *plan, bool full, FILE *file)
{
    const struct st_workload *w = &plan->program.workload;
    const uint32_t blocks = st_block_count(w) + st_experts_count(w); /* each of whose pages may lie elsewhere */
    const char *const what = st_experts_count(w) > 0 ? "pages of blocks" : "blocks";

    st_print(
        file,
        "  %s, %s; weights of %u of %u pages stay on the device; %u of %u blocks keep their activations, %u of %u head slices "
        "their "
        "logits, activation checkpoints on %s\n",
        plan->policy.forward_only ? "forward only" : update_text(&plan->policy),
        plan->decided.accumulation == ST_ACCUMULATE_VERTICAL ? "vertical" : "horizontal", resident_pages(&plan->program),
        w->page_count, plan->decided.kept_blocks, st_block_count(w), plan->decided.kept_slices, st_slice_count(w),
        st_tier_name(plan->decided.activation_tier));
    if (plan->policy.early != 0 && plan->program.early_pages == 0)
        st_print_text(file, "  no page gains by an update in backward, or may have one: the plan is a gated one\n");
    else if (plan->policy.early != 0)
        st_print(file,
                 "  %u of %u pages are updated in backward, and again before their next use if the step is clipped or skipped\n",
                 plan->program.early_pages, w->page_count);
    if (sliced_pages(plan) > 0)
        st_print(file, "  %u of %u %s are on the device in slices, and made whole there for each use\n", sliced_pages(plan),
                 blocks, what);
    if (!full || plan->policy.forward_only)
        return;
    st_print(file,
             "  state: moments in %s; %u pages on the device, %u of %u chunks kept above their tier; cached weights: %u pages\n",
             st_moment_format_name(plan->program.moment_format), plan->decided.device_state_pages, plan->decided.cached_chunks,
             plan->program.chunk_count, plan->decided.cached_weight_pages);
    if (streamed_pages(plan) > 0)
        st_print(file, "  the state of %u of %u %s crosses the link to be updated on the device\n", streamed_pages(plan), blocks,
                 what);
    st_print(file, "  slots: %u weights, %u host weights, %u state, %u activations, %u gradients; program: %u ops, %u waits\n",
             plan->decided.slots.weights, plan->decided.slots.host_weights, plan->decided.slots.states, plan->decided.slots.acts,
             plan->decided.slots.grads, plan->program.op_count, plan->program.wait_count);
    st_print_text(file, "  these words: docs/planning.md, \"Words of a plan\"\n");
}

/* What saving costs: a checkpoint's own writes, and the sets in which they are kept. */
static void print_saving(const struct st_case *of, FILE *file)
{
    const struct st_plan *plan = of->plan;
    const struct st_figures *figures = &of->figures;
    const enum st_saves_on where = of->saves_on;
    char bytes[24], set[24], seconds[24];

    st_print(file, "  checkpoints: %u kept, in %u sets of %s on nvme; each ", plan->policy.keep + plan->policy.keep_best,
             plan->program.sets, st_size_text(set, plan->program.space_bytes[ST_SPACE_SET]));
    if (where == ST_SAVES_ON_SOME_DRIVES)
        st_print(file, "shares what lies on the file system of %s, and the rest is copied there\n", of->config->save);
    else if (where == ST_SAVES_ELSEWHERE)
        st_print(file, "is copied to %s, which is on another file system: a directory on the drives would cost nothing\n",
                 of->config->save);
    else if (figures->save_bytes == 0)
        st_print_text(file, "takes what lies there and copies nothing\n");
    else
        st_print(file, "writes %s that live in memory%s%s\n", st_size_text(bytes, figures->save_bytes),
                 isfinite(figures->save_seconds) ? ", in about " : "",
                 isfinite(figures->save_seconds) ? st_seconds_text(seconds, figures->save_seconds) : "");
}

void st_plan_print(const struct st_case *of, bool full, FILE *to)
{
    const struct st_plan *plan = of->plan;
    const struct st_figures *figures = &of->figures;
    FILE *const file = st_wrap_open(to);
    const struct tier_table table = tier_table_of(file, st_print_width(to));

    print_model(plan, file);
    print_world(of, file);
    print_tiers(plan, full, &table);
    if (full)
        st_zero_print_states(plan, file);
    if (plan->fits) {
        print_memory(plan, file);
        if (full)
            print_all_traffic(plan, figures, file);
        else
            print_traffic("bytes of a steady step", traffic_of(figures, ST_PHASE_BODY), file);
        print_decisions(plan, full, file);
        if (plan->program.sets > 0)
            print_saving(of, file);
    }
    st_wrap_close(file, to);
}

static void print_passes(const struct st_bounds *b, const struct st_machine *m, FILE *file)
{
    const struct {
        const char *name;
        double seconds;
    } parts[] = {{"updates", b->passes.update},
                 {"gradients rounded", b->passes.round},
                 {"sums of leaves added", b->passes.reduce},
                 {"sums zeroed", b->passes.zero},
                 {"rows and norms", b->passes.rows}};
    const double sum = st_passes_sum(&b->passes);
    const char *comma = "";
    char text[24];

    if (!(sum > 0))
        return;
    st_print(file, "  the device's own passes over its memory, at %.0f GB/s: %s of a step:", m->rates.memory * 1e-9,
             st_seconds_text(text, sum));
    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
        if (!(parts[i].seconds > 0))
            continue;
        st_print(file, "%s %s %s", comma, parts[i].name, st_seconds_text(text, parts[i].seconds));
        comma = ",";
    }
    st_print_text(file, "\n");
}

void st_bounds_print(const struct st_case *of, FILE *to)
{
    const struct st_figures *figures = &of->figures;
    const struct st_bounds *b = &figures->bounds;
    FILE *const file = st_wrap_open(to);
    char hardware[24], schedule[24];

    if (!(b->schedule > 0) && of->rates_known) {
        st_print_keyed(file,
                       "  shortest step: unknown, a rate that it needs is missing in the machine file (strata info info.measure "
                       "info.out FILE writes all of them)\n");
    } else if (!(b->schedule > 0)) {
        st_print_keyed(file, "  shortest step: unknown, no rates (machine.file FILE, or strata plan plan.measure)\n");
        if (!figures->machine.capacity.device_is_host)
            st_print_text(file, "  a run measures them first and may then plan faster ways within the same budgets\n");
    } else {
        st_print(file, "  shortest step: %s for this schedule (bound by %s), %s for any schedule on this hardware\n",
                 st_seconds_text(schedule, b->schedule), b->bound_by, st_seconds_text(hardware, b->hardware));
        print_passes(b, &figures->machine, file);
    }
    st_wrap_close(file, to);
}

/* --- JSON --- */

static void put_traffic(struct st_json_writer *w, const char *key, const struct st_traffic *t)
{
    st_json_object_open(w, key);
    st_json_put_u64(w, "upload", t->upload);
    st_json_put_u64(w, "download", t->download);
    st_json_put_u64(w, "read", t->read);
    st_json_put_u64(w, "write", t->write);
    st_json_put_u64(w, "comm", t->comm);
    st_json_object_close(w);
}

static void put_tiers(struct st_json_writer *w, const struct st_plan *plan)
{
    st_json_object_open(w, "tiers");
    for (int t = 0; t < STRATA_TIER_COUNT; t++) {
        st_json_object_open(w, st_tier_name((strata_tier)t));
        st_json_put_u64(w, "capacity", plan->capacity.bytes[t]);
        if (st_program_called(&plan->program) && t != STRATA_TIER_NVME)
            st_json_put_u64(w, "caller", plan->policy.caller_bytes[t]);
        st_json_put_u64(w, "needed", plan->program.needed[t]);
        st_json_put_u64(w, "minimum", plan->minimum[t]);
        st_json_object_close(w);
    }
    st_json_object_close(w);
}

static void put_workload(struct st_json_writer *w, const struct st_workload *work)
{
    st_json_put_string(w, "model", work->name);
    st_json_put_u64(w, "parameters", work->params);
    st_json_put_u64(w, "sequence_length", work->seq);
    st_json_put_u64(w, "micro_batch", work->micro_batch);
    st_json_put_u64(w, "gradient_accumulation", work->grad_accum);
}

static void put_world(struct st_json_writer *w, const struct st_case *of)
{
    const struct st_program *program = &of->plan->program;

    st_json_object_open(w, "world");
    st_json_put_u64(w, "rank", program->rank);
    st_json_put_u64(w, "ranks", program->ranks);
    st_json_put_u64(w, "nodes", nodes_of(program, &of->machine));
    st_json_put_u64(w, "stage", program->stage);
    st_json_object_close(w);
}

static void put_placement(struct st_json_writer *w, const struct st_plan *plan)
{
    st_json_object_open(w, "placement");
    st_json_put_string(w, "update", st_update_name(st_policy_update(&plan->policy)));
    if (plan->policy.early != 0)
        st_json_put_u64(w, "early_pages", plan->program.early_pages);
    st_json_put_string(w, "accumulation", plan->decided.accumulation == ST_ACCUMULATE_VERTICAL ? "vertical" : "horizontal");
    st_json_put_string(w, "param_tier", st_tier_name(plan->policy.param_tier));
    st_json_put_string(w, "optimizer_tier", st_tier_name(plan->policy.optimizer_tier));
    st_json_put_string(w, "activation_tier", st_tier_name(plan->decided.activation_tier));
    st_json_put_string(w, "moments", st_moment_format_name(plan->program.moment_format));
    st_json_put_u64(w, "pages", plan->program.workload.page_count);
    st_json_put_u64(w, "resident_pages", resident_pages(&plan->program));
    st_json_put_u64(w, "sliced_pages", sliced_pages(plan));
    st_json_put_u64(w, "device_state_pages", plan->decided.device_state_pages);
    st_json_put_u64(w, "streamed_pages", streamed_pages(plan));
    st_json_put_u64(w, "cached_weight_pages", plan->decided.cached_weight_pages);
    st_json_put_u64(w, "chunks", plan->program.chunk_count);
    st_json_put_u64(w, "cached_chunks", plan->decided.cached_chunks);
    st_json_put_u64(w, "blocks", st_block_count(&plan->program.workload));
    st_json_put_u64(w, "experts_slices", st_experts_count(&plan->program.workload));
    st_json_put_u64(w, "kept_blocks", plan->decided.kept_blocks);
    st_json_put_u64(w, "head_slices", st_slice_count(&plan->program.workload));
    st_json_put_u64(w, "kept_head_slices", plan->decided.kept_slices);
    st_json_put_u64(w, "weight_slots", plan->decided.slots.weights);
    st_json_put_u64(w, "host_weight_slots", plan->decided.slots.host_weights);
    st_json_put_u64(w, "state_slots", plan->decided.slots.states);
    st_json_put_u64(w, "activation_slots", plan->decided.slots.acts);
    st_json_put_u64(w, "gradient_slots", plan->decided.slots.grads);
    st_json_object_close(w);
}

static void put_saving(struct st_json_writer *w, const struct st_plan *plan, const struct st_figures *figures)
{
    st_json_object_open(w, "checkpoints");
    st_json_put_u64(w, "keep", plan->policy.keep);
    st_json_put_u64(w, "keep_best", plan->policy.keep_best);
    st_json_put_u64(w, "sets", plan->program.sets);
    st_json_put_u64(w, "set_bytes", plan->program.space_bytes[ST_SPACE_SET]);
    st_json_put_u64(w, "base_bytes", plan->program.space_bytes[ST_SPACE_BASE]);
    st_json_put_u64(w, "save_bytes", figures->save_bytes);
    st_json_put_double(w, "save_seconds", figures->save_seconds);
    st_json_object_close(w);
}

static void put_items(struct st_json_writer *w, const struct st_plan *plan)
{
    st_json_array_open(w, "items");
    for (uint32_t i = 0; i < plan->item_count; i++) {
        st_json_object_open(w, NULL);
        st_json_put_string(w, "name", plan->items[i].name);
        st_json_put_string(w, "tier", st_tier_name(plan->items[i].tier));
        st_json_put_u64(w, "bytes", plan->items[i].bytes);
        st_json_object_close(w);
    }
    st_json_array_close(w);
}

static void put_bounds(struct st_json_writer *w, const struct st_bounds *b)
{
    st_put_seconds(w, "hardware_bound_seconds", b->hardware);
    st_put_seconds(w, "schedule_bound_seconds", b->schedule);
    st_json_put_string(w, "bound_by", b->schedule > 0 ? b->bound_by : NULL);
    st_json_object_open(w, "pass_seconds");
    st_json_put_double(w, "update", b->passes.update);
    st_json_put_double(w, "round", b->passes.round);
    st_json_put_double(w, "reduce", b->passes.reduce);
    st_json_put_double(w, "zero", b->passes.zero);
    st_json_put_double(w, "rows", b->passes.rows);
    st_json_object_close(w);
}

void st_plan_put(const struct st_case *of, struct st_json_writer *w)
{
    const struct st_plan *plan = of->plan;
    const struct st_figures *figures = &of->figures;

    st_json_put_bool(w, "fits", st_case_fits(of));
    put_workload(w, &plan->program.workload);
    st_json_put_u64(w, "leaves", (uint64_t)plan->program.leaves * plan->program.ranks);
    put_world(w, of);
    put_tiers(w, plan);
    st_json_put_u64(w, "rss_bytes_max", plan->rss_bytes_max);
    st_json_put_u64(w, "fixed_bytes", plan->fixed_bytes);
    st_zero_put_states(plan, w);
    if (!st_case_fits(of))
        return;
    put_traffic(w, "traffic", traffic_of(figures, ST_PHASE_BODY));
    st_json_object_open(w, "traffic_by_phase");
    for (size_t i = 0; i < ST_PHASE_COUNT; i++)
        put_traffic(w, phase_names[i], traffic_of(figures, phases[i]));
    st_json_object_close(w);
    st_json_put_u64(w, "nvme_bytes_without_padding", figures->parameter_bytes_nvme);
    put_bounds(w, &figures->bounds);
    st_prediction_put(of, w);
    st_json_put_u64(w, "ops", plan->program.op_count);
    put_placement(w, plan);
    if (plan->program.sets > 0)
        put_saving(w, plan, figures);
    put_items(w, plan);
}
