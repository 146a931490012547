/* tests/cli/trace_calls.h - the calls of the device's ops in a trace. */
#ifndef TESTS_CLI_TRACE_CALLS_H
#define TESTS_CLI_TRACE_CALLS_H

#include "core/json/json.h"
#include "tests/cli/workplace.h"

#include <stdint.h>

/** A file of the workplace that is a trace; st_json_free() it. */
st_json *trace_parse(const struct workplace *w, const char *name);
/** Every call lies within the op of the program that it belongs to, on its row, one after the other, and says its shape, its time
 *  and a rate.  calls: out, their number in steps 1 .. steps, of which there are no more. */
void trace_check_calls(const st_json *trace, uint32_t *calls, uint32_t steps);

#endif
