/* advise/plan_picture.c - draws a plan: what lies where, and one steady step of its program on the simulated clock. */
#include "advise/plan_report.h"
#include "advise/predict.h"
#include "core/base/error.h"
#include "core/picture/lanes.h"
#include "core/picture/tiers.h"
#include "offload/simulate/simulate.h"

#include <stdlib.h>
#include <string.h>

#define WIDTH     1100.0
#define LEFT      24.0
#define HEAD_Y    26.0 /* of the headline's letters */
#define LINE      16.0
#define TIERS_GAP 18.0
#define LINES_MAX 4u
#define TEXT      512
#define NO_SPAN   SIZE_MAX

/* --- one step --- */

/* Row 0 is that of the stalls; the lanes follow. */
struct recorded {
    const struct st_program *program;
    const char *names[1 + STRATA_LANE_COUNT];
    struct st_lane_span *spans;
    size_t count, room;
    size_t last[1 + STRATA_LANE_COUNT];      /* the row's newest span; NO_SPAN: none */
    uint32_t last_op[1 + STRATA_LANE_COUNT]; /* that it is of; of a stall the lane that it waits for */
    bool failed;
};

static void step_began(void *ctx)
{
    struct recorded *r = ctx;

    r->count = 0;
    memset(r->last, 0xff, sizeof(r->last));
}

/* A new span, or more of the row's newest one where that goes on. */
static void record(struct recorded *r, struct st_lane_span span, uint32_t of)
{
    struct st_lane_span *last = r->last[span.lane] != NO_SPAN ? &r->spans[r->last[span.lane]] : NULL, *grown;

    if (last != NULL && r->last_op[span.lane] == of && !(span.start > last->end)) {
        last->ran += span.end - span.start;
        last->end = span.end;
        return;
    }
    if (r->count == r->room) {
        r->room = r->room == 0 ? 4096 : 2 * r->room;
        if (r->failed || (grown = realloc(r->spans, r->room * sizeof(*grown))) == NULL) {
            r->failed = true;
            r->room = r->count;
            return;
        }
        r->spans = grown;
    }
    span.ran = span.end - span.start;
    span.count = 1;
    r->last[span.lane] = r->count;
    r->last_op[span.lane] = of;
    r->spans[r->count++] = span;
}

static void op_ran(void *ctx, uint32_t lane, uint32_t op, double start, double seconds)
{
    struct recorded *r = ctx;
    const char *name = st_op_name((enum st_op_kind)r->program->ops[op].kind);

    record(r,
           (struct st_lane_span){.start = start,
                                 .end = start + seconds,
                                 .lane = 1 + lane,
                                 .cause = ST_NO_LANE,
                                 .kind = st_span_kind_of(r->names[1 + lane], name),
                                 .name = name},
           op);
}

static void compute_waited(void *ctx, const struct st_stall *stall, double start, double seconds)
{
    struct recorded *r = ctx;

    record(r,
           (struct st_lane_span){.start = start,
                                 .end = start + seconds,
                                 .cause = 1 + stall->lane,
                                 .kind = st_span_kind_of_lane(r->names[1 + stall->lane])},
           stall->lane);
}

/* The last step of those that are simulated.  The spans are taken. */
static strata_status record_step(struct st_lanes *out, struct recorded *r, const struct st_case *of)
{
    const struct st_simulation_watch watch = {r, step_began, op_ran, compute_waited};
    struct st_simulation last;
    strata_status st;

    r->program = &of->plan->program;
    r->names[0] = "stall";
    for (uint32_t lane = 0; lane < STRATA_LANE_COUNT; lane++)
        r->names[1 + lane] = st_lane_name((enum strata_lane)lane);
    st = st_simulate_watched(&last, r->program, &of->figures.machine, &watch);
    if (st == STRATA_OK && r->failed)
        st = st_nomem(0);
    if (st == STRATA_OK)
        *out = (struct st_lanes){.title = "one simulated step",
                                 .seconds = last.seconds,
                                 .names = r->names,
                                 .count = 1 + STRATA_LANE_COUNT,
                                 .stalls = 0,
                                 .spans = r->spans,
                                 .span_count = r->count};
    return st;
}

/* --- what lies where --- */

/* The first row whose word begins a name says its colour; slots, which things pass through, are paler. */
static const struct {
    const char *word, *paint, *pale;
} paints[] = {
    {"weight", "fill='" ST_SVG_SKY "'", "fill='" ST_SVG_SKY "' fill-opacity='.5'"},
    {"gradient", "fill='" ST_SVG_BLUE "'", "fill='" ST_SVG_BLUE "' fill-opacity='.5'"},
    {"host accumulators", "fill='" ST_SVG_BLUE "'", "fill='" ST_SVG_BLUE "'"},
    {"optimizer state", "fill='" ST_SVG_ORANGE "'", "fill='" ST_SVG_ORANGE "'"},
    {"state", "fill='" ST_SVG_ORANGE "'", "fill='" ST_SVG_ORANGE "' fill-opacity='.5'"},
    {"activation", "fill='" ST_SVG_GREEN "'", "fill='" ST_SVG_GREEN "' fill-opacity='.5'"},
    {"checkpoint", "fill='" ST_SVG_PURPLE "'", "fill='" ST_SVG_PURPLE "' fill-opacity='.5'"},
    {"", "fill='" ST_SVG_GREY "'", "fill='" ST_SVG_GREY "'"},
};

static const char *paint_of(const char *name)
{
    size_t i = 0;

    while (strncmp(name, paints[i].word, strlen(paints[i].word)) != 0)
        i++;
    return strstr(name, " slots") != NULL ? paints[i].pale : paints[i].paint;
}

/* A column for each tier that the machine has or the plan needs. */
static uint32_t columns_of(const struct st_plan *plan, struct st_tier_column columns[STRATA_TIER_COUNT])
{
    uint32_t count = 0;

    for (int t = 0; t < STRATA_TIER_COUNT; t++) {
        struct st_tier_column *c = &columns[count];

        if (plan->capacity.bytes[t] == 0 && plan->program.needed[t] == 0)
            continue;
        count++;
        *c = (struct st_tier_column){.name = st_tier_name((strata_tier)t),
                                     .capacity = plan->capacity.bytes[t],
                                     .needed = plan->program.needed[t],
                                     .least = plan->minimum[t]};
        for (uint32_t i = 0; i < plan->item_count && plan->fits; i++)
            if (plan->items[i].tier == (strata_tier)t)
                c->items[c->count++] =
                    (struct st_tier_item){plan->items[i].name, paint_of(plan->items[i].name), plan->items[i].bytes};
    }
    return count;
}

/* --- the page --- */

struct page {
    char head[TEXT], lines[LINES_MAX][TEXT];
    uint32_t line_count;
    struct st_tier_column columns[STRATA_TIER_COUNT];
    uint32_t column_count;
    struct st_lanes lanes; /* seconds 0: none */
};

static void add_bounds(struct page *page, const struct st_case *of, const struct st_prediction *p)
{
    const struct st_bounds *b = &of->figures.bounds;
    char seconds[24], schedule[24], hardware[24];

    if (!(b->schedule > 0)) {
        snprintf(page->lines[page->line_count++], TEXT, "predicted: %s; a bound needs a rate that is not known",
                 st_seconds_text(seconds, p->seconds));
        return;
    }
    snprintf(page->lines[page->line_count++], TEXT,
             "%s%s%sthis schedule takes at least %s (bound by %s), any schedule on this hardware %s",
             p->simulated ? "predicted: " : "", p->simulated ? st_seconds_text(seconds, p->seconds) : "",
             p->simulated ? "; " : "", st_seconds_text(schedule, b->schedule), b->bound_by,
             st_seconds_text(hardware, b->hardware));
}

static void write_head(struct page *page, const struct st_case *of, const struct st_prediction *p)
{
    const struct st_plan *plan = of->plan;
    const struct st_workload *w = &plan->program.workload;
    const char *machine = of->figures.machine.name[0] != '\0' ? of->figures.machine.name : of->machine.name;
    char seconds[24], params[24], trained[24], step[80], frozen[64] = "", ranks[64] = "";
    uint64_t all = 0;

    snprintf(page->head, TEXT, "%.120s%s%.64s: %s%s", w->name, machine[0] != '\0' ? " on " : "", machine,
             !plan->fits      ? "does not fit"
             : p->simulated   ? "a step of "
             : p->seconds > 0 ? "a step of at least "
                              : "what lies where",
             plan->fits && p->seconds > 0 ? st_seconds_text(seconds, p->seconds) : "");
    if (plan->program.ranks > 1)
        snprintf(ranks, sizeof(ranks), "; rank %u of %u, ZeRO stage %u", plan->program.rank, plan->program.ranks,
                 plan->program.stage);
    for (uint32_t i = 0; i < w->page_count; i++)
        all += w->pages[i].params;
    if (w->params < all)
        snprintf(frozen, sizeof(frozen), ", of which %s are trained", st_count_text(trained, w->params));
    snprintf(page->lines[page->line_count++], TEXT, "%s parameters%s, %u blocks; a step is %s%s", st_count_text(params, all),
             frozen, st_block_count(w), st_plan_step_text(step, plan), ranks);
    if (!plan->fits)
        return;
    snprintf(page->lines[page->line_count++], TEXT,
             "schedule: %s update, %s; weights of %u of %u pages stay on the device, %u of %u blocks keep their activations",
             st_update_name(plan->policy.update),
             plan->decided.accumulation == ST_ACCUMULATE_VERTICAL ? "vertical" : "horizontal", st_report_resident(&plan->program),
             w->page_count, plan->decided.kept_blocks, st_block_count(w));
    if (p->seconds > 0)
        add_bounds(page, of, p);
    if (!p->simulated)
        snprintf(page->lines[page->line_count++], TEXT, "no step is drawn: %s",
                 p->seconds > 0 ? st_prediction_lacks(&plan->program, &of->figures.machine)
                                : "no rates are known: a machine file has them, a card that is named, or a measurement");
}

static void draw_page(struct page *page, FILE *file)
{
    const double tiers_y = HEAD_Y + LINE * page->line_count + TIERS_GAP;
    const double lanes_y = tiers_y + st_tiers_height(page->columns, page->column_count);
    const bool step = page->lanes.seconds > 0;
    struct st_svg svg;

    st_svg_begin(&svg, file, WIDTH, lanes_y + (step ? st_lanes_height(&page->lanes) : 0), page->head,
                 step ? "What lies on each tier, to scale, and one simulated step: a row per lane over time"
                      : "What lies on each tier, to scale");
    st_svg_text(&svg, LEFT, HEAD_Y, "head", (WIDTH - 2 * LEFT) * 0.73, page->head);
    for (uint32_t i = 0; i < page->line_count; i++)
        st_svg_text(&svg, LEFT, HEAD_Y + LINE * (i + 1), "label", WIDTH - 2 * LEFT, page->lines[i]);
    st_tiers_draw(&svg, page->columns, page->column_count, tiers_y);
    if (step)
        st_lanes_draw(&svg, &page->lanes, lanes_y);
    st_svg_end(&svg);
}

strata_status st_plan_draw(const struct st_case *of, FILE *file)
{
    struct recorded *r = calloc(1, sizeof(*r));
    struct page *page = calloc(1, sizeof(*page));
    struct st_prediction prediction = {0};
    strata_status st = STRATA_OK;

    if (r == NULL || page == NULL)
        st = st_nomem(0);
    if (st == STRATA_OK && of->plan->fits)
        st_predict(&prediction, &of->plan->program, &of->figures.machine);
    if (st == STRATA_OK && prediction.simulated)
        st = record_step(&page->lanes, r, of);
    if (st == STRATA_OK) {
        page->column_count = columns_of(of->plan, page->columns);
        write_head(page, of, &prediction);
        draw_page(page, file);
    }
    free(r != NULL ? r->spans : NULL);
    free(r);
    free(page);
    return st;
}
