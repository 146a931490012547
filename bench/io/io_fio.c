/* bench/io/io_fio.c - runs fio as a child process: its job goes to standard input, its JSON comes from a file in memory.
 *
 * fio opens our nameless files through /proc, so both use the same blocks of the drive.  A tunable of glibc's malloc gives its
 * buffers huge pages like ours: with small pages a virtual disk gave it half the rate, which would be no fair comparison. */
#include "bench/io/io_fio.h"
#include "core/base/error.h"
#include "core/base/fault.h"
#include "core/json/json.h"
#include "core/system/cleanup.h"
#include "core/system/signals.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define NAMES_BYTES  1024u
#define SAID_BYTES   512u
#define OUTPUT_BYTES (UINT64_C(4) << 20)

extern char **environ;

const char *const io_fio_engine_names[IO_FIO_ENGINES] = {[IO_FIO_URING] = "io_uring", [IO_FIO_LIBAIO] = "libaio"};

bool io_fio_knows(enum io_pattern pattern)
{
    return pattern != IO_OPTIMIZER;
}

void io_fio_write_job(FILE *out, const char *name, const char *filenames, uint32_t files, uint64_t bytes, bool direct,
                      const struct io_case *c, enum io_fio_engine engine, double seconds)
{
    fprintf(out, "[%s]\nioengine=%s\nfilename=%s\nsize=%" PRIu64 "\ndirect=%d\n", name, io_fio_engine_names[engine], filenames,
            bytes * files, direct);
    fprintf(out, "rw=%s\nrwmixread=50\nbs=%" PRIu32 "\niodepth=%" PRIu32 "\n", io_pattern_names[c->pattern], c->block_bytes,
            c->queue_depth * files);
    fprintf(out, "time_based=1\nruntime=%.0fms\nnorandommap=1\nfile_service_type=roundrobin\n", ceil(seconds * 1e3));
    fprintf(out, "unified_rw_reporting=mixed\npercentile_list=50:99\nstonewall\n");
    if (!direct) /* ours finds them in the page cache, too */
        fprintf(out, "invalidate=0\n");
    if (engine == IO_FIO_URING && !c->unregistered)
        fprintf(out, "registerfiles=1\nfixedbufs=1\n");
    if (engine == IO_FIO_URING && c->poll_device)
        fprintf(out, "hipri=1\n");
    if (engine == IO_FIO_URING && c->poll_kernel)
        fprintf(out, "sqthread_poll=1\n");
}

/* --- the child --- */

struct child {
    pid_t pid;
    int in_fd, out_fd, err_fd; /* in memory */
};

static strata_status child_open(struct child *c)
{
    *c = (struct child){.in_fd = memfd_create("fio job", MFD_CLOEXEC),
                        .out_fd = memfd_create("fio out", MFD_CLOEXEC),
                        .err_fd = memfd_create("fio err", MFD_CLOEXEC)};
    return !st_fault_refuses("fio.memory") && c->in_fd >= 0 && c->out_fd >= 0 && c->err_fd >= 0
               ? STRATA_OK
               : st_error_errno(errno, "files in memory for fio");
}

static void child_close(const struct child *c)
{
    const int fds[] = {c->in_fd, c->out_fd, c->err_fd};

    for (size_t i = 0; i < sizeof(fds) / sizeof(fds[0]); i++)
        if (fds[i] >= 0)
            close(fds[i]);
}

/* Our environment plus huge pages for malloc; the caller owns the array but not the strings.  NULL: no memory. */
static char **child_environment(void)
{
    static char tunables[] = "GLIBC_TUNABLES=glibc.malloc.hugetlb=1";
    size_t count = 0, kept = 0;
    char **list;

    while (environ[count] != NULL)
        count++;
    list = calloc(count + 2, sizeof(*list));
    for (size_t i = 0; i < count && list != NULL; i++)
        if (strncmp(environ[i], tunables, strcspn(tunables, "=") + 1) != 0)
            list[kept++] = environ[i];
    if (list != NULL)
        list[kept] = tunables;
    return list;
}

static strata_status child_spawn(struct child *c, const char *const *argv, const struct bench_hooks *hooks)
{
    char **const environment = child_environment();
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    int err;

    if (environment == NULL)
        return st_nomem(0);
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, c->in_fd, STDIN_FILENO);
    posix_spawn_file_actions_adddup2(&actions, c->out_fd, STDOUT_FILENO);
    posix_spawn_file_actions_adddup2(&actions, c->err_fd, STDERR_FILENO);
    posix_spawnattr_init(&attributes);
    err = st_signals_child(&attributes);
    st_cleanup_hold(); /* so that the thread that ends this process knows the child */
    if (err == 0)
        err = (int)-st_fault("fio.spawn", 0);
    if (err == 0)
        err = posix_spawnp(&c->pid, argv[0], &actions, &attributes, (char *const *)(uintptr_t)argv, environment);
    if (err == 0 && hooks->child != NULL)
        hooks->child(c->pid);
    st_cleanup_release();
    posix_spawnattr_destroy(&attributes);
    posix_spawn_file_actions_destroy(&actions);
    free(environment);
    if (err == ENOENT)
        return st_error(STRATA_E_INVAL, "fio was not found: apt-get install fio, or leave --fio out");
    return err == 0 ? STRATA_OK : st_error_errno(err, "fio cannot be started");
}

/* Waits for the child; *code: its exit status. */
static strata_status child_wait(const struct child *c, const struct bench_hooks *hooks, int *code)
{
    int status;
    pid_t ended;

    do
        ended = waitpid(c->pid, &status, 0);
    while (ended < 0 && errno == EINTR);
    if (hooks->child != NULL)
        hooks->child(0);
    if (st_fault_refuses("fio.wait") || ended < 0)
        return st_error_errno(errno, "waiting for fio");
    *code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    return STRATA_OK;
}

strata_status io_fio_find(const struct bench_hooks *hooks)
{
    static const char *const argv[] = {"fio", "--version", NULL};
    struct child c;
    int code = 0;
    strata_status st = child_open(&c);

    if (st == STRATA_OK)
        st = child_spawn(&c, argv, hooks);
    if (st == STRATA_OK)
        st = child_wait(&c, hooks, &code);
    child_close(&c);
    if (st == STRATA_OK && code != 0)
        return st_error(STRATA_E_INVAL, "fio --version exits with %d: apt-get install --reinstall fio, or leave --fio out", code);
    return st;
}

/* --- its output --- */

/* The whole file with a NUL at the end; owned by the caller. */
static char *text_of(int fd)
{
    struct stat info;
    char *text;

    if (st_fault_refuses("fio.said") || fstat(fd, &info) != 0 || info.st_size < 0 || (uint64_t)info.st_size > OUTPUT_BYTES)
        return NULL;
    text = calloc(1, (size_t)info.st_size + 1);
    if (text != NULL && pread(fd, text, (size_t)info.st_size, 0) != info.st_size) {
        free(text);
        return NULL;
    }
    return text;
}

static double number_at(const st_json *n, const char *key)
{
    const st_json *member = n != NULL ? st_json_get(n, key) : NULL;

    return member != NULL && st_json_type(member) == ST_JSON_NUMBER ? st_json_number(member) : NAN;
}

static strata_status read_job(struct io_measure *out, const st_json *root)
{
    const st_json *jobs = st_json_get(root, "jobs"), *job = jobs != NULL ? st_json_first(jobs) : NULL;
    const st_json *mixed = job != NULL ? st_json_get(job, "mixed") : NULL;
    const st_json *latency = mixed != NULL ? st_json_get(mixed, "clat_ns") : NULL;
    const st_json *percentile = latency != NULL ? st_json_get(latency, "percentile") : NULL;
    const double job_seconds = number_at(job, "job_runtime") * 1e-3;

    *out = (struct io_measure){
        .bytes = number_at(mixed, "io_bytes"),
        .ops = number_at(mixed, "total_ios"),
        .seconds = number_at(mixed, "runtime") * 1e-3,
        .user_seconds = number_at(job, "usr_cpu") * 1e-2 * job_seconds,
        .sys_seconds = number_at(job, "sys_cpu") * 1e-2 * job_seconds,
        .p50_ns = number_at(percentile, "50.000000"),
        .p99_ns = number_at(percentile, "99.000000"),
        .mean_ns = number_at(latency, "mean"),
        .max_ns = number_at(latency, "max"),
    };
    if (isnan(out->bytes) || isnan(out->user_seconds) || isnan(out->sys_seconds) || !(out->seconds > 0))
        return st_error(STRATA_E_IO, "fio's JSON lacks what every version from 3.20 on prints: jobs[0].mixed.{io_bytes,runtime}");
    if (number_at(job, "error") != 0)
        return st_error(STRATA_E_NOSYS, "fio ended with error %.0f", number_at(job, "error"));
    return STRATA_OK;
}

/* Lines before the object are messages of fio's. */
static strata_status read_output(struct io_measure *out, int fd)
{
    char *text = text_of(fd), *object = text != NULL ? strchr(text, '{') : NULL;
    st_json *root = NULL;
    strata_status st;

    if (object == NULL)
        st = st_error(STRATA_E_IO, "fio printed no JSON");
    else
        st = st_json_parse(&root, object, strlen(object), "fio's output");
    if (st == STRATA_OK)
        st = read_job(out, root);
    st_json_free(root);
    free(text);
    return st;
}

static strata_status refusal(int fd, int code)
{
    char *text = text_of(fd);
    char said[SAID_BYTES] = "";

    if (text != NULL)
        snprintf(said, sizeof(said), "%.*s", (int)strcspn(text, "\n"), text);
    free(text);
    return st_error(STRATA_E_NOSYS, "fio exits with %d: %s", code, said);
}

/* --- a run --- */

static strata_status write_input(const struct child *child, const struct io_files *files, const struct io_case *c,
                                 enum io_fio_engine engine, double seconds)
{
    char names[NAMES_BYTES] = "";
    size_t length = 0;
    const int fd = st_fault_refuses("fio.job") ? -1 : dup(child->in_fd);
    FILE *job = fd < 0 || st_fault_refuses("fio.job") ? NULL : fdopen(fd, "w");

    if (job == NULL) {
        const strata_status st = st_error_errno(errno, "a job for fio");

        if (fd >= 0)
            close(fd);
        return st;
    }
    for (uint32_t i = 0; i < files->count; i++)
        length += (size_t)snprintf(names + length, sizeof(names) - length, "%s/proc/%d/fd/%d", i == 0 ? "" : ":", (int)getpid(),
                                   files->fds[i]);
    io_fio_write_job(job, "strata", names, files->count, files->bytes, files->direct, c, engine, seconds);
    if (fclose(job) != 0 || lseek(child->in_fd, 0, SEEK_SET) != 0)
        return st_error_errno(errno, "a job for fio");
    return STRATA_OK;
}

strata_status io_fio_run(struct io_measure *out, const struct io_files *files, const struct io_case *c, enum io_fio_engine engine,
                         double seconds, const struct bench_hooks *hooks)
{
    static const char *const argv[] = {"fio", "--output-format=json", "-", NULL};
    struct child child;
    int code = 0;
    strata_status st = child_open(&child);

    if (st == STRATA_OK)
        st = write_input(&child, files, c, engine, seconds);
    if (st == STRATA_OK)
        st = child_spawn(&child, argv, hooks);
    if (st == STRATA_OK)
        st = child_wait(&child, hooks, &code);
    if (st == STRATA_OK)
        st = code != 0 ? refusal(child.err_fd, code) : read_output(out, child.out_fd);
    child_close(&child);
    return st == STRATA_OK ? st : st_error_prefix(st, "%s", io_fio_engine_names[engine]);
}
