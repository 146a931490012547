/* kernels/cuda/mma.cuh - the machine instructions of the tensor core kernels: 16x8x16 products of bf16 and fp16 with fp32 sums,
 * matrix loads from shared memory, and asynchronous copies into it.
 *
 * Fragments, g = lane / 4 and t = lane % 4.  A [16 rows][16]: a[0] row g columns 2t, 2t + 1; a[1] row g + 8; a[2], a[3] the same,
 * 8 columns further.  B [16][8 columns]: b0 column g rows 2t, 2t + 1; b1 8 rows further.  C [16][8]: c[0], c[1] row g columns 2t,
 * 2t + 1; c[2], c[3] row g + 8.  So two adjacent C tiles, packed, form an A. The lower half of a pair is the first element.
 * Source: PTX ISA, "Matrix Fragments for mma.m16n8k16", "ldmatrix", "cp.async".
 *
 * Everything but the copies must be called by whole warps.  Under the tests' emulator the same functions are its own warp
 * operations. */
#ifndef KERNELS_CUDA_MMA_CUH
#define KERNELS_CUDA_MMA_CUH

#include "kernels/cuda/halves.cuh"

#ifndef ST_CUDA_EMULATOR

static __device__ __forceinline__ uint32_t st_shared_address(const void *p)
{
    return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

/** Four 8x8 matrices; lane i names row i % 8 of matrix i / 8 (16 bytes, aligned).  r[m]: row g, columns 2t, 2t + 1 of matrix m.
 */
static __device__ __forceinline__ void st_load_matrices(uint32_t r[4], const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(st_shared_address(row))
                 : "memory");
}

/** The same transposed.  r[m]: rows 2t, 2t + 1 of column g. */
static __device__ __forceinline__ void st_load_matrices_transposed(uint32_t r[4], const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(st_shared_address(row))
                 : "memory");
}

#if __CUDA_ARCH__ < 800

/* Capability 7.5 multiplies 8 columns at a time, and only of fp16: an A of 16 columns is two of 8. */
static __device__ __forceinline__ void st_mma_8(float c[4], uint32_t a0, uint32_t a1, uint32_t b)
{
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a0), "r"(a1), "r"(b));
}

/** c += a * b.  bf16 never comes here: the device refuses it. */
template <strata_dtype DT>
static __device__ __forceinline__ void st_mma(float c[4], const uint32_t a[4], uint32_t b0, uint32_t b1)
{
    if (DT != STRATA_F16)
        __trap();
    st_mma_8(c, a[0], a[1], b0);
    st_mma_8(c, a[2], a[3], b1);
}

/** As cp.async, but the copy is made at once, through registers. */
template <uint32_t BYTES> static __device__ __forceinline__ void st_copy_async(void *shared, const void *global, bool inside)
{
    static_assert(BYTES == 8 || BYTES == 16, "sizes of cp.async");
    if (BYTES == 16)
        *static_cast<uint4 *>(shared) = inside ? *static_cast<const uint4 *>(global) : make_uint4(0, 0, 0, 0);
    else
        *static_cast<uint2 *>(shared) = inside ? *static_cast<const uint2 *>(global) : make_uint2(0, 0);
}

static __device__ __forceinline__ void st_copy_commit()
{
}

template <int PENDING> static __device__ __forceinline__ void st_copy_wait()
{
}

#else

/** c += a * b. */
template <strata_dtype DT>
static __device__ __forceinline__ void st_mma(float c[4], const uint32_t a[4], uint32_t b0, uint32_t b1)
{
    if (DT == STRATA_BF16)
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                     : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    else
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                     : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/** Start to copy BYTES (8 or 16), both sides aligned to them; writes zeros if not `inside` (`global` is not read then, but must
 *  be a valid address). */
template <uint32_t BYTES> static __device__ __forceinline__ void st_copy_async(void *shared, const void *global, bool inside)
{
    static_assert(BYTES == 8 || BYTES == 16, "sizes of cp.async");
    if (BYTES == 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(st_shared_address(shared)), "l"(global),
                     "r"(inside ? 16 : 0)
                     : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(st_shared_address(shared)), "l"(global),
                     "r"(inside ? 8 : 0)
                     : "memory");
}

/** Close the group of copies this thread has started. */
static __device__ __forceinline__ void st_copy_commit()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/** Wait until at most PENDING of this thread's groups are in flight.  A barrier then shows the copies to the block. */
template <int PENDING> static __device__ __forceinline__ void st_copy_wait()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

#endif

#else

#include <vector>

#define ST_EMULATED_THREADS 1024u

/* Stores the two halves of a pair `apart` floats from each other. */
template <strata_dtype DT> static inline void st_widen_pair(float *to, uint32_t apart, uint32_t pair)
{
    to[0] = st_widen<DT>(static_cast<uint16_t>(pair));
    to[apart] = st_widen<DT>(static_cast<uint16_t>(pair >> 16));
}

struct st_emulated_mma {
    float c[4];
    uint32_t a[4], b[2];
};

struct st_emulated_sums {
    float c[4];
};

/* In two steps of 8 products. */
template <strata_dtype DT>
static inline void st_emulated_product(const struct st_emulated_mma *const in[ST_WARP],
                                       struct st_emulated_sums *const out[ST_WARP])
{
    float a[16][16], b[16][8], c[16][8];

    for (uint32_t lane = 0; lane < ST_WARP; lane++) {
        const uint32_t g = lane / 4, t = lane % 4 * 2;

        for (uint32_t i = 0; i < 4; i++) {
            st_widen_pair<DT>(&a[g + i % 2 * 8][t + i / 2 * 8], 1, in[lane]->a[i]);
            c[g + i / 2 * 8][t + i % 2] = in[lane]->c[i];
        }
        for (uint32_t i = 0; i < 2; i++)
            st_widen_pair<DT>(&b[t + 8 * i][g], 8, in[lane]->b[i]);
    }
    for (uint32_t row = 0; row < 16; row++)
        for (uint32_t k = 0; k < 16; k += TWIN_STEP)
            twin_tensor_step(c[row], &a[row][k], b[k], 8);
    for (uint32_t lane = 0; lane < ST_WARP; lane++)
        for (uint32_t i = 0; i < 4; i++)
            out[lane]->c[i] = c[lane / 4 + i / 2 * 8][lane % 4 * 2 + i % 2];
}

template <strata_dtype DT> static inline void st_mma(float c[4], const uint32_t a[4], uint32_t b0, uint32_t b1)
{
    const struct st_emulated_mma mine = {{c[0], c[1], c[2], c[3]}, {a[0], a[1], a[2], a[3]}, {b0, b1}};
    const struct st_emulated_sums sums = twin_warp<st_emulated_sums>(
        0xffffffffu, mine,
        [](uint32_t, const st_emulated_mma *const in[ST_WARP], st_emulated_sums *const out[ST_WARP]) {
            st_emulated_product<DT>(in, out);
        },
        "st_mma");

    memcpy(c, sums.c, sizeof(sums.c));
}

struct st_emulated_matrices {
    uint32_t r[4];
};

static inline void st_emulated_load(uint32_t r[4], const void *row, bool transposed)
{
    const uint16_t *mine = static_cast<const uint16_t *>(row);
    const struct st_emulated_matrices loaded = twin_warp<st_emulated_matrices>(
        0xffffffffu, mine,
        [transposed](uint32_t, const uint16_t *const *const in[ST_WARP], st_emulated_matrices *const out[ST_WARP]) {
            for (uint32_t lane = 0; lane < ST_WARP; lane++)
                for (uint32_t m = 0; m < 4; m++) {
                    const uint32_t g = lane / 4, t = lane % 4 * 2;
                    const uint16_t first = transposed ? (*in[8 * m + t])[g] : (*in[8 * m + g])[t];
                    const uint16_t second = transposed ? (*in[8 * m + t + 1])[g] : (*in[8 * m + g])[t + 1];

                    out[lane]->r[m] = static_cast<uint32_t>(second) << 16 | first;
                }
        },
        "st_load_matrices");

    assert(reinterpret_cast<uintptr_t>(row) % 16 == 0);
    memcpy(r, loaded.r, sizeof(loaded.r));
}

static inline void st_load_matrices(uint32_t r[4], const void *row)
{
    st_emulated_load(r, row, false);
}

static inline void st_load_matrices_transposed(uint32_t r[4], const void *row)
{
    st_emulated_load(r, row, true);
}

/* A copy takes effect when it is waited for, and its target is NaN until then, so that a missing wait shows. */
struct st_emulated_copy {
    void *shared;
    const void *global;
    uint32_t bytes, group;
    bool inside;
};

struct st_emulated_copies {
    std::vector<st_emulated_copy> waiting;
    uint32_t group;
};

static inline struct st_emulated_copies &st_copies_of_thread()
{
    static thread_local struct st_emulated_copies all[ST_EMULATED_THREADS];

    return all[threadIdx.x];
}

template <uint32_t BYTES> static inline void st_copy_async(void *shared, const void *global, bool inside)
{
    struct st_emulated_copies &copies = st_copies_of_thread();

    assert(reinterpret_cast<uintptr_t>(shared) % BYTES == 0 && reinterpret_cast<uintptr_t>(global) % BYTES == 0);
    memset(shared, 0xff, BYTES);
    copies.waiting.push_back({shared, global, BYTES, copies.group, inside});
}

static inline void st_copy_commit()
{
    st_copies_of_thread().group++;
}

template <int PENDING> static inline void st_copy_wait()
{
    struct st_emulated_copies &copies = st_copies_of_thread();
    size_t kept = 0;

    for (const struct st_emulated_copy &copy : copies.waiting) {
        if (copy.group + PENDING >= copies.group)
            copies.waiting[kept++] = copy;
        else if (copy.inside)
            memcpy(copy.shared, copy.global, copy.bytes);
        else
            memset(copy.shared, 0, copy.bytes);
    }
    copies.waiting.resize(kept);
}

#endif
#endif
