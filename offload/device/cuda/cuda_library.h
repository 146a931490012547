/* offload/device/cuda/cuda_library.h - finds NVIDIA's shared libraries when the program runs: one order of places for
 * all.
 *
 * For each version of the name, best first:
 *   1. as the system finds it: LD_LIBRARY_PATH, then ldconfig's list;
 *   2. the toolkit's folders: CUDA_HOME, CUDA_PATH, /usr/local/cuda*, /opt/cuda*, CONDA_PREFIX;
 *   3. pip's packages, the lib folders below nvidia/, of VIRTUAL_ENV, CONDA_PREFIX, the python on PATH (through its links; it is
 * not run),
 *      ~/.local, /usr/local and /usr.
 * A library that cannot be opened or is not accepted gives way to the next one.  Only absolute paths count, and no file is opened
 * twice. */
#ifndef OFFLOAD_DEVICE_CUDA_CUDA_LIBRARY_H
#define OFFLOAD_DEVICE_CUDA_CUDA_LIBRARY_H

#include "strata/status.h"
#include <stdint.h>

#define ST_LIBRARY_VERSIONS 3u

struct st_library_kind {
    const char *name;                       /* "libcublasLt.so": a version is appended */
    uint32_t versions[ST_LIBRARY_VERSIONS]; /* best first; 0: no more */
    const char *asked;   /* environment variable with the path of a file: if set, no other is tried.  NULL: none */
    const char *site;    /* fault site of opening a library */
    const char *missing; /* the sentence when there is none, with the remedy */
    /* Try an opened library.  E_NOSYS: not this one, and the next one is tried; the thread's sentence says why.  Another error
     * ends the search. */
    strata_status (*accept)(void *ctx, void *handle, const char *file);
};

extern const struct st_library_kind st_nccl_library; /* where it is searched for; accepts what tells a version, for a report */

/** Open the first library that is accepted.  It is never unloaded: not all CUDA libraries survive that.
 *  @param ctx  of accept()
 *  @return E_NOSYS: none; the sentence is kind->missing, then each file that was tried and why it was refused */
strata_status st_library_find(const struct st_library_kind *kind, void *ctx);

#endif
