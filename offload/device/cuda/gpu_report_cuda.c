/* gpu_report_cuda.c - which GPUs, driver, cuBLAS and NCCL this machine has.  See offload/device/cuda/gpu_report.h. */
#include "core/base/error.h"
#include "offload/device/cuda/device_cuda_blas_internal.h"
#include "offload/device/cuda/device_cuda_internal.h"
#include "offload/device/cuda/gpu_report.h"

#include <stdio.h>
#include <string.h>

static void take_problem(struct st_gpu_report *out, const char *text)
{
    if (out->problem[0] == '\0')
        snprintf(out->problem, sizeof(out->problem), "%s", text);
}

/* A slice is known by its name, "NVIDIA H100 80GB HBM3 MIG 1g.10gb"; CUDA has no attribute for it, and a UUID no prefix. */
static void name_gpu(struct st_gpu *out, const struct cudaDeviceProp *props, int index)
{
    size_t used;

    snprintf(out->name, sizeof(out->name), "%.*s", (int)sizeof(out->name) - 1, props->name);
    out->is_slice = strstr(props->name, " MIG ") != NULL;
    if (cudaDeviceGetPCIBusId(out->pci, sizeof(out->pci), index) != cudaSuccess)
        out->pci[0] = '\0';
    used = (size_t)snprintf(out->uuid, sizeof(out->uuid), "%s", out->is_slice ? "MIG" : "GPU");
    for (int i = 0; i < 16; i++)
        used += (size_t)snprintf(out->uuid + used, sizeof(out->uuid) - used, "%s%02x",
                                 i == 0 || (i >= 4 && i <= 10 && i % 2 == 0) ? "-" : "", (unsigned char)props->uuid.bytes[i]);
}

/* Of a slice, the properties may tell the whole card's memory. */
static void report_gpu(struct st_gpu *out, int index)
{
    struct st_device_memory memory;
    struct cudaDeviceProp props;

    if (cudaGetDeviceProperties(&props, index) != cudaSuccess)
        return;
    name_gpu(out, &props, index);
    out->bytes = props.totalGlobalMem;
    out->major = (uint32_t)props.major;
    out->minor = (uint32_t)props.minor;
    out->lacks_bf16 = st_cuda_lacks_bf16(&props);
    if (st_device_cuda_ops.memory((uint32_t)index, &memory) == STRATA_OK) {
        out->bytes = memory.total;
        out->free_bytes = memory.free;
        out->usable_bytes = memory.usable;
        out->memory = memory.kind;
    }
    (void)cudaGetLastError();
}

/* Where a GPU can be used, the library is the one that a run would take. */
static void report_blas(struct st_gpu_report *out)
{
    struct st_blas blas = {0};

    if (st_blas_open(&blas, &st_blas_library, out->problem[0] == '\0') != STRATA_OK) {
        take_problem(out, strata_last_error());
        return;
    }
    snprintf(out->blas, sizeof(out->blas), "%s", blas.name);
    out->blas_version = blas.version();
    st_blas_close(&blas);
}

/* A context keeps some hundred MiB of its GPU. */
static void end_contexts(int count)
{
    for (int i = 0; i < count; i++)
        if (cudaSetDevice(i) == cudaSuccess)
            (void)cudaDeviceReset();
    (void)cudaGetLastError();
}

void st_gpu_report(struct st_gpu_report *out)
{
    struct st_device_memory memory;
    int driver = 0, runtime = 0, count = 0;

    *out = (struct st_gpu_report){0};
    if (cudaDriverGetVersion(&driver) == cudaSuccess)
        out->driver = (uint32_t)driver;
    if (cudaRuntimeGetVersion(&runtime) == cudaSuccess)
        out->runtime = (uint32_t)runtime;
    if (cudaGetDeviceCount(&count) != cudaSuccess)
        count = 0;
    (void)cudaGetLastError();
    for (int i = 0; i < count && i < (int)ST_GPUS_MAX; i++)
        report_gpu(&out->gpus[out->count++], i);
    if (st_device_cuda_ops.memory(0, &memory) != STRATA_OK)
        take_problem(out, strata_last_error());
    report_blas(out);
    end_contexts(count);
    st_gpu_report_nccl(out);
    st_error_clear();
}
