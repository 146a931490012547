/* tests/api/test_layers_order.c - calls in the wrong order change nothing, a step may be dropped wherever it is, and nothing of
 * it stays. */
#include "core/base/fault.h"
#include "tests/api/handles_fixture.h"
#include "tests/api/layers_net.h"
#include "tests/common/scratch.h"
#include "tests/common/test.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define GAIN (NET_LAYERS - 1)

/* --- orders --- */

struct order {
    const char *calls;    /* one letter each, see do_call(); the last one is refused, */
    const char *sentence; /* with this in it */
};

/* ( begin   [ begin an evaluation   ) end   x drop   . micro_end   ; leave   01234 enter forward   ABCDE enter backward of 0 to 4
 * t use the table   T its sum   g report a gradient of the table   b of block.0.weight   f of block.0.scale, frozen */
static strata_status do_call(struct net *n, char c)
{
    static float values[NET_WIDTH * NET_WIDTH];
    struct strata_layer_view view = STRATA_LAYER_VIEW_INIT;
    struct strata_layers_step eval = STRATA_LAYERS_STEP_INIT;
    struct strata_layers_end end = STRATA_LAYERS_END_INIT;
    struct strata_grad g = {.dtype = STRATA_F32, .values = values};

    eval.evaluates = true;
    end.divisor = NET_ROWS;
    if (c >= '0' && c <= '9')
        return strata_engine_enter(n->engine, STRATA_FORWARD, (uint32_t)(c - '0'), &view);
    if (c >= 'A' && c <= 'F')
        return strata_engine_enter(n->engine, STRATA_BACKWARD, (uint32_t)(c - 'A'), &view);
    switch (c) {
    case '(':
        return strata_engine_begin(n->engine, NULL, NULL);
    case '[':
        return strata_engine_begin(n->engine, &eval, NULL);
    case ')':
        return strata_engine_end(n->engine, &end, NULL);
    case 'x':
        return strata_engine_drop(n->engine, NULL);
    case '.':
        return strata_engine_micro_end(n->engine);
    case ';':
        return strata_engine_leave(n->engine);
    case 't':
        return strata_engine_use(n->engine, STRATA_FORWARD, 0, &view);
    case 'T':
        return strata_engine_use(n->engine, STRATA_BACKWARD, 0, &view);
    case 'u':
        return strata_engine_use(n->engine, STRATA_FORWARD, 1, &view);
    case 'b':
        g.tensor = 1;
        break;
    case 'f':
        g.tensor = 3;
        break;
    default:
        assert_int_equal(c, 'g');
        break;
    }
    return strata_engine_grad(n->engine, &g, 1);
}

#define FORWARD  "1;2;3;4;"
#define BACKWARD "E;D;C;B;"
#define MICRO    FORWARD BACKWARD "."

static const struct order orders[] = {
    /* outside of a step */
    {")", "begin"},
    {"x", "begin"},
    {".", "begin"},
    {";", "begin"},
    {"1", "begin"},
    {"E", "begin"},
    {"t", "begin"},
    {"T", "begin"},
    {"g", "begin"},
    {"(xx", "begin"},
    /* forward */
    {"(2", "block.0"},
    {"(3", "block.0"},
    {"(4", "block.0"},
    {"(0", "resident"},
    {"(5", "5"},
    {"(u", "ordered"},
    {"(;", ""},
    {"(1 1", ""},
    {"(1 2", ""},
    {"(1;1", "block.1"},
    {"(1;3", "block.1"},
    {"(1;2;3;;", ""},
    {"(1;;", ""},
    {"(E", "block.0"},
    {"(1;2;E", "block.2"},
    {"(1;B", "block.1"},
    {"(1 B", ""},
    {"(" FORWARD "1", ""},
    /* backward */
    {"(" FORWARD "D", "norm"},
    {"(" FORWARD "B", "norm"},
    {"(" FORWARD "E;C", "block.2"},
    {"(" FORWARD "E;D;E", "block.1"},
    {"(" FORWARD "E D", ""},
    {"(" FORWARD "E;4", ""},
    {"(" FORWARD BACKWARD "B", ""},
    {"(" FORWARD BACKWARD "1", ""},
    {"(" FORWARD "A", "resident"},
    {"(" FORWARD "F", "5"},
    /* micro-batches */
    {"(.", ""},
    {"(1.", ""},
    {"(1;.", ""},
    {"(" FORWARD ".", "norm"},
    {"(" FORWARD "E;D;C;.", "block.0"},
    {"(" FORWARD "E;D;C;B.", ""},
    {"(" MICRO MICRO ".", ""},
    {"(" MICRO MICRO "1", ""},
    /* ends */
    {"()", ""},
    {"(1)", ""},
    {"(" FORWARD ")", ""},
    {"(" MICRO ")", ""},
    {"(" MICRO FORWARD BACKWARD ")", ""},
    {"(" MICRO "1;)", ""},
    /* gradients */
    {"(b", "block.0"},
    {"(1b", "block.0"},
    {"(1;b", "block.0"},
    {"(" FORWARD "E;D;Cb", "block.0"},
    {"(" FORWARD BACKWARD "b", "block.0"},
    {"(" MICRO MICRO "g", ""},
    {"(" FORWARD "f", "block.0"},
    {"(" FORWARD "E;D;C;Bfbbg;.b", "block.0"},
    /* evaluations */
    {"[g", "evaluation"},
    {"[T", "evaluation"},
    {"[" FORWARD "E", "evaluation"},
    {"[" FORWARD ")", ""},
    {"[" FORWARD "." FORWARD ".))", "begin"},
};

/* What has been called before is a step that goes on as if nothing had been refused: it is dropped, and the next one has the bits
 * of a run without it. */
TEST(calls_out_of_order_change_nothing)
{
    const size_t count = sizeof(orders) / sizeof(orders[0]);
    char digest[80], here[80];
    struct net n;

    assert_true(count >= 60);
    assert_ok(net_start(&n, NULL));
    assert_ok(net_step(&n, 0));
    net_digest(&n, digest);
    net_close(&n);
    assert_ok(net_start(&n, NULL));
    for (size_t i = 0; i < count; i++) {
        const char *calls = orders[i].calls;
        const size_t length = strlen(calls);
        strata_status st = STRATA_OK;

        for (size_t c = 0; c < length && st == STRATA_OK; c++)
            if (calls[c] != ' ')
                st = do_call(&n, calls[c]);
        if (st != STRATA_E_INVAL || strstr(strata_last_error(), orders[i].sentence) == NULL)
            fail_msg("%s: %s: %s", calls, strata_status_text(st), strata_last_error());
        st = strata_engine_drop(n.engine, NULL);
        assert_true(st == STRATA_OK || st == STRATA_E_INVAL); /* the step may be over */
    }
    assert_ok(net_step(&n, 0));
    assert_string_equal(net_digest(&n, here), digest);
    net_close(&n);
}

/* --- drops --- */

/* After every number of calls of the second step: the third has the bits that it has where the second never was. */
static void drop_everywhere(const struct net_opts *opts)
{
    char without[80], here[80];
    struct strata_step dropped = STRATA_STEP_INIT;
    uint32_t points = 0;
    struct net n;
    strata_status st;

    assert_ok(net_start(&n, opts));
    assert_ok(net_step(&n, 0));
    assert_ok(net_step(&n, 2));
    net_digest(&n, without);
    for (bool ended = false; !ended; points++) {
        struct strata_load_opts load = STRATA_LOAD_OPTS_INIT;

        load.fill = net_fill;
        assert_ok(strata_engine_load_layers(n.engine, &load));
        assert_ok(net_step(&n, 0));
        n.left = points;
        st = net_step(&n, 1);
        n.left = UINT32_MAX;
        ended = st == STRATA_OK;
        if (points == 0 || ended)
            continue;
        assert_status(st, STRATA_E_CANCELLED, "the step");
        assert_ok(strata_engine_drop(n.engine, &dropped));
        assert_true(dropped.dropped && dropped.skipped && isnan(dropped.loss));
        assert_ok(net_step(&n, 2));
        if (strcmp(net_digest(&n, here), without) != 0)
            fail_msg("dropped after %u calls: %s, not %s", points, here, without);
    }
    assert_true(points > 40);
    net_close(&n);
}

TEST(a_step_is_dropped_anywhere)
{
    const char *one[] = {"strata.update=serial"};
    struct net_opts o = {.grad_dtype = STRATA_F32};

    drop_everywhere(&o);
    o = (struct net_opts){.overrides = one, .override_count = 1};
    drop_everywhere(&o);
}

TEST(a_step_on_nvme_is_dropped_anywhere)
{
    char dirs[160];
    const char *all[] = {"zero_optimization.offload_param.device=nvme", "zero_optimization.offload_optimizer.device=nvme",
                         "strata.cache=0", dirs};
    struct net_opts o = {.overrides = all, .override_count = 4};

    snprintf(dirs, sizeof(dirs), "strata.nvme=[\"%s\"]", scratch_path("drive"));
    scratch_put("drive/.keep", "");
    drop_everywhere(&o);
}

/* An engine that goes within a step leaves nothing. */
TEST(an_engine_may_end_anywhere)
{
    for (uint32_t points = 1; points < 70; points += 4) {
        struct net n;

        assert_ok(net_start(&n, NULL));
        assert_ok(net_step(&n, 0));
        n.left = points;
        (void)!net_step(&n, 1);
        net_close(&n);
    }
}

/* --- within a step --- */

TEST(within_a_step_others_are_refused)
{
    struct strata_engine_info info = STRATA_ENGINE_INFO_INIT;
    char weights[33], moments[33], digest[80], here[80];
    int32_t tokens[4] = {0};
    uint64_t seen;
    double loss = 0;
    float value;
    struct net n;

    assert_ok(net_start(&n, NULL));
    assert_ok(net_step(&n, 0));
    assert_ok(net_step(&n, 1));
    net_digest(&n, digest);
    net_close(&n);
    assert_ok(net_start(&n, NULL));
    assert_ok(net_step(&n, 0));
    n.left = 5;
    assert_status(net_step(&n, 1), STRATA_E_CANCELLED, "a part of a step");
    assert_status(strata_engine_digest(n.engine, weights, moments), STRATA_E_BUSY, "digest");
    assert_status(strata_engine_flush(n.engine), STRATA_E_BUSY, "flush");
    assert_status(strata_engine_save(n.engine, NULL), STRATA_E_BUSY, "save");
    assert_status(strata_engine_load(n.engine), STRATA_E_BUSY, "load");
    assert_status(strata_engine_load_layers(n.engine, NULL), STRATA_E_BUSY, "load_layers");
    assert_status(strata_engine_step(n.engine, tokens, tokens, NULL, NULL), STRATA_E_BUSY, "step");
    assert_status(strata_engine_eval(n.engine, tokens, tokens, NULL, &loss, &seen), STRATA_E_BUSY, "eval");
    assert_status(strata_engine_set_lr(n.engine, 1), STRATA_E_BUSY, "set_lr");
    assert_status(strata_engine_get_info(n.engine, &info), STRATA_E_BUSY, "get_info");
    assert_status(strata_engine_read_tensor(n.engine, 0, STRATA_PLANE_WEIGHT, 0, 1, STRATA_F32, &value), STRATA_E_BUSY, "read");
    assert_status(strata_engine_write_tensor(n.engine, 0, STRATA_PLANE_WEIGHT, 0, 1, STRATA_F32, &value), STRATA_E_BUSY, "write");
    assert_status(strata_engine_begin(n.engine, NULL, NULL), STRATA_E_BUSY, "begin");
    assert_non_null(strstr(strata_last_error(), "strata_engine_drop"));
    assert_ok(strata_engine_drop(n.engine, NULL));
    n.left = UINT32_MAX;
    assert_ok(net_step(&n, 1));
    assert_string_equal(net_digest(&n, here), digest);
    net_close(&n);
}

TEST(a_child_of_fork_is_refused)
{
    struct strata_layer_view view = STRATA_LAYER_VIEW_INIT;
    int status = 0;
    struct net n;
    pid_t pid;

    assert_ok(net_start(&n, NULL));
    n.left = 4;
    assert_status(net_step(&n, 0), STRATA_E_CANCELLED, "a part of a step");
    fflush(NULL);
    pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        int wrong = 0;

        alarm(60);
        wrong += strata_engine_leave(n.engine) != STRATA_E_INVAL;
        wrong += strata_engine_enter(n.engine, STRATA_FORWARD, 2, &view) != STRATA_E_INVAL;
        wrong += strata_engine_use(n.engine, STRATA_FORWARD, 0, &view) != STRATA_E_INVAL;
        wrong += strata_engine_end(n.engine, NULL, NULL) != STRATA_E_INVAL;
        wrong += strata_engine_drop(n.engine, NULL) != STRATA_E_INVAL;
        wrong += strata_engine_begin(n.engine, NULL, NULL) != STRATA_E_INVAL;
        strata_engine_destroy(n.engine);
        _exit(wrong);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    assert_ok(strata_engine_drop(n.engine, NULL));
    n.left = UINT32_MAX;
    assert_ok(net_step(&n, 0));
    net_close(&n);
}

TEST(a_cancelled_step_ends)
{
    struct net n;

    assert_ok(net_start(&n, NULL));
    n.left = 6;
    assert_status(net_step(&n, 0), STRATA_E_CANCELLED, "a part of a step");
    strata_engine_cancel(n.engine);
    n.left = UINT32_MAX;
    assert_status(strata_engine_drop(n.engine, NULL), STRATA_E_CANCELLED, "drop");
    assert_status(net_step(&n, 1), STRATA_E_CANCELLED, "the next step");
    net_close(&n);
}

/* A drive that fails within a step ends the engine, and the step with it: no call waits for its end. */
TEST(a_failure_ends_the_step)
{
    struct strata_engine_info info = STRATA_ENGINE_INFO_INIT;
    struct strata_layer_view view = STRATA_LAYER_VIEW_INIT;
    char weights[33], moments[33], dirs[160];
    const char *all[] = {"zero_optimization.offload_param.device=nvme", "zero_optimization.offload_optimizer.device=nvme",
                         "strata.cache=0", dirs};
    const struct net_opts o = {.overrides = all, .override_count = 4};
    struct net n;

    snprintf(dirs, sizeof(dirs), "strata.nvme=[\"%s\"]", scratch_path("fails"));
    scratch_put("fails/.keep", "");
    for (uint32_t closes = 0; closes < 2; closes++) {
        assert_ok(net_start(&n, &o));
        assert_ok(net_step(&n, 0));
        st_fault_arm(&(struct st_fault_spec){.site = "nvme.cqe", .after = 6, .result = -EIO});
        assert_status(net_step(&n, 1), STRATA_E_IO, "a step on a drive that fails");
        assert_true(st_fault_disarm() > 0);
        assert_status(strata_engine_flush(n.engine), STRATA_E_IO, "flush");
        assert_status(strata_engine_digest(n.engine, weights, moments), STRATA_E_IO, "digest");
        assert_status(strata_engine_enter(n.engine, STRATA_FORWARD, 1, &view), STRATA_E_IO, "enter");
        assert_ok(strata_engine_get_info(n.engine, &info));
        if (closes != 0)
            assert_status(strata_engine_drop(n.engine, NULL), STRATA_E_IO, "drop");
        assert_status(strata_engine_begin(n.engine, NULL, NULL), STRATA_E_IO, "begin");
        assert_status(strata_engine_leave(n.engine), STRATA_E_IO, "leave");
        assert_status(strata_engine_end(n.engine, NULL, NULL), STRATA_E_IO, "end");
        net_close(&n);
    }
}

TEST_MAIN(argc, argv)
{
    strata_log_configure(NULL, NULL, STRATA_LOG_ERROR);
    return test_run(scratch_create, scratch_remove);
}
