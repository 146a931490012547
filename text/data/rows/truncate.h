/* text/data/rows/truncate.h - what is kept of a conversation that is too long. */
#ifndef TEXT_DATA_ROWS_TRUNCATE_H
#define TEXT_DATA_ROWS_TRUNCATE_H

#include <stdint.h>

/** Keep at most `most` ids, in place: LLaMA-Factory's rule (infer_seqlen), turn by turn.  A turn is a run of ids that are not
 *  trained (its source) and the trained ones after it (its target).  From the first turn on, of the room that is left: a target
 *  of less than half of it is kept whole and its source cut to what remains; else a source of less than half is kept whole and
 *  the target cut; else both are cut in proportion to their lengths.  Sources and targets lose their ends.
 *  @return ids kept */
uint64_t st_truncate_turns(uint32_t *ids, uint8_t *trained, uint64_t count, uint64_t most);
/** The same from the last turn on (mask_history). */
uint64_t st_truncate_turns_from_last(uint32_t *ids, uint8_t *trained, uint64_t count, uint64_t most);

#endif
