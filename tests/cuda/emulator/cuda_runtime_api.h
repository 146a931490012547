/* tests/cuda/emulator/cuda_runtime_api.h - the part of CUDA's runtime API that strata uses, over host memory and threads.
 *
 * Found in the place of the toolkit's header of this name.  Values, names and meanings are CUDA's; a call that is not here is not
 * emulated.  New memory is NaN, and the host cannot read or write the device's (protect.h); a kernel that reads the host's passes.
 * Failures are made by tests/cuda/emulator/twin.h. */
#ifndef TESTS_CUDA_EMULATOR_CUDA_RUNTIME_API_H
#define TESTS_CUDA_EMULATOR_CUDA_RUNTIME_API_H

#include "tests/cuda/emulator/vector_types.h"
#include <stddef.h>
#include <stdint.h>

#define ST_CUDA_EMULATOR 1
#define CUDART_VERSION   13000
#define CUDARTAPI
#define CUDART_CB

#ifdef __cplusplus
extern "C" {
#define TWIN_DEFAULT(value) = value
#else
#define TWIN_DEFAULT(value)
#endif

#define TWIN_ERRORS(X)                                                                                                           \
    X(cudaSuccess, 0, "no error")                                                                                                \
    X(cudaErrorInvalidValue, 1, "invalid argument")                                                                              \
    X(cudaErrorMemoryAllocation, 2, "out of memory")                                                                             \
    X(cudaErrorInitializationError, 3, "initialization error")                                                                   \
    X(cudaErrorInvalidConfiguration, 9, "invalid configuration argument")                                                        \
    X(cudaErrorInsufficientDriver, 35, "CUDA driver version is insufficient for CUDA runtime version")                           \
    X(cudaErrorDevicesUnavailable, 46, "CUDA-capable device(s) is/are busy or unavailable")                                      \
    X(cudaErrorNoDevice, 100, "no CUDA-capable device is detected")                                                              \
    X(cudaErrorInvalidDevice, 101, "invalid device ordinal")                                                                     \
    X(cudaErrorInvalidDeviceFunction, 98, "invalid device function")                                                             \
    X(cudaErrorNoKernelImageForDevice, 209, "no kernel image is available for execution on the device")                          \
    X(cudaErrorUnsupportedPtxVersion, 222, "the provided PTX was compiled with an unsupported toolchain.")                       \
    X(cudaErrorInvalidResourceHandle, 400, "invalid resource handle")                                                            \
    X(cudaErrorNotReady, 600, "device not ready")                                                                                \
    X(cudaErrorIllegalAddress, 700, "an illegal memory access was encountered")                                                  \
    X(cudaErrorHostMemoryAlreadyRegistered, 712, "part or all of the requested memory range is already mapped")                  \
    X(cudaErrorHostMemoryNotRegistered, 713, "pointer does not correspond to a registered memory region")                        \
    X(cudaErrorLaunchFailure, 719, "unspecified launch failure")                                                                 \
    X(cudaErrorNotPermitted, 800, "operation not permitted")                                                                     \
    X(cudaErrorNotSupported, 801, "operation not supported")                                                                     \
    X(cudaErrorSystemNotReady, 802, "system not yet initialized")                                                                \
    X(cudaErrorSystemDriverMismatch, 803, "system has unsupported display driver / cuda driver combination")                     \
    X(cudaErrorCompatNotSupportedOnDevice, 804, "forward compatibility was attempted on non supported HW")                       \
    X(cudaErrorUnknown, 999, "unknown error")

enum cudaError {
#define TWIN_ERROR(name, value, text) name = (value),
    TWIN_ERRORS(TWIN_ERROR)
#undef TWIN_ERROR
};
typedef enum cudaError cudaError_t;

typedef struct CUstream_st *cudaStream_t;
typedef struct CUevent_st *cudaEvent_t;
typedef void (*cudaHostFn_t)(void *data);

enum cudaMemcpyKind {
    cudaMemcpyHostToHost = 0,
    cudaMemcpyHostToDevice = 1,
    cudaMemcpyDeviceToHost = 2,
    cudaMemcpyDeviceToDevice = 3,
    cudaMemcpyDefault = 4
};

enum {
    cudaStreamDefault = 0,
    cudaStreamNonBlocking = 1,
    cudaEventDefault = 0,
    cudaEventBlockingSync = 1,
    cudaEventDisableTiming = 2,
    cudaHostRegisterDefault = 0,
    cudaHostRegisterPortable = 1,
    cudaHostRegisterMapped = 2,
    cudaHostRegisterReadOnly = 8,
    cudaHostAllocDefault = 0,
    cudaHostAllocPortable = 1,
    cudaHostAllocMapped = 2,
    cudaDeviceScheduleAuto = 0,
    cudaDeviceScheduleSpin = 1,
    cudaDeviceScheduleYield = 2,
    cudaDeviceScheduleBlockingSync = 4
};

enum cudaDeviceAttr {
    cudaDevAttrMaxSharedMemoryPerBlock = 8,
    cudaDevAttrMultiProcessorCount = 16,
    cudaDevAttrAsyncEngineCount = 40,
    cudaDevAttrComputeCapabilityMajor = 75,
    cudaDevAttrComputeCapabilityMinor = 76,
    cudaDevAttrMaxSharedMemoryPerBlockOptin = 97,
    cudaDevAttrHostRegisterSupported = 99
};

enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize = 8, cudaFuncAttributePreferredSharedMemoryCarveout = 9 };

enum cudaLimit { cudaLimitStackSize = 0 };

enum cudaMemoryType {
    cudaMemoryTypeUnregistered = 0,
    cudaMemoryTypeHost = 1,
    cudaMemoryTypeDevice = 2,
    cudaMemoryTypeManaged = 3
};

struct cudaPointerAttributes {
    enum cudaMemoryType type;
    int device;
    void *devicePointer, *hostPointer;
};

typedef struct CUuuid_st {
    char bytes[16];
} cudaUUID_t;

struct cudaDeviceProp {
    char name[256];
    cudaUUID_t uuid;
    size_t totalGlobalMem, sharedMemPerBlock, sharedMemPerBlockOptin;
    int warpSize, maxThreadsPerBlock, maxThreadsPerMultiProcessor, major, minor, multiProcessorCount, asyncEngineCount;
    int pciBusID, pciDeviceID, pciDomainID, integrated, canMapHostMemory, hostRegisterSupported;
    int pageableMemoryAccessUsesHostPageTables;
    int l2CacheSize, memoryBusWidth;
};

#pragma GCC visibility push(default) /* the emulated cublasLt, opened at run time, calls the program's */

cudaError_t cudaDriverGetVersion(int *version);
cudaError_t cudaRuntimeGetVersion(int *version);
cudaError_t cudaGetDeviceCount(int *count);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaGetDevice(int *device);
cudaError_t cudaSetDeviceFlags(unsigned int flags);
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *prop, int device);
cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attr, int device);
cudaError_t cudaDeviceGetPCIBusId(char *id, int bytes, int device);
cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest);
cudaError_t cudaDeviceSynchronize(void);
cudaError_t cudaDeviceReset(void);
cudaError_t cudaDeviceGetLimit(size_t *value, enum cudaLimit limit);
cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes);

const char *cudaGetErrorName(cudaError_t err);
const char *cudaGetErrorString(cudaError_t err);
cudaError_t cudaGetLastError(void);
cudaError_t cudaPeekAtLastError(void);

cudaError_t cudaMalloc(void **ptr, size_t bytes);
cudaError_t cudaFree(void *ptr);
cudaError_t cudaHostAlloc(void **ptr, size_t bytes, unsigned int flags);
cudaError_t cudaMallocHost(void **ptr, size_t bytes);
cudaError_t cudaFreeHost(void *ptr);
cudaError_t cudaHostRegister(void *ptr, size_t bytes, unsigned int flags);
cudaError_t cudaHostUnregister(void *ptr);
cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *attributes, const void *ptr);

cudaError_t cudaMemcpy(void *dst, const void *src, size_t bytes, enum cudaMemcpyKind kind);
cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t bytes, enum cudaMemcpyKind kind,
                            cudaStream_t stream TWIN_DEFAULT(nullptr));
cudaError_t cudaMemset(void *dst, int value, size_t bytes);
cudaError_t cudaMemsetAsync(void *dst, int value, size_t bytes, cudaStream_t stream TWIN_DEFAULT(nullptr));

cudaError_t cudaStreamCreate(cudaStream_t *stream);
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned int flags);
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned int flags, int priority);
cudaError_t cudaStreamGetPriority(cudaStream_t stream, int *priority);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamQuery(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned int flags TWIN_DEFAULT(0));
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t fn, void *data);

cudaError_t cudaEventCreate(cudaEvent_t *event);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned int flags);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream TWIN_DEFAULT(nullptr));
cudaError_t cudaEventQuery(cudaEvent_t event);
cudaError_t cudaEventSynchronize(cudaEvent_t event);
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to);

cudaError_t cudaFuncSetAttribute(const void *kernel, enum cudaFuncAttribute attr, int value);

#pragma GCC visibility pop

#ifdef __cplusplus
}
#endif
#endif
