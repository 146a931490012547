/* program_roles.h - what any program must say of itself, stated apart from the code that writes programs: every op lists what it
 * uses, every sum is begun once and finished once, every chunk is updated once.  The verifier proves that the waits honour what
 * the ops list; what an op leaves out is seen here alone. */
#ifndef TESTS_OFFLOAD_PROGRAM_ROLES_H
#define TESTS_OFFLOAD_PROGRAM_ROLES_H

#include "offload/plan/plan.h"

/** Fails the test, with `what` in the message. */
void program_roles_check(const struct st_plan *plan, const char *what);

#endif
