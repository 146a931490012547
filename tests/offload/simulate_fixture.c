/* tests/offload/simulate_fixture.c - see simulate_fixture.h. */
#include "simulate_fixture.h"
#include "tests/common/test.h"

struct st_simulation simulate(const struct st_program *program, const struct st_machine *machine)
{
    struct st_simulation sim;

    if (st_simulate(&sim, program, machine) != STRATA_OK)
        fail_msg("%s", strata_last_error());
    return sim;
}

void assert_near(double a, double b)
{
    if (!(a >= b * (1 - 1e-9) && a <= b * (1 + 1e-9)))
        fail_msg("%.17g is not %.17g", a, b);
}
