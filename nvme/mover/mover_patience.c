/* nvme/mover/mover_patience.c - requests that do not end: warnings of what is outstanding, and the deadline.
 *
 * All of it runs on the I/O thread, which returns from the method once a tick for it.  Its clock is the time for which the thread
 * has been seen to run: while the process is stopped (Ctrl-Z, a debugger) completions wait unseen, and the first look afterwards
 * must not take the drive for dead. */
#include "nvme/mover/mover_internal.h"

#include "core/base/error.h"
#include "core/base/fault.h"
#include "core/base/log.h"
#include "core/base/size.h"
#include "core/system/clock.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>

#define SECOND_NS  UINT64_C(1000000000)
#define REPORT_NS  (30 * SECOND_NS)
#define REPEAT_NS  (60 * SECOND_NS)
#define TICK_MAX   SECOND_NS
#define TICK_MIN   UINT64_C(1000000)
#define GRACE_MAX  (10 * SECOND_NS)
#define TEXT_BYTES 512
#define LISTED_MAX 8u

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

void st_mover_patience_init(struct st_mover *m)
{
    struct st_patience *p = &m->opts.patience;

    p->report_ns = p->report_ns > 0 ? p->report_ns : REPORT_NS;
    p->repeat_ns = p->repeat_ns > 0 ? p->repeat_ns : REPEAT_NS;
    m->tick_ns = least(TICK_MAX, p->report_ns / 4);
    if (p->deadline_ns > 0)
        m->tick_ns = least(m->tick_ns, p->deadline_ns / 4);
    m->tick_ns = m->tick_ns > TICK_MIN ? m->tick_ns : TICK_MIN;
    if (p->report_ns == UINT64_MAX && p->deadline_ns == 0)
        m->tick_ns = 0;
    p->now_ns = p->now_ns != NULL ? p->now_ns : st_clock_ns;
    m->looked_ns = p->now_ns();
}

static uint64_t age_of(const struct st_mover *m, const struct st_mover_slot *slot)
{
    return m->awake_ns - slot->since_ns;
}

static const char *verb_of(enum st_io_op op)
{
    return op == ST_IO_READ ? "read" : op == ST_IO_WRITE ? "write" : "sync";
}

/* "no answer for 31 s to the write of 1.00 MiB at offset 4096 of FILE (write lane)" */
static void describe(char text[TEXT_BYTES], const struct st_mover *m, const struct st_mover_slot *slot)
{
    const struct st_io_req *req = &slot->req;
    const char *what = slot->transfer->what;
    char bytes[24], age[24], range[64] = "";

    if (req->op != ST_IO_SYNC)
        snprintf(range, sizeof(range), " of %s at offset %" PRIu64, st_size_text(bytes, req->bytes), req->offset);
    snprintf(text, TEXT_BYTES, "no answer for %s to a %s%s in %.300s%s%s%s", st_seconds_text(age, (double)age_of(m, slot) * 1e-9),
             verb_of(req->op), range, slot->part->path, what != NULL ? " (" : "", what != NULL ? what : "",
             what != NULL ? ")" : "");
}

static void warn(struct st_mover *m, const struct st_mover_slot *oldest)
{
    char text[TEXT_BYTES];

    describe(text, m, oldest);
    st_log(ST_LOG_WARN, "%s; requests outstanding: %" PRIu32, text, m->in_flight);
    m->warned_ns = m->awake_ns;
    m->warned_of = oldest->part->drive;
}

/* The kernel keeps their memory: whoever waits for them waits on. */
static void tell(struct st_mover *m, const struct st_mover_slot *oldest)
{
    char text[TEXT_BYTES];
    uint32_t listed = 0;

    for (uint32_t i = 0; i < m->slot_count && listed < LISTED_MAX; i++) {
        if (m->slots[i].transfer == NULL || &m->slots[i] == oldest)
            continue;
        describe(text, m, &m->slots[i]);
        st_log(ST_LOG_WARN, "%s", text);
        listed++;
    }
    describe(text, m, oldest);
    m->told = true;
    if (m->opts.patience.hangs != NULL)
        m->opts.patience.hangs(m->opts.patience.ctx, text);
    else
        st_log(ST_LOG_ERROR, "%s: it cannot be cancelled, and its memory cannot be used before it ends", text);
}

static void give_up(struct st_mover *m, struct st_mover_slot *slot)
{
    slot->part->drive->given_up = true;
    if (slot->given_up)
        return;
    slot->given_up = true;
    if (!st_fault_refuses("nvme.cancel"))
        m->opts.ops->cancel(m->io, &slot->req);
}

static void enforce(struct st_mover *m, const struct st_mover_slot *oldest)
{
    const uint64_t deadline_ns = m->opts.patience.deadline_ns, tenth = least(deadline_ns / 10, GRACE_MAX);
    const uint64_t grace_ns = tenth > 2 * m->tick_ns ? tenth : 2 * m->tick_ns;

    if (deadline_ns == 0)
        return;
    for (uint32_t i = 0; i < m->slot_count; i++)
        if (m->slots[i].transfer != NULL && age_of(m, &m->slots[i]) >= deadline_ns)
            give_up(m, &m->slots[i]);
    if (!m->told && age_of(m, oldest) >= deadline_ns + grace_ns)
        tell(m, oldest);
}

void st_mover_look_at_time(struct st_mover *m)
{
    const uint64_t now_ns = m->opts.patience.now_ns(), passed_ns = now_ns - m->looked_ns;
    const struct st_mover_slot *oldest = NULL;

    if (passed_ns < m->tick_ns)
        return;
    m->awake_ns += least(passed_ns, 2 * m->tick_ns);
    m->looked_ns = now_ns;
    for (uint32_t i = 0; i < m->slot_count; i++)
        if (m->slots[i].transfer != NULL && (oldest == NULL || m->slots[i].since_ns < oldest->since_ns))
            oldest = &m->slots[i];
    if (oldest == NULL ||
        age_of(m, oldest) < least(m->opts.patience.report_ns, m->opts.patience.deadline_ns - 1)) { /* 0: never */
        if (m->warned_ns > 0 && !m->warned_of->given_up) /* what was cancelled has ended, and is no answer */
            st_log(ST_LOG_NOTICE, "the drive answers again");
        m->warned_ns = 0;
        return;
    }
    if (age_of(m, oldest) >= m->opts.patience.report_ns &&
        (m->warned_ns == 0 || m->awake_ns - m->warned_ns >= m->opts.patience.repeat_ns))
        warn(m, oldest);
    enforce(m, oldest);
}

strata_status st_mover_unanswered(const struct st_mover *m, const struct st_transfer *t, const char *path)
{
    char range[96] = "";

    if (t->op != ST_IO_SYNC)
        snprintf(range, sizeof(range), " of %" PRIu32 " bytes at offset %" PRIu64, t->failed_bytes, t->failed_offset);
    return st_error(STRATA_E_IO, "%s: %s%s: no answer for %.6g s, so the drive was given up (strata.io_deadline)", path,
                    verb_of(t->op), range, (double)m->opts.patience.deadline_ns * 1e-9);
}
