/* strata/strata.h - the whole public interface: include this one.
 *
 * Build against an installed strata with CMake
 *
 *     find_package(strata REQUIRED)
 *     target_link_libraries(program PRIVATE strata::strata)
 *
 * or with pkg-config: cc program.c $(pkg-config --cflags --libs strata), which links libstrata.so, as CMake's strata::shared does.
 * strata::strata is libstrata.a; by pkg-config that is -l:libstrata.a and what `pkg-config --static --libs strata` says behind it.
 *
 * Signals.  The library starts its own threads with every signal from outside blocked.  Block them, too (pthread_sigmask), in
 * threads that call functions that compute, and handle them on another thread.  Kernels of oneDNN before 3.12 use the stack
 * pointer as a data pointer (oneDNN issue 4845, fixed by its pull request 4855): the frame of a handler that runs on such a
 * thread lands in the heap.  If you cannot block them, give those threads an alternate stack (sigaltstack) and every handler
 * SA_ONSTACK.
 *
 * Under a limit on the size of files (RLIMIT_FSIZE, ulimit -f) a write beyond it raises SIGXFSZ, which ends a program that has it
 * at its default. Ignore it, signal(SIGXFSZ, SIG_IGN): then the call returns STRATA_E_NOSPC and its sentence names the limit.
 *
 * Working directory.  Relative names count from it whenever something is opened, written or removed there: a program that changes
 * it while models, engines, exports or checkpoints are open names absolute ones.
 *
 * Floating point.  Calls that plan, compute or read numbers do so as a C program does from its start: rounding to nearest, with
 * subnormals, without traps.  What the calling thread has set instead (fesetround(), feenableexcept(), -ffast-math) is set aside
 * meanwhile and changes no bit; callbacks run without it, too.
 *
 * OpenMP, CUDA.  oneDNN computes within a team of one; the size of the calling thread's team (omp_set_num_threads()) stays.  A
 * call that uses the GPU "cuda:N" leaves N as the calling thread's device: a program with CUDA of its own calls cudaSetDevice()
 * again.
 *
 * Locale.  Sentences have the decimal point of the program's locale; files, and numbers in the texts of configurations, always
 * have a point. */
#ifndef STRATA_STRATA_H
#define STRATA_STRATA_H

#include "strata/adapter.h"
#include "strata/advise.h"
#include "strata/checkpoint.h"
#include "strata/comm.h"
#include "strata/config.h"
#include "strata/data.h"
#include "strata/engine.h"
#include "strata/generate.h"
#include "strata/io.h"
#include "strata/layers.h"
#include "strata/log.h"
#include "strata/machine.h"
#include "strata/model.h"
#include "strata/optim.h"
#include "strata/plan.h"
#include "strata/recipe.h"
#include "strata/status.h"
#include "strata/tokenizer.h"
#include "strata/tokens.h"
#include "strata/train.h"
#include "strata/types.h"
#include "strata/verify.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Version of the library in use, e.g. "0.1.0"; STRATA_VERSION_STRING is the version of the headers compiled against.
 *
 *  Never NULL; borrowed, static.
 *  Thread  any. */
STRATA_API const char *strata_version(void);

/** The public interface as JSON, made by the build from the headers, for bindings of other languages (docs/api.md).
 *
 *  Never NULL; borrowed, static.
 *  Thread  any. */
STRATA_API const char *strata_abi(void);

#ifdef __cplusplus
}
#endif
#endif
