/* core/base/rng.c - Philox4x32-10, normal deviates, permutations.  Any thread; no state.
 *
 * Bits are the same on every machine: integers, and fp32 add, mul and sqrt in a stated order (this file is
 * compiled with -ffp-contract=off), with polynomials of its own for log, sine and cosine (Cephes logf, sinf,
 * cosf; Moshier 1992).  The scalar functions are the definition, and loops go over NORMAL_BLOCKS counters at a time so that the
 * compiler vectorises them; rng_vector.inc does the same operations on the vectors of one instruction set. */
#include "core/base/rng.h"

#include "core/base/cpu.h"
#include "core/base/rng_internal.h"

#include <math.h>
#include <string.h>

#define NORMAL_BLOCKS  64 /* counters per batch */
#define FEISTEL_ROUNDS 6  /* 4 make a pseudorandom permutation (Luby and Rackoff 1988) */

void st_rng_block(uint32_t out[4], uint64_t seed, uint64_t stream, uint64_t index)
{
    uint32_t c0 = (uint32_t)index, c1 = (uint32_t)(index >> 32), c2 = (uint32_t)stream, c3 = (uint32_t)(stream >> 32);
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);

    for (int round = 0; round < ST_RNG_PHILOX_ROUNDS; round++) {
        uint64_t p0 = UINT64_C(0xD2511F53) * c0, p1 = UINT64_C(0xCD9E8D57) * c2;

        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)p1;
        c3 = (uint32_t)p0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

uint64_t st_rng_u64(uint64_t seed, uint64_t stream, uint64_t index)
{
    uint32_t bits[4];
    unsigned half = (unsigned)(index & 1) * 2;

    st_rng_block(bits, seed, stream, index >> 1);
    return (uint64_t)bits[half + 1] << 32 | bits[half];
}

static inline float float_of_bits(uint32_t bits)
{
    float value;

    memcpy(&value, &bits, sizeof(value));
    return value;
}

static inline uint32_t bits_of_float(float value)
{
    uint32_t bits;

    memcpy(&bits, &value, sizeof(bits));
    return bits;
}

/* sqrt(-2 ln u) for u = (x / 2 + 1/2) / 2^31: at most 6.66. */
static inline float normal_radius(uint32_t x)
{
    float u = (float)(int32_t)(x >> 1) + 0.5f;
    int32_t exponent = (int32_t)(bits_of_float(u) - 0x3f3504f3u) >> 23; /* mantissa in [sqrt(1/2), sqrt(2)) */
    float f = float_of_bits(bits_of_float(u) - ((uint32_t)exponent << 23)) - 1.0f;
    float f2 = f * f, p, log_mantissa, twos = (float)(31 - exponent);

    p = 7.0376836292e-2f;
    p = p * f - 1.1514610310e-1f;
    p = p * f + 1.1676998740e-1f;
    p = p * f - 1.2420140846e-1f;
    p = p * f + 1.4249322787e-1f;
    p = p * f - 1.6668057665e-1f;
    p = p * f + 2.0000714765e-1f;
    p = p * f - 2.4999993993e-1f;
    p = p * f + 3.3333331174e-1f;
    log_mantissa = f + (p * f * f2 - 0.5f * f2);
    return sqrtf(2.0f * (twos * 0.693147182464599609375f - log_mantissa));
}

/* Cosine and sine of x * 2 pi / 2^32: the nearest quarter turn, and a signed remainder of at most an eighth. */
static inline void normal_angle(uint32_t x, float *cosine, float *sine)
{
    float t = (float)(int32_t)(x << 2) * (1.57079637050628662109375f / 4294967296.0f); /* -pi/4 .. pi/4 */
    float t2 = t * t, s, c;
    uint32_t quadrant = (x + 0x20000000u) >> 30, swap = 0u - (quadrant & 1u), sbits, cbits;

    s = -1.9515295891e-4f;
    s = s * t2 + 8.3321608736e-3f;
    s = s * t2 - 1.6666654611e-1f;
    s = s * t2 * t + t;
    c = 2.443315711809948e-5f;
    c = c * t2 - 1.388731625493765e-3f;
    c = c * t2 + 4.166664568298827e-2f;
    c = c * t2 * t2 - 0.5f * t2 + 1.0f;
    sbits = bits_of_float(s);
    cbits = bits_of_float(c);
    *cosine = float_of_bits(((cbits & ~swap) | (sbits & swap)) ^ ((quadrant ^ quadrant << 1) & 2u) << 30);
    *sine = float_of_bits(((sbits & ~swap) | (cbits & swap)) ^ (quadrant & 2u) << 30);
}

/* Box-Muller: four samples of each counter, from the word pairs (0,1) and (2,3). */
size_t st_rng_normal_scalar(float *out, size_t blocks, uint64_t seed, uint64_t stream, uint64_t index, float std)
{
    uint32_t words[NORMAL_BLOCKS * 4];

    for (size_t at = 0; at < blocks; at += NORMAL_BLOCKS) {
        const size_t batch = blocks - at < NORMAL_BLOCKS ? blocks - at : NORMAL_BLOCKS;

        for (size_t i = 0; i < batch; i++)
            st_rng_block(words + i * 4, seed, stream, index + at + i);
        for (size_t i = 0; i < batch * 2; i++) {
            float radius = std * normal_radius(words[i * 2]), cosine, sine;

            normal_angle(words[i * 2 + 1], &cosine, &sine);
            out[at * 4 + i * 2] = radius * cosine;
            out[at * 4 + i * 2 + 1] = radius * sine;
        }
    }
    return blocks;
}

static void part_of_block(float *out, size_t count, uint64_t seed, uint64_t stream, uint64_t first, float std)
{
    float block[4];

    (void)st_rng_normal_scalar(block, 1, seed, stream, first / 4, std);
    memcpy(out, block + first % 4, count * sizeof(out[0]));
}

void st_rng_normal_by(st_rng_normal_fn *fill, float *out, size_t count, uint64_t seed, uint64_t stream, uint64_t first, float std)
{
    const size_t lead = (size_t)(-first % 4), head = lead < count ? lead : count;
    const size_t blocks = (count - head) / 4, tail = (count - head) % 4;
    const uint64_t index = (first + head) / 4;
    size_t done;

    if (head > 0)
        part_of_block(out, head, seed, stream, first, std);
    out += head;
    done = fill(out, blocks, seed, stream, index, std);
    (void)st_rng_normal_scalar(out + done * 4, blocks - done, seed, stream, index + done, std);
    if (tail > 0)
        part_of_block(out + blocks * 4, tail, seed, stream, first + head + blocks * 4, std);
}

static st_rng_normal_fn *normal_variant(void)
{
#if defined(__x86_64__)
    const uint32_t features = st_cpu_features();

    if ((features & ST_CPU_AVX512) != 0)
        return st_rng_normal_avx512;
    if ((features & ST_CPU_AVX2_FMA) != 0)
        return st_rng_normal_avx2;
#endif
    return st_rng_normal_scalar;
}

void st_rng_normal(float *out, size_t count, uint64_t seed, uint64_t stream, uint64_t first, float std)
{
    st_rng_normal_by(normal_variant(), out, count, seed, stream, first, std);
}

void st_rng_uniform(float *out, size_t count, uint64_t seed, uint64_t stream, uint64_t first, float range)
{
    for (size_t i = 0; i < count; i++) {
        const int32_t bits = (int32_t)(st_rng_u64(seed, stream, first + i) >> 40); /* 24 */

        out[i] = ((float)(bits - (1 << 23)) + 0.5f) * 0x1p-23f * range;
    }
}

/* One pass of a balanced Feistel network over 2 * half_bits bits. */
static uint64_t feistel(uint64_t value, unsigned half_bits, uint64_t seed, uint64_t stream)
{
    uint64_t mask = (UINT64_C(1) << half_bits) - 1, left = value >> half_bits, right = value & mask;

    for (uint64_t round = 0; round < FEISTEL_ROUNDS; round++) {
        uint32_t bits[4];
        uint64_t next;

        st_rng_block(bits, seed, stream, round << 32 | right);
        next = left ^ (bits[0] & mask);
        left = right;
        right = next;
    }
    return left << half_bits | right;
}

uint64_t st_rng_permute(uint64_t index, uint64_t n, uint64_t seed, uint64_t stream)
{
    unsigned half_bits = 1;

    while (half_bits < 32 && (n - 1) >> (2 * half_bits) != 0)
        half_bits++;
    do /* the domain is at most 4 n: under four passes on average */
        index = feistel(index, half_bits, seed, stream);
    while (index >= n);
    return index;
}
