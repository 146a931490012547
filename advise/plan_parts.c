/* advise/plan_parts.c - see plan_parts.h. */
#include "advise/plan_parts.h"
#include "advise/plan_report.h"
#include "advise/predict.h"
#include "core/base/wrap.h"

static strata_status print_times(const struct st_case *of, unsigned parts, uint64_t steps, FILE *to)
{
    struct st_written endurance;
    strata_status st = STRATA_OK;
    FILE *file;

    if ((parts & (STRATA_PLAN_PREDICTED | STRATA_PLAN_BOUNDS)) != 0)
        st_bounds_print(of, to);
    file = st_wrap_open(to);
    if ((parts & STRATA_PLAN_PREDICTED) != 0)
        st_prediction_print(of, file);
    if ((parts & STRATA_PLAN_WRITTEN) != 0) {
        st_endurance_planned(&endurance, of, steps);
        st_written_print(&endurance, "nvme is written: ", file);
    }
    if ((parts & STRATA_PLAN_SCHEDULES) != 0)
        st = st_schedules_print(of, file);
    st_wrap_close(file, to);
    return st == STRATA_OK && (parts & STRATA_PLAN_ONE_MORE) != 0 ? st_one_more_print(of, to) : st;
}

/* More ranks may fit where these do not. */
strata_status st_plan_print_parts(const struct st_case *of, unsigned parts, uint64_t steps, FILE *to)
{
    strata_status st = STRATA_OK;

    if ((parts & STRATA_PLAN_MACHINE) != 0 && of->hardware != NULL) {
        FILE *file = st_wrap_open(to);

        st_hardware_print(of->hardware, file);
        st_wrap_close(file, to);
    }
    if ((parts & (STRATA_PLAN_BRIEF | STRATA_PLAN_FULL)) != 0)
        st_plan_print(of, (parts & STRATA_PLAN_FULL) != 0, to);
    if (st_case_fits(of))
        st = print_times(of, parts, steps, to);
    return st == STRATA_OK && (parts & STRATA_PLAN_RANKS) != 0 ? st_ranks_print(of, to) : st;
}

strata_status st_plan_put_parts(const struct st_case *of, unsigned parts, uint64_t steps, struct st_json_writer *w)
{
    const bool fits = st_case_fits(of);
    struct st_written endurance;
    strata_status st = STRATA_OK;

    if ((parts & (STRATA_PLAN_BRIEF | STRATA_PLAN_FULL)) != 0)
        st_plan_put(of, w);
    if ((parts & STRATA_PLAN_MACHINE) != 0 && of->hardware != NULL) {
        st_json_object_open(w, "machine");
        st_machine_put_fields(of->file, w);
        st_json_object_close(w);
    }
    if (fits && (parts & STRATA_PLAN_WRITTEN) != 0) {
        st_endurance_planned(&endurance, of, steps);
        st_written_put(&endurance, w);
    }
    if (fits && (parts & STRATA_PLAN_SCHEDULES) != 0)
        st = st_schedules_put(of, w);
    if (fits && st == STRATA_OK && (parts & STRATA_PLAN_ONE_MORE) != 0)
        st = st_one_more_put(of, w);
    return st == STRATA_OK && (parts & STRATA_PLAN_RANKS) != 0 ? st_ranks_put(of, w) : st;
}
