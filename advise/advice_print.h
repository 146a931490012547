/* advise/advice_print.h - the answer of strata plan --tokens, as text and as JSON. */
#ifndef CLI_REPORT_QUESTION_PRINT_H
#define CLI_REPORT_QUESTION_PRINT_H

#include "advise/endurance.h"
#include "advise/advisor.h"
#include "core/json/json.h"
#include <stdio.h>

/* What the run makes of the answer. */
struct cli_asked {
    const struct st_answer *answer;
    const struct st_case *best; /* the plan of the best configuration; NULL: nothing fits */
    double tokens;              /* of the run; 0: not said */
    double steps;               /* of the run; 0: as many as its tokens take */
    struct st_endurance endurance;
    const char *written; /* the configuration's file; NULL: none */
};

void cli_question_print(const struct cli_asked *asked, FILE *file);
void cli_question_put(const struct cli_asked *asked, struct st_json_writer *w);

#endif
