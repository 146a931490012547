/* cli/commands/rank_output.c - see rank_output.h. */
#include "cli/commands/rank_output.h"
#include "core/base/error.h"
#include "core/base/fault.h"
#include "core/system/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

#define GROWS_BY    8u    /* a newline becomes "[1023] " and itself, any other byte four at most */
#define WORDS_BYTES 8192u /* kept for what strata launch says itself */

/* The stream's write: it never fails and never waits. */
static ssize_t keep(void *ctx, const char *text, size_t bytes)
{
    struct cli_rank_output *out = ctx;

    if (out->lost || bytes > sizeof(out->text) - out->bytes)
        return (ssize_t)bytes;
    if (out->bytes == 0)
        out->since_ns = st_clock_ns();
    memcpy(out->text + out->bytes, text, bytes);
    out->bytes += bytes;
    return (ssize_t)bytes;
}

/* O_NONBLOCK belongs to what was opened, which other processes share: a pipe or a terminal is opened once more.  Where that is
 * refused, as of a socket, only poll() says that a line fits. */
static void open_again(struct cli_rank_output *out)
{
    char path[32];
    struct stat info;
    int fd;

    if (st_fault_refuses("launch.stat") || fstat(out->fd, &info) != 0 || !(S_ISFIFO(info.st_mode) || S_ISCHR(info.st_mode)))
        return;
    snprintf(path, sizeof(path), "/proc/self/fd/%d", out->fd);
    fd = st_fault_refuses("launch.open") ? -1 : open(path, O_WRONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY);
    out->own = fd >= 0;
    out->fd = fd >= 0 ? fd : out->fd;
}

strata_status cli_rank_output_open(struct cli_rank_output *out, FILE *to)
{
    const cookie_io_functions_t io = {.write = keep};

    *out = (struct cli_rank_output){.fd = fileno(to)};
    (void)fflush(to);
    out->stream = st_fault_refuses("launch.stream") ? NULL : fopencookie(out, "w", io);
    if (out->stream == NULL)
        return st_nomem(0);
    setvbuf(out->stream, NULL, _IONBF, 0);
    open_again(out);
    return STRATA_OK;
}

bool cli_rank_output_has_room(const struct cli_rank_output *out, size_t raw)
{
    return out->bytes + GROWS_BY * raw + WORDS_BYTES <= sizeof(out->text);
}

/* As many whole lines as a pipe takes at once, beside other writers; at least one. */
static size_t next_part(const struct cli_rank_output *out)
{
    const size_t most = out->bytes < PIPE_BUF ? out->bytes : PIPE_BUF;
    const char *newline = memrchr(out->text, '\n', most);

    return newline != NULL ? (size_t)(newline - out->text) + 1 : most;
}

void cli_rank_output_write(struct cli_rank_output *out)
{
    const ssize_t n = st_fault_refuses("launch.write") ? -1 : write(out->fd, out->text, next_part(out));

    if (n < 0 && errno != EAGAIN && errno != EINTR) {
        out->err = errno;
        cli_rank_output_drop(out);
    }
    if (n <= 0)
        return;
    out->bytes -= (size_t)n;
    memmove(out->text, out->text + n, out->bytes);
    out->since_ns = st_clock_ns();
}

void cli_rank_output_drop(struct cli_rank_output *out)
{
    out->lost = true;
    out->bytes = 0;
}

void cli_rank_output_close(struct cli_rank_output *out)
{
    if (out->stream == NULL)
        return;
    fclose(out->stream);
    if (out->own)
        close(out->fd);
    *out = (struct cli_rank_output){.fd = -1};
}
