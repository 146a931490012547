// The public headers are C++, too, and their functions keep C names.
#include <cstdio>
#include <cstring>
#include <strata/io.h>
#include <strata/optim.h>
#include <strata/status.h>
#include <strata/strata.h>
#include <strata/types.h>

static_assert(STRATA_OK == 0, "ok is 0");

int main()
{
    strata_io_opts opts = {sizeof(opts), "fake", 0, 0, 0, 0};
    strata_io_result result;
    strata_optim_config lion;
    strata_io *io = nullptr;

    if (strata_io_open(&io, &opts) != STRATA_OK || strata_io_wait(io, strata_io_request{0}, 0, &result) != STRATA_E_INVAL ||
        strata_io_close(io) != STRATA_OK)
        return 1;

    strata_config_opts config_opts = STRATA_CONFIG_OPTS_INIT;
    strata_model_opts model_opts = STRATA_MODEL_OPTS_INIT;
    strata_model_info shape = STRATA_MODEL_INFO_INIT;
    strata_plan_info needs = STRATA_PLAN_INFO_INIT;
    strata_config *config = nullptr;
    strata_model *model = nullptr;
    strata_plan *plan = nullptr;

    model_opts.model = "nano";
    if (strata_config_open(&config, &config_opts) != STRATA_OK || strata_model_open(&model, config, &model_opts) != STRATA_OK ||
        strata_model_get_info(model, &shape) != STRATA_OK || shape.vocab != 256 || strata_plan_make(&plan, model, nullptr) != STRATA_OK ||
        strata_plan_get_info(plan, &needs) != STRATA_OK || !needs.fits)
        return 1;
    strata_plan_destroy(plan);
    strata_model_close(model);
    strata_config_close(config);

    strata_optim_defaults(&lion, STRATA_LION);
    std::printf("consumer_cxx: strata %s, %s\n", strata_version(), strata_status_text(STRATA_E_NOFIT));
    return std::strcmp(strata_version(), STRATA_VERSION_STRING) == 0 && strata_dtype_bytes(STRATA_F32) == 4 && lion.lr == 1e-3
               ? 0
               : 1;
}
