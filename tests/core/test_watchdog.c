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

#define UNKNOWN ST_PRESSURE_UNKNOWN
#define MIB     (UINT64_C(1) << 20)
#define LIMIT   (8192 * MIB) /* its margin is 128 MiB */
#define MARGIN  (128 * MIB)

/* --- evaluating --- */

/* One group, looked at every second. */
struct series {
    struct st_watch watch;
    struct st_pressure_look look;
    struct st_watch_alarm alarm;
    bool alarmed;
    uint64_t alarm_second;
};

static void begin(struct series *s, uint64_t planned_bytes)
{
    memset(s, 0, sizeof(*s));
    memset(&s->look, 0xff, sizeof(s->look));
    s->watch.planned_bytes = planned_bytes;
    s->look.at_ns = 1000000000;
    s->look.resident_bytes = planned_bytes;
    s->look.major_faults = 0;
    s->look.place[1] = (struct st_pressure_place){LIMIT, LIMIT, 0};
}

/* `seconds` looks with so much left, and so much of each second spent waiting. */
static void go_on(struct series *s, uint32_t seconds, uint64_t left_bytes, double waited)
{
    for (uint32_t i = 0; i < seconds; i++) {
        s->look.at_ns += 1000000000;
        s->look.place[1].left_bytes = left_bytes;
        if (s->look.place[1].full_us != UNKNOWN)
            s->look.place[1].full_us += (uint64_t)(waited * 1e6);
        if (!s->alarmed && (s->alarmed = st_watch_evaluate(&s->watch, &s->look, &s->alarm)))
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
    go_on(&s, 60, 4 * MIB, 1); /* a quarter of its margin */
    go_on(&s, 3, 4 * MIB, 0);
    assert_false(s.alarmed);
    go_on(&s, 60, 3 * MIB, 0.49);
    assert_false(s.alarmed);
    go_on(&s, 60, 3 * MIB, 0.51);
    assert_true(s.alarmed);
}

TEST(standing_still_far_from_the_limit_is_no_alarm)
{
    struct series s;

    begin(&s, 0);
    go_on(&s, 100, MARGIN / 4, 1);
    assert_false(s.alarmed);
}

TEST(a_short_squeeze_is_no_alarm)
{
    struct series s;

    begin(&s, 0);
    go_on(&s, 1, LIMIT, 0);
    for (int i = 0; i < 100; i++) {
        go_on(&s, 1, MARGIN / 8, 0.9);
        go_on(&s, 2, MARGIN, 0);
    }
    assert_false(s.alarmed);
}

TEST(next_to_nothing_left_is_one_soon)
{
    struct series s;

    begin(&s, 0);
    go_on(&s, 5, LIMIT, 0);
    go_on(&s, 10, MARGIN / 4 - 1, 0.49);
    assert_false(s.alarmed);
    begin(&s, 0);
    go_on(&s, 5, LIMIT, 0);
    go_on(&s, 10, MARGIN / 4 - 1, 0.75);
    assert_true(s.alarmed);
    assert_int_equal(s.alarm_second, 2); /* 1.5 of three seconds */
    assert_int_equal(s.alarm.place, 1);
    assert_int_equal(s.alarm.left_bytes, MARGIN / 4 - 1);
    assert_true(fabs(s.alarm.waited - 0.5) < 1e-6);
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

/* A plan that leaves 100 MiB has a margin of 50: with 13 left it may wait. */
TEST(the_plan_makes_the_margin_smaller)
{
    struct series s;

    begin(&s, LIMIT - 100 * MIB);
    s.look.resident_bytes = 0;
    go_on(&s, 1, LIMIT, 0);
    s.look.resident_bytes = LIMIT - 100 * MIB;
    go_on(&s, 100, 13 * MIB, 1);
    assert_false(s.alarmed);
    assert_int_equal(s.watch.margin[1], 50 * MIB);
    go_on(&s, 20, 12 * MIB, 1);
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
        assert_int_equal(s.watch.margin[1], cases[i].margin);
    }
}

/* Without PSI the process's major faults stand for it; without either there is no alarm. */
TEST(faults_stand_for_psi)
{
    struct series s;

    begin(&s, 0);
    s.look.place[1].full_us = UNKNOWN;
    go_on(&s, 5, LIMIT, 0);
    for (int i = 0; i < 20; i++) {
        s.look.major_faults += 6000; /* three fifths of each second */
        go_on(&s, 1, MARGIN / 5, 0);
    }
    assert_true(s.alarmed);
    begin(&s, 0);
    s.look.place[1].full_us = s.look.major_faults = UNKNOWN;
    go_on(&s, 100, 0, 0);
    assert_false(s.alarmed);
}

TEST(the_unknown_is_no_alarm)
{
    struct st_watch watch = {0};
    struct st_watch_alarm alarm;
    struct st_pressure_look look;

    memset(&look, 0xff, sizeof(look));
    for (uint64_t second = 1; second < 100; second++) {
        look.at_ns = second * 1000000000;
        assert_false(st_watch_evaluate(&watch, &look, &alarm));
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

/* A clock that only waiting moves, at once: what the kernel says changes before each look.  The linker puts the functions here
 * before the library's. */
static struct {
    uint64_t now_ns;           /* 0: the real clock */
    const char *path, *text;   /* a file, and what it says from the second look on: the first one sets the margin */
    const char *psi;           /* of the place */
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

static void put_psi(void)
{
    char text[64];

    snprintf(text, sizeof(text), "some total=0\nfull total=%u\n", invented.looks * invented.full_us);
    scratch_put(invented.psi, text);
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
    scratch_put(invented.path, invented.text);
    put_psi();
    return false;
}

static void put_machine(void)
{
    scratch_put("proc/meminfo", "MemTotal:       33554432 kB\nMemFree: 1 kB\nMemAvailable: 16777216 kB\nSwapFree:  0 kB\n");
    scratch_put("proc/pressure/memory", "some avg10=0 total=0\nfull avg10=0 total=0\n");
    scratch_put("proc/self/status", "Name: x\nVmRSS:\t 1048576 kB\n");
    scratch_put("proc/self/stat", "42 (x) S 1 2 3 4 -1 4194560 1000 0 1234 0 55 66 0 0 20 0 9 0 1\n");
}

static strata_status start(struct st_watchdog **w, struct st_pressure **p, struct listener *l, uint64_t period_ns)
{
    strata_status st;

    *l = (struct listener){.lock = PTHREAD_MUTEX_INITIALIZER, .heard = PTHREAD_COND_INITIALIZER};
    if ((st = st_pressure_open(p, scratch_path("proc"), scratch_path("cgroup"))) != STRATA_OK)
        return st;
    return st_watchdog_start(
        w, &(struct st_watchdog_opts){
               .pressure = *p, .planned_bytes = 1024 * MIB, .alarm = on_alarm, .ctx = l, .period_ns = period_ns});
}

/* A look each second, thirty at most, while the file at `path` says `text`; @return how many. */
static uint32_t watch(struct listener *l, const char *path, const char *text, const char *psi, uint32_t full_us)
{
    struct st_pressure *p = NULL;
    struct st_watchdog *w = NULL;

    memset(&invented, 0, sizeof(invented));
    invented.now_ns = UINT64_C(1000000000);
    invented.path = path;
    invented.text = text;
    invented.psi = psi;
    invented.full_us = full_us;
    invented.looks_max = 30;
    invented.listener = l;
    put_psi();
    assert_int_equal(start(&w, &p, l, 0), STRATA_OK);
    pthread_mutex_lock(&l->lock);
    while (l->alarms == 0)
        pthread_cond_wait(&l->heard, &l->lock);
    pthread_mutex_unlock(&l->lock);
    st_watchdog_stop(w);
    st_pressure_close(p);
    invented.now_ns = 0;
    assert_int_equal(l->alarms, 1);
    return invented.looks;
}

/* Page cache that can be dropped is not taken, and free swap that the group may use is left. */
TEST_SETUP(a_group_that_is_full_is_reported, scratch_create, scratch_remove)
{
    struct listener l;

    put_machine();
    scratch_put("proc/self/cgroup", "0::/a/b\n");
    scratch_put("cgroup/a/b/memory.max", "max\n");
    scratch_put("cgroup/a/b/memory.current", "5\n");
    scratch_put("cgroup/a/memory.max", "8589934592\n");
    scratch_put("cgroup/a/memory.high", "2147483648\n");
    scratch_put("cgroup/a/memory.current", "1073741824\n");
    scratch_put("cgroup/a/memory.stat", "anon 1\ninactive_file 2097152\nactive_file 2097152\n");
    assert_int_equal(watch(&l, "cgroup/a/memory.current", "2143289344\n", "cgroup/a/memory.pressure", 600000), 3); /* 2044 MiB */
    assert_non_null(strstr(l.sentence, "7.00 MiB of 2.00 GiB of memory are left in "));
    assert_non_null(strstr(l.sentence, "/cgroup/a, and 60 % of the last 3 s went into waiting for memory"));
    assert_non_null(strstr(l.sentence, "; this process holds 1.00 GiB of 1.00 GiB planned"));
}

static void put_free_swap(const char *kilobytes)
{
    char text[128];

    snprintf(text, sizeof(text), "MemTotal: 33554432 kB\nMemAvailable: 16777216 kB\nSwapFree: %s kB\n", kilobytes);
    scratch_put("proc/meminfo", text);
}

/* What the group may still write to swap, of that which the machine has free, is left beside 2 MiB of its memory. */
TEST_SETUP(a_groups_own_limit_of_swap_counts, scratch_create, scratch_remove)
{
    static const struct {
        const char *free, *limit, *used, *left;
    } rows[] = {
        {"4096", "max\n", "0\n", "6.00 MiB of "},
        {"4096", "104857600\n", "102760448\n", "4.00 MiB of "},
        {"1024", "104857600\n", "0\n", "3.00 MiB of "},
        {"4096", "104857600\n", NULL, "6.00 MiB of "},
        {"4096", "1048576\n", "3145728\n", "2.00 MiB of "},
        {"4096", "0\n", "0\n", "2.00 MiB of "},
        {"0", "max\n", "0\n", "2.00 MiB of "},
    };

    put_machine();
    scratch_put("proc/self/cgroup", "0::/s\n");
    scratch_put("cgroup/s/memory.max", "2147483648\n");
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct listener l;

        put_free_swap(rows[i].free);
        scratch_put("cgroup/s/memory.current", "1073741824\n");
        scratch_put("cgroup/s/memory.swap.max", rows[i].limit);
        (void)unlink(scratch_path("cgroup/s/memory.swap.current"));
        if (rows[i].used != NULL)
            scratch_put("cgroup/s/memory.swap.current", rows[i].used);
        (void)watch(&l, "cgroup/s/memory.current", "2145386496\n", "cgroup/s/memory.pressure", 600000); /* 2046 MiB */
        if (strncmp(l.sentence, rows[i].left, strlen(rows[i].left)) != 0)
            fail_msg("row %zu: %s", i, l.sentence);
    }
}

/* A group of version 1 without a limit is none; the machine's PSI is that of groups that have none. */
TEST_SETUP(version_one_and_the_machine_are_watched, scratch_create, scratch_remove)
{
    struct listener l;

    put_machine();
    scratch_put("proc/self/cgroup", "4:memory:/x\n");
    scratch_put("cgroup/memory/x/memory.limit_in_bytes", "9223372036854771712\n"); /* none */
    scratch_put("cgroup/memory/x/memory.usage_in_bytes", "5\n");
    assert_int_equal(watch(&l, "proc/meminfo", "MemTotal: 33554432 kB\nMemAvailable: 1024 kB\nSwapFree: 0 kB\n",
                           "proc/pressure/memory", 600000),
                     3);
    assert_non_null(strstr(l.sentence, "1.00 MiB of 32.0 GiB of memory are left in this machine, and 60 % of"));
    put_machine();
    scratch_put("cgroup/memory/x/memory.limit_in_bytes", "2147483648\n");
    scratch_put("cgroup/memory/x/memory.usage_in_bytes", "1073741824\n");
    assert_int_equal(watch(&l, "cgroup/memory/x/memory.usage_in_bytes", "2143289344\n", "proc/pressure/memory", 600000), 3);
    assert_non_null(strstr(l.sentence, "4.00 MiB of 2.00 GiB of memory are left in "));
    assert_non_null(strstr(l.sentence, "/cgroup/memory/x, and 60 % of the last 3 s"));
}

TEST_SETUP(standing_still_in_a_group_is_reported, scratch_create, scratch_remove)
{
    static const struct {
        const char *used;
        uint32_t full_us, looks;
        const char *sentence;
    } rows[] = {
        {"2143289344\n", 600000, 3, "/cgroup/f, and 60 % of the last 3 s went into waiting for memory"}, /* 4 MiB are left */
        {"2143289344\n", 400000, 30, "no alarm"},
        {"2130706432\n", 900000, 30, "no alarm"}, /* 16 MiB */
        {"1073741824\n", 900000, 30, "no alarm"},
    };

    put_machine();
    scratch_put("proc/self/cgroup", "0::/f\n");
    scratch_put("cgroup/f/memory.max", "2147483648\n");
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct listener l;
        uint32_t looks;

        scratch_put("cgroup/f/memory.current", "1073741824\n");
        looks = watch(&l, "cgroup/f/memory.current", rows[i].used, "cgroup/f/memory.pressure", rows[i].full_us);
        if (looks != rows[i].looks || strstr(l.sentence, rows[i].sentence) == NULL)
            fail_msg("row %zu after %u looks: %s", i, looks, l.sentence);
    }
}

/* Each refusal of the system while it starts: started, or E_NOMEM; nothing stays open or allocated (the group's checks). */
TEST_SETUP(every_refusal_is_survived, scratch_create, scratch_remove)
{
    strata_status refused;

    put_machine();
    scratch_put("proc/self/cgroup", "0::/a\n");
    scratch_put("cgroup/a/memory.max", "1\n");
    for (uint32_t nth = 0, fired = 1; fired > 0; nth++) {
        struct st_pressure *p = NULL;
        struct st_watchdog *w = NULL;
        struct listener l;

        assert_true(nth < 200);
        st_fault_arm(&(struct st_fault_spec){.after = nth, .count = 1, .result = -5});
        refused = start(&w, &p, &l, UINT64_C(1) << 60);
        fired = st_fault_disarm();
        assert_true(refused == STRATA_OK || (refused == STRATA_E_NOMEM && w == NULL && fired > 0));
        st_watchdog_stop(w);
        st_pressure_close(p);
    }
}

TEST(this_machine_is_calm)
{
    struct st_pressure *p = NULL;
    struct st_watchdog *w = NULL;
    struct listener l = {.lock = PTHREAD_MUTEX_INITIALIZER};

    assert_int_equal(st_pressure_open(&p, NULL, NULL), STRATA_OK);
    assert_int_equal(st_watchdog_start(&w, &(struct st_watchdog_opts){.pressure = p, .alarm = on_alarm, .ctx = &l}), 0);
    st_watchdog_stop(w);
    st_pressure_close(p);
    assert_int_equal(l.alarms, 0);
    st_watchdog_stop(NULL);
}
