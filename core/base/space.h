/* core/base/space.h - the parts of what a run keeps on drives.
 *
 * Each is addressed from 0 and has files of its own in every directory.  A run that saves no checkpoints has only scratch: all
 * that lies on a drive is there.  In one that saves, a set holds everything trained once; there are several of it, written in
 * turn, so that one which a checkpoint took stays as it is.  Base and sets may be parts of checkpoints. */
#ifndef CORE_BASE_SPACE_H
#define CORE_BASE_SPACE_H

enum st_space {
    ST_SPACE_SCRATCH, /* activations; without saving everything else, too */
    ST_SPACE_BASE,    /* frozen weights: written once */
    ST_SPACE_SET,     /* trained weights and their state */
    ST_SPACE_COUNT
};

#endif
