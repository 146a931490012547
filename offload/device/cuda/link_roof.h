/* offload/device/cuda/link_roof.h - the rate of a device's links, measured without the device table: the roof with which its
 * copies are compared.
 *
 * On cuda it is cudaMemcpyAsync between host memory from cudaHostAlloc and device memory from cudaMalloc.  Each direction has its
 * own stream, which gets the requested number of copies back to back, and one cudaStreamSynchronize waits for them.  The only
 * code of ours in between is the clock, and the memory is the driver's own.  The table's copies use a registered arena and wait
 * by events that let the core sleep, so the ratio shows the cost of these two.  All calls come from one thread. */
#ifndef OFFLOAD_DEVICE_CUDA_LINK_ROOF_H
#define OFFLOAD_DEVICE_CUDA_LINK_ROOF_H

#include "strata/status.h"
#include <stdint.h>

struct st_link_roof;

enum st_link_direction { ST_LINK_UPLOAD = 1, ST_LINK_DOWNLOAD = 2, ST_LINK_BOTH = 3 };

/** Allocate `bytes` of device memory and as much pinned host memory for each direction.
 *  @param device  "cuda" or "cuda:N" (offload/device/device.h)
 *  @return E_NOSYS: no such device, or one whose memory is the host's; E_DEVICE_OOM; E_NOMEM; E_INTERNAL. */
strata_status st_link_roof_open(struct st_link_roof **out, const char *device, uint64_t bytes);
void st_link_roof_close(struct st_link_roof *roof); /* a half-opened one and NULL are allowed */

/** @param bytes    of one copy, at most the value given to open()
 *  @param count    copies in each direction
 *  @param seconds  out: of one copy; of a pair of them for ST_LINK_BOTH */
strata_status st_link_roof_run(struct st_link_roof *roof, enum st_link_direction directions, uint64_t bytes, uint64_t count,
                               double *seconds);

#endif
