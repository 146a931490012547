/* fuzz_hf_packed.c - any bytes as the state of a quantised tensor: no crash; what is accepted has a mean that is a number. */
#include "model/hf/hf_packed_internal.h"
#include "tests/fuzz/fuzz.h"

#include <math.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct st_hf_packed_state state;
    const strata_status st = st_hf_packed_parse(&state, (const char *)data, size, "fuzz");

    if (st != STRATA_OK && st != STRATA_E_INPUT)
        abort();
    if (st == STRATA_OK && !isfinite(state.offset))
        abort();
    return 0;
}
