/* kernels/adam_avx512.c - Adam and AdamW, sixteen elements at a time: the operations of adam_scalar.c in the same order.
 *
 * Square root and division alone keep an Adam step near the speed of memory, so all else is kept out of the loops.  They are
 * inlined once per gradient dtype.  What is rare is left to the scalar kernel: sixteens with a master so large that a count or
 * a canonical NaN could be due (a NaN moment makes its master NaN), and the last few elements. */
#include "kernels/avx512.h"
#include "kernels/isa.h"

#define ALWAYS_INLINE static inline __attribute__((always_inline))

struct coef16 {
    __m512 grad_scale, beta1, one_minus_beta1, beta2, one_minus_beta2, eps, step_size, vhat_scale, decay, l2;
    bool has_l2;
};

/* Sixteen elements after a step. */
struct adam16 {
    __m512 master, moment1, moment2;
};

static struct coef16 broadcast(const struct st_adam_coef *coef)
{
    return (struct coef16){
        .grad_scale = _mm512_set1_ps(coef->grad_scale),
        .beta1 = _mm512_set1_ps(coef->beta1),
        .one_minus_beta1 = _mm512_set1_ps(coef->one_minus_beta1),
        .beta2 = _mm512_set1_ps(coef->beta2),
        .one_minus_beta2 = _mm512_set1_ps(coef->one_minus_beta2),
        .eps = _mm512_set1_ps(coef->eps),
        .step_size = _mm512_set1_ps(coef->step_size),
        .vhat_scale = _mm512_set1_ps(coef->vhat_scale),
        .decay = _mm512_set1_ps(coef->decay),
        .l2 = _mm512_set1_ps(coef->l2),
        .has_l2 = coef->l2 != 0.0f,
    };
}

ALWAYS_INLINE struct adam16 adam_step16(__m512 p, const float *moment1, const float *moment2, __m512 grad,
                                        const struct coef16 *coef)
{
    __m512 g = _mm512_mul_ps(grad, coef->grad_scale);

    if (coef->has_l2)
        g = _mm512_fmadd_ps(coef->l2, p, g);
    const __m512 m = _mm512_fmadd_ps(coef->beta1, _mm512_loadu_ps(moment1), _mm512_mul_ps(coef->one_minus_beta1, g));
    const __m512 gg = _mm512_mul_ps(coef->one_minus_beta2, _mm512_mul_ps(g, g));
    const __m512 v = _mm512_fmadd_ps(coef->beta2, _mm512_loadu_ps(moment2), gg);
    const __m512 denom = _mm512_fmadd_ps(_mm512_sqrt_ps(v), coef->vhat_scale, coef->eps);
    const __m512 update = _mm512_div_ps(_mm512_mul_ps(coef->step_size, m), denom);

    return (struct adam16){_mm512_fmsub_ps(coef->decay, p, update), m, v};
}

/* Whether any magnitude is at least that of `limit`; NaN is above all. */
ALWAYS_INLINE bool any_from(__m512 x, __m512i limit_less_one)
{
    const __m512i mag = _mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32((int)ST_F32_MAG));

    return _mm512_cmpgt_epi32_mask(mag, limit_less_one) != 0;
}

struct split_planes {
    uint16_t *weight;
    int16_t *residual;
    float *moment1, *moment2;
    const void *grad;
};

ALWAYS_INLINE struct adam16 split_step16(const struct split_planes *s, strata_dtype dtype, size_t i, const struct coef16 *coef)
{
    const __m512 p = st_avx512_join(st_avx512_load_u16(s->weight + i), st_avx512_load_u16(s->residual + i));

    return adam_step16(p, s->moment1 + i, s->moment2 + i, st_avx512_load_f32(s->grad, dtype, i), coef);
}

ALWAYS_INLINE void prefetch_split(const struct split_planes *s, size_t grad_bytes, size_t i)
{
    st_stream_prefetch(s->weight + i, sizeof(uint16_t));
    st_stream_prefetch(s->residual + i, sizeof(int16_t));
    st_stream_prefetch(s->moment1 + i, sizeof(float));
    st_stream_prefetch(s->moment2 + i, sizeof(float));
    st_stream_prefetch(st_stream_at(s->grad, grad_bytes, i), grad_bytes);
}

static uint64_t split_scalar(const struct split_planes *s, strata_dtype dtype, size_t i, size_t elems,
                             const struct st_adam_coef *coef)
{
    return st_adam_split_scalar(s->weight + i, s->residual + i, s->moment1 + i, s->moment2 + i,
                                st_stream_at(s->grad, strata_dtype_bytes(dtype), i), dtype, elems, coef);
}

/* Elements 0..end-1, whole sixteens; returns how many masters overflowed. */
ALWAYS_INLINE uint64_t split_loop(const struct split_planes *s, strata_dtype dtype, size_t end, const struct st_adam_coef *coef)
{
    const __m512i below_rare = _mm512_set1_epi32((int)(ST_BF16_OVERFLOW - 1u));
    const struct coef16 coef16 = broadcast(coef);
    uint64_t overflow_count = 0;

    for (size_t i = 0; i < end; i += 16) {
        if (i % ST_STREAM_TURN == 0)
            prefetch_split(s, strata_dtype_bytes(dtype), i);
        const struct adam16 now = split_step16(s, dtype, i, &coef16);

        if (any_from(now.master, below_rare)) {
            overflow_count += split_scalar(s, dtype, i, 16, coef);
            continue;
        }
        _mm512_storeu_ps(s->moment1 + i, now.moment1);
        _mm512_storeu_ps(s->moment2 + i, now.moment2);
        st_avx512_store_u16(s->weight + i, st_avx512_split_weight(now.master));
        st_avx512_store_u16(s->residual + i, st_avx512_split_residual(now.master));
    }
    return overflow_count;
}

uint64_t st_adam_split_avx512(uint16_t *weight, int16_t *residual, float *moment1, float *moment2, const void *grad,
                              strata_dtype grad_dtype, size_t elems, const struct st_adam_coef *coef)
{
    const struct split_planes s = {weight, residual, moment1, moment2, grad};
    const size_t end = elems - elems % 16;
    uint64_t overflow_count;

    if (grad_dtype == STRATA_BF16)
        overflow_count = split_loop(&s, STRATA_BF16, end, coef);
    else if (grad_dtype == STRATA_F32)
        overflow_count = split_loop(&s, STRATA_F32, end, coef);
    else
        overflow_count = split_loop(&s, STRATA_F16, end, coef);
    return overflow_count + split_scalar(&s, grad_dtype, end, elems - end, coef);
}

struct master_planes {
    float *master;
    uint16_t *copy; /* NULL: none */
    strata_dtype copy_dtype;
    float *moment1, *moment2;
    const void *grad;
};

ALWAYS_INLINE void prefetch_master(const struct master_planes *s, size_t grad_bytes, size_t i)
{
    st_stream_prefetch(s->master + i, sizeof(float));
    st_stream_prefetch(s->moment1 + i, sizeof(float));
    st_stream_prefetch(s->moment2 + i, sizeof(float));
    st_stream_prefetch(st_stream_at(s->grad, grad_bytes, i), grad_bytes);
    if (s->copy != NULL)
        st_stream_prefetch(s->copy + i, sizeof(uint16_t));
}

static uint64_t master_scalar(const struct master_planes *s, strata_dtype dtype, size_t i, size_t elems,
                              const struct st_adam_coef *coef)
{
    return st_adam_master_scalar(s->master + i, s->copy == NULL ? NULL : s->copy + i, s->copy_dtype, s->moment1 + i,
                                 s->moment2 + i, st_stream_at(s->grad, strata_dtype_bytes(dtype), i), dtype, elems, coef);
}

/* Elements 0..end-1, whole sixteens; returns how many copies overflowed. */
ALWAYS_INLINE uint64_t master_loop(const struct master_planes *s, strata_dtype dtype, size_t end, const struct st_adam_coef *coef)
{
    const bool copy_is_f16 = s->copy_dtype == STRATA_F16;
    const __m512i below_rare = _mm512_set1_epi32((int)((copy_is_f16 ? ST_F16_OVERFLOW : ST_BF16_OVERFLOW) - 1u));
    const struct coef16 coef16 = broadcast(coef);
    uint64_t overflow_count = 0;

    for (size_t i = 0; i < end; i += 16) {
        if (i % ST_STREAM_TURN == 0)
            prefetch_master(s, strata_dtype_bytes(dtype), i);
        const __m512 g = st_avx512_load_f32(s->grad, dtype, i);
        const struct adam16 now = adam_step16(_mm512_loadu_ps(s->master + i), s->moment1 + i, s->moment2 + i, g, &coef16);

        if (any_from(now.master, below_rare)) {
            overflow_count += master_scalar(s, dtype, i, 16, coef);
            continue;
        }
        _mm512_storeu_ps(s->master + i, now.master);
        _mm512_storeu_ps(s->moment1 + i, now.moment1);
        _mm512_storeu_ps(s->moment2 + i, now.moment2);
        if (s->copy != NULL)
            st_avx512_store_u16(s->copy + i, copy_is_f16 ? st_avx512_round_f16(now.master) : st_avx512_split_weight(now.master));
    }
    return overflow_count;
}

uint64_t st_adam_master_avx512(float *master, uint16_t *copy_out, strata_dtype copy_dtype, float *moment1, float *moment2,
                               const void *grad, strata_dtype grad_dtype, size_t elems, const struct st_adam_coef *coef)
{
    const struct master_planes s = {master, copy_out, copy_dtype, moment1, moment2, grad};
    const size_t end = elems - elems % 16;
    uint64_t overflow_count;

    if (grad_dtype == STRATA_BF16)
        overflow_count = master_loop(&s, STRATA_BF16, end, coef);
    else if (grad_dtype == STRATA_F32)
        overflow_count = master_loop(&s, STRATA_F32, end, coef);
    else
        overflow_count = master_loop(&s, STRATA_F16, end, coef);
    return overflow_count + master_scalar(&s, grad_dtype, end, elems - end, coef);
}
