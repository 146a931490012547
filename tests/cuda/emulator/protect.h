/* tests/cuda/emulator/protect.h - device memory that is poisoned when it is new, and that the host can neither read nor write.
 *
 * What the device does - kernels, copies, the work of the stand-ins of libraries - has rights to device memory while it runs;
 * any other access aborts and names address, allocation and thread.  Where processor and system have protection keys, rights are
 * a thread's own.  Elsewhere an allocation is closed until the device touches it, and closed again when no device works: what
 * the host does meanwhile is not seen.  Under asan there are no rights, since its search for leaks reads all memory; each
 * allocation has asan's red zones instead. */
#ifndef TESTS_CUDA_EMULATOR_PROTECT_H
#define TESTS_CUDA_EMULATOR_PROTECT_H

#include <stddef.h>

namespace twin
{

constexpr unsigned char POISON = 0xff; /* a NaN in every float format */
constexpr size_t DEVICE_ALIGN = 512;

/** [bytes] of POISON, a multiple of DEVICE_ALIGN, before a page that nobody may touch; null: there is no memory. */
void *device_pages(size_t bytes);
void device_pages_free(void *at, size_t bytes);

/** While it lives, the calling thread has rights to device memory, or has none. */
class rights
{
  public:
    explicit rights(bool granted);
    ~rights();
    rights(const rights &) = delete;
    rights &operator=(const rights &) = delete;

  private:
    const bool before;
};

/** Makes SIGSEGV's handler ours, if it no longer is: a test's framework takes it for each test.  The world's lock is held. */
void watch_faults();

} // namespace twin

#endif
