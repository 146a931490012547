/* tests/cuda/emulator/cudart.cpp - errors and devices; memory is in memory.cpp, streams and launches in streams.cpp. */
#include "tests/cuda/emulator/world.h"
#include <stdio.h>
#include <stdlib.h>

using namespace twin;

/* --- errors --- */

const char *cudaGetErrorName(cudaError_t err)
{
    switch (err) {
#define TWIN_NAME(name, value, text)                                                                                             \
    case name:                                                                                                                   \
        return #name;
        TWIN_ERRORS(TWIN_NAME)
#undef TWIN_NAME
    }
    return "unrecognized error code";
}

const char *cudaGetErrorString(cudaError_t err)
{
    switch (err) {
#define TWIN_TEXT(name, value, text)                                                                                             \
    case name:                                                                                                                   \
        return text;
        TWIN_ERRORS(TWIN_TEXT)
#undef TWIN_TEXT
    }
    return "unrecognized error code";
}

cudaError_t cudaPeekAtLastError(void)
{
    const cudaError_t err = twin::lost();

    return err != cudaSuccess ? err : last_error;
}

cudaError_t cudaGetLastError(void)
{
    const cudaError_t err = cudaPeekAtLastError();

    last_error = cudaSuccess;
    return err;
}

/* --- devices --- */

cudaError_t cudaDriverGetVersion(int *version)
{
    *version = the_world.has_driver ? CUDART_VERSION : 0;
    return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *version)
{
    *version = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int *count)
{
    const cudaError_t err = enter("cudaGetDeviceCount");

    *count = err == cudaSuccess ? the_world.device_count : 0;
    return err;
}

cudaError_t cudaSetDevice(int device)
{
    const cudaError_t err = enter("cudaSetDevice");

    if (err != cudaSuccess)
        return err;
    if (device < 0 || device >= the_world.device_count)
        return note(cudaErrorInvalidDevice);
    device_of_thread = device;
    use_context(); /* since CUDA 12 */
    return cudaSuccess;
}

cudaError_t cudaGetDevice(int *device)
{
    const cudaError_t err = enter("cudaGetDevice");

    if (err == cudaSuccess)
        *device = device_of_thread;
    return err;
}

cudaError_t cudaSetDeviceFlags(unsigned int flags)
{
    const cudaError_t err = enter("cudaSetDeviceFlags");

    (void)flags;
    return err;
}

static const int capabilities[] = {90, 70, 75, 121, 90}; /* by enum twin_kind */

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *prop, int device)
{
    const cudaError_t err = enter("cudaGetDeviceProperties");

    if (err != cudaSuccess)
        return err;
    if (device < 0 || device >= the_world.device_count)
        return note(cudaErrorInvalidDevice);
    *prop = {};
    snprintf(prop->name, sizeof(prop->name), "Emulated GPU %d%s", device, the_world.has_slices ? " MIG 1g.1gb" : "");
    for (int i = 0; i < 16; i++)
        prop->uuid.bytes[i] = static_cast<char>(16 * i + device);
    prop->totalGlobalMem = the_world.device_bytes * (the_world.has_slices ? 2 : 1);
    prop->sharedMemPerBlock = 48u << 10;
    prop->sharedMemPerBlockOptin = the_world.shared_most;
    prop->warpSize = 32;
    prop->maxThreadsPerBlock = 1024;
    prop->maxThreadsPerMultiProcessor = 2048;
    prop->major = capabilities[the_world.kind] / 10;
    prop->minor = capabilities[the_world.kind] % 10;
    prop->integrated = the_world.kind == TWIN_UNIFIED;
    prop->pageableMemoryAccessUsesHostPageTables = the_world.kind == TWIN_UNIFIED || the_world.kind == TWIN_COHERENT;
    prop->multiProcessorCount = 4;
    prop->asyncEngineCount = 2;
    prop->pciBusID = device + 1;
    prop->canMapHostMemory = 1;
    prop->hostRegisterSupported = 1;
    prop->l2CacheSize = 1 << 20;
    prop->memoryBusWidth = 64;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attr, int device)
{
    struct cudaDeviceProp prop;
    const cudaError_t err = cudaGetDeviceProperties(&prop, device);

    if (err != cudaSuccess)
        return err;
    switch (attr) {
    case cudaDevAttrMaxSharedMemoryPerBlock:
        *value = static_cast<int>(prop.sharedMemPerBlock);
        break;
    case cudaDevAttrMultiProcessorCount:
        *value = prop.multiProcessorCount;
        break;
    case cudaDevAttrAsyncEngineCount:
        *value = prop.asyncEngineCount;
        break;
    case cudaDevAttrComputeCapabilityMajor:
        *value = prop.major;
        break;
    case cudaDevAttrComputeCapabilityMinor:
        *value = prop.minor;
        break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
        *value = static_cast<int>(prop.sharedMemPerBlockOptin);
        break;
    case cudaDevAttrHostRegisterSupported:
        *value = prop.hostRegisterSupported;
        break;
    default:
        return note(cudaErrorInvalidValue);
    }
    return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char *id, int bytes, int device)
{
    const cudaError_t err = enter("cudaDeviceGetPCIBusId");

    if (err != cudaSuccess)
        return err;
    if (device < 0 || device >= the_world.device_count || bytes < 13)
        return note(cudaErrorInvalidValue);
    snprintf(id, static_cast<size_t>(bytes), "0000:%02X:00.0", static_cast<unsigned>(device + 1) & 0xffu);
    return cudaSuccess;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
    const cudaError_t err = enter("cudaDeviceGetStreamPriorityRange");

    *least = PRIORITY_LEAST;
    *greatest = PRIORITY_GREATEST;
    return err;
}

cudaError_t cudaDeviceSynchronize(void)
{
    const cudaError_t err = enter("cudaDeviceSynchronize");

    return err != cudaSuccess ? err : note(twin::synchronize_all());
}

cudaError_t cudaDeviceGetLimit(size_t *value, enum cudaLimit limit)
{
    const cudaError_t err = enter("cudaDeviceGetLimit");

    if (err != cudaSuccess)
        return err;
    use_context();
    *value = limit == cudaLimitStackSize ? 1024 : 0;
    return cudaSuccess;
}

/* With memory, streams or events still held it would pull them from under their owners. */
cudaError_t cudaDeviceReset(void)
{
    const cudaError_t err = enter("cudaDeviceReset");
    const std::lock_guard<std::mutex> guard(the_world.lock);
    bool &has = the_world.has_context[device_of_thread];

    if (err != cudaSuccess)
        return err;
    if (the_world.used[device_of_thread] > 0 || the_world.held.streams > 0 || the_world.held.events > 0)
        abort();
    the_world.held.contexts -= has;
    has = false;
    return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes)
{
    const cudaError_t err = enter("cudaMemGetInfo");

    if (err != cudaSuccess)
        return err;
    use_context();

    const std::lock_guard<std::mutex> guard(the_world.lock);

    *free_bytes = the_world.device_bytes - the_world.used[device_of_thread];
    *total_bytes = the_world.device_bytes;
    return cudaSuccess;
}
