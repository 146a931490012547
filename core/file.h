/* core/file.h - whole-range file transfers and files that appear under their name only when complete. */
#ifndef CORE_FILE_H
#define CORE_FILE_H

#include "strata/status.h"
#include <stdint.h>

#define ST_PATH_MAX 1024

/** Join into path[ST_PATH_MAX]; E_INVAL when too long. */
strata_status st_path_join(char path[ST_PATH_MAX], const char *dir, const char *name);

/** Open for reading.  `missing` is the status of every failure: E_INPUT for a user's file. */
strata_status st_file_open(int *fd, uint64_t *bytes, const char *path, strata_status missing);
/** Read exactly `bytes` at `offset`; E_IO, or E_INPUT when the file ends before. */
strata_status st_file_read_at(int fd, void *buf, uint64_t bytes, uint64_t offset, const char *path);
/** Read a whole regular file of at most `bytes_max`; *text is NUL-terminated, freed by the caller.  E_INPUT. */
strata_status st_file_read_text(char **text, uint64_t *bytes, const char *path, uint64_t bytes_max);

/* A file being written beside its final name. */
struct st_new_file {
    int fd; /* -1: none */
    char path[ST_PATH_MAX], temp[ST_PATH_MAX];
};

/** Create "path.tmp", replacing a leftover. */
strata_status st_new_file_create(struct st_new_file *f, const char *path);
/** Take disk space for the whole file now: E_NOSPC early rather than late. */
strata_status st_new_file_reserve(struct st_new_file *f, uint64_t bytes);
strata_status st_new_file_write_at(struct st_new_file *f, const void *buf, uint64_t bytes, uint64_t offset);
/** fsync, rename, fsync of the directory; closes.  On failure the temp file is gone. */
strata_status st_new_file_commit(struct st_new_file *f);
/** Close and remove; nothing to do after commit. */
void st_new_file_abort(struct st_new_file *f);

#endif
