/* door_plan_text.c - strata/plan.h: a plan as people read it, and as JSON. */
#include "advise/plan_report.h"
#include "api/handles.h"
#include "core/base/error.h"
#include "core/base/fault.h"

#include <stdio.h>
#include <stdlib.h>

static void write_text(const struct strata_plan *p, FILE *file)
{
    st_plan_print(&p->facts, false, file);
    if (p->facts.rates_known && st_handle_fits(p))
        st_bounds_print(&p->facts, file);
}

static void write_json(const struct strata_plan *p, FILE *file)
{
    struct st_json_writer w;

    st_json_begin(&w, file);
    st_json_object_open(&w, NULL);
    st_plan_put(&p->facts, &w);
    st_json_object_close(&w);
    st_json_end_line(&w);
}

/* Writes the text once and keeps it until the plan changes. */
static strata_status written(const struct strata_plan *p, char **kept, void (*write)(const struct strata_plan *, FILE *))
{
    size_t bytes = 0;
    FILE *memory;

    if (*kept != NULL)
        return STRATA_OK;
    memory = st_fault_refuses("api.plan_text") ? NULL : open_memstream(kept, &bytes);
    if (memory != NULL)
        write(p, memory);
    if (memory != NULL && fclose(memory) == 0 && *kept != NULL)
        return STRATA_OK;
    free(*kept);
    *kept = NULL;
    return st_error(STRATA_E_NOMEM, "no memory for the text of a plan");
}

strata_status strata_plan_text(struct strata_plan *plan, const char **text)
{
    strata_status st;

    if (plan == NULL || text == NULL)
        return st_error_missing(__func__, plan == NULL ? "plan" : "text");
    if ((st = written(plan, &plan->text, write_text)) == STRATA_OK)
        *text = plan->text;
    return st;
}

strata_status strata_plan_json(struct strata_plan *plan, const char **json)
{
    strata_status st;

    if (plan == NULL || json == NULL)
        return st_error_missing(__func__, plan == NULL ? "plan" : "json");
    if ((st = written(plan, &plan->json, write_json)) == STRATA_OK)
        *json = plan->json;
    return st;
}
