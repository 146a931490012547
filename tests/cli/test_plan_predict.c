/* tests/cli/test_plan_predict.c - strata plan --machine: predictions for hardware that is not here. */
#include "core/json/json.h"
#include "tests/cli/program.h"
#include "tests/cli/trace_calls.h"
#include "tests/cli/workplace.h"
#include "tests/common/json_member.h"
#include "tests/common/test.h"

#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>

#define CARD                                                                                                                     \
    "{\"name\":\"card\",\"device_bytes\":%s,\"host_bytes\":%s,\"nvme_bytes\":1e13,\"workers\":16,\"device_is_host\":false,"      \
    "\"matmul_flops\":1e14,\"upload\":2e10,\"download\":2e10,\"read\":%s,\"write\":4e9,\"mixed\":6e9,\"update\":2e9}"
#define MEASURED "--measure --fault machine.patience:0:0:0"
#define SWAPPED  "--set zero_optimization.stage=3 --set zero_optimization.offload_optimizer.device=nvme "

static void write_machine(const struct workplace *w, const char *device, const char *host, const char *read)
{
    char text[512];
    const int length = snprintf(text, sizeof(text), CARD, device, host, read);

    assert_in_range(length, 1, (int)sizeof(text) - 1);
    workplace_write(w, "card.json", text, (size_t)length);
}

static st_json *plan_json(const struct workplace *w, struct program *p, const char *command)
{
    st_json *root;

    workplace_run_ok(w, p, command);
    assert_int_equal(st_json_parse(&root, p->out, strlen(p->out), "plan"), STRATA_OK);
    return root;
}

static const st_json *named(const st_json *array, const char *name)
{
    for (const st_json *n = st_json_first(array); n != NULL; n = st_json_next(n))
        if (strcmp(st_json_string(st_json_get(n, "name")), name) == 0)
            return n;
    return NULL;
}

static uint32_t count(const st_json *array)
{
    uint32_t items = 0;

    for (const st_json *n = st_json_first(array); n != NULL; n = st_json_next(n))
        items++;
    return items;
}

/* Without a file rates are measured where that is asked for, and else not known. */
TEST(rates_are_measured_where_asked)
{
    static const char plan[] = "plan --model nano --micro-batch 1 --seq-len 32 --json";
    struct program p;
    char measured[128];
    st_json *root = plan_json(*state, &p, plan);

    assert_int_equal(st_json_type(st_json_get(root, "predicted_seconds")), ST_JSON_NULL);
    st_json_free(root);
    program_free(&p);
    snprintf(measured, sizeof(measured), "%s " MEASURED, plan);
    root = plan_json(*state, &p, measured);
    assert_true(json_number(root, "predicted_seconds") > 0);
    st_json_free(root);
    program_free(&p);
}

/* A machine that is given evaluates, be its device a GPU or the host; one that is measured here does not where it is the host. */
TEST(a_machine_that_is_given_evaluates)
{
    static const struct {
        const char *options, *evaluator;
    } rows[] = {{"--machine {w}/card.json", "card"}, {"--machine {w}/box.json", "box"}, {MEASURED, "a nominal machine"}};
    static const char box[] = "{\"name\":\"box\",\"device_bytes\":8e9,\"host_bytes\":8e9,\"workers\":8,\"device_is_host\":true,"
                              "\"matmul_flops\":1e12,\"upload\":2e10,\"download\":2e10,\"memory\":4e10,\"update\":2e9}";
    const struct workplace *w = *state;

    write_machine(w, "6e9", "12e9", "1e9");
    workplace_write(w, "box.json", box, strlen(box));
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        char command[256];
        struct program p;
        st_json *root;

        snprintf(command, sizeof(command), "plan --model nano --micro-batch 1 --seq-len 32 --json %s", rows[i].options);
        root = plan_json(w, &p, command);
        assert_true(json_number(root, "predicted_seconds") > 0);
        assert_string_equal(st_json_string(st_json_get(root, "evaluated_by")), rows[i].evaluator);
        st_json_free(root);
        program_free(&p);
    }
}

/* State on a slow disk: the disk is what stalls, and a second drive is what helps. */
TEST(a_slow_disk_is_named)
{
    const struct workplace *w = *state;
    struct program p;
    double step, busy = 0;
    st_json *root;

    write_machine(w, "6e8", "12e8", "1e9");
    root = plan_json(w, &p, "plan --model gpt2 --machine {w}/card.json --nvme /nowhere --json --grad-accum 2 " SWAPPED);
    step = json_number(root, "predicted_seconds");
    assert_true(st_json_bool(st_json_get(root, "simulated")));
    assert_true(step >= json_number(root, "hardware_bound_seconds") * (1 - 1e-6));
    assert_string_equal(st_json_string(st_json_get(st_json_get(root, "predicted"), "stalled_by")), "read_state");
    for (const st_json *n = st_json_first(st_json_get(st_json_get(root, "predicted"), "stall_seconds")); n != NULL;
         n = st_json_next(n))
        busy += st_json_number(n);
    busy += json_number(st_json_get(st_json_get(root, "predicted"), "busy_seconds"), "compute");
    assert_true(busy > step * (1 - 1e-6) && busy < step * (1 + 1e-6));
    assert_true(json_number(named(st_json_get(root, "one_more"), "drive"), "change") < -0.1);
    for (const st_json *n = st_json_first(st_json_get(root, "one_more")); n != NULL; n = st_json_next(n)) {
        const double change = json_number(n, "predicted_seconds") / step - 1 - json_number(n, "change");

        assert_true(change < 1e-9 && change > -1e-9);
    }
    assert_true(count(st_json_get(root, "schedules")) >= 4); /* gated and serial, vertical and horizontal */
    st_json_free(root);
    program_free(&p);
}

/* Seconds of the spans of a category in the lane, which a stall names and an op's row is. */
static double traced(const st_json *trace, const char *category, const char *lane)
{
    double seconds = 0, thread = -1;

    for (const st_json *e = st_json_first(st_json_get(trace, "traceEvents")); e != NULL; e = st_json_next(e)) {
        const st_json *args = st_json_get(e, "args");

        if (strcmp(json_text(e, "name"), "thread_name") == 0 && strcmp(json_text(args, "name"), lane) == 0)
            thread = json_number(e, "tid");
        if (strcmp(json_text(e, "ph"), "X") != 0 || strcmp(json_text(e, "cat"), category) != 0)
            continue;
        if (strcmp(category, "stall") == 0 ? strcmp(json_text(args, "lane"), lane) == 0 : json_number(e, "tid") == thread)
            seconds += json_number(e, "dur") * 1e-6;
    }
    return seconds;
}

/* The simulated step as a trace has each lane's seconds, and those of the stalls; nothing printed changes. */
TEST(the_simulated_step_is_a_trace)
{
#define TRACED "plan --model gpt2 --machine {w}/card.json --nvme /nowhere --json --grad-accum 2 --set strata.cache=0 " SWAPPED
    const struct workplace *w = *state;
    const st_json *predicted;
    struct program p, plain;
    st_json *root, *trace;

    write_machine(w, "6e8", "12e8", "1e9");
    root = plan_json(w, &p, TRACED "--trace {w}/t.json");
    workplace_run_ok(w, &plain, TRACED);
    assert_string_equal(p.out, plain.out);
    trace = trace_parse(w, "t.json");
    predicted = st_json_get(root, "predicted");
    assert_float_equal(traced(trace, "step", "step"), json_number(root, "predicted_seconds"), 1e-6);
    for (const st_json *n = st_json_first(st_json_get(predicted, "busy_seconds")); n != NULL; n = st_json_next(n))
        assert_float_equal(traced(trace, "op", st_json_name(n)), st_json_number(n), 1e-5);
    for (const st_json *n = st_json_first(st_json_get(predicted, "stall_seconds")); n != NULL; n = st_json_next(n))
        assert_float_equal(traced(trace, "stall", st_json_name(n)), st_json_number(n), 1e-5);
    assert_true(traced(trace, "stall", "read_state") > 0);
    st_json_free(trace);
    st_json_free(root);
    program_free(&plain);
    program_free(&p);
    workplace_remove(w, "t.json");
}

/* What checkpoints write beside the sets is said, timed at the rate of writes, and counted with what wears the drives. */
TEST(checkpoints_are_counted)
{
#define PLAN  "plan --model gpt2 --machine {w}/card.json --json --save {w}/checkpoints "
#define SAVED PLAN "--max-steps 25 "
    static const struct {
        int steps, every, saves;
    } runs[] = {{10, 10, 1}, {11, 10, 2}, {20, 10, 2}, {3, 1, 3}};
    const struct workplace *w = *state;
    const st_json *saving;
    struct program p, q;
    st_json *root, *often;
    double bytes, pace;

    write_machine(w, "80e9", "1e12", "6e9");
    root = plan_json(w, &p, SAVED "--keep 5");
    often = plan_json(w, &q, SAVED "--save-every 10");
    saving = st_json_get(root, "checkpoints");
    bytes = json_number(saving, "save_bytes");
    assert_true(bytes > 0 && bytes == json_number(saving, "set_bytes"));
    assert_true(json_number(saving, "sets") == 7 && json_number(saving, "keep") == 5);
    assert_true(json_number(saving, "save_seconds") == bytes / 4e9);
    assert_true(json_number(st_json_get(root, "predicted"), "save_adds_seconds") <= bytes / 4e9 + bytes / 2e10);
    assert_true(json_number(st_json_get(st_json_get(root, "tiers"), "nvme"), "needed") == 7 * bytes);
    assert_true(json_number(st_json_get(root, "written"), "run") == bytes);
    assert_true(json_number(st_json_get(root, "written"), "day") == 0);
    assert_true(json_number(st_json_get(often, "written"), "run") == 3 * bytes); /* after 10, 20 and 25 */
    pace = json_number(often, "predicted_seconds") + json_number(st_json_get(often, "predicted"), "save_adds_seconds") / 10;
    assert_true(fabs(json_number(st_json_get(often, "written"), "day") * pace / (bytes * 8640) - 1) < 1e-9);
    assert_true(json_number(st_json_get(often, "written"), "step") == 0);
    st_json_free(root);
    st_json_free(often);
    program_free(&p);
    program_free(&q);
    for (size_t i = 0; i < sizeof(runs) / sizeof(runs[0]); i++) {
        char command[256];

        snprintf(command, sizeof(command), PLAN "--max-steps %d --save-every %d", runs[i].steps, runs[i].every);
        root = plan_json(w, &p, command);
        assert_true(json_number(st_json_get(root, "written"), "run") == runs[i].saves * bytes);
        st_json_free(root);
        program_free(&p);
    }
    workplace_run_ok(w, &p, "plan --model gpt2 --machine {w}/card.json --save {w}/checkpoints");
    assert_non_null(strstr(p.out, "\n  checkpoints: 2 kept, in 4 sets of 1."));
    assert_non_null(strstr(p.out, " that live in memory, in about "));
    assert_non_null(strstr(p.out, "\n  a step that saves a checkpoint: "));
    program_free(&p);
}

/* A save every so many steps, and one after the last, which may be the same; gated updates of the first step come with the flush.
 */
TEST(writes_of_a_run_add_up)
{
    static const struct {
        uint32_t steps, saves;
    } rows[] = {{4, 2}, {5, 3}}; /* every second step */
    const struct workplace *w = *state;

    write_machine(w, "80e9", "1e12", "6e9");
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        const st_json *phases;
        char command[512];
        struct program p;
        st_json *root;
        double wanted;

        snprintf(command, sizeof(command),
                 "plan --model nano --seq-len 64 --machine {w}/card.json --json --max-steps %u --nvme /nowhere --save-every 2 "
                 "--save {w}/checkpoints --host-memory 9MiB --device-memory 5MiB --set strata.cache=0 " SWAPPED,
                 rows[i].steps);
        root = plan_json(w, &p, command);
        phases = st_json_get(root, "traffic_by_phase");
        wanted = json_number(st_json_get(phases, "first"), "write") +
                 (rows[i].steps - 1) * json_number(st_json_get(phases, "steady"), "write") +
                 json_number(st_json_get(phases, "flush"), "write") +
                 rows[i].saves * json_number(st_json_get(root, "checkpoints"), "save_bytes");
        assert_true(json_number(st_json_get(phases, "first"), "write") < json_number(st_json_get(phases, "steady"), "write"));
        assert_true(json_number(st_json_get(root, "checkpoints"), "save_bytes") > 0);
        assert_true(json_number(st_json_get(root, "written"), "run") == wanted);
        st_json_free(root);
        program_free(&p);
    }
}

/* Nothing is on the disk, and all of the state is on the device: neither a drive nor memory can matter.  Only the device works,
 * at its products or over its memory: both twice as fast halve the step. */
TEST(what_cannot_matter_is_left_out)
{
    const struct workplace *w = *state;
    const st_json *more;
    double compute, passes;
    struct program p;
    st_json *root;

    write_machine(w, "80e9", "1e12", "6e9");
    root = plan_json(w, &p, "plan --model gpt2 --micro-batch 1 --machine {w}/card.json --json");
    more = st_json_get(root, "one_more");
    assert_null(named(more, "drive"));
    assert_null(named(more, "update"));
    assert_null(named(more, "host_memory"));
    assert_null(named(more, "device_memory"));
    compute = json_number(named(more, "compute"), "change");
    passes = json_number(named(more, "passes"), "change");
    assert_true(compute < -0.2 && passes < -0.05);
    assert_true(compute + passes > -0.502 && compute + passes < -0.498);
    st_json_free(root);
    program_free(&p);
}

TEST(text_says_the_same)
{
    const struct workplace *w = *state;
    struct program p;

    write_machine(w, "6e8", "12e8", "1e9");
    workplace_run_ok(w, &p, "plan --model gpt2 --machine {w}/card.json --nvme /nowhere " SWAPPED);
    assert_non_null(strstr(p.out, "predicted step: "));
    assert_non_null(strstr(p.out, "compute waits for: "));
    assert_non_null(strstr(p.out, "<- chosen"));
    assert_non_null(strstr(p.out, "one more drive"));
    program_free(&p);
    workplace_run_ok(w, &p, "plan --model nano --micro-batch 1"); /* no rates: nothing is predicted */
    assert_null(strstr(p.out, "predicted step"));
    assert_null(strstr(p.out, "one more"));
    program_free(&p);
}

static void keep_first_core(cpu_set_t *set)
{
    uint32_t kept = 0;

    for (size_t cpu = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, set) && kept++ > 0)
            CPU_CLR(cpu, set);
}

/* How many cores plan is not how many the other machine has. */
TEST(who_plans_does_not_matter)
{
    const char *const command = "plan --model nano --micro-batch 1 --machine {w}/card.json --json";
    const struct workplace *w = *state;
    struct program all, one;
    cpu_set_t set, few;

    write_machine(w, "6e9", "12e9", "1e9");
    assert_int_equal(sched_getaffinity(0, sizeof(set), &set), 0);
    few = set;
    keep_first_core(&few);
    workplace_run_ok(w, &all, command);
    assert_int_equal(sched_setaffinity(0, sizeof(few), &few), 0);
    workplace_run_ok(w, &one, command);
    assert_int_equal(sched_setaffinity(0, sizeof(set), &set), 0);
    assert_string_equal(all.out, one.out);
    program_free(&all);
    program_free(&one);
}

TEST_GROUP(workplace_setup, workplace_teardown);
