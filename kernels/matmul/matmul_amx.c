/* kernels/matmul/matmul_amx.c - products of bf16 on the tiles of AMX, one thread.
 *
 * A tile is 16 rows of 64 bytes: 16 x 16 floats of C, 16 rows x 32 of K of A, or 16 pairs of K x 16 columns of B.  A and B are
 * packed into such tiles first, panel by panel: tiles of one row (of A) or column (of B) of tiles lie in the order of K.  What a
 * panel lacks to whole tiles is zero.
 *
 * Of the 32 K of a tile the instruction sums even and odd ones apart, then adds both to the fp32 sum; subnormal numbers are zero.
 * An element's sum goes through memory between panels of K and keeps its bits there.  Panels are whole tiles of K, so neither
 * blocks nor panels change a result.
 * Source: Intel 64 and IA-32 SDM, volume 2, TDPBF16PS. */
#include "kernels/matmul/matmul_amx_internal.h"
#include <immintrin.h>

/* Panels of A, B and sums are at most 1 MiB, 512 KiB and 512 KiB: a second-level cache of 2 MiB keeps B's. */
#define PANEL_M   512u
#define PANEL_N   256u
#define PANEL_K   1024u
#define TILE      16u  /* rows and columns of C */
#define TILE_K    32u  /* of K */
#define TILE_BF16 512u /* values in a tile of A or B */
#define PAIR      (2 * TILE)

#define ALWAYS_INLINE static inline __attribute__((always_inline))

static uint32_t least(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

static uint32_t tiles(uint32_t extent, uint32_t tile)
{
    return (extent + tile - 1) / tile;
}

ALWAYS_INLINE __mmask32 first_32(uint32_t count)
{
    return count >= 32 ? UINT32_MAX : (1u << count) - 1;
}

ALWAYS_INLINE __mmask16 first_16(uint32_t count)
{
    return (__mmask16)first_32(count);
}

/* --- packing --- */

/* Rows as they are. */
static void pack_rows(uint16_t *tile, const uint16_t *src, size_t ld, uint32_t rows, uint32_t cols)
{
    const __mmask32 mask = first_32(cols);

    for (uint32_t r = 0; r < TILE; r++)
        _mm512_store_si512(tile + r * 32, r < rows ? _mm512_maskz_loadu_epi16(mask, src + r * ld) : _mm512_setzero_si512());
}

/* Pairs of rows, interleaved: 32 columns give two tiles. */
static void pack_pairs(uint16_t *left, uint16_t *right, const uint16_t *src, size_t ld, uint32_t rows, uint32_t cols)
{
    const __m512i quads = _mm512_set_epi64(7, 3, 6, 2, 5, 1, 4, 0);
    const __mmask32 mask = first_32(cols);

    for (uint32_t r = 0; r < TILE; r++) {
        __m512i x = 2 * r < rows ? _mm512_maskz_loadu_epi16(mask, src + 2 * r * ld) : _mm512_setzero_si512();
        __m512i y = 2 * r + 1 < rows ? _mm512_maskz_loadu_epi16(mask, src + (2 * r + 1) * ld) : _mm512_setzero_si512();

        x = _mm512_permutexvar_epi64(quads, x);
        y = _mm512_permutexvar_epi64(quads, y);
        _mm512_store_si512(left + r * 32, _mm512_unpacklo_epi16(x, y));
        _mm512_store_si512(right + r * 32, _mm512_unpackhi_epi16(x, y));
    }
}

/* 16 rows of 16 pairs become columns; ld in values. */
static void pack_transposed(uint16_t *tile, const uint16_t *src, size_t ld)
{
    for (uint32_t q = 0; q < 4; q++) { /* four columns of pairs: in each lane those of four rows */
        __m512i *to = (__m512i *)(void *)(tile + q * 128);
        __m512i row[4], half[4];

        for (uint32_t i = 0; i < 4; i++) {
            const uint16_t *p = src + i * ld + q * 8;

            row[i] = _mm512_castsi128_si512(_mm_loadu_si128((const void *)p));
            row[i] = _mm512_mask_broadcast_i32x4(row[i], 0x00f0, _mm_loadu_si128((const void *)(p + 4 * ld)));
            row[i] = _mm512_mask_broadcast_i32x4(row[i], 0x0f00, _mm_loadu_si128((const void *)(p + 8 * ld)));
            row[i] = _mm512_mask_broadcast_i32x4(row[i], 0xf000, _mm_loadu_si128((const void *)(p + 12 * ld)));
        }
        half[0] = _mm512_unpacklo_epi32(row[0], row[1]);
        half[1] = _mm512_unpackhi_epi32(row[0], row[1]);
        half[2] = _mm512_unpacklo_epi32(row[2], row[3]);
        half[3] = _mm512_unpackhi_epi32(row[2], row[3]);
        for (uint32_t i = 0; i < 2; i++) {
            _mm512_store_si512(to + 2 * i, _mm512_unpacklo_epi64(half[i], half[i + 2]));
            _mm512_store_si512(to + 2 * i + 1, _mm512_unpackhi_epi64(half[i], half[i + 2]));
        }
    }
}

/* A panel of A [m,k], or stored [k,m]; tiles in the order in which they are stored. */
static void pack_a(uint16_t *panel, const uint16_t *a, size_t ld, bool trans, uint32_t m, uint32_t k)
{
    const uint32_t depth = tiles(k, TILE_K);
    _Alignas(64) uint16_t pairs[2][TILE_BF16];

    if (!trans) {
        for (uint32_t i = 0; i < m; i += TILE)
            for (uint32_t t = 0; t < depth; t++, panel += TILE_BF16)
                pack_rows(panel, a + i * ld + t * TILE_K, ld, m - i, k - t * TILE_K);
        return;
    }
    for (uint32_t t = 0; t < depth; t++)
        for (uint32_t i = 0; i < m; i += PAIR) {
            uint16_t *const tile = panel + ((size_t)i / TILE * depth + t) * TILE_BF16;

            pack_pairs(pairs[0], pairs[1], a + t * TILE_K * ld + i, ld, k - t * TILE_K, m - i);
            pack_transposed(tile, pairs[0], 32);
            pack_transposed(tile + depth * TILE_BF16, pairs[1], 32);
        }
}

/* A panel of B [k,n], or stored [n,k]; as above. */
static void pack_b(uint16_t *panel, const uint16_t *b, size_t ld, bool trans, uint32_t n, uint32_t k)
{
    const uint32_t depth = tiles(k, TILE_K);
    _Alignas(64) uint16_t rows[TILE_BF16];

    if (!trans) {
        for (uint32_t t = 0; t < depth; t++)
            for (uint32_t j = 0; j < n; j += PAIR) {
                uint16_t *const tile = panel + ((size_t)j / TILE * depth + t) * TILE_BF16;

                pack_pairs(tile, tile + depth * TILE_BF16, b + t * TILE_K * ld + j, ld, k - t * TILE_K, n - j);
            }
        return;
    }
    for (uint32_t j = 0; j < n; j += TILE)
        for (uint32_t t = 0; t < depth; t++, panel += TILE_BF16) {
            const uint16_t *const src = b + j * ld + t * TILE_K;
            const bool whole = n - j >= TILE && k - t * TILE_K >= TILE_K;

            if (!whole)
                pack_rows(rows, src, ld, n - j, k - t * TILE_K);
            pack_transposed(panel, whole ? src : rows, whole ? ld : 32);
        }
}

/* --- products --- */

/* sums [32,32] = or += two rows of tiles by two columns of tiles, or only the first of either. */
ALWAYS_INLINE void multiply(float *sums, size_t ld, bool add, const uint16_t *a, const uint16_t *b, size_t depth, bool two_rows,
                            bool two_cols)
{
    const size_t stride = ld * sizeof(float), next = depth * TILE_BF16;

    if (add) {
        _tile_loadd(0, sums, stride);
        if (two_cols)
            _tile_loadd(1, sums + TILE, stride);
        if (two_rows)
            _tile_loadd(2, sums + TILE * ld, stride);
        if (two_rows && two_cols)
            _tile_loadd(3, sums + TILE * ld + TILE, stride);
    } else {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    }
    for (size_t t = 0; t < depth; t++, a += TILE_BF16, b += TILE_BF16) {
        _tile_loadd(6, b, 64);
        _tile_loadd(4, a, 64);
        _tile_dpbf16ps(0, 4, 6);
        if (two_cols) {
            _tile_loadd(7, b + next, 64);
            _tile_dpbf16ps(1, 4, 7);
        }
        if (two_rows) {
            _tile_loadd(5, a + next, 64);
            _tile_dpbf16ps(2, 5, 6);
        }
        if (two_rows && two_cols)
            _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, sums, stride);
    if (two_cols)
        _tile_stored(1, sums + TILE, stride);
    if (two_rows)
        _tile_stored(2, sums + TILE * ld, stride);
    if (two_rows && two_cols)
        _tile_stored(3, sums + TILE * ld + TILE, stride);
}

/* Fetches the lines of C that finish() will write: they lie in as many pages, which the processor does not foresee. */
static void fetch(const unsigned char *c, size_t row_bytes, uint32_t rows, size_t bytes)
{
    for (uint32_t r = 0; r < rows; r++)
        for (size_t at = 0; at < bytes; at += 64)
            __builtin_prefetch(c + r * row_bytes + at, 1);
}

/* C = sums, plus bias, plus C; rounded once. */
static void finish(const struct st_matmul *mm, void *c, const float *sums, size_t ld, const uint16_t *bias, uint32_t rows,
                   uint32_t cols)
{
    for (uint32_t j = 0; j < cols; j += TILE) {
        const __mmask16 mask = first_16(cols - j);
        __m512 offset = _mm512_setzero_ps();

        if (bias != NULL)
            offset = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, bias + j)), 16));
        for (uint32_t r = 0; r < rows; r++) {
            const size_t at = (size_t)r * mm->ldc + j;
            __m512 sum = _mm512_load_ps(sums + r * ld + j);

            if (bias != NULL)
                sum = _mm512_add_ps(sum, offset);
            if (mm->c_dtype == STRATA_BF16) {
                _mm256_mask_storeu_epi16((uint16_t *)c + at, mask, (__m256i)_mm512_cvtneps_pbh(sum));
                continue;
            }
            if (mm->accumulate)
                sum = _mm512_add_ps(sum, _mm512_maskz_loadu_ps(mask, (float *)c + at));
            _mm512_mask_storeu_ps((float *)c + at, mask, sum);
        }
    }
}

struct panel {
    uint32_t m, n, k;
    bool first, last; /* of K */
    const uint16_t *a, *b;
    float *sums; /* [m,n] in whole pairs of tiles: between panels of K */
};

static void multiply_panel(const struct st_matmul *mm, const struct panel *p, unsigned char *c, const uint16_t *bias)
{
    const size_t depth = tiles(p->k, TILE_K), width = (size_t)tiles(p->n, PAIR) * PAIR, c_bytes = strata_dtype_bytes(mm->c_dtype);
    const bool through = p->first && p->last;
    _Alignas(64) float pair[PAIR * PAIR];

    for (uint32_t j = 0; j < p->n; j += PAIR)
        for (uint32_t i = 0; i < p->m; i += PAIR) {
            float *const sums = through ? pair : p->sums + i * width + j;
            const size_t ld = through ? PAIR : width;
            const uint16_t *const a = p->a + i / TILE * depth * TILE_BF16, *const b = p->b + j / TILE * depth * TILE_BF16;
            const bool two_rows = i + TILE < p->m, two_cols = j + TILE < p->n;
            const uint32_t rows = least(p->m - i, PAIR), cols = least(p->n - j, PAIR);
            unsigned char *const to = c + ((size_t)i * mm->ldc + j) * c_bytes;

            if (p->last)
                fetch(to, mm->ldc * c_bytes, rows, cols * c_bytes);
            if (two_rows && two_cols)
                multiply(sums, ld, !p->first, a, b, depth, true, true);
            else if (two_rows)
                multiply(sums, ld, !p->first, a, b, depth, true, false);
            else if (two_cols)
                multiply(sums, ld, !p->first, a, b, depth, false, true);
            else
                multiply(sums, ld, !p->first, a, b, depth, false, false);
            if (p->last)
                finish(mm, to, sums, ld, bias != NULL ? bias + j : NULL, rows, cols);
        }
}

/* --- a run --- */

struct tile_config { /* as LDTILECFG reads it */
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
};

struct scratch {
    size_t b, sums, bytes; /* offsets; A is first */
};

static struct scratch scratch_of(const struct st_matmul *mm)
{
    const size_t m = (size_t)tiles(least(mm->m, PANEL_M), PAIR) * PAIR, n = (size_t)tiles(least(mm->n, PANEL_N), PAIR) * PAIR;
    const size_t k = (size_t)tiles(least(mm->k, PANEL_K), TILE_K) * TILE_K;
    struct scratch s = {.b = m * k * sizeof(uint16_t)};

    s.sums = s.b + n * k * sizeof(uint16_t);
    s.bytes = s.sums + (mm->k > PANEL_K ? m * n * sizeof(float) : 0);
    return s;
}

size_t st_amx_scratch(const struct st_matmul *mm)
{
    return scratch_of(mm).bytes;
}

static void run_block(const struct st_matmul *mm, uint32_t row, uint32_t col, unsigned char *c, const uint16_t *a,
                      const uint16_t *b, const uint16_t *bias, unsigned char *scratch)
{
    const struct scratch s = scratch_of(mm);
    uint16_t *const packed_a = (uint16_t *)(void *)scratch, *const packed_b = (uint16_t *)(void *)(scratch + s.b);
    struct panel p = {.m = least(mm->m - row, PANEL_M),
                      .n = least(mm->n - col, PANEL_N),
                      .a = packed_a,
                      .b = packed_b,
                      .sums = (float *)(void *)(scratch + s.sums)};

    for (uint32_t at = 0; at < mm->k; at += PANEL_K) {
        p.k = least(mm->k - at, PANEL_K);
        p.first = at == 0;
        p.last = at + p.k == mm->k;
        pack_a(packed_a, a + (mm->trans_a ? (size_t)at * mm->lda + row : (size_t)row * mm->lda + at), mm->lda, mm->trans_a, p.m,
               p.k);
        pack_b(packed_b, b + (mm->trans_b ? (size_t)col * mm->ldb + at : (size_t)at * mm->ldb + col), mm->ldb, mm->trans_b, p.n,
               p.k);
        multiply_panel(mm, &p, c + ((size_t)row * mm->ldc + col) * strata_dtype_bytes(mm->c_dtype),
                       bias != NULL ? bias + col : NULL);
    }
}

/* The library configures tiles for itself, and may not do so again in its next call. */
void st_amx_run(const struct st_matmul *mm, void *c, const uint16_t *a, const uint16_t *b, const uint16_t *bias,
                unsigned char *scratch)
{
    struct tile_config ours = {.palette = 1}, before;

    for (uint32_t i = 0; i < 8; i++) {
        ours.row_bytes[i] = 64;
        ours.rows[i] = TILE;
    }
    _tile_storeconfig(&before);
    _tile_loadconfig(&ours);
    for (uint32_t row = 0; row < mm->m; row += PANEL_M)
        for (uint32_t col = 0; col < mm->n; col += PANEL_N)
            run_block(mm, row, col, c, a, b, bias, scratch);
    if (before.palette != 0)
        _tile_loadconfig(&before);
    else
        _tile_release();
}
