/* offload/comm/nccl_library_internal.h - the part of NCCL that exchanges need, opened at run time.
 *
 * The declarations are our own, with the names and values of NCCL's header, so the build needs neither header nor library.  They
 * have been the same since 2.14, from which on no call has to wait for other ranks. */
#ifndef OFFLOAD_COMM_NCCL_LIBRARY_INTERNAL_H
#define OFFLOAD_COMM_NCCL_LIBRARY_INTERNAL_H

#include "strata/status.h"
#include <stddef.h>
#include <stdint.h>

#define NCCL_VERSION_LEAST 21400 /* as ncclGetVersion tells it: 10000 * major + 100 * minor + patch */
#define NCCL_ID_BYTES      128u

enum { NCCL_SUCCESS = 0, NCCL_INTERNAL_ERROR = 3, NCCL_IN_PROGRESS = 7 }; /* ncclResult_t */
enum { NCCL_UINT8 = 1 };                                                  /* ncclDataType_t */

typedef struct nccl_comm *nccl_comm_t;
typedef struct {
    char internal[NCCL_ID_BYTES];
} nccl_id_t;

/* ncclConfig_t as 2.14 had it: later versions take what they find in `size` bytes, and their own defaults for the rest. */
struct nccl_config {
    size_t size;
    uint32_t magic, version;
    int blocking; /* 0: a call that would wait says NCCL_IN_PROGRESS */
};
#define NCCL_CONFIG                                                                                                              \
    {                                                                                                                            \
        .size = sizeof(struct nccl_config), .magic = 0xcafebeef, .version = NCCL_VERSION_LEAST, .blocking = 0                    \
    }

struct st_nccl {
    char name[256]; /* file of the library */
    int found;      /* its version */
    int (*version)(int *version);
    int (*unique_id)(nccl_id_t *id);
    int (*init)(nccl_comm_t *comm, int ranks, nccl_id_t id, int rank, struct nccl_config *config);
    int (*destroy)(nccl_comm_t comm);
    int (*abort)(nccl_comm_t comm);
    int (*async_error)(nccl_comm_t comm, int *error);
    const char *(*error_string)(int error);
    int (*group_start)(void);
    int (*group_end)(void);
    int (*send)(const void *data, size_t count, int type, int to, nccl_comm_t comm, void *stream);
    int (*receive)(void *data, size_t count, int type, int from, nccl_comm_t comm, void *stream);
};

/** E_NOSYS: none can be used; the sentence says what was tried, and what is needed. */
strata_status st_nccl_open(struct st_nccl *out);

#endif
