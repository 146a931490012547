/* core/base/word.h - how near two words are, to tell what was meant by one that nobody knows. */
#ifndef CORE_BASE_WORD_H
#define CORE_BASE_WORD_H

#include <stdint.h>

/** Edits that make one word of the other: a letter more, less or another.  Case does not count, nor what is beyond 64 bytes. */
uint32_t st_word_edits(const char *a, const char *b);
/** Edits at most between a command or option that nobody knows and what was meant: half of its letters, 1 to 3. */
uint32_t st_word_edits_most(const char *word);

#endif
