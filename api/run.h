/* api/run.h - what saving, resuming and the ranks of a run need to know of it. */
#ifndef API_RUN_H
#define API_RUN_H

#include <stdint.h>

/* A token file, by digests: of its header, of samples, and of where documents begin and which tokens are trained. */
struct st_run_file {
    const char *path; /* borrowed; as it was named */
    uint64_t bytes;
    char header[33], windows[33];
    char marks[33]; /* "": nothing says so */
};

/* What a run trains on. */
struct st_run_data {
    struct st_run_file *files; /* [file_count] */
    uint32_t file_count;       /* 0: nothing is said of the data */
    uint32_t seq;              /* tokens of a sequence */
    uint64_t sequences;        /* of all files */
    uint64_t seed;             /* of their order, */
    uint32_t order;            /* and enum strata_data_order */
    char date[11];             /* what the chat template took for today, YYYY-MM-DD; "": it did not ask, or nobody knows */
};

#endif
