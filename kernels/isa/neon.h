/* kernels/isa/neon.h - eight elements at a time in two registers, only for the *_neon.c files.  NEON is part of every aarch64.
 *
 * This file, avx2.h and avx512.h define the same names in their own instructions, for the *_vector.inc files: VEC_LANES,
 * VEC_KERNEL(), vf, vh and the vec_ functions. */
#ifndef KERNELS_ISA_NEON_H
#define KERNELS_ISA_NEON_H

#include "kernels/isa/scalar.h"
#include "kernels/isa/stream.h"
#include <arm_neon.h>

#define VEC_LANES        8u          /* as many as a norm block has sums */
#define VEC_KERNEL(name) name##_neon /* as isa.h declares it */
#define STEP_VECS        1u          /* vectors that vec_store_split() takes */
#define STEP_ELEMS       (STEP_VECS * VEC_LANES)

typedef struct {
    float32x4_t low, high;
} vf;                  /* floats */
typedef uint16x8_t vh; /* as many bf16, fp16 or 16-bit integers */
typedef struct {
    uint32x4_t low, high;
} vu; /* as many 32-bit integers */

static inline vf vec_splat(float x)
{
    return (vf){vdupq_n_f32(x), vdupq_n_f32(x)};
}

static inline vf vec_load(const float *in)
{
    return (vf){vld1q_f32(in), vld1q_f32(in + 4)};
}

static inline void vec_store(float *out, vf x)
{
    vst1q_f32(out, x.low);
    vst1q_f32(out + 4, x.high);
}

static inline vf vec_add(vf a, vf b)
{
    return (vf){vaddq_f32(a.low, b.low), vaddq_f32(a.high, b.high)};
}

static inline vf vec_mul(vf a, vf b)
{
    return (vf){vmulq_f32(a.low, b.low), vmulq_f32(a.high, b.high)};
}

static inline vf vec_div(vf a, vf b)
{
    return (vf){vdivq_f32(a.low, b.low), vdivq_f32(a.high, b.high)};
}

static inline vf vec_sqrt(vf x)
{
    return (vf){vsqrtq_f32(x.low), vsqrtq_f32(x.high)};
}

/** a b + c, rounded once. */
static inline vf vec_fma(vf a, vf b, vf c)
{
    return (vf){vfmaq_f32(c.low, a.low, b.low), vfmaq_f32(c.high, a.high, b.high)};
}

/** a b - c, rounded once. */
static inline vf vec_fms(vf a, vf b, vf c)
{
    return vec_fma(a, b, (vf){vnegq_f32(c.low), vnegq_f32(c.high)});
}

/* The bits of one register's floats and back. */
static inline uint32x4_t vec_bits(float32x4_t x)
{
    return vreinterpretq_u32_f32(x);
}

static inline float32x4_t vec_from_bits(uint32x4_t bits)
{
    return vreinterpretq_f32_u32(bits);
}

static inline float32x4_t vec_canonical_half(float32x4_t x)
{
    return vbslq_f32(vceqq_f32(x, x), x, vec_from_bits(vdupq_n_u32(ST_F32_NAN)));
}

/** x with every NaN as 0x7fc00000. */
static inline vf vec_canonical(vf x)
{
    return (vf){vec_canonical_half(x.low), vec_canonical_half(x.high)};
}

static inline float32x4_t vec_sign_of_half(float32x4_t x, float32x4_t c)
{
    const uint32x4_t signed_x = vec_bits(vbslq_f32(vdupq_n_u32(~ST_F32_MAG), c, x));
    const float32x4_t nonzero = vec_from_bits(vbicq_u32(signed_x, vceqzq_f32(c)));

    return vbslq_f32(vceqq_f32(c, c), nonzero, c);
}

/** |x| with the sign of c; 0 where c is 0 of either sign, NaN where c is NaN. */
static inline vf vec_sign_of(vf x, vf c)
{
    return (vf){vec_sign_of_half(x.low, c.low), vec_sign_of_half(x.high, c.high)};
}

/** Whether any magnitude is at least the float with the bits `limit`; NaN is above everything. */
static inline bool vec_any_from(vf x, uint32_t limit)
{
    const uint32x4_t mask = vdupq_n_u32(ST_F32_MAG);
    const uint32x4_t mag = vmaxq_u32(vandq_u32(vec_bits(x.low), mask), vandq_u32(vec_bits(x.high), mask));

    return vmaxvq_u32(mag) >= limit;
}

/** One bit per element that is infinite or NaN. */
static inline unsigned vec_nonfinite_mask(vf x)
{
    static const uint32_t bit[4] = {1, 2, 4, 8};
    const uint32x4_t exponent = vdupq_n_u32(ST_F32_INF), bits = vld1q_u32(bit);
    const uint32x4_t low = vceqq_u32(vandq_u32(vec_bits(x.low), exponent), exponent);
    const uint32x4_t high = vceqq_u32(vandq_u32(vec_bits(x.high), exponent), exponent);

    return vaddvq_u32(vorrq_u32(vandq_u32(low, bits), vandq_u32(high, vshlq_n_u32(bits, 4))));
}

static inline vh vec_load_u16(const void *in)
{
    return vld1q_u16(in);
}

static inline void vec_store_u16(void *out, vh x)
{
    vst1q_u16(out, x);
}

/** NEON has no stores past the caches. */
static inline void vec_stream_u16(void *out, vh x)
{
    vec_store_u16(out, x);
}

static inline void vec_stream_end(void)
{
}

/* Each 16-bit element as the upper half of a 32-bit one. */
static inline uint32x4_t vec_upper(uint16x4_t x)
{
    return vshlq_n_u32(vmovl_u16(x), 16);
}

/** Eight bf16, widened exactly. */
static inline vf vec_widen_bf16(vh x)
{
    return (vf){vec_from_bits(vec_upper(vget_low_u16(x))), vec_from_bits(vec_upper(vget_high_u16(x)))};
}

/* The only NaN allowed is 0x7fc00000. */
static inline uint16x4_t vec_round_bf16_half(uint32x4_t bits)
{
    const uint32x4_t odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));

    return vaddhn_u32(bits, vaddq_u32(odd, vdupq_n_u32(0x7fff))); /* the upper half of the sum */
}

/** Eight bf16: nearest, ties to even; NaN: 0x7fc0. */
static inline vh vec_round_bf16(vf x)
{
    const vf c = vec_canonical(x); /* the addition leaves 0x7fc00000 a NaN */

    return vcombine_u16(vec_round_bf16_half(vec_bits(c.low)), vec_round_bf16_half(vec_bits(c.high)));
}

/** Eight fp16, widened exactly; NaN stays some NaN. */
static inline vf vec_widen_f16(vh x)
{
    const float16x8_t half = vreinterpretq_f16_u16(x);

    return (vf){vcvt_f32_f16(vget_low_f16(half)), vcvt_high_f32_f16(half)};
}

/** Eight fp16: nearest, ties to even; NaN: 0x7e00. */
static inline vh vec_round_f16(vf x)
{
    const vf c = vec_canonical(x);

    return vreinterpretq_u16_f16(vcvt_high_f16_f32(vcvt_f16_f32(c.low), c.high));
}

static inline float32x4_t vec_join_half(uint16x4_t weight, int16x4_t low_half)
{
    return vreinterpretq_f32_s32(vaddw_s16(vreinterpretq_s32_u32(vec_upper(weight)), low_half));
}

/** Masters of eight split elements. */
static inline vf vec_join(vh weight, vh low_half)
{
    const int16x8_t rest = vreinterpretq_s16_u16(low_half);

    return (vf){vec_join_half(vget_low_u16(weight), vget_low_s16(rest)),
                vec_join_half(vget_high_u16(weight), vget_high_s16(rest))};
}

/** bf16 weights of eight masters that hold no NaN but 0x7fc00000: nearest, ties away from zero. */
static inline vh vec_split_weight(vf p)
{
    return vcombine_u16(vrshrn_n_u32(vec_bits(p.low), 16), vrshrn_n_u32(vec_bits(p.high), 16)); /* (bits + 0x8000) >> 16 */
}

/** Split eight masters that hold no NaN but 0x7fc00000. */
static inline void vec_store_split(uint16_t *weight, int16_t *low_half, const vf p[STEP_VECS])
{
    vec_store_u16(weight, vec_split_weight(p[0]));
    vec_store_u16(low_half, vcombine_u16(vmovn_u32(vec_bits(p[0].low)), vmovn_u32(vec_bits(p[0].high))));
}

/* Stochastic rounding and 8-bit codes, as scalar.h defines them.  `which` and `squares` are constants at every call. */

static inline vu vec_splat_u32(uint32_t x)
{
    return (vu){vdupq_n_u32(x), vdupq_n_u32(x)};
}

static inline vu vec_add_u32(vu a, uint32_t b)
{
    return (vu){vaddq_u32(a.low, vdupq_n_u32(b)), vaddq_u32(a.high, vdupq_n_u32(b))};
}

/** Each lane's index and `first`. */
static inline vu vec_count_from(uint32_t first)
{
    static const uint32_t lane[8] = {0, 1, 2, 3, 4, 5, 6, 7};

    return vec_add_u32((vu){vld1q_u32(lane), vld1q_u32(lane + 4)}, first);
}

static inline uint32x4_t vec_mix(uint32x4_t counter, uint32x4_t key)
{
    uint32x4_t x = vmulq_n_u32(counter, ST_MIX_1);

    x = vaddq_u32(veorq_u32(x, vshrq_n_u32(x, 15)), key);
    x = vmulq_n_u32(x, ST_MIX_2);
    return veorq_u32(x, vshrq_n_u32(x, 16));
}

/** st_rounding_bits(), given position + the key's low half, and the key that is added between the multiplications. */
static inline vu vec_random(vu counter, vu key)
{
    return (vu){vec_mix(counter.low, key.low), vec_mix(counter.high, key.high)};
}

static inline uint32x4_t vec_random_part(uint32x4_t random, int which, int width)
{
    return which == 0 ? vandq_u32(random, vdupq_n_u32((1u << width) - 1u)) : vshlq_u32(random, vdupq_n_s32(width - 32));
}

/** Eight bf16, rounded stochastically; the only NaN allowed is 0x7fc00000. */
static inline vh vec_round_random(vf x, vu random, int which)
{
    return vcombine_u16(vaddhn_u32(vec_bits(x.low), vec_random_part(random.low, which, 16)),
                        vaddhn_u32(vec_bits(x.high), vec_random_part(random.high, which, 16)));
}

/** The larger of `most` and x's magnitudes, as bits; squares are not negative. */
static inline vu vec_most(vu most, vf x, bool squares)
{
    const uint32x4_t mask = vdupq_n_u32(ST_F32_MAG);

    (void)squares;
    return (vu){vmaxq_u32(most.low, vandq_u32(vec_bits(x.low), mask)), vmaxq_u32(most.high, vandq_u32(vec_bits(x.high), mask))};
}

static inline uint32_t vec_most_of(vu most)
{
    return vmaxvq_u32(vmaxq_u32(most.low, most.high));
}

static inline float32x4_t vec_decode_half(int16x4_t codes, float32x4_t scale, float32x4_t zero, bool squares)
{
    const uint32x4_t kept = vdupq_n_u32(squares ? ST_F32_MAG : ~ST_F32_MAG | 0x7fu << ST_CODE_SHIFT);
    const uint32x4_t code = vreinterpretq_u32_s32(vshlq_n_s32(vmovl_s16(codes), ST_CODE_SHIFT));
    const uint32x4_t mag = vorrq_u32(vandq_u32(code, kept), vdupq_n_u32(st_code_base(squares)));
    const uint32x4_t away =
        vbslq_u32(vdupq_n_u32(ST_F32_MAG), vec_bits(vnegq_f32(zero)), vec_bits(vnegq_f32(vec_from_bits(code))));

    return vfmaq_f32(vec_from_bits(away), vec_from_bits(mag), scale);
}

/** Eight codes; zero: the base's float times the scale.  Codes are sign-extended, so that a shift moves the sign into place. */
static inline vf vec_decode(const uint8_t *codes, vf scale, vf zero, bool squares)
{
    const uint8x8_t in = vld1_u8(codes);
    const int16x8_t wide = squares ? vreinterpretq_s16_u16(vmovl_u8(in)) : vmovl_s8(vreinterpret_s8_u8(in));

    return (vf){vec_decode_half(vget_low_s16(wide), scale.low, zero.low, squares),
                vec_decode_half(vget_high_s16(wide), scale.high, zero.high, squares)};
}

static inline uint16x4_t vec_encode_half(float32x4_t x, float32x4_t inverse, uint32x4_t random, bool squares)
{
    const uint32x4_t base = vdupq_n_u32(st_code_base(squares)), bits = vec_bits(x);
    const uint32x4_t mag = squares ? bits : vandq_u32(bits, vdupq_n_u32(ST_F32_MAG));
    const uint32x4_t y = vec_bits(vfmaq_f32(vec_from_bits(base), vec_from_bits(mag), inverse));
    const uint32x4_t code =
        vsubq_u32(vshrq_n_u32(vaddq_u32(y, random), ST_CODE_SHIFT), vdupq_n_u32(st_code_base(squares) >> ST_CODE_SHIFT));

    if (squares)
        return vmovn_u32(vmaxq_u32(code, vdupq_n_u32(1)));
    return vmovn_u32(vorrq_u32(code, vandq_u32(vshrq_n_u32(bits, 24), vdupq_n_u32(0x80))));
}

/** Eight codes of a block whose inverse is not 0. */
static inline void vec_encode(uint8_t *codes, vf x, vf inverse, vu random, int which, bool squares)
{
    const uint32x4_t low = vec_random_part(random.low, which, ST_CODE_SHIFT);
    const uint32x4_t high = vec_random_part(random.high, which, ST_CODE_SHIFT);

    vst1_u8(codes, vmovn_u16(vcombine_u16(vec_encode_half(x.low, inverse.low, low, squares),
                                          vec_encode_half(x.high, inverse.high, high, squares))));
}

/* NF4.  Indices are below 16. */

static inline void vec_store_u32(uint32_t *out, vu x)
{
    vst1q_u32(out, x.low);
    vst1q_u32(out + 4, x.high);
}

/** table[index], of sixteen. */
static inline vf vec_pick(const float *table, vu index)
{
    uint32_t at[VEC_LANES];
    float picked[VEC_LANES];

    vec_store_u32(at, index);
    for (uint32_t i = 0; i < VEC_LANES; i++)
        picked[i] = table[at[i]];
    return vec_load(picked);
}

/** code + step where x is not at most the bound. */
static inline vu vec_step_above(vu code, vf x, vf bound, uint32_t step)
{
    const uint32x4_t add = vdupq_n_u32(step);

    return (vu){vaddq_u32(code.low, vbicq_u32(add, vcleq_f32(x.low, bound.low))),
                vaddq_u32(code.high, vbicq_u32(add, vcleq_f32(x.high, bound.high)))};
}

/** Eight indices of four bits, the high half of a byte first. */
static inline vu vec_nibbles(const uint8_t *in)
{
    uint32_t at[VEC_LANES];

    for (uint32_t i = 0; i < VEC_LANES; i++)
        at[i] = (uint32_t)in[i / 2] >> (i % 2 == 0 ? 4 : 0) & 15u;
    return (vu){vld1q_u32(at), vld1q_u32(at + 4)};
}

/** Eight sums in double: lane j has the elements whose index is j mod 8. */
struct square_sums {
    float64x2_t lanes[4];
};

/** Squares of fp32 values are exact in double, so an fma and a multiplication with an addition round alike. */
static inline void vec_add_squares(struct square_sums *sums, vf x)
{
    const float64x2_t wide[4] = {vcvt_f64_f32(vget_low_f32(x.low)), vcvt_high_f64_f32(x.low), vcvt_f64_f32(vget_low_f32(x.high)),
                                 vcvt_high_f64_f32(x.high)};

    for (size_t i = 0; i < 4; i++)
        sums->lanes[i] = vfmaq_f64(sums->lanes[i], wide[i], wide[i]);
}

static inline void vec_store_sums(double out[8], const struct square_sums *sums)
{
    for (size_t i = 0; i < 4; i++)
        vst1q_f64(out + 2 * i, sums->lanes[i]);
}

#endif
