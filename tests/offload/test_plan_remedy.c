/* test_plan_remedy - what a refusal advises fits when it is followed, whatever the budgets and tiers; and what cannot help is not
 * advised. */
#include "core/base/error.h"
#include "plan_fixture.h"
#include "tests/common/sample.h"
#include "tests/common/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DISK (1ull << 40)

static const struct plan_sizes sizes = {.dtype = STRATA_BF16,
                                        .blocks = 12,
                                        .hidden = 256,
                                        .vocab = 4096,
                                        .slice_rows = 512,
                                        .seq = 128,
                                        .micro_batch = 4,
                                        .grad_accum = 2,
                                        .positions = true,
                                        .tied = true};

static struct st_policy policy_of(strata_tier optimizer, strata_tier param, enum st_activation_mode activations)
{
    return (struct st_policy){.param_tier = param,
                              .optimizer_tier = optimizer,
                              .activation_tier = STRATA_TIER_COUNT,
                              .activations = activations,
                              .update = ST_UPDATE_GATED,
                              .accumulation = ST_ACCUMULATE_AUTO,
                              .needs_norm = true,
                              .cache = ST_AUTO_BYTES};
}

/* The tier that the sentence asks for; `now` where it asks for none. */
static strata_tier advised(const char *sentence, const char *key, strata_tier now)
{
    const char *at = strstr(sentence, key);

    if (at == NULL)
        return now;
    at += strlen(key);
    return strncmp(at, " to \"nvme\"", 10) == 0 ? STRATA_TIER_NVME : STRATA_TIER_HOST;
}

struct refusals {
    uint32_t fits, followed, hopeless, of_activations;
};

/* Follow the advice: it must fit, at the first try. */
static void follow(struct refusals *seen, const struct st_workload *w, const struct st_machine *machine,
                   const struct st_policy *policy)
{
    struct st_plan *plan = plan_try(w, machine, policy, "asked"), *again;
    struct st_policy then = *policy;
    char sentence[1024];

    snprintf(sentence, sizeof(sentence), "%s", plan->fits ? "" : strata_last_error());
    if (plan->fits || plan->program.needed[STRATA_TIER_NVME] > machine->capacity.bytes[STRATA_TIER_NVME]) {
        seen->fits++;
    } else if (strstr(sentence, "set ") == NULL) {
        assert_non_null(strstr(sentence, "raise strata."));
        seen->hopeless++;
    } else {
        then.optimizer_tier = advised(sentence, "offload_optimizer.device", policy->optimizer_tier);
        then.param_tier = advised(sentence, "offload_param.device", policy->param_tier);
        then.activation_tier = advised(sentence, "strata.activation_tier", policy->activation_tier);
        seen->of_activations += then.activation_tier != policy->activation_tier;
        then.activations = strstr(sentence, "recomputed") != NULL ? ST_ACT_RECOMPUTED : policy->activations;
        again = plan_try(w, machine, &then, sentence);
        if (!again->fits)
            fail_msg("%s, and then: %s", sentence, strata_last_error());
        st_plan_destroy(again);
        seen->followed++;
    }
    st_plan_destroy(plan);
}

TEST(advice_that_is_followed_fits)
{
    static const enum st_activation_mode modes[] = {ST_ACT_AUTO, ST_ACT_KEPT};
    struct refusals seen = {0};
    struct st_workload w;

    plan_workload(&w, &sizes, NULL);
    for (uint32_t device = 18; device <= 28; device += sample_is_all() ? 1 : 3)
        for (uint32_t host = 18; host <= 28; host += 2)
            for (int optimizer = 0; optimizer < STRATA_TIER_COUNT; optimizer++)
                for (int param = 0; param < STRATA_TIER_COUNT; param++) {
                    const struct st_machine machine = {.capacity = {.bytes = {1ull << device, 1ull << host, DISK}, .workers = 2}};
                    const struct st_policy policy =
                        policy_of((strata_tier)optimizer, (strata_tier)param, modes[(device + host / 2) % 2]);

                    follow(&seen, &w, &machine, &policy);
                }
    print_message("%u fit, %u advised and followed, %u lack more than settings can give\n", seen.fits, seen.followed,
                  seen.hopeless);
    assert_true(seen.fits > 10 && seen.followed > 10 && seen.hopeless > 10);
    st_workload_fini(&w);
}

/* Ranks that share nothing are told the lowest stage with which the same tiers fit; those that share all, and one alone, are not.
 */
TEST(ranks_are_told_the_stage_that_fits)
{
    struct st_machine machine = {.capacity = {.bytes = {0, 0, 0}, .workers = 2}};
    struct st_policy policy = policy_of(STRATA_TIER_DEVICE, STRATA_TIER_DEVICE, ST_ACT_AUTO);
    uint64_t least[2];
    struct st_workload w;
    struct st_plan *plan;

    plan_workload(&w, &sizes, NULL);
    policy.ranks = 4;
    for (policy.stage = 0; policy.stage < 2; policy.stage++) {
        machine.capacity.bytes[STRATA_TIER_HOST] = 1ull << 30;
        machine.capacity.bytes[STRATA_TIER_DEVICE] = 1;
        plan = plan_try(&w, &machine, &policy, "least");
        least[policy.stage] = plan->program.needed[STRATA_TIER_DEVICE];
        st_plan_destroy(plan);
    }
    assert_true(least[1] < least[0]);
    machine.capacity.bytes[STRATA_TIER_DEVICE] = (least[0] + least[1]) / 2;
    policy.stage = 0;
    plan = plan_try(&w, &machine, &policy, "asked");
    assert_false(plan->fits);
    if (strstr(strata_last_error(), ": set zero_optimization.stage to 1, or raise strata.device_memory") == NULL)
        fail_msg("%s", strata_last_error());
    st_plan_destroy(plan);
    policy.stage = 1;
    plan = plan_try(&w, &machine, &policy, "followed");
    assert_true(plan->fits);
    st_plan_destroy(plan);
    machine.capacity.bytes[STRATA_TIER_DEVICE] = least[1] / 2;
    for (policy.ranks = 1; policy.ranks <= 4; policy.ranks += 3) {
        plan = plan_try(&w, &machine, &policy, "asked");
        assert_false(plan->fits);
        assert_null(strstr(strata_last_error(), "zero_optimization.stage to 1"));
        st_plan_destroy(plan);
    }
    st_workload_fini(&w);
}

/* Many micro-batches of long sequences: where the checkpoints of their activations are too many, a slower tier is named for them.
 */
TEST(activation_checkpoints_have_a_slower_tier)
{
    static const strata_tier tiers[] = {STRATA_TIER_DEVICE, STRATA_TIER_HOST, STRATA_TIER_COUNT};
    struct plan_sizes longer = sizes;
    struct refusals seen = {0};
    struct st_workload w;

    longer.seq = 2048;
    longer.grad_accum = 16;
    plan_workload(&w, &longer, NULL);
    for (uint32_t device = 25; device <= 28; device++)
        for (uint32_t host = 25; host <= 28; host++)
            for (size_t i = 0; i < sizeof(tiers) / sizeof(tiers[0]); i++) {
                const struct st_machine machine = {.capacity = {.bytes = {1ull << device, 1ull << host, DISK}, .workers = 2}};
                struct st_policy policy = policy_of(STRATA_TIER_HOST, STRATA_TIER_HOST, ST_ACT_AUTO);

                policy.activation_tier = tiers[i];
                policy.accumulation = ST_ACCUMULATE_HORIZONTAL;
                follow(&seen, &w, &machine, &policy);
            }
    print_message("%u fit, %u advised and followed, of these %u about activations\n", seen.fits, seen.followed,
                  seen.of_activations);
    assert_true(seen.fits > 0 && seen.of_activations > 0);
    st_workload_fini(&w);
}

/* Host memory below the gradients is enough, since they go to NVMe.  Below the sums of the table: no setting and no smaller batch
 * helps, and none is named. */
TEST(the_tables_sums_alone_are_too_many)
{
    const struct st_machine few = {.capacity = {.bytes = {1ull << 26, 1ull << 24, DISK}, .workers = 2}};
    const struct st_machine machine = {.capacity = {.bytes = {1ull << 28, 1ull << 22, DISK}, .workers = 2}};
    const struct st_policy policy = policy_of(STRATA_TIER_NVME, STRATA_TIER_NVME, ST_ACT_AUTO);
    struct st_workload w;
    struct st_plan *plan;

    plan_workload(&w, &sizes, NULL);
    assert_true(2 * w.params > few.capacity.bytes[STRATA_TIER_HOST]);
    plan = plan_try(&w, &few, &policy, "gradients");
    assert_true(plan->fits);
    st_plan_destroy(plan);
    plan =
        plan_try(&w, &(struct st_machine){.capacity = {.bytes = {1ull << 22, 1ull << 22, DISK}, .workers = 2}}, &policy, "sums");
    assert_false(plan->fits);
    assert_non_null(strstr(strata_last_error(), "allowed: raise strata."));
    assert_null(strstr(strata_last_error(), "set "));
    assert_null(strstr(strata_last_error(), "micro-batch"));
    st_plan_destroy(plan);
    plan = plan_try(&w, &machine, &policy, "a device with room for the state");
    assert_true(plan->fits);
    st_plan_destroy(plan);
    st_workload_fini(&w);
}

/* A disk that is not there counts as large enough, and the sentence says how large. */
TEST(a_disk_that_is_not_named_is_asked_for)
{
    struct st_machine machine = {.capacity = {.bytes = {1ull << 24, 110ull << 20, 0}, .workers = 2}};
    const struct st_policy policy = policy_of(STRATA_TIER_HOST, STRATA_TIER_HOST, ST_ACT_AUTO);
    struct st_policy ranks = policy;
    struct st_workload w;
    struct st_plan *plan;

    plan_workload(&w, &sizes, NULL);
    plan = plan_try(&w, &machine, &policy, "no disk");
    assert_false(plan->fits);
    assert_non_null(
        strstr(strata_last_error(), "set zero_optimization.offload_optimizer.device to \"nvme\", with strata.nvme DIR and "));
    assert_non_null(strstr(strata_last_error(), " of disk there, or raise strata.host_memory"));
    st_plan_destroy(plan);
    ranks.ranks = 2; /* the directory holds every rank's */
    plan = plan_try(&w, &machine, &ranks, "no stage for two");
    assert_non_null(strstr(strata_last_error(), "set zero_optimization.stage to "));
    st_plan_destroy(plan);
    ranks.stage = 3;
    machine.capacity.bytes[STRATA_TIER_HOST] = 55ull << 20;
    plan = plan_try(&w, &machine, &ranks, "no disk for two");
    assert_false(plan->fits);
    assert_non_null(strstr(strata_last_error(), " of disk there for each rank, or raise strata."));
    st_plan_destroy(plan);
    machine.capacity.bytes[STRATA_TIER_HOST] = 110ull << 20;
    machine.capacity.bytes[STRATA_TIER_NVME] = DISK; /* there is one, and it is large enough */
    plan = plan_try(&w, &machine, &policy, "a disk");
    assert_false(plan->fits);
    assert_non_null(strstr(strata_last_error(), "device to \"nvme\", with strata.nvme DIR, or raise strata.host_memory"));
    st_plan_destroy(plan);
    st_workload_fini(&w);
}

/* Whatever lacks, the sentence says what to do: where settings may stay and only the disk is too small for what host memory could
 * leave there, that disk. */
TEST(a_sentence_begins_with_what_to_do)
{
    static const char *const verbs[] = {"set ", "raise ", "give ", "free ", "even "};
    uint32_t disks = 0;
    struct st_workload w;

    plan_workload(&w, &sizes, NULL);
    for (uint32_t i = 0; i < 3 * 6 * 3 * 9; i++) {
        const struct st_machine machine = {
            .capacity = {.bytes = {1ull << (18 + 4 * (i % 3)), 1ull << (18 + 2 * (i / 3 % 6)), (i / 18 % 3) * 10ull << 20},
                         .workers = 2}};
        const struct st_policy policy =
            policy_of((strata_tier)(i / 54 % 3), (strata_tier)(i / 162), i % 7 == 0 ? ST_ACT_KEPT : ST_ACT_AUTO);
        struct st_plan *plan = plan_try(&w, &machine, &policy, "sentence");
        const char *advice = plan->fits ? NULL : strstr(strata_last_error(), " allowed: ");
        bool begun = plan->fits;

        for (size_t v = 0; advice != NULL && v < sizeof(verbs) / sizeof(verbs[0]); v++)
            begun = begun || strncmp(advice + 10, verbs[v], strlen(verbs[v])) == 0;
        if (!begun)
            fail_msg("%s", strata_last_error());
        disks += advice != NULL && strncmp(advice + 10, "give strata.nvme DIR with ", 26) == 0 &&
                 strstr(advice, " of disk there, or raise strata.host_memory") != NULL;
        st_plan_destroy(plan);
    }
    assert_true(disks > 0);
    st_workload_fini(&w);
}

/* Of several directories a full one leaves no room in any: it is named, and not a directory asked for. */
TEST(a_full_directory_is_named)
{
    struct st_machine machine = {.capacity = {.bytes = {1ull << 34, 1ull << 34, 0}, .nvme_tightest = "/mnt/full", .workers = 2}};
    struct st_policy policy = policy_of(STRATA_TIER_NVME, STRATA_TIER_HOST, ST_ACT_AUTO);
    struct st_workload w;
    struct st_plan *plan;

    policy.cache = 0;
    plan_workload(&w, &sizes, NULL);
    plan = plan_try(&w, &machine, &policy, "a full disk");
    assert_false(plan->fits);
    assert_non_null(strstr(strata_last_error(), "nvme needs "));
    assert_non_null(
        strstr(strata_last_error(), "0 B allowed: free disk space in /mnt/full, or name another directory with strata.nvme"));
    st_plan_destroy(plan);
    machine.capacity.nvme_tightest[0] = '\0';
    plan = plan_try(&w, &machine, &policy, "no disk");
    assert_non_null(strstr(strata_last_error(), "0 B allowed: give a directory with strata.nvme DIR"));
    st_plan_destroy(plan);
    policy.optimizer_tier = policy.param_tier = STRATA_TIER_DEVICE;
    policy.keep = 1;
    policy.sets = st_sets_of_keep(1);
    plan = plan_try(&w, &machine, &policy, "no disk for checkpoints");
    if (strstr(strata_last_error(), "0 B allowed: strata.keep 1 takes ") == NULL ||
        strstr(strata_last_error(),
               ": free disk space where strata.save is, or give the machine of a plan a drive (machine.drives 2TB, ") == NULL)
        fail_msg("%s", strata_last_error());
    st_plan_destroy(plan);
    st_workload_fini(&w);
}

/* What checkpoints take on a disk that lacks is said, and the most that fit are advised. */
TEST(fewer_checkpoints_are_advised)
{
    struct st_machine machine = {
        .capacity = {.bytes = {1ull << 34, 1ull << 34, UINT64_MAX}, .nvme_tightest = "/a", .workers = 2}};
    struct st_policy policy = policy_of(STRATA_TIER_HOST, STRATA_TIER_HOST, ST_ACT_AUTO);
    struct st_workload w;
    struct st_plan *plan;
    uint64_t set;

    plan_workload(&w, &sizes, NULL);
    policy.sets = st_sets_of_keep(policy.keep = 5);
    plan = plan_try(&w, &machine, &policy, "ample");
    assert_true(plan->fits);
    set = plan->program.space_bytes[ST_SPACE_SET];
    machine.capacity.bytes[STRATA_TIER_NVME] = plan->program.needed[STRATA_TIER_NVME] - 2 * set - 1;
    st_plan_destroy(plan);

    plan = plan_try(&w, &machine, &policy, "two sets and a byte too few");
    assert_false(plan->fits);
    assert_non_null(strstr(strata_last_error(), "strata.keep 5 takes 7 sets of "));
    assert_non_null(strstr(strata_last_error(),
                           ": strata.keep 2 fits; or free disk space in /a, or name another directory with strata.save"));
    st_plan_destroy(plan);
    policy.sets = st_sets_of_keep(policy.keep = 2);
    plan = plan_try(&w, &machine, &policy, "advised");
    assert_true(plan->fits);
    st_plan_destroy(plan);

    policy.sets = st_sets_of_keep(policy.keep = 2);
    machine.capacity.bytes[STRATA_TIER_NVME] = 3 * set;
    plan = plan_try(&w, &machine, &policy, "one");
    assert_non_null(strstr(strata_last_error(), ": strata.keep 1 fits; or "));
    st_plan_destroy(plan);
    machine.capacity.bytes[STRATA_TIER_NVME] = 3 * set - 1;
    plan = plan_try(&w, &machine, &policy, "not one");
    assert_non_null(strstr(strata_last_error(), ": strata.keep 1 does not fit either; free disk space in /a"));
    st_plan_destroy(plan);
    policy.sets = st_sets_of_keep(policy.keep = 1);
    plan = plan_try(&w, &machine, &policy, "one asked for");
    assert_non_null(strstr(strata_last_error(), "strata.keep 1 takes 3 sets of "));
    assert_null(strstr(strata_last_error(), "fits"));
    assert_null(strstr(strata_last_error(), "either"));
    st_plan_destroy(plan);
    machine.capacity.bytes[STRATA_TIER_DEVICE] = 1u << 26;
    policy.param_tier = policy.optimizer_tier = STRATA_TIER_DEVICE;
    plan = plan_try(&w, &machine, &policy, "a slower tier that is no disk");
    assert_non_null(strstr(strata_last_error(), "\"cpu\""));
    assert_non_null(strstr(strata_last_error(), ", with strata.save DIR and "));
    st_plan_destroy(plan);
    machine.capacity.bytes[STRATA_TIER_DEVICE] = 1ull << 34;
    policy.param_tier = STRATA_TIER_NVME;
    plan = plan_try(&w, &machine, &policy, "with a tier on NVMe");
    assert_non_null(strstr(strata_last_error(), "free disk space in /a, or name another directory with strata.nvme"));
    st_plan_destroy(plan);
    st_workload_fini(&w);
}

/* Advice that needs a disk names the option that gives one to the settings that it advises, not to those that do not fit: state,
 * weights and activations go where strata.nvme says, checkpoints there too, and without any of these on NVMe where strata.save
 * says.  Room in the one directory is none in the other. */
TEST(a_disk_is_asked_for_by_the_option_that_gives_it)
{
    enum { DEV = STRATA_TIER_DEVICE, CPU = STRATA_TIER_HOST, NVME = STRATA_TIER_NVME, AUTO = STRATA_TIER_COUNT };
    static const struct {
        const char *what;
        int optimizer, param, acts;
        bool saves;
        uint64_t device, host, disk;
        const char *advises, *option; /* NULL: no disk is asked for */
    } rows[] = {
        {"state moves to NVMe", CPU, CPU, AUTO, false, 1 << 24, 110 << 20, 0, "\"nvme\"", "strata.nvme"},
        {"beside checkpoints", CPU, CPU, AUTO, true, 1 << 24, 110 << 20, 0, "\"nvme\"", "strata.nvme"},
        {"beside checkpoints that have room", CPU, CPU, AUTO, true, 1 << 24, 110 << 20, DISK, "\"nvme\"", "strata.nvme"},
        {"beside checkpoints on a small disk", CPU, CPU, AUTO, true, 1 << 24, 110 << 20, 1 << 20, "\"nvme\"", "strata.nvme"},
        {"state moves to the host", DEV, DEV, AUTO, false, 1 << 26, 1ull << 34, 0, "\"cpu\"", NULL},
        {"beside checkpoints", DEV, DEV, AUTO, true, 1 << 26, 1ull << 34, 0, "\"cpu\"", "strata.save"},
        {"beside checkpoints that have room", DEV, DEV, AUTO, true, 1 << 26, 1ull << 34, DISK, "\"cpu\"", NULL},
        {"activations are on NVMe", DEV, DEV, NVME, true, 1 << 26, 1ull << 34, 1 << 20, "\"cpu\"", "strata.nvme"},
        {"weights are on NVMe", CPU, NVME, AUTO, true, 1 << 24, 64 << 20, 1 << 20, "\"nvme\"", "strata.nvme"},
        {"weights are on NVMe, with room", CPU, NVME, AUTO, true, 1 << 24, 64 << 20, DISK, "\"nvme\"", NULL},
    };
    struct st_workload w;

    plan_workload(&w, &sizes, NULL);
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        const struct st_machine machine = {.capacity = {.bytes = {rows[i].device, rows[i].host, rows[i].disk}, .workers = 2}};
        struct st_policy policy = policy_of((strata_tier)rows[i].optimizer, (strata_tier)rows[i].param, ST_ACT_AUTO);
        const char *option = rows[i].option, *sentence;
        struct st_plan *plan;
        char asks[64];

        policy.activation_tier = (strata_tier)rows[i].acts;
        policy.sets = rows[i].saves ? st_sets_of_keep(policy.keep = 2) : 0;
        plan = plan_try(&w, &machine, &policy, rows[i].what);
        assert_false(plan->fits);
        sentence = strata_last_error();
        snprintf(asks, sizeof(asks), ", with %s DIR and ", option != NULL ? option : "no");
        if (strstr(sentence, rows[i].advises) == NULL || (strstr(sentence, " DIR") != NULL) != (option != NULL) ||
            (option != NULL && strstr(sentence, asks) == NULL))
            fail_msg("%s: not %s with %s: '%s'", rows[i].what, rows[i].advises, option != NULL ? option : "no disk", sentence);
        st_plan_destroy(plan);
    }
    st_workload_fini(&w);
}
