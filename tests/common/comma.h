/* tests/common/comma.h - the locale of a program whose numbers have a decimal comma, as in half of the world. */
#ifndef TESTS_COMMON_COMMA_H
#define TESTS_COMMON_COMMA_H

/** Setup and teardown of a group, with a scratch directory: printf() says 0,5 in between.  No such locale has to be installed. */
int comma_begin(void **state);
int comma_end(void **state);
/** What main() returns for the group's result: 77 where the C library reads no locale of this form, so that nothing was run. */
int comma_result(int failed);

#endif
