/* tests/common/assert_status.c - see assert_status.h. */
#include "tests/common/assert_status.h"
#include "tests/common/test.h"

#include <string.h>

void assert_ok_at(strata_status st, const char *file, int line)
{
    if (st != STRATA_OK) {
        print_error("%s: %s\n", strata_status_text(st), strata_last_error());
        _fail(file, line);
    }
}

void assert_refused_at(strata_status st, strata_status want, const char *part, const char *file, int line)
{
    if (st != want || strstr(strata_last_error(), part) == NULL) {
        print_error("status %d (wanted %d), sentence \"%s\" (wanted \"%s\")\n", st, want, strata_last_error(), part);
        _fail(file, line);
    }
}
