/* tests/model/model_fixture.c - see model_fixture.h. */
#include "model_fixture.h"

struct st_model_config tiny_config(void)
{
    return (struct st_model_config){
        .name = "tiny",
        .blocks = 2,
        .hidden = 24,
        .heads = 3,
        .ffn = 40,
        .vocab = 131,
        .context = 16,
        .norm_eps = 1e-5f,
    };
}

struct st_model_config tiny_llama_config(void)
{
    return (struct st_model_config){
        .name = "tiny-llama",
        .blocks = 2,
        .hidden = 24,
        .heads = 4,
        .kv_heads = 2,
        .head_dim = 8,
        .ffn = 40,
        .vocab = 131,
        .context = 16,
        .norm_eps = 1e-5f,
        .family = ST_FAMILY_LLAMA,
        .norm = ST_NORM_RMSNORM,
        .activation = ST_ACTIVATION_SWIGLU,
        .positions = ST_POSITION_ROTARY,
        .biases = ST_BIAS_NONE,
        .rope_base = 10000.0f,
        .out_in = true,
    };
}

struct st_model *tiny_model_of(const struct st_model_config *config, strata_dtype dtype)
{
    const struct st_model_batch batch = {.micro_batch = 2, .seq = 8, .grad_accum = 1, .dtype = dtype};
    struct st_model *m = NULL;

    assert_ok(st_model_create(&m, config, &batch));
    return m;
}

struct st_model *tiny_model(strata_dtype dtype)
{
    const struct st_model_config config = tiny_config();

    return tiny_model_of(&config, dtype);
}
