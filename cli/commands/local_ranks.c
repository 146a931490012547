/* cli/commands/local_ranks.c - see local_ranks.h.  All of it runs on the main thread: the one that waits for signals writes their
 * numbers to a pipe. */
#include "cli/commands/local_ranks.h"
#include "cli/commands/commands.h"
#include "cli/cli_signals.h"
#include "cli/commands/rank_lines.h"
#include "cli/commands/rank_output.h"
#include "cli/options/told.h"
#include "core/base/error.h"
#include "core/base/fault.h"
#include "core/base/log.h"
#include "core/base/print.h"
#include "core/system/clock.h"
#include "core/system/signals.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define ASK_NS     INT64_C(2000000000)  /* from the first failure to SIGTERM */
#define KILL_NS    INT64_C(30000000000) /* from there to SIGKILL; torchrun's and deepspeed's */
#define NS_PER_MS  INT64_C(1000000)
#define STALL_NS   INT64_C(2000000000) /* for whoever asks for the end, and reads nothing */
#define LOOK_MS    100                 /* on a kernel that has no pidfds */
#define STREAMS    2u                  /* standard output and standard error */
#define POLLS_EACH (1 + STREAMS)
#define GONE       4   /* exit code of a rank whose peer has failed */
#define SIGNALLED  128 /* exit codes of what a signal ended are this and its number */

extern char **environ;

struct rank {
    pid_t pid;   /* 0: not there */
    int watched; /* pidfd; -1: none */
    struct cli_rank_lines lines[STREAMS];
    uint32_t polled[STREAMS]; /* where of polls; 0: nowhere */
};

struct launch {
    const struct cli_local_ranks *of;
    struct rank *ranks;
    struct cli_rank_output *outputs;  /* [STREAMS] where ranks' lines go, and what is said here */
    uint32_t outputs_polled[STREAMS]; /* as of ranks */
    struct pollfd
        *polls; /* [1 + STREAMS + POLLS_EACH x ranks] signals first; no more than there are descriptors, as poll() asks */
    uint32_t polls_count, alive;
    int signals[2]; /* a pipe of numbers */
    int code;
    uint32_t first;            /* the rank whose code that is */
    bool failed, asked, fatal; /* fatal: those that are left are killed in the end */
    bool signalled;            /* somebody has asked for the end */
    uint64_t failed_ns, asked_ns;
};

/* --- starting --- */

/* A port that the system has just given out: rank 0 takes it, or one of the next (offload/comm/comm_meet.c). */
static strata_status free_port(uint32_t *port)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t bytes = sizeof(address);
    const int fd = st_fault_refuses("launch.socket") ? -1 : socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    strata_status st = STRATA_OK;

    if (fd < 0 || bind(fd, (struct sockaddr *)&address, bytes) != 0 || getsockname(fd, (struct sockaddr *)&address, &bytes) != 0)
        st = st_error_errno(errno, "no port on 127.0.0.1 for the ranks to meet at");
    else
        *port = ntohs(address.sin_port);
    if (fd >= 0)
        close(fd);
    return st;
}

static strata_status set_number(const char *name, uint64_t number)
{
    char text[24];

    snprintf(text, sizeof(text), "%llu", (unsigned long long)number);
    if (st_fault_refuses("launch.setenv") || setenv(name, text, 1) != 0)
        return st_nomem(0);
    return STRATA_OK;
}

/* What all ranks are told. */
static strata_status set_variables(uint32_t ranks)
{
    uint32_t port = 0;
    strata_status st = free_port(&port);

    if (st == STRATA_OK)
        st = set_number("MASTER_PORT", port);
    if (st == STRATA_OK)
        st = set_number("WORLD_SIZE", ranks);
    if (st == STRATA_OK)
        st = set_number("LOCAL_WORLD_SIZE", ranks);
    if (st == STRATA_OK)
        st = set_number("STRATA_LAUNCHER", (uint64_t)getpid());
    if (st == STRATA_OK && setenv("MASTER_ADDR", "127.0.0.1", 1) != 0)
        st = st_nomem(0);
    return st;
}

/* Descriptors of the rank: rank 0 reads what this process would, and ends[] are its outputs where they are not this process's. */
static int spawn(pid_t *pid, uint32_t rank, char *const *argv, const int ends[STREAMS])
{
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    int err = (int)-st_fault("launch.spawn", 0);

    if (err != 0 || (err = posix_spawn_file_actions_init(&actions)) != 0)
        return err;
    if ((err = posix_spawnattr_init(&attributes)) == 0) {
        err = st_signals_child(&attributes);
        if (err == 0 && rank > 0)
            err = posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
        for (uint32_t i = 0; err == 0 && i < STREAMS; i++)
            if (ends[i] >= 0)
                err = posix_spawn_file_actions_adddup2(&actions, ends[i], STDOUT_FILENO + (int)i);
        if (err == 0)
            err = posix_spawn(pid, "/proc/self/exe", &actions, &attributes, argv, environ);
        posix_spawnattr_destroy(&attributes);
    }
    posix_spawn_file_actions_destroy(&actions);
    return err;
}

static strata_status start_rank(struct launch *l, uint32_t rank)
{
    struct rank *r = &l->ranks[rank];
    int ends[STREAMS] = {-1, -1}, err;
    strata_status st = set_number("RANK", rank);

    if (st == STRATA_OK)
        st = set_number("LOCAL_RANK", rank);
    for (uint32_t i = 0; l->of->prefix && st == STRATA_OK && i < STREAMS; i++)
        st = cli_rank_lines_open(&r->lines[i], rank, &l->outputs[i], &ends[i]);
    if (st == STRATA_OK && (err = spawn(&r->pid, rank, l->of->argv, ends)) != 0) {
        r->pid = 0;
        st = st_error_errno(err, "rank %u cannot be started", rank);
    }
    for (uint32_t i = 0; i < STREAMS; i++)
        if (ends[i] >= 0)
            close(ends[i]);
    if (st != STRATA_OK)
        return st;
    l->alive++;
    r->watched = st_fault("launch.pidfd", 0) < 0 ? -1 : (int)syscall(SYS_pidfd_open, r->pid, 0);
    return STRATA_OK;
}

/* --- ends --- */

static void signal_all(const struct launch *l, int number)
{
    for (uint32_t i = 0; i < l->of->ranks; i++)
        if (l->ranks[i].pid != 0)
            kill(l->ranks[i].pid, number);
}

static void ask_all(struct launch *l)
{
    l->asked = true;
    l->asked_ns = st_clock_ns();
    signal_all(l, SIGTERM);
}

/* What a rank's end means for the others, and for the exit code. */
static void take_end(struct launch *l, uint32_t rank, int status)
{
    const bool killed = WIFSIGNALED(status);
    const int code = killed ? SIGNALLED + WTERMSIG(status) : WEXITSTATUS(status);
    const bool ours = l->asked && (code == SIGNALLED + SIGTERM || code == SIGNALLED + SIGKILL);

    if (code == 0 || (ours && l->failed))
        return;
    if (killed)
        st_log(ST_LOG_ERROR, "rank %u was killed by signal %d (%s)", rank, WTERMSIG(status), strsignal(WTERMSIG(status)));
    l->fatal = l->fatal || killed || code < SIGNALLED;
    if (!l->failed || (l->code == GONE && code != GONE)) {
        l->code = code;
        l->first = rank;
    }
    if (!l->failed)
        l->failed_ns = st_clock_ns();
    l->failed = true;
}

static strata_status reap(struct launch *l)
{
    for (uint32_t i = 0; i < l->of->ranks; i++) {
        struct rank *r = &l->ranks[i];
        int status = 0;
        const pid_t ended = r->pid == 0 ? 0 : st_fault_refuses("launch.wait") ? -1 : waitpid(r->pid, &status, WNOHANG);

        if (ended < 0)
            return st_error_errno(errno, "cannot wait for rank %u", i);
        if (ended == 0)
            continue;
        for (uint32_t k = 0; k < STREAMS; k++)
            cli_rank_lines_read(&r->lines[k], true); /* before what is said of its end */
        if (r->watched >= 0)
            close(r->watched);
        r->watched = -1;
        r->pid = 0;
        l->alive--;
        take_end(l, i, status);
    }
    return STRATA_OK;
}

/* --- the loop --- */

static int64_t left_ms(uint64_t since_ns, int64_t wait_ns)
{
    const int64_t left = (int64_t)since_ns + wait_ns - (int64_t)st_clock_ns();

    return left > 0 ? left / NS_PER_MS + 1 : 0;
}

/* Milliseconds until something is to be done that nobody tells of; -1: never. */
static int64_t next_ms(const struct launch *l, int64_t ask_ns, int64_t kill_ns, int64_t stall_ns)
{
    int64_t ms = -1;

    if (l->alive > 0 && l->failed && !l->asked)
        ms = left_ms(l->failed_ns, ask_ns);
    else if (l->alive > 0 && l->asked && l->fatal)
        ms = left_ms(l->asked_ns, kill_ns);
    for (uint32_t k = 0; k < STREAMS; k++)
        if (l->signalled && l->outputs[k].bytes > 0) {
            const int64_t left = left_ms(l->outputs[k].since_ns, stall_ns);

            ms = ms < 0 || left < ms ? left : ms;
        }
    return ms;
}

/* Asks those that are left, and in the end kills them. */
static void press(struct launch *l)
{
    const int64_t ask_ns = st_fault("launch.ask", ASK_NS), kill_ns = st_fault("launch.kill", KILL_NS);
    const uint64_t now = st_clock_ns();

    if (l->alive == 0)
        return;
    if (l->failed && !l->asked && now - l->failed_ns >= (uint64_t)ask_ns) {
        if (l->fatal)
            st_log(ST_LOG_NOTICE, "rank %u ended with exit code %d: the others (%u) are asked to end", l->first, l->code,
                   l->alive);
        ask_all(l);
    } else if (l->asked && l->fatal && now - l->asked_ns >= (uint64_t)kill_ns) {
        st_log(ST_LOG_WARN, "ranks that have not ended in %lld seconds are killed (%u)",
               (long long)(kill_ns / (NS_PER_MS * 1000)), l->alive);
        signal_all(l, SIGKILL);
        l->fatal = false;
    }
}

static void pass_signals(struct launch *l)
{
    char numbers[64];
    const ssize_t bytes = st_fault_refuses("launch.signals") ? -1 : read(l->signals[0], numbers, sizeof(numbers));

    for (ssize_t i = 0; i < bytes; i++) {
        signal_all(l, numbers[i]);
        l->signalled = l->signalled || numbers[i] != SIGUSR1; /* which asks for a checkpoint */
        if (numbers[i] == SIGQUIT && !l->asked) {             /* ends a rank at once */
            l->asked = l->fatal = true;
            l->asked_ns = st_clock_ns();
        }
    }
}

static uint32_t add_poll(struct launch *l, int fd, short events)
{
    l->polls[l->polls_count] = (struct pollfd){.fd = fd, .events = events};
    return l->polls_count++;
}

static void fill_polls(struct launch *l, bool *all_watched)
{
    l->polls_count = 0;
    add_poll(l, l->signals[0], POLLIN);
    for (uint32_t k = 0; k < STREAMS; k++)
        l->outputs_polled[k] = l->outputs[k].bytes > 0 ? add_poll(l, l->outputs[k].fd, POLLOUT) : 0;
    *all_watched = true;
    for (uint32_t i = 0; i < l->of->ranks; i++) {
        struct rank *r = &l->ranks[i];

        if (r->watched >= 0)
            add_poll(l, r->watched, POLLIN);
        for (uint32_t k = 0; k < STREAMS; k++)
            r->polled[k] = cli_rank_lines_may_read(&r->lines[k]) ? add_poll(l, r->lines[k].from, POLLIN) : 0;
        *all_watched = *all_watched && (r->pid == 0 || r->watched >= 0);
    }
}

/* What has come and what goes.  A rank whose output nobody takes any more learns it as it would without this process. */
static void move_output(struct launch *l)
{
    for (uint32_t k = 0; k < STREAMS; k++) {
        if (l->outputs_polled[k] != 0 && l->polls[l->outputs_polled[k]].revents != 0)
            cli_rank_output_write(&l->outputs[k]);
        for (uint32_t i = 0; i < l->of->ranks; i++) {
            struct rank *r = &l->ranks[i];

            if (l->outputs[k].err != 0)
                cli_rank_lines_close(&r->lines[k]);
            else if (r->pid == 0 || (r->polled[k] != 0 && l->polls[r->polled[k]].revents != 0))
                cli_rank_lines_read(&r->lines[k], r->pid == 0);
        }
    }
}

/* Whoever has asked for the end, and does not read, would keep the ranks from saving. */
static void give_up_readers(struct launch *l, int64_t stall_ns)
{
    for (uint32_t k = 0; k < STREAMS; k++) {
        const bool refused = l->outputs_polled[k] != 0 && l->polls[l->outputs_polled[k]].revents == 0;

        if (l->signalled && refused && st_clock_ns() - l->outputs[k].since_ns >= (uint64_t)stall_ns)
            cli_rank_output_drop(&l->outputs[k]);
    }
}

/* Whether ranks that have ended have left something to print. */
static bool has_output(const struct launch *l)
{
    for (uint32_t k = 0; k < STREAMS; k++) {
        if (l->outputs[k].bytes > 0)
            return true;
        for (uint32_t i = 0; i < l->of->ranks; i++)
            if (l->ranks[i].lines[k].from >= 0)
                return true;
    }
    return false;
}

static strata_status wait_for_all(struct launch *l)
{
    strata_status st = STRATA_OK;

    while (st == STRATA_OK && (l->alive > 0 || has_output(l))) {
        const int64_t stall_ns = st_fault("launch.stall", STALL_NS);
        int64_t ms = next_ms(l, st_fault("launch.ask", ASK_NS), st_fault("launch.kill", KILL_NS), stall_ns);
        bool all_watched;

        fill_polls(l, &all_watched);
        if (!all_watched && (ms < 0 || ms > LOOK_MS))
            ms = LOOK_MS;
        if (st_fault_refuses("launch.poll") || (poll(l->polls, l->polls_count, (int)ms) < 0 && errno != EINTR))
            return st_error_errno(errno, "cannot wait for the ranks");
        move_output(l);
        if (l->polls[0].revents != 0)
            pass_signals(l);
        st = reap(l);
        press(l);
        give_up_readers(l, stall_ns);
    }
    return st;
}

/* --- all of it --- */

/* Behind what the ranks have said. */
static void say(void *ctx, enum st_log_level level, const char *line)
{
    struct launch *l = ctx;

    st_print(l->outputs[1].stream, "strata: %s%s\n", st_log_word(level), line);
}

static strata_status open_outputs(struct launch *l)
{
    FILE *const streams[STREAMS] = {stdout, stderr};
    strata_status st = STRATA_OK;

    for (uint32_t k = 0; k < STREAMS && st == STRATA_OK; k++)
        st = cli_rank_output_open(&l->outputs[k], streams[k]);
    if (st == STRATA_OK)
        st_log_configure(say, l, ST_LOG_INFO);
    return st;
}

static strata_status open_launch(struct launch *l)
{
    const uint32_t ranks = l->of->ranks;
    strata_status st;

    l->ranks = st_fault_refuses("launch.memory") ? NULL : calloc(ranks, sizeof(*l->ranks));
    l->polls = l->ranks == NULL ? NULL : calloc(1 + STREAMS + (size_t)POLLS_EACH * ranks, sizeof(*l->polls));
    l->outputs = l->polls == NULL ? NULL : calloc(STREAMS, sizeof(*l->outputs));
    if (l->outputs == NULL)
        return st_nomem(0);
    for (uint32_t i = 0; i < ranks; i++)
        l->ranks[i] = (struct rank){.watched = -1, .lines = {{.from = -1}, {.from = -1}}};
    if ((st = open_outputs(l)) != STRATA_OK)
        return st;
    if (st_fault_refuses("launch.signal_pipe") || pipe2(l->signals, O_CLOEXEC | O_NONBLOCK) != 0)
        return st_error_errno(errno, "a pipe for signals");
    cli_signals_pass_on(l->signals[1]);
    signal(SIGCHLD, SIG_DFL); /* ignored, children that have ended leave no code */
    return set_variables(ranks);
}

static void close_launch(struct launch *l)
{
    cli_signals_pass_on(-1);
    for (uint32_t i = 0; l->outputs != NULL && i < l->of->ranks; i++)
        for (uint32_t k = 0; k < STREAMS; k++)
            cli_rank_lines_close(&l->ranks[i].lines[k]);
    st_log_configure(cli_told_log, NULL, ST_LOG_INFO);
    for (uint32_t k = 0; l->outputs != NULL && k < STREAMS; k++)
        cli_rank_output_close(&l->outputs[k]);
    for (int i = 0; i < 2; i++)
        if (l->signals[i] >= 0)
            close(l->signals[i]);
    free(l->ranks);
    free(l->polls);
    free(l->outputs);
}

/* What has been started ends, and the sentence stays. */
static strata_status give_up(struct launch *l, strata_status st)
{
    struct st_sentence sentence;

    st_error_keep(&sentence);
    l->fatal = true;
    ask_all(l);
    (void)wait_for_all(l);
    return st_error_again(st, &sentence);
}

strata_status cli_local_ranks_run(const struct cli_local_ranks *of, int *code)
{
    struct launch l = {.of = of, .signals = {-1, -1}};
    strata_status st = open_launch(&l);

    for (uint32_t i = 0; i < of->ranks && st == STRATA_OK; i++)
        st = start_rank(&l, i);
    if (st == STRATA_OK)
        st = wait_for_all(&l);
    if (st != STRATA_OK && l.alive > 0)
        st = give_up(&l, st);
    if (st == STRATA_OK && l.outputs[0].err != 0 && (l.code == 0 || l.outputs[0].err != EPIPE)) /* which the ranks have said */
        st = st_error_errno(l.outputs[0].err, CLI_STDOUT_FAILS);
    close_launch(&l);
    *code = l.code;
    return st;
}
