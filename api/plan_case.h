/* api/plan_case.h - what reports are made of, of a plan's handle. */
#ifndef API_PLAN_CASE_H
#define API_PLAN_CASE_H

#include "advise/case.h"

struct strata_plan;

const struct st_case *st_plan_case(const struct strata_plan *plan);

#endif
