/* fuzz_tokens.c - any bytes as a token file: no crash; every window of an accepted file holds tokens of the vocabulary,
 * and targets are the tokens one further. */
#include "text/data/tokens.h"
#include "tests/fuzz/fuzz.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

enum { VOCAB = 300, SEQ = 5 };

static void check(bool holds)
{
    if (!holds)
        abort();
}

static void check_windows(const struct st_token_set *set)
{
    const uint64_t windows = st_token_set_windows(set) < 100 ? st_token_set_windows(set) : 100;
    int32_t tokens[SEQ], targets[SEQ];

    for (uint64_t i = 0; i < windows; i++) {
        check(st_token_set_window(set, i, 1, i % 2 == 0, tokens, targets, NULL) == STRATA_OK);
        for (uint32_t j = 0; j < SEQ; j++) {
            check(tokens[j] >= 0 && tokens[j] < VOCAB && targets[j] >= 0 && targets[j] < VOCAB);
            check(j == 0 || tokens[j] == targets[j - 1]);
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const int fd = memfd_create("tokens", MFD_CLOEXEC);
    char path[64];
    const char *const paths[] = {path};
    struct st_token_header header;
    struct st_token_set *set;
    strata_status st;

    check(fd >= 0 && write(fd, data, size) == (ssize_t)size);
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    st = st_token_set_open(&set, paths, 1, VOCAB, SEQ);
    check(st == STRATA_OK || st == STRATA_E_INPUT);
    if (st == STRATA_OK) {
        check(st_token_header_parse(&header, data, size, size, "fuzz") == STRATA_OK);
        check(st_token_set_windows(set) == (header.count - 1) / SEQ);
        check_windows(set);
        st_token_set_close(set);
    }
    close(fd);
    return 0;
}
