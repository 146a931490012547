/* advise/predict_ranks.c - what a run needs and how long its step takes on 1, 2, 4, ... ranks.
 *
 * Each number of ranks is planned anew, for one rank's part of a node.  Every rank keeps its micro-batch and accumulation, so a
 * step has more tokens with more ranks. */
#include "advise/plan_parts.h"
#include "advise/plan_report.h"
#include "advise/predict.h"
#include "core/base/error.h"
#include "core/base/print.h"
#include "core/base/size.h"
#include "core/base/wrap.h"
#include "core/system/workers.h"

#include <inttypes.h>
#include <math.h>

#define ROWS 11u /* to 1024 ranks */

struct row {
    uint32_t ranks, nodes, here; /* here: ranks of a node */
    strata_status status;
    uint64_t needed[STRATA_TIER_COUNT], capacity[STRATA_TIER_COUNT], comm;
    struct st_prediction prediction;
    double tokens, efficiency; /* a second, of all ranks; NaN: not known */
    char why[512];             /* there is no plan, and that it needs more room is not the reason */
};

struct rows {
    const struct st_case *of;
    struct row all[ROWS];
};

static bool lacks(const struct row *r, int tier)
{
    return r->needed[tier] > r->capacity[tier];
}

/* Plans for so many ranks and predicts; what does not fit is a row of the table, too. */
static strata_status plan_row(void *ctx, uint64_t index)
{
    struct rows *rows = ctx;
    struct row *out = &rows->all[index];
    const struct st_case *of = rows->of;
    const uint32_t ranks = 1u << index;
    struct st_machine m = of->node;
    struct st_plan *plan = NULL;
    struct st_workload w;
    struct st_policy policy = of->asked;

    *out = (struct row){.ranks = ranks, .here = st_node_ranks(&m.rates, ranks), .tokens = (double)NAN, .efficiency = (double)NAN};
    out->nodes = (ranks + out->here - 1) / out->here;
    st_case_share(&m, of, out->here);
    w = st_case_workload(of, m.capacity.workers);
    policy.ranks = ranks;
    policy.rank = 0;
    out->status = st_plan_make_evaluated(&plan, &w, &m.capacity, &policy, st_case_evaluator(of, &m),
                                         ranks == of->asked.ranks ? ST_EFFORT_WHOLE : ST_EFFORT_COMPARE);
    if (plan != NULL)
        for (int tier = 0; tier < STRATA_TIER_COUNT; tier++) {
            out->needed[tier] = plan->program.needed[tier];
            out->capacity[tier] = plan->capacity.bytes[tier];
        }
    if (out->status == STRATA_OK) {
        out->comm = st_program_traffic(&plan->program, ST_PHASE_BODY).comm;
        st_predict(&out->prediction, plan, &m);
        if (out->prediction.seconds > 0)
            out->tokens = (double)ranks * w.micro_batch * w.seq * w.grad_accum / out->prediction.seconds;
    }
    if (out->status != STRATA_OK && out->status != STRATA_E_NOFIT)
        snprintf(out->why, sizeof(out->why), "%s", strata_last_error());
    st_plan_destroy(plan);
    return out->status == STRATA_E_NOMEM ? out->status : STRATA_OK;
}

/* --- text --- */

static const char *size_text(char buf[24], uint64_t bytes)
{
    return bytes > 0 ? st_size_text(buf, bytes) : "-";
}

static void print_head(const struct st_case *of, FILE *file)
{
    const struct st_workload *w = &of->workload;

    st_print(file, "  with more ranks, of which each has %u x %u sequences of %u tokens in a step:\n", w->grad_accum,
             w->micro_batch, w->seq);
    st_print(file, "    %5s  %5s  %8s  %8s  %8s  %9s  %9s  %8s  %7s  %9s  %7s\n", "ranks", "nodes", "device", "host", "nvme",
             "host/node", "nvme/node", "comm", "step", "tokens/s", "each");
}

static void print_lacking(const struct row *r, FILE *file)
{
    char needed[24], have[24];
    int tier = 0;

    while (tier < STRATA_TIER_NVME && !lacks(r, tier))
        tier++;
    st_print(file, "  does not fit: a rank needs %s of %s, and has %s\n", st_size_text(needed, r->needed[tier]),
             st_tier_name((strata_tier)tier), st_size_text(have, r->capacity[tier]));
}

static void print_row(const struct row *r, FILE *file)
{
    const uint64_t host = r->here * r->needed[STRATA_TIER_HOST], nvme = r->here * r->needed[STRATA_TIER_NVME];
    char text[6][24], step[24], tokens[24] = "-", part[24] = "-";

    st_print(file, "    %5u  %5u", r->ranks, r->nodes);
    if (r->why[0] != '\0')
        st_print(file, "  not planned: %s\n", r->why);
    else if (r->status != STRATA_OK)
        print_lacking(r, file);
    if (r->status != STRATA_OK)
        return;
    if (!isnan(r->tokens))
        snprintf(tokens, sizeof(tokens), "%.0f", r->tokens);
    if (!isnan(r->efficiency))
        snprintf(part, sizeof(part), "%.1f %%", 100 * r->efficiency);
    st_print(file, "  %8s  %8s  %8s  %9s  %9s  %8s  %7s  %9s  %7s\n", size_text(text[0], r->needed[STRATA_TIER_DEVICE]),
             size_text(text[1], r->needed[STRATA_TIER_HOST]), size_text(text[2], r->needed[STRATA_TIER_NVME]),
             size_text(text[3], host), size_text(text[4], nvme), size_text(text[5], r->comm),
             r->prediction.seconds > 0 ? st_seconds_text(step, r->prediction.seconds) : "-", tokens, part);
}

/* --- JSON --- */

/* Without a plan nothing is known of them. */
static void put_bytes(struct st_json_writer *w, const char *key, const struct row *r, uint64_t bytes)
{
    if (r->why[0] != '\0')
        st_json_put_string(w, key, NULL);
    else
        st_json_put_u64(w, key, bytes);
}

static void put_row(const struct row *r, struct st_json_writer *w)
{
    st_json_object_open(w, NULL);
    st_json_put_u64(w, "ranks", r->ranks);
    st_json_put_u64(w, "nodes", r->nodes);
    st_json_put_bool(w, "fits", r->status == STRATA_OK);
    st_json_put_string(w, "reason", r->why[0] != '\0' ? r->why : NULL);
    put_bytes(w, "device_bytes", r, r->needed[STRATA_TIER_DEVICE]);
    put_bytes(w, "host_bytes", r, r->needed[STRATA_TIER_HOST]);
    put_bytes(w, "nvme_bytes", r, r->needed[STRATA_TIER_NVME]);
    put_bytes(w, "node_host_bytes", r, r->here * r->needed[STRATA_TIER_HOST]);
    put_bytes(w, "node_nvme_bytes", r, r->here * r->needed[STRATA_TIER_NVME]);
    st_json_put_u64(w, "comm_bytes", r->comm);
    st_json_put_double(w, "predicted_seconds", r->prediction.seconds > 0 ? r->prediction.seconds : (double)NAN);
    st_json_put_bool(w, "simulated", r->prediction.simulated);
    st_json_put_double(w, "tokens_per_second", r->tokens);
    st_json_put_double(w, "efficiency", r->efficiency);
    st_json_object_close(w);
}

/* Exactly one of file and w is not NULL.  The first row that fits is what the others are compared with. */
static strata_status each_row(const struct st_case *of, FILE *file, struct st_json_writer *w)
{
    struct rows rows = {.of = of};
    const strata_status st = st_workers_once(plan_row, &rows, ROWS);
    double of_one = (double)NAN;

    if (st != STRATA_OK)
        return st;
    if (rows.all[ROWS - 1].nodes > 1 && !st_case_spans_nodes(of)) /* else it is said */
        st_case_note_network(of);
    for (uint32_t i = 0; i < ROWS; i++) {
        struct row *r = &rows.all[i];

        if (isnan(of_one))
            of_one = r->tokens / r->ranks;
        r->efficiency = r->tokens / r->ranks / of_one;
        if (file != NULL)
            print_row(r, file);
        else
            put_row(r, w);
    }
    return STRATA_OK;
}

strata_status st_ranks_print(const struct st_case *of, FILE *to)
{
    FILE *const file = st_wrap_open(to);
    strata_status st;

    print_head(of, file);
    st = each_row(of, file, NULL);
    st_wrap_close(file, to);
    return st;
}

strata_status st_ranks_put(const struct st_case *of, struct st_json_writer *w)
{
    strata_status st;

    st_json_array_open(w, "scale");
    st = each_row(of, NULL, w);
    st_json_array_close(w);
    return st;
}
