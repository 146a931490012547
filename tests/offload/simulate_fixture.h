/* tests/offload/simulate_fixture.h - what the simulator says of a program. */
#ifndef TESTS_OFFLOAD_SIMULATE_FIXTURE_H
#define TESTS_OFFLOAD_SIMULATE_FIXTURE_H

#include "offload/simulate/simulate.h"

/** Fails the test where st_simulate() does. */
struct st_simulation simulate(const struct st_program *program, const struct st_machine *machine);
/** Equal but for rounding. */
void assert_near(double a, double b);

#endif
