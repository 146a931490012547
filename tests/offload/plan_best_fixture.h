/* plan_best_fixture.h - random runs to plan for, what a user could set instead of leaving it open, and the worst cases found.
 *
 * A run is a model (published sizes or random ones), a machine (a file of tests/machines or a random one), tiers, and budgets
 * between what the smallest placement needs and more than everything takes.  Each follows from one seed. */
#ifndef TESTS_OFFLOAD_PLAN_BEST_FIXTURE_H
#define TESTS_OFFLOAD_PLAN_BEST_FIXTURE_H

#include "plan_fixture.h"

struct best_case {
    uint64_t seed;
    bool large; /* its plans take a good part of a second each */
    struct st_workload w;
    struct st_policy policy; /* everything that the grid varies is left open */
    struct st_machine machine;
    char what[256]; /* all of it in words */
};

/** best_case_fini(). */
void best_case_make(struct best_case *c, uint64_t seed);
/** The same with 16 to 130 micro-batches. */
void best_case_many_micros(struct best_case *c, uint64_t seed);
void best_case_fini(struct best_case *c);

/** The rates by which a plan of this case is evaluated where none are known. */
void best_nominal_rates(struct st_machine *machine, const struct best_case *c);

/* What a user can set.  A setting is one value of some axes; the others are left open, and the plan chooses them. */
enum best_axis { BEST_STREAMED, BEST_CACHE, BEST_ACTIVATIONS, BEST_ACCUMULATION, BEST_UPDATE, BEST_CHUNK, BEST_AXES };
#define BEST_OPEN UINT32_MAX

struct best_setting {
    uint32_t value[BEST_AXES]; /* below best_axis_values(), or BEST_OPEN */
};
extern const struct best_setting best_all_open;

uint32_t best_axis_values(enum best_axis axis);
/** `promoted`: bytes that the plan which is compared has above their configured tier; caches are quarters of that.
 *  False: the case does not have this choice. */
bool best_setting_policy(struct st_policy *policy, const struct best_case *c, const struct best_setting *s, uint64_t promoted);
void best_setting_text(char *buf, size_t bytes, const struct best_setting *s);

/** The plan for a setting or machine as the product makes it with rates; NULL: it does not fit. st_plan_destroy(). */
struct st_plan *best_plan(const struct best_case *c, const struct st_policy *policy, const struct st_machine *machine);
/** The step that is predicted for it. */
double best_seconds(const struct st_plan *plan, const struct st_machine *machine);

/* The worst cases of one property, worst first, each once. */
#define BEST_WORST 5u
struct best_worst {
    const char *property;
    double limit;      /* of the excess: what is promised */
    double part, most; /* what is reached: at most this part of the cases are above the limit, and none is above `most` */
    uint64_t compared, over;
    struct best_found {
        double excess;
        uint64_t seed; /* 0: none */
        char what[512];
    } rows[BEST_WORST];
};
/** Take in that `seconds` was found where `best` could be; `how` completes the sentence. */
void best_note(struct best_worst *worst, const struct best_case *c, double seconds, double best, const char *how);
void best_print(const struct best_worst *worst);
/** Whether it is as good as it is known to be. */
bool best_holds(const struct best_worst *worst);

#endif
