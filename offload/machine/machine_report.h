/* offload/machine/machine_report.h - what `strata info` prints about this machine: kernels, I/O methods, directories. */
#ifndef OFFLOAD_MACHINE_MACHINE_REPORT_H
#define OFFLOAD_MACHINE_MACHINE_REPORT_H

#include "strata/status.h"
#include <stdbool.h>
#include <stdint.h>

#define ST_REPORT_TEXT_BYTES  256
#define ST_REPORT_METHODS_MAX 8u
#define ST_REPORT_ISAS_MAX    8u

struct st_method_report {
    const char *name;
    bool usable;
    bool automatic;                 /* the method that "auto" chooses for a directory of a run */
    char why[ST_REPORT_TEXT_BYTES]; /* why it cannot be used; "" if it can */
};

struct st_dir_report {
    char filesystem[32];
    uint64_t free_bytes;
    bool writable;
    uint32_t memory_align, offset_align; /* of O_DIRECT, bytes; 0: the file system does not say or has none */
    bool direct_works;                   /* a write by O_DIRECT was tried */
    bool registers;                      /* memory of a run's usual requests could be registered with io_uring */
    struct st_disk_report {
        char name[32];  /* whole device, such as nvme0n1; "": the file system has none here */
        char model[64]; /* "": unknown */
        bool rotational;
        char scheduler[32];                   /* in use; "": unknown */
        uint64_t nr_requests, max_sectors_kb; /* 0: unknown */
    } disk;
    char problem[ST_REPORT_TEXT_BYTES];
    char advice[ST_REPORT_TEXT_BYTES * 2]; /* sentences that say what to change; "": nothing */
};

/** I/O methods in order of preference; the fake one is left out.  Returns how many of out[] were filled. */
uint32_t st_report_methods(struct st_method_report *out, uint32_t most);

/** A directory for swap files; `problem` is "" or says what is wrong with it.  Leaves nothing on disk. (The device's part is in
 *  machine_report_disk.c.) */
void st_report_dir(struct st_dir_report *out, const char *dir);

/** The block device under an open file, from /sys. */
void st_report_disk(struct st_disk_report *out, int fd);
/** Try what a run does: a direct write to an empty nameless file, in blocks as the file system requires, and registration of its
 *  buffers. */
void st_report_try(struct st_dir_report *out, int fd);
/** Fill `advice` from the other fields. */
void st_report_advise(struct st_dir_report *out);

/** Name of kernel table i of those usable here, best first; NULL past the end. */
const char *st_report_kernels(uint32_t i);

/** Names of the instruction sets of this processor that kernels could use.  @return how many */
uint32_t st_report_isas(const char *names[ST_REPORT_ISAS_MAX]);

/** The scope for which the kernel counts memory stalls, which show memory pressure in a run.  "": it does not count them. */
const char *st_report_psi(void);

/** The version of WSL, Windows Subsystem for Linux, that a kernel is by its release (uname -r): 1 or 2; 0: none.  */
uint32_t st_report_wsl(const char *release);

/** RLIMIT_MEMLOCK, bytes; UINT64_MAX: unlimited. */
uint64_t st_report_memlock(void);

#endif
