/* tests/cli/program.c - a process with output into memory files, so that no reader is needed. */
#include "tests/cli/program.h"

#include "tests/common/child.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

extern char **environ;

/* One word from *at: cuts it off and steps over it. */
static char *next_word(char **at)
{
    const char end = **at == '\'' ? '\'' : ' ';
    char *word = end == '\'' ? *at + 1 : *at;
    char *stop = strchr(word, end);

    if (stop == NULL) {
        *at = word + strlen(word);
        return word;
    }
    *stop = '\0';
    *at = stop + 1;
    return word;
}

int program_split(char *line, const char *words[WORDS_MAX], const char **redirect)
{
    int count = 0;

    *redirect = NULL;
    for (char *at = line + strspn(line, " "); *at != '\0'; at += strspn(at, " ")) {
        char *word = next_word(&at);

        assert(count < WORDS_MAX - 1);
        if (word[0] == '>')
            *redirect = word + 1;
        else
            words[count++] = word;
    }
    words[count] = NULL;
    return count;
}

static char *memory_text(int fd)
{
    const off_t bytes = lseek(fd, 0, SEEK_END);
    char *text = calloc(1, (size_t)bytes + 1);

    assert(text != NULL && pread(fd, text, (size_t)bytes, 0) == bytes);
    return text;
}

static int memory_file(const char *name)
{
    const int fd = memfd_create(name, MFD_CLOEXEC);

    assert(fd >= 0);
    return fd;
}

/* in_fd -1: nothing to read; out_fd -1: closed. */
static void spawn(struct program *p, const char *const *words, int in_fd, int out_fd, int err_fd)
{
    const char *argv[WORDS_MAX + 1] = {STRATA_BINARY};
    int count = 1;

    for (; words[count - 1] != NULL; count++)
        argv[count] = words[count - 1];
    argv[count] = NULL;
    p->pid = child_fork();
    if (p->pid > 0)
        return;
    setpgid(0, 0); /* Ctrl-Z does nothing in a group whose parents are all of other sessions, as under setsid */
    if (dup2(in_fd >= 0 ? in_fd : open("/dev/null", O_RDONLY | O_CLOEXEC), STDIN_FILENO) == STDIN_FILENO &&
        (out_fd >= 0 ? dup2(out_fd, STDOUT_FILENO) : close(STDOUT_FILENO)) >= 0 && dup2(err_fd, STDERR_FILENO) == STDERR_FILENO)
        (void)execve(argv[0], (char *const *)(uintptr_t)argv, environ);
    _exit(127);
}

/* No test wants that, whatever was printed before. */
static bool is_crash(int code)
{
    static const int signals[] = {SIGABRT, SIGBUS, SIGFPE, SIGILL, SIGSEGV, SIGSYS, SIGTRAP};

    for (size_t i = 0; i < sizeof(signals) / sizeof(signals[0]); i++)
        if (code == 128 + signals[i])
            return true;
    return false;
}

/* Through a description of our own: the program's must go on to wait. */
void program_fill(const struct program *p)
{
    static const char bytes[4096];
    char path[64];
    int fd;

    snprintf(path, sizeof(path), "/proc/self/fd/%d", p->out_fd);
    fd = open(path, O_WRONLY | O_NONBLOCK | O_CLOEXEC);
    assert(fd >= 0);
    for (size_t part = sizeof(bytes); part > 0; part /= 2)
        while (write(fd, bytes, part) > 0)
            ;
    close(fd);
}

void program_wait(struct program *p)
{
    p->code = child_wait(p->pid);
    p->err = memory_text(p->err_fd);
    if (is_crash(p->code)) {
        fprintf(stderr, "strata died of signal %d, after: %s\n", p->code - 128, p->err);
        abort();
    }
}

void program_start(struct program *p, const char *const *words, const char *out_path)
{
    const bool closed = out_path != NULL && strcmp(out_path, "&-") == 0;
    int target;

    *p = (struct program){.out_fd = memory_file("out"), .err_fd = memory_file("err")};
    target = closed ? -1 : out_path != NULL ? open(out_path, O_WRONLY | O_CLOEXEC) : p->out_fd;
    assert(closed || target >= 0);
    spawn(p, words, -1, target, p->err_fd);
    if (target >= 0 && target != p->out_fd)
        close(target);
}

void program_collect(struct program *p)
{
    program_wait(p);
    p->out = memory_text(p->out_fd);
}

void program_run(struct program *p, const char *const *words, const char *out_path)
{
    program_start(p, words, out_path);
    program_collect(p);
}

void program_start_piped(struct program *p, const char *const *words)
{
    int ends[2];

    assert(pipe2(ends, O_CLOEXEC) == 0);
    *p = (struct program){.out_fd = ends[0], .err_fd = memory_file("err")};
    spawn(p, words, -1, ends[1], p->err_fd);
    close(ends[1]);
}

void program_start_on(struct program *p, const char *const *words, int out_fd, int err_fd)
{
    *p = (struct program){.out_fd = -1, .err_fd = memory_file("err")};
    spawn(p, words, -1, out_fd, err_fd >= 0 ? err_fd : p->err_fd);
}

void program_start_in(struct program *p, const char *const *words, int in_fd, int out_fd)
{
    *p = (struct program){.out_fd = -1, .err_fd = memory_file("err")};
    spawn(p, words, in_fd, out_fd, p->err_fd);
}

void program_run_in(struct program *p, const char *const *words, int in_fd)
{
    *p = (struct program){.out_fd = memory_file("out"), .err_fd = memory_file("err")};
    spawn(p, words, in_fd, p->out_fd, p->err_fd);
    program_wait(p);
    p->out = memory_text(p->out_fd);
}

void program_wait_for(const struct program *p, const char *wanted)
{
    char text[65536];
    size_t length = 0;

    text[0] = '\0';
    while (strstr(text, wanted) == NULL) {
        const ssize_t got = read(p->out_fd, text + length, sizeof(text) - 1 - length);

        if (got <= 0) {
            fprintf(stderr, "no \"%s\" in what the program printed:\n%s\n", wanted, text);
            abort();
        }
        length += (size_t)got;
        text[length] = '\0';
    }
}

int program_drain(const struct program *p)
{
    unsigned char text[4096];
    int last = -1;

    for (ssize_t got; (got = read(p->out_fd, text, sizeof(text))) > 0;)
        last = text[got - 1];
    return last;
}

void program_free(struct program *p)
{
    close(p->out_fd);
    close(p->err_fd);
    free(p->out);
    free(p->err);
    *p = (struct program){.out_fd = -1, .err_fd = -1};
}
