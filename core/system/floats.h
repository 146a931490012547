/* core/system/floats.h - what a thread's processor does with floating-point numbers: how it rounds, whether it keeps subnormals,
 * and whether an overflow or a NaN is a signal.
 *
 * Results have the same bits, and a plan may divide by 0, in the environment that a C program has from its start.  A program that
 * calls the library may have set another one, or been given one by something that it loads (-ffast-math).  So what computes sets
 * the caller's aside, and threads of the library never have it. */
#ifndef CORE_SYSTEM_FLOATS_H
#define CORE_SYSTEM_FLOATS_H

#include <fenv.h>

/** Compute as a C program does from its start, until st_floats_restore() on the same thread.
 *  @param callers  out: what was set */
void st_floats_plain(fenv_t *callers);
void st_floats_restore(const fenv_t *callers);

#endif
