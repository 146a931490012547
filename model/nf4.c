/* model/nf4.c - what is stored in NF4, as a source of values: checked, and with scales that were quantised themselves.
 *
 * The engine's load makes the records.  Each of them holds its largest magnitude exactly, so values that came from records become
 * the same records again: scales that are quantised, too ("double quantisation", Dettmers et al., arXiv:2305.14314), are a source
 * whose values are those that bitsandbytes would dequantise.  The scales of a tensor need all of it: they are made when its page
 * is first read, and kept until another page is. */
#include "model/nf4.h"
#include "core/base/error.h"
#include "core/base/fault.h"
#include "kernels/kernels.h"
#include "model/layout.h"
#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>

#define READ_ELEMS   16384u /* of a tensor at once, for its scales */
#define READ_BLOCKS  (READ_ELEMS / ST_NF4_ELEMS)
#define SCALE_BLOCK  256u /* scales that share one scale */
#define SCALE_VALUES 256u

#define TURNED_COLUMNS 256u /* read at once of each row of a matrix that is turned */

struct st_nf4_source {
    const struct st_model *m;
    struct st_weight_source from;
    const struct st_kernels *kernels;
    bool twice, turns;    /* turns: matrices come as [in, out] */
    pthread_mutex_t lock; /* guards what follows */
    uint32_t page;        /* whose scales these are; ST_NO_PAGE: none yet */
    float *scales;        /* [elements of the page / ST_NF4_ELEMS]; NULL: not twice */
    float values[READ_ELEMS];
    struct st_nf4_block blocks[READ_BLOCKS];
};

static const float scale_values[SCALE_VALUES] = {
#include "model/nf4_scales.inc"
};

static strata_status check(const struct st_tensor *t, const float *values, uint64_t count)
{
    uint64_t bad = 0;

    for (uint64_t i = 0; i < count; i++)
        bad += isfinite(values[i]) ? 0 : 1;
    if (bad == 0)
        return STRATA_OK;
    return st_error(STRATA_E_NUMERICS,
                    "tensor %s holds %" PRIu64 " %s not finite, which nf4 cannot store: strata.quantization \"none\" would",
                    t->name, bad, bad == 1 ? "value that is" : "values that are");
}

/* --- order --- */

/* A row of the file's at a time: of its columns those that the range has, which is [in] of each. */
strata_status st_nf4_read_turned(const struct st_weight_source *from, const struct st_tensor *t, uint64_t first, uint64_t count,
                                 float *out)
{
    const uint64_t in = t->shape[0], outs = t->shape[1], end = first + count;
    float part[TURNED_COLUMNS];
    strata_status st = STRATA_OK;

    for (uint64_t o = first / in; o * in < end; o += TURNED_COLUMNS) {
        const uint64_t left = (end + in - 1) / in - o, columns = left < TURNED_COLUMNS ? left : TURNED_COLUMNS;

        for (uint64_t i = 0; i < in; i++) {
            if ((st = from->read(from->ctx, t->page, t->offset + i * outs + o, columns, part)) != STRATA_OK)
                return st;
            for (uint64_t c = 0; c < columns; c++) {
                const uint64_t at = (o + c) * in + i;

                if (at >= first && at < end)
                    out[at - first] = part[c];
            }
        }
    }
    return st;
}

/* Read values of an NF4 tensor in its page's order. */
static strata_status read_stored(const struct st_nf4_source *s, const struct st_tensor *t, uint64_t first, uint64_t count,
                                 float *out)
{
    if (s->turns)
        return st_nf4_read_turned(&s->from, t, first, count, out);
    return s->from.read(s->from.ctx, t->page, t->offset + first, count, out);
}

/* --- scales --- */

/* The scale nearest to x; the smaller of two that are equally near. */
static float nearest(float x)
{
    uint32_t low = 0, high = SCALE_VALUES - 1;

    while (low < high) {
        const uint32_t middle = (low + high) / 2;

        if (x <= (scale_values[middle] + scale_values[middle + 1]) / 2.0f)
            high = middle;
        else
            low = middle + 1;
    }
    return scale_values[low];
}

void st_nf4_scales_twice(float *scales, uint64_t count)
{
    double sum = 0.0;
    float offset;

    for (uint64_t i = 0; i < count; i++)
        sum += (double)scales[i];
    offset = (float)(sum / (double)count);
    for (uint64_t first = 0; first < count; first += SCALE_BLOCK) {
        const uint64_t end = count - first < SCALE_BLOCK ? count : first + SCALE_BLOCK;
        float most = 0.0f;

        for (uint64_t i = first; i < end; i++)
            most = fmaxf(most, fabsf(scales[i] - offset));
        const float inverse = 1.0f / fmaxf(most, 1e-38f);

        for (uint64_t i = first; i < end; i++)
            scales[i] = st_nf4_scale(nearest((scales[i] - offset) * inverse), most, offset);
    }
}

static strata_status tensor_scales(struct st_nf4_source *s, const struct st_tensor *t)
{
    float *scales = s->scales + t->offset / ST_NF4_ELEMS;
    strata_status st;

    for (uint64_t at = 0; at < t->elems; at += READ_ELEMS) {
        const uint64_t count = t->elems - at < READ_ELEMS ? t->elems - at : READ_ELEMS;

        if ((st = read_stored(s, t, at, count, s->values)) != STRATA_OK || (st = check(t, s->values, count)) != STRATA_OK)
            return st;
        s->kernels->nf4_quantise(s->blocks, s->values, count);
        for (uint64_t i = 0; i < count / ST_NF4_ELEMS; i++)
            scales[at / ST_NF4_ELEMS + i] = s->blocks[i].absmax;
    }
    st_nf4_scales_twice(scales, t->elems / ST_NF4_ELEMS);
    return STRATA_OK;
}

static strata_status page_scales(struct st_nf4_source *s, uint32_t page)
{
    strata_status st = STRATA_OK;
    uint32_t first, count;

    pthread_mutex_lock(&s->lock);
    st_model_page_tensors(s->m, page, &first, &count);
    if (s->page != page) {
        s->page = ST_NO_PAGE;
        for (uint32_t i = first; i < first + count && st == STRATA_OK; i++)
            if (s->m->tensors[i].format == STRATA_NF4)
                st = tensor_scales(s, &s->m->tensors[i]);
        s->page = st == STRATA_OK ? page : ST_NO_PAGE;
    }
    pthread_mutex_unlock(&s->lock);
    return st;
}

/* --- values --- */

/* Quantise values again, with the file's scales. */
static void requantise(const struct st_nf4_source *s, uint64_t element, float *values, uint64_t count)
{
    const float *scales = s->scales + element / ST_NF4_ELEMS;

    for (uint64_t i = 0; i < count / ST_NF4_ELEMS; i++) {
        struct st_nf4_block block;

        s->kernels->nf4_quantise(&block, values + i * ST_NF4_ELEMS, ST_NF4_ELEMS);
        block.absmax = scales[i];
        s->kernels->nf4_widen(values + i * ST_NF4_ELEMS, STRATA_F32, &block, ST_NF4_ELEMS);
    }
}

/* Threads read one page at a time: its scales stay while they do. */
static strata_status source_read(void *ctx, uint32_t page, uint64_t first, uint64_t count, float *out)
{
    struct st_nf4_source *s = ctx;
    struct st_piece piece;
    strata_status st = s->from.read(s->from.ctx, page, first, count, out);

    for (uint32_t i = 0; st == STRATA_OK && st_model_piece(s->m, page, first, count, i, &piece); i++) {
        float *values = out + piece.range_first;

        if (piece.count == 0 || piece.tensor->format != STRATA_NF4)
            continue;
        if (s->turns)
            st = st_nf4_read_turned(&s->from, piece.tensor, piece.tensor_first, piece.count, values);
        if (st != STRATA_OK || (st = check(piece.tensor, values, piece.count)) != STRATA_OK || !s->twice)
            continue;
        assert(piece.tensor_first % ST_NF4_ELEMS == 0 && piece.count % ST_NF4_ELEMS == 0);
        if ((st = page_scales(s, page)) == STRATA_OK)
            requantise(s, piece.tensor->offset + piece.tensor_first, values, piece.count);
    }
    return st;
}

strata_status st_nf4_source_open(struct st_nf4_source **out, const struct st_model *m, struct st_weight_source from, bool turned,
                                 bool twice)
{
    struct st_nf4_source *s = st_fault_refuses("nf4.alloc") ? NULL : calloc(1, sizeof(*s));
    uint64_t most = 0;

    for (uint32_t i = 0; i < m->workload.page_count; i++)
        most = m->workload.pages[i].elems > most ? m->workload.pages[i].elems : most;
    if (s != NULL && twice)
        s->scales = st_fault_refuses("nf4.alloc") ? NULL : calloc(most / ST_NF4_ELEMS, sizeof(*s->scales));
    if (s == NULL || (twice && s->scales == NULL)) {
        free(s);
        return st_nomem(0);
    }
    s->m = m;
    s->from = from;
    s->twice = twice;
    s->turns = !turned && !m->config.out_in;
    s->page = ST_NO_PAGE;
    s->kernels = st_kernels_pick(NULL);
    pthread_mutex_init(&s->lock, NULL);
    *out = s;
    return STRATA_OK;
}

void st_nf4_source_close(struct st_nf4_source *s)
{
    if (s == NULL)
        return;
    pthread_mutex_destroy(&s->lock);
    free(s->scales);
    free(s);
}

struct st_weight_source st_nf4_source_values(struct st_nf4_source *s)
{
    return (struct st_weight_source){.ctx = s, .read = source_read};
}
