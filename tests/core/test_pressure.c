/* tests/core/test_pressure.c - counters from fake trees with holes, and what is made of them. */
#include "core/system/pressure.h"
#include "strata/status.h"
#include "tests/common/scratch.h"
#include "tests/common/test.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define UNKNOWN   ST_PRESSURE_UNKNOWN
#define PSI(s, f) "some avg10=1.00 avg60=2.00 avg300=3.00 total=" s "\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=" f "\n"

static struct st_pressure *open_fake(void)
{
    struct st_pressure *p = NULL;
    char proc[PATH_MAX + 8], cgroup[PATH_MAX + 8];

    snprintf(proc, sizeof(proc), "%s/proc", scratch_dir);
    snprintf(cgroup, sizeof(cgroup), "%s/cgroup", scratch_dir);
    assert_int_equal(st_pressure_open(&p, proc, cgroup), STRATA_OK);
    return p;
}

static void put_proc(void)
{
    scratch_put("proc/self/stat", "42 (a name) with 7 ) S 1 2 3 4 -1 4194560 1000 0 1234 0 55 66 0 0 20 0 9 0 1\n");
    scratch_put("proc/self/status", "Name:\tstrata\nVmRSS:\t  100 kB\nVmSwap:\t  2048 kB\nThreads:\t1\n");
    scratch_put("proc/vmstat", "nr_free_pages 1\npswpin 17\npswpout 29\npgfault 5\n");
    scratch_put("proc/pressure/memory", PSI("5000000", "700000"));
}

static void assert_unknown(const struct st_pressure_sample *s)
{
    assert_true(s->major_faults == UNKNOWN && s->swap_bytes == UNKNOWN && s->pages_in == UNKNOWN && s->pages_out == UNKNOWN);
    assert_true(s->some_us == UNKNOWN && s->full_us == UNKNOWN && s->group_limit_hits == UNKNOWN);
}

/* --- sampling --- */

TEST_SETUP(every_counter_is_read, scratch_create, scratch_remove)
{
    struct st_pressure_sample s;
    struct st_pressure *p;

    put_proc();
    p = open_fake();
    st_pressure_sample(p, &s);
    assert_int_equal(s.major_faults, 1234);
    assert_int_equal(s.swap_bytes, 2 << 20);
    assert_int_equal(s.pages_in, 17);
    assert_int_equal(s.pages_out, 29);
    assert_int_equal(s.some_us, 5000000);
    assert_int_equal(s.full_us, 700000);
    assert_true(s.group_limit_hits == UNKNOWN);
    assert_int_equal(st_pressure_scope(p), ST_PRESSURE_OF_MACHINE);
    st_pressure_close(p);
}

/* The files are gone by the second sample: it can only have used the open ones. */
TEST_SETUP(a_sample_opens_nothing, scratch_create, scratch_remove)
{
    struct st_pressure_sample s, again;
    struct st_pressure *p;

    put_proc();
    p = open_fake();
    scratch_put("proc/pressure/memory", PSI("6000000", "700000"));
    st_pressure_sample(p, &s);
    assert_int_equal(s.some_us, 6000000);
    scratch_remove(NULL);
    st_pressure_sample(p, &again);
    assert_memory_equal(&s, &again, sizeof(s));
    st_pressure_close(p);
    assert_int_equal(scratch_create(NULL), 0);
}

TEST_SETUP(nothing_there_is_unknown, scratch_create, scratch_remove)
{
    struct st_pressure_sample s;
    struct st_pressure *p = open_fake();

    st_pressure_sample(p, &s);
    assert_unknown(&s);
    assert_int_equal(st_pressure_scope(p), ST_PRESSURE_NO_PSI);
    st_pressure_close(p);
    st_pressure_close(NULL);
    st_pressure_sample(NULL, &s);
    assert_unknown(&s);
}

TEST_SETUP(nonsense_is_unknown, scratch_create, scratch_remove)
{
    static const char *const texts[] = {
        "", "\n", ")", "1 (x", "some\nfull", "VmSwap:\nsome total=\nfull avg10=1\n", "pswpin\npswpout \n7\n"};
    static const char *const files[] = {"proc/self/stat", "proc/self/status", "proc/vmstat", "proc/pressure/memory",
                                        "cgroup/memory.events"};
    struct st_pressure_sample s;

    scratch_put("proc/self/cgroup", "nonsense\n0:\n0::\n");
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        struct st_pressure *p;

        for (size_t f = 0; f < sizeof(files) / sizeof(files[0]); f++)
            scratch_put(files[f], texts[i]);
        p = open_fake();
        st_pressure_sample(p, &s);
        assert_unknown(&s);
        st_pressure_close(p);
    }
}

/* The longest path that the system takes is read; of a longer one no beginning is. */
TEST_SETUP(a_path_too_long_is_not_there, scratch_create, scratch_remove)
{
    const size_t longest = PATH_MAX - 1 - strlen("/vmstat");
    char proc[PATH_MAX];

    put_proc();
    scratch_put("proc/vmsta", "pswpin 99\n");
    memset(proc, '/', sizeof(proc));
    memcpy(proc, scratch_path("proc"), strlen(scratch_path("proc")));
    for (size_t length = longest; length <= longest + 1; length++) {
        struct st_pressure_sample s;
        struct st_pressure *p;

        proc[length] = '\0';
        assert_int_equal(st_pressure_open(&p, proc, scratch_path("cgroup")), STRATA_OK);
        proc[length] = '/';
        st_pressure_sample(p, &s);
        assert_int_equal(s.pages_in, length == longest ? 17 : UNKNOWN);
        st_pressure_close(p);
    }
}

/* In the order in which they are looked for. */
TEST_SETUP(the_groups_own_file_is_preferred, scratch_create, scratch_remove)
{
    static const struct {
        const char *dir;
        uint64_t some_us;
        enum st_pressure_scope scope;
    } places[] = {
        {"cgroup/unified", 1, ST_PRESSURE_OF_MACHINE}, /* a machine's scratch_dir has no events */
        {"cgroup/unified/a/b", 2, ST_PRESSURE_OF_GROUP},
        {"cgroup", 3, ST_PRESSURE_OF_MACHINE},
        {"cgroup/a/b", 4, ST_PRESSURE_OF_GROUP},
    };
    struct st_pressure_sample s;
    char name[PATH_MAX], text[256];

    put_proc();
    scratch_put("proc/self/cgroup", "4:memory:/x\n0::/a/b\n");
    for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
        struct st_pressure *p;

        snprintf(name, sizeof(name), "%s/memory.pressure", places[i].dir);
        snprintf(text, sizeof(text), "some avg10=0 total=%llu\n", (unsigned long long)places[i].some_us);
        scratch_put(name, text);
        p = open_fake();
        st_pressure_sample(p, &s);
        assert_int_equal(s.some_us, places[i].some_us);
        assert_true(s.full_us == UNKNOWN);
        assert_int_equal(st_pressure_scope(p), places[i].scope);
        st_pressure_close(p);
    }
}

/* Inside a container the scratch_dir of the tree is the group. */
TEST_SETUP(limits_met_are_counted, scratch_create, scratch_remove)
{
    struct st_pressure_sample s;
    struct st_pressure *p;

    put_proc();
    scratch_put("proc/self/cgroup", "0::/\n");
    scratch_put("cgroup/memory.pressure", PSI("9", "8"));
    scratch_put("cgroup/memory.events", "low 100\nhigh 1\nmax 20\noom 300\noom_kill 4000\n");
    p = open_fake();
    st_pressure_sample(p, &s);
    assert_int_equal(s.some_us, 9);
    assert_int_equal(s.group_limit_hits, 321);
    assert_int_equal(st_pressure_scope(p), ST_PRESSURE_OF_GROUP);
    st_pressure_close(p);
}

/* The counters of a real system never fall. */
TEST(this_machine)
{
    struct st_pressure_sample before, after;
    struct st_pressure_verdict v;
    struct st_pressure *p;

    assert_int_equal(st_pressure_open(&p, NULL, NULL), STRATA_OK);
    st_pressure_sample(p, &before);
    st_pressure_sample(p, &after);
    assert_true(before.major_faults != UNKNOWN && after.major_faults >= before.major_faults);
    assert_true((before.some_us == UNKNOWN) == (st_pressure_scope(p) == ST_PRESSURE_NO_PSI));
    assert_true(after.some_us >= before.some_us);
    st_pressure_between(&before, &after, 1, &v);
    assert_true(v.moved.some_us == UNKNOWN || v.moved.some_us == after.some_us - before.some_us);
    st_pressure_close(p);
}

/* --- judging --- */

static const struct st_pressure_sample zero;

static struct st_pressure_verdict judge(struct st_pressure_sample before, struct st_pressure_sample after, double seconds)
{
    struct st_pressure_verdict v;

    st_pressure_between(&before, &after, seconds, &v);
    assert_int_equal(v.pressed, v.sentence[0] != '\0');
    return v;
}

TEST(calm_is_calm)
{
    struct st_pressure_sample unknown;
    struct st_pressure_verdict v;

    memset(&unknown, 0xff, sizeof(unknown));
    v = judge(zero, zero, 1);
    assert_true(!v.pressed && v.waited_fraction == 0);
    v = judge(unknown, unknown, 1);
    assert_true(!v.pressed && isnan(v.waited_fraction));
    assert_unknown(&v.moved);
    v = judge(zero, unknown, 1);
    assert_unknown(&v.moved);
    v = judge(zero, (struct st_pressure_sample){.some_us = 1000000}, 0); /* no time passed */
    assert_true(!v.pressed && isnan(v.waited_fraction));
    v = judge((struct st_pressure_sample){.major_faults = 5, .some_us = 7}, zero, 1); /* counters that fell */
    assert_true(!v.pressed && v.moved.major_faults == 0 && v.moved.some_us == 0);
}

TEST(waiting_for_memory_is_pressure)
{
    struct st_pressure_verdict v;

    assert_false(judge(zero, (struct st_pressure_sample){.some_us = 99000}, 2).pressed);
    v = judge(zero, (struct st_pressure_sample){.some_us = 240000, .major_faults = 1234, .swap_bytes = 300u << 20}, 2);
    assert_true(v.pressed);
    assert_string_equal(v.sentence, "memory pressure: 1,234 major faults, 12 % of the time waiting for memory, 300 MiB of this "
                                    "process in swap: lower strata.host_memory");
    v = judge(zero, (struct st_pressure_sample){.some_us = 9000000}, 2); /* several threads can wait longer than a step takes */
    assert_true(v.waited_fraction == 1);
    v = judge(zero, (struct st_pressure_sample){.some_us = 200000, .group_limit_hits = 3}, 2);
    assert_string_equal(v.sentence, "memory pressure: 10 % of the time waiting for memory, its control group met a limit 3 "
                                    "times: lower strata.host_memory, or raise the group's limit");
}

/* A program that starts reads its own pages from disk: that alone is no pressure where PSI says so. */
TEST(major_faults_count_where_they_must)
{
    struct st_pressure_sample after = {.major_faults = 1000};

    assert_false(judge(zero, after, 1).pressed);
    after.pages_in = 1;
    assert_true(judge(zero, after, 1).pressed);
    after.pages_in = 0;
    after.some_us = UNKNOWN;
    assert_true(judge(zero, after, 1).pressed);
    assert_true(fabs(judge(zero, after, 1).waited_fraction - 0.1) < 1e-12);
    after.major_faults = 400;
    assert_false(judge(zero, after, 1).pressed);
}

TEST(pages_that_leave_are_pressure)
{
    const struct st_pressure_sample some = {.swap_bytes = 4 << 20}, more = {.swap_bytes = 5 << 20};

    assert_false(judge(some, some, 1).pressed); /* long ago */
    assert_false(judge(more, some, 1).pressed);
    assert_string_equal(judge(some, more, 1).sentence,
                        "memory pressure: 5.00 MiB of this process in swap: lower strata.host_memory");
}

/* The largest numbers fit the sentence. */
TEST(sentences_end_inside)
{
    const struct st_pressure_sample most = {.major_faults = UNKNOWN - 1,
                                            .swap_bytes = UNKNOWN - 1,
                                            .pages_in = UNKNOWN - 1,
                                            .some_us = UNKNOWN - 1,
                                            .group_limit_hits = UNKNOWN - 1};
    const struct st_pressure_verdict v = judge(zero, most, 1e-9);

    assert_non_null(strstr(v.sentence, "18,446,744,073,709,551,614 major faults, 100 %"));
    assert_non_null(strstr(v.sentence, "or raise the group's limit"));
}
