/* core/base/word.h - how close two words are, to guess what an unknown word was meant to be. */
#ifndef CORE_BASE_WORD_H
#define CORE_BASE_WORD_H

#include <stdint.h>

/** Edits that turn one word into the other: a letter added, removed or replaced, or two neighbours swapped.  Case is ignored, and
 *  so is anything beyond 64 bytes. */
uint32_t st_word_edits(const char *a, const char *b);
/** The most edits between an unknown command or option and a suggestion for it: half of its letters, 1 to 3. */
uint32_t st_word_edits_most(const char *word);

#endif
