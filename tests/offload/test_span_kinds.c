/* test_span_kinds - every op of a program has a colour in pictures, and one that suits its lane. */
#include "core/picture/lanes.h"
#include "offload/program/program.h"
#include "tests/common/test.h"

#include <string.h>

TEST(every_op_is_of_a_kind)
{
    for (int kind = 0; kind < ST_OP_KIND_COUNT; kind++) {
        const struct st_op_row *row = &st_op_rows[kind];
        const enum st_span_kind drawn = st_span_kind_of(st_lane_name(row->lane), row->name);

        if (drawn == ST_SPAN_OTHER)
            fail_msg("%s has no kind", row->name);
        assert_int_equal(drawn == ST_SPAN_READ, st_lane_reads(row->lane));
        assert_int_equal(drawn == ST_SPAN_WRITE, row->lane == STRATA_LANE_WRITE);
        assert_int_equal(drawn == ST_SPAN_COMM, row->lane == STRATA_LANE_COMM);
        assert_true(drawn == ST_SPAN_COPY || (row->lane != STRATA_LANE_UPLOAD && row->lane != STRATA_LANE_DOWNLOAD));
    }
}

TEST(every_lane_is_of_a_kind)
{
    for (int lane = 0; lane < STRATA_LANE_COUNT; lane++)
        assert_int_not_equal(st_span_kind_of_lane(st_lane_name((enum strata_lane)lane)), ST_SPAN_OTHER);
    assert_int_equal(st_span_kind_of_lane("no such lane"), ST_SPAN_OTHER);
}
