/* bench/update/scheme.h - the update of a state on NVMe with the traffic of other systems, but our storage and our kernels.
 *
 * Only the traffic differs from strata's own update: chunks are read ahead and written behind here as well.
 *   zero-infinity  fp32 master and moments in planes of their own; fp32 gradients are written to storage when backward produces
 *   them and
 *                  read again with the state: 16 bytes per parameter each way, 32 in all
 *   mlp-offload    fp32 master and moments, gradients from host memory, the order reversed in every other update: 24 in all
 * Both write a bf16 copy of the weights to host memory.  Sources: Rajbhandari et al., arXiv:2104.07857; Maurya et al.,
 * MLP-Offload. */
#ifndef BENCH_UPDATE_SCHEME_H
#define BENCH_UPDATE_SCHEME_H

#include "bench/bench_setup.h"
#include "kernels/kernels.h"

enum bench_scheme_kind { BENCH_ZERO_INFINITY, BENCH_MLP_OFFLOAD, BENCH_SCHEME_COUNT };
extern const char *const bench_scheme_names[BENCH_SCHEME_COUNT];
/* Bytes per parameter that storage moves in one update. */
extern const uint32_t bench_scheme_bytes[BENCH_SCHEME_COUNT];

struct bench_scheme;

struct bench_scheme_opts {
    enum bench_scheme_kind kind;
    uint64_t params;                  /* rounded up to whole blocks of ST_NORM_BLOCK */
    const struct st_kernels *kernels; /* borrowed */
};

/** Create the files (in the setup's first directory), allocate memory, and write a state with moments of zero.
 *  E_NOFIT, E_NOMEM, E_NOSPC, E_INVAL, E_IO, E_CANCELLED. */
strata_status bench_scheme_open(struct bench_scheme **out, const struct bench_setup *setup, const struct bench_scheme_opts *opts);
void bench_scheme_close(struct bench_scheme *s); /* NULL is fine; removes the files */

/** Write the gradients, if storage holds them, and run the update.  *seconds: until the last byte is written. */
strata_status bench_scheme_update(struct bench_scheme *s, double *seconds, uint64_t *bytes_read, uint64_t *bytes_written);

#endif
