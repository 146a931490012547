/* tests/cuda/emulator/intrinsics.h - device functions of CUDA: barriers, warp operations, atomics, bits, exact arithmetic. */
#ifndef TESTS_CUDA_EMULATOR_INTRINSICS_H
#define TESTS_CUDA_EMULATOR_INTRINSICS_H

#include "tests/cuda/emulator/tensor_core.h"

/* Where the kernel calls from: default arguments take the caller's line. */
#define TWIN_SITE     const char *file = __builtin_FILE(), int line = __builtin_LINE()
#define TWIN_AT(what) (twin::site{(what), file, line})

/* --- barriers --- */

inline void __syncthreads(TWIN_SITE)
{
    twin::barrier(0, TWIN_AT("__syncthreads"));
}

inline int __syncthreads_count(int predicate, TWIN_SITE)
{
    return twin::barrier(predicate != 0, TWIN_AT("__syncthreads_count"));
}

inline int __syncthreads_or(int predicate, TWIN_SITE)
{
    return twin::barrier(predicate != 0, TWIN_AT("__syncthreads_or")) != 0;
}

inline int __syncthreads_and(int predicate, TWIN_SITE)
{
    return twin::barrier(predicate == 0, TWIN_AT("__syncthreads_and")) == 0;
}

inline void __syncwarp(uint32_t mask = 0xffffffffu, TWIN_SITE)
{
    twin_warp<char>(
        mask, '\0', [](uint32_t, const char *const *, char *const *) {}, "__syncwarp", file, line);
}

inline void __threadfence()
{
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}

inline void __threadfence_block()
{
}

[[noreturn]] inline void __trap(TWIN_SITE)
{
    twin::stop("__trap", TWIN_AT("__trap"));
}

/* --- shuffles and votes --- */

template <class T> struct twin_shuffle {
    T value;
    uint32_t from; /* lane; TWIN_WARP and more: one's own */
};

template <class T> T twin_shuffle_from(uint32_t mask, T value, uint32_t from, const char *what, const char *file, int line)
{
    static_assert(sizeof(T) == 4 || sizeof(T) == 8, "shuffles move 32 or 64 bits");
    return twin_warp<T>(
        mask, twin_shuffle<T>{value, from},
        [&](uint32_t lanes, const twin_shuffle<T> *const in[TWIN_WARP], T *const out[TWIN_WARP]) {
            for (uint32_t i = 0; i < TWIN_WARP; i++) {
                if (in[i] == nullptr)
                    continue;
                const uint32_t source = in[i]->from < TWIN_WARP ? in[i]->from : i;

                if ((lanes >> source & 1) == 0 || in[source] == nullptr)
                    twin::stop("reads a lane that takes no part", twin::site{what, file, line});
                *out[i] = in[source]->value;
            }
        },
        what, file, line);
}

template <class T> T __shfl_sync(uint32_t mask, T value, int from, int width = 32, TWIN_SITE)
{
    const uint32_t w = static_cast<uint32_t>(width), segment = twin::lane_index() / w * w;

    return twin_shuffle_from(mask, value, segment + static_cast<uint32_t>(from) % w, "__shfl_sync", file, line);
}

template <class T> T __shfl_up_sync(uint32_t mask, T value, unsigned delta, int width = 32, TWIN_SITE)
{
    const uint32_t lane = twin::lane_index();

    return twin_shuffle_from(mask, value, lane % static_cast<uint32_t>(width) >= delta ? lane - delta : TWIN_WARP,
                             "__shfl_up_sync", file, line);
}

template <class T> T __shfl_down_sync(uint32_t mask, T value, unsigned delta, int width = 32, TWIN_SITE)
{
    const uint32_t lane = twin::lane_index(), w = static_cast<uint32_t>(width);

    return twin_shuffle_from(mask, value, lane % w + delta < w ? lane + delta : TWIN_WARP, "__shfl_down_sync", file, line);
}

/* Beyond one's own segment of `width` lanes: one's own value, where CUDA would read an earlier segment. */
template <class T> T __shfl_xor_sync(uint32_t mask, T value, int lanes, int width = 32, TWIN_SITE)
{
    const uint32_t lane = twin::lane_index(), w = static_cast<uint32_t>(width), from = lane ^ static_cast<uint32_t>(lanes);

    return twin_shuffle_from(mask, value, from / w > lane / w ? TWIN_WARP : from, "__shfl_xor_sync", file, line);
}

inline uint32_t twin_vote(uint32_t mask, int predicate, const char *what, const char *file, int line)
{
    return twin_warp<uint32_t>(
        mask, predicate,
        [](uint32_t, const int *const in[TWIN_WARP], uint32_t *const out[TWIN_WARP]) {
            uint32_t votes = 0;

            for (uint32_t i = 0; i < TWIN_WARP; i++)
                votes |= in[i] != nullptr && *in[i] != 0 ? 1u << i : 0;
            for (uint32_t i = 0; i < TWIN_WARP; i++) {
                if (out[i] != nullptr)
                    *out[i] = votes;
            }
        },
        what, file, line);
}

inline uint32_t __ballot_sync(uint32_t mask, int predicate, TWIN_SITE)
{
    return twin_vote(mask, predicate, "__ballot_sync", file, line);
}

inline int __any_sync(uint32_t mask, int predicate, TWIN_SITE)
{
    return twin_vote(mask, predicate, "__any_sync", file, line) != 0;
}

inline int __all_sync(uint32_t mask, int predicate, TWIN_SITE)
{
    return twin_vote(mask, predicate == 0, "__all_sync", file, line) == 0;
}

/* --- atomics: integers alone, sums of floats would depend on the order --- */

template <class T, class Op> T twin_atomic(T *at, Op op)
{
    T old = __atomic_load_n(at, __ATOMIC_RELAXED);

    while (!__atomic_compare_exchange_n(at, &old, op(old), false, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED)) {
    }
    return old;
}

#define TWIN_ATOMICS(type)                                                                                                       \
    inline type atomicAdd(type *at, type value)                                                                                  \
    {                                                                                                                            \
        return __atomic_fetch_add(at, value, __ATOMIC_SEQ_CST);                                                                  \
    }                                                                                                                            \
    inline type atomicExch(type *at, type value)                                                                                 \
    {                                                                                                                            \
        return __atomic_exchange_n(at, value, __ATOMIC_SEQ_CST);                                                                 \
    }                                                                                                                            \
    inline type atomicOr(type *at, type value)                                                                                   \
    {                                                                                                                            \
        return __atomic_fetch_or(at, value, __ATOMIC_SEQ_CST);                                                                   \
    }                                                                                                                            \
    inline type atomicMax(type *at, type value)                                                                                  \
    {                                                                                                                            \
        return twin_atomic(at, [value](type old) { return old > value ? old : value; });                                         \
    }                                                                                                                            \
    inline type atomicMin(type *at, type value)                                                                                  \
    {                                                                                                                            \
        return twin_atomic(at, [value](type old) { return old < value ? old : value; });                                         \
    }                                                                                                                            \
    inline type atomicCAS(type *at, type compare, type value)                                                                    \
    {                                                                                                                            \
        return twin_atomic(at, [=](type old) { return old == compare ? value : old; });                                          \
    }
TWIN_ATOMICS(int)
TWIN_ATOMICS(unsigned int)
TWIN_ATOMICS(unsigned long long)
#undef TWIN_ATOMICS
float atomicAdd(float *at, float value) = delete;
double atomicAdd(double *at, double value) = delete;

/* --- loads and stores with a cache policy --- */

#define TWIN_LOAD(name)                                                                                                          \
    template <class T> T name(const T *at)                                                                                       \
    {                                                                                                                            \
        return *at;                                                                                                              \
    }
TWIN_LOAD(__ldg)
TWIN_LOAD(__ldcs)
TWIN_LOAD(__ldcg)
TWIN_LOAD(__ldca)
#undef TWIN_LOAD
#define TWIN_STORE(name)                                                                                                         \
    template <class T> void name(T *at, T value)                                                                                 \
    {                                                                                                                            \
        *at = value;                                                                                                             \
    }
TWIN_STORE(__stcs)
TWIN_STORE(__stcg)
TWIN_STORE(__stwb)
#undef TWIN_STORE

/* --- bits --- */

template <class To, class From> To twin_bits(From from)
{
    To to;

    static_assert(sizeof(to) == sizeof(from), "the same bits");
    memcpy(&to, &from, sizeof(to));
    return to;
}

#define TWIN_BITS(name, to, from)                                                                                                \
    inline to name(from x)                                                                                                       \
    {                                                                                                                            \
        return twin_bits<to, from>(x);                                                                                           \
    }
TWIN_BITS(__float_as_uint, unsigned int, float)
TWIN_BITS(__float_as_int, int, float)
TWIN_BITS(__uint_as_float, float, unsigned int)
TWIN_BITS(__int_as_float, float, int)
TWIN_BITS(__double_as_longlong, long long, double)
TWIN_BITS(__longlong_as_double, double, long long)
#undef TWIN_BITS

inline int __popc(unsigned int x)
{
    return __builtin_popcount(x);
}

inline int __clz(int x)
{
    return x == 0 ? 32 : __builtin_clz(static_cast<unsigned int>(x));
}

inline int __ffs(int x)
{
    return __builtin_ffs(x);
}

inline unsigned int __funnelshift_l(unsigned int low, unsigned int high, unsigned int shift)
{
    return static_cast<unsigned int>(((static_cast<uint64_t>(high) << 32 | low) << (shift & 31)) >> 32);
}

inline unsigned int __funnelshift_r(unsigned int low, unsigned int high, unsigned int shift)
{
    return static_cast<unsigned int>((static_cast<uint64_t>(high) << 32 | low) >> (shift & 31));
}

inline unsigned int __byte_perm(unsigned int low, unsigned int high, unsigned int selector)
{
    const uint64_t bytes = static_cast<uint64_t>(high) << 32 | low;
    unsigned int out = 0;

    for (unsigned int i = 0; i < 4; i++)
        out |= static_cast<unsigned int>(bytes >> (selector >> (4 * i) & 7) * 8 & 0xff) << (8 * i);
    return out;
}

inline unsigned int __umulhi(unsigned int a, unsigned int b)
{
    return static_cast<unsigned int>(static_cast<uint64_t>(a) * b >> 32);
}

/* --- arithmetic that is rounded as written --- */

inline float __fadd_rn(float a, float b)
{
    return a + b;
}

inline float __fsub_rn(float a, float b)
{
    return a - b;
}

inline float __fmul_rn(float a, float b)
{
    return a * b;
}

inline float __fdiv_rn(float a, float b)
{
    return a / b;
}

inline float __fmaf_rn(float a, float b, float c)
{
    return fmaf(a, b, c);
}

inline float __fsqrt_rn(float a)
{
    return sqrtf(a);
}

inline float __frcp_rn(float a)
{
    return 1.0f / a;
}

inline double __dadd_rn(double a, double b)
{
    return a + b;
}

inline double __dmul_rn(double a, double b)
{
    return a * b;
}

inline float rsqrtf(float a)
{
    return 1.0f / sqrtf(a);
}

inline float fdividef(float a, float b)
{
    return a / b;
}

template <class T> constexpr T twin_min(T a, T b)
{
    return b < a ? b : a;
}

template <class T> constexpr T twin_max(T a, T b)
{
    return a < b ? b : a;
}

#define TWIN_MIN_MAX(type)                                                                                                       \
    constexpr type min(type a, type b)                                                                                           \
    {                                                                                                                            \
        return twin_min(a, b);                                                                                                   \
    }                                                                                                                            \
    constexpr type max(type a, type b)                                                                                           \
    {                                                                                                                            \
        return twin_max(a, b);                                                                                                   \
    }
TWIN_MIN_MAX(int)
TWIN_MIN_MAX(unsigned int)
TWIN_MIN_MAX(long)
TWIN_MIN_MAX(unsigned long)
TWIN_MIN_MAX(long long)
TWIN_MIN_MAX(unsigned long long)
#undef TWIN_MIN_MAX
inline float min(float a, float b)
{
    return fminf(a, b);
}

inline float max(float a, float b)
{
    return fmaxf(a, b);
}

/* --- vectors --- */

#define TWIN_MAKE(type, name)                                                                                                    \
    inline name##2 make_##name##2(type x, type y)                                                                                \
    {                                                                                                                            \
        return name##2 {x, y};                                                                                                   \
    }                                                                                                                            \
    inline name##3 make_##name##3(type x, type y, type z)                                                                        \
    {                                                                                                                            \
        return name##3 {x, y, z};                                                                                                \
    }                                                                                                                            \
    inline name##4 make_##name##4(type x, type y, type z, type w)                                                                \
    {                                                                                                                            \
        return name##4 {x, y, z, w};                                                                                             \
    }
TWIN_MAKE(int, int)
TWIN_MAKE(unsigned int, uint)
TWIN_MAKE(unsigned short, ushort)
TWIN_MAKE(float, float)
TWIN_MAKE(double, double)
TWIN_MAKE(unsigned long long, ulonglong)
#undef TWIN_MAKE

#endif
