/* tests/offload/optim_fixture.h - the public optimizers under test: tensors, rules, and steps compared with the engine's kernels
 * and coefficients, called plainly. */
#ifndef TESTS_OFFLOAD_OPTIM_FIXTURE_H
#define TESTS_OFFLOAD_OPTIM_FIXTURE_H

#include "kernels/kernels.h"
#include "offload/config/config.h"
#include "strata/strata.h"

#define TENSORS     6u
#define ELEMS       208805u /* of all tensors together */
#define STEPS       3u
#define PACK        STRATA_OPTIM_PACK
#define ROOM        221184u /* floats of one moment of all tensors, each from its position on */
#define GRAD_DTYPES 3u
#define RULE_CASES  7u
#define LR2         0.0078125 /* the rate from the second step on */

extern const size_t sizes[TENSORS];

enum mode { SPLIT, FULL_BF16, FULL_F16, PLAIN, MODE_COUNT };
extern const strata_dtype grad_dtypes[GRAD_DTYPES];

/* A rule under test, as the public config and as DeepSpeed's. */
struct rule_case {
    enum strata_optimizer optimizer;
    double momentum, dampening;
    bool nesterov;
    const char *type, *params;
};

extern const struct rule_case rule_cases[RULE_CASES];

/* Every array of all tensors, one after the other. */
struct planes {
    uint16_t weight[ELEMS], copy[ELEMS];
    int16_t low_half[ELEMS];
    float master[ELEMS], moment1[ROOM], moment2[ROOM]; /* moments of any format, a tensor's as far as if they were fp32 */
    float grad[ELEMS];                                 /* of any dtype */
};

extern struct planes start, got, want;

/** Masters and gradients of `start`; moments and copies are 0. */
void fill_start(strata_dtype grad_dtype);
bool has_two_moments(enum strata_optimizer optimizer);
/** Part of `p` as one tensor, its moments fp32 at the same place. */
struct strata_optim_tensor tensor_at(struct planes *p, size_t first, size_t elems, enum mode mode, strata_dtype grad_dtype,
                                     bool two);
/** All of `p`, cut by `sizes`; every second tensor decays. */
void list_tensors(struct strata_optim_tensor tensors[TENSORS], struct planes *p, enum mode mode, strata_dtype dt, bool two,
                  enum strata_optim_moments format);

struct strata_optim_config public_config(const struct rule_case *rc, uint32_t threads, const char *isa);
struct st_config engine_config(const char *type, const char *params);
struct strata_optim *create(const struct strata_optim_config *c);
/** Threads 1 to `threads` with the best table, then every table with 2; how many. */
size_t create_all(struct strata_optim **opts, const struct rule_case *rc, uint32_t threads);
/** STEPS steps of each optimizer are those of the scalar kernels. */
void compare_case(struct strata_optim *const *opts, size_t count, const struct rule_case *rc, enum mode mode, strata_dtype dt,
                  enum strata_optim_moments format);

#endif
