/* core/system/file.h - whole-range file transfers and files that appear under their name only when complete. */
#ifndef CORE_SYSTEM_FILE_H
#define CORE_SYSTEM_FILE_H

#include "core/system/cleanup.h"
#include "core/system/path.h"
#include "strata/status.h"
#include <dirent.h>
#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>
#include <time.h>

#define ST_NEW_FILE_MARK ".strata-" /* between the name that a new file will get and its random ID */

/** Whether the name exists; a dangling link counts.  Only a name that does not exist is absent: a directory that may not be
 *  searched, or a link that leads to itself, is E_INPUT. */
strata_status st_file_find(bool *there, const char *path);

/** Give what has the name `path`, if anything has, the first free one of path.1, path.2, ...; nothing is replaced.
 *  @param to  out: the new name; "": there was nothing */
strata_status st_file_set_aside(char to[ST_PATH_MAX], const char *path);

/* The identity of an open file, and its state when it was opened. */
struct st_file_identity {
    uint64_t device, inode, links, bytes;
    struct timespec modified, changed; /* when the contents changed; when they or the owner, mode or names did */
    unsigned permissions;              /* within 0777: never set-user-ID, set-group-ID or sticky */
    bool regular;                      /* else a pipe, which cannot be checked again */
};

/** Fill in the identity of an open file.  E_IO. */
strata_status st_file_identify(struct st_file_identity *out, int fd, const char *path);
/** Call it after the last read, before anything is concluded from the contents.  E_INPUT: the file was written to since.  A file
 *  that was replaced or removed is fine, as the open file lives on; so is one that was read.  Two writes within one tick of the
 *  file system's clock (up to 10 ms) look like one. */
strata_status st_file_check_unchanged(int fd, const struct st_file_identity *was, const char *path);

/** Whether two files or directories are there and are the same one. */
bool st_file_is_same(const char *a, const char *b);
/** E_INPUT if `out` is the very file that `in` leads to ("-": standard input), under any name: a run must not write over one of
 *  its inputs. */
strata_status st_file_check_apart(const char *out, const char *in);

/** Open a regular file for reading; a link to one is followed.  Never waits: a pipe, a device or a file of the
 *  kernel's (/proc) is refused.  `missing` is the
 *  status for a file that does not exist, is forbidden or is not a regular file: E_INPUT for a user's file.  A failing disk is
 *  E_IO. */
strata_status st_file_open(int *fd, struct st_file_identity *identity, const char *path, strata_status missing);
/** The same for files that are read from beginning to end: pipes are accepted, too, unless one has neither bytes nor a
 *  writer. */
strata_status st_file_open_stream(int *fd, struct st_file_identity *identity, const char *path, strata_status missing);
/** Whether a pipe is there, which can be read once. */
bool st_file_is_pipe(const char *path);
/** The next entry; NULL: errno is 0 at the end of the directory, else the error. */
struct dirent *st_dir_next(DIR *dir);
/** Open a file of the kernel's (/proc, /sys, control groups). -1 if it does not exist or may not be read, and, with a warning, on
 *  any other error: a limit that cannot be read counts as "no limit". */
int st_kernel_file_open(const char *path);
/** The same as a stream, for reading line by line; NULL on failure. */
FILE *st_kernel_file_stream(const char *path);
/** Read exactly `bytes` at `offset`; E_IO, or E_INPUT if the file ends before that. */
strata_status st_file_read_at(int fd, void *buf, uint64_t bytes, uint64_t offset, const char *path);
/** Ask the kernel to read these bytes into its page cache while the caller goes on; it may decline. */
void st_file_read_ahead(int fd, uint64_t bytes, uint64_t offset);
/** Read a whole regular file of at most `bytes_max`; *text is NUL-terminated, freed by the caller.  E_INPUT also if it changed
 *  while it was read. */
strata_status st_file_read_text(char **text, uint64_t *bytes, const char *path, uint64_t bytes_max);

/* A file that is written beside its final name, as NAME.strata-ID.tmp, and takes that name when it is complete.
 *
 * The ID is random and the file is new: nothing that exists is opened, followed or overwritten.  A lock (flock) on the new file
 * shows that the process writing it is alive: a second writer of the same file is refused, whatever spelling or link to the
 * directory it uses, and files left by dead writers are removed.  Two writers that begin in the same instant may refuse each
 * other.  On NFS the lock reaches as far as the lock manager does; on a file system without locks, writers are not kept apart and
 * nothing is removed.  Calls on one file come from one thread; the struct must not move in memory between create and commit or
 * abort. */
struct st_new_file {
    int fd;                    /* -1: none */
    int dir_fd;                /* of its directory, valid while fd is open */
    bool overwrite, named;     /* named: it already has its final name */
    bool kept;                 /* abort leaves it where it is, under the name `temp` */
    unsigned permissions;      /* that it is created with, before the umask */
    FILE *stream;              /* NULL until st_new_file_stream(); has no descriptor of its own */
    int stream_errno;          /* of the first write that failed; 0: none did */
    struct st_cleanup cleanup; /* st_cleanup_lock() guards temp, named and kept */
    size_t made_from; /* length of the part of path that existed before; the directories from there up to base were made */
    size_t base;      /* where the file's name begins in path */
    char path[ST_PATH_MAX], temp[NAME_MAX + 1];
};

enum st_new_file_flags {
    ST_NEW_FILE_OVERWRITE = 1, /* replace the file that has the name at commit; without it, an existing file is never replaced */
    ST_NEW_FILE_PARENTS = 2,   /* make missing directories, and remove them again at abort */
};

/** E_INPUT, or as st_error_errno(): `what` cannot be created in `dir`; of one that is missing the sentence says what makes it. */
strata_status st_new_file_no_place(int err, const char *what, const char *dir);
/** Whether `path` can be created: E_INPUT if the name is taken (by a regular file unless `overwrite`, by anything else always),
 *  or if its directory cannot be written to.  Creates nothing. */
strata_status st_new_file_check(const char *path, bool overwrite);
/** Whether two paths, of files that need not be there, are those of one file. */
bool st_new_file_is_same(const char *a, const char *b);
/** Whether a file or directory would have the name of a directory, which need not be there either; "dir/" is "dir". */
bool st_new_file_is_dir(const char *path, const char *dir);
/** Begin to write `path`.  E_INPUT: as st_new_file_check(), or a process (this one included) is writing it already. */
strata_status st_new_file_create(struct st_new_file *f, const char *path, unsigned flags);
/** The same for a copy: with the permissions of the original (never set-user-ID and the like) less the umask, as cp does. */
strata_status st_new_file_create_as(struct st_new_file *f, const char *path, unsigned flags, unsigned permissions);
/** Allocate disk space for the whole file now, so that E_NOSPC comes early rather than late. */
strata_status st_new_file_reserve(struct st_new_file *f, uint64_t bytes);
strata_status st_new_file_write_at(struct st_new_file *f, const void *buf, uint64_t bytes, uint64_t offset);
/** Open f->stream, which writes to the file and is owned by `f`; commit reports the first write that failed. */
strata_status st_new_file_stream(struct st_new_file *f);
/** Writes what the stream holds.  @return 0, or the errno value of the first write that failed since the stream was opened */
int st_new_file_flush(struct st_new_file *f);
/** fsync.  If several files belong together, sync all of them before the first takes its name, so that a full disk shows up
 *  first. */
strata_status st_new_file_sync(struct st_new_file *f);
/** Take the final name now and stay open, for a file that is read while it grows; abort leaves such a file where it is. */
strata_status st_new_file_publish(struct st_new_file *f);
/** Remove a name that was taken and replaced nothing; abort then leaves nothing.  A file that cannot be removed stays. */
void st_new_file_take_back(struct st_new_file *f);
/** fsync, rename, fsync of the directory; closes.  On failure the new file is removed, with two exceptions: if something that
 *  must not be replaced took the name meanwhile, the new file stays beside it and the sentence names it; and if the file already
 *  has its name, it keeps it, though a power cut may take the name away again.  A file that was moved meanwhile is complete where
 *  it is, and a warning says where.  E_INPUT: only if something took the name; E_NOSPC; E_IO for everything else, since creating
 *  the file had worked; among that: it was removed or replaced meanwhile, and is not `named` any more. */
strata_status st_new_file_commit(struct st_new_file *f);
/** Commit files that belong together: all are on the disk before the first takes its name, and a signal finds none of the names
 * or all.  After a failure the caller aborts each.
 *  @param take_back  if one cannot take its name, those before it lose theirs: for files that replace none, since what was
 *                    replaced cannot be restored.  One that cannot be removed stays: it is complete */
strata_status st_new_file_commit_all(struct st_new_file *const files[], uint32_t count, bool take_back);
/** Give up the name, but not the file: abort leaves it as f->temp, NAME.strata-ID, which no run removes.  If it cannot get that
 *  name either, it stays as NAME.strata-ID.tmp, which the next writer of NAME removes.  For results that took hours; call sync
 *  first. */
void st_new_file_keep(struct st_new_file *f);
/** True if the kept file is one that the next writer of NAME removes. */
bool st_new_file_kept_for_now(const struct st_new_file *f);
/** Close and remove the file; does nothing after commit.  In a child of fork() the parent's file stays. */
void st_new_file_abort(struct st_new_file *f);

#endif
