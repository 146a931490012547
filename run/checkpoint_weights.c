/* run/checkpoint_weights.c - see run/checkpoint_weights.h. */
#include "run/checkpoint_weights.h"

#include "core/base/error.h"
#include "core/base/fault.h"
#include "core/base/log.h"
#include "core/system/file.h"
#include "kernels/widen.h"
#include "model/adapter/adapter.h"
#include "offload/checkpoint/model_files.h"
#include "offload/checkpoint/reader.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* Elements that lie side by side in a page of the model and in one of the checkpoint. */
struct run {
    uint32_t page, saved_page;
    uint64_t first, saved_first, elems; /* from the pages' starts */
};

struct st_checkpoint_weights {
    const struct st_checkpoint *ck;
    struct st_reader *reader;
    pthread_mutex_t lock; /* of the reader, which serves one caller at a time */
    const struct st_kernels *kernels;
    struct run *runs; /* [run_count], ascending by page and first */
    uint32_t run_count, room;
};

/* --- finding one --- */

static void note_skipped(void *ctx, const char *path, const char *sentence)
{
    (void)ctx;
    st_log(ST_LOG_NOTICE, "%s does not open, and an older one is used: %s", path, sentence);
}

strata_status st_checkpoint_as_model(struct st_checkpoint **out, const char *name)
{
    char path[ST_PATH_MAX];
    bool there;
    strata_status st = st_path_join(path, name, "config.json");

    *out = NULL;
    if (st != STRATA_OK || (st = st_file_find(&there, path)) != STRATA_OK || there)
        return st;
    st = st_checkpoint_find(out, name, note_skipped, NULL);
    return st == STRATA_E_INPUT ? STRATA_OK : st;
}

strata_status st_checkpoint_model_dir(char dir[ST_PATH_MAX], const struct st_checkpoint *ck)
{
    const strata_status st = st_model_files_check(ck);

    return st == STRATA_OK ? st_path_join(dir, ck->path, ST_CHECKPOINT_MODEL) : st;
}

bool st_checkpoint_has_nf4(const struct st_checkpoint *ck)
{
    for (uint32_t i = 0; i < ck->manifest.group_count; i++)
        if (ck->manifest.groups[i].format == STRATA_NF4)
            return true;
    return false;
}

/* --- where each tensor lies in the one and in the other --- */

/* A tensor's part: what one page has of it. */
struct part {
    uint32_t page;
    uint64_t offset, elems; /* from the page's start */
};

static strata_status add_run(struct st_checkpoint_weights *w, const struct part *to, const struct part *from, uint64_t elems)
{
    if (w->run_count == w->room) {
        const uint32_t room = w->room * 2 + 64;
        struct run *more = st_fault_refuses("run.runs") ? NULL : realloc(w->runs, room * sizeof(*more));

        if (more == NULL)
            return st_nomem(room * sizeof(*more));
        w->runs = more;
        w->room = room;
    }
    w->runs[w->run_count++] = (struct run){
        .page = to->page, .saved_page = from->page, .first = to->offset, .saved_first = from->offset, .elems = elems};
    return STRATA_OK;
}

/* Part number i of a tensor in the model: the table and the head span pages, row by row. */
static struct part model_part(const struct st_workload *w, const struct st_tensor *t, uint32_t i)
{
    const uint32_t page = t->page + i;

    return (struct part){.page = page,
                         .offset = t->offset,
                         .elems = t->page_count > 1 ? (uint64_t)w->pages[page].row_count * w->hidden : t->elems};
}

static void skip(struct part *p, uint64_t elems)
{
    p->offset += elems;
    p->elems -= elems;
}

/* The manifest's parts, sorted by name: adapters of experts lie behind the experts of their page, so their order is that of how
 * many a page has, which is not the same in training and in generation. */
struct named {
    const char *name;
    uint32_t at;
    bool taken;
};

static int by_name(const void *a, const void *b)
{
    const struct named *x = a, *y = b;
    const int order = strcmp(x->name, y->name);

    return order != 0 ? order : (x->at > y->at) - (x->at < y->at);
}

/* The first part of this name, or where it would be. */
static uint32_t find_part(const struct named *parts, uint32_t count, const char *name)
{
    uint32_t low = 0, high = count;

    while (low < high) {
        const uint32_t mid = low + (high - low) / 2;

        if (strcmp(parts[mid].name, name) < 0)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

static bool is_of(const struct named *parts, uint32_t count, uint32_t i, const char *name)
{
    return i < count && strcmp(parts[i].name, name) == 0;
}

static strata_status place_tensor(struct st_checkpoint_weights *w, const struct st_workload *workload, const struct st_tensor *t,
                                  struct named *parts)
{
    const struct st_manifest *m = &w->ck->manifest;
    struct part to = {0}, from = {0};
    uint32_t pages = 0, next = find_part(parts, m->tensor_count, t->name);
    strata_status st;

    if (st_adapter_is_own(t->name) && !is_of(parts, m->tensor_count, next, t->name)) /* it begins with this run */
        return STRATA_OK;
    for (uint64_t done = 0, elems; done < t->elems; done += elems) {
        if (to.elems == 0)
            to = model_part(workload, t, pages++);
        if (from.elems == 0) {
            if (!is_of(parts, m->tensor_count, next, t->name))
                return st_error(STRATA_E_CORRUPT, "%s: it lacks tensor %s, or a part of it, which its config.json wants",
                                w->ck->path, t->name);
            from = (struct part){.page = m->tensors[parts[next].at].page,
                                 .offset = m->tensors[parts[next].at].offset,
                                 .elems = m->tensors[parts[next].at].elems};
            parts[next++].taken = true;
        }
        elems = to.elems < from.elems ? to.elems : from.elems;
        if ((st = add_run(w, &to, &from, elems)) != STRATA_OK)
            return st;
        skip(&to, elems);
        skip(&from, elems);
    }
    return from.elems == 0
               ? STRATA_OK
               : st_error(STRATA_E_CORRUPT, "%s: its tensor %s is larger than its config.json says", w->ck->path, t->name);
}

static int by_place(const void *a, const void *b)
{
    const struct run *x = a, *y = b;

    if (x->page != y->page)
        return (x->page > y->page) - (x->page < y->page);
    return (x->first > y->first) - (x->first < y->first);
}

static strata_status place_all(struct st_checkpoint_weights *w, const struct st_model *model)
{
    const struct st_manifest *m = &w->ck->manifest;
    const size_t bytes = (m->tensor_count + (size_t)1) * sizeof(struct named);
    struct named *parts = st_fault_refuses("run.parts") ? NULL : malloc(bytes);
    strata_status st = STRATA_OK;

    if (parts == NULL)
        return st_nomem(bytes);
    for (uint32_t i = 0; i < m->tensor_count; i++)
        parts[i] = (struct named){.name = m->tensors[i].name, .at = i};
    qsort(parts, m->tensor_count, sizeof(*parts), by_name);
    for (uint32_t i = 0; i < st_model_tensor_count(model) && st == STRATA_OK; i++)
        st = place_tensor(w, st_model_workload(model), st_model_tensor(model, i), parts);
    for (uint32_t i = 0; i < m->tensor_count && st == STRATA_OK; i++)
        if (!parts[i].taken)
            st = st_error(STRATA_E_CORRUPT, "%s: its tensor %s has no place in a model of its config.json", w->ck->path,
                          parts[i].name);
    free(parts);
    if (st == STRATA_OK)
        qsort(w->runs, w->run_count, sizeof(*w->runs), by_place);
    return st;
}

strata_status st_checkpoint_weights_open(struct st_checkpoint_weights **out, const struct st_checkpoint *ck,
                                         const struct st_model *m)
{
    struct st_checkpoint_weights *w = st_fault_refuses("run.weights") ? NULL : calloc(1, sizeof(*w));
    strata_status st;

    if (w == NULL)
        return st_nomem(sizeof(*w));
    w->ck = ck;
    w->kernels = st_kernels_pick("auto");
    pthread_mutex_init(&w->lock, NULL);
    st = place_all(w, m);
    if (st == STRATA_OK)
        st = st_reader_open(&w->reader, ck, NULL);
    if (st != STRATA_OK) {
        st_checkpoint_weights_close(w);
        return st;
    }
    *out = w;
    return STRATA_OK;
}

void st_checkpoint_weights_close(struct st_checkpoint_weights *w)
{
    if (w == NULL)
        return;
    st_reader_close(w->reader);
    pthread_mutex_destroy(&w->lock);
    free(w->runs);
    free(w);
}

/* --- reading --- */

struct reading {
    struct st_reader_span *spans;
    uint64_t *to; /* of each span: elements from the model's page's start */
    uint64_t span_count, span, done;
    uint32_t page;
    st_checkpoint_weights_fn *emit;
    void *ctx;
};

/* The first run that ends behind an element of a page. */
static uint32_t run_at(const struct st_checkpoint_weights *w, uint32_t page, uint64_t first)
{
    uint32_t low = 0, high = w->run_count;

    while (low < high) {
        const uint32_t mid = low + (high - low) / 2;
        const struct run *r = &w->runs[mid];

        if (r->page < page || (r->page == page && r->first + r->elems <= first))
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

/* r->spans NULL: they are only counted. */
static void list_spans(const struct st_checkpoint_weights *w, struct reading *r, uint64_t first, uint64_t count)
{
    r->span_count = 0;
    for (uint32_t i = run_at(w, r->page, first); i < w->run_count; i++) {
        const struct run *run = &w->runs[i];
        const uint64_t begin = run->first > first ? run->first : first;
        const uint64_t end = run->first + run->elems < first + count ? run->first + run->elems : first + count;
        struct st_reader_span *spans = r->spans != NULL ? r->spans + r->span_count : NULL;
        uint64_t at = begin, added;

        if (run->page != r->page || begin >= end)
            break;
        added =
            st_reader_spans(spans, w->ck, ST_PLANE_WEIGHT, run->saved_page, run->saved_first + (begin - run->first), end - begin);
        for (uint64_t s = 0; spans != NULL && s < added; at += spans[s++].elems)
            r->to[r->span_count + s] = at;
        r->span_count += added;
    }
}

static strata_status take(void *ctx, const struct st_extent_row *row, uint64_t first, uint64_t elems, const void *data)
{
    struct reading *r = ctx;
    const strata_status st = r->emit(r->ctx, r->page, r->to[r->span] + r->done, elems, (strata_dtype)row->format, data);

    (void)first;
    r->done += elems;
    if (r->done == r->spans[r->span].elems) {
        r->span++;
        r->done = 0;
    }
    return st;
}

strata_status st_checkpoint_weights_each(struct st_checkpoint_weights *w, uint32_t page, uint64_t first, uint64_t count,
                                         st_checkpoint_weights_fn *emit, void *ctx)
{
    struct reading r = {.page = page, .emit = emit, .ctx = ctx};
    const struct st_reader_sink sink = {.data = take, .ctx = &r};
    strata_status st = STRATA_E_NOMEM;

    list_spans(w, &r, first, count);
    if (!st_fault_refuses("run.spans")) {
        r.spans = malloc((r.span_count + 1) * sizeof(*r.spans));
        r.to = malloc((r.span_count + 1) * sizeof(*r.to));
    }
    if (r.spans != NULL && r.to != NULL) {
        list_spans(w, &r, first, count);
        pthread_mutex_lock(&w->lock);
        st = st_reader_read(w->reader, r.spans, r.span_count, &sink);
        pthread_mutex_unlock(&w->lock);
    } else {
        st = st_nomem(0);
    }
    free(r.spans);
    free(r.to);
    return st;
}

/* --- as a source --- */

struct widening {
    const struct st_checkpoint_weights *w;
    uint64_t first; /* of the page, which *out begins with */
    float *out;
};

static strata_status widen(void *ctx, uint32_t page, uint64_t first, uint64_t count, strata_dtype format, const void *weight)
{
    const struct widening *to = ctx;

    (void)page;
    st_widen(to->w->kernels, to->out + (first - to->first), weight, format, count);
    return STRATA_OK;
}

static strata_status read_widened(void *ctx, uint32_t page, uint64_t first, uint64_t count, float *out)
{
    struct st_checkpoint_weights *w = ctx;
    struct widening to = {.w = w, .first = first, .out = out};

    memset(out, 0, count * sizeof(*out)); /* padding */
    return st_checkpoint_weights_each(w, page, first, count, widen, &to);
}

struct st_weight_source st_checkpoint_weights_source(struct st_checkpoint_weights *w)
{
    return (struct st_weight_source){.ctx = w, .read = read_widened};
}
