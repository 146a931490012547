/* tests/cuda/emulator/twin.h - what a test may do to the emulated devices.
 *
 * One process is one world of devices: twin_reset() brings it back to how it began, one device of 1 GiB and no failures.  It is
 * called when nobody uses a stream or event of the emulator any more; streams and memory that are left are freed. */
#ifndef TESTS_CUDA_EMULATOR_TWIN_H
#define TESTS_CUDA_EMULATOR_TWIN_H

#include "tests/cuda/emulator/cuda_runtime_api.h"

#ifdef __cplusplus
extern "C" {
#endif

void twin_reset(void);
/** As many devices with so much memory each; more than 8 are 8.  None: every call that needs one is cudaErrorNoDevice. */
void twin_set_devices(int count, uint64_t bytes);
/** Dynamic shared memory that a block may ask for, at most and at first 227 KiB; a kernel that asked for more before keeps it. */
void twin_set_shared(uint32_t bytes);
/* Kinds of devices: sm_90 as at first; cards of sm_70 and sm_75, the latter with 64 KiB of shared memory; memory that is the
 * host's; memory of its own that the host can read. */
enum twin_kind { TWIN_CARD, TWIN_VOLTA, TWIN_TURING, TWIN_UNIFIED, TWIN_COHERENT };
/** Of a whole program: TWIN_KIND=volta, turing, unified or coherent in its environment. */
void twin_set_kind(enum twin_kind kind);
/** Every device is a MIG slice with the memory of twin_set_devices(), of a card with twice as much. */
void twin_make_slices(void);
/** A machine without a driver: every call that needs a device is cudaErrorInsufficientDriver. */
void twin_remove_driver(void);
/**
 * Calls of the function `call` ("cudaMalloc", ...; NULL: of any that can fail) succeed `after` times and then, `count` times,
 * do nothing and return `err`.  One failure is armed at a time.
 */
void twin_fail(const char *call, uint64_t after, uint64_t count, cudaError_t err);
/** How often the armed failure struck; disarms it. */
uint64_t twin_disarm(void);
/** The next but `after` operation that a stream runs fails, and then all: the context is lost, as after an illegal address. */
void twin_break(uint64_t after, cudaError_t err);
/** The next but `after` operation that a stream runs does not end until twin_release().  Of a whole program: TWIN_HANG=after in
 * its environment. */
void twin_hang(uint64_t after);
void twin_release(void);
/** Lazy streams run an operation only when somebody waits for it or for a later one of its stream, or asks whether it has ended.
 */
void twin_be_lazy(int lazy);
/** In an operation of a stream: it takes so much time, as events see it, and none of the test's.  Stand-ins of libraries call it.
 */
__attribute__((visibility("default"))) void twin_spend(uint64_t ns);
/** Kernels, copies and callbacks that are enqueued or run, in all streams. */
uint64_t twin_pending(void);
/** What is held now: bytes of device memory, bytes of pinned host memory, streams and events, and devices with a context. */
struct twin_holdings {
    uint64_t device_bytes, pinned_bytes;
    uint32_t streams, events, contexts;
};
struct twin_holdings twin_held(void);

/** How the host is kept from device memory: see protect.h. */
enum twin_protection { TWIN_PROTECT_NONE, TWIN_PROTECT_BY_KEYS, TWIN_PROTECT_BY_PAGES };
enum twin_protection twin_protection(void);
/** Another way, while there is no device memory: BY_KEYS only where it was the first. */
void twin_protect(enum twin_protection how);

/** For the stand-ins of libraries: enqueue work of the device, which has rights to its memory. */
#pragma GCC visibility push(default)
cudaError_t twin_launch(cudaStream_t stream, cudaHostFn_t work, void *data);
#pragma GCC visibility pop

#ifdef __cplusplus
}
#endif
#endif
