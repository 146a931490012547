/* tests/cli/disk_model.h - what a disk holds after the power was cut at any instant of a recorded run.
 *
 * What a file holds is there after its fsync, and what a directory names is there after that directory's fsync: a rename between
 * two directories, which is one change, after the fsync of the one that it leads to.  Of all else any part may be there: writes
 * in pieces of a sector, and names either as of an earlier instant (a journal) or any of them, in their order (less than any
 * journal). */
#ifndef TESTS_CLI_DISK_MODEL_H
#define TESTS_CLI_DISK_MODEL_H

#include <stdint.h>

/* What becomes of that which was not synced. */
enum disk_loss {
    DISK_LOSES_ALL,
    DISK_LOSES_NOTHING, /* a kill, not a power cut */
    DISK_LOSES_DATA,    /* and the last names */
    DISK_LOSES_ANY,
    DISK_LOSS_COUNT,
};

struct disk;

/** Takes what a directory holds now for synced. */
struct disk *disk_open(const char *root);
void disk_close(struct disk *disk);
/** The calls of a run that began there then: file_recorder.c's file. */
void disk_take_records(struct disk *disk, const char *path);
uint32_t disk_record_count(const struct disk *disk);
/** The number of a record at random: any, the one after a call that was no write, or the one after a rename. */
uint32_t disk_choose(const struct disk *disk, uint64_t *random);
/** Makes a directory `to` of what there is after the power was cut before record number `at`. */
void disk_cut(struct disk *disk, uint32_t at, enum disk_loss loss, uint64_t seed, const char *to);
/** What the last `count` files that were renamed to `name` before that record hold; "" for those that are missing. */
void disk_renamed(const struct disk *disk, uint32_t at, const char *name, uint32_t count, char texts[][32]);

uint64_t disk_random(uint64_t *random);

#endif
