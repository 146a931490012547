/* model/layout.c - sizes and offsets: see layout.h. */
#include "model/layout.h"
#include <assert.h>

#define SLICE_ELEMS_MAX (4u << 20)
#define SLICE_ROWS_MAX  4096u
#define SLICE_ROWS_MIN  64u

static uint64_t rows_of(const struct st_model *m)
{
    return (uint64_t)m->batch.micro_batch * m->batch.seq;
}

/* Allocates `bytes` at the running end, which stays aligned. */
static uint64_t take(uint64_t *end, uint64_t bytes)
{
    const uint64_t at = *end;

    *end = at + (bytes + ST_BUFFER_ALIGN - 1) / ST_BUFFER_ALIGN * ST_BUFFER_ALIGN;
    return at;
}

/* Per row: rstd, and the mean if the norm has one. */
static uint64_t stats_bytes(const struct st_model *m)
{
    return rows_of(m) * (m->config.norm == ST_NORM_LAYERNORM ? 2 : 1) * sizeof(float);
}

static uint32_t larger(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

struct st_block_values st_block_values_layout(const struct st_model *m)
{
    const uint64_t row = rows_of(m) * strata_dtype_bytes(m->batch.dtype); /* bytes of one column of all rows */
    struct st_block_values l;
    uint64_t end = 0;

    l.stats[0] = take(&end, stats_bytes(m));
    l.stats[1] = take(&end, stats_bytes(m));
    l.lse = take(&end, rows_of(m) * m->config.heads * sizeof(float));
    l.qkv = take(&end, row * m->width.qkv);
    l.attention = take(&end, row * m->width.attention);
    l.middle = take(&end, row * m->config.hidden);
    l.fc = take(&end, row * m->width.fc);
    l.bytes = end;
    return l;
}

struct st_block_cache st_block_cache_layout(const struct st_model *m)
{
    const uint64_t bytes = (uint64_t)m->batch.context * m->width.kv * strata_dtype_bytes(m->batch.dtype);
    struct st_block_cache l;
    uint64_t end = 0;

    l.keys = take(&end, bytes);
    l.values = take(&end, bytes);
    l.bytes = end;
    return l;
}

struct st_block_workspace st_block_workspace_layout(const struct st_model *m)
{
    const uint64_t row = rows_of(m) * strata_dtype_bytes(m->batch.dtype);
    const bool swiglu = m->config.activation == ST_ACTIVATION_SWIGLU;
    const bool apart = m->batch.freeze_count > 0 && (m->config.biases != ST_BIAS_NONE || m->config.mlp_bias);
    const uint32_t sums = m->config.mlp_bias ? larger(m->width.qkv, m->width.fc) : m->width.qkv;
    struct st_block_workspace l;
    uint64_t end = 0;

    l.narrow = take(&end, row * larger(m->config.hidden, m->width.attention));
    l.wide = take(&end, row * larger(m->width.fc, m->width.qkv));
    l.half = take(&end, swiglu ? row * larger(m->config.ffn, m->config.hidden) : 0);
    l.sums = take(&end, apart ? sums * sizeof(float) : 0);
    l.attention = take(&end, m->attention_bytes);
    l.values = take(&end, m->batch.generate ? st_block_values_layout(m).bytes : 0);
    l.bytes = end;
    return l;
}

struct st_head_internals st_head_internals_layout(const struct st_model *m)
{
    const uint64_t rows = rows_of(m);
    const bool generate = m->batch.generate;
    struct st_head_internals l;
    uint64_t end = 0;

    l.stats = take(&end, stats_bytes(m));
    l.xent = take(&end, generate ? 0 : rows * 3 * sizeof(float));
    l.normalised = take(&end, rows * m->config.hidden * strata_dtype_bytes(m->batch.dtype));
    l.gradient = take(&end, generate ? 0 : rows * m->config.hidden * sizeof(float));
    l.logits = take(&end, generate ? m->config.vocab * sizeof(float) : 0);
    l.bytes = end;
    return l;
}

/* Generation writes its logits to their final place, so it needs no workspace for them. */
struct st_head_workspace st_head_workspace_layout(const struct st_model *m)
{
    const uint64_t rows = rows_of(m) < ST_HEAD_ROWS ? rows_of(m) : ST_HEAD_ROWS;
    const uint64_t elems = m->batch.generate ? 0 : rows * st_table_slice_rows(m->config.vocab, m->config.hidden);
    struct st_head_workspace l;
    uint64_t end = 0;

    l.logits = take(&end, elems * sizeof(float));
    l.dlogits = take(&end, elems * strata_dtype_bytes(m->batch.dtype));
    l.bytes = end;
    return l;
}

uint32_t st_table_slice_rows(uint32_t vocab, uint32_t hidden)
{
    uint32_t rows = SLICE_ROWS_MAX;

    while (rows > SLICE_ROWS_MIN && (uint64_t)rows * hidden > SLICE_ELEMS_MAX)
        rows /= 2;
    return rows < vocab ? rows : vocab;
}

void st_model_page_tensors(const struct st_model *m, uint32_t page, uint32_t *first, uint32_t *count)
{
    const struct st_workload *w = &m->workload;

    assert(page < w->page_count);
    *first = 0;
    *count = 1;
    switch (w->pages[page].kind) {
    case ST_PAGE_TABLE:
        return;
    case ST_PAGE_POSITIONS:
        *first = 1;
        return;
    case ST_PAGE_BLOCK:
        *first = m->block_tensor_first + (page - w->block_first) * m->block_tensor_count;
        *count = m->block_tensor_count;
        return;
    case ST_PAGE_NORM:
        *first = m->norm_tensor_first;
        *count = m->norm_tensor_count;
        return;
    case ST_PAGE_HEAD:
        *first = m->tensor_count - 1;
        return;
    }
}

bool st_model_piece(const struct st_model *m, uint32_t page, uint64_t first, uint64_t count, uint32_t i, struct st_piece *out)
{
    const struct st_page *p = &m->workload.pages[page];
    uint32_t tensor_index, tensor_count;
    uint64_t skipped, elems, begin, end;
    const struct st_tensor *t;

    st_model_page_tensors(m, page, &tensor_index, &tensor_count);
    if (i >= tensor_count)
        return false;
    t = &m->tensors[tensor_index + i];
    skipped = (uint64_t)p->row_first * m->config.hidden; /* of the table or head before this slice */
    elems = p->row_count > 0 ? (uint64_t)p->row_count * m->config.hidden : t->elems;
    begin = first > t->offset ? first : t->offset;
    end = first + count < t->offset + elems ? first + count : t->offset + elems;
    out->tensor = t;
    out->count = end > begin ? end - begin : 0;
    out->tensor_first = out->count > 0 ? skipped + begin - t->offset : 0;
    out->range_first = out->count > 0 ? begin - first : 0;
    return true;
}
