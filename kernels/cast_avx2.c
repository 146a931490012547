/* kernels/cast_avx2.c - split, join, casts and addition, eight elements at a time; bits as in cast_scalar.c. */
#include "kernels/avx2.h"
#include "kernels/isa.h"

void st_master_split_avx2(uint16_t *weight, int16_t *residual, const float *master, size_t elems)
{
    const size_t end = elems - elems % 16;

    for (size_t i = 0; i < end; i += 16) {
        const __m256 low = st_avx2_canonical(_mm256_loadu_ps(master + i)),
                     high = st_avx2_canonical(_mm256_loadu_ps(master + i + 8));

        if (i % ST_STREAM_TURN == 0) {
            st_stream_prefetch(master + i, sizeof(float));
            st_stream_prefetch(weight + i, sizeof(uint16_t));
            st_stream_prefetch(residual + i, sizeof(int16_t));
        }
        st_avx2_store_split(weight + i, residual + i, low, high);
    }
    st_master_split_scalar(weight + end, residual + end, master + end, elems - end);
}

void st_master_join_avx2(float *master, const uint16_t *weight, const int16_t *residual, size_t elems)
{
    const size_t end = elems - elems % 8;

    for (size_t i = 0; i < end; i += 8) {
        if (i % ST_STREAM_TURN == 0) {
            st_stream_prefetch(weight + i, sizeof(uint16_t));
            st_stream_prefetch(residual + i, sizeof(int16_t));
            st_stream_prefetch(master + i, sizeof(float));
        }
        _mm256_storeu_ps(master + i, st_avx2_join(st_avx2_load_u16(weight + i), st_avx2_load_u16(residual + i)));
    }
    st_master_join_scalar(master + end, weight + end, residual + end, elems - end);
}

void st_f32_to_bf16_avx2(uint16_t *out, const float *in, size_t elems)
{
    const size_t end = elems - elems % 8;

    for (size_t i = 0; i < end; i += 8) {
        if (i % ST_STREAM_TURN == 0) {
            st_stream_prefetch(in + i, sizeof(float));
            st_stream_prefetch(out + i, sizeof(uint16_t));
        }
        st_avx2_store_u16(out + i, st_avx2_round_bf16(_mm256_loadu_ps(in + i)));
    }
    st_f32_to_bf16_scalar(out + end, in + end, elems - end);
}

void st_bf16_to_f32_avx2(float *out, const uint16_t *in, size_t elems)
{
    const size_t end = elems - elems % 8;

    for (size_t i = 0; i < end; i += 8) {
        if (i % ST_STREAM_TURN == 0) {
            st_stream_prefetch(in + i, sizeof(uint16_t));
            st_stream_prefetch(out + i, sizeof(float));
        }
        _mm256_storeu_ps(out + i, st_avx2_widen_bf16(st_avx2_load_u16(in + i)));
    }
    st_bf16_to_f32_scalar(out + end, in + end, elems - end);
}

void st_f32_to_f16_avx2(uint16_t *out, const float *in, size_t elems)
{
    const size_t end = elems - elems % 8;

    for (size_t i = 0; i < end; i += 8) {
        if (i % ST_STREAM_TURN == 0) {
            st_stream_prefetch(in + i, sizeof(float));
            st_stream_prefetch(out + i, sizeof(uint16_t));
        }
        st_avx2_store_u16(out + i, st_avx2_round_f16(_mm256_loadu_ps(in + i)));
    }
    st_f32_to_f16_scalar(out + end, in + end, elems - end);
}

void st_f16_to_f32_avx2(float *out, const uint16_t *in, size_t elems)
{
    const size_t end = elems - elems % 8;

    for (size_t i = 0; i < end; i += 8) {
        if (i % ST_STREAM_TURN == 0) {
            st_stream_prefetch(in + i, sizeof(uint16_t));
            st_stream_prefetch(out + i, sizeof(float));
        }
        _mm256_storeu_ps(out + i, st_avx2_widen_f16(st_avx2_load_u16(in + i)));
    }
    st_f16_to_f32_scalar(out + end, in + end, elems - end);
}

void st_add_f32_avx2(float *acc, const float *in, size_t elems)
{
    const size_t end = elems - elems % 8;

    for (size_t i = 0; i < end; i += 8) {
        if (i % ST_STREAM_TURN == 0) {
            st_stream_prefetch(in + i, sizeof(float));
            st_stream_prefetch(acc + i, sizeof(float));
        }
        const __m256 sum = _mm256_add_ps(_mm256_loadu_ps(acc + i), _mm256_loadu_ps(in + i));

        _mm256_storeu_ps(acc + i, st_avx2_canonical(sum));
    }
    st_add_f32_scalar(acc + end, in + end, elems - end);
}
