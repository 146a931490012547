/* tests/cli/test_trace.c - --trace: every op of the steady step on its lane, stalls as in the metrics, the same bits. */
#include "core/json/json.h"
#include "tests/cli/program.h"
#include "tests/cli/trace_calls.h"
#include "tests/cli/workplace.h"
#include "tests/common/json_member.h"
#include "tests/common/test.h"

#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define RUN                                                                                                                      \
    "train --model nano --data {w}/good.bin --seq-len 32 --micro-batch 2 --grad-accum 3 --machine {w}/machine.json --digest "    \
    "--device-memory 3MiB --nvme {w}/nvme --set zero_optimization.stage=3 --set strata.cache=0 --set "                           \
    "zero_optimization.offload_optimizer.device=nvme --set zero_optimization.offload_param.device=nvme "
#define SMALL      "train --model nano --data {w}/good.bin --seq-len 32 --machine {w}/machine.json --quiet "
#define STEPS      4u
#define OPS_MAX    4096u
#define LANES      9u
#define THREAD_MAX 4096u

static const char *const lanes[LANES] = {"compute",     "upload",          "download", "update", "read_state",
                                         "read_weight", "read_activation", "write",    "comm"};
#define LANE_UPDATE 3u /* the last of those that execute */

/* The lane of some kinds of ops, for a look from outside. */
static const char *const lane_of[][2] = {
    {"block_forward", "compute"},   {"block_backward", "compute"},
    {"update", "update"},           {"read_state", "read_state"},
    {"write_state", "write"},       {"write_weight", "write"},
    {"read_weight", "read_weight"}, {"upload_weight", "upload"},
    {"download_grad", "download"},  {"end", "update"},
};
#define KIND_COUNT (sizeof(lane_of) / sizeof(lane_of[0]))

struct rows {
    char lane[THREAD_MAX][32]; /* name of a thread, its number cut off */
    char name[THREAD_MAX][32];
};

struct seen {
    uint32_t times[STEPS + 1][OPS_MAX]; /* [step][op] */
    uint32_t kinds[KIND_COUNT];
    double busy_until[THREAD_MAX], executing_until; /* microseconds */
    double stall_ms[STEPS + 1], lane_stall_ms[STEPS + 1][LANES];
    uint32_t arrows_from, arrows_to, op_count;
    double first_moved[2], first_counted[2]; /* microseconds; reads, writes; -1: none yet */
};

static uint32_t lane_index(const char *name)
{
    for (uint32_t i = 0; i < LANES; i++)
        if (strcmp(lanes[i], name) == 0)
            return i;
    fail_msg("no lane %s", name);
    return 0;
}

static const st_json *first_event(const st_json *trace)
{
    return st_json_first(st_json_get(trace, "traceEvents"));
}

static uint32_t thread_of(const st_json *event)
{
    const double id = json_number(event, "tid");

    assert_true(id >= 0 && id < THREAD_MAX);
    return (uint32_t)id;
}

static void find_rows(const st_json *trace, struct rows *rows)
{
    for (const st_json *e = first_event(trace); e != NULL; e = st_json_next(e)) {
        const uint32_t thread = thread_of(e);

        if (strcmp(json_text(e, "ph"), "M") != 0 || strcmp(json_text(e, "name"), "thread_name") != 0)
            continue;
        assert_string_equal(rows->name[thread], ""); /* named once */
        strncpy(rows->name[thread], json_text(st_json_get(e, "args"), "name"), sizeof(rows->name[thread]) - 1);
        memcpy(rows->lane[thread], rows->name[thread], sizeof(rows->lane[thread]));
        rows->lane[thread][strcspn(rows->lane[thread], " ")] = '\0';
    }
}

/* --- events --- */

/* Nothing overlaps on one row; of the executing lanes, and beside a stall, nothing overlaps at all. */
static void check_time(struct seen *seen, const st_json *e, bool executes)
{
    const double start = json_number(e, "ts"), end = start + json_number(e, "dur"), slack = 1e-6 * end;
    double *busy = &seen->busy_until[thread_of(e)];

    assert_true(start >= *busy - slack);
    *busy = end;
    if (!executes)
        return;
    assert_true(start >= seen->executing_until - slack);
    seen->executing_until = end;
}

static void see_op(struct seen *seen, const struct rows *rows, const st_json *e)
{
    const st_json *args = st_json_get(e, "args");
    const char *lane = rows->lane[thread_of(e)];
    const uint32_t step = (uint32_t)json_number(args, "step"), op = (uint32_t)json_number(args, "op");

    assert_true(step <= STEPS && op < seen->op_count);
    seen->times[step][op]++;
    check_time(seen, e, lane_index(lane) <= LANE_UPDATE);
    for (size_t k = 0; k < KIND_COUNT; k++) {
        if (strcmp(lane_of[k][0], json_text(e, "name")) != 0)
            continue;
        assert_string_equal(lane, lane_of[k][1]);
        seen->kinds[k]++;
    }
    if (lane_index(lane) > LANE_UPDATE) {
        double *first = &seen->first_moved[strcmp(lane, "write") == 0];

        assert_true(json_number(args, "bytes") > 0);
        *first = *first < 0 ? json_number(e, "ts") : fmin(*first, json_number(e, "ts"));
    }
}

static void see_stall(struct seen *seen, const struct rows *rows, const st_json *e)
{
    const st_json *args = st_json_get(e, "args");
    const uint32_t step = (uint32_t)json_number(args, "step");

    assert_string_equal(rows->name[thread_of(e)], "stall");
    assert_true(step <= STEPS);
    assert_memory_equal(json_text(e, "name"), "waits for ", 10);
    check_time(seen, e, true);
    seen->stall_ms[step] += json_number(e, "dur") * 1e-3;
    if (st_json_get(args, "lane") == NULL)
        return;
    assert_string_equal(json_text(e, "name") + 10, json_text(args, "lane"));
    seen->lane_stall_ms[step][lane_index(json_text(args, "lane"))] += json_number(e, "dur") * 1e-3;
}

/* Bytes are in flight, of reads or writes, from the first of them on. */
static void see_counter(struct seen *seen, const st_json *e)
{
    static const char *const series[] = {"read", "write"};

    for (int i = 0; i < 2; i++)
        if (seen->first_counted[i] < 0 && json_number(st_json_get(e, "args"), series[i]) > 0)
            seen->first_counted[i] = json_number(e, "ts");
}

static void see_all(struct seen *seen, const struct rows *rows, const st_json *trace)
{
    for (const st_json *e = first_event(trace); e != NULL; e = st_json_next(e)) {
        const char *phase = json_text(e, "ph");

        assert_true(rows->name[thread_of(e)][0] != '\0');
        seen->arrows_from += strcmp(phase, "s") == 0;
        seen->arrows_to += strcmp(phase, "f") == 0;
        if (strcmp(phase, "C") == 0 && strcmp(json_text(e, "name"), "bytes in flight") == 0)
            see_counter(seen, e);
        if (strcmp(phase, "X") != 0)
            continue;
        if (strcmp(json_text(e, "cat"), "op") == 0)
            see_op(seen, rows, e);
        else if (strcmp(json_text(e, "cat"), "stall") == 0)
            see_stall(seen, rows, e);
        else
            check_time(seen, e, false);
    }
}

/* --- a whole run --- */

static void check_steps(const struct seen *seen)
{
    for (uint32_t step = 1; step <= STEPS; step++)
        for (uint32_t op = 0; op < seen->op_count; op++)
            assert_true(step == 1 ? seen->times[step][op] <= 1 : seen->times[step][op] == 1); /* the first has no update */
    for (size_t k = 0; k < KIND_COUNT; k++)
        assert_true(seen->kinds[k] > 0);
    for (int i = 0; i < 2; i++)
        assert_true(seen->first_moved[i] >= 0 && fabs(seen->first_counted[i] - seen->first_moved[i]) < 1e-3);
    assert_true(seen->arrows_from > 0);
    assert_int_equal(seen->arrows_from, seen->arrows_to);
}

static void check_stalls(const struct seen *seen, uint32_t step, const st_json *line)
{
    const st_json *by_lane = st_json_get(line, "stall_ms");
    double named = 0, counted = 0;

    assert_true(fabs(json_number(st_json_get(line, "time_ms"), "stall") - seen->stall_ms[step]) < 1e-3);
    for (uint32_t lane = 0; lane < LANES; lane++) {
        named += seen->lane_stall_ms[step][lane];
        counted += json_number(by_lane, lanes[lane]);
        if (lane != lane_index("write")) /* which also takes stalls without a name */
            assert_true(fabs(json_number(by_lane, lanes[lane]) - seen->lane_stall_ms[step][lane]) < 1e-3);
    }
    assert_true(named <= counted + 1e-3);
}

/* Fills op_count from the header, or checks the steps' stalls, once the trace has been seen. */
static void read_metrics(const struct workplace *w, struct seen *seen, bool stalls)
{
    size_t bytes;
    char *metrics = workplace_read(w, "m.jsonl", &bytes), *line = metrics;

    for (uint32_t i = 0; i <= STEPS; i++) {
        const size_t length = strcspn(line, "\n");
        st_json *root = NULL;

        assert_int_equal(st_json_parse(&root, line, length, "m.jsonl"), STRATA_OK);
        if (i == 0)
            seen->op_count = (uint32_t)json_number(st_json_get(st_json_get(root, "run"), "plan"), "ops");
        else if (stalls)
            check_stalls(seen, i, root);
        st_json_free(root);
        line += length + 1;
    }
    assert_true(seen->op_count > 0 && seen->op_count <= OPS_MAX);
    free(metrics);
}

static const char *digests(const struct program *p)
{
    const char *found = strstr(p->out, "weights_digest");

    assert_non_null(found);
    return found;
}

TEST(every_op_once_a_step_and_the_same_bits)
{
    static struct rows rows;
    static struct seen seen;
    const struct workplace *w = *state;
    struct program traced, plain;
    const st_json *other;
    st_json *trace;

    workplace_run_ok(w, &traced, RUN "--quiet --max-steps 4 --metrics {w}/m.jsonl --trace {w}/t.json");
    workplace_run_ok(w, &plain, RUN "--quiet --max-steps 4");
    assert_string_equal(digests(&traced), digests(&plain));
    trace = trace_parse(w, "t.json");
    other = st_json_get(trace, "otherData");
    assert_true(json_number(other, "steps_recorded") == STEPS && json_number(other, "records_dropped") == 0);
    find_rows(trace, &rows);
    for (int i = 0; i < 2; i++)
        seen.first_moved[i] = seen.first_counted[i] = -1;
    read_metrics(w, &seen, false);
    see_all(&seen, &rows, trace);
    check_steps(&seen);
    read_metrics(w, &seen, true);
    st_json_free(trace);
    program_free(&traced);
    program_free(&plain);
    workplace_remove(w, "m.jsonl");
    workplace_remove(w, "t.json");
}

/* As many in every steady step, and none is lost; the first step has no updates. */
TEST(calls_of_ops_lie_within_them)
{
    const struct workplace *w = *state;
    struct program timed, plain;
    uint32_t calls[STEPS];
    st_json *trace;

    workplace_run_ok(w, &timed, RUN "--quiet --max-steps 4 --ops --trace {w}/t.json");
    workplace_run_ok(w, &plain, RUN "--quiet --max-steps 4");
    assert_string_equal(digests(&timed), digests(&plain));
    trace = trace_parse(w, "t.json");
    assert_true(json_number(st_json_get(trace, "otherData"), "records_dropped") == 0);
    trace_check_calls(trace, calls, STEPS);
    assert_true(calls[0] > 3 * 4 * 20); /* of three micro-batches and four blocks */
    for (uint32_t i = 1; i < STEPS; i++)
        assert_true(calls[i] == calls[1] && calls[i] >= calls[0]);
    st_json_free(trace);
    program_free(&timed);
    program_free(&plain);
    workplace_remove(w, "t.json");
}

/* Evaluations are not recorded; the updates that they bring forward are. */
TEST(long_runs_are_cut_at_fifty_steps)
{
    const struct workplace *w = *state;
    const st_json *other;
    struct program p;
    st_json *trace;
    uint32_t steps = 0, flushes = 0;

    workplace_run_ok(w, &p, RUN "--quiet --max-steps 52 --eval-data {w}/good.heldout.bin --eval-every 26 --trace {w}/t.json");
    trace = trace_parse(w, "t.json");
    other = st_json_get(trace, "otherData");
    assert_true(json_number(other, "steps_run") == 52 && json_number(other, "steps_recorded") == 50);
    assert_true(json_number(other, "steps_recorded_at_most") == 50);
    for (const st_json *e = first_event(trace); e != NULL; e = st_json_next(e)) {
        steps += strncmp(json_text(e, "name"), "step ", 5) == 0;
        flushes += strcmp(json_text(e, "name"), "flush") == 0;
        assert_string_not_equal(json_text(e, "name"), "evaluation");
    }
    assert_int_equal(steps, 50);
    assert_int_equal(flushes, 1);
    st_json_free(trace);
    program_free(&p);
    workplace_remove(w, "t.json");
}

/* A run that goes on has its steps' numbers, as in the metrics, however its updates are placed. */
TEST(steps_of_a_resumed_run_go_on)
{
    static const char *const options[] = {
        "", "--set fp16.enabled=true --set fp16.initial_scale_power=20 ", /* its first steps are skipped */
        "--grad-accum 1 --set gradient_clipping=0 --set strata.update=in_backward "};
    const struct workplace *w = *state;

    for (size_t i = 0; i < sizeof(options) / sizeof(options[0]); i++) {
        struct program p;
        char command[1024];
        st_json *trace;
        uint32_t next = 9;

        snprintf(command, sizeof(command), SMALL "%s--max-steps 8 --save {w}/saved", options[i]);
        workplace_run_ok(w, &p, command);
        program_free(&p);
        snprintf(command, sizeof(command), SMALL "%s--max-steps 10 --save {w}/saved --resume auto --trace {w}/t.json",
                 options[i]);
        workplace_run_ok(w, &p, command);
        program_free(&p);
        trace = trace_parse(w, "t.json");
        for (const st_json *e = first_event(trace); e != NULL; e = st_json_next(e))
            if (strncmp(json_text(e, "name"), "step ", 5) == 0) {
                assert_int_equal(strtoul(json_text(e, "name") + 5, NULL, 10), next);
                assert_true(json_number(st_json_get(e, "args"), "step") == next++);
            }
        assert_int_equal(next, 11);
        st_json_free(trace);
        workplace_remove(w, "t.json");
        workplace_remove(w, "saved");
    }
}

/* --- ends --- */

static void wait_for_step(const struct program *p)
{
    char seen[65536];
    size_t length = 0;

    while (length < sizeof(seen) - 1) {
        const ssize_t got = read(p->out_fd, seen + length, sizeof(seen) - 1 - length);

        assert_true(got > 0);
        length += (size_t)got;
        seen[length] = '\0';
        if (strstr(seen, "step 1/") != NULL)
            return;
    }
    fail_msg("no step");
}

TEST(ctrl_c_writes_what_was_recorded)
{
    const struct workplace *w = *state;
    struct program p;
    st_json *trace;

    workplace_start_piped(w, &p, RUN "--max-steps 1000000 --trace {w}/t.json");
    wait_for_step(&p);
    assert_int_equal(kill(p.pid, SIGINT), 0);
    program_drain(&p);
    program_wait(&p);
    assert_int_equal(p.code, 130);
    trace = trace_parse(w, "t.json");
    assert_true(json_number(st_json_get(trace, "otherData"), "steps_recorded") >= 1);
    st_json_free(trace);
    program_free(&p);
    workplace_remove(w, "t.json");
    assert_int_equal(workplace_entries(w, "nvme"), 0);
}

static void refuse(const struct workplace *w, const char *command, int code, const char *sentence)
{
    struct program p;

    workplace_run(w, &p, command);
    assert_int_equal(p.code, code);
    assert_non_null(strstr(p.err, sentence));
    program_free(&p);
}

/* Before training, so without a metrics file; a refused run leaves no trace, a failed one what it recorded. */
TEST(bad_places_are_refused_before_training)
{
    const struct workplace *w = *state;

    refuse(w, RUN "--max-steps 1 --metrics {w}/m.jsonl --trace {w}/nowhere/t.json", 2, "nowhere");
    refuse(w, RUN "--max-steps 1 --metrics {w}/m.jsonl --trace {w}/nvme", 2, "is a directory");
    refuse(w, RUN "--max-steps 1 --metrics {w}/m.jsonl --trace /dev/full", 2, "is a device");
    refuse(w, RUN "--max-steps 1 --trace", 2, "--trace needs a value");
    refuse(w, RUN "--max-steps 1 --ops", 2, "--ops needs --trace FILE.json");
    assert_false(workplace_exists(w, "m.jsonl"));
    refuse(w, RUN "--max-steps 1 --trace {w}/t.json --device-memory 1KiB", 3, "does not fit");
    assert_false(workplace_exists(w, "t.json"));
    refuse(w, RUN "--max-steps 1 --trace {w}/t.json --fault file.flush:0:1:-28", 4, "--trace: completing");
    assert_false(workplace_exists(w, "t.json"));
    refuse(w, RUN "--max-steps 4 --trace {w}/t.json --fault engine.corrupt_state", 4, "checksum mismatch");
    st_json_free(trace_parse(w, "t.json"));
    workplace_remove(w, "t.json");
}

TEST_GROUP(workplace_setup, workplace_teardown);
