/* tests/cuda/emulator/nccl.h - what a test may do to the stand-in of NCCL, which is opened at run time: a test finds this by
 * dlsym(dlopen(STRATA_NCCL's file), TWIN_NCCL_SYMBOL).  Written while no communicator exists. */
#ifndef TESTS_CUDA_EMULATOR_NCCL_H
#define TESTS_CUDA_EMULATOR_NCCL_H

#include <stdatomic.h>
#include <stdint.h>

#define TWIN_NCCL_SYMBOL "twin_nccl"

struct twin_nccl {
    atomic_int version;      /* of the library; 22809 at first */
    atomic_int version_step; /* added each time it is asked for, so that ranks have different ones */
    atomic_int state;        /* of every communicator once it was made: an error, 0 for none */
    atomic_int lenient; /* a message of another size than its receiver's is received as far as it goes; otherwise it never is */
    atomic_int in_progress; /* how often each state is "in progress" first */
    atomic_uint comms;      /* that exist */
};

#endif
