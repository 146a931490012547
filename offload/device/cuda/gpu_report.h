/* offload/device/cuda/gpu_report.h - what `strata info` prints about GPUs: which ones there are, or why there is none. */
#ifndef OFFLOAD_DEVICE_CUDA_GPU_REPORT_H
#define OFFLOAD_DEVICE_CUDA_GPU_REPORT_H

#include "offload/device/device.h"

#include <stdbool.h>
#include <stdint.h>

#define ST_GPUS_MAX          16u
#define ST_GPU_PROBLEM_BYTES 1024u

struct st_gpu {
    char name[64];
    char pci[32];               /* its bus id, "0000:04:00.0", by which it is the same GPU to every program; "": unknown */
    char uuid[48];              /* as nvidia-smi writes it: "GPU-..." or "MIG-..." */
    bool is_slice;              /* a MIG slice: a part of a card, which appears as a GPU of its own */
    uint64_t bytes, free_bytes; /* of its memory, a slice's own; free_bytes 0: the query failed */
    uint64_t usable_bytes;      /* the largest arena of a run; 0: this GPU cannot be used */
    uint32_t major, minor;      /* compute capability */
    enum st_memory_kind memory;
    bool lacks_bf16;
};

struct st_gpu_report {
    char problem[ST_GPU_PROBLEM_BYTES]; /* why no GPU can be used; "" if one can */
    uint32_t count;
    struct st_gpu gpus[ST_GPUS_MAX];         /* by index, the N of "cuda:N" */
    uint32_t driver, runtime;                /* CUDA versions, 1000 * major + 10 * minor; 0: none */
    char blas[256];                          /* file of cublasLt; "": not found, or there was no reason to look */
    uint64_t blas_version;                   /* as the library reports it: 10000 * major + 100 * minor + patch */
    char nccl[256];                          /* file of NCCL; "": not found, or there was no reason to look */
    uint32_t nccl_version;                   /* as the library reports it: 10000 * major + 100 * minor + patch */
    char nccl_problem[ST_GPU_PROBLEM_BYTES]; /* why there is none */
};

/** Query the driver.  It creates a context on every GPU for a moment, which takes some tenths of a second, and destroys this
 *  process's contexts: no device may be open. */
void st_gpu_report(struct st_gpu_report *out);
/** The part of the report about NCCL. */
void st_gpu_report_nccl(struct st_gpu_report *out);

#endif
