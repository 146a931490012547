/* tests/cli/test_signals.c - Ctrl-C, SIGTERM and SIGHUP during a run: the first ends it after its step with all that it has
 * learnt, the second at once; no thread that computes takes any signal. */
#include "tests/cli/program.h"
#include "tests/cli/workplace.h"
#include "tests/common/test.h"

#include <dirent.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define PIPE_BYTES 4096

static const char endless_run[] =
    "train --model nano --data {w}/good.bin --seq-len 32 --max-steps 1000000 --machine {w}/machine.json --metrics {w}/m.jsonl "
    "--out {w}/out --set zero_optimization.offload_optimizer.device=nvme --set strata.cache=0 --nvme {w}/nvme";

static void start(const struct workplace *w, struct program *p)
{
    workplace_start_piped(w, p, endless_run);
    program_wait_for(p, "step 1/");
}

static void end(const struct workplace *w, struct program *p, int number)
{
    assert_int_equal(kill(p->pid, number), 0);
    program_drain(p);
    program_wait(p);
    assert_int_equal(workplace_entries(w, "nvme"), 0);
}

static void forget(const struct workplace *w, struct program *p)
{
    program_free(p);
    workplace_remove(w, "m.jsonl");
    workplace_remove(w, "out");
}

/* The model is whole, and the metrics say how the run ended. */
static void check_results(const struct workplace *w)
{
    struct program p;
    size_t bytes;
    char *metrics = workplace_read(w, "m.jsonl", &bytes);

    assert_non_null(strstr(metrics, "{\"run\":"));
    assert_non_null(strstr(metrics, "{\"summary\":"));
    assert_non_null(strstr(metrics, "\"status\":\"cancelled\""));
    assert_int_equal(metrics[bytes - 1], '\n');
    free(metrics);
    workplace_run_ok(w, &p, "eval --model {w}/out --data {w}/good.heldout.bin --seq-len 32");
    program_free(&p);
}

TEST(the_first_signal_keeps_the_work)
{
    static const struct {
        int number, code;
        const char *name;
    } cases[] = {{SIGINT, 130, "Ctrl-C"},   {SIGTERM, 143, "SIGTERM"}, {SIGHUP, 129, "SIGHUP"},
                 {SIGUSR1, 138, "SIGUSR1"}, {SIGUSR2, 140, "SIGUSR2"}, {SIGXCPU, 152, "SIGXCPU"}};
    const struct workplace *w = *state;

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct program p;
        char said[64];

        start(w, &p);
        end(w, &p, cases[i].number);
        assert_int_equal(p.code, cases[i].code);
        snprintf(said, sizeof(said), "ended by %s after ", cases[i].name);
        assert_non_null(strstr(p.err, said));
        assert_non_null(strstr(p.err, "the model is in "));
        check_results(w);
        forget(w, &p);
    }
}

/* Swap and the unfinished metrics go with it.  A limit of processor time is passed again every second, while the last step and
 * what it leaves to write may take longer. */
TEST(sigquit_ends_at_once_and_sigxcpu_counts_once)
{
    const struct workplace *w = *state;
    struct program p;

    start(w, &p);
    end(w, &p, SIGQUIT);
    assert_int_equal(p.code, 128 + SIGQUIT);
    assert_non_null(strstr(p.err, "ended by SIGQUIT; nothing unfinished is left"));
    assert_false(workplace_exists(w, "out"));
    forget(w, &p);
    start(w, &p);
    for (int i = 0; i < 50; i++)
        assert_int_equal(kill(p.pid, SIGXCPU), 0);
    end(w, &p, SIGXCPU);
    assert_int_equal(p.code, 128 + SIGXCPU);
    check_results(w);
    forget(w, &p);
}

/* Nor does the directory of --save stay, which it has made, before there is a checkpoint in it; one that was there does. */
TEST(sigquit_leaves_no_directory_of_checkpoints)
{
    const struct workplace *w = *state;
    char command[512];

    for (int there = 0; there < 2; there++) {
        struct program p;

        if (there == 1)
            workplace_make_dir(w, "save");
        snprintf(command, sizeof(command), "%s --save {w}/save", endless_run);
        workplace_start_piped(w, &p, command);
        program_wait_for(&p, "step 1/");
        assert_true(workplace_exists(w, "save"));
        end(w, &p, SIGQUIT);
        assert_int_equal(p.code, 128 + SIGQUIT);
        assert_int_equal(workplace_entries(w, "save"), there == 1 ? 0 : -1);
        forget(w, &p);
    }
    workplace_remove(w, "save");
}

/* The summary has the last evaluation, though steps came after it. */
TEST(the_last_evaluation_is_kept)
{
    const struct workplace *w = *state;
    struct program p;
    char command[1024];
    size_t bytes;
    char *metrics, *summary;

    snprintf(command, sizeof(command), "%s --eval-data {w}/good.heldout.bin --eval-every 20", endless_run);
    workplace_start_piped(w, &p, command);
    program_wait_for(&p, "eval after step 20:");
    end(w, &p, SIGTERM);
    assert_int_equal(p.code, 143);
    metrics = workplace_read(w, "m.jsonl", &bytes);
    summary = strstr(metrics, "{\"summary\":");
    assert_non_null(summary);
    assert_non_null(strstr(summary, "\"eval_loss\":"));
    assert_non_null(strstr(summary, "\"eval_bits_per_byte\":"));
    free(metrics);
    forget(w, &p);
}

/* As a signal does, checkpoint included, with another exit code, and with what took the memory. */
TEST(memory_that_runs_out_keeps_the_work)
{
    const struct workplace *w = *state;
    char command[1024];
    struct program p;

    snprintf(command, sizeof(command), "%s --save {w}/saved --fault watchdog.alarm:0:1", endless_run);
    workplace_run(w, &p, command);
    assert_int_equal(p.code, 3);
    assert_non_null(strstr(p.err, "of memory are left in this machine"));
    assert_non_null(strstr(p.err, ": the run ends after this step and saves; a second signal ends it now"));
    assert_non_null(strstr(p.err, "strata: error: ended by the memory watchdog after "));
    assert_non_null(strstr(p.err, "--out was not written, --resume goes on from "));
    assert_non_null(strstr(p.out, "this process held at most "));
    assert_non_null(strstr(p.out, "smallest possible"));
    assert_int_equal(workplace_entries(w, "nvme"), 0);
    assert_false(workplace_exists(w, "out"));
    forget(w, &p);
    workplace_run_ok(w, &p, "verify {w}/saved");
    program_free(&p);
    workplace_remove(w, "saved");
    snprintf(command, sizeof(command), "%s --max-steps 1 --set strata.watchdog=false --fault ?", endless_run);
    workplace_run(w, &p, command);
    assert_int_equal(p.code, 0);
    assert_null(strstr(p.err, "watchdog."));
    forget(w, &p);
}

/* No request is answered for hours.  A drive that lets go of its requests ends the run as one that fails does; one that does not
 * leaves no other end than the process's, which removes its names as well. */
TEST(a_drive_that_hangs_ends_the_run)
{
    static const struct {
        const char *fault, *said;
    } cases[] = {{"?", "so the drive was given up (strata.io_deadline)"},
                 {"nvme.cancel:0:0", ", and the kernel does not cancel it: the process ends, "}};
    const struct workplace *w = *state;

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char command[1024];
        struct program p;

        snprintf(command, sizeof(command),
                 "%s --set strata.io_method=fake --set strata.limits.io=1 --set strata.io_deadline=1 --fault %s", endless_run,
                 cases[i].fault);
        workplace_run(w, &p, command);
        assert_int_equal(p.code, 4);
        assert_non_null(strstr(p.err, "strata: error: "));
        assert_non_null(strstr(p.err, "no answer for "));
        assert_non_null(strstr(p.err, cases[i].said));
        assert_int_equal(workplace_entries(w, "nvme"), 0);
        assert_false(workplace_exists(w, "m.jsonl.tmp"));
        program_free(&p);
        if (workplace_exists(w, "m.jsonl"))
            workplace_remove(w, "m.jsonl");
        assert_false(workplace_exists(w, "out"));
    }
}

/* A run that cannot end by itself: its output is full, and nobody reads it.  err_fd: for its standard error; -1: into memory. */
static void start_full(const struct workplace *w, struct program *p, const char *more, int err_fd)
{
    const char *words[WORDS_MAX], *redirect;
    char command[1024], *line;
    int ends[2];

    snprintf(command, sizeof(command), "%s --json%s", endless_run, more);
    line = workplace_expand(w, command);
    program_split(line, words, &redirect);
    assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
    assert_int_equal(fcntl(ends[0], F_SETPIPE_SZ, PIPE_BYTES), PIPE_BYTES);
    program_start_on(p, words, ends[1], err_fd);
    p->out_fd = ends[0];
    program_wait_for(p, "\"step\":1");
    close(ends[1]);
    program_fill(p);
    free(line);
}

/* `timeout` sends its signal to the process and then to the group.  The fault says how long that takes. */
TEST(the_same_signal_at_once_counts_once)
{
    static const char *const ages[] = {" --fault cli.signal_age:0:0:0", " --fault cli.signal_age:0:0:500000000"};
    const struct workplace *w = *state;

    for (int later = 0; later < 2; later++) {
        struct program p, said;
        int ends[2];

        assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
        said = (struct program){.out_fd = ends[0]};
        start_full(w, &p, ages[later], ends[1]);
        close(ends[1]);
        assert_int_equal(kill(p.pid, SIGTERM), 0);
        program_wait_for(&said, "a second signal ends it now");
        assert_int_equal(kill(p.pid, SIGTERM), 0);
        if (later)
            program_wait_for(&said, "ended by SIGTERM; nothing unfinished is left");
        program_drain(&p);
        program_wait(&p);
        assert_int_equal(p.code, 143);
        assert_int_equal(workplace_entries(w, "nvme"), 0);
        if (later)
            assert_false(workplace_exists(w, "out"));
        else
            check_results(w);
        close(ends[0]);
        forget(w, &p);
    }
}

/* Of a launcher SIGTERM and SIGHUP ask once more for what has been asked for; Ctrl-C, too, but for one that comes two seconds
 * later. */
TEST(a_launchers_signals_are_one_request)
{
    static const char *const ages[] = {" --fault cli.launcher_age:0:0:1999999999", " --fault cli.launcher_age:0:0:2000000000"};
    const struct workplace *w = *state;

    for (int later = 0; later < 2; later++) {
        struct program p, said;
        int ends[2];

        assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
        said = (struct program){.out_fd = ends[0]};
        setenv("RANK", "0", 1);
        setenv("WORLD_SIZE", "1", 1);
        start_full(w, &p, ages[later], ends[1]);
        unsetenv("RANK");
        unsetenv("WORLD_SIZE");
        close(ends[1]);
        assert_int_equal(kill(p.pid, SIGTERM), 0);
        program_wait_for(&said, "writes the model; SIGQUIT ends it now");
        assert_int_equal(kill(p.pid, SIGTERM), 0);
        assert_int_equal(kill(p.pid, SIGHUP), 0);
        assert_int_equal(kill(p.pid, SIGINT), 0);
        if (later)
            program_wait_for(&said, "ended by Ctrl-C; nothing unfinished is left\n");
        program_drain(&p);
        program_wait(&p);
        assert_int_equal(p.code, later ? 130 : 143);
        assert_int_equal(workplace_entries(w, "nvme"), 0);
        if (later)
            assert_false(workplace_exists(w, "out"));
        else
            check_results(w);
        close(ends[0]);
        forget(w, &p);
    }
}

/* The last line says so; and where there are checkpoints, what ends the run at once says what is lost. */
TEST(a_run_that_keeps_nothing_says_so)
{
    static const char run[] =
        "train --model nano --data {w}/good.bin --seq-len 32 --max-steps 1000000 --machine {w}/machine.json";
    static const struct {
        const char *options;
        int number;
        const char *said;
    } rows[] = {
        {"", SIGINT, "nothing unfinished is left, and nothing was kept: neither --save nor --out was given\n"},
        {" --save {w}/save", SIGQUIT, "ended by SIGQUIT; nothing unfinished is left, and what no checkpoint has is lost\n"}};
    const struct workplace *w = *state;

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        char command[512];
        struct program p;

        snprintf(command, sizeof(command), "%s%s", run, rows[i].options);
        workplace_start_piped(w, &p, command);
        program_wait_for(&p, "step 1/");
        end(w, &p, rows[i].number);
        assert_int_equal(p.code, 128 + rows[i].number);
        assert_non_null(strstr(p.err, rows[i].said));
        program_free(&p);
    }
}

TEST(the_second_signal_does_not_wait)
{
    const struct workplace *w = *state;
    struct program p;

    start_full(w, &p, "", -1);
    assert_int_equal(kill(p.pid, SIGINT), 0);
    assert_int_equal(kill(p.pid, SIGTERM), 0);
    program_wait(&p);
    assert_int_equal(p.code, 143);
    assert_non_null(strstr(p.err, "ended by SIGTERM"));
    assert_int_equal(workplace_entries(w, "nvme"), 0);
    assert_false(workplace_exists(w, "out"));
    forget(w, &p);
}

TEST(nohup_is_obeyed)
{
    const struct workplace *w = *state;
    struct program p;

    signal(SIGHUP, SIG_IGN);
    start(w, &p);
    signal(SIGHUP, SIG_DFL);
    assert_int_equal(kill(p.pid, SIGHUP), 0);
    end(w, &p, SIGINT);
    assert_int_equal(p.code, 130);
    assert_null(strstr(p.err, "SIGHUP"));
    forget(w, &p);
}

TEST(ctrl_z_stops_it)
{
    const struct workplace *w = *state;
    struct program p;
    int status;

    start(w, &p);
    assert_int_equal(kill(p.pid, SIGTSTP), 0);
    assert_int_equal(waitpid(p.pid, &status, WUNTRACED), p.pid);
    assert_true(WIFSTOPPED(status));
    assert_int_equal(kill(p.pid, SIGCONT), 0);
    end(w, &p, SIGINT);
    assert_int_equal(p.code, 130);
    forget(w, &p);
}

static bool has(unsigned long long mask, int number)
{
    return (mask >> (number - 1) & 1) != 0;
}

/* False: the thread has ended, or is one of the kernel's for io_uring, which take no signal at all. */
static bool read_blocked(unsigned long long *mask, pid_t pid, const char *task)
{
    char path[128], line[256];
    bool found = false, kernels = false;
    FILE *file;

    assert_true(snprintf(path, sizeof(path), "/proc/%d/task/%s/status", (int)pid, task) < (int)sizeof(path));
    file = fopen(path, "re");
    while (file != NULL && fgets(line, sizeof(line), file) != NULL) {
        kernels |= strncmp(line, "Name:\tiou-", strlen("Name:\tiou-")) == 0;
        found |= sscanf(line, "SigBlk: %llx", mask) == 1;
    }
    if (file != NULL)
        fclose(file);
    return found && !kernels;
}

/* A thread that is just starting, or ending, has every signal blocked for a moment by the C library: it is looked at again. */
static bool settled_mask(unsigned long long *mask, pid_t pid, const char *task)
{
    bool there = read_blocked(mask, pid, task);

    for (int i = 0; i < 30000 && there && has(*mask, SIGSEGV); i++) { /* half a minute at least, for a busy machine */
        usleep(1000);
        there = read_blocked(mask, pid, task);
    }
    return there;
}

/* Workers, I/O threads and those of libraries: all but one. */
TEST(threads_that_compute_take_no_signal)
{
    const struct workplace *w = *state;
    char path[64];
    struct program p;
    int threads = 0, takers = 0;
    DIR *tasks;

    start(w, &p);
    snprintf(path, sizeof(path), "/proc/%d/task", (int)p.pid);
    tasks = opendir(path);
    assert_non_null(tasks);
    for (const struct dirent *entry = readdir(tasks); entry != NULL; entry = readdir(tasks)) {
        unsigned long long mask;

        if (entry->d_name[0] == '.' || !settled_mask(&mask, p.pid, entry->d_name))
            continue;
        threads++;
        takers += !has(mask, SIGALRM);
        assert_true(has(mask, SIGALRM) == has(mask, SIGWINCH) && has(mask, SIGALRM) == has(mask, SIGPROF));
        assert_true(!has(mask, SIGSEGV) && !has(mask, SIGABRT) && !has(mask, SIGFPE) && !has(mask, SIGBUS));
    }
    closedir(tasks);
    assert_true(threads >= 3);
    assert_int_equal(takers, 1);
    end(w, &p, SIGINT);
    forget(w, &p);
}

/* Once its I/O thread runs there is an engine, or soon. */
static bool has_engine(pid_t pid)
{
    char path[64], name[32] = "";
    bool found = false;
    DIR *tasks;

    snprintf(path, sizeof(path), "/proc/%d/task", (int)pid);
    tasks = opendir(path);
    assert_non_null(tasks);
    for (const struct dirent *entry = readdir(tasks); entry != NULL; entry = readdir(tasks)) {
        char file[128];
        FILE *comm;

        assert_true(snprintf(file, sizeof(file), "%s/%.20s/comm", path, entry->d_name) < (int)sizeof(file));
        comm = fopen(file, "re");
        found = found || (comm != NULL && fgets(name, sizeof(name), comm) != NULL && strcmp(name, "strata-io\n") == 0);
        if (comm != NULL)
            fclose(comm);
    }
    closedir(tasks);
    return found;
}

/* What it has looked at is printed, if it has, and said not to be all. */
TEST(an_evaluation_says_how_far_it_came)
{
    const struct workplace *w = *state;
    struct program p;
    char text[4096];
    ssize_t bytes;

    workplace_start_piped(
        w, &p,
        "eval --model {w}/model --data {w}/good.bin --seq-len 32 --json --nvme {w}/nvme --device-memory 2MiB --set "
        "zero_optimization.stage=3 --set zero_optimization.offload_param.device=nvme --set strata.cache=0 --set "
        "strata.io_method=fake --fake-latency-us 5000");
    while (!has_engine(p.pid))
        sched_yield();
    assert_int_equal(kill(p.pid, SIGTERM), 0);
    bytes = read(p.out_fd, text, sizeof(text) - 1);
    assert_true(bytes >= 0);
    text[bytes] = '\0';
    program_wait(&p);
    assert_int_equal(p.code, 143);
    assert_non_null(strstr(p.err, "ended by SIGTERM"));
    assert_true(bytes == 0 || strstr(text, "\"complete\":false") != NULL);
    program_free(&p);
}

/* All steps are done, but not all that was asked for: the exit code says so, the model is there. */
TEST(the_last_evaluation_is_part_of_the_run)
{
    const struct workplace *w = *state;
    struct program p;

    workplace_start_piped(
        w, &p,
        "train --model nano --data {w}/good.bin --seq-len 32 --max-steps 1 --machine {w}/machine.json --metrics "
        "{w}/m.jsonl --out {w}/out --eval-data {w}/good.bin --set zero_optimization.stage=3 --set "
        "zero_optimization.offload_param.device=nvme --set strata.cache=0 --nvme {w}/nvme --set "
        "strata.io_method=fake --fake-latency-us 5000");
    program_wait_for(&p, "step 1/");
    end(w, &p, SIGTERM);
    if (p.code != 143)
        fail_msg("exit code %d: %s", p.code, p.err);
    check_results(w);
    forget(w, &p);
}

TEST_GROUP(workplace_setup, workplace_teardown);
