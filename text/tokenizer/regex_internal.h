/* text/tokenizer/regex_internal.h - regular expressions, without PCRE2's header.  Private to text/tokenizer/. */
#ifndef TEXT_TOKENIZER_REGEX_INTERNAL_H
#define TEXT_TOKENIZER_REGEX_INTERNAL_H

#include "text/tokenizer/tokenizer_internal.h"

/** E_INPUT names `at`. */
strata_status st_regex_create(struct st_regex **out, const char *pattern, const struct st_place *at);
void st_regex_destroy(struct st_regex *regex);
/** One thread's scratch for any expression; NULL: no memory. */
struct st_regex_run *st_regex_run_create(void);
void st_regex_run_destroy(struct st_regex_run *run);
/** The first match at or after `at`; *begin SIZE_MAX: none.  The text is UTF-8.  E_INPUT: a limit was reached. */
strata_status st_regex_find(const struct st_regex *regex, struct st_regex_run *run, const char *text, size_t bytes, size_t at,
                            size_t *begin, size_t *end);

#endif
