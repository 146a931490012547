/* advise/one_more.h - what one more of something would change. */
#ifndef ADVISE_ONE_MORE_H
#define ADVISE_ONE_MORE_H

#include "advise/case.h"
#include "core/json/json.h"
#include <stdio.h>

/** Print what one more drive, a faster link, faster compute or updates, or more memory would change, fitted to the width of `to`.
 *  Prints nothing if rates are unknown.  E_NOMEM. */
strata_status st_one_more_print(const struct st_case *of, FILE *to);
/** The same as "one_more" of an object that is open. */
strata_status st_one_more_put(const struct st_case *of, struct st_json_writer *w);

#endif
