/* tests/cli/test_local_ranks.c - strata launch: its ranks are one run, it has one exit code, and nothing of it is left. */
#include "tests/cli/program.h"
#include "tests/cli/sites.h"
#include "tests/cli/workplace.h"
#include "tests/common/test.h"

#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#define RUN                                                                                                                      \
    "train --model nano --data {w}/good.bin --seq-len 32 --threads 1 --machine {w}/machine.json --nvme {w}/nvme "                \
    "--set zero_optimization.offload_optimizer.device=nvme --set strata.cache=0 "
#define ENDLESS    RUN "--max-steps 1000000 --save {w}/saved "
#define WAIT_MS    60000
#define REST_BYTES (1u << 20)

static void must_say(const char *text, const char *part)
{
    if (strstr(text, part) == NULL)
        fail_msg("\"%s\" lacks \"%s\"", text, part);
}

/* --- the ranks of a launcher that runs --- */

struct pair {
    pid_t pids[2];
    int watched[2];
};

static int rank_of(pid_t pid)
{
    char path[64], text[65536];
    size_t bytes;
    FILE *file;

    snprintf(path, sizeof(path), "/proc/%d/environ", (int)pid);
    file = fopen(path, "re");
    assert_non_null(file);
    bytes = fread(text, 1, sizeof(text) - 1, file);
    fclose(file);
    text[bytes] = '\0';
    for (const char *at = text; at < text + bytes; at += strlen(at) + 1)
        if (strncmp(at, "RANK=", strlen("RANK=")) == 0)
            return atoi(at + strlen("RANK="));
    return -1;
}

static void find_ranks(struct pair *pair, pid_t launcher)
{
    char path[64];
    int pid, found = 0;
    FILE *file;

    snprintf(path, sizeof(path), "/proc/%d/task/%d/children", (int)launcher, (int)launcher);
    file = fopen(path, "re");
    assert_non_null(file);
    for (; fscanf(file, "%d", &pid) == 1; found++) {
        const int rank = rank_of(pid);

        assert_true(rank == 0 || rank == 1);
        pair->pids[rank] = pid;
        pair->watched[rank] = (int)syscall(SYS_pidfd_open, pid, 0);
        assert_true(pair->watched[rank] >= 0);
    }
    fclose(file);
    assert_int_equal(found, 2);
}

static void start(const struct workplace *w, struct program *p, struct pair *pair, const char *options, const char *command)
{
    char line[1024];

    snprintf(line, sizeof(line), "launch -n 2 %s %s", options, command);
    workplace_start_piped(w, p, line);
    program_wait_for(p, "step 1/");
    find_ranks(pair, p->pid);
}

static void must_be_gone(struct pair *pair)
{
    for (int i = 0; i < 2; i++) {
        struct pollfd end = {.fd = pair->watched[i], .events = POLLIN};

        assert_int_equal(poll(&end, 1, WAIT_MS), 1);
        close(pair->watched[i]);
    }
}

static void end(const struct workplace *w, struct program *p, struct pair *pair)
{
    program_drain(p);
    program_wait(p);
    must_be_gone(pair);
    assert_int_equal(workplace_entries(w, "nvme"), 0);
}

/* What a killed rank has left on the drive the next run removes. */
static void forget(const struct workplace *w, struct program *p)
{
    program_free(p);
    workplace_run_ok(w, p, RUN "--max-steps 1 --quiet");
    program_free(p);
    assert_int_equal(workplace_entries(w, "nvme"), 0);
    if (workplace_exists(w, "saved"))
        workplace_remove(w, "saved");
}

/* --- what it runs --- */

TEST(two_ranks_have_the_bits_of_one)
{
    const struct workplace *w = *state;
    char one[160], two[160];

    workplace_digests(w, RUN "--max-steps 3 --digest --quiet --grad-accum 2 --set strata.leaves=2", one);
    workplace_digests(w, "launch -n 2 " RUN "--max-steps 3 --digest --quiet --set zero_optimization.stage=3", two);
    assert_string_equal(one, two);
}

TEST(ranks_say_who_started_them)
{
    const struct workplace *w = *state;
    struct program p;

    workplace_run_ok(w, &p, "launch --nproc-per-node=2 " RUN "--max-steps 1");
    must_say(p.out, "2 ranks (strata launch), 2 on this machine, by tcp\n");
    program_free(&p);
    workplace_run_ok(w, &p, "launch -np 1 " RUN "--max-steps 1");
    assert_null(strstr(p.out, " ranks ("));
    program_free(&p);
}

/* Every line of both, whole: rank 1 says what it finds wrong. */
TEST(lines_begin_with_the_rank)
{
    const struct workplace *w = *state;
    struct program p;

    workplace_make_dir(w, "t.json.rank1");
    workplace_run(w, &p, "launch -n 2 --prefix " RUN "--max-steps 1 --trace {w}/t.json");
    assert_int_equal(p.code, 2);
    must_say(p.out, "[0] 2 ranks (strata launch)");
    must_say(p.err, "[1] strata: rank 1: error: --trace: ");
    for (const char *line = p.out; *line != '\0'; line += strcspn(line, "\n") + 1)
        assert_memory_equal(line, "[0] ", 4);
    for (const char *line = p.err; *line != '\0'; line += strcspn(line, "\n") + 1)
        assert_true(strncmp(line, "[0] ", 4) == 0 || strncmp(line, "[1] ", 4) == 0 ||
                    strncmp(line, "strata: notice: rank ", 21) == 0);
    program_free(&p);
    workplace_remove(w, "t.json.rank1");
}

/* What all would refuse is said once; so is the help. */
TEST(a_mistake_of_the_line_is_said_once)
{
    const struct workplace *w = *state;
    struct program p;

    workplace_run(w, &p, "launch -n 2 train --model nano --max-stepz 1");
    assert_int_equal(p.code, 2);
    assert_string_equal(p.err, "strata: error: unknown option --max-stepz: did you mean --max-steps?\n");
    program_free(&p);
    workplace_run_ok(w, &p, "launch -n 2 eval --help");
    must_say(p.out, "usage: strata eval");
    assert_null(strstr(strstr(p.out, "usage: strata eval") + 1, "usage: strata eval"));
    program_free(&p);
}

TEST(a_launcher_starts_none)
{
    const struct workplace *w = *state;
    struct program p;

    setenv("OMPI_COMM_WORLD_RANK", "1", 1);
    setenv("OMPI_COMM_WORLD_SIZE", "2", 1);
    workplace_run(w, &p, "launch -n 2 " RUN "--max-steps 1");
    unsetenv("OMPI_COMM_WORLD_RANK");
    unsetenv("OMPI_COMM_WORLD_SIZE");
    assert_int_equal(p.code, 2);
    must_say(p.err, "strata launch starts the ranks itself, and this process is rank 1 of 2 (mpirun): leave one out");
    program_free(&p);
    setenv("STRATA_LAUNCHER", "1", 1);
    workplace_run(w, &p, RUN "--max-steps 1");
    unsetenv("STRATA_LAUNCHER");
    assert_int_equal(p.code, 2);
    must_say(p.err, "STRATA_LAUNCHER is 1, but process ");
    program_free(&p);
}

/* What XTuner and LLaMA-Factory are told by a variable. */
TEST(a_number_of_processes_is_told_of_launch)
{
    static const struct {
        const char *number, *command;
        bool told;
    } rows[] = {
        {"2", RUN "--max-steps 1", true}, {"1", RUN "--max-steps 1", false}, {"2", "launch -n 2 " RUN "--max-steps 1", false}};
    const struct workplace *w = *state;

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct program p;

        setenv("NPROC_PER_NODE", rows[i].number, 1);
        workplace_run_ok(w, &p, rows[i].command);
        unsetenv("NPROC_PER_NODE");
        assert_int_equal(strstr(p.err, "NPROC_PER_NODE is 2, and this is one process: strata launch -n 2 train ") != NULL,
                         rows[i].told);
        program_free(&p);
    }
}

/* poll() takes no more entries than descriptors, whether they are there or not. */
TEST(few_descriptors_are_enough)
{
    static const struct {
        const char *options;
        rlim_t descriptors;
        int code;
        const char *said;
    } rows[] = {{"-n 8", 24, 0, ""},
                {"-n 2 --prefix", 66, 0, ""},
                {"-n 8 --prefix", 24, 4, "prints: Too many open files: ulimit -n allows 24: raise it"}};
    const struct workplace *w = *state;
    struct rlimit before;

    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    (void)close_range(3, ~0u, CLOSE_RANGE_CLOEXEC); /* what this process inherited is not the run's */
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        const struct rlimit few = {.rlim_cur = rows[i].descriptors, .rlim_max = before.rlim_max};
        struct program p;
        char line[1024];

        snprintf(line, sizeof(line), "launch %s " RUN "--max-steps 1 --quiet", rows[i].options);
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
        workplace_run(w, &p, line);
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
        if (p.code != rows[i].code)
            fail_msg("%s: exit code %d: %s", rows[i].options, p.code, p.err);
        must_say(p.err, rows[i].said);
        forget(w, &p);
    }
}

/* --- ends --- */

TEST(a_signal_goes_to_all_and_is_obeyed)
{
    static const struct {
        int number, code;
        bool saved;
    } rows[] = {{SIGINT, 130, true}, {SIGTERM, 143, true}, {SIGHUP, 129, true}, {SIGQUIT, 131, false}};
    const struct workplace *w = *state;

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct program p;
        struct pair pair;

        start(w, &p, &pair, i % 2 == 0 ? "" : "--prefix", ENDLESS);
        assert_int_equal(kill(p.pid, rows[i].number), 0);
        end(w, &p, &pair);
        if (p.code != rows[i].code)
            fail_msg("exit code %d: %s", p.code, p.err);
        must_say(p.err, rows[i].saved ? ", --resume goes on from " : "what no checkpoint has is lost");
        forget(w, &p);
    }
}

/* Ctrl-C of a terminal comes to the ranks directly, and from the launcher. */
TEST(a_signal_to_the_group_is_one_request)
{
    const struct workplace *w = *state;
    struct program p;
    struct pair pair;

    start(w, &p, &pair, "", ENDLESS);
    assert_int_equal(kill(-p.pid, SIGINT), 0);
    end(w, &p, &pair);
    assert_int_equal(p.code, 130);
    must_say(p.err, "ended by Ctrl-C after ");
    must_say(p.err, ", --resume goes on from ");
    forget(w, &p);
}

/* The other one ends with 4, and which of them is waited for first is chance. */
TEST(the_code_is_that_of_the_rank_that_failed)
{
    const struct workplace *w = *state;

    for (int victim = 0; victim < 2; victim++) {
        struct program p;
        struct pair pair;
        char said[64];

        start(w, &p, &pair, "", ENDLESS);
        assert_int_equal(kill(pair.pids[victim], SIGKILL), 0);
        program_drain(&p);
        program_wait(&p);
        must_be_gone(&pair);
        assert_int_equal(p.code, 137);
        snprintf(said, sizeof(said), "strata: error: rank %d was killed by signal 9 (Killed)\n", victim);
        must_say(p.err, said);
        snprintf(said, sizeof(said), "rank %d ", victim);
        must_say(p.err, said);
        forget(w, &p);
    }
}

/* Stopped, it neither hears of the other's end nor obeys. */
TEST(a_rank_that_does_not_end_is_killed)
{
    const struct workplace *w = *state;
    struct program p;
    struct pair pair;

    start(w, &p, &pair, "--fault launch.kill:0:0:1000000", ENDLESS);
    assert_int_equal(kill(pair.pids[0], SIGSTOP), 0);
    assert_int_equal(kill(pair.pids[1], SIGKILL), 0);
    program_drain(&p);
    program_wait(&p);
    must_be_gone(&pair);
    assert_int_equal(p.code, 137);
    must_say(p.err, "rank 1 ended with exit code 137: the others (1) are asked to end");
    must_say(p.err, "ranks that have not ended in 0 seconds are killed (1)");
    forget(w, &p);
}

/* What is printed waits for a reader; a signal, and what it asks for, does not. */
TEST(a_pipe_that_nobody_reads_delays_no_signal)
{
    const struct workplace *w = *state;
    struct program p;
    struct pair pair;

    start(w, &p, &pair, "--prefix --fault launch.stall:0:0:1000000", ENDLESS);
    program_fill(&p);
    assert_int_equal(kill(p.pid, SIGTERM), 0);
    program_wait(&p);
    must_be_gone(&pair);
    if (p.code != 143)
        fail_msg("exit code %d: %s", p.code, p.err);
    must_say(p.err, "[0] strata: notice: SIGTERM: ");
    must_say(p.err, ", --resume goes on from ");
    forget(w, &p);
}

/* The rest of the pipe, without the zeros of program_fill(); owned by the caller. */
static char *read_rest(const struct program *p)
{
    char *text = calloc(1, REST_BYTES);
    size_t bytes = 0, kept = 0;
    ssize_t got;

    assert_non_null(text);
    while ((got = read(p->out_fd, text + bytes, REST_BYTES - 1 - bytes)) > 0)
        bytes += (size_t)got;
    for (size_t i = 0; i < bytes; i++)
        if (text[i] != '\0')
            text[kept++] = text[i];
    text[kept] = '\0';
    return text;
}

/* The ranks print more than is kept here for the reader, who comes when they have ended. */
TEST(a_reader_that_comes_late_finds_every_line)
{
    const struct workplace *w = *state;
    struct program p;
    struct pair pair;
    uint32_t step = 0, last = 0;
    char *text;

    start(w, &p, &pair, "--prefix", RUN "--max-steps 150 --logging-steps 1");
    program_fill(&p);
    must_be_gone(&pair);
    text = read_rest(&p);
    program_wait(&p);
    assert_int_equal(p.code, 0);
    for (char *line = strtok(strchr(text, '\n'), "\n"); line != NULL; line = strtok(NULL, "\n")) {
        assert_memory_equal(line, "[0] ", 4);
        if (sscanf(line, "[0] step %u/150", &step) == 1) {
            assert_true(last == 0 || step == last + 1);
            last = step;
        }
    }
    assert_int_equal(last, 150);
    free(text);
    program_free(&p);
}

TEST(no_rank_outlives_the_launcher)
{
    const struct workplace *w = *state;
    struct program p, verified;
    struct pair pair;

    start(w, &p, &pair, "", ENDLESS);
    assert_int_equal(kill(p.pid, SIGKILL), 0);
    end(w, &p, &pair);
    assert_int_equal(p.code, 137);
    workplace_run_ok(w, &verified, "verify {w}/saved");
    program_free(&verified);
    forget(w, &p);
}

/* Each site fails, each time: the run ends all the same, and says why it did not succeed. */
TEST(every_call_may_fail)
{
    const struct workplace *w = *state;
    struct site sites[SITES_MAX];
    struct program p;
    unsigned long count;

    workplace_run_ok(w, &p, "launch --fault ? -n 2 --prefix " RUN "--max-steps 1 --quiet");
    count = sites_read(sites, p.err);
    program_free(&p);
    assert_true(count >= 10);
    for (unsigned long i = 0; i < count; i++) {
        char line[1024];

        if (strncmp(sites[i].name, "launch.", strlen("launch.")) != 0)
            continue;
        snprintf(line, sizeof(line), "launch --fault %.63s:0:0 -n 2 --prefix " RUN "--max-steps 1 --quiet", sites[i].name);
        workplace_run(w, &p, line);
        if (p.code != 0 && strstr(p.err, "strata: error: ") == NULL)
            fail_msg("%s: exit code %d: %s", line, p.code, p.err);
        forget(w, &p);
    }
}

TEST_GROUP(workplace_setup, workplace_teardown);
