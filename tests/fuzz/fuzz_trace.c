/* fuzz_trace.c - any bytes as a trace: no crash; what is accepted is within the limits, and its picture is written whole. */
#include "core/picture/trace_read.h"
#include "tests/fuzz/fuzz.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static void check(bool holds)
{
    if (!holds)
        abort();
}

static void check_picture(struct st_lanes *lanes)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *file = open_memstream(&text, &bytes);
    struct st_svg svg;

    check(file != NULL);
    st_svg_begin(&svg, file, 1100, st_lanes_height(lanes), "trace", "fuzz");
    st_lanes_draw(&svg, lanes, 0);
    st_svg_end(&svg);
    check(fclose(file) == 0 && bytes > 7 && strlen(text) == bytes && strcmp(text + bytes - 7, "</svg>\n") == 0);
    free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const int fd = memfd_create("trace", MFD_CLOEXEC);
    struct st_trace_step step;
    char path[64];
    strata_status st;

    check(fd >= 0 && write(fd, data, size) == (ssize_t)size);
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    st = st_trace_step_read(&step, path, 0);
    close(fd);
    check(st == STRATA_OK || st == STRATA_E_INPUT || st == STRATA_E_CONFIG);
    check((step.names != NULL) == (st == STRATA_OK));
    if (st != STRATA_OK)
        return 0;
    check(step.lanes.count <= ST_LANES_MAX && step.lanes.span_count <= ST_TRACE_SPANS_MAX && step.lanes.seconds > 0);
    for (size_t i = 0; i < step.lanes.span_count; i++) {
        const struct st_lane_span *span = &step.lanes.spans[i];

        check(span->lane < step.lanes.count && span->start >= 0 && span->end <= step.lanes.seconds * (1 + 1e-9));
    }
    check_picture(&step.lanes);
    st_trace_step_free(&step);
    return 0;
}
