/* tests/cli/test_signal_soak.c - signals at random instants of train, eval, generate and bench, beside a load: no crash, the
 * right exit code, nothing left.
 *
 *     test_cli_signal_soak [SIGNALS [SEED]]
 *
 * The instants are what is tested: here a test sleeps. */
#include "tests/cli/chance.h"
#include "tests/cli/program.h"
#include "tests/cli/workplace.h"
#include "tests/common/child.h"
#include "tests/common/test.h"

#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LOADS    1
#define COUNT(a) (sizeof(a) / sizeof((a)[0]))
#define NVME     "--nvme {w}/nvme --set zero_optimization.offload_optimizer.device=nvme --set strata.cache=0"
#define WEIGHTS                                                                                                                  \
    "--nvme {w}/nvme --device-memory 2MiB --set zero_optimization.stage=3 --set zero_optimization.offload_param.device=nvme "    \
    "--set strata.cache=0"

static long signals = 14;

/* Each takes about this long when it is left alone. */
static const struct {
    const char *command;
    uint32_t ms;
} commands[] = {
    {"train --model nano --data {w}/good.bin --seq-len 64 --max-steps 60 --machine {w}/machine.json --metrics {w}/m.jsonl --out "
     "{w}/out --trace {w}/t.json " NVME,
     1000},
    {"train --model nano --data {w}/good.bin --seq-len 64 --max-steps 100 --machine {w}/machine.json --out {w}/out --eval-data "
     "{w}/good.heldout.bin --eval-every 20 --digest",
     1000},
    {"eval --model {w}/model --data {w}/good.bin --seq-len 32 " WEIGHTS, 800},
    {"generate --model {w}/model --prompt 'in the beg' --max-tokens 100 " WEIGHTS, 800},
    {"bench update --nvme {w}/nvme --params 256K --repeats 20", 800},
    {"bench io {w}/nvme --size 8M --seconds 0.02 --repeats 2", 800},
    {"tokens {w}/text --out {w}/new.bin", 10},
};

/* --- the load --- */

static void start_load(pid_t pids[LOADS])
{
    for (int i = 0; i < LOADS; i++) {
        pids[i] = child_fork();
        for (volatile uint64_t turn = 0; pids[i] == 0; turn++)
            ;
    }
}

static void stop_load(const pid_t pids[LOADS])
{
    for (int i = 0; i < LOADS; i++)
        child_kill(pids[i]);
}

/* --- one run --- */

static void check_model(const struct workplace *w, long run)
{
    struct program p;

    if (!workplace_exists(w, "out"))
        return;
    workplace_run(w, &p, "digest {w}/out");
    if (p.code != 0)
        fail_msg("run %ld: --out is not whole: %s", run, p.err);
    program_free(&p);
    workplace_remove(w, "out");
}

static void check_left(const struct workplace *w, long run)
{
    static const char *const results[] = {"m.jsonl", "t.json", "new.bin", "new.heldout.bin"};
    DIR *dir;

    if (workplace_entries(w, "nvme") != 0)
        fail_msg("run %ld: something is left of the swap", run);
    dir = opendir(w->path);
    assert_non_null(dir);
    for (const struct dirent *entry = readdir(dir); entry != NULL; entry = readdir(dir))
        if (strstr(entry->d_name, ".tmp") != NULL)
            fail_msg("run %ld: %s is left", run, entry->d_name);
    closedir(dir);
    for (size_t i = 0; i < COUNT(results); i++)
        if (workplace_exists(w, results[i]))
            workplace_remove(w, results[i]);
}

/* One signal, or two; returns the exit code. */
static int signalled_run(const struct workplace *w, long run)
{
    static const int numbers[] = {SIGINT, SIGTERM, SIGHUP};
    const uint32_t which = chance_below(COUNT(commands));
    const int first = numbers[chance_below(COUNT(numbers))],
              second = chance_below(3) == 0 ? numbers[chance_below(COUNT(numbers))] : 0;
    struct program p;
    int code;

    workplace_start(w, &p, commands[which].command);
    chance_sleep_us(commands[which].ms * 1000 + 1);
    kill(p.pid, first);
    if (second != 0) {
        chance_sleep_us(20000);
        kill(p.pid, second);
    }
    program_wait(&p);
    code = p.code;
    if (code != 0 && code != 128 + first && (second == 0 || code != 128 + second))
        fail_msg("run %ld: exit code %d after signals %d and %d: strata %s\n%s", run, code, first, second,
                 commands[which].command, p.err);
    program_free(&p);
    check_left(w, run);
    check_model(w, run);
    return code;
}

TEST(signals_leave_nothing)
{
    long ended = 0;
    pid_t load[LOADS];

    start_load(load);
    for (long i = 0; i < signals; i++)
        ended += signalled_run(*state, i) != 0;
    stop_load(load);
    print_message("%ld runs with signals, %ld ended by one\n", signals, ended);
    assert_true(ended > signals / 3);
}

TEST_MAIN(argc, argv)
{
    if (argc > 1)
        signals = strtol(argv[1], NULL, 10);
    if (argc > 2)
        chance_seed(strtoull(argv[2], NULL, 10));
    return test_run(workplace_setup, workplace_teardown);
}
