/* tests/cli/trace_calls.c - see trace_calls.h. */
#include "tests/cli/trace_calls.h"
#include "tests/common/json_member.h"
#include "tests/common/test.h"

#include <stdlib.h>
#include <string.h>

#define OPS_MAX    4096u
#define THREAD_MAX 4096u
#define SLACK_US   1.0 /* of rounding: a GPU tells milliseconds as floats, 0.06 us at a second */

/* When an op of the program last ran, and on which row. */
struct span {
    uint32_t thread, step;
    double start, end;
};

st_json *trace_parse(const struct workplace *w, const char *name)
{
    st_json *root = NULL;
    size_t bytes;
    char *data = workplace_read(w, name, &bytes);

    assert_int_equal(st_json_parse(&root, data, bytes, name), STRATA_OK);
    free(data);
    return root;
}

static struct span span_of(const st_json *e)
{
    const double start = json_number(e, "ts");

    return (struct span){.thread = (uint32_t)json_number(e, "tid"),
                         .step = (uint32_t)json_number(st_json_get(e, "args"), "step"),
                         .start = start,
                         .end = start + json_number(e, "dur")};
}

static void check_call(const st_json *e, const struct span *op, double *busy_until)
{
    const st_json *args = st_json_get(e, "args");
    const struct span call = span_of(e);

    assert_true(call.thread == op->thread && call.step == op->step);
    assert_true(call.start >= op->start - SLACK_US && call.end <= op->end + SLACK_US);
    assert_true(call.start >= *busy_until - SLACK_US);
    assert_true(call.end - call.start <= json_number(args, "us") + SLACK_US); /* cut where the op's clock says so */
    assert_true(json_text(args, "shape")[0] != '\0');
    *busy_until = call.end;
}

void trace_check_calls(const st_json *trace, uint32_t *calls, uint32_t steps)
{
    static struct span ops[OPS_MAX];
    static double busy_until[THREAD_MAX];

    memset(ops, 0, sizeof(ops));
    memset(busy_until, 0, sizeof(busy_until));
    memset(calls, 0, steps * sizeof(*calls));
    for (const st_json *e = st_json_first(st_json_get(trace, "traceEvents")); e != NULL; e = st_json_next(e)) {
        const char *cat = strcmp(json_text(e, "ph"), "X") == 0 ? json_text(e, "cat") : "";
        const st_json *args = st_json_get(e, "args");
        uint32_t op;

        if (strcmp(cat, "op") != 0 && strcmp(cat, "call") != 0)
            continue;
        op = (uint32_t)json_number(args, "op");
        assert_true(op < OPS_MAX && span_of(e).thread < THREAD_MAX);
        if (strcmp(cat, "op") == 0) {
            ops[op] = span_of(e);
            continue;
        }
        check_call(e, &ops[op], &busy_until[ops[op].thread]);
        assert_true(ops[op].step <= steps);
        if (ops[op].step > 0)
            calls[ops[op].step - 1]++;
        if (strcmp(json_text(e, "name"), "matmul") == 0)
            assert_true(json_number(args, "TFLOP/s") > 0 && json_number(args, "GB/s") > 0);
    }
}
