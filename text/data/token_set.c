/* text/data/token_set.c - presents token files as one sequence of windows.  A window is read straight into the caller's
 * arrays. */
#include "core/base/error.h"
#include "core/base/fault.h"
#include "core/base/log.h"
#include "core/base/rng.h"
#include "text/data/token_pack.h"
#include "text/data/tokens_file_internal.h"
#include <stdlib.h>
#include <string.h>

struct part {
    struct st_token_file *file;
    const struct st_token_meta *meta; /* NULL: there is none */
    uint32_t *documents;              /* [document_count] of windows that hold documents: those that have a target */
    uint64_t document_count;
    struct st_packing packing; /* if its layout is packed */
    uint64_t window_first;     /* windows in the files before this one */
};

static enum st_token_layout layout_of(const struct part *p)
{
    return p->meta == NULL ? ST_LAYOUT_CONCATENATED : p->meta->layout;
}

struct st_token_set {
    struct part *parts; /* [count] */
    uint32_t count, seq, vocab;
    uint64_t windows;
    double bytes_per_token;
};

static void note_cut(const struct st_token_set *s, const struct part *p, uint64_t cut)
{
    if (cut > 0)
        st_log(ST_LOG_NOTICE,
               "%s: %llu of %llu documents are longer than a sequence of %u tokens and are cut: raise model.seq_len",
               st_token_file_name(p->file), (unsigned long long)cut, (unsigned long long)p->meta->documents, s->seq);
}

/* One document a window. */
static uint64_t count_rows(const struct st_token_set *s, const struct part *p)
{
    uint64_t cut = 0;

    for (uint64_t i = 0; i < p->document_count; i++)
        cut += p->meta->starts[p->documents[i] + 1] - p->meta->starts[p->documents[i]] > s->seq;
    note_cut(s, p, cut);
    return p->document_count;
}

/* A document of which nothing is trained before a sequence ends would make steps without a loss: it is left out. */
static strata_status keep_documents(const struct st_token_set *s, struct part *p)
{
    const struct st_token_meta *m = p->meta;
    const char *name = st_token_file_name(p->file);
    strata_status st = STRATA_OK;

    p->documents = st_fault("token_set.alloc", 0) < 0 ? NULL : malloc((m->documents + 1) * sizeof(*p->documents));
    if (p->documents == NULL)
        return st_nomem((m->documents + 1) * sizeof(*p->documents));
    for (uint64_t i = 0; i < m->documents && st == STRATA_OK; i++) {
        const uint64_t length = m->starts[i + 1] - m->starts[i], seen = length < s->seq ? length : s->seq;
        bool any;

        st = st_token_meta_trains(m, m->starts[i] + 1, seen - 1, &any);
        if (st == STRATA_OK && any)
            p->documents[p->document_count++] = (uint32_t)i;
    }
    if (st == STRATA_OK && p->document_count == 0)
        st = st_error_remedy(st_error(STRATA_E_INPUT, "%s: none of %llu documents has a token to train among its first %u", name,
                                      (unsigned long long)m->documents, s->seq),
                             "model.seq_len", "raise model.seq_len");
    else if (st == STRATA_OK && p->document_count < m->documents)
        st_log(ST_LOG_NOTICE, "%s: %llu of %llu documents have nothing to train among their first %u tokens and are left out",
               name, (unsigned long long)(m->documents - p->document_count), (unsigned long long)m->documents, s->seq);
    return st;
}

static strata_status count_windows(const struct st_token_set *s, struct part *p, uint64_t *windows)
{
    const uint64_t count = st_token_file_count(p->file);
    strata_status st;

    if (layout_of(p) != ST_LAYOUT_CONCATENATED && (st = keep_documents(s, p)) != STRATA_OK)
        return st;
    if (layout_of(p) == ST_LAYOUT_ROWS) {
        *windows = count_rows(s, p);
        return STRATA_OK;
    }
    if (layout_of(p) == ST_LAYOUT_PACKED) {
        st = st_pack_documents(&p->packing, p->meta->starts, p->documents, p->document_count, s->seq);
        *windows = p->packing.sequences;
        note_cut(s, p, p->packing.cut);
        return st;
    }
    if (count < (uint64_t)s->seq + 1)
        return st_error_remedy(st_error(STRATA_E_INPUT, "%s: %llu tokens are fewer than one window of %llu",
                                        st_token_file_name(p->file), (unsigned long long)count, (unsigned long long)s->seq + 1),
                               "model.seq_len", "lower model.seq_len");
    *windows = (count - 1) / s->seq;
    return STRATA_OK;
}

static strata_status add_file(struct st_token_set *s, const char *path, const char *name)
{
    struct part *p = &s->parts[s->count];
    uint64_t windows = 0;
    strata_status st;

    if ((st = st_token_file_open_as(&p->file, path, name, s->vocab)) != STRATA_OK)
        return st;
    p->meta = st_token_file_meta(p->file);
    p->window_first = s->windows;
    s->count++;
    if (st_token_file_vocab(p->file) != 0 && st_token_file_vocab(p->file) < s->vocab / 2)
        st_log(ST_LOG_NOTICE, "%s has a vocabulary of %u tokens, the model has %u: was it made with the model's tokenizer?", name,
               st_token_file_vocab(p->file), s->vocab);
    st = count_windows(s, p, &windows);
    if (st == STRATA_OK)
        s->windows += windows;
    return st;
}

/* Unknown where some tokens have no target: the loss says nothing of their bytes. */
static double bytes_per_token(const struct st_token_set *s)
{
    double bytes = 0.0, tokens = 0.0;

    for (uint32_t i = 0; i < s->count; i++) {
        const uint64_t source_bytes = st_token_file_source_bytes(s->parts[i].file);

        if (source_bytes == 0 || layout_of(&s->parts[i]) != ST_LAYOUT_CONCATENATED ||
            (s->parts[i].meta != NULL && s->parts[i].meta->has_mask))
            return 0.0;
        bytes += (double)source_bytes;
        tokens += (double)st_token_file_count(s->parts[i].file);
    }
    return bytes / tokens;
}

static strata_status open_set(struct st_token_set **out, const char *const *paths, const char *const *names, uint32_t count,
                              uint32_t vocab, uint32_t seq)
{
    struct st_token_set *s;
    strata_status st = STRATA_OK;

    if (count == 0 || seq == 0)
        return st_error(STRATA_E_INVAL, count == 0 ? "no token files" : "a sequence length of 0");
    if (count > ST_TOKEN_SET_FILES_MAX)
        return st_error(STRATA_E_INVAL, "%u token files: at most %u are read: make fewer of them", count, ST_TOKEN_SET_FILES_MAX);
    s = calloc(1, sizeof(*s));
    if (s == NULL)
        return st_nomem(sizeof(*s));
    s->seq = seq;
    s->vocab = vocab;
    s->parts = calloc(count, sizeof(*s->parts));
    if (s->parts == NULL)
        st = st_nomem(0);
    for (uint32_t i = 0; i < count && st == STRATA_OK; i++)
        st = add_file(s, paths[i], names[i]);
    if (st != STRATA_OK) {
        st_token_set_close(s);
        return st;
    }
    s->bytes_per_token = bytes_per_token(s);
    *out = s;
    return STRATA_OK;
}

strata_status st_token_set_open(struct st_token_set **out, const char *const *paths, uint32_t count, uint32_t vocab, uint32_t seq)
{
    return open_set(out, paths, paths, count, vocab, seq);
}

strata_status st_token_set_open_as(struct st_token_set **out, const char *path, const char *name, uint32_t vocab, uint32_t seq)
{
    return open_set(out, &path, &name, 1, vocab, seq);
}

void st_token_set_close(struct st_token_set *s)
{
    if (s == NULL)
        return;
    for (uint32_t i = 0; i < s->count; i++) {
        st_packing_free(&s->parts[i].packing);
        free(s->parts[i].documents);
        st_token_file_close(s->parts[i].file);
    }
    free(s->parts);
    free(s);
}

uint32_t st_token_set_files(const struct st_token_set *s)
{
    return s->count;
}

strata_status st_token_set_identify(const struct st_token_set *s, uint32_t file, struct st_token_identity *out)
{
    return st_token_file_identify(s->parts[file].file, out);
}

uint64_t st_token_set_windows(const struct st_token_set *s)
{
    return s->windows;
}

uint32_t st_token_set_longest(const struct st_token_set *s)
{
    uint64_t longest = 0;

    for (uint32_t i = 0; i < s->count; i++) {
        const struct part *p = &s->parts[i];

        if (layout_of(p) == ST_LAYOUT_CONCATENATED)
            return s->seq;
        for (uint64_t d = 0; d < p->document_count; d++) {
            const uint64_t *start = &p->meta->starts[p->documents[d]];

            longest = start[1] - start[0] > longest ? start[1] - start[0] : longest;
        }
    }
    return longest < s->seq ? (uint32_t)longest : s->seq;
}

bool st_token_set_documents(const struct st_token_set *s)
{
    for (uint32_t i = 0; i < s->count; i++)
        if (layout_of(&s->parts[i]) == ST_LAYOUT_PACKED)
            return true;
    return false;
}

uint32_t st_token_set_vocab(const struct st_token_set *s, const char **name)
{
    uint32_t largest = 0;

    for (uint32_t i = 0; i < s->count; i++)
        if (st_token_file_vocab(s->parts[i].file) > largest) {
            largest = st_token_file_vocab(s->parts[i].file);
            *name = st_token_file_name(s->parts[i].file);
        }
    return largest;
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
        return st_error(STRATA_E_INPUT, "%s changed while it was read: a token is outside the vocabulary", st_token_file_name(f));
    return st_token_file_check_unchanged(f);
}

/* seq + 1 tokens from anywhere: each has a target, unless the mask says otherwise. */
static strata_status concatenated_window(const struct st_token_set *s, const struct part *p, uint64_t window, int32_t *tokens,
                                         int32_t *targets)
{
    const uint64_t first = window * s->seq;
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
    return p->meta != NULL ? st_token_meta_mask(p->meta, first + 1, s->seq, targets) : STRATA_OK;
}

/* Up to `room` tokens of one document: tokens, targets and positions behind those that the window has.  *count: how many. */
static strata_status add_document(const struct part *p, uint64_t document, uint32_t room, int32_t *tokens, int32_t *targets,
                                  int32_t *positions, uint32_t *count)
{
    const uint64_t first = p->meta->starts[document], length = p->meta->starts[document + 1] - first;
    const uint32_t n = length < room ? (uint32_t)length : room;
    strata_status st = st_token_file_read(p->file, first, n, tokens);

    if (st != STRATA_OK)
        return st;
    if (st_token_file_token_bytes(p->file) == 2)
        for (uint32_t i = n; i > 0; i--) { /* widened in place, from the end */
            uint16_t token;

            memcpy(&token, (const unsigned char *)tokens + 2 * (size_t)(i - 1), sizeof(token));
            tokens[i - 1] = token;
        }
    memcpy(targets, tokens + 1, (size_t)(n - 1) * sizeof(*targets));
    targets[n - 1] = -1;
    for (uint32_t i = 0; positions != NULL && i < n; i++)
        positions[i] = (int32_t)i;
    *count = n;
    return st_token_meta_mask(p->meta, first + 1, n - 1, targets);
}

/* Whole documents, then nothing: tokens 0 that have no target and see nothing that counts. */
static strata_status document_window(const struct st_token_set *s, const struct part *p, uint64_t window, int32_t *tokens,
                                     int32_t *targets, int32_t *positions)
{
    const bool packed = layout_of(p) == ST_LAYOUT_PACKED;
    const uint64_t begin = packed ? p->packing.firsts[window] : window, end = packed ? p->packing.firsts[window + 1] : window + 1;
    uint32_t at = 0, count;
    strata_status st = STRATA_OK;

    for (uint64_t i = begin; i < end && st == STRATA_OK; i++, at += count)
        st = add_document(p, packed ? p->packing.order[i] : p->documents[i], s->seq - at, tokens + at, targets + at,
                          positions != NULL ? positions + at : NULL, &count);
    if (st != STRATA_OK)
        return st;
    for (uint32_t first = at; at < s->seq; at++) {
        tokens[at] = 0;
        targets[at] = STRATA_TARGET_PADDING;
        if (positions != NULL)
            positions[at] = (int32_t)(at - first);
    }
    return check_window(s, p->file, tokens, 0);
}

strata_status st_token_set_window(const struct st_token_set *s, uint64_t position, uint64_t seed, bool shuffle, int32_t *tokens,
                                  int32_t *targets, int32_t *positions)
{
    const uint64_t epoch = position / s->windows, index = position % s->windows;
    const uint64_t window = shuffle ? st_rng_permute(index, s->windows, seed, epoch) : index;
    const struct part *p = part_of(s, window);

    if (layout_of(p) != ST_LAYOUT_CONCATENATED)
        return document_window(s, p, window - p->window_first, tokens, targets, positions);
    for (uint32_t i = 0; positions != NULL && i < s->seq; i++)
        positions[i] = (int32_t)i;
    return concatenated_window(s, p, window - p->window_first, tokens, targets);
}
