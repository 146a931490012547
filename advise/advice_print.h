/* advise/advice_print.h - the answer of strata plan --tokens, as text and as JSON. */
#ifndef ADVISE_ADVICE_PRINT_H
#define ADVISE_ADVICE_PRINT_H

#include "advise/advisor.h"
#include "advise/endurance.h"
#include "core/json/json.h"
#include <stdio.h>

/* What the run makes of the answer. */
struct st_advised {
    const struct st_advice *advice;
    const struct st_case *best; /* the plan of the best configuration; NULL: nothing fits */
    double tokens;              /* of the run; 0: not said */
    double steps;               /* of the run; 0: as many as its tokens take */
    struct st_written endurance;
};

void st_advice_print(const struct st_advised *asked, FILE *file);
void st_advice_put(const struct st_advised *asked, struct st_json_writer *w);

#endif
