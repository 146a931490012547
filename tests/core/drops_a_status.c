/* drops_a_status.c - must not compile under -Werror: the warning is what makes every status be used. */
#include "strata/status.h"

strata_status step(void);
void run(void);

void run(void)
{
    step();
}
