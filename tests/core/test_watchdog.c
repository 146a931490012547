/* tests/core/test_watchdog.c - invented series and fake trees: what is an alarm, and above all what is none. */
#include "core/base/fault.h"
#include "core/system/clock.h"
#include "core/system/thread.h"
#include "core/system/watchdog.h"
#include "tests/common/scratch.h"
#include "tests/common/test.h"

#include <limits.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include <unistd.h>

#define UNKNOWN ST_WATCH_UNKNOWN
#define MIB     (UINT64_C(1) << 20)
#define LIMIT   (8192 * MIB) /* its margin is 128 MiB */
#define MARGIN  (128 * MIB)
#define SOON_NS UINT64_C(1000000)

/* --- judging --- */

/* One group, looked at every second. */
struct series {
    struct st_watch_judge judge;
    struct st_watch_look look;
    struct st_watch_alarm alarm;
    bool alarmed;
    uint64_t alarm_second;
};

static void begin(struct series *s, uint64_t planned_bytes)
{
    memset(s, 0, sizeof(*s));
    memset(&s->look, 0xff, sizeof(s->look));
    s->judge.planned_bytes = planned_bytes;
    s->look.at_ns = 1000000000;
    s->look.resident_bytes = planned_bytes;
    s->look.major_faults = 0;
    s->look.place[1] = (struct st_watch_place){LIMIT, LIMIT, 0, 0};
}

/* `seconds` looks with so much left, and so much of each second spent waiting. */
static void go_on(struct series *s, uint32_t seconds, uint64_t left_bytes, double waited)
{
    for (uint32_t i = 0; i < seconds; i++) {
        s->look.at_ns += 1000000000;
        s->look.place[1].left_bytes = left_bytes;
        if (s->look.place[1].full_us != UNKNOWN)
            s->look.place[1].full_us += (uint64_t)(waited * 1e6);
        if (!s->alarmed && (s->alarmed = st_watch_judge(&s->judge, &s->look, &s->alarm)))
            s->alarm_second = i + 1;
    }
}

/* A run takes its planned memory, which is nearly all there is, and keeps it for an hour. */
TEST(a_full_plan_is_no_alarm)
{
    struct series s;

    begin(&s, LIMIT - 10 * MIB);
    s.look.resident_bytes = 0;
    for (uint64_t left = LIMIT; left > 682 * MIB; left -= 682 * MIB) {
        s.look.resident_bytes = LIMIT - left;
        go_on(&s, 1, left, 0.9); /* reclaiming others' page cache while it grows */
    }
    s.look.resident_bytes = LIMIT - 10 * MIB;
    go_on(&s, 3600, 10 * MIB, 0.02);
    assert_false(s.alarmed);
    go_on(&s, 60, 10 * MIB, 0.19);
    assert_false(s.alarmed);
    go_on(&s, 60, 10 * MIB, 0.3);
    assert_true(s.alarmed);
}

TEST(standing_still_far_from_the_limit_is_no_alarm)
{
    struct series s;

    begin(&s, 0);
    go_on(&s, 100, MARGIN + 1, 1);
    assert_false(s.alarmed);
}

/* One of these alone is forgotten when half as much again as the margin is left. */
TEST(a_short_squeeze_is_no_alarm)
{
    struct series s;

    begin(&s, 0);
    go_on(&s, 1, LIMIT, 0);
    for (int i = 0; i < 100; i++) {
        go_on(&s, 9, MARGIN / 2, 0.9);
        go_on(&s, 1, MARGIN + MARGIN / 2, 0);
    }
    assert_false(s.alarmed);
}

/* Between margin and half as much again it stays as it was. */
TEST(what_lasts_is_an_alarm)
{
    struct series s;

    begin(&s, 0);
    go_on(&s, 20, LIMIT, 0);
    go_on(&s, 1, MARGIN - 1, 0.2);
    go_on(&s, 5, MARGIN + 1, 0.2);
    assert_false(s.alarmed);
    go_on(&s, 20, MARGIN - 1, 0.2);
    assert_true(s.alarmed);
    assert_int_equal(s.alarm_second, 5); /* ten seconds since it was low */
    assert_int_equal(s.alarm.place, 1);
    assert_int_equal(s.alarm.left_bytes, MARGIN - 1);
    assert_true(fabs(s.alarm.waited - 0.2) < 1e-6);
    assert_false(s.alarm.killed);
}

TEST(next_to_nothing_left_is_one_soon)
{
    struct series s;

    begin(&s, 0);
    go_on(&s, 5, LIMIT, 0);
    go_on(&s, 10, MARGIN / 4 - 1, 0.49);
    assert_true(!s.alarmed || s.alarm_second == 10); /* that of the ten seconds */
    begin(&s, 0);
    go_on(&s, 5, LIMIT, 0);
    go_on(&s, 10, MARGIN / 4 - 1, 0.75);
    assert_true(s.alarmed);
    assert_int_equal(s.alarm_second, 2); /* 1.5 of three seconds */
}

TEST(a_kill_is_one_at_once)
{
    struct series s;

    begin(&s, 0);
    go_on(&s, 2, LIMIT, 0);
    s.look.place[1].killed = 5; /* within a limit of its own: much is left here */
    go_on(&s, 2, LIMIT, 0);
    assert_false(s.alarmed);
    go_on(&s, 1, MARGIN - 1, 0);
    s.look.place[1].killed = 6;
    go_on(&s, 1, LIMIT, 0); /* what the dead process had is free now */
    assert_true(s.alarmed && s.alarm.killed);
}

/* Another process, or this one beyond its plan, takes so much a second, and nobody waits for it. */
static void take(struct series *s, uint64_t from, uint64_t a_second)
{
    for (uint64_t left = from; left >= a_second && !s->alarmed; left -= a_second)
        go_on(s, 1, left, 0);
}

TEST(what_is_taken_beyond_the_plan_is_one_before_nothing_is_left)
{
    struct series s;

    begin(&s, LIMIT / 2);
    take(&s, LIMIT / 2, 10 * MIB);
    assert_true(s.alarmed && s.alarm.left_bytes < MARGIN && s.alarm.left_bytes > MARGIN / 2);
    assert_true(fabs(s.alarm.taken - (double)(10 * MIB)) < 1);
    begin(&s, LIMIT / 2); /* slower: later */
    take(&s, LIMIT / 4, MIB);
    assert_true(s.alarmed && s.alarm.left_bytes <= 10 * MIB);
    begin(&s, LIMIT / 2); /* it stops for a second, again and again */
    for (uint64_t left = LIMIT / 4; left > 2 * MIB; left -= MIB)
        go_on(&s, 2, left, 0);
    assert_false(s.alarmed);
}

/* The last of a plan that leaves little, taken within seconds. */
TEST(what_is_planned_may_be_taken_to_the_last)
{
    struct series s;

    begin(&s, LIMIT - MIB);
    for (uint64_t left = LIMIT; left > 2 * MIB; left -= 2 * MIB) {
        s.look.resident_bytes = LIMIT - left;
        go_on(&s, 1, left, 0);
    }
    assert_false(s.alarmed);
    s.look.resident_bytes = UNKNOWN; /* then nobody knows whose it is */
    take(&s, 100 * MIB, 10 * MIB);
    assert_false(s.alarmed);
}

/* A plan that leaves 100 MiB is not low with 60 left: its margin is 50. */
TEST(the_plan_makes_the_margin_smaller)
{
    struct series s;

    begin(&s, LIMIT - 100 * MIB);
    s.look.resident_bytes = 0;
    go_on(&s, 1, LIMIT, 0);
    s.look.resident_bytes = LIMIT - 100 * MIB;
    go_on(&s, 100, 60 * MIB, 1);
    assert_false(s.alarmed);
    assert_int_equal(s.judge.margin[1], 50 * MIB);
    go_on(&s, 20, 49 * MIB, 1);
    assert_true(s.alarmed);
}

TEST(margins_have_bounds)
{
    static const struct {
        uint64_t limit, planned, margin;
    } cases[] = {
        {512 * MIB, 0, 32 * MIB}, {LIMIT, 0, MARGIN}, {1024 * 1024 * MIB, 0, 1024 * MIB}, {LIMIT, 2 * LIMIT, MARGIN / 8}};

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct series s;

        begin(&s, cases[i].planned);
        s.look.resident_bytes = 0;
        s.look.place[1].limit_bytes = cases[i].limit;
        go_on(&s, 1, cases[i].limit, 0);
        assert_int_equal(s.judge.margin[1], cases[i].margin);
    }
}

/* Without PSI the process's major faults stand for it; without either there is no alarm but for a kill. */
TEST(faults_stand_for_psi)
{
    struct series s;

    begin(&s, 0);
    s.look.place[1].full_us = UNKNOWN;
    go_on(&s, 5, LIMIT, 0);
    for (int i = 0; i < 20; i++) {
        s.look.major_faults += 2500; /* a quarter of each second */
        go_on(&s, 1, MARGIN / 2, 0);
    }
    assert_true(s.alarmed);
    begin(&s, 0);
    s.look.place[1].full_us = s.look.major_faults = s.look.place[1].killed = UNKNOWN;
    go_on(&s, 100, 0, 0);
    assert_false(s.alarmed);
}

TEST(the_unknown_is_no_alarm)
{
    struct st_watch_judge judge = {0};
    struct st_watch_alarm alarm;
    struct st_watch_look look;

    memset(&look, 0xff, sizeof(look));
    for (uint64_t second = 1; second < 100; second++) {
        look.at_ns = second * 1000000000;
        assert_false(st_watch_judge(&judge, &look, &alarm));
    }
}

/* --- looking --- */

struct listener {
    pthread_mutex_t lock;
    pthread_cond_t heard;
    uint32_t alarms;
    char sentence[ST_WATCH_SENTENCE_MAX];
};

static void on_alarm(void *ctx, const char *sentence)
{
    struct listener *l = ctx;

    pthread_mutex_lock(&l->lock);
    l->alarms++;
    snprintf(l->sentence, sizeof(l->sentence), "%s", sentence);
    pthread_cond_signal(&l->heard);
    pthread_mutex_unlock(&l->lock);
}

static void put_machine(const char *available)
{
    char text[256];

    snprintf(text, sizeof(text), "MemTotal:       33554432 kB\nMemFree: 1 kB\nMemAvailable: %s kB\nSwapFree:  0 kB\n", available);
    scratch_put("proc/meminfo", text);
    scratch_put("proc/vmstat", "pswpin 0\noom_kill 0\n");
    scratch_put("proc/pressure/memory", "some avg10=0 total=0\nfull avg10=0 total=0\n");
    scratch_put("proc/self/status", "Name: x\nVmRSS:\t 1048576 kB\n");
    scratch_put("proc/self/stat", "42 (x) S 1 2 3 4 -1 4194560 1000 0 1234 0 55 66 0 0 20 0 9 0 1\n");
}

static strata_status start(struct st_watchdog **w, struct listener *l, uint64_t period_ns)
{
    *l = (struct listener){.lock = PTHREAD_MUTEX_INITIALIZER, .heard = PTHREAD_COND_INITIALIZER};
    return st_watchdog_start(w, &(struct st_watchdog_opts){.planned_bytes = 1024 * MIB,
                                                           .alarm = on_alarm,
                                                           .ctx = l,
                                                           .proc_root = scratch_path("proc"),
                                                           .cgroup_root = scratch_path("cgroup"),
                                                           .period_ns = period_ns});
}

static void wait_heard(struct listener *l)
{
    pthread_mutex_lock(&l->lock);
    while (l->alarms == 0)
        pthread_cond_wait(&l->heard, &l->lock);
    pthread_mutex_unlock(&l->lock);
}

/* Page cache that can be dropped is not taken, and free swap that the group may use is left. */
TEST_SETUP(a_group_that_is_full_is_reported, scratch_create, scratch_remove)
{
    struct st_watchdog *w = NULL;
    struct listener l;

    put_machine("16777216");
    scratch_put("proc/self/cgroup", "0::/a/b\n");
    scratch_put("cgroup/a/b/memory.max", "max\n");
    scratch_put("cgroup/a/b/memory.current", "5\n");
    scratch_put("cgroup/a/memory.max", "8589934592\n");
    scratch_put("cgroup/a/memory.high", "2147483648\n");
    scratch_put("cgroup/a/memory.current", "1073741824\n");
    scratch_put("cgroup/a/memory.stat", "anon 1\ninactive_file 4194304\nactive_file 4194304\n");
    scratch_put("cgroup/a/memory.pressure", "some total=0\nfull total=0\n");
    scratch_put("cgroup/a/memory.events", "high 0\nmax 0\noom 3\noom_kill 3\n");
    assert_int_equal(start(&w, &l, SOON_NS), STRATA_OK);
    scratch_put("cgroup/a/memory.current", "2143289344\n"); /* 2044 MiB */
    scratch_put("cgroup/a/memory.events", "high 0\nmax 0\noom 4\noom_kill 4\n");
    wait_heard(&l);
    st_watchdog_stop(w);
    assert_int_equal(l.alarms, 1);
    assert_non_null(strstr(l.sentence, "10.0 MiB of 2.00 GiB of memory are left in "));
    assert_non_null(strstr(l.sentence, "/cgroup/a, and the kernel has killed for memory there"));
    assert_non_null(strstr(l.sentence, "; this process holds 1.00 GiB of 1.00 GiB planned"));
}

static void put_free_swap(const char *kilobytes)
{
    char text[128];

    snprintf(text, sizeof(text), "MemTotal: 33554432 kB\nMemAvailable: 16777216 kB\nSwapFree: %s kB\n", kilobytes);
    scratch_put("proc/meminfo", text);
}

/* What the group may still write to swap, of that which the machine has free, is left beside 4 MiB of its memory. */
TEST_SETUP(a_groups_own_limit_of_swap_counts, scratch_create, scratch_remove)
{
    static const struct {
        const char *free, *limit, *used, *left;
    } rows[] = {
        {"4096", "max\n", "0\n", "8.00 MiB of "},
        {"4096", "104857600\n", "102760448\n", "6.00 MiB of "},
        {"1024", "104857600\n", "0\n", "5.00 MiB of "},
        {"4096", "104857600\n", NULL, "8.00 MiB of "},
        {"4096", "1048576\n", "3145728\n", "4.00 MiB of "},
        {"4096", "0\n", "0\n", "4.00 MiB of "},
        {"0", "max\n", "0\n", "4.00 MiB of "},
    };

    put_machine("16777216");
    scratch_put("proc/self/cgroup", "0::/s\n");
    scratch_put("cgroup/s/memory.max", "2147483648\n");
    scratch_put("cgroup/s/memory.pressure", "some total=0\nfull total=0\n");
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct st_watchdog *w = NULL;
        struct listener l;

        put_free_swap(rows[i].free);
        scratch_put("cgroup/s/memory.current", "1073741824\n");
        scratch_put("cgroup/s/memory.events", "oom_kill 3\n");
        scratch_put("cgroup/s/memory.swap.max", rows[i].limit);
        (void)unlink(scratch_path("cgroup/s/memory.swap.current"));
        if (rows[i].used != NULL)
            scratch_put("cgroup/s/memory.swap.current", rows[i].used);
        assert_int_equal(start(&w, &l, SOON_NS), STRATA_OK);
        scratch_put("cgroup/s/memory.current", "2143289344\n"); /* 2044 MiB */
        scratch_put("cgroup/s/memory.events", "oom_kill 4\n");
        wait_heard(&l);
        st_watchdog_stop(w);
        if (strncmp(l.sentence, rows[i].left, strlen(rows[i].left)) != 0)
            fail_msg("row %zu: %s", i, l.sentence);
    }
}

TEST_SETUP(version_one_and_the_machine_are_watched, scratch_create, scratch_remove)
{
    struct st_watchdog *w = NULL;
    struct listener l;

    put_machine("16777216");
    scratch_put("proc/self/cgroup", "4:memory:/x\n");
    scratch_put("cgroup/memory/x/memory.limit_in_bytes", "9223372036854771712\n"); /* none */
    scratch_put("cgroup/memory/x/memory.usage_in_bytes", "5\n");
    assert_int_equal(start(&w, &l, SOON_NS), STRATA_OK);
    put_machine("1024");
    scratch_put("proc/vmstat", "pswpin 0\noom_kill 1\n");
    wait_heard(&l);
    st_watchdog_stop(w);
    assert_non_null(strstr(l.sentence, "1.00 MiB of 32.0 GiB of memory are left in this machine, and the kernel has killed"));
}

TEST_SETUP(kills_in_a_group_of_version_one_are_seen, scratch_create, scratch_remove)
{
    struct st_watchdog *w = NULL;
    struct listener l;

    put_machine("16777216");
    scratch_put("proc/self/cgroup", "4:memory:/x\n");
    scratch_put("cgroup/memory/x/memory.limit_in_bytes", "2147483648\n");
    scratch_put("cgroup/memory/x/memory.usage_in_bytes", "1073741824\n");
    scratch_put("cgroup/memory/x/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n");
    assert_int_equal(start(&w, &l, SOON_NS), STRATA_OK);
    scratch_put("cgroup/memory/x/memory.usage_in_bytes", "2143289344\n"); /* 2044 MiB */
    scratch_put("cgroup/memory/x/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 4\n");
    wait_heard(&l);
    st_watchdog_stop(w);
    assert_non_null(strstr(l.sentence, "4.00 MiB of 2.00 GiB of memory are left in "));
    assert_non_null(strstr(l.sentence, "/cgroup/memory/x, and the kernel has killed for memory there"));
}

/* A clock that waiting alone moves, at once: what the kernel says of a group changes before each look.  The linker puts the
 * functions here before the library's. */
static struct {
    uint64_t now_ns;           /* 0: the real clock */
    const char *used;          /* of 2 GiB, from the second look on: the first one sets the margin */
    uint32_t full_us;          /* of each second, in which all tasks wait for memory */
    uint32_t looks, looks_max; /* then it is over */
    struct listener *listener;
} invented;

uint64_t __wrap_st_clock_ns(void);
uint64_t __real_st_clock_ns(void);
bool __wrap_st_cond_wait(pthread_cond_t *cond, pthread_mutex_t *lock, uint64_t deadline_ns);
bool __real_st_cond_wait(pthread_cond_t *cond, pthread_mutex_t *lock, uint64_t deadline_ns);

uint64_t __wrap_st_clock_ns(void)
{
    return invented.now_ns != 0 ? invented.now_ns : __real_st_clock_ns();
}

static void put_group(void)
{
    char text[64];

    scratch_put("cgroup/f/memory.current", invented.looks == 0 ? "1073741824\n" : invented.used);
    snprintf(text, sizeof(text), "some total=0\nfull total=%u\n", invented.looks * invented.full_us);
    scratch_put("cgroup/f/memory.pressure", text);
}

bool __wrap_st_cond_wait(pthread_cond_t *cond, pthread_mutex_t *lock, uint64_t deadline_ns)
{
    if (invented.now_ns == 0)
        return __real_st_cond_wait(cond, lock, deadline_ns);
    if (invented.looks == invented.looks_max) {
        on_alarm(invented.listener, "no alarm");
        return __real_st_cond_wait(cond, lock, 0);
    }
    invented.looks++;
    invented.now_ns = deadline_ns;
    put_group();
    return false;
}

/* A look each second, and the rules of 3 and of 10 seconds. */
TEST_SETUP(standing_still_in_a_group_is_reported, scratch_create, scratch_remove)
{
    static const struct {
        const char *used;
        uint32_t full_us, looks;
        const char *sentence;
    } rows[] = {
        {"2143289344\n", 600000, 3, "/cgroup/f, and 60 % of the last 3 s went into waiting for memory"}, /* 4 MiB are left */
        {"2143289344\n", 400000, 11, "/cgroup/f, and 40 % of the last 10 s went into waiting for memory"},
        {"2130706432\n", 600000, 11, "/cgroup/f, and 60 % of the last 10 s went into waiting for memory"}, /* 16 MiB */
        {"2130706432\n", 100000, 30, "no alarm"},
        {"1073741824\n", 900000, 30, "no alarm"},
    };

    put_machine("16777216");
    scratch_put("proc/self/cgroup", "0::/f\n");
    scratch_put("cgroup/f/memory.max", "2147483648\n");
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct st_watchdog *w = NULL;
        struct listener l;

        memset(&invented, 0, sizeof(invented));
        invented.now_ns = UINT64_C(1000000000);
        invented.used = rows[i].used;
        invented.full_us = rows[i].full_us;
        invented.looks_max = 30;
        invented.listener = &l;
        put_group();
        assert_int_equal(start(&w, &l, 0), STRATA_OK);
        wait_heard(&l);
        st_watchdog_stop(w);
        invented.now_ns = 0;
        if (invented.looks != rows[i].looks || strstr(l.sentence, rows[i].sentence) == NULL)
            fail_msg("row %zu after %u looks: %s", i, invented.looks, l.sentence);
    }
}

/* Each refusal of the system while it starts: started, or E_NOMEM; nothing stays open or allocated (the group's checks). */
TEST_SETUP(every_refusal_is_survived, scratch_create, scratch_remove)
{
    strata_status refused;

    put_machine("1024");
    scratch_put("proc/self/cgroup", "0::/a\n");
    scratch_put("cgroup/a/memory.max", "1\n");
    for (uint32_t nth = 0, fired = 1; fired > 0; nth++) {
        struct st_watchdog *w = NULL;
        struct listener l;

        assert_true(nth < 200);
        st_fault_arm(&(struct st_fault_spec){.after = nth, .count = 1, .result = -5});
        refused = start(&w, &l, UINT64_C(1) << 60);
        fired = st_fault_disarm();
        assert_true(refused == STRATA_OK || (refused == STRATA_E_NOMEM && w == NULL && fired > 0));
        st_watchdog_stop(w);
    }
}

TEST(this_machine_is_calm)
{
    struct st_watchdog *w = NULL;
    struct listener l = {.lock = PTHREAD_MUTEX_INITIALIZER};

    assert_int_equal(st_watchdog_start(&w, &(struct st_watchdog_opts){.alarm = on_alarm, .ctx = &l}), 0);
    st_watchdog_stop(w);
    assert_int_equal(l.alarms, 0);
    st_watchdog_stop(NULL);
}
