/* core/picture/lanes.h - one step as lanes over time: what ran when, how busy each lane was, and what nothing could run for.
 *
 * A row is a lane; what a lane does at once is drawn below each other.  The row of stalls is hatched, a stripe below each says by
 * its colour which lane was waited for, and its shadow falls through all rows.  Spans of one kind that are closer than half a
 * pixel are drawn as one, so that the picture stays small however many there are; its tooltip says how many. */
#ifndef CORE_PICTURE_LANES_H
#define CORE_PICTURE_LANES_H

#include "core/picture/svg.h"
#include <stdint.h>

#define ST_NO_LANE   UINT32_MAX
#define ST_LANES_MAX 256u

enum st_span_kind {
    ST_SPAN_FORWARD,
    ST_SPAN_BACKWARD,
    ST_SPAN_UPDATE,
    ST_SPAN_COPY,
    ST_SPAN_READ,
    ST_SPAN_WRITE,
    ST_SPAN_COMM,
    ST_SPAN_OTHER,
    ST_SPAN_KINDS
};

struct st_lane_span {
    double start, end; /* seconds since the step began */
    double ran;        /* how much of that ran; less where spans were drawn as one */
    uint32_t lane;     /* index into st_lanes.names */
    uint32_t thread;   /* of those of the lane that run at once */
    uint32_t count;    /* 1, or of how many it was made */
    uint32_t cause;    /* of a stall: the lane that was waited for; ST_NO_LANE: unknown */
    enum st_span_kind kind;
    const char *name; /* borrowed; NULL: several */
};

struct st_lanes {
    const char *title; /* what step this is */
    double seconds;    /* that it takes */
    const char *const *names;
    uint32_t count;  /* at most ST_LANES_MAX */
    uint32_t stalls; /* the lane whose spans are stalls; ST_NO_LANE: there is none */
    struct st_lane_span *spans;
    size_t span_count;
};

/** What an op is for, by the names of its lane and its own. */
enum st_span_kind st_span_kind_of(const char *lane, const char *name);
/** The colour of a stall: that of what the lane does. */
enum st_span_kind st_span_kind_of_lane(const char *lane);

/** Height of the drawing. */
double st_lanes_height(const struct st_lanes *lanes);
/** Draw it; `y` is its upper edge.  The spans are reordered, and merged. */
void st_lanes_draw(struct st_svg *svg, struct st_lanes *lanes, double y);

#endif
