/* core/system/floats.c - see core/system/floats.h. */
#include "core/system/floats.h"

void st_floats_plain(fenv_t *callers)
{
    (void)fegetenv(callers);
    (void)fesetenv(FE_DFL_ENV);
}

void st_floats_restore(const fenv_t *callers)
{
    (void)fesetenv(callers);
}
