/* core/system/owned_dir.h - a directory of one process's own in one that several share: PARENT/PREFIX<16 hex digits>.
 *
 * Two locks (flock) show that its owner is alive: on the directory, taken right after it is made, and on the file `lock` in it,
 * which other hosts see if the file system's locks reach them.  The kernel drops both when the owner dies, and a later process
 * sweeps what is left, at whatever instant that was.  Nothing that strata did not create is removed. */
#ifndef CORE_SYSTEM_OWNED_DIR_H
#define CORE_SYSTEM_OWNED_DIR_H

#include "strata/status.h"

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define ST_OWNED_DIR_LOCK "lock"

/* What such directories are for. */
struct st_owned_dir_kind {
    const char *prefix;                          /* of the name */
    const char *mark;                            /* first bytes of `lock`: "strata save lock 1\n" */
    mode_t mode;                                 /* 0755: other users may see whether the owner lives; 0700: they may not */
    const char *key;                             /* that names the parent, for remedies: "strata.save" */
    bool (*clear)(int dir_fd, const char *path); /* removes all but `lock`; false, after a warning: something stays */
};

/* Removed through descriptors, since PARENT may be renamed meanwhile. */
struct st_owned_dir {
    const struct st_owned_dir_kind *kind;
    char path[PATH_MAX]; /* absolute, for sentences */
    char name[64];
    int parent_fd, dir_fd; /* -1: none */
    int lock_fd;           /* of its file `lock`; -1: none */
    bool made;
};
#define ST_OWNED_DIR_NONE ((struct st_owned_dir){.parent_fd = -1, .dir_fd = -1, .lock_fd = -1})

/** Create and lock one in the directory `parent`.  On failure nothing is left behind; st_owned_dir_remove() is fine on the
 *  result either way.  E_INPUT: missing, or not a directory; E_IO, E_NOSPC, E_NOMEM. */
strata_status st_owned_dir_create(struct st_owned_dir *d, const struct st_owned_dir_kind *kind, const char *parent);
/** Remove what it holds, its lock and itself, but keep the locks. */
void st_owned_dir_clear(struct st_owned_dir *d);
/** Release the locks, and leave it where it is, if it is there still. */
void st_owned_dir_close(struct st_owned_dir *d);
/** Both. */
void st_owned_dir_remove(struct st_owned_dir *d);

/** What is wrong with a directory that a key names: E_INPUT, E_NOSPC, E_NOMEM, else E_IO, with the remedy.
 *  @param what  "cannot lock" */
strata_status st_owned_dir_error(int err, const char *what, const char *path, const char *key);

enum st_owned_dir_state {
    ST_OWNED_DIR_FOREIGN, /* not ours, or it cannot be told */
    ST_OWNED_DIR_LIVE,    /* of a process that lives: its owner's, or another's that looks at it now */
    ST_OWNED_DIR_DEAD,
    ST_OWNED_DIR_HIDDEN, /* it has a name of ours, and this user may not look into it: its owner may live */
};
typedef void st_owned_dir_fn(void *ctx, const char *name, enum st_owned_dir_state state);

/** Call `seen` for every directory in the open directory `parent_fd` whose name is of this kind, and remove those of dead owners
 *  first where `sweep` says so.
 *  @param path    of the parent, for sentences
 *  @param except  name of one to pass over; may be NULL
 *  @param seen    may be NULL
 *  @return how many were removed that an owner had locked: an empty one may be one that somebody makes just now */
uint32_t st_owned_dir_each(const struct st_owned_dir_kind *kind, int parent_fd, const char *path, const char *except, bool sweep,
                           st_owned_dir_fn *seen, void *ctx);

/** The same for whoever only lists what runs left: `seen`, which may be NULL, gets the path and whether the owner lives, of those
 *  that are ours.  One that cannot be looked into counts as a live owner's, after a warning. */
uint32_t st_owned_dir_leftovers(const struct st_owned_dir_kind *kind, int parent_fd, const char *path, bool sweep,
                                void (*seen)(void *ctx, const char *path, bool live), void *ctx);

#endif
