/* fuzz_adapter.c - any bytes as an adapter_config.json: no crash; what is accepted says of a small model's modules what fits its
 * ranges, and its object reads back as the same. */
#include "model/adapter/adapter.h"
#include "tests/fuzz/fuzz.h"

#include <stdlib.h>
#include <string.h>

static const struct st_adapter_module all[] = {
    {.path = "model.embed_tokens", .kind = ST_ADAPTER_EMBEDDING},
    {.path = "model.layers.0.self_attn.q_proj", .kind = ST_ADAPTER_LINEAR},
    {.path = "model.layers.0.self_attn.v_proj", .kind = ST_ADAPTER_LINEAR},
    {.path = "model.layers.0.input_layernorm", .kind = ST_ADAPTER_NORM},
    {.path = "model.layers.11.self_attn.q_proj", .kind = ST_ADAPTER_LINEAR},
    {.path = "lm_head", .kind = ST_ADAPTER_HEAD},
};
#define MODULES (sizeof(all) / sizeof(all[0]))

static void check(bool holds)
{
    if (!holds)
        abort();
}

/* False: it does not fit the model. */
static bool resolve(const struct st_adapter_spec *spec, struct st_adapter_module modules[MODULES])
{
    uint32_t adapted = 0;
    strata_status st;

    memcpy(modules, all, sizeof(all));
    st = st_adapter_resolve(spec, modules, MODULES, "q_proj v_proj", NULL);
    check(st == STRATA_OK || st == STRATA_E_CONFIG);
    for (size_t i = 0; i < MODULES && st == STRATA_OK; i++) {
        check(modules[i].r <= ST_ADAPTER_RANK_MAX && (modules[i].r == 0) == (modules[i].scale == 0));
        check(modules[i].r == 0 || modules[i].kind == ST_ADAPTER_LINEAR);
        adapted += modules[i].r > 0;
    }
    check(st != STRATA_OK || adapted > 0);
    return st == STRATA_OK;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct st_adapter_module modules[MODULES], again[MODULES];
    struct st_adapter_spec *spec, *copy;
    const strata_status st = st_adapter_spec_parse(&spec, (const char *)data, size, "fuzz");

    check(st == STRATA_OK || st == STRATA_E_CONFIG);
    if (st != STRATA_OK)
        return 0;
    check(st_adapter_spec_read(&copy, st_adapter_spec_object(spec), "again") == STRATA_OK);
    if (resolve(spec, modules)) {
        check(resolve(copy, again));
        for (size_t i = 0; i < MODULES; i++)
            check(modules[i].r == again[i].r && modules[i].scale == again[i].scale && modules[i].saved == again[i].saved);
    }
    st_adapter_spec_destroy(copy);
    st_adapter_spec_destroy(spec);
    return 0;
}
