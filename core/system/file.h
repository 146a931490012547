/* core/system/file.h - whole-range file transfers and files that appear under their name only when complete. */
#ifndef CORE_SYSTEM_FILE_H
#define CORE_SYSTEM_FILE_H

#include "strata/status.h"
#include <dirent.h>
#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <time.h>

#define ST_PATH_MAX 1024

#define ST_NEW_FILE_MARK ".strata-" /* between the name that a new file is to have and what tells it from others */

/** Join into path[ST_PATH_MAX]; E_INVAL when too long. */
strata_status st_path_join(char path[ST_PATH_MAX], const char *dir, const char *name);

/** Whether a name lies there, a link to nothing included.  Only what does not exist is absent: a directory that may not be
 * searched or a link that leads to itself is E_INPUT. */
strata_status st_file_find(bool *there, const char *path);

/* Which file an open one is, and in which state it was when it was opened. */
struct st_file_identity {
    uint64_t device, inode, links, bytes;
    struct timespec modified, changed; /* its contents; they or its owner, mode or names */
    unsigned permissions;              /* 0777: neither set-user-ID nor its like */
    bool regular;                      /* else a pipe: nothing of it can be told again */
};

/** Of an open file.  E_IO. */
strata_status st_file_identify(struct st_file_identity *out, int fd, const char *path);
/** After the last read, before anything is concluded from what was read.  E_INPUT: somebody wrote to the file since.  Being
 *  replaced or removed does not count, as the open file lives on; nor does being read.  Two writes within one tick of the file
 *  system's clock (up to 10 ms) look like one. */
strata_status st_file_check_unchanged(int fd, const struct st_file_identity *was, const char *path);

/** E_INPUT if `out` is the very file that `in` leads to ("-": standard input), under any name: a run's output is none of its
 * inputs.
 */
strata_status st_file_check_apart(const char *out, const char *in);

/** Open a regular file for reading; a link to one is followed.  Never waits: a pipe or a device is refused, not opened and waited
 *  for.  `missing` is the status of what is not there, forbidden or no file: E_INPUT for a user's file; a disk that fails is
 * E_IO. */
strata_status st_file_open(int *fd, struct st_file_identity *identity, const char *path, strata_status missing);
/** The same for what is read from its beginning to its end: pipes are taken, too, and one that nobody writes to is empty. */
strata_status st_file_open_stream(int *fd, struct st_file_identity *identity, const char *path, strata_status missing);
/** The next entry; NULL: errno is 0 at the end, else what hinders. */
struct dirent *st_dir_next(DIR *dir);
/** Open what the kernel says (/proc, /sys, control groups); -1 where it is not there or not for us, with a warning where another
 *  thing hinders: what is not read counts as "no limit". */
int st_kernel_file_open(const char *path);
/** The same for reading by lines; NULL. */
FILE *st_kernel_file_stream(const char *path);
/** Read exactly `bytes` at `offset`; E_IO, or E_INPUT when the file ends before. */
strata_status st_file_read_at(int fd, void *buf, uint64_t bytes, uint64_t offset, const char *path);
/** Read a whole regular file of at most `bytes_max`; *text is NUL-terminated, freed by the caller.  E_INPUT: also one that
 *  changed meanwhile. */
strata_status st_file_read_text(char **text, uint64_t *bytes, const char *path, uint64_t bytes_max);

/* A file that is made beside its final name, as NAME.strata-ID.tmp, and takes the name when it is complete.
 *
 * The ID is random and the file is new: nothing that lies there is opened, followed or overwritten.  A lock (flock) on the new
 * file says that its maker lives: a second maker of the same file is refused, whatever spelling or link to the directory it used,
 * and what dead makers left is removed.  Two that begin in the same instant may refuse each other.  On NFS the lock reaches as
 * far as its lock manager does; where a file system has no locks, makers are not kept apart and nothing is removed. Calls on one
 * file come from one thread; it must not be moved in memory between create and commit or abort. */
struct st_new_file {
    int fd;                   /* -1: none */
    int dir_fd;               /* its directory's, as long as fd is open */
    bool overwrite, named;    /* named: it has its final name already */
    bool kept;                /* it stays where it is, as temp */
    unsigned permissions;     /* that it is made with, before the umask */
    FILE *stream;             /* NULL until st_new_file_stream(); has no descriptor of its own */
    int stream_errno;         /* of its first write that failed; 0: none did */
    struct st_new_file *next; /* of all that are being made */
    size_t made_from;         /* length of the part of path that was there before; what follows up to base was made */
    size_t base;              /* where the name begins in path */
    char path[ST_PATH_MAX], temp[NAME_MAX + 1];
};

enum st_new_file_flags {
    ST_NEW_FILE_OVERWRITE = 1, /* take the name from what has it at commit; without: what is there is never replaced */
    ST_NEW_FILE_PARENTS = 2,   /* make missing directories, and remove them again at abort */
};

/** Whether `path` can be made: E_INPUT if something lies there (a regular file without `overwrite`, anything else ever), or if
 * its directory cannot be written to.  Makes nothing. */
strata_status st_new_file_check(const char *path, bool overwrite);
/** Begin to make `path`.  E_INPUT: as st_new_file_check(), or somebody is making it, this process included. */
strata_status st_new_file_create(struct st_new_file *f, const char *path, unsigned flags);
/** The same for a copy: with these permissions of the original (never set-user-ID and its like), less what the umask takes, as cp
 * does. */
strata_status st_new_file_create_as(struct st_new_file *f, const char *path, unsigned flags, unsigned permissions);
/** Take disk space for the whole file now: E_NOSPC early rather than late. */
strata_status st_new_file_reserve(struct st_new_file *f, uint64_t bytes);
strata_status st_new_file_write_at(struct st_new_file *f, const void *buf, uint64_t bytes, uint64_t offset);
/** f->stream writes to it, owned by `f`; commit reports what failed on it first. */
strata_status st_new_file_stream(struct st_new_file *f);
/** Writes what the stream holds.  @return 0, or the errno value of its first write that failed, whenever that was */
int st_new_file_flush(struct st_new_file *f);
/** fsync: of several files that belong together all are synced before the first takes its name, so that a full disk shows before.
 */
strata_status st_new_file_sync(struct st_new_file *f);
/** Take the final name now and stay open, for a file that is read while it grows; abort leaves such a one where it is. */
strata_status st_new_file_publish(struct st_new_file *f);
/** fsync, rename, fsync of the directory; closes.  On failure the new file is gone, but for one whose name was taken meanwhile by
 *  something that must not be replaced: it stays beside that, and the sentence says as what; and for one that has its name, which
 *  a power cut may take again.  E_INPUT: only where something took the name; E_NOSPC; else E_IO, as it could be begun. */
strata_status st_new_file_commit(struct st_new_file *f);
/** Give up its name, but not the file: abort leaves it as f->temp, NAME.strata-ID, which no run removes.  Where that name cannot
 *  be had either, it stays as NAME.strata-ID.tmp, which the next maker of NAME removes.  For what took hours; call sync before.
 */
void st_new_file_keep(struct st_new_file *f);
/** Of one that is kept: the next maker of NAME removes it. */
bool st_new_file_kept_for_now(const struct st_new_file *f);
/** Close and remove; nothing to do after commit. */
void st_new_file_abort(struct st_new_file *f);
/** Remove all that are being made in this process, which is about to end: after st_ending_begin(). */
void st_new_file_remove_all(void);

#endif
