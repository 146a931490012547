/* test_cuda_engine.c - an engine on the cuda device over the emulator, when something fails while its queues run: nothing that
 * was enqueued runs on after the step has returned, and no wait lasts longer than the deadline. */
#include "core/base/error.h"
#include "offload/device/cuda/device_cuda_internal.h"
#include "tests/common/test.h"
#include "tests/cuda/emulator/twin.h"
#include "tests/engine/rig.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define ok(call)    assert_int_equal((call), STRATA_OK)
#define STEPS_MOST  4u
#define DEADLINE_NS UINT64_C(500000000) /* far longer than any op of a run that goes well */

struct scene {
    char dir[32];
    struct rig_cell cell;
    struct st_model *model;
    struct st_plan *plan;
    struct rig_engine rig;
};

/* Everything leaves the device, so that all queues are used. */
static int begin(void **state)
{
    static struct scene s;

    s = (struct scene){.dir = "/tmp/strata_cuda_XXXXXX", .cell = rig_swapped()};
    s.cell.cuda = true;
    s.cell.deadline_ns = DEADLINE_NS;
    s.cell.streamed = 1;
    assert_non_null(mkdtemp(s.dir));
    ok(rig_model(&s.model, &s.cell));
    ok(rig_plan(&s.plan, s.model, &s.cell));
    *state = &s;
    return 0;
}

static int end(void **state)
{
    struct scene *s = *state;

    st_plan_destroy(s->plan);
    st_model_destroy(s->model);
    return rmdir(s->dir); /* no file is left */
}

static strata_status step(struct scene *s, uint32_t number)
{
    int32_t tokens[RIG_TOKENS_MAX], targets[RIG_TOKENS_MAX];
    struct st_step_result result;

    rig_tokens(tokens, targets, &s->cell, number);
    return st_engine_step(s->rig.engine, tokens, targets, NULL, &result);
}

/* Steps until one fails. */
static strata_status run(struct scene *s)
{
    strata_status st = STRATA_OK;

    for (uint32_t i = 0; i < STEPS_MOST && st == STRATA_OK; i++)
        st = step(s, i);
    return st;
}

static void start(struct scene *s)
{
    ok(rig_engine_start(&s->rig, s->model, s->plan, &s->cell, s->dir));
}

/* Lazy streams run only what somebody waits for.  An op of several launches whose second one is refused has no mark, so its first
 * one runs when the engine waits for the queue, or when its memory is given to somebody else. */
TEST_SETUP(a_failed_op_leaves_nothing_running, begin, end)
{
    struct scene *s = *state;
    uint32_t failed = 0;

    s->cell.deadline_ns = 0;
    for (uint64_t nth = 0;; nth += 1 + nth) {
        strata_status st;

        start(s);
        twin_be_lazy(1);
        twin_fail("cudaLaunchKernel", nth, 1, cudaErrorUnknown);
        st = run(s);
        if (twin_disarm() == 0) {
            ok(st);
            break;
        }
        assert_int_equal(st, STRATA_E_INTERNAL);
        assert_non_null(strstr(strata_last_error(), "cudaErrorUnknown"));
        assert_int_equal(twin_pending(), 0);
        failed++;
        rig_engine_stop(&s->rig);
        twin_reset();
    }
    rig_engine_stop(&s->rig);
    twin_reset();
    assert_true(failed > 8);
}

/* The step ends with the queue's and the op's names, so does every later call, and destroying the engine waits for nothing. */
TEST_SETUP(a_kernel_that_never_ends_ends_the_run, begin, end)
{
    struct scene *s = *state;
    const char *const words[] = {"op ", " of the program, ", "queue cuda-", "nvidia-smi"};

    for (uint64_t nth = 0; nth < 300; nth += 75) {
        start(s);
        twin_hang(nth);
        assert_int_equal(run(s), STRATA_E_IO);
        for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
            if (strstr(strata_last_error(), words[i]) == NULL)
                fail_msg("\"%s\" says nothing of %s", strata_last_error(), words[i]);
        assert_int_equal(step(s, 0), STRATA_E_IO);
        rig_engine_stop(&s->rig);
        twin_reset();
        st_cuda_forget_loss();
    }
    s->cell.deadline_ns = 0;
    start(s);
    ok(run(s));
    rig_engine_stop(&s->rig);
}

/* Adapters, also of a quantised model: losses and norms are those of the cpu. */
TEST_SETUP(adapters_train, begin, end)
{
    static const struct {
        bool llama;
        enum rig_adapters adapters;
        strata_dtype dtype;
        double tolerance; /* of losses */
    } rows[] = {
        {false, RIG_LORA, STRATA_BF16, 5e-3}, {true, RIG_LORA, STRATA_F32, 1e-5}, {true, RIG_LORA_NF4, STRATA_BF16, 5e-3}};
    struct scene *s = *state;

    s->cell.deadline_ns = 0;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct rig_cell host = s->cell;
        struct rig_result cuda, cpu;

        host.llama = rows[i].llama;
        host.adapters = rows[i].adapters;
        host.dtype = rows[i].dtype;
        s->cell = host;
        host.cuda = false;
        ok(rig_run(&cpu, &host, 2, s->dir));
        ok(rig_run(&cuda, &s->cell, 2, s->dir));
        assert_true(cpu.planned && cuda.planned && cpu.norms[0] > 0.0 && cpu.losses[0] != cpu.losses[1]);
        for (uint32_t n = 0; n < 2; n++)
            if (fabs(cuda.losses[n] - cpu.losses[n]) > rows[i].tolerance * cpu.losses[n] ||
                fabs(cuda.norms[n] - cpu.norms[n]) > 10 * rows[i].tolerance * cpu.norms[n])
                fail_msg("row %zu, step %u: loss %.9g norm %.9g, on the cpu %.9g and %.9g", i, n, cuda.losses[n], cuda.norms[n],
                         cpu.losses[n], cpu.norms[n]);
    }
}
