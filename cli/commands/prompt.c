/* cli/commands/prompt.c - prompts from text and files, as tokens, bytes or a message, and from lists of ids. */
#include "cli/commands/prompt.h"
#include "core/base/error.h"
#include "core/base/fault.h"
#include "core/system/file.h"
#include "strata/tokenizer.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TEXT_SHOWN 64 /* bytes of a token in a message */

static strata_status prompt_reserve(struct cli_prompt *p, size_t count)
{
    p->tokens = st_fault_refuses("prompt.alloc") ? NULL : malloc(count * sizeof(*p->tokens));
    return p->tokens != NULL ? STRATA_OK : st_nomem(count * sizeof(*p->tokens));
}

/* --- what a text becomes --- */

static strata_status to_message(struct cli_prompt *p, const char *text, size_t bytes)
{
    if (memchr(text, '\0', bytes) != NULL)
        return st_error(STRATA_E_INPUT, "the message has a zero byte: it is not text");
    p->text = st_fault_refuses("prompt.alloc") ? NULL : strndup(text, bytes);
    return p->text != NULL ? STRATA_OK : st_nomem(bytes);
}

static strata_status to_bytes(struct cli_prompt *p, const char *text, size_t bytes)
{
    const strata_status st = prompt_reserve(p, bytes);

    if (st != STRATA_OK)
        return st;
    for (size_t i = 0; i < bytes; i++)
        p->tokens[i] = (unsigned char)text[i];
    p->count = (uint32_t)bytes;
    return STRATA_OK;
}

/* With what the tokenizer puts before a text, as transformers does. */
static strata_status to_tokens(struct cli_prompt *p, struct strata_tokenizer *tokenizer, const char *text, size_t bytes)
{
    struct strata_encode_opts opts = STRATA_ENCODE_OPTS_INIT;
    const int32_t *ids;
    size_t count;
    strata_status st;

    opts.add_special = true;
    st = strata_tokenizer_encode(tokenizer, text, bytes, &opts, &ids, &count);
    if (st == STRATA_OK && count == 0)
        st = st_error(STRATA_E_INPUT, "the prompt has no tokens: there is nothing to continue");
    if (st == STRATA_OK)
        st = prompt_reserve(p, count);
    if (st != STRATA_OK)
        return st;
    memcpy(p->tokens, ids, count * sizeof(*ids));
    p->count = (uint32_t)count;
    return STRATA_OK;
}

/* Where prompts come from, and what they become. */
struct source {
    const struct cli_args *args;
    struct strata_tokenizer *tokenizer;
};

static strata_status from_text(struct cli_prompt *p, const struct source *from, const char *text, size_t bytes)
{
    if (from->args->chat)
        return to_message(p, text, bytes);
    return from->tokenizer != NULL ? to_tokens(p, from->tokenizer, text, bytes) : to_bytes(p, text, bytes);
}

/* --- files --- */

/* `was`: identity of the open file; NULL: standard input. */
static strata_status from_stream(struct cli_prompt *p, const struct source *from, FILE *file, const struct st_file_identity *was)
{
    const char *path = from->args->prompt_file;
    char *text = st_fault_refuses("prompt.alloc") ? NULL : malloc(CLI_PROMPT_BYTES_MAX + 1);
    size_t bytes = 0;
    int error = ENOMEM;
    strata_status st;

    if (text != NULL) {
        errno = 0;
        bytes = fread(text, 1, CLI_PROMPT_BYTES_MAX + 1, file);
        error = (int)-st_fault("prompt.read", ferror(file) != 0 ? -errno : 0);
    }
    if (error != 0)
        st = st_error_errno(error, "--prompt-file %s", path);
    else if (bytes == 0)
        st = st_error(STRATA_E_INPUT, "--prompt-file %s is empty: there is nothing to continue", path);
    else if (bytes > CLI_PROMPT_BYTES_MAX)
        st = st_error(STRATA_E_INPUT, "--prompt-file %s is longer than %u bytes", path, CLI_PROMPT_BYTES_MAX);
    else if (was == NULL || (st = st_file_check_unchanged(fileno(file), was, path)) == STRATA_OK)
        st = from_text(p, from, text, bytes);
    free(text);
    return st;
}

static strata_status from_file(struct cli_prompt *p, const struct source *from)
{
    const char *path = from->args->prompt_file;
    struct st_file_identity was;
    strata_status st;
    FILE *file;
    int fd;

    if (strcmp(path, "-") == 0)
        return from_stream(p, from, stdin, NULL);
    if ((st = st_file_open_stream(&fd, &was, path, STRATA_E_INPUT)) != STRATA_OK)
        return st_error_prefix(st, "--prompt-file");
    file = st_fault_refuses("prompt.stream") ? NULL : fdopen(fd, "r");
    if (file == NULL) {
        close(fd);
        return st_nomem(0);
    }
    st = from_stream(p, from, file, &was);
    fclose(file);
    return st;
}

/* --- ids --- */

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

strata_status cli_prompt_read(struct cli_prompt *p, const struct cli_args *args, struct strata_tokenizer *tokenizer)
{
    const struct source from = {.args = args, .tokenizer = tokenizer};

    *p = (struct cli_prompt){0};
    if (args->prompt != NULL)
        return from_text(p, &from, args->prompt, strlen(args->prompt));
    return args->prompt_file != NULL ? from_file(p, &from) : from_ids(p, args->prompt_tokens);
}

strata_status cli_prompt_check(const int32_t *ids, uint32_t count, uint32_t vocab, const char *what,
                               struct strata_tokenizer *tokenizer)
{
    const char *text;
    uint32_t i = 0;
    size_t bytes;

    while (i < count && (uint32_t)ids[i] < vocab)
        i++;
    if (i == count)
        return STRATA_OK;
    if (tokenizer == NULL || strata_tokenizer_decode(tokenizer, &ids[i], 1, false, &text, &bytes) != STRATA_OK)
        return st_error(STRATA_E_INVAL, "%s: %d is not one of the vocabulary's %u tokens (0 to %u)", what, ids[i], vocab,
                        vocab - 1);
    return st_error(STRATA_E_INVAL, "%s: token %u is \"%.*s\", id %d, and the model has rows for %u tokens: leave it out", what,
                    i, (int)(bytes < TEXT_SHOWN ? bytes : TEXT_SHOWN), text, ids[i], vocab);
}

void cli_prompt_fini(struct cli_prompt *p)
{
    free(p->tokens);
    free(p->text);
    *p = (struct cli_prompt){0};
}
