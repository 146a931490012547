/* core/base/version.c - the version of the library itself.  Any thread; nothing is shared. */
#include "strata/strata.h"

const char *strata_version(void)
{
    return STRATA_VERSION_STRING;
}
