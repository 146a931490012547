/* tests/cli/file_record.h - what file_recorder.c writes of each call that changed files, and disk_model.c reads. */
#ifndef TESTS_CLI_FILE_RECORD_H
#define TESTS_CLI_FILE_RECORD_H

#include <stdint.h>

enum file_record_op {
    FILE_MAKE,     /* `name` in `dir` is new file or directory (bytes != 0) `node` */
    FILE_LINK,     /* `name` in `dir` is `node`, too */
    FILE_RENAME,   /* `name` in `dir` became `to_name` in `to_dir` */
    FILE_EXCHANGE, /* the two names were exchanged */
    FILE_UNLINK,   /* `name` in `dir` is gone */
    FILE_WRITE,    /* `bytes` at `offset` of `node`: they follow */
    FILE_RESERVE,  /* `node` has `bytes` at least */
    FILE_CUT,      /* `node` has exactly `bytes` */
    FILE_SYNC,     /* `node` is on the disk */
};

/* In the order in which the calls returned, since each is made alone.  Nodes and directories are inode numbers. */
struct file_record {
    uint32_t op;
    uint64_t node, dir, to_dir, offset, bytes;
    char name[80], to_name[80];
};

#endif
