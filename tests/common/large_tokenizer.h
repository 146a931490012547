/* tests/common/large_tokenizer.h - a tokenizer.json of as many tokens as a test likes, with two merges for each. */
#ifndef TESTS_COMMON_LARGE_TOKENIZER_H
#define TESTS_COMMON_LARGE_TOKENIZER_H

#include <stdint.h>

#define LARGE_TOKENIZER_LENGTH 4u /* letters of a token, at most */

/** Every text of 1 to LARGE_TOKENIZER_LENGTH of the first letters from 'a' on is a token, the shorter ones first and those of one
 *  length in order.  Each is merged from its first letters and its last one, and from its first letter and the rest. */
void large_tokenizer_put(const char *path, uint32_t letters);
/** How many tokens of a length there are; of any length, with 0. */
uint32_t large_tokenizer_tokens(uint32_t letters, uint32_t length);
/** Token `index` of its length. */
void large_tokenizer_text(char text[LARGE_TOKENIZER_LENGTH + 1], uint32_t letters, uint32_t length, uint32_t index);

#endif
