/* model/data/tokens_text.c - turns text into token files, one token per byte; every n-th block may be held out. */
#include "core/base/error.h"
#include "core/base/fault.h"
#include "core/system/ending.h"
#include "core/system/file.h"
#include "model/data/tokens.h"
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define BLOCK_BYTES 16384u
#define BYTE_VOCAB  256u
#define TOKENS_MAX  INT32_MAX /* the header's count is an int32 */

struct texts {
    const char *const *paths; /* [count] "-": standard input */
    uint32_t count;
};

struct output {
    struct st_new_file file;
    uint64_t tokens;
    bool open;
};

struct job {
    struct output train, heldout;
    uint64_t every; /* the last of each `every` blocks is held out; 0: none */
    uint64_t block; /* blocks done */
    uint32_t fill;  /* bytes in `bytes` */
    unsigned char bytes[BLOCK_BYTES];
};

/* Opens an output, which must not be one of the texts. */
static strata_status output_open(struct output *o, const char *path, const struct texts *texts, bool overwrite)
{
    strata_status st = STRATA_OK;

    for (uint32_t i = 0; i < texts->count && st == STRATA_OK; i++)
        st = st_file_check_apart(path, texts->paths[i]);
    if (st == STRATA_OK)
        st = st_new_file_create(&o->file, path, overwrite ? ST_NEW_FILE_OVERWRITE : 0);
    o->open = st == STRATA_OK;
    return st;
}

static strata_status output_put(struct output *o, const unsigned char *bytes, uint32_t count)
{
    unsigned char words[2 * BLOCK_BYTES];
    const uint64_t at = ST_TOKEN_HEADER_BYTES + 2 * o->tokens;

    if (o->tokens + count > TOKENS_MAX)
        return st_error(STRATA_E_INPUT, "%s: over %d tokens; a token file holds no more: split the text", o->file.path,
                        TOKENS_MAX);
    for (uint32_t i = 0; i < count; i++) {
        words[2 * i] = bytes[i];
        words[2 * i + 1] = 0;
    }
    o->tokens += count;
    return st_new_file_write_at(&o->file, words, 2 * (uint64_t)count, at);
}

static strata_status output_header(struct output *o)
{
    unsigned char header[ST_TOKEN_HEADER_BYTES];

    /* one byte of text per token */
    st_token_header_write(
        header, &(struct st_token_header){.token_bytes = 2, .vocab = BYTE_VOCAB, .count = o->tokens, .source_bytes = o->tokens});
    return st_new_file_write_at(&o->file, header, sizeof(header), 0);
}

static void output_abort(struct output *o)
{
    if (o->open)
        st_new_file_abort(&o->file);
}

static strata_status block_done(struct job *j)
{
    const bool aside = j->every > 0 && j->block % j->every == j->every - 1;
    const strata_status st = output_put(aside ? &j->heldout : &j->train, j->bytes, j->fill);

    j->block++;
    j->fill = 0;
    return st;
}

/* Reads to the end; *bytes: how many there were. */
static strata_status read_stream(struct job *j, int fd, const char *name, uint64_t *bytes)
{
    uint32_t interrupted = 0;
    strata_status st;

    *bytes = 0;
    for (;;) {
        const ssize_t res = read(fd, j->bytes + j->fill, BLOCK_BYTES - j->fill);
        const int64_t got = st_fault("tokens.read", res < 0 ? -errno : res);

        if (st_again(got, &interrupted))
            continue;
        interrupted = 0;
        if (got < 0)
            return st_error(STRATA_E_INPUT, "reading %s: %s", name, strerror((int)-got));
        if (got == 0)
            return STRATA_OK;
        *bytes += (uint64_t)got;
        j->fill += (uint32_t)got;
        if (j->fill == BLOCK_BYTES && (st = block_done(j)) != STRATA_OK)
            return st;
    }
}

/* Standard input may be a file whose beginning has already been read. */
static strata_status read_standard_input(struct job *j)
{
    static const char name[] = "standard input";
    struct st_file_identity was;
    uint64_t bytes;
    strata_status st;

    if ((st = st_file_identify(&was, STDIN_FILENO, name)) != STRATA_OK ||
        (st = read_stream(j, STDIN_FILENO, name, &bytes)) != STRATA_OK)
        return st;
    return st_file_check_unchanged(STDIN_FILENO, &was, name);
}

static strata_status read_text(struct job *j, const char *path)
{
    struct st_file_identity was;
    uint64_t bytes;
    strata_status st;
    int fd;

    if (strcmp(path, "-") == 0)
        return read_standard_input(j);
    if ((st = st_file_open_stream(&fd, &was, path, STRATA_E_INPUT)) != STRATA_OK)
        return st;
    if ((st = read_stream(j, fd, path, &bytes)) == STRATA_OK && (st = st_file_check_unchanged(fd, &was, path)) == STRATA_OK &&
        was.regular && bytes != was.bytes)
        st = st_error(STRATA_E_INPUT, "%s has %llu bytes, but ended after %llu: run again", path, (unsigned long long)was.bytes,
                      (unsigned long long)bytes);
    close(fd);
    return st;
}

/* A file that replaced another stays, since the old one cannot be restored.  No fault site: a file that stays is complete. */
static void take_back(const struct st_new_file *f)
{
    if (!f->overwrite)
        (void)unlink(f->path);
}

/* Both files are one data set: they are on the disk before the first takes its name, and a signal finds neither or both. */
static strata_status name_both(struct job *j)
{
    strata_status st;

    if ((st = st_new_file_sync(&j->heldout.file)) != STRATA_OK || (st = st_new_file_sync(&j->train.file)) != STRATA_OK)
        return st;
    st_ending_hold();
    if ((st = st_new_file_publish(&j->heldout.file)) == STRATA_OK && (st = st_new_file_publish(&j->train.file)) != STRATA_OK)
        take_back(&j->heldout.file);
    if (st == STRATA_OK)
        st = st_new_file_commit(&j->heldout.file);
    if (st == STRATA_OK)
        st = st_new_file_commit(&j->train.file);
    st_ending_release();
    return st;
}

/* "dir/kjv.bin" -> "dir/kjv.heldout.bin" */
static strata_status heldout_name(char out[512], const char *path)
{
    const char *base = strrchr(path, '/'), *dot;
    size_t stem;
    int length;

    base = base != NULL ? base + 1 : path;
    dot = strrchr(base, '.');
    stem = dot != NULL && dot != base ? (size_t)(dot - path) : strlen(path);
    length = snprintf(out, 512, "%.*s.heldout%s", (int)stem, path, path + stem);
    return length > 0 && length < 512 ? STRATA_OK : st_error(STRATA_E_INVAL, "path too long: %s", path);
}

static strata_status start(struct job *j, const struct texts *texts, const char *out, double heldout, bool overwrite,
                           char heldout_path[512])
{
    strata_status st;

    if (!(heldout == 0.0 || (heldout > 1e-6 && heldout <= 0.5)))
        return st_error(STRATA_E_INVAL, "a held-out part of %g: it must be 0, or above 0 and at most 0.5", heldout);
    heldout_path[0] = '\0';
    if (heldout > 0.0) {
        j->every = (uint64_t)llround(1.0 / heldout);
        if ((st = heldout_name(heldout_path, out)) != STRATA_OK ||
            (st = output_open(&j->heldout, heldout_path, texts, overwrite)) != STRATA_OK)
            return st;
    }
    return output_open(&j->train, out, texts, overwrite);
}

static strata_status finish(struct job *j)
{
    strata_status st;

    if (j->fill > 0 && (st = block_done(j)) != STRATA_OK)
        return st;
    if (j->train.tokens == 0)
        return st_error(STRATA_E_INPUT, "%s: the text is empty", j->train.file.path);
    if (j->every > 0 && j->heldout.tokens == 0)
        return st_error(STRATA_E_INPUT,
                        "%s: the text is too short to set every %lluth block of %u bytes aside: give more text, or no --heldout",
                        j->train.file.path, (unsigned long long)j->every, BLOCK_BYTES);
    if ((st = output_header(&j->train)) != STRATA_OK || (j->every > 0 && (st = output_header(&j->heldout)) != STRATA_OK))
        return st;
    return j->every > 0 ? name_both(j) : st_new_file_commit(&j->train.file);
}

strata_status st_tokens_from_bytes(const char *const *texts, uint32_t count, const char *out, double heldout, bool overwrite,
                                   struct st_tokens_report *report)
{
    struct job j = {0};
    char heldout_path[512];
    strata_status st = start(&j, &(struct texts){texts, count}, out, heldout, overwrite, heldout_path);

    for (uint32_t i = 0; i < count && st == STRATA_OK; i++)
        st = read_text(&j, texts[i]);
    if (st == STRATA_OK)
        st = finish(&j);
    if (st != STRATA_OK) {
        output_abort(&j.train);
        output_abort(&j.heldout);
        return st;
    }
    if (report != NULL) {
        *report = (struct st_tokens_report){
            .tokens = j.train.tokens,
            .source_bytes = j.train.tokens,
            .heldout_tokens = j.heldout.tokens,
            .heldout_bytes = j.heldout.tokens,
        };
        memcpy(report->heldout_path, heldout_path, sizeof(report->heldout_path));
    }
    return STRATA_OK;
}
