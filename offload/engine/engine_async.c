/* engine_async.c - ops in flight elsewhere: on the device's queues, and on the host thread that runs the workers.
 *
 * The caller hands out an op as soon as everything that it waits for is done, and sleeps between events.  The compute queue and
 * the update lane run in order, so an op there need not wait for an earlier one of its own lane.  The thread that finishes an op
 * wakes the caller; after a failure the host thread finishes queued ops without running them. */
#include "offload/engine/engine_internal.h"

#include "core/base/error.h"
#include "core/system/clock.h"
#include "core/system/thread.h"

#include <stdio.h>
#include <stdlib.h>

/* What is done for the caller before an op is handed over: a sum is zeroed, or the losses come up. */
static enum st_queue queue_of(const struct st_op *op)
{
    if (op->kind == ST_OP_CALLER_END)
        return ST_QUEUE_UPLOAD;
    switch (op->lane) {
    case STRATA_LANE_UPLOAD:
        return ST_QUEUE_UPLOAD;
    case STRATA_LANE_DOWNLOAD:
        return ST_QUEUE_DOWNLOAD;
    case STRATA_LANE_UPDATE_DEVICE:
        return ST_QUEUE_UPDATE;
    default:
        return ST_QUEUE_COMPUTE;
    }
}

/* --- completion, on any thread --- */

/* A queue runs one op after the other, so this one began when it was issued or when the previous one ended, whichever was
 * later. */
static void take_time(struct st_engine *eng, const struct st_engine_job *job, uint64_t end)
{
    struct st_engine_async *a = eng->async;
    const uint32_t lane = eng->program->ops[job->op].lane;
    const uint64_t start = job->issued_ns > a->lane_end_ns[lane] ? job->issued_ns : a->lane_end_ns[lane];
    const uint64_t ns = end > start ? end - start : 0;

    if (lane == STRATA_LANE_CALLER && !job->left) /* the device's own part */
        return;
    a->lane_end_ns[lane] = end;
    a->lane_busy_ns[lane] += ns;
    if (lane == STRATA_LANE_CALLER)
        st_engine_caller_took(eng, job->op, ns);
    if (lane == STRATA_LANE_COMPUTE)
        *(st_op_is_backward(eng->program->ops[job->op].kind) ? &a->backward_ns : &a->forward_ns) += ns;
    if (job->record != NULL) {
        job->record->start_ns = start;
        st_trace_end(job->record, end);
    }
}

void st_engine_note(struct st_engine *eng, strata_status st)
{
    pthread_mutex_lock(&eng->lock);
    if (eng->io_status == STRATA_OK) {
        eng->io_status = st;
        st_error_keep(&eng->io_error);
    }
    eng->events++;
    pthread_cond_signal(&eng->wake);
    pthread_mutex_unlock(&eng->lock);
}

/* Once the op is finished, the caller may issue it again, so its job must not be touched after that. */
static void finish_job(struct st_engine_job *job, strata_status st)
{
    struct st_engine *eng = job->engine;
    const uint32_t lane = eng->program->ops[job->op].lane;

    if (st != STRATA_OK)
        st_engine_note(eng, st);
    else if (lane != STRATA_LANE_CALLER)
        st_dispatch_finish(&eng->dispatch, job->op);
    else if (job->left)
        st_engine_caller_left(eng, job->op);
    else
        st_engine_caller_hand(eng, job->op);
    pthread_mutex_lock(&eng->lock);
    eng->async->lane_jobs[lane]--;
    eng->in_flight--;
    eng->events++;
    pthread_cond_signal(&eng->wake);
    pthread_mutex_unlock(&eng->lock);
}

static void push(struct st_engine *eng, struct st_engine_queue *queue, struct st_engine_job *job)
{
    job->next = NULL;
    pthread_mutex_lock(&eng->lock);
    if (queue->first == NULL)
        queue->first = job;
    else
        queue->last->next = job;
    queue->last = job;
    pthread_cond_signal(&eng->async->work);
    pthread_mutex_unlock(&eng->lock);
}

/* Runs on a thread of the device. */
static void device_done(void *ctx, strata_status st)
{
    struct st_engine_job *job = ctx;
    struct st_engine *eng = job->engine;
    const struct st_op *op = &eng->program->ops[job->op];

    if (st != STRATA_OK)
        (void)st_error_prefix(st, "op %u of the program, %s", job->op, st_op_name((enum st_op_kind)op->kind));
    pthread_mutex_lock(&eng->lock);
    take_time(eng, job, st_clock_ns());
    pthread_mutex_unlock(&eng->lock);
    if (st == STRATA_OK && st_engine_has_follow(eng, op, job->saves))
        push(eng, &eng->async->follow, job);
    else
        finish_job(job, st);
}

void st_engine_check_arrived(struct st_engine *eng, const struct st_engine_io *io)
{
    struct st_engine_job *job = &eng->async->jobs[io->op];

    *job = (struct st_engine_job){.engine = eng, .op = io->op};
    pthread_mutex_lock(&eng->lock);
    eng->in_flight++;
    eng->async->lane_jobs[eng->program->ops[io->op].lane]++;
    pthread_mutex_unlock(&eng->lock);
    push(eng, &eng->async->follow, job);
}

bool st_engine_checks_arrival(const struct st_engine *eng, uint32_t op)
{
    return eng->async != NULL && (eng->async->check_phases[op] & eng->dispatch.phase) != 0;
}

/* --- the host thread --- */

bool st_engine_has_workers(const struct st_engine *eng)
{
    return eng->async == NULL || pthread_equal(pthread_self(), eng->async->host) != 0;
}

static struct st_engine_job *pop(struct st_engine_queue *queue)
{
    struct st_engine_job *job = queue->first;

    if (job != NULL)
        queue->first = job->next;
    return job;
}

/* Take the next job; NULL: stop.  *follow: its op has run, but the work that follows it has not. */
static struct st_engine_job *next_job(struct st_engine *eng, bool *follow, bool *failed)
{
    struct st_engine_async *a = eng->async;
    struct st_engine_job *job;

    pthread_mutex_lock(&eng->lock);
    while (a->follow.first == NULL && a->update.first == NULL && !a->stop)
        pthread_cond_wait(&a->work, &eng->lock);
    *follow = a->follow.first != NULL;
    job = pop(*follow ? &a->follow : &a->update);
    *failed = eng->io_status != STRATA_OK;
    pthread_mutex_unlock(&eng->lock);
    return job;
}

static void run_update(struct st_engine *eng, struct st_engine_job *job)
{
    const strata_status st = st_engine_run_op(eng, &eng->program->ops[job->op]);

    pthread_mutex_lock(&eng->lock);
    take_time(eng, job, st_clock_ns());
    pthread_mutex_unlock(&eng->lock);
    finish_job(job, st);
}

static void *host_main(void *arg)
{
    struct st_engine *eng = arg;
    struct st_engine_job *job;
    bool follow, failed;

    while ((job = next_job(eng, &follow, &failed)) != NULL) {
        if (failed)
            finish_job(job, STRATA_E_CANCELLED);
        else if (follow)
            finish_job(job, st_engine_follow_op(eng, &eng->program->ops[job->op]));
        else
            run_update(eng, job);
    }
    return NULL;
}

/* --- issue, on the caller's thread --- */

strata_status st_engine_issue(struct st_engine *eng, uint32_t index)
{
    const struct st_op *op = &eng->program->ops[index];
    struct st_engine_job *job = &eng->async->jobs[index];
    strata_status st;

    *job = (struct st_engine_job){.engine = eng, .op = index, .saves = st_engine_saves(eng), .issued_ns = st_clock_ns()};
    if (op->lane != STRATA_LANE_CALLER) /* whose record is of the caller's own time */
        job->record = st_trace_begin(eng->trace, ST_TRACE_ITEM, index, ST_TRACE_NONE, job->issued_ns);
    pthread_mutex_lock(&eng->lock);
    eng->in_flight++;
    eng->async->lane_jobs[op->lane]++;
    pthread_mutex_unlock(&eng->lock);
    if (op->lane == STRATA_LANE_UPDATE) {
        push(eng, &eng->async->update, job);
        return STRATA_OK;
    }
    st = st_engine_run_timed(eng, index);
    if (st == STRATA_OK)
        st = eng->device->ops->notify(eng->device, queue_of(op), device_done, job);
    if (st != STRATA_OK)
        finish_job(job, st);
    return st;
}

strata_status st_engine_await_caller(struct st_engine *eng, uint32_t op, uint64_t since_ns, struct st_trace_record *record)
{
    struct st_engine_job *job = &eng->async->jobs[op];
    strata_status st;

    *job = (struct st_engine_job){.engine = eng, .op = op, .left = true, .issued_ns = since_ns, .record = record};
    pthread_mutex_lock(&eng->lock);
    eng->in_flight++;
    eng->async->lane_jobs[STRATA_LANE_CALLER]++;
    pthread_mutex_unlock(&eng->lock);
    st = eng->device->ops->notify(eng->device, ST_QUEUE_CALLER, device_done, job);
    if (st != STRATA_OK)
        finish_job(job, st);
    return st;
}

void st_engine_async_begin(struct st_engine *eng)
{
    struct st_engine_async *a = eng->async;

    pthread_mutex_lock(&eng->lock);
    for (uint32_t lane = 0; lane < STRATA_LANE_COUNT; lane++)
        a->lane_busy_ns[lane] = 0;
    a->forward_ns = a->backward_ns = 0;
    pthread_mutex_unlock(&eng->lock);
}

void st_engine_async_end(struct st_engine *eng)
{
    const struct st_engine_async *a = eng->async;
    struct st_step_result *r = &eng->result;

    pthread_mutex_lock(&eng->lock);
    for (uint32_t lane = 0; lane < STRATA_LANE_COUNT; lane++)
        r->busy_ms[lane] = (double)a->lane_busy_ns[lane] * 1e-6;
    r->forward_ms = (double)a->forward_ns * 1e-6;
    r->backward_ms = (double)a->backward_ns * 1e-6;
    pthread_mutex_unlock(&eng->lock);
}

/* --- create and destroy --- */

/* Whether an op leaves nothing to check of what one of its accesses finds in a slot: it opens it, or updates all of the page, or
 * brings something else there.  Other uses, of which a write is one, leave it as it is. */
static bool settles(const struct st_engine *eng, const struct st_op *op, const struct st_access *a)
{
    return a->role == ST_ROLE_TO || st_op_rows[op->kind].checksum == ST_CHECKSUM_OPENS ||
           (a->role == ST_ROLE_WEIGHT && st_engine_ends_check(eng, op));
}

/* Finds the reads to check on arrival: those that in a phase come to an upload before anything has checked them, since uploads
 * run on a queue of the device.  An update checks each chunk itself, and nothing that is frozen. */
static strata_status find_checks(struct st_engine *eng)
{
    const struct st_program *program = eng->program;
    uint32_t *reader = calloc(program->buffer_count + 1, sizeof(*reader)); /* of a buffer: the read that filled it */
    uint8_t *open = calloc(program->buffer_count + 1, sizeof(*open));      /* phases in which nothing has checked it yet */

    if (reader == NULL || open == NULL) {
        free(reader);
        free(open);
        return st_nomem(0);
    }
    for (uint32_t i = 0; i < program->op_count; i++) {
        const struct st_op *op = &program->ops[i];

        const struct st_op_row *row = &st_op_rows[op->kind];
        const bool state = row->operands[0].content == ST_HOLDS_STATE;

        if (state && row->checksum == ST_CHECKSUM_ARRIVES && st_engine_has_follow(eng, op, false))
            eng->async->check_phases[i] = op->phases; /* the device updates it, in this cycle or the next */
        for (uint32_t k = op->access_first; k < op->access_first + op->access_count; k++) {
            const uint32_t buffer = program->accesses[k].buffer;

            if (!state && row->checksum == ST_CHECKSUM_ARRIVES && program->accesses[k].role == ST_ROLE_TO) {
                if (st_engine_has_follow(eng, op, false)) {
                    reader[buffer] = i;
                    open[buffer] = op->phases;
                }
                continue;
            }
            if (!state && row->checksum == ST_CHECKSUM_OPENS && k == op->access_first)
                eng->async->check_phases[reader[buffer]] |= open[buffer] & op->phases;
            if (settles(eng, op, &program->accesses[k]))
                open[buffer] &= (uint8_t)~op->phases;
        }
    }
    free(reader);
    free(open);
    return STRATA_OK;
}

strata_status st_engine_async_create(struct st_engine *eng)
{
    struct st_engine_async *a = calloc(1, sizeof(*a));
    struct st_tables t;
    strata_status st;

    if (a == NULL)
        return st_nomem(sizeof(*a));
    eng->async = a;
    pthread_cond_init(&a->work, NULL);
    (void)st_tables_size(&t, eng->program, st_workers_count(eng->workers), true);
    a->jobs = calloc(1, t.jobs + 1);
    a->check_phases = calloc(1, t.checks + 1);
    if (a->jobs == NULL || a->check_phases == NULL)
        return st_nomem(0);
    if ((st = find_checks(eng)) != STRATA_OK || (st = st_thread_start(&a->host, "strata-host", host_main, eng)) != STRATA_OK)
        return st;
    a->host_runs = true;
    return STRATA_OK;
}

/* Call it after a drain, when nothing is queued. */
void st_engine_async_destroy(struct st_engine *eng)
{
    struct st_engine_async *a = eng->async;

    if (a == NULL)
        return;
    if (a->host_runs) {
        pthread_mutex_lock(&eng->lock);
        a->stop = true;
        pthread_cond_signal(&a->work);
        pthread_mutex_unlock(&eng->lock);
        pthread_join(a->host, NULL);
    }
    pthread_cond_destroy(&a->work);
    free(a->jobs);
    free(a->check_phases);
    free(a);
    eng->async = NULL;
}
