/* offload/optim/optim_check.c - the arguments of the public optimizers' calls (strata/optim.h). */
#include "offload/optim/optim_internal.h"

#include "core/base/error.h"

#include <inttypes.h>
#include <unistd.h>

strata_status st_optim_check_process(const struct strata_optim *opt)
{
    if (opt->pid == getpid())
        return STRATA_OK;
    return st_error(STRATA_E_INVAL,
                    "this optimizer was created by process %ld, where its threads run: process %ld must create its own",
                    (long)opt->pid, (long)getpid());
}

static const char *const names_of_rules[ST_RULE_COUNT] = {"Adam", "Adagrad", "Lion", "SGD"};

strata_status st_optim_check_array(size_t tensor, const char *name, const void *array, size_t align)
{
    if (array == NULL)
        return st_error(STRATA_E_INVAL, "tensor %zu: %s is NULL, and its rule and layout need it", tensor, name);
    if ((uintptr_t)array % align != 0)
        return st_error(STRATA_E_INVAL, "tensor %zu: %s is not aligned to %zu bytes", tensor, name, align);
    return STRATA_OK;
}

static strata_status check_grad(size_t i, const struct strata_optim_tensor *t)
{
    const size_t width = strata_dtype_bytes(t->grad_dtype);

    if (width == 0)
        return st_error(STRATA_E_INVAL, "tensor %zu: grad_dtype is %d: it must be F32, BF16 or F16", i, (int)t->grad_dtype);
    return st_optim_check_array(i, "grad", t->grad, width);
}

strata_status st_optim_check_master(size_t i, const struct strata_optim_tensor *t)
{
    strata_status st;

    switch (t->layout) {
    case STRATA_OPTIM_SPLIT:
        st = st_optim_check_array(i, "weight", t->weight, sizeof(*t->weight));
        return st != STRATA_OK ? st : st_optim_check_array(i, "low_half", t->low_half, sizeof(*t->low_half));
    case STRATA_OPTIM_FULL:
        if (t->copy_dtype != STRATA_BF16 && t->copy_dtype != STRATA_F16)
            return st_error(STRATA_E_INVAL, "tensor %zu: copy_dtype is %d: it must be BF16 or F16", i, (int)t->copy_dtype);
        st = st_optim_check_array(i, "copy", t->copy, sizeof(*t->copy));
        return st != STRATA_OK ? st : st_optim_check_array(i, "master", t->master, sizeof(*t->master));
    case STRATA_OPTIM_F32:
        return st_optim_check_array(i, "master", t->master, sizeof(*t->master));
    }
    return st_error(STRATA_E_INVAL, "tensor %zu: layout is %d: it must be SPLIT, FULL or F32", i, (int)t->layout);
}

static strata_status check_format(size_t i, const struct strata_optim_tensor *t)
{
    if ((unsigned)t->moment_format >= ST_MOMENTS_COUNT)
        return st_error(STRATA_E_INVAL, "tensor %zu: moment_format is %d: it must be F32, BF16 or 8BIT", i,
                        (int)t->moment_format);
    if (t->moment_format != STRATA_OPTIM_MOMENTS_F32 && t->position % STRATA_OPTIM_PACK != 0)
        return st_error(STRATA_E_INVAL,
                        "tensor %zu: position is %" PRIu64 ": with moments that are not fp32 it must be a multiple of %u", i,
                        t->position, STRATA_OPTIM_PACK);
    return STRATA_OK;
}

static strata_status check_moments(const struct strata_optim *opt, size_t i, const struct strata_optim_tensor *t)
{
    const size_t align = t->moment_format == STRATA_OPTIM_MOMENTS_BF16 ? sizeof(uint16_t) : sizeof(float);
    strata_status st;

    if ((st = check_format(i, t)) != STRATA_OK || (st = st_optim_check_array(i, "moment1", t->moment1, align)) != STRATA_OK)
        return st;
    if (st_rule_moments(opt->rule) == 2)
        return st_optim_check_array(i, "moment2", t->moment2, align);
    if (t->moment2 != NULL)
        return st_error(STRATA_E_INVAL, "tensor %zu: moment2 is given, but %s has one moment: set it to NULL", i,
                        names_of_rules[opt->rule]);
    return STRATA_OK;
}

strata_status st_optim_check_tensors(const struct strata_optim *opt, const struct strata_optim_tensor *tensors, size_t count,
                                     bool grads_alone)
{
    strata_status st;

    for (size_t i = 0; i < count; i++) {
        if (tensors[i].elems == 0)
            continue;
        if ((st = check_grad(i, &tensors[i])) != STRATA_OK)
            return st;
        if (grads_alone)
            continue;
        if (tensors[i].group >= STRATA_OPTIM_GROUPS)
            return st_error(STRATA_E_INVAL, "tensor %zu: group is %" PRIu32 ": it must be below %u", i, tensors[i].group,
                            STRATA_OPTIM_GROUPS);
        if ((st = st_optim_check_master(i, &tensors[i])) != STRATA_OK || (st = check_moments(opt, i, &tensors[i])) != STRATA_OK)
            return st;
    }
    return STRATA_OK;
}
