/* test_program_order - the verifier refuses a program that lacks a wait exactly where two ops could then use one buffer at the
 * same time, as a search of all pairs of ops in two cycles says. */
#include "core/base/error.h"
#include "plan_fixture.h"
#include "tests/common/test.h"

#include <stdlib.h>
#include <string.h>

struct search {
    const struct st_program *program;
    bool *shares; /* [ops][ops] of one buffer, which one of the two writes */
    bool *before; /* [2 * ops][2 * ops]: the second number's node has ended when the first one's begins */
};

static bool share(const struct st_program *p, const struct st_op *a, const struct st_op *b)
{
    for (uint32_t i = 0; i < a->access_count; i++)
        for (uint32_t k = 0; k < b->access_count; k++) {
            const struct st_access *x = &p->accesses[a->access_first + i], *y = &p->accesses[b->access_first + k];

            if (x->buffer == y->buffer && ((x->mode | y->mode) & ST_WRITE) != 0)
                return true;
        }
    return false;
}

static void search_begin(struct search *s, const struct st_program *program)
{
    const size_t ops = program->op_count;

    *s = (struct search){program, calloc(ops * ops, sizeof(bool)), calloc(4 * ops * ops, sizeof(bool))};
    assert_true(s->shares != NULL && s->before != NULL);
    for (size_t a = 0; a < ops; a++)
        for (size_t b = 0; b < ops; b++)
            s->shares[a * ops + b] = share(program, &program->ops[a], &program->ops[b]);
}

static void search_end(struct search *s)
{
    free(s->shares);
    free(s->before);
}

static bool is_safe(const struct search *s)
{
    const size_t ops = s->program->op_count, nodes = 2 * ops;

    memset(s->before, 0, nodes * nodes * sizeof(bool));
    for (size_t to = 0; to < nodes; to++) {
        const struct st_op *op = &s->program->ops[to % ops];

        for (uint32_t w = 0; w < op->wait_count; w++) {
            const struct st_wait *wait = &s->program->waits[op->wait_first + w];
            const size_t from = wait->op + (to >= ops && !wait->previous ? ops : 0);

            if (wait->previous && to < ops)
                continue;
            for (size_t k = 0; k < from; k++)
                s->before[to * nodes + k] = s->before[to * nodes + k] || s->before[from * nodes + k];
            s->before[to * nodes + from] = true;
        }
        for (size_t from = 0; from < to; from++)
            if (s->shares[from % ops * ops + to % ops] && !s->before[to * nodes + from])
                return false;
    }
    return true;
}

struct waits {
    uint32_t needed, of_previous, spare;
};

static void leave_out(const struct search *s, struct st_op *op, uint32_t w, struct waits *out)
{
    struct st_wait *const wait = &s->program->waits[op->wait_first + w];
    struct st_wait *const last = &s->program->waits[op->wait_first + op->wait_count - 1], kept = *wait;

    *wait = *last;
    op->wait_count--;
    if (is_safe(s)) {
        assert_int_equal(st_program_verify(s->program), STRATA_OK);
        out->spare++;
    } else {
        if (st_program_verify(s->program) != STRATA_E_INTERNAL)
            fail_msg("op %zu need not wait for op %u%s", (size_t)(op - s->program->ops), kept.op, kept.previous ? "'" : "");
        assert_non_null(strstr(strata_last_error(), " does not wait for op "));
        assert_non_null(strstr(strata_last_error(), ", and both use buffer "));
        out->needed++;
        out->of_previous += strstr(strata_last_error(), " of the previous cycle") != NULL;
    }
    op->wait_count++;
    *wait = kept;
}

/* Each wait alone, in programs that keep things in each tier. */
TEST(a_wait_that_is_left_out_is_found)
{
    const struct plan_sizes sizes = {.dtype = STRATA_BF16,
                                     .blocks = 2,
                                     .hidden = 16,
                                     .vocab = 60,
                                     .slice_rows = 30,
                                     .seq = 8,
                                     .micro_batch = 1,
                                     .grad_accum = 2,
                                     .positions = true,
                                     .tied = true};
    const struct st_machine machine = {.name = "test", .capacity = {.bytes = {1u << 24, 1u << 24, 1u << 24}, .workers = 1}};
    struct waits waits = {0};

    for (uint32_t i = 0; i < 6; i++) {
        const strata_tier tier = (strata_tier)(i % 3);
        const struct st_policy policy = {.param_tier = tier,
                                         .optimizer_tier = tier,
                                         .activation_tier = tier,
                                         .update = (enum st_update_policy)(1 + i % 3),
                                         .accumulation = (enum st_accumulation)(i / 3),
                                         .chunk_elems = ST_TILE_ELEMS,
                                         .ranks = 1 + i / 3,
                                         .stage = i / 3 * 3};
        struct st_plan *plan = plan_of(&sizes, &machine, &policy, "order");
        struct search s;

        search_begin(&s, &plan->program);
        assert_true(is_safe(&s));
        assert_int_equal(st_program_verify(&plan->program), STRATA_OK);
        for (uint32_t n = 0; n < plan->program.op_count; n++)
            for (uint32_t w = 0; w < plan->program.ops[n].wait_count; w++)
                leave_out(&s, &plan->program.ops[n], w, &waits);
        search_end(&s);
        st_plan_destroy(plan);
    }
    print_message("waits: %u needed, %u of them of the previous cycle, %u not\n", waits.needed, waits.of_previous, waits.spare);
    assert_true(waits.needed > 0 && waits.of_previous > 0);
}
