/* cli/commands/rank_lines.c - see rank_lines.h. */
#include "cli/commands/rank_lines.h"
#include "core/base/error.h"
#include "core/base/fault.h"
#include "core/base/print.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

strata_status cli_rank_lines_open(struct cli_rank_lines *l, uint32_t rank, struct cli_rank_output *to, int *end)
{
    int ends[2];

    if (st_fault_refuses("launch.pipe") || pipe2(ends, O_CLOEXEC) != 0)
        return st_error_errno(errno, "a pipe for what rank %u prints", rank);
    (void)fcntl(ends[0], F_SETFL, O_NONBLOCK);
    *l = (struct cli_rank_lines){.rank = rank, .to = to, .from = ends[0]};
    *end = ends[1];
    return STRATA_OK;
}

static void print_line(const struct cli_rank_lines *l, size_t at, size_t bytes)
{
    char line[CLI_RANK_LINE_BYTES + 16];

    snprintf(line, sizeof(line), "[%u] %.*s\n", l->rank, (int)bytes, l->text + at);
    st_print_text(l->to->stream, line);
}

static void print_lines(struct cli_rank_lines *l)
{
    const char *newline;
    size_t at = 0;

    for (; (newline = memchr(l->text + at, '\n', l->bytes - at)) != NULL; at = (size_t)(newline - l->text) + 1)
        print_line(l, at, (size_t)(newline - l->text) - at);
    if (at == 0 && l->bytes == sizeof(l->text)) {
        print_line(l, 0, l->bytes);
        at = l->bytes;
    }
    l->bytes -= at;
    memmove(l->text, l->text + at, l->bytes);
}

bool cli_rank_lines_may_read(const struct cli_rank_lines *l)
{
    return l->from >= 0 && cli_rank_output_has_room(l->to, sizeof(l->text));
}

void cli_rank_lines_read(struct cli_rank_lines *l, bool last)
{
    ssize_t bytes = 1;

    while (cli_rank_lines_may_read(l) && (bytes > 0 || errno == EINTR)) {
        bytes = st_fault_refuses("launch.read") ? -1 : read(l->from, l->text + l->bytes, sizeof(l->text) - l->bytes);
        if (bytes > 0) {
            l->bytes += (size_t)bytes;
            print_lines(l);
        }
        if (bytes == 0 || (bytes < 0 && errno != EINTR && (last || errno != EAGAIN)))
            cli_rank_lines_close(l);
    }
}

void cli_rank_lines_close(struct cli_rank_lines *l)
{
    if (l->from < 0)
        return;
    if (l->bytes > 0)
        print_line(l, 0, l->bytes);
    l->bytes = 0;
    close(l->from);
    l->from = -1;
}
