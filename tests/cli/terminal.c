/* terminal.c - a pseudo terminal without line discipline, read by a thread while the program runs. */
#include "tests/cli/terminal.h"
#include "tests/cli/workplace.h"

#include <assert.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

struct reader {
    int fd;
    char *text;
    size_t bytes;
};

/* Until the last holder of the other end is gone. */
static void *read_all(void *arg)
{
    struct reader *r = arg;
    FILE *file = open_memstream(&r->text, &r->bytes);
    char part[4096];

    assert(file != NULL);
    for (ssize_t got; (got = read(r->fd, part, sizeof(part))) > 0;)
        fwrite(part, 1, (size_t)got, file);
    fclose(file);
    return NULL;
}

static int open_terminal(unsigned columns, int *other)
{
    const struct winsize size = {.ws_row = 24, .ws_col = (unsigned short)columns};
    const int fd = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
    struct termios settings;

    assert(fd >= 0 && grantpt(fd) == 0 && unlockpt(fd) == 0);
    *other = open(ptsname(fd), O_RDWR | O_NOCTTY | O_CLOEXEC);
    assert(*other >= 0 && tcgetattr(*other, &settings) == 0);
    cfmakeraw(&settings);
    assert(tcsetattr(*other, TCSANOW, &settings) == 0 && ioctl(*other, TIOCSWINSZ, &size) == 0);
    return fd;
}

void terminal_run(const struct workplace *w, struct program *p, const char *command, unsigned columns, const char *kind,
                  bool err_too)
{
    char *line = workplace_expand(w, command);
    const char *words[WORDS_MAX], *redirect;
    struct reader reader = {0};
    pthread_t thread;
    int other;

    setenv("TERM", kind, 1);
    program_split(line, words, &redirect);
    reader.fd = open_terminal(columns, &other);
    assert(pthread_create(&thread, NULL, read_all, &reader) == 0);
    program_start_on(p, words, other, err_too ? other : -1);
    close(other);
    program_wait(p);
    pthread_join(thread, NULL);
    close(reader.fd);
    p->out = reader.text;
    free(line);
}

char *terminal_screen(const char *text)
{
    char *screen = calloc(1, strlen(text) + 1);
    size_t line = 0, at = 0, end = 0; /* start of the line, the cursor, the line's end */

    assert(screen != NULL);
    for (; *text != '\0'; text++) {
        if (*text == '\r') {
            at = line;
        } else if (strncmp(text, "\033[K", 3) == 0) {
            end = at;
            text += 2;
        } else if (*text == '\n') {
            screen[end++] = '\n';
            line = at = end;
        } else {
            screen[at++] = *text;
            end = at > end ? at : end;
        }
    }
    screen[end] = '\0';
    return screen;
}

/* Columns of a line that may be broken somewhere, or 0. */
static size_t columns_of(const char *line, size_t bytes)
{
    size_t columns = 0, words = 0;

    for (size_t i = 0; i < bytes; i++) {
        columns += ((unsigned char)line[i] & 0xc0) != 0x80;
        words += line[i] != ' ' && (i == 0 || line[i - 1] == ' ');
    }
    return words > 1 ? columns : 0;
}

size_t terminal_widest(const char *screen)
{
    size_t widest = 0;

    for (const char *line = screen; *line != '\0';) {
        const size_t bytes = strcspn(line, "\n"), columns = columns_of(line, bytes);

        widest = columns > widest ? columns : widest;
        line += bytes + (line[bytes] == '\n');
    }
    return widest;
}
