/* kernels/cast_avx512.c - split, join, casts and addition, sixteen elements at a time; bits as in cast_scalar.c. */
#include "kernels/avx512.h"
#include "kernels/isa.h"

void st_master_split_avx512(uint16_t *weight, int16_t *residual, const float *master, size_t elems)
{
    const size_t end = elems - elems % 16;

    for (size_t i = 0; i < end; i += 16) {
        const __m512 p = st_avx512_canonical(_mm512_loadu_ps(master + i));

        if (i % ST_STREAM_TURN == 0) {
            st_stream_prefetch(master + i, sizeof(float));
            st_stream_prefetch(weight + i, sizeof(uint16_t));
            st_stream_prefetch(residual + i, sizeof(int16_t));
        }
        st_avx512_store_u16(weight + i, st_avx512_split_weight(p));
        st_avx512_store_u16(residual + i, st_avx512_split_residual(p));
    }
    st_master_split_scalar(weight + end, residual + end, master + end, elems - end);
}

void st_master_join_avx512(float *master, const uint16_t *weight, const int16_t *residual, size_t elems)
{
    const size_t end = elems - elems % 16;

    for (size_t i = 0; i < end; i += 16) {
        if (i % ST_STREAM_TURN == 0) {
            st_stream_prefetch(weight + i, sizeof(uint16_t));
            st_stream_prefetch(residual + i, sizeof(int16_t));
            st_stream_prefetch(master + i, sizeof(float));
        }
        _mm512_storeu_ps(master + i, st_avx512_join(st_avx512_load_u16(weight + i), st_avx512_load_u16(residual + i)));
    }
    st_master_join_scalar(master + end, weight + end, residual + end, elems - end);
}

void st_f32_to_bf16_avx512(uint16_t *out, const float *in, size_t elems)
{
    const size_t end = elems - elems % 16;

    for (size_t i = 0; i < end; i += 16) {
        if (i % ST_STREAM_TURN == 0) {
            st_stream_prefetch(in + i, sizeof(float));
            st_stream_prefetch(out + i, sizeof(uint16_t));
        }
        st_avx512_store_u16(out + i, st_avx512_round_bf16(_mm512_loadu_ps(in + i)));
    }
    st_f32_to_bf16_scalar(out + end, in + end, elems - end);
}

void st_bf16_to_f32_avx512(float *out, const uint16_t *in, size_t elems)
{
    const size_t end = elems - elems % 16;

    for (size_t i = 0; i < end; i += 16) {
        if (i % ST_STREAM_TURN == 0) {
            st_stream_prefetch(in + i, sizeof(uint16_t));
            st_stream_prefetch(out + i, sizeof(float));
        }
        _mm512_storeu_ps(out + i, st_avx512_widen_bf16(st_avx512_load_u16(in + i)));
    }
    st_bf16_to_f32_scalar(out + end, in + end, elems - end);
}

void st_f32_to_f16_avx512(uint16_t *out, const float *in, size_t elems)
{
    const size_t end = elems - elems % 16;

    for (size_t i = 0; i < end; i += 16) {
        if (i % ST_STREAM_TURN == 0) {
            st_stream_prefetch(in + i, sizeof(float));
            st_stream_prefetch(out + i, sizeof(uint16_t));
        }
        st_avx512_store_u16(out + i, st_avx512_round_f16(_mm512_loadu_ps(in + i)));
    }
    st_f32_to_f16_scalar(out + end, in + end, elems - end);
}

void st_f16_to_f32_avx512(float *out, const uint16_t *in, size_t elems)
{
    const size_t end = elems - elems % 16;

    for (size_t i = 0; i < end; i += 16) {
        if (i % ST_STREAM_TURN == 0) {
            st_stream_prefetch(in + i, sizeof(uint16_t));
            st_stream_prefetch(out + i, sizeof(float));
        }
        _mm512_storeu_ps(out + i, st_avx512_widen_f16(st_avx512_load_u16(in + i)));
    }
    st_f16_to_f32_scalar(out + end, in + end, elems - end);
}

void st_add_f32_avx512(float *acc, const float *in, size_t elems)
{
    const size_t end = elems - elems % 16;

    for (size_t i = 0; i < end; i += 16) {
        if (i % ST_STREAM_TURN == 0) {
            st_stream_prefetch(in + i, sizeof(float));
            st_stream_prefetch(acc + i, sizeof(float));
        }
        const __m512 sum = _mm512_add_ps(_mm512_loadu_ps(acc + i), _mm512_loadu_ps(in + i));

        _mm512_storeu_ps(acc + i, st_avx512_canonical(sum));
    }
    st_add_f32_scalar(acc + end, in + end, elems - end);
}
