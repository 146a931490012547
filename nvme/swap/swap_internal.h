/* nvme/swap/swap_internal.h - the parts a swap is made of; not for users of nvme/swap/swap.h.
 *
 *   swap_dir.c     the locked run directory: what is in it, sweep
 *   swap_file.c    one file in it: its name, preallocated, direct if the file system allows it
 *   swap_space.c   whether the directories have room
 *   swap.c         puts them together
 *   swap_set.c     what saving and resuming do with the files: link, renew, attach */
#ifndef NVME_SWAP_SWAP_INTERNAL_H
#define NVME_SWAP_SWAP_INTERNAL_H

#include "core/system/cleanup.h"
#include "core/system/owned_dir.h"
#include "nvme/mover/stripe.h"
#include "nvme/mover/users.h"
#include "nvme/swap/swap.h"
#include <limits.h>
#include <sys/types.h>

#define ST_SWAP_NAME_BYTES  32u
#define ST_SWAP_VOLUMES_MAX (2 + ST_SWAP_SETS_MAX)
#define ST_SWAP_PATH_MAX    (PATH_MAX + ST_SWAP_NAME_BYTES)

#define ST_SWAP_BLOCK_DEFAULT (1u << 20)

/* DIR/strata-RUNID. */
extern const struct st_owned_dir_kind st_run_dir_kind;

/** Name of a volume's file in the directory of this index. */
void st_swap_file_name(char name[ST_SWAP_NAME_BYTES], uint32_t volume, uint32_t dir);
/** Create `name` in `run`, reserve `bytes` on the disk and choose direct or buffered I/O.  mode: less the process's mask; what
 * may become a file of a checkpoint has that of any other. */
strata_status st_swap_file_create(int *out_fd, bool *out_direct, const struct st_owned_dir *run, const char *name, uint64_t bytes,
                                  mode_t mode);

/** Bytes of a volume. */
uint64_t st_swap_volume_bytes(const uint64_t bytes[ST_SPACE_COUNT], uint32_t volume);
/** E_NOSPC, naming the directory, if one has no room for its part of all volumes; checked before anything is created. */
strata_status st_swap_check_room(const char *const *dirs, const struct st_stripe *stripe, const uint64_t bytes[ST_SPACE_COUNT],
                                 uint32_t volume_count);

/* One directory of a swap. */
struct st_swap_part {
    struct st_owned_dir run;
    struct st_users users;
    const struct st_swap *swap;
    uint32_t index; /* of this part */
    struct st_cleanup cleanup;
    bool direct;
    char scratch[ST_SWAP_PATH_MAX]; /* path */
};

/* The files of a volume, one per directory. */
struct st_swap_files {
    int fds[ST_SWAP_DIRS_MAX]; /* -1: none yet, or fake */
};

struct st_swap {
    struct st_stripe stripe;
    struct st_swap_part *parts; /* [stripe.dir_count] */
    bool fake;
    uint64_t bytes[ST_SPACE_COUNT];
    uint32_t volume_count;
    struct st_swap_files *volumes; /* [volume_count] scratch, base, set 0, set 1, ...: by the mover's numbers */
    struct st_swap_info info;
    struct st_mover *mover;
};

/* A volume in the words of the mover. */
struct st_swap_description {
    struct st_volume_opts opts;
    struct st_volume_file files[ST_SWAP_DIRS_MAX];
    char paths[ST_SWAP_DIRS_MAX][ST_SWAP_PATH_MAX];
};
void st_swap_describe(const struct st_swap *swap, uint32_t volume, const struct st_swap_files *files,
                      struct st_swap_description *out);
/** Create a volume's file in a directory. */
strata_status st_swap_create_file(const struct st_swap *swap, uint32_t volume, uint32_t dir, int *fd, bool *direct);

#endif
