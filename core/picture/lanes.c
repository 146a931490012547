/* lanes.c - see core/picture/lanes.h. */
#include "core/picture/lanes.h"

#include "core/base/size.h"

#include <assert.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LABEL_WIDTH   112.0 /* names of the lanes */
#define SHARE_WIDTH   58.0  /* how busy each was */
#define TOP           30.0
#define ROW_HEIGHT    20.0 /* of a lane that does one thing at a time */
#define THIN_HEIGHT   7.0  /* of each of several */
#define EMPTY_HEIGHT  12.0
#define ROW_GAP       6.0
#define AXIS_HEIGHT   30.0
#define LEGEND_HEIGHT 22.0
#define MERGE         0.5 /* pixels */
#define TOLD          3.0 /* pixels from which a span has a tooltip */
#define STRIPE        4.0
#define TICKS         12.0
#define TEXT          256
#define LEAST_STALL   0.001 /* of the step; shorter ones are not named */
#define LEAST_SECONDS 1e-9
#define NO_CAUSE      "transfers"

static const struct {
    const char *name, *paint;
} kinds[ST_SPAN_KINDS] = {
    [ST_SPAN_FORWARD] = {"forward", "fill='" ST_SVG_SKY "'"},  [ST_SPAN_BACKWARD] = {"backward", "fill='" ST_SVG_BLUE "'"},
    [ST_SPAN_UPDATE] = {"update", "fill='" ST_SVG_ORANGE "'"}, [ST_SPAN_COPY] = {"copy", "fill='" ST_SVG_PURPLE "'"},
    [ST_SPAN_READ] = {"read", "fill='" ST_SVG_GREEN "'"},      [ST_SPAN_WRITE] = {"write", "fill='" ST_SVG_VERMILLION "'"},
    [ST_SPAN_COMM] = {"exchange", "fill='" ST_SVG_YELLOW "'"}, [ST_SPAN_OTHER] = {"other", "fill='" ST_SVG_GREY "'"},
};

/* Shades of spans that are drawn as one, by the part of the time in which they ran. */
#define SHADES 4
static const char *const shades[SHADES] = {" fill-opacity='.3'", " fill-opacity='.5'", " fill-opacity='.75'", ""};

/* --- kinds --- */

/* The first row that fits says it: `begins` with what the name begins, `ends` with what it ends. */
static const struct {
    const char *begins, *ends;
    enum st_span_kind kind;
} words[] = {
    {"read_", "", ST_SPAN_READ},         {"write_", "", ST_SPAN_WRITE},       {"upload_", "", ST_SPAN_COPY},
    {"download_", "", ST_SPAN_COPY},     {"gather_", "", ST_SPAN_COPY},       {"", "_forward", ST_SPAN_FORWARD},
    {"head_norm", "", ST_SPAN_FORWARD},  {"head_stats", "", ST_SPAN_FORWARD}, {"head_loss", "", ST_SPAN_FORWARD},
    {"", "_backward", ST_SPAN_BACKWARD}, {"head_grad", "", ST_SPAN_BACKWARD}, {"finish_host", "", ST_SPAN_UPDATE},
    {"finish_", "", ST_SPAN_BACKWARD},   {"scatter_", "", ST_SPAN_BACKWARD},  {"reduce_", "", ST_SPAN_BACKWARD},
    {"round_", "", ST_SPAN_BACKWARD},    {"place_", "", ST_SPAN_COPY},        {"update", "", ST_SPAN_UPDATE},
    {"end", "", ST_SPAN_UPDATE},         {"page_use", "", ST_SPAN_FORWARD},   {"page_grad", "", ST_SPAN_BACKWARD},
    {"caller_end", "", ST_SPAN_UPDATE},  {"route_end", "", ST_SPAN_FORWARD},  {"route_again", "", ST_SPAN_BACKWARD},
};

static bool begins_and_ends(const char *name, const char *begins, const char *ends)
{
    const size_t length = strlen(name), tail = strlen(ends);

    return strncmp(name, begins, strlen(begins)) == 0 && length >= tail && strcmp(name + length - tail, ends) == 0;
}

enum st_span_kind st_span_kind_of(const char *lane, const char *name)
{
    if (strcmp(lane, "comm") == 0)
        return ST_SPAN_COMM;
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
        if (begins_and_ends(name, words[i].begins, words[i].ends))
            return words[i].kind;
    return ST_SPAN_OTHER;
}

enum st_span_kind st_span_kind_of_lane(const char *lane)
{
    if (strcmp(lane, "compute") == 0 || strcmp(lane, "caller") == 0)
        return ST_SPAN_FORWARD;
    if (strcmp(lane, "upload") == 0 || strcmp(lane, "download") == 0)
        return ST_SPAN_COPY;
    return strcmp(lane, "write") == 0 ? ST_SPAN_WRITE : st_span_kind_of(lane, lane);
}

/* --- spans --- */

static int by_start(const void *left, const void *right)
{
    const struct st_lane_span *a = left, *b = right;

    if (a->lane != b->lane)
        return a->lane < b->lane ? -1 : 1;
    return (a->start > b->start) - (a->start < b->start);
}

static int by_thread(const void *left, const void *right)
{
    const struct st_lane_span *a = left, *b = right;

    if (a->lane == b->lane && a->thread != b->thread)
        return a->thread < b->thread ? -1 : 1;
    return by_start(left, right);
}

static bool is_like(const struct st_lane_span *a, const struct st_lane_span *b)
{
    return a->lane == b->lane && a->thread == b->thread && a->kind == b->kind && a->cause == b->cause;
}

/* Neighbours of one kind, less than `least` apart, become one; nothing is narrower than `least`.  In the order of by_thread(). */
static void merge(struct st_lanes *lanes, double least)
{
    size_t count = 0;

    for (size_t i = 0; i < lanes->span_count; i++) {
        struct st_lane_span span = lanes->spans[i], *last = count > 0 ? &lanes->spans[count - 1] : NULL;

        span.end = fmax(span.end, span.start + least);
        if (last == NULL || !is_like(last, &span) || span.start - last->end >= least) {
            lanes->spans[count++] = span;
            continue;
        }
        last->end = fmax(last->end, span.end);
        last->ran += span.ran;
        last->count += span.count;
        if (last->name != NULL && (span.name == NULL || strcmp(last->name, span.name) != 0))
            last->name = NULL;
    }
    lanes->span_count = count;
}

/* --- drawing --- */

/* Where one lane is drawn. */
struct row {
    uint32_t lane;
    const struct st_lane_span *spans; /* its own */
    size_t count;
    uint32_t threads;
    double y, height, busy;
};

struct picture {
    struct st_svg *svg;
    const struct st_lanes *lanes;
    double scale; /* pixels of a second */
    bool used[ST_SPAN_KINDS];
};

static double x_of(const struct picture *p, double seconds)
{
    return LABEL_WIDTH + seconds * p->scale;
}

static double row_height(uint32_t threads)
{
    return threads == 0 ? EMPTY_HEIGHT : fmax(ROW_HEIGHT, THIN_HEIGHT * threads);
}

/* What is measured of all spans before they are merged. */
struct measured {
    uint32_t threads[ST_LANES_MAX];
    double busy[ST_LANES_MAX], until[ST_LANES_MAX];
    double stalled[ST_LANES_MAX + 1]; /* by cause; the last: unknown */
};

static void measure(struct measured *m, const struct st_lanes *lanes)
{
    memset(m, 0, sizeof(*m));
    for (size_t i = 0; i < lanes->span_count; i++) {
        const struct st_lane_span *span = &lanes->spans[i];

        if (span->thread >= m->threads[span->lane])
            m->threads[span->lane] = span->thread + 1;
        m->busy[span->lane] += fmax(0, span->end - fmax(span->start, m->until[span->lane]));
        m->until[span->lane] = fmax(m->until[span->lane], span->end);
        if (span->lane == lanes->stalls)
            m->stalled[span->cause != ST_NO_LANE ? span->cause : ST_LANES_MAX] += span->end - span->start;
    }
}

static double rows_height(const struct st_lanes *lanes, const struct measured *m)
{
    double height = 0;

    for (uint32_t i = 0; i < lanes->count; i++)
        height += row_height(m->threads[i]) + ROW_GAP;
    return height;
}

double st_lanes_height(const struct st_lanes *lanes)
{
    struct measured m;

    measure(&m, lanes);
    return TOP + rows_height(lanes, &m) + AXIS_HEIGHT + LEGEND_HEIGHT;
}

static const char *cause_name(const struct st_lanes *lanes, const struct st_lane_span *span)
{
    return span->cause != ST_NO_LANE ? lanes->names[span->cause] : NO_CAUSE;
}

/* "block_forward: 12 ms to 15 ms", "forward, 32 ops: 0 s to 950 ms, at work 940 ms" */
static void tooltip_of(const struct st_lanes *lanes, const struct st_lane_span *span, char out[TEXT])
{
    char start[24], end[24], ran[24], many[64] = "", at_work[64] = "";

    if (span->count > 1) {
        snprintf(many, sizeof(many), ", %u of them", span->count);
        snprintf(at_work, sizeof(at_work), ", in all %s", st_seconds_text(ran, span->ran));
    }
    if (span->lane == lanes->stalls)
        snprintf(out, TEXT, "waits for %.100s%s: %s to %s%s", cause_name(lanes, span), many, st_seconds_text(start, span->start),
                 st_seconds_text(end, span->end), at_work);
    else
        snprintf(out, TEXT, "%.100s%s: %s to %s%s", span->name != NULL ? span->name : kinds[span->kind].name, many,
                 st_seconds_text(start, span->start), st_seconds_text(end, span->end), at_work);
}

static struct st_svg_box box_of(const struct picture *p, const struct row *row, const struct st_lane_span *span)
{
    const double thin = row->height / row->threads;
    struct st_svg_box box = {x_of(p, span->start), row->y, (span->end - span->start) * p->scale, row->height - STRIPE};

    if (span->lane != p->lanes->stalls) {
        box.y += span->thread * thin;
        box.height = thin - (row->threads > 1 ? 1 : 0);
    }
    return box;
}

/* How much of what is drawn as one ran: the last is all of it. */
static int shade_of(const struct picture *p, const struct st_lane_span *span)
{
    const int shade = (int)ceil(SHADES * span->ran / (span->end - span->start) - 0.5) - 1;

    if (span->lane == p->lanes->stalls || shade >= SHADES)
        return SHADES - 1;
    return shade < 0 ? 0 : shade;
}

/* All stalls, over some height; whatever they wait for, those that follow each other are one. */
static void draw_stalls(const struct picture *p, const char *paint, double top, double height)
{
    const struct st_lanes *lanes = p->lanes;
    bool open = false;

    for (size_t i = 0, next; i < lanes->span_count; i = next) {
        double end = lanes->spans[i].end;

        next = i + 1;
        if (lanes->spans[i].lane != lanes->stalls)
            continue;
        for (; next < lanes->span_count && lanes->spans[next].lane == lanes->stalls &&
               (lanes->spans[next].start - end) * p->scale < MERGE;
             next++)
            end = fmax(end, lanes->spans[next].end);
        if (!open)
            st_svg_path_open(p->svg, paint);
        open = true;
        st_svg_path_rect(
            p->svg, (struct st_svg_box){x_of(p, lanes->spans[i].start), top, (end - lanes->spans[i].start) * p->scale, height});
    }
    if (open)
        st_svg_path_close(p->svg);
}

/* Draws the spans of one kind and shade: wide ones with a tooltip each, the rest in one element. */
static void draw_alike(const struct picture *p, const struct row *row, enum st_span_kind kind, int shade)
{
    const bool stalls = row->lane == p->lanes->stalls;
    char tooltip[TEXT], paint[TEXT];
    bool open = false;

    snprintf(paint, sizeof(paint), "%s%s", stalls ? "class='edge'" : kinds[kind].paint, shades[shade]);
    for (int wide = 1; wide >= (stalls ? 1 : 0); wide--) /* stalls are hatched already */
        for (size_t i = 0; i < row->count; i++) {
            const struct st_svg_box box = box_of(p, row, &row->spans[i]);

            if (row->spans[i].kind != kind || shade_of(p, &row->spans[i]) != shade || (box.width >= TOLD) != (wide == 1))
                continue;
            if (wide == 1) {
                tooltip_of(p->lanes, &row->spans[i], tooltip);
                st_svg_rect(p->svg, paint, box, tooltip);
                continue;
            }
            if (!open)
                st_svg_path_open(p->svg, paint);
            open = true;
            st_svg_path_rect(p->svg, box);
        }
    if (open)
        st_svg_path_close(p->svg);
}

/* What was waited for: a stripe of its colour below, and its name where there is room. */
static void draw_causes(const struct picture *p, const struct row *row)
{
    for (int kind = 0; kind < ST_SPAN_KINDS; kind++) {
        bool open = false;

        for (size_t i = 0; i < row->count; i++) {
            struct st_svg_box box = box_of(p, row, &row->spans[i]);

            if ((int)row->spans[i].kind != kind)
                continue;
            if (!open)
                st_svg_path_open(p->svg, kinds[kind].paint);
            open = true;
            box.y += box.height;
            box.height = STRIPE;
            st_svg_path_rect(p->svg, box);
        }
        if (open)
            st_svg_path_close(p->svg);
    }
    for (size_t i = 0; i < row->count; i++) {
        const struct st_svg_box box = box_of(p, row, &row->spans[i]);
        const char *name = cause_name(p->lanes, &row->spans[i]);

        if (box.width > ST_SVG_LETTER * (double)strlen(name) + 6)
            st_svg_text(p->svg, box.x + 4, row->y + row->height - 8, "label", box.width, name);
    }
}

static void draw_row(struct picture *p, const struct row *row)
{
    const struct st_lanes *lanes = p->lanes;
    const double share = lanes->seconds > 0 ? row->busy / lanes->seconds : 0;
    const bool stalls = row->lane == lanes->stalls;
    char text[TEXT], seconds[24];

    snprintf(text, sizeof(text), "%.100s: %s %s of the step, %.1f %%", lanes->names[row->lane],
             stalls ? "nothing could run for" : "busy for", st_seconds_text(seconds, row->busy), 100 * share);
    st_svg_group_open(p->svg, lanes->names[row->lane], "busy", row->busy, text);
    st_svg_rect(p->svg, "class='ground'", (struct st_svg_box){LABEL_WIDTH, row->y, lanes->seconds * p->scale, row->height}, NULL);
    if (stalls)
        draw_stalls(p, "class='stall'", row->y, row->height - STRIPE);
    for (int kind = 0; kind < ST_SPAN_KINDS; kind++)
        for (int shade = 0; shade < SHADES; shade++)
            draw_alike(p, row, (enum st_span_kind)kind, shade);
    if (stalls)
        draw_causes(p, row);
    for (size_t i = 0; i < row->count; i++)
        p->used[row->spans[i].kind] = true;
    st_svg_group_close(p->svg);
    st_svg_text(p->svg, LABEL_WIDTH - 8, row->y + row->height / 2 + 4, "name", LABEL_WIDTH, lanes->names[row->lane]);
    snprintf(text, sizeof(text), "%.0f %%", 100 * share);
    if (row->threads > 0)
        st_svg_text(p->svg, p->svg->width - SHARE_WIDTH + 8, row->y + row->height / 2 + 4, "label", SHARE_WIDTH, text);
}

/* 1, 2 or 5 times a power of ten. */
static double tick_of(double seconds)
{
    static const double leads[] = {1, 2, 5};

    for (double power = 1e-9;; power *= 10)
        for (size_t i = 0; i < 3; i++)
            if (seconds / (leads[i] * power) <= TICKS)
                return leads[i] * power;
}

/* Time since the step began, with lines up through the rows. */
static void draw_axis(const struct picture *p, double top, double bottom)
{
    const double tick = tick_of(p->lanes->seconds), unit = p->lanes->seconds >= 2 ? 1 : 1e-3;
    char text[48];

    for (int i = 0; i * tick <= p->lanes->seconds; i++) {
        st_svg_line(p->svg, x_of(p, i * tick), top - 4, x_of(p, i * tick), bottom);
        snprintf(text, sizeof(text), "%g %s", i * (tick / unit), unit == 1 ? "s" : "ms");
        st_svg_text(p->svg, x_of(p, i * tick) + 3, bottom + 11, "label", 80, text);
    }
}

static void draw_legend(const struct picture *p, double y)
{
    const struct st_svg_box swatch = {0, y - 9, 12, 10};
    double x = LABEL_WIDTH;

    for (int kind = 0; kind < ST_SPAN_KINDS; kind++) {
        if (!p->used[kind])
            continue;
        st_svg_rect(p->svg, kinds[kind].paint, (struct st_svg_box){x, swatch.y, swatch.width, swatch.height}, NULL);
        st_svg_text(p->svg, x + 16, y, "label", 100, kinds[kind].name);
        x += 36 + ST_SVG_LETTER * (double)strlen(kinds[kind].name);
    }
    if (p->lanes->stalls == ST_NO_LANE)
        return;
    st_svg_rect(p->svg, "class='stall'", (struct st_svg_box){x, swatch.y, swatch.width, swatch.height}, NULL);
    st_svg_text(p->svg, x + 16, y, "label", p->svg->width - x - 16,
                "stall: nothing could run; stripe: what was waited for; paler: with short gaps");
}

/* The title, and what the stalls of the step add up to, by cause, the longest first. */
static void title_of(const struct st_lanes *lanes, struct measured *m, char out[4 * TEXT])
{
    size_t length = (size_t)snprintf(out, 4 * TEXT, "%.200s: %s", lanes->title, st_seconds_text((char[24]){0}, lanes->seconds));
    const char *before = "; stalls: ";

    if (lanes->stalls == ST_NO_LANE)
        return;
    while (length < 3 * TEXT) {
        uint32_t most = ST_LANES_MAX;

        for (uint32_t i = 0; i < lanes->count; i++)
            most = m->stalled[i] > m->stalled[most] ? i : most;
        if (!(m->stalled[most] >= LEAST_STALL * lanes->seconds))
            break;
        length += (size_t)snprintf(out + length, TEXT, "%s%.60s %s", before, most < ST_LANES_MAX ? lanes->names[most] : NO_CAUSE,
                                   st_seconds_text((char[24]){0}, m->stalled[most]));
        before = ", ";
        m->stalled[most] = -1;
    }
    if (before[0] == ';')
        snprintf(out + length, TEXT, "; stalls: none");
}

static void draw_rows(struct picture *p, const struct measured *m, double y)
{
    const struct st_lanes *lanes = p->lanes;
    size_t at = 0;

    for (uint32_t lane = 0; lane < lanes->count; lane++) {
        const struct st_lane_span *first = at < lanes->span_count ? &lanes->spans[at] : NULL;
        struct row row = {.lane = lane, .spans = first, .threads = m->threads[lane], .y = y, .busy = m->busy[lane]};

        for (; at < lanes->span_count && lanes->spans[at].lane == lane; at++)
            row.count++;
        row.height = row_height(row.threads);
        draw_row(p, &row);
        y += row.height + ROW_GAP;
    }
}

void st_lanes_draw(struct st_svg *svg, struct st_lanes *lanes, double y)
{
    const double room = svg->width - LABEL_WIDTH - SHARE_WIDTH, scale = room / fmax(lanes->seconds, LEAST_SECONDS);
    struct picture p = {.svg = svg, .lanes = lanes, .scale = scale};
    struct measured m;
    char title[4 * TEXT];
    double bottom;

    assert(lanes->count <= ST_LANES_MAX);
    if (lanes->span_count > 0)
        qsort(lanes->spans, lanes->span_count, sizeof(*lanes->spans), by_start);
    measure(&m, lanes);
    bottom = y + TOP + rows_height(lanes, &m);
    title_of(lanes, &m, title);
    if (lanes->span_count > 0)
        qsort(lanes->spans, lanes->span_count, sizeof(*lanes->spans), by_thread);
    merge(lanes, MERGE / scale);
    draw_stalls(&p, "class='held'", y + TOP, bottom - y - TOP - ROW_GAP); /* their shadow */
    st_svg_text(svg, LABEL_WIDTH, y + 15, "title", room, title);
    st_svg_text(svg, svg->width - SHARE_WIDTH + 8, y + 15, "label", SHARE_WIDTH, "busy");
    draw_axis(&p, y + TOP, bottom);
    draw_rows(&p, &m, y + TOP);
    draw_legend(&p, bottom + AXIS_HEIGHT + LEGEND_HEIGHT - 8);
}
