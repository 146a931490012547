/* fuzz_safetensors.c - any bytes as a safetensors file: no crash; what is accepted covers the buffer exactly once. */
#include "model/hf/safetensors_internal.h"
#include "tests/fuzz/fuzz.h"

#include <stdlib.h>

static void check(bool holds)
{
    if (!holds)
        abort();
}

static void check_tensor(const struct st_safetensor *t)
{
    uint64_t elems = 1;

    check(t->name != NULL && t->rank <= ST_SAFETENSORS_RANK_MAX && t->dtype_name != NULL);
    for (uint32_t i = 0; i < t->rank; i++)
        elems *= t->shape[i];
    check(t->dtype == STRATA_DTYPE_INVALID || elems * strata_dtype_bytes(t->dtype) == t->end - t->begin);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct st_safetensors s;
    const strata_status st = st_safetensors_read_memory(&s, data, size, "fuzz");
    uint64_t end;

    check(st == STRATA_OK || st == STRATA_E_INPUT);
    if (st != STRATA_OK)
        return 0;
    end = s.count > 0 ? s.tensors[0].begin : size;
    for (uint32_t i = 0; i < s.count; i++) {
        check_tensor(&s.tensors[i]);
        check(s.tensors[i].begin == end);
        end = s.tensors[i].end;
    }
    check(end == size);
    st_safetensors_fini(&s);
    return 0;
}
