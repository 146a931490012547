/* cli/commands/prompt.c - prompts from text and files, as bytes, and from lists of ids. */
#include "cli/commands/prompt.h"
#include "core/base/error.h"
#include "core/base/fault.h"
#include "core/system/file.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PROMPT_TOKENS_MAX (UINT32_C(1) << 20) /* more than any context */

static strata_status prompt_reserve(struct cli_prompt *p, size_t count)
{
    p->tokens = st_fault_refuses("prompt.alloc") ? NULL : malloc(count * sizeof(*p->tokens));
    return p->tokens != NULL ? STRATA_OK : st_error(STRATA_E_NOMEM, "no memory for a prompt of %zu tokens", count);
}

static strata_status from_bytes(struct cli_prompt *p, const unsigned char *bytes, size_t count)
{
    const strata_status st = prompt_reserve(p, count);

    if (st != STRATA_OK)
        return st;
    for (size_t i = 0; i < count; i++)
        p->tokens[i] = bytes[i];
    p->count = (uint32_t)count;
    return STRATA_OK;
}

/* `was`: identity of the open file; NULL: standard input. */
static strata_status from_stream(struct cli_prompt *p, FILE *file, const struct st_file_identity *was, const char *path)
{
    unsigned char *bytes = st_fault_refuses("prompt.alloc") ? NULL : malloc(PROMPT_TOKENS_MAX + 1);
    size_t count = 0;
    int error = ENOMEM;
    strata_status st;

    if (bytes != NULL) {
        errno = 0;
        count = fread(bytes, 1, PROMPT_TOKENS_MAX + 1, file);
        error = (int)-st_fault("prompt.read", ferror(file) != 0 ? -errno : 0);
    }
    if (error != 0)
        st = st_error_errno(error, "--prompt-file %s", path);
    else if (count == 0)
        st = st_error(STRATA_E_INPUT, "--prompt-file %s is empty: there is nothing to continue", path);
    else if (count > PROMPT_TOKENS_MAX)
        st = st_error(STRATA_E_INPUT, "--prompt-file %s is longer than %u bytes", path, PROMPT_TOKENS_MAX);
    else if (was == NULL || (st = st_file_check_unchanged(fileno(file), was, path)) == STRATA_OK)
        st = from_bytes(p, bytes, count);
    free(bytes);
    return st;
}

static strata_status from_file(struct cli_prompt *p, const char *path)
{
    struct st_file_identity was;
    strata_status st;
    FILE *file;
    int fd;

    if (strcmp(path, "-") == 0)
        return from_stream(p, stdin, NULL, path);
    if ((st = st_file_open_stream(&fd, &was, path, STRATA_E_INPUT)) != STRATA_OK)
        return st_error_prefix(st, "--prompt-file");
    file = st_fault_refuses("prompt.stream") ? NULL : fdopen(fd, "r");
    if (file == NULL) {
        close(fd);
        return st_error(STRATA_E_NOMEM, "--prompt-file %s", path);
    }
    st = from_stream(p, file, &was, path);
    fclose(file);
    return st;
}

static strata_status from_ids(struct cli_prompt *p, const char *list)
{
    strata_status st = prompt_reserve(p, strlen(list) / 2 + 1);
    const char *at = list;

    while (st == STRATA_OK) {
        char *end;
        unsigned long id;

        errno = 0;
        id = strtoul(at, &end, 10);
        if (*at < '0' || *at > '9' || errno != 0 || id > INT32_MAX || (*end != ',' && *end != '\0'))
            return st_error(STRATA_E_INVAL, "--prompt-tokens: \"%.40s\" is not a list of ids such as 12,7,50256", at);
        p->tokens[p->count++] = (int32_t)id;
        if (*end == '\0')
            break;
        at = end + 1;
    }
    return st;
}

strata_status cli_prompt_read(struct cli_prompt *p, const struct cli_args *args)
{
    *p = (struct cli_prompt){0};
    if (args->prompt != NULL)
        return from_bytes(p, (const unsigned char *)args->prompt, strlen(args->prompt));
    return args->prompt_file != NULL ? from_file(p, args->prompt_file) : from_ids(p, args->prompt_tokens);
}

strata_status cli_prompt_check(const struct cli_prompt *p, uint32_t vocab)
{
    for (uint32_t i = 0; i < p->count; i++)
        if ((uint32_t)p->tokens[i] >= vocab)
            return st_error(STRATA_E_INVAL, "--prompt-tokens: %d is not one of the vocabulary's %u tokens (0 to %u)",
                            p->tokens[i], vocab, vocab - 1);
    return STRATA_OK;
}

void cli_prompt_fini(struct cli_prompt *p)
{
    free(p->tokens);
    *p = (struct cli_prompt){0};
}
