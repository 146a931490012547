/* model/layout.c - sizes and offsets: see layout.h. */
#include "model/layout.h"
#include <assert.h>

#define TILE_ELEMS_MAX (4u << 20)
#define TILE_ROWS_MAX  4096u
#define TILE_ROWS_MIN  64u

static uint64_t rows_of(const struct st_model *m)
{
    return (uint64_t)m->batch.micro_batch * m->batch.seq;
}

/* Take `bytes` at the running end, which stays aligned. */
static uint64_t take(uint64_t *end, uint64_t bytes)
{
    const uint64_t at = *end;

    *end = at + (bytes + ST_BUFFER_ALIGN - 1) / ST_BUFFER_ALIGN * ST_BUFFER_ALIGN;
    return at;
}

struct st_block_internals st_block_internals_layout(const struct st_model *m)
{
    const uint64_t rows = rows_of(m), row_bytes = m->config.hidden * strata_dtype_bytes(m->batch.dtype);
    struct st_block_internals l;
    uint64_t end = 0;

    l.stats1 = take(&end, rows * 2 * sizeof(float));
    l.stats2 = take(&end, rows * 2 * sizeof(float));
    l.lse = take(&end, rows * m->config.heads * sizeof(float));
    l.qkv = take(&end, rows * 3 * row_bytes);
    l.attention = take(&end, rows * row_bytes);
    l.middle = take(&end, rows * row_bytes);
    l.fc = take(&end, rows * m->config.ffn * strata_dtype_bytes(m->batch.dtype));
    l.bytes = end;
    return l;
}

struct st_block_workspace st_block_workspace_layout(const struct st_model *m)
{
    const uint64_t rows = rows_of(m), dtype_bytes = strata_dtype_bytes(m->batch.dtype);
    const uint64_t wide = m->config.ffn > 3 * m->config.hidden ? m->config.ffn : 3 * m->config.hidden;
    struct st_block_workspace l;
    uint64_t end = 0;

    l.narrow = take(&end, rows * m->config.hidden * dtype_bytes);
    l.wide = take(&end, rows * wide * dtype_bytes);
    l.attention = take(&end, m->attention_bytes);
    l.bytes = end;
    return l;
}

struct st_head_internals st_head_internals_layout(const struct st_model *m)
{
    const uint64_t rows = rows_of(m);
    struct st_head_internals l;
    uint64_t end = 0;

    l.stats = take(&end, rows * 2 * sizeof(float));
    l.xent = take(&end, rows * 3 * sizeof(float));
    l.normalised = take(&end, rows * m->config.hidden * strata_dtype_bytes(m->batch.dtype));
    l.gradient = take(&end, rows * m->config.hidden * sizeof(float));
    l.bytes = end;
    return l;
}

struct st_head_workspace st_head_workspace_layout(const struct st_model *m)
{
    const uint64_t rows = rows_of(m) < ST_HEAD_ROWS ? rows_of(m) : ST_HEAD_ROWS;
    const uint64_t elems = rows * st_table_tile_rows(m->config.vocab, m->config.hidden);
    struct st_head_workspace l;
    uint64_t end = 0;

    l.logits = take(&end, elems * sizeof(float));
    l.dlogits = take(&end, elems * strata_dtype_bytes(m->batch.dtype));
    l.bytes = end;
    return l;
}

uint32_t st_table_tile_rows(uint32_t vocab, uint32_t hidden)
{
    uint32_t rows = TILE_ROWS_MAX;

    while (rows > TILE_ROWS_MIN && (uint64_t)rows * hidden > TILE_ELEMS_MAX)
        rows /= 2;
    return rows < vocab ? rows : vocab;
}

void st_model_page_tensors(const struct st_model *m, uint32_t page, uint32_t *first, uint32_t *count)
{
    const struct st_workload *w = &m->workload;

    assert(page < w->page_count);
    if (page < w->table_count) {
        *first = ST_TENSOR_TABLE;
        *count = 1;
    } else if (page == w->position_page) {
        *first = ST_TENSOR_POSITIONS;
        *count = 1;
    } else if (page == w->norm_page) {
        *first = m->tensor_count - 2;
        *count = 2;
    } else {
        *first = ST_TENSOR_BLOCKS + (page - w->block_first) * ST_BLOCK_TENSORS;
        *count = ST_BLOCK_TENSORS;
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
    skipped = (uint64_t)p->row_first * m->config.hidden; /* of the table before this tile */
    elems = p->row_count > 0 ? (uint64_t)p->row_count * m->config.hidden : t->elems;
    begin = first > t->offset ? first : t->offset;
    end = first + count < t->offset + elems ? first + count : t->offset + elems;
    out->tensor = t;
    out->count = end > begin ? end - begin : 0;
    out->tensor_first = out->count > 0 ? skipped + begin - t->offset : 0;
    out->range_first = out->count > 0 ? begin - first : 0;
    return true;
}
