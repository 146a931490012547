/* model/data/token_set.c - presents token files as one sequence of windows.  A window is read straight into the caller's
 * arrays. */
#include "core/base/error.h"
#include "core/base/log.h"
#include "core/base/rng.h"
#include "model/data/tokens_file_internal.h"
#include <stdlib.h>
#include <string.h>

struct part {
    struct st_token_file *file;
    uint64_t window_first; /* windows in the files before this one */
};

struct st_token_set {
    struct part *parts; /* [count] */
    uint32_t count, seq, vocab;
    uint64_t windows;
    double bytes_per_token;
};

static strata_status add_file(struct st_token_set *s, const char *path)
{
    struct part *p = &s->parts[s->count];
    uint64_t count;
    strata_status st;

    if ((st = st_token_file_open(&p->file, path, s->vocab)) != STRATA_OK)
        return st;
    p->window_first = s->windows;
    s->count++;
    if (st_token_file_vocab(p->file) != 0 && st_token_file_vocab(p->file) < s->vocab / 2)
        st_log(ST_LOG_NOTICE, "%s has a vocabulary of %u tokens, the model has %u: was it made with the model's tokenizer?", path,
               st_token_file_vocab(p->file), s->vocab);
    count = st_token_file_count(p->file);
    if (count < (uint64_t)s->seq + 1)
        return st_error(STRATA_E_INPUT, "%s: %llu tokens are fewer than one window of %llu: lower --seq-len", path,
                        (unsigned long long)count, (unsigned long long)s->seq + 1);
    s->windows += (count - 1) / s->seq;
    return STRATA_OK;
}

static double bytes_per_token(const struct st_token_set *s)
{
    double bytes = 0.0, tokens = 0.0;

    for (uint32_t i = 0; i < s->count; i++) {
        const uint64_t source_bytes = st_token_file_source_bytes(s->parts[i].file);

        if (source_bytes == 0)
            return 0.0;
        bytes += (double)source_bytes;
        tokens += (double)st_token_file_count(s->parts[i].file);
    }
    return bytes / tokens;
}

strata_status st_token_set_open(struct st_token_set **out, const char *const *paths, uint32_t count, uint32_t vocab, uint32_t seq)
{
    struct st_token_set *s;
    strata_status st = STRATA_OK;

    if (count == 0 || seq == 0)
        return st_error(STRATA_E_INVAL, count == 0 ? "no token files" : "a sequence length of 0");
    s = calloc(1, sizeof(*s));
    if (s == NULL)
        return st_error(STRATA_E_NOMEM, "token files");
    s->seq = seq;
    s->vocab = vocab;
    s->parts = calloc(count, sizeof(*s->parts));
    if (s->parts == NULL)
        st = st_error(STRATA_E_NOMEM, "%u token files", count);
    for (uint32_t i = 0; i < count && st == STRATA_OK; i++)
        st = add_file(s, paths[i]);
    if (st != STRATA_OK) {
        st_token_set_close(s);
        return st;
    }
    s->bytes_per_token = bytes_per_token(s);
    *out = s;
    return STRATA_OK;
}

void st_token_set_close(struct st_token_set *s)
{
    if (s == NULL)
        return;
    for (uint32_t i = 0; i < s->count; i++)
        st_token_file_close(s->parts[i].file);
    free(s->parts);
    free(s);
}

uint64_t st_token_set_windows(const struct st_token_set *s)
{
    return s->windows;
}

double st_token_set_bytes_per_token(const struct st_token_set *s)
{
    return s->bytes_per_token;
}

/* The last file whose windows begin at or before `window`. */
static const struct part *part_of(const struct st_token_set *s, uint64_t window)
{
    uint32_t low = 0, high = s->count;

    while (high - low > 1) {
        const uint32_t middle = low + (high - low) / 2;

        if (s->parts[middle].window_first <= window)
            low = middle;
        else
            high = middle;
    }
    return &s->parts[low];
}

/* 16-bit tokens are read into the targets' array first: seq + 1 of them fit into seq ints. */
static strata_status read_u16(const struct st_token_file *f, uint64_t first, uint32_t seq, int32_t *tokens, int32_t *last,
                              void *scratch)
{
    const unsigned char *raw = scratch;
    const strata_status st = st_token_file_read(f, first, (uint64_t)seq + 1, scratch);
    uint16_t token;

    if (st != STRATA_OK)
        return st;
    for (uint32_t i = 0; i < seq; i++) {
        memcpy(&token, raw + 2 * (size_t)i, sizeof(token));
        tokens[i] = token;
    }
    memcpy(&token, raw + 2 * (size_t)seq, sizeof(token));
    *last = token;
    return STRATA_OK;
}

static strata_status read_u32(const struct st_token_file *f, uint64_t first, uint32_t seq, int32_t *tokens, int32_t *last)
{
    const strata_status st = st_token_file_read(f, first, seq, tokens);

    return st == STRATA_OK ? st_token_file_read(f, first + seq, 1, last) : st;
}

/* The file may have been rewritten since it was scanned, and its times do not change if two writes fall into one clock tick. */
static strata_status check_window(const struct st_token_set *s, const struct st_token_file *f, const int32_t *tokens,
                                  int32_t last)
{
    bool good = s->vocab == 0 || (uint32_t)last < s->vocab;

    for (uint32_t i = 0; i < s->seq; i++)
        good &= s->vocab == 0 || (uint32_t)tokens[i] < s->vocab;
    if (!good)
        return st_error(STRATA_E_INPUT, "%s changed while it was read: a token is outside the vocabulary", st_token_file_path(f));
    return st_token_file_check_unchanged(f);
}

strata_status st_token_set_window(const struct st_token_set *s, uint64_t position, uint64_t seed, bool shuffle, int32_t *tokens,
                                  int32_t *targets)
{
    const uint64_t epoch = position / s->windows, index = position % s->windows;
    const uint64_t window = shuffle ? st_rng_permute(index, s->windows, seed, epoch) : index;
    const struct part *p = part_of(s, window);
    const uint64_t first = (window - p->window_first) * s->seq;
    int32_t last;
    strata_status st;

    if (st_token_file_token_bytes(p->file) == 2)
        st = read_u16(p->file, first, s->seq, tokens, &last, targets);
    else
        st = read_u32(p->file, first, s->seq, tokens, &last);
    if (st != STRATA_OK || (st = check_window(s, p->file, tokens, last)) != STRATA_OK)
        return st;
    memcpy(targets, tokens + 1, (size_t)(s->seq - 1) * sizeof(*targets));
    targets[s->seq - 1] = last;
    return STRATA_OK;
}
