/* tests/cuda/gpu_guard.c - ends a test program that needs a GPU with 77, a skip, where there is none. */
#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>

__attribute__((constructor)) static void need_gpu(void)
{
    int count = 0;
    const cudaError_t err = cudaGetDeviceCount(&count);

    if (err == cudaSuccess && count > 0)
        return;
    fprintf(stderr, "skipped: no GPU (%s)\n", err != cudaSuccess ? cudaGetErrorString(err) : "none is visible");
    exit(77);
}
